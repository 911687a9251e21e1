"""Generator of the recorded task ``cross_entropy``: softmax cross-entropy together with its gradient.

Every source defines ``run(logits, targets)`` for logits of shape [T, V] in bfloat16 and targets of shape [T]
in int64. It returns ``(losses, grad)``: the loss of each row in float32, and in bfloat16 the gradient of the
*mean* of the losses with respect to the logits, ``(softmax(logits) - onehot(targets)) / T``.

The largest vocabulary is measured with 2048 rows in place of 4096, to spare memory and time.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from benchmarks.generators.pool import Draft, Pool
from benchmarks.generators.text import begin_run, eviction, fill, triton_configs

if TYPE_CHECKING:
    import torch

TASK = "cross_entropy"
OPERATION = (
    "Softmax cross-entropy, forward and backward: logits [T, V] bfloat16 and targets [T] int64 to the losses "
    "[T] float32 and the gradient of their mean [T, V] bfloat16."
)
SHAPES: list[dict[str, int]] = [
    {"T": 4096, "V": 32000},
    {"T": 4096, "V": 50264},
    {"T": 2048, "V": 128256},
]
# One entry per output; an element passes if |out - reference| <= atol + rtol * |reference|.
TOLERANCE: dict[str, dict[str, float]] = {
    "losses": {"rtol": 1e-4, "atol": 1e-4},
    "grad": {"rtol": 1e-2, "atol": 1e-12},
}
OUTPUT_DTYPES = ["float32", "bfloat16"]


def make_inputs(shape: dict[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws logits with a spread of 2 and uniform targets."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    rows, vocabulary = shape["T"], shape["V"]
    logits = torch.empty((rows, vocabulary), dtype=torch.bfloat16, device=device)
    for start in range(0, rows, 512):
        part = logits[start : start + 512]
        part.copy_(torch.randn(part.shape, generator=generator, device=device) * 2.0)
    targets = torch.randint(0, vocabulary, (rows,), generator=generator, device=device)
    return logits, targets


def reference(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Computes losses and gradient in float32, some rows at a time, with float64 sums."""
    import torch

    rows, vocabulary = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    grad = torch.empty((rows, vocabulary), dtype=torch.float32, device=logits.device)
    for start in range(0, rows, 512):
        part = logits[start : start + 512].float()
        index = targets[start : start + 512, None]
        top = part.amax(dim=1, keepdim=True)
        weights = torch.exp(part - top)
        total = weights.sum(dim=1, keepdim=True, dtype=torch.float64)
        losses[start : start + 512] = (total.log() + top - part.gather(1, index)).float()[:, 0]
        weights /= total.float()
        weights.scatter_add_(1, index, torch.full_like(top, -1.0))
        grad[start : start + 512] = weights / rows
    return losses, grad


# --------------------------------------------------------------------------------------------------- Triton

SPLIT_KERNELS = '''
"""Cross entropy and its gradient with three separate Triton kernels."""
import torch
import triton
import triton.language as tl


@triton.jit
def row_max_kernel(logits_ptr, max_ptr, n_cols, BLOCK_SIZE: tl.constexpr):
    # One program finds the maximum of one row.
    row = tl.program_id(0)
    row_start = logits_ptr + row.to(tl.int64) * n_cols
    running_max = -float("inf")
    for start in range(0, n_cols, BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
        mask = cols < n_cols
        values = tl.load(row_start + cols, mask=mask, other=-float("inf")).to(tl.float32)
        running_max = tl.maximum(running_max, tl.max(values, axis=0))
    tl.store(max_ptr + row, running_max)


@triton.jit
def row_sum_kernel(logits_ptr, targets_ptr, max_ptr, sum_ptr, losses_ptr, n_cols, BLOCK_SIZE: tl.constexpr):
    # Sum of exponentials, then the loss of the row.
    row = tl.program_id(0)
    row_start = logits_ptr + row.to(tl.int64) * n_cols
    row_max = tl.load(max_ptr + row)
    total = 0.0
    for start in range(0, n_cols, BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
        mask = cols < n_cols
        values = tl.load(row_start + cols, mask=mask, other=-float("inf")).to(tl.float32)
        total += tl.sum(tl.exp(values - row_max), axis=0)
    tl.store(sum_ptr + row, total)
    target = tl.load(targets_ptr + row)
    target_logit = tl.load(row_start + target).to(tl.float32)
    tl.store(losses_ptr + row, tl.log(total) + row_max - target_logit)


@triton.jit
def grad_kernel(logits_ptr, targets_ptr, max_ptr, sum_ptr, grad_ptr, n_rows, n_cols,
                BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    row_start = logits_ptr + row.to(tl.int64) * n_cols
    grad_start = grad_ptr + row.to(tl.int64) * n_cols
    row_max = tl.load(max_ptr + row)
    total = tl.load(sum_ptr + row)
    target = tl.load(targets_ptr + row)
    for start in range(0, n_cols, BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
        mask = cols < n_cols
        values = tl.load(row_start + cols, mask=mask, other=0.0).to(tl.float32)
        probs = tl.exp(values - row_max) / total
        one_hot = tl.where(cols == target, 1.0, 0.0)
        tl.store(grad_start + cols, (probs - one_hot) / n_rows, mask=mask)


def run(logits, targets):
    n_rows, n_cols = logits.shape
    row_max = torch.empty(n_rows, dtype=torch.float32, device=logits.device)
    row_sum = torch.empty(n_rows, dtype=torch.float32, device=logits.device)
    losses = torch.empty(n_rows, dtype=torch.float32, device=logits.device)
@alloc@
    BLOCK_SIZE = @block@
    grid = (n_rows,)
    row_max_kernel[grid](logits, row_max, n_cols, BLOCK_SIZE=BLOCK_SIZE, num_warps=@warps@)
    row_sum_kernel[grid](logits, targets, row_max, row_sum, losses, n_cols,
                         BLOCK_SIZE=BLOCK_SIZE, num_warps=@warps@)
    grad_kernel[grid](logits, targets, row_max, row_sum, grad, n_rows, n_cols,
                      BLOCK_SIZE=BLOCK_SIZE, num_warps=@warps@)
    return losses, @result@
'''

GRAD_KINDS = {
    "float32_then_cast": (
        "    grad = torch.empty((n_rows, n_cols), dtype=torch.float32, device=logits.device)",
        "grad.to(torch.bfloat16)",
    ),
    "bfloat16": ("    grad = torch.empty_like(logits)", "grad"),
    "zeros_then_cast": (
        "    # the gradient is kept in float32 and starts as zeros\n"
        "    grad = torch.zeros((n_rows, n_cols), dtype=torch.float32, device=logits.device)",
        "grad.to(logits.dtype).contiguous()",
    ),
}


def split_kernels(block: int, warps: int, grad: str) -> Draft:
    """A kernel per step: maximum, sum, gradient."""
    alloc, result = GRAD_KINDS[grad]
    choices = {"family": "split_kernels", "block": block, "warps": warps, "grad": grad}
    return Draft(choices, fill(SPLIT_KERNELS, block=block, warps=warps, alloc=alloc, result=result))


FUSED3_SCALAR = """
import torch
import triton
import triton.language as tl


@triton.jit
def _ce_fwd_bwd(X, Y, L, DX, scale, V: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    X += pid * V
    DX += pid * V
    offs = tl.arange(0, BLOCK)

    # 1) max
    m = float("-inf")
    for c in range(0, V, BLOCK):
        x = tl.load(X + c + offs, mask=c + offs < V, other=float("-inf")).to(tl.float32)
        m = tl.maximum(m, tl.max(x, 0))

    # 2) denominator
    s = 0.0
    for c in range(0, V, BLOCK):
        x = tl.load(X + c + offs, mask=c + offs < V, other=float("-inf")).to(tl.float32)
        s += tl.sum(tl.exp(x - m), 0)

    y = tl.load(Y + pid)
    xt = tl.load(X + y).to(tl.float32)
    tl.store(L + pid, m + tl.log(s) - xt)

    # 3) gradient
    r = scale / s
    for c in range(0, V, BLOCK):
        cols = c + offs
        x = tl.load(X + cols, mask=cols < V, other=float("-inf")).to(tl.float32)
        g = tl.exp(x - m) * r
        g = tl.where(cols == y, g - scale, g)
        tl.store(DX + cols, g.to(tl.bfloat16), mask=cols < V)


def run(logits, targets):
    T, V = logits.shape
    losses = torch.empty((T,), device=logits.device, dtype=torch.float32)
    dlogits = torch.empty_like(logits)
    _ce_fwd_bwd[(T,)](logits, targets, losses, dlogits, 1.0 / T, V, BLOCK=@block@, num_warps=@warps@)
    return losses, dlogits
"""

FUSED3_VECTOR = '''
import torch
import triton
import triton.language as tl

NEG = tl.constexpr(-3.0e38)


@triton.jit
def fused_ce(logits, targets, losses, grads, n_vocab, inv_n, CHUNK: tl.constexpr):
    """Three sweeps; the reductions across the chunk are done once per sweep, not once per chunk."""
    row = tl.program_id(axis=0)
    base = row.to(tl.int64) * n_vocab
    lane = tl.arange(0, CHUNK)

    acc_max = tl.full((CHUNK,), NEG, tl.float32)
    for begin in range(0, n_vocab, CHUNK):
        idx = begin + lane
        val = tl.load(logits + base + idx, mask=idx < n_vocab, other=NEG)
        acc_max = tl.maximum(acc_max, val.to(tl.float32))
    top = tl.max(acc_max, axis=0)

    acc_sum = tl.zeros((CHUNK,), tl.float32)
    for begin in range(0, n_vocab, CHUNK):
        idx = begin + lane
        val = tl.load(logits + base + idx, mask=idx < n_vocab, other=NEG).to(tl.float32)
        acc_sum += tl.exp(val - top)
    lse = top + tl.log(tl.sum(acc_sum, axis=0))

    label = tl.load(targets + row)
    tl.store(losses + row, lse - tl.load(logits + base + label).to(tl.float32))

    for begin in range(0, n_vocab, CHUNK):
        idx = begin + lane
        keep = idx < n_vocab
        val = tl.load(logits + base + idx, mask=keep, other=NEG).to(tl.float32)
        prob = tl.exp(val - lse)
        delta = (prob - (idx == label).to(tl.float32)) * inv_n
        tl.store(grads + base + idx, delta, mask=keep)


def run(logits, targets):
    n_rows, n_vocab = logits.shape
    losses = logits.new_empty(n_rows, dtype=torch.float32)
    grads = torch.empty_like(logits)
    fused_ce[(n_rows,)](logits, targets, losses, grads, n_vocab, 1.0 / n_rows,
                        CHUNK=@block@, num_warps=@warps@)
    return losses, grads
'''

THREE_SWEEPS = {"scalar": FUSED3_SCALAR, "vector": FUSED3_VECTOR}


def three_sweeps(block: int, warps: int, accumulate: str) -> Draft:
    """The same three steps in one kernel, a program per row."""
    choices = {"family": "three_sweeps", "block": block, "warps": warps, "accumulate": accumulate}
    return Draft(choices, fill(THREE_SWEEPS[accumulate], block=block, warps=warps))


ONLINE_SCALAR = """
# Online softmax: one read for the statistics, one read for the gradient.
import torch, triton
import triton.language as tl

@triton.jit
def online_ce_kernel(x_ptr, t_ptr, loss_ptr, dx_ptr, stride, V, inv_T, BLOCK_V: tl.constexpr):
    i = tl.program_id(0)
    x_ptr += i.to(tl.int64) * stride
    dx_ptr += i.to(tl.int64) * stride
    t = tl.load(t_ptr + i)
    xt = tl.load(x_ptr + t).to(tl.float32)@prescale@
    m_i = float("-inf")
    d_i = 0.0
    for v0 in range(0, V, BLOCK_V):
        v = v0 + tl.arange(0, BLOCK_V)
        x = tl.load(x_ptr + v, mask=v < V, other=float("-inf")@first_read@).to(tl.float32)@prescale@
        m_new = tl.maximum(m_i, tl.max(x))
        d_i = d_i * @exp@(m_i - m_new) + tl.sum(@exp@(x - m_new))
        m_i = m_new
    lse = m_i + @log@(d_i)
    tl.store(loss_ptr + i, (lse - xt)@postscale@)
    for v0 in range(0, V, BLOCK_V):
        v = v0 + tl.arange(0, BLOCK_V)
        x = tl.load(x_ptr + v, mask=v < V, other=float("-inf")@second_read@).to(tl.float32)@prescale@
        p = @exp@(x - lse)
        p = tl.where(v == t, p - 1.0, p)
        tl.store(dx_ptr + v, (p * inv_T).to(dx_ptr.dtype.element_ty), mask=v < V)

def run(logits, targets):
    T, V = logits.shape
    loss = torch.empty(T, dtype=torch.float32, device=logits.device)
    dx = torch.empty_like(logits)
    online_ce_kernel[(T,)](logits, targets, loss, dx, logits.stride(0), V, 1.0 / T,
                           BLOCK_V=@block@, num_warps=@warps@)
    return loss, dx
"""


def online(block: int, warps: int, exp: str = "exp", evict: str = "none") -> Draft:
    """Maximum and sum in one walk along the row, the gradient in a second."""
    choices = {"family": "online", "block": block, "warps": warps, "exp": exp, "evict": evict}
    base2 = exp == "exp2"
    code = fill(
        ONLINE_SCALAR,
        block=block,
        warps=warps,
        exp="tl.exp2" if base2 else "tl.exp",
        log="tl.log2" if base2 else "tl.log",
        prescale=" * 1.4426950408889634" if base2 else "",
        postscale=" * 0.6931471805599453" if base2 else "",
        first_read=eviction("last", evict == "hints"),
        second_read=eviction("first", evict == "hints"),
    )
    return Draft(choices, code)


