"""Generator of the recorded task ``attention_forward``: causal attention with several heads.

Every source defines ``run(q, k, v)`` for tensors of shape [B, H, T, D] in bfloat16 and returns, in the same shape and
type, ``softmax(q k^T / sqrt(D) + mask) v``, where position i sees the positions up to i.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from benchmarks.generators.pool import Pool
from benchmarks.generators.tasks.attention_forward_cuda import (
    CU_BLOCK_DOTS,
    CU_WARP_BODIES,
    cuda_block,
    cuda_mma,
    cuda_steps,
    cuda_thread,
    cuda_tile,
    cuda_warp,
    cuda_wmma,
)
from benchmarks.generators.tasks.attention_forward_torch import TORCH, torch_source
from benchmarks.generators.tasks.attention_forward_triton import (
    AUTOTUNE,
    PAIRED_CALLS,
    PERSISTENT_PLACES,
    THREE_SOFTMAX,
    TORCH_SCORE_WAYS,
    WRAPS,
    autotuned,
    block_pointers,
    descriptors,
    flash,
    no_dots,
    one_query,
    paired,
    persistent,
    split_keys,
    three_kernels,
    torch_scores,
    two_passes,
)

if TYPE_CHECKING:
    import torch

TASK = "attention_forward"
OPERATION = (
    "Causal multi-head attention, forward: q, k, v and the result [B, H, T, D] in bfloat16, scale D^-0.5."
)
SHAPES: list[dict[str, int]] = [
    {"B": 4, "H": 16, "T": 1024, "D": 64},
    {"B": 1, "H": 16, "T": 2048, "D": 128},
    {"B": 1, "H": 8, "T": 4096, "D": 64},
]
# The norm of the difference over the norm of the reference: room for scores and weights in bfloat16, none for 8 bits.
TOLERANCE: dict[str, float] = {"relative_norm": 1e-2}
OUTPUT_DTYPES = ["bfloat16"]


def make_inputs(shape: dict[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws queries, keys and values of spread 1."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    size = tuple(shape[name] for name in ("B", "H", "T", "D"))
    return tuple(torch.randn(size, generator=generator, device=device).bfloat16() for _ in range(3))


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Computes the result in float64, head by head and some rows at a time, and returns it in float32."""
    import torch

    batch, heads, length, width = q.shape
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    positions = torch.arange(length, device=q.device)
    for b in range(batch):
        for h in range(heads):
            keys, values = k[b, h].double(), v[b, h].double()
            for start in range(0, length, 1024):
                rows = slice(start, start + 1024)
                scores = q[b, h, rows].double() @ keys.T * width**-0.5
                scores.masked_fill_(positions[rows, None] < positions[None, :], float("-inf"))
                out[b, h, rows] = (scores.softmax(dim=-1) @ values).float()
    return (out,)


SEED = flash(32, 32, 4, 1, causal="all")


def add_flash(pool: Pool) -> None:
    """Adds the sound members of the family with a running softmax."""
    small = ((16, 16, 1, 1), (16, 32, 2, 1), (32, 32, 4, 1), (32, 32, 2, 2), (32, 64, 4, 2))
    usual = (
        (64, 32, 4, 2),
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (128, 32, 4, 2),
        (128, 64, 4, 2),
        (128, 64, 8, 2),
    )
    large = ((128, 64, 8, 3), (128, 128, 8, 2), (64, 128, 4, 2), (128, 64, 4, 3))
    pool.add(flash(*size, causal="all") for size in small + usual[:3] + usual[4:])
    pool.add(flash(*size) for size in small + usual + large)
    pool.add(flash(*size, causal="two_loops") for size in (*small[2:], *usual, *large))
    pool.add(flash(*size, exp="exp2") for size in (small[2], *usual[1:3], *usual[4:], *large))
    pool.add(
        flash(*size, causal="two_loops", exp="exp2") for size in (usual[1], usual[2], *usual[4:], *large)
    )
    pool.add(
        flash(*size, causal="two_loops", exp="exp2", order=order)
        for size, order in product((usual[2], large[0]), ("reverse", "heads_first", "flat"))
    )
    pool.add(flash(*size, exp="exp2", order="reverse") for size in (usual[2], usual[5], *large))
    pool.add(
        flash(*size, order=order) for size, order in product((small[2], usual[1]), ("heads_first", "reverse"))
    )
    pool.add(flash(*size, values="late") for size in (small[2], usual[1], usual[5]))
    pool.add(
        flash(*size, causal="two_loops", exp="exp2", order="reverse", values="late")
        for size in (usual[2], large[0])
    )
    pool.add(
        flash(*size, softmax=softmax, exp="exp2")
        for size, softmax in product((usual[1], large[0]), ("no_max", "lazy"))
    )
    pool.add(flash(*size, softmax="no_max") for size in (small[2], usual[1], usual[4]))
    pool.add([flash(*small[2], causal="all", softmax="no_max")])
    pool.add(
        flash(*size, causal="two_loops", exp="exp2", order="reverse", softmax=softmax)
        for size, softmax in product((large[0], large[3]), ("no_max", "lazy"))
    )
    pool.add(
        flash(*size)
        for size in (
            (64, 64, 8, 1),
            (64, 64, 4, 1),
            (64, 16, 4, 2),
            (16, 64, 4, 2),
            (128, 128, 4, 2),
            (16, 128, 4, 2),
        )
    )
    pool.add(flash(*size, causal="all") for size in ((64, 64, 8, 1), (16, 64, 4, 2), (128, 128, 8, 1)))


