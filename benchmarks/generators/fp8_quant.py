"""FP8 quantisation per token group, with the quantised numbers kept in float32.

Every source defines ``run(x)`` with x [tokens, hidden] in float32 and returns ``(q, scale)``: for each group of 128
neighbours of a row, ``scale = max(max|x|, 1e-10) / 448`` and ``q = clamp(x / scale, -448, 448)``; q has the shape of
x, scale is [tokens, hidden / 128], both in float32. Some groups of the inputs are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

from benchmarks.generators.variant import Key, Variant, fill, make_key, make_variant, reskin

if TYPE_CHECKING:
    import torch

TASK = "fp8_quant"
ENTRY = "run"
OPERATION = "FP8 quantisation per group of 128: scale = max|x|/448, q = clamp(x/scale), float32 in and out"
SHAPES: list[dict[str, int]] = [
    {"tokens": 256, "hidden": 4096},
    {"tokens": 256, "hidden": 8192},
    {"tokens": 4096, "hidden": 7168},
]
CHECK_SHAPES: list[dict[str, int]] = [{"tokens": 6, "hidden": 1024}, {"tokens": 4, "hidden": 7168}]
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


HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n\n"
ALLOCATE = (
    "q = torch.empty_like(x)\n"
    "s = torch.empty(x.shape[0], x.shape[1] // 128, device=x.device, dtype=torch.float32)"
)

HOST = {
    "clone_in": ("x = x.clone()", ""),
    "sync": ("", "torch.cuda.synchronize()"),
    "clone_out": ("", "q, s = q.clone(), s.clone()"),
    "nan_check": ("", "if bool(torch.isnan(q).any()):\n    raise RuntimeError('NaN')"),
    "item": ("if x.abs().max().item() == 0:\n    x = x + 0", ""),
    "final_clamp": ("", "q = torch.clamp(q, -448.0, 448.0)"),
    "double_sync": ("torch.cuda.synchronize()", "torch.cuda.synchronize()"),
}

RENAMES = {
    "x_ptr": ["inp", "X", "input_ptr"],
    "q_ptr": ["out", "Q", "output_ptr"],
    "s_ptr": ["scales", "S", "scale_ptr"],
    "amax": ["absmax", "mx", "group_max"],
    "scale": ["sc", "factor", "quant_scale"],
    "pid": ["group_id", "g", "idx"],
    "offs": ["offsets", "cols", "i"],
    "vals": ["v", "data", "block"],
    "GROUP": ["GROUP_SIZE", "G", "BLOCK"],
}
NOTES = (
    "Per-token-group FP8 quantisation.",
    "Quantise activations in groups of 128 (e4m3 range, maximum 448).",
    "Group quantisation.\n\nReturns the scaled values and one scale per group.\n",
    "Candidate: group-wise dynamic quantisation.",
)

BUGS: dict[str, list[tuple[str, str]]] = {
    "no_eps": [
        ("tl.maximum(amax, 1e-10)", "amax"),
        ("fmaxf(m, 1e-10f)", "m"),
        ("fmaxf(warp_max(m), 1e-10f)", "warp_max(m)"),
        (".clamp(min=1e-10)", ""),
    ],
    "no_abs": [("tl.max(tl.abs(vals)", "tl.max((vals)"), ("fabsf(", "("), (".abs()", "")],
    "e5m2_range": [("448", "57344")],
    "int8_range": [("448.0", "127.0"), ("448.f", "127.f")],
    "multiplied": [("vals / scale", "vals * scale"), ("groups / scale", "groups * scale")],
    "scale_inverted": [
        ("tl.store(s_ptr + pid, scale)", "tl.store(s_ptr + pid, 1.0 / scale)"),
        ("s[g] = scale;", "s[g] = 1.0f / scale;"),
    ],
    "group_64": [("GROUP=128", "GROUP=64"), ("x + g * 128", "x + g * 64")],
    "wrong_axis": [("axis=1", "axis=0"), ("dim=-1", "dim=0"), ("amax(-1", "amax(1")],
    "undefined_name": [("amax / 448.0", "absmax_value / 448.0"), ("/ 448.f", "/ FP8_MAX")],
    "no_such_function": [
        ("tl.abs(", "tl.fabs("),
        ("tl.clamp(", "tl.clip("),
        ("__shfl_xor_sync(", "__shfl_xor_all("),
        ("torch.clamp(", "torch.clip_by_value("),
    ],
    "syntax": [
        ("pid = tl.program_id(0)", "pid = tl.program_id(0):"),
        ("int lane = ", "int lane == "),
        ("def run(x):", "def run(x)"),
    ],
    "block_not_power_of_two": [("GROUPS=32", "GROUPS=24"), ("GROUPS=8", "GROUPS=12")],
    "runtime_block": [("GROUP: tl.constexpr", "GROUP")],
    "wild_pointer": [
        ("x_ptr + pid * GROUP", "x_ptr + pid.to(tl.int64) * GROUP * 1000003"),
        ("x + g * 128", "x + g * 128000003L"),
    ],
    "cpu_output": [("torch.empty_like(x)", 'torch.empty(x.shape, device="cpu")')],
    "wrong_shape": [("return q, s", "return q, s.reshape(-1)")],
    "one_output": [("return q, s", "return q")],
    "swapped": [("return q, s", "return s, q"), ("return {q, s}", "return {s, q}")],
    "half_precision": [
        ("vals / scale", "(vals / scale).to(tl.float16).to(tl.float32)"),
        ("x.view(", "x.bfloat16().view("),
        ("x.reshape(", "x.half().reshape("),
    ],
    "real_fp8": [
        ("vals / scale", "(vals / scale).to(tl.float8e4nv).to(tl.float32)"),
        ("return q, s", "return q.to(torch.float8_e4m3fn).float(), s"),
    ],
    "too_many_warps": [
        ("num_warps=8", "num_warps=64"),
        ("num_warps=4", "num_warps=64"),
        ("THREADS = 1024", "THREADS = 2048"),
        ("THREADS = 128", "THREADS = 4096"),
    ],
    "no_import": [("import triton.language as tl\n", ""), ("import torch.nn.functional as F\n", "")],
    "missing_sync": [("  __syncthreads();  // partial maxima are there\n", "")],
    "short_shuffle": [("o = 16;", "o = 8;"), ("o = LANES / 2;", "o = LANES / 4;")],
    "half_grid": [("(n_groups,)", "(n_groups // 2,)"), ("blocks = ", "blocks = 1 + 0 * ")],
    "no_keepdim": [(", keepdim=True", "")],
    "shared_too_large": [("__shared__ float part[32];", "__shared__ float part[65536];")],
    "missing_semicolon": [("float scale = ", "float scale  =  1.0f\n  scale = ")],
    "off_by_one_lane": [("lane + 32 * k", "lane + 31 * k"), ("lane + k * LANES", "lane + k * LANES + 1")],
    "long_loop": [("for (int r = 0; r < 128; ++r) {", "for (long long r = 0; r < 400000000LL; ++r) {")],
    "global_scale": [(".amax(dim=-1, keepdim=True)", ".max()")],
    "scale_in_place": [("groups / scale", "groups.div_(scale)")],
}


def finish_up(choices: dict[str, object], code: str, bug: str | None, language: str = "triton") -> Variant:
    """Makes the mistake, if one is asked for, and gives the source its author's manner."""
    if bug:
        choices["bug"] = bug
        for text, replacement in BUGS[bug]:
            if text in code:
                code = code.replace(text, replacement)
                break
        else:
            raise ValueError(f"no place for the mistake {bug} in {choices}")
    key = make_key(choices)
    code = code.replace("@name@", f"fp8_{abs(hash_of(key)):08x}")
    return make_variant(
        choices, reskin(code, key, RENAMES, NOTES) if language == "triton" else code, language
    )


