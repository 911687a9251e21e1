"""The Triton stages of ``trimul``."""

from __future__ import annotations

from benchmarks.generators.tasks.trimul_pipeline import LAYOUTS, TORCH_TYPES, Stage
from benchmarks.generators.text import fill, joined, write_dots

# Where channel h of the pair at a row lies.
PLACES = {
    "first": "(batch[:, None] * H + hs[None, :]) * NN + place[:, None]",
    "last": "rows[:, None] * H + hs[None, :]",
}

LAYER_NORM = {
    "row": """
@triton.jit
def layer_norm_rows(x_ptr, w_ptr, b_ptr, y_ptr, C, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    keep = cols < C
    v = tl.load(x_ptr + row * C + cols, mask=keep, other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=0) / C
    d = tl.where(keep, v - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(d * d, axis=0) / C + 1e-5)
    w = tl.load(w_ptr + cols, mask=keep, other=0.0)
    b = tl.load(b_ptr + cols, mask=keep, other=0.0)
    tl.store(y_ptr + row * C + cols, d * rstd * w + b, mask=keep)
""",
    "tile": """
@triton.jit
def layer_norm_tile(x_ptr, w_ptr, b_ptr, y_ptr, C, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # several rows at a time, so that a program has enough loads in flight
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    keep = cols < C
    at = rows[:, None] * C + cols[None, :]
    v = tl.load(x_ptr + at, mask=keep[None, :], other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=1) / C
    d = tl.where(keep[None, :], v - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(d * d, axis=1) / C + 1e-5)
    w = tl.load(w_ptr + cols, mask=keep, other=0.0)
    b = tl.load(b_ptr + cols, mask=keep, other=0.0)
    tl.store(y_ptr + at, d * rstd[:, None] * w[None, :] + b[None, :], mask=keep[None, :])
""",
}
LAYER_NORM_LAUNCH = {
    "row": "layer_norm_rows[({m},)]({x}, {w}, {b}, {y}, {c}, BLOCK=triton.next_power_of_2({c}), num_warps=4)",
    "tile": (
        "layer_norm_tile[({m} // 8,)](\n"
        "    {x}, {w}, {b}, {y}, {c}, ROWS=8, BLOCK=triton.next_power_of_2({c}), num_warps=4)"
    ),
}


def layer_norm(how: str, store: str) -> tuple[str, str]:
    """The kernel of the first norm, and the lines that make ``xn`` with it."""
    launch = LAYER_NORM_LAUNCH[how].format(m="M", x="x", w="norm_w", b="norm_b", y="xn", c="C")
    return LAYER_NORM[how], f"xn = torch.empty(x.shape, dtype=torch.{store}, device=x.device)\n{launch}"


LINEAR = """
@triton.jit
def linear_kernel(x_ptr, w_ptr, y_ptr, K, O, BM: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr):
    # y = x w^T, a tile per program
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    outs = tl.program_id(1) * BO + tl.arange(0, BO)
    acc = tl.zeros([BM, BO], dtype=tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        a = tl.load(x_ptr + rows[:, None] * K + ks[None, :])
        w = tl.load(w_ptr + outs[None, :] * K + ks[:, None])
        acc += <<a|w>>
    tl.store(y_ptr + rows[:, None] * O + outs[None, :], acc)
"""

GATE_MASK = """
@triton.jit
def gate_and_mask(v_ptr, g_ptr, mask_ptr, out_ptr, NN, H, BR: tl.constexpr, BH: tl.constexpr):
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    hs = tl.program_id(1) * BH + tl.arange(0, BH)
    at = rows[:, None] * H + hs[None, :]
    v = tl.load(v_ptr + at).to(tl.float32)
    g = tl.load(g_ptr + at).to(tl.float32)
    y = v * tl.sigmoid(g) * tl.load(mask_ptr + rows)[:, None]
    batch = rows // NN
    place = rows - batch * NN
    tl.store(out_ptr + @place@, y)
"""

SEPARATE_LINES = """
@norm@


def project(w):
    y = torch.empty((M, H), dtype=torch.float32, device=x.device)
    linear_kernel[(M // @bm@, H // @bo@)](
        xn, w, y, C, H, BM=@bm@, BO=@bo@, BK=@bk@, num_warps=@warps@, num_stages=@stages@)
    return y


def gated(value, gate):
    y = torch.empty(@shape@, dtype=torch.float32, device=x.device)
    gate_and_mask[(M // 64, H // 32)](value, gate, mask, y, N * N, H, BR=64, BH=32, num_warps=4)
    return y


left = gated(project(w_l), project(w_lg))
right = gated(project(w_r), project(w_rg))
gate = torch.sigmoid(project(w_og))
"""


def separate(
    bm: int,
    bo: int,
    bk: int,
    warps: int,
    stages: int,
    precision: str,
    norm: str = "row",
    layout: str = "first",
) -> Stage:
    """A launch per step: the norm, five products, two gates."""
    kernel, norm_lines = layer_norm(norm, "float32")
    lines = fill(
        SEPARATE_LINES,
        norm=norm_lines,
        bm=bm,
        bo=bo,
        bk=bk,
        warps=warps,
        stages=stages,
        shape=LAYOUTS[layout],
    )
    return Stage(
        {
            "project": "separate",
            "project_tile": f"{bm}x{bo}x{bk}",
            "project_warps": warps,
            "project_stages": stages,
            "project_precision": precision,
            "project_norm": norm,
            "layout": layout,
            "store": "float32",
        },
        lines,
        (kernel, write_dots(LINEAR.strip("\n"), precision), fill(GATE_MASK, place=PLACES[layout])),
        "triton",
    )