ONLINE_VECTOR = """
import torch
import triton
import triton.language as tl


@triton.jit
def _softmax_xent(
    Logits,
    Targets,
    Loss,
    Grad,
    VOCAB: tl.constexpr,
    SCALE,
    TILE: tl.constexpr,
):
    row = tl.program_id(0)
    src = Logits + row.to(tl.int64) * VOCAB
    dst = Grad + row.to(tl.int64) * VOCAB
    lanes = tl.arange(0, TILE)

    # every lane keeps its own running (max, sum); they meet once at the end
    lane_max = tl.full([TILE], -3.0e38, dtype=tl.float32)
    lane_sum = tl.full([TILE], 0.0, dtype=tl.float32)
    for start in @range@:
        pos = start + lanes
        x = tl.load(src + pos, mask=pos < VOCAB, other=-3.0e38@first_read@).to(tl.float32)
        new_max = tl.maximum(lane_max, x)
        lane_sum = lane_sum * tl.exp(lane_max - new_max) + tl.exp(x - new_max)
        lane_max = new_max
    row_max = tl.max(lane_max, axis=0)
    denom = tl.sum(lane_sum * tl.exp(lane_max - row_max), axis=0)

    target = tl.load(Targets + row)
    target_logit = tl.load(src + target).to(tl.float32)
    tl.store(Loss + row, tl.log(denom) + row_max - target_logit)

    factor = SCALE / denom
    for start in @range@:
        pos = start + lanes
        x = tl.load(src + pos, mask=pos < VOCAB, other=-3.0e38@second_read@).to(tl.float32)
        out = tl.exp(x - row_max) * factor
        out -= tl.where(pos == target, SCALE, 0.0)
        tl.store(dst + pos, out.to(tl.bfloat16), mask=pos < VOCAB@write@)


def run(logits, targets):
    n, vocab = logits.shape
    loss = torch.empty(n, device=logits.device, dtype=torch.float32)
    grad = torch.empty(n, vocab, device=logits.device, dtype=torch.bfloat16)
    _softmax_xent[(n,)](logits, targets, loss, grad, vocab, 1.0 / n, TILE=@block@, num_warps=@warps@)
    return loss, grad
"""


def online_lanes(block: int, warps: int, evict: str = "none", loop: str = "range") -> Draft:
    """The same with a maximum and a sum per lane, merged at the end of the first walk."""
    choices = {"family": "online_lanes", "block": block, "warps": warps, "evict": evict, "loop": loop}
    loops = {"range": "range(0, VOCAB, TILE)", "staged": "tl.range(0, VOCAB, TILE, num_stages=3)"}
    code = fill(
        ONLINE_VECTOR,
        block=block,
        warps=warps,
        range=loops[loop],
        first_read=eviction("last", evict == "hints"),
        second_read=eviction("first", evict == "hints"),
        write=eviction("first", evict == "hints"),
    )
    return Draft(choices, code)


WHOLE_ROW = '''
import torch
import triton
import triton.language as tl


@triton.jit
def ce_one_shot(lg, tg, out, gr, N, V, BLOCK: tl.constexpr):
    """The whole row lives in registers: one load, one store."""
    r = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    ok = cols < V
    raw = tl.load(lg + r * V + cols, mask=ok, other=float("-inf"))
@body@
    tl.store(gr + r * V + cols, g.to(tl.bfloat16), mask=ok)


def run(logits, targets):
    N, V = logits.shape
    out = torch.zeros(N, dtype=torch.float32, device=logits.device)
    gr = torch.empty_like(logits)
    ce_one_shot[(N,)](logits, targets, out, gr, N, V, BLOCK=triton.next_power_of_2(V), num_warps=@warps@)
    return out, gr
'''

WHOLE_ROW_BODY = {
    "float32": """    x = raw.to(tl.float32)
    m = tl.max(x, axis=0)
    e = tl.exp(x - m)
    z = tl.sum(e, axis=0)
    t = tl.load(tg + r)
    xt = tl.load(lg + r * V + t).to(tl.float32)
    tl.store(out + r, tl.log(z) + m - xt)
    g = (e / z - tl.where(cols == t, 1.0, 0.0)) / N""",
    "bfloat16_recompute": """    # keep the packed values and widen twice: half the registers
    m = tl.max(raw, axis=0).to(tl.float32)
    z = tl.sum(tl.exp(raw.to(tl.float32) - m), axis=0)
    t = tl.load(tg + r)
    xt = tl.load(lg + r * V + t).to(tl.float32)
    lse = tl.log(z) + m
    tl.store(out + r, lse - xt)
    g = tl.exp(raw.to(tl.float32) - lse)
    g = tl.where(cols == t, g - 1.0, g) / N""",
}


def whole_row(warps: int, keep: str) -> Draft:
    """A program per row that holds the row in registers."""
    choices = {"family": "whole_row", "warps": warps, "keep": keep}
    return Draft(choices, fill(WHOLE_ROW, body=WHOLE_ROW_BODY[keep], warps=warps))


ROW_TILE = """
import torch
import triton
import triton.language as tl


@triton.jit
def ce_row_tile_kernel(
    logits_ptr, target_ptr, loss_ptr, grad_ptr,
    n_rows, n_cols,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_ok = rows < n_rows
    base = rows.to(tl.int64)[:, None] * n_cols
    tgt = tl.load(target_ptr + rows, mask=row_ok, other=0)
    row_max = tl.full([ROWS], -1e30, tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    for c in range(0, n_cols, COLS):
        cols = c + tl.arange(0, COLS)
        mask = row_ok[:, None] & (cols < n_cols)[None, :]
        tile = tl.load(logits_ptr + base + cols[None, :], mask=mask, other=-1e30).to(tl.float32)
        new_max = tl.maximum(row_max, tl.max(tile, axis=1))
        row_sum = row_sum * tl.exp(row_max - new_max) + tl.sum(tl.exp(tile - new_max[:, None]), axis=1)
        row_max = new_max
    lse = row_max + tl.log(row_sum)
    picked = tl.load(logits_ptr + rows.to(tl.int64) * n_cols + tgt, mask=row_ok, other=0.0).to(tl.float32)
    tl.store(loss_ptr + rows, lse - picked, mask=row_ok)
    for c in range(0, n_cols, COLS):
        cols = c + tl.arange(0, COLS)
        mask = row_ok[:, None] & (cols < n_cols)[None, :]
        tile = tl.load(logits_ptr + base + cols[None, :], mask=mask, other=-1e30).to(tl.float32)
        hit = cols[None, :] == tgt[:, None]
        grad = (tl.exp(tile - lse[:, None]) - tl.where(hit, 1.0, 0.0)) / n_rows
        tl.store(grad_ptr + base + cols[None, :], grad.to(tl.bfloat16), mask=mask)


def run(logits, targets):
    logits = logits.contiguous()
    n_rows, n_cols = logits.shape
    loss = torch.empty(n_rows, dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    grid = (triton.cdiv(n_rows, @rows@),)
    ce_row_tile_kernel[grid](logits, targets, loss, grad, n_rows, n_cols,
                             ROWS=@rows@, COLS=@block@, num_warps=@warps@)
    return loss, grad
"""


def row_tile(rows: int, block: int, warps: int) -> Draft:
    """Several rows per program, columns in a loop."""
    choices = {"family": "row_tile", "rows": rows, "block": block, "warps": warps}
    return Draft(choices, fill(ROW_TILE, rows=rows, block=block, warps=warps))


PERSISTENT = """
import torch
import triton
import triton.language as tl

_SMS = {}


def _num_sms(device):
    if device not in _SMS:
        _SMS[device] = torch.cuda.get_device_properties(device).multi_processor_count
    return _SMS[device]


@triton.jit
def persistent_ce(x, tgt, loss, dx, rows, V: tl.constexpr, inv_rows,
                  BLOCK: tl.constexpr, STAGES: tl.constexpr):
    first = tl.program_id(0)
    step = tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
    for row in range(first, rows, step):
        off = row.to(tl.int64) * V
        mx = tl.full([BLOCK], -3.0e38, tl.float32)
        sm = tl.zeros([BLOCK], tl.float32)
        for s in tl.range(0, V, BLOCK, num_stages=STAGES):
            c = s + cols
            v = tl.load(x + off + c, mask=c < V, other=-3.0e38, eviction_policy="evict_last").to(tl.float32)
            nm = tl.maximum(mx, v)
            sm = sm * tl.exp(mx - nm) + tl.exp(v - nm)
            mx = nm
        top = tl.max(mx, 0)
        lse = top + tl.log(tl.sum(sm * tl.exp(mx - top), 0))
        y = tl.load(tgt + row)
        tl.store(loss + row, lse - tl.load(x + off + y).to(tl.float32))
        for s in tl.range(0, V, BLOCK, num_stages=STAGES):
            c = s + cols
            v = tl.load(x + off + c, mask=c < V, other=-3.0e38, eviction_policy="evict_first").to(tl.float32)
            p = tl.exp(v - lse) - tl.where(c == y, 1.0, 0.0)
            tl.store(dx + off + c, (p * inv_rows).to(tl.bfloat16), mask=c < V)


def run(logits, targets):
    rows, V = logits.shape
    loss = torch.empty(rows, dtype=torch.float32, device=logits.device)
    dx = torch.empty_like(logits)
    grid = (min(rows, @per_sm@ * _num_sms(logits.device)),)
    persistent_ce[grid](logits, targets, loss, dx, rows, V, 1.0 / rows,
                        BLOCK=@block@, STAGES=@stages@, num_warps=@warps@)
    return loss, dx
"""


def persistent(per_sm: int, block: int, warps: int, stages: int) -> Draft:
    """A fixed number of programs that stride over the rows."""
    choices = {"family": "persistent", "per_sm": per_sm, "block": block, "warps": warps, "stages": stages}
    return Draft(choices, fill(PERSISTENT, per_sm=per_sm, block=block, warps=warps, stages=stages))


SPLIT_ROW = """
import torch
import triton
import triton.language as tl


@triton.jit
def partial_stats(x, pm, ps, V, S, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    c = part * CHUNK + tl.arange(0, CHUNK)
    v = tl.load(x + row * V + c, mask=c < V, other=float("-inf")).to(tl.float32)
    m = tl.max(v, 0)
    tl.store(pm + row * S + part, m)
    tl.store(ps + row * S + part, tl.sum(tl.exp(v - m), 0))


@combine_kernel@
@triton.jit
def write_grad(x, tgt, lse_or_pm, ps, loss, dx, rows, V, S, CHUNK: tl.constexpr, SPAD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    y = tl.load(tgt + row)
@lse@
    c = part * CHUNK + tl.arange(0, CHUNK)
    keep = c < V
    v = tl.load(x + row * V + c, mask=keep, other=0.0).to(tl.float32)
    g = (tl.exp(v - lse) - tl.where(c == y, 1.0, 0.0)) / rows
    tl.store(dx + row * V + c, g.to(tl.bfloat16), mask=keep)


def run(logits, targets):
    rows, V = logits.shape
    CHUNK = @chunk@
    S = triton.cdiv(V, CHUNK)
    SPAD = triton.next_power_of_2(S)
    pm = torch.empty((rows, S), dtype=torch.float32, device=logits.device)
    ps = torch.empty_like(pm)
    loss = torch.empty(rows, dtype=torch.float32, device=logits.device)
    dx = torch.empty_like(logits)
    partial_stats[(rows, S)](logits, pm, ps, V, S, CHUNK=CHUNK, num_warps=@warps@)
@combine_call@
    return loss, dx
"""

SPLIT_COMBINE_KERNEL = """@triton.jit
def combine(x, tgt, pm, ps, lse, loss, V, S, SPAD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, SPAD)
    m = tl.load(pm + row * S + s, mask=s < S, other=float("-inf"))
    d = tl.load(ps + row * S + s, mask=s < S, other=0.0)
    top = tl.max(m, 0)
    z = top + tl.log(tl.sum(d * tl.exp(m - top), 0))
    tl.store(lse + row, z)
    tl.store(loss + row, z - tl.load(x + row * V + tl.load(tgt + row)).to(tl.float32))

"""

SPLIT_PIECES = {
    "second_kernel": {
        "combine_kernel": SPLIT_COMBINE_KERNEL,
        "lse": "    lse = tl.load(lse_or_pm + row)",
        "combine_call": """    lse = torch.empty_like(loss)
    combine[(rows,)](logits, targets, pm, ps, lse, loss, V, S, SPAD=SPAD, num_warps=1)
    write_grad[(rows, S)](logits, targets, lse, ps, loss, dx, rows, V, S,
                          CHUNK=CHUNK, SPAD=SPAD, num_warps=@warps@)""",
    },
    "torch": {
        "combine_kernel": "",
        "lse": "    lse = tl.load(lse_or_pm + row)",
        "combine_call": """    # merge the partial results with ordinary tensor operations
    lse = torch.logsumexp(pm + torch.log(ps), dim=1)
    loss = lse - logits.gather(1, targets[:, None]).squeeze(1).float()
    write_grad[(rows, S)](logits, targets, lse, ps, loss, dx, rows, V, S,
                          CHUNK=CHUNK, SPAD=SPAD, num_warps=@warps@)""",
    },
    "in_gradient": {
        "combine_kernel": "",
        "lse": """    s = tl.arange(0, SPAD)
    m = tl.load(lse_or_pm + row * S + s, mask=s < S, other=float("-inf"))
    d = tl.load(ps + row * S + s, mask=s < S, other=0.0)
    top = tl.max(m, 0)
    lse = top + tl.log(tl.sum(d * tl.exp(m - top), 0))
    if part == 0:
        tl.store(loss + row, lse - tl.load(x + row * V + y).to(tl.float32))""",
        "combine_call": """    # every program merges the partial results of its row once more
    write_grad[(rows, S)](logits, targets, pm, ps, loss, dx, rows, V, S,
                          CHUNK=CHUNK, SPAD=SPAD, num_warps=@warps@)""",
    },
}


def split_row(chunk: int, warps: int, combine: str) -> Draft:
    """Several programs share a row; `combine` says where their sums meet."""
    choices = {"family": "split_row", "chunk": chunk, "warps": warps, "combine": combine}
    return Draft(choices, fill(SPLIT_ROW, chunk=chunk, warps=warps, **SPLIT_PIECES[combine]))


