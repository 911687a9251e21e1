"""CUDA C++ families of the recorded task ``matmul_gelu``."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.generators.pool import Draft
from benchmarks.generators.tasks.cuda_text import CudaFunction
from benchmarks.generators.tasks.mma_ptx import MMA_PTX
from benchmarks.generators.tasks.torch_extension import Extension
from benchmarks.generators.text import fill

LIBRARY_CALL = CudaFunction(
    name="matmul_gelu",
    parameters=("const bf16* x, const bf16* w, const bf16* bias, bf16* out,", "int M, int N, int K"),
    arguments="x, weight, bias",
    body="""M, K = x.shape
N = weight.shape[1]
out = torch.empty((M, N), dtype=x.dtype, device=x.device)""",
    pointers="x, weight, bias, out",
    scalars="M, N, K",
    result="out",
)
EXTENSION = Extension("matmul_gelu", "x, weight, bias")
EXTENSION_LAUNCH = """  const int M = x.size(0), K = x.size(1), N = weight.size(1);
  auto result = torch::empty({M, N}, x.options());
  @cast@
@launch@
  return result;"""
EXTENSION_CAST = """const bf16* w = reinterpret_cast<const bf16*>(weight.data_ptr());
const bf16* b = reinterpret_cast<const bf16*>(bias.data_ptr());
bf16* out = reinterpret_cast<bf16*>(result.data_ptr());"""

CU_HEAD = """#include <cuda_bf16.h>

typedef __nv_bfloat16 bf16;

@gelu@
"""

CU_GELU = {
    "erf": """__device__ __forceinline__ float gelu(float v) {
  return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
}""",
    "tanh": """__device__ __forceinline__ float gelu(float v) {
  const float u = 0.7978845608f * (v + 0.044715f * v * v * v);
  return 0.5f * v * (1.0f + tanhf(u));
}""",
    "fast": """__device__ __forceinline__ float gelu(float v) {
  // tanh form, by one exponential
  return v / (1.0f + __expf(-1.5957691216f * v * (1.0f + 0.044715f * v * v)));
}""",
}


def cuda_source(
    choices: dict[str, object], kernel: str, launch: str, *, gelu: str, host: str = "ctypes"
) -> Draft:
    """Wraps a kernel; `launch` may use x, w, bias and out, M, N and K."""
    kernel = fill(CU_HEAD, gelu=CU_GELU[gelu]) + "\n" + kernel
    if host == "ctypes":
        code = LIBRARY_CALL.module(kernel, launch)
    else:
        launch = launch.replace("(x, w, bias, out", "(a, w, b, out")
        cast = "const bf16* a = reinterpret_cast<const bf16*>(x.data_ptr());\n" + EXTENSION_CAST
        code = EXTENSION.module(kernel, fill(EXTENSION_LAUNCH, cast=cast, launch=launch))
    return Draft({**choices, "gelu": gelu, "host": host}, code, "cuda")


CU_ELEMENT = """
// One thread per element of the result.
__global__ void linear_gelu(const bf16* x, const bf16* w, const bf16* bias, bf16* out, int M, int N, int K) {
  const int col = blockIdx.@c@ * blockDim.@c@ + threadIdx.@c@;
  const int row = blockIdx.@r@ * blockDim.@r@ + threadIdx.@r@;
  if (row >= M || col >= N) return;
  float sum = 0.0f;
@loop@
  out[(size_t)row * N + col] = __float2bfloat16(gelu(sum + __bfloat162float(bias[col])));
}
"""

CU_ELEMENT_LOOPS = {
    "plain": """  for (int k = 0; k < K; k++) {
    sum += __bfloat162float(x[(size_t)row * K + k]) * __bfloat162float(w[(size_t)k * N + col]);
  }""",
    "pairs": """  const __nv_bfloat162* x2 = reinterpret_cast<const __nv_bfloat162*>(x + (size_t)row * K);
  float other = 0.0f;
