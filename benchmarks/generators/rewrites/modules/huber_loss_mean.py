"""The mean Huber loss of two large matrices, written out case by case."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_PARTIAL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def huber_partial(p_ptr, t_ptr, part_ptr, total, delta, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0) * STEPS * BLOCK
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in range(STEPS):
        at = first + step * BLOCK + tl.arange(0, BLOCK)
        keep = at < total
        p = tl.load(p_ptr + at, mask=keep, other=0.0)
        t = tl.load(t_ptr + at, mask=keep, other=0.0)
        size = tl.abs(p - t)
        inner = tl.minimum(size, delta)
        acc += inner * (size - 0.5 * inner)
    tl.store(part_ptr + tl.program_id(0), tl.sum(acc, axis=0))
"""

_ELEMENT_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def huber_elements(p_ptr, t_ptr, out_ptr, total, delta, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    error = tl.load(p_ptr + at, mask=keep, other=0.0) - tl.load(t_ptr + at, mask=keep, other=0.0)
    size = tl.abs(error)
    loss = tl.where(size <= delta, 0.5 * error * error, delta * (size - 0.5 * delta))
    tl.store(out_ptr + at, loss, mask=keep)
"""

MODULE = Rewritten(
    name="huber_loss_mean",
    sizes="""
        rows = 4096
        width = 6144
        delta = 0.75
    """,
    arguments=("delta",),
    takes="prediction, target",
    inputs="[torch.randn(rows, width), torch.randn(rows, width)]",
    reference=Body(
        summary="Quadratic for errors up to delta, linear beyond it, and the mean of all.",
        init="self.delta = delta",
        forward="""
            error = prediction - target
            absolute = error.abs()
            quadratic = 0.5 * error**2
            linear = self.delta * (absolute - 0.5 * self.delta)
            loss = torch.where(absolute <= self.delta, quadratic, linear)
            return loss.mean()
        """,
    ),
    rewrites={
        "library_loss": Body(
            forward='return F.huber_loss(prediction, target, reduction="mean", delta=self.delta)'
        ),
        "smooth_l1_without_reduction": Body(
            summary="Smooth L1 of beta = delta is the Huber loss over delta.",
            forward="""
                loss = F.smooth_l1_loss(prediction, target, reduction="none", beta=self.delta)
                return loss.mean() * self.delta
            """,
        ),
        "clamped_error": Body(
            summary="With c = min(|e|, delta) both cases are c (|e| - c / 2).",
            forward="""
                size = (prediction - target).abs_()
                inner = size.clamp(max=self.delta)
                return size.sub_(inner, alpha=0.5).mul_(inner).mean()
            """,
        ),
        "products_of_rows": Body(
            summary="The sum over c (e - c / 2) for the clamped error c, as one inner product per row.",
            forward="""
                error = torch.sub(prediction, target)
                clamped = error.clamp(-self.delta, self.delta)
                error.sub_(clamped, alpha=0.5)
                sums = torch.bmm(clamped.unsqueeze(1), error.unsqueeze(2))
                return sums.sum() / error.numel()
            """,
        ),
        "select_each_case": Body(
            summary="Only evaluates each formula for the elements that need it.",
            forward="""
                error = prediction - target
                absolute = error.abs()
                small = absolute <= self.delta
                inside = error[small]
                outside = absolute[~small]
                total = 0.5 * inside.square().sum()
                total = total + self.delta * (outside - 0.5 * self.delta).sum()
                return total / error.numel()
            """,
        ),
        "buffered_slabs": Body(
            summary="Works through slabs of rows in two preallocated buffers that stay in the L2 cache.",
            init="""
                self.delta = delta
                self.slab = 256
                self._buffers_for = None
            """,
            forward="""
                prediction = self._as_matrix(prediction)
                target = self._as_matrix(target)
                if prediction.shape != target.shape:
                    raise ValueError("prediction and target must have the same shape")
                size, inner = self._workspace(prediction)
                total = torch.zeros((), device=prediction.device, dtype=prediction.dtype)
                for start in range(0, prediction.shape[0], self.slab):
                    rows = min(self.slab, prediction.shape[0] - start)
                    s, c = size[:rows], inner[:rows]
                    torch.sub(prediction[start : start + rows], target[start : start + rows], out=s)
                    s.abs_()
                    torch.clamp(s, max=self.delta, out=c)
                    total += s.sub_(c, alpha=0.5).mul_(c).sum()
                return total / prediction.numel()
            """,
            methods="""
                def _as_matrix(self, x):
                    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])

                def _workspace(self, like):
                    key = (like.shape[1], like.dtype, like.device)
                    if self._buffers_for != key:
                        self._size = torch.empty(self.slab, like.shape[1], dtype=like.dtype, device=like.device)
                        self._inner = torch.empty_like(self._size)
                        self._buffers_for = key
                    return self._size, self._inner
            """,
        ),
        "triton_partial_sums": Body(
            before=_PARTIAL_KERNEL,
            forward="""
                prediction, target = prediction.contiguous(), target.contiguous()
                total = prediction.numel()
                programs = triton.cdiv(total, 8 * 2048)
                parts = torch.empty(programs, device=prediction.device)
                huber_partial[(programs,)](prediction, target, parts, total, self.delta, STEPS=8, BLOCK=2048)
                return parts.sum() / total
            """,
        ),
        "triton_elements": Body(
            before=_ELEMENT_KERNEL,
            forward="""
                loss = torch.empty_like(prediction)
                total = prediction.numel()
                huber_elements[(triton.cdiv(total, 1024),)](prediction, target, loss, total, self.delta, BLOCK=1024)
                return torch.mean(loss)
            """,
        ),
    },
    carries_on="clamped_error",
)
