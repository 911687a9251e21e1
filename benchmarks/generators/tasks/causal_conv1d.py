"""Causal depthwise convolution of width 4 with bias and SiLU, as in Mamba blocks.

Every source defines ``run(x, weight, bias)`` with x [batch, channels, length], weight [channels, 4] and bias
[channels], all bfloat16, and returns y of x's shape in bfloat16: ``y = silu(a)`` where
``a[b, c, t] = bias[c] + sum over k of weight[c, k] * x[b, c, t - 3 + k]``, what lies before the start being zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

from benchmarks.generators.pool import KEY_HASH, Draft, Pool
from benchmarks.generators.tasks.nvrtc import nvrtc_module
from benchmarks.generators.text import TRITON_IMPORTS, Manner, eviction, fill, joined

if TYPE_CHECKING:
    import torch

TASK = "causal_conv1d"
OPERATION = (
    "causal depthwise convolution of width 4 with bias and SiLU, bfloat16 in and out, float32 arithmetic"
)
SHAPES: list[dict[str, int]] = [
    {"batch": 2, "channels": 5120, "length": 2048},
    {"batch": 8, "channels": 1536, "length": 1024},
    {"batch": 1, "channels": 4096, "length": 8192},
]
OUTPUT_DTYPES = ["bfloat16"]
TOLERANCE: dict[str, float] = {"relative_norm": 4e-3, "rtol": 0.02, "atol": 0.02}


def make_inputs(shape: Mapping[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws channels whose magnitudes lie between 0.3 and 3."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    batch, channels, length = shape["batch"], shape["channels"], shape["length"]
    x = torch.randn(batch, channels, length, device=device, generator=generator)
    x *= 10 ** (torch.rand(channels, 1, device=device, generator=generator) - 0.5)
    weight = 0.5 * torch.randn(channels, 4, device=device, generator=generator)
    bias = 0.5 * torch.randn(channels, device=device, generator=generator)
    return x.bfloat16(), weight.bfloat16(), bias.bfloat16()


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Adds up the four shifted inputs in float32."""
    import torch

    length = x.shape[-1]
    padded = torch.nn.functional.pad(x.float(), (3, 0))
    total = bias.float()[:, None].expand(x.shape).clone()
    for k in range(4):
        total += weight[:, k, None].float() * padded[..., k : k + length]
    return (torch.nn.functional.silu(total),)


# What a careless wrapper does around the launch: name -> (before, after).
HOST: dict[str | None, tuple[str, str]] = {
    None: ("", ""),
    "clone_in": ("x = x.clone()", ""),
    "sync": ("", "torch.cuda.synchronize()"),
    "clone_out": ("", "y = y.clone()"),
    "nan_check": ("", 'if torch.isnan(y).any().item():\n    raise ValueError("NaN in the output")'),
    "zero_out": ("", "y = torch.zeros_like(y).copy_(y)"),
}

MANNER = Manner(
    names={
        "x_ptr": ["inp_ptr", "X", "u_ptr"],
        "w_ptr": ["weight_ptr", "W", "filter_ptr"],
        "b_ptr": ["bias_ptr", "B", "beta_ptr"],
        "y_ptr": ["out_ptr", "Y", "o_ptr"],
        "length": ["seqlen", "L", "n_steps"],
        "channels": ["dim", "D", "n_channels"],
        "acc": ["result", "s", "conv"],
        "row": ["pid", "r", "bc"],
        "at": ["offs", "t", "pos"],
        "BLOCK": ["BLOCK_L", "BT", "TILE"],
    },
    notes=(
        "Causal depthwise conv1d (width 4) fused with SiLU.",
        "Short convolution of a Mamba block.",
        "Depthwise convolution over time.\n\nEvery channel has a filter of four taps and a bias; SiLU follows.\n",
        "Candidate kernel: fuse the activation into the convolution.",
    ),
)

CUDA_MANNER = Manner(
    names={
        "length": ["seqlen", "L", "n"],
        "channels": ["dim", "C", "n_channels"],
        "acc": ["result", "sum", "a"],
        "row": ["bc", "r", "line"],
        "up": ["to_float", "bf2f", "widen"],
        "down": ["to_bf16", "f2bf", "narrow"],
        "lane": ["lane_id", "laneId", "l"],
    },
    notes=(
        "Causal depthwise conv1d with SiLU in CUDA C++.",
        "Mamba's short convolution, built with NVRTC.",
        "conv1d kernel.\n\nbfloat16 comes and goes as 16-bit words, the arithmetic is float32.\n",
    ),
)

# --------------------------------------------------------------------------------------------------- Triton

SILU = {
    "sigmoid": "acc = acc * tl.sigmoid(acc)",
    "divide": "acc = acc / (1.0 + tl.exp(-acc))",
    "exp2": "acc = acc / (1.0 + tl.exp2(acc * -1.4426950408889634))",
    "stable": "e = tl.exp(-tl.abs(acc))\nacc = acc * tl.where(acc >= 0, 1.0, e) / (1.0 + e)",
}
TAPS = {
    "unrolled": """w0 = tl.load(w_ptr + c * 4).to(tl.float32)
w1 = tl.load(w_ptr + c * 4 + 1).to(tl.float32)
w2 = tl.load(w_ptr + c * 4 + 2).to(tl.float32)
w3 = tl.load(w_ptr + c * 4 + 3).to(tl.float32)
x0 = tl.load(x_ptr + at - 3, mask=live & (at >= 3), other=0.0).to(tl.float32)
x1 = tl.load(x_ptr + at - 2, mask=live & (at >= 2), other=0.0).to(tl.float32)
x2 = tl.load(x_ptr + at - 1, mask=live & (at >= 1), other=0.0).to(tl.float32)
x3 = tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32)
acc = w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3 + tl.load(b_ptr + c).to(tl.float32)""",
    "static": """acc = tl.zeros([BLOCK], dtype=tl.float32) + tl.load(b_ptr + c).to(tl.float32)
for k in tl.static_range(4):
    back = at - 3 + k
    tap = tl.load(w_ptr + c * 4 + k).to(tl.float32)
    acc += tap * tl.load(x_ptr + back, mask=live & (back >= 0), other=0.0).to(tl.float32)""",
    "loop": """acc = tl.zeros([BLOCK], dtype=tl.float32)
for k in range(0, 4):
    back = at - 3 + k
    tap = tl.load(w_ptr + c * 4 + k).to(tl.float32)
    acc += tap * tl.load(x_ptr + back, mask=live & (back >= 0), other=0.0).to(tl.float32)
acc += tl.load(b_ptr + c).to(tl.float32)""",
    "float64": """acc = tl.zeros([BLOCK], dtype=tl.float64)
for k in tl.static_range(4):
    back = at - 3 + k
    tap = tl.load(w_ptr + c * 4 + k).to(tl.float64)
    acc += tap * tl.load(x_ptr + back, mask=live & (back >= 0), other=0.0).to(tl.float64)
acc = (acc + tl.load(b_ptr + c).to(tl.float64)).to(tl.float32)""",
}

ROW_BLOCK = (
    TRITON_IMPORTS
    + """
@triton.jit
def conv_block(x_ptr, w_ptr, b_ptr, y_ptr, channels, length, BLOCK: tl.constexpr):
    row = tl.program_id(@row_axis@)
    c = row % channels
    x_ptr += row * length
    y_ptr += row * length
    at = tl.program_id(@block_axis@) * BLOCK + tl.arange(0, BLOCK)
    live = at < length
    # four taps, the last one on the present
    @taps@
    @silu@
    tl.store(y_ptr + at, acc@result@, mask=live@hint@)


def run(x, weight, bias):
    batch, channels, length = x.shape
    @pre@
    y = torch.empty_like(x)
    grid = @grid@
    conv_block[grid](x, weight, bias, y, channels, length, BLOCK=@block@, num_warps=@warps@)
    @post@
    return y
"""
)


def row_block(
    block: int,
    warps: int,
    taps: str = "unrolled",
    silu: str = "sigmoid",
    io: str = "native",
    order: str = "row_first",
    hints: bool = False,
    host: str | None = None,
) -> Draft:
    """A program per row and block of times."""
    choices = {
        "algorithm": "row_block",
        "block": block,
        "warps": warps,
        "taps": taps,
        "silu": silu,
        "io": io,
        "order": order,
        "hints": "evict" if hints else "none",
        "host": host,
    }
    pre, post = HOST[host]
    if io == "cast":
        pre = joined(pre, "x, weight, bias = x.float(), weight.float(), bias.float()")
        post = joined("y = y.bfloat16()", post)
    row_first = order == "row_first"
    code = fill(
        ROW_BLOCK,
        taps=TAPS[taps],
        silu=SILU[silu],
        result="" if io == "cast" else ".to(tl.bfloat16)",
        hint=eviction("first", hints),
        grid=f"(batch * channels, triton.cdiv(length, {block}))"
        if row_first
        else f"(triton.cdiv(length, {block}), batch * channels)",
        row_axis=0 if row_first else 1,
        block_axis=1 if row_first else 0,
        pre=pre,
        post=post,
        block=block,
        warps=warps,
    )
    return Draft(choices, code, manner=MANNER)


ROW_LOOP = (
    TRITON_IMPORTS
    + """
@triton.jit
def conv_row(x_ptr, w_ptr, b_ptr, y_ptr, channels, length, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = row % channels
    x_ptr += row * length
    y_ptr += row * length
    for begin in @loop@:
        at = begin + tl.arange(0, BLOCK)
        live = at < length
        @taps@
        @silu@
        tl.store(y_ptr + at, acc.to(tl.bfloat16), mask=live)


def run(x, weight, bias):
    batch, channels, length = x.shape
    y = torch.empty_like(x)
    @block_rule@conv_row[(batch * channels,)](
        x, weight, bias, y, channels, length, BLOCK=@block@, num_warps=@warps@
    )
    return y
"""
)