#pragma unroll 4
  for (int k = 0; k < K / 2; k++) {
    const float2 a = __bfloat1622float2(x2[k]);
    sum += a.x * __bfloat162float(w[(size_t)(2 * k) * N + col]);
    other += a.y * __bfloat162float(w[(size_t)(2 * k + 1) * N + col]);
  }
  sum += other;""",
}


def cuda_element(
    loop: str, bx: int, by: int, *, gelu: str = "erf", turned: bool = False, host: str = "ctypes"
) -> Draft:
    """A thread per element; neighbouring threads along a row, or, `turned`, along a column."""
    kernel = fill(CU_ELEMENT, loop=CU_ELEMENT_LOOPS[loop], r="x" if turned else "y", c="y" if turned else "x")
    grid = "(M + block.x - 1) / block.x, (N + block.y - 1) / block.y"
    if not turned:
        grid = "(N + block.x - 1) / block.x, (M + block.y - 1) / block.y"
    launch = f"  const dim3 block({bx}, {by}), grid({grid});\n  linear_gelu<<<grid, block>>>(x, w, bias, out, M, N, K);"
    choices: dict[str, object] = {
        "family": "cuda_element",
        "loop": loop,
        "bx": bx,
        "by": by,
        "turned": turned or None,
    }
    return cuda_source(choices, kernel, launch, gelu=gelu, host=host)


CU_TILE = """
#define TILE @tile@

// Square tiles of both operands in shared memory, one element per thread.
__global__ void tiled_linear(const bf16* x, const bf16* w, const bf16* bias, bf16* out, int M, int N, int K) {
  __shared__ @type@ xs[TILE][TILE@pad@];
  __shared__ @type@ ws[TILE][TILE@pad@];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
  float acc = 0.0f;
  for (int k0 = 0; k0 < K; k0 += TILE) {
    xs[ty][tx] = @load_x@;
    ws[ty][tx] = @load_w@;
    __syncthreads();
@unroll@
    for (int k = 0; k < TILE; k++) acc += @x@ * @w@;
    __syncthreads();
  }
  out[(size_t)row * N + col] = __float2bfloat16(gelu(acc + __bfloat162float(bias[col])));
}
"""


def cuda_tile(
    tile: int,
    stored: str,
    *,
    pad: int = 0,
    unroll: bool = True,
    gelu: str = "erf",
    host: str = "ctypes",
) -> Draft:
    """Tiles in shared memory, kept as ``float`` or as ``bf16``."""
    wide = stored == "float"
    kernel = fill(
        CU_TILE,
        tile=tile,
        type=stored,
        pad=f" + {pad}" if pad else "",
        unroll="#pragma unroll" if unroll else "",
        load_x=("__bfloat162float({})" if wide else "{}").format("x[(size_t)row * K + k0 + tx]"),
        load_w=("__bfloat162float({})" if wide else "{}").format("w[(size_t)(k0 + ty) * N + col]"),
        x="xs[ty][k]" if wide else "__bfloat162float(xs[ty][k])",
        w="ws[k][tx]" if wide else "__bfloat162float(ws[k][tx])",
    )
    launch = (
        f"  tiled_linear<<<dim3(N / {tile}, M / {tile}), dim3({tile}, {tile})>>>(x, w, bias, out, M, N, K);"
    )
    choices: dict[str, object] = {
        "family": "cuda_tile",
        "tile": tile,
        "stored": stored,
        "pad": pad,
        "unroll": unroll,
    }
    return cuda_source(choices, kernel, launch, gelu=gelu, host=host)


CU_REGISTER = """
constexpr int BM = @bm@, BN = @bn@, BK = @bk@, TM = @tm@, TN = @tn@;
constexpr int THREADS = (BM / TM) * (BN / TN);

// Each thread keeps TM x TN sums in registers.
__global__ void __launch_bounds__(THREADS) register_tiles(const bf16* __restrict__ x, const bf16* __restrict__ w,
                                                          const bf16* __restrict__ bias, bf16* __restrict__ out,
                                                          int M, int N, int K) {
  __shared__ __align__(16) float xs[BK][BM@pad@];  // transposed, so that a thread reads its rows in one go
  __shared__ __align__(16) float ws[BK][BN];
  const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
  const int tr = threadIdx.x / (BN / TN) * TM, tc = threadIdx.x % (BN / TN)@column@;
  float acc[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; i++)
#pragma unroll
    for (int j = 0; j < TN; j++) acc[i][j] = 0.0f;

  for (int k0 = 0; k0 < K; k0 += BK) {
@load@
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK; k++) {
      float a[TM], b[TN];
#pragma unroll
      for (int i = 0; i < TM; i++) a[i] = xs[k][tr + i];
#pragma unroll
      for (int j = 0; j < TN; j++) b[j] = ws[k][@at@];
#pragma unroll
      for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) acc[i][j] += a[i] * b[j];
    }
    __syncthreads();
  }