def add_precisions(pool: Pool) -> None:
    """Adds running softmaxes whose products have another precision."""
    sizes = ((16, 16, 4, 1), (32, 32, 4, 1), (32, 64, 4, 1), (64, 32, 4, 1))
    pool.add(
        flash(*size, causal=causal, precision="ieee") for size, causal in product(sizes, ("all", "skip"))
    )
    pool.add(flash(*size, causal="all", precision="tf32") for size in sizes)
    pool.add(flash(*size, precision="tf32") for size in (*sizes[1:], (64, 64, 4, 1)))
    pool.add(flash(*size, precision="fp16") for size in ((32, 32, 4, 1), (64, 64, 4, 2), (128, 64, 8, 3)))
    pool.add(flash(*size, causal="two_loops", precision="ieee") for size in (sizes[1], sizes[3]))
    pool.add([flash(64, 64, 8, 1, precision="ieee"), flash(16, 32, 2, 1, causal="all", precision="ieee")])


def add_triton(pool: Pool) -> None:
    """Adds the other sound Triton sources."""
    pool.add(
        block_pointers(*size, causal)
        for size, causal in product(
            ((64, 32, 4, 2), (64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2)),
            ("skip", "two_loops"),
        )
    )
    pool.add(block_pointers(*size, "all") for size in ((32, 32, 4, 1), (64, 64, 4, 3), (128, 64, 8, 3)))
    pool.add(block_pointers(*size, "two_loops") for size in ((64, 64, 4, 2), (128, 32, 4, 4), (64, 64, 8, 2)))
    pool.add(
        block_pointers(*size, causal, "checked")
        for size, causal in product(((64, 64, 4, 3), (128, 64, 8, 3)), ("skip", "two_loops"))
    )
    pool.add([block_pointers(32, 32, 4, 1, "all", "checked"), block_pointers(32, 16, 2, 1, "skip")])
    pool.add(
        descriptors(*size)
        for size in (
            (64, 64, 4, 2),
            (64, 64, 4, 3),
            (128, 64, 4, 2),
            (128, 64, 8, 2),
            (128, 64, 8, 3),
            (128, 128, 8, 2),
            (64, 32, 4, 3),
            (64, 128, 4, 2),
        )
    )
    pool.add(
        descriptors(*size, order="reverse") for size in ((64, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2))
    )
    pool.add(descriptors(*size, loop="staged") for size in ((128, 64, 8, 3), (64, 64, 4, 3)))
    pool.add(
        three_kernels(*size, softmax, store)
        for size, softmax, store in product(
            ((32, 32, 4), (64, 64, 4)), THREE_SOFTMAX, ("float32", "bfloat16")
        )
    )
    pool.add(
        three_kernels(*size, "whole_row", "float32", precision=precision)
        for size, precision in product(((32, 32, 4), (64, 32, 4)), ("tf32", "ieee"))
    )
    pool.add(three_kernels(32, 32, 4, softmax, "float32", alloc="zeros") for softmax in THREE_SOFTMAX)
    pool.add([three_kernels(128, 64, 8, "up_to_diagonal", "bfloat16")])
    pool.add(
        [
            three_kernels(16, 64, 4, "three_sweeps", "float32"),
            three_kernels(16, 16, 2, "whole_row", "float32"),
        ]
    )
    pool.add(
        two_passes(*size, causal)
        for size, causal in product(((32, 32, 4, 1), (64, 64, 4, 2), (128, 64, 8, 3)), ("all", "skip"))
    )
    pool.add([two_passes(64, 32, 4, 3, "skip"), two_passes(16, 32, 2, 1, "all")])
    pool.add(
        one_query(body, block, warps)
        for body, block, warps in (
            ("online", 16, 1),
            ("online", 32, 1),
            ("online", 64, 2),
            ("online", 64, 4),
            ("online", 128, 4),
            ("two_walks", 32, 1),
            ("two_walks", 64, 4),
        )
    )
    pool.add(
        split_keys(parts, *size) for parts, size in product((2, 4), ((64, 64, 4), (64, 32, 4), (128, 64, 8)))
    )
    pool.add([split_keys(8, 64, 64, 4), split_keys(2, 32, 32, 4), split_keys(4, 64, 64, 4, rows=4)])
    pool.add(
        persistent(per_sm, *size, order)
        for per_sm, size, order in product((1, 2), ((64, 64, 4, 3), (128, 64, 8, 3)), PERSISTENT_PLACES)
    )
    pool.add(persistent(4, *size, "long_first") for size in ((64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 1)))
    pool.add([persistent(1, 32, 32, 4, 1, "heads"), persistent(1, 16, 32, 2, 1, "heads")])
    pool.add(
        paired(*size, calls)
        for size, calls in product(
            ((32, 32, 4, 1), (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3)), PAIRED_CALLS
        )
    )
    pool.add(autotuned(configs) for configs in AUTOTUNE)
    pool.add(torch_scores(way, warps) for way, warps in product(TORCH_SCORE_WAYS, (4, 8)))
    pool.add(
        no_dots(rows, warps, causal)
        for rows, warps, causal in (
            (1, 1, "skip"),
            (16, 1, "skip"),
            (16, 4, "all"),
            (32, 4, "skip"),
            (64, 4, "skip"),
            (64, 8, "all"),
        )
    )


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(algorithm, how) for algorithm, how in TORCH)
    pool.add(
        torch_source(algorithm, how, prelude)
        for algorithm, how, prelude in (
            ("library", "default", "clone"),
            ("library", "default", "check_finite"),
            ("eager", "float32", "tf32"),
            ("eager", "float32", "clone"),
            ("eager", "bfloat16", "synchronize"),
            ("query_loop", "float32", "tf32"),
        )
    )


