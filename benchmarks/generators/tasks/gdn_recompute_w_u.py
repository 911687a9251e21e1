"""Generator of the recorded task ``gdn_recompute_w_u``: the products of a chunked Gated DeltaNet with its inverse.

Every source defines ``run(k, v, beta, A, g)`` and returns ``(w, u)``, all float32. With chunks of 64 positions, k
[B, T, H, K], v [B, T, H, V], the write strengths beta [B, T, H], A [B, T, H, 64], whose rows are those of a unit lower
triangular matrix per chunk and head, and the log decay g [B, T, H], already cumulated within the chunk:

    w = A (k * beta * exp(g))        u = A (v * beta)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.generators.pool import Pool
from benchmarks.generators.tasks.gdn_recompute_w_u_cuda import (
    cuda_columns,
    cuda_element,
    cuda_tiles,
    cuda_whole,
)
from benchmarks.generators.tasks.gdn_recompute_w_u_torch import TORCH, torch_half, torch_source
from benchmarks.generators.tasks.gdn_recompute_w_u_triton import (
    SCALES,
    autotuned,
    block_pointers,
    fused,
    joined_product,
    no_dots,
    one_token,
    persistent,
    scaled_copies,
    several,
    subtiles,
    tiles,
    two_kernels,
)
from benchmarks.generators.tasks.gdn_shared import SHAPES, wy_inputs

if TYPE_CHECKING:
    import torch

__all__ = [
    "OPERATION",
    "OUTPUT_DTYPES",
    "SEED",
    "SHAPES",
    "TASK",
    "TOLERANCE",
    "make_inputs",
    "make_pool",
    "reference",
]

TASK = "gdn_recompute_w_u"
OPERATION = (
    "Gated DeltaNet recompute_w_u, chunks of 64, float32: w = A (k * beta * exp(g)), u = A (v * beta)."
)
# The norm of the difference over the norm of the reference: room for tf32 dots, none for wrong mathematics.
TOLERANCE: dict[str, float] = {"relative_norm": 2e-3}
OUTPUT_DTYPES = ["float32", "float32"]


def make_inputs(shape: dict[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws unit keys, values of spread 1, strengths between 0 and 1, a falling decay, and makes A of them."""
    return wy_inputs(shape, device, seed)


