"""A dilated convolution, group normalisation, mish, a scale per channel and the mean over space."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def norm_mish_mean_kernel(
    y_ptr, weight_ptr, bias_ptr, scale_ptr, out_ptr, channels, groups, area, eps,
    PER_GROUP: tl.constexpr, AREA: tl.constexpr,
):
    sample = tl.program_id(0) // groups
    group = tl.program_id(0) % groups
    inside = tl.arange(0, PER_GROUP)
    pixels = tl.arange(0, AREA)
    keep = (inside[:, None] >= 0) & (pixels[None, :] < area)
    channel = group * PER_GROUP + inside
    at = (sample * channels + channel[:, None]) * area + pixels[None, :]
    y = tl.load(y_ptr + at, mask=keep, other=0.0)
    count = PER_GROUP * area
    mean = tl.sum(tl.sum(y, axis=1), axis=0) / count
    centred = tl.where(keep, y - mean, 0.0)
    variance = tl.sum(tl.sum(centred * centred, axis=1), axis=0) / count
    weight = tl.load(weight_ptr + channel)
    bias = tl.load(bias_ptr + channel)
    y = centred / tl.sqrt(variance + eps) * weight[:, None] + bias[:, None]
    e = tl.exp(tl.minimum(y, 20.0))
    n = e * (e + 2.0)
    mish = tl.where(y > 20.0, y, y * n / (n + 2.0))
    mish = tl.where(keep, mish, 0.0)
    mean = tl.sum(mish, axis=1) / area
    tl.store(out_ptr + sample * channels + channel, mean * tl.load(scale_ptr + channel))
"""

_MISH_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def mish_mean_kernel(y_ptr, scale_ptr, out_ptr, channels, area, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, area, BLOCK):
        pixels = start + tl.arange(0, BLOCK)
        y = tl.load(y_ptr + plane * area + pixels, mask=pixels < area, other=0.0)
        softplus = tl.where(y > 20.0, y, tl.log(1.0 + tl.exp(tl.minimum(y, 20.0))))
        total += y * (2.0 * tl.sigmoid(2.0 * softplus) - 1.0)
    scale = tl.load(scale_ptr + plane % channels)
    tl.store(out_ptr + plane, tl.sum(total, axis=0) / area * scale)
"""

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def mish_scale_mean(x: Tensor, scale: Tensor) -> Tensor:
    x = x * torch.tanh(torch.log1p(torch.exp(x)))
    return torch.mean(x * scale.view(1, -1, 1, 1), dim=[2, 3])
""")
'''

_INIT = """
    self.conv = nn.Conv2d(channels, channels, 3, padding=2, dilation=2)
    self.norm = nn.GroupNorm(groups, channels)
    nn.init.uniform_(self.norm.weight, 0.5, 1.5)
    nn.init.uniform_(self.norm.bias, -0.5, 0.5)
    self.scale = nn.Parameter(torch.randn(channels))
"""

_CUDA_GROUPS = '''
from torch.utils.cpp_extension import load_inline

groups_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define THREADS 512
#define MAX_VALUES 8192

__device__ float block_sum(float v, float* scratch) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    __syncthreads();
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < THREADS / 32; ++i) sum += scratch[i];
    return sum;
}