SPLIT = """
@triton.jit
def split_gates(p_ptr, mask_ptr, l_ptr, r_ptr, gate_ptr, NN, H, BR: tl.constexpr, BH: tl.constexpr):
    # p is [rows, 5 H]: left, right, their gates, the gate of the output
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    hs = tl.program_id(1) * BH + tl.arange(0, BH)
    p = p_ptr + rows[:, None] * (5 * H) + hs[None, :]
    keep = tl.load(mask_ptr + rows)[:, None]
    y_l = tl.load(p).to(tl.float32) * tl.sigmoid(tl.load(p + 2 * H).to(tl.float32)) * keep
    y_r = tl.load(p + H).to(tl.float32) * tl.sigmoid(tl.load(p + 3 * H).to(tl.float32)) * keep
    batch = rows // NN
    place = rows - batch * NN
    at = @place@
    tl.store(l_ptr + at, y_l)
    tl.store(r_ptr + at, y_r)
    o = tl.load(p + 4 * H).to(tl.float32)
    tl.store(gate_ptr + rows[:, None] * H + hs[None, :], tl.sigmoid(o))
"""

SPLIT_LINES = """
@norm@
weights = torch.cat((w_l, w_r, w_lg, w_rg, w_og))@cast@
p = torch.matmul(xn.view(M, C), weights.t())
left = torch.empty(@shape@, dtype=torch.@store@, device=x.device)
right = torch.empty_like(left)
gate = torch.empty((M, H), dtype=torch.@store@, device=x.device)
split_gates[(M // @br@, H // @bh@)](p, mask, left, right, gate, N * N, H, BR=@br@, BH=@bh@, num_warps=@warps@)
"""


def library_projection(
    precision: str,
    store: str,
    br: int = 64,
    bh: int = 32,
    warps: int = 4,
    norm: str = "tile",
    layout: str = "first",
) -> Stage:
    """One library product with all weights, then a kernel that gates and moves the channels."""
    kind = TORCH_TYPES[precision]
    if norm == "torch":
        kernels, norm_lines = (), "xn = torch.nn.functional.layer_norm(x, (C,), norm_w, norm_b, 1e-5)"
        norm_lines += "" if kind == "float32" else f".to(torch.{kind})"
    else:
        kernel, norm_lines = layer_norm(norm, kind)
        kernels = (kernel,)
    lines = fill(
        SPLIT_LINES,
        norm=norm_lines,
        cast="" if kind == "float32" else f".to(torch.{kind})",
        shape=LAYOUTS[layout],
        store=store,
        br=br,
        bh=bh,
        warps=warps,
    )
    return Stage(
        {
            "project": "library",
            "project_tile": f"{br}x{bh}",
            "project_warps": warps,
            "project_precision": precision,
            "project_norm": norm,
            "layout": layout,
            "store": store,
        },
        lines,
        (*kernels, fill(SPLIT, place=PLACES[layout])),
        "triton",
        tf32=precision == "tf32",
    )


# ------------------------------------------------------------------------------- projections in kernels of our own

PROJECTION = """
@triton.jit
def @name@(x_ptr, w_ptr, @norm_args@@args@NN, C, H, BM: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(@row_axis@) * BM + tl.arange(0, BM)
    hs = tl.program_id(@hidden_axis@) * BH + tl.arange(0, BH)
    @side@
    ks = tl.arange(0, BK)
    @before@
    @zeros@
    for k in range(0, C, BK):
        cols = k + ks
        a = tl.load(x_ptr + rows[:, None] * C + cols[None, :])
        @normalise@
        @dots@
    @after@
    @store@
"""

STATS = """
@triton.jit
def row_stats(x_ptr, mean_ptr, rstd_ptr, C, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    keep = cols < C
    v = tl.load(x_ptr + rows[:, None] * C + cols[None, :], mask=keep[None, :], other=0.0)
    mean = tl.sum(v, axis=1) / C
    d = tl.where(keep[None, :], v - mean[:, None], 0.0)
    tl.store(mean_ptr + rows, mean)
    tl.store(rstd_ptr + rows, tl.rsqrt(tl.sum(d * d, axis=1) / C + 1e-5))
"""

SUMS = """
total = tl.zeros([BM], dtype=tl.float32)
squares = tl.zeros([BM], dtype=tl.float32)"""
ADD_SUMS = "total += tl.sum(a, axis=1)\nsquares += tl.sum(a * a, axis=1)"
FROM_SUMS = "mean = total / C\nrstd = tl.rsqrt(squares / C - mean * mean + 1e-5)"
NORMALISE = """
nw = tl.load(nw_ptr + cols)
nb = tl.load(nb_ptr + cols)
a = (a - mean[:, None]) * rstd[:, None] * nw[None, :] + nb[None, :]"""
SUMS_FIRST = f"""{SUMS}
for k in range(0, C, BK):
    a = tl.load(x_ptr + rows[:, None] * C + (k + ks)[None, :])
    total += tl.sum(a, axis=1)
    squares += tl.sum(a * a, axis=1)
{FROM_SUMS}"""