#pragma unroll
  for (int j = 0; j < TN; j++) {
    const int col = col0 + @at@;
    const float shift = __bfloat162float(bias[col]);
#pragma unroll
    for (int i = 0; i < TM; i++) {
      out[(size_t)(row0 + tr + i) * N + col] = __float2bfloat16(gelu(acc[i][j] + shift));
    }
  }
}
"""

CU_REGISTER_LOADS = {
    "scalar": """    for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
      xs[i % BK][i / BK] = __bfloat162float(x[(size_t)(row0 + i / BK) * K + k0 + i % BK]);
    }
    for (int i = threadIdx.x; i < BK * BN; i += THREADS) {
      ws[i / BN][i % BN] = __bfloat162float(w[(size_t)(k0 + i / BN) * N + col0 + i % BN]);
    }""",
    "vector": """    for (int i = threadIdx.x; i < BM * BK / 8; i += THREADS) {
      const int r = i / (BK / 8), c = i % (BK / 8) * 8;
      const uint4 pack = *reinterpret_cast<const uint4*>(x + (size_t)(row0 + r) * K + k0 + c);
      const __nv_bfloat162* v = reinterpret_cast<const __nv_bfloat162*>(&pack);
#pragma unroll
      for (int u = 0; u < 4; u++) {
        const float2 f = __bfloat1622float2(v[u]);
        xs[c + 2 * u][r] = f.x;
        xs[c + 2 * u + 1][r] = f.y;
      }
    }
    for (int i = threadIdx.x; i < BK * BN / 8; i += THREADS) {
      const int r = i / (BN / 8), c = i % (BN / 8) * 8;
      const uint4 pack = *reinterpret_cast<const uint4*>(w + (size_t)(k0 + r) * N + col0 + c);
      const __nv_bfloat162* v = reinterpret_cast<const __nv_bfloat162*>(&pack);
#pragma unroll
      for (int u = 0; u < 4; u++) {
        const float2 f = __bfloat1622float2(v[u]);
        ws[r][c + 2 * u] = f.x;
        ws[r][c + 2 * u + 1] = f.y;
      }
    }""",
}


def cuda_register(
    bm: int,
    bn: int,
    bk: int,
    tm: int,
    tn: int,
    load: str,
    *,
    columns: str = "together",
    pad: int = 0,
    gelu: str = "erf",
    host: str = "ctypes",
) -> Draft:
    """A block of sums per thread; its columns lie ``together`` or are ``spread`` over the tile."""
    spread = columns == "spread"
    kernel = fill(
        CU_REGISTER,
        bm=bm,
        bn=bn,
        bk=bk,
        tm=tm,
        tn=tn,
        load=CU_REGISTER_LOADS[load],
        pad=f" + {pad}" if pad else "",
        column="" if spread else " * TN",
        at="tc + j * (BN / TN)" if spread else "tc + j",
    )
    launch = "  register_tiles<<<dim3(N / BN, M / BM), THREADS>>>(x, w, bias, out, M, N, K);"
    choices: dict[str, object] = {
        "family": "cuda_register",
        "bm": bm,
        "bn": bn,
        "bk": bk,
        "tm": tm,
        "tn": tn,
        "load": load,
        "columns": columns,
        "pad": pad,
    }
    return cuda_source(choices, kernel, launch, gelu=gelu, host=host)


CU_DIRECT = """
#include <mma.h>
using namespace nvcuda;

constexpr int WARPS = @warps@, FM = @fm@, FN = @fn@;