def add_cuda(pool: Pool) -> None:
    """Adds the sound CUDA C++ sources."""
    pool.add([cuda_thread("global", 64, 1), cuda_thread("global", 128, 1)])
    pool.add(cuda_thread("shared", *size) for size in ((64, 16), (64, 32), (128, 16), (128, 32)))
    pool.add([cuda_thread("shared", 64, 32, exp="__expf"), cuda_thread("shared", 64, 32, order="reverse")])
    pool.add(cuda_warp(body, warps) for body, warps in product(CU_WARP_BODIES, (1, 4, 8, 16)))
    pool.add([cuda_warp("lanes_over_dims", 4, host="extension")])
    pool.add(cuda_block(threads, dot, "shuffle") for threads, dot in product((128, 256, 512), CU_BLOCK_DOTS))
    pool.add(cuda_block(threads, "scalar", "tree") for threads in (128, 256))
    pool.add([cuda_block(256, "vector", "tree"), cuda_block(128, "scalar", "tree", host="extension")])
    tiles = ((32, 32, 2, 2), (64, 32, 4, 2), (32, 64, 2, 4), (64, 64, 4, 4), (64, 64, 8, 4), (128, 64, 8, 4))
    pool.add(cuda_tile(*size) for size in tiles)
    pool.add(cuda_tile(*size, causal="all") for size in (tiles[0], tiles[3]))
    pool.add(cuda_tile(*size, order="reverse") for size in (tiles[3], tiles[4]))
    pool.add([cuda_tile(64, 64, 4, 8), cuda_tile(64, 64, 4, 4, host="extension")])
    pool.add(cuda_wmma(warps, bn) for warps, bn in product((2, 4, 8), (32, 64)))
    pool.add(cuda_wmma(warps, bn, order="reverse") for warps, bn in ((4, 32), (4, 64), (8, 64)))
    pool.add([cuda_wmma(4, 128), cuda_wmma(1, 32), cuda_wmma(4, 64, host="extension")])
    pool.add(cuda_mma(warps, bn, stages) for warps, bn, stages in product((4, 8), (32, 64), (1, 2)))
    pool.add(
        cuda_mma(*size) for size in ((2, 32, 2), (2, 64, 2), (4, 128, 1), (4, 64, 3), (8, 64, 3), (4, 32, 3))
    )
    pool.add(
        cuda_mma(*size, order="reverse", mask=mask)
        for size, mask in product(((4, 64, 2), (8, 64, 2)), ("always", "edge"))
    )
    pool.add(
        [cuda_mma(4, 64, 2, mask="edge"), cuda_mma(4, 64, 2, order="reverse", mask="edge", host="extension")]
    )
    pool.add(
        cuda_steps(bx, by, rows, causal)
        for bx, by, rows, causal in (
            (16, 16, 1, "all"),
            (16, 16, 1, "skip"),
            (32, 8, 4, "skip"),
            (32, 32, 4, "all"),
            (32, 4, 2, "skip"),
        )
    )