def row_loop(block: str, warps: int, taps: str = "unrolled", silu: str = "sigmoid", stages: int = 0) -> Draft:
    """A program per row, block after block, or all of it at once."""
    choices = {
        "algorithm": "row_loop",
        "block": block,
        "warps": warps,
        "taps": taps,
        "silu": silu,
        "stages": stages or "none",
    }
    loop = f"tl.range(0, length, BLOCK, num_stages={stages})" if stages else "range(0, length, BLOCK)"
    code = fill(
        ROW_LOOP,
        taps=TAPS[taps],
        silu=SILU[silu],
        loop=loop,
        block_rule="",
        block="triton.next_power_of_2(length)" if block == "row" else block,
        warps=warps,
    )
    return Draft(choices, code, manner=MANNER)


TILE = (
    TRITON_IMPORTS
    + """
@triton.jit
def conv_tile(x_ptr, w_ptr, b_ptr, y_ptr, n_rows, channels, length, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    c = rows % channels
    base = rows[:, None] * length
    live = (rows[:, None] < n_rows) & (at < length)
    acc = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for k in tl.static_range(4):
        tap = tl.load(w_ptr + c * 4 + k).to(tl.float32)
        back = at - 3 + k
        v = tl.load(x_ptr + base + back, mask=live & (back >= 0), other=0.0).to(tl.float32)
        acc += tap[:, None] * v
    acc += tl.load(b_ptr + c).to(tl.float32)[:, None]
    @silu@
    tl.store(y_ptr + base + at, acc.to(tl.bfloat16), mask=live)


def run(x, weight, bias):
    batch, channels, length = x.shape
    n_rows = batch * channels
    y = torch.empty_like(x)
    grid = (triton.cdiv(n_rows, @rows@), triton.cdiv(length, @block@))
    conv_tile[grid](x, weight, bias, y, n_rows, channels, length, ROWS=@rows@, BLOCK=@block@, num_warps=@warps@)
    return y
"""
)


def tile(rows: int, block: int, warps: int, silu: str = "sigmoid") -> Draft:
    """Several rows and a block of times per program."""
    choices = {"algorithm": "tile", "rows": rows, "block": block, "warps": warps, "silu": silu}
    return Draft(choices, fill(TILE, rows=rows, block=block, warps=warps, silu=SILU[silu]), manner=MANNER)


FLAT = (
    TRITON_IMPORTS
    + """
@triton.jit
def conv_flat(x_ptr, w_ptr, b_ptr, y_ptr, total, channels, length, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < total
    at = i % length
    c = (i // length) % channels
    acc = tl.load(b_ptr + c, mask=live, other=0.0).to(tl.float32)
    for k in tl.static_range(4):
        tap = tl.load(w_ptr + c * 4 + k, mask=live, other=0.0).to(tl.float32)
        acc += tap * tl.load(x_ptr + i - 3 + k, mask=live & (at >= 3 - k), other=0.0).to(tl.float32)
    @silu@
    tl.store(y_ptr + i, acc.to(tl.bfloat16), mask=live)


def run(x, weight, bias):
    total = x.numel()
    @pre@
    y = torch.empty_like(x)
    conv_flat[(triton.cdiv(total, @block@),)](
        x, weight, bias, y, total, x.shape[1], x.shape[2], BLOCK=@block@, num_warps=@warps@
    )
    @post@
    return y
"""
)


def flat(block: int, warps: int, silu: str = "divide", host: str | None = None) -> Draft:
    """One index over everything; row and time come from divisions."""
    choices = {"algorithm": "flat", "block": block, "warps": warps, "silu": silu, "host": host}
    pre, post = HOST[host]
    code = fill(FLAT, block=block, warps=warps, silu=SILU[silu], pre=pre, post=post)
    return Draft(choices, code, manner=MANNER)


PERSISTENT = (
    TRITON_IMPORTS
    + """
@triton.jit
def conv_stride(x_ptr, w_ptr, b_ptr, y_ptr, n_tiles, tiles_per_row, channels, length, BLOCK: tl.constexpr):
    for tile in range(tl.program_id(0), n_tiles, tl.num_programs(0)):
        row = tile // tiles_per_row
        c = row % channels
        at = (tile % tiles_per_row) * BLOCK + tl.arange(0, BLOCK)
        live = at < length
        acc = tl.zeros([BLOCK], dtype=tl.float32) + tl.load(b_ptr + c).to(tl.float32)
        for k in tl.static_range(4):
            v = tl.load(x_ptr + row * length + at - 3 + k, mask=live & (at >= 3 - k), other=0.0)
            acc += tl.load(w_ptr + c * 4 + k).to(tl.float32) * v.to(tl.float32)
        @silu@
        tl.store(y_ptr + row * length + at, acc.to(tl.bfloat16), mask=live)


def run(x, weight, bias):
    batch, channels, length = x.shape
    y = torch.empty_like(x)
    per_row = triton.cdiv(length, @block@)
    n_tiles = batch * channels * per_row
    @grid@
    conv_stride[(programs,)](
        x, weight, bias, y, n_tiles, per_row, channels, length, BLOCK=@block@, num_warps=@warps@
    )
    return y
"""
)


def persistent(waves: str, block: int, warps: int, silu: str = "sigmoid") -> Draft:
    """A fixed number of programs that stride over the tiles."""
    choices = {"algorithm": "persistent", "waves": waves, "block": block, "warps": warps, "silu": silu}
    if waves == "fixed_32":
        grid = "programs = 32"
    else:
        grid = (
            "sms = torch.cuda.get_device_properties(x.device).multi_processor_count\n"
            f"programs = min(n_tiles, {waves} * sms)"
        )
    code = fill(PERSISTENT, grid=grid, block=block, warps=warps, silu=SILU[silu])
    return Draft(choices, code, manner=MANNER)


TWO_KERNELS = (
    TRITON_IMPORTS
    + """
@triton.jit
def conv_only(x_ptr, w_ptr, b_ptr, buf, channels, length, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = row % channels
    x_ptr += row * length
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = at < length
    @taps@
    tl.store(buf + row * length + at, acc, mask=live)


@silu_kernel@def run(x, weight, bias):
    batch, channels, length = x.shape
    @pre@
    buf = torch.empty(x.shape, device=x.device, dtype=torch.@middle@)
    grid = (batch * channels, triton.cdiv(length, @block@))
    conv_only[grid](x, weight, bias, buf, channels, length, BLOCK=@block@, num_warps=@warps@)
    @apply@
    @post@
    return y
"""
)
SILU_KERNEL = """@triton.jit
def silu_only(buf, y_ptr, total, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    acc = tl.load(buf + i, mask=i < total, other=0.0).to(tl.float32)
    acc = acc * tl.sigmoid(acc)
    tl.store(y_ptr + i, acc.to(tl.bfloat16), mask=i < total)


"""
APPLIES = {
    "triton": "y = torch.empty_like(x)\n"
    "silu_only[(triton.cdiv(x.numel(), {b}),)](buf, y, x.numel(), SIZE={b}, num_warps=@warps@)",
    "torch": "y = torch.nn.functional.silu(buf).to(torch.bfloat16)",
    "sigmoid": "y = (buf * torch.sigmoid(buf)).to(torch.bfloat16)",
}


def two_kernels(
    block: int, warps: int, apply: str = "triton", middle: str = "float32", host: str | None = None
) -> Draft:
    """The convolution into a buffer, then the activation."""
    choices = {
        "algorithm": "two_kernels",
        "block": block,
        "warps": warps,
        "apply": apply,
        "middle": middle,
        "host": host,
    }
    pre, post = HOST[host]
    code = fill(
        TWO_KERNELS,
        taps=TAPS["static"],
        silu_kernel=SILU_KERNEL if apply == "triton" else "",
        apply=APPLIES[apply].format(b=max(block, 256)),
        middle=middle,
        block=block,
        warps=warps,
        pre=pre,
        post=post,
    )
    return Draft(choices, code, manner=MANNER)


PER_TAP = (
    TRITON_IMPORTS
    + """
@triton.jit
def add_tap(x_ptr, w_ptr, buf, total, channels, length, k, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = (i // length) % channels
    tap = tl.load(w_ptr + c * 4 + k, mask=i < total, other=0.0).to(tl.float32)
    v = tl.load(x_ptr + i - 3 + k, mask=(i < total) & (i % length >= 3 - k), other=0.0).to(tl.float32)
    acc = tl.load(buf + i, mask=i < total, other=0.0)
    tl.store(buf + i, acc + tap * v, mask=i < total)


def run(x, weight, bias):
    total = x.numel()
    # the buffer starts with the bias; each launch adds a tap
    buf = bias.float()[None, :, None].expand(x.shape).contiguous()
    for k in range(4):
        add_tap[(triton.cdiv(total, @block@),)](
            x, weight, buf, total, x.shape[1], x.shape[2], k, BLOCK=@block@, num_warps=@warps@
        )
    return torch.nn.functional.silu(buf).to(x.dtype)
"""
)


def per_tap(block: int, warps: int) -> Draft:
    """A launch per tap."""
    choices = {"algorithm": "per_tap", "block": block, "warps": warps}
    return Draft(choices, fill(PER_TAP, block=block, warps=warps), manner=MANNER)


