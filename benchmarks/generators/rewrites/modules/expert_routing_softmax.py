"""Weights of the best experts of each token: softmax, the largest few, normalised and put back in place."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def route(logits_ptr, out_ptr, tokens, experts, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < experts
    z = tl.load(logits_ptr + row * experts + cols, mask=inside, other=-float("inf"))
    highest = tl.max(z, axis=0)
    left = z
    chosen = tl.zeros([BLOCK], dtype=tl.float32)
    for _ in tl.static_range(TOP):
        best = tl.argmax(left, axis=0)
        hit = cols == best
        chosen = tl.where(hit, 1.0, chosen)
        left = tl.where(hit, -float("inf"), left)
    weights = tl.where(chosen > 0.0, tl.exp(z - highest), 0.0)
    weights = weights / tl.sum(weights, axis=0)
    tl.store(out_ptr + row * experts + cols, weights, mask=inside)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One warp per token; each lane holds two of at most 64 experts.
__global__ void route_kernel(const float* __restrict__ logits, float* __restrict__ out, int tokens, int experts,
                             int top) {
    int token = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31;
    if (token >= tokens) return;
    const float* z = logits + (long)token * experts;
    float first = lane < experts ? z[lane] : -INFINITY;
    float second = lane + 32 < experts ? z[lane + 32] : -INFINITY;
    float left_first = first, left_second = second, highest = 0.0f, total = 0.0f;
    bool take_first = false, take_second = false;
    for (int k = 0; k < top; ++k) {
        float best = left_first;
        int at = lane;
        if (left_second > best) {
            best = left_second;
            at = lane + 32;
        }
        for (int offset = 16; offset > 0; offset >>= 1) {
            float other = __shfl_xor_sync(0xffffffffu, best, offset);
            int other_at = __shfl_xor_sync(0xffffffffu, at, offset);
            if (other > best || (other == best && other_at < at)) {
                best = other;
                at = other_at;
            }
        }
        if (k == 0) highest = best;
        total += expf(best - highest);
        if (at == lane) {
            take_first = true;
            left_first = -INFINITY;
        }
        if (at == lane + 32) {
            take_second = true;
            left_second = -INFINITY;
        }
    }
    float* w = out + (long)token * experts;
    if (lane < experts) w[lane] = take_first ? expf(first - highest) / total : 0.0f;
    if (lane + 32 < experts) w[lane + 32] = take_second ? expf(second - highest) / total : 0.0f;
}

torch::Tensor route(torch::Tensor logits, int64_t top) {
    TORCH_CHECK(logits.size(1) <= 64, "at most 64 experts");
    auto out = torch::empty_like(logits);
    int tokens = logits.size(0);
    route_kernel<<<(tokens + 7) / 8, 256>>>(logits.data_ptr<float>(), out.data_ptr<float>(), tokens,
                                            (int)logits.size(1), (int)top);
    return out;
}
"""
route_module = load_inline(
    name="expert_routing_softmax_warps",
    cpp_sources="torch::Tensor route(torch::Tensor logits, int64_t top);",
    cuda_sources=source,
    functions=["route"],
)
'''

_CUDA_TOKENS = '''
from torch.utils.cpp_extension import load_inline