def hash_of(key: Key) -> int:
    """A stable number for a key, to name an extension."""
    import zlib

    return zlib.crc32(repr(key).encode())


ONE_GROUP = (
    HEAD
    + """
@triton.jit
def quant_group(x_ptr, q_ptr, s_ptr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    offs = tl.arange(0, GROUP)
    vals = tl.load(x_ptr + pid * GROUP + offs)@up@
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


def one_group(warps: int, math: str = "divide", host: str | None = None, bug: str | None = None) -> Variant:
    """A program per group."""
    choices = {"algorithm": "one_group", "warps": warps, "math": math, "host": host, "bug": bug}
    pre, post = HOST.get(host or "", ("", ""))
    return finish_up(
        choices, fill(ONE_GROUP, warps=warps, quantise=QUANTISE[math], pre=pre, post=post, up=""), bug
    )


GROUP_TILE = (
    HEAD
    + """
@triton.jit
def quant_tile(x_ptr, q_ptr, s_ptr, n_groups, GROUPS: tl.constexpr):
    @index@
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
    bug: str | None = None,
) -> Variant:
    """Several groups per program, as a two-dimensional tile."""
    choices = {
        "algorithm": "group_tile",
        "groups": groups,
        "warps": warps,
        "math": math,
        "hints": "evict" if hints else "none",
        "host": host,
        "bug": bug,
    }
    pre, post = HOST.get(host or "", ("", ""))
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
        index="rows = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)",
        load_hint=', eviction_policy="evict_first"' if hints else "",
        store_hint=', eviction_policy="evict_first"' if hints else "",
    )
    return finish_up(choices, code, bug)