PADDED = (
    TRITON_IMPORTS
    + """
@triton.jit
def conv_padded(x_ptr, w_ptr, b_ptr, y_ptr, channels, length, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = row % channels
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x_ptr += row * (length + 3) + at
    # three zeros lie in front of each row, so that nothing needs a mask but the end
    live = at < length
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(4):
        acc += tl.load(w_ptr + c * 4 + k).to(tl.float32) * tl.load(x_ptr + k, mask=live, other=0.0).to(tl.float32)
    acc += tl.load(b_ptr + c).to(tl.float32)
    @silu@
    tl.store(y_ptr + row * length + at, acc.to(tl.bfloat16), mask=live)


def run(x, weight, bias):
    batch, channels, length = x.shape
    padded = @pad@
    y = torch.empty_like(x)
    grid = (batch * channels, triton.cdiv(length, @block@))
    conv_padded[grid](padded, weight, bias, y, channels, length, BLOCK=@block@, num_warps=@warps@)
    return y
"""
)
PADS = {
    "functional": "torch.nn.functional.pad(x, (3, 0))",
    "cat": "torch.cat([x.new_zeros(batch, channels, 3), x], dim=2)",
}


def padded(pad: str, block: int, warps: int, silu: str = "sigmoid") -> Draft:
    """A padded copy of the input first."""
    choices = {"algorithm": "padded", "pad": pad, "block": block, "warps": warps, "silu": silu}
    code = fill(PADDED, pad=PADS[pad], block=block, warps=warps, silu=SILU[silu])
    return Draft(choices, code, manner=MANNER)


CHANNELS_LAST = (
    TRITON_IMPORTS
    + """
@triton.jit
def conv_walk(x_ptr, w_ptr, b_ptr, y_ptr, channels, length, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    # x is [batch, length, channels] here; lanes are channels, the window slides in registers
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = c < channels
    begin = tl.program_id(1) * STEPS
    base = tl.program_id(2) * length * channels + c
    w0 = tl.load(w_ptr + c * 4, mask=ok, other=0.0).to(tl.float32)
    w1 = tl.load(w_ptr + c * 4 + 1, mask=ok, other=0.0).to(tl.float32)
    w2 = tl.load(w_ptr + c * 4 + 2, mask=ok, other=0.0).to(tl.float32)
    w3 = tl.load(w_ptr + c * 4 + 3, mask=ok, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + c, mask=ok, other=0.0).to(tl.float32)
    x0 = tl.load(x_ptr + base + (begin - 3) * channels, mask=ok & (begin >= 3), other=0.0).to(tl.float32)
    x1 = tl.load(x_ptr + base + (begin - 2) * channels, mask=ok & (begin >= 2), other=0.0).to(tl.float32)
    x2 = tl.load(x_ptr + base + (begin - 1) * channels, mask=ok & (begin >= 1), other=0.0).to(tl.float32)
    for step in range(begin, begin + STEPS):
        x3 = tl.load(x_ptr + base + step * channels, mask=ok & (step < length), other=0.0).to(tl.float32)
        acc = w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3 + b
        @silu@
        tl.store(y_ptr + base + step * channels, acc.to(tl.bfloat16), mask=ok & (step < length))
        x0 = x1
        x1 = x2
        x2 = x3


def run(x, weight, bias):
    batch, channels, length = x.shape
    turned = x.transpose(1, 2).contiguous()
    out = torch.empty_like(turned)
    grid = (triton.cdiv(channels, @block@), triton.cdiv(length, @steps@), batch)
    conv_walk[grid](turned, weight, bias, out, channels, length, STEPS=@steps@, BLOCK=@block@, num_warps=@warps@)
    return out.transpose(1, 2)@contiguous@
"""
)


def channels_last(
    steps: int, block: int, warps: int, contiguous: bool = True, silu: str = "sigmoid"
) -> Draft:
    """Transposed, with channels as lanes and the window sliding along time."""
    choices = {
        "algorithm": "channels_last",
        "steps": steps,
        "block": block,
        "warps": warps,
        "result": "contiguous" if contiguous else "view",
        "silu": silu,
    }
    code = fill(
        CHANNELS_LAST,
        steps=steps,
        block=block,
        warps=warps,
        silu=SILU[silu],
        contiguous=".contiguous()" if contiguous else "",
    )
    return Draft(choices, code, manner=MANNER)


TIME_WALK = (
    TRITON_IMPORTS
    + """
@triton.jit
def conv_serial(x_ptr, w_ptr, b_ptr, y_ptr, n_rows, channels, length, LANES: tl.constexpr):
    # a lane owns a row and walks through time
    row = tl.program_id(0) * LANES + tl.arange(0, LANES)
    ok = row < n_rows
    c = row % channels
    w0 = tl.load(w_ptr + c * 4).to(tl.float32)
    w1 = tl.load(w_ptr + c * 4 + 1).to(tl.float32)
    w2 = tl.load(w_ptr + c * 4 + 2).to(tl.float32)
    w3 = tl.load(w_ptr + c * 4 + 3).to(tl.float32)
    b = tl.load(b_ptr + c).to(tl.float32)
    x0 = tl.zeros([LANES], dtype=tl.float32)
    x1 = x0
    x2 = x0
    for step in range(0, length):
        x3 = tl.load(x_ptr + row * length + step, mask=ok, other=0.0).to(tl.float32)
        acc = w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3 + b
        acc = acc * tl.sigmoid(acc)
        tl.store(y_ptr + row * length + step, acc.to(tl.bfloat16), mask=ok)
        x0 = x1
        x1 = x2
        x2 = x3


def run(x, weight, bias):
    batch, channels, length = x.shape
    y = torch.empty_like(x)
    n_rows = batch * channels
    conv_serial[(triton.cdiv(n_rows, @lanes@),)](
        x, weight, bias, y, n_rows, channels, length, LANES=@lanes@, num_warps=@warps@
    )
    return y
"""
)


def time_walk(lanes: int, warps: int) -> Draft:
    """A lane per row."""
    choices = {"algorithm": "time_walk", "lanes": lanes, "warps": warps}
    return Draft(choices, fill(TIME_WALK, lanes=lanes, warps=warps), manner=MANNER)


TOEPLITZ = (
    TRITON_IMPORTS
    + """
@triton.jit
def conv_dot(x_ptr, w_ptr, b_ptr, y_ptr, channels, length, LINES: tl.constexpr, S: tl.constexpr):
    row = tl.program_id(0)
    c = row % channels
    i = tl.arange(0, S)
    # the filter as a band: what a step takes from its own line, and from the end of the line before
    step = i[None, :] - i[:, None]
    band = tl.zeros([S, S], dtype=tl.float32)
    spill = tl.zeros([S, S], dtype=tl.float32)
    for k in tl.static_range(4):
        tap = tl.load(w_ptr + c * 4 + k).to(tl.float32)
        band += tl.where(step == 3 - k, tap, 0.0)
        spill += tl.where(step + S == 3 - k, tap, 0.0)
    bias = tl.load(b_ptr + c).to(tl.float32)
    at = (tl.program_id(1) * LINES + tl.arange(0, LINES))[:, None] * S + i[None, :]
    x_ptr += row * length
    own = tl.load(x_ptr + at, mask=at < length, other=0.0)@up@
    before = tl.load(x_ptr + at - S, mask=(at >= S) & (at < length + S), other=0.0)@up@
    acc = tl.dot(own, band.to(own.dtype)@precision@)
    acc += tl.dot(before, spill.to(own.dtype)@precision@)
    acc += bias
    @silu@
    tl.store(y_ptr + row * length + at, acc.to(tl.bfloat16), mask=at < length)


def run(x, weight, bias):
    batch, channels, length = x.shape
    y = torch.empty_like(x)
    grid = (batch * channels, triton.cdiv(length, @lines@ * @side@))
    conv_dot[grid](x, weight, bias, y, channels, length, LINES=@lines@, S=@side@, num_warps=@warps@)
    return y
"""
)


def toeplitz(lines: int, side: int, warps: int, precision: str = "bfloat16", silu: str = "sigmoid") -> Draft:
    """Tensor cores: a stretch of a row as a matrix, times the filter as a band matrix."""
    choices = {
        "algorithm": "toeplitz",
        "lines": lines,
        "side": side,
        "warps": warps,
        "precision": precision,
        "silu": silu,
    }
    exact = precision == "bfloat16"
    code = fill(
        TOEPLITZ,
        lines=lines,
        side=side,
        warps=warps,
        up="" if exact else ".to(tl.float32)",
        precision="" if exact else f', input_precision="{precision}"',
        silu=SILU[silu],
    )
    return Draft(choices, code, manner=MANNER)


BLOCK_POINTER = (
    TRITON_IMPORTS
    + """
@triton.jit
def conv_bp(x, w, b, y, M, channels, length, R: tl.constexpr, BN: tl.constexpr):
    first = tl.program_id(0) * R
    t0 = tl.program_id(1) * BN
    c = (first + tl.arange(0, R)) % channels
    acc = tl.zeros((R, BN), tl.float32) + tl.load(b + c).to(tl.float32)[:, None]
    for k in tl.static_range(4):
        src = tl.make_block_ptr(x, (M, length), (length, 1), (first, t0 - 3 + k), (R, BN), (1, 0))
        v = tl.load(src, boundary_check=(0, 1), padding_option="zero").to(tl.float32)
        acc += v * tl.load(w + c * 4 + k).to(tl.float32)[:, None]
    @silu@
    dst = tl.make_block_ptr(y, (M, length), (length, 1), (first, t0), (R, BN), (1, 0))
    tl.store(dst, acc.to(tl.bfloat16), boundary_check=(0, 1))


def run(x, weight, bias):
    batch, channels, length = x.shape
    M = batch * channels
    y = torch.empty_like(x)
    grid = (triton.cdiv(M, @rows@), triton.cdiv(length, @block@))
    conv_bp[grid](x, weight, bias, y, M, channels, length, R=@rows@, BN=@block@, num_warps=@warps@)
    return y
"""
)


