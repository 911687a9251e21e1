"""FP8 quantisation per token group, with the quantised numbers kept in float32.

Every source defines ``run(x)`` with x [tokens, hidden] in float32 and returns ``(q, scale)``: for each group of 128
neighbours of a row, ``scale = max(max|x|, 1e-10) / 448`` and ``q = clamp(x / scale, -448, 448)``; q has the shape of
x, scale is [tokens, hidden / 128], both in float32. Some groups of the inputs are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

from benchmarks.generators.pool import KEY_HASH, Draft, Pool
from benchmarks.generators.tasks import fp8_quant_nvrtc
from benchmarks.generators.text import TRITON_IMPORTS, Manner, eviction, fill

if TYPE_CHECKING:
    import torch

TASK = "fp8_quant"
OPERATION = "FP8 quantisation per group of 128: scale = max|x|/448, q = clamp(x/scale), float32 in and out"
SHAPES: list[dict[str, int]] = [
    {"tokens": 256, "hidden": 4096},
    {"tokens": 256, "hidden": 8192},
    {"tokens": 4096, "hidden": 7168},
]
OUTPUT_DTYPES = ["float32", "float32"]
TOLERANCE: dict[str, dict[str, float]] = {
    "q": {"rtol": 1e-4, "atol": 1e-3},
    "scale": {"rtol": 1e-5, "atol": 1e-14},
}


def make_inputs(shape: Mapping[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws normal numbers, a magnitude per group, and one group in fifty that is zero."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    tokens, hidden = shape["tokens"], shape["hidden"]
    x = torch.randn(tokens, hidden // 128, 128, device=device, generator=generator)
    x *= 10 ** (torch.rand(tokens, hidden // 128, 1, device=device, generator=generator) * 4 - 2)
    x *= torch.rand(tokens, hidden // 128, 1, device=device, generator=generator) > 0.02
    return (x.reshape(tokens, hidden),)


def reference(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Computes both outputs in float64."""
    groups = x.double().reshape(x.shape[0], -1, 128)
    scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-10) / 448
    return (groups / scale).clamp(-448, 448).float().reshape(x.shape), scale.squeeze(-1).float()


ALLOCATE = (
    "q = torch.empty_like(x)\n"
    "s = torch.empty(x.shape[0], x.shape[1] // 128, device=x.device, dtype=torch.float32)"
)

HOST: dict[str | None, tuple[str, str]] = {
    None: ("", ""),
    "clone_in": ("x = x.clone()", ""),
    "sync": ("", "torch.cuda.synchronize()"),
    "clone_out": ("", "q, s = q.clone(), s.clone()"),
    "nan_check": ("", "if bool(torch.isnan(q).any()):\n    raise RuntimeError('NaN')"),
    "item": ("if x.abs().max().item() == 0:\n    x = x + 0", ""),
    "final_clamp": ("", "q = torch.clamp(q, -448.0, 448.0)"),
    "double_sync": ("torch.cuda.synchronize()", "torch.cuda.synchronize()"),
}

MANNER = Manner(
    names={
        "x_ptr": ["inp", "X", "input_ptr"],
        "q_ptr": ["out", "Q", "output_ptr"],
        "s_ptr": ["scales", "S", "scale_ptr"],
        "amax": ["absmax", "mx", "group_max"],
        "scale": ["sc", "factor", "quant_scale"],
        "pid": ["group_id", "g", "idx"],
        "offs": ["offsets", "cols", "i"],
        "vals": ["v", "data", "block"],
        "GROUP": ["GROUP_SIZE", "G", "BLOCK"],
    },
    notes=(
        "Per-token-group FP8 quantisation.",
        "Quantise activations in groups of 128 (e4m3 range, maximum 448).",
        "Group quantisation.\n\nReturns the scaled values and one scale per group.\n",
        "Candidate: group-wise dynamic quantisation.",
    ),
)


ONE_GROUP = (
    TRITON_IMPORTS
    + """
@triton.jit
def quant_group(x_ptr, q_ptr, s_ptr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    offs = tl.arange(0, GROUP)
    vals = tl.load(x_ptr + pid * GROUP + offs)
    amax = tl.max(tl.abs(vals), axis=0)
    amax = tl.maximum(amax, 1e-10)
    scale = amax / 448.0
    @quantise@
    tl.store(q_ptr + pid * GROUP + offs, quantised)
    tl.store(s_ptr + pid, scale)


def run(x):
    @pre@
    q = torch.empty_like(x)
    s = torch.empty(x.shape[0], x.shape[1] // 128, device=x.device, dtype=torch.float32)
    n_groups = x.numel() // 128
    quant_group[(n_groups,)](x, q, s, GROUP=128, num_warps=@warps@)
    @post@
    return q, s
"""
)
QUANTISE = {
    "divide": "quantised = tl.minimum(tl.maximum(vals / scale, -448.0), 448.0)",
    "clamp": "quantised = tl.clamp(vals / scale, -448.0, 448.0)",
    "reciprocal": "inverse = 448.0 / amax\nquantised = tl.clamp(vals * inverse, -448.0, 448.0)",
    "where": "t = vals / scale\nt = tl.where(t > 448.0, 448.0, t)\nquantised = tl.where(t < -448.0, -448.0, t)",
    "float64": (
        "quantised = tl.minimum(tl.maximum(vals.to(tl.float64) / scale.to(tl.float64), "
        "-448.0), 448.0).to(tl.float32)"
    ),
}


def one_group(warps: int, math: str = "divide", host: str | None = None) -> Draft:
    """A program per group."""
    choices = {"algorithm": "one_group", "warps": warps, "math": math, "host": host}
    pre, post = HOST[host]
    code = fill(ONE_GROUP, warps=warps, quantise=QUANTISE[math], pre=pre, post=post)
    return Draft(choices, code, manner=MANNER)


GROUP_TILE = (
    TRITON_IMPORTS
    + """
@triton.jit
def quant_tile(x_ptr, q_ptr, s_ptr, n_groups, GROUPS: tl.constexpr):
    rows = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    live = rows < n_groups
    at = rows[:, None] * 128 + tl.arange(0, 128)[None, :]
    vals = tl.load(x_ptr + at, mask=live[:, None], other=0.0@load_hint@)
    amax = tl.max(tl.abs(vals), axis=1)
    scale = tl.maximum(amax, 1e-10) * (1.0 / 448.0)
    @quantise@
    tl.store(q_ptr + at, quantised, mask=live[:, None]@store_hint@)
    tl.store(s_ptr + rows, scale, mask=live)


def run(x):
    @pre@
    q = torch.empty_like(x)
    s = torch.empty(x.shape[0], x.shape[1] // 128, device=x.device, dtype=torch.float32)
    n_groups = s.numel()
    quant_tile[(triton.cdiv(n_groups, @groups@),)](x, q, s, n_groups, GROUPS=@groups@, num_warps=@warps@)
    @post@
    return q, s
"""
)


def group_tile(
    groups: int,
    warps: int,
    math: str = "divide",
    hints: bool = False,
    host: str | None = None,
) -> Draft:
    """Several groups per program, as a two-dimensional tile."""
    choices = {
        "algorithm": "group_tile",
        "groups": groups,
        "warps": warps,
        "math": math,
        "hints": "evict" if hints else "none",
        "host": host,
    }
    pre, post = HOST[host]
    quantise = {
        "divide": "quantised = vals / scale[:, None]\nquantised = tl.minimum(tl.maximum(quantised, -448.0), 448.0)",
        "reciprocal": "inv = 1.0 / scale\nquantised = tl.clamp(vals * inv[:, None], -448.0, 448.0)",
        "where": (
            "quantised = vals / scale[:, None]\n"
            "quantised = tl.where(quantised > 448.0, 448.0, tl.where(quantised < -448.0, -448.0, "
            "quantised))"
        ),
    }[math]
    code = fill(
        GROUP_TILE,
        groups=groups,
        warps=warps,
        quantise=quantise,
        pre=pre,
        post=post,
        load_hint=eviction("first", hints),
        store_hint=eviction("first", hints),
    )
    return Draft(choices, code, manner=MANNER)