// A block computes all pixels of one group of one sample: the convolution's results stay in shared memory for the
// statistics, the norm, mish and the mean.
__global__ void group_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                             const float* __restrict__ conv_bias, const float* __restrict__ gamma,
                             const float* __restrict__ beta, const float* __restrict__ scale,
                             float* __restrict__ out, int channels, int groups, int height, int width, float eps) {
    __shared__ float values[MAX_VALUES];
    __shared__ float scratch[THREADS / 32];
    const int sample = blockIdx.y;
    const int each = channels / groups;
    const int first = blockIdx.x * each;
    const int area = height * width;
    const float* image = x + (long)sample * channels * area;

    float sum = 0.0f;
    for (int i = threadIdx.x; i < each * area; i += THREADS) {
        const int o = first + i / area;
        const int p = i % area;
        const int row = p / width;
        const int col = p % width;
        float v = conv_bias[o];
        for (int c = 0; c < channels; ++c) {
            const float* plane = image + c * area;
            const float* taps = weight + (o * channels + c) * 9;
#pragma unroll
            for (int ky = 0; ky < 3; ++ky) {
                const int r = row + 2 * (ky - 1);
                if (r < 0 || r >= height) continue;
#pragma unroll
                for (int kx = 0; kx < 3; ++kx) {
                    const int q = col + 2 * (kx - 1);
                    if (q >= 0 && q < width) v = fmaf(plane[r * width + q], taps[ky * 3 + kx], v);
                }
            }
        }
        values[i] = v;
        sum += v;
    }
    const float mean = block_sum(sum, scratch) / (each * area);
    float squares = 0.0f;
    for (int i = threadIdx.x; i < each * area; i += THREADS) squares += (values[i] - mean) * (values[i] - mean);
    const float inverse = rsqrtf(block_sum(squares, scratch) / (each * area) + eps);

    for (int k = 0; k < each; ++k) {
        const int c = first + k;
        float total = 0.0f;
        for (int p = threadIdx.x; p < area; p += THREADS) {
            const float y = (values[k * area + p] - mean) * inverse * gamma[c] + beta[c];
            const float soft = y > 20.0f ? y : log1pf(expf(y));
            total += y * tanhf(soft);
        }
        total = block_sum(total, scratch);
        if (threadIdx.x == 0) out[sample * channels + c] = total / area * scale[c];
    }
}

torch::Tensor group_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, torch::Tensor gamma,
                            torch::Tensor beta, torch::Tensor scale, int64_t groups, double eps) {
    const int n = x.size(0), channels = x.size(1), height = x.size(2), width = x.size(3);
    TORCH_CHECK(channels / groups * height * width <= MAX_VALUES, "a group must fit into shared memory");
    auto out = torch::empty({n, channels}, x.options());
    dim3 grid(groups, n);
    group_kernel<<<grid, THREADS, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), conv_bias.data_ptr<float>(), gamma.data_ptr<float>(),
        beta.data_ptr<float>(), scale.data_ptr<float>(), out.data_ptr<float>(), channels, (int)groups, height, width,
        (float)eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