// A warp computes FM x FN fragments of 16 x 16 straight from global memory.
__global__ void __launch_bounds__(WARPS * 32) wmma_linear(const bf16* x, const bf16* w, const bf16* bias,
                                                          bf16* out, int M, int N, int K) {
  __shared__ __align__(128) float stage[WARPS][256];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int job = blockIdx.x * WARPS + warp;
  const int across = N / (16 * FN);
  const int row0 = job / across * (16 * FM), col0 = job % across * (16 * FN);
  if (row0 >= M) return;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[FM][FN];
#pragma unroll
  for (int i = 0; i < FM; i++)
#pragma unroll
    for (int j = 0; j < FN; j++) wmma::fill_fragment(acc[i][j], 0.0f);
  for (int k = 0; k < K; k += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> a[FM];
    wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> b[FN];
#pragma unroll
    for (int i = 0; i < FM; i++) wmma::load_matrix_sync(a[i], x + (size_t)(row0 + 16 * i) * K + k, K);
#pragma unroll
    for (int j = 0; j < FN; j++) wmma::load_matrix_sync(b[j], w + (size_t)k * N + col0 + 16 * j, N);
#pragma unroll
    for (int i = 0; i < FM; i++)
#pragma unroll
      for (int j = 0; j < FN; j++) wmma::mma_sync(acc[i][j], a[i], b[j], acc[i][j]);
  }
#pragma unroll
  for (int i = 0; i < FM; i++)
#pragma unroll
    for (int j = 0; j < FN; j++) {
      wmma::store_matrix_sync(stage[warp], acc[i][j], 16, wmma::mem_row_major);
      __syncwarp();
      for (int e = lane; e < 256; e += 32) {
        const int r = row0 + 16 * i + e / 16, c = col0 + 16 * j + e % 16;
        out[(size_t)r * N + c] = __float2bfloat16(gelu(stage[warp][e] + __bfloat162float(bias[c])));
      }
      __syncwarp();
    }
}
"""


def cuda_direct(warps: int, fm: int, fn: int, *, gelu: str = "erf", host: str = "ctypes") -> Draft:
    """Tensor cores fed from global memory."""
    kernel = fill(CU_DIRECT, warps=warps, fm=fm, fn=fn)
    launch = (
        "  const int jobs = (M / (16 * FM)) * (N / (16 * FN));\n"
        "  wmma_linear<<<(jobs + WARPS - 1) / WARPS, WARPS * 32>>>(x, w, bias, out, M, N, K);"
    )
    choices: dict[str, object] = {"family": "cuda_direct", "warps": warps, "fm": fm, "fn": fn}
    return cuda_source(choices, kernel, launch, gelu=gelu, host=host)


CU_WMMA = """
#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda;

constexpr int BM = @bm@, BN = @bn@, BK = @bk@, WM = @wm@, WN = @wn@, PAD = @pad@;
constexpr int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32;
constexpr int LDX = BK + PAD, LDW = BN + PAD, STAGE = BM * LDX + BK * LDW, LDO = WN + 4;
constexpr int TILES_BYTES = @slots@ * STAGE * 2, OUT_BYTES = BM / WM * WARPS_N * 16 * LDO * 4;
constexpr int BYTES = TILES_BYTES > OUT_BYTES ? TILES_BYTES : OUT_BYTES;