def block_pointer(rows: int, block: int, warps: int, silu: str = "sigmoid") -> Draft:
    """Block pointers."""
    choices = {"algorithm": "block_pointer", "rows": rows, "block": block, "warps": warps, "silu": silu}
    code = fill(BLOCK_POINTER, rows=rows, block=block, warps=warps, silu=SILU[silu])
    return Draft(choices, code, manner=MANNER)


AUTOTUNED = (
    TRITON_IMPORTS
    + """
@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, num_warps=w) for b, w in @configs@],
    key=["channels", "length"],
)
@triton.jit
def conv_tuned(x_ptr, w_ptr, b_ptr, y_ptr, channels, length, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = row % channels
    x_ptr += row * length
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = at < length
    @taps@
    @silu@
    tl.store(y_ptr + row * length + at, acc.to(tl.bfloat16), mask=live)


def run(x, weight, bias):
    batch, channels, length = x.shape
    y = torch.empty_like(x)
    conv_tuned[lambda meta: (batch * channels, triton.cdiv(length, meta["BLOCK"]))](
        x, weight, bias, y, channels, length
    )
    return y
"""
)
AUTOTUNE = {
    "usual": [(256, 2), (512, 4), (1024, 4), (2048, 8)],
    "small": [(64, 1), (128, 1), (256, 2)],
    "wide": [(1024, 4), (2048, 4), (4096, 8)],
}


def autotuned(name: str) -> Draft:
    """A program per row and block, with a list of configurations."""
    code = fill(AUTOTUNED, configs=AUTOTUNE[name], taps=TAPS["unrolled"], silu=SILU["sigmoid"])
    return Draft({"algorithm": "autotuned", "configs": name}, code, manner=MANNER)


# ------------------------------------------------------------------------------------------------- CUDA C++

CUDA_HEAD = """
typedef unsigned short bf16;

__device__ __forceinline__ float up(bf16 v) { return __uint_as_float((unsigned int)v << 16); }

__device__ __forceinline__ bf16 down(float f) {
  unsigned int u = __float_as_uint(f);
  return (bf16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);  // to nearest, ties to even
}

__device__ __forceinline__ float silu(float v) { return @silu@; }
"""
CUDA_SILU = {
    "fast": "v / (1.f + __expf(-v))",
    "precise": "v / (1.f + expf(-v))",
    "tanh": "0.5f * v * (1.f + tanhf(0.5f * v))",
    "fdividef": "__fdividef(v, 1.f + __expf(-v))",
    "double": "(float)((double)v / (1.0 + exp(-(double)v)))",
}
# Wide loads: name -> (vector type, number of bfloat16 in it).
CUDA_VECTORS = {2: "unsigned int", 4: "uint2", 8: "uint4"}

CUDA_RUN = """
def run(x, weight, bias):
    batch, channels, length = x.shape
    @pre@
    y = torch.empty_like(x)
    rows = batch * channels
    conv((@grid@), (@threads@, 1, 1), [x, weight, bias, y, rows, channels, length])
    @post@
    return y
"""
SIGNATURE = (
    'extern "C" __global__ void conv(const bf16* __restrict__ x, const bf16* __restrict__ w,\n'
    "                                const bf16* __restrict__ bias, bf16* __restrict__ y, int rows, int channels,\n"
    "                                int length)"
)


def cuda_draft(
    choices: Mapping[str, object],
    kernel: str,
    grid: str,
    threads: int,
    silu: str,
    host: str | None = None,
    **slots: object,
) -> Draft:
    """Builds a kernel with the common head and launches it on a grid of `grid` blocks."""
    pre, post = HOST[host]
    text = fill(CUDA_HEAD + "\n" + SIGNATURE + kernel, silu=CUDA_SILU[silu], **slots)
    run = fill(CUDA_RUN, grid=grid, threads=threads, pre=pre, post=post)
    key = {**choices, "threads": threads, "silu": silu, "host": host}
    return Draft(key, nvrtc_module(text, run, "conv"), "cuda", CUDA_MANNER)


CUDA_ELEMENT = """ {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y;
  if (t >= length) return;
  const int c = row % channels;
  const bf16* in = x + (long long)row * length;
  float acc = up(bias[c]);
  for (int k = 0; k < 4; ++k) {
    if (t - 3 + k >= 0) acc += up(w[c * 4 + k]) * up(in[t - 3 + k]);
  }
  y[(long long)row * length + t] = down(silu(acc));
}
"""
CUDA_FLAT = """ {
  const int total = rows * length;
  @first@ {
    const int t = i % length;
    const int c = i / length % channels;
    float acc = up(bias[c]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (t >= 3 - k) acc += up(w[c * 4 + k]) * up(x[i - 3 + k]);
    }
    y[i] = down(silu(acc));
  }
}
"""


def cuda_element(threads: int, silu: str = "fast", host: str | None = None) -> Draft:
    """A thread per output."""
    grid = f"(length + {threads - 1}) // {threads}, rows, 1"
    return cuda_draft({"algorithm": "cuda_element"}, CUDA_ELEMENT, grid, threads, silu, host)


def cuda_flat(threads: int, silu: str = "fast", blocks: str = "exact") -> Draft:
    """One index over everything, a thread each or with a stride."""
    if blocks == "exact":
        first = "const int i = blockIdx.x * blockDim.x + threadIdx.x;\nif (i < total)"
        grid = f"(rows * length + {threads - 1}) // {threads}, 1, 1"
    else:
        first = "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x)"
        grid = f"{blocks}, 1, 1"
    choices = {"algorithm": "cuda_flat", "blocks": blocks}
    return cuda_draft(choices, CUDA_FLAT, grid, threads, silu, first=first)


CUDA_VECTOR = """ {
  const int row = @row@;
  const int t = @time@;
  const int c = row % channels;
  @guard@
  const bf16* in = x + (long long)row * length;
  float v[@vec@ + 3];
  @halo@
  union {
    @type@ wide;
    bf16 part[@vec@];
  } pack;
  pack.wide = @load@;
#pragma unroll
  for (int k = 0; k < @vec@; ++k) v[3 + k] = up(pack.part[k]);
  @shared_halo@
  const float w0 = up(w[c * 4]), w1 = up(w[c * 4 + 1]), w2 = up(w[c * 4 + 2]), w3 = up(w[c * 4 + 3]);
  const float b = up(bias[c]);
#pragma unroll
  for (int k = 0; k < @vec@; ++k) {
    const float acc = b + w0 * v[k] + w1 * v[k + 1] + w2 * v[k + 2] + w3 * v[k + 3];
    pack.part[k] = down(silu(acc));
  }
  @store@
}
"""
CUDA_HALO = {
    "reload": ("for (int k = 0; k < 3; ++k) v[k] = t - 3 + k >= 0 ? up(in[t - 3 + k]) : 0.f;", ""),
    "shuffle": (
        "const int lane = threadIdx.x & 31;",
        "// the lane below holds the three numbers before; only the first lane has to read them\n"
        "#pragma unroll\nfor (int k = 0; k < 3; ++k) {\n"
        "  v[k] = __shfl_up_sync(0xffffffffu, v[@vec@ + k], 1);\n"
        "  if (lane == 0) v[k] = t - 3 + k >= 0 ? up(in[t - 3 + k]) : 0.f;\n}",
    ),
    "wide": (
        "uint2 earlier = t >= 4 ? *(const uint2*)(in + t - 4) : make_uint2(0u, 0u);\n"
        "v[0] = up((bf16)(earlier.x >> 16));\nv[1] = up((bf16)(earlier.y & 0xffffu));\n"
        "v[2] = up((bf16)(earlier.y >> 16));",
        "",
    ),
}


def cuda_vector(
    vec: int,
    threads: int,
    halo: str = "reload",
    silu: str = "fast",
    cache: str = "plain",
    order: str = "grid2d",
    host: str | None = None,
) -> Draft:
    """A thread per few neighbouring outputs, loaded at once."""
    kind = CUDA_VECTORS[vec]
    early, late = CUDA_HALO[halo]
    streaming = cache == "streaming"
    place = f"((const {kind}*)(in + t))"
    out = f"(({kind}*)(y + (long long)row * length + t))"
    per_block = threads * vec
    grid2d = order == "grid2d"
    return cuda_draft(
        {"algorithm": "cuda_vector", "vec": vec, "halo": halo, "cache": cache, "order": order},
        CUDA_VECTOR,
        f"(length + {per_block - 1}) // {per_block}, rows, 1"
        if grid2d
        else f"(rows * length + {per_block - 1}) // {per_block}, 1, 1",
        threads,
        silu,
        host,
        row="blockIdx.y" if grid2d else "(blockIdx.x * blockDim.x + threadIdx.x) / (length / @vec@)",
        time="(blockIdx.x * blockDim.x + threadIdx.x) * @vec@"
        if grid2d
        else "(blockIdx.x * blockDim.x + threadIdx.x) % (length / @vec@) * @vec@",
        guard="if (t >= length) return;" if grid2d else "if (row >= rows) return;",
        vec=vec,
        type=kind,
        halo=early,
        shared_halo=late,
        load=f"__ldcs({place})" if streaming else f"*{place}",
        store=f"__stcs({out}, pack.wide);" if streaming else f"*{out} = pack.wide;",
    )