# How the norm is applied: (arguments, their values, before the loop, in it, after it).
NORMS = {
    "before": ("", "", "", "", ""),
    "stats": (
        "mean_ptr, rstd_ptr, nw_ptr, nb_ptr, ",
        "mean, rstd, norm_w, norm_b, ",
        "mean = tl.load(mean_ptr + rows)\nrstd = tl.load(rstd_ptr + rows)",
        NORMALISE,
        "",
    ),
    "inside": ("nw_ptr, nb_ptr, ", "norm_w, norm_b, ", SUMS_FIRST, NORMALISE, ""),
    "folded": ("csum_ptr, shift_ptr, ", "csum, shift, ", SUMS, ADD_SUMS, FROM_SUMS),
}
NORM_LINES = {
    "before": "",
    "stats": (
        "mean = torch.empty(M, dtype=torch.float32, device=x.device)\n"
        "rstd = torch.empty_like(mean)\n"
        "row_stats[(M // 8,)](x, mean, rstd, C, ROWS=8, BLOCK=triton.next_power_of_2(C), num_warps=4)"
    ),
    "inside": "",
    "folded": (
        "# LayerNorm folded into the weights: (x - mean) * rstd * w goes in after the product\n"
        "shift = (w_all @ norm_b).contiguous()\n"
        "w_all = w_all * norm_w\n"
        "csum = w_all.sum(-1)"
    ),
}

# The products of a kernel: (accumulator, index of its weight among the five).
ACCUMULATORS = {
    "gated_pair": (("v", "side"), ("g", "(2 + side)")),
    "out_gate": (("o", "4"),),
    "five": (("v0", "0"), ("v1", "1"), ("g0", "2"), ("g1", "3"), ("o", "4")),
    "four": (("v0", "0"), ("v1", "1"), ("g0", "2"), ("g1", "3")),
}


def projection_kernel(name: str, norm: str, order: str, layout: str, precision: str) -> str:
    """A kernel that computes some of the five projections of a tile of rows."""
    accumulators = ACCUMULATORS[name]
    norm_args, _, before, normalise, after = NORMS[norm]
    place = "batch = rows // NN\nplace = rows - batch * NN" if layout == "first" else ""
    keep = "keep = tl.load(mask_ptr + rows)[:, None]"
    store_gate = "tl.store(gate_ptr + rows[:, None] * H + hs[None, :], tl.sigmoid(o))"
    if name == "out_gate":
        args, side, store = "gate_ptr, ", "", store_gate
    elif name == "gated_pair":
        args, side = "mask_ptr, pair_ptr, SIDE, ", "side = tl.program_id(2)"
        store = f"tl.store(pair_ptr + side * SIDE + {PLACES[layout]}, v * tl.sigmoid(g) * keep)"
        store = joined(place, keep, store)
    else:
        args = "mask_ptr, pair_ptr, " + ("gate_ptr, " if name == "five" else "") + "SIDE, "
        side = ""
        store = joined(
            place,
            keep,
            f"at = {PLACES[layout]}",
            "tl.store(pair_ptr + at, v0 * tl.sigmoid(g0) * keep)",
            "tl.store(pair_ptr + SIDE + at, v1 * tl.sigmoid(g1) * keep)",
            store_gate if name == "five" else "",
        )
    if norm == "folded":
        after = joined(
            after,
            *(
                f"c = tl.load(csum_ptr + {index} * H + hs)[None, :]\n"
                f"s = tl.load(shift_ptr + {index} * H + hs)[None, :]\n"
                f"{acc} = rstd[:, None] * ({acc} - mean[:, None] * c) + s"
                for acc, index in accumulators
            ),
        )
    code = fill(
        PROJECTION,
        name=name,
        norm_args=norm_args,
        args=args,
        side=side,
        row_axis=0 if order == "rows" else 1,
        hidden_axis=1 if order == "rows" else 0,
        before=before.strip("\n"),
        zeros="\n".join(f"{acc} = tl.zeros([BM, BH], dtype=tl.float32)" for acc, _ in accumulators),
        normalise=normalise.strip("\n"),
        dots="\n".join(
            f"w = tl.load(w_ptr + ({index} * H + hs[None, :]) * C + cols[:, None])\n{acc} += <<a|w>>"
            for acc, index in accumulators
        ),
        after=after,
        store=store,
    )
    return write_dots(code, precision)


PROJECT_LINES = """
w_all = torch.stack((w_l, w_r, w_lg, w_rg, w_og))@cast@
@norm@
pair = torch.empty((2, *@shape@), dtype=torch.@store@, device=x.device)
@gate_buffer@
@launches@
left, right = pair[0], pair[1]
"""