ATOMIC = """
import torch
import triton
import triton.language as tl

# Logits are of moderate size, so exp() cannot overflow float32 and the maximum is not needed.


@triton.jit
def exp_sum(logits, denom, V, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(logits + row.to(tl.int64) * V + cols, mask=cols < V, other=float("-inf"))
    tl.atomic_add(denom + row, tl.sum(tl.exp(v.to(tl.float32))))


@triton.jit
def finish(logits, targets, denom, losses, grad, T, V, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    base = row.to(tl.int64) * V
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(denom + row)
    t = tl.load(targets + row)
    if tl.program_id(0) == 0:
        tl.store(losses + row, tl.log(z) - tl.load(logits + base + t).to(tl.float32))
    v = tl.load(logits + base + cols, mask=cols < V, other=0.0).to(tl.float32)
    p = tl.exp(v) / z
    p = tl.where(cols == t, p - 1, p) / T
    tl.store(grad + base + cols, p.to(tl.bfloat16), mask=cols < V)


def run(logits, targets):
    T, V = logits.shape
    denom = torch.zeros(T, device=logits.device)
    losses = torch.empty(T, device=logits.device)
    grad = torch.empty_like(logits)
    grid = (triton.cdiv(V, @block@), T)
    exp_sum[grid](logits, denom, V, BLOCK=@block@, num_warps=@warps@)
    finish[grid](logits, targets, denom, losses, grad, T, V, BLOCK=@block@, num_warps=@warps@)
    return losses, grad
"""


def atomic_sum(block: int, warps: int) -> Draft:
    """Programs add up the row's sum by atomics, then a second kernel finishes."""
    choices = {"family": "atomic_sum", "block": block, "warps": warps}
    return Draft(choices, fill(ATOMIC, block=block, warps=warps))


AUTOTUNED = """
import torch
import triton
import triton.language as tl


def configs():
    return [
        @configs@
    ]


@triton.autotune(configs=configs(), key=["vocab"])
@triton.jit
def tuned_ce(logits, targets, losses, grads, vocab, rows, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    p_in = logits + row.to(tl.int64) * vocab
    p_out = grads + row.to(tl.int64) * vocab
    peak = float("-inf")
    total = 0.0
    for lo in range(0, vocab, BLOCK):
        j = lo + tl.arange(0, BLOCK)
        z = tl.load(p_in + j, mask=j < vocab, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(z, 0))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(z - higher), 0)
        peak = higher
    label = tl.load(targets + row)
    tl.store(losses + row, peak + tl.log(total) - tl.load(p_in + label).to(tl.float32))
    for lo in range(0, vocab, BLOCK):
        j = lo + tl.arange(0, BLOCK)
        z = tl.load(p_in + j, mask=j < vocab, other=0.0).to(tl.float32)
        soft = tl.exp(z - peak) / total
        tl.store(p_out + j, ((soft - tl.where(j == label, 1.0, 0.0)) / rows).to(tl.bfloat16), mask=j < vocab)


def run(logits, targets):
    rows, vocab = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    grads = torch.empty_like(logits)
    tuned_ce[(rows,)](logits, targets, losses, grads, vocab, rows)
    return losses, grads
"""

AUTOTUNE = {
    "small": ((512, 4), (1024, 4), (2048, 8)),
    "wide": ((4096, 8), (8192, 16), (16384, 16)),
}


def autotuned(configs: str) -> Draft:
    """A list of configurations to choose from."""
    code = fill(AUTOTUNED, configs=triton_configs(AUTOTUNE[configs]))
    return Draft({"family": "autotuned", "configs": configs}, code)


TORCH_LSE = """
import torch
import triton
import triton.language as tl


@triton.jit
def grad_from_lse(logits_ptr, lse_ptr, targets_ptr, grad_ptr, n_cols, n_rows, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    block = tl.program_id(1)
    offs = block * BLOCK + tl.arange(0, BLOCK)
    lse = tl.load(lse_ptr + row)
    target = tl.load(targets_ptr + row)
    start = row.to(tl.int64) * n_cols
    x = tl.load(logits_ptr + start + offs, mask=offs < n_cols, other=0.0).to(tl.float32)
    grad = tl.exp(x - lse)
    grad = tl.where(offs == target, grad - 1.0, grad)
    tl.store(grad_ptr + start + offs, grad / n_rows, mask=offs < n_cols)


def run(logits, targets):
    n_rows, n_cols = logits.shape
@lse@
    picked = logits.gather(1, targets.unsqueeze(1)).squeeze(1).float()
    losses = lse - picked
    grad = torch.empty_like(logits)
    grid = (n_rows, triton.cdiv(n_cols, @block@))
    grad_from_lse[grid](logits, lse, targets, grad, n_cols, n_rows, BLOCK=@block@)
    return losses, grad
"""

TORCH_LSE_PIECES = {
    "logsumexp": "    lse = torch.logsumexp(logits.float(), dim=-1)",
    "max_then_sum": """    x32 = logits.to(torch.float32)
    top = x32.max(dim=-1, keepdim=True).values
    lse = (torch.log(torch.exp(x32 - top).sum(dim=-1, keepdim=True)) + top).squeeze(-1)""",
    "by_rows": """    lse = torch.empty(n_rows, dtype=torch.float32, device=logits.device)
    for i in range(0, n_rows, 128):
        lse[i:i + 128] = torch.logsumexp(logits[i:i + 128].float(), dim=-1)""",
    "log_softmax": """    logp = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    lse = logits[:, 0].float() - logp[:, 0]""",
}


def torch_statistics(lse: str, block: int) -> Draft:
    """The statistics of the rows by PyTorch, the gradient by a kernel."""
    choices = {"family": "torch_statistics", "lse": lse, "block": block}
    return Draft(choices, fill(TORCH_LSE, lse=TORCH_LSE_PIECES[lse], block=block))


# -------------------------------------------------------------------------------------------------- PyTorch

TORCH = {
    ("autograd", "float32"): '''
import torch
import torch.nn.functional as F


def run(logits, targets):
    """Let autograd do the backward pass."""
    with torch.enable_grad():
        x = logits.detach().float().requires_grad_(True)
        losses = F.cross_entropy(x, targets, reduction="none")
        (grad,) = torch.autograd.grad(losses.mean(), x)
    return losses.detach(), grad.to(torch.bfloat16)
''',
    ("autograd", "bfloat16_leaf"): """
import torch


def run(logits, targets):
    criterion = torch.nn.CrossEntropyLoss(reduction="none")
    with torch.enable_grad():
        leaf = logits.detach().clone().requires_grad_()
        losses = criterion(leaf.float(), targets)
        losses.mean().backward()
    return losses.detach(), leaf.grad
""",
    ("log_softmax", "float32"): """
import torch


def run(logits, targets):
    T, V = logits.shape
    logp = torch.log_softmax(logits.float(), dim=-1)
    losses = -logp.gather(1, targets[:, None]).squeeze(1)
    grad = logp.exp()
    grad[torch.arange(T, device=logits.device), targets] -= 1.0
    grad = grad / T
    return losses, grad.to(torch.bfloat16)
""",
    ("log_softmax", "dtype_argument"): """
import torch


def run(logits, targets):
    rows = logits.size(0)
    logp = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    picked = torch.gather(logp, 1, targets.view(-1, 1))
    grad = logp.exp_()
    grad.scatter_add_(1, targets.view(-1, 1), torch.full_like(picked, -1.0))
    return -picked.view(-1), grad.div_(rows).bfloat16()
""".replace("    grad = logp.exp_()", "    picked = picked.clone()\n    grad = logp.exp_()"),
    ("log_softmax", "float64"): """
import torch


def run(logits, targets):
    T = logits.shape[0]
    logp = torch.log_softmax(logits.double(), dim=1)
    losses = -logp[torch.arange(T, device=logits.device), targets]
    probs = torch.exp(logp)
    probs[torch.arange(T, device=logits.device), targets] -= 1.0
    return losses.float(), (probs / T).to(logits.dtype)
""",
    ("softmax", "float32"): """
import torch


def run(logits, targets):
    n = logits.shape[0]
    rows = torch.arange(n, device=logits.device)
    probs = torch.softmax(logits.float(), dim=-1)
    losses = -torch.log(probs[rows, targets])
    probs[rows, targets] -= 1
    grad = (probs / n).to(torch.bfloat16)
    return losses, grad
""",
    ("softmax", "dtype_argument"): """
import torch
import torch.nn.functional as F


def run(logits, targets):
    n = logits.shape[0]
    index = targets.unsqueeze(-1)
    probs = F.softmax(logits, dim=-1, dtype=torch.float32)
    losses = probs.gather(-1, index).log().neg().squeeze(-1)
    probs.scatter_add_(-1, index, probs.new_full(index.shape, -1.0))
    return losses, probs.mul_(1.0 / n).to(logits.dtype)
""",
    ("logsumexp", "float32"): """
import torch


def run(logits, targets):
    T, V = logits.shape
    x = logits.float()
    lse = torch.logsumexp(x, dim=1, keepdim=True)
    losses = (lse - x.gather(1, targets.unsqueeze(1))).squeeze(1)
    grad = torch.exp(x - lse)
    grad.scatter_add_(1, targets.unsqueeze(1), -torch.ones_like(lse))
    grad = grad / T
    return losses, grad.to(torch.bfloat16)
""",
    ("logsumexp", "in_place"): """
import torch


@torch.no_grad()
def run(logits, targets):
    t = logits.shape[0]
    x = logits.float()
    z = x.logsumexp(1, keepdim=True)
    k = targets[:, None]
    losses = (z - x.gather(1, k))[:, 0]
    x.sub_(z).exp_()
    x.scatter_add_(1, k, torch.full_like(z, -1.0))
    out = torch.empty_like(logits)
    torch.mul(x, 1.0 / t, out=x)
    out.copy_(x)
    return losses, out
""",
    ("manual", "float32"): """
import torch


def run(logits, targets):
    # Written out step by step.
    batch, vocab = logits.shape
    x = logits.to(torch.float32)
    row_max, _ = torch.max(x, dim=1, keepdim=True)
    shifted = x - row_max
    exps = torch.exp(shifted)
    total = torch.sum(exps, dim=1, keepdim=True)
    probs = exps / total
    log_probs = shifted - torch.log(total)
    idx = torch.arange(batch, device=x.device)
    losses = -log_probs[idx, targets]
    grad = probs.clone()
    grad[idx, targets] = grad[idx, targets] - 1.0
    grad = grad / batch
    return losses, grad.to(torch.bfloat16)
""",
    ("manual", "one_hot"): """
import torch
import torch.nn.functional as F


def run(logits, targets):
    batch, vocab = logits.shape
    x = logits.float()
    e = torch.exp(x - x.amax(dim=1, keepdim=True))
    probs = e / e.sum(dim=1, keepdim=True)
    labels = F.one_hot(targets, num_classes=vocab).to(torch.float32)
    losses = -(labels * torch.log(probs)).sum(dim=1)
    return losses, ((probs - labels) / batch).bfloat16()
""",
    ("manual", "compare_mask"): """
import torch


def run(logits, targets):
    batch, vocab = logits.shape
    x = logits.float()
    e = (x - x.amax(dim=1, keepdim=True)).exp()
    probs = e / e.sum(dim=1, keepdim=True)
    is_target = torch.arange(vocab, device=x.device)[None, :] == targets[:, None]
    losses = -torch.log(torch.where(is_target, probs, torch.zeros_like(probs)).sum(dim=1))
    grad = torch.where(is_target, probs - 1.0, probs) / batch
    return losses, grad.to(logits.dtype)
""",
    ("aten", "backward_data"): """
import torch


def run(logits, targets):
    T, V = logits.shape
    logp = torch.ops.aten._log_softmax.default(logits.float(), 1, False)
    losses = -logp.gather(1, targets[:, None])[:, 0]
    upstream = torch.zeros_like(logp)
    upstream.scatter_(1, targets[:, None], -1.0 / T)
    grad = torch.ops.aten._log_softmax_backward_data.default(upstream, logp, 1, torch.float32)
    return losses, grad.to(torch.bfloat16)
""",
    ("vmap", "grad"): """
import torch
from torch.func import grad_and_value, vmap


def one_row(x, t):
    return torch.logsumexp(x, dim=0) - x.gather(0, t.view(1))[0]


def run(logits, targets):
    rows = logits.shape[0]
    grad, losses = vmap(grad_and_value(one_row))(logits.float(), targets)
    return losses, (grad / rows).to(torch.bfloat16)
""",
    ("columns", "online"): '''
import torch


def run(logits, targets):
    """Walk over slices of the vocabulary with a running maximum and sum."""
    T, V = logits.shape
    width = 8192
    run_max = torch.full((T, 1), float("-inf"), device=logits.device)
    run_sum = torch.zeros((T, 1), device=logits.device)
    for start in range(0, V, width):
        piece = logits[:, start:start + width].float()
        new_max = torch.maximum(run_max, piece.amax(dim=1, keepdim=True))
        run_sum = run_sum * torch.exp(run_max - new_max) + torch.exp(piece - new_max).sum(dim=1, keepdim=True)
        run_max = new_max
    lse = run_max + torch.log(run_sum)
    losses = (lse - logits.gather(1, targets[:, None]).float()).squeeze(1)
    grad = torch.empty_like(logits)
    for start in range(0, V, width):
        piece = logits[:, start:start + width].float()
        grad[:, start:start + width] = torch.exp(piece - lse) / T
    target_p = torch.exp(logits.gather(1, targets[:, None]).float() - lse)
    grad.scatter_(1, targets[:, None], ((target_p - 1.0) / T).to(grad.dtype))
    return losses, grad
''',
}

TORCH_ROWS = """
import torch
import torch.nn.functional as F

CHUNK_ROWS = @rows@


def run(logits, targets):
    n, v = logits.shape
    losses = torch.empty(n, dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    for lo in range(0, n, CHUNK_ROWS):
        hi = min(lo + CHUNK_ROWS, n)
        idx = targets[lo:hi, None]
        probs = F.softmax(logits[lo:hi], dim=-1, dtype=torch.float32)
        losses[lo:hi] = -probs.gather(1, idx).log().squeeze(1)
        probs.scatter_add_(1, idx, torch.full_like(idx, -1, dtype=torch.float32))
        grad[lo:hi] = probs / n
    return losses, grad
"""

TORCH_ROWS_CAT = """
import torch


def one_chunk(x, t, n):
    logp = torch.log_softmax(x.float(), dim=-1)
    losses = -logp.gather(1, t[:, None])[:, 0]
    g = logp.exp()
    g[torch.arange(len(t), device=x.device), t] -= 1.0
    return losses, (g / n).to(torch.bfloat16)


def run(logits, targets):
    n = logits.shape[0]
    parts = [one_chunk(x, t, n) for x, t in zip(logits.split(@rows@), targets.split(@rows@))]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
"""

TORCH_CHUNKS = {"preallocated": TORCH_ROWS, "cat": TORCH_ROWS_CAT}


