"""A series split into its moving average, with the ends repeated, and what is left."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def decompose(x_ptr, out_ptr, steps, channels, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    step = tl.program_id(1)
    cols = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < channels
    base = x_ptr + sample * steps * channels
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for k in range(WINDOW):
        at = tl.minimum(tl.maximum(step + k - WINDOW // 2, 0), steps - 1)
        total += tl.load(base + at * channels + cols, mask=keep, other=0.0)
    trend = total / WINDOW
    x = tl.load(base + step * channels + cols, mask=keep, other=0.0)
    out = out_ptr + (sample * steps + step) * 2 * channels
    tl.store(out + cols, x - trend, mask=keep)
    tl.store(out + channels + cols, trend, mask=keep)
"""

_INIT = """
    self.window = window
    self.side = window // 2
"""

_CUDA_RUNNING = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__device__ __forceinline__ int inside(int t, int steps) { return t < 0 ? 0 : (t >= steps ? steps - 1 : t); }

// A thread walks one channel over a segment of the steps and keeps the sum of the window as it slides.
__global__ void sliding_decompose(const float* __restrict__ x, float* __restrict__ out, int steps, int channels,
                                  int side, int segment) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    const float* series = x + (long)blockIdx.z * steps * channels + c;
    float* result = out + (long)blockIdx.z * steps * 2 * channels + c;
    int first = blockIdx.y * segment;
    int last = min(first + segment, steps);
    float sum = 0.0f;
    for (int k = -side; k <= side; ++k) sum += series[(long)inside(first + k, steps) * channels];
    float inverse = 1.0f / (2 * side + 1);
    for (int t = first; t < last; ++t) {
        float trend = sum * inverse;
        result[(long)t * 2 * channels] = series[(long)t * channels] - trend;
        result[(long)t * 2 * channels + channels] = trend;
        sum += series[(long)inside(t + side + 1, steps) * channels] - series[(long)inside(t - side, steps) * channels];
    }
}

