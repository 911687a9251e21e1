"""Logits over a vocabulary, divided by a learned temperature, and the negative log-likelihood of targets."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_ROW_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def row_kernel(logits_ptr, targets_ptr, out_ptr, vocabulary, inverse, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    base = logits_ptr + row.to(tl.int64) * vocabulary
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    # Every lane keeps a running maximum and sum of its own; they are joined at the end.
    for start in range(0, vocabulary, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        value = tl.load(base + cols, mask=cols < vocabulary, other=-1.0e30).to(tl.float32) * inverse
        top = tl.maximum(best, value)
        total = total * tl.exp(best - top) + tl.exp(value - top)
        best = top
    peak = tl.max(best, axis=0)
    lse = peak + tl.log(tl.sum(total * tl.exp(best - peak), axis=0))
    target = tl.load(targets_ptr + row)
    chosen = tl.load(base + target).to(tl.float32) * inverse
    tl.store(out_ptr + row, lse - chosen)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cfloat>

// A block per row, two passes over it: the maximum, then the sum of exponentials.
template <bool MAXIMUM>
__device__ float block_reduce(float value, float* partial) {
    int lane = threadIdx.x % 32;
    int warp = threadIdx.x / 32;
    for (int offset = 16; offset > 0; offset >>= 1) {
        float other = __shfl_xor_sync(0xffffffff, value, offset);
        value = MAXIMUM ? fmaxf(value, other) : value + other;
    }
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    int warps = blockDim.x / 32;
    float result = partial[0];
    for (int i = 1; i < warps; ++i) result = MAXIMUM ? fmaxf(result, partial[i]) : result + partial[i];
    __syncthreads();
    return result;
}

__global__ void nll(const float* __restrict__ logits, const long* __restrict__ targets, float* __restrict__ out,
                    int vocabulary, float inverse) {
    __shared__ float partial[32];
    const float* row = logits + (long)blockIdx.x * vocabulary;
    float top = -FLT_MAX;
    for (int i = threadIdx.x; i < vocabulary; i += blockDim.x) top = fmaxf(top, row[i] * inverse);
    top = block_reduce<true>(top, partial);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < vocabulary; i += blockDim.x) sum += __expf(row[i] * inverse - top);
    sum = block_reduce<false>(sum, partial);
    if (threadIdx.x == 0) out[blockIdx.x] = top + logf(sum) - row[targets[blockIdx.x]] * inverse;
}

torch::Tensor nll_rows(torch::Tensor logits, torch::Tensor targets, double inverse) {
    auto out = torch::empty({logits.size(0)}, logits.options());
    nll<<<logits.size(0), 512>>>(logits.data_ptr<float>(), reinterpret_cast<const long*>(targets.data_ptr<int64_t>()),
                                 out.data_ptr<float>(), logits.size(1), (float)inverse);
    return out;
}
"""
nll_module = load_inline(
    name="temperature_log_likelihood_rows",
    cpp_sources="torch::Tensor nll_rows(torch::Tensor logits, torch::Tensor targets, double inverse);",
    cuda_sources=source,
    functions=["nll_rows"],
)
'''

_INIT = """
    self.head = nn.Linear(features, vocabulary)
    self.log_temperature = nn.Parameter(torch.full((1,), -1.5))
"""

_INVERSE = """
    self.inverse = float(torch.exp(-self.log_temperature.detach()))
"""

_CUDA_TILED_LOGITS = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

constexpr int TILE = 64;
constexpr int DEPTH = 16;

// 64 x 64 logits per block of 256 threads, 4 x 4 of them per thread, divided by the temperature at the end.
__global__ void tiled_logits(const float* __restrict__ x, const float* __restrict__ weight,
                             const float* __restrict__ bias, const float* __restrict__ log_temperature,
                             float* __restrict__ logits, int rows, int vocabulary, int features) {
    __shared__ float a[DEPTH][TILE + 1];
    __shared__ float b[DEPTH][TILE + 1];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const int row0 = blockIdx.x * TILE, col0 = blockIdx.y * TILE;
    float acc[4][4] = {};
    for (int k0 = 0; k0 < features; k0 += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += 256) {
            int k = i % DEPTH, m = i / DEPTH;
            bool deep = k0 + k < features;
            a[k][m] = deep && row0 + m < rows ? x[(long)(row0 + m) * features + k0 + k] : 0.0f;
            b[k][m] = deep && col0 + m < vocabulary ? weight[(long)(col0 + m) * features + k0 + k] : 0.0f;
        }
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            float left[4], right[4];
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                left[i] = a[k][ty + 16 * i];
                right[i] = b[k][tx + 16 * i];
            }
            #pragma unroll
            for (int i = 0; i < 4; ++i)
                #pragma unroll
                for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(left[i], right[j], acc[i][j]);
        }
        __syncthreads();
    }
    const float inverse = expf(-log_temperature[0]);
    for (int i = 0; i < 4; ++i) {
        int row = row0 + ty + 16 * i;
        for (int j = 0; j < 4; ++j) {
            int col = col0 + tx + 16 * j;
            if (row < rows && col < vocabulary)
                logits[(long)row * vocabulary + col] = (acc[i][j] + bias[col]) * inverse;
        }
    }
}

__global__ void online_nll(const float* __restrict__ logits, const int64_t* __restrict__ targets,
                           float* __restrict__ out, int vocabulary) {
    __shared__ float tops[256], sums[256];
    const float* row = logits + (long)blockIdx.x * vocabulary;
    const int tid = threadIdx.x;
    float top = -1e30f, sum = 0.0f;
    for (int i = tid; i < vocabulary; i += 256) {
        float z = row[i];
        if (z > top) {
            sum *= expf(top - z);
            top = z;
        }
        sum += expf(z - top);
    }
    tops[tid] = top;
    sums[tid] = sum;
    __syncthreads();
    for (int s = 128; s > 0; s >>= 1) {
        if (tid < s) {
            float higher = fmaxf(tops[tid], tops[tid + s]);
            sums[tid] = sums[tid] * expf(tops[tid] - higher) + sums[tid + s] * expf(tops[tid + s] - higher);
            tops[tid] = higher;
        }
        __syncthreads();
    }
    if (tid == 0) out[blockIdx.x] = tops[0] + logf(sums[0]) - row[targets[blockIdx.x]];
}

torch::Tensor log_likelihood(torch::Tensor x, torch::Tensor weight, torch::Tensor bias,
                             torch::Tensor log_temperature, torch::Tensor targets) {
    auto stream = at::cuda::getCurrentCUDAStream();
    const int rows = x.size(0), features = x.size(1), vocabulary = weight.size(0);
    auto logits = torch::empty({rows, vocabulary}, x.options());
    auto out = torch::empty({rows}, x.options());
    dim3 grid((rows + TILE - 1) / TILE, (vocabulary + TILE - 1) / TILE);
    tiled_logits<<<grid, 256, 0, stream>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                           log_temperature.data_ptr<float>(), logits.data_ptr<float>(), rows,
                                           vocabulary, features);
    online_nll<<<rows, 256, 0, stream>>>(logits.data_ptr<float>(), targets.data_ptr<int64_t>(),
                                         out.data_ptr<float>(), vocabulary);
    return out;
}
"""
likelihood = load_inline(
    name="temperature_log_likelihood_tiled",
    cpp_sources="torch::Tensor log_likelihood(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, "
    "torch::Tensor log_temperature, torch::Tensor targets);",
    cuda_sources=source,
    functions=["log_likelihood"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_THREE_STEPS = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>

#define BLOCK 128

// Step 1: scale the logits in place
__global__ void scale_kernel(float* logits, const float* log_temperature, long total) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < total) logits[i] = logits[i] / expf(log_temperature[0]);
}

// Step 2: maximum of every row
__global__ void row_max_kernel(const float* logits, float* highest, int vocabulary) {
    __shared__ float shared[BLOCK];
    const float* row = logits + (long)blockIdx.x * vocabulary;
    float best = -INFINITY;
    for (int i = threadIdx.x; i < vocabulary; i += BLOCK) best = fmaxf(best, row[i]);
    shared[threadIdx.x] = best;
    __syncthreads();
    for (int s = BLOCK / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + s]);
        __syncthreads();
    }
    if (threadIdx.x == 0) highest[blockIdx.x] = shared[0];
}

// Step 3: sum of exponentials and the loss
__global__ void row_loss_kernel(const float* logits, const float* highest, const int64_t* targets, float* out,
                                int vocabulary) {
    __shared__ float shared[BLOCK];
    const float* row = logits + (long)blockIdx.x * vocabulary;
    float top = highest[blockIdx.x];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < vocabulary; i += BLOCK) sum += expf(row[i] - top);
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int s = BLOCK / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] += shared[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = logf(shared[0]) + top - row[targets[blockIdx.x]];
}

torch::Tensor nll_from_logits(torch::Tensor logits, torch::Tensor log_temperature, torch::Tensor targets) {
    TORCH_CHECK(logits.is_cuda() && targets.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(logits.is_contiguous() && targets.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(logits.scalar_type() == torch::kFloat32, "float32 logits expected");
    TORCH_CHECK(targets.scalar_type() == torch::kInt64, "int64 targets expected");
    int rows = logits.size(0), vocabulary = logits.size(1);
    auto highest = torch::empty({rows}, logits.options());
    auto out = torch::empty({rows}, logits.options());
    long total = logits.numel();
    scale_kernel<<<(total + 255) / 256, 256>>>(logits.data_ptr<float>(), log_temperature.data_ptr<float>(), total);
    row_max_kernel<<<rows, BLOCK>>>(logits.data_ptr<float>(), highest.data_ptr<float>(), vocabulary);
    row_loss_kernel<<<rows, BLOCK>>>(logits.data_ptr<float>(), highest.data_ptr<float>(),
                                     targets.data_ptr<int64_t>(), out.data_ptr<float>(), vocabulary);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

three_steps = load_inline(
    name="temperature_log_likelihood_three_steps",
    cpp_sources="torch::Tensor nll_from_logits(torch::Tensor logits, torch::Tensor log_temperature, "
    "torch::Tensor targets);",
    cuda_sources=cuda_source,
    functions=["nll_from_logits"],
    verbose=False,
)
'''