def row_chunks(how: str, rows: int) -> Draft:
    """Plain PyTorch in a loop over slices of the rows."""
    choices = {"family": "torch", "algorithm": "row_chunks", "how": how, "rows": rows}
    return Draft(choices, fill(TORCH_CHUNKS[how], rows=rows), "pytorch")


# Text that goes before the first statement of run() after its signature, by the kind of needless work.
OVERHEADS = {
    "clone": "    logits = logits.clone().contiguous()\n    targets = targets.clone().long()\n",
    "synchronize": "    torch.cuda.synchronize()\n",
    "check_nan": (
        '    if torch.isnan(logits.float()).any().item():\n        raise ValueError("logits contain NaN")\n'
    ),
    "check_targets": (
        "    assert int(targets.min()) >= 0 and int(targets.max()) < logits.shape[1]\n"
        "    assert logits.is_cuda == targets.is_cuda\n"
    ),
    "transpose": "    logits = logits.t().contiguous().t().contiguous()\n",
    "empty_cache": "    torch.cuda.empty_cache()\n",
}


def torch_source(algorithm: str, how: str, overhead: str | None = None) -> Draft:
    """Plain PyTorch, with or without needless work."""
    code = TORCH[algorithm, how]
    if overhead:
        code = begin_run(code, OVERHEADS[overhead])
    choices = {"family": "torch", "algorithm": algorithm, "how": how, "overhead": overhead}
    return Draft(choices, code, "pytorch")


# ------------------------------------------------------------------------------------------------- CUDA C++

LOAD_INLINE = """
import torch
from torch.utils.cpp_extension import load_inline

CUDA_SOURCE = r'''
@kernel@
std::vector<torch::Tensor> cross_entropy(torch::Tensor logits, torch::Tensor targets) {
  const int64_t T = logits.size(0);
  const int64_t V = logits.size(1);
  auto losses = torch::empty({T}, logits.options().dtype(torch::kFloat32));
  auto grad = torch::empty_like(logits);
@launch@
  return {losses, grad};
}
'''

CPP_SOURCE = "std::vector<torch::Tensor> cross_entropy(torch::Tensor logits, torch::Tensor targets);"

module = load_inline(
    name="@name@",
    cpp_sources=[CPP_SOURCE],
    cuda_sources=[CUDA_SOURCE],
    functions=["cross_entropy"],
    extra_cuda_cflags=[@flags@],
    verbose=False,
)


def run(logits, targets):
    losses, grad = module.cross_entropy(logits, targets)
    return losses, grad
"""

CTYPES = """
import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch

SOURCE = r'''
@kernel@
extern "C" int launch(const void* logits, const void* targets, void* losses, void* grad, int T, int V) {
@launch@
  return (int)cudaGetLastError();
}
'''


def _build():
    tag = hashlib.sha1(SOURCE.encode()).hexdigest()[:16]
    library = os.path.join(tempfile.gettempdir(), f"ce_{tag}.so")
    if not os.path.exists(library):
        source = os.path.join(tempfile.gettempdir(), f"ce_{tag}_{os.getpid()}.cu")
        with open(source, "w") as f:
            f.write(SOURCE)
        built = source[:-3] + ".so"
        flags = ["-O3", "-std=c++17", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC"]
        subprocess.run(["nvcc", *flags, "-o", built, source], check=True)
        os.replace(built, library)
    return ctypes.CDLL(library)


lib = _build()


def run(logits, targets):
    T, V = logits.shape
    losses = torch.empty(T, dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (logits, targets, losses, grad)]
    status = lib.launch(*pointers, ctypes.c_int(T), ctypes.c_int(V))
    if status != 0:
        raise RuntimeError(f"CUDA error {status}")
    return losses, grad
"""


def load_inline(kernel: str, launch: str, name: str, flags: str = '"-O3"') -> str:
    """The source of a kernel in an extension that PyTorch builds."""
    return fill(LOAD_INLINE, kernel=kernel, launch=launch, name=name, flags=flags)


def ctypes_library(kernel: str, launch: str) -> str:
    """The source of a kernel in a library that the source builds and loads by itself."""
    return fill(CTYPES, kernel=kernel, launch=launch)


CU_TREE = """#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>

#define THREADS @threads@

typedef __nv_bfloat16 bf16;

// One block per row. Three passes; every reduction is a tree in shared memory.
__global__ void cross_entropy_kernel(const bf16* logits, const long long* targets, float* losses, bf16* grad,
                                     int T, int V) {
  __shared__ float sdata[THREADS];
  const int row = blockIdx.x;
  const int tid = threadIdx.x;
  const bf16* x = logits + (size_t)row * V;
  bf16* dx = grad + (size_t)row * V;

  // pass 1: maximum
  float m = -INFINITY;
@pass1@
  sdata[tid] = m;
  __syncthreads();
  for (int s = THREADS / 2; s > 0; s >>= 1) {
    if (tid < s) sdata[tid] = fmaxf(sdata[tid], sdata[tid + s]);
    __syncthreads();
  }
  m = sdata[0];
  __syncthreads();

  // pass 2: sum of exponentials
  float sum = 0.0f;
@pass2@
  sdata[tid] = sum;
  __syncthreads();
  for (int s = THREADS / 2; s > 0; s >>= 1) {
    if (tid < s) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  sum = sdata[0];

  // pass 3: gradient
  const int target = (int)targets[row];
  if (tid == 0) losses[row] = logf(sum) + m - __bfloat162float(x[target]);
@pass3@
}
"""

CU_TREE_PASSES = {
    "1": {
        "pass1": "  for (int i = tid; i < V; i += THREADS) m = fmaxf(m, __bfloat162float(x[i]));",
        "pass2": "  for (int i = tid; i < V; i += THREADS) sum += expf(__bfloat162float(x[i]) - m);",
        "pass3": """  for (int i = tid; i < V; i += THREADS) {
    float p = expf(__bfloat162float(x[i]) - m) / sum;
    if (i == target) p -= 1.0f;
    dx[i] = __float2bfloat16(p / (float)T);
  }""",
    },
    "2": {
        "pass1": """  const __nv_bfloat162* x2 = reinterpret_cast<const __nv_bfloat162*>(x);
  for (int i = tid; i < V / 2; i += THREADS) {
    float2 v = __bfloat1622float2(x2[i]);
    m = fmaxf(m, fmaxf(v.x, v.y));
  }""",
        "pass2": """  for (int i = tid; i < V / 2; i += THREADS) {
    float2 v = __bfloat1622float2(x2[i]);
    sum += expf(v.x - m) + expf(v.y - m);
  }""",
        "pass3": """  __nv_bfloat162* dx2 = reinterpret_cast<__nv_bfloat162*>(dx);
  for (int i = tid; i < V / 2; i += THREADS) {
    float2 v = __bfloat1622float2(x2[i]);
    float p0 = expf(v.x - m) / sum - (2 * i == target ? 1.0f : 0.0f);
    float p1 = expf(v.y - m) / sum - (2 * i + 1 == target ? 1.0f : 0.0f);
    dx2[i] = __floats2bfloat162_rn(p0 / (float)T, p1 / (float)T);
  }""",
    },
}

TREE_LAUNCH_INLINE = """  cross_entropy_kernel<<<T, THREADS>>>(
      reinterpret_cast<const bf16*>(logits.data_ptr<at::BFloat16>()),
      reinterpret_cast<const long long*>(targets.data_ptr<int64_t>()),
      losses.data_ptr<float>(), reinterpret_cast<bf16*>(grad.data_ptr<at::BFloat16>()), (int)T, (int)V);"""

TREE_LAUNCH_C = """  cross_entropy_kernel<<<T, THREADS>>>((const bf16*)logits, (const long long*)targets,
                                       (float*)losses, (bf16*)grad, T, V);"""


def cuda_tree(threads: int, vector: str, host: str = "ctypes") -> Draft:
    """A block per row, reductions as trees in shared memory."""
    kernel = fill(CU_TREE, threads=threads, **CU_TREE_PASSES[vector])
    if host == "load_inline":
        code = load_inline(kernel, TREE_LAUNCH_INLINE, f"ce_tree_{threads}_v{vector}")
    else:
        code = ctypes_library(kernel, TREE_LAUNCH_C)
    choices = {"family": "cuda_tree", "threads": threads, "vector": vector, "host": host}
    return Draft(choices, code, "cuda")


CU_SHUFFLE = """#include <cuda_bf16.h>
#include <cuda_runtime.h>

struct Stat { float m, d; };

__device__ __forceinline__ Stat merge(Stat a, Stat b) {
  float m = fmaxf(a.m, b.m);
  return {m, a.d * @exp@(a.m - m) + b.d * @exp@(b.m - m)};
}

__device__ __forceinline__ void push(Stat& s, float v) {
  if (v > s.m) { s.d = s.d * @exp@(s.m - v) + 1.f; s.m = v; }
  else s.d += @exp@(v - s.m);
}

__device__ __forceinline__ Stat warp_merge(Stat s) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    Stat other{__shfl_xor_sync(0xffffffffu, s.m, o), __shfl_xor_sync(0xffffffffu, s.d, o)};
    s = merge(s, other);
  }
  return s;
}

template <int BLOCK>
__global__ void __launch_bounds__(BLOCK) ce_online(const __nv_bfloat16* __restrict__ logits,
                                                   const int64_t* __restrict__ targets,
                                                   float* __restrict__ losses,
                                                   __nv_bfloat16* __restrict__ grad, int V, float scale) {
  __shared__ Stat warps[32];
  const int64_t row = blockIdx.x;
  const __nv_bfloat16* x = logits + row * V;
  __nv_bfloat16* g = grad + row * V;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

  Stat s{-3.0e38f, 0.f};
@first@
  s = warp_merge(s);
  if (lane == 0) warps[warp] = s;
  __syncthreads();
  if (warp == 0) {
    s = lane < BLOCK / 32 ? warps[lane] : Stat{-3.0e38f, 0.f};
    s = warp_merge(s);
    if (lane == 0) warps[0] = s;
  }
  __syncthreads();
  s = warps[0];

  const int t = (int)targets[row];
  if (threadIdx.x == 0) losses[row] = __logf(s.d) + s.m - __bfloat162float(x[t]);
  const float k = scale / s.d;
@second@
  // the target's entry loses 1 / T
  __syncthreads();
  if (threadIdx.x == 0) g[t] = __float2bfloat16(@exp@(__bfloat162float(x[t]) - s.m) * k - scale);
}
"""

CU_SHUFFLE_LOOPS = {
    "1": {
        "first": "  for (int i = threadIdx.x; i < V; i += BLOCK) push(s, __bfloat162float(x[i]));",
        "second": """  for (int i = threadIdx.x; i < V; i += BLOCK)
    g[i] = __float2bfloat16(@exp@(__bfloat162float(x[i]) - s.m) * k);""",
    },
    "2": {
        "first": """  auto x2 = reinterpret_cast<const __nv_bfloat162*>(x);
  for (int i = threadIdx.x; i < V / 2; i += BLOCK) {
    float2 f = __bfloat1622float2(x2[i]);
    push(s, f.x);
    push(s, f.y);
  }""",
        "second": """  auto g2 = reinterpret_cast<__nv_bfloat162*>(g);
  for (int i = threadIdx.x; i < V / 2; i += BLOCK) {
    float2 f = __bfloat1622float2(x2[i]);
    g2[i] = __floats2bfloat162_rn(@exp@(f.x - s.m) * k, @exp@(f.y - s.m) * k);
  }""",
    },
    "8": {
        "first": """  const uint4* x8 = reinterpret_cast<const uint4*>(x);
  const int n8 = V / 8;
  for (int i = threadIdx.x; i < n8; i += BLOCK) {
    uint4 pack = __ldg(x8 + i);
    const __nv_bfloat162* h = reinterpret_cast<const __nv_bfloat162*>(&pack);
    float f[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) { f[2 * j] = __low2float(h[j]); f[2 * j + 1] = __high2float(h[j]); }
    float m = s.m;
#pragma unroll
    for (int j = 0; j < 8; ++j) m = fmaxf(m, f[j]);
    float d = s.d * @exp@(s.m - m);
#pragma unroll
    for (int j = 0; j < 8; ++j) d += @exp@(f[j] - m);
    s.m = m;
    s.d = d;
  }""",
        "second": """  uint4* g8 = reinterpret_cast<uint4*>(g);
  for (int i = threadIdx.x; i < n8; i += BLOCK) {
    uint4 pack = x8[i];
    __nv_bfloat162* h = reinterpret_cast<__nv_bfloat162*>(&pack);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      h[j] = __floats2bfloat162_rn(@exp@(__low2float(h[j]) - s.m) * k, @exp@(__high2float(h[j]) - s.m) * k);
    @store@;
  }""",
    },
}

SHUFFLE_LAUNCH = """  ce_online<@threads@><<<T, @threads@>>>(
      reinterpret_cast<const __nv_bfloat16*>(logits.data_ptr()), targets.data_ptr<int64_t>(),
      losses.data_ptr<float>(), reinterpret_cast<__nv_bfloat16*>(grad.data_ptr()), (int)V, 1.0f / T);"""

SHUFFLE_LAUNCH_C = """  ce_online<@threads@><<<T, @threads@>>>(
      (const __nv_bfloat16*)logits, (const int64_t*)targets, (float*)losses, (__nv_bfloat16*)grad, V, 1.0f / T);"""


def cuda_online(threads: int, vector: str, exp: str = "expf", cache: str = "plain") -> Draft:
    """A block per row, maximum and sum in one walk, reductions by shuffles."""
    kernel = fill(
        CU_SHUFFLE,
        **CU_SHUFFLE_LOOPS[vector],
        exp=exp,
        store="g8[i] = pack" if cache == "plain" else "__stcs(g8 + i, pack)",
    )
    if exp == "expf":
        code = ctypes_library(kernel, fill(SHUFFLE_LAUNCH_C, threads=threads))
    else:
        code = load_inline(
            kernel,
            fill(SHUFFLE_LAUNCH, threads=threads),
            f"ce_online_{threads}_v{vector}_{exp.strip('_')}{len(exp)}_{cache}",
            '"-O3", "-lineinfo"' if cache == "streaming" else '"-O3"',
        )
    choices = {"family": "cuda_online", "threads": threads, "vector": vector, "exp": exp, "cache": cache}
    return Draft(choices, code, "cuda")