tokens_source = r"""
#include <torch/extension.h>

#define MAX_EXPERTS 128

// Each thread routes one token.
__global__ void routing_kernel(const float* __restrict__ logits, float* __restrict__ out, int tokens, int experts,
                               int top) {
    int token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= tokens) return;
    const float* row = logits + (long)token * experts;
    float probs[MAX_EXPERTS];

    // softmax
    float best = row[0];
    for (int e = 1; e < experts; e++) best = fmaxf(best, row[e]);
    float sum = 0.0f;
    for (int e = 0; e < experts; e++) {
        probs[e] = expf(row[e] - best);
        sum += probs[e];
    }
    for (int e = 0; e < experts; e++) probs[e] /= sum;

    // pick the best ones, marking them by a minus sign
    float kept = 0.0f;
    for (int k = 0; k < top; k++) {
        int arg = 0;
        float value = -2.0f;
        for (int e = 0; e < experts; e++) {
            if (probs[e] >= 0.0f && probs[e] > value) {
                value = probs[e];
                arg = e;
            }
        }
        kept += value;
        probs[arg] = -value;
    }
    for (int e = 0; e < experts; e++) out[(long)token * experts + e] = probs[e] < 0.0f ? -probs[e] / kept : 0.0f;
}

torch::Tensor route(torch::Tensor logits, int64_t top) {
    int tokens = logits.size(0), experts = logits.size(1);
    TORCH_CHECK(experts <= MAX_EXPERTS && top <= experts, "too many experts");
    auto out = torch::empty_like(logits);
    routing_kernel<<<(tokens + 127) / 128, 128>>>(logits.data_ptr<float>(), out.data_ptr<float>(), tokens, experts,
                                                  (int)top);
    return out;
}
"""
route_module = load_inline(
    name="expert_routing_softmax_tokens",
    cpp_sources="torch::Tensor route(torch::Tensor logits, int64_t top);",
    cuda_sources=tokens_source,
    functions=["route"],
)
'''

_CUDA_SCATTER = '''
from torch.utils.cpp_extension import load_inline

scatter_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// A warp per token writes the whole row: softmax of the chosen logits at their places, zero elsewhere.
__global__ void scatter_softmax_kernel(const float* __restrict__ values, const int64_t* __restrict__ indices,
                                       float* __restrict__ out, int tokens, int experts, int top) {
    const int token = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (token >= tokens) return;
    const bool chosen = lane < top;
    const float value = chosen ? values[(long)token * top + lane] : -INFINITY;
    const int at = chosen ? (int)indices[(long)token * top + lane] : -1;
    float best = value;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) best = fmaxf(best, __shfl_xor_sync(0xffffffff, best, o));
    const float weight = chosen ? expf(value - best) : 0.0f;
    float sum = weight;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
    const float share = weight / sum;
    for (int base = 0; base < experts; base += 32) {
        const int e = base + lane;
        float result = 0.0f;
        for (int k = 0; k < top; ++k) {
            const int other = __shfl_sync(0xffffffff, at, k);
            const float theirs = __shfl_sync(0xffffffff, share, k);
            if (other == e) result = theirs;
        }
        if (e < experts) out[(long)token * experts + e] = result;
    }
}

