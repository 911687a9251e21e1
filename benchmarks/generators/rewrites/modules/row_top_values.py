"""The largest few values of each row in descending order, by sorting the whole row."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_MAXIMA = """
import triton
import triton.language as tl


@triton.jit
def top_kernel(x_ptr, out_ptr, n, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=float("-inf"))
    for i in range(K):
        tl.store(out_ptr + row * K + i, tl.max(x, axis=0))
        # Only the first of equal values is taken out.
        x = tl.where(cols == tl.argmax(x, axis=0), float("-inf"), x)
"""

_BITONIC = """
import triton
import triton.language as tl


@triton.jit
def sort_kernel(x_ptr, out_ptr, n, k, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=float("-inf"))
    x = tl.sort(x, descending=True)
    tl.store(out_ptr + row * k + cols, x, mask=cols < k)
"""

MODULE = Rewritten(
    name="row_top_values",
    sizes="""
        rows = 4096
        columns = 2048
        k = 8
    """,
    arguments=("k",),
    takes="x",
    inputs="[torch.randn(rows, columns)]",
    reference=Body(
        summary="The k largest values of each row, the largest first.",
        init="self.k = k",
        forward="""
            ordered, _ = torch.sort(x, dim=-1, descending=True)
            return ordered[:, : self.k].contiguous()
        """,
    ),
    rewrites={
        "topk": Body(forward="return torch.topk(x, self.k, dim=-1).values"),
        "topk_then_sort": Body(
            forward="""
                top = x.topk(self.k, dim=1, largest=True, sorted=False)[0]
                return top.sort(dim=1, descending=True)[0]
            """
        ),
        "two_stage": Body(
            summary="The best of each of 16 pieces of a row first, then the best of those.",
            init="""
                self.k = k
                self.pieces = 16
            """,
            forward="""
                n = x.shape[1]
                if n % self.pieces or n // self.pieces < self.k:
                    return x.topk(self.k, dim=1).values
                some = x.view(x.shape[0], self.pieces, -1).topk(self.k, dim=2, sorted=False).values
                return some.flatten(1).topk(self.k, dim=1).values
            """,
        ),
        "argsort_gather": Body(
            forward="""
                order = torch.argsort(x, dim=-1, descending=True)[:, : self.k]
                return torch.gather(x, 1, order)
            """
        ),
        "repeated_maximum": Body(
            summary="Takes the maximum k times and removes it each time.",
            forward="""
                left = x.clone()
                found = []
                for _ in range(self.k):
                    best, index = left.max(dim=1, keepdim=True)
                    found.append(best)
                    left.scatter_(1, index, float("-inf"))
                return torch.cat(found, dim=1)
            """,
        ),
        "negated_sort": Body(
            forward="""
                values = torch.sort(-x, dim=-1, stable=True).values
                return values[:, : self.k].neg()
            """
        ),
        "row_pieces": Body(
            summary="Sorts 256 rows at a time into a result that is allocated once.",
            forward="""
                out = torch.empty(x.shape[0], self.k, device=x.device, dtype=x.dtype)
                for start in range(0, x.shape[0], 256):
                    self._top(x[start:start + 256], out[start:start + 256])
                return out
            """,
            methods="""
                def _top(self, rows, out):
                    values = torch.sort(rows, dim=1, descending=True).values
                    out.copy_(values[:, : self.k])
            """,
        ),
        "triton_repeated_maximum": Body(
            before=_MAXIMA,
            forward="""
                x = x.contiguous()
                m, n = x.shape
                out = torch.empty(m, self.k, device=x.device, dtype=x.dtype)
                top_kernel[(m,)](x, out, n, K=self.k, BLOCK=triton.next_power_of_2(n), num_warps=4)
                return out
            """,
        ),
        "triton_bitonic_sort": Body(
            before=_BITONIC,
            forward="""
                x = x.contiguous()
                m, n = x.shape
                out = torch.empty(m, self.k, device=x.device, dtype=x.dtype)
                sort_kernel[(m,)](x, out, n, self.k, BLOCK=triton.next_power_of_2(n), num_warps=8)
                return out
            """,
        ),
    },
    carries_on="topk",
)