CUDA_SHARED = """ {
  __shared__ float tile[@size@ + 3];
  const int row = blockIdx.y;
  const int begin = blockIdx.x * @size@;
  const int c = row % channels;
  const bf16* in = x + (long long)row * length;
  // the block's inputs and the three before them
  for (int i = threadIdx.x; i < @size@ + 3; i += blockDim.x) {
    const int t = begin + i - 3;
    tile[i] = t >= 0 && t < length ? up(in[t]) : 0.f;
  }
  __syncthreads();
  const float b = up(bias[c]);
  float f[4];
  for (int k = 0; k < 4; ++k) f[k] = up(w[c * 4 + k]);
  for (int i = threadIdx.x; i < @size@; i += blockDim.x) {
    const float acc = b + f[0] * tile[i] + f[1] * tile[i + 1] + f[2] * tile[i + 2] + f[3] * tile[i + 3];
    if (begin + i < length) y[(long long)row * length + begin + i] = down(silu(acc));
  }
}
"""


def cuda_shared(size: int, threads: int, silu: str = "fast", host: str | None = None) -> Draft:
    """A tile with its halo in shared memory."""
    grid = f"(length + {size - 1}) // {size}, rows, 1"
    choices = {"algorithm": "cuda_shared", "size": size}
    return cuda_draft(choices, CUDA_SHARED, grid, threads, silu, host, size=size)


CUDA_BLOCK_ROW = """ {
  // a block walks along a row; each thread hands its last three inputs to its neighbour
  __shared__ float last[@threads@ + 1][3];
  const int row = blockIdx.x;
  const int c = row % channels;
  const bf16* in = x + (long long)row * length;
  float f[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) f[k] = up(w[c * 4 + k]);
  const float b = up(bias[c]);
  if (threadIdx.x < 3) last[@threads@][threadIdx.x] = 0.f;
  for (int begin = 0; begin < length; begin += @threads@ * @vec@) {
    const int t = begin + threadIdx.x * @vec@;
    union {
      @type@ wide;
      bf16 part[@vec@];
    } pack;
    float v[@vec@ + 3];
    if (t < length) {
      pack.wide = *(const @type@*)(in + t);
#pragma unroll
      for (int k = 0; k < @vec@; ++k) v[3 + k] = up(pack.part[k]);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int k = 0; k < 3; ++k) v[k] = last[@threads@][k];
    }
    __syncthreads();
    if (t < length) {
      for (int k = 0; k < 3; ++k) last[threadIdx.x + 1][k] = v[@vec@ + k];
    }
    __syncthreads();
    if (threadIdx.x > 0) {
      for (int k = 0; k < 3; ++k) v[k] = last[threadIdx.x][k];
    }
    if (t < length) {
#pragma unroll
      for (int k = 0; k < @vec@; ++k) {
        pack.part[k] = down(silu(b + f[0] * v[k] + f[1] * v[k + 1] + f[2] * v[k + 2] + f[3] * v[k + 3]));
      }
      *(@type@*)(y + (long long)row * length + t) = pack.wide;
    }
  }
}
"""


def cuda_block_row(vec: int, threads: int, silu: str = "fast") -> Draft:
    """A block per row; neighbours exchange their ends in shared memory."""
    choices = {"algorithm": "cuda_block_row", "vec": vec}
    return cuda_draft(
        choices,
        CUDA_BLOCK_ROW.replace("@threads@", str(threads)),
        "rows, 1, 1",
        threads,
        silu,
        vec=vec,
        type=CUDA_VECTORS[vec],
    )


CUDA_WARP_ROW = """ {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const int c = row % channels;
  const bf16* in = x + (long long)row * length;
  bf16* out = y + (long long)row * length;
  const float w0 = up(w[c * 4]), w1 = up(w[c * 4 + 1]), w2 = up(w[c * 4 + 2]), w3 = up(w[c * 4 + 3]);
  const float b = up(bias[c]);
  float e0 = 0.f, e1 = 0.f, e2 = 0.f;
  for (int begin = 0; begin < length; begin += 32 * @vec@) {
    union {
      @type@ wide;
      bf16 part[@vec@];
    } pack;
    pack.wide = *(const @type@*)(in + begin + lane * @vec@);
    float v[@vec@ + 3];
#pragma unroll
    for (int k = 0; k < @vec@; ++k) v[3 + k] = up(pack.part[k]);
    v[0] = __shfl_up_sync(0xffffffffu, v[@vec@], 1);
    v[1] = __shfl_up_sync(0xffffffffu, v[@vec@ + 1], 1);
    v[2] = __shfl_up_sync(0xffffffffu, v[@vec@ + 2], 1);
    if (lane == 0) {
      v[0] = e0;
      v[1] = e1;
      v[2] = e2;
    }
    e0 = __shfl_sync(0xffffffffu, v[@vec@], 31);
    e1 = __shfl_sync(0xffffffffu, v[@vec@ + 1], 31);
    e2 = __shfl_sync(0xffffffffu, v[@vec@ + 2], 31);
#pragma unroll
    for (int k = 0; k < @vec@; ++k) {
      pack.part[k] = down(silu(b + w0 * v[k] + w1 * v[k + 1] + w2 * v[k + 2] + w3 * v[k + 3]));
    }
    *(@type@*)(out + begin + lane * @vec@) = pack.wide;
  }
}
"""


def cuda_warp_row(vec: int, threads: int, silu: str = "fast") -> Draft:
    """A warp per row; the window passes from lane to lane and from step to step."""
    grid = f"(rows * 32 + {threads - 1}) // {threads}, 1, 1"
    choices = {"algorithm": "cuda_warp_row", "vec": vec}
    return cuda_draft(choices, CUDA_WARP_ROW, grid, threads, silu, vec=vec, type=CUDA_VECTORS[vec])


CUDA_THREAD_ROW = """ {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const int c = row % channels;
  const float w0 = up(w[c * 4]), w1 = up(w[c * 4 + 1]), w2 = up(w[c * 4 + 2]), w3 = up(w[c * 4 + 3]);
  const float b = up(bias[c]);
  float x0 = 0.f, x1 = 0.f, x2 = 0.f;
@pragma@
  for (int t = 0; t < length; ++t) {
    const float x3 = up(x[(long long)row * length + t]);
    y[(long long)row * length + t] = down(silu(b + w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3));
    x0 = x1;
    x1 = x2;
    x2 = x3;
  }
}
"""


def cuda_thread_row(threads: int, unroll: int = 1) -> Draft:
    """A thread per row."""
    grid = f"(rows + {threads - 1}) // {threads}, 1, 1"
    choices = {"algorithm": "cuda_thread_row", "unroll": unroll}
    pragma = f"#pragma unroll {unroll}"
    return cuda_draft(choices, CUDA_THREAD_ROW, grid, threads, "fast", pragma=pragma)


CUDA_STRETCH = """ {
  // a thread walks through @steps@ times of a row with the window in registers
  const int row = blockIdx.y;
  const int begin = (blockIdx.x * blockDim.x + threadIdx.x) * @steps@;
  if (begin >= length) return;
  const int c = row % channels;
  const bf16* in = x + (long long)row * length;
  const float w0 = up(w[c * 4]), w1 = up(w[c * 4 + 1]), w2 = up(w[c * 4 + 2]), w3 = up(w[c * 4 + 3]);
  const float b = up(bias[c]);
  float x0 = begin > 0 ? up(in[begin - 3]) : 0.f;
  float x1 = begin > 0 ? up(in[begin - 2]) : 0.f;
  float x2 = begin > 0 ? up(in[begin - 1]) : 0.f;
  for (int t = begin; t < begin + @steps@ && t < length; ++t) {
    const float x3 = up(in[t]);
    y[(long long)row * length + t] = down(silu(b + w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3));
    x0 = x1;
    x1 = x2;
    x2 = x3;
  }
}
"""


def cuda_stretch(steps: int, threads: int, silu: str = "fast") -> Draft:
    """A thread per stretch of a row, number by number."""
    per_block = threads * steps
    grid = f"(length + {per_block - 1}) // {per_block}, rows, 1"
    return cuda_draft(
        {"algorithm": "cuda_stretch", "steps": steps}, CUDA_STRETCH, grid, threads, silu, steps=steps
    )


CUDA_TWO = """
extern "C" __global__ void conv_only(const bf16* x, const bf16* w, const bf16* bias, float* buf, int channels,
                                     int length) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y, c = row % channels;
  if (t >= length) return;
  float acc = up(bias[c]);
  for (int k = 0; k < 4; ++k) {
    if (t + k >= 3) acc += up(w[c * 4 + k]) * up(x[(long long)row * length + t - 3 + k]);
  }
  buf[(long long)row * length + t] = acc;
}

extern "C" __global__ void silu_only(const float* buf, bf16* y, int total) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < total) y[i] = down(silu(buf[i]));
}
"""
CUDA_TWO_RUN = """
def run(x, weight, bias):
    batch, channels, length = x.shape
    total = x.numel()
    buf = torch.empty(x.shape, device=x.device, dtype=torch.float32)
    grid = ((length + @threads@ - 1) // @threads@, batch * channels, 1)
    conv_only(grid, (@threads@, 1, 1), [x, weight, bias, buf, channels, length])
    @apply@
    return y
"""
CUDA_APPLIES = {
    "cuda": "y = torch.empty_like(x)\n"
    "silu_only(((total + @threads@ - 1) // @threads@, 1, 1), (@threads@, 1, 1), [buf, y, total])",
    "torch": "y = torch.nn.functional.silu(buf).bfloat16()",
}


def cuda_two(threads: int, apply: str = "cuda", silu: str = "fast") -> Draft:
    """The convolution into a buffer, then the activation."""
    choices = {"algorithm": "cuda_two", "threads": threads, "apply": apply, "silu": silu}
    entries = ("conv_only", "silu_only") if apply == "cuda" else ("conv_only",)
    kernels = fill(CUDA_HEAD + CUDA_TWO, silu=CUDA_SILU[silu])
    run = fill(CUDA_TWO_RUN, threads=threads, apply=CUDA_APPLIES[apply])
    return Draft(choices, nvrtc_module(kernels, run, *entries), "cuda", CUDA_MANNER)