torch::Tensor scatter_softmax(torch::Tensor values, torch::Tensor indices, int64_t experts) {
    TORCH_CHECK(values.is_cuda() && indices.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(values.is_contiguous() && indices.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(values.size(1) <= 32, "at most 32 experts per token");
    const int tokens = values.size(0), top = values.size(1);
    auto out = torch::empty({tokens, experts}, values.options());
    scatter_softmax_kernel<<<(tokens + 7) / 8, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        values.data_ptr<float>(), indices.data_ptr<int64_t>(), out.data_ptr<float>(), tokens, (int)experts, top);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
scatter_module = load_inline(
    name="expert_routing_softmax_scatter",
    cpp_sources="torch::Tensor scatter_softmax(torch::Tensor values, torch::Tensor indices, int64_t experts);",
    cuda_sources=scatter_source,
    functions=["scatter_softmax"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="expert_routing_softmax",
    sizes="""
        tokens = 65536
        experts = 64
        top = 4
    """,
    arguments=("experts", "top"),
    takes="logits",
    inputs="[torch.randn(tokens, experts) * 1.5]",
    in_half=False,
    reference=Body(
        summary="Dense routing weights with the best experts of each token only.",
        init="""
            self.experts = experts
            self.top = top
        """,
        forward="""
            probs = F.softmax(logits, dim=-1)
            values, indices = torch.sort(probs, dim=-1, descending=True)
            values = values[:, : self.top]
            indices = indices[:, : self.top]
            values = values / values.sum(dim=-1, keepdim=True)
            weights = torch.zeros_like(probs)
            return weights.scatter(1, indices, values)
        """,
    ),
    rewrites={
        "topk_of_softmax": Body(
            forward="""
                values, indices = torch.softmax(logits, dim=-1).topk(self.top, dim=-1)
                values = values / values.sum(dim=-1, keepdim=True)
                return torch.zeros_like(logits).scatter_(1, indices, values)
            """
        ),
        "softmax_of_topk": Body(
            forward="""
                # the normaliser of the full softmax cancels out
                values, indices = torch.topk(logits, self.top, dim=-1, sorted=False)
                return torch.zeros_like(logits).scatter_(1, indices, F.softmax(values, dim=-1))
            """
        ),
        "masked_softmax": Body(
            forward="""
                least = logits.topk(self.top, dim=-1).values[:, -1:]
                return F.softmax(logits.masked_fill(logits < least, float("-inf")), dim=-1)
            """
        ),
        "threshold_by_kth_value": Body(
            forward="""
                least = torch.kthvalue(logits, self.experts - self.top + 1, dim=-1, keepdim=True).values
                return torch.where(logits >= least, logits, float("-inf")).softmax(dim=-1)
            """
        ),
        "repeated_maximum": Body(
            summary="""Routing without a sort: the largest logit is found and struck out, once for each expert taken.

    Few experts are taken of each token, so a handful of plain reductions replaces the general selection.
    """,
            init="""
                self.experts = experts
                self.top = top
                if not 0 < top <= experts:
                    raise ValueError("as many experts are taken as there are, at most")
            """,
            methods="""
                def _strike_out(self, left):
                    best = left.argmax(dim=-1, keepdim=True)
                    return left.scatter_(1, best, float("-inf"))
            """,
            forward="""
                left = logits.clone()
                for _ in range(self.top):
                    left = self._strike_out(left)
                taken = torch.isinf(left)
                return torch.softmax(logits.masked_fill(~taken, float("-inf")), dim=-1)
            """,
        ),
        "one_hot_sum": Body(
            forward="""
                values, indices = torch.topk(logits, self.top, dim=-1)
                values = F.softmax(values, dim=-1)
                hot = F.one_hot(indices, self.experts).to(values.dtype)
                return torch.einsum("tk,tke->te", values, hot)
            """
        ),
        "triton_argmax": Body(
            before=_KERNEL,
            forward="""
                out = torch.empty_like(logits)
                tokens, experts = logits.shape
                block = triton.next_power_of_2(experts)
                route[(tokens,)](logits, out, tokens, experts, TOP=self.top, BLOCK=block, num_warps=1)
                return out
            """,
        ),
        "cuda_warp_per_token": Body(
            before=_CUDA,
            forward="return route_module.route(logits.contiguous(), self.top)",
        ),
        "cuda_thread_per_token": Body(
            before=_CUDA_TOKENS,
            forward="return route_module.route(logits.contiguous(), self.top)",
        ),
        "cuda_softmax_scatter": Body(
            summary="""The best experts by topk of the logits; their softmax and the scatter in one kernel.

    The softmax over all experts is not needed, as the chosen ones are normalised among themselves.
    """,
            before=_CUDA_SCATTER,
            methods='''
                def _dense(self, values, indices):
                    """Rows with the softmax of the values at the indices, zero elsewhere."""
                    if values.is_cuda and values.dtype == torch.float32 and self.top <= 32:
                        return scatter_module.scatter_softmax(values.contiguous(), indices.contiguous(), self.experts)
                    weights = values.new_zeros(values.shape[0], self.experts)
                    return weights.scatter_(1, indices, torch.softmax(values, dim=-1))
            ''',
            forward="""
                values, indices = torch.topk(logits, self.top, dim=-1, sorted=False)
                return self._dense(values, indices)
            """,
        ),
    },
    carries_on="softmax_of_topk",
)