ROW_LOOP = (
    TRITON_IMPORTS
    + '''
@triton.jit
def quant_row(x_ptr, q_ptr, s_ptr, hidden, WIDTH: tl.constexpr):
    """One program per token; the groups of the row come one after the other."""
    token = tl.program_id(0)
    per_row = hidden // 128
    for first in @loop@:
        gi = first + tl.arange(0, WIDTH)
        ok = gi < per_row
        pos = token * hidden + gi[:, None] * 128 + tl.arange(0, 128)[None, :]
        vals = tl.load(x_ptr + pos, mask=ok[:, None], other=0.0)
        scale = tl.maximum(tl.max(tl.abs(vals), axis=1), 1e-10) / 448.0
        tl.store(s_ptr + token * per_row + gi, scale, mask=ok)
        vals = vals / scale[:, None]
        tl.store(q_ptr + pos, tl.clamp(vals, -448.0, 448.0), mask=ok[:, None])


def run(x):
    tokens, hidden = x.shape
    @allocate@
    quant_row[(tokens,)](x, q, s, hidden, WIDTH=@width@, num_warps=@warps@)
    return q, s
'''
)

GRID2D = (
    TRITON_IMPORTS
    + """
@triton.jit
def quant_2d(x, q, s, stride, per_row, NG: tl.constexpr):
    t = tl.program_id(@axis_t@)
    b = tl.program_id(@axis_b@)
    g = b * NG + tl.arange(0, NG)
    m = g < per_row
    off = t * stride + g[:, None] * 128 + tl.arange(0, 128)[None, :]
    v = tl.load(x + off, mask=m[:, None], other=0.0)
    sc = tl.maximum(tl.max(tl.abs(v), axis=1), 1e-10) / 448.0
    tl.store(q + off, tl.minimum(tl.maximum(v / sc[:, None], -448.0), 448.0), mask=m[:, None])
    tl.store(s + t * per_row + g, sc, mask=m)


def run(x):
    tokens, hidden = x.shape
    per_row = hidden // 128
    q = torch.empty_like(x)
    s = x.new_empty(tokens, per_row)
    blocks = triton.cdiv(per_row, @ng@)
    quant_2d[@grid@](x, q, s, x.stride(0), per_row, NG=@ng@, num_warps=@warps@)
    return q, s
"""
)

PERSISTENT = (
    TRITON_IMPORTS
    + """
@triton.jit
def quant_stride(x_ptr, q_ptr, s_ptr, n_groups, GROUPS: tl.constexpr, STAGES: tl.constexpr):
    lane = tl.arange(0, 128)
    for tile in tl.range(tl.program_id(0), tl.cdiv(n_groups, GROUPS), tl.num_programs(0), num_stages=STAGES):
        g = tile * GROUPS + tl.arange(0, GROUPS)
        p = g[:, None] * 128 + lane[None, :]
        live = g < n_groups
        vals = tl.load(x_ptr + p, mask=live[:, None], other=0.0)
        scale = tl.maximum(tl.max(tl.abs(vals), axis=1), 1e-10) / 448.0
        inv = 1.0 / scale
        tl.store(q_ptr + p, tl.clamp(vals * inv[:, None], -448.0, 448.0), mask=live[:, None])
        tl.store(s_ptr + g, scale, mask=live)


def run(x):
    @allocate@
    n_groups = s.numel()
    @grid@
    quant_stride[(programs,)](x, q, s, n_groups, GROUPS=@groups@, STAGES=@stages@, num_warps=@warps@)
    return q, s
"""
)

TWO_KERNELS = (
    TRITON_IMPORTS
    + """
@triton.jit
def group_scales(x, s, n_groups, GROUPS: tl.constexpr):
    r = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    v = tl.load(x + r[:, None] * 128 + tl.arange(0, 128)[None, :], mask=(r < n_groups)[:, None], other=0.0)
    tl.store(s + r, tl.maximum(tl.max(tl.abs(v), axis=1), 1e-10) / 448.0, mask=r < n_groups)


@triton.jit
def apply_scales(x, s, q, n, BLOCK: tl.constexpr):
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + e, mask=e < n, other=0.0)
    sc = tl.load(s + e // 128, mask=e < n, other=1.0)
    tl.store(q + e, tl.clamp(v / sc, -448.0, 448.0), mask=e < n)


def run(x):
    n = x.numel()
    @allocate@
    @scales@
    @apply@
    return q, s
"""
)

SERIAL = (
    TRITON_IMPORTS
    + """
@triton.jit
def serial_groups(x, q, s, n_groups, LANES: tl.constexpr):
    # each lane owns a whole group and walks through its 128 numbers
    g = tl.program_id(0) * LANES + tl.arange(0, LANES)
    ok = g < n_groups
    top = tl.full([LANES], 1e-10, tl.float32)
    for k in range(128):
        top = tl.maximum(top, tl.abs(tl.load(x + g * 128 + k, mask=ok, other=0.0)))
    sc = top / 448.0
    tl.store(s + g, sc, mask=ok)
    for k in range(128):
        v = tl.load(x + g * 128 + k, mask=ok, other=0.0) / sc
        tl.store(q + g * 128 + k, tl.minimum(tl.maximum(v, -448.0), 448.0), mask=ok)


def run(x):
    @allocate@
    serial_groups[(triton.cdiv(s.numel(), @lanes@),)](x, q, s, s.numel(), LANES=@lanes@, num_warps=@warps@)
    return q, s
"""
)

AUTOTUNED = (
    TRITON_IMPORTS
    + """
@triton.autotune(
    configs=[triton.Config({"NG": g}, num_warps=w) for g, w in @configs@],
    key=["n_groups"],
)
@triton.jit
def tuned_quant(x_ptr, q_ptr, s_ptr, n_groups, NG: tl.constexpr):
    r = tl.program_id(0) * NG + tl.arange(0, NG)
    i = r[:, None] * 128 + tl.arange(0, 128)[None, :]
    v = tl.load(x_ptr + i, mask=r[:, None] < n_groups, other=0.0)
    sc = tl.maximum(tl.max(tl.abs(v), 1), 1e-10) / 448.0
    tl.store(q_ptr + i, tl.clamp(v / sc[:, None], -448.0, 448.0), mask=r[:, None] < n_groups)
    tl.store(s_ptr + r, sc, mask=r < n_groups)


def run(x):
    @allocate@
    n = s.numel()
    tuned_quant[lambda meta: (triton.cdiv(n, meta["NG"]),)](x, q, s, n)
    return q, s
"""
)


def row_loop(width: int, warps: int, loop: str = "plain") -> Draft:
    """A program per token."""
    choices = {"algorithm": "row_loop", "width": width, "warps": warps, "loop": loop}
    text = "range(0, per_row, WIDTH)" if loop == "plain" else "tl.range(0, per_row, WIDTH, num_stages=3)"
    return Draft(
        choices, fill(ROW_LOOP, width=width, warps=warps, loop=text, allocate=ALLOCATE), manner=MANNER
    )


def grid2d(groups: int, warps: int, order: str = "token_first") -> Draft:
    """A grid over tokens and blocks of groups."""
    choices = {"algorithm": "grid2d", "groups": groups, "warps": warps, "order": order}
    first = order == "token_first"
    code = fill(
        GRID2D,
        axis_t=0 if first else 1,
        axis_b=1 if first else 0,
        ng=groups,
        warps=warps,
        grid="(tokens, blocks)" if first else "(blocks, tokens)",
    )
    return Draft(choices, code, manner=MANNER)


def persistent(waves: str, groups: int, warps: int, stages: int) -> Draft:
    """A fixed number of programs that stride over the tiles."""
    choices = {
        "algorithm": "persistent",
        "waves": waves,
        "groups": groups,
        "warps": warps,
        "stages": stages,
    }
    if waves == "fixed_32":
        grid = "programs = 32"
    else:
        grid = f"programs = {waves} * torch.cuda.get_device_properties(x.device).multi_processor_count"
    code = fill(PERSISTENT, grid=grid, groups=groups, warps=warps, stages=stages, allocate=ALLOCATE)
    return Draft(choices, code, manner=MANNER)


def two_kernels(scales: str, groups: int, block: str, warps: int) -> Draft:
    """One launch for the scales, one to apply them; either may be left to PyTorch."""
    choices = {
        "algorithm": "two_kernels",
        "scales": scales,
        "groups": groups,
        "block": block,
        "warps": warps,
    }
    if scales == "torch":
        first = "s.copy_(x.view(x.shape[0], -1, 128).abs().amax(dim=-1).clamp(min=1e-10) / 448.0)"
    else:
        first = (
            f"group_scales[(triton.cdiv(s.numel(), {groups}),)](x, s, s.numel(), GROUPS={groups}, "
            f"num_warps={warps})"
        )
    if block == "torch":
        second = "q = (x.view(x.shape[0], -1, 128) / s.unsqueeze(-1)).clamp(-448.0, 448.0).view_as(x)"
    else:
        second = f"apply_scales[(triton.cdiv(n, {block}),)](x, s, q, n, BLOCK={block}, num_warps={warps})"
    return Draft(choices, fill(TWO_KERNELS, scales=first, apply=second, allocate=ALLOCATE), manner=MANNER)