def own_projection(
    kernels: str,
    norm: str,
    bm: int,
    bh: int,
    bk: int,
    warps: int,
    stages: int,
    precision: str,
    store: str,
    *,
    gate: bool = True,
    order: str = "rows",
    layout: str = "first",
) -> Stage:
    """Products, gates and mask in one kernel (``five``), or in two (``pair``), with the norm in it or before it."""
    tile = f"BM={bm}, BH={bh}, BK={bk}, num_warps={warps}, num_stages={stages})"
    values = ("xn, " if norm == "before" else "x, ") + f"w_all, {NORMS[norm][1]}"
    blocks = [f"M // {bm}", f"H // {bh}"]
    grid = ", ".join(blocks if order == "rows" else reversed(blocks))
    gate_value = "gate, " if gate else ""
    if kernels == "five":
        names = ["five" if gate else "four"]
        launches = [
            f"{names[0]}[({grid})](\n    {values}mask, pair, {gate_value}M * H, N * N, C, H,\n    {tile}",
        ]
    else:
        names = ["gated_pair", "out_gate"] if gate else ["gated_pair"]
        launches = [
            f"gated_pair[({grid}, 2)](\n    {values}mask, pair, M * H, N * N, C, H,\n    {tile}",
            f"out_gate[({grid})](\n    {values}gate, N * N, C, H,\n    {tile}",
        ][: len(names)]
    half = TORCH_TYPES[precision] if norm == "before" and precision in ("bf16", "fp16") else "float32"
    norm_kernels, norm_lines = (), NORM_LINES[norm]
    if norm == "before":
        kernel, norm_lines = layer_norm("tile", half)
        norm_kernels = (kernel,)
    elif norm == "stats":
        norm_kernels = (STATS,)
    lines = fill(
        PROJECT_LINES,
        cast="" if half == "float32" else f".to(torch.{half})",
        norm=norm_lines,
        shape=LAYOUTS[layout],
        store=store,
        gate_buffer=f"gate = torch.empty((M, H), dtype=torch.{store}, device=x.device)" if gate else "",
        launches="\n".join(launches),
    )
    return Stage(
        {
            "project": kernels,
            "project_tile": f"{bm}x{bh}x{bk}",
            "project_warps": warps,
            "project_stages": stages,
            "project_precision": precision,
            "project_norm": norm,
            "project_order": order,
            "layout": layout,
            "store": store,
        },
        lines,
        (*norm_kernels, *(projection_kernel(name, norm, order, layout, precision) for name in names)),
        "triton",
    )


ROW_PROJECTION = """
@triton.jit
def project_rows(x_ptr, nw_ptr, nb_ptr, w_ptr, mask_ptr, pair_ptr, gate_ptr, NN, C, H, SIDE,
                 BM: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr):
    # whole rows stay on the chip: the norm once, then all five products
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BC)
    live = cols < C
    a = tl.load(x_ptr + rows[:, None] * C + cols[None, :], mask=live[None, :], other=0.0)
    mean = tl.sum(a, axis=1) / C
    a = tl.where(live[None, :], a - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(a * a, axis=1) / C + 1e-5)
    nw = tl.load(nw_ptr + cols, mask=live, other=0.0)
    nb = tl.load(nb_ptr + cols, mask=live, other=0.0)
    a = (a * rstd[:, None] * nw[None, :] + nb[None, :])@down@
    keep = tl.load(mask_ptr + rows)[:, None]
    batch = rows // NN
    place = rows - batch * NN
    for h in range(0, H, BH):
        hs = h + tl.arange(0, BH)
        w = w_ptr + hs[None, :] * C + cols[:, None]
        for side in @sides@:
            v = <<a|tl.load(w + side * H * C, mask=live[:, None], other=0.0)>>
            g = <<a|tl.load(w + (2 + side) * H * C, mask=live[:, None], other=0.0)>>
            tl.store(pair_ptr + side * SIDE + @place@, v * tl.sigmoid(g) * keep)
        o = <<a|tl.load(w + 4 * H * C, mask=live[:, None], other=0.0)>>
        tl.store(gate_ptr + rows[:, None] * H + hs[None, :], tl.sigmoid(o))
"""

ROW_LINES = """
w_all = torch.stack((w_l, w_r, w_lg, w_rg, w_og))@cast@
pair = torch.empty((2, *@shape@), dtype=torch.@store@, device=x.device)
gate = torch.empty((M, H), dtype=torch.@store@, device=x.device)
project_rows[(M // @bm@,)](
    x, norm_w, norm_b, w_all, mask, pair, gate, N * N, C, H, M * H,
    BM=@bm@, BC=triton.next_power_of_2(C), BH=@bh@, num_warps=@warps@, num_stages=@stages@)
left, right = pair[0], pair[1]
"""


def row_projection(
    bm: int,
    bh: int,
    warps: int,
    stages: int,
    precision: str,
    store: str,
    *,
    unroll: bool = True,
    layout: str = "first",
) -> Stage:
    """A program holds whole rows and walks over the weights."""
    half = TORCH_TYPES[precision] if precision in ("bf16", "fp16") else ""
    kernel = fill(
        ROW_PROJECTION,
        down=f".to(tl.{half})" if half else "",
        sides="tl.static_range(2)" if unroll else "range(2)",
        place=PLACES[layout],
    )
    lines = fill(
        ROW_LINES,
        cast=f".to(torch.{half})" if half else "",
        shape=LAYOUTS[layout],
        store=store,
        bm=bm,
        bh=bh,
        warps=warps,
        stages=stages,
    )
    return Stage(
        {
            "project": "rows",
            "project_tile": f"{bm}x{bh}",
            "project_warps": warps,
            "project_stages": stages,
            "project_precision": precision,
            "project_sides": "unrolled" if unroll else "loop",
            "layout": layout,
            "store": store,
        },
        lines,
        (write_dots(kernel, precision),),
        "triton",
    )