ROW_LOOP = (
    HEAD
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
    HEAD
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
    HEAD
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
    HEAD
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
    HEAD
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
    HEAD
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


def row_loop(width: int, warps: int, loop: str = "plain", bug: str | None = None) -> Variant:
    """A program per token."""
    choices = {"algorithm": "row_loop", "width": width, "warps": warps, "loop": loop, "bug": bug}
    text = "range(0, per_row, WIDTH)" if loop == "plain" else "tl.range(0, per_row, WIDTH, num_stages=3)"
    return finish_up(choices, fill(ROW_LOOP, width=width, warps=warps, loop=text, allocate=ALLOCATE), bug)


def grid2d(groups: int, warps: int, order: str = "token_first", bug: str | None = None) -> Variant:
    """A grid over tokens and blocks of groups."""
    choices = {"algorithm": "grid2d", "groups": groups, "warps": warps, "order": order, "bug": bug}
    first = order == "token_first"
    code = fill(
        GRID2D,
        axis_t=0 if first else 1,
        axis_b=1 if first else 0,
        ng=groups,
        warps=warps,
        grid="(tokens, blocks)" if first else "(blocks, tokens)",
    )
    return finish_up(choices, code, bug)


def persistent(waves: str, groups: int, warps: int, stages: int, bug: str | None = None) -> Variant:
    """A fixed number of programs that stride over the tiles."""
    choices = {
        "algorithm": "persistent",
        "waves": waves,
        "groups": groups,
        "warps": warps,
        "stages": stages,
        "bug": bug,
    }
    if waves == "fixed_32":
        grid = "programs = 32"
    else:
        grid = f"programs = {waves} * torch.cuda.get_device_properties(x.device).multi_processor_count"
    code = fill(PERSISTENT, grid=grid, groups=groups, warps=warps, stages=stages, allocate=ALLOCATE)
    return finish_up(choices, code, bug)


def two_kernels(scales: str, groups: int, block: str, warps: int, bug: str | None = None) -> Variant:
    """One launch for the scales, one to apply them; either may be left to PyTorch."""
    choices = {
        "algorithm": "two_kernels",
        "scales": scales,
        "groups": groups,
        "block": block,
        "warps": warps,
        "bug": bug,
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
    return finish_up(choices, fill(TWO_KERNELS, scales=first, apply=second, allocate=ALLOCATE), bug)


def serial(lanes: int, warps: int) -> Variant:
    """A lane per group."""
    code = fill(SERIAL, lanes=lanes, warps=warps, allocate=ALLOCATE)
    return finish_up({"algorithm": "serial", "lanes": lanes, "warps": warps}, code, None)


def autotuned(name: str, configs: list[tuple[int, int]]) -> Variant:
    """The tile kernel with a list of configurations."""
    code = fill(AUTOTUNED, configs=configs, allocate=ALLOCATE)
    return finish_up({"algorithm": "autotuned", "configs": name}, code, None)


# ------------------------------------------------------------------------------------------------------ CUDA C++

INLINE = '''
import torch
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
@includes@

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
    extra_cuda_cflags=[@flags@],
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
    choices: dict[str, object],
    kernel: str,
    launch: str,
    *,
    includes: str = "",
    flags: str = '"-O3"',
    host: str | None = None,
    bug: str | None = None,
    contiguous: bool = False,
) -> Variant:
    """Wraps a kernel in an extension built from the Python module."""
    pre, post = HOST.get(host or "", ("", ""))
    choices = {**choices, "host": host}
    code = fill(
        INLINE.replace("@name@", "<name>"),
        kernel=kernel.strip("\n"),
        launch=launch,
        includes=includes,
        flags=flags,
        pre=pre,
        post=post,
        contiguous="x = x.contiguous();" if contiguous else "",
    ).replace("<name>", "@name@")
    return finish_up(choices, code, bug, "cuda")


WARP = """
__device__ __forceinline__ float warp_max(float m) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
  return m;
}

__device__ __forceinline__ float quant(float v, float inv) { return fminf(fmaxf(v @op@ inv, -448.f), 448.f); }

// one warp per group of 128
__global__ void @bounds@quant_warp(const float* __restrict__ x, float* __restrict__ q, float* __restrict__ s, \
int64_t groups) {
  @first@
  int lane = threadIdx.x & 31;
  @loop@
}
"""
WARP_BODY = {
    "4": """const float4* src = reinterpret_cast<const float4*>(x + g * 128);
float4 v = {LD}(src + lane);
float m = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
m = fmaxf(warp_max(m), 1e-10f);
float scale = m / 448.f;
{INV}
float4 r = make_float4(quant(v.x, inv), quant(v.y, inv), quant(v.z, inv), quant(v.w, inv));
{ST}(reinterpret_cast<float4*>(q + g * 128) + lane, r);
if (lane == 0) s[g] = scale;""",
    "2": """const float2* src = reinterpret_cast<const float2*>(x + g * 128);
float2 a = {LD}(src + lane);
float2 b = {LD}(src + lane + 32);
float m = fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(b.x), fabsf(b.y)));
m = fmaxf(warp_max(m), 1e-10f);
float scale = m / 448.f;
{INV}
float2* dst = reinterpret_cast<float2*>(q + g * 128);
{ST}(dst + lane, make_float2(quant(a.x, inv), quant(a.y, inv)));
{ST}(dst + lane + 32, make_float2(quant(b.x, inv), quant(b.y, inv)));
if (lane == 0) s[g] = scale;""",
    "1": """const float* src = x + g * 128;
float v[4];
float m = 0.f;
#pragma unroll
for (int k = 0; k < 4; ++k) {
  v[k] = {LD}(src + lane + 32 * k);
  m = fmaxf(m, fabsf(v[k]));
}
m = fmaxf(warp_max(m), 1e-10f);
float scale = m / 448.f;
{INV}
#pragma unroll
for (int k = 0; k < 4; ++k) {ST}(q + g * 128 + lane + 32 * k, quant(v[k], inv));
if (lane == 0) s[g] = scale;""",
    "reload": """float m = 0.f;
for (int k = lane; k < 128; k += 32) m = fmaxf(m, fabsf(x[g * 128 + k]));
m = fmaxf(warp_max(m), 1e-10f);
float scale = m / 448.f;
{INV}
for (int k = lane; k < 128; k += 32) q[g * 128 + k] = quant(x[g * 128 + k], inv);
if (lane == 0) s[g] = scale;""",
}


def warp(
    vector: str,
    threads: int,
    cache: str = "plain",
    math: str = "divide",
    grid: str = "exact",
    host: str | None = None,
    bug: str | None = None,
    flags: str = "O3",
) -> Variant:
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
    load, store = {"plain": ("LOAD", "STORE"), "streaming": ("__ldcs", "__stcs"), "ldg": ("__ldg", "STORE")}[
        cache
    ]
    body = WARP_BODY[vector].replace("{LD}", load).replace("{ST}", store)
    body = body.replace("{INV}", "float inv = scale;" if math == "divide" else "float inv = 448.f / m;")
    helpers = ""
    if "LOAD(" in body:
        helpers += "#define LOAD(p) (*(p))\n"
    if "STORE(" in body:
        helpers += "#define STORE(p, v) (*(p) = (v))\n"
    index = "(int64_t(blockIdx.x) * blockDim.x + threadIdx.x) >> 5"
    if grid == "exact":
        first = f"int64_t g = {index};\nif (g >= groups) return;"
        loop = body
        launch = "int blocks = int((groups * 32 + THREADS - 1) / THREADS);"
    else:
        first = f"int64_t warps = (int64_t(gridDim.x) * blockDim.x) >> 5;\nint64_t begin = {index};"
        loop = "for (int64_t g = begin; g < groups; g += warps) {\n  " + body.replace("\n", "\n  ") + "\n}"
        launch = f"int blocks = {grid};  // grid-stride loop"
    kernel = fill(
        helpers + WARP,
        op="/" if math == "divide" else "*",
        bounds="",
        first=first,
        loop=loop,
    )
    launch = (
        f"const int THREADS = {threads};\n{launch}\nquant_warp<<<blocks, THREADS>>>(x.data_ptr<float>(), "
        "q.data_ptr<float>(), s.data_ptr<float>(), groups);"
    )
    option = {"O3": '"-O3"', "fast": '"-O3", "--use_fast_math"', "O0": '"-O0"'}[flags]
    return cuda_source(choices, kernel, launch, host=host, bug=bug, flags=option)


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


def lanes(count: int, threads: int, layout: str = "interleaved", bug: str | None = None) -> Variant:
    """A part of a warp per group."""
    choices = {"algorithm": "lanes", "lanes": count, "threads": threads, "layout": layout}
    kernel = fill(LANES_KERNEL, at="lane + k * LANES" if layout == "interleaved" else "lane * V + k")
    launch = (
        f"constexpr int THREADS = {threads};\nconst int64_t total = groups * {count};\n"
        f"quant_lanes<{count}><<<(total + THREADS - 1) / THREADS, THREADS>>>(\n"
        "    x.data_ptr<float>(), q.data_ptr<float>(), s.data_ptr<float>(), groups);"
    )
    return cuda_source(choices, kernel, launch, bug=bug, contiguous=True)


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


def block_group(reduce: str, host: str | None = None, bug: str | None = None) -> Variant:
    """A block of 128 threads per group."""
    kernel = fill(BLOCK_GROUP, reduce=BLOCK_REDUCE[reduce])
    launch = "quant_block<<<groups, 128>>>(x.data_ptr<float>(), q.data_ptr<float>(), s.data_ptr<float>());"
    choices = {"algorithm": "block_group", "reduce": reduce}
    return cuda_source(choices, kernel, launch, host=host, bug=bug)


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
    "float4": (
        "const float4* m4 = (const float4*)mine;\n#pragma unroll 8\n"
        "for (int r = 0; r < 32; ++r) {\n  float4 v = m4[r];\n"
        "  m = fmaxf(m, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));\n}",
        "float4* q4 = (float4*)(q + g * 128);\n#pragma unroll 8\nfor (int r = 0; r < 32; ++r) {\n  float4 v = m4[r];\n"
        "  v.x = fminf(fmaxf(v.x / scale, -448.f), 448.f);\n  v.y = fminf(fmaxf(v.y / scale, -448.f), 448.f);\n"
        "  v.z = fminf(fmaxf(v.z / scale, -448.f), 448.f);\n  v.w = fminf(fmaxf(v.w / scale, -448.f), 448.f);\n"
        "  q4[r] = v;\n}",
    ),
    "double": (
        "double best = 0.0;\nfor (int r = 0; r < 128; ++r) {\n"
        "  best = fmax(best, fabs((double)mine[r]));\n}\nm = (float)best;",
        "for (int r = 0; r < 128; ++r) {\n  double t = (double)mine[r] / (double)scale;\n"
        "  q[g * 128 + r] = (float)fmin(fmax(t, -448.0), 448.0);\n}",
    ),
}


def thread_group(loops: str, threads: int, bug: str | None = None) -> Variant:
    """A thread per group."""
    first, second = THREAD_LOOPS[loops]
    launch = (
        f"const int THREADS = {threads};\nquant_serial<<<(groups + THREADS - 1) / THREADS, THREADS>>>(\n"
        "    x.data_ptr<float>(), q.data_ptr<float>(), s.data_ptr<float>(), groups);"
    )
    choices = {"algorithm": "thread_group", "loops": loops, "threads": threads}
    return cuda_source(choices, fill(THREAD_GROUP, first=first, second=second), launch, bug=bug)


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


def block_row(threads: int, staged: bool, bug: str | None = None) -> Variant:
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
    return cuda_source(choices, kernel, launch, bug=bug)


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
  @apply@
}
"""
CUDA_APPLY = {
    "scalar": (
        "int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;\n"
        "if (i < n) q[i] = fminf(fmaxf(x[i] / s[i / 128], -448.f), 448.f);",
        1,
    ),
    "float4": (
        "int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;\nif (i * 4 >= n) return;\n"
        "float4 v = ((const float4*)x)[i];\nfloat inv = 1.f / s[i / 32];\n"
        "v.x = fminf(fmaxf(v.x * inv, -448.f), 448.f);\nv.y = fminf(fmaxf(v.y * inv, -448.f), 448.f);\n"
        "v.z = fminf(fmaxf(v.z * inv, -448.f), 448.f);\nv.w = fminf(fmaxf(v.w * inv, -448.f), 448.f);\n"
        "((float4*)q)[i] = v;",
        4,
    ),
}


def cuda_two(apply: str, threads: int, host: str | None = None, bug: str | None = None) -> Variant:
    """Two launches in CUDA C++."""
    body, width = CUDA_APPLY[apply]
    launch = (
        f"const int T = {threads};\nconst int64_t n = x.numel();\n"
        "group_max<<<(groups * 32 + T - 1) / T, T>>>(x.data_ptr<float>(), s.data_ptr<float>(), groups);\n"
        f"scale_all<<<(n / {width} + T - 1) / T, T>>>(x.data_ptr<float>(), "
        "s.data_ptr<float>(), q.data_ptr<float>(), n);"
    )
    if host == "device_sync":
        launch = (
            launch.replace("groups);\n", "groups);\ncudaDeviceSynchronize();\n")
            + "\ncudaDeviceSynchronize();"
        )
    choices = {"algorithm": "cuda_two", "apply": apply, "threads": threads}
    return cuda_source(choices, fill(CUDA_TWO, apply=body), launch, host=host, bug=bug)


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


def nvrtc(kernel: str, threads: int, bug: str | None = None) -> Variant:
    """A kernel built at run time, without an extension."""
    code = fill(
        NVRTC,
        kernel=NVRTC_KERNELS[kernel],
        entry="quant",
        threads=threads,
        blocks=NVRTC_BLOCKS[kernel].format(t=threads),
    )
    return finish_up({"algorithm": "nvrtc", "kernel": kernel, "threads": threads}, code, bug, "cuda")


# ------------------------------------------------------------------------------------------------------ PyTorch

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


def torch_source(name: str, bug: str | None = None) -> Variant:
    """Plain PyTorch."""
    return finish_up({"algorithm": "torch", "form": name}, TORCH[name], bug, "pytorch")


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


def wrapped(base: Variant, wrap: str) -> Variant:
    """A sound kernel inside a careless wrapper."""
    code = base.code.replace("def run(x):", "def launch(x):") + WRAPS[wrap]
    return make_variant({**base.choices, "wrap": wrap}, code, base.language)


# A first version as one writes it: one kernel finds the scales, another divides, a group per program each.
SEED_KEY: Key = make_key(
    {"algorithm": "two_kernels", "block": 128, "groups": 1, "scales": "triton", "warps": 4}
)


def generate() -> list[Variant]:
    """Returns the pool, in a fixed order."""
    pool: list[Variant] = []
    pool += [one_group(w, m) for w, m in product((1, 2, 4, 8), ("divide", "clamp", "reciprocal"))]
    pool += [one_group(w, "where") for w in (1, 4)]
    pool += [one_group(w, "float64") for w in (1, 4)]
    pool += [one_group(4, "divide", host=h) for h in ("clone_in", "sync", "nan_check", "final_clamp", "item")]
    pool += [
        group_tile(g, w)
        for g, w in ((2, 1), (2, 4), (2, 8), (8, 4), (8, 8), (16, 4), (32, 4), (64, 8), (128, 8))
    ]
    pool += [group_tile(8, 4, "reciprocal"), group_tile(16, 4, hints=True)]
    pool += [group_tile(8, 4, "where"), group_tile(8, 4, host="sync"), group_tile(8, 4, host="double_sync")]
    pool += [group_tile(8, 4, host=h) for h in ("clone_out", "nan_check")]
    pool += [row_loop(w, n) for w, n in product((1, 4, 16), (4, 8))]
    pool += [
        row_loop(64, 8),
        row_loop(64, 16),
        row_loop(4, 4, "staged"),
        row_loop(16, 8, "staged"),
        row_loop(1, 4, "staged"),
    ]
    pool += [row_loop(1, 1), row_loop(4, 1)]
    pool += [grid2d(g, w) for g, w in ((1, 1), (1, 4), (4, 1), (4, 4), (8, 4))]
    pool += [grid2d(g, 4, "block_first") for g in (1, 4)]
    pool += [persistent(v, g, 4, s) for v, g, s in (("2", 8, 1), ("8", 8, 1), ("2", 32, 1), ("2", 32, 3))]
    pool += [persistent("fixed_32", 8, 4, 1), persistent("fixed_32", 1, 4, 1), persistent("1", 1, 4, 1)]
    pool += [two_kernels("triton", g, b, w) for g, b, w in product((4, 16), ("256", "1024"), (4, 8))]
    pool += [two_kernels("triton", 1, b, 4) for b in ("128", "256")]
    pool += [two_kernels("torch", 4, b, 4) for b in ("256", "1024")]
    pool += [two_kernels("triton", 4, "torch", 4), two_kernels("triton", 16, "torch", 4)]
    pool += [serial(32, 1), serial(128, 4), serial(256, 4)]
    pool += [
        autotuned("usual", [(4, 4), (8, 4), (16, 4), (32, 8)]),
        autotuned("small", [(1, 1), (2, 1), (4, 2)]),
        autotuned("wide", [(16, 4), (32, 8), (64, 8)]),
    ]
    # CUDA C++
    pool += [warp(v, t) for v, t in (("1", 128), ("1", 256), ("1", 1024), ("2", 256), ("4", 128), ("4", 256))]
    pool += [warp("reload", 256), warp("4", 32), warp("1", 32), warp("4", 256, "streaming")]
    pool += [warp("4", 256, "plain", "reciprocal")]
    pool += [warp("4", 256, grid=g) for g in ("132", "2112")] + [
        warp("1", 256, grid=g) for g in ("132", "16")
    ]
    pool += [warp("1", 256, flags="O0")]
    pool += [warp("4", 256, host=h) for h in ("sync", "clone_in", "nan_check")]
    pool += [lanes(n, 256) for n in (2, 4, 8, 16)] + [lanes(8, 256, "blocked")]
    pool += [block_group(r) for r in BLOCK_REDUCE] + [block_group("tree", host="clone_out")]
    pool += [thread_group("scalar", t) for t in (64, 256)] + [thread_group("double", 128)]
    pool += [block_row(t, s) for t, s in ((256, False), (512, True))]
    pool += [cuda_two("scalar", t) for t in (64, 256, 1024)]
    pool += [cuda_two("scalar", 256, host="nan_check")]
    pool += [
        nvrtc(k, t)
        for k, t in (
            ("warp4", 256),
            ("pairs", 256),
            ("pairs", 512),
            ("shared", 128),
            ("shared", 256),
            ("shared", 512),
        )
    ]
    pool += [torch_source(name) for name in TORCH]
    bases = [
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
    pool += [wrapped(base, wrap) for base, wrap in product(bases, WRAPS)]
    # What does not work.
    pool += [
        two_kernels("triton", 4, "256", 4, bug=b)
        for b in ("no_such_function", "cpu_output", "no_import", "one_output")
    ]
    pool += [
        one_group(4, bug=b)
        for b in (
            "no_eps",
            "no_abs",
            "undefined_name",
            "runtime_block",
            "multiplied",
            "scale_inverted",
            "group_64",
            "wild_pointer",
            "half_grid",
            "real_fp8",
        )
    ]
    pool += [
        one_group(8, bug="too_many_warps"),
        one_group(1, bug="half_precision"),
        one_group(2, bug="syntax"),
    ]
    pool += [group_tile(8, 4, bug=b) for b in ("wrong_axis", "int8_range", "swapped")]
    pool += [group_tile(32, 4, bug="block_not_power_of_two"), row_loop(4, 4, bug="wrong_shape")]
    pool += [warp("1", 256, bug=b) for b in ("short_shuffle", "off_by_one_lane", "undefined_name", "no_eps")]
    pool += [warp("4", 256, bug=b) for b in ("syntax", "wild_pointer", "missing_semicolon")]
    pool += [
        warp("4", 128, bug="too_many_warps"),
        lanes(8, 256, bug="short_shuffle"),
        lanes(8, 256, bug="no_such_function"),
    ]
    pool += [block_group("shuffle", bug=b) for b in ("missing_sync", "shared_too_large", "no_abs")]
    pool += [thread_group("scalar", 64, bug="long_loop")]
    pool += [
        torch_source("chain", bug="global_scale"),
        torch_source("chain", bug="no_keepdim"),
        torch_source("reciprocal", bug="half_precision"),
        torch_source("reshape_flat", bug="e5m2_range"),
        torch_source("max_pool", bug="no_import"),
        torch_source("chain", bug="scale_in_place"),
    ]
    return pool


def extra_edges() -> list[tuple[Key, Key]]:
    """Changes of algorithm that count as one edit."""
    seed = two_kernels("triton", 4, "256", 4)
    pairs = [
        (seed, torch_source("chain")),
        (two_kernels("triton", 1, "256", 4), one_group(4)),
        (seed, cuda_two("scalar", 256)),
        (two_kernels("triton", 4, "torch", 4), torch_source("reciprocal")),
        (one_group(4), group_tile(2, 4)),
        (torch_source("reshape_flat"), two_kernels("torch", 4, "256", 4)),
        (torch_source("reshape_flat"), torch_source("in_place")),
        (torch_source("reshape_flat"), torch_source("expand")),
        (torch_source("reshape_flat"), serial(32, 1)),
        (torch_source("reshape_flat"), thread_group("scalar", 256)),
        (torch_source("reshape_flat"), torch_source("row_chunks")),
        (torch_source("reshape_flat"), torch_source("reciprocal")),
        (one_group(4), grid2d(1, 4)),
        (one_group(4), row_loop(1, 4)),
        (one_group(4), block_group("tree")),
        (one_group(1), grid2d(1, 1)),
        (one_group(1), warp("1", 32)),
        (group_tile(8, 4), persistent("8", 8, 4, 1)),
        (group_tile(8, 4), grid2d(8, 4)),
        (group_tile(8, 4), autotuned("usual", [(4, 4), (8, 4), (16, 4), (32, 8)])),
        (cuda_two("scalar", 256), warp("reload", 256)),
        (warp("1", 256), warp("reload", 256)),
        (warp("4", 256), lanes(16, 256)),
        (warp("4", 256), nvrtc("warp4", 256)),
        (warp("4", 256), block_row(256, False)),
        (block_group("shuffle"), warp("1", 128)),
        (block_group("tree"), nvrtc("shared", 128)),
        (thread_group("scalar", 64), serial(32, 1)),
        (thread_group("scalar", 256), torch_source("chain")),
        (thread_group("scalar", 64), lanes(2, 256)),
        (row_loop(4, 4), block_row(256, False)),
        (serial(32, 1), one_group(1)),
        (torch_source("chain"), torch_source("reshape_flat")),
        (torch_source("chain"), torch_source("jit_script")),
    ]
    return [(a.key, b.key) for a, b in pairs]
