"""A linear layer on every token, batch norm in evaluation mode, the mean over tokens, and tanh."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_MEAN_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def mean_kernel(x_ptr, out_ptr, tokens, features, BLOCK_T: tl.constexpr, BLOCK_F: tl.constexpr):
    item = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    base = x_ptr + item * tokens * features
    acc = tl.zeros((BLOCK_T, BLOCK_F), dtype=tl.float32)
    for start in range(0, tokens, BLOCK_T):
        rows = start + tl.arange(0, BLOCK_T)
        keep = (rows[:, None] < tokens) & (cols[None, :] < features)
        acc += tl.load(base + rows[:, None] * features + cols[None, :], mask=keep, other=0.0)
    tl.store(out_ptr + item * features + cols, tl.sum(acc, axis=0) / tokens, mask=cols < features)
"""

_AFFINE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def pool_kernel(y_ptr, scale_ptr, shift_ptr, out_ptr, tokens, width, BLOCK: tl.constexpr):
    item = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < width
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for token in range(0, tokens):
        total += tl.load(y_ptr + (item * tokens + token) * width + cols, mask=keep, other=0.0)
    scale = tl.load(scale_ptr + cols, mask=keep, other=0.0)
    shift = tl.load(shift_ptr + cols, mask=keep, other=0.0)
    z = total / tokens * scale + shift
    tl.store(out_ptr + item * width + cols, 2.0 * tl.sigmoid(2.0 * z) - 1.0, mask=keep)
"""

_INIT = """
    self.linear = nn.Linear(features, width)
    self.norm = nn.BatchNorm1d(width)
    with torch.no_grad():
        self.norm.weight.uniform_(0.5, 1.5)
        self.norm.bias.uniform_(-0.5, 0.5)
        self.norm.running_mean.uniform_(-0.2, 0.2)
        self.norm.running_var.uniform_(0.2, 0.6)
"""

_FOLDED = """
    with torch.no_grad():
        scale = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
        self.register_buffer("weight", self.linear.weight * scale[:, None])
        self.register_buffer("bias", (self.linear.bias - self.norm.running_mean) * scale + self.norm.bias)