# ------------------------------------------------------------------------------------------ the product over pairs

PRODUCT_LOOP = """
ks = tl.arange(0, BK)
l_tile = l_ptr + base + i[:, None] * N + ks[None, :]
r_tile = r_ptr + base + j[None, :] * N + ks[:, None]
acc = tl.zeros([BM, BN], dtype=tl.float32)
for k in range(0, N, BK):
    a = tl.load(l_tile + k)
    b = tl.load(r_tile + k)
    acc += <<a|b>>
"""

PRODUCTS = {
    "tiles": """
@triton.jit
def pair_product(l_ptr, r_ptr, o_ptr, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # out[i, j] = sum over k of left[i, k] * right[j, k], for each channel
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    base = tl.program_id(2) * N * N
    @loop@
    tl.store(o_ptr + base + i[:, None] * N + j[None, :], acc)
""",
    "channel_fastest": """
@triton.jit
def pair_product(l_ptr, r_ptr, o_ptr, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # neighbouring programs work on the same tile of different channels
    i = tl.program_id(1) * BM + tl.arange(0, BM)
    j = tl.program_id(2) * BN + tl.arange(0, BN)
    base = tl.program_id(0) * N * N
    @loop@
    tl.store(o_ptr + base + i[:, None] * N + j[None, :], acc)
""",
    "grouped": """
@triton.jit
def pair_product(l_ptr, r_ptr, o_ptr, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                 GROUP: tl.constexpr):
    # tiles in groups of rows, so that neighbours share what they load
    pid = tl.program_id(0)
    n_i = N // BM
    n_j = N // BN
    group = pid // (GROUP * n_j)
    size = min(n_i - group * GROUP, GROUP)
    i = (group * GROUP + pid % size) * BM + tl.arange(0, BM)
    j = (pid % (GROUP * n_j)) // size * BN + tl.arange(0, BN)
    base = tl.program_id(1) * N * N
    @loop@
    tl.store(o_ptr + base + i[:, None] * N + j[None, :], acc)
""",
    "persistent": """
@triton.jit
def pair_product(l_ptr, r_ptr, o_ptr, N, tiles, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    n_i = N // BM
    n_j = N // BN
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        channel = tile // (n_i * n_j)
        rest = tile - channel * (n_i * n_j)
        i = rest // n_j * BM + tl.arange(0, BM)
        j = rest % n_j * BN + tl.arange(0, BN)
        base = channel * N * N
        @loop@
        tl.store(o_ptr + base + i[:, None] * N + j[None, :], acc)
""",
    "split": """
@triton.jit
def pair_product(l_ptr, r_ptr, o_ptr, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                 SPLITS: tl.constexpr):
    # each program sums over a part of k
    i = tl.program_id(0) // SPLITS * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    base = tl.program_id(2) * N * N
    first = tl.program_id(0) % SPLITS * (N // SPLITS)
    @loop@
    tl.atomic_add(o_ptr + base + i[:, None] * N + j[None, :], acc)
""",
    "block_pointers": """
@triton.jit
def pair_product(l_ptr, r_ptr, o_ptr, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i0 = tl.program_id(0) * BM
    j0 = tl.program_id(1) * BN
    base = tl.program_id(2) * N * N
    p_l = tl.make_block_ptr(l_ptr + base, (N, N), (N, 1), (i0, 0), (BM, BK), (1, 0))
    p_r = tl.make_block_ptr(r_ptr + base, (N, N), (1, N), (0, j0), (BK, BN), (0, 1))
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, N, BK):
        a = tl.load(p_l)
        b = tl.load(p_r)
        acc += <<a|b>>
        p_l = tl.advance(p_l, (0, BK))
        p_r = tl.advance(p_r, (BK, 0))
    p_o = tl.make_block_ptr(o_ptr + base, (N, N), (N, 1), (i0, j0), (BM, BN), (1, 0))
    tl.store(p_o, acc.to(o_ptr.dtype.element_ty))
""",
    "descriptors": """
@triton.jit
def pair_product(l_desc, r_desc, o_desc, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # tiles come through tensor descriptors; channels lie one below the other
    i = tl.program_id(2) * N + tl.program_id(0) * BM
    j = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, N, BK):
        a = l_desc.load([i, k])
        b = r_desc.load([tl.program_id(2) * N + j, k])
        acc += <<a|b.T>>
    o_desc.store([i, j], acc.to(o_desc.dtype))
""",
    "transposed": """
@triton.jit
def pair_product(l_ptr, r_ptr, o_ptr, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # both tiles are loaded along k, the second is turned for the product
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    base = tl.program_id(2) * N * N
    ks = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    for k in range(0, N, BK):
        a = tl.load(l_ptr + base + i[:, None] * N + (k + ks)[None, :])
        b = tl.load(r_ptr + base + j[:, None] * N + (k + ks)[None, :])
        acc += <<a|tl.trans(b)>>
    tl.store(o_ptr + base + i[:, None] * N + j[None, :], acc)
""",
}
PRODUCT_GRIDS = {
    "channel_fastest": "(B * H, N // {bm}, N // {bn})",
    "grouped": "((N // {bm}) * (N // {bn}), B * H)",
    "split": "(N // {bm} * {extra}, N // {bn}, B * H)",
}