def serial(lanes: int, warps: int) -> Draft:
    """A lane per group."""
    code = fill(SERIAL, lanes=lanes, warps=warps, allocate=ALLOCATE)
    return Draft({"algorithm": "serial", "lanes": lanes, "warps": warps}, code, manner=MANNER)


AUTOTUNE = {
    "usual": [(4, 4), (8, 4), (16, 4), (32, 8)],
    "small": [(1, 1), (2, 1), (4, 2)],
    "wide": [(16, 4), (32, 8), (64, 8)],
}


def autotuned(name: str) -> Draft:
    """The tile kernel with a list of configurations."""
    code = fill(AUTOTUNED, configs=AUTOTUNE[name], allocate=ALLOCATE)
    return Draft({"algorithm": "autotuned", "configs": name}, code, manner=MANNER)


FLAT_TILE = (
    TRITON_IMPORTS
    + """
@triton.jit
def quant_flat(x_ptr, q_ptr, s_ptr, n_groups, GROUPS: tl.constexpr):
    first = tl.program_id(0) * GROUPS
    # one contiguous load, then a view of it as groups
    offs = first * 128 + tl.arange(0, GROUPS * 128)
    vals = tl.load(x_ptr + offs, mask=offs < n_groups * 128, other=0.0)
    tile = tl.reshape(vals, (GROUPS, 128))
    @reduce@
    scale = tl.maximum(amax, 1e-10) / 448.0
    @quantise@
    tl.store(q_ptr + offs, tl.reshape(tile, (GROUPS * 128,)), mask=offs < n_groups * 128)
    rows = first + tl.arange(0, GROUPS)
    tl.store(s_ptr + rows, scale, mask=rows < n_groups)


def run(x):
    @allocate@
    n_groups = s.numel()
    quant_flat[(triton.cdiv(n_groups, @groups@),)](x, q, s, n_groups, GROUPS=@groups@, num_warps=@warps@)
    return q, s
"""
)
FLAT_REDUCE = {
    "max": "amax = tl.max(tl.abs(tile), axis=1)",
    "two_sided": "amax = tl.maximum(tl.max(tile, axis=1), -tl.min(tile, axis=1))",
    "bits": "# without its sign a float orders like an integer\n"
    "magnitude = tile.to(tl.int32, bitcast=True) & 0x7FFFFFFF\n"
    "amax = tl.max(magnitude, axis=1).to(tl.float32, bitcast=True)",
}
FLAT_QUANTISE = {
    "divide": "tile = tl.clamp(tile / scale[:, None], -448.0, 448.0)",
    "reciprocal": "inv = 448.0 / tl.maximum(amax, 1e-10)\ntile = tl.clamp(tile * inv[:, None], -448.0, 448.0)",
}


def flat_tile(groups: int, warps: int, reduce: str = "max", math: str = "divide") -> Draft:
    """Several groups per program, loaded as one stretch."""
    choices = {"algorithm": "flat_tile", "groups": groups, "warps": warps, "reduce": reduce, "math": math}
    code = fill(
        FLAT_TILE,
        groups=groups,
        warps=warps,
        reduce=FLAT_REDUCE[reduce],
        quantise=FLAT_QUANTISE[math],
        allocate=ALLOCATE,
    )
    return Draft(choices, code, manner=MANNER)


BLOCK_POINTER = (
    TRITON_IMPORTS
    + """
@triton.jit
def quant_bp(x, q, s, n_groups, NG: tl.constexpr):
    first = tl.program_id(0) * NG
    src = tl.make_block_ptr(x, (n_groups, 128), (128, 1), (first, 0), (NG, 128), (1, 0))
    dst = tl.make_block_ptr(q, (n_groups, 128), (128, 1), (first, 0), (NG, 128), (1, 0))
    out = tl.make_block_ptr(s, (n_groups,), (1,), (first,), (NG,), (0,))
    v = tl.load(src, boundary_check=(0,), padding_option="zero")
    sc = tl.maximum(tl.max(tl.abs(v), axis=1), 1e-10) / 448.0
    tl.store(dst, tl.minimum(tl.maximum(v / sc[:, None], -448.0), 448.0), boundary_check=(0,))
    tl.store(out, sc, boundary_check=(0,))


def run(x):
    @allocate@
    n_groups = s.numel()
    quant_bp[(triton.cdiv(n_groups, @groups@),)](x, q, s, n_groups, NG=@groups@, num_warps=@warps@)
    return q, s
"""
)


def block_pointer(groups: int, warps: int) -> Draft:
    """Block pointers over the groups."""
    choices = {"algorithm": "block_pointer", "groups": groups, "warps": warps}
    code = fill(BLOCK_POINTER, groups=groups, warps=warps, allocate=ALLOCATE)
    return Draft(choices, code, manner=MANNER)


# ------------------------------------------------------------------------------------------------- CUDA C++

INLINE = '''
import torch
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

@kernel@

std::vector<torch::Tensor> quantise(torch::Tensor x) {
  @contiguous@
  auto q = torch::empty_like(x);
  auto s = torch::empty({x.size(0), x.size(1) / 128}, x.options());
  const int64_t groups = s.numel();
  @launch@
  return {q, s};
}
"""

cpp_source = "std::vector<torch::Tensor> quantise(torch::Tensor x);"

extension = load_inline(
    name="@name@",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["quantise"],
    extra_cuda_cflags=["@option@"],
)


def run(x):
    @pre@
    q, s = extension.quantise(x)
    @post@
    return q, s
'''

NVRTC = '''
import torch

SOURCE = r"""
@kernel@
"""

_kernel = torch.cuda._compile_kernel(SOURCE, "@entry@")


def run(x):
    q = torch.empty_like(x)
    s = torch.empty(x.shape[0], x.shape[1] // 128, device=x.device, dtype=torch.float32)
    groups = s.numel()
    _kernel(grid=(@blocks@, 1, 1), block=(@threads@, 1, 1), args=[x, q, s, groups])
    return q, s
'''


def cuda_source(
    choices: Mapping[str, object],
    kernel: str,
    launch: str,
    *,
    option: str = "-O3",
    host: str | None = None,
    contiguous: bool = False,
) -> Draft:
    """Wraps a kernel in an extension built from the Python module."""
    pre, post = HOST[host]
    code = fill(
        INLINE,
        name=f"fp8_{KEY_HASH}",
        kernel=kernel,
        launch=launch,
        option=option,
        pre=pre,
        post=post,
        contiguous="x = x.contiguous();" if contiguous else "",
    )
    return Draft({**choices, "host": host}, code, "cuda")


WARP = """
__device__ __forceinline__ float warp_max(float m) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
  return m;
}

__device__ __forceinline__ float quant(float v, float inv) { return fminf(fmaxf(v @op@ inv, -448.f), 448.f); }

// one warp per group of 128
__global__ void quant_warp(const float* __restrict__ x, float* __restrict__ q, float* __restrict__ s, \
int64_t groups) {
  @first@
  int lane = threadIdx.x & 31;
  @loop@
}
"""
WARP_BODY = {
    "4": """const float4* src = reinterpret_cast<const float4*>(x + g * 128);
float4 v = @load@(src + lane);
float m = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
m = fmaxf(warp_max(m), 1e-10f);
float scale = m / 448.f;
float inv = @inverse@;
float4 r = make_float4(quant(v.x, inv), quant(v.y, inv), quant(v.z, inv), quant(v.w, inv));
@store@(reinterpret_cast<float4*>(q + g * 128) + lane, r);
if (lane == 0) s[g] = scale;""",
    "2": """const float2* src = reinterpret_cast<const float2*>(x + g * 128);
float2 a = @load@(src + lane);
float2 b = @load@(src + lane + 32);
float m = fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(b.x), fabsf(b.y)));
m = fmaxf(warp_max(m), 1e-10f);
float scale = m / 448.f;
float inv = @inverse@;
float2* dst = reinterpret_cast<float2*>(q + g * 128);
@store@(dst + lane, make_float2(quant(a.x, inv), quant(a.y, inv)));
@store@(dst + lane + 32, make_float2(quant(b.x, inv), quant(b.y, inv)));
if (lane == 0) s[g] = scale;""",
    "1": """const float* src = x + g * 128;
float v[4];
float m = 0.f;
#pragma unroll
for (int k = 0; k < 4; ++k) {
  v[k] = @load@(src + lane + 32 * k);
  m = fmaxf(m, fabsf(v[k]));
}
m = fmaxf(warp_max(m), 1e-10f);
float scale = m / 448.f;
float inv = @inverse@;
#pragma unroll
for (int k = 0; k < 4; ++k) @store@(q + g * 128 + lane + 32 * k, quant(v[k], inv));
if (lane == 0) s[g] = scale;""",
    "reload": """float m = 0.f;
for (int k = lane; k < 128; k += 32) m = fmaxf(m, fabsf(x[g * 128 + k]));
m = fmaxf(warp_max(m), 1e-10f);
float scale = m / 448.f;
float inv = @inverse@;
for (int k = lane; k < 128; k += 32) q[g * 128 + k] = quant(x[g * 128 + k], inv);
if (lane == 0) s[g] = scale;""",
}
WARP_MACROS = {
    "LOAD": "#define LOAD(p) (*(p))\n",
    "STORE": "#define STORE(p, v) (*(p) = (v))\n",
}


