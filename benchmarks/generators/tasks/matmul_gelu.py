"""Generator of the recorded task ``matmul_gelu``: a matrix product with bias and GELU as its epilogue.

Every source defines ``run(x, weight, bias)`` for x of shape [M, K], weight [K, N] and bias [N], all bfloat16, and
returns ``gelu(x @ weight + bias)`` of shape [M, N] in bfloat16, with the GELU that is defined by the error function.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from benchmarks.generators.pool import Pool
from benchmarks.generators.tasks.matmul_gelu_cuda import (
    CU_WMMA_LOOPS,
    cuda_direct,
    cuda_element,
    cuda_mma,
    cuda_register,
    cuda_split,
    cuda_tile,
    cuda_warp_dot,
    cuda_wmma,
)
from benchmarks.generators.tasks.matmul_gelu_torch import PRELUDES, TORCH, torch_source
from benchmarks.generators.tasks.matmul_gelu_triton import (
    AUTOTUNE,
    WRAPS,
    autotuned,
    block_pointers,
    descriptors,
    library_product,
    no_dots,
    persistent,
    split_k,
    tiled,
    transposed,
)

if TYPE_CHECKING:
    import torch

TASK = "matmul_gelu"
OPERATION = (
    "Matrix product with an epilogue: gelu(x @ weight + bias), exact GELU; x [M, K], weight [K, N], bias [N] and the "
    "result [M, N] in bfloat16."
)
SHAPES: list[dict[str, int]] = [
    {"M": 2048, "K": 1024, "N": 4096},
    {"M": 256, "K": 4096, "N": 4096},
    {"M": 4096, "K": 768, "N": 3072},
]
# The norm of the difference over the norm of the reference: bfloat16 rounds to 1.7e-3, also twice; sums in
# bfloat16, an 8-bit operand and the sigmoid that resembles GELU are out.
TOLERANCE: dict[str, float] = {"relative_norm": 5e-3}
OUTPUT_DTYPES = ["bfloat16"]


def make_inputs(shape: dict[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws an activation of spread 1, weights that keep the spread, and a bias of spread 0.5."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(spread: float, *size: int) -> torch.Tensor:
        return (torch.randn(size, generator=generator, device=device) * spread).bfloat16()

    m, k, n = (shape[name] for name in ("M", "K", "N"))
    return normal(1.0, m, k), normal(k**-0.5, k, n), normal(0.5, n)


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Computes the result in float64, some rows at a time, and returns it in float32."""
    import torch

    out = torch.empty(x.shape[0], weight.shape[1], dtype=torch.float32, device=x.device)
    wide = weight.double()
    for start in range(0, x.shape[0], 512):
        part = x[start : start + 512].double() @ wide + bias.double()
        out[start : start + 512] = torch.nn.functional.gelu(part).float()
    return (out,)


SEED = tiled(32, 64, 32, 4, 2, epilogue="kernel", store="float32")


