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
    },
    carries_on="folded_temperature",
)