"""

_CUDA_PER_ITEM = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One block per item: the mean over its tokens in shared memory, then a warp per output feature.
// The projection is linear, so the mean may come first; batch norm and tanh are applied at the end.
__global__ void pooled_projection_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                                         const float* __restrict__ bias, const float* __restrict__ gamma,
                                         const float* __restrict__ beta, const float* __restrict__ mean,
                                         const float* __restrict__ var, float* __restrict__ out, int tokens,
                                         int features, int width, float eps) {
    extern __shared__ float pooled[];
    const float* item = x + (long)blockIdx.x * tokens * features;
    for (int f = threadIdx.x; f < features; f += blockDim.x) {
        float sum = 0.0f;
        for (int t = 0; t < tokens; ++t) sum += item[(long)t * features + f];
        pooled[f] = sum / tokens;
    }
    __syncthreads();
    int lane = threadIdx.x & 31;
    for (int o = threadIdx.x >> 5; o < width; o += blockDim.x >> 5) {
        float dot = 0.0f;
        for (int f = lane; f < features; f += 32) dot += pooled[f] * weight[(long)o * features + f];
        for (int s = 16; s > 0; s >>= 1) dot += __shfl_down_sync(0xffffffff, dot, s);
        if (lane == 0) {
            float y = (dot + bias[o] - mean[o]) * rsqrtf(var[o] + eps) * gamma[o] + beta[o];
            out[(long)blockIdx.x * width + o] = tanhf(y);
        }
    }
}

torch::Tensor pooled_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor gamma,
                             torch::Tensor beta, torch::Tensor mean, torch::Tensor var, double eps) {
    int batch = x.size(0), tokens = x.size(1), features = x.size(2), width = weight.size(0);
    auto out = torch::empty({batch, width}, x.options());
    pooled_projection_kernel<<<batch, 512, features * sizeof(float)>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), gamma.data_ptr<float>(),
        beta.data_ptr<float>(), mean.data_ptr<float>(), var.data_ptr<float>(), out.data_ptr<float>(), tokens,
        features, width, (float)eps);
    return out;
}
"""
pooled_module = load_inline(
    name="pooled_projection_per_item",
    cpp_sources="torch::Tensor pooled_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, "
    "torch::Tensor gamma, torch::Tensor beta, torch::Tensor mean, torch::Tensor var, double eps);",
    cuda_sources=source,
    functions=["pooled_forward"],
)
'''

_CUDA_ATOMIC_POOL = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>

__global__ void accumulate_kernel(const float* __restrict__ y, float* __restrict__ sums, int tokens, int width,
                                  long total) {
    long idx = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int o = idx % width;
    long item = idx / ((long)tokens * width);
    atomicAdd(&sums[item * width + o], y[idx]);
}

__global__ void finish_kernel(const float* __restrict__ sums, const float* __restrict__ gamma,
                              const float* __restrict__ beta, const float* __restrict__ mean,
                              const float* __restrict__ var, float* __restrict__ out, int tokens, int width,
                              int total, float eps) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int o = idx % width;
    float pooled = sums[idx] / tokens;
    out[idx] = tanhf((pooled - mean[o]) * rsqrtf(var[o] + eps) * gamma[o] + beta[o]);
}

torch::Tensor norm_pool_tanh(torch::Tensor y, torch::Tensor gamma, torch::Tensor beta, torch::Tensor mean,
                             torch::Tensor var, double eps) {
    TORCH_CHECK(y.is_cuda(), "y must be a CUDA tensor");
    TORCH_CHECK(y.is_contiguous(), "y must be contiguous");
    TORCH_CHECK(y.dim() == 3, "y must be (batch, tokens, width)");
    int batch = y.size(0), tokens = y.size(1), width = y.size(2);
    auto sums = torch::zeros({batch, width}, y.options());
    auto out = torch::empty({batch, width}, y.options());
    long total = y.numel();
    accumulate_kernel<<<(total + 255) / 256, 256>>>(y.data_ptr<float>(), sums.data_ptr<float>(), tokens, width, total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    int outputs = batch * width;
    finish_kernel<<<(outputs + 255) / 256, 256>>>(
        sums.data_ptr<float>(), gamma.data_ptr<float>(), beta.data_ptr<float>(), mean.data_ptr<float>(),
        var.data_ptr<float>(), out.data_ptr<float>(), tokens, width, outputs, (float)eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

pool_ext = load_inline(
    name="pooled_projection_atomic_pool",
    cpp_sources="torch::Tensor norm_pool_tanh(torch::Tensor y, torch::Tensor gamma, torch::Tensor beta, "
    "torch::Tensor mean, torch::Tensor var, double eps);",
    cuda_sources=cuda_source,
    functions=["norm_pool_tanh"],
    verbose=False,
)
'''

