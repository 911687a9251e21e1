"""Generator of the recorded task ``trimul``: AlphaFold 3's triangle multiplicative update with outgoing edges.

Every source defines ``run(x, mask, norm_w, norm_b, w_l, w_r, w_lg, w_rg, w_og, onorm_w, onorm_b, w_o)`` and returns
[B, N, N, C], all float32. With x [B, N, N, C], mask [B, N, N] of zeros and ones, weights w_l, w_r, w_lg, w_rg and w_og
[H, C], w_o [C, H], the first norm's norm_w and norm_b [C] and the second's onorm_w and onorm_b [H], eps 1e-5 in both:

    z = LayerNorm(x)
    left = (z w_l^T) * sigmoid(z w_lg^T) * mask,  right = (z w_r^T) * sigmoid(z w_rg^T) * mask
    p_ij = sum over k of left_ik * right_jk, in each of the H channels
    out = (LayerNorm(p) * sigmoid(z w_og^T)) w_o^T
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.generators.graph import distance
from benchmarks.generators.pool import Draft, Pool
from benchmarks.generators.tasks import trimul_cuda as cuda
from benchmarks.generators.tasks import trimul_torch as library
from benchmarks.generators.tasks import trimul_triton as triton
from benchmarks.generators.tasks.trimul_cuda import mma_gemm, register_gemm, tile_gemm
from benchmarks.generators.tasks.trimul_pipeline import Stage, pipeline
from benchmarks.generators.variant import Key, Variant

if TYPE_CHECKING:
    import torch

TASK = "trimul"
OPERATION = (
    "Triangle multiplicative update, outgoing edges, float32: LayerNorm, gated and masked projections to H channels, "
    "out_ij = sum_k left_ik right_jk per channel, LayerNorm, gate, projection back to C."
)
SHAPES: list[dict[str, int]] = [
    {"N": 256, "B": 2, "C": 128, "H": 128},
    {"N": 512, "B": 1, "C": 128, "H": 128},
    {"N": 1024, "B": 1, "C": 384, "H": 128},
]
# Room for bfloat16 operands in every product and between the stages (0.006 to 0.009), none for 8-bit ones (0.03).
TOLERANCE: dict[str, float] = {"relative_norm": 1.5e-2, "rtol": 0.02, "atol": 0.08}
OUTPUT_DTYPES = ["float32"]


def make_inputs(shape: Mapping[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws pairs whose vectors have spreads of 0.06 to 1.8 around a mean of their own, and a mask with a tenth out."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device=device)

    n, batch, c, h = (shape[name] for name in ("N", "B", "C", "H"))
    spread = 10 ** (torch.rand(batch, n, n, 1, generator=generator, device=device) * 1.5 - 1.25)
    x = normal(batch, n, n, c).add_(0.5 * normal(batch, n, n, 1)).mul_(spread)
    mask = (torch.rand(batch, n, n, generator=generator, device=device) < 0.9).float()
    norm_w, norm_b = 1 + 0.1 * normal(c), 0.1 * normal(c)
    projections = [normal(h, c) * c**-0.5 for _ in range(5)]
    onorm_w, onorm_b = 1 + 0.1 * normal(h), 0.1 * normal(h)
    return x, mask, norm_w, norm_b, *projections, onorm_w, onorm_b, normal(c, h) * h**-0.5


def reference(
    x: torch.Tensor,
    mask: torch.Tensor,
    norm_w: torch.Tensor,
    norm_b: torch.Tensor,
    w_l: torch.Tensor,
    w_r: torch.Tensor,
    w_lg: torch.Tensor,
    w_rg: torch.Tensor,
    w_og: torch.Tensor,
    onorm_w: torch.Tensor,
    onorm_b: torch.Tensor,
    w_o: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Computes the update in float64, a few rows at a time, and returns it in float32."""
    import torch
    from torch.nn.functional import layer_norm

    batch, n, _, c = x.shape
    h = w_l.shape[0]
    weights = [weight.double().t() for weight in (w_l, w_r, w_lg, w_rg, w_og, w_o)]
    left = torch.empty(batch, h, n, n, dtype=torch.float64, device=x.device)
    right = torch.empty_like(left)

    def normed(rows: slice) -> torch.Tensor:
        return layer_norm(x[:, rows].double(), (c,), norm_w.double(), norm_b.double(), 1e-5)

    parts = [slice(first, first + 64) for first in range(0, n, 64)]
    for rows in parts:
        z, keep = normed(rows), mask[:, rows, :, None].double()
        left[:, :, rows] = (z @ weights[0] * (z @ weights[2]).sigmoid() * keep).permute(0, 3, 1, 2)
        right[:, :, rows] = (z @ weights[1] * (z @ weights[3]).sigmoid() * keep).permute(0, 3, 1, 2)
    pairs = left @ right.transpose(-1, -2)
    del left, right
    out = torch.empty_like(x)
    for rows in parts:
        y = layer_norm(pairs[:, :, rows].permute(0, 2, 3, 1), (h,), onorm_w.double(), onorm_b.double(), 1e-5)
        out[:, rows] = ((y * (normed(rows) @ weights[4]).sigmoid()) @ weights[5]).float()
    return (out,)


# ------------------------------------------------------------------------------------------------------ the anchors

Stages = tuple[Stage, Stage, Stage]