CUDA_EXTENSION = '''
import torch
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
@kernel@

torch::Tensor causal_conv(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
  auto y = torch::empty_like(x);
  const int rows = x.size(0) * x.size(1), channels = x.size(1), length = x.size(2);
  const dim3 grid(@grid@, rows);
  conv<<<grid, @threads@>>>((const bf16*)x.data_ptr(), (const bf16*)weight.data_ptr(), (const bf16*)bias.data_ptr(),
                          (bf16*)y.data_ptr(), rows, channels, length);
  return y;
}
"""

extension = load_inline(
    name="conv_@hash@",
    cpp_sources="torch::Tensor causal_conv(torch::Tensor x, torch::Tensor weight, torch::Tensor bias);",
    cuda_sources=cuda_source,
    functions=["causal_conv"],
    extra_cuda_cflags=["-O3"],
)


def run(x, weight, bias):
    return extension.causal_conv(x, weight, bias)
'''


def cuda_extension(kind: str, threads: int) -> Draft:
    """The kernels of `cuda_element` and `cuda_shared` as an extension of PyTorch."""
    per_block = threads if kind == "element" else 1024
    kernel = fill(
        CUDA_HEAD
        + "\n"
        + SIGNATURE.replace('extern "C" ', "")
        + (CUDA_ELEMENT if kind == "element" else CUDA_SHARED),
        silu=CUDA_SILU["fast"],
        size=per_block,
    )
    code = fill(
        CUDA_EXTENSION,
        kernel=kernel,
        grid=f"(length + {per_block - 1}) / {per_block}",
        threads=threads,
        hash=KEY_HASH,
    )
    choices = {"algorithm": "cuda_extension", "kind": kind, "threads": threads}
    return Draft(choices, code, "cuda", CUDA_MANNER)


# -------------------------------------------------------------------------------------------------- PyTorch

TORCH: dict[str, str] = {
    "conv1d": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    length = x.shape[-1]
    y = F.conv1d(x, weight.unsqueeze(1), bias, padding=3, groups=x.shape[1])
    return F.silu(y[..., :length])
""",
    "pad_conv1d": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    padded = F.pad(x, (3, 0))
    return F.silu(F.conv1d(padded, weight[:, None, :], bias, groups=weight.shape[0]))
""",
    "conv1d_float": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    y = F.conv1d(F.pad(x.float(), (3, 0)), weight.float()[:, None], bias.float(), groups=x.size(1))
    return F.silu(y).to(x.dtype)
""",
    "module": """import torch
from torch import nn


class ShortConvolution(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        channels, width = weight.shape
        self.conv = nn.Conv1d(channels, channels, width, groups=channels, padding=width - 1, device=weight.device)
        self.conv.weight.data = weight.unsqueeze(1)
        self.conv.bias.data = bias
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.conv(x)[:, :, : x.shape[2]])


def run(x, weight, bias):
    with torch.no_grad():
        return ShortConvolution(weight, bias)(x)
""",
    "shifts": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    length = x.shape[-1]
    p = F.pad(x.float(), (3, 0))
    w = weight.float()
    total = bias.float()[:, None]
    for k in range(4):
        total = total + w[:, k, None] * p[..., k : k + length]
    return F.silu(total).to(x.dtype)
""",
    "shifts_in_place": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    wide, w = x.float(), weight.float()
    total = wide * w[:, 3:] + bias.float()[:, None]
    for back in (1, 2, 3):
        total[..., back:].addcmul_(wide[..., :-back], w[:, 3 - back, None])
    return F.silu(total, inplace=True).bfloat16()
""",
    "roll": """import torch


def run(x, weight, bias):
    f, w = x.float(), weight.float()
    total = torch.zeros_like(f)
    for back in range(4):
        shifted = torch.roll(f, back, dims=-1)
        shifted[..., :back] = 0
        total += shifted * w[:, 3 - back].view(1, -1, 1)
    total += bias.float().view(1, -1, 1)
    return (total * torch.sigmoid(total)).to(torch.bfloat16)
""",
    "unfold_einsum": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    windows = F.pad(x.float(), (3, 0)).unfold(2, 4, 1)
    total = torch.einsum("bctk,ck->bct", windows, weight.float()) + bias.float()[:, None]
    return F.silu(total).to(x.dtype)
""",
    "unfold_sum": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    windows = F.pad(x, (3, 0)).unfold(-1, 4, 1).float()
    total = (windows * weight.float()[None, :, None, :]).sum(-1) + bias.float()[None, :, None]
    return F.silu(total).bfloat16()
""",
    "unfold_matmul": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    # per channel: [batch * length, 4] times [4]
    b, c, n = x.shape
    windows = F.pad(x.float(), (3, 0)).unfold(2, 4, 1).permute(1, 0, 2, 3).reshape(c, b * n, 4)
    total = torch.bmm(windows, weight.float().unsqueeze(-1)).view(c, b, n).permute(1, 0, 2)
    return F.silu(total + bias.float()[:, None]).to(x.dtype).contiguous()
""",
    "as_strided": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    p = F.pad(x, (3, 0)).contiguous()
    b, c, n = x.shape
    windows = p.as_strided((b, c, n, 4), (c * (n + 3), n + 3, 1, 1))
    total = torch.matmul(windows.float(), weight.float().view(1, c, 4, 1)).squeeze(-1)
    return F.silu(total + bias.float().view(1, c, 1)).to(torch.bfloat16)
""",
    "fft": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    # a product of spectra; the filter turned round, as convolutions have it
    n = x.shape[-1]
    size = 2 * n
    spectrum = torch.fft.rfft(x.float(), size) * torch.fft.rfft(weight.float().flip(-1), size).unsqueeze(0)
    total = torch.fft.irfft(spectrum, size)[..., :n] + bias.float()[:, None]
    return F.silu(total).to(x.dtype)
""",
    "double": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    p, n = F.pad(x.double(), (3, 0)), x.shape[2]
    terms = [p[:, :, k : k + n] * weight[:, k : k + 1].double() for k in range(4)]
    return F.silu(sum(terms) + bias.double()[:, None]).bfloat16()
""",
    "stack": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    n = x.shape[-1]
    p = F.pad(x.float(), (3, 0))
    stacked = torch.stack([p[..., k : k + n] for k in range(4)])
    taps = weight.float().t()[:, None, :, None]
    return F.silu((stacked * taps).sum(0) + bias.float()[:, None]).to(x.dtype)
""",
    "conv2d": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    image = F.pad(x, (3, 0)).unsqueeze(2)
    y = F.conv2d(image, weight.view(-1, 1, 1, 4), bias, groups=x.shape[1])
    return F.silu(y.squeeze(2))
""",
    "conv2d_channels_last": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    image = F.pad(x, (3, 0)).unsqueeze(2).to(memory_format=torch.channels_last)
    kernel = weight.view(-1, 1, 1, 4).contiguous(memory_format=torch.channels_last)
    y = F.conv2d(image, kernel, bias, groups=x.shape[1])
    return F.silu(y).squeeze(2).contiguous()
""",
    "channels_last": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    t = F.pad(x.transpose(1, 2).float(), (0, 0, 3, 0))
    n = x.shape[2]
    total = bias.float()
    for k in range(4):
        total = total + t[:, k : k + n] * weight[:, k].float()
    return F.silu(total).to(x.dtype).transpose(1, 2).contiguous()
""",
    "batches": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    kernel = weight.unsqueeze(1)
    rows = [F.conv1d(F.pad(part, (3, 0)), kernel, bias, groups=x.shape[1]) for part in x.split(1)]
    return F.silu(torch.cat(rows))
""",
    "channel_groups": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    y = torch.empty_like(x)
    for lo in range(0, x.shape[1], 512):
        part = F.pad(x[:, lo : lo + 512].float(), (3, 0))
        w = weight[lo : lo + 512].float()
        total = F.conv1d(part, w.unsqueeze(1), bias[lo : lo + 512].float(), groups=w.shape[0])
        y[:, lo : lo + 512] = F.silu(total)
    return y
""",
    "time_chunks": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    p = F.pad(x, (3, 0))
    kernel, pieces = weight.unsqueeze(1), []
    for begin in range(0, x.shape[2], 512):
        piece = F.conv1d(p[..., begin : begin + 515], kernel, bias, groups=x.shape[1])
        pieces.append(F.silu(piece))
    return torch.cat(pieces, dim=-1)
""",
    "jit_script": """import torch


@torch.jit.script
def conv_silu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    p = torch.nn.functional.pad(x.float(), [3, 0])
    n = x.size(2)
    total = b.float().unsqueeze(1) + p[:, :, 0:n] * w[:, 0:1].float()
    total = total + p[:, :, 1 : n + 1] * w[:, 1:2].float()
    total = total + p[:, :, 2 : n + 2] * w[:, 2:3].float()
    total = total + p[:, :, 3 : n + 3] * w[:, 3:4].float()
    return (total * torch.sigmoid(total)).to(x.dtype)


def run(x, weight, bias):
    return conv_silu(x, weight, bias)
""",
    "vmap": """import torch
import torch.nn.functional as F


def one(row, taps, offset):
    padded = F.pad(row, (3, 0))
    n = row.shape[0]
    return sum(padded[k : k + n] * taps[k] for k in range(4)) + offset


def run(x, weight, bias):
    over_channels = torch.vmap(one, in_dims=(0, 0, 0))
    over_batch = torch.vmap(over_channels, in_dims=(0, None, None))
    return F.silu(over_batch(x.float(), weight.float(), bias.float())).to(x.dtype)
""",
    "checks": """import torch
import torch.nn.functional as F


def run(x, weight, bias):
    assert x.dim() == 3 and weight.shape == (x.shape[1], 4)
    if torch.isnan(x).any().item():
        raise ValueError("NaN in the input")
    y = F.conv1d(x, weight.unsqueeze(1), bias, padding=3, groups=x.shape[1])
    y = F.silu(y[..., : x.shape[2]].contiguous())
    torch.cuda.synchronize()
    return y
""",
}


