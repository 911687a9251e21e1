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
    },
    carries_on="softmax_of_topk",
)