CU_THREAD = """#include <cuda_bf16.h>
#include <cuda_runtime.h>

// Each thread handles a complete row on its own.
__global__ void ce_thread_per_row(const __nv_bfloat16* logits, const long* targets, float* losses,
                                  __nv_bfloat16* grad, int T, int V) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= T) return;
  const __nv_bfloat16* x = logits + (long)row * V;
  __nv_bfloat16* dx = grad + (long)row * V;
@stats@
  long target = targets[row];
  losses[row] = logf(sum) + max_val - __bfloat162float(x[target]);
  for (int i = 0; i < V; i++) {
    float p = expf(__bfloat162float(x[i]) - max_val) / sum;
    dx[i] = __float2bfloat16((i == target ? p - 1.0f : p) / T);
  }
}
"""

CU_THREAD_STATS = {
    "3": """  float max_val = -1e30f;
  for (int i = 0; i < V; i++) {
    max_val = fmaxf(max_val, __bfloat162float(x[i]));
  }
  float sum = 0.0f;
  for (int i = 0; i < V; i++) {
    sum += expf(__bfloat162float(x[i]) - max_val);
  }""",
    "2": """  float max_val = -1e30f, sum = 0.0f;
  for (int i = 0; i < V; i++) {
    float v = __bfloat162float(x[i]);
    if (v > max_val) {
      sum *= expf(max_val - v);
      max_val = v;
    }
    sum += expf(v - max_val);
  }""",
}


def cuda_thread_row(threads: int, passes: str) -> Draft:
    """A thread per row."""
    kernel = fill(CU_THREAD, stats=CU_THREAD_STATS[passes])
    launch = (
        f"  ce_thread_per_row<<<(T + {threads - 1}) / {threads}, {threads}>>>(\n"
        "      (const __nv_bfloat16*)logits, (const long*)targets, (float*)losses,\n"
        "      (__nv_bfloat16*)grad, T, V);"
    )
    choices = {"family": "cuda_thread_row", "threads": threads, "passes": passes}
    return Draft(choices, ctypes_library(kernel, launch), "cuda")


CU_SMEM = """#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int NT = @threads@;

__device__ inline float lo(uint32_t u) { return __uint_as_float(u << 16); }
__device__ inline float hi(uint32_t u) { return __uint_as_float(u & 0xffff0000u); }
__device__ inline uint32_t pack(float a, float b) {
  __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<uint32_t*>(&h);
}

template <bool IS_MAX>
__device__ float block_reduce(float v) {
  __shared__ float buf[NT / 32];
  for (int o = 16; o; o >>= 1) {
    float w = __shfl_down_sync(~0u, v, o);
    v = IS_MAX ? fmaxf(v, w) : v + w;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) buf[threadIdx.x / 32] = v;
  __syncthreads();
  v = buf[0];
  for (int i = 1; i < NT / 32; ++i) v = IS_MAX ? fmaxf(v, buf[i]) : v + buf[i];
  return v;
}

// The row is staged in shared memory when it fits; otherwise it is read again from global memory.
template <bool CACHED>
__global__ void __launch_bounds__(NT) ce_staged(const uint4* logits, const int64_t* targets, float* losses,
                                                uint4* grad, int n8, int rows) {
  extern __shared__ uint4 stage[];
  const uint4* src = logits + (size_t)blockIdx.x * n8;
  uint4* dst = grad + (size_t)blockIdx.x * n8;
  float m = -3e38f;
  for (int i = threadIdx.x; i < n8; i += NT) {
    uint4 q = src[i];
    if (CACHED) stage[i] = q;
    m = fmaxf(m, fmaxf(fmaxf(lo(q.x), hi(q.x)), fmaxf(lo(q.y), hi(q.y))));
    m = fmaxf(m, fmaxf(fmaxf(lo(q.z), hi(q.z)), fmaxf(lo(q.w), hi(q.w))));
  }
  m = block_reduce<true>(m);
  float s = 0.f;
  for (int i = threadIdx.x; i < n8; i += NT) {
    uint4 q = CACHED ? stage[i] : src[i];
    s += __expf(lo(q.x) - m) + __expf(hi(q.x) - m) + __expf(lo(q.y) - m) + __expf(hi(q.y) - m);
    s += __expf(lo(q.z) - m) + __expf(hi(q.z) - m) + __expf(lo(q.w) - m) + __expf(hi(q.w) - m);
  }
  s = block_reduce<false>(s);
  const float scale = 1.f / rows, k = scale / s;
  const int t = (int)targets[blockIdx.x];
  for (int i = threadIdx.x; i < n8; i += NT) {
    uint4 q = CACHED ? stage[i] : src[i];
    uint4 o;
    o.x = pack(__expf(lo(q.x) - m) * k, __expf(hi(q.x) - m) * k);
    o.y = pack(__expf(lo(q.y) - m) * k, __expf(hi(q.y) - m) * k);
    o.z = pack(__expf(lo(q.z) - m) * k, __expf(hi(q.z) - m) * k);
    o.w = pack(__expf(lo(q.w) - m) * k, __expf(hi(q.w) - m) * k);
    if (t >> 3 == i) {
      float v = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(src)[t]);
      losses[blockIdx.x] = logf(s) + m - v;
      reinterpret_cast<__nv_bfloat16*>(&o)[t & 7] = __float2bfloat16(__expf(v - m) * k - scale);
    }
    dst[i] = o;
  }
}
"""

SMEM_LAUNCH = """  const int n8 = V / 8, bytes = V * 2;
  if (bytes <= 220 * 1024) {
    cudaFuncSetAttribute(ce_staged<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    ce_staged<true><<<T, NT, bytes>>>((const uint4*)logits, (const int64_t*)targets, (float*)losses,
                                      (uint4*)grad, n8, T);
  } else {
    ce_staged<false><<<T, NT>>>((const uint4*)logits, (const int64_t*)targets, (float*)losses, (uint4*)grad,
                                n8, T);
  }"""


def cuda_shared_row(threads: int) -> Draft:
    """A block per row, with the row in shared memory."""
    code = ctypes_library(fill(CU_SMEM, threads=threads), SMEM_LAUNCH)
    return Draft({"family": "cuda_shared_row", "threads": threads}, code, "cuda")


CU_REGISTERS = """#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define NTHREADS @threads@

__device__ __forceinline__ float2 widen(unsigned u) {
  return make_float2(__uint_as_float(u << 16), __uint_as_float(u & 0xffff0000u));
}

__device__ __forceinline__ float reduce_block(float v, bool take_max, float* scratch) {
#pragma unroll
  for (int o = 16; o; o /= 2) {
    float w = __shfl_xor_sync(0xffffffff, v, o);
    v = take_max ? fmaxf(v, w) : v + w;
  }
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
  __syncthreads();
  float r = scratch[0];
  for (int i = 1; i < NTHREADS / 32; ++i) r = take_max ? fmaxf(r, scratch[i]) : r + scratch[i];
  __syncthreads();
  return r;
}

// N packed vectors of 8 values per thread hold the complete row: it is read exactly once.
template <int N>
__global__ void __launch_bounds__(NTHREADS, 1)
ce_in_registers(const uint4* __restrict__ in, const long* __restrict__ tgt, float* __restrict__ loss,
                uint4* __restrict__ out, int nvec, float inv_rows) {
  __shared__ float scratch[32];
  __shared__ float target_logit;
  const size_t base = (size_t)blockIdx.x * nvec;
  const int t = (int)tgt[blockIdx.x];
  if (threadIdx.x == 0) {
    unsigned short raw = reinterpret_cast<const unsigned short*>(in + base)[t];
    target_logit = __uint_as_float((unsigned)raw << 16);
  }
  unsigned r[N][4];
  float m = -3e38f;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    int i = j * NTHREADS + threadIdx.x;
    uint4 q = i < nvec ? in[base + i] : make_uint4(0xff7fff7fu, 0xff7fff7fu, 0xff7fff7fu, 0xff7fff7fu);
    r[j][0] = q.x; r[j][1] = q.y; r[j][2] = q.z; r[j][3] = q.w;
#pragma unroll
    for (int c = 0; c < 4; ++c) { float2 f = widen(r[j][c]); m = fmaxf(m, fmaxf(f.x, f.y)); }
  }
  m = reduce_block(m, true, scratch);
  float d = 0.f;
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) { float2 f = widen(r[j][c]); d += __expf(f.x - m) + __expf(f.y - m); }
  d = reduce_block(d, false, scratch);
  const float k = inv_rows / d;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    int i = j * NTHREADS + threadIdx.x;
    if (i >= nvec) break;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float2 f = widen(r[j][c]);
      f.x = __expf(f.x - m) * k;
      f.y = __expf(f.y - m) * k;
      int column = i * 8 + c * 2;
      if (column == t) f.x -= inv_rows;
      if (column + 1 == t) f.y -= inv_rows;
      __nv_bfloat162 h = __floats2bfloat162_rn(f.x, f.y);
      r[j][c] = *reinterpret_cast<unsigned*>(&h);
    }
    out[base + i] = make_uint4(r[j][0], r[j][1], r[j][2], r[j][3]);
  }
  if (threadIdx.x == 0) loss[blockIdx.x] = __logf(d) + m - target_logit;
}
"""

REGISTERS_LAUNCH = """  const int nvec = V / 8, need = (nvec + NTHREADS - 1) / NTHREADS;
  auto in = (const uint4*)logits; auto tgt = (const long*)targets;
  auto loss = (float*)losses; auto out = (uint4*)grad;
  const float inv = 1.0f / T;
  if (need <= @n1@) ce_in_registers<@n1@><<<T, NTHREADS>>>(in, tgt, loss, out, nvec, inv);
  else if (need <= @n2@) ce_in_registers<@n2@><<<T, NTHREADS>>>(in, tgt, loss, out, nvec, inv);
  else ce_in_registers<@n3@><<<T, NTHREADS>>>(in, tgt, loss, out, nvec, inv);"""

# By the threads of a block: how many vectors a thread holds, for each of the three vocabularies.
REGISTER_SIZES = {
    512: {"n1": 8, "n2": 13, "n3": 32},
    768: {"n1": 6, "n2": 9, "n3": 21},
    1024: {"n1": 4, "n2": 7, "n3": 16},
}


def cuda_register_row(threads: int) -> Draft:
    """A block per row, with the row in registers."""
    launch = fill(REGISTERS_LAUNCH, **REGISTER_SIZES[threads])
    code = ctypes_library(fill(CU_REGISTERS, threads=threads), launch)
    return Draft({"family": "cuda_register_row", "threads": threads}, code, "cuda")


CU_CLUSTER = """#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace cg = cooperative_groups;

constexpr int CLUSTER = @cluster@;
constexpr int BLOCK = @threads@;
constexpr int WARPS = BLOCK / 32;

__device__ __forceinline__ float2 unpack(unsigned w) {
  return {__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)};
}

__device__ __forceinline__ void combine(float& m, float& d, float m2, float d2) {
  float top = fmaxf(m, m2);
  d = d * __expf(m - top) + d2 * __expf(m2 - top);
  m = top;
}

// A cluster of thread blocks shares one row: each block keeps its slice in shared memory, and the blocks
// exchange their partial (max, sum) through distributed shared memory.
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BLOCK)
ce_cluster(const uint4* __restrict__ logits, const long long* __restrict__ targets,
           float* __restrict__ losses, uint4* __restrict__ grad, int nvec, float inv_rows) {
  extern __shared__ uint4 slice[];
  __shared__ float2 warp_stat[WARPS];
  __shared__ float2 block_stat;
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = cluster.block_rank();
  const size_t row = blockIdx.x / CLUSTER;
  const int per = (nvec + CLUSTER - 1) / CLUSTER;
  const int begin = rank * per, count = min(per, nvec - begin);
  const uint4* src = logits + row * nvec + begin;
  uint4* dst = grad + row * nvec + begin;

  float m = -3e38f, d = 0.f;
@unroll@  for (int i = threadIdx.x; i < count; i += BLOCK) {
    uint4 q = __ldcs(src + i);
    slice[i] = q;
    float2 a = unpack(q.x), b = unpack(q.y), c = unpack(q.z), e = unpack(q.w);
    float top = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(b.x, b.y)), fmaxf(fmaxf(c.x, c.y), fmaxf(e.x, e.y)));
    top = fmaxf(top, m);
    d = d * __expf(m - top) + __expf(a.x - top) + __expf(a.y - top) + __expf(b.x - top) + __expf(b.y - top)
        + __expf(c.x - top) + __expf(c.y - top) + __expf(e.x - top) + __expf(e.y - top);
    m = top;
  }
  for (int o = 16; o > 0; o >>= 1) combine(m, d, __shfl_xor_sync(~0u, m, o), __shfl_xor_sync(~0u, d, o));
  if (threadIdx.x % 32 == 0) warp_stat[threadIdx.x / 32] = {m, d};
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < WARPS; ++w) combine(m, d, warp_stat[w].x, warp_stat[w].y);
    block_stat = {m, d};
  }
  cluster.sync();
  m = -3e38f;
  d = 0.f;
  for (int r = 0; r < CLUSTER; ++r) {
    float2 other = *cluster.map_shared_rank(&block_stat, r);
    combine(m, d, other.x, other.y);
  }
  const float k = inv_rows / d;
  const int t = (int)targets[row] - begin * 8;
  for (int i = threadIdx.x; i < count; i += BLOCK) {
    uint4 q = slice[i];
    unsigned* w = reinterpret_cast<unsigned*>(&q);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 f = unpack(w[j]);
      int col = i * 8 + j * 2;
      float g0 = __expf(f.x - m) * k, g1 = __expf(f.y - m) * k;
      if (col == t) { g0 -= inv_rows; losses[row] = __logf(d) + m - f.x; }
      if (col + 1 == t) { g1 -= inv_rows; losses[row] = __logf(d) + m - f.y; }
      __nv_bfloat162 h = __floats2bfloat162_rn(g0, g1);
      w[j] = *reinterpret_cast<unsigned*>(&h);
    }
    __stcs(dst + i, q);
  }
  cluster.sync();  // nobody leaves while its shared memory may still be read
}
"""

CLUSTER_LAUNCH = """  const int nvec = V / 8;
  const int bytes = (nvec + CLUSTER - 1) / CLUSTER * 16;
  cudaFuncSetAttribute(ce_cluster, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  ce_cluster<<<T * CLUSTER, BLOCK, bytes>>>((const uint4*)logits, (const long long*)targets, (float*)losses,
                                            (uint4*)grad, nvec, 1.0f / T);"""