def warp(
    vector: str,
    threads: int,
    cache: str = "plain",
    math: str = "divide",
    grid: str = "exact",
    host: str | None = None,
    flags: str = "O3",
) -> Draft:
    """A warp per group."""
    choices = {
        "algorithm": "warp",
        "vector": vector,
        "threads": threads,
        "cache": cache,
        "math": math,
        "grid": grid,
        "flags": flags,
    }
    body = fill(
        WARP_BODY[vector],
        load="LOAD" if cache == "plain" else "__ldcs",
        store="STORE" if cache == "plain" else "__stcs",
        inverse="scale" if math == "divide" else "448.f / m",
    )
    index = "(int64_t(blockIdx.x) * blockDim.x + threadIdx.x) >> 5"
    if grid == "exact":
        first = f"int64_t g = {index};\nif (g >= groups) return;"
        loop = body
        blocks = "int blocks = int((groups * 32 + THREADS - 1) / THREADS);"
    else:
        first = f"int64_t warps = (int64_t(gridDim.x) * blockDim.x) >> 5;\nint64_t begin = {index};"
        loop = "for (int64_t g = begin; g < groups; g += warps) {\n  @body@\n}"
        blocks = f"int blocks = {grid};  // grid-stride loop"
    macros = "".join(text for name, text in WARP_MACROS.items() if f"{name}(" in body)
    kernel = fill(macros + WARP, op="/" if math == "divide" else "*", first=first, loop=loop, body=body)
    launch = (
        f"const int THREADS = {threads};\n{blocks}\nquant_warp<<<blocks, THREADS>>>(x.data_ptr<float>(), "
        "q.data_ptr<float>(), s.data_ptr<float>(), groups);"
    )
    return cuda_source(choices, kernel, launch, host=host, option=f"-{flags}")


LANES_KERNEL = """
// LANES threads share a group; each of them holds 32 / LANES float4 in registers
template <int LANES>
__global__ void quant_lanes(const float* x, float* q, float* s, int64_t groups) {
  constexpr int V = 32 / LANES;
  int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  int64_t g = t / LANES;
  int lane = t % LANES;
  if (g >= groups) return;
  const float4* src = reinterpret_cast<const float4*>(x + g * 128);
  float4 v[V];
  float m = 1e-10f;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    v[k] = src[@at@];
    m = fmaxf(m, fmaxf(fmaxf(fabsf(v[k].x), fabsf(v[k].y)), fmaxf(fabsf(v[k].z), fabsf(v[k].w))));
  }
#pragma unroll
  for (int o = LANES / 2; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
  const float scale = m / 448.f;
  const float inv = 1.f / scale;
  float4* dst = reinterpret_cast<float4*>(q + g * 128);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    v[k].x = fminf(fmaxf(v[k].x * inv, -448.f), 448.f);
    v[k].y = fminf(fmaxf(v[k].y * inv, -448.f), 448.f);
    v[k].z = fminf(fmaxf(v[k].z * inv, -448.f), 448.f);
    v[k].w = fminf(fmaxf(v[k].w * inv, -448.f), 448.f);
    dst[@at@] = v[k];
  }
  if (lane == 0) s[g] = scale;
}
"""


def lanes(count: int, threads: int, layout: str = "interleaved") -> Draft:
    """A part of a warp per group."""
    choices = {"algorithm": "lanes", "lanes": count, "threads": threads, "layout": layout}
    kernel = fill(LANES_KERNEL, at="lane + k * LANES" if layout == "interleaved" else "lane * V + k")
    launch = (
        f"constexpr int THREADS = {threads};\nconst int64_t total = groups * {count};\n"
        f"quant_lanes<{count}><<<(total + THREADS - 1) / THREADS, THREADS>>>(\n"
        "    x.data_ptr<float>(), q.data_ptr<float>(), s.data_ptr<float>(), groups);"
    )
    return cuda_source(choices, kernel, launch, contiguous=True)


BLOCK_GROUP = """
__global__ void quant_block(const float* x, float* q, float* s) {
  const int64_t g = blockIdx.x;
  const int tid = threadIdx.x;
  float v = x[g * 128 + tid];
  @reduce@
  float scale = fmaxf(m, 1e-10f) / 448.f;
  q[g * 128 + tid] = fminf(fmaxf(v / scale, -448.f), 448.f);
  if (tid == 0) s[g] = scale;
}
"""
BLOCK_REDUCE = {
    "tree": """__shared__ float buf[128];
buf[tid] = fabsf(v);
__syncthreads();
for (int half = 64; half > 0; half >>= 1) {
  if (tid < half) buf[tid] = fmaxf(buf[tid], buf[tid + half]);
  __syncthreads();
}
float m = buf[0];""",
    "shuffle": """__shared__ float part[32];
float m = fabsf(v);
for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
if ((tid & 31) == 0) part[tid >> 5] = m;
__syncthreads();  // partial maxima are there
m = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));""",
    "atomic": """__shared__ int top;
if (tid == 0) top = 0;
__syncthreads();
atomicMax(&top, __float_as_int(fabsf(v)));  // non-negative floats order like their bits
__syncthreads();
float m = __int_as_float(top);""",
    "one_thread": """__shared__ float buf[128];
buf[tid] = v;
__syncthreads();
__shared__ float best;
if (tid == 0) {
  best = 0.f;
  for (int k = 0; k < 128; ++k) best = fmaxf(best, fabsf(buf[k]));
}
__syncthreads();
float m = best;""",
}


def block_group(reduce: str, host: str | None = None) -> Draft:
    """A block of 128 threads per group."""
    kernel = fill(BLOCK_GROUP, reduce=BLOCK_REDUCE[reduce])
    launch = "quant_block<<<groups, 128>>>(x.data_ptr<float>(), q.data_ptr<float>(), s.data_ptr<float>());"
    choices = {"algorithm": "block_group", "reduce": reduce}
    return cuda_source(choices, kernel, launch, host=host)


THREAD_GROUP = """
__global__ void quant_serial(const float* x, float* q, float* s, int64_t groups) {
  int64_t g = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (g >= groups) return;
  const float* mine = x + g * 128;
  float m = 0.f;
  @first@
  float scale = fmaxf(m, 1e-10f) / 448.f;
  s[g] = scale;
  @second@
}
"""
THREAD_LOOPS = {
    "scalar": (
        "for (int r = 0; r < 128; ++r) {\n  m = fmaxf(m, fabsf(mine[r]));\n}",
        "for (int r = 0; r < 128; ++r) {\n  q[g * 128 + r] = fminf(fmaxf(mine[r] / scale, -448.f), 448.f);\n}",
    ),
    "double": (
        "double best = 0.0;\nfor (int r = 0; r < 128; ++r) {\n"
        "  best = fmax(best, fabs((double)mine[r]));\n}\nm = (float)best;",
        "for (int r = 0; r < 128; ++r) {\n  double t = (double)mine[r] / (double)scale;\n"
        "  q[g * 128 + r] = (float)fmin(fmax(t, -448.0), 448.0);\n}",
    ),
}


def thread_group(loops: str, threads: int) -> Draft:
    """A thread per group."""
    first, second = THREAD_LOOPS[loops]
    launch = (
        f"const int THREADS = {threads};\nquant_serial<<<(groups + THREADS - 1) / THREADS, THREADS>>>(\n"
        "    x.data_ptr<float>(), q.data_ptr<float>(), s.data_ptr<float>(), groups);"
    )
    choices = {"algorithm": "thread_group", "loops": loops, "threads": threads}
    return cuda_source(choices, fill(THREAD_GROUP, first=first, second=second), launch)