torch::Tensor sliding_forward(torch::Tensor x, int64_t side) {
    int batch = x.size(0), steps = x.size(1), channels = x.size(2);
    auto out = torch::empty({batch, steps, 2 * channels}, x.options());
    const int segment = 48;
    dim3 grid((channels + 127) / 128, (steps + segment - 1) / segment, batch);
    sliding_decompose<<<grid, 128>>>(x.data_ptr<float>(), out.data_ptr<float>(), steps, channels, (int)side, segment);
    return out;
}
"""
sliding = load_inline(
    name="moving_average_decomposition_sliding",
    cpp_sources="torch::Tensor sliding_forward(torch::Tensor x, int64_t side);",
    cuda_sources=source,
    functions=["sliding_forward"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_AROUND_POOL = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>

// (batch, steps, channels) to (batch, channels, side + steps + side), ends replicated
__global__ void pad_transposed_kernel(const float* __restrict__ x, float* __restrict__ padded, int steps,
                                      int channels, int side, long total) {
    long idx = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int length = steps + 2 * side;
    int t = idx % length;
    int c = (idx / length) % channels;
    long b = idx / ((long)length * channels);
    int from = min(max(t - side, 0), steps - 1);
    padded[idx] = x[(b * steps + from) * channels + c];
}

// seasonal part and trend side by side, from the series and its transposed trend
__global__ void split_kernel(const float* __restrict__ x, const float* __restrict__ trend, float* __restrict__ out,
                             int steps, int channels, long total) {
    long idx = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int c = idx % channels;
    int t = (idx / channels) % steps;
    long b = idx / ((long)channels * steps);
    float m = trend[(b * channels + c) * steps + t];
    long row = (b * steps + t) * 2 * channels;
    out[row + c] = x[idx] - m;
    out[row + channels + c] = m;
}

torch::Tensor pad_transposed(torch::Tensor x, int64_t side) {
    TORCH_CHECK(x.is_cuda(), "x must be on the GPU");
    TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
    int batch = x.size(0), steps = x.size(1), channels = x.size(2);
    auto padded = torch::empty({batch, channels, steps + 2 * side}, x.options());
    long total = padded.numel();
    pad_transposed_kernel<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), padded.data_ptr<float>(), steps,
                                                        channels, (int)side, total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return padded;
}

torch::Tensor split_series(torch::Tensor x, torch::Tensor trend) {
    TORCH_CHECK(x.is_contiguous() && trend.is_contiguous(), "dense tensors expected");
    int batch = x.size(0), steps = x.size(1), channels = x.size(2);
    auto out = torch::empty({batch, steps, 2 * channels}, x.options());
    long total = x.numel();
    split_kernel<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), trend.data_ptr<float>(), out.data_ptr<float>(),
                                               steps, channels, total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

around_pool = load_inline(
    name="moving_average_decomposition_around_pool",
    cpp_sources=(
        "torch::Tensor pad_transposed(torch::Tensor x, int64_t side);"
        "torch::Tensor split_series(torch::Tensor x, torch::Tensor trend);"
    ),
    cuda_sources=cuda_source,
    functions=["pad_transposed", "split_series"],
)
'''

MODULE = Rewritten(
    name="moving_average_decomposition",
    sizes="""
        batch_size = 64
        steps = 720
        channels = 256
        window = 25
    """,
    arguments=("steps", "window"),
    takes="x",
    inputs="[torch.randn(batch_size, steps, channels)]",
    reference=Body(
        summary="Decomposes a multivariate series into seasonal part and trend, side by side.",
        init=_INIT + "    self.average = nn.AvgPool1d(kernel_size=window, stride=1)\n",
        forward="""
            front = x[:, :1, :].repeat(1, self.side, 1)
            end = x[:, -1:, :].repeat(1, self.side, 1)
            padded = torch.cat([front, x, end], dim=1)
            trend = self.average(padded.permute(0, 2, 1)).permute(0, 2, 1)
            seasonal = x - trend
            return torch.cat([seasonal, trend], dim=-1)
        """,
    ),
    rewrites={
        "replicate_pad": Body(
            init=_INIT,
            forward="""
                padded = F.pad(x.transpose(1, 2), (self.side, self.side), mode="replicate")
                trend = F.avg_pool1d(padded, self.window, stride=1).transpose(1, 2)
                return torch.cat([x - trend, trend], dim=-1)
            """,
        ),
        "pool_along_rows": Body(
            init=_INIT,
            summary="Pools along time with a tall window, so that channels stay last and nothing is transposed.",
            forward="""
                front = x[:, :1].expand(-1, self.side, -1)
                end = x[:, -1:].expand(-1, self.side, -1)
                padded = torch.cat([front, x, end], dim=1).unsqueeze(1)
                trend = F.avg_pool2d(padded, (self.window, 1), stride=1).squeeze(1)
                return torch.cat([x - trend, trend], dim=-1)
            """,
        ),
        "prefix_differences": Body(
            init=_INIT,
            forward="""
                # a window's sum is the difference of two prefix sums
                front = x[:, :1].expand(-1, self.side + 1, -1)
                end = x[:, -1:].expand(-1, self.side, -1)
                prefix = torch.cat([front, x, end], dim=1).cumsum(dim=1)
                trend = (prefix[:, self.window :] - prefix[:, : -self.window]) / self.window
                return torch.cat([x - trend, trend], dim=-1)
            """,
        ),
        "banded_matrix": Body(
            summary="""Decomposition as one matrix product per sample.

    Row t of the matrix holds the weights of the window at step t; the repeated ends are added to the first
    and the last column.
    """,
            init=_INIT
            + """
    offsets = torch.arange(-self.side, self.side + 1)
    columns = (torch.arange(steps)[:, None] + offsets[None, :]).clamp(0, steps - 1)
    band = torch.zeros(steps, steps)
    band.scatter_add_(1, columns, torch.full(columns.shape, 1.0 / window))
    self.register_buffer("band", band)