def add_tiled(pool: Pool) -> None:
    """Adds the sound members of the plain family."""
    small = (
        (16, 16, 32, 1, 2),
        (16, 32, 32, 2, 2),
        (32, 32, 32, 4, 2),
        (32, 64, 32, 4, 2),
        (64, 32, 32, 4, 2),
    )
    usual = ((64, 64, 32, 4, 3), (64, 128, 32, 4, 3), (128, 64, 32, 4, 3), (128, 128, 32, 4, 3))
    large = ((128, 128, 64, 8, 3), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (64, 256, 64, 8, 3))
    pool.add([SEED])
    pool.add(tiled(*size) for size in small + usual + large)
    pool.add(tiled(*size, order="grouped") for size in (*usual, *large))
    pool.add(tiled(*size, order="columns_first") for size in (usual[0], usual[3], large[0], large[1]))
    pool.add(tiled(*size, order="flat") for size in (small[3], usual[0], large[0]))
    pool.add(
        tiled(*size, order="grouped")
        for size in (
            (64, 64, 64, 4, 4),
            (64, 128, 64, 4, 4),
            (128, 64, 64, 4, 4),
            (128, 128, 64, 4, 3),
            (128, 128, 64, 8, 4),
            (128, 256, 64, 8, 4),
            (128, 256, 32, 8, 4),
            (128, 128, 128, 8, 2),
            (64, 128, 128, 4, 3),
            (64, 64, 128, 4, 3),
            (128, 128, 64, 8, 2),
            (256, 64, 64, 8, 3),
        )
    )
    pool.add(
        tiled(*size)
        for size in (
            (64, 64, 32, 4, 1),
            (64, 64, 32, 8, 3),
            (64, 64, 32, 2, 3),
            (64, 64, 16, 4, 3),
            (32, 64, 32, 4, 1),
            (32, 64, 32, 2, 2),
            (32, 64, 64, 4, 2),
            (32, 128, 32, 4, 3),
            (16, 64, 32, 4, 2),
            (16, 128, 64, 4, 3),
            (128, 128, 32, 4, 1),
            (128, 128, 32, 8, 2),
            (128, 128, 16, 4, 2),
            (128, 32, 32, 4, 2),
            (256, 32, 32, 8, 2),
            (64, 64, 64, 4, 2),
        )
    )
    pool.add(tiled(*size, mask="k") for size in (small[3], usual[0], usual[3]))
    pool.add(tiled(*size, mask="all") for size in (small[2], small[3], usual[0], usual[3], large[0]))
    pool.add(tiled(*size, mask="all", order="grouped") for size in (usual[3], large[0], large[1]))
    pool.add(tiled(*size, gelu=how) for size, how in product((usual[0], large[0]), ("tanh", "exp")))
    pool.add(
        tiled(*size, order="grouped", gelu=how)
        for size, how in product((large[0], large[1]), ("tanh", "exp"))
    )
    pool.add(
        tiled(*size, epilogue=epilogue)
        for size, epilogue in product((small[3], usual[0], usual[3], large[0]), ("kernel", "torch"))
    )
    pool.add(
        tiled(*size, epilogue=epilogue, store="float32")
        for size, epilogue in product((small[0], small[2], usual[0]), ("kernel", "torch"))
    )
    pool.add([tiled(*small[3], epilogue="torch", store="float32")])
    pool.add(
        [
            tiled(*large[0], order="grouped", epilogue="torch"),
            tiled(*small[3], epilogue="kernel", gelu="tanh"),
        ]
    )


def add_precisions(pool: Pool) -> None:
    """Adds products in other precisions."""
    pool.add(
        tiled(*size, precision=precision)
        for size, precision in product(
            ((32, 32, 32, 4, 2), (32, 64, 32, 4, 2), (64, 64, 32, 4, 2), (64, 64, 32, 8, 2)), ("ieee", "tf32")
        )
    )
    pool.add(tiled(*size, precision="ieee") for size in ((16, 64, 32, 4, 2), (128, 64, 16, 8, 2)))
    pool.add(tiled(*size, precision="ieee", mask="all") for size in ((32, 32, 32, 4, 2), (64, 64, 32, 4, 2)))
    pool.add(
        tiled(*size, precision="ieee", epilogue="kernel", store="float32")
        for size in ((32, 32, 32, 4, 2), (32, 64, 32, 4, 2), (64, 64, 32, 4, 2))
    )
    pool.add(
        tiled(*size, precision="tf32")
        for size in ((128, 64, 32, 4, 3), (128, 128, 32, 8, 3), (16, 32, 32, 2, 2))
    )
    pool.add(tiled(*size, precision="fp16") for size in ((64, 64, 32, 4, 3), (128, 128, 64, 8, 3)))