PRODUCT_LINES = """
prod = torch.@alloc@((B, H, N, N), dtype=torch.@store@, device=x.device)
pair_product[@grid@](
    left, right, prod, N@tiles@, BM=@bm@, BN=@bn@, BK=@bk@@extra@, num_warps=@warps@, num_stages=@stages@)
"""

PERSISTENT_LINES = """
sms = torch.cuda.get_device_properties(x.device).multi_processor_count
tiles = B * H * (N // @bm@) * (N // @bn@)
"""

DESCRIPTOR_LINES = """
prod = torch.empty((B, H, N, N), dtype=torch.@store@, device=x.device)
pair_product[(N // @bm@, N // @bn@, B * H)](
    TensorDescriptor.from_tensor(left.view(-1, N), [@bm@, @bk@]),
    TensorDescriptor.from_tensor(right.view(-1, N), [@bn@, @bk@]),
    TensorDescriptor.from_tensor(prod.view(-1, N), [@bm@, @bn@]),
    N, BM=@bm@, BN=@bn@, BK=@bk@, num_warps=@warps@, num_stages=@stages@)
"""


def product(
    how: str,
    bm: int,
    bn: int,
    bk: int,
    warps: int,
    stages: int,
    precision: str,
    store: str = "float32",
    extra: int | None = None,
) -> Stage:
    """The product of each channel, tile by tile; `extra` is the group, the split, or the programs per SM."""
    loop = PRODUCT_LOOP.strip("\n")
    if how == "split":
        loop = loop.replace("range(0, N, BK)", "range(first, first + N // SPLITS, BK)")
    grid = PRODUCT_GRIDS.get(how, "(N // {bm}, N // {bn}, B * H)").format(bm=bm, bn=bn, extra=extra)
    if how == "persistent":
        grid = f"(min(tiles, sms * {extra}),)"
    named = {"grouped": f", GROUP={extra}", "split": f", SPLITS={extra}"}.get(how, "")
    template = DESCRIPTOR_LINES if how == "descriptors" else PRODUCT_LINES
    lines = fill(
        (PERSISTENT_LINES if how == "persistent" else "") + template.lstrip("\n"),
        alloc="zeros" if how == "split" else "empty",
        store=store,
        grid=grid,
        tiles=", tiles" if how == "persistent" else "",
        bm=bm,
        bn=bn,
        bk=bk,
        extra=named,
        warps=warps,
        stages=stages,
    )
    kernel = write_dots(fill(PRODUCTS[how], loop=loop), precision)
    return Stage(
        {
            "product": how,
            "product_tile": f"{bm}x{bn}x{bk}",
            "product_warps": warps,
            "product_stages": stages,
            "product_precision": precision,
            "product_store": store,
            "product_extra": extra,
        },
        lines,
        (kernel,),
        "triton",
        imports=("from triton.tools.tensor_descriptor import TensorDescriptor",)
        if how == "descriptors"
        else (),
    )


AUTOTUNED = """
@triton.autotune(
    configs=[
        @configs@
    ],
    key=["N"],
)
"""
AUTOTUNE = {
    "small": ((32, 32, 32, 4, 2), (64, 32, 32, 4, 2), (64, 64, 32, 4, 2)),
    "usual": ((64, 64, 32, 4, 3), (128, 64, 32, 4, 3), (128, 128, 32, 8, 3), (128, 128, 64, 8, 3)),
    "large": ((128, 128, 64, 4, 3), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4)),
}
AUTOTUNED_LINES = """
prod = torch.empty((B, H, N, N), dtype=torch.@store@, device=x.device)
pair_product[lambda meta: (N // meta["BM"], N // meta["BN"], B * H)](left, right, prod, N)
"""


def autotuned_product(configs: str, precision: str, store: str = "float32") -> Stage:
    """The tiles with a list of configurations."""
    listed = "\n".join(
        f'triton.Config({{"BM": {bm}, "BN": {bn}, "BK": {bk}}}, num_warps={warps}, num_stages={stages}),'
        for bm, bn, bk, warps, stages in AUTOTUNE[configs]
    )
    kernel = write_dots(fill(PRODUCTS["tiles"], loop=PRODUCT_LOOP.strip("\n")), precision)
    return Stage(
        {
            "product": "autotuned",
            "product_tile": configs,
            "product_precision": precision,
            "product_store": store,
        },
        fill(AUTOTUNED_LINES, store=store),
        (fill(AUTOTUNED, configs=listed) + "\n" + kernel,),
        "triton",
    )