# A first version in Triton: a launch per step, small tiles.
FIRST: Stages = (
    triton.separate(32, 32, 32, 4, 2, "tf32"),
    triton.product("tiles", 32, 32, 32, 4, 2, "tf32"),
    triton.separate_finish(32, 32, 32, 4, 2, "tf32"),
)
# Library products with kernels of our own around them.
MIXED: Stages = (
    triton.library_projection("tf32", "float32"),
    triton.product("tiles", 64, 64, 32, 4, 3, "tf32"),
    triton.library_finish(32, 4, "tf32"),
)
# Fused, sixteen bits between the stages.
FUSED: Stages = (
    triton.own_projection("pair", "stats", 64, 64, 32, 4, 3, "bf16", "bfloat16"),
    triton.product("grouped", 128, 128, 64, 8, 3, "bf16", "bfloat16", 8),
    triton.fused_finish(64, 64, 4, 2, "bf16"),
)
# Fused, TF32.
WIDE: Stages = (
    triton.own_projection("five", "inside", 64, 32, 32, 4, 2, "tf32", "float32"),
    library.product("matmul", "tf32"),
    triton.fused_finish(32, 64, 4, 2, "tf32"),
)
# The channel stays the fastest axis.
LAST: Stages = (
    triton.separate(64, 64, 32, 4, 2, "tf32", layout="last"),
    triton.channel_last_product("strided", 64, 64, 32, 4, "tf32"),
    triton.fused_finish(32, 64, 4, 2, "tf32", layout="last"),
)
# Library calls alone.
EAGER: Stages = (
    library.projection("plain", "float32"),
    library.product("matmul", "float32"),
    library.finish("plain", "float32"),
)
# CUDA C++ for what the library does not do, in float32.
CUDA: Stages = (
    cuda.projection("warp", "tile", "float32", "float32"),
    cuda.product(register_gemm("gemm_nt", (64, 64, 16), (4, 4))),
    cuda.finish("tile", "float32", "float32", "float32"),
)
# CUDA C++ with tensor cores, sixteen bits between the stages.
CUDA_HALF: Stages = (
    cuda.projection("warp", "tile", "bf16", "bfloat16", sigmoid="fast"),
    cuda.product(mma_gemm("gemm_nt", "bf16", (128, 128, 32), (64, 32), "async")),
    cuda.finish("tile", "float32", "bfloat16", "bf16"),
)

SEED = pipeline(*FIRST)


def around(
    anchor: Stages,
    project: Iterable[Stage] = (),
    product: Iterable[Stage] = (),
    finish: Iterable[Stage] = (),
    hosts: Iterable[str] = (),
) -> list[Draft]:
    """The sources that differ from an anchor in one stage, or in what the wrapper does."""
    a, b, c = anchor
    return [
        *(pipeline(stage, b, c) for stage in project),
        *(pipeline(a, stage, c) for stage in product),
        *(pipeline(a, b, stage) for stage in finish),
        *(pipeline(a, b, c, host) for host in hosts),
    ]


# --------------------------------------------------------------------------------------------------------- the pool


def add_first(pool: Pool) -> None:
    """Adds the seed and what is near it."""
    pool.add([SEED])
    pool.add(
        around(
            FIRST,
            project=[
                *(
                    triton.separate(bm, bo, bk, warps, stages, precision)
                    for bm, bo, bk, warps, stages, precision in (
                        (16, 32, 32, 4, 2, "tf32"),
                        (64, 32, 32, 4, 2, "tf32"),
                        (64, 64, 32, 4, 2, "tf32"),
                        (64, 64, 64, 4, 2, "tf32"),
                        (64, 64, 32, 8, 3, "tf32"),
                        (128, 64, 32, 4, 3, "tf32"),
                        (128, 128, 32, 8, 3, "tf32"),
                        (32, 32, 32, 2, 2, "tf32"),
                        (32, 32, 16, 4, 1, "tf32"),
                        (32, 32, 32, 4, 2, "ieee"),
                        (64, 64, 32, 4, 2, "ieee"),
                        (64, 64, 16, 8, 2, "ieee"),
                        (32, 32, 32, 4, 2, "tf32x3"),
                        (64, 64, 32, 4, 2, "bf16"),
                        (32, 32, 32, 4, 2, "fp16"),
                    )
                ),
                triton.separate(32, 32, 32, 4, 2, "tf32", norm="tile"),
                triton.separate(64, 64, 32, 4, 2, "tf32", norm="tile"),
                library.projection("plain", "float32"),
                library.projection("plain", "tf32"),
                triton.library_projection("tf32", "float32"),
                triton.own_projection("pair", "before", 32, 32, 32, 4, 2, "tf32", "float32"),
            ],
            product=[
                *(
                    triton.product("tiles", bm, bn, bk, warps, stages, precision)
                    for bm, bn, bk, warps, stages, precision in (
                        (16, 16, 16, 2, 2, "tf32"),
                        (16, 16, 32, 1, 2, "tf32"),
                        (32, 32, 16, 4, 1, "tf32"),
                        (32, 32, 64, 4, 2, "tf32"),
                        (64, 32, 32, 4, 2, "tf32"),
                        (64, 64, 32, 4, 2, "tf32"),
                        (64, 64, 32, 8, 2, "tf32"),
                        (128, 64, 32, 4, 3, "tf32"),
                        (32, 32, 32, 4, 2, "ieee"),
                        (64, 64, 16, 4, 2, "ieee"),
                        (64, 64, 32, 8, 2, "ieee"),
                        (32, 32, 32, 4, 2, "tf32x3"),
                        (32, 32, 32, 4, 2, "fp16"),
                        (32, 32, 32, 4, 2, "bf16"),
                    )
                ),
                triton.product("channel_fastest", 32, 32, 32, 4, 2, "tf32"),
                triton.product("transposed", 32, 32, 32, 4, 2, "tf32"),
                triton.product("block_pointers", 32, 32, 32, 4, 2, "tf32"),
                triton.product("split", 32, 32, 32, 4, 2, "tf32", extra=2),
                library.product("matmul", "float32"),
                library.product("bmm", "tf32"),
                library.product("channel_loop", "float32"),
            ],
            finish=[
                *(
                    triton.separate_finish(bm, bo, bk, warps, stages, precision)
                    for bm, bo, bk, warps, stages, precision in (
                        (64, 64, 32, 4, 2, "tf32"),
                        (128, 64, 32, 4, 2, "tf32"),
                        (128, 128, 32, 8, 3, "tf32"),
                        (16, 32, 32, 4, 2, "tf32"),
                        (32, 32, 32, 4, 2, "ieee"),
                        (64, 64, 16, 4, 2, "ieee"),
                        (64, 64, 32, 4, 2, "bf16"),
                    )
                ),
                triton.separate_finish(32, 32, 32, 4, 2, "tf32", norm="tile"),
                library.finish("plain", "float32"),
                library.finish("plain", "tf32"),
                triton.library_finish(32, 4, "tf32"),
                triton.fused_finish(32, 32, 4, 2, "tf32"),
            ],
            hosts=("clone_in", "sync", "clone_out", "permuted"),
        )
    )
    ieee = (
        triton.separate(32, 32, 32, 4, 2, "ieee"),
        triton.product("tiles", 32, 32, 32, 4, 2, "ieee"),
        triton.separate_finish(32, 32, 32, 4, 2, "ieee"),
    )
    pool.add(
        [
            pipeline(*ieee),
            pipeline(
                triton.separate(16, 16, 16, 1, 2, "tf32"),
                triton.product("tiles", 16, 16, 16, 1, 2, "tf32"),
                triton.separate_finish(16, 16, 16, 1, 2, "tf32"),
            ),
            pipeline(
                triton.separate(32, 32, 32, 4, 2, "tf32x3"),
                triton.product("tiles", 32, 32, 32, 4, 2, "tf32x3"),
                triton.separate_finish(32, 32, 32, 4, 2, "tf32x3"),
            ),
            pipeline(
                triton.separate(64, 64, 32, 4, 2, "tf32"),
                triton.product("tiles", 64, 64, 32, 4, 2, "tf32"),
                triton.separate_finish(64, 64, 32, 4, 2, "tf32"),
            ),
            pipeline(
                triton.separate(128, 128, 32, 8, 3, "tf32", norm="tile"),
                triton.product("tiles", 128, 128, 32, 8, 3, "tf32"),
                triton.separate_finish(128, 128, 32, 8, 3, "tf32", norm="tile"),
            ),
        ]
    )


