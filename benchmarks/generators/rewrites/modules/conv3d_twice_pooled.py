"""A 3-D convolution of volumes, a division, average pooling twice, a bias per channel and SiLU."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_POOL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def pool_silu_kernel(y_ptr, bias_ptr, out_ptr, channels, depth, height, width, scale, BLOCK: tl.constexpr):
    # means of 4x4x4 blocks, times a scale, plus a bias, through SiLU; sizes are those of the output
    volume = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < depth * height * width
    col = at % width
    row = (at // width) % height
    layer = at // (width * height)
    base = y_ptr + volume * (64 * depth * height * width)
    inner = tl.arange(0, 4)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for dz in range(4):
        for dy in range(4):
            line = ((layer * 4 + dz) * (4 * height) + row * 4 + dy) * (4 * width) + col * 4
            v = tl.load(base + line[:, None] + inner[None, :], mask=keep[:, None], other=0.0)
            total += tl.sum(v, axis=1)
    y = total * scale + tl.load(bias_ptr + volume % channels)
    tl.store(out_ptr + volume * (depth * height * width) + at, y * tl.sigmoid(y), mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// Convolution of side 6 and stride 4 with padding 1, bias and SiLU: a thread per output pixel of the plane and
// eight channels, whose weights are in shared memory.
constexpr int SIDE = 6, STRIDE = 4, MANY = 8;

__global__ void strided(const float* __restrict__ x, const float* __restrict__ weight,
                        const float* __restrict__ bias, float* __restrict__ out, int c_in, int c_out, int depth,
                        int height, int width) {
    __shared__ float taps[SIDE * SIDE * SIDE * MANY];
    const int cube = SIDE * SIDE * SIDE;
    int out_d = depth / STRIDE, out_h = height / STRIDE, out_w = width / STRIDE;
    int pixels = out_d * out_h * out_w;
    int p = blockIdx.x * blockDim.x + threadIdx.x;
    int first = blockIdx.y * MANY;
    long image = blockIdx.z;
    int col = p % out_w * STRIDE - 1, row = p / out_w % out_h * STRIDE - 1, layer = p / (out_w * out_h) * STRIDE - 1;
    float sums[MANY];
    #pragma unroll
    for (int o = 0; o < MANY; ++o) sums[o] = bias[first + o];
    for (int k = 0; k < c_in; ++k) {
        __syncthreads();
        for (int i = threadIdx.x; i < cube * MANY; i += blockDim.x)
            taps[i] = weight[((long)(first + i % MANY) * c_in + k) * cube + i / MANY];
        __syncthreads();
        if (p >= pixels) continue;
        const float* volume = x + (image * c_in + k) * depth * height * width;
        for (int dz = 0; dz < SIDE; ++dz) {
            int z = layer + dz;
            if (z < 0 || z >= depth) continue;
            for (int dy = 0; dy < SIDE; ++dy) {
                int y = row + dy;
                if (y < 0 || y >= height) continue;
                for (int dx = 0; dx < SIDE; ++dx) {
                    int c = col + dx;
                    if (c < 0 || c >= width) continue;
                    float v = volume[(z * height + y) * width + c];
                    const float* w = taps + ((dz * SIDE + dy) * SIDE + dx) * MANY;
                    #pragma unroll
                    for (int o = 0; o < MANY; ++o) sums[o] += v * w[o];
                }
            }
        }
    }
    if (p >= pixels) return;
    #pragma unroll
    for (int o = 0; o < MANY; ++o)
        out[(image * c_out + first + o) * pixels + p] = sums[o] / (1.0f + expf(-sums[o]));
}

torch::Tensor strided_silu(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
    int c_out = weight.size(0), depth = x.size(2), height = x.size(3), width = x.size(4);
    TORCH_CHECK(c_out % MANY == 0 && depth % 4 == 0 && height % 4 == 0 && width % 4 == 0, "sizes");
    auto out = torch::empty({x.size(0), c_out, depth / 4, height / 4, width / 4}, x.options());
    int pixels = depth / 4 * (height / 4) * (width / 4);
    dim3 grid((pixels + 127) / 128, c_out / MANY, x.size(0));
    strided<<<grid, 128>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                           out.data_ptr<float>(), x.size(1), c_out, depth, height, width);
    return out;
}
"""
strided_module = load_inline(
    name="conv3d_twice_pooled_strided",
    cpp_sources="torch::Tensor strided_silu(torch::Tensor x, torch::Tensor weight, torch::Tensor bias);",
    cuda_sources=source,
    functions=["strided_silu"],
)
'''

_INIT = """
    self.divisor = divisor
    self.conv = nn.Conv3d(channels, outputs, 3, padding=1)
    self.bias = nn.Parameter(torch.randn(outputs, 1, 1, 1))
"""

_COMPOSITE = """
    # A mean over blocks of side 4 composed with the taps of side 3 is a convolution of side 6 and stride 4.
    with torch.no_grad():
        box = torch.full((1, 1, 4, 4, 4), 1.0 / (64 * divisor))
        taps = self.conv.weight.reshape(-1, 1, 3, 3, 3)
        composite = F.conv3d(taps, box, padding=3).view(outputs, channels, 6, 6, 6)
        self.register_buffer("composite", composite)
        self.register_buffer("shift", self.conv.bias / divisor + self.bias.flatten())
"""

MODULE = Rewritten(
    name="conv3d_twice_pooled",
    sizes="""
        batch_size = 12
        channels = 8
        outputs = 32
        depth = 16
        side = 64
        divisor = 2.0
    """,
    arguments=("channels", "outputs", "divisor"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, depth, side, side)]",
    reference=Body(
        summary="Features of volumes at a quarter of their resolution.",
        init=_INIT,
        forward="""
            x = self.conv(x)
            x = x / self.divisor
            x = F.avg_pool3d(x, 2)
            x = F.avg_pool3d(x, 2)
            x = x + self.bias
            return F.silu(x)
        """,
    ),
    rewrites={
        "one_pool": Body(
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("weight", self.conv.weight / divisor)
        self.register_buffer("shift", self.conv.bias / divisor + self.bias.flatten())
""",
            forward="""
                x = F.avg_pool3d(F.conv3d(x, self.weight, padding=1), 4)
                return F.silu(x.add_(self.shift.view(-1, 1, 1, 1)), inplace=True)
            """,
        ),
        "composed_kernel": Body(
            init=_INIT + _COMPOSITE,
            forward="return F.silu(F.conv3d(x, self.composite, self.shift, stride=4, padding=1))",
        ),
        "input_pooled_first": Body(
            summary="""The pool before the convolution, for every shift of the taps.

    Convolution and average commute if the averages are taken at all offsets; of these the convolution
    then needs every fourth position.
    """,
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("weight", self.conv.weight / divisor)
        self.register_buffer("shift", self.conv.bias / divisor + self.bias.flatten())
""",
            forward="""
                x = F.pad(x, (1, 1, 1, 1, 1, 1))
                x = F.avg_pool3d(x, 4, stride=1)
                return F.silu(F.conv3d(x, self.weight, self.shift, stride=4))
            """,
        ),
        "divide_after_pools": Body(
            forward="""
                x = F.avg_pool3d(F.avg_pool3d(self.conv(x), 2), 2)
                return F.silu(torch.add(self.bias, x, alpha=1.0 / self.divisor))
            """
        ),
        "blocks_as_means": Body(
            summary="The pools as a mean over a view with three more axes.",
            forward="""
                y = self.conv(x).div_(self.divisor)
                B, C, D, H, W = y.shape
                y = y.reshape(B, C, D // 4, 4, H // 4, 4, W // 4, 4).mean(dim=(3, 5, 7))
                return y.add_(self.bias).mul_(torch.sigmoid(y))
            """,
        ),
        "planes_in_2d": Body(
            summary="""The 3-D convolution as three 2-D ones over all planes, which are then added with shifts.

    Planes are moved to the batch axis once; every depth tap is one call of cuDNN's 2-D convolution.
    """,
            init=_INIT,
            methods='''
                def _plane_taps(self, planes, tap):
                    """One depth tap of the convolution for all planes of the batch."""
                    return F.conv2d(planes, self.conv.weight[:, :, tap], padding=1)
            ''',
            forward="""
                B, C, D, H, W = x.shape
                planes = x.transpose(1, 2).reshape(B * D, C, H, W)
                y = self._plane_taps(planes, 1).view(B, D, -1, H, W)
                y[:, 1:] += self._plane_taps(planes, 0).view(B, D, -1, H, W)[:, :-1]
                y[:, :-1] += self._plane_taps(planes, 2).view(B, D, -1, H, W)[:, 1:]
                y = F.avg_pool2d(y.view(B * D, -1, H, W), 4).view(B, D // 4, 4, -1, H // 4, W // 4).mean(dim=2)
                y = (y.transpose(1, 2) + self.conv.bias.view(-1, 1, 1, 1)) / self.divisor
                return F.silu(y + self.bias)
            """,
        ),
        "triton_pools": Body(
            before=_POOL_KERNEL,
            init=_INIT
            + """
    self.register_buffer("shift", self.conv.bias.detach() / divisor + self.bias.detach().flatten())
""",
            forward="""
                y = F.conv3d(x, self.conv.weight, padding=1).contiguous()
                B, C, D, H, W = y.shape
                out = torch.empty(B, C, D // 4, H // 4, W // 4, device=x.device)
                grid = (B * C, triton.cdiv(out[0, 0].numel(), 256))
                scale = 1.0 / (64 * self.divisor)
                pool_silu_kernel[grid](y, self.shift, out, C, D // 4, H // 4, W // 4, scale, BLOCK=256)
                return out
            """,
        ),
        "cuda_composed_kernel": Body(
            before=_CUDA,
            init=_INIT + _COMPOSITE,
            forward="return strided_module.strided_silu(x.contiguous(), self.composite, self.shift)",
        ),
    },
    carries_on="composed_kernel",
)