def cuda_cluster(cluster: int, threads: int, unroll: int = 1) -> Draft:
    """A cluster of blocks per row, which exchange their statistics through distributed shared memory."""
    kernel = fill(
        CU_CLUSTER,
        cluster=cluster,
        threads=threads,
        unroll=f"#pragma unroll {unroll}\n" if unroll > 1 else "",
    )
    choices = {"family": "cuda_cluster", "cluster": cluster, "threads": threads, "unroll": unroll}
    return Draft(choices, ctypes_library(kernel, CLUSTER_LAUNCH), "cuda")


CU_PERSISTENT = """#include <cuda_bf16.h>
#include <cuda_runtime.h>

// A fixed grid; every block walks over rows with the stride of the grid.
__global__ void @bounds@ce_grid_stride(const __nv_bfloat16* __restrict__ logits,
                               const long long* __restrict__ labels, float* __restrict__ losses,
                               __nv_bfloat16* __restrict__ grad, int rows, int vocab) {
  __shared__ float part_max[32], part_sum[32];
  const int tid = threadIdx.x, lane = tid % 32, wid = tid / 32, nwarps = blockDim.x / 32;
  const int nvec = vocab / 8;
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const float4* in = reinterpret_cast<const float4*>(logits + (size_t)row * vocab);
    float4* out = reinterpret_cast<float4*>(grad + (size_t)row * vocab);
    float vmax = -1e30f, vsum = 0.f;
    for (int i = tid; i < nvec; i += blockDim.x) {
      float4 raw = in[i];
      const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
      for (int j = 0; j < 4; j++) {
        float2 f = __bfloat1622float2(pairs[j]);
        float top = fmaxf(vmax, fmaxf(f.x, f.y));
        vsum = vsum * __expf(vmax - top) + __expf(f.x - top) + __expf(f.y - top);
        vmax = top;
      }
    }
    for (int delta = 16; delta >= 1; delta /= 2) {
      float om = __shfl_down_sync(0xffffffff, vmax, delta), os = __shfl_down_sync(0xffffffff, vsum, delta);
      float top = fmaxf(vmax, om);
      vsum = vsum * __expf(vmax - top) + os * __expf(om - top);
      vmax = top;
    }
    __syncthreads();
    if (lane == 0) { part_max[wid] = vmax; part_sum[wid] = vsum; }
    __syncthreads();
    vmax = part_max[0];
    for (int w = 1; w < nwarps; w++) vmax = fmaxf(vmax, part_max[w]);
    vsum = 0.f;
    for (int w = 0; w < nwarps; w++) vsum += part_sum[w] * __expf(part_max[w] - vmax);
    const float lse = vmax + logf(vsum);
    const int label = (int)labels[row];
    if (tid == 0) losses[row] = lse - __bfloat162float(logits[(size_t)row * vocab + label]);
    const float inv = 1.0f / rows;
    for (int i = tid; i < nvec; i += blockDim.x) {
      float4 raw = in[i];
      __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&raw);
      for (int j = 0; j < 4; j++) {
        float2 f = __bfloat1622float2(pairs[j]);
        f.x = __expf(f.x - lse);
        f.y = __expf(f.y - lse);
        int col = 8 * i + 2 * j;
        if (col == label) f.x -= 1.0f;
        if (col + 1 == label) f.y -= 1.0f;
        pairs[j] = __floats2bfloat162_rn(f.x * inv, f.y * inv);
      }
      out[i] = raw;
    }
  }
}
"""

PERSISTENT_LAUNCH = """  int device = 0, sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  int blocks = @per_sm@ * sms < T ? @per_sm@ * sms : T;
  ce_grid_stride<<<blocks, @threads@>>>((const __nv_bfloat16*)logits, (const long long*)targets,
                                    (float*)losses, (__nv_bfloat16*)grad, T, V);"""


def cuda_grid_stride(per_sm: int, threads: int) -> Draft:
    """A fixed number of blocks that stride over the rows."""
    kernel = fill(CU_PERSISTENT, bounds=f"__launch_bounds__({threads}) " if threads == 1024 else "")
    launch = fill(PERSISTENT_LAUNCH, per_sm=per_sm, threads=threads)
    choices = {"family": "cuda_grid_stride", "per_sm": per_sm, "threads": threads}
    return Draft(choices, ctypes_library(kernel, launch), "cuda")


CUPY_WARP = """
import cupy
import torch

CODE = r'''
typedef unsigned short u16;
typedef unsigned int u32;

__device__ __forceinline__ float to_float(u16 b) { return __uint_as_float(((u32)b) << 16); }

__device__ __forceinline__ u16 to_bf16(float f) {
  u32 u = __float_as_uint(f);
  return (u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);  // round to nearest, ties to even
}

extern "C" __global__ void ce_warp(const u16* logits, const long long* targets, float* losses, u16* grad,
                                   int rows, int cols) {
  int row = blockIdx.x * @warps@ + threadIdx.x / 32;
  int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const u16* x = logits + (size_t)row * cols;
  u16* dx = grad + (size_t)row * cols;
  float mx = -1e30f, sm = 0.0f;
@first@
  for (int k = 16; k > 0; k >>= 1) {
    float m2 = __shfl_xor_sync(0xffffffffu, mx, k);
    float s2 = __shfl_xor_sync(0xffffffffu, sm, k);
    float mm = fmaxf(mx, m2);
    sm = sm * __expf(mx - mm) + s2 * __expf(m2 - mm);
    mx = mm;
  }
  float lse = mx + logf(sm);
  int tgt = (int)targets[row];
  if (lane == 0) losses[row] = lse - to_float(x[tgt]);
  float inv = 1.0f / (float)rows;
@second@
}
'''

kernel = cupy.RawKernel(CODE, "ce_warp")
kernel.compile()


def run(logits, targets):
    rows, cols = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    args = (logits.data_ptr(), targets.data_ptr(), losses.data_ptr(), grad.data_ptr(),
            cupy.int32(rows), cupy.int32(cols))
    kernel(((rows + @warps@ - 1) // @warps@,), (@warps@ * 32,), args)
    return losses, grad
"""

CUPY_WARP_LOOPS = {
    "1": {
        "first": """  for (int i = lane; i < cols; i += 32) {
    float v = to_float(x[i]);
    float mm = fmaxf(mx, v);
    sm = sm * __expf(mx - mm) + __expf(v - mm);
    mx = mm;
  }""",
        "second": """  for (int i = lane; i < cols; i += 32) {
    float p = __expf(to_float(x[i]) - lse);
    if (i == tgt) p -= 1.0f;
    dx[i] = to_bf16(p * inv);
  }""",
    },
    "2": {
        "first": """  const u32* xw = (const u32*)x;
  for (int i = lane; i < cols / 2; i += 32) {
    u32 w = xw[i];
    float a = to_float((u16)(w & 0xffffu)), b = to_float((u16)(w >> 16));
    float mm = fmaxf(mx, fmaxf(a, b));
    sm = sm * __expf(mx - mm) + __expf(a - mm) + __expf(b - mm);
    mx = mm;
  }""",
        "second": """  u32* dw = (u32*)dx;
  for (int i = lane; i < cols / 2; i += 32) {
    u32 w = xw[i];
    float a = __expf(to_float((u16)(w & 0xffffu)) - lse);
    float b = __expf(to_float((u16)(w >> 16)) - lse);
    if (2 * i == tgt) a -= 1.0f;
    if (2 * i + 1 == tgt) b -= 1.0f;
    dw[i] = (u32)to_bf16(a * inv) | ((u32)to_bf16(b * inv) << 16);
  }""",
    },
    "8": {
        "first": """  const uint4* xv = (const uint4*)x;
  for (int i = lane; i < cols / 8; i += 32) {
    uint4 q = xv[i];
    u32 w[4] = {q.x, q.y, q.z, q.w};
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      float a = __uint_as_float(w[j] << 16), b = __uint_as_float(w[j] & 0xffff0000u);
      float mm = fmaxf(mx, fmaxf(a, b));
      sm = sm * __expf(mx - mm) + __expf(a - mm) + __expf(b - mm);
      mx = mm;
    }
  }""",
        "second": """  uint4* dv = (uint4*)dx;
  for (int i = lane; i < cols / 8; i += 32) {
    uint4 q = xv[i];
    u32 w[4] = {q.x, q.y, q.z, q.w};
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      float a = __expf(__uint_as_float(w[j] << 16) - lse);
      float b = __expf(__uint_as_float(w[j] & 0xffff0000u) - lse);
      int c = i * 8 + j * 2;
      if (c == tgt) a -= 1.0f;
      if (c + 1 == tgt) b -= 1.0f;
      w[j] = (u32)to_bf16(a * inv) | ((u32)to_bf16(b * inv) << 16);
    }
    dv[i] = make_uint4(w[0], w[1], w[2], w[3]);
  }""",
    },
}


def cuda_warp_row(warps: int, vector: str) -> Draft:
    """A warp per row."""
    choices = {"family": "cuda_warp_row", "warps": warps, "vector": vector}
    return Draft(choices, fill(CUPY_WARP, warps=warps, **CUPY_WARP_LOOPS[vector]), "cuda")


CUPY_SPLIT = """
import cupy as cp
import torch

SOURCE = r'''
extern "C" {

// blockIdx.y: row, blockIdx.x: which part of the row
__global__ void stats(const unsigned short* x, float2* partial, int V, int width) {
  __shared__ float sm_max[@threads@], sm_sum[@threads@];
  const int row = blockIdx.y, t = threadIdx.x;
  const int begin = blockIdx.x * width, end = min(begin + width, V);
  const unsigned short* p = x + (long long)row * V;
  float m = -1e30f, s = 0.f;
  for (int i = begin + t; i < end; i += @threads@) {
    float v = __uint_as_float((unsigned)p[i] << 16);
    if (v > m) { s = s * __expf(m - v) + 1.f; m = v; } else { s += __expf(v - m); }
  }
  sm_max[t] = m;
  sm_sum[t] = s;
  for (int half = @threads@ / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) {
      float top = fmaxf(sm_max[t], sm_max[t + half]);
      sm_sum[t] = sm_sum[t] * __expf(sm_max[t] - top) + sm_sum[t + half] * __expf(sm_max[t + half] - top);
      sm_max[t] = top;
    }
  }
  if (t == 0) partial[row * gridDim.x + blockIdx.x] = make_float2(sm_max[0], sm_sum[0]);
}

__global__ void gradient(const unsigned short* x, const long long* targets, const float2* partial,
                         float* losses, unsigned short* grad, int T, int V, int width) {
  const int row = blockIdx.y;
  float m = -1e30f, s = 0.f;
  for (int j = 0; j < gridDim.x; ++j) m = fmaxf(m, partial[row * gridDim.x + j].x);
  for (int j = 0; j < gridDim.x; ++j) {
    float2 q = partial[row * gridDim.x + j];
    s += q.y * __expf(q.x - m);
  }
  const float lse = m + logf(s);
  const long long base = (long long)row * V;
  const int target = (int)targets[row];
  if (blockIdx.x == 0 && threadIdx.x == 0)
    losses[row] = lse - __uint_as_float((unsigned)x[base + target] << 16);
  const int begin = blockIdx.x * width, end = min(begin + width, V);
  for (int i = begin + threadIdx.x; i < end; i += @threads@) {
    float g = __expf(__uint_as_float((unsigned)x[base + i] << 16) - lse) - (i == target ? 1.f : 0.f);
    unsigned u = __float_as_uint(g / T);
    grad[base + i] = (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
}

}
'''

module = cp.RawModule(code=SOURCE)
stats = module.get_function("stats")
gradient = module.get_function("gradient")
SPLITS = @splits@


def run(logits, targets):
    T, V = logits.shape
    width = (V + SPLITS - 1) // SPLITS
    partial = torch.empty((T, SPLITS, 2), dtype=torch.float32, device=logits.device)
    losses = torch.empty(T, dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    grid, block = (SPLITS, T), (@threads@,)
    stats(grid, block, (logits.data_ptr(), partial.data_ptr(), cp.int32(V), cp.int32(width)))
    gradient(grid, block, (logits.data_ptr(), targets.data_ptr(), partial.data_ptr(), losses.data_ptr(),
                           grad.data_ptr(), cp.int32(T), cp.int32(V), cp.int32(width)))
    return losses, grad
"""


def cuda_split_row(splits: int, threads: int) -> Draft:
    """Several blocks share a row; their sums meet in a buffer."""
    choices = {"family": "cuda_split_row", "splits": splits, "threads": threads}
    return Draft(choices, fill(CUPY_SPLIT, splits=splits, threads=threads), "cuda")


NVRTC_ATOMIC = """
import torch
from torch.cuda import _compile_kernel

SUM_SOURCE = r'''
extern "C" __global__ void sum_exp(const unsigned short* x, float* denom, int V) {
  const unsigned short* r = x + (size_t)blockIdx.y * V;
  int first = blockIdx.x * (@threads@ * @per_thread@) + threadIdx.x;
  float s = 0.0f;
  #pragma unroll
  for (int e = 0; e < @per_thread@; ++e) {
    int i = first + e * @threads@;
    if (i < V) s += __expf(__uint_as_float((unsigned int)r[i] << 16));
  }
  for (int k = 16; k > 0; k >>= 1) s += __shfl_down_sync(0xffffffffu, s, k);
  if (threadIdx.x % 32 == 0) atomicAdd(denom + blockIdx.y, s);
}
'''

GRAD_SOURCE = r'''
extern "C" __global__ void grad_exp(const unsigned short* x, const long long* targets, const float* denom,
                                    float* losses, unsigned short* g, int T, int V) {
  size_t base = (size_t)blockIdx.y * V;
  float z = denom[blockIdx.y], inv = 1.0f / (float)T;
  int t = (int)targets[blockIdx.y];
  int first = blockIdx.x * (@threads@ * @per_thread@) + threadIdx.x;
  #pragma unroll
  for (int e = 0; e < @per_thread@; ++e) {
    int i = first + e * @threads@;
    if (i >= V) break;
    float v = __uint_as_float((unsigned int)x[base + i] << 16);
    float p = __expf(v) / z;
    if (i == t) {
      losses[blockIdx.y] = logf(z) - v;
      p -= 1.0f;
    }
    unsigned int u = __float_as_uint(p * inv);
    g[base + i] = (unsigned short)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
}
'''

sum_exp = _compile_kernel(SUM_SOURCE, "sum_exp")
grad_exp = _compile_kernel(GRAD_SOURCE, "grad_exp")


def run(logits, targets):
    T, V = logits.shape
    denom = torch.zeros(T, dtype=torch.float32, device=logits.device)
    losses = torch.empty_like(denom)
    grad = torch.empty_like(logits)
    per_block = @threads@ * @per_thread@
    grid = ((V + per_block - 1) // per_block, T, 1)
    sum_exp(grid, (@threads@, 1, 1), [logits, denom, V])
    grad_exp(grid, (@threads@, 1, 1), [logits, targets, denom, losses, grad, T, V])
    return losses, grad
"""


