"""Generator of the recorded task ``gdn_chunk_h``: the states of a chunked Gated DeltaNet.

Every source defines ``run(k, w, u, g)`` and returns ``(h, v_new)``, all float32. With chunks of 64 positions, k and w
[B, T, H, K], u [B, T, H, V] and the log decay g [B, T, H], already cumulated within the chunk, h [B, T / 64, H, K, V]
holds the state at the start of each chunk and v_new [B, T, H, V] what is written; from a state of zeros, per chunk:

    v_new = u - w h
    h <- h * exp(g_last) + k^T (v_new * exp(g_last - g))

The chunks follow one another; heads and columns of V are independent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.generators.pool import Pool
from benchmarks.generators.tasks.gdn_chunk_h_cuda import cuda_columns, cuda_launches, cuda_tiles
from benchmarks.generators.tasks.gdn_chunk_h_torch import TORCH, torch_source
from benchmarks.generators.tasks.gdn_chunk_h_triton import (
    autotuned,
    fused,
    halves,
    no_dots,
    per_chunk,
    prefetch,
    segments,
    state_in_memory,
    torch_scan,
    transition,
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

TASK = "gdn_chunk_h"
OPERATION = (
    "Gated DeltaNet chunk_fwd_h, chunks of 64, float32: h at the start of each chunk, v_new = u - w h, "
    "h <- h * exp(g_last) + k^T (v_new * exp(g_last - g))."
)
# The norm of the difference over the norm of the reference: room for tf32 dots, none for wrong mathematics.
TOLERANCE: dict[str, float] = {"relative_norm": 2e-3}
OUTPUT_DTYPES = ["float32", "float32"]


def make_inputs(shape: dict[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws unit keys and makes w and u of them as the network does, so that the states stay bounded."""
    k, v, beta, inverse, g = wy_inputs(shape, device, seed)
    batch, length, heads, _ = k.shape

    def product(x: torch.Tensor) -> torch.Tensor:
        chunks = (batch, length // 64, 64, heads, -1)
        out = inverse.view(chunks).transpose(2, 3) @ x.reshape(chunks).transpose(2, 3)
        return out.transpose(2, 3).reshape(batch, length, heads, -1).contiguous()

    return k, product(k * (beta * g.exp())[..., None]), product(v * beta[..., None]), g


def reference(k: torch.Tensor, w: torch.Tensor, u: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Walks along the chunks in float64 and returns float32."""
    import torch

    batch, length, heads, k_dim = k.shape
    v_dim = u.shape[-1]
    h = torch.empty(batch, length // 64, heads, k_dim, v_dim, dtype=torch.float32, device=k.device)
    v_new = torch.empty_like(u)
    state = torch.zeros(batch, heads, k_dim, v_dim, dtype=torch.float64, device=k.device)
    for chunk in range(length // 64):
        span = slice(chunk * 64, chunk * 64 + 64)
        kc, wc, uc, gc = (x[:, span].double().transpose(1, 2) for x in (k, w, u, g[..., None]))
        h[:, chunk] = state.float()
        written = uc - wc @ state
        v_new[:, span] = written.transpose(1, 2).float()
        last = gc[:, :, -1:]
        state = state * last.exp() + kc.transpose(-1, -2) @ (written * (last - gc).exp())
    return h, v_new


SEED = state_in_memory(32, 32, 4, 1, "ieee")


def add_walks(pool: Pool) -> None:
    """Adds the sound Triton sources that walk along the chunks in one kernel."""
    pool.add(
        state_in_memory(bv, bk, warps, stages, precision)
        for bv, bk, warps, stages, precision in (
            (16, 16, 4, 1, "ieee"),
            (16, 32, 4, 1, "ieee"),
            (32, 16, 4, 1, "ieee"),
            (32, 32, 2, 1, "ieee"),
            (32, 32, 4, 1, "ieee"),
            (32, 32, 8, 1, "ieee"),
            (32, 32, 4, 3, "ieee"),
            (32, 64, 4, 1, "ieee"),
            (64, 32, 4, 1, "ieee"),
            (64, 64, 8, 1, "ieee"),
            (32, 32, 4, 1, "tf32x3"),
            (32, 64, 4, 1, "tf32x3"),
            (64, 64, 8, 1, "tf32x3"),
            (16, 16, 4, 1, "tf32"),
            (16, 32, 4, 1, "tf32"),
            (32, 32, 4, 1, "tf32"),
            (32, 32, 4, 3, "tf32"),
            (32, 64, 4, 1, "tf32"),
            (64, 32, 4, 1, "tf32"),
            (64, 64, 4, 2, "tf32"),
            (64, 64, 8, 1, "tf32"),
            (32, 64, 4, 1, "fp16"),
            (64, 64, 4, 2, "fp16"),
        )
    )
    pool.add(
        fused(bv, warps, stages, precision)
        for precision, sizes in (
            ("ieee", ((16, 2, 1), (16, 4, 1), (16, 8, 1), (32, 4, 1), (32, 8, 1), (64, 8, 1), (16, 4, 2))),
            ("tf32x3", ((16, 4, 1), (32, 4, 1), (32, 8, 1), (64, 8, 1), (16, 4, 2))),
            (
                "tf32",
                (
                    (16, 2, 1),
                    (16, 4, 1),
                    (16, 4, 2),
                    (16, 4, 3),
                    (32, 2, 1),
                    (32, 4, 1),
                    (32, 4, 2),
                    (32, 8, 1),
                    (32, 8, 2),
                    (64, 4, 1),
                    (64, 4, 2),
                    (64, 8, 1),
                    (64, 8, 2),
                    (64, 16, 1),
                ),
            ),
            ("fp16", ((16, 4, 2), (32, 4, 1), (32, 4, 2), (32, 4, 3), (64, 4, 2), (64, 8, 2))),
            ("bf16", ((32, 4, 2), (64, 8, 1))),
        )
        for bv, warps, stages in sizes
    )
    pool.add(
        fused(bv, warps, stages, precision, decay)
        for decay in ("on_keys", "transposed")
        for bv, warps, stages, precision in (
            (16, 4, 1, "ieee"),
            (32, 4, 1, "tf32x3"),
            (16, 4, 2, "tf32"),
            (32, 4, 1, "tf32"),
            (32, 4, 2, "tf32"),
            (64, 4, 1, "tf32"),
            (64, 8, 2, "tf32"),
            (32, 4, 2, "fp16"),
        )
    )
    pool.add(
        fused(bv, warps, stages, "tf32", "accumulated")
        for bv, warps, stages in ((16, 4, 2), (32, 4, 1), (32, 4, 2), (64, 8, 2))
    )
    pool.add(
        fused(bv, warps, 1, precision, "on_values", loop)
        for loop in ("tl_range", "staged_2", "staged_3")
        for bv, warps, precision in ((16, 4, "tf32"), (32, 4, "tf32"), (32, 4, "fp16"))
        if (loop, bv, precision) != ("staged_3", 32, "tf32")  # more shared memory than there is
    )
    pool.add(
        fused(bv, warps, stages, precision, "on_values", "range", "hints")
        for bv, warps, stages, precision in (
            (16, 4, 2, "tf32"),
            (32, 4, 2, "tf32"),
            (64, 8, 2, "tf32"),
            (32, 4, 2, "fp16"),
            (16, 4, 1, "ieee"),
        )
    )
    pool.add(
        halves(bv, warps, stages, precision, check)
        for bv, warps, stages, precision, check in (
            (16, 4, 1, "ieee", "checked"),
            (32, 4, 1, "ieee", "checked"),
            (32, 4, 2, "ieee", "checked"),
            (32, 8, 1, "ieee", "checked"),
            (64, 8, 1, "ieee", "checked"),
            (32, 4, 1, "tf32x3", "checked"),
            (64, 8, 1, "tf32x3", "checked"),
            (16, 4, 2, "tf32", "checked"),
            (32, 2, 1, "tf32", "checked"),
            (32, 4, 1, "tf32", "checked"),
            (32, 4, 2, "tf32", "checked"),
            (16, 4, 3, "tf32", "checked"),
            (64, 4, 1, "tf32", "checked"),
            (64, 4, 2, "tf32", "checked"),
            (64, 8, 2, "tf32", "checked"),
            (32, 4, 1, "ieee", "plain"),
            (16, 4, 2, "tf32", "plain"),
            (32, 4, 2, "tf32", "plain"),
            (64, 4, 2, "tf32", "plain"),
            (64, 8, 2, "tf32", "plain"),
            (32, 4, 2, "fp16", "plain"),
            (64, 4, 2, "fp16", "plain"),
            (64, 8, 2, "fp16", "checked"),
        )
    )
    pool.add(
        prefetch(bv, warps, precision, order)
        for bv, warps, precision, order in (
            (16, 4, "ieee", "tiles_first"),
            (32, 8, "ieee", "tiles_first"),
            (32, 4, "tf32x3", "tiles_first"),
            (16, 4, "tf32", "tiles_first"),
            (16, 8, "tf32", "tiles_first"),
            (32, 4, "tf32", "tiles_first"),
            (32, 8, "tf32", "tiles_first"),
            (64, 4, "tf32", "tiles_first"),
            (64, 8, "tf32", "tiles_first"),
            (16, 4, "tf32", "pairs_first"),
            (32, 4, "tf32", "pairs_first"),
            (32, 8, "tf32", "pairs_first"),
            (32, 4, "fp16", "tiles_first"),
            (64, 8, "fp16", "tiles_first"),
        )
    )
    pool.add(
        no_dots(bv, warps, stages, loop)
        for bv, warps, stages, loop in (
            (2, 1, 1, "range"),
            (4, 1, 1, "range"),
            (4, 2, 1, "range"),
            (4, 4, 1, "range"),
            (8, 1, 1, "range"),
            (8, 2, 1, "range"),
            (8, 4, 1, "range"),
            (16, 4, 1, "range"),
            (32, 4, 1, "range"),
            (4, 1, 3, "range"),
            (8, 2, 3, "range"),
            (4, 1, 1, "tl_range"),
            (8, 2, 1, "tl_range"),
            (16, 4, 1, "tl_range"),
        )
    )
    pool.add(autotuned(configs, precision) for configs, precision in (("few", "tf32"), ("many", "tf32")))
    pool.add([autotuned("few", "ieee"), autotuned("few", "fp16")])


def add_launches(pool: Pool) -> None:
    """Adds the sound Triton sources of several launches."""
    pool.add(
        per_chunk(kernels, bv, warps, alloc, precision)
        for kernels, bv, warps, alloc, precision in (
            ("one", 16, 4, "empty", "ieee"),
            ("one", 32, 4, "empty", "ieee"),
            ("one", 32, 8, "empty", "ieee"),
            ("one", 32, 4, "zeros", "ieee"),
            ("one", 32, 4, "empty", "tf32x3"),
            ("one", 16, 4, "empty", "tf32"),
            ("one", 32, 4, "empty", "tf32"),
            ("one", 64, 4, "empty", "tf32"),
            ("one", 64, 8, "empty", "tf32"),
            ("one", 32, 4, "zeros", "tf32"),
            ("one", 32, 4, "empty", "fp16"),
            ("two", 16, 4, "zeros", "ieee"),
            ("two", 32, 4, "zeros", "ieee"),
            ("two", 32, 4, "empty", "ieee"),
            ("two", 64, 4, "empty", "ieee"),
            ("two", 32, 4, "empty", "tf32x3"),
            ("two", 16, 4, "empty", "tf32"),
            ("two", 32, 2, "empty", "tf32"),
            ("two", 32, 4, "empty", "tf32"),
            ("two", 64, 4, "empty", "tf32"),
            ("two", 64, 4, "empty", "fp16"),
        )
    )
    pool.add(
        transition(bv, bk, warps, stages, precision)
        for bv, bk, warps, stages, precision in (
            (16, 16, 4, 1, "ieee"),
            (16, 32, 4, 1, "ieee"),
            (32, 32, 4, 1, "ieee"),
            (32, 32, 8, 1, "ieee"),
            (32, 32, 4, 1, "tf32x3"),
            (16, 32, 4, 1, "tf32"),
            (16, 32, 4, 2, "tf32"),
            (16, 64, 4, 3, "tf32"),
            (32, 32, 4, 1, "tf32"),
            (32, 32, 4, 2, "tf32"),
            (32, 64, 4, 2, "tf32"),
            (32, 64, 8, 2, "tf32"),
            (64, 64, 4, 2, "tf32"),
            (64, 64, 8, 1, "tf32"),
            (16, 32, 4, 2, "fp16"),
            (32, 64, 4, 2, "fp16"),
        )
    )
    pool.add(
        segments(count, bv, warps, stages, precision)
        for count, bv, warps, stages, precision in (
            (4, 16, 4, 1, "ieee"),
            (4, 32, 4, 1, "ieee"),
            (2, 32, 8, 1, "ieee"),
            (4, 32, 4, 1, "tf32x3"),
            (2, 32, 4, 1, "tf32"),
            (2, 32, 4, 2, "tf32"),
            (2, 64, 4, 1, "tf32"),
            (4, 16, 4, 2, "tf32"),
            (4, 32, 4, 1, "tf32"),
            (4, 32, 4, 2, "tf32"),
            (4, 64, 4, 1, "tf32"),
            (4, 64, 4, 2, "tf32"),
            (4, 64, 8, 1, "tf32"),
            (8, 32, 4, 1, "tf32"),
            (8, 32, 4, 2, "tf32"),
            (8, 64, 4, 1, "tf32"),
            (8, 64, 8, 1, "tf32"),
            (16, 64, 4, 1, "tf32"),
            (4, 32, 4, 2, "fp16"),
            (8, 64, 4, 1, "fp16"),
        )
    )
    pool.add(
        torch_scan(transition, bv, warps, precision)
        for transition, bv, warps, precision in (
            ("two_products", 16, 4, "ieee"),
            ("two_products", 32, 4, "ieee"),
            ("two_products", 32, 8, "ieee"),
            ("two_products", 16, 4, "tf32"),
            ("two_products", 32, 4, "tf32"),
            ("two_products", 16, 8, "tf32"),
            ("two_products", 32, 4, "fp16"),
            ("joined", 16, 4, "tf32"),
            ("joined", 32, 4, "tf32"),
            ("joined", 32, 8, "ieee"),
        )
    )


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(algorithm, how) for algorithm, how in TORCH)
    pool.add(
        torch_source(algorithm, how, prelude)
        for algorithm, how, prelude in (
            ("loop", "matmul", "tf32"),
            ("loop", "matmul", "clone"),
            ("loop", "matmul", "check_finite"),
            ("loop", "bmm", "tf32"),
            ("loop", "bmm", "synchronize"),
            ("loop", "bmm", "check_decay"),
            ("loop", "baddbmm", "tf32"),
            ("loop", "baddbmm", "clone"),
            ("loop", "joined_rows", "tf32"),
            ("loop", "einsum", "tf32"),
            ("loop", "einsum", "roundtrip"),
            ("transition", "addmm_loop", "tf32"),
            ("transition", "addmm_loop", "clone"),
            ("transition", "baddbmm_out", "tf32"),
            ("transition", "baddbmm_out", "synchronize"),
            ("transition", "doubling", "tf32"),
            ("transition", "doubling", "check_finite"),
            ("transition", "doubling", "roundtrip"),
            ("transition", "blocks_of_eight", "tf32"),
            ("transition", "blocks_of_eight", "check_decay"),
        )
    )


def add_cuda(pool: Pool) -> None:
    """Adds the sound CUDA C++ sources."""
    pool.add(
        cuda_tiles(engine, fetch, threads, bv)
        for engine, fetch, threads, bv in (
            ("scalar", "scalar", 128, 16),
            ("scalar", "scalar", 256, 16),
            ("scalar", "scalar", 256, 32),
            ("scalar", "float4", 256, 32),
            ("scalar", "float4", 512, 32),
            ("strided_2x2", "scalar", 128, 16),
            ("strided_2x2", "scalar", 256, 32),
            ("strided_2x2", "float4", 256, 16),
            ("strided_2x2", "float4", 256, 32),
            ("strided_2x2", "async", 256, 16),
            ("strided_4x2", "scalar", 128, 16),
            ("strided_4x2", "float4", 128, 16),
            ("strided_4x2", "float4", 256, 32),
            ("strided_4x2", "async", 128, 16),
            ("strided_4x2", "async", 256, 32),
            ("strided_4x4", "scalar", 128, 32),
            ("strided_4x4", "float4", 128, 32),
            ("strided_4x4", "float4", 256, 64),
            ("strided_4x4", "ldg", 128, 32),
            ("strided_4x4", "async", 64, 16),
            ("strided_4x4", "async", 128, 32),
            ("strided_8x4", "float4", 64, 32),
            ("strided_8x4", "async", 128, 64),
            ("blocked_2x2", "scalar", 256, 32),
            ("blocked_2x2", "float4", 256, 32),
            ("blocked_4x4", "scalar", 128, 32),
            ("blocked_4x4", "ldg", 128, 32),
            ("wmma", "scalar", 128, 32),
            ("wmma", "float4", 128, 16),
            ("wmma", "float4", 128, 32),
            ("wmma", "float4", 256, 32),
            ("wmma", "float4", 256, 64),
            ("wmma", "async", 128, 16),
            ("wmma", "async", 256, 32),
            ("wmma", "async", 256, 64),
            ("wmma_unrolled", "float4", 256, 32),
            ("wmma_unrolled", "async", 128, 16),
            ("wmma_unrolled", "async", 256, 32),
        )
    )
    pool.add(
        cuda_tiles(engine, "async", threads, bv, 2)
        for engine, threads, bv in (
            ("strided_2x2", 256, 16),
            ("strided_4x2", 128, 16),
            ("strided_4x2", 256, 32),
            ("strided_4x4", 128, 32),
            ("wmma", 128, 16),
            ("wmma", 256, 32),
            ("wmma_unrolled", 128, 16),
            ("wmma_unrolled", 256, 32),
        )
    )
    pool.add(
        cuda_columns(split, columns, fetch, unroll, rows)
        for split, columns, fetch, unroll, rows in (
            (4, 16, "float4", 1, "cyclic"),
            (4, 32, "float4", 1, "cyclic"),
            (8, 8, "scalar", 1, "cyclic"),
            (8, 8, "float4", 1, "cyclic"),
            (8, 16, "scalar", 1, "cyclic"),
            (8, 16, "float4", 1, "cyclic"),
            (8, 16, "float4", 2, "cyclic"),
            (8, 16, "float4", 4, "cyclic"),
            (8, 16, "async", 4, "cyclic"),
            (8, 32, "float4", 1, "cyclic"),
            (16, 4, "float4", 1, "cyclic"),
            (16, 8, "float4", 1, "cyclic"),
            (16, 8, "float4", 4, "cyclic"),
            (16, 8, "async", 4, "cyclic"),
            (16, 16, "float4", 2, "cyclic"),
            (32, 4, "float4", 1, "cyclic"),
            (32, 4, "float4", 4, "cyclic"),
            (32, 8, "float4", 4, "cyclic"),
            (8, 16, "float4", 1, "blocked"),
            (16, 8, "float4", 4, "blocked"),
        )
    )
    pool.add(
        cuda_launches(threads, exp, unroll)
        for threads, exp, unroll in ((64, "expf", 0), (128, "expf", 0), (256, "expf", 0), (128, "__expf", 8))
    )


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    pool.add_broken(
        SEED,
        added_instead={"v -= tl.dot(": "v += tl.dot("},
        undefined_name={"g_last = tl.load(g_ptr": "g_end = tl.load(g_ptr"},
        tile_not_power_of_two={"BV = min(32, V)": "BV = min(48, V)"},
        state_left_undefined={"torch.zeros(": "torch.empty("},
    )
    pool.add_broken(
        state_in_memory(64, 64, 4, 2, "tf32"),
        half_of_k={"for k_start in range(0, K, BK)": "for k_start in range(0, K // 2, BK)"},
        pointer_far_out={"+ chunk) * H + head) * K * V": "+ chunk) * H + head).to(tl.int64) * K * V * 65536"},
    )
    pool.add_broken(
        fused(32, 4, 1, "tf32"),
        no_decay_of_state={"state * tl.exp(last) +": "state +"},
        decay_sign={"tl.exp(last - gt)": "tl.exp(gt - last)"},
        stored_too_late={
            "        tl.store(at + d[:, None] * DV + e[None, :], state)\n": "",
            "tl.dot(kt, vt)": "tl.dot(kt, vt)\n        tl.store(at + d[:, None] * DV + e[None, :], state)",
        },
        missing_transpose={
            "K_ + tok[None, :] * DK + d[:, None]": "K_ + tok[:, None] * DK + d[None, :]",
        },
        very_long_loop={
            "for c in range(0, n_chunks):\n": (
                "for step in range(0, n_chunks * 30000000):\n        c = step % n_chunks\n"
            )
        },
    )
    pool.add_broken(
        fused(64, 8, 2, "tf32"),
        shared_memory_overflow={"num_stages=2": "num_stages=6"},
        warps_not_power_of_two={"num_warps=8": "num_warps=12"},
        first_tile_only={"tl.program_id(0) * BV": "0 * BV"},
    )
    pool.add_broken(
        fused(32, 4, 2, "fp16"),
        mixed_types={"wt.to(tl.float16), state.to(tl.float16)": "wt.to(tl.float16), state"},
        state_in_float16={"[DK, BV], dtype=tl.float32": "[DK, BV], dtype=tl.float16"},
    )
    pool.add_broken(
        halves(32, 4, 2, "tf32", "checked"),
        second_half_forgotten={"            b_h2 = b_h2 * b_gl\n": ""},
        order_of_strides={"(T, V), (H * V, 1), (i_t * 64, i_v * BV)": "(T, V), (V, 1), (i_t * 64, i_v * BV)"},
        length_of_block={"(i_t * 64,), (64,), (0,)": "(i_t * 64,), (64, 1), (0,)"},
    )
    pool.add_broken(
        prefetch(32, 4, "tf32"),
        no_step_of_tokens={"        tok = ahead\n": ""},
        values_of_next_chunk={"u = tl.load(u_ptr + tok": "u = tl.load(u_ptr + 64 * NH * V + tok"},
    )
    pool.add_broken(
        per_chunk("two", 32, 4, "empty", "tf32"),
        chunk_left_out={"for chunk in range(T // 64)": "for chunk in range(1, T // 64)"},
        syntax_error={"for chunk in range(T // 64):": "for chunk in range(T // 64)"},
    )
    pool.add_broken(
        transition(32, 32, 4, 2, "tf32"),
        plus_for_minus={"eye - tl.dot(kt, wt)": "eye + tl.dot(kt, wt)"},
        no_decay_on_diagonal={"tl.exp(last), 0.0)": "1.0, 0.0)"},
    )
    pool.add_broken(
        segments(4, 32, 4, 1, "tf32"),
        segments_start_at_zero={
            "+ dv[None, :], state)\n        m =": "+ dv[None, :], 0 * state)\n        m ="
        },
        wrong_offset={"K + dv[None, :])": "dv[None, :])"},
    )
    pool.add_broken(
        no_dots(8, 2),
        sum_over_wrong_axis={"state, axis=0)": "state, axis=1)"},
        state_within_chunk={"u - tl.sum(w[:, None] * state,": "u - tl.sum(w[:, None] * (state + added),"},
    )
    pool.add_broken(torch_scan("joined", 32, 4, "tf32"), halves_swapped={"[wc, uc]": "[uc, wc]"})


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(
        torch_source("loop", "matmul"),
        state_before_chunk={"v = v * torch.exp(last - gc)[..., None]": "v = v * torch.exp(-gc)[..., None]"},
        no_transpose={"kc.transpose(-1, -2) @ v": "kc @ v"},
    )
    pool.add_broken(
        torch_source("loop", "bmm"), in_place_on_the_input={".contiguous().view(T // 64": ".view(T // 64"}
    )
    pool.add_broken(
        torch_source("loop", "baddbmm"), input_changed={"rows(u, V).clone()": "u.transpose(0, 0)"}
    )
    pool.add_broken(torch_source("loop", "einsum"), subscripts={"bthk,bthv->bhkv": "bthk,bthv->bhvk"})
    pool.add_broken(
        torch_source("transition", "addmm_loop"), one_step_late={"m[:, n] @ h[:, n]": "m[:, n + 1] @ h[:, n]"}
    )
    pool.add_broken(
        torch_source("transition", "doubling"), one_round_short={"while step < N": "while step < N // 64"}
    )
    pool.add_broken(
        torch_source("transition", "baddbmm_out"), wrong_keyword={"K, V), alpha=-1": "K, V), gamma=-1"}
    )


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    raised = "  cudaFuncSetAttribute(states<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);\n"
    pool.add_broken(
        cuda_tiles("strided_4x4", "float4", 128, 32),
        limit_not_raised={raised: ""},
        undeclared_variable={"const float keep": "const float kept"},
        no_barrier_before_update={"__syncthreads();\n    const float keep": "const float keep"},
        not_transposed={"product<K, BV, 64, true, false>": "product<K, BV, 64, false, false>"},
    )
    pool.add_broken(
        cuda_tiles("wmma", "async", 256, 32),
        misaligned_rows={"LK = K + 4, LV = BV + 4": "LK = K + 1, LV = BV + 1"},
        copies_not_awaited={"  __pipeline_wait_prior(0);\n": ""},
    )
    pool.add_broken(
        cuda_columns(8, 16, "float4"),
        half_of_the_sum={"d = SPLIT / 2; d > 0": "d = SPLIT / 4; d > 0"},
        too_many_threads={"#define COLUMNS 16": "#define COLUMNS 256"},
        row_stride={"(row + j * H) * V + e": "(row + j) * V + e"},
    )
    pool.add_broken(cuda_launches(128), last_row_left_out={"j < 64; j++": "j < 63; j++"})


def link_families(pool: Pool) -> None:
    """Names the changes of algorithm that count as one edit."""
    for bv, warps, precision in (
        (16, 4, "ieee"),
        (32, 4, "ieee"),
        (64, 8, "ieee"),
        (32, 4, "tf32"),
        (64, 8, "tf32"),
    ):
        bk = min(bv, 64)
        pool.link(state_in_memory(bv, bk, warps, 1, precision), fused(bv, warps, 1, precision))
    for bv, warps, stages, precision in (
        (16, 4, 1, "ieee"),
        (32, 4, 1, "ieee"),
        (32, 8, 1, "ieee"),
        (64, 8, 1, "ieee"),
        (32, 4, 1, "tf32x3"),
        (16, 4, 2, "tf32"),
        (32, 2, 1, "tf32"),
        (32, 4, 1, "tf32"),
        (32, 4, 2, "tf32"),
        (16, 4, 3, "tf32"),
        (64, 4, 2, "tf32"),
        (64, 8, 2, "tf32"),
    ):
        pool.link(fused(bv, warps, stages, precision), halves(bv, warps, stages, precision, "checked"))
    for bv, warps, precision in (
        (16, 4, "ieee"),
        (32, 8, "ieee"),
        (32, 4, "tf32x3"),
        (16, 4, "tf32"),
        (32, 4, "tf32"),
        (32, 8, "tf32"),
        (64, 4, "tf32"),
        (64, 8, "tf32"),
        (32, 4, "fp16"),
    ):
        pool.link(fused(bv, warps, 1, precision), prefetch(bv, warps, precision))
    for bv, warps, precision in (
        (16, 4, "ieee"),
        (32, 4, "ieee"),
        (32, 8, "ieee"),
        (32, 4, "tf32x3"),
        (16, 4, "tf32"),
        (32, 4, "tf32"),
        (64, 4, "tf32"),
        (64, 8, "tf32"),
        (32, 4, "fp16"),
    ):
        pool.link(per_chunk("one", bv, warps, "empty", precision), fused(bv, warps, 1, precision))
    for bv, precision in ((16, "ieee"), (32, "ieee"), (32, "tf32"), (64, "tf32")):
        bk = 16 if precision == "ieee" and bv == 16 else min(bv, 64)
        pool.link(
            transition(bv, bk, 4, 2 if bv == 64 else 1, precision),
            fused(bv, 4, 2 if bv == 64 else 1, precision),
        )
    for count, bv, warps, stages, precision in (
        (4, 16, 4, 1, "ieee"),
        (4, 32, 4, 1, "ieee"),
        (2, 32, 8, 1, "ieee"),
        (4, 32, 4, 1, "tf32x3"),
        (2, 32, 4, 1, "tf32"),
        (2, 32, 4, 2, "tf32"),
        (2, 64, 4, 1, "tf32"),
        (4, 16, 4, 2, "tf32"),
        (4, 64, 8, 1, "tf32"),
        (4, 32, 4, 2, "fp16"),
    ):
        pool.link(segments(count, bv, warps, stages, precision), fused(bv, warps, stages, precision))
    pool.link(autotuned("few", "ieee"), fused(32, 4, 1, "ieee"))
    pool.link(autotuned("few", "tf32"), fused(32, 4, 1, "tf32", "on_keys"))
    pool.link(autotuned("few", "fp16"), fused(32, 4, 2, "fp16", "on_keys"))
    pool.link(no_dots(16, 4), SEED)
    pool.link(no_dots(32, 4), fused(32, 4, 1, "ieee"))
    pool.link(no_dots(8, 2), cuda_columns(8, 8, "scalar"))
    pool.link(SEED, per_chunk("two", 32, 4, "zeros", "ieee"))
    for bv, warps, precision in ((16, 4, "ieee"), (32, 4, "ieee"), (32, 8, "ieee"), (32, 4, "tf32")):
        pool.link(
            torch_scan("two_products", bv, warps, precision),
            transition(bv, 16 if bv == 16 else 32, warps, 1, precision),
        )
    pool.link(torch_scan("two_products", 32, 4, "ieee"), torch_source("transition", "addmm_loop"))
    pool.link(
        torch_source("loop", "einsum"),
        torch_source("loop", "matmul"),
        torch_source("loop", "bmm"),
        torch_source("loop", "baddbmm"),
        torch_source("loop", "joined_rows"),
        torch_source("transition", "addmm_loop"),
        torch_source("transition", "baddbmm_out"),
        torch_source("transition", "blocks_of_eight"),
        torch_source("transition", "doubling"),
        torch_source("transition", "addmm_loop"),
        torch_source("loop", "matmul"),
        torch_source("loop", "head_by_head"),
        torch_source("loop", "broadcast_sum"),
        torch_source("loop", "matmul"),
        torch_source("loop", "float64"),
        torch_source("loop", "half_tensors"),
    )
    pool.link(torch_source("loop", "matmul"), SEED)
    pool.link(torch_source("loop", "matmul"), per_chunk("one", 32, 4, "empty", "ieee"))
    pool.link(cuda_launches(128), per_chunk("two", 32, 4, "zeros", "ieee"))
    pool.link(cuda_launches(256), cuda_tiles("scalar", "scalar", 256, 16))
    pool.link(cuda_tiles("scalar", "scalar", 256, 32), SEED)
    pool.link(cuda_tiles("strided_4x4", "float4", 128, 32), fused(32, 4, 1, "ieee"))
    pool.link(cuda_tiles("wmma", "async", 256, 32), fused(32, 8, 1, "tf32"))
    pool.link(cuda_columns(8, 16, "scalar"), cuda_tiles("scalar", "scalar", 128, 16))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_walks,
        add_launches,
        add_torch,
        add_cuda,
        break_triton,
        break_torch,
        break_cuda,
        link_families,
        Pool.link_retuned,
    )