def add_mixed(pool: Pool) -> None:
    """Adds library products between kernels of our own."""
    pool.add([pipeline(*MIXED)])
    pool.add(
        around(
            MIXED,
            project=[
                *(
                    triton.library_projection("tf32", "float32", br, bh, warps)
                    for br, bh, warps in ((32, 32, 4), (32, 64, 4), (64, 64, 8), (128, 16, 4), (16, 128, 4))
                ),
                triton.library_projection("tf32", "float32", norm="row"),
                triton.library_projection("tf32", "float32", norm="torch"),
                triton.library_projection("float32", "float32"),
                triton.library_projection("bf16", "float32"),
                triton.library_projection("bf16", "bfloat16"),
                triton.library_projection("fp16", "float16"),
                library.projection("stacked", "tf32"),
                library.projection("weights_left", "tf32"),
                triton.separate(64, 64, 32, 4, 2, "tf32", norm="tile"),
                triton.own_projection("pair", "before", 64, 64, 32, 4, 3, "tf32", "float32"),
            ],
            product=[
                *(
                    triton.product("tiles", bm, bn, bk, warps, stages, "tf32")
                    for bm, bn, bk, warps, stages in (
                        (32, 32, 32, 4, 3),
                        (64, 32, 32, 4, 3),
                        (64, 64, 32, 4, 4),
                        (64, 64, 64, 4, 3),
                        (128, 64, 32, 4, 3),
                        (128, 128, 32, 4, 3),
                        (128, 128, 32, 8, 3),
                        (128, 128, 32, 8, 4),
                        (256, 64, 32, 8, 3),
                    )
                ),
                triton.product("tiles", 64, 64, 32, 4, 3, "bf16"),
                triton.product("tiles", 64, 64, 32, 4, 3, "fp16"),
                triton.product("tiles", 128, 128, 32, 8, 3, "bf16", "bfloat16"),
                triton.product("grouped", 64, 64, 32, 4, 3, "tf32", extra=8),
                triton.product("grouped", 128, 128, 32, 8, 3, "tf32", extra=8),
                triton.product("persistent", 64, 64, 32, 4, 3, "tf32", extra=2),
                triton.product("persistent", 128, 128, 32, 8, 3, "tf32", extra=1),
                triton.product("transposed", 64, 64, 32, 4, 3, "tf32"),
                triton.product("block_pointers", 128, 128, 32, 8, 3, "tf32"),
                triton.product("descriptors", 128, 128, 32, 8, 3, "tf32"),
                triton.product("split", 64, 64, 32, 4, 3, "tf32", extra=2),
                triton.product("split", 64, 64, 32, 4, 3, "tf32", extra=4),
                *(triton.autotuned_product(configs, "tf32") for configs in ("small", "usual")),
                library.product("matmul", "tf32"),
                library.product("bmm", "tf32"),
                library.product("matmul", "bf16"),
            ],
            finish=[
                *(
                    triton.library_finish(bm, warps, "tf32")
                    for bm, warps in ((16, 4), (32, 8), (64, 4), (64, 8))
                ),
                triton.library_finish(32, 4, "float32"),
                triton.library_finish(32, 4, "bf16"),
                triton.fused_finish(32, 64, 4, 2, "tf32"),
                library.finish("in_place", "tf32"),
                triton.separate_finish(64, 64, 32, 4, 2, "tf32", norm="tile"),
            ],
            hosts=("clone_in", "nan_check", "item", "sync"),
        )
    )
    pool.add(
        pipeline(
            triton.library_projection(precision, store, norm="tile"),
            library.product("matmul", precision, cast=False),
            triton.library_finish(32, 4, precision),
        )
        for precision, store in (("bf16", "bfloat16"), ("fp16", "float16"))
    )