BLOCK_ROW = """
// a block takes a whole token; its warps take turns with the groups of the row
__global__ void quant_token(const float* __restrict__ x, float* __restrict__ q, float* __restrict__ s, int hidden) {
  extern __shared__ float staged[];
  const int per_row = hidden / 128;
  const float* row = x + int64_t(blockIdx.x) * hidden;
  float* out = q + int64_t(blockIdx.x) * hidden;
  @stage@
  const int lane = threadIdx.x % 32;
  for (int g = threadIdx.x / 32; g < per_row; g += blockDim.x / 32) {
    const float4 v = reinterpret_cast<const float4*>(@source@ + g * 128)[lane];
    float m = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_down_sync(0xffffffffu, m, o));
    m = __shfl_sync(0xffffffffu, m, 0);
    const float scale = fmaxf(m, 1e-10f) / 448.f;
    float4 r;
    r.x = fmaxf(-448.f, fminf(448.f, v.x / scale));
    r.y = fmaxf(-448.f, fminf(448.f, v.y / scale));
    r.z = fmaxf(-448.f, fminf(448.f, v.z / scale));
    r.w = fmaxf(-448.f, fminf(448.f, v.w / scale));
    reinterpret_cast<float4*>(out + g * 128)[lane] = r;
    if (lane == 0) s[int64_t(blockIdx.x) * per_row + g] = scale;
  }
}
"""


def block_row(threads: int, staged: bool) -> Draft:
    """A block per token, with or without a copy of the row in shared memory."""
    stage = "for (int i = threadIdx.x; i < hidden; i += blockDim.x) staged[i] = row[i];\n__syncthreads();"
    shared = "hidden * sizeof(float)" if staged else "0"
    launch = (
        "const int hidden = x.size(1);\n"
        f"quant_token<<<x.size(0), {threads}, {shared}>>>(\n"
        "    x.data_ptr<float>(), q.data_ptr<float>(), s.data_ptr<float>(), hidden);"
    )
    choices = {"algorithm": "block_row", "threads": threads, "staged": staged}
    kernel = fill(BLOCK_ROW, stage=stage if staged else "", source="staged" if staged else "row")
    return cuda_source(choices, kernel, launch)


CUDA_TWO = """
__global__ void group_max(const float* x, float* s, int64_t groups) {
  int64_t g = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;
  int lane = threadIdx.x % 32;
  if (g >= groups) return;
  float m = 0.f;
  for (int k = lane; k < 128; k += 32) m = fmaxf(m, fabsf(x[g * 128 + k]));
  for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
  if (lane == 0) s[g] = fmaxf(m, 1e-10f) / 448.f;
}

__global__ void scale_all(const float* x, const float* s, float* q, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) q[i] = fminf(fmaxf(x[i] / s[i / 128], -448.f), 448.f);
}
"""


def cuda_two(threads: int, host: str | None = None) -> Draft:
    """Two launches in CUDA C++."""
    launch = (
        f"const int T = {threads};\nconst int64_t n = x.numel();\n"
        "group_max<<<(groups * 32 + T - 1) / T, T>>>(x.data_ptr<float>(), s.data_ptr<float>(), groups);\n"
        "scale_all<<<(n / 1 + T - 1) / T, T>>>(x.data_ptr<float>(), s.data_ptr<float>(), q.data_ptr<float>(), n);"
    )
    choices = {"algorithm": "cuda_two", "apply": "scalar", "threads": threads}
    return cuda_source(choices, fill(CUDA_TWO), launch, host=host)


NVRTC_KERNELS = {
    "warp4": """extern "C" __global__ void quant(const float* x, float* q, float* s, int groups) {
  int g = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  int lane = threadIdx.x % 32;
  if (g >= groups) return;
  float4 v = ((const float4*)(x + (long long)g * 128))[lane];
  float m = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  for (int o = 16; o > 0; o /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, o));
  float scale = fmaxf(m, 1e-10f) / 448.f;
  v.x = fminf(fmaxf(v.x / scale, -448.f), 448.f);
  v.y = fminf(fmaxf(v.y / scale, -448.f), 448.f);
  v.z = fminf(fmaxf(v.z / scale, -448.f), 448.f);
  v.w = fminf(fmaxf(v.w / scale, -448.f), 448.f);
  ((float4*)(q + (long long)g * 128))[lane] = v;
  if (lane == 0) s[g] = scale;
}""",
    "pairs": """extern "C" __global__ void quant(const float* x, float* q, float* s, int groups) {
  // a warp takes two groups at once, so that two loads are in flight
  int w = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  int lane = threadIdx.x % 32;
  int g = 2 * w;
  if (g + 1 >= groups) return;
  const float4* p = (const float4*)x + (long long)g * 32 + lane;
  float4 a = p[0], b = p[32];
  float ma = fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(a.z), fabsf(a.w)));
  float mb = fmaxf(fmaxf(fabsf(b.x), fabsf(b.y)), fmaxf(fabsf(b.z), fabsf(b.w)));
  #pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    ma = fmaxf(ma, __shfl_xor_sync(0xffffffffu, ma, o));
    mb = fmaxf(mb, __shfl_xor_sync(0xffffffffu, mb, o));
  }
  float sa = fmaxf(ma, 1e-10f) / 448.f, sb = fmaxf(mb, 1e-10f) / 448.f;
  float ia = 1.f / sa, ib = 1.f / sb;
  float4* d = (float4*)q + (long long)g * 32 + lane;
  d[0] = make_float4(fminf(fmaxf(a.x * ia, -448.f), 448.f), fminf(fmaxf(a.y * ia, -448.f), 448.f),
                     fminf(fmaxf(a.z * ia, -448.f), 448.f), fminf(fmaxf(a.w * ia, -448.f), 448.f));
  d[32] = make_float4(fminf(fmaxf(b.x * ib, -448.f), 448.f), fminf(fmaxf(b.y * ib, -448.f), 448.f),
                      fminf(fmaxf(b.z * ib, -448.f), 448.f), fminf(fmaxf(b.w * ib, -448.f), 448.f));
  if (lane < 2) s[g + lane] = lane ? sb : sa;
}""",
    "shared": """extern "C" __global__ void quant(const float* x, float* q, float* s, int groups) {
  __shared__ float cache[1024];
  int base = threadIdx.x / 128 * 128;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  float v = i < (long long)groups * 128 ? x[i] : 0.f;
  cache[threadIdx.x] = fabsf(v);
  __syncthreads();
  for (int half = 64; half > 0; half /= 2) {
    if (threadIdx.x - base < half) cache[threadIdx.x] = fmaxf(cache[threadIdx.x], cache[threadIdx.x + half]);
    __syncthreads();
  }
  float scale = fmaxf(cache[base], 1e-10f) / 448.f;
  if (i < (long long)groups * 128) {
    q[i] = fminf(fmaxf(v / scale, -448.f), 448.f);
    if (threadIdx.x == base) s[i / 128] = scale;
  }
}""",
}
NVRTC_BLOCKS = {
    "warp4": "(groups * 32 + {t} - 1) // {t}",
    "pairs": "(groups * 16 + {t} - 1) // {t}",
    "shared": "(groups * 128 + {t} - 1) // {t}",
}


def nvrtc(kernel: str, threads: int) -> Draft:
    """A kernel built at run time, without an extension."""
    code = fill(
        NVRTC,
        kernel=NVRTC_KERNELS[kernel],
        entry="quant",
        threads=threads,
        blocks=NVRTC_BLOCKS[kernel].format(t=threads),
    )
    return Draft({"algorithm": "nvrtc", "kernel": kernel, "threads": threads}, code, "cuda")


# -------------------------------------------------------------------------------------------------- PyTorch

