"""Maps and their maxima over windows of three sizes, side by side (spatial pyramid pooling)."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_PYRAMID_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def pyramid_kernel(x_ptr, out_ptr, channels, side, BLOCK: tl.constexpr):
    # One plane per program. The window of 13 is read once; those of 5 and 9 are its inner parts.
    plane = tl.program_id(0).to(tl.int64)
    image = plane // channels
    channel = plane % channels
    at = tl.arange(0, BLOCK)
    pixels = side * side
    keep = at < pixels
    row = at // side
    col = at % side
    base = x_ptr + plane * pixels
    small = tl.full((BLOCK,), -float("inf"), dtype=tl.float32)
    middle = small
    large = small
    for dy in range(-6, 7):
        for dx in range(-6, 7):
            r = row + dy
            c = col + dx
            inside = keep & (r >= 0) & (r < side) & (c >= 0) & (c < side)
            v = tl.load(base + r * side + c, mask=inside, other=-float("inf"))
            large = tl.maximum(large, v)
            in_middle = (dy >= -4) & (dy <= 4) & (dx >= -4) & (dx <= 4)
            middle = tl.where(in_middle, tl.maximum(middle, v), middle)
            in_small = (dy >= -2) & (dy <= 2) & (dx >= -2) & (dx <= 2)
            small = tl.where(in_small, tl.maximum(small, v), small)
    out = out_ptr + (image * 4 * channels + channel) * pixels + at
    tl.store(out, tl.load(base + at, mask=keep, other=0.0), mask=keep)
    tl.store(out + channels * pixels, small, mask=keep)
    tl.store(out + 2 * channels * pixels, middle, mask=keep)
    tl.store(out + 3 * channels * pixels, large, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A plane per block, in shared memory: three times a pool of 5 by rows and then by columns.
__global__ void pyramid(const float* __restrict__ x, float* __restrict__ out, int channels, int side) {
    extern __shared__ float shared[];
    int pixels = side * side;
    float* now = shared;
    float* rows = shared + pixels;
    long image = blockIdx.x / channels, channel = blockIdx.x % channels;
    const float* in = x + (long)blockIdx.x * pixels;
    float* to = out + (image * 4 * channels + channel) * pixels;
    for (int i = threadIdx.x; i < pixels; i += blockDim.x) {
        float v = in[i];
        now[i] = v;
        to[i] = v;
    }
    __syncthreads();
    for (int level = 1; level < 4; ++level) {
        for (int i = threadIdx.x; i < pixels; i += blockDim.x) {
            int c = i % side;
            float top = now[i];
            for (int d = max(-2, -c); d <= min(2, side - 1 - c); ++d) top = fmaxf(top, now[i + d]);
            rows[i] = top;
        }
        __syncthreads();
        float* level_to = to + (long)level * channels * pixels;
        for (int i = threadIdx.x; i < pixels; i += blockDim.x) {
            int r = i / side;
            float top = rows[i];
            for (int d = max(-2, -r); d <= min(2, side - 1 - r); ++d) top = fmaxf(top, rows[i + d * side]);
            now[i] = top;
            level_to[i] = top;
        }
        __syncthreads();
    }
}

torch::Tensor pool_pyramid(torch::Tensor x) {
    int channels = x.size(1), side = x.size(2);
    TORCH_CHECK(x.size(3) == side && side <= 64, "square maps of at most 64");
    auto out = torch::empty({x.size(0), 4 * channels, side, side}, x.options());
    size_t shared = 2 * side * side * sizeof(float);
    pyramid<<<x.size(0) * channels, 128, shared>>>(x.data_ptr<float>(), out.data_ptr<float>(), channels, side);
    return out;
}
"""
pyramid_module = load_inline(
    name="max_pool_pyramid_planes",
    cpp_sources="torch::Tensor pool_pyramid(torch::Tensor x);",
    cuda_sources=source,
    functions=["pool_pyramid"],
)
'''

_INIT = """
    self.pools = nn.ModuleList(nn.MaxPool2d(k, stride=1, padding=k // 2) for k in (5, 9, 13))
"""

MODULE = Rewritten(
    name="max_pool_pyramid",
    sizes="""
        batch_size = 16
        channels = 256
        side = 20
    """,
    arguments=(),
    takes="x",
    inputs="[torch.randn(batch_size, channels, side, side)]",
    reference=Body(
        summary="Spatial pyramid pooling with windows of 5, 9 and 13.",
        init=_INIT,
        forward="return torch.cat([x] + [pool(x) for pool in self.pools], dim=1)",
    ),
    rewrites={
        "cascade": Body(
            summary="A pool of 5 after a pool of 5 is a pool of 9, and another one makes it 13.",
            forward="""
                a = F.max_pool2d(x, 5, stride=1, padding=2)
                b = F.max_pool2d(a, 5, stride=1, padding=2)
                c = F.max_pool2d(b, 5, stride=1, padding=2)
                return torch.cat((x, a, b, c), dim=1)
            """,
        ),
        "separable_cascade": Body(
            summary="""The cascade of pools of 5, each by rows and then by columns.

    A maximum over a square is a maximum of maxima over its rows: ten comparisons instead of 25.
    """,
            methods='''
                def _pool(self, x):
                    """A pool of 5 by two one-dimensional ones."""
                    x = F.max_pool2d(x, (1, 5), stride=1, padding=(0, 2))
                    return F.max_pool2d(x, (5, 1), stride=1, padding=(2, 0))
            ''',
            forward="""
                levels = [x]
                for _ in self.pools:
                    levels.append(self._pool(levels[-1]))
                return torch.cat(levels, dim=1)
            """,
        ),
        "functional_pools": Body(
            forward="""
                small = F.max_pool2d(x, 5, 1, 2)
                middle = F.max_pool2d(x, 9, 1, 4)
                large = F.max_pool2d(x, 13, 1, 6)
                return torch.cat((x, small, middle, large), 1)
            """
        ),
        "slices_of_kept_output": Body(
            summary="""Each level is copied into its slice of an output that is kept.

    Saves the allocation and the list of the concatenation.
    """,
            init=_INIT
            + """
    self._out = None
""",
            methods='''
                def _output(self, x):
                    """Memory for all four levels, remade when the input's shape changes."""
                    shape = (x.shape[0], 4 * x.shape[1], x.shape[2], x.shape[3])
                    if self._out is None or self._out.shape != shape or self._out.device != x.device:
                        self._out = torch.empty(shape, dtype=x.dtype, device=x.device)
                    return self._out
            ''',
            forward="""
                out = self._output(x)
                channels = x.shape[1]
                out[:, :channels] = x
                for level, pool in enumerate(self.pools, 1):
                    out[:, level * channels : (level + 1) * channels] = pool(x)
                return out
            """,
        ),
        "windows_amax": Body(
            summary="Rows and columns of sliding windows, reduced by amax.",
            methods="""
                @staticmethod
                def _pool(x, size):
                    half = size // 2
                    x = F.pad(x, (half, half, half, half), value=float("-inf"))
                    return x.unfold(3, size, 1).amax(dim=-1).unfold(2, size, 1).amax(dim=-1)
            """,
            forward="return torch.cat([x, self._pool(x, 5), self._pool(x, 9), self._pool(x, 13)], dim=1)",
        ),
        "shifted_maxima": Body(
            summary="The cascade by pairwise maxima of shifted slices.",
            methods="""
                def _along(self, x, dim):
                    n = x.shape[dim] - 4
                    y = torch.maximum(x.narrow(dim, 0, n), x.narrow(dim, 4, n))
                    for start in (1, 2, 3):
                        y = torch.maximum(y, x.narrow(dim, start, n))
                    return y
            """,
            forward="""
                lowest = torch.finfo(x.dtype).min
                levels = [x]
                for _ in range(3):
                    padded = F.pad(levels[-1], (2, 2, 2, 2), value=lowest)
                    levels.append(self._along(self._along(padded, 3), 2))
                return torch.cat(levels, dim=1)
            """,
        ),
        "triton_windows": Body(
            before=_PYRAMID_KERNEL,
            forward="""
                x = x.contiguous()
                B, C, side, _ = x.shape
                out = torch.empty(B, 4 * C, side, side, device=x.device)
                pyramid_kernel[(B * C,)](x, out, C, side, BLOCK=triton.next_power_of_2(side * side))
                return out
            """,
        ),
        "cuda_planes": Body(before=_CUDA, forward="return pyramid_module.pool_pyramid(x.contiguous())"),
    },
    images=True,
    carries_on="cascade",
)