def add_fused(pool: Pool) -> None:
    """Adds what is near the fused pipeline with sixteen bits between the stages."""
    pool.add([pipeline(*FUSED)])
    bf16 = ("bf16", "bfloat16")
    pool.add(
        around(
            FUSED,
            project=[
                *(
                    triton.own_projection("pair", norm, 64, 64, 32, 4, 3, *bf16)
                    for norm in ("before", "inside", "folded")
                ),
                *(
                    triton.own_projection("pair", "stats", bm, bh, bk, warps, stages, *bf16)
                    for bm, bh, bk, warps, stages in (
                        (32, 64, 32, 4, 3),
                        (64, 32, 32, 4, 3),
                        (64, 64, 64, 4, 3),
                        (64, 128, 32, 8, 3),
                        (128, 64, 32, 4, 3),
                        (128, 64, 64, 8, 3),
                        (128, 128, 32, 8, 3),
                        (64, 64, 32, 8, 2),
                    )
                ),
                *(
                    triton.own_projection("pair", "before", bm, bh, bk, warps, stages, *bf16)
                    for bm, bh, bk, warps, stages in (
                        (128, 64, 64, 4, 3),
                        (128, 64, 64, 8, 4),
                        (128, 128, 64, 8, 3),
                        (64, 128, 64, 4, 3),
                    )
                ),
                *(
                    triton.own_projection("pair", "folded", bm, bh, bk, warps, stages, *bf16)
                    for bm, bh, bk, warps, stages in ((128, 64, 64, 8, 3), (64, 128, 32, 8, 3))
                ),
                *(
                    triton.own_projection("five", norm, bm, bh, 32, warps, 3, *bf16)
                    for norm, bm, bh, warps in (
                        ("stats", 64, 32, 4),
                        ("before", 64, 32, 4),
                        ("before", 128, 32, 8),
                        ("folded", 64, 32, 4),
                        ("folded", 64, 64, 8),
                        ("inside", 64, 32, 4),
                    )
                ),
                *(
                    triton.row_projection(bm, bh, warps, 1, *bf16)
                    for bm, bh, warps in ((32, 32, 4), (64, 32, 4), (64, 32, 8), (64, 64, 8))
                ),
                triton.row_projection(64, 32, 4, 1, *bf16, unroll=False),
                triton.row_projection(32, 32, 4, 1, "fp16", "float16"),
                triton.own_projection("pair", "stats", 64, 64, 32, 4, 3, *bf16, order="hidden"),
                triton.own_projection("pair", "folded", 128, 64, 64, 8, 3, *bf16, order="hidden"),
                triton.own_projection("pair", "stats", 64, 64, 32, 4, 3, "bf16", "float32"),
                triton.own_projection("pair", "stats", 64, 64, 32, 4, 3, "tf32", "bfloat16"),
                triton.own_projection("pair", "stats", 64, 64, 32, 4, 3, "fp16", "float16"),
                triton.library_projection("bf16", "bfloat16"),
                library.projection("stacked", "bf16"),
            ],
            product=[
                *(
                    triton.product("grouped", bm, bn, bk, warps, stages, *bf16, group)
                    for bm, bn, bk, warps, stages, group in (
                        (64, 64, 32, 4, 3, 8),
                        (64, 64, 64, 4, 4, 8),
                        (128, 64, 64, 4, 3, 8),
                        (128, 128, 32, 8, 4, 8),
                        (128, 128, 64, 8, 4, 8),
                        (128, 128, 64, 4, 3, 8),
                        (128, 128, 64, 8, 3, 2),
                        (128, 256, 64, 8, 3, 8),
                        (256, 128, 64, 8, 3, 8),
                    )
                ),
                triton.product("grouped", 128, 128, 64, 8, 3, "bf16", "float32", 8),
                triton.product("tiles", 128, 128, 64, 8, 3, *bf16),
                triton.product("tiles", 64, 64, 64, 4, 3, *bf16),
                triton.product("transposed", 128, 128, 64, 8, 3, *bf16),
                triton.product("channel_fastest", 128, 128, 64, 8, 3, *bf16),
                triton.product("block_pointers", 128, 128, 64, 8, 3, *bf16),
                *(
                    triton.product("persistent", bm, bn, 64, 8, 3, *bf16, per_sm)
                    for bm, bn, per_sm in ((128, 128, 1), (128, 128, 2), (128, 256, 1))
                ),
                *(
                    triton.product("descriptors", bm, bn, 64, 8, stages, *bf16)
                    for bm, bn, stages in ((128, 128, 3), (128, 128, 4), (128, 256, 3))
                ),
                *(triton.autotuned_product(configs, *bf16) for configs in ("usual", "large")),
                library.product("bmm", "bf16", cast=False),
                library.product("einsum", "bf16", cast=False),
            ],
            finish=[
                *(
                    triton.fused_finish(bm, bc, warps, stages, "bf16")
                    for bm, bc, warps, stages in (
                        (16, 64, 4, 2),
                        (32, 64, 4, 2),
                        (32, 128, 4, 2),
                        (64, 128, 8, 2),
                        (64, 64, 8, 3),
                        (128, 64, 8, 2),
                        (128, 128, 8, 1),
                    )
                ),
                triton.fused_finish(64, 64, 4, 2, "bf16", variance="one_pass"),
                triton.fused_finish(64, 64, 4, 2, "bf16", loop="static"),
                triton.fused_finish(64, 128, 8, 2, "bf16", variance="one_pass"),
                triton.fused_finish(64, 64, 4, 2, "tf32"),
                triton.fused_finish(64, 64, 4, 2, "fp16"),
                triton.library_finish(64, 4, "bf16"),
                library.finish("in_place", "bf16"),
            ],
            hosts=("sync", "clone_out", "roundtrip"),
        )
    )
    again = triton.fused_finish(64, 64, 4, 2, "bf16", gate="again")
    pool.add(
        pipeline(project, triton.product("grouped", 128, 128, 64, 8, 3, *bf16, 8), finish)
        for project, finish in (
            (triton.own_projection("pair", "stats", 64, 64, 32, 4, 3, *bf16, gate=False), again),
            (triton.own_projection("pair", "folded", 64, 64, 32, 4, 3, *bf16, gate=False), again),
            (triton.own_projection("five", "stats", 64, 32, 32, 4, 3, *bf16, gate=False), again),
            (
                triton.own_projection("five", "folded", 64, 64, 32, 8, 3, *bf16, gate=False),
                triton.fused_finish(64, 128, 8, 2, "bf16", gate="again"),
            ),
            (
                triton.own_projection("five", "before", 64, 64, 64, 8, 3, *bf16, gate=False),
                triton.fused_finish(64, 128, 8, 2, "bf16", gate="again", variance="one_pass"),
            ),
            (
                triton.own_projection("five", "before", 128, 32, 64, 8, 3, *bf16, gate=False),
                triton.fused_finish(32, 64, 4, 2, "bf16", gate="again"),
            ),
        )
    )