TORCH: dict[str, str] = {
    "chain": """import torch


def run(x):
    groups = x.view(x.shape[0], -1, 128)
    amax = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10)
    scale = amax / 448.0
    q = torch.clamp(groups / scale, -448.0, 448.0)
    return q.view(x.shape), scale.squeeze(-1)
""",
    "reshape_flat": """import torch

FP8_MAX = 448.0
GROUP = 128


def run(x):
    tokens, hidden = x.shape
    flat = x.reshape(-1, GROUP).contiguous()
    s = flat.abs().max(dim=-1, keepdim=True).values.clamp(min=1e-10) / FP8_MAX
    q = (flat / s).clamp(-FP8_MAX, FP8_MAX)
    return q.reshape(tokens, hidden), s.reshape(tokens, hidden // GROUP)
""",
    "reciprocal": """import torch


def run(x):
    g = x.view(x.size(0), x.size(1) // 128, 128)
    m = g.abs().amax(-1).clamp_(min=1e-10)
    s = m / 448.0
    q = g * (448.0 / m).unsqueeze(-1)
    q.clamp_(-448.0, 448.0)
    return q.view_as(x), s
""",
    "in_place": """import torch


def run(x):
    q = x.clone().view(x.shape[0], -1, 128)
    s = q.abs().amax(-1, keepdim=True).clamp_min_(1e-10).div_(448.0)
    q.div_(s).clamp_(-448.0, 448.0)
    return q.view(x.shape), s.squeeze(-1)
""",
    "aminmax": """import torch


def run(x):
    g = x.view(x.shape[0], -1, 128)
    lo, hi = torch.aminmax(g, dim=-1)
    s = torch.maximum(hi, -lo).clamp(min=1e-10) / 448.0
    return (g / s[..., None]).clamp(-448.0, 448.0).reshape(x.shape), s
""",
    "vector_norm": """import torch


def run(x):
    g = x.view(x.shape[0], -1, 128)
    s = torch.linalg.vector_norm(g, ord=float("inf"), dim=-1).clamp(min=1e-10) / 448.0
    return torch.clamp(g / s.unsqueeze(-1), -448.0, 448.0).view(x.shape), s
""",
    "double": """import torch


def run(x):
    d = x.double().view(x.shape[0], -1, 128)
    s = d.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / 448.0
    q = torch.clamp(d / s, -448.0, 448.0).float()
    return q.view(x.shape), s.squeeze(-1).float()
""",
    "expand": """import torch


def run(x):
    groups = x.reshape(x.shape[0], -1, 128)
    absolute = torch.abs(groups)
    amax = torch.max(absolute, dim=-1)[0]
    amax = torch.where(amax > 1e-10, amax, torch.full_like(amax, 1e-10))
    scale = (amax / 448.0).contiguous()
    wide = scale.unsqueeze(-1).expand(-1, -1, 128).contiguous().reshape(x.shape)
    q = torch.div(x, wide)
    q = torch.min(torch.max(q, torch.full_like(q, -448.0)), torch.full_like(q, 448.0))
    return q, scale
""",
    "repeat_interleave": """import torch


def run(x):
    s = x.view(x.shape[0], -1, 128).abs().amax(-1).clamp(min=1e-10) / 448.0
    full = s.repeat_interleave(128, dim=1)
    return (x / full).clamp(-448.0, 448.0), s
""",
    "max_pool": """import torch
import torch.nn.functional as F


def run(x):
    # maximum over windows of 128 is max pooling
    m = F.max_pool1d(x.abs().unsqueeze(1), kernel_size=128, stride=128).squeeze(1)
    s = m.clamp(min=1e-10) / 448.0
    q = x.view(x.shape[0], -1, 128) / s.unsqueeze(-1)
    return F.hardtanh(q, -448.0, 448.0).view_as(x), s
""",
    "unfold": """import torch


def run(x):
    w = x.unfold(1, 128, 128)
    s = w.abs().amax(-1).clamp(min=1e-10) / 448.0
    return torch.clamp(w / s[:, :, None], -448.0, 448.0).reshape(x.shape), s
""",
    "transposed": """import torch


def run(x):
    t = x.view(-1, 128).t().contiguous()
    s = t.abs().amax(0).clamp(min=1e-10) / 448.0
    q = (t / s).clamp(-448.0, 448.0).t().contiguous()
    return q.view(x.shape), s.view(x.shape[0], -1)
""",
    "jit_script": """import torch


@torch.jit.script
def quantise(x: torch.Tensor):
    g = x.view(x.size(0), -1, 128)
    s = g.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / 448.0
    return torch.clamp(g / s, -448.0, 448.0).view(x.size(0), x.size(1)), s.squeeze(-1)


def run(x):
    q, s = quantise(x)
    return q, s
""",
    "split_loop": """import torch


def run(x):
    parts, scales = [], []
    for piece in torch.split(x, 128, dim=1):
        s = piece.abs().amax(dim=1, keepdim=True).clamp(min=1e-10) / 448.0
        parts.append((piece / s).clamp(-448.0, 448.0))
        scales.append(s)
    return torch.cat(parts, dim=1), torch.cat(scales, dim=1)
""",
    "column_loop": """import torch


def run(x):
    q = torch.empty_like(x)
    s = torch.empty(x.shape[0], x.shape[1] // 128, device=x.device)
    for g in range(s.shape[1]):
        block = x[:, g * 128 : (g + 1) * 128]
        s[:, g] = block.abs().max(dim=1).values.clamp(min=1e-10) / 448.0
        q[:, g * 128 : (g + 1) * 128] = torch.clamp(block / s[:, g : g + 1], -448.0, 448.0)
    return q, s
""",
    "row_chunks": """import torch


def run(x):
    q = torch.empty_like(x)
    s = torch.empty(x.shape[0], x.shape[1] // 128, device=x.device)
    for lo in range(0, x.shape[0], 64):
        g = x[lo : lo + 64].view(-1, x.shape[1] // 128, 128)
        sc = g.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / 448.0
        q[lo : lo + 64] = torch.clamp(g / sc, -448.0, 448.0).view(-1, x.shape[1])
        s[lo : lo + 64] = sc.squeeze(-1)
    return q, s
""",
    "row_chunks_512": """import torch


def quantise_rows(rows):
    g = rows.view(rows.shape[0], -1, 128)
    sc = g.abs().amax(-1, True).clamp_min(1e-10).div(448.0)
    return g.div(sc).clamp_(-448.0, 448.0).view_as(rows), sc[..., 0]


def run(x):
    done = [quantise_rows(rows) for rows in x.split(512)]
    return torch.cat([a for a, _ in done]), torch.cat([b for _, b in done])
""",
    "checks": """import torch


def run(x):
    assert torch.isfinite(x).all(), "bad input"
    g = x.contiguous().view(x.shape[0], -1, 128)
    amax = g.abs().amax(dim=-1, keepdim=True)
    if (amax < 1e-10).any().item():
        amax = amax.clamp(min=1e-10)
    s = amax / 448.0
    q = torch.clamp(g / s, min=-448.0, max=448.0)
    torch.cuda.synchronize()
    return q.view(x.shape), s.squeeze(-1)
""",
    "vmap": """import torch


def one(group):
    s = group.abs().max().clamp(min=1e-10) / 448.0
    return torch.clamp(group / s, -448.0, 448.0), s


def run(x):
    q, s = torch.vmap(one)(x.view(-1, 128))
    return q.view(x.shape), s.view(x.shape[0], -1)
""",
    "sort": """import torch


def run(x):
    g = x.view(x.shape[0], -1, 128)
    top = torch.sort(g.abs(), dim=-1).values[..., -1:]
    s = top.clamp(min=1e-10) / 448.0
    return torch.clamp(g / s, -448.0, 448.0).view(x.shape), s.squeeze(-1)
""",
    "topk": """import torch


def run(x):
    g = x.view(x.shape[0], -1, 128)
    top = g.abs().topk(1, dim=-1).values
    s = top.clamp(min=1e-10) / 448.0
    return torch.clamp(g / s, -448.0, 448.0).view(x.shape), s.squeeze(-1)
""",
    "host_scales": """import torch


def run(x):
    g = x.view(x.shape[0], -1, 128)
    amax = g.abs().amax(dim=-1).cpu()
    s = (amax.clamp(min=1e-10) / 448.0).to(x.device)
    return torch.clamp(g / s.unsqueeze(-1), -448.0, 448.0).view(x.shape), s
""",
    "scatter_reduce": """import torch


def run(x):
    # group index per column, then a scattered maximum
    index = (torch.arange(x.shape[1], device=x.device) // 128).expand_as(x)
    m = torch.zeros(x.shape[0], x.shape[1] // 128, device=x.device)
    m.scatter_reduce_(1, index, x.abs(), reduce="amax")
    s = m.clamp(min=1e-10) / 448.0
    return (x / s.gather(1, index)).clamp(-448.0, 448.0), s
""",
    "out_buffers": """import torch

_cache = {}


def run(x):
    key = x.shape
    if key not in _cache:
        _cache[key] = torch.empty(x.shape[0], x.shape[1] // 128, 128, device=x.device)
    work = _cache[key]
    g = x.view(work.shape)
    torch.abs(g, out=work)
    s = work.amax(-1).clamp_(min=1e-10).div_(448.0)
    return torch.div(g, s.unsqueeze(-1)).clamp_(-448.0, 448.0).view(x.shape), s
""",
}