def cuda_atomic_sum(threads: int, per_thread: int) -> Draft:
    """Blocks add up the row's sum by atomics, then a second kernel finishes."""
    choices = {"family": "cuda_atomic_sum", "threads": threads, "per_thread": per_thread}
    return Draft(choices, fill(NVRTC_ATOMIC, threads=threads, per_thread=per_thread), "cuda")


# ------------------------------------------------------------------------------------------------- the pool

SEED = split_kernels(256, 4, "float32_then_cast")


def add_triton(pool: Pool) -> None:
    """Adds the sound Triton sources."""
    pool.add(
        split_kernels(block, warps, grad)
        for block, warps, grad in product((128, 256, 1024, 4096), (4, 8), ("float32_then_cast", "bfloat16"))
    )
    pool.add(split_kernels(block, 4, "zeros_then_cast") for block in (256, 1024))
    pool.add(split_kernels(block, 1, "float32_then_cast") for block in (64, 256))
    pool.add(
        three_sweeps(block, warps, accumulate)
        for accumulate in THREE_SWEEPS
        for block, warps in ((128, 4), (256, 4), (1024, 4), (1024, 8), (2048, 8), (8192, 8), (8192, 16))
    )
    pool.add(
        online(block, warps)
        for block, warps in (
            (256, 4),
            (512, 4),
            (1024, 4),
            (2048, 4),
            (4096, 4),
            (4096, 8),
            (8192, 8),
            (8192, 16),
            (16384, 16),
            (16384, 32),
        )
    )
    pool.add(
        online(block, warps, exp, evict)
        for block, warps, exp, evict in (
            (1024, 4, "exp2", "none"),
            (4096, 8, "exp2", "none"),
            (8192, 16, "exp2", "none"),
            (4096, 8, "exp", "hints"),
            (8192, 16, "exp", "hints"),
            (8192, 16, "exp2", "hints"),
            (16384, 32, "exp2", "hints"),
        )
    )
    pool.add(
        online_lanes(block, warps)
        for block, warps in ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (8192, 16), (8192, 32))
    )
    pool.add(
        online_lanes(block, warps, evict, loop)
        for block, warps, evict, loop in (
            (2048, 8, "hints", "range"),
            (4096, 8, "hints", "range"),
            (4096, 8, "none", "staged"),
            (4096, 8, "hints", "staged"),
            (8192, 16, "hints", "range"),
            (8192, 16, "none", "staged"),
            (8192, 16, "hints", "staged"),
        )
    )
    pool.add(
        whole_row(warps, keep)
        for warps, keep in (
            (8, "bfloat16_recompute"),
            (16, "bfloat16_recompute"),
            (32, "bfloat16_recompute"),
            (32, "float32"),
        )
    )
    pool.add(
        row_tile(rows, block, warps)
        for rows, block, warps in (
            (2, 256, 4),
            (2, 1024, 4),
            (2, 1024, 8),
            (4, 256, 4),
            (4, 512, 4),
            (4, 1024, 8),
            (8, 128, 4),
            (8, 512, 8),
            (16, 64, 4),
        )
    )
    pool.add(
        persistent(per_sm, block, warps, stages)
        for per_sm, block, warps, stages in (
            (1, 2048, 8, 1),
            (1, 4096, 8, 1),
            (1, 8192, 16, 3),
            (1, 8192, 32, 1),
            (2, 4096, 8, 1),
            (2, 4096, 8, 3),
            (2, 8192, 16, 1),
            (4, 1024, 4, 1),
            (4, 4096, 8, 1),
        )
    )
    pool.add(
        split_row(chunk, warps, combine)
        for combine in SPLIT_PIECES
        for chunk, warps in ((1024, 4), (2048, 4), (4096, 8), (8192, 8))
    )
    pool.add(
        atomic_sum(block, warps) for block, warps in ((256, 4), (1024, 4), (1024, 8), (4096, 4), (4096, 8))
    )
    pool.add(autotuned(configs) for configs in AUTOTUNE)
    pool.add(
        torch_statistics(lse, block)
        for lse, block in (
            ("logsumexp", 1024),
            ("logsumexp", 8192),
            ("max_then_sum", 1024),
            ("by_rows", 1024),
            ("log_softmax", 1024),
            ("log_softmax", 256),
        )
    )


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(algorithm, how) for algorithm, how in TORCH)
    pool.add(
        torch_source(algorithm, how, overhead)
        for algorithm, how, overhead in (
            ("log_softmax", "float32", "clone"),
            ("log_softmax", "float32", "synchronize"),
            ("log_softmax", "float32", "check_nan"),
            ("log_softmax", "dtype_argument", "clone"),
            ("log_softmax", "dtype_argument", "check_targets"),
            ("softmax", "float32", "transpose"),
            ("softmax", "dtype_argument", "check_nan"),
            ("softmax", "dtype_argument", "empty_cache"),
            ("logsumexp", "in_place", "clone"),
            ("logsumexp", "float32", "check_targets"),
            ("manual", "float32", "check_nan"),
            ("autograd", "float32", "clone"),
        )
    )
    pool.add(row_chunks("preallocated", rows) for rows in (16, 64, 256, 1024))
    pool.add(row_chunks("cat", rows) for rows in (32, 512))


def add_cuda(pool: Pool) -> None:
    """Adds the sound CUDA C++ sources."""
    pool.add(
        cuda_tree(threads, vector, host)
        for threads, vector, host in (
            (64, "1", "ctypes"),
            (128, "1", "ctypes"),
            (256, "1", "ctypes"),
            (256, "1", "load_inline"),
            (512, "1", "ctypes"),
            (1024, "1", "ctypes"),
            (1024, "1", "load_inline"),
            (128, "2", "ctypes"),
            (256, "2", "ctypes"),
            (256, "2", "load_inline"),
            (1024, "2", "ctypes"),
        )
    )
    pool.add(
        cuda_online(threads, vector, exp, cache)
        for threads, vector, exp, cache in (
            (128, "1", "expf", "plain"),
            (256, "1", "expf", "plain"),
            (1024, "1", "expf", "plain"),
            (256, "2", "expf", "plain"),
            (1024, "2", "expf", "plain"),
            (128, "8", "expf", "plain"),
            (256, "8", "expf", "plain"),
            (512, "8", "expf", "plain"),
            (1024, "8", "expf", "plain"),
            (256, "1", "__expf", "plain"),
            (512, "8", "__expf", "plain"),
            (1024, "8", "__expf", "plain"),
            (512, "8", "__expf", "streaming"),
            (1024, "8", "__expf", "streaming"),
        )
    )
    pool.add(
        cuda_thread_row(threads, passes) for threads, passes in ((32, "3"), (32, "2"), (128, "3"), (128, "2"))
    )
    pool.add(
        cuda_warp_row(warps, vector)
        for warps, vector in (
            (1, "1"),
            (4, "1"),
            (8, "1"),
            (4, "2"),
            (8, "2"),
            (1, "8"),
            (4, "8"),
            (8, "8"),
            (16, "8"),
        )
    )
    pool.add(cuda_shared_row(threads) for threads in (256, 512, 1024))
    pool.add(cuda_register_row(threads) for threads in REGISTER_SIZES)
    pool.add(
        cuda_cluster(cluster, threads, unroll)
        for cluster, threads, unroll in (
            (2, 512, 1),
            (2, 1024, 1),
            (4, 256, 1),
            (4, 512, 1),
            (4, 1024, 1),
            (8, 256, 1),
            (8, 512, 1),
            (4, 512, 4),
            (8, 256, 4),
        )
    )
    pool.add(
        cuda_grid_stride(per_sm, threads)
        for per_sm, threads in ((1, 256), (1, 1024), (2, 512), (2, 1024), (4, 256), (4, 512))
    )
    pool.add(
        cuda_split_row(splits, threads)
        for splits, threads in ((2, 256), (4, 256), (8, 256), (16, 256), (16, 128), (64, 128))
    )
    pool.add(
        cuda_atomic_sum(threads, per_thread)
        for threads, per_thread in ((256, 1), (256, 8), (1024, 1), (1024, 8))
    )


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    pool.add_broken(
        SEED,
        undefined_name={"running_max = tl.maximum(running_max, ": "running_max = tl.maximum(current_max, "},
        wrong_tl_name={"tl.max(values, axis=0)": "tl.reduce_max(values, axis=0)"},
        gradient_of_sum={"(probs - one_hot) / n_rows": "probs - one_hot"},
    )
    pool.add_broken(
        split_kernels(1024, 4, "bfloat16"),
        missing_mask={
            'mask=mask, other=-float("inf")': "",
            "row_start + cols, )": "row_start + cols)",
            "row_start + cols, mask=mask, other=0.0": "row_start + cols",
        },
        masked_lanes_zero={'other=-float("inf")': "other=0.0"},
        block_not_power_of_two={"BLOCK_SIZE = 1024": "BLOCK_SIZE = 1000"},
    )
    pool.add_broken(
        three_sweeps(1024, 4, "scalar"),
        no_one_hot={"        g = tl.where(cols == y, g - scale, g)\n": ""},
        block_not_constexpr={"V: tl.constexpr, BLOCK: tl.constexpr": "V, BLOCK"},
        far_out_of_bounds={"    DX += pid * V\n": "    DX += pid * V * BLOCK * BLOCK\n"},
    )
    pool.add_broken(
        three_sweeps(1024, 8, "vector"),
        bfloat16_sum={
            "acc_sum = tl.zeros((CHUNK,), tl.float32)": "acc_sum = tl.zeros((CHUNK,), tl.bfloat16)",
            "acc_sum += tl.exp(val - top)": "acc_sum += tl.exp(val - top).to(tl.bfloat16)",
            "tl.log(tl.sum(acc_sum, axis=0))": "tl.log(tl.sum(acc_sum, axis=0).to(tl.float32))",
        },
        missing_argument={"n_vocab, 1.0 / n_rows,": "n_vocab,"},
    )
    pool.add_broken(
        online(1024, 4),
        no_rescale={"d_i = d_i * tl.exp(m_i - m_new) + ": "d_i = d_i + "},
        integer_carry={"    d_i = 0.0\n": "    d_i = 0\n", 'm_i = float("-inf")': "m_i = -2147483648"},
        syntax_error={
            "for v0 in range(0, V, BLOCK_V):\n        v =": "for v0 in range(0, V, BLOCK_V)\n        v ="
        },
    )
    pool.add_broken(online(4096, 8, "exp2"), log_base={"(lse - xt) * 0.6931471805599453": "(lse - xt)"})
    pool.add_broken(
        online(8192, 16),
        very_long_loop={
            "        m_i = m_new\n    lse": (
                "        m_i = m_new\n    step = 0\n    while step < 2000000000:\n"
                "        d_i = tl.sqrt(d_i * d_i)\n        step += 1\n    lse"
            )
        },
    )
    pool.add_broken(
        online_lanes(2048, 8),
        lanes_not_rescaled={
            "tl.sum(lane_sum * tl.exp(lane_max - row_max), axis=0)": "tl.sum(lane_sum, axis=0)"
        },
    )
    pool.add_broken(whole_row(32, "float32"), static_size={"BLOCK=triton.next_power_of_2(V)": "BLOCK=4096"})
    pool.add_broken(
        row_tile(4, 512, 4),
        wrong_axis={"tl.max(tile, axis=1)": "tl.max(tile, axis=0)"},
        target_off_by_one={"hit = cols[None, :] == tgt[:, None]": "hit = cols[None, :] == tgt[:, None] + 1"},
    )
    pool.add_broken(row_tile(8, 512, 8), tile_too_large={"ROWS=8, COLS=512": "ROWS=8, COLS=262144"})
    pool.add_broken(
        split_row(4096, 8, "in_gradient"),
        sum_without_rescale={"tl.log(tl.sum(d * tl.exp(m - top), 0))": "tl.log(tl.sum(d, 0))"},
        arange_of_runtime_value={"tl.arange(0, SPAD)": "tl.arange(0, S)"},
    )
    pool.add_broken(
        atomic_sum(1024, 4), store_for_atomic={"tl.atomic_add(denom + row,": "tl.store(denom + row,"}
    )


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(
        torch_source("log_softmax", "float32"),
        bfloat16_math={"logits.float()": "logits"},
        wrong_dim={"dim=-1": "dim=0"},
    )
    pool.add_broken(torch_source("softmax", "float32"), missing_negation={"-torch.log": "torch.log"})
    pool.add_broken(torch_source("logsumexp", "float32"), index_shape={"targets.unsqueeze(1)": "targets"})
    pool.add_broken(torch_source("autograd", "bfloat16_leaf"), no_float={"leaf.float()": "leaf"})
    pool.add_broken(
        torch_source("manual", "float32"), wrong_function={"torch.sum(exps, dim": "torch.sums(exps, dim"}
    )


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    pool.add_broken(
        cuda_tree(256, "1"),
        no_broadcast={"  m = sdata[0];\n": ""},
        missing_semicolon={"  float sum = 0.0f;\n": "  float sum = 0.0f\n"},
    )
    pool.add_broken(
        cuda_tree(256, "1", "load_inline"),
        wrong_pointer_type={
            "data_ptr<int64_t>()": "data_ptr<int>()",
            '"ce_tree_256_v1"': '"ce_tree_256_int"',
        },
    )
    pool.add_broken(cuda_tree(1024, "1"), too_many_threads={"#define THREADS 1024": "#define THREADS 2048"})
    pool.add_broken(
        cuda_online(512, "8", "__expf"),
        missing_header={
            "#include <cuda_bf16.h>\n": "",
            "ce_online_512_v8_expf6_plain": "ce_online_512_nohdr",
            "__nv_bfloat16": "bf16",
        },
        vector_count={
            "const int n8 = V / 8;": "const int n8 = V / 4;",
            "ce_online_512_v8_expf6_plain": "ce_online_512_count",
            "reinterpret_cast<uint4*>(g)": "reinterpret_cast<uint4*>(g + row * V * 64)",
        },
    )
    pool.add_broken(
        cuda_warp_row(8, "1"),
        half_the_shuffle={"for (int k = 16; k > 0; k >>= 1)": "for (int k = 8; k > 0; k >>= 1)"},
        unknown_intrinsic={"__shfl_xor_sync": "__shuffle_xor_sync"},
    )
    pool.add_broken(
        cuda_shared_row(512), shared_memory_overflow={"if (bytes <= 220 * 1024)": "if (bytes > 0)"}
    )
    pool.add_broken(
        cuda_cluster(4, 512),
        own_block_only={
            "cluster.map_shared_rank(&block_stat, r)": "cluster.map_shared_rank(&block_stat, rank)"
        },
    )
    pool.add_broken(
        cuda_grid_stride(2, 512),
        row_of_first_turn={"grad + (size_t)row * vocab": "grad + (size_t)blockIdx.x * vocab"},
    )
    pool.add_broken(
        cuda_split_row(8, 256), wrong_row_stride={"partial[row * gridDim.x + j]": "partial[row + j]"}
    )
    pool.add_broken(
        cuda_atomic_sum(256, 8),
        kernel_name={
            '_compile_kernel(SUM_SOURCE, "sum_exp")': '_compile_kernel(SUM_SOURCE, "sum_exp_kernel")'
        },
    )