def add_triton(pool: Pool) -> None:
    """Adds the other sound Triton sources."""
    sizes = ((64, 64, 32, 4, 3), (128, 128, 32, 4, 3), (128, 128, 64, 8, 3), (128, 256, 64, 8, 3))
    pool.add(block_pointers(*size, check=check) for size, check in product(sizes, ("plain", "checked")))
    pool.add(
        block_pointers(*size, check="checked")
        for size in ((32, 32, 32, 4, 2), (32, 64, 32, 4, 2), (16, 64, 32, 4, 1), (64, 32, 16, 2, 2))
    )
    pool.add(block_pointers(*size, order="columns_first") for size in (sizes[0], sizes[2], sizes[3]))
    pool.add(block_pointers(*sizes[2], gelu=how) for how in ("tanh", "exp"))
    pool.add(
        block_pointers(*size) for size in ((64, 128, 64, 4, 4), (256, 128, 64, 8, 3), (64, 256, 32, 4, 3))
    )
    pool.add(
        descriptors(side, *size)
        for side, size in product(
            ("host", "device"),
            (
                (64, 64, 64, 4, 3),
                (128, 128, 64, 8, 3),
                (128, 128, 64, 4, 3),
                (128, 256, 64, 8, 3),
                (64, 128, 64, 4, 4),
                (128, 64, 64, 4, 3),
            ),
        )
    )
    pool.add([descriptors("host", 128, 256, 64, 8, 4), descriptors("host", 128, 128, 128, 8, 2)])
    pool.add([descriptors("host", 128, 128, 64, 8, 3, gelu="exp"), descriptors("host", 64, 64, 32, 4, 2)])
    pool.add([descriptors("host", 128, 256, 64, 8, 3, gelu="exp"), descriptors("host", 256, 128, 64, 8, 3)])
    pool.add(
        persistent(per_sm, *size)
        for per_sm, size in product((1, 2), ((64, 64, 32, 4, 3), (128, 128, 64, 8, 3), (128, 128, 32, 4, 3)))
    )
    pool.add(persistent(1, *size) for size in ((128, 256, 64, 8, 3), (64, 256, 64, 8, 3), (32, 64, 32, 4, 2)))
    pool.add(persistent(1, *size, order="columns") for size in ((128, 128, 64, 8, 3), (128, 256, 64, 8, 3)))
    pool.add(persistent(1, *size, loop="flatten") for size in ((128, 128, 64, 8, 3), (128, 256, 64, 8, 3)))
    pool.add(
        [persistent(4, 64, 64, 32, 4, 3), persistent(4, 32, 64, 32, 4, 2), persistent(4, 32, 32, 32, 4, 2)]
    )
    pool.add([persistent(1, 128, 128, 64, 8, 3, gelu="exp"), persistent(1, 16, 64, 32, 4, 2)])
    pool.add(
        split_k(way, splits, *size)
        for way, splits, size in product(
            ("atomic", "buffer"), (2, 4), ((64, 64, 32, 4, 3), (128, 128, 64, 8, 3))
        )
    )
    pool.add(split_k("relaxed", splits, 64, 128, 64, 4, 3) for splits in (2, 4))
    pool.add(split_k("buffer", splits, 64, 128, 64, 4, 3) for splits in (2, 4, 8))
    pool.add(split_k(way, 8, 32, 64, 32, 4, 2) for way in ("atomic", "buffer"))
    pool.add(split_k(way, 4, 32, 32, 32, 4, 2) for way in ("atomic", "buffer"))
    pool.add(split_k("buffer", 4, 128, 128, 64, 8, 3, block=block) for block in (256, 4096))
    pool.add([split_k("buffer", 2, 128, 128, 64, 8, 3, gelu="exp"), split_k("atomic", 8, 64, 64, 32, 4, 3)])
    pool.add(autotuned(configs) for configs in AUTOTUNE)
    pool.add([autotuned("wide", "exp"), autotuned("usual", "tanh")])
    pool.add(
        transposed(load, *size)
        for load, size in product(
            ("trans", "pointers"), ((32, 64, 32, 4, 2), (64, 64, 32, 4, 3), (128, 128, 64, 8, 3))
        )
    )
    pool.add([transposed("trans", 128, 256, 64, 8, 3), transposed("pointers", 64, 64, 64, 4, 2)])
    pool.add(
        library_product("matmul", layout, block, warps)
        for layout, block, warps in (
            ("flat", 256, 2),
            ("flat", 1024, 4),
            ("flat", 4096, 8),
            ("row", 128, 1),
            ("row", 1024, 4),
            ("row", 4096, 8),
        )
    )
    pool.add(library_product("matmul", "flat", 1024, 4, gelu=how) for how in ("tanh", "exp"))
    pool.add(
        library_product("float32", layout, block, warps)
        for layout, block, warps in (("flat", 1024, 4), ("row", 1024, 4), ("row", 128, 1))
    )
    pool.add([library_product("mm_out", "flat", 1024, 4), library_product("mm_out", "row", 1024, 4)])
    pool.add(
        no_dots("outer", *size) for size in ((16, 64, 4), (32, 64, 4), (64, 64, 8), (32, 32, 4), (64, 128, 8))
    )
    pool.add(no_dots("reduce", *size, 4, depth) for *size, depth in ((16, 32, 16), (16, 16, 32), (32, 32, 8)))