def add_wrapped(pool: Pool) -> None:
    """Adds sound kernels inside careless wrappers."""
    parents = [
        SEED,
        flash(64, 64, 4, 2),
        flash(128, 64, 8, 3, causal="two_loops", exp="exp2"),
        block_pointers(128, 64, 8, 3, "two_loops"),
        three_kernels(32, 32, 4, "whole_row", "float32"),
    ]
    pool.add_wrapped(parents, WRAPS)


def break_flash(pool: Pool) -> None:
    """Adds sources with a running softmax that fail, each derived from a sound one."""
    causal = "rows[:, None] >= cols[None, :]"
    pool.add_broken(
        SEED,
        not_causal={f'        s = tl.where({causal}, s, float("-inf"))\n': ""},
        strictly_causal={causal: "rows[:, None] > cols[None, :]"},
        no_rescale={"acc = acc * alpha[:, None]\n": "acc = acc * 1.0\n"},
        undefined_name={"acc / l_i[:, None]": "acc / l_sum[:, None]"},
        block_not_power_of_two={"BLOCK_N=32": "BLOCK_N=48"},
    )
    pool.add_broken(
        flash(64, 64, 4, 2),
        no_scale={" * scale": ""},
        sum_not_rescaled={"l_i = l_i * alpha + ": "l_i = l_i + "},
        head_stride={"head.to(tl.int64) * T * D": "head.to(tl.int64) * T"},
        wrong_axis={"tl.max(s, axis=1)": "tl.max(s, axis=0)"},
        syntax={"for start in range(0,": "for start in range(0:"},
    )
    pool.add_broken(
        flash(128, 64, 8, 3),
        diagonal_left_out={"tl.minimum((block + 1) * BLOCK_M, T)": "block * BLOCK_M"},
        eight_bit_weights={"p.to(tl.bfloat16), v,": "p.to(tl.float8e5).to(tl.bfloat16), v,"},
        shared_memory_overflow={"num_stages=3": "num_stages=9"},
        wild_pointer={"k_ptr + base + cols[None, :] * D": "k_ptr + (base + cols[None, :] * D + 1) * 1048576"},
    )
    pool.add_broken(
        flash(128, 64, 8, 3, exp="exp2"),
        log_of_two={"D ** -0.5 * 1.4426950408889634": "D ** -0.5 * 0.6931471805599453"},
        weights_not_cast={"tl.dot(p.to(tl.bfloat16), v, acc)": "tl.dot(p, v, acc)"},
    )
    pool.add_broken(
        flash(64, 64, 4, 2, causal="two_loops"),
        edge_forgotten={
            "range(edge, (block + 1) * BLOCK_M, BLOCK_N)": "range(edge + BLOCK_N, (block + 1) * BLOCK_M, BLOCK_N)"
        },
        order_of_blocks={
            "block * BLOCK_M // BLOCK_N * BLOCK_N": "(block + 1) * BLOCK_M // BLOCK_N * BLOCK_N"
        },
    )
    pool.add_broken(
        flash(32, 32, 4, 1),
        long_loop={
            "    for start in range(0, tl.minimum((block + 1) * BLOCK_M, T), BLOCK_N):\n": (
                "    for turn in range(0, T * 2000000):\n        start = turn % T // BLOCK_N * BLOCK_N\n"
            )
        },
        max_from_zero={
            'tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)': "tl.full([BLOCK_M], 1.0e4, dtype=tl.float32)"
        },
    )
    pool.add_broken(flash(64, 64, 4, 2, softmax="no_max"), scale_forgotten={" * scale": ""})


