"""The row of a table for the largest score, by a one-hot product, times that score."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TRITON = """
import triton
import triton.language as tl


@triton.jit
def lookup_kernel(
    scores_ptr, table_ptr, out_ptr, classes, dim, BC: tl.constexpr, BD: tl.constexpr
):
    row = tl.program_id(0)
    c = tl.arange(0, BC)
    scores = tl.load(scores_ptr + row * classes + c, mask=c < classes, other=float("-inf"))
    best = tl.argmax(scores, axis=0)
    value = tl.max(scores, axis=0)
    d = tl.arange(0, BD)
    entry = tl.load(table_ptr + best * dim + d, mask=d < dim, other=0.0)
    tl.store(out_ptr + row * dim + d, entry * value, mask=d < dim)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A warp per row: the largest score by shuffles, then the row of the table.
__global__ void lookup(const float* __restrict__ scores, const float* __restrict__ table, float* __restrict__ out,
                       int rows, int classes, int dim) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= rows) return;
    float value = -INFINITY;
    int best = 0;
    for (int c = lane; c < classes; c += 32) {
        float v = scores[row * classes + c];
        if (v > value) {
            value = v;
            best = c;
        }
    }
    for (int step = 16; step > 0; step >>= 1) {
        float other = __shfl_xor_sync(0xffffffff, value, step);
        int where = __shfl_xor_sync(0xffffffff, best, step);
        if (other > value || (other == value && where < best)) {
            value = other;
            best = where;
        }
    }
    for (int d = lane; d < dim; d += 32) out[row * dim + d] = table[best * dim + d] * value;
}

torch::Tensor best_rows(torch::Tensor scores, torch::Tensor table) {
    int rows = scores.size(0);
    int classes = scores.size(1);
    int dim = table.size(1);
    auto out = torch::empty({rows, dim}, scores.options());
    lookup<<<(rows + 3) / 4, 128>>>(scores.data_ptr<float>(), table.data_ptr<float>(), out.data_ptr<float>(),
                                    rows, classes, dim);
    return out;
}
"""
lookup_module = load_inline(
    name="one_hot_argmax_lookup_warps",
    cpp_sources="torch::Tensor best_rows(torch::Tensor scores, torch::Tensor table);",
    cuda_sources=source,
    functions=["best_rows"],
)
'''

MODULE = Rewritten(
    name="one_hot_argmax_lookup",
    sizes="""
        batch_size = 128
        classes = 100
        dim = 64
    """,
    arguments=("classes", "dim"),
    takes="scores",
    inputs="[torch.randn(batch_size, classes)]",
    reference=Body(
        summary="A one-hot vector of the best class selects a row of a table, which its score scales.",
        init="""
            self.classes = classes
            self.table = nn.Parameter(torch.randn(classes, dim))
        """,
        forward="""
            index = torch.argmax(scores, dim=-1)
            one_hot = F.one_hot(index, num_classes=self.classes).to(scores.dtype)
            picked = one_hot @ self.table
            best = (one_hot * scores).sum(dim=-1, keepdim=True)
            return picked * best
        """,
    ),
    rewrites={
        "embedding": Body(
            summary="One reduction gives both value and index; the table is looked up.",
            forward="""
                best, index = scores.max(dim=-1, keepdim=True)
                return F.embedding(index.squeeze(-1), self.table) * best
            """,
        ),
        "index_select_gather": Body(
            forward="""
                index = scores.argmax(dim=1)
                best = torch.gather(scores, 1, index.unsqueeze(1))
                return self.table.index_select(0, index).mul_(best)
            """
        ),
        "scatter_value": Body(
            summary="Puts the best score itself into the row of zeros, so that the product scales too.",
            forward="""
                best, index = torch.max(scores, dim=-1, keepdim=True)
                selector = torch.zeros_like(scores).scatter_(1, index, best)
                return torch.mm(selector, self.table)
            """,
        ),
        "masked_fill": Body(
            summary="Everything below the largest score is filled with zero before one product.",
            forward="""
                below = scores < scores.amax(dim=-1, keepdim=True)
                return scores.masked_fill(below, 0.0) @ self.table
            """,
        ),
        "top_one": Body(
            forward="""
                best, index = scores.topk(1, dim=-1)
                return self.table[index.view(-1)] * best
            """
        ),
        "row_loop": Body(
            summary="Row by row, with plain indexing.",
            forward="""
                out = scores.new_empty(scores.shape[0], self.table.shape[1])
                for i, row in enumerate(scores.argmax(dim=-1).tolist()):
                    torch.mul(self.table[row], scores[i, row], out=out[i])
                return out
            """,
        ),
        "checked": Body(
            summary="Looks the table up, after checks, and for any number of leading dimensions.",
            forward="""
                self._check(scores)
                leading = scores.shape[:-1]
                flat = scores.contiguous().view(-1, self.classes)
                best, index = self._best(flat)
                picked = torch.index_select(self.table, 0, index)
                return picked.mul(best.unsqueeze(-1)).view(*leading, -1).contiguous()
            """,
            methods="""
                def _check(self, scores):
                    if scores.shape[-1] != self.classes:
                        raise ValueError(f"expected {self.classes} scores, got {scores.shape[-1]}")
                    if not scores.is_floating_point():
                        raise TypeError("scores must be real numbers")

                def _best(self, flat):
                    if flat.shape[0] == 0:
                        return flat.new_empty(0), flat.new_empty(0, dtype=torch.long)
                    return torch.max(flat, dim=1)
            """,
        ),
        "triton_whole": Body(
            before=_TRITON,
            forward="""
                classes, dim = self.table.shape
                out = torch.empty(scores.shape[0], dim, device=scores.device, dtype=scores.dtype)
                lookup_kernel[(scores.shape[0],)](
                    scores.contiguous(), self.table, out, classes, dim,
                    BC=triton.next_power_of_2(classes), BD=triton.next_power_of_2(dim), num_warps=1,
                )
                return out
            """,
        ),
        "cuda_warps": Body(
            before=_CUDA,
            forward="return lookup_module.best_rows(scores.contiguous(), self.table)",
        ),
    },
    carries_on="embedding",
)