group_module = load_inline(
    name="dilated_group_norm_mish_groups",
    cpp_sources="torch::Tensor group_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor conv_bias, "
    "torch::Tensor gamma, torch::Tensor beta, torch::Tensor scale, int64_t groups, double eps);",
    cuda_sources=groups_source,
    functions=["group_forward"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_STATISTICS = '''
from torch.utils.cpp_extension import load_inline

tail_source = r"""
#include <torch/extension.h>

__global__ void group_statistics(const float* y, float* mean, float* inverse, int size, float eps) {
    __shared__ float sums[128];
    __shared__ float squares[128];
    const float* group = y + (long)blockIdx.x * size;
    float s = 0.0f;
    for (int i = threadIdx.x; i < size; i += blockDim.x) s += group[i];
    sums[threadIdx.x] = s;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    float m = sums[0] / size;
    float q = 0.0f;
    for (int i = threadIdx.x; i < size; i += blockDim.x) q += (group[i] - m) * (group[i] - m);
    squares[threadIdx.x] = q;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) squares[threadIdx.x] += squares[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = m;
        inverse[blockIdx.x] = 1.0f / sqrtf(squares[0] / size + eps);
    }
}

// one thread per sample and channel
__global__ void mish_mean(const float* y, const float* mean, const float* inverse, const float* gamma,
                          const float* beta, const float* scale, float* out, int planes, int channels, int each,
                          int area) {
    int plane = blockIdx.x * blockDim.x + threadIdx.x;
    if (plane >= planes) return;
    int c = plane % channels;
    int group = plane / each;
    float total = 0.0f;
    for (int p = 0; p < area; p++) {
        float v = (y[(long)plane * area + p] - mean[group]) * inverse[group] * gamma[c] + beta[c];
        total += v * tanhf(log1pf(expf(v)));
    }
    out[plane] = scale[c] * total / area;
}

torch::Tensor norm_mish_mean(torch::Tensor y, torch::Tensor gamma, torch::Tensor beta, torch::Tensor scale,
                             int64_t groups, double eps) {
    TORCH_CHECK(y.is_cuda() && y.is_contiguous(), "y must be a contiguous CUDA tensor");
    int n = y.size(0), channels = y.size(1), area = y.size(2) * y.size(3);
    TORCH_CHECK(channels % groups == 0, "groups must divide channels");
    int each = channels / groups;
    auto mean = torch::empty({n * groups}, y.options());
    auto inverse = torch::empty({n * groups}, y.options());
    auto out = torch::empty({n, channels}, y.options());
    group_statistics<<<n * groups, 128>>>(y.data_ptr<float>(), mean.data_ptr<float>(), inverse.data_ptr<float>(),
                                          each * area, (float)eps);
    mish_mean<<<(n * channels + 63) / 64, 64>>>(y.data_ptr<float>(), mean.data_ptr<float>(),
                                                inverse.data_ptr<float>(), gamma.data_ptr<float>(),
                                                beta.data_ptr<float>(), scale.data_ptr<float>(),
                                                out.data_ptr<float>(), n * channels, channels, each, area);
    return out;
}
"""
tail_module = load_inline(
    name="dilated_group_norm_mish_statistics",
    cpp_sources="torch::Tensor norm_mish_mean(torch::Tensor y, torch::Tensor gamma, torch::Tensor beta, "
    "torch::Tensor scale, int64_t groups, double eps);",
    cuda_sources=tail_source,
    functions=["norm_mish_mean"],
)
'''

MODULE = Rewritten(
    name="dilated_group_norm_mish",
    sizes="""
        batch_size = 16
        channels = 32
        groups = 8
        side = 32
    """,
    arguments=("channels", "groups"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, side, side)]",
    reference=Body(
        summary="Dilated convolution, group normalisation, mish, a scale per channel, global average.",
        init=_INIT,
        forward="""
            x = self.conv(x)
            x = self.norm(x)
            x = x * torch.tanh(F.softplus(x))
            x = x * self.scale.view(1, -1, 1, 1)
            return x.mean(dim=(2, 3))
        """,
    ),
    rewrites={
        "library_mish": Body(
            forward="""
                x = F.mish(self.norm(self.conv(x)), inplace=True)
                return x.mean(dim=(2, 3)) * self.scale
            """
        ),
        "pooled_then_scaled": Body(
            forward="""
                x = F.mish(F.group_norm(self.conv(x), self.norm.num_groups, self.norm.weight, self.norm.bias))
                return F.adaptive_avg_pool2d(x, 1).flatten(1).mul_(self.scale)
            """
        ),
        "mish_without_logarithm": Body(
            summary="tanh(log(1 + e)) is n / (n + 2) with n = e (e + 2): one exponential in place of three functions.",
            forward="""
                x = self.norm(self.conv(x))
                e = torch.exp(x.clamp(max=20.0))
                n = e * (e + 2.0)
                x = x * n / (n + 2.0)
                return x.mean(dim=(-2, -1)) * self.scale
            """,
        ),
        "norm_by_hand": Body(
            methods='''
                def group_statistics(self, y):
                    """Mean and reciprocal deviation of each group, from sums of values and squares."""
                    grouped = y.view(y.shape[0], self.norm.num_groups, -1)
                    var, mean = torch.var_mean(grouped, dim=2, unbiased=False)
                    return mean, torch.rsqrt(var + self.norm.eps)

                def per_channel(self, mean, rstd):
                    """Factor and summand of each channel of each sample."""
                    repeats = self.norm.num_channels // self.norm.num_groups
                    factor = rstd.repeat_interleave(repeats, dim=1) * self.norm.weight
                    summand = self.norm.bias - mean.repeat_interleave(repeats, dim=1) * factor
                    return factor[:, :, None, None], summand[:, :, None, None]
            ''',
            forward="""
                y = self.conv(x).contiguous()
                factor, summand = self.per_channel(*self.group_statistics(y))
                y = F.mish(torch.addcmul(summand, y, factor))
                return y.mean(dim=(2, 3)) * self.scale
            """,
        ),
        "mean_as_product": Body(
            init=_INIT
            + """
    self.register_buffer("mean_weights", torch.empty(0), persistent=False)
""",
            forward="""
                x = F.mish(self.norm(self.conv(x))).flatten(2)
                if self.mean_weights.shape[0] != x.shape[2] or self.mean_weights.device != x.device:
                    self.mean_weights = torch.full((x.shape[2],), 1.0 / x.shape[2], device=x.device)
                return torch.matmul(x, self.mean_weights) * self.scale
            """,
        ),
        "unfolded_convolution": Body(
            forward="""
                n, c, h, w = x.shape
                columns = F.unfold(x, 3, dilation=2, padding=2)
                y = torch.matmul(self.conv.weight.view(c, -1), columns) + self.conv.bias.view(1, c, 1)
                y = F.mish(self.norm(y))
                return y.mean(dim=2) * self.scale
            """
        ),
        "scripted_tail": Body(
            before=_SCRIPTED,
            forward="return scripted.mish_scale_mean(self.norm(self.conv(x)), self.scale)",
        ),
        "triton_mish_mean": Body(
            before=_MISH_KERNEL,
            forward="""
                y = self.norm(self.conv(x)).contiguous()
                n, c, h, w = y.shape
                out = torch.empty((n, c), device=y.device, dtype=y.dtype)
                mish_mean_kernel[(n * c,)](y, self.scale, out, c, h * w, BLOCK=512)
                return out
            """,
        ),
        "triton_norm_to_mean": Body(
            before=_TAIL_KERNEL,
            summary="Everything after the convolution in one kernel, a program per sample and group.",
            forward="""
                y = self.conv(x).contiguous()
                n, c, h, w = y.shape
                groups = self.norm.num_groups
                out = torch.empty((n, c), device=y.device, dtype=y.dtype)
                norm_mish_mean_kernel[(n * groups,)](
                    y, self.norm.weight, self.norm.bias, self.scale, out, c, groups, h * w, self.norm.eps,
                    PER_GROUP=c // groups, AREA=triton.next_power_of_2(h * w), num_warps=8,
                )
                return out
            """,
        ),
        "cuda_block_per_group": Body(
            before=_CUDA_GROUPS,
            forward="""
                norm = self.norm
                return group_module.group_forward(
                    x.contiguous(), self.conv.weight.contiguous(), self.conv.bias, norm.weight, norm.bias, self.scale,
                    norm.num_groups, norm.eps
                )
            """,
        ),
        "cuda_norm_mish_mean": Body(
            summary="""The convolution by the library, all that follows by two kernels.

    One kernel takes the statistics of the groups, the other goes from there to the means of the channels.
    """,
            before=_CUDA_STATISTICS,
            init=_INIT,
            methods='''
                def _tail(self, y):
                    """Norm, mish, scale and mean of the convolution's output."""
                    norm = self.norm
                    if y.is_cuda and y.dtype == torch.float32:
                        return tail_module.norm_mish_mean(
                            y.contiguous(), norm.weight, norm.bias, self.scale, norm.num_groups, norm.eps
                        )
                    return F.mish(norm(y)).mean(dim=(2, 3)) * self.scale
            ''',
            forward="return self._tail(self.conv(x))",
        ),
    },
    images=True,
    carries_on="library_mish",
)