def torch_source(name: str) -> Draft:
    """Plain PyTorch."""
    return Draft({"algorithm": "torch", "form": name}, TORCH[name], "pytorch")


WRAPS = {
    "checked": """

def run(x, weight, bias):
    y = launch(x, weight, bias)
    # compare with PyTorch before the result is handed out
    want = torch.nn.functional.conv1d(x, weight.unsqueeze(1), bias, padding=3, groups=x.shape[1])
    want = torch.nn.functional.silu(want[..., : x.shape[2]])
    if not torch.allclose(y.float(), want.float(), rtol=0.05, atol=0.05):
        return want
    return y
""",
    "sliced": """

def run(x, weight, bias):
    half = x.shape[1] // 2
    low = launch(x[:, :half].contiguous(), weight[:half].contiguous(), bias[:half].contiguous())
    high = launch(x[:, half:].contiguous(), weight[half:].contiguous(), bias[half:].contiguous())
    return torch.cat([low, high], dim=1)
""",
    "twice": """

def run(x, weight, bias):
    launch(x, weight, bias)  # warm up
    torch.cuda.synchronize()
    return launch(x, weight, bias)
""",
    "copies": """

def run(x, weight, bias):
    y = launch(x.detach().clone(), weight.clone(), bias.clone())
    return torch.where(torch.isnan(y), torch.zeros_like(y), y).contiguous().clone()
""",
}

# ------------------------------------------------------------------------------------------------- the pool

# A first version as one writes it: one kernel for the convolution, one for the activation, float32 in between.
SEED = two_kernels(256, 4)


def add_triton(pool: Pool) -> None:
    """Adds the sound Triton sources."""
    pool.add(row_block(b, w) for b, w in product((256, 512, 1024), (2, 4, 8)))
    pool.add(
        row_block(b, w) for b, w in ((32, 1), (64, 1), (128, 1), (128, 4), (2048, 4), (2048, 8), (4096, 8))
    )
    pool.add(row_block(b, w, t) for b, w, t in product((256, 1024), (4,), ("static", "loop", "float64")))
    pool.add([row_block(2048, 8, "static")])
    pool.add(row_block(1024, 4, silu=s) for s in ("divide", "exp2", "stable"))
    pool.add(row_block(256, 4, silu=s) for s in ("divide", "exp2"))
    pool.add(row_block(b, w, io="cast") for b, w in ((256, 4), (1024, 4)))
    pool.add([row_block(1024, 4, "static", io="cast"), row_block(256, 4, "loop", io="cast")])
    pool.add(row_block(b, w, order="block_first") for b, w in ((256, 4), (1024, 4), (2048, 8)))
    pool.add(row_block(b, w, hints=True) for b, w in ((512, 4), (2048, 8)))
    pool.add(row_block(1024, 4, host=h) for h in ("clone_in", "sync", "nan_check", "clone_out", "zero_out"))
    pool.add(row_loop(b, w) for b, w in product(("256", "1024", "2048"), (4, 8)))
    pool.add(
        [row_loop("64", 1), row_loop("128", 1), row_loop("512", 4), row_loop("4096", 8), row_loop("row", 4)]
    )
    pool.add([row_loop("row", 8), row_loop("row", 16), row_loop("1024", 4, "loop")])
    pool.add(
        [row_loop("1024", 4, "static"), row_loop("1024", 4, silu="divide"), row_loop("1024", 4, silu="exp2")]
    )
    pool.add(row_loop(b, w, stages=s) for b, w, s in (("512", 4, 3), ("1024", 4, 3), ("2048", 8, 3)))
    pool.add(tile(r, b, 4) for r, b in product((2, 4, 8), (128, 256, 512)))
    pool.add(
        [
            tile(4, 1024, 8),
            tile(16, 64, 4),
            tile(16, 128, 8),
            tile(32, 32, 4),
            tile(64, 16, 4),
            tile(128, 8, 4),
            tile(4, 256, 2),
            tile(4, 256, 4, "exp2"),
        ]
    )
    pool.add(flat(b, w) for b, w in product((256, 1024), (4, 8)))
    pool.add([flat(128, 1), flat(512, 4), flat(2048, 8), flat(1024, 4, "sigmoid")])
    pool.add(flat(1024, 4, host=h) for h in ("clone_in", "sync", "nan_check"))
    pool.add(persistent(v, b, w) for v, b, w in product(("2", "8"), (512, 2048), (4,)))
    pool.add(
        [
            persistent("1", 1024, 4),
            persistent("4", 1024, 8),
            persistent("16", 1024, 4),
            persistent("8", 512, 4, "exp2"),
            persistent("fixed_32", 1024, 4),
        ]
    )


def add_more_triton(pool: Pool) -> None:
    """Adds Triton sources in several launches, other layouts and tricks."""
    pool.add(
        two_kernels(b, w) for b, w in ((64, 1), (128, 4), (256, 4), (512, 4), (1024, 4), (1024, 8), (2048, 8))
    )
    pool.add(two_kernels(b, 4, a) for b, a in product((256, 1024), ("torch", "sigmoid")))
    pool.add(two_kernels(b, 4, "triton", "bfloat16") for b in (256, 1024))
    pool.add([two_kernels(256, 4, "torch", "bfloat16"), two_kernels(1024, 4, "torch", "bfloat16")])
    pool.add(two_kernels(256, 4, host=h) for h in ("sync", "nan_check"))
    pool.add(per_tap(b, w) for b, w in ((256, 4), (1024, 4), (1024, 8)))
    pool.add(padded(p, b, 4) for p, b in product(PADS, (256, 1024)))
    pool.add(
        [padded("functional", 2048, 8), padded("functional", 1024, 4, "divide"), padded("functional", 512, 2)]
    )
    pool.add(
        channels_last(s, b, w)
        for s, b, w in ((16, 64, 2), (32, 128, 4), (64, 128, 4), (64, 256, 4), (256, 128, 4))
    )
    pool.add(
        [
            channels_last(64, 32, 1),
            channels_last(1024, 64, 2),
            channels_last(32, 256, 8),
            channels_last(64, 128, 4, silu="exp2"),
        ]
    )
    pool.add([channels_last(64, 128, 4, contiguous=False), channels_last(32, 128, 4, contiguous=False)])
    pool.add(time_walk(n, w) for n, w in ((32, 1), (64, 2), (128, 4)))
    pool.add(
        toeplitz(n, s, w)
        for n, s, w in (
            (16, 16, 1),
            (16, 32, 2),
            (32, 16, 2),
            (16, 64, 4),
            (32, 32, 4),
            (64, 16, 4),
            (64, 32, 4),
        )
    )
    pool.add([toeplitz(32, 64, 8), toeplitz(32, 32, 4, silu="exp2"), toeplitz(32, 32, 8)])
    pool.add(toeplitz(n, s, 4, "tf32") for n, s in ((16, 16), (32, 32)))
    pool.add(toeplitz(n, s, 4, "ieee") for n, s in ((16, 16), (32, 32)))
    pool.add(
        block_pointer(r, b, w)
        for r, b, w in ((1, 1024, 4), (1, 512, 4), (2, 512, 4), (4, 256, 4), (8, 128, 4), (4, 1024, 8))
    )
    pool.add(autotuned(name) for name in AUTOTUNE)


def add_cuda(pool: Pool) -> None:
    """Adds the sound CUDA C++ sources."""
    pool.add(cuda_element(t) for t in (64, 128, 256, 1024))
    pool.add(cuda_element(256, s) for s in ("precise", "tanh", "double"))
    pool.add(cuda_element(256, host=h) for h in ("sync", "nan_check"))
    pool.add(cuda_flat(t) for t in (128, 256, 1024))
    pool.add(
        [
            cuda_flat(256, "precise"),
            cuda_flat(256, blocks="132"),
            cuda_flat(256, blocks="1056"),
            cuda_flat(512, blocks="1056"),
        ]
    )
    pool.add([cuda_flat(256, blocks="16")])
    pool.add(cuda_vector(v, t) for v, t in product((2, 4, 8), (64, 128, 256)))
    pool.add(cuda_vector(v, 128, "shuffle") for v in (4, 8))
    pool.add(cuda_vector(v, 128, "wide") for v in (4, 8))
    pool.add(
        [
            cuda_vector(8, 256, "wide"),
            cuda_vector(8, 64, "wide"),
            cuda_vector(8, 32, "wide"),
        ]
    )
    pool.add(cuda_vector(8, 128, silu=s) for s in ("precise", "tanh", "double"))
    pool.add([cuda_vector(8, 128, "wide", s) for s in ("fdividef", "precise")])
    pool.add([cuda_vector(8, 128, h, cache="streaming") for h in ("reload", "wide")])
    pool.add(
        cuda_vector(v, t, h, order="flat")
        for v, t, h in ((4, 256, "reload"), (8, 128, "reload"), (8, 256, "wide"))
    )
    pool.add(cuda_vector(8, 128, host=h) for h in ("sync", "clone_in"))
    pool.add(
        cuda_shared(n, t)
        for n, t in ((256, 256), (512, 128), (512, 256), (1024, 256), (1024, 1024), (2048, 256))
    )
    pool.add(
        [
            cuda_shared(128, 128),
            cuda_shared(1024, 256, "precise"),
        ]
    )
    pool.add(cuda_block_row(v, t) for v, t in ((8, 64), (8, 128), (8, 256), (4, 128), (4, 256), (4, 64)))
    pool.add([cuda_block_row(8, 128, "precise"), cuda_block_row(4, 256, "tanh")])
    pool.add(cuda_warp_row(v, t) for v, t in ((8, 32), (8, 128), (8, 256), (4, 128), (4, 64)))
    pool.add([cuda_warp_row(8, 128, "precise"), cuda_warp_row(8, 128, "fdividef")])
    pool.add([cuda_thread_row(32), cuda_thread_row(128), cuda_thread_row(64, 8)])
    pool.add(cuda_stretch(s, t) for s, t in ((4, 128), (4, 256), (8, 128), (16, 64), (16, 128), (64, 32)))
    pool.add(
        [cuda_stretch(8, 128, "precise"), cuda_two(64), cuda_two(256), cuda_two(1024), cuda_two(256, "torch")]
    )
    pool.add(
        [
            cuda_two(256, silu="precise"),
            cuda_extension("element", 256),
            cuda_extension("shared", 256),
            cuda_extension("element", 128),
        ]
    )


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(name) for name in TORCH)