# Products of the layout with the channel last, which no tensor core likes.
LAST_PRODUCTS = {
    "strided": """
@triton.jit
def pair_product(l_ptr, r_ptr, o_ptr, N, H, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # a tile of one channel; elements of a tile are H apart
    i = tl.program_id(1) * BM + tl.arange(0, BM)
    j = tl.program_id(2) * BN + tl.arange(0, BN)
    b = tl.program_id(0) // H
    l_ptr += b * N * N * H + tl.program_id(0) % H
    r_ptr += b * N * N * H + tl.program_id(0) % H
    o_ptr += b * N * N * H + tl.program_id(0) % H
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    for k in range(0, N, BK):
        ks = k + tl.arange(0, BK)
        a = tl.load(l_ptr + (i[:, None] * N + ks[None, :]) * H)
        c = tl.load(r_ptr + (j[None, :] * N + ks[:, None]) * H)
        acc += <<a|c>>
    tl.store(o_ptr + (i[:, None] * N + j[None, :]) * H, acc)
""",
    "broadcast": """
@triton.jit
def pair_product(l_ptr, r_ptr, o_ptr, N, H, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # BK channels side by side, one k after the other, no tensor cores
    i = tl.program_id(1) * BM + tl.arange(0, BM)
    j = tl.program_id(2) * BN + tl.arange(0, BN)
    groups = H // BK
    b = tl.program_id(0) // groups
    hs = tl.program_id(0) % groups * BK + tl.arange(0, BK)
    l_tile = l_ptr + (b * N + i[:, None]) * N * H + hs[None, :]
    r_tile = r_ptr + (b * N + j[:, None]) * N * H + hs[None, :]
    acc = tl.zeros([BM, BN, BK], dtype=tl.float32)
    for k in range(0, N):
        a = tl.load(l_tile + k * H).to(tl.float32)
        c = tl.load(r_tile + k * H).to(tl.float32)
        acc += a[:, None, :] * c[None, :, :]
    at = ((b * N + i[:, None, None]) * N + j[None, :, None]) * H + hs[None, None, :]
    tl.store(o_ptr + at, acc)
""",
}
LAST_LINES = """
prod = torch.empty((B, N, N, H), dtype=torch.@store@, device=x.device)
pair_product[(B * @channels@, N // @bm@, N // @bn@)](
    left, right, prod, N, H, BM=@bm@, BN=@bn@, BK=@bk@, num_warps=@warps@)
"""


def channel_last_product(
    how: str, bm: int, bn: int, bk: int, warps: int, precision: str, store: str = "float32"
) -> Stage:
    """The product where the channels are the fastest axis."""
    lines = fill(
        LAST_LINES,
        store=store,
        channels=f"(H // {bk})" if how == "broadcast" else "H",
        bm=bm,
        bn=bn,
        bk=bk,
        warps=warps,
    )
    return Stage(
        {
            "product": how,
            "product_tile": f"{bm}x{bn}x{bk}",
            "product_warps": warps,
            "product_precision": precision,
            "product_store": store,
        },
        lines,
        (write_dots(LAST_PRODUCTS[how].strip("\n"), precision),),
        "triton",
    )


# ------------------------------------------------------------------------------------------------- the closing part

FUSED = """
@triton.jit
def finish_kernel(p_ptr, @gate_args@nw_ptr, nb_ptr, w_ptr, out_ptr, NN, C, H: tl.constexpr,
                  BM: tl.constexpr, BC: tl.constexpr@bk_arg@):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    hs = tl.arange(0, H)
    @place@
    v = tl.load(p_ptr + @at@).to(tl.float32)
    mean = tl.sum(v, axis=1) / H
    @centred@
    w_n = tl.load(nw_ptr + hs)
    b_n = tl.load(nb_ptr + hs)
    y = (v - mean[:, None]) * rstd[:, None] * w_n[None, :] + b_n[None, :]
    @gate@
    for c in @loop@:
        cs = c + tl.arange(0, BC)
        w = tl.load(w_ptr + cs[None, :] * H + hs[:, None])
        tl.store(out_ptr + rows[:, None] * C + cs[None, :], <<y|w>>)
"""
VARIANCE = {
    "two_pass": "d = v - mean[:, None]\nrstd = tl.rsqrt(tl.sum(d * d, axis=1) / H + 1e-5)",
    "one_pass": "rstd = tl.rsqrt(tl.sum(v * v, axis=1) / H - mean * mean + 1e-5)",
}
STORED_GATE = "y *= tl.load(gate_ptr + rows[:, None] * H + hs[None, :]).to(tl.float32)"
GATE_AGAIN = """
# the gate comes from x once more, so that nobody has to store it
ks = tl.arange(0, BK)
total = tl.zeros([BM], dtype=tl.float32)
squares = tl.zeros([BM], dtype=tl.float32)
for k in range(0, C, BK):
    a = tl.load(x_ptr + rows[:, None] * C + (k + ks)[None, :])
    total += tl.sum(a, axis=1)
    squares += tl.sum(a * a, axis=1)
mean_x = total / C
rstd_x = tl.rsqrt(squares / C - mean_x * mean_x + 1e-5)
o = tl.zeros([BM, H], dtype=tl.float32)
for k in range(0, C, BK):
    cols = k + ks
    a = tl.load(x_ptr + rows[:, None] * C + cols[None, :])
    a = (a - mean_x[:, None]) * rstd_x[:, None]
    a = a * tl.load(xw_ptr + cols)[None, :] + tl.load(xb_ptr + cols)[None, :]
    wg = tl.load(wg_ptr + hs[None, :] * C + cols[:, None])
    o += <<a|wg>>
y *= tl.sigmoid(o)
"""
FUSED_LINES = """
out = torch.empty_like(x)
finish_kernel[(M // @bm@,)](
    prod, @gate@, onorm_w, onorm_b, w_o, out, N * N, C, H,
    BM=@bm@, BC=@bc@@bk@, num_warps=@warps@, num_stages=@stages@)
"""