MODULE = Rewritten(
    name="temperature_log_likelihood",
    sizes="""
        tokens = 1024
        features = 512
        vocabulary = 32000
    """,
    arguments=("features", "vocabulary"),
    takes="x, targets",
    inputs="[torch.randn(tokens, features), torch.randint(0, vocabulary, (tokens,))]",
    reference=Body(
        summary="The negative log-likelihood of a target per token, at a learned temperature.",
        init=_INIT,
        forward="""
            logits = self.head(x)
            logits = logits / torch.exp(self.log_temperature)
            log_probabilities = F.log_softmax(logits, dim=-1)
            return -log_probabilities.gather(1, targets.unsqueeze(1)).squeeze(1)
        """,
    ),
    rewrites={
        "cross_entropy": Body(
            forward="""
                logits = self.head(x).mul_(torch.exp(-self.log_temperature))
                return F.cross_entropy(logits, targets, reduction="none")
            """
        ),
        "folded_temperature": Body(
            summary="The temperature divides the head's weight and bias once.",
            init=_INIT
            + """
    with torch.no_grad():
        temperature = self.log_temperature.exp()
        self.register_buffer("weight", self.head.weight / temperature)
        self.register_buffer("bias", self.head.bias / temperature)
""",
            forward="""
                logits = F.linear(x, self.weight, self.bias)
                return torch.logsumexp(logits, dim=-1) - logits.gather(1, targets[:, None])[:, 0]
            """,
        ),
        "scaled_inputs": Body(
            init=_INIT + _INVERSE,
            forward="""
                # alpha and beta of the product carry the temperature.
                logits = torch.addmm(self.head.bias, x, self.head.weight.t(), beta=self.inverse, alpha=self.inverse)
                return F.nll_loss(F.log_softmax(logits, dim=-1), targets, reduction="none")
            """,
        ),
        "target_rows": Body(
            summary="The targets' logits come from the rows of the weight that they name.",
            init=_INIT + _INVERSE,
            forward="""
                scaled = x * self.inverse
                weight = self.head.weight.index_select(0, targets)
                chosen = (scaled * weight).sum(dim=-1) + self.head.bias[targets] * self.inverse
                logits = torch.addmm(self.head.bias, scaled, self.head.weight.t(), beta=self.inverse)
                return torch.logsumexp(logits, dim=-1).sub_(chosen)
            """,
        ),
        "exponentials_by_hand": Body(
            forward="""
                temperature = torch.exp(self.log_temperature)
                logits = self.head(x) / temperature
                top = logits.max(dim=-1, keepdim=True).values
                shifted = logits - top
                total = shifted.exp().sum(dim=-1)
                rows = torch.arange(x.shape[0], device=x.device)
                return total.log() - shifted[rows, targets]
            """
        ),
        "vocabulary_in_chunks": Body(
            summary="Never holds all logits: a running logsumexp goes over slices of the vocabulary.",
            init=_INIT
            + _INVERSE
            + """
    self.slice = 4000
""",
            forward="""
                scaled = x * self.inverse
                running = None
                for start in range(0, self.head.out_features, self.slice):
                    part = self.partial_lse(scaled, start, start + self.slice)
                    running = part if running is None else torch.logaddexp(running, part)
                return running - self.target_logits(scaled, targets)
            """,
            methods="""
                def partial_lse(self, scaled, start, stop):
                    weight = self.head.weight[start:stop]
                    bias = self.head.bias[start:stop]
                    logits = torch.addmm(bias, scaled, weight.t(), beta=self.inverse)
                    return torch.logsumexp(logits, dim=-1)

                def target_logits(self, scaled, targets):
                    weight = F.embedding(targets, self.head.weight)
                    dots = torch.bmm(scaled.unsqueeze(1), weight.unsqueeze(2)).view(-1)
                    return dots + self.inverse * self.head.bias[targets]
            """,
        ),
        "triton_half_logits": Body(
            before=_ROW_KERNEL,
            init=_INIT
            + _INVERSE
            + """
    self.register_buffer("half_weight", self.head.weight.detach().half())
    self.register_buffer("half_bias", self.head.bias.detach().half())
""",
            forward="""
                # Half-precision product and logits, single-precision reduction.
                logits = F.linear(x.half(), self.half_weight, self.half_bias)
                n, vocabulary = logits.shape
                out = torch.empty(n, device=x.device)
                row_kernel[(n,)](logits, targets, out, vocabulary, self.inverse, BLOCK=2048, num_warps=8)
                return out
            """,
        ),
        "cuda_rows": Body(
            before=_CUDA,
            init=_INIT + _INVERSE,
            forward="return nll_module.nll_rows(self.head(x), targets.contiguous(), self.inverse)",
        ),
        "cuda_tiled_logits": Body(
            before=_CUDA_TILED_LOGITS,
            init=_INIT,
            forward="""
                return likelihood.log_likelihood(
                    x.contiguous(), self.head.weight, self.head.bias, self.log_temperature, targets.contiguous()
                )
            """,
        ),
        "cuda_three_steps": Body(
            summary="""Negative log-likelihood at a learned temperature.

    Logits are the library's; they are scaled in place and reduced by kernels, and no probabilities are stored.
    """,
            before=_CUDA_THREE_STEPS,
            init=_INIT,
            methods='''
                def _losses(self, logits, targets):
                    """Loss of every token; overwrites the logits."""
                    if logits.is_cuda and logits.dtype == torch.float32 and targets.dtype == torch.int64:
                        return three_steps.nll_from_logits(
                            logits.contiguous(), self.log_temperature, targets.contiguous()
                        )
                    logits = logits / torch.exp(self.log_temperature)
                    return F.cross_entropy(logits, targets, reduction="none")
            ''',
            forward="return self._losses(self.head(x), targets)",
        ),
    },
    carries_on="folded_temperature",
)