def add_torch(pool: Pool) -> None:
    """Adds the sound PyTorch sources."""
    pool.add(torch_source(algorithm, how) for algorithm, how in TORCH)
    pool.add(torch_source("eager", "addmm", prelude) for prelude in PRELUDES)
    pool.add(torch_source("float32", "everything", prelude) for prelude in ("clone", "synchronize"))


def add_cuda(pool: Pool) -> None:
    """Adds the sound CUDA C++ sources."""
    pool.add(
        cuda_element(loop, *block)
        for loop, block in product(("plain", "pairs"), ((16, 16), (32, 8), (128, 1), (32, 32)))
    )
    pool.add([cuda_element("plain", 16, 16, host="extension"), cuda_element("plain", 16, 16, gelu="tanh")])
    pool.add([cuda_element("plain", 32, 4, turned=True)])
    pool.add(cuda_tile(tile, stored) for tile, stored in product((16, 32), ("float", "bf16")))
    pool.add(
        [cuda_tile(32, "float", pad=1), cuda_tile(16, "float", pad=1), cuda_tile(16, "float", unroll=False)]
    )
    pool.add([cuda_tile(8, "float"), cuda_tile(16, "float", host="extension")])
    registers = (
        (64, 64, 16, 4, 4),
        (64, 64, 8, 8, 4),
        (128, 128, 8, 8, 8),
        (128, 64, 16, 8, 4),
        (32, 64, 16, 2, 4),
    )
    pool.add(cuda_register(*size, "scalar") for size in registers)
    pool.add(cuda_register(*size, "vector") for size in registers)
    pool.add(
        cuda_register(*size, "vector", columns="spread", pad=pad)
        for size, pad in product((registers[0], registers[2]), (0, 4))
    )
    pool.add([cuda_register(64, 64, 32, 4, 4, "vector"), cuda_register(64, 128, 16, 4, 8, "vector")])
    pool.add(
        cuda_direct(*size)
        for size in ((4, 1, 1), (8, 1, 1), (4, 2, 2), (8, 2, 2), (4, 4, 2), (4, 2, 4), (8, 1, 4))
    )
    pool.add(
        [cuda_direct(4, 2, 2, host="extension"), cuda_direct(4, 4, 4), cuda_direct(4, 2, 2, gelu="fast")]
    )
    tiles = ((64, 64, 32, 32, 32), (128, 128, 32, 64, 32), (64, 128, 32, 32, 64))
    pool.add(cuda_wmma(loop, *size) for loop, size in product(CU_WMMA_LOOPS, tiles))
    pool.add(
        cuda_wmma("pipeline", *size, slots=slots)
        for size, slots in product((tiles[0], tiles[1], (128, 128, 64, 64, 64)), (2, 4))
    )
    pool.add([cuda_wmma("one_buffer", *tiles[0], pad=0), cuda_wmma("two_buffers", *tiles[1], pad=0)])
    pool.add(
        [cuda_wmma("pipeline", *tiles[1], order="columns"), cuda_wmma("pipeline", *tiles[1], gelu="fast")]
    )
    pool.add(
        [cuda_wmma("one_buffer", *tiles[0], host="extension"), cuda_wmma("one_buffer", 32, 32, 32, 16, 16)]
    )
    pool.add(
        cuda_mma(*size)
        for size in (
            (64, 64, 32, 32, 32, 3),
            (64, 128, 32, 32, 64, 3),
            (128, 128, 32, 64, 32, 2),
            (128, 128, 32, 64, 32, 3),
            (128, 128, 32, 64, 32, 4),
            (128, 128, 64, 64, 32, 3),
            (128, 128, 32, 64, 64, 4),
            (128, 256, 32, 64, 64, 3),
        )
    )
    pool.add(
        cuda_mma(*size, order=order)
        for size, order in product(
            ((128, 128, 32, 64, 32, 4), (128, 256, 32, 64, 64, 3)), ("columns", "grouped")
        )
    )
    pool.add(
        [cuda_mma(128, 128, 32, 64, 32, 4, gelu="fast"), cuda_mma(64, 64, 32, 32, 32, 3, host="extension")]
    )
    pool.add([cuda_split(2, 4, 2, 2, "1"), cuda_split(4, 4, 2, 2, "1"), cuda_split(4, 4, 2, 2, "4")])
    pool.add([cuda_split(1, 4, 2, 2, "4"), cuda_split(1, 4, 2, 2, "1"), cuda_split(8, 8, 2, 4, "4")])
    pool.add(cuda_warp_dot(columns, threads) for columns, threads in ((2, 256), (4, 256), (8, 128)))


