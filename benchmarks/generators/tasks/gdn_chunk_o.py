"""Generator of the recorded task ``gdn_chunk_o``: the output step of a chunked Gated DeltaNet.

Every source defines ``run(q, k, v_new, h, g)`` and returns ``o`` of shape [B, T, H, V], all float32. With
chunks of 64 positions, q and k [B, T, H, K], v_new [B, T, H, V], the state at the start of each chunk
h [B, T / 64, H, K, V] and the log decay g [B, T, H], already cumulated within the chunk:

    o_i = K ** -0.5 * (exp(g_i) * q_i h + sum over j of (q_i . k_j) * exp(g_i - g_j) * v_new_j)

where j runs over the positions of the same chunk up to i.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.generators.pool import Pool
from benchmarks.generators.tasks.gdn_chunk_o_cuda import cuda_element, cuda_recurrent, cuda_shared, cuda_tiles
from benchmarks.generators.tasks.gdn_chunk_o_torch import TORCH, torch_half, torch_source
from benchmarks.generators.tasks.gdn_chunk_o_triton import (
    AUTOTUNE,
    HYBRID_INTER,
    all_heads,
    autotuned,
    block_pointers,
    direct,
    factored,
    no_dots,
    one_token,
    persistent,
    recurrent,
    several_chunks,
    subtiles,
    tiles,
    torch_inter,
    two_kernels,
    whole_head,
)
from benchmarks.generators.tasks.gdn_shared import SHAPES

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

TASK = "gdn_chunk_o"
OPERATION = (
    "Gated DeltaNet chunk_fwd_o, chunks of 64, float32: "
    "o = ((q h) * exp(g) + causal(q k^T * exp(g_i - g_j)) v_new) * K^-0.5."
)
# The norm of the difference over the norm of the reference: room for tf32 dots, none for wrong mathematics.
TOLERANCE: dict[str, float] = {"relative_norm": 2e-3}
OUTPUT_DTYPES = ["float32"]


def make_inputs(shape: dict[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws unit queries and keys, values and states of spread 1 and 0.5, and a falling decay."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device=device)

    batch, length, heads, k_dim, v_dim = (shape[name] for name in ("B", "T", "H", "K", "V"))
    q = torch.nn.functional.normalize(normal(batch, length, heads, k_dim), dim=-1)
    k = torch.nn.functional.normalize(normal(batch, length, heads, k_dim), dim=-1)
    v_new = normal(batch, length, heads, v_dim)
    h = normal(batch, length // 64, heads, k_dim, v_dim) * 0.5
    step = torch.nn.functional.logsigmoid(normal(batch, length // 64, 64, heads) + 3.0)
    return q, k, v_new, h, step.cumsum(dim=2).reshape(batch, length, heads).contiguous()


def reference(
    q: torch.Tensor, k: torch.Tensor, v_new: torch.Tensor, h: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Computes the output in float64, a few chunks at a time, and returns it in float32."""
    import torch

    batch, length, heads, k_dim = q.shape
    v_dim = v_new.shape[-1]
    causal = torch.ones(64, 64, dtype=torch.bool, device=q.device).tril()
    out = torch.empty(v_new.shape, dtype=torch.float32, device=q.device)
    step = 16
    for first in range(0, length // 64, step):
        chunks = min(step, length // 64 - first)
        span = slice(first * 64, (first + chunks) * 64)

        def split(x: torch.Tensor, span: slice = span, chunks: int = chunks) -> torch.Tensor:
            return x[:, span].double().reshape(batch, chunks, 64, heads, -1).transpose(2, 3)

        qc, kc, vc, gc = split(q), split(k), split(v_new), split(g[..., None])
        scores = (qc @ kc.transpose(-1, -2)) * torch.exp(gc - gc.transpose(-1, -2)).masked_fill(~causal, 0.0)
        part = (qc @ h[:, first : first + chunks].double()) * gc.exp() + scores @ vc
        part = part.transpose(2, 3).reshape(batch, chunks * 64, heads, v_dim)
        out[:, span] = (part * k_dim**-0.5).float()
    return (out,)


SEED = tiles(32, 16, 4, 1, "ieee")


def add_triton(pool: Pool) -> None:
    """Adds the sound Triton sources."""
    pool.add(
        tiles(bv, bk, warps, stages, precision)
        for bv, bk, warps, stages, precision in (
            (16, 16, 4, 1, "ieee"),
            (16, 16, 2, 1, "ieee"),
            (32, 16, 4, 1, "ieee"),
            (32, 16, 2, 1, "ieee"),
            (32, 16, 8, 1, "ieee"),
            (32, 32, 4, 1, "ieee"),
            (32, 16, 4, 3, "ieee"),
            (64, 16, 4, 1, "ieee"),
            (64, 32, 4, 1, "ieee"),
            (64, 32, 4, 3, "ieee"),
            (64, 64, 8, 1, "ieee"),
            (128, 32, 8, 2, "ieee"),
            (16, 16, 4, 1, "tf32x3"),
            (32, 16, 4, 1, "tf32x3"),
            (32, 32, 4, 1, "tf32x3"),
            (64, 32, 4, 3, "tf32x3"),
            (64, 64, 8, 1, "tf32x3"),
            (16, 16, 4, 1, "tf32"),
            (16, 32, 4, 1, "tf32"),
            (32, 32, 4, 1, "tf32"),
            (32, 32, 4, 3, "tf32"),
            (64, 32, 4, 1, "tf32"),
            (64, 32, 4, 3, "tf32"),
            (64, 64, 4, 2, "tf32"),
            (64, 64, 8, 1, "tf32"),
            (64, 64, 8, 2, "tf32"),
            (128, 32, 8, 2, "tf32"),
            (128, 64, 8, 2, "tf32"),
            (32, 32, 4, 1, "fp16"),
            (64, 32, 4, 3, "fp16"),
            (64, 64, 4, 2, "fp16"),
            (128, 64, 8, 2, "fp16"),
            (32, 32, 1, 1, "tf32"),
            (64, 64, 4, 2, "bf16"),
            (128, 16, 4, 1, "ieee"),
        )
    )
    pool.add(
        block_pointers(bv, bk, warps, stages, precision, check)
        for bv, bk, warps, stages, precision, check in (
            (32, 32, 4, 2, "ieee", "checked"),
            (64, 32, 4, 2, "ieee", "checked"),
            (32, 32, 4, 2, "tf32", "checked"),
            (64, 32, 4, 2, "tf32", "checked"),
            (64, 64, 4, 2, "tf32", "checked"),
            (64, 64, 4, 3, "tf32", "checked"),
            (128, 64, 4, 2, "tf32", "checked"),
            (128, 64, 8, 3, "tf32", "checked"),
            (64, 64, 4, 2, "tf32", "plain"),
            (128, 64, 8, 2, "tf32", "plain"),
            (32, 64, 2, 3, "tf32", "plain"),
            (64, 64, 4, 2, "fp16", "plain"),
            (64, 32, 4, 2, "tf32x3", "checked"),
            (32, 32, 4, 2, "ieee", "plain"),
        )
    )
    pool.add(
        whole_head(bv, warps, stages, precision, loop)
        for bv, warps, stages, precision, loop in (
            (16, 4, 1, "ieee", "range"),
            (32, 4, 1, "ieee", "range"),
            (32, 8, 1, "ieee", "range"),
            (64, 8, 1, "ieee", "range"),
            (32, 4, 1, "tf32x3", "range"),
            (64, 8, 1, "tf32x3", "range"),
            (16, 4, 1, "tf32", "range"),
            (32, 4, 1, "tf32", "range"),
            (32, 4, 2, "tf32", "range"),
            (64, 4, 1, "tf32", "range"),
            (64, 8, 1, "tf32", "range"),
            (64, 4, 1, "tf32", "static"),
            (32, 4, 1, "tf32", "static"),
            (128, 8, 1, "tf32", "range"),
            (64, 4, 1, "fp16", "range"),
            (32, 4, 2, "fp16", "range"),
        )
    )
    pool.add(
        two_kernels(bv, bk, warps, alloc, store, precision)
        for bv, bk, warps, alloc, store, precision in (
            (32, 32, 4, "empty", "float32", "ieee"),
            (32, 32, 4, "zeros", "float32", "ieee"),
            (32, 32, 4, "empty", "float32", "tf32"),
            (64, 64, 4, "empty", "float32", "tf32"),
            (64, 32, 4, "empty", "float32", "tf32"),
            (64, 64, 8, "empty", "float32", "tf32"),
            (64, 64, 4, "empty", "float16", "tf32"),
            (64, 64, 4, "empty", "float16", "fp16"),
            (16, 16, 4, "zeros", "float32", "ieee"),
            (64, 32, 4, "empty", "float32", "tf32x3"),
        )
    )
    pool.add(
        torch_inter(inter, bv, warps, precision)
        for inter, bv, warps, precision in (
            ("matmul", 32, 4, "ieee"),
            ("matmul", 64, 4, "tf32"),
            ("einsum", 32, 4, "ieee"),
            ("einsum", 64, 4, "tf32"),
            ("bmm", 32, 4, "ieee"),
            ("bmm", 64, 4, "tf32"),
            ("bmm", 128, 8, "tf32"),
        )
    )
    pool.add(no_dots(bv, warps) for bv, warps in ((16, 4), (32, 4), (32, 8), (64, 4), (64, 8), (128, 8)))
    pool.add(
        one_token(loop, warps) for loop, warps in (("serial", 1), ("serial", 4), ("vector", 4), ("vector", 8))
    )
    pool.add(
        subtiles(bm, bv, warps, stages, precision)
        for bm, bv, warps, stages, precision in (
            (16, 32, 2, 1, "ieee"),
            (16, 64, 4, 1, "ieee"),
            (32, 32, 4, 1, "ieee"),
            (32, 64, 4, 1, "ieee"),
            (16, 64, 2, 1, "tf32"),
            (16, 64, 4, 2, "tf32"),
            (32, 32, 4, 1, "tf32"),
            (32, 64, 4, 1, "tf32"),
            (32, 64, 4, 2, "tf32"),
            (32, 128, 4, 1, "tf32"),
            (32, 64, 4, 1, "fp16"),
            (32, 64, 4, 1, "tf32x3"),
        )
    )
    pool.add(
        factored(bv, warps, precision)
        for bv, warps, precision in (
            (32, 4, "ieee"),
            (64, 4, "ieee"),
            (32, 4, "tf32"),
            (64, 4, "tf32"),
            (64, 8, "tf32"),
            (128, 8, "tf32"),
            (64, 4, "fp16"),
        )
    )
    pool.add(
        persistent(per_sm, bv, warps, precision)
        for per_sm, bv, warps, precision in (
            (1, 64, 4, "tf32"),
            (2, 64, 4, "tf32"),
            (4, 64, 4, "tf32"),
            (2, 64, 8, "tf32"),
            (1, 32, 4, "ieee"),
            (4, 32, 4, "ieee"),
            (4, 64, 4, "fp16"),
            (1, 16, 4, "ieee"),
        )
    )
    pool.add(
        several_chunks(chunks, bv, warps, precision, loop)
        for chunks, bv, warps, precision, loop in (
            (2, 64, 4, "tf32", "range"),
            (4, 64, 4, "tf32", "range"),
            (2, 32, 4, "ieee", "range"),
            (8, 32, 4, "ieee", "range"),
            (2, 64, 4, "tf32", "static"),
            (8, 64, 4, "tf32", "range"),
        )
    )
    pool.add(autotuned(precision) for precision in AUTOTUNE)


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(algorithm, how) for algorithm, how in TORCH)
    pool.add(
        torch_source(algorithm, how, prelude)
        for algorithm, how, prelude in (
            ("einsum", "decay_matrix", "tf32"),
            ("einsum", "decay_matrix", "clone"),
            ("einsum", "long_subscripts", "check_finite"),
            ("matmul", "decay_matrix", "tf32"),
            ("matmul", "decay_matrix", "check_finite"),
            ("matmul", "factored", "tf32"),
            ("matmul", "factored", "synchronize"),
            ("matmul", "concatenated", "tf32"),
            ("matmul", "concatenated", "roundtrip"),
            ("bmm", "contiguous", "tf32"),
            ("bmm", "contiguous", "clone"),
            ("bmm", "contiguous", "check_decay"),
            ("bmm", "baddbmm", "tf32"),
            ("bmm", "baddbmm", "synchronize"),
            ("bmm", "baddbmm", "roundtrip"),
            ("chunk_loop", "all_heads", "clone"),
            ("head_loop", "matmul", "tf32"),
            ("head_loop", "matmul", "check_decay"),
        )
    )
    pool.add(torch_half(dtype) for dtype in ("float16", "bfloat16"))


def add_cuda(pool: Pool) -> None:
    """Adds the sound CUDA C++ sources."""
    pool.add(cuda_element(threads) for threads in (64, 128))
    pool.add(
        cuda_shared(output, threads, bv)
        for output, threads, bv in (
            ("scalar", 128, 64),
            ("scalar", 256, 64),
            ("scalar", 256, 32),
            ("register_rows", 128, 64),
            ("register_rows", 256, 64),
            ("register_rows", 256, 32),
            ("register_rows", 512, 64),
        )
    )


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    causal = "index[:, None] >= index[None, :]"
    pool.add_broken(
        SEED,
        not_causal={f"    scores = tl.where({causal}, scores, 0.0)\n": ""},
        strictly_causal={causal: "index[:, None] > index[None, :]"},
        undefined_name={"out += tl.dot(scores,": "out += tl.dot(probs,"},
        tile_not_power_of_two={"BV = min(32, V)": "BV = min(48, V)"},
    )
    pool.add_broken(
        tiles(64, 32, 4, 1, "tf32"),
        no_scale={"out * scale)": "out)"},
        decay_sign={"tl.exp(g[:, None] - g[None, :])": "tl.exp(g[None, :] - g[:, None])"},
        half_of_k={"range(0, K, BK)": "range(0, K // 2, BK)"},
        missing_transpose={"token[None, :] * K + cols_k[:, None]": "token[:, None] * K + cols_k[None, :]"},
    )
    pool.add_broken(
        tiles(128, 64, 8, 2, "tf32"),
        shared_memory_overflow={"num_stages=2": "num_stages=8"},
        pointer_far_out={"+ pid_t) * H + head) * K * V": "+ pid_t) * H + head).to(tl.int64) * K * V * 65536"},
        warps_not_power_of_two={"num_warps=8": "num_warps=6"},
    )
    pool.add_broken(
        tiles(64, 64, 4, 2, "fp16"),
        mixed_types={
            "tl.dot(q_tile.to(tl.float16), h_tile.to(tl.float16))": "tl.dot(q_tile.to(tl.float16), h_tile)"
        },
        float16_decay={"g = tl.load(g_ptr + token)\n": "g = tl.load(g_ptr + token).to(tl.float16)\n"},
    )
    pool.add_broken(
        block_pointers(64, 64, 4, 2, "tf32", "checked"),
        scale_twice={"acc = acc * scale +": "acc = acc * scale * scale +"},
        order_of_strides={"(T, V), (H * V, 1), (ic * C, iv * BV)": "(T, V), (V, 1), (ic * C, iv * BV)"},
        length_of_block={"(j * BK, ic * C), (BK, C), (0, 1))": "(j * BK, ic * C), (BK,), (0, 1))"},
    )
    pool.add_broken(
        whole_head(64, 8, 1, "tf32"),
        first_tile_only={
            "Vn + tok[:, None] * DV + e[None, :]": "Vn + tok[:, None] * DV + tl.arange(0, BLOCK_V)[None, :]"
        },
        no_decay_between_chunks={"(tl.exp(gt) * sm_scale)[:, None]": "sm_scale"},
        decay_before_scores={
            "    qt = qt * (tl.exp(gt) * sm_scale)[:, None]\n": "",
            "    attn = tl.dot(": "    qt = qt * (tl.exp(gt) * sm_scale)[:, None]\n    attn = tl.dot(",
        },
        syntax_error={
            "tl.where(i[:, None] >= i[None, :], attn, 0.0)": "tl.where(i[:, None] >= i[None, :], attn, 0.0))"
        },
    )
    pool.add_broken(
        two_kernels(64, 64, 4, "empty", "float32", "tf32"),
        scores_overlap={"a + ((i_bh * T) + i_t * BT": "a + ((i_b * T) + i_t * BT"},
        state_of_first_batch={"(i_b * (T // BT) + i_t) * H + i_h": "i_t * H + i_h"},
    )
    pool.add_broken(
        no_dots(64, 8),
        sum_over_wrong_axis={"tl.sum(q * k_j[None, :], axis=1)": "tl.sum(q * k_j[None, :], axis=0)"},
        very_long_loop={
            "    for j in range(64):\n": "    for step in range(64 * 30000000):\n        j = step % 64\n"
        },
    )
    pool.add_broken(
        subtiles(32, 64, 4, 1, "tf32"),
        diagonal_left_out={"range(0, sub + 1)": "range(0, sub)"},
        small_dot={"BM, BV = 32,": "BM, BV = 4,"},
    )
    pool.add_broken(
        factored(64, 4, "tf32"), decay_not_negated={"tl.exp(-decay)[None, :]": "tl.exp(decay)[None, :]"}
    )
    pool.add_broken(
        persistent(2, 64, 4, "tf32"),
        head_and_chunk_swapped={
            "n = head_chunk % H": "n = head_chunk // (T // 64) % H",
            "chunk = head_chunk // H": "chunk = head_chunk % (T // 64)",
        },
        stages_left_to_default={"num_warps=4, num_stages=1)": "num_warps=4)"},
    )
    pool.add_broken(several_chunks(2, 64, 4, "tf32"), keys_not_transposed={"tl.trans(kb)": "kb"})


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(
        torch_source("einsum", "decay_matrix"), subscripts={"bnhij,bnjhv->bnihv": "bnhij,bnihv->bnjhv"}
    )
    pool.add_broken(
        torch_source("matmul", "decay_matrix"), no_mask={'diff.masked_fill(~causal, float("-inf"))': "diff"}
    )
    pool.add_broken(
        torch_source("matmul", "factored"),
        view_of_transposed={
            "o.transpose(2, 3).reshape(B, T, H, V)": "o.transpose(2, 3).view(B, T, H * V).view(B, T, V, H)"
        },
    )
    pool.add_broken(
        torch_source("bmm", "contiguous"),
        chunks_mixed_up={
            ".permute(0, 1, 3, 2, 4).contiguous().view(B, T, H, V)": ".contiguous().view(B, T, H, V)"
        },
    )
    pool.add_broken(
        torch_source("bmm", "baddbmm"), wrong_keyword={"beta=scale, alpha=scale": "beta=scale, gamma=scale"}
    )
    pool.add_broken(torch_source("chunk_loop", "all_heads"), state_of_next_chunk={"h[:, n]": "h[:, n - 1]"})


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    pool.add_broken(
        cuda_shared("register_rows", 256, 64),
        limit_not_raised={
            "  cudaFuncSetAttribute(chunk_block, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);\n": ""
        },
        undeclared_variable={"float w = v[((first + j)": "float w = v[((start + j)"},
    )
    pool.add_broken(cuda_element(128), off_by_one={"j <= t; j++": "j < t; j++"})


def link_triton(pool: Pool) -> None:
    """Names the changes of algorithm between Triton sources."""
    for bv, precision in ((32, "ieee"), (32, "tf32")):
        pool.link(tiles(bv, 32, 4, 1, precision), block_pointers(bv, 32, 4, 2, precision, "checked"))
    pool.link(tiles(64, 64, 4, 2, "tf32"), block_pointers(64, 64, 4, 2, "tf32", "checked"))
    pool.link(tiles(64, 32, 4, 3, "tf32x3"), block_pointers(64, 32, 4, 2, "tf32x3", "checked"))
    for bv, bk, warps, precision in (
        (32, 32, 4, "ieee"),
        (32, 32, 4, "tf32x3"),
        (32, 32, 4, "tf32"),
        (64, 64, 8, "tf32"),
        (64, 64, 8, "ieee"),
    ):
        pool.link(tiles(bv, bk, warps, 1, precision), whole_head(bv, warps, 1, precision))
    for bv, warps, precision in (
        (32, 4, "ieee"),
        (32, 4, "tf32"),
        (64, 4, "tf32"),
        (64, 8, "tf32"),
        (128, 8, "tf32"),
        (64, 4, "fp16"),
    ):
        pool.link(whole_head(bv, warps, 1, precision), factored(bv, warps, precision))
    pool.link(SEED, two_kernels(32, 32, 4, "zeros", "float32", "ieee"))
    pool.link(tiles(32, 32, 4, 1, "ieee"), two_kernels(32, 32, 4, "empty", "float32", "ieee"))
    pool.link(tiles(16, 16, 4, 1, "ieee"), two_kernels(16, 16, 4, "zeros", "float32", "ieee"))
    pool.link(tiles(64, 64, 4, 2, "tf32"), two_kernels(64, 64, 4, "empty", "float32", "tf32"))
    for bm, bv, warps, stages, precision in (
        (32, 32, 4, 1, "ieee"),
        (16, 32, 2, 1, "ieee"),
        (32, 32, 4, 1, "tf32"),
    ):
        pool.link(
            subtiles(bm, bv, warps, stages, precision),
            tiles(bv, 16 if precision == "ieee" else 32, 4, 1, precision),
        )
    pool.link(subtiles(32, 64, 4, 1, "tf32"), tiles(64, 32, 4, 1, "tf32"))
    for per_sm, bv, warps, precision in (
        (1, 16, 4, "ieee"),
        (1, 32, 4, "ieee"),
        (4, 32, 4, "ieee"),
        (2, 64, 4, "tf32"),
        (2, 64, 8, "tf32"),
    ):
        pool.link(persistent(per_sm, bv, warps, precision), whole_head(bv, warps, 1, precision))
    pool.link(persistent(4, 64, 4, "fp16"), whole_head(64, 4, 1, "fp16"))
    for chunks, bv, precision in (
        (2, 32, "ieee"),
        (8, 32, "ieee"),
        (2, 64, "tf32"),
        (4, 64, "tf32"),
        (8, 64, "tf32"),
    ):
        pool.link(several_chunks(chunks, bv, 4, precision), whole_head(bv, 4, 1, precision))
    pool.link(several_chunks(2, 64, 4, "tf32"), persistent(2, 64, 4, "tf32"))
    pool.link(several_chunks(8, 32, 4, "ieee"), several_chunks(2, 32, 4, "ieee"))
    pool.link(autotuned("ieee"), tiles(64, 32, 4, 1, "ieee"))
    pool.link(autotuned("tf32"), factored(64, 4, "tf32"))
    pool.link(autotuned("tf32"), whole_head(64, 4, 1, "tf32"))
    for bv, warps in ((16, 4), (32, 4), (32, 8), (64, 4)):
        pool.link(no_dots(bv, warps), tiles(bv, 16, warps, 1, "ieee"))
    pool.link(one_token("serial", 4), no_dots(128, 8))
    pool.link(one_token("vector", 4), no_dots(64, 4))
    pool.link(one_token("vector", 4), SEED)
    pool.link(one_token("serial", 4), cuda_element(128))
    for inter in HYBRID_INTER:
        for bv, precision in ((32, "ieee"), (64, "tf32")):
            hybrid = torch_inter(inter, bv, 4, precision)
            pool.link(hybrid, tiles(bv, 32, 4, 1, precision))
            if precision == "ieee":
                partner = {"matmul": "decay_matrix", "einsum": "decay_matrix", "bmm": "contiguous"}[inter]
                pool.link(hybrid, torch_source(inter, partner))


def link_torch(pool: Pool) -> None:
    """Names those between PyTorch sources, and from them to others."""
    pool.link(
        torch_source("einsum", "long_subscripts"),
        torch_source("einsum", "decay_matrix"),
        torch_source("matmul", "decay_matrix"),
        torch_source("bmm", "contiguous"),
        torch_source("bmm", "baddbmm"),
        torch_source("matmul", "concatenated"),
        torch_source("matmul", "factored"),
        torch_source("chunk_loop", "all_heads"),
        torch_source("matmul", "decay_matrix"),
        torch_source("vmap", "per_chunk"),
        torch_source("chunk_loop", "list_and_cat"),
        torch_source("einsum", "decay_matrix"),
        torch_source("row_loop", "accumulate"),
        torch_source("broadcast_sum", "no_matmul"),
        torch_source("chunk_loop", "all_heads"),
        torch_source("head_loop", "matmul"),
        torch_source("bmm", "contiguous"),
        torch_source("float64", "matmul"),
        torch_source("matmul", "decay_matrix"),
    )
    pool.link(torch_source("matmul", "decay_matrix"), SEED)
    pool.link(torch_source("bmm", "contiguous"), SEED)


def link_cuda(pool: Pool) -> None:
    """Names those between CUDA C++ sources, and from them to others."""
    pool.link(cuda_element(64), cuda_shared("scalar", 128, 64))
    pool.link(cuda_element(128), cuda_shared("scalar", 128, 64))
    pool.link(cuda_shared("scalar", 256, 32), SEED)
    pool.link(cuda_shared("register_rows", 256, 64), tiles(64, 64, 8, 1, "ieee"))


def add_more_triton(pool: Pool) -> None:
    """Adds further sound Triton sources: other families, and more sizes of those above."""
    pool.add(
        direct(bv, warps, 1, precision, mask, order, exp, hints)
        for bv, warps, precision, mask, order, exp, hints in (
            (16, 4, "ieee", "where", "tile_chunk_pair", "exp", "none"),
            (32, 8, "ieee", "where", "tile_chunk_pair", "exp", "none"),
            (64, 8, "ieee", "where", "tile_chunk_pair", "exp", "none"),
            (32, 4, "tf32x3", "where", "tile_chunk_pair", "exp", "none"),
            (32, 2, "tf32", "where", "tile_chunk_pair", "exp", "none"),
            (32, 4, "tf32", "where", "tile_chunk_pair", "exp", "none"),
            (64, 4, "tf32", "where", "tile_chunk_pair", "exp", "none"),
            (64, 8, "tf32", "where", "tile_chunk_pair", "exp", "none"),
            (128, 4, "tf32", "where", "tile_chunk_pair", "exp", "none"),
            (32, 4, "tf32", "masked_decay", "tile_chunk_pair", "exp", "none"),
            (64, 4, "tf32", "masked_decay", "tile_chunk_pair", "exp", "none"),
            (64, 4, "tf32", "multiplied", "tile_chunk_pair", "exp", "none"),
            (32, 4, "tf32", "where", "chunk_pair_tile", "exp", "none"),
            (64, 4, "tf32", "where", "chunk_pair_tile", "exp", "none"),
            (32, 4, "tf32", "where", "pair_chunk_tile", "exp", "none"),
            (64, 4, "tf32", "where", "pair_chunk_tile", "exp", "none"),
            (64, 4, "tf32", "where", "tile_chunk_pair", "exp2", "none"),
            (32, 4, "tf32", "masked_decay", "tile_chunk_pair", "exp2", "none"),
            (64, 4, "tf32", "where", "tile_chunk_pair", "exp", "evict"),
            (32, 4, "tf32", "where", "tile_chunk_pair", "exp", "evict"),
            (64, 4, "tf32", "where", "pair_chunk_tile", "exp2", "evict"),
            (64, 4, "fp16", "where", "tile_chunk_pair", "exp", "none"),
            (64, 4, "fp16", "masked_decay", "tile_chunk_pair", "exp2", "none"),
            (64, 4, "fp16", "where", "pair_chunk_tile", "exp", "none"),
            (64, 4, "fp16", "where", "tile_chunk_pair", "exp", "evict"),
            (32, 4, "fp16", "where", "tile_chunk_pair", "exp", "none"),
            (32, 2, "fp16", "where", "tile_chunk_pair", "exp", "none"),
            (64, 2, "fp16", "where", "tile_chunk_pair", "exp", "none"),
            (64, 4, "bf16", "where", "tile_chunk_pair", "exp", "none"),
        )
    )
    pool.add(
        all_heads(heads, bv, warps, stages, precision)
        for heads, bv, warps, stages, precision in (
            (2, 32, 4, 1, "ieee"),
            (2, 32, 4, 1, "tf32"),
            (2, 64, 4, 1, "tf32"),
            (4, 32, 4, 1, "tf32"),
            (4, 64, 4, 1, "tf32"),
            (4, 32, 4, 2, "tf32"),
            (8, 64, 4, 1, "tf32"),
            (2, 64, 4, 1, "fp16"),
            (4, 32, 4, 2, "fp16"),
        )
    )
    pool.add(
        recurrent(bv, warps, loop)
        for bv, warps, loop in (
            (4, 1, "range"),
            (8, 1, "range"),
            (8, 2, "range"),
            (16, 2, "range"),
            (16, 4, "range"),
            (32, 4, "range"),
            (64, 8, "range"),
            (8, 1, "unrolled"),
            (16, 4, "unrolled"),
        )
    )
    pool.add(
        tiles(bv, bk, warps, stages, precision)
        for bv, bk, warps, stages, precision in (
            (16, 32, 4, 1, "ieee"),
            (32, 64, 4, 1, "tf32"),
            (32, 64, 2, 1, "tf32"),
            (64, 32, 2, 1, "tf32"),
            (64, 128, 4, 1, "tf32"),
            (32, 64, 4, 2, "fp16"),
            (64, 64, 4, 1, "fp16"),
            (64, 128, 4, 1, "fp16"),
        )
    )
    pool.add(
        whole_head(bv, warps, stages, precision, loop)
        for bv, warps, stages, precision, loop in (
            (64, 4, 2, "tf32", "range"),
            (32, 2, 1, "tf32", "range"),
            (64, 4, 1, "fp16", "static"),
            (32, 4, 1, "fp16", "range"),
            (32, 4, 1, "fp16", "static"),
            (64, 4, 2, "fp16", "range"),
            (16, 4, 2, "fp16", "range"),
        )
    )
    pool.add(
        subtiles(bm, bv, warps, stages, precision)
        for bm, bv, warps, stages, precision in (
            (16, 32, 1, 1, "tf32"),
            (16, 128, 4, 1, "tf32"),
            (32, 64, 2, 1, "tf32"),
            (32, 128, 4, 1, "fp16"),
            (16, 64, 2, 1, "fp16"),
        )
    )
    pool.add(
        persistent(per_sm, bv, warps, precision)
        for per_sm, bv, warps, precision in ((2, 64, 4, "fp16"), (8, 64, 4, "fp16"), (4, 32, 4, "tf32"))
    )
    pool.add([factored(32, 4, "fp16"), factored(64, 2, "fp16"), factored(64, 2, "tf32")])
    pool.add([several_chunks(2, 64, 4, "fp16"), several_chunks(2, 32, 4, "tf32")])


def add_more_torch(pool: Pool) -> None:
    """Adds further sound PyTorch sources."""
    pool.add(
        torch_source(algorithm, how, prelude)
        for algorithm, how, prelude in (
            ("vmap", "per_chunk", "tf32"),
            ("float64", "matmul", "clone"),
            ("matmul", "factored", "clone"),
            ("bmm", "baddbmm", "check_finite"),
            ("row_loop", "accumulate", "clone"),
        )
    )


def add_more_cuda(pool: Pool) -> None:
    """Adds further sound CUDA C++ sources."""
    pool.add(cuda_element(threads) for threads in (32, 256))
    pool.add(
        cuda_tiles(engine, fetch, threads, bv)
        for engine, fetch, threads, bv in (
            ("scalar", "scalar", 256, 32),
            ("scalar", "float4", 256, 32),
            ("scalar", "float4", 512, 64),
            ("strided_2x2", "scalar", 256, 32),
            ("strided_2x2", "float4", 256, 32),
            ("strided_2x2", "async", 512, 64),
            ("strided_4x2", "float4", 128, 32),
            ("strided_4x2", "float4", 256, 64),
            ("strided_4x2", "async", 256, 32),
            ("strided_4x4", "scalar", 128, 32),
            ("strided_4x4", "float4", 128, 32),
            ("strided_4x4", "float4", 256, 64),
            ("strided_4x4", "ldg", 256, 64),
            ("strided_4x4", "async", 128, 32),
            ("strided_4x4", "async", 256, 64),
            ("strided_8x4", "float4", 128, 64),
            ("strided_8x4", "async", 128, 32),
            ("strided_8x4", "async", 128, 64),
            ("blocked_2x2", "float4", 256, 32),
            ("blocked_4x4", "scalar", 128, 32),
            ("blocked_4x4", "ldg", 256, 64),
            ("wmma", "scalar", 128, 32),
            ("wmma", "float4", 128, 32),
            ("wmma", "float4", 128, 64),
            ("wmma", "float4", 256, 32),
            ("wmma", "float4", 256, 64),
            ("wmma", "async", 128, 32),
            ("wmma", "async", 128, 64),
            ("wmma", "async", 256, 64),
            ("wmma_unrolled", "float4", 256, 64),
            ("wmma_unrolled", "async", 128, 32),
            ("wmma_unrolled", "async", 128, 64),
            ("wmma_unrolled", "async", 256, 64),
        )
    )
    pool.add(
        [
            cuda_tiles("strided_4x4", "float4", 256, 64, "expf"),
            cuda_tiles("wmma", "async", 128, 64, "expf"),
        ]
    )
    pool.add(
        cuda_recurrent(split, columns, fetch, unroll)
        for split, columns, fetch, unroll in (
            (2, 64, "float4", 1),
            (4, 16, "float4", 1),
            (4, 32, "scalar", 1),
            (4, 32, "float4", 1),
            (4, 32, "float4", 4),
            (4, 64, "float4", 1),
            (8, 16, "scalar", 1),
            (8, 16, "float4", 1),
            (8, 16, "float4", 4),
            (8, 32, "float4", 1),
            (8, 32, "async", 4),
            (16, 8, "float4", 1),
            (16, 16, "float4", 4),
            (32, 8, "float4", 1),
        )
    )


def break_more(pool: Pool) -> None:
    """Adds further sources that fail."""
    pool.add_broken(
        direct(64, 4, 1, "tf32"),
        strictly_causal={"i[:, None] >= i[None, :]": "i[:, None] > i[None, :]"},
        state_of_first_chunk={"(b * (T // 64) + chunk) * H": "(b * (T // 64)) * H"},
        missing_argument={"K=K, V=V, BV=BV": "K=K, BV=BV"},
    )
    pool.add_broken(all_heads(4, 64, 4, 1, "tf32"), heads_left_out={"triton.cdiv(H, PER)": "H // (PER + 1)"})
    pool.add_broken(recurrent(8, 2), decay_of_whole={"tl.exp(g - before)": "tl.exp(g)"})
    pool.add_broken(
        cuda_tiles("wmma", "async", 128, 64),
        state_over_keys={"  });\n  __syncthreads();\n  fetch<K, BV>(ks, LV": "  });\n  fetch<K, BV>(ks, LV"},
        not_transposed={"product<64, 64, K, false, true>": "product<64, 64, K, false, false>"},
    )
    pool.add_broken(
        cuda_tiles("strided_4x4", "float4", 256, 64),
        scale_left_out={"(os[r * LV + c] + s) * scale": "os[r * LV + c] + s"},
        undeclared_variable={"os[r * LV + c] = s *": "out[r * LV + c] = s *"},
    )
    pool.add_broken(
        cuda_recurrent(8, 16, "float4"), no_reduction={"d = SPLIT / 2; d > 0": "d = SPLIT / 2; d > SPLIT"}
    )


def link_more(pool: Pool) -> None:
    """Names the changes of algorithm to and between the further sources."""
    for bv, warps, precision in (
        (16, 4, "ieee"),
        (32, 8, "ieee"),
        (64, 8, "ieee"),
        (32, 4, "tf32x3"),
        (32, 4, "tf32"),
        (64, 4, "tf32"),
        (64, 8, "tf32"),
        (64, 4, "fp16"),
        (32, 4, "fp16"),
    ):
        pool.link(direct(bv, warps, 1, precision), whole_head(bv, warps, 1, precision))
    for bv, warps, precision in (
        (32, 4, "tf32"),
        (64, 4, "tf32"),
        (64, 4, "fp16"),
        (32, 4, "fp16"),
        (64, 2, "fp16"),
    ):
        pool.link(direct(bv, warps, 1, precision), factored(bv, warps, precision))
    for heads, bv, precision in (
        (2, 32, "tf32"),
        (2, 64, "tf32"),
        (4, 32, "tf32"),
        (4, 64, "tf32"),
        (2, 64, "fp16"),
    ):
        pool.link(all_heads(heads, bv, 4, 1, precision), direct(bv, 4, 1, precision))
    pool.link(all_heads(2, 32, 4, 1, "ieee"), whole_head(32, 4, 1, "ieee"))
    pool.link(all_heads(4, 32, 4, 2, "fp16"), whole_head(32, 4, 2, "fp16"))
    for bv, warps in ((16, 4), (32, 4), (64, 8)):
        pool.link(recurrent(bv, warps), no_dots(bv, warps))
    pool.link(recurrent(4, 1), one_token("serial", 1))
    pool.link(recurrent(16, 4), SEED)
    pool.link(cuda_element(256), cuda_tiles("scalar", "scalar", 256, 32), cuda_shared("scalar", 256, 32))
    pool.link(cuda_tiles("strided_4x4", "float4", 256, 64), cuda_shared("register_rows", 256, 64))
    pool.link(cuda_tiles("blocked_4x4", "scalar", 128, 32), cuda_shared("scalar", 128, 64))
    pool.link(cuda_tiles("wmma", "float4", 128, 64), direct(64, 4, 1, "tf32"))
    pool.link(cuda_tiles("strided_4x4", "float4", 128, 32), SEED)
    pool.link(cuda_recurrent(8, 16, "float4"), recurrent(16, 4))
    pool.link(cuda_recurrent(4, 32, "scalar"), cuda_element(128))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_triton,
        add_torch,
        add_cuda,
        break_triton,
        break_torch,
        break_cuda,
        link_triton,
        link_torch,
        link_cuda,
        add_more_triton,
        add_more_torch,
        add_more_cuda,
        break_more,
        link_more,
        Pool.link_retuned,
    )