MODULE = Rewritten(
    name="pooled_projection",
    sizes="""
        batch_size = 32
        tokens = 196
        features = 768
        width = 1024
    """,
    arguments=("features", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, tokens, features) + 0.5 * torch.randn(batch_size, 1, features)]",
    reference=Body(
        summary="Projects tokens, normalises the channels by running statistics, and pools over tokens.",
        init=_INIT,
        forward="""
            y = self.linear(x)
            y = self.norm(y.transpose(1, 2))
            y = y.mean(dim=2)
            return torch.tanh(y)
        """,
    ),
    rewrites={
        "mean_first": Body(
            forward="""
                # All is linear up to the mean, so take the mean first.
                return torch.tanh(self.norm(self.linear(x.mean(dim=1))))
            """
        ),
        "folded_norm": Body(
            init=_INIT + _FOLDED,
            forward="return F.linear(x, self.weight, self.bias).mean(dim=1).tanh_()",
        ),
        "mean_first_folded": Body(
            init=_INIT + _FOLDED,
            forward="return torch.addmm(self.bias, x.mean(dim=1), self.weight.t()).tanh_()",
        ),
        "flat_norm": Body(
            summary="Tokens and batch in one dimension, so that no transposition is needed.",
            forward="""
                batch, tokens, features = x.shape
                y = self.norm(F.linear(x.reshape(-1, features), self.linear.weight, self.linear.bias))
                return torch.tanh_(y.view(batch, tokens, -1).mean(dim=1))
            """,
        ),
        "pooling_product": Body(
            summary="The mean over tokens as a product with a row of equal weights, before the folded layer.",
            init=_INIT
            + _FOLDED
            + """
    self.rows = {}
""",
            forward="""
                pooled = torch.matmul(self.row(x), x).squeeze(-2)
                return torch.tanh(F.linear(pooled, self.weight, self.bias))
            """,
            methods="""
                def row(self, x):
                    tokens = x.shape[1]
                    key = (tokens, x.device, x.dtype)
                    found = self.rows.get(key)
                    if found is None:
                        found = torch.full((1, tokens), 1.0 / tokens, device=x.device, dtype=x.dtype)
                        self.rows[key] = found
                    return found
            """,
        ),
        "convolution": Body(
            summary="The projection as a pointwise convolution, then adaptive pooling.",
            init=_INIT + _FOLDED,
            forward="""
                y = F.conv1d(x.transpose(1, 2), self.weight.unsqueeze(-1), self.bias)
                return torch.tanh(F.adaptive_avg_pool1d(y, 1).squeeze(-1))
            """,
        ),
        "triton_mean": Body(
            before=_MEAN_KERNEL,
            init=_INIT + _FOLDED,
            forward="""
                x = x.contiguous()
                batch, tokens, features = x.shape
                pooled = torch.empty(batch, features, device=x.device)
                mean_kernel[(batch, triton.cdiv(features, 64))](
                    x, pooled, tokens, features, BLOCK_T=32, BLOCK_F=64, num_warps=4
                )
                return torch.addmm(self.bias, pooled, self.weight.t()).tanh_()
            """,
        ),
        "triton_pool": Body(
            summary="Keeps the projection of all tokens; norm, mean and tanh are one kernel.",
            before=_AFFINE_KERNEL,
            init=_INIT
            + """
    with torch.no_grad():
        scale = self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)
        self.register_buffer("scale", scale)
        self.register_buffer("shift", self.norm.bias - self.norm.running_mean * scale)
""",
            forward="""
                y = self.linear(x)
                batch, tokens, width = y.shape
                out = torch.empty(batch, width, device=x.device)
                pool_kernel[(batch, triton.cdiv(width, 256))](
                    y, self.scale, self.shift, out, tokens, width, BLOCK=256
                )
                return out
            """,
        ),
        "cuda_block_per_item": Body(
            before=_CUDA_PER_ITEM,
            forward="""
                norm = self.norm
                return pooled_module.pooled_forward(
                    x.contiguous(), self.linear.weight, self.linear.bias, norm.weight, norm.bias,
                    norm.running_mean, norm.running_var, norm.eps,
                )
            """,
        ),
        "cuda_atomic_pool": Body(
            summary="The library projects all tokens; pooling, normalisation and tanh are kernels.",
            before=_CUDA_ATOMIC_POOL,
            methods='''
                def _pool(self, y):
                    """Running statistics, mean over tokens and tanh, in plain PyTorch."""
                    return torch.tanh(self.norm(y.transpose(1, 2)).mean(dim=2))

                def _can_fuse(self, y):
                    return y.is_cuda and y.dtype == torch.float32 and not self.training
            ''',
            forward="""
                y = self.linear(x)
                if not self._can_fuse(y):
                    return self._pool(y)
                norm = self.norm
                return pool_ext.norm_pool_tanh(
                    y.contiguous(), norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps
                )
            """,
        ),
    },
    carries_on="mean_first_folded",
)