def add_wide(pool: Pool) -> None:
    """Adds what is near the fused pipeline in TF32."""
    pool.add([pipeline(*WIDE)])
    wide = ("tf32", "float32")
    pool.add(
        around(
            WIDE,
            project=[
                *(
                    triton.own_projection("five", norm, 64, 32, 32, 4, 2, *wide)
                    for norm in ("before", "stats", "folded")
                ),
                *(
                    triton.own_projection("five", "inside", bm, bh, bk, warps, 2, *wide)
                    for bm, bh, bk, warps in (
                        (32, 32, 32, 4),
                        (64, 32, 32, 8),
                        (128, 32, 32, 8),
                        (64, 16, 32, 4),
                    )
                ),
                *(
                    triton.own_projection("pair", norm, 64, 64, 32, 4, 2, *wide)
                    for norm in ("before", "stats", "inside", "folded")
                ),
                triton.own_projection("pair", "inside", 128, 64, 32, 8, 3, *wide),
                triton.own_projection("five", "inside", 64, 32, 32, 4, 2, *wide, order="hidden"),
                triton.own_projection("five", "inside", 64, 32, 32, 4, 2, "ieee", "float32"),
                triton.own_projection("pair", "inside", 64, 64, 16, 4, 2, "ieee", "float32"),
                triton.own_projection("five", "inside", 32, 32, 32, 4, 2, "tf32x3", "float32"),
                triton.own_projection("five", "inside", 64, 32, 32, 4, 2, "fp16", "float32"),
                triton.own_projection("five", "inside", 64, 32, 32, 4, 2, "tf32", "float16"),
                triton.row_projection(16, 32, 4, 1, *wide),
                triton.row_projection(32, 16, 4, 1, *wide),
                triton.row_projection(32, 32, 4, 1, *wide),
                triton.row_projection(16, 16, 4, 1, "ieee", "float32"),
            ],
            product=[
                *(
                    library.product(how, "tf32")
                    for how in ("bmm", "einsum", "baddbmm", "channel_groups", "row_slices")
                ),
                library.product("channel_loop", "tf32"),
                library.product("right_copy", "tf32"),
                library.product("matmul", "fp16"),
                triton.product("tiles", 128, 64, 32, 4, 3, "tf32"),
                triton.product("tiles", 128, 128, 32, 8, 3, "tf32x3"),
                triton.product("grouped", 128, 128, 32, 8, 3, "tf32", extra=4),
                triton.product("tiles", 128, 128, 16, 8, 2, "ieee"),
                triton.autotuned_product("usual", "fp16"),
            ],
            finish=[
                *(
                    triton.fused_finish(bm, bc, warps, 2, "tf32")
                    for bm, bc, warps in ((16, 32, 4), (32, 32, 4), (32, 128, 8), (64, 64, 8), (16, 128, 4))
                ),
                triton.fused_finish(32, 64, 4, 2, "tf32", variance="one_pass"),
                triton.fused_finish(32, 64, 4, 2, "ieee"),
                triton.fused_finish(16, 32, 4, 1, "ieee"),
                triton.fused_finish(32, 64, 4, 2, "tf32x3"),
                triton.fused_finish(32, 64, 4, 2, "tf32", gate="again"),
                triton.library_finish(32, 4, "tf32"),
                library.finish("plain", "tf32"),
            ],
            hosts=("nan_check", "clone_in"),
        )
    )


def add_last(pool: Pool) -> None:
    """Adds pipelines that keep the channel as the fastest axis."""
    pool.add([pipeline(*LAST)])
    pool.add(
        around(
            LAST,
            project=[
                triton.own_projection("five", "inside", 64, 32, 32, 4, 2, "tf32", "float32", layout="last"),
                triton.own_projection("pair", "stats", 64, 64, 32, 4, 3, "bf16", "bfloat16", layout="last"),
                triton.own_projection("pair", "folded", 64, 64, 32, 4, 3, "tf32", "float32", layout="last"),
                triton.library_projection("tf32", "float32", layout="last"),
                triton.row_projection(32, 32, 4, 1, "bf16", "bfloat16", layout="last"),
                library.projection("plain", "tf32", "last"),
            ],
            product=[
                *(
                    triton.channel_last_product("strided", bm, bn, bk, warps, precision)
                    for bm, bn, bk, warps, precision in (
                        (32, 32, 32, 4, "tf32"),
                        (128, 64, 32, 4, "tf32"),
                        (128, 128, 32, 8, "tf32"),
                        (64, 64, 32, 4, "bf16"),
                        (64, 64, 32, 4, "ieee"),
                    )
                ),
                *(
                    triton.channel_last_product("broadcast", bm, bn, bk, warps, "ieee")
                    for bm, bn, bk, warps in (
                        (8, 8, 32, 4),
                        (16, 16, 32, 8),
                        (16, 16, 64, 8),
                        (32, 16, 32, 8),
                    )
                ),
            ],
            finish=[
                triton.separate_finish(64, 64, 32, 4, 2, "tf32", layout="last"),
                triton.library_finish(32, 4, "tf32", "last"),
                triton.fused_finish(64, 128, 8, 2, "bf16", layout="last"),
                library.finish("plain", "tf32", "last"),
            ],
        )
    )
    pool.add(
        pipeline(project, library.product(how, "tf32"), finish)
        for project, how, finish in (
            (
                triton.separate(64, 64, 32, 4, 2, "tf32", layout="last"),
                "einsum_last",
                triton.fused_finish(32, 64, 4, 2, "tf32", layout="last"),
            ),
            (
                triton.separate(64, 64, 32, 4, 2, "tf32", layout="last"),
                "permuted",
                triton.fused_finish(32, 64, 4, 2, "tf32"),
            ),
            (
                triton.own_projection("five", "inside", 64, 32, 32, 4, 2, "tf32", "float32", layout="last"),
                "einsum_last",
                triton.fused_finish(32, 64, 4, 2, "tf32", layout="last"),
            ),
        )
    )