__global__ void __launch_bounds__(THREADS) wmma_tiles(const bf16* __restrict__ x, const bf16* __restrict__ w,
                                                      const bf16* __restrict__ bias, bf16* __restrict__ out,
                                                      int M, int N, int K) {
  extern __shared__ __align__(128) unsigned char raw[];
  bf16* tiles = reinterpret_cast<bf16*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int wr = warp / WARPS_N * WM, wc = warp % WARPS_N * WN;
  const int row0 = blockIdx.@r@ * BM, col0 = blockIdx.@c@ * BN;

  auto fetch = [&](int slot, int k0) {
    bf16* xs = tiles + slot * STAGE;
    bf16* ws = xs + BM * LDX;
    for (int i = threadIdx.x; i < BM * BK / 8; i += THREADS) {
      const int r = i / (BK / 8), c = i % (BK / 8) * 8;
      @copy_x@
    }
    for (int i = threadIdx.x; i < BK * BN / 8; i += THREADS) {
      const int r = i / (BN / 8), c = i % (BN / 8) * 8;
      @copy_w@
    }
  };

  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[WM / 16][WN / 16];
#pragma unroll
  for (int i = 0; i < WM / 16; i++)
#pragma unroll
    for (int j = 0; j < WN / 16; j++) wmma::fill_fragment(acc[i][j], 0.0f);

  auto multiply = [&](int slot) {
    const bf16* xs = tiles + slot * STAGE;
    const bf16* ws = xs + BM * LDX;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> a[WM / 16];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> b[WN / 16];
#pragma unroll
      for (int i = 0; i < WM / 16; i++) wmma::load_matrix_sync(a[i], xs + (wr + 16 * i) * LDX + k, LDX);
#pragma unroll
      for (int j = 0; j < WN / 16; j++) wmma::load_matrix_sync(b[j], ws + k * LDW + wc + 16 * j, LDW);
#pragma unroll
      for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 16; j++) wmma::mma_sync(acc[i][j], a[i], b[j], acc[i][j]);
    }
  };

@loop@

  // the tiles are done with: their memory holds the sums now, 16 rows per warp at a time
  __syncthreads();
  float* stage = reinterpret_cast<float*>(raw) + warp * 16 * LDO;
  for (int i = 0; i < WM / 16; i++) {
#pragma unroll
    for (int j = 0; j < WN / 16; j++)
      wmma::store_matrix_sync(stage + 16 * j, acc[i][j], LDO, wmma::mem_row_major);
    __syncwarp();
    for (int e = lane; e < 16 * WN / 2; e += 32) {
      const int r = e / (WN / 2), c = e % (WN / 2) * 2;
      const int col = col0 + wc + c;
      const float u = gelu(stage[r * LDO + c] + __bfloat162float(bias[col]));
      const float v = gelu(stage[r * LDO + c + 1] + __bfloat162float(bias[col + 1]));
      *reinterpret_cast<__nv_bfloat162*>(out + (size_t)(row0 + wr + 16 * i + r) * N + col) =
          __floats2bfloat162_rn(u, v);
    }
    __syncwarp();
  }
}
"""

CU_WMMA_LOOPS = {
    "one_buffer": """  for (int k0 = 0; k0 < K; k0 += BK) {
    fetch(0, k0);
    __syncthreads();
    multiply(0);
    __syncthreads();
  }""",
    "two_buffers": """  fetch(0, 0);
  __syncthreads();
  for (int t = 0; t < K / BK; t++) {
    if ((t + 1) * BK < K) fetch((t + 1) % 2, (t + 1) * BK);
    multiply(t % 2);
    __syncthreads();
  }""",
    "pipeline": """  constexpr int DEPTH = @slots@;
  for (int s = 0; s < DEPTH - 1; s++) {
    if (s * BK < K) fetch(s, s * BK);
    __pipeline_commit();
  }
  for (int t = 0; t < K / BK; t++) {
    __pipeline_wait_prior(DEPTH - 2);
    __syncthreads();
    const int next = t + DEPTH - 1;
    if (next * BK < K) fetch(next % DEPTH, next * BK);
    __pipeline_commit();
    multiply(t % DEPTH);
  }
  __pipeline_wait_prior(0);""",
}
CU_COPY = {
    "load": "*reinterpret_cast<uint4*>({0}) = *reinterpret_cast<const uint4*>({1});",
    "async": "__pipeline_memcpy_async({0}, {1}, 16);",
}
CU_X_TILE = ("xs + r * LDX + c", "x + (size_t)(row0 + r) * K + k0 + c")
CU_W_TILE = ("ws + r * LDW + c", "w + (size_t)(k0 + r) * N + col0 + c")


def cuda_wmma(
    loop: str,
    bm: int,
    bn: int,
    bk: int,
    wm: int,
    wn: int,
    *,
    slots: int | None = None,
    pad: int = 8,
    order: str = "rows",
    gelu: str = "erf",
    host: str = "ctypes",
) -> Draft:
    """Tensor cores fed from shared memory, with one tile, two, or a queue of asynchronous copies."""
    slots = slots or {"one_buffer": 1, "two_buffers": 2, "pipeline": 3}[loop]
    copy = CU_COPY["async" if loop == "pipeline" else "load"]
    kernel = fill(
        CU_WMMA,
        bm=bm,
        bn=bn,
        bk=bk,
        wm=wm,
        wn=wn,
        pad=pad,
        slots=slots,
        loop=CU_WMMA_LOOPS[loop],
        copy_x=copy.format(*CU_X_TILE),
        copy_w=copy.format(*CU_W_TILE),
        r="y" if order == "rows" else "x",
        c="x" if order == "rows" else "y",
    )
    grid = "N / BN, M / BM" if order == "rows" else "M / BM, N / BN"
    launch = (
        "  cudaFuncSetAttribute(wmma_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);\n"
        f"  wmma_tiles<<<dim3({grid}), THREADS, BYTES>>>(x, w, bias, out, M, N, K);"
    )
    choices: dict[str, object] = {
        "family": "cuda_wmma",
        "loop": loop,
        "bm": bm,
        "bn": bn,
        "bk": bk,
        "wm": wm,
        "wn": wn,
        "slots": slots,
        "pad": pad,
        "order": order,
    }
    return cuda_source(choices, kernel, launch, gelu=gelu, host=host)


CU_MMA = """#include <stdint.h>
@ptx@