def add_wrapped(pool: Pool) -> None:
    """Adds sound kernels inside careless wrappers."""
    parents = [
        SEED,
        tiled(64, 64, 32, 4, 3),
        tiled(128, 128, 64, 8, 3, order="grouped"),
        block_pointers(128, 128, 64, 8, 3),
        split_k("buffer", 4, 64, 64, 32, 4, 3),
        tiled(64, 64, 32, 4, 2, precision="ieee"),
    ]
    pool.add_wrapped(parents, WRAPS)


def break_triton(pool: Pool) -> None:
    """Adds Triton sources that fail, each derived from a sound one."""
    pool.add_broken(
        SEED,
        bias_of_row={"offs % N": "offs // N"},
        half_of_k={"range(0, tl.cdiv(K, BLOCK_K))": "range(0, tl.cdiv(K, BLOCK_K) // 2)"},
        undefined_name={"acc.to(c_ptr.dtype.element_ty)": "accumulator.to(c_ptr.dtype.element_ty)"},
        no_half={"y = 0.5 * y *": "y = y *"},
        runtime_block={"BLOCK: tl.constexpr": "BLOCK"},
    )
    pool.add_broken(
        tiled(64, 64, 32, 4, 3),
        no_bias={"acc + tl.load(bias_ptr + offs_n)[None, :].to(tl.float32)": "acc"},
        pointer_not_advanced={"        b_ptrs += BLOCK_K * stride_bk\n": ""},
        block_not_power_of_two={
            "BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 32": "BLOCK_M, BLOCK_N, BLOCK_K = 64, 96, 32"
        },
        bias_on_rows={"tl.load(bias_ptr + offs_n)[None, :]": "tl.load(bias_ptr + offs_m)[:, None]"},
        syntax={"tl.dot(a, b, acc)": "tl.dot(a, b, acc"},
    )
    pool.add_broken(
        tiled(128, 128, 64, 8, 3),
        shared_memory_overflow={"num_stages=3": "num_stages=12"},
        operands_swapped={"tl.dot(a, b, acc)": "tl.dot(b, a, acc)"},
        sigmoid_gelu={"0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))": "y * tl.sigmoid(1.702 * y)"},
        wild_pointer={
            "b_ptr + offs_k[:, None] * stride_bk": "b_ptr + (offs_k[:, None] + 1).to(tl.int64) * K * N * 512"
        },
    )
    pool.add_broken(
        tiled(128, 128, 64, 8, 3, order="grouped"),
        group_rounded_up={
            "group = min(num_m - first_m, 8)": "group = 8",
            "first_m = pid // (8": "first_m = pid // (16",
        },
        eight_bit={"tl.dot(a, b, acc)": "tl.dot(a.to(tl.float8e4nv), b.to(tl.float8e4nv), acc)"},
    )
    pool.add_broken(
        tiled(64, 64, 32, 4, 2, precision="tf32"),
        mixed_types={"b.to(tl.float32)": "b"},
        very_long_loop={
            "range(0, tl.cdiv(K, BLOCK_K))": "range(0, tl.cdiv(K, BLOCK_K) * 2000000)",
            "a_ptrs += BLOCK_K\n": "a_ptrs += 0\n",
            "b_ptrs += BLOCK_K * stride_bk": "b_ptrs += 0",
        },
    )
    pool.add_broken(
        block_pointers(128, 128, 32, 4, 3),
        advanced_along_rows={"tl.advance(px, (0, BK))": "tl.advance(px, (BK, 0))"},
        stride_missing={"(M, K), (K, 1)": "(M, K), (1, M)"},
    )
    pool.add_broken(
        descriptors("host", 128, 128, 64, 8, 3),
        shape_of_block={
            "TensorDescriptor.from_tensor(weight, [64, 128])": "TensorDescriptor.from_tensor(weight, [128, 64])"
        },
    )
    pool.add_broken(
        descriptors("device", 64, 64, 64, 4, 3), no_allocator={"    triton.set_allocator(_scratch)\n": ""}
    )
    pool.add_broken(
        persistent(1, 128, 128, 64, 8, 3),
        sums_not_reset={
            "        acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)\n": "",
            "    depth = tl.arange(0, TILE_K)\n": (
                "    depth = tl.arange(0, TILE_K)\n    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)\n"
            ),
        },
        step_of_one={"tiles_m * tiles_n, PROGRAMS)": "tiles_m * tiles_n // 2, PROGRAMS)"},
    )
    pool.add_broken(
        split_k("atomic", 4, 64, 64, 32, 4, 3),
        sums_not_zeroed={"torch.zeros(": "torch.empty("},
        store_for_atomic={"tl.atomic_add(": "tl.store("},
    )
    pool.add_broken(
        split_k("buffer", 4, 64, 64, 32, 4, 3),
        slices_overlap={"part + ps * M * N + rm": "part + ps * N + rm"},
        integer_sums={"dtype=torch.float32, device": "dtype=torch.int32, device"},
    )
    pool.add_broken(transposed("trans", 64, 64, 32, 4, 3), not_transposed={"tl.trans(wt)": "wt"})
    pool.add_broken(
        transposed("pointers", 64, 64, 32, 4, 3), copy_left_out={"weight.t().contiguous()": "weight.t()"}
    )
    pool.add_broken(
        library_product("matmul", "flat", 1024, 4),
        gelu_before_bias={" + tl.load(bias_ptr + i % N)": " * tl.load(bias_ptr + i % N)"},
    )
    pool.add_broken(no_dots("outer", 32, 64, 4), too_many_warps={"num_warps=4": "num_warps=64"})