def add_torch(pool: Pool) -> None:
    """Adds the PyTorch sources."""
    pool.add([pipeline(*EAGER)])
    pool.add(
        around(
            EAGER,
            project=[
                *(
                    library.projection(how, "float32")
                    for how in (
                        "manual_norm",
                        "glu",
                        "stacked",
                        "in_place",
                        "einsum",
                        "weights_left",
                        "row_slices",
                    )
                ),
                library.projection("plain", "tf32"),
                library.projection("plain", "bf16"),
            ],
            product=[
                *(
                    library.product(how, "float32")
                    for how in (
                        "bmm",
                        "einsum",
                        "right_copy",
                        "channel_loop",
                        "channel_groups",
                        "row_slices",
                        "baddbmm",
                    )
                ),
                library.product("matmul", "bf16"),
            ],
            finish=[
                *(
                    library.finish(how, "float32")
                    for how in ("manual_norm", "channel_axis", "row_slices", "in_place")
                ),
                library.finish("plain", "fp16"),
            ],
            hosts=("clone_in", "sync", "clone_out", "nan_check", "item", "roundtrip", "permuted"),
        )
    )
    pool.add(
        pipeline(
            library.projection(project, "float32", layout),
            library.product(how, "float32"),
            library.finish(finish, "float32", after),
        )
        for project, how, layout, finish, after in (
            ("plain", "einsum_last", "last", "plain", "last"),
            ("einsum", "einsum_last", "last", "manual_norm", "last"),
            ("glu", "permuted", "last", "plain", "first"),
            ("plain", "einsum_to_last", "first", "plain", "last"),
        )
    )
    pool.add(
        pipeline(
            library.projection(project, precision),
            library.product(how, precision, cast=False),
            library.finish(finish, precision),
        )
        for precision, project, how, finish in (
            ("tf32", "plain", "matmul", "plain"),
            ("tf32", "stacked", "bmm", "in_place"),
            ("tf32", "weights_left", "matmul", "in_place"),
            ("tf32", "einsum", "einsum", "channel_axis"),
            ("tf32", "row_slices", "row_slices", "row_slices"),
            ("bf16", "plain", "matmul", "plain"),
            ("bf16", "in_place", "bmm", "in_place"),
            ("bf16", "weights_left", "matmul", "in_place"),
            ("bf16", "glu", "einsum", "manual_norm"),
            ("fp16", "plain", "matmul", "plain"),
            ("fp16", "weights_left", "bmm", "in_place"),
        )
    )


def add_cuda(pool: Pool) -> None:
    """Adds the CUDA C++ sources in float32."""
    pool.add([pipeline(*CUDA)])
    plain = ("float32", "float32")
    pool.add(
        around(
            CUDA,
            project=[
                cuda.projection("block", "tile", *plain),
                cuda.projection("torch", "tile", *plain),
                cuda.projection("warp", "naive", *plain),
                cuda.projection("warp", "columns", *plain),
                cuda.projection("warp", "tile", *plain, sigmoid="fast"),
                cuda.projection("warp", "tile", *plain, strips=32),
                cuda.projection("warp", "tile", "tf32", "float32"),
                cuda.projection("warp", "tile", *plain, gemm=register_gemm("gemm_nt", (64, 64, 16), (4, 4))),
                cuda.projection(
                    "warp", "tile", *plain, gemm=register_gemm("project", (128, 128, 8), (8, 8), True)
                ),
                cuda.projection(
                    "warp",
                    "tile",
                    "tf32",
                    "float32",
                    gemm=mma_gemm("project", "tf32", (128, 64, 16), (64, 32)),
                ),
                cuda.gated_projection("warp", "tf32", (64, 64, 32), (32, 32), "plain", "float32"),
                library.projection("plain", "float32"),
                library.projection("stacked", "tf32"),
            ],
            product=[
                cuda.product(tile_gemm("gemm_nt", 16)),
                cuda.product(tile_gemm("gemm_nt", 32)),
                cuda.product(tile_gemm("gemm_nt", 32, unroll=False)),
                *(
                    cuda.product(register_gemm("gemm_nt", tile, sums, spread))
                    for tile, sums, spread in (
                        ((32, 32, 32), (4, 4), False),
                        ((64, 64, 8), (4, 4), False),
                        ((64, 64, 16), (8, 4), False),
                        ((128, 64, 16), (8, 4), False),
                        ((128, 128, 8), (8, 8), False),
                        ((128, 128, 8), (8, 8), True),
                        ((128, 128, 16), (8, 8), True),
                        ((128, 64, 16), (8, 8), True),
                    )
                ),
                *(
                    cuda.product(mma_gemm("gemm_nt", "tf32", tile, warp, loads, rounding=rounding))
                    for tile, warp, loads, rounding in (
                        ((64, 64, 16), (32, 32), "plain", False),
                        ((64, 64, 32), (32, 32), "plain", False),
                        ((128, 64, 32), (32, 32), "plain", False),
                        ((128, 128, 16), (64, 32), "plain", False),
                        ((128, 128, 32), (64, 32), "plain", False),
                        ((128, 128, 32), (64, 32), "plain", True),
                        ((64, 64, 32), (32, 32), "async", False),
                        ((128, 128, 16), (64, 32), "async", False),
                        ((128, 128, 16), (64, 64), "async", False),
                        ((128, 128, 16), (64, 32), "async", True),
                    )
                ),
                library.product("matmul", "float32"),
                library.product("bmm", "tf32"),
            ],
            finish=[
                cuda.finish("thread", "float32", "float32", "float32"),
                cuda.finish("tile", "float32", "float32", "tf32"),
                cuda.finish("tile", *plain, "float32", gemm=register_gemm("gemm_nt", (64, 64, 16), (4, 4))),
                cuda.finish(
                    "tile", *plain, "float32", gemm=register_gemm("close", (128, 128, 8), (8, 8), True)
                ),
                cuda.finish("tile", *plain, "tf32", gemm=mma_gemm("close", "tf32", (128, 64, 16), (64, 32))),
                library.finish("plain", "float32"),
                library.finish("in_place", "tf32"),
            ],
            hosts=("clone_in", "sync", "nan_check"),
        )
    )
    pool.add(
        pipeline(
            library.projection(how, precision, "last"),
            cuda.lanes_product(ti, tj, wj),
            library.finish("plain", precision, "last"),
        )
        for how, precision, ti, tj, wj in (
            ("plain", "float32", 4, 4, 2),
            ("plain", "float32", 8, 4, 2),
            ("plain", "float32", 8, 8, 1),
            ("stacked", "tf32", 8, 8, 1),
        )
    )
    pool.add(
        pipeline(
            cuda.projection("warp", "tile", *plain, loader="cupy"),
            cuda.product(gemm, loader="cupy"),
            cuda.finish("tile", *plain, "float32", loader="cupy"),
        )
        for gemm in (
            tile_gemm("gemm_nt", 16),
            register_gemm("gemm_nt", (64, 64, 16), (4, 4)),
            mma_gemm("gemm_nt", "tf32", (128, 128, 16), (64, 32), "async"),
        )
    )