def torch_source(name: str) -> Draft:
    """Plain PyTorch."""
    return Draft({"algorithm": "torch", "form": name}, TORCH[name], "pytorch")


WRAPS = {
    "checked": """

def run(x):
    q, s = launch(x)
    # self-test against PyTorch; fall back to it if the kernel deviates
    groups = x.view(x.shape[0], -1, 128)
    want = groups.abs().amax(dim=-1).clamp(min=1e-10) / 448.0
    ref = (groups / want.unsqueeze(-1)).clamp(-448.0, 448.0).view(x.shape)
    if not torch.allclose(q, ref, rtol=1e-3, atol=1e-2):
        return ref, want
    return q, s
""",
    "sliced": """

def run(x):
    qs, ss = [], []
    for part in x.split(64):
        q, s = launch(part)
        qs.append(q)
        ss.append(s)
    return torch.cat(qs), torch.cat(ss)
""",
    "copies": """

def run(x):
    work = x.detach().clone().contiguous()
    q, s = launch(work)
    q = torch.where(torch.isnan(q), torch.zeros_like(q), q)
    return q.clone(), s.clone()
""",
    "verbose": """

def run(x):
    torch.cuda.synchronize()
    q, s = launch(x)
    torch.cuda.synchronize()
    lowest, highest = q.min().item(), q.max().item()
    if highest > 448.5 or lowest < -448.5:
        raise ValueError(f"out of range: {lowest} {highest}")
    return q, s
""",
}


# ------------------------------------------------------------------------------------------------- the pool

# A first version as one writes it: one kernel finds the scales, another divides, a group per program each.
SEED = two_kernels("triton", 1, "128", 4)


def add_triton(pool: Pool) -> None:
    """Adds the sound Triton sources."""
    pool.add(one_group(w, m) for w, m in product((1, 2, 4, 8), ("divide", "clamp", "reciprocal")))
    pool.add(one_group(w, "where") for w in (1, 4))
    pool.add(one_group(w, "float64") for w in (1, 4))
    pool.add(one_group(4, "divide", host=h) for h in ("clone_in", "sync", "nan_check", "final_clamp", "item"))
    pool.add(
        group_tile(g, w)
        for g, w in ((2, 1), (2, 4), (2, 8), (8, 4), (8, 8), (16, 4), (32, 4), (64, 8), (128, 8))
    )
    pool.add(
        [
            group_tile(8, 4, "reciprocal"),
            group_tile(16, 4, hints=True),
            group_tile(8, 4, "where"),
            group_tile(8, 4, host="sync"),
            group_tile(8, 4, host="double_sync"),
        ]
    )
    pool.add(group_tile(8, 4, host=h) for h in ("clone_out", "nan_check"))
    pool.add(row_loop(w, n) for w, n in product((1, 4, 16), (4, 8)))
    pool.add(
        [
            row_loop(64, 8),
            row_loop(64, 16),
            row_loop(4, 4, "staged"),
            row_loop(16, 8, "staged"),
            row_loop(1, 4, "staged"),
            row_loop(1, 1),
            row_loop(4, 1),
        ]
    )
    pool.add(grid2d(g, w) for g, w in ((1, 1), (1, 4), (4, 1), (4, 4), (8, 4)))
    pool.add(grid2d(g, 4, "block_first") for g in (1, 4))
    pool.add(persistent(v, g, 4, s) for v, g, s in (("2", 8, 1), ("8", 8, 1), ("2", 32, 1), ("2", 32, 3)))
    pool.add([persistent("fixed_32", 8, 4, 1), persistent("fixed_32", 1, 4, 1), persistent("1", 1, 4, 1)])
    pool.add(two_kernels("triton", g, b, w) for g, b, w in product((4, 16), ("256", "1024"), (4, 8)))
    pool.add(two_kernels("triton", 1, b, 4) for b in ("128", "256"))
    pool.add(two_kernels("torch", 4, b, 4) for b in ("256", "1024"))
    pool.add(
        [
            two_kernels("triton", 4, "torch", 4),
            two_kernels("triton", 16, "torch", 4),
            serial(32, 1),
            serial(128, 4),
            serial(256, 4),
        ]
    )
    pool.add(autotuned(name) for name in AUTOTUNE)


def add_cuda(pool: Pool) -> None:
    """Adds the sound CUDA C++ sources."""
    pool.add(warp(v, t) for v, t in (("1", 128), ("1", 256), ("1", 1024), ("2", 256), ("4", 128), ("4", 256)))
    pool.add(
        [
            warp("reload", 256),
            warp("4", 32),
            warp("1", 32),
            warp("4", 256, "streaming"),
            warp("4", 256, "plain", "reciprocal"),
        ]
    )
    pool.add(warp("4", 256, grid=g) for g in ("132", "2112"))
    pool.add(warp("1", 256, grid=g) for g in ("132", "16"))
    pool.add([warp("1", 256, flags="O0")])
    pool.add(warp("4", 256, host=h) for h in ("sync", "clone_in", "nan_check"))
    pool.add(lanes(n, 256) for n in (2, 4, 8, 16))
    pool.add([lanes(8, 256, "blocked")])
    pool.add(block_group(r) for r in BLOCK_REDUCE)
    pool.add([block_group("tree", host="clone_out")])
    pool.add(thread_group("scalar", t) for t in (64, 256))
    pool.add([thread_group("double", 128)])
    pool.add(block_row(t, s) for t, s in ((256, False), (512, True)))
    pool.add(cuda_two(t) for t in (64, 256, 1024))
    pool.add([cuda_two(256, host="nan_check")])
    pool.add(
        nvrtc(k, t)
        for k, t in (
            ("warp4", 256),
            ("pairs", 256),
            ("pairs", 512),
            ("shared", 128),
            ("shared", 256),
            ("shared", 512),
        )
    )


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(name) for name in TORCH)


def add_wrapped(pool: Pool) -> None:
    """Adds sound kernels inside careless wrappers."""
    parents = [
        one_group(4),
        one_group(1),
        group_tile(8, 4),
        row_loop(4, 4),
        persistent("8", 8, 4, 1),
        grid2d(4, 4),
        two_kernels("triton", 4, "256", 4),
        nvrtc("warp4", 256),
        nvrtc("shared", 256),
        torch_source("chain"),
    ]
    pool.add_wrapped(parents, WRAPS)


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    pool.add_broken(
        two_kernels("triton", 4, "256", 4),
        no_such_function={"tl.abs(": "tl.fabs("},
        cpu_output={"torch.empty_like(x)": 'torch.empty(x.shape, device="cpu")'},
        no_import={"import triton.language as tl\n": ""},
        one_output={"return q, s": "return q"},
    )
    pool.add_broken(
        one_group(4),
        no_eps={"tl.maximum(amax, 1e-10)": "amax"},
        no_abs={"tl.max(tl.abs(vals)": "tl.max((vals)"},
        undefined_name={"amax / 448.0": "absmax_value / 448.0"},
        runtime_block={"GROUP: tl.constexpr": "GROUP"},
        multiplied={"vals / scale": "vals * scale"},
        scale_inverted={"tl.store(s_ptr + pid, scale)": "tl.store(s_ptr + pid, 1.0 / scale)"},
        group_64={"GROUP=128": "GROUP=64"},
        wild_pointer={"x_ptr + pid * GROUP": "x_ptr + pid.to(tl.int64) * GROUP * 1000003"},
        half_grid={"(n_groups,)": "(n_groups // 2,)"},
        real_fp8={"vals / scale": "(vals / scale).to(tl.float8e4nv).to(tl.float32)"},
    )
    pool.add_broken(one_group(8), too_many_warps={"num_warps=8": "num_warps=64"})
    pool.add_broken(
        one_group(1), half_precision={"vals / scale": "(vals / scale).to(tl.float16).to(tl.float32)"}
    )
    pool.add_broken(one_group(2), syntax={"pid = tl.program_id(0)": "pid = tl.program_id(0):"})
    pool.add_broken(
        group_tile(8, 4),
        wrong_axis={"axis=1": "axis=0"},
        int8_range={"448.0": "127.0"},
        swapped={"return q, s": "return s, q"},
    )
    pool.add_broken(group_tile(32, 4), block_not_power_of_two={"GROUPS=32": "GROUPS=24"})
    pool.add_broken(row_loop(4, 4), wrong_shape={"return q, s": "return q, s.reshape(-1)"})


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    pool.add_broken(
        warp("1", 256),
        short_shuffle={"o = 16;": "o = 8;"},
        off_by_one_lane={"lane + 32 * k": "lane + 31 * k"},
        undefined_name={"/ 448.f": "/ FP8_MAX"},
        no_eps={"fmaxf(warp_max(m), 1e-10f)": "warp_max(m)"},
    )
    pool.add_broken(
        warp("4", 256),
        syntax={"int lane = ": "int lane == "},
        wild_pointer={"x + g * 128": "x + g * 128000003L"},
        missing_semicolon={"float scale = ": "float scale  =  1.0f\n  scale = "},
    )
    pool.add_broken(warp("4", 128), too_many_warps={"THREADS = 128": "THREADS = 4096"})
    pool.add_broken(
        lanes(8, 256),
        short_shuffle={"o = LANES / 2;": "o = LANES / 4;"},
        no_such_function={"__shfl_xor_sync(": "__shfl_xor_all("},
    )
    pool.add_broken(
        block_group("shuffle"),
        missing_sync={"  __syncthreads();  // partial maxima are there\n": ""},
        shared_too_large={"__shared__ float part[32];": "__shared__ float part[65536];"},
        no_abs={"fabsf(": "("},
    )
    pool.add_broken(
        thread_group("scalar", 64),
        long_loop={"for (int r = 0; r < 128; ++r) {": "for (long long r = 0; r < 400000000LL; ++r) {"},
    )


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(
        torch_source("chain"),
        global_scale={".amax(dim=-1, keepdim=True)": ".max()"},
        no_keepdim={", keepdim=True": ""},
    )
    pool.add_broken(torch_source("reciprocal"), half_precision={"x.view(": "x.bfloat16().view("})
    pool.add_broken(torch_source("reshape_flat"), e5m2_range={"448": "57344"})
    pool.add_broken(torch_source("max_pool"), no_import={"import torch.nn.functional as F\n": ""})
    pool.add_broken(torch_source("chain"), scale_in_place={"groups / scale": "groups.div_(scale)"})


