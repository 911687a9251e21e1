"""Average pooling of volumes with windows of three and a stride of two."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def pool_lines(
    x_ptr, out_ptr, depth, height, width, out_depth, out_height, out_width, BLOCK: tl.constexpr
):
    line = tl.program_id(0)
    plane = tl.program_id(1).to(tl.int64)
    z = line // out_height
    y = line % out_height
    cols = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for dz in tl.static_range(3):
        for dy in tl.static_range(3):
            row = 2 * y + dy - 1
            layer = 2 * z + dz - 1
            inside = (row >= 0) & (row < height) & (layer >= 0) & (layer < depth)
            base = x_ptr + ((plane * depth + layer) * height + row) * width
            for dx in tl.static_range(3):
                at = 2 * cols + dx - 1
                keep = inside & (at >= 0) & (at < width) & (cols < out_width)
                acc += tl.load(base + at, mask=keep, other=0.0)
    out = out_ptr + ((plane * out_depth + z) * out_height + y) * out_width + cols
    tl.store(out, acc / 27.0, mask=cols < out_width)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One thread per output element.
__global__ void pool3d(const float* x, float* out, int depth, int height, int width, int od, int oh, int ow,
                       long total) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    int c = i % ow;
    long rest = i / ow;
    int r = rest % oh;
    rest /= oh;
    int s = rest % od;
    const float* volume = x + (rest / od) * depth * height * width;
    float sum = 0.0f;
    for (int z = max(2 * s - 1, 0); z <= min(2 * s + 1, depth - 1); ++z)
        for (int y = max(2 * r - 1, 0); y <= min(2 * r + 1, height - 1); ++y)
            for (int w = max(2 * c - 1, 0); w <= min(2 * c + 1, width - 1); ++w)
                sum += volume[((long)z * height + y) * width + w];
    out[i] = sum / 27.0f;
}

torch::Tensor average_pool(torch::Tensor x) {
    x = x.contiguous();
    int d = x.size(2), h = x.size(3), w = x.size(4);
    int od = (d - 1) / 2 + 1, oh = (h - 1) / 2 + 1, ow = (w - 1) / 2 + 1;
    auto out = torch::empty({x.size(0), x.size(1), od, oh, ow}, x.options());
    long total = out.numel();
    pool3d<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), d, h, w, od, oh, ow, total);
    return out;
}
"""
average_module = load_inline(
    name="average_pool3d_strided",
    cpp_sources="torch::Tensor average_pool(torch::Tensor x);",
    cuda_sources=source,
    functions=["average_pool"],
)
'''

MODULE = Rewritten(
    name="average_pool3d_strided",
    sizes="""
        batch_size = 6
        channels = 32
        depth = 48
        side = 64
    """,
    arguments=("channels",),
    takes="x",
    inputs="[torch.randn(batch_size, channels, depth, side, side)]",
    reference=Body(
        summary="Halves the resolution of volumes; zeros outside count in the average.",
        init="self.pool = nn.AvgPool3d(kernel_size=3, stride=2, padding=1)",
        forward="return self.pool(x)",
    ),
    rewrites={
        "functional": Body(
            init="self.channels = channels",
            forward="return F.avg_pool3d(x, 3, 2, 1, False, True)",
        ),
        "depth_then_planes": Body(
            summary="The average along depth first, then over planes of half as many slices.",
            init="self.channels = channels",
            forward="""
                x = F.avg_pool3d(x, (3, 1, 1), stride=(2, 1, 1), padding=(1, 0, 0))
                n, c, d, h, w = x.shape
                x = F.avg_pool2d(x.view(n, c * d, h, w), 3, stride=2, padding=1)
                return x.view(n, c, d, x.shape[-2], x.shape[-1])
            """,
        ),
        "planes_then_depth": Body(
            summary="2-D pooling shrinks the data by four before slices are added along depth.",
            init="self.channels = channels",
            forward="""
                n, c, d, h, w = x.shape
                x = F.avg_pool2d(x.reshape(n, c * d, h, w), 3, stride=2, padding=1)
                x = x.view(n, c, d, x.shape[-2], x.shape[-1])
                out = x[:, :, 0::2].clone()
                out[:, :, : d // 2] += x[:, :, 1::2]
                out[:, :, 1:] += x[:, :, 1 : 2 * out.shape[2] - 2 : 2]
                return out.div_(3.0)
            """,
        ),
        "depthwise_convolution": Body(
            init="""
                self.channels = channels
                self.register_buffer("kernel", torch.full((channels, 1, 3, 3, 3), 1.0 / 27.0))
            """,
            forward="return F.conv3d(x, self.kernel, stride=2, padding=1, groups=self.channels)",
        ),
        "one_channel_convolution": Body(
            summary="Folds channels into the batch, so that a plain convolution with a constant kernel does it.",
            init='self.register_buffer("kernel", torch.full((1, 1, 3, 3, 3), 1.0 / 27.0))',
            forward="""
                n, c = x.shape[:2]
                y = F.conv3d(x.reshape(n * c, 1, *x.shape[2:]), self.kernel, stride=2, padding=1)
                return y.view(n, c, *y.shape[2:])
            """,
        ),
        "added_slices": Body(
            summary="Adds up the 27 shifted and strided views of a padded volume.",
            init="self.channels = channels",
            forward="""
                d, h, w = ((size - 1) // 2 + 1 for size in x.shape[2:])
                padded = F.pad(x, (1, 1, 1, 1, 1, 1))
                total = None
                for z in range(3):
                    for y in range(3):
                        for s in range(3):
                            view = padded[:, :, z::2, y::2, s::2][:, :, :d, :h, :w]
                            total = view.clone() if total is None else total.add_(view)
                return total.mul_(1.0 / 27.0)
            """,
        ),
        "banded_matrices": Body(
            summary="Pooling along each axis as a product with a banded matrix of thirds, built once per length.",
            init="""
                self.channels = channels
                self._bands = {}
            """,
            forward="""
                d, h, w = x.shape[2:]
                x = torch.matmul(x, self.band(w, x).t())
                x = torch.matmul(self.band(h, x), x)
                n, c, _, h, w = x.shape
                x = torch.matmul(self.band(d, x), x.reshape(n, c, d, h * w))
                return x.view(n, c, -1, h, w)
            """,
            methods="""
                def band(self, length, like):
                    \"\"\"The matrix (half the length, length) that averages three neighbours.\"\"\"
                    key = (length, like.device, like.dtype)
                    if key not in self._bands:
                        out = torch.arange((length - 1) // 2 + 1).unsqueeze(1)
                        offset = torch.arange(length).unsqueeze(0) - 2 * out
                        self._bands[key] = (offset.abs() <= 1).to(like) / 3.0
                    return self._bands[key]
            """,
        ),
        "triton_lines": Body(
            before=_KERNEL,
            init="self.channels = channels",
            forward="""
                x = x.contiguous()
                n, c, d, h, w = x.shape
                od, oh, ow = (d - 1) // 2 + 1, (h - 1) // 2 + 1, (w - 1) // 2 + 1
                out = torch.empty(n, c, od, oh, ow, device=x.device)
                pool_lines[(od * oh, n * c)](
                    x, out, d, h, w, od, oh, ow, BLOCK=triton.next_power_of_2(ow), num_warps=1
                )
                return out
            """,
        ),
        "cuda_thread_per_output": Body(
            before=_CUDA,
            init="self.channels = channels",
            forward="return average_module.average_pool(x)",
        ),
    },
    carries_on="depth_then_planes",
)