def break_torch(pool: Pool) -> None:
    """Adds PyTorch sources that fail."""
    pool.add_broken(
        torch_source("eager", "matmul_add_gelu"),
        operands_swapped={"torch.matmul(x, weight)": "torch.matmul(weight, x)"},
    )
    pool.add_broken(torch_source("eager", "addmm"), wrong_order={"(bias, x, weight)": "(x, weight, bias)"})
    pool.add_broken(torch_source("eager", "written_out_tanh"), constant={"0.044715": "0.4715"})
    pool.add_broken(torch_source("float32", "everything"), not_cast_back={"y.to(torch.bfloat16)": "y"})
    pool.add_broken(
        torch_source("loop", "depth"),
        bfloat16_sums={
            "bias.float().expand(x.shape[0], -1)": "bias.expand(x.shape[0], -1)",
            ").float()\n": ")\n",
        },
    )


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    pool.add_broken(
        cuda_element("plain", 16, 16),
        row_and_column={"w[(size_t)k * N + col]": "w[(size_t)col * K + k]"},
        missing_semicolon={"float sum = 0.0f;": "float sum = 0.0f"},
    )
    pool.add_broken(cuda_element("plain", 32, 32), too_many_threads={"block(32, 32)": "block(64, 32)"})
    pool.add_broken(
        cuda_tile(16, "float"),
        no_second_barrier={"    __syncthreads();\n  }\n  out": "  }\n  out"},
        undeclared={"xs[ty][k]": "xt[ty][k]"},
    )
    pool.add_broken(
        cuda_register(64, 64, 16, 4, 4, "vector"),
        misaligned={"k0 + c);\n      const __nv_bfloat162* v": "k0 + c + 1);\n      const __nv_bfloat162* v"},
    )
    pool.add_broken(
        cuda_wmma("pipeline", 128, 128, 32, 64, 32),
        limit_not_raised={
            "  cudaFuncSetAttribute(wmma_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);\n": ""
        },
        wait_left_out={"    __pipeline_wait_prior(DEPTH - 2);\n": ""},
    )
    pool.add_broken(
        cuda_mma(128, 128, 32, 64, 32, 3),
        not_transposed={"ldmatrix_x4_trans(b[2 * j]": "ldmatrix_x4(b[2 * j]"},
        shared_memory_overflow={"STAGES = 3": "STAGES = 14"},
    )
    pool.add_broken(cuda_split(4, 4, 2, 2, "4"), first_slice_only={"(size_t)s * total + i": "i"})