""",
            forward="""
                out = torch.empty(x.shape[0], x.shape[1], 2 * x.shape[2], device=x.device, dtype=x.dtype)
                trend = torch.matmul(self.band, x)
                torch.sub(x, trend, out=out[:, :, : x.shape[2]])
                out[:, :, x.shape[2] :].copy_(trend)
                return out
            """,
        ),
        "unfolded_mean": Body(
            init=_INIT,
            forward="""
                padded = F.pad(x.permute(0, 2, 1), (self.side, self.side), mode="replicate")
                trend = padded.unfold(2, self.window, 1).mean(dim=-1).permute(0, 2, 1)
                return torch.cat([x - trend, trend], dim=-1)
            """,
        ),
        "depthwise_convolution": Body(
            init=_INIT + '    self.register_buffer("kernel", torch.full((1, 1, window), 1.0 / window))\n',
            methods="""
                def _smooth(self, x):
                    batch, steps, channels = x.shape
                    series = x.transpose(1, 2).reshape(batch * channels, 1, steps)
                    series = F.pad(series, (self.side, self.side), mode="replicate")
                    return F.conv1d(series, self.kernel).view(batch, channels, steps).transpose(1, 2)
            """,
            forward="""
                trend = self._smooth(x)
                return torch.cat([x - trend, trend], dim=2)
            """,
        ),
        "shifted_sums": Body(
            init=_INIT,
            forward="""
                steps = x.shape[1]
                index = torch.arange(-self.side, steps + self.side, device=x.device).clamp_(0, steps - 1)
                padded = x.index_select(1, index)
                trend = padded[:, :steps].clone()
                for k in range(1, self.window):
                    trend += padded[:, k : k + steps]
                trend /= self.window
                return torch.cat([x - trend, trend], dim=-1)
            """,
        ),
        "triton_window": Body(
            before=_KERNEL,
            init=_INIT,
            forward="""
                x = x.contiguous()
                batch, steps, channels = x.shape
                out = torch.empty(batch, steps, 2 * channels, device=x.device)
                grid = (batch, steps, triton.cdiv(channels, 256))
                decompose[grid](x, out, steps, channels, WINDOW=self.window, BLOCK=256, num_warps=4)
                return out
            """,
        ),
        "cuda_sliding_sum": Body(
            before=_CUDA_RUNNING,
            init=_INIT,
            forward="""
                # a window of even size would not be symmetric around its step
                assert self.window % 2 == 1
                return sliding.sliding_forward(x.contiguous(), self.side)
            """,
        ),
        "cuda_around_library_pool": Body(
            summary="""Series decomposition with kernels on both sides of the library's pooling.

    One kernel pads and transposes, the other writes seasonal part and trend into their places.
    """,
            before=_CUDA_AROUND_POOL,
            init=_INIT,
            methods='''
                def _reference(self, x):
                    """Plain PyTorch, for inputs that the kernels do not take."""
                    ends = (x[:, :1].expand(-1, self.side, -1), x, x[:, -1:].expand(-1, self.side, -1))
                    trend = F.avg_pool1d(torch.cat(ends, dim=1).transpose(1, 2), self.window, stride=1)
                    trend = trend.transpose(1, 2)
                    return torch.cat([x - trend, trend], dim=-1)
            ''',
            forward="""
                if not x.is_cuda or x.dtype != torch.float32 or x.dim() != 3:
                    return self._reference(x)
                x = x.contiguous()
                padded = around_pool.pad_transposed(x, self.side)
                trend = F.avg_pool1d(padded, self.window, stride=1)
                return around_pool.split_series(x, trend.contiguous())
            """,
        ),
    },
    carries_on="prefix_differences",
)
