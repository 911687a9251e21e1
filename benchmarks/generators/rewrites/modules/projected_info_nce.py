"""Symmetric contrastive loss (InfoNCE) of two batches of features through a small projection head."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_ROW_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def line_losses(s_ptr, loss_ptr, n, step, stride, BLOCK: tl.constexpr):
    line = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    keep = cols < n
    s = tl.load(s_ptr + line * step + cols * stride, mask=keep, other=float("-inf"))
    own = tl.load(s_ptr + line * step + line * stride)
    highest = tl.max(s, axis=0)
    total = tl.sum(tl.exp(s - highest), axis=0)
    tl.store(loss_ptr + line, tl.log(total) + highest - own)
"""

_WHOLE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def contrast_kernel(
    a_ptr, b_ptr, loss_ptr, n, inverse, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    # The second axis of the grid tells which view asks and which one answers.
    flip = tl.program_id(1)
    first = a_ptr
    second = b_ptr
    if flip == 1:
        first = b_ptr
        second = a_ptr
    d = tl.arange(0, D)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    a = tl.load(first + m[:, None] * D + d[None, :], mask=m[:, None] < n, other=0.0)
    a = a * (inverse / tl.maximum(tl.sqrt(tl.sum(a * a, axis=1)), 1e-12))[:, None]
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    own = tl.zeros((BLOCK_M,), dtype=tl.float32)
    for start in range(0, n, BLOCK_N):
        c = start + tl.arange(0, BLOCK_N)
        b = tl.load(second + c[:, None] * D + d[None, :], mask=c[:, None] < n, other=0.0)
        b = b / tl.maximum(tl.sqrt(tl.sum(b * b, axis=1)), 1e-12)[:, None]
        s = tl.dot(a, tl.trans(b), input_precision="ieee")
        # cosines do not exceed one, so the temperature bounds the exponent
        total += tl.sum(tl.where(c[None, :] < n, tl.exp(s - inverse), 0.0), axis=1)
        own += tl.sum(tl.where(c[None, :] == m[:, None], s, 0.0), axis=1)
    tl.store(loss_ptr + flip * n + m, tl.log(total) + inverse - own, mask=m < n)
"""

_INIT = """
    self.first = nn.Linear(features, hidden)
    self.second = nn.Linear(hidden, width)
    self.temperature = temperature
"""

MODULE = Rewritten(
    name="projected_info_nce",
    sizes="""
        batch_size = 512
        features = 256
        hidden = 256
        width = 128
        temperature = 0.1
    """,
    arguments=("features", "hidden", "width", "temperature"),
    takes="left, right",
    inputs="[torch.randn(batch_size, features), torch.randn(batch_size, features)]",
    reference=Body(
        summary="Projects both views, and asks each projection which one of the other view belongs to it.",
        init=_INIT,
        forward="""
            a = self.second(torch.relu(self.first(left)))
            b = self.second(torch.relu(self.first(right)))
            a = F.normalize(a, dim=-1)
            b = F.normalize(b, dim=-1)
            logits = torch.matmul(a, b.t()) / self.temperature
            labels = torch.arange(logits.shape[0], device=logits.device)
            forth = F.cross_entropy(logits, labels)
            back = F.cross_entropy(logits.t(), labels)
            return (forth + back) / 2
        """,
    ),
    rewrites={
        "both_views_at_once": Body(
            summary="One pass of the head over both views.",
            forward="""
                n = left.shape[0]
                z = F.relu_(self.first(torch.cat([left, right])))
                z = F.normalize(self.second(z), dim=-1)
                logits = torch.mm(z[:n], z[n:].t()).div_(self.temperature)
                labels = torch.arange(n, device=logits.device)
                return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) * 0.5
            """,
        ),
        "logsumexp_less_diagonal": Body(
            summary="Cross entropy with the diagonal as labels is logsumexp less the diagonal.",
            forward="""
                a = F.normalize(self.second(F.relu(self.first(left))), dim=-1)
                b = F.normalize(self.second(F.relu(self.first(right))), dim=-1)
                logits = (a @ b.t()) / self.temperature
                spread = torch.logsumexp(logits, dim=1) + torch.logsumexp(logits, dim=0)
                return 0.5 * spread.mean() - logits.diagonal().mean()
            """,
        ),
        "shared_exponentials": Body(
            summary="""One matrix of exponentials serves rows and columns.

    Cosines are at most one, so exp((cos - 1) / t) cannot overflow, and the same number can be
    taken off every logit: no maxima are needed.
    """,
            init=_INIT + "    self.inverse = 1.0 / temperature\n",
            forward="""
                n = left.shape[0]
                z = self.project(torch.cat((left, right), dim=0))
                a, b = z[:n], z[n:]
                logits = torch.addmm(self.offset(z), a, b.t(), alpha=self.inverse)
                own = logits.diagonal().sum()
                e = logits.exp()
                spread = torch.log(torch.stack((e.sum(dim=0), e.sum(dim=1)))).sum()
                return (0.5 * spread - own) / n
            """,
            methods="""
                def project(self, x):
                    z = torch.addmm(self.first.bias, x, self.first.weight.t()).relu_()
                    z = torch.addmm(self.second.bias, z, self.second.weight.t())
                    return z * torch.rsqrt(z.square().sum(dim=1, keepdim=True).clamp_min(1e-24))

                def offset(self, like):
                    if getattr(self, "_offset", None) is None or self._offset.device != like.device:
                        self._offset = torch.full((1, 1), -self.inverse, device=like.device, dtype=like.dtype)
                    return self._offset
            """,
        ),
        "norms_after_product": Body(
            summary="Divides the similarities by the norms, rather than the vectors.",
            forward="""
                a = self.second(F.relu(self.first(left)))
                b = self.second(F.relu(self.first(right)))
                norm_a = torch.linalg.vector_norm(a, dim=1).clamp_min_(1e-12)
                norm_b = torch.linalg.vector_norm(b, dim=1).clamp_min_(1e-12)
                logits = torch.mm(a, b.t())
                logits.div_(torch.outer(norm_a, norm_b).mul_(self.temperature))
                forth = F.log_softmax(logits, dim=1).diagonal()
                back = F.log_softmax(logits, dim=0).diagonal()
                return -(forth.mean() + back.mean()) / 2
            """,
        ),
        "pairwise_cosine": Body(
            forward="""
                a = self.second(F.relu(self.first(left)))
                b = self.second(F.relu(self.first(right)))
                logits = F.cosine_similarity(a.unsqueeze(1), b.unsqueeze(0), dim=-1) / self.temperature
                labels = torch.arange(a.shape[0], device=a.device)
                return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
            """
        ),
        "anchors_in_chunks": Body(
            summary="Compares a few anchors at a time with all candidates, in both directions.",
            init=_INIT + "    self.chunk = 64\n",
            forward="""
                views = []
                for view in (left, right):
                    hidden = torch.relu(self.first(view))
                    views.append(F.normalize(self.second(hidden), p=2, dim=1))
                total = self.one_way(views[0], views[1]) + self.one_way(views[1], views[0])
                return total / (2 * left.shape[0])
            """,
            methods="""
                def one_way(self, anchors, candidates):
                    total = anchors.new_zeros(())
                    for start in range(0, anchors.shape[0], self.chunk):
                        some = anchors[start : start + self.chunk]
                        logits = some @ candidates.t() / self.temperature
                        labels = torch.arange(start, start + some.shape[0], device=anchors.device)
                        total = total + F.cross_entropy(logits, labels, reduction="sum")
                    return total
            """,
        ),
        "triton_row_losses": Body(
            before=_ROW_KERNEL,
            forward="""
                n = left.shape[0]
                z = F.normalize(self.second(F.relu(self.first(torch.cat([left, right])))), dim=-1)
                logits = torch.mm(z[:n], z[n:].t()).div_(self.temperature)
                losses = torch.empty(2, n, device=logits.device)
                block = triton.next_power_of_2(n)
                line_losses[(n,)](logits, losses[0], n, n, 1, BLOCK=block)
                line_losses[(n,)](logits, losses[1], n, 1, n, BLOCK=block)
                return losses.mean()
            """,
        ),
        "triton_contrast": Body(
            summary="Norms, similarities and both directions of the loss in one kernel, without the matrix.",
            before=_WHOLE_KERNEL,
            forward="""
                n = left.shape[0]
                z = self.second(F.relu_(self.first(torch.cat([left, right]))))
                losses = torch.empty(2 * n, device=z.device)
                contrast_kernel[(triton.cdiv(n, 16), 2)](
                    z[:n], z[n:], losses, n, 1.0 / self.temperature, D=z.shape[1], BLOCK_M=16, BLOCK_N=32
                )
                return losses.mean()
            """,
        ),
    },
    carries_on="both_views_at_once",
)