def add_cuda_half(pool: Pool) -> None:
    """Adds the CUDA C++ sources with sixteen bits between the stages."""
    pool.add([pipeline(*CUDA_HALF)])
    bf16 = ("bf16", "bfloat16")
    pool.add(
        around(
            CUDA_HALF,
            project=[
                cuda.projection("warp", "tile", *bf16),
                cuda.projection("block", "tile", *bf16, sigmoid="fast"),
                cuda.projection("torch", "tile", *bf16, sigmoid="fast"),
                cuda.projection("warp", "naive", *bf16, sigmoid="fast"),
                cuda.projection("warp", "columns", *bf16, sigmoid="fast"),
                cuda.projection("warp", "tile", "tf32", "bfloat16", sigmoid="fast"),
                cuda.projection("warp", "tile", "float32", "bfloat16", sigmoid="fast"),
                library.projection("stacked", "bf16"),
            ],
            product=[
                *(
                    cuda.product(mma_gemm("gemm_nt", "bf16", tile, warp, loads))
                    for tile, warp, loads in (
                        ((64, 64, 32), (32, 32), "plain"),
                        ((64, 64, 64), (32, 32), "plain"),
                        ((64, 64, 32), (32, 32), "async"),
                        ((64, 64, 64), (32, 32), "async"),
                        ((128, 64, 32), (32, 32), "async"),
                        ((128, 64, 32), (64, 32), "async"),
                        ((128, 128, 32), (64, 32), "plain"),
                        ((128, 128, 64), (64, 32), "plain"),
                        ((128, 128, 32), (64, 64), "async"),
                        ((128, 128, 32), (32, 32), "async"),
                        ((256, 64, 32), (64, 32), "plain"),
                    )
                ),
                library.product("matmul", "bf16", cast=False),
            ],
            finish=[
                cuda.finish("thread", "float32", "bfloat16", "bf16"),
                cuda.finish("tile", "float32", "bfloat16", "tf32"),
                library.finish("in_place", "bf16"),
            ],
            hosts=("sync", "clone_out"),
        )
    )
    for tile, warp, loads in (
        ((64, 64, 32), (32, 32), "plain"),
        ((64, 64, 64), (32, 32), "plain"),
        ((128, 128, 32), (64, 32), "plain"),
        ((128, 128, 32), (64, 32), "async"),
    ):
        # one kernel serves for all products
        gemm = mma_gemm("gemm_nt", "bf16", tile, warp, loads)
        own = cuda.projection("torch", "tile", *bf16, gemm=gemm)
        gated = cuda.gated_projection("torch", "bf16", tile, warp, loads, "bfloat16")
        close = cuda.finish("tile", "float32", "bfloat16", "bf16", gemm=gemm)
        pool.add(
            [
                pipeline(own, cuda.product(gemm), close),
                pipeline(cuda.projection("warp", "tile", *bf16, sigmoid="fast"), cuda.product(gemm), close),
                pipeline(gated, cuda.product(gemm), cuda.finish("tile", "float32", "bfloat16", "bf16")),
                pipeline(
                    gated, library.product("bmm", "bf16", cast=False), library.finish("in_place", "bf16")
                ),
            ]
        )
    narrow = mma_gemm("gemm_nt", "bf16", (128, 128, 32), (64, 32), "async", "bfloat16")
    pool.add(
        [
            pipeline(
                cuda.projection("warp", "tile", *bf16, sigmoid="fast"),
                cuda.product(narrow, "bfloat16"),
                cuda.finish("tile", "bfloat16", "bfloat16", "bf16"),
            ),
            *(
                pipeline(
                    cuda.projection("warp", "tile", "fp16", "float16", sigmoid="fast", loader=loader),
                    cuda.product(mma_gemm("gemm_nt", "fp16", tile, warp, loads), loader=loader),
                    cuda.finish("tile", "float32", "float16", "fp16", loader=loader),
                )
                for loader, tile, warp, loads in (
                    ("torch", (128, 128, 32), (64, 32), "async"),
                    ("torch", (64, 64, 32), (32, 32), "plain"),
                    ("cupy", (128, 128, 32), (64, 32), "plain"),
                )
            ),
        ]
    )


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    pool.add_broken(
        SEED,
        no_mask={" * tl.load(mask_ptr + rows)[:, None]": ""},
        eps_1e_2={"1e-5": "1e-2"},
        gate_of_value={"y = v * tl.sigmoid(g)": "y = v * tl.sigmoid(v)"},
        half_of_k={"for k in range(0, N, BK)": "for k in range(0, N // 2, BK)"},
        undefined_name={"acc += tl.dot(a, b)": "acc += tl.dot(a_tile, b)"},
        tile_not_power_of_two={"BK=32": "BK=48"},
        syntax_error={"for k in range(0, K, BK):": "for k in range(0, K, BK)"},
    )
    pool.add_broken(
        pipeline(*MIXED),
        right_not_transposed={"j[None, :] * N + ks[:, None]": "ks[:, None] * N + j[None, :]"},
        gates_swapped={
            "p + 2 * H": "p + 4 * H",
            "p + 4 * H).to(tl.float32)\n": "p + 2 * H).to(tl.float32)\n",
        },
        rows_for_pairs={
            "p_ptr + (batch[:, None] * H + hs[None, :]) * NN": "p_ptr + (batch[:, None] * H) * NN"
        },
        missing_constexpr={"BM: tl.constexpr, BN: tl.constexpr": "BM, BN: tl.constexpr"},
        wrong_weights={"torch.cat((w_l, w_r, w_lg, w_rg, w_og))": "torch.cat((w_l, w_r, w_lg, w_og))"},
    )
    pool.add_broken(
        pipeline(*FUSED),
        eight_bits={"acc += tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))": EIGHT_BIT_DOT},
        biased_variance={"/ H + 1e-5": "/ (H - 1) / 4 + 1e-5"},
        out_of_bounds={
            "base = tl.program_id(1) * N * N": "base = tl.program_id(1).to(tl.int64) * N * N * 4096"
        },
        shared_memory_overflow={"num_warps=8, num_stages=3": "num_warps=8, num_stages=9"},
        types_differ={"tl.dot(a.to(tl.bfloat16), w.to(tl.bfloat16))": "tl.dot(a.to(tl.bfloat16), w)"},
        warps_not_power_of_two={"num_warps=8, num_stages=3": "num_warps=6, num_stages=3"},
    )
    pool.add_broken(
        pipeline(*WIDE),
        no_second_norm={"y = (v - mean[:, None]) * rstd[:, None] * ": "y = v * "},
        one_pass_without_square={"squares += tl.sum(a * a, axis=1)": "squares += tl.sum(a, axis=1)"},
        wrong_axis={"mean = tl.sum(v, axis=1) / H": "mean = tl.sum(v, axis=0) / H"},
        gate_not_stored={"tl.store(gate_ptr + rows[:, None] * H + hs[None, :], tl.sigmoid(o))": "pass"},
        output_on_the_cpu={"out = torch.empty_like(x)": 'out = torch.empty(x.shape, device="cpu")'},
    )
    pool.add_broken(
        pipeline(*LAST),
        first_batch_only={"b = tl.program_id(0) // H": "b = 0"},
        order_of_arguments={"left, right, prod, N, H": "left, right, prod, H, N"},
    )


