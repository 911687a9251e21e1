"""Maximum pooling of images with large windows that overlap."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_DIRECT_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def max_pool_kernel(x_ptr, out_ptr, height, width, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    plane = tl.program_id(1)
    base = x_ptr + plane.to(tl.int64) * height * width
    for start in range(0, width, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
        for dy in tl.static_range(K):
            y = row + dy - K // 2
            for dx in tl.static_range(K):
                at = cols + dx - K // 2
                keep = (y >= 0) & (y < height) & (at >= 0) & (at < width)
                best = tl.maximum(best, tl.load(base + y * width + at, mask=keep, other=float("-inf")))
        out = out_ptr + plane.to(tl.int64) * height * width + row * width + cols
        tl.store(out, best, mask=cols < width)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cfloat>

#define TILE 32
#define ROWS 8
#define REACH 2

// A tile of 32 x 32 outputs per block: its halo in shared memory, maxima along rows, then along columns.
__global__ void pool(const float* __restrict__ x, float* __restrict__ out, int height, int width) {
    __shared__ float halo[TILE + 2 * REACH][TILE + 2 * REACH];
    __shared__ float along[TILE + 2 * REACH][TILE];
    const long plane = (long)blockIdx.z * height * width;
    const int top = blockIdx.y * TILE - REACH;
    const int left = blockIdx.x * TILE - REACH;
    const int side = TILE + 2 * REACH;
    const int thread = threadIdx.y * TILE + threadIdx.x;
    for (int i = thread; i < side * side; i += TILE * ROWS) {
        int r = i / side, c = i % side;
        int gy = top + r, gx = left + c;
        bool inside = gy >= 0 && gy < height && gx >= 0 && gx < width;
        halo[r][c] = inside ? x[plane + (long)gy * width + gx] : -FLT_MAX;
    }
    __syncthreads();
    for (int r = threadIdx.y; r < side; r += ROWS) {
        float best = halo[r][threadIdx.x];
        #pragma unroll
        for (int k = 1; k <= 2 * REACH; ++k) best = fmaxf(best, halo[r][threadIdx.x + k]);
        along[r][threadIdx.x] = best;
    }
    __syncthreads();
    int gx = blockIdx.x * TILE + threadIdx.x;
    if (gx >= width) return;
    for (int r = threadIdx.y; r < TILE; r += ROWS) {
        int gy = blockIdx.y * TILE + r;
        if (gy >= height) break;
        float best = along[r][threadIdx.x];
        #pragma unroll
        for (int k = 1; k <= 2 * REACH; ++k) best = fmaxf(best, along[r + k][threadIdx.x]);
        out[plane + (long)gy * width + gx] = best;
    }
}

torch::Tensor max_pool_5(torch::Tensor x) {
    x = x.contiguous();
    auto out = torch::empty_like(x);
    int height = x.size(2), width = x.size(3);
    dim3 grid((width + TILE - 1) / TILE, (height + TILE - 1) / TILE, x.size(0) * x.size(1));
    pool<<<grid, dim3(TILE, ROWS)>>>(x.data_ptr<float>(), out.data_ptr<float>(), height, width);
    return out;
}
"""
pool_module = load_inline(
    name="max_pool2d_overlapping_tiles",
    cpp_sources="torch::Tensor max_pool_5(torch::Tensor x);",
    cuda_sources=source,
    functions=["max_pool_5"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="max_pool2d_overlapping",
    sizes="""
        batch_size = 6
        channels = 48
        height = 192
        width = 224
        kernel = 5
    """,
    arguments=("kernel",),
    takes="x",
    inputs="[torch.randn(batch_size, channels, height, width)]",
    images=True,
    reference=Body(
        summary="Maximum of the neighbourhood of every pixel.",
        init="self.pool = nn.MaxPool2d(kernel, stride=1, padding=kernel // 2)",
        forward="return self.pool(x)",
    ),
    rewrites={
        "rows_then_columns": Body(
            init="self.kernel = kernel\nself.reach = kernel // 2",
            forward="""
                x = F.max_pool2d(x, (1, self.kernel), stride=1, padding=(0, self.reach))
                return F.max_pool2d(x, (self.kernel, 1), stride=1, padding=(self.reach, 0))
            """,
        ),
        "threes_twice": Body(
            summary="A window of 5 is one of 3 applied twice.",
            init="""
                self.times = (kernel - 1) // 2
                self.pool = nn.MaxPool2d(3, stride=1, padding=1)
            """,
            forward="""
                for _ in range(self.times):
                    x = self.pool(x)
                return x
            """,
        ),
        "doubled_shifts": Body(
            summary="Maxima of 2, then of 4, then of 5 neighbours along each axis, by shifted slices.",
            init="self.kernel = kernel",
            forward="""
                reach = self.kernel // 2
                x = F.pad(x, (reach, reach, reach, reach), value=float("-inf"))
                x = self.along(x, 3)
                return self.along(x, 2)
            """,
            methods="""
                def along(self, x, axis):
                    \"\"\"Running maximum of `kernel` elements, which doubles its window while it can.\"\"\"
                    window = 1
                    while window < self.kernel:
                        step = min(window, self.kernel - window)
                        length = x.shape[axis] - step
                        x = torch.maximum(x.narrow(axis, 0, length), x.narrow(axis, step, length))
                        window += step
                    return x
            """,
        ),
        "shifts_into_buffer": Body(
            summary="One padded copy, then the 25 shifted views of it, each into the same output.",
            init="self.kernel = kernel",
            forward="""
                k = self.kernel
                height, width = x.shape[-2:]
                padded = F.pad(x, (k // 2,) * 4, value=float("-inf"))
                out = padded[..., :height, :width].clone()
                for dy in range(k):
                    for dx in range(k):
                        if dy or dx:
                            torch.maximum(out, padded[..., dy : dy + height, dx : dx + width], out=out)
                return out
            """,
        ),
        "windows_amax": Body(
            init="self.kernel = kernel",
            forward="""
                k = self.kernel
                x = F.pad(x, (k // 2,) * 4, value=float("-inf"))
                return x.unfold(2, k, 1).unfold(3, k, 1).amax(dim=(-2, -1))
            """,
        ),
        "image_by_image": Body(
            summary="Columns of every window by im2col, an image at a time to bound the memory.",
            init="self.kernel = kernel",
            forward="""
                n, c, h, w = x.shape
                k = self.kernel
                out = torch.empty_like(x)
                for i in range(n):
                    planes = F.pad(x[i].unsqueeze(1), (k // 2,) * 4, value=float("-inf"))
                    columns = F.unfold(planes, k)
                    torch.amax(columns, dim=1, out=out[i].view(c, h * w))
                return out
            """,
        ),
        "triton_direct": Body(
            before=_DIRECT_KERNEL,
            init="self.kernel = kernel",
            forward="""
                x = x.contiguous()
                n, c, h, w = x.shape
                out = torch.empty_like(x)
                max_pool_kernel[(h, n * c)](x, out, h, w, K=self.kernel, BLOCK=256)
                return out
            """,
        ),
        "cuda_shared_tiles": Body(
            before=_CUDA,
            init="assert kernel == 5, 'the tiles are built for windows of 5'",
            forward="return pool_module.max_pool_5(x)",
        ),
    },
    carries_on="rows_then_columns",
)