constexpr int BM = @bm@, BN = @bn@, BK = @bk@, WM = @wm@, WN = @wn@, STAGES = @stages@;
constexpr int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32;
constexpr int LDX = BK + 8, LDW = BN + 8;
constexpr int BYTES = STAGES * (BM * LDX + BK * LDW) * 2;

__global__ void __launch_bounds__(THREADS) mma_linear(const bf16* __restrict__ x, const bf16* __restrict__ w,
                                                      const bf16* __restrict__ bias, bf16* __restrict__ out,
                                                      int M, int N, int K) {
  extern __shared__ __align__(128) bf16 tiles[];
  bf16* xs = tiles;
  bf16* ws = tiles + STAGES * BM * LDX;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int wr = warp / WARPS_N * WM, wc = warp % WARPS_N * WN;
@order@

  auto fetch = [&](int stage, int k0) {
#pragma unroll
    for (int i = threadIdx.x; i < BM * BK / 8; i += THREADS) {
      const int r = i / (BK / 8), c = i % (BK / 8) * 8;
      cp_async16(xs + (stage * BM + r) * LDX + c, x + (size_t)(row0 + r) * K + k0 + c);
    }
#pragma unroll
    for (int i = threadIdx.x; i < BK * BN / 8; i += THREADS) {
      const int r = i / (BN / 8), c = i % (BN / 8) * 8;
      cp_async16(ws + (stage * BK + r) * LDW + c, w + (size_t)(k0 + r) * N + col0 + c);
    }
  };

  float acc[WM / 16][WN / 8][4] = {};
  const int steps = K / BK;
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < steps) fetch(s, s * BK);
    cp_async_commit();
  }
  for (int t = 0; t < steps; t++) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    const int next = t + STAGES - 1;
    if (next < steps) fetch(next % STAGES, next * BK);
    cp_async_commit();
    const bf16* xt = xs + t % STAGES * BM * LDX;
    const bf16* wt = ws + t % STAGES * BK * LDW;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      uint32_t a[WM / 16][4], b[WN / 8][2];
#pragma unroll
      for (int i = 0; i < WM / 16; i++) ldmatrix_x4(a[i], xt + (wr + 16 * i + lane % 16) * LDX + k + lane / 16 * 8);
#pragma unroll
      for (int j = 0; j < WN / 16; j++)
        ldmatrix_x4_trans(b[2 * j], wt + (k + lane % 16) * LDW + wc + 16 * j + lane / 16 * 8);
#pragma unroll
      for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++) mma16816(acc[i][j], a[i], b[j]);
    }
  }