EIGHT_BIT_DOT = "acc += tl.dot(a.to(tl.float8e4nv).to(tl.bfloat16), b.to(tl.float8e4nv).to(tl.bfloat16))"


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(
        pipeline(*EAGER),
        incoming_edges={
            "torch.matmul(left, right.transpose(-1, -2))": "torch.matmul(left.transpose(-1, -2), right)"
        },
        gate_before_norm={
            "(H,), onorm_w, onorm_b, 1e-5)\n    out = out * gate": "(H,), onorm_w, onorm_b, 1e-5)\n    out = out + gate"
        },
        mask_not_expanded={"mask.unsqueeze(-1)": "mask"},
        view_of_permuted={"permute(0, 3, 1, 2).contiguous()": "permute(0, 3, 1, 2).view(B * H, N, N)"},
    )
    pool.add_broken(
        around(EAGER, product=[library.product("einsum", "float32")])[0],
        subscripts={"bhik,bhjk->bhij": "bhik,bhkj->bhij"},
    )


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    pool.add_broken(
        pipeline(*CUDA),
        missing_barrier={
            "    __syncthreads();\n#pragma unroll\n    for (int e = 0; e < BK; ++e) {": (
                "#pragma unroll\n    for (int e = 0; e < BK; ++e) {"
            )
        },
        undeclared_variable={"acc[i][j] += a[i] * b[j]": "acc[i][j] += a[i] * c[j]"},
        half_of_the_lanes={"for (int o = 16; o > 0; o >>= 1) sum": "for (int o = 8; o > 0; o >>= 1) sum"},
        too_many_threads={"(256, 1, 1), [left": "(2048, 1, 1), [left"},
        wild_pointer={"D += (long long)blockIdx.z * m * n +": "D += ((long long)blockIdx.z << 40) +"},
    )
    pool.add_broken(
        pipeline(*CUDA_HALF),
        fragments_swapped={
            "a[i][1] = *(const unsigned*)(q + 8 * LD);": "a[i][1] = *(const unsigned*)(q + 8);",
            "a[i][2] = *(const unsigned*)(q + 8);": "a[i][2] = *(const unsigned*)(q + 8 * LD);",
        },
        copies_not_waited_for={"cp_async_wait<1>();": "cp_async_wait<2>();"},
        shared_memory_overflow={"#define BK 32": "#define BK 128"},
        missing_semicolon={"typedef unsigned short elem;": "typedef unsigned short elem"},
    )
    pool.add_broken(
        around(CUDA, product=[cuda.product(tile_gemm("gemm_nt", 16))])[0],
        rows_and_columns={"D[row * n + col0 + tx]": "D[(col0 + tx) * n + row]"},
    )


# ---------------------------------------------------------------------------------------------------------- the edits


STAGES = ("project", "product", "finish")


def link_stages(pool: Pool) -> None:
    """Makes it one edit to write another algorithm for one stage: the nearest source of each algorithm."""
    sound = [variant for variant in pool.variants if not variant.broken]
    for stage in STAGES:
        alike: defaultdict[Key, list[Variant]] = defaultdict(list)
        for variant in sound:
            alike[_outside(stage, variant)].append(variant)
        pool.edges += [
            (one.key, other.key) for group in alike.values() for one, other in _swaps(stage, group)
        ]


def _outside(stage: str, variant: Variant) -> Key:
    """The choices of the other stages and of the wrapper."""
    others = {name for name in (*STAGES, "host") if name != stage}
    return tuple(pair for pair in variant.key if pair[0].partition("_")[0] in others)


def _swaps(stage: str, group: Sequence[Variant]) -> Iterator[tuple[Variant, Variant]]:
    for one in group:
        algorithms: defaultdict[str, list[Variant]] = defaultdict(list)
        for other in group:
            if other.choices[stage] != one.choices[stage]:
                algorithms[other.choices[stage]].append(other)
        for candidates in algorithms.values():
            yield one, min(candidates, key=lambda other: (distance(one, other), other.id))


def link_anchors(pool: Pool) -> None:
    """Names the steps from one way of building the pipeline to the next."""
    pool.link(SEED, around(FIRST, product=[triton.product("tiles", 64, 64, 32, 4, 2, "tf32")])[0])
    pool.link(around(FIRST, project=[triton.library_projection("tf32", "float32")])[0], pipeline(*MIXED))
    pool.link(around(FIRST, finish=[triton.fused_finish(32, 32, 4, 2, "tf32")])[0], pipeline(*WIDE))
    pool.link(pipeline(*MIXED), pipeline(*WIDE), pipeline(*FUSED))
    pool.link(pipeline(*WIDE), pipeline(*LAST))
    pool.link(SEED, pipeline(*EAGER), pipeline(*CUDA), pipeline(*CUDA_HALF), pipeline(*FUSED))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_first,
        add_mixed,
        add_fused,
        add_wide,
        add_last,
        add_torch,
        add_cuda,
        add_cuda_half,
        break_triton,
        break_torch,
        break_cuda,
        link_stages,
        link_anchors,
        Pool.link_retuned,
    )