def link_triton(pool: Pool) -> None:
    """Names the changes of algorithm between Triton sources."""
    for block, warps in ((128, 4), (256, 4), (1024, 4), (1024, 8)):
        pool.link(split_kernels(block, warps, "bfloat16"), three_sweeps(block, warps, "scalar"))
    for block, warps in ((256, 4), (1024, 4), (8192, 8), (8192, 16)):
        pool.link(three_sweeps(block, warps, "scalar"), online(block, warps))
    for block, warps in ((1024, 4), (2048, 8), (8192, 16)):
        pool.link(three_sweeps(block, warps, "vector"), online_lanes(block, warps))
    for block, warps in ((1024, 4), (2048, 4), (4096, 8), (8192, 16)):
        pool.link(online(block, warps), online_lanes(block, warps))
    for warps, keep in ((8, "bfloat16_recompute"), (16, "bfloat16_recompute"), (32, "float32")):
        pool.link(online(16384, 16 if warps < 32 else 32), whole_row(warps, keep))
    pool.link(whole_row(32, "float32"), cuda_register_row(1024))
    for rows, block, warps, other in (
        (2, 1024, 4, 1024),
        (4, 512, 4, 512),
        (2, 256, 4, 256),
        (4, 256, 4, 256),
    ):
        pool.link(online(other, warps), row_tile(rows, block, warps))
    for rows, block, warps in ((8, 128, 4), (16, 64, 4)):
        pool.link(row_tile(4, 256, 4), row_tile(rows, block, warps))
    for per_sm, block, warps, stages in (
        (1, 2048, 8, 1),
        (2, 4096, 8, 1),
        (2, 8192, 16, 1),
        (4, 1024, 4, 1),
        (1, 8192, 32, 1),
    ):
        pool.link(online_lanes(block, warps), persistent(per_sm, block, warps, stages))
    pool.link(online_lanes(8192, 16, loop="staged"), persistent(1, 8192, 16, 3))
    sizes = ((1024, 4), (2048, 4), (4096, 8), (8192, 8))
    for combine in SPLIT_PIECES:
        if combine == "second_kernel":
            for chunk, warps in sizes:
                pool.link(online(chunk, warps), split_row(chunk, warps, combine))
        pool.link(*(split_row(chunk, warps, combine) for chunk, warps in sizes))
    for block, warps in ((1024, 4), (4096, 8)):
        pool.link(atomic_sum(block, warps), split_row(block, warps, "in_gradient"))
    pool.link(atomic_sum(256, 4), cuda_atomic_sum(256, 1))
    pool.link(atomic_sum(4096, 8), cuda_atomic_sum(1024, 8))
    pool.link(online(1024, 4), autotuned("small"))
    pool.link(online(8192, 16), autotuned("wide"))
    for lse in ("logsumexp", "max_then_sum", "by_rows", "log_softmax"):
        pool.link(torch_statistics(lse, 1024), split_kernels(1024, 4, "bfloat16"))
    pool.link(torch_statistics("logsumexp", 1024), torch_source("logsumexp", "float32"))
    pool.link(torch_statistics("max_then_sum", 1024), torch_source("manual", "float32"))
    pool.link(torch_statistics("log_softmax", 1024), torch_source("log_softmax", "dtype_argument"))
    pool.link(torch_statistics("by_rows", 1024), row_chunks("preallocated", 256))


def link_torch(pool: Pool) -> None:
    """Names those between PyTorch sources, and from them to others."""
    pool.link(
        torch_source("autograd", "float32"),
        torch_source("log_softmax", "float32"),
        torch_source("softmax", "float32"),
        torch_source("manual", "float32"),
        torch_source("logsumexp", "float32"),
        torch_source("log_softmax", "float32"),
        torch_source("aten", "backward_data"),
        torch_source("autograd", "float32"),
        torch_source("vmap", "grad"),
        torch_source("logsumexp", "float32"),
        torch_source("columns", "online"),
        row_chunks("preallocated", 1024),
        torch_source("softmax", "dtype_argument"),
        torch_source("log_softmax", "dtype_argument"),
        row_chunks("cat", 512),
        row_chunks("preallocated", 256),
    )
    pool.link(torch_source("manual", "float32"), split_kernels(256, 4, "zeros_then_cast"))
    pool.link(torch_source("softmax", "float32"), SEED)


def link_cuda(pool: Pool) -> None:
    """Names those between CUDA C++ sources, and from them to others."""
    pool.link(three_sweeps(256, 4, "scalar"), cuda_tree(256, "1"))
    pool.link(three_sweeps(1024, 8, "scalar"), cuda_tree(1024, "1"))
    pool.link(split_kernels(256, 4, "bfloat16"), cuda_tree(256, "1", "load_inline"))
    pool.link(online(256, 4), cuda_online(256, "1"))
    for threads, vector in ((128, "1"), (256, "1"), (1024, "1"), (256, "2"), (1024, "2")):
        pool.link(cuda_tree(threads, vector), cuda_online(threads, vector))
    for passes in ("2", "3"):
        pool.link(cuda_thread_row(128, passes), cuda_tree(128, "1"))
        pool.link(cuda_thread_row(32, passes), cuda_tree(64, "1"))
        pool.link(cuda_thread_row(32, passes), cuda_warp_row(1, "1"))
    for warps, vector, threads in (
        (4, "1", 128),
        (8, "1", 256),
        (8, "2", 256),
        (4, "8", 128),
        (8, "8", 256),
        (16, "8", 512),
    ):
        pool.link(cuda_warp_row(warps, vector), cuda_online(threads, vector))
    for threads in (256, 512, 1024):
        pool.link(cuda_shared_row(threads), cuda_online(threads, "8"))
    pool.link(cuda_register_row(512), cuda_shared_row(512))
    pool.link(cuda_register_row(1024), cuda_shared_row(1024))
    pool.link(cuda_shared_row(512), cuda_cluster(2, 512))
    pool.link(cuda_shared_row(1024), cuda_cluster(2, 1024))
    pool.link(cuda_shared_row(256), cuda_cluster(4, 256))
    for per_sm, threads in ((1, 256), (1, 1024), (2, 512), (2, 1024), (4, 256), (4, 512)):
        pool.link(cuda_grid_stride(per_sm, threads), cuda_online(threads, "8"))
    for splits in (2, 4, 8, 16):
        pool.link(cuda_split_row(splits, 256), cuda_tree(256, "1"))
    pool.link(cuda_split_row(64, 128), cuda_atomic_sum(256, 8))
    pool.link(cuda_split_row(16, 256), cuda_atomic_sum(256, 8))
    pool.link(cuda_split_row(8, 256), split_row(8192, 8, "in_gradient"))


def add_wider(pool: Pool) -> None:
    """Adds more sizes of the families, and more needless work around PyTorch."""
    pool.add(
        split_kernels(block, warps, grad)
        for block, warps, grad in (
            (512, 4, "float32_then_cast"),
            (512, 4, "bfloat16"),
            (2048, 8, "float32_then_cast"),
            (2048, 8, "bfloat16"),
            (8192, 16, "bfloat16"),
            (4096, 8, "zeros_then_cast"),
        )
    )
    pool.add(
        three_sweeps(block, warps, accumulate)
        for accumulate in THREE_SWEEPS
        for block, warps in ((512, 4), (4096, 8), (16384, 16), (16384, 32))
    )
    pool.add(
        online(block, warps, exp, evict)
        for block, warps, exp, evict in (
            (128, 1, "exp", "none"),
            (256, 2, "exp", "none"),
            (2048, 8, "exp", "none"),
            (32768, 32, "exp", "none"),
            (2048, 8, "exp2", "none"),
            (2048, 4, "exp2", "hints"),
            (4096, 8, "exp2", "hints"),
            (16384, 16, "exp", "hints"),
        )
    )
    pool.add(
        online_lanes(block, warps, evict, loop)
        for block, warps, evict, loop in (
            (512, 4, "none", "range"),
            (4096, 16, "none", "range"),
            (16384, 32, "none", "range"),
            (2048, 8, "none", "staged"),
            (2048, 4, "hints", "staged"),
            (8192, 32, "hints", "staged"),
        )
    )
    pool.add(
        row_tile(rows, block, warps)
        for rows, block, warps in (
            (2, 2048, 8),
            (2, 4096, 16),
            (4, 2048, 16),
            (8, 256, 4),
            (16, 256, 8),
            (32, 32, 4),
        )
    )
    pool.add(
        persistent(per_sm, block, warps, stages)
        for per_sm, block, warps, stages in (
            (1, 1024, 4, 1),
            (2, 2048, 8, 1),
            (2, 8192, 16, 3),
            (4, 2048, 8, 2),
            (4, 8192, 16, 1),
            (8, 1024, 4, 1),
        )
    )
    pool.add(
        split_row(chunk, warps, combine)
        for combine in SPLIT_PIECES
        for chunk, warps in ((512, 4), (4096, 4), (16384, 16))
    )
    pool.add(atomic_sum(block, warps) for block, warps in ((512, 4), (2048, 8), (8192, 8)))
    pool.add(
        torch_statistics(lse, block)
        for lse, block in (
            ("logsumexp", 256),
            ("max_then_sum", 4096),
            ("by_rows", 4096),
            ("log_softmax", 4096),
        )
    )
    pool.add(
        torch_source(algorithm, how, overhead)
        for algorithm, how, overhead in (
            ("softmax", "float32", "clone"),
            ("softmax", "float32", "synchronize"),
            ("logsumexp", "float32", "check_nan"),
            ("logsumexp", "in_place", "synchronize"),
            ("manual", "float32", "clone"),
            ("manual", "one_hot", "check_targets"),
        )
    )
    pool.add(row_chunks("preallocated", rows) for rows in (32, 512, 2048))
    pool.add(row_chunks("cat", rows) for rows in (128, 1024))
    pool.add(cuda_tree(threads, vector) for threads, vector in ((32, "1"), (64, "2"), (512, "2")))
    pool.add(
        cuda_online(threads, vector)
        for threads, vector in ((64, "1"), (512, "1"), (128, "2"), (512, "2"), (64, "8"))
    )
    pool.add([cuda_thread_row(64, "3"), cuda_thread_row(64, "2")])
    pool.add(
        cuda_warp_row(warps, vector)
        for warps, vector in ((2, "1"), (16, "1"), (1, "2"), (16, "2"), (2, "8"), (32, "8"))
    )
    pool.add(cuda_shared_row(threads) for threads in (128, 768))
    pool.add(
        cuda_cluster(cluster, threads, unroll)
        for cluster, threads, unroll in ((2, 256, 1), (8, 1024, 1), (2, 512, 4), (4, 1024, 4))
    )
    pool.add(cuda_grid_stride(per_sm, threads) for per_sm, threads in ((1, 512), (4, 128), (8, 256)))
    pool.add(
        cuda_split_row(splits, threads) for splits, threads in ((4, 512), (8, 128), (32, 128), (32, 256))
    )
    pool.add(
        cuda_atomic_sum(threads, per_thread)
        for threads, per_thread in ((128, 4), (256, 2), (256, 4), (512, 8))
    )


def break_wider(pool: Pool) -> None:
    """Adds sources of those sizes that fail."""
    pool.add_broken(
        three_sweeps(4096, 8, "scalar"),
        no_one_hot={"        g = tl.where(cols == y, g - scale, g)\n": ""},
    )
    pool.add_broken(online(2048, 8, "exp2"), log_base={"(lse - xt) * 0.6931471805599453": "(lse - xt)"})
    pool.add_broken(
        online_lanes(512, 4),
        lanes_not_rescaled={
            "tl.sum(lane_sum * tl.exp(lane_max - row_max), axis=0)": "tl.sum(lane_sum, axis=0)"
        },
    )
    pool.add_broken(row_tile(8, 256, 4), wrong_axis={"tl.max(tile, axis=1)": "tl.max(tile, axis=0)"})
    pool.add_broken(
        split_row(512, 4, "in_gradient"),
        sum_without_rescale={"tl.log(tl.sum(d * tl.exp(m - top), 0))": "tl.log(tl.sum(d, 0))"},
    )
    pool.add_broken(
        atomic_sum(2048, 8), store_for_atomic={"tl.atomic_add(denom + row,": "tl.store(denom + row,"}
    )
    pool.add_broken(cuda_tree(512, "2"), no_broadcast={"  m = sdata[0];\n": ""})
    pool.add_broken(
        cuda_warp_row(2, "1"),
        half_the_shuffle={"for (int k = 16; k > 0; k >>= 1)": "for (int k = 8; k > 0; k >>= 1)"},
    )
    pool.add_broken(
        cuda_split_row(8, 128), wrong_row_stride={"partial[row * gridDim.x + j]": "partial[row + j]"}
    )


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_triton,
        add_torch,
        add_cuda,
        break_triton,
        break_torch,
        break_cuda,
        add_wider,
        break_wider,
        link_triton,
        link_torch,
        link_cuda,
        Pool.link_retuned,
    )