def reference(
    k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, A: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Computes both products in float64, a few chunks at a time, and returns them in float32."""
    import torch

    batch, length, heads, _ = k.shape
    w, u = torch.empty_like(k), torch.empty_like(v)
    for first in range(0, length, 1024):
        span = slice(first, min(first + 1024, length))

        def split(x: torch.Tensor, span: slice = span) -> torch.Tensor:
            return x[:, span].double().reshape(batch, -1, 64, heads, x.shape[-1]).transpose(2, 3)

        strength = split(beta[..., None])
        keys = split(A) @ (split(k) * strength * split(g[..., None]).exp())
        values = split(A) @ (split(v) * strength)
        w[:, span] = keys.transpose(2, 3).reshape(batch, -1, heads, k.shape[-1]).float()
        u[:, span] = values.transpose(2, 3).reshape(batch, -1, heads, v.shape[-1]).float()
    return w, u


SEED = two_kernels(32, 16, 4, 1, "ieee")


def add_triton(pool: Pool) -> None:
    """Adds the sound Triton sources."""
    pool.add(
        two_kernels(bd, bj, warps, stages, precision)
        for bd, bj, warps, stages, precision in (
            (16, 16, 2, 1, "ieee"),
            (16, 16, 4, 1, "ieee"),
            (32, 16, 2, 1, "ieee"),
            (32, 16, 4, 1, "ieee"),
            (32, 16, 8, 1, "ieee"),
            (32, 16, 4, 3, "ieee"),
            (32, 32, 4, 1, "ieee"),
            (64, 16, 4, 1, "ieee"),
            (64, 32, 4, 1, "ieee"),
            (64, 64, 8, 1, "ieee"),
            (32, 16, 4, 1, "tf32x3"),
            (32, 32, 4, 1, "tf32x3"),
            (64, 32, 4, 2, "tf32x3"),
            (16, 16, 4, 1, "tf32"),
            (32, 16, 4, 1, "tf32"),
            (32, 32, 2, 1, "tf32"),
            (32, 32, 4, 1, "tf32"),
            (32, 64, 4, 1, "tf32"),
            (64, 32, 4, 1, "tf32"),
            (64, 32, 4, 2, "tf32"),
            (64, 64, 4, 1, "tf32"),
            (64, 64, 8, 1, "tf32"),
            (32, 32, 4, 1, "fp16"),
            (64, 64, 4, 1, "fp16"),
            (64, 64, 4, 1, "bf16"),
        )
    )
    pool.add(
        two_kernels(bd, bj, 4, 1, precision, "zeros_like")
        for bd, bj, precision in ((32, 16, "ieee"), (32, 32, "ieee"), (32, 32, "tf32"), (64, 64, "tf32"))
    )
    pool.add(
        scaled_copies(scale, bd, warps, precision)
        for scale in SCALES
        for bd, warps, precision in (
            (16, 4, "ieee"),
            (32, 4, "ieee"),
            (32, 4, "tf32"),
            (64, 4, "tf32"),
            (64, 8, "ieee"),
        )
    )
    pool.add(
        [
            scaled_copies("one_factor", 32, 4, "tf32x3"),
            scaled_copies("one_factor", 64, 8, "tf32"),
            scaled_copies("one_factor", 64, 4, "fp16"),
            scaled_copies("separate", 64, 2, "tf32"),
        ]
    )
    pool.add(
        fused(bk, bv, warps, stages, precision)
        for bk, bv, warps, stages, precision in (
            (16, 16, 4, 1, "ieee"),
            (32, 32, 4, 1, "ieee"),
            (32, 32, 8, 1, "ieee"),
            (64, 64, 4, 1, "ieee"),
            (64, 64, 8, 1, "ieee"),
            (32, 32, 4, 1, "tf32x3"),
            (64, 64, 4, 1, "tf32x3"),
            (64, 64, 8, 1, "tf32x3"),
            (16, 16, 4, 1, "tf32"),
            (32, 32, 2, 1, "tf32"),
            (32, 32, 4, 1, "tf32"),
            (32, 32, 4, 2, "tf32"),
            (32, 32, 4, 3, "tf32"),
            (32, 64, 4, 1, "tf32"),
            (64, 64, 2, 1, "tf32"),
            (64, 64, 4, 1, "tf32"),
            (64, 64, 4, 2, "tf32"),
            (64, 64, 8, 1, "tf32"),
            (64, 128, 4, 1, "tf32"),
            (128, 128, 4, 1, "tf32"),
            (128, 128, 8, 1, "tf32"),
            (32, 32, 4, 1, "fp16"),
            (32, 32, 4, 2, "fp16"),
            (64, 64, 4, 1, "fp16"),
            (64, 64, 4, 2, "fp16"),
            (64, 64, 8, 1, "bf16"),
        )
    )
    pool.add(
        fused(bd, bd, warps, stages, precision, scale)
        for scale in ("columns", "mixed")
        for bd, warps, stages, precision in (
            (32, 4, 1, "ieee"),
            (32, 4, 1, "tf32"),
            (32, 4, 2, "tf32"),
            (64, 4, 1, "tf32"),
            (64, 8, 1, "tf32"),
            (64, 4, 1, "fp16"),
        )
    )
    pool.add(
        fused(bd, bd, warps, 1, precision, "rows", "static", order)
        for bd, warps, precision, order in (
            (32, 4, "tf32", "chunks_first"),
            (64, 4, "tf32", "chunks_first"),
            (64, 8, "tf32", "chunks_first"),
            (32, 4, "ieee", "chunks_first"),
            (64, 4, "fp16", "chunks_first"),
            (64, 4, "tf32", "pairs_first"),
        )
    )
    pool.add(
        fused(bd, bd, warps, stages, precision, "rows", "range", "pairs_first")
        for bd, warps, stages, precision in (
            (32, 4, 1, "ieee"),
            (32, 4, 1, "tf32"),
            (64, 4, 1, "tf32"),
            (64, 4, 2, "tf32"),
            (64, 8, 1, "tf32"),
            (64, 4, 1, "fp16"),
        )
    )
    pool.add(
        tiles(bd, warps, precision, order, exp)
        for bd, warps, precision, order, exp in (
            (16, 2, "ieee", "tiles_first", "exp"),
            (16, 4, "ieee", "tiles_first", "exp"),
            (32, 2, "ieee", "tiles_first", "exp"),
            (32, 4, "ieee", "tiles_first", "exp"),
            (64, 4, "ieee", "tiles_first", "exp"),
            (64, 8, "ieee", "tiles_first", "exp"),
            (32, 4, "tf32x3", "tiles_first", "exp"),
            (64, 4, "tf32x3", "tiles_first", "exp"),
            (16, 2, "tf32", "tiles_first", "exp"),
            (16, 4, "tf32", "tiles_first", "exp"),
            (32, 2, "tf32", "tiles_first", "exp"),
            (32, 4, "tf32", "tiles_first", "exp"),
            (64, 2, "tf32", "tiles_first", "exp"),
            (64, 4, "tf32", "tiles_first", "exp"),
            (64, 8, "tf32", "tiles_first", "exp"),
            (32, 4, "tf32", "chunks_first", "exp"),
            (64, 4, "tf32", "chunks_first", "exp"),
            (32, 4, "ieee", "chunks_first", "exp"),
            (32, 4, "tf32", "tiles_first", "exp2"),
            (64, 4, "tf32", "tiles_first", "exp2"),
            (64, 4, "tf32", "chunks_first", "exp2"),
            (32, 4, "fp16", "tiles_first", "exp"),
            (64, 4, "fp16", "tiles_first", "exp"),
            (64, 4, "fp16", "chunks_first", "exp"),
        )
    )
    pool.add(
        block_pointers(bk, bv, warps, stages, precision, check)
        for bk, bv, warps, stages, precision, check in (
            (32, 32, 4, 1, "ieee", "checked"),
            (64, 64, 4, 1, "ieee", "checked"),
            (32, 32, 4, 1, "tf32x3", "checked"),
            (32, 32, 4, 1, "tf32", "checked"),
            (32, 32, 4, 3, "tf32", "checked"),
            (64, 64, 2, 1, "tf32", "checked"),
            (64, 64, 4, 1, "tf32", "checked"),
            (64, 64, 4, 3, "tf32", "checked"),
            (64, 64, 8, 1, "tf32", "checked"),
            (128, 128, 8, 1, "tf32", "checked"),
            (64, 64, 4, 1, "tf32", "plain"),
            (64, 64, 8, 2, "tf32", "plain"),
            (64, 64, 4, 1, "fp16", "plain"),
            (32, 32, 4, 1, "ieee", "plain"),
        )
    )


def add_more_triton(pool: Pool) -> None:
    """Adds the sound Triton sources of the rarer families."""
    pool.add(
        subtiles(bm, bd, warps, stages, precision)
        for bm, bd, warps, stages, precision in (
            (16, 32, 2, 1, "ieee"),
            (16, 64, 4, 1, "ieee"),
            (32, 32, 4, 1, "ieee"),
            (32, 64, 4, 1, "ieee"),
            (32, 64, 4, 1, "tf32x3"),
            (16, 32, 1, 1, "tf32"),
            (16, 32, 2, 1, "tf32"),
            (16, 64, 2, 1, "tf32"),
            (16, 64, 4, 2, "tf32"),
            (32, 32, 4, 1, "tf32"),
            (32, 64, 2, 1, "tf32"),
            (32, 64, 4, 1, "tf32"),
            (32, 64, 4, 2, "tf32"),
            (32, 64, 4, 1, "fp16"),
        )
    )
    pool.add(
        no_dots(bd, warps, loop)
        for bd, warps, loop in (
            (16, 2, "range"),
            (16, 4, "range"),
            (32, 2, "range"),
            (32, 4, "range"),
            (32, 8, "range"),
            (64, 4, "range"),
            (64, 8, "range"),
            (32, 4, "unrolled"),
            (64, 4, "unrolled"),
            (64, 8, "unrolled"),
        )
    )
    pool.add(
        one_token(loop, warps)
        for loop, warps in (
            ("serial", 1),
            ("serial", 2),
            ("serial", 4),
            ("vector", 2),
            ("vector", 4),
            ("vector", 8),
        )
    )
    pool.add(
        persistent(per_sm, bd, warps, precision, loop)
        for per_sm, bd, warps, precision, loop in (
            (1, 32, 4, "ieee", "range"),
            (4, 32, 4, "ieee", "range"),
            (1, 64, 4, "tf32", "range"),
            (1, 64, 8, "tf32", "range"),
            (2, 64, 4, "tf32", "range"),
            (2, 64, 8, "tf32", "range"),
            (4, 32, 4, "tf32", "range"),
            (4, 64, 4, "tf32", "range"),
            (8, 32, 2, "tf32", "range"),
            (8, 64, 4, "tf32", "range"),
            (4, 64, 4, "fp16", "range"),
            (2, 64, 4, "tf32", "staged"),
            (4, 32, 4, "tf32", "staged"),
        )
    )
    pool.add(
        several(chunks, bd, warps, precision, loop)
        for chunks, bd, warps, precision, loop in (
            (2, 32, 4, "ieee", "range"),
            (8, 32, 4, "ieee", "range"),
            (2, 32, 4, "tf32", "range"),
            (2, 64, 4, "tf32", "range"),
            (4, 64, 4, "tf32", "range"),
            (8, 64, 4, "tf32", "range"),
            (2, 64, 4, "tf32", "static"),
            (4, 32, 4, "tf32", "static"),
            (2, 64, 4, "fp16", "range"),
        )
    )
    pool.add(
        autotuned(configs, precision)
        for configs, precision in (("few", "ieee"), ("few", "tf32"), ("many", "tf32"), ("many", "fp16"))
    )
    pool.add(
        joined_product(bd, warps, precision)
        for bd, warps, precision in (
            (32, 4, "ieee"),
            (64, 8, "ieee"),
            (32, 4, "tf32"),
            (64, 4, "tf32"),
            (64, 8, "tf32"),
            (64, 4, "fp16"),
        )
    )


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(algorithm, how) for algorithm, how in TORCH)
    pool.add(
        torch_source(algorithm, how, prelude)
        for algorithm, how, prelude in (
            ("matmul", "transposed", "tf32"),
            ("matmul", "transposed", "check_finite"),
            ("matmul", "transposed", "roundtrip"),
            ("matmul", "columns_of_a", "tf32"),
            ("matmul", "columns_of_a", "synchronize"),
            ("matmul", "concatenated", "tf32"),
            ("matmul", "concatenated", "clone"),
            ("einsum", "two", "tf32"),
            ("einsum", "two", "clone"),
            ("einsum", "long_subscripts", "check_decay"),
            ("bmm", "contiguous", "tf32"),
            ("bmm", "contiguous", "check_decay"),
            ("bmm", "in_place", "tf32"),
            ("bmm", "in_place", "synchronize"),
            ("chunk_loop", "all_heads", "clone"),
            ("head_loop", "matmul", "tf32"),
        )
    )
    pool.add(torch_half(dtype) for dtype in ("float16", "bfloat16"))


def add_cuda(pool: Pool) -> None:
    """Adds the sound CUDA C++ sources."""
    pool.add(
        cuda_element(threads, bound, exp)
        for threads, bound, exp in (
            (64, "dense", "expf"),
            (128, "dense", "expf"),
            (128, "triangular", "expf"),
            (256, "triangular", "__expf"),
        )
    )
    pool.add(
        cuda_tiles(engine, fetch, threads, bd, scale)
        for engine, fetch, threads, bd, scale in (
            ("scalar", "scalar", 128, 32, "rows"),
            ("scalar", "scalar", 256, 32, "rows"),
            ("scalar", "float4", 256, 64, "rows"),
            ("strided_2x2", "scalar", 256, 32, "rows"),
            ("strided_2x2", "float4", 256, 32, "rows"),
            ("strided_4x2", "float4", 128, 32, "rows"),
            ("strided_4x2", "async", 256, 32, "rows"),
            ("strided_4x4", "scalar", 128, 32, "rows"),
            ("strided_4x4", "float4", 128, 32, "rows"),
            ("strided_4x4", "float4", 256, 64, "rows"),
            ("strided_4x4", "float4", 128, 32, "columns"),
            ("strided_4x4", "async", 128, 32, "rows"),
            ("strided_4x4", "async", 256, 64, "rows"),
            ("strided_4x4", "ldg", 256, 64, "rows"),
            ("strided_8x4", "float4", 64, 32, "rows"),
            ("strided_8x4", "float4", 128, 64, "rows"),
            ("strided_8x4", "async", 128, 64, "rows"),
            ("strided_8x4", "async", 128, 64, "columns"),
            ("blocked_2x2", "scalar", 256, 32, "rows"),
            ("blocked_4x4", "scalar", 128, 32, "rows"),
            ("blocked_4x4", "float4", 256, 64, "rows"),
            ("wmma", "scalar", 128, 32, "rows"),
            ("wmma", "float4", 128, 32, "rows"),
            ("wmma", "float4", 128, 64, "rows"),
            ("wmma", "float4", 256, 64, "rows"),
            ("wmma", "float4", 128, 64, "columns"),
            ("wmma", "async", 128, 32, "rows"),
            ("wmma", "async", 128, 64, "rows"),
            ("wmma", "async", 256, 64, "columns"),
            ("wmma_unrolled", "float4", 128, 64, "rows"),
            ("wmma_unrolled", "async", 128, 64, "rows"),
            ("wmma_unrolled", "async", 256, 64, "columns"),
        )
    )
    pool.add(
        cuda_whole(engine, fetch, threads)
        for engine, fetch, threads in (
            ("scalar", "scalar", 256),
            ("scalar", "float4", 512),
            ("strided_2x2", "float4", 256),
            ("strided_4x4", "scalar", 256),
            ("strided_4x4", "float4", 128),
            ("strided_4x4", "float4", 256),
            ("strided_4x4", "async", 256),
            ("strided_8x4", "float4", 128),
            ("strided_8x4", "async", 128),
            ("blocked_4x4", "float4", 256),
            ("wmma", "float4", 128),
            ("wmma", "float4", 256),
            ("wmma", "async", 256),
            ("wmma_unrolled", "async", 128),
            ("wmma_unrolled", "async", 256),
        )
    )
    pool.add(
        cuda_columns(rows, threads, fetch)
        for rows, threads, fetch in (
            ("dense", 32, "scalar"),
            ("dense", 64, "scalar"),
            ("dense", 64, "float4"),
            ("quads", 32, "float4"),
            ("quads", 64, "scalar"),
            ("quads", 64, "float4"),
            ("quads", 64, "async"),
            ("quads", 128, "float4"),
            ("triangular", 64, "float4"),
            ("triangular", 128, "float4"),
            ("triangular", 64, "async"),
            ("two_rows", 64, "float4"),
            ("two_rows", 128, "async"),
        )
    )


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    pool.add_broken(
        SEED,
        decay_left_out={"DECAY=True": "DECAY=False"},
        undefined_name={"factor = tl.load(beta_ptr": "scale = tl.load(beta_ptr"},
        tile_not_power_of_two={"BD = 32": "BD = 24"},
        half_of_the_chunk={"range(0, BT, BJ)": "range(0, BT // 2, BJ)"},
    )
    pool.add_broken(
        two_kernels(64, 64, 4, 1, "tf32"),
        pointer_far_out={"x_ptr + token[:, None] * D": "x_ptr + token[:, None].to(tl.int64) * D * 65536"},
        small_dot={"BJ=64": "BJ=8"},
        wrong_axis={"factor[:, None]": "factor[None, :]"},
    )
    pool.add_broken(
        scaled_copies("one_factor", 32, 4, "tf32"),
        factors_added={"beta * g.exp()": "beta + g.exp()"},
        outputs_swapped={
            "return apply(A, kb, 32), apply(A, v": "return apply(A, v",
            "None], 32)": "None], 32), apply(A, kb, 32)",
        },
    )
    pool.add_broken(
        fused(64, 64, 4, 2, "tf32"),
        decay_twice={"factor = beta * decay": "factor = beta * decay * decay"},
        too_many_warps={"num_warps=4": "num_warps=64"},
        warps_not_power_of_two={"num_warps=4": "num_warps=3"},
        transposed={"tl.dot(a, vt)": "tl.dot(tl.trans(a), vt)"},
    )
    pool.add_broken(
        fused(64, 64, 4, 1, "fp16"),
        mixed_types={"a.to(tl.float16), vt.to(tl.float16)": "a.to(tl.float16), vt"},
        float16_decay={"tl.exp(tl.load(G_ + tok))": "tl.exp(tl.load(G_ + tok).to(tl.float16))"},
    )
    pool.add_broken(
        tiles(32, 4, "tf32"),
        first_tile_of_v={"(tile - K // BD) * BD": "tile * 0"},
        too_few_tiles={"tiles = K // BD + V // BD": "tiles = K // BD"},
        syntax_error={"    else:\n        p = t": "    else\n        p = t"},
    )
    pool.add_broken(
        block_pointers(64, 64, 4, 1, "tf32"),
        order_of_strides={"(T, V), (H * V, 1)": "(T, V), (V, 1)"},
        length_of_block={"(i_t * BT,), (BT,), (0,)": "(i_t * BT,), (BT, 1), (0,)"},
    )
    pool.add_broken(
        subtiles(32, 64, 4, 1, "tf32"),
        diagonal_left_out={"range(0, sub + 1)": "range(0, sub)"},
        strength_for_both={"A, strength, beta,": "A, strength, strength,"},
    )
    pool.add_broken(
        no_dots(64, 8),
        very_long_loop={
            "        for j in range(64):\n": "        for i in range(64 * 30000000):\n            j = i % 64\n"
        },
        row_for_column={"a_ptr + tok * 64 + j": "a_ptr + j * 64 + tok % 64"},
    )
    pool.add_broken(
        persistent(2, 64, 4, "tf32"),
        head_and_chunk_swapped={"n = job % H": "n = job // H", "chunk = job // H": "chunk = job % H"},
        one_round_only={
            "range(tl.program_id(0), total, tl.num_programs(0))": "range(tl.program_id(0), tl.num_programs(0), total)"
        },
    )
    pool.add_broken(several(2, 64, 4, "tf32"), last_chunks_left_out={"T // 64, 2)": "T // 64, 4)"})
    pool.add_broken(
        joined_product(64, 4, "tf32"), not_transposed_back={"y.transpose(2, 3).reshape": "y.reshape"}
    )


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(torch_source("einsum", "two"), subscripts={"bnihj,bnjhk->bnihk": "bnihj,bnihk->bnjhk"})
    pool.add_broken(torch_source("matmul", "transposed"), no_decay={" * gc.exp()": ""})
    pool.add_broken(
        torch_source("matmul", "columns_of_a"),
        rows_for_columns={"unsqueeze(-2)": "unsqueeze(-1)"},
        view_of_transposed={".transpose(2, 3).contiguous().view(": ".transpose(2, 3).view("},
    )
    pool.add_broken(
        torch_source("bmm", "contiguous"),
        chunks_mixed_up={
            ".permute(0, 1, 3, 2, 4).contiguous().view(B, T, H, D)": ".contiguous().view(B, T, H, D)"
        },
    )
    pool.add_broken(
        torch_source("bmm", "in_place"), input_changed={"a = rows(A, 64).clone()": "a = A.unsqueeze(-2)"}
    )
    pool.add_broken(torch_source("row_loop", "accumulate"), off_by_one={"range(64)": "range(63)"})


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    raised = (
        "  cudaFuncSetAttribute(whole_chunk<K, V>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);\n"
    )
    pool.add_broken(
        cuda_whole("strided_4x4", "float4", 256),
        limit_not_raised={raised: ""},
        undeclared_variable={"es[i] = fs[i] * __expf": "es[i] = factor * __expf"},
    )
    pool.add_broken(
        cuda_tiles("strided_4x4", "async", 128, 32),
        copies_not_awaited={"  __pipeline_wait_prior(0);\n": ""},
        stride_of_head={"(size_t)H * 64)": "(size_t)64)"},
    )
    pool.add_broken(
        cuda_tiles("wmma", "float4", 128, 64),
        misaligned_rows={"LA = 68, LD = BD + 4": "LA = 65, LD = BD + 1"},
    )
    pool.add_broken(
        cuda_columns("quads", 64, "float4"),
        one_product_missing={"fmaf(a.z, x[j + 2], fmaf(a.w, x[j + 3], s1))": "fmaf(a.z, x[j + 2], s1)"},
        type_mismatch={
            "const float4 a = *reinterpret_cast<const float4*>": "const float4 a = *reinterpret_cast<const float2*>"
        },
    )
    pool.add_broken(cuda_element(128, "triangular"), diagonal_left_out={"j <= t % 64": "j < t % 64"})


def link_triton(pool: Pool) -> None:
    """Names the changes of algorithm between Triton sources."""
    for bd, warps, precision in (
        (16, 4, "ieee"),
        (32, 4, "ieee"),
        (64, 8, "ieee"),
        (32, 4, "tf32"),
        (64, 4, "tf32"),
        (64, 8, "tf32"),
        (64, 4, "fp16"),
    ):
        bj = min(bd, 64)
        pool.link(two_kernels(bd, bj, warps, 1, precision), tiles(bd, warps, precision))
        pool.link(two_kernels(bd, bj, warps, 1, precision), scaled_copies("one_factor", bd, warps, precision))
        pool.link(tiles(bd, warps, precision), fused(bd, bd, warps, 1, precision))
    for bd, warps, precision, stages in (
        (32, 4, "ieee", 1),
        (64, 4, "ieee", 1),
        (32, 4, "tf32x3", 1),
        (32, 4, "tf32", 1),
        (32, 4, "tf32", 3),
        (64, 2, "tf32", 1),
        (64, 4, "tf32", 1),
        (64, 8, "tf32", 1),
        (128, 8, "tf32", 1),
    ):
        pool.link(
            fused(bd, bd, warps, stages, precision),
            block_pointers(bd, bd, warps, stages, precision, "checked"),
        )
    for per_sm, bd, warps, precision in (
        (1, 32, 4, "ieee"),
        (4, 32, 4, "ieee"),
        (1, 64, 4, "tf32"),
        (1, 64, 8, "tf32"),
        (2, 64, 4, "tf32"),
        (4, 32, 4, "tf32"),
        (4, 64, 4, "tf32"),
    ):
        pool.link(persistent(per_sm, bd, warps, precision), fused(bd, bd, warps, 1, precision))
    pool.link(persistent(4, 64, 4, "fp16"), fused(64, 64, 4, 1, "fp16"))
    for chunks, bd, precision in (
        (2, 32, "ieee"),
        (2, 32, "tf32"),
        (2, 64, "tf32"),
        (4, 64, "tf32"),
        (2, 64, "fp16"),
    ):
        pool.link(several(chunks, bd, 4, precision), tiles(bd, 4, precision))
    pool.link(several(8, 32, 4, "ieee"), several(2, 32, 4, "ieee"))
    for bm, bd, warps, precision in (
        (32, 32, 4, "ieee"),
        (32, 64, 4, "ieee"),
        (16, 32, 2, "ieee"),
        (32, 64, 4, "tf32x3"),
        (16, 32, 2, "tf32"),
        (32, 32, 4, "tf32"),
        (32, 64, 4, "tf32"),
        (32, 64, 4, "fp16"),
    ):
        pool.link(subtiles(bm, bd, warps, 1, precision), tiles(bd, warps, precision))
    for bd, warps in ((16, 2), (16, 4), (32, 2), (32, 4), (64, 4), (64, 8)):
        pool.link(no_dots(bd, warps), tiles(bd, warps, "ieee"))
    pool.link(autotuned("few", "ieee"), tiles(32, 4, "ieee"))
    pool.link(autotuned("few", "tf32"), tiles(64, 4, "tf32"))
    pool.link(autotuned("many", "fp16"), tiles(64, 4, "fp16"))
    pool.link(one_token("serial", 4), no_dots(64, 4))
    pool.link(one_token("vector", 4), SEED)
    pool.link(one_token("serial", 4), cuda_element(128, "triangular"))
    for bd, warps, precision in (
        (32, 4, "ieee"),
        (32, 4, "tf32"),
        (64, 4, "tf32"),
        (64, 8, "ieee"),
        (64, 4, "fp16"),
    ):
        pool.link(joined_product(bd, warps, precision), scaled_copies("one_factor", bd, warps, precision))
    pool.link(scaled_copies("separate", 32, 4, "ieee"), SEED)


def link_torch(pool: Pool) -> None:
    """Names those between PyTorch sources, and from them to others."""
    pool.link(
        torch_source("einsum", "long_subscripts"),
        torch_source("einsum", "two"),
        torch_source("matmul", "transposed"),
        torch_source("bmm", "contiguous"),
        torch_source("bmm", "in_place"),
        torch_source("matmul", "columns_of_a"),
        torch_source("matmul", "transposed"),
        torch_source("matmul", "concatenated"),
        torch_source("solve", "triangular"),
        torch_source("matmul", "transposed"),
        torch_source("chunk_loop", "all_heads"),
        torch_source("chunk_loop", "list_and_cat"),
        torch_source("einsum", "two"),
        torch_source("row_loop", "accumulate"),
        torch_source("row_loop", "dot_per_row"),
        torch_source("broadcast_sum", "no_matmul"),
        torch_source("chunk_loop", "all_heads"),
        torch_source("head_loop", "matmul"),
        torch_source("bmm", "contiguous"),
        torch_source("float64", "matmul"),
        torch_source("matmul", "transposed"),
        torch_source("vmap", "per_chunk"),
    )
    pool.link(torch_source("matmul", "transposed"), SEED)
    pool.link(torch_source("matmul", "transposed"), scaled_copies("separate", 32, 4, "ieee"))
    pool.link(torch_source("matmul", "columns_of_a"), scaled_copies("into_a", 32, 4, "ieee"))
    pool.link(torch_source("matmul", "concatenated"), joined_product(32, 4, "ieee"))


def link_cuda(pool: Pool) -> None:
    """Names those between CUDA C++ sources, and from them to others."""
    pool.link(cuda_element(128), cuda_tiles("scalar", "scalar", 128, 32), SEED)
    pool.link(cuda_tiles("scalar", "scalar", 256, 32), cuda_whole("scalar", "scalar", 256))
    for engine, fetch, threads, bd in (
        ("strided_4x4", "float4", 256, 64),
        ("strided_4x4", "async", 256, 64),
        ("strided_8x4", "float4", 128, 64),
        ("strided_8x4", "async", 128, 64),
        ("blocked_4x4", "float4", 256, 64),
        ("wmma", "float4", 128, 64),
        ("wmma", "float4", 256, 64),
        ("wmma_unrolled", "async", 128, 64),
    ):
        pool.link(cuda_tiles(engine, fetch, threads, bd), cuda_whole(engine, fetch, threads))
    pool.link(cuda_tiles("wmma", "float4", 128, 64), tiles(64, 4, "tf32"))
    pool.link(cuda_tiles("strided_4x4", "float4", 128, 32), tiles(32, 4, "ieee"))
    pool.link(cuda_columns("dense", 64, "scalar"), cuda_element(64))
    pool.link(cuda_columns("quads", 128, "float4"), cuda_tiles("strided_4x4", "float4", 128, 32))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_triton,
        add_more_triton,
        add_torch,
        add_cuda,
        break_triton,
        break_torch,
        break_cuda,
        link_triton,
        link_torch,
        link_cuda,
        Pool.link_retuned,
    )