def fused_finish(
    bm: int,
    bc: int,
    warps: int,
    stages: int,
    precision: str,
    *,
    gate: str = "stored",
    variance: str = "two_pass",
    loop: str = "range",
    layout: str = "first",
) -> Stage:
    """Norm, gate and projection of a tile of pairs in one kernel; it may compute the gate ``again`` from x."""
    again = gate == "again"
    kernel = fill(
        FUSED,
        gate_args="x_ptr, xw_ptr, xb_ptr, wg_ptr, " if again else "gate_ptr, ",
        bk_arg=", BK: tl.constexpr" if again else "",
        place="batch = rows // NN\nplace = rows - batch * NN" if layout == "first" else "",
        at=PLACES[layout],
        centred=VARIANCE[variance],
        gate=GATE_AGAIN.strip("\n") if again else STORED_GATE,
        loop={"range": "range(0, C, BC)", "static": "tl.static_range(0, C, BC)"}[loop],
    )
    if loop == "static":
        kernel = kernel.replace("NN, C, H: tl.constexpr", "NN, C: tl.constexpr, H: tl.constexpr")
    lines = fill(
        FUSED_LINES,
        gate="x, norm_w, norm_b, w_og" if again else "gate",
        bk=", BK=32" if again else "",
        bm=bm,
        bc=bc,
        warps=warps,
        stages=stages,
    )
    return Stage(
        {
            "finish": "fused",
            "finish_tile": f"{bm}x{bc}",
            "finish_warps": warps,
            "finish_stages": stages,
            "finish_precision": precision,
            "finish_gate": gate,
            "finish_variance": variance,
            "finish_loop": loop,
        },
        lines,
        (write_dots(kernel, precision),),
        "triton",
    )


NORM_GATE = """
@triton.jit
def norm_and_gate(p_ptr, gate_ptr, nw_ptr, nb_ptr, y_ptr, NN, H: tl.constexpr, BM: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    hs = tl.arange(0, H)
    @place@
    v = tl.load(p_ptr + @at@).to(tl.float32)
    mean = tl.sum(v, axis=1) / H
    v -= mean[:, None]
    rstd = tl.rsqrt(tl.sum(v * v, axis=1) / H + 1e-5)
    y = v * rstd[:, None] * tl.load(nw_ptr + hs)[None, :] + tl.load(nb_ptr + hs)[None, :]
    y *= tl.load(gate_ptr + rows[:, None] * H + hs[None, :]).to(tl.float32)
    tl.store(y_ptr + rows[:, None] * H + hs[None, :], y)
"""
NORM_GATE_LINES = """
y = torch.empty((M, H), dtype=torch.@kind@, device=x.device)
norm_and_gate[(M // @bm@,)](prod, gate, onorm_w, onorm_b, y, N * N, H, BM=@bm@, num_warps=@warps@)
out = torch.matmul(y, w_o.t()@cast@)@up@.view(B, N, N, C)
"""


def library_finish(bm: int, warps: int, precision: str, layout: str = "first") -> Stage:
    """A kernel for norm and gate, then a library product."""
    kind = TORCH_TYPES[precision]
    half = kind != "float32"
    return Stage(
        {
            "finish": "library",
            "finish_tile": bm,
            "finish_warps": warps,
            "finish_precision": precision,
        },
        fill(
            NORM_GATE_LINES,
            bm=bm,
            warps=warps,
            kind=kind,
            cast=f".to(torch.{kind})" if half else "",
            up=".float()" if half else "",
        ),
        (
            fill(
                NORM_GATE,
                place="batch = rows // NN\nplace = rows - batch * NN" if layout == "first" else "",
                at=PLACES[layout],
            ),
        ),
        "triton",
        tf32=precision == "tf32",
    )


SEPARATE_FINISH_LINES = """
moved = @moved@
normed = torch.empty(moved.shape, dtype=torch.float32, device=x.device)
@norm@
gated_out = normed.view(M, H) * gate.view(M, H)
out = torch.empty_like(x)
linear_kernel[(M // @bm@, C // @bo@)](
    gated_out, w_o, out, H, C, BM=@bm@, BO=@bo@, BK=@bk@, num_warps=@warps@, num_stages=@stages@)
"""


def separate_finish(
    bm: int,
    bo: int,
    bk: int,
    warps: int,
    stages: int,
    precision: str,
    norm: str = "row",
    layout: str = "first",
) -> Stage:
    """A launch per step: a copy, the norm, the gate, the product."""
    launch = LAYER_NORM_LAUNCH[norm].format(m="M", x="moved", w="onorm_w", b="onorm_b", y="normed", c="H")
    return Stage(
        {
            "finish": "separate",
            "finish_tile": f"{bm}x{bo}x{bk}",
            "finish_warps": warps,
            "finish_stages": stages,
            "finish_precision": precision,
            "finish_norm": norm,
        },
        fill(
            SEPARATE_FINISH_LINES,
            moved="prod.permute(0, 2, 3, 1).contiguous()" if layout == "first" else "prod",
            norm=launch,
            bm=bm,
            bo=bo,
            bk=bk,
            warps=warps,
            stages=stages,
        ),
        (LAYER_NORM[norm], write_dots(LINEAR.strip("\n"), precision)),
        "triton",
    )