#pragma unroll
  for (int j = 0; j < WN / 8; j++) {
    const int col = col0 + wc + 8 * j + lane % 4 * 2;
    const float2 shift = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(bias + col));
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = row0 + wr + 16 * i + lane / 4 + 8 * half;
        const float u = gelu(acc[i][j][2 * half] + shift.x), v = gelu(acc[i][j][2 * half + 1] + shift.y);
        *reinterpret_cast<__nv_bfloat162*>(out + (size_t)row * N + col) = __floats2bfloat162_rn(u, v);
      }
  }
}
"""

CU_MMA_ORDERS = {
    "rows": (
        "  const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;",
        "dim3(N / BN, M / BM)",
    ),
    "columns": (
        "  const int row0 = blockIdx.x * BM, col0 = blockIdx.y * BN;",
        "dim3(M / BM, N / BN)",
    ),
    "grouped": (
        """  // eight rows of tiles at a time, column by column, for the sake of L2
  const int tiles_m = M / BM, tiles_n = N / BN;
  const int first = blockIdx.x / (8 * tiles_n) * 8;
  const int group = min(tiles_m - first, 8);
  const int inside = blockIdx.x % (8 * tiles_n);
  const int row0 = (first + inside % group) * BM, col0 = inside / group * BN;""",
        "M / BM * (N / BN)",
    ),
}


def cuda_mma(
    bm: int,
    bn: int,
    bk: int,
    wm: int,
    wn: int,
    stages: int,
    *,
    order: str = "rows",
    gelu: str = "erf",
    host: str = "ctypes",
) -> Draft:
    """``mma.sync`` on fragments from ``ldmatrix``, with a queue of asynchronous copies."""
    where, grid = CU_MMA_ORDERS[order]
    kernel = fill(
        CU_MMA,
        ptx=MMA_PTX.strip("\n"),
        bm=bm,
        bn=bn,
        bk=bk,
        wm=wm,
        wn=wn,
        stages=stages,
        order=where,
    )
    launch = (
        "  cudaFuncSetAttribute(mma_linear, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);\n"
        f"  mma_linear<<<{grid}, THREADS, BYTES>>>(x, w, bias, out, M, N, K);"
    )
    choices: dict[str, object] = {
        "family": "cuda_mma",
        "bm": bm,
        "bn": bn,
        "bk": bk,
        "wm": wm,
        "wn": wn,
        "stages": stages,
        "order": order,
    }
    return cuda_source(choices, kernel, launch, gelu=gelu, host=host)


CU_SPLIT = """
#include <mma.h>
using namespace nvcuda;

constexpr int SPLITS = @splits@, WARPS = @warps@, FM = @fm@, FN = @fn@;

// Each slice of k has its own blocks and its own copy of the sums.
__global__ void slice_product(const bf16* x, const bf16* w, float* work, int M, int N, int K) {
  const int job = blockIdx.x * WARPS + threadIdx.x / 32;
  const int across = N / (16 * FN);
  const int row0 = job / across * (16 * FM), col0 = job % across * (16 * FN);
  if (row0 >= M) return;
  const int span = K / SPLITS, first = blockIdx.y * span;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[FM][FN];
  for (int i = 0; i < FM; i++)
    for (int j = 0; j < FN; j++) wmma::fill_fragment(acc[i][j], 0.0f);
  for (int k = first; k < first + span; k += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> a[FM];
    wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> b;
#pragma unroll
    for (int i = 0; i < FM; i++) wmma::load_matrix_sync(a[i], x + (size_t)(row0 + 16 * i) * K + k, K);
#pragma unroll
    for (int j = 0; j < FN; j++) {
      wmma::load_matrix_sync(b, w + (size_t)k * N + col0 + 16 * j, N);
#pragma unroll
      for (int i = 0; i < FM; i++) wmma::mma_sync(acc[i][j], a[i], b, acc[i][j]);
    }
  }
  float* mine = work + (size_t)blockIdx.y * M * N;
  for (int i = 0; i < FM; i++)
    for (int j = 0; j < FN; j++)
      wmma::store_matrix_sync(mine + (size_t)(row0 + 16 * i) * N + col0 + 16 * j, acc[i][j], N, wmma::mem_row_major);
}