def add_wrapped(pool: Pool) -> None:
    """Adds sound kernels inside careless wrappers."""
    parents = [
        row_block(1024, 4),
        row_loop("1024", 4),
        two_kernels(1024, 4),
        channels_last(64, 128, 4),
        cuda_vector(8, 128, "wide"),
        torch_source("shifts"),
    ]
    pool.add_wrapped(parents, WRAPS)


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    pool.add_broken(
        row_block(1024, 4),
        not_causal={"at - 3": "at - 2", "at - 2": "at - 1"},
        no_start_mask={"live & (at >= 3)": "live & (at >= 0)"},
        no_bias={" + tl.load(b_ptr + c).to(tl.float32)": ""},
        undefined_name={"acc * tl.sigmoid(acc)": "acc * tl.sigmoid(z)"},
        syntax={"live = at < length": "live = at < length:"},
        runtime_block={"BLOCK: tl.constexpr": "BLOCK"},
        wild_pointer={"x_ptr += row * length": "x_ptr += (row + 1) * length * 1048576"},
        too_many_warps={"num_warps=4": "num_warps=64"},
    )
    pool.add_broken(
        row_block(256, 4),
        taps_reversed={"w_ptr + c * 4 + 3": "w_ptr + c * 4", "w_ptr + c * 4)": "w_ptr + c * 4 + 3)"},
        row_for_channel={"c = row % channels": "c = row // channels"},
        block_not_power_of_two={"BLOCK=256": "BLOCK=384"},
    )
    pool.add_broken(
        row_block(256, 4, "static"),
        three_taps={"static_range(4)": "static_range(3)"},
        no_such_function={"tl.static_range(": "tl.unrolled_range("},
    )
    pool.add_broken(row_block(1024, 4, "loop"), bfloat16_sum={"dtype=tl.float32": "dtype=tl.bfloat16"})
    pool.add_broken(row_block(256, 4, io="cast"), float_output={"y = y.bfloat16()": "y = y.float()"})
    pool.add_broken(
        row_loop("1024", 4),
        stale_start={"at = begin + tl.arange(0, BLOCK)": "at = tl.arange(0, BLOCK)"},
        no_import={"import triton.language as tl\n": ""},
    )
    pool.add_broken(
        tile(4, 256, 4),
        wrong_broadcast={"tap[:, None] * v": "tap[None, :] * v"},
    )
    pool.add_broken(
        flat(1024, 4),
        no_start_mask={" & (at >= 3 - k)": ""},
        swapped_divisions={"(i // length)": "(i // channels)"},
    )
    pool.add_broken(
        two_kernels(1024, 4),
        stale_buffer={
            "tl.store(buf + row * length + at, acc, mask=live)": "tl.store(buf + at, acc, mask=live)"
        },
    )
    pool.add_broken(per_tap(1024, 4), bfloat16_buffer={"bias.float()[": "bias["})
    pool.add_broken(
        padded("functional", 1024, 4),
        padded_behind={"(3, 0)": "(0, 3)"},
        old_stride={"row * (length + 3)": "row * length"},
    )
    pool.add_broken(channels_last(64, 128, 4), window_not_moved={"x1 = x2\n": "x1 = x1\n"})
    pool.add_broken(
        toeplitz(32, 32, 4),
        no_spill={"acc += tl.dot(before": "acc += 0 * tl.dot(before"},
        side_8={"S=32": "S=8"},
    )
    pool.add_broken(
        time_walk(128, 4), wrong_argument={"n_rows, channels, length, LANES": "channels, length, LANES"}
    )
    pool.add_broken(autotuned("usual"), no_grid_block={'meta["BLOCK"]': 'meta["BLOCK_SIZE"]'})


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    pool.add_broken(
        cuda_element(256),
        undefined_name={"down(silu(acc))": "to_bfloat(silu(acc))"},
        too_many_threads={"(256, 1, 1)": "(2048, 1, 1)"},
    )
    pool.add_broken(
        cuda_vector(8, 128),
        syntax={"float v[8 + 3];": "float v[8 + 3]"},
        shifted_window={"w0 * v[k] + w1 * v[k + 1]": "w0 * v[k + 1] + w1 * v[k]"},
        truncated={"(u + 0x7fffu + ((u >> 16) & 1u)) >> 16": "(u + 0xffffu + ((u >> 16) & 1u)) >> 15"},
    )
    pool.add_broken(
        cuda_vector(8, 256, "wide"),
        misaligned={"in + t - 4": "in + t - 3"},
        wrong_half={"earlier.x >> 16": "earlier.x & 0xffffu"},
    )
    pool.add_broken(
        cuda_shared(1024, 256),
        no_halo={"begin + i - 3": "begin + i"},
        shared_too_large={"tile[1024 + 3]": "tile[102400 + 3]"},
    )
    pool.add_broken(
        cuda_block_row(8, 128), own_end={"v[k] = last[threadIdx.x][k]": "v[k] = last[threadIdx.x + 1][k]"}
    )
    pool.add_broken(cuda_warp_row(8, 128), no_carry={"e0 = __shfl_sync(0xffffffffu, v[8], 31);": "e0 = 0.f;"})
    pool.add_broken(cuda_two(256), wrong_entry={'"silu_only")': '"silu_kernel")'})


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(
        torch_source("conv1d"),
        last_for_first={"[..., :length]": "[..., -length:]"},
        no_groups={", groups=x.shape[1]": ""},
    )
    pool.add_broken(torch_source("pad_conv1d"), no_import={"import torch.nn.functional as F\n": ""})
    pool.add_broken(torch_source("shifts"), three_taps={"range(4)": "range(3)"})
    pool.add_broken(torch_source("roll"), wraps_around={"shifted[..., :back] = 0": "shifted = shifted"})
    pool.add_broken(
        torch_source("fft"), not_flipped={".flip(-1)": ""}, short_spectrum={"size = 2 * n": "size = n"}
    )


def link_families(pool: Pool) -> None:
    """Names the changes of algorithm that count as one edit."""
    block = row_block(1024, 4)
    pool.link(SEED, torch_source("pad_conv1d"))
    pool.link(SEED, row_block(256, 4, "static"))
    pool.link(SEED, per_tap(256, 4))
    pool.link(SEED, cuda_two(256))
    pool.link(SEED, flat(256, 4))
    pool.link(SEED, padded("functional", 256, 4))
    pool.link(SEED, torch_source("shifts"))
    pool.link(block, row_loop("1024", 4))
    pool.link(block, tile(2, 512, 4))
    pool.link(block, persistent("8", 512, 4))
    pool.link(block, block_pointer(1, 1024, 4))
    pool.link(block, autotuned("usual"))
    pool.link(block, padded("functional", 1024, 4))
    pool.link(block, flat(1024, 4, "sigmoid"))
    pool.link(row_block(256, 4), cuda_element(256))
    pool.link(tile(4, 256, 4), toeplitz(32, 32, 4))
    pool.link(time_walk(32, 1), channels_last(64, 32, 1), torch_source("channels_last"))
    pool.link(time_walk(32, 1), cuda_thread_row(32), cuda_stretch(64, 32))
    pool.link(time_walk(128, 4), row_loop("1024", 4))
    pool.link(cuda_element(256), cuda_vector(2, 256), cuda_vector(2, 128))
    pool.link(cuda_element(256), cuda_shared(256, 256), cuda_extension("element", 256))
    pool.link(cuda_element(256), cuda_flat(256), cuda_two(256))
    pool.link(cuda_vector(8, 128, "shuffle"), cuda_warp_row(8, 128), cuda_block_row(8, 128))
    pool.link(cuda_stretch(8, 128), cuda_vector(8, 128))
    pool.link(cuda_vector(8, 128), torch_source("conv1d"))
    pool.link(per_tap(1024, 4), torch_source("shifts_in_place"))
    pool.link(torch_source("conv1d"), torch_source("pad_conv1d"), torch_source("module"))
    pool.link(torch_source("shifts"), torch_source("jit_script"))
    pool.link(torch_source("shifts"), torch_source("stack"), torch_source("unfold_sum"))
    pool.link(cuda_extension("shared", 256), cuda_shared(1024, 256))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_triton,
        add_more_triton,
        add_cuda,
        add_torch,
        add_wrapped,
        break_triton,
        break_cuda,
        break_torch,
        link_families,
        Pool.link_retuned,
    )