def break_triton(pool: Pool) -> None:
    """Adds other Triton sources that fail."""
    pool.add_broken(
        block_pointers(64, 64, 4, 3, "two_loops"),
        keys_not_advanced={"        pk = tl.advance(pk, (0, BN))\n": ""},
        order_of_dims={
            "(HD, N_CTX), (1, HD), (0, 0), (HD, BN), (0, 1)": "(N_CTX, HD), (HD, 1), (0, 0), (BN, HD), (1, 0)"
        },
        third_result_lost={"return acc, l_i, m_i": "return acc, l_i"},
    )
    pool.add_broken(
        descriptors(128, 64, 8, 3),
        block_of_queries={"x.view(-1, D), [128, D]": "x.view(-1, D), [64, D]"},
    )
    pool.add_broken(
        three_kernels(64, 64, 4, "whole_row", "float32"),
        heads_overlap={"s + bh * T * T": "s + bh * T"},
        unmasked_sum={"tl.sum(x, 0)": "tl.max(x, 0)"},
    )
    pool.add_broken(
        three_kernels(64, 64, 4, "up_to_diagonal", "bfloat16"),
        end_of_row={"mask=o < T)": "mask=ok)", "range(0, (i + 1) * BM, BN)": "range(0, T, BN)"},
    )
    pool.add_broken(two_passes(64, 64, 4, 2, "skip"), no_log={"top + tl.log(total)": "top + total"})
    pool.add_broken(
        one_query("online", 64, 4),
        no_self={"n <= t": "n < t", "range(0, t + 1, BLOCK)": "range(0, t, BLOCK)"},
    )
    pool.add_broken(
        split_keys(4, 64, 64, 4),
        weights_of_parts={"w = tl.exp(tl.load(stat + 2 * at) - top)": "w = tl.exp(top - top)"},
        last_piece={"(piece + 1) * share": "piece * share + BN"},
    )
    pool.add_broken(
        persistent(1, 64, 64, 4, 3, "heads"),
        sums_kept={
            "        l = tl.zeros([BM], tl.float32)\n": "",
            "    d = tl.arange(0, D)\n": "    d = tl.arange(0, D)\n    l = tl.zeros([BM], tl.float32)\n",
        },
        wrong_modulus={"block = job % blocks": "block = job // blocks"},
    )
    pool.add_broken(
        paired(64, 64, 4, 2, "two_calls"),
        one_block={"    attend(q, k, v, o, base, i, scale, D, BM, BN)\n": ""},
    )
    pool.add_broken(torch_scores("bfloat16", 4), whole_row={"mask=n <= i": "mask=n < T"})
    pool.add_broken(no_dots(32, 4), too_many_warps={"num_warps=4": "num_warps=64"})


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(torch_source("library", "default"), not_causal={", is_causal=True": ""})
    pool.add_broken(
        torch_source("library", "mask"), both_masks={"attn_mask=mask": "attn_mask=mask, is_causal=True"}
    )
    pool.add_broken(torch_source("eager", "bfloat16"), diagonal={"diagonal=1": "diagonal=0"})
    pool.add_broken(torch_source("eager", "float32"), type_of_values={"v.float()": "v"})
    pool.add_broken(
        torch_source("query_loop", "in_blocks"),
        wrong_slice={"v[..., : i + 256, :]": "v[..., i : i + 256, :]"},
    )


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    pool.add_broken(
        cuda_thread("shared", 64, 32),
        return_before_barrier={"      if (n0 + j > row) break;": "      if (n0 + j > row) return;"},
        array_of_runtime_size={"float x[D], acc[D];": "float x[T], acc[D];"},
    )
    pool.add_broken(cuda_warp("lanes_over_dims", 4), half_a_warp={"int o = 16": "int o = 8"})
    pool.add_broken(
        cuda_block(256, "scalar", "shuffle"),
        memory_of_scores={"THREADS, T * 4>>>": "THREADS, T * 400>>>"},
        groups_not_merged={"g < GROUPS": "g < 1"},
    )
    pool.add_broken(
        cuda_tile(64, 64, 4, 4),
        sums_not_rescaled={"d < TD; d++) acc[i][d] *= a;": "d < TD; d++) acc[i][d] *= 1.0f;"},
    )
    pool.add_broken(cuda_wmma(4, 64), key_layout={"bf16, wmma::col_major": "bf16, wmma::row_major"})
    pool.add_broken(
        cuda_mma(4, 64, 2),
        wait_for_one_more={"cp_async_wait<1>()": "cp_async_wait<2>()"},
        row_of_fragment={"row + u / 2 * 8) s": "row + u % 2 * 8) s"},
        missing_type={"#include <cuda_bf16.h>\n": ""},
    )