def link_families(pool: Pool) -> None:
    """Names the changes of algorithm that count as one edit."""
    for size in ((64, 64, 32, 4, 3), (128, 128, 32, 4, 3), (128, 128, 64, 8, 3), (128, 256, 64, 8, 3)):
        pool.link(tiled(*size), block_pointers(*size))
        if size[0] == 64 or size[1] == 256 or size[3] == 8:
            pool.link(tiled(*size), persistent(1, *size))
    pool.link(SEED, tiled(32, 64, 32, 4, 2), persistent(1, 32, 64, 32, 4, 2))
    pool.link(SEED, library_product("matmul", "flat", 1024, 4), torch_source("eager", "matmul_add_gelu"))
    pool.link(SEED, no_dots("outer", 32, 64, 4), cuda_element("plain", 32, 8))
    pool.link(SEED, transposed("pointers", 32, 64, 32, 4, 2))
    pool.link(SEED, split_k("buffer", 8, 32, 64, 32, 4, 2))
    pool.link(tiled(64, 64, 32, 4, 3), split_k("buffer", 2, 64, 64, 32, 4, 3))
    pool.link(tiled(128, 128, 64, 8, 3), split_k("buffer", 2, 128, 128, 64, 8, 3))
    pool.link(tiled(64, 64, 32, 4, 3), transposed("trans", 64, 64, 32, 4, 3))
    pool.link(tiled(128, 128, 64, 8, 3), transposed("pointers", 128, 128, 64, 8, 3))
    pool.link(tiled(128, 128, 64, 8, 3), descriptors("host", 128, 128, 64, 8, 3))
    pool.link(tiled(128, 256, 64, 8, 3), descriptors("host", 128, 256, 64, 8, 3))
    pool.link(tiled(64, 64, 32, 4, 3, order="grouped"), autotuned("usual"))
    pool.link(tiled(128, 256, 64, 8, 3, order="grouped"), autotuned("wide"))
    pool.link(tiled(32, 32, 32, 4, 2), autotuned("small"))
    pool.link(tiled(32, 64, 32, 4, 2, precision="ieee"), no_dots("outer", 32, 64, 4))
    pool.link(no_dots("outer", 16, 64, 4), no_dots("reduce", 16, 32, 4, 16))
    pool.link(torch_source("eager", "addmm"), torch_source("activation", "fused_library"))
    pool.link(
        torch_source("eager", "matmul_add_gelu"),
        torch_source("eager", "addmm"),
        torch_source("eager", "linear"),
    )
    pool.link(torch_source("eager", "matmul_add_gelu"), torch_source("float32", "everything"))
    pool.link(torch_source("float32", "everything"), library_product("float32", "flat", 1024, 4))
    pool.link(torch_source("float32", "everything"), torch_source("float64", "everything"))
    pool.link(torch_source("eager", "addmm"), torch_source("streams", "two"), torch_source("loop", "columns"))
    pool.link(torch_source("split", "bmm"), split_k("buffer", 4, 64, 64, 32, 4, 3))
    pool.link(torch_source("loop", "depth"), torch_source("split", "two_halves"))
    pool.link(torch_source("loop", "depth"), torch_source("loop", "outer_products"))
    pool.link(
        cuda_element("plain", 16, 16), cuda_tile(16, "float"), cuda_register(64, 64, 16, 4, 4, "scalar")
    )
    pool.link(cuda_element("plain", 16, 16), cuda_warp_dot(2, 256))
    pool.link(cuda_tile(16, "bf16"), cuda_direct(4, 1, 1))
    pool.link(cuda_direct(4, 2, 2), cuda_wmma("one_buffer", 64, 64, 32, 32, 32))
    pool.link(cuda_direct(4, 2, 2), cuda_split(1, 4, 2, 2, "1"))
    pool.link(cuda_register(128, 128, 8, 8, 8, "vector"), cuda_wmma("one_buffer", 128, 128, 32, 64, 32))
    pool.link(cuda_wmma("pipeline", 64, 64, 32, 32, 32), cuda_mma(64, 64, 32, 32, 32, 3))
    pool.link(cuda_wmma("pipeline", 128, 128, 32, 64, 32), cuda_mma(128, 128, 32, 64, 32, 3))
    pool.link(cuda_mma(128, 128, 32, 64, 32, 4, order="grouped"), tiled(128, 128, 32, 4, 3, order="grouped"))


def make_pool() -> Pool:
    """The whole pool, in a fixed order."""
    return Pool(
        add_tiled,
        add_precisions,
        add_triton,
        add_torch,
        add_cuda,
        add_wrapped,
        break_triton,
        break_torch,
        break_cuda,
        link_families,
        Pool.link_retuned,
    )