__global__ void finish(const float* work, const bf16* bias, bf16* out, int total, int N) {
@finish@
}
"""

CU_SPLIT_FINISH = {
    "1": """  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= total) return;
  float v = __bfloat162float(bias[i % N]);
  for (int s = 0; s < SPLITS; s++) v += work[(size_t)s * total + i];
  out[i] = __float2bfloat16(gelu(v));""",
    "4": """  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (i >= total) return;
  float v[4];
  for (int u = 0; u < 4; u++) v[u] = __bfloat162float(bias[(i + u) % N]);
#pragma unroll
  for (int s = 0; s < SPLITS; s++) {
    const float4 part = *reinterpret_cast<const float4*>(work + (size_t)s * total + i);
    v[0] += part.x;
    v[1] += part.y;
    v[2] += part.z;
    v[3] += part.w;
  }
  __nv_bfloat162* to = reinterpret_cast<__nv_bfloat162*>(out + i);
  to[0] = __floats2bfloat162_rn(gelu(v[0]), gelu(v[1]));
  to[1] = __floats2bfloat162_rn(gelu(v[2]), gelu(v[3]));""",
}


def cuda_split(splits: int, warps: int, fm: int, fn: int, vector: str, *, gelu: str = "erf") -> Draft:
    """Slices of k summed up by a second kernel; one slice is a product without its epilogue."""
    kernel = (
        fill(CU_HEAD, gelu=CU_GELU[gelu])
        + "\n"
        + fill(CU_SPLIT, splits=splits, warps=warps, fm=fm, fn=fn, finish=CU_SPLIT_FINISH[vector])
    )
    launch = (
        "  const int jobs = (M / (16 * FM)) * (N / (16 * FN));\n"
        "  slice_product<<<dim3((jobs + WARPS - 1) / WARPS, SPLITS), WARPS * 32>>>(x, w, work, M, N, K);\n"
        f"  finish<<<M * N / {256 * int(vector)}, 256>>>(work, bias, out, M * N, N);"
    )
    choices = {
        "family": "cuda_split",
        "splits": splits,
        "warps": warps,
        "fm": fm,
        "fn": fn,
        "vector": vector,
        "gelu": gelu,
    }
    call = replace(
        LIBRARY_CALL,
        parameters=(LIBRARY_CALL.parameters[0], "float* work, int M, int N, int K"),
        body=f"{LIBRARY_CALL.body}\nwork = torch.empty(({splits}, M, N), dtype=torch.float32, device=x.device)",
        pointers="x, weight, bias, out, work",
    )
    return Draft(choices, call.module(kernel, launch), "cuda")


CU_DOT = """
// A warp per element: its lanes share the sum over k.
__global__ void warp_dot(const bf16* x, const bf16* w, const bf16* bias, bf16* out, int M, int N, int K) {
  const int lane = threadIdx.x % 32;
  const long long job = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int row = job / (N / @columns@), col = job % (N / @columns@) * @columns@;
  if (row >= M) return;
  float sum[@columns@] = {};
  for (int k = lane; k < K; k += 32) {
    const float a = __bfloat162float(x[(size_t)row * K + k]);
#pragma unroll
    for (int c = 0; c < @columns@; c++) sum[c] += a * __bfloat162float(w[(size_t)k * N + col + c]);
  }
#pragma unroll
  for (int c = 0; c < @columns@; c++) {
    for (int o = 16; o > 0; o >>= 1) sum[c] += __shfl_down_sync(0xffffffffu, sum[c], o);
    if (lane == 0) out[(size_t)row * N + col + c] = __float2bfloat16(gelu(sum[c] + __bfloat162float(bias[col + c])));
  }
}
"""


def cuda_warp_dot(columns: int, threads: int, *, gelu: str = "erf") -> Draft:
    """A warp per few elements."""
    kernel = fill(CU_DOT, columns=columns)
    launch = (
        f"  const long long threads = (long long)M * (N / {columns}) * 32;\n"
        f"  warp_dot<<<(threads + {threads - 1}) / {threads}, {threads}>>>(x, w, bias, out, M, N, K);"
    )
    choices: dict[str, object] = {"family": "cuda_warp_dot", "columns": columns, "threads": threads}
    return cuda_source(choices, kernel, launch, gelu=gelu)