def link_families(pool: Pool) -> None:
    """Names the changes of algorithm that count as one edit."""
    pool.link(SEED, block_pointers(32, 32, 4, 1, "all"))
    pool.link(SEED, two_passes(32, 32, 4, 1, "all"))
    pool.link(SEED, three_kernels(32, 32, 4, "whole_row", "float32"), torch_source("eager", "float32"))
    pool.link(SEED, no_dots(64, 8, "all"), one_query("online", 64, 4))
    pool.link(flash(32, 32, 4, 1), split_keys(2, 32, 32, 4))
    pool.link(flash(32, 32, 4, 1), persistent(1, 32, 32, 4, 1, "heads"))
    pool.link(flash(32, 32, 4, 1), paired(32, 32, 4, 1, "two_calls"))
    pool.link(flash(32, 32, 4, 1), two_passes(32, 32, 4, 1, "skip"))
    pool.link(flash(32, 32, 4, 1), autotuned("small"))
    for size in ((64, 64, 4, 3), (128, 64, 8, 3)):
        pool.link(flash(*size), persistent(1, *size, "heads"))
        pool.link(flash(*size), paired(*size, "two_calls"))
        pool.link(flash(*size, exp="exp2"), descriptors(*size))
        pool.link(flash(*size, causal="two_loops", exp="exp2"), block_pointers(*size, "two_loops"))
    pool.link(flash(64, 32, 4, 2), block_pointers(64, 32, 4, 2, "skip"))
    pool.link(flash(64, 64, 4, 2), split_keys(2, 64, 64, 4))
    pool.link(flash(64, 64, 4, 3, exp="exp2", order="reverse"), autotuned("usual"))
    pool.link(flash(128, 64, 8, 3, exp="exp2", order="reverse"), autotuned("wide"))
    pool.link(flash(64, 64, 4, 1), autotuned("one_stage"))
    pool.link(flash(64, 64, 4, 1), flash(64, 64, 4, 1, precision="tf32"))
    pool.link(torch_scores("bfloat16", 4), torch_source("eager", "bfloat16"))
    pool.link(torch_scores("float32", 4), torch_source("eager", "float32"))
    pool.link(torch_scores("bfloat16", 4), three_kernels(64, 64, 4, "whole_row", "bfloat16"))
    pool.link(
        torch_source("eager", "float32"), torch_source("eager", "bfloat16"), torch_source("library", "mask")
    )
    pool.link(
        torch_source("library", "mask"), torch_source("library", "default"), torch_source("backend", "cudnn")
    )
    pool.link(torch_source("library", "default"), torch_source("library", "float32"))
    pool.link(torch_source("eager", "float32"), torch_source("query_loop", "float32"))
    pool.link(torch_source("eager", "bfloat16"), torch_source("query_loop", "in_blocks"))
    pool.link(torch_source("query_loop", "in_blocks"), torch_source("key_loop", "online"), SEED)
    pool.link(torch_source("eager", "divided_late"), torch_source("recursive", "halves"))
    pool.link(torch_source("eager", "float32"), torch_source("batch_loop", "head_by_head"))
    pool.link(torch_source("batch_loop", "head_by_head"), torch_source("eager", "float64"))
    pool.link(
        cuda_steps(16, 16, 1, "all"), cuda_block(128, "scalar", "tree"), cuda_warp("lanes_over_dims", 4)
    )
    pool.link(cuda_steps(16, 16, 1, "all"), cuda_thread("global", 64, 1), one_query("online", 32, 1))
    pool.link(cuda_thread("global", 64, 1), cuda_thread("shared", 64, 16))
    pool.link(cuda_thread("shared", 64, 32), cuda_tile(64, 64, 4, 4), cuda_wmma(4, 64), cuda_mma(4, 64, 1))
    pool.link(cuda_tile(64, 64, 4, 4, causal="all"), flash(64, 32, 4, 1, causal="all", precision="ieee"))
    pool.link(cuda_mma(4, 64, 2), flash(64, 64, 4, 2, exp="exp2"))
    pool.link(cuda_steps(16, 16, 1, "all"), three_kernels(16, 16, 2, "whole_row", "float32"))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_flash,
        add_precisions,
        add_triton,
        add_torch,
        add_cuda,
        add_wrapped,
        break_flash,
        break_triton,
        break_torch,
        break_cuda,
        link_families,
        Pool.link_retuned,
    )
