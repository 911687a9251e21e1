"""Features less the mean of their segment, with the means by a product with one-hot rows."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def add_to_segments(x_ptr, segment_ptr, sums_ptr, counts_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    segment = tl.load(segment_ptr + row)
    x = tl.load(x_ptr + row * width + cols, mask=keep, other=0.0)
    tl.atomic_add(sums_ptr + segment * width + cols, x, mask=keep)
    tl.atomic_add(counts_ptr + segment, 1.0)


@triton.jit
def subtract_means(x_ptr, segment_ptr, sums_ptr, counts_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    segment = tl.load(segment_ptr + row)
    count = tl.load(counts_ptr + segment)
    total = tl.load(sums_ptr + segment * width + cols, mask=keep, other=0.0)
    x = tl.load(x_ptr + row * width + cols, mask=keep, other=0.0)
    tl.store(out_ptr + row * width + cols, x - total / count, mask=keep)
"""

MODULE = Rewritten(
    name="segment_mean_centering",
    sizes="""
        rows = 32768
        width = 64
        segments = 512
    """,
    arguments=("segments",),
    takes="x, segment",
    inputs="[torch.randn(rows, width) + 1, torch.randint(0, segments, (rows,))]",
    reference=Body(
        summary="Subtracts from each row the mean of all rows of its segment.",
        init="self.segments = segments",
        forward="""
            member = F.one_hot(segment, num_classes=self.segments).float()
            sums = member.t() @ x
            counts = member.sum(dim=0).clamp(min=1).unsqueeze(1)
            means = sums / counts
            return x - member @ means
        """,
    ),
    rewrites={
        "gathered_means": Body(
            forward="""
                member = F.one_hot(segment, num_classes=self.segments).to(x.dtype)
                means = torch.mm(member.t(), x) / member.sum(dim=0).clamp_(min=1).unsqueeze(1)
                return x - means[segment]
            """
        ),
        "comparison_one_hot": Body(
            init="""
                self.segments = segments
                self.register_buffer("names", torch.arange(segments))
            """,
            forward="""
                member = (self.names[:, None] == segment[None, :]).to(x.dtype)
                means = member / member.sum(dim=1, keepdim=True).clamp_(min=1) @ x
                return torch.addmm(x, member.t(), means, alpha=-1)
            """,
        ),
        "index_add": Body(
            forward="""
                sums = x.new_zeros(self.segments, x.shape[1]).index_add_(0, segment, x)
                counts = torch.bincount(segment, minlength=self.segments).clamp_(min=1)
                return x - (sums / counts.unsqueeze(1)).index_select(0, segment)
            """
        ),
        "counts_in_extra_column": Body(
            forward="""
                padded = F.pad(x, (0, 1), value=1.0)
                sums = torch.zeros(self.segments, x.shape[1] + 1, device=x.device, dtype=x.dtype)
                sums.index_add_(0, segment, padded)
                means = sums[:, :-1] / sums[:, -1:].clamp(min=1)
                return x - F.embedding(segment, means)
            """
        ),
        "scatter_reduce_mean": Body(
            forward="""
                index = segment.unsqueeze(1).expand(-1, x.shape[1])
                means = torch.zeros(self.segments, x.shape[1], device=x.device, dtype=x.dtype)
                means.scatter_reduce_(0, index, x, reduce="mean", include_self=False)
                return x - means.gather(0, index)
            """
        ),
        "sorted_prefix_sums": Body(
            summary="""Means of segments without atomics.

    Rows are sorted by segment; the rows of a segment are then a run, whose sum comes from one reduction
    over runs, and its length from the ends of the runs.
    """,
            init="""
                self.segments = segments
                self.register_buffer("names", torch.arange(segments))
            """,
            methods="""
                def _runs(self, ordered):
                    ends = torch.searchsorted(ordered, self.names, right=True)
                    return torch.diff(ends, prepend=ends.new_zeros(1))
            """,
            forward="""
                if x.shape[0] != segment.shape[0]:
                    raise ValueError("a segment is needed for each row")
                ordered, order = torch.sort(segment)
                lengths = self._runs(ordered)
                sums = torch.segment_reduce(x[order], "sum", lengths=lengths, axis=0)
                means = sums / lengths.clamp(min=1).unsqueeze(1)
                return x - means[segment]
            """,
        ),
        "loop_over_segments": Body(
            forward="""
                out = x.clone()
                order = torch.argsort(segment)
                sizes = torch.bincount(segment, minlength=self.segments).tolist()
                for rows in order.split(sizes):
                    if rows.numel():
                        part = x[rows]
                        out[rows] = part - part.mean(dim=0)
                return out
            """
        ),
        "triton_atomics": Body(
            before=_KERNEL,
            forward="""
                rows, width = x.shape
                sums = torch.zeros(self.segments, width, device=x.device)
                counts = torch.zeros(self.segments, device=x.device)
                out = torch.empty_like(x)
                block = triton.next_power_of_2(width)
                add_to_segments[(rows,)](x, segment, sums, counts, width, BLOCK=block, num_warps=1)
                subtract_means[(rows,)](x, segment, sums, counts, out, width, BLOCK=block, num_warps=1)
                return out
            """,
        ),
    },
    carries_on="counts_in_extra_column",
)