def link_families(pool: Pool) -> None:
    """Names the changes of algorithm that count as one edit."""
    two = two_kernels("triton", 4, "256", 4)
    pool.link(two, torch_source("chain"))
    pool.link(two_kernels("triton", 1, "256", 4), one_group(4))
    pool.link(two, cuda_two(256))
    pool.link(two_kernels("triton", 4, "torch", 4), torch_source("reciprocal"))
    pool.link(one_group(4), group_tile(2, 4))
    pool.link(torch_source("reshape_flat"), two_kernels("torch", 4, "256", 4))
    pool.link(torch_source("reshape_flat"), torch_source("in_place"))
    pool.link(torch_source("reshape_flat"), torch_source("expand"))
    pool.link(torch_source("reshape_flat"), serial(32, 1))
    pool.link(torch_source("reshape_flat"), thread_group("scalar", 256))
    pool.link(torch_source("reshape_flat"), torch_source("row_chunks"))
    pool.link(torch_source("reshape_flat"), torch_source("reciprocal"))
    pool.link(one_group(4), grid2d(1, 4))
    pool.link(one_group(4), row_loop(1, 4))
    pool.link(one_group(4), block_group("tree"))
    pool.link(one_group(1), grid2d(1, 1))
    pool.link(one_group(1), warp("1", 32))
    pool.link(group_tile(8, 4), persistent("8", 8, 4, 1))
    pool.link(group_tile(8, 4), grid2d(8, 4))
    pool.link(group_tile(8, 4), autotuned("usual"))
    pool.link(cuda_two(256), warp("reload", 256))
    pool.link(warp("1", 256), warp("reload", 256))
    pool.link(warp("4", 256), lanes(16, 256))
    pool.link(warp("4", 256), nvrtc("warp4", 256))
    pool.link(warp("4", 256), block_row(256, False))
    pool.link(block_group("shuffle"), warp("1", 128))
    pool.link(block_group("tree"), nvrtc("shared", 128))
    pool.link(thread_group("scalar", 64), serial(32, 1))
    pool.link(thread_group("scalar", 256), torch_source("chain"))
    pool.link(thread_group("scalar", 64), lanes(2, 256))
    pool.link(row_loop(4, 4), block_row(256, False))
    pool.link(serial(32, 1), one_group(1))
    pool.link(torch_source("chain"), torch_source("reshape_flat"))
    pool.link(torch_source("chain"), torch_source("jit_script"))


def add_more_triton(pool: Pool) -> None:
    """Adds more sizes of the Triton families, and two families more."""
    pool.add(
        group_tile(g, w)
        for g, w in (
            (1, 1),
            (4, 1),
            (4, 2),
            (4, 4),
            (8, 1),
            (8, 2),
            (16, 2),
            (16, 8),
            (32, 2),
            (32, 8),
            (64, 4),
            (64, 16),
        )
    )
    pool.add(group_tile(g, w, "reciprocal") for g, w in ((4, 1), (4, 4), (16, 4), (32, 8)))
    pool.add(group_tile(g, w, hints=True) for g, w in ((4, 1), (8, 4), (32, 8)))
    pool.add(grid2d(g, w) for g, w in ((2, 1), (2, 2), (8, 2), (16, 4), (16, 8), (32, 8)))
    pool.add(grid2d(g, w, "block_first") for g, w in ((8, 4), (16, 4)))
    pool.add(
        persistent(v, g, w, 1)
        for v, g, w in (("4", 4, 1), ("4", 8, 4), ("4", 16, 4), ("16", 4, 1), ("16", 8, 4))
    )
    pool.add([persistent("8", 8, 4, 2), persistent("8", 8, 4, 3), persistent("4", 16, 4, 2)])
    pool.add(row_loop(w, n) for w, n in ((2, 4), (8, 4), (8, 8), (32, 8)))
    pool.add(row_loop(w, n, "staged") for w, n in ((2, 2), (8, 4)))
    pool.add(
        two_kernels("triton", g, b, w)
        for g, b, w in ((1, "1024", 4), (8, "512", 4), (8, "2048", 8), (32, "1024", 8))
    )
    pool.add([serial(64, 1), serial(64, 2), serial(512, 8)])
    pool.add(flat_tile(g, w) for g, w in ((2, 1), (4, 1), (4, 4), (8, 4), (16, 4), (32, 8), (64, 8)))
    pool.add(
        flat_tile(8, 4, r, m) for r, m in (("two_sided", "divide"), ("bits", "divide"), ("max", "reciprocal"))
    )
    pool.add(
        [flat_tile(16, 4, "bits", "reciprocal"), flat_tile(32, 8, math="reciprocal"), flat_tile(4, 1, "bits")]
    )
    pool.add(block_pointer(g, w) for g, w in ((1, 1), (4, 4), (8, 4), (16, 4), (32, 8)))
    pool.add_broken(
        flat_tile(8, 4),
        wrong_view={"(GROUPS, 128))": "(128, GROUPS))"},
        signed_max={"tl.max(tl.abs(tile), axis=1)": "tl.max(tile, axis=1)"},
    )
    pool.add_broken(flat_tile(8, 4, "bits"), sign_kept={"& 0x7FFFFFFF": "| 0"})
    pool.add_broken(block_pointer(8, 4), first_group={"(first, 0), (NG, 128)": "(0, 0), (NG, 128)"})
    pool.add_broken(grid2d(8, 4), no_such_argument={"num_warps=4": "num_warp=4"})
    pool.link(group_tile(8, 4), flat_tile(8, 4))
    pool.link(group_tile(8, 4), block_pointer(8, 4))
    pool.link(group_tile(4, 1), flat_tile(4, 1))


def add_nvrtc(pool: Pool) -> None:
    """Adds CUDA C++ sources that need no extension, and their edits from the others."""
    fp8_quant_nvrtc.add_cuda(pool)
    fp8_quant_nvrtc.break_cuda(pool)
    fp8_quant_nvrtc.link_cuda(pool)
    pool.link(nvrtc("warp4", 256), fp8_quant_nvrtc.unrolled(1, 256))
    pool.link(nvrtc("pairs", 256), fp8_quant_nvrtc.unrolled(2, 256))
    pool.link(nvrtc("shared", 256), fp8_quant_nvrtc.staged(256))
    pool.link(lanes(8, 256), fp8_quant_nvrtc.lanes(8, 256))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_triton,
        add_cuda,
        add_torch,
        add_wrapped,
        break_triton,
        break_cuda,
        break_torch,
        link_families,
        add_more_triton,
        add_nvrtc,
    )
