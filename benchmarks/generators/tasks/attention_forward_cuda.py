"""CUDA C++ families of the recorded task ``attention_forward``."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.generators.pool import Draft
from benchmarks.generators.tasks.cuda_text import CudaFunction
from benchmarks.generators.tasks.mma_ptx import MMA_PTX
from benchmarks.generators.tasks.torch_extension import Extension
from benchmarks.generators.text import fill

LIBRARY_CALL = CudaFunction(
    name="attention",
    parameters=(
        "const bf16* q, const bf16* k, const bf16* v, bf16* out,",
        "int heads, int T, int D, float scale",
    ),
    arguments="q, k, v",
    body="""B, H, T, D = q.shape
out = torch.empty_like(q)""",
    pointers="q, k, v, out",
    scalars="B * H, T, D, ctypes.c_float(D ** -0.5)",
    result="out",
)
EXTENSION = Extension("attention", "query, key, value")
EXTENSION_LAUNCH = """  const int heads = query.size(0) * query.size(1), T = query.size(2), D = query.size(3);
  const float scale = 1.0f / sqrtf((float)D);
  auto result = torch::empty_like(query);
  const bf16* q = reinterpret_cast<const bf16*>(query.data_ptr());
  const bf16* k = reinterpret_cast<const bf16*>(key.data_ptr());
  const bf16* v = reinterpret_cast<const bf16*>(value.data_ptr());
  bf16* out = reinterpret_cast<bf16*>(result.data_ptr());
@launch@
  return result;"""

CU_HEAD = """#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;
"""

# A kernel is a template over D: both sizes are compiled.
CU_LAUNCH = """  if (D == 64) {
    @prepare64@
    @name@<64><<<@grid@, @threads@, @bytes64@>>>(@arguments@);
  } else {
    @prepare128@
    @name@<128><<<@grid@, @threads@, @bytes128@>>>(@arguments@);
  }"""


def cuda_source(
    choices: dict[str, object],
    kernel: str,
    name: str,
    grid: str,
    threads: str,
    *,
    shared: str = "",
    arguments: str = "q, k, v, out, T, scale",
    host: str = "ctypes",
) -> Draft:
    """Wraps a kernel that is a template over the size of a head.

    `shared` is the dynamic shared memory in bytes, with ``{D}`` where the size of a head belongs.
    """
    slots = {}
    for width in ("64", "128"):
        size = shared.format(D=width)
        slots[f"bytes{width}"] = size or "0"
        slots[f"prepare{width}"] = (
            f"cudaFuncSetAttribute({name}<{width}>, cudaFuncAttributeMaxDynamicSharedMemorySize, {size});"
            if shared
            else ""
        )
    launch = fill(CU_LAUNCH, name=name, grid=grid, threads=threads, arguments=arguments, **slots)
    kernel = CU_HEAD + "\n" + kernel
    if host == "ctypes":
        code = LIBRARY_CALL.module(kernel, launch)
    else:
        code = EXTENSION.module(kernel, fill(EXTENSION_LAUNCH, launch=launch))
    return Draft({**choices, "host": host}, code, "cuda")


CU_THREAD = """
constexpr int THREADS = @threads@, TILE = @tile@;

// One thread per query; its query and its sums live in registers.
template <int D>
__global__ void __launch_bounds__(THREADS) thread_per_query(const bf16* q, const bf16* k, const bf16* v, bf16* out,
                                                            int T, float scale) {
@shared@
  const int row = (@block@) * THREADS + threadIdx.x;
  const size_t base = (size_t)blockIdx.y * T * D;
  float x[D], acc[D];
#pragma unroll
  for (int d = 0; d < D; d++) {
    x[d] = __bfloat162float(q[base + (size_t)row * D + d]) * scale;
    acc[d] = 0.0f;
  }
  float m = -1e30f, l = 0.0f;
@loop@
#pragma unroll
  for (int d = 0; d < D; d++) out[base + (size_t)row * D + d] = __float2bfloat16(acc[d] / l);
}
"""

CU_THREAD_STEP = """float s = 0.0f;
#pragma unroll
for (int d = 0; d < D; d++) s += x[d] * @key@;
const float top = fmaxf(m, s);
const float a = @exp@(m - top), p = @exp@(s - top);
l = l * a + p;
#pragma unroll
for (int d = 0; d < D; d++) acc[d] = acc[d] * a + p * @value@;
m = top;"""

CU_THREAD_LOOPS = {
    "global": (
        "",
        """  for (int n = 0; n <= row; n++) {
    @step@
  }""",
        "__bfloat162float(k[base + (size_t)n * D + d])",
        "__bfloat162float(v[base + (size_t)n * D + d])",
    ),
    "shared": (
        """  __shared__ float ks[TILE][D], vs[TILE][D];""",
        """  const int last = (row / THREADS + 1) * THREADS;
  for (int n0 = 0; n0 < last; n0 += TILE) {
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * D; i += THREADS) {
      ks[i / D][i % D] = __bfloat162float(k[base + (size_t)n0 * D + i]);
      vs[i / D][i % D] = __bfloat162float(v[base + (size_t)n0 * D + i]);
    }
    __syncthreads();
    for (int j = 0; j < TILE; j++) {
      if (n0 + j > row) break;
      @step@
    }
  }""",
        "ks[j][d]",
        "vs[j][d]",
    ),
}


def cuda_thread(keys: str, threads: int, tile: int, *, exp: str = "expf", order: str = "forward") -> Draft:
    """A thread per query, with the keys from ``global`` or ``shared`` memory."""
    shared, loop, key, value = CU_THREAD_LOOPS[keys]
    kernel = fill(
        CU_THREAD,
        threads=threads,
        tile=tile,
        shared=shared,
        loop=loop,
        step=fill(CU_THREAD_STEP, key=key, value=value, exp=exp),
        block="blockIdx.x" if order == "forward" else "gridDim.x - 1 - blockIdx.x",
    )
    choices: dict[str, object] = {
        "family": "cuda_thread",
        "keys": keys,
        "threads": threads,
        "tile": tile,
        "exp": exp,
        "order": order,
    }
    return cuda_source(choices, kernel, "thread_per_query", "dim3(T / THREADS, heads)", "THREADS")


CU_WARP = """
constexpr int WARPS = @warps@;

// One warp per query.
template <int D>
__global__ void warp_per_query(const bf16* q, const bf16* k, const bf16* v, bf16* out, int T, float scale) {
  const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
  const size_t base = (size_t)blockIdx.y * T * D;
@body@
}
"""

CU_WARP_BODIES = {
    "lanes_over_dims": """  constexpr int E = D / 32;
  float x[E], acc[E];
#pragma unroll
  for (int e = 0; e < E; e++) {
    x[e] = __bfloat162float(q[base + (size_t)row * D + e * 32 + lane]) * scale;
    acc[e] = 0.0f;
  }
  float m = -1e30f, l = 0.0f;
  for (int n = 0; n <= row; n++) {
    float s = 0.0f;
#pragma unroll
    for (int e = 0; e < E; e++) s += x[e] * __bfloat162float(k[base + (size_t)n * D + e * 32 + lane]);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
    const float top = fmaxf(m, s), a = __expf(m - top), p = __expf(s - top);
    l = l * a + p;
#pragma unroll
    for (int e = 0; e < E; e++) {
      acc[e] = acc[e] * a + p * __bfloat162float(v[base + (size_t)n * D + e * 32 + lane]);
    }
    m = top;
  }
#pragma unroll
  for (int e = 0; e < E; e++) out[base + (size_t)row * D + e * 32 + lane] = __float2bfloat16(acc[e] / l);""",
    "lanes_over_keys": """  constexpr int E = D / 32;
  __shared__ float xs[WARPS][D];
  float* x = xs[threadIdx.x / 32];
  for (int d = lane; d < D; d += 32) x[d] = __bfloat162float(q[base + (size_t)row * D + d]) * scale;
  __syncwarp();
  float acc[E];
#pragma unroll
  for (int e = 0; e < E; e++) acc[e] = 0.0f;
  float m = -1e30f, l = 0.0f;
  for (int n0 = 0; n0 <= row; n0 += 32) {
    // each lane has a key of its own
    float s = -1e30f;
    if (n0 + lane <= row) {
      const uint4* key = reinterpret_cast<const uint4*>(k + base + (size_t)(n0 + lane) * D);
      s = 0.0f;
#pragma unroll
      for (int c = 0; c < D / 8; c++) {
        const uint4 pack = key[c];
        const __nv_bfloat162* pair = reinterpret_cast<const __nv_bfloat162*>(&pack);
#pragma unroll
        for (int u = 0; u < 4; u++) {
          const float2 f = __bfloat1622float2(pair[u]);
          s += x[8 * c + 2 * u] * f.x + x[8 * c + 2 * u + 1] * f.y;
        }
      }
    }
    float top = s;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    top = fmaxf(top, m);
    const float a = __expf(m - top), p = n0 + lane <= row ? __expf(s - top) : 0.0f;
    l = l * a + p;
#pragma unroll
    for (int e = 0; e < E; e++) acc[e] *= a;
    for (int j = 0; j < 32; j++) {
      const float w = __shfl_sync(0xffffffffu, p, j);
      if (n0 + j > row) break;
#pragma unroll
      for (int e = 0; e < E; e++) acc[e] += w * __bfloat162float(v[base + (size_t)(n0 + j) * D + e * 32 + lane]);
    }
    m = top;
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) l += __shfl_xor_sync(0xffffffffu, l, o);
#pragma unroll
  for (int e = 0; e < E; e++) out[base + (size_t)row * D + e * 32 + lane] = __float2bfloat16(acc[e] / l);""",
}


def cuda_warp(body: str, warps: int, *, host: str = "ctypes") -> Draft:
    """A warp per query, whose lanes share the dimensions or the keys."""
    kernel = fill(CU_WARP, warps=warps, body=CU_WARP_BODIES[body])
    choices: dict[str, object] = {"family": "cuda_warp", "body": body, "warps": warps}
    return cuda_source(choices, kernel, "warp_per_query", "dim3(T / WARPS, heads)", "WARPS * 32", host=host)


CU_BLOCK = """
constexpr int THREADS = @threads@;

@reduce@

// One block per query; the scores of the row are kept in shared memory.
template <int D>
__global__ void __launch_bounds__(THREADS) block_per_query(const bf16* q, const bf16* k, const bf16* v, bf16* out,
                                                           int T, float scale) {
  extern __shared__ float scores[];
  __shared__ float x[D], partial[THREADS];
  const int row = blockIdx.x, tid = threadIdx.x;
  const size_t base = (size_t)blockIdx.y * T * D;
  for (int d = tid; d < D; d += THREADS) x[d] = __bfloat162float(q[base + (size_t)row * D + d]) * scale;
  __syncthreads();
  float top = -1e30f;
  for (int n = tid; n <= row; n += THREADS) {
    float s = 0.0f;
@dot@
    scores[n] = s;
    top = fmaxf(top, s);
  }
  top = reduce<true>(top);
  float sum = 0.0f;
  for (int n = tid; n <= row; n += THREADS) {
    scores[n] = expf(scores[n] - top);
    sum += scores[n];
  }
  sum = reduce<false>(sum);
  // groups of D threads take every so many keys
  constexpr int GROUPS = THREADS / D > 0 ? THREADS / D : 1;
  if (tid < GROUPS * D) {
    float acc = 0.0f;
    for (int n = tid / D; n <= row; n += GROUPS) acc += scores[n] * __bfloat162float(v[base + (size_t)n * D + tid % D]);
    partial[tid] = acc;
  }
  __syncthreads();
  if (tid < D) {
    float acc = 0.0f;
    for (int g = 0; g < GROUPS; g++) acc += partial[g * D + tid];
    out[base + (size_t)row * D + tid] = __float2bfloat16(acc / sum);
  }
}
"""

CU_REDUCE = {
    "tree": """template <bool MAX>
__device__ float reduce(float value) {
  __shared__ float space[THREADS];
  __syncthreads();
  space[threadIdx.x] = value;
  __syncthreads();
  for (int s = THREADS / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) {
      const float other = space[threadIdx.x + s];
      space[threadIdx.x] = MAX ? fmaxf(space[threadIdx.x], other) : space[threadIdx.x] + other;
    }
    __syncthreads();
  }
  return space[0];
}""",
    "shuffle": """template <bool MAX>
__device__ float reduce(float value) {
  __shared__ float space[THREADS / 32];
  for (int o = 16; o > 0; o >>= 1) {
    const float other = __shfl_xor_sync(0xffffffffu, value, o);
    value = MAX ? fmaxf(value, other) : value + other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) space[threadIdx.x / 32] = value;
  __syncthreads();
  value = space[0];
  for (int i = 1; i < THREADS / 32; i++) value = MAX ? fmaxf(value, space[i]) : value + space[i];
  return value;
}""",
}

CU_BLOCK_DOTS = {
    "scalar": "    for (int d = 0; d < D; d++) s += x[d] * __bfloat162float(k[base + (size_t)n * D + d]);",
    "vector": """    const uint4* key = reinterpret_cast<const uint4*>(k + base + (size_t)n * D);
#pragma unroll 4
    for (int c = 0; c < D / 8; c++) {
      const uint4 pack = __ldg(key + c);
      const __nv_bfloat162* pair = reinterpret_cast<const __nv_bfloat162*>(&pack);
#pragma unroll
      for (int u = 0; u < 4; u++) {
        const float2 f = __bfloat1622float2(pair[u]);
        s += x[8 * c + 2 * u] * f.x + x[8 * c + 2 * u + 1] * f.y;
      }
    }""",
}


def cuda_block(threads: int, dot: str, reduce: str, *, host: str = "ctypes") -> Draft:
    """A block per query."""
    kernel = fill(CU_BLOCK, threads=threads, dot=CU_BLOCK_DOTS[dot], reduce=CU_REDUCE[reduce])
    choices: dict[str, object] = {"family": "cuda_block", "threads": threads, "dot": dot, "reduce": reduce}
    return cuda_source(
        choices, kernel, "block_per_query", "dim3(T, heads)", "THREADS", shared="T * 4", host=host
    )


CU_TILE = """
constexpr int BM = @bm@, BN = @bn@, TM = @tm@, TN = @tn@;
constexpr int ROWS = BM / TM, COLS = BN / TN, THREADS = ROWS * COLS;

// Tiles in shared memory, products on the ordinary cores, a block of sums per thread.
template <int D>
__global__ void __launch_bounds__(THREADS) tile_attention(const bf16* __restrict__ q, const bf16* __restrict__ k,
                                                          const bf16* __restrict__ v, bf16* __restrict__ out,
                                                          int T, float scale) {
  constexpr int TD = D / COLS;
  extern __shared__ float space[];
  float* qs = space;                // [BM][D + 1]
  float* ks = qs + BM * (D + 1);    // [BN][D + 1], keys first, then values
  float* ps = ks + BN * (D + 1);    // [BM][BN + 1]
  const int ty = threadIdx.x / COLS, tx = threadIdx.x % COLS;
  const int row0 = (@block@) * BM;
  const size_t base = (size_t)blockIdx.y * T * D;
  for (int i = threadIdx.x; i < BM * D; i += THREADS)
    qs[i / D * (D + 1) + i % D] = __bfloat162float(q[base + (size_t)row0 * D + i]) * scale;
  float acc[TM][TD], m[TM], l[TM];
#pragma unroll
  for (int i = 0; i < TM; i++) {
    m[i] = -1e30f;
    l[i] = 0.0f;
#pragma unroll
    for (int d = 0; d < TD; d++) acc[i][d] = 0.0f;
  }
  for (int n0 = 0; n0 < @end@; n0 += BN) {
    __syncthreads();
    for (int i = threadIdx.x; i < BN * D; i += THREADS)
      ks[i / D * (D + 1) + i % D] = __bfloat162float(k[base + (size_t)n0 * D + i]);
    __syncthreads();
    float s[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
      for (int j = 0; j < TN; j++) s[i][j] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < D; d++) {
      float a[TM], b[TN];
#pragma unroll
      for (int i = 0; i < TM; i++) a[i] = qs[(ty * TM + i) * (D + 1) + d];
#pragma unroll
      for (int j = 0; j < TN; j++) b[j] = ks[(tx + j * COLS) * (D + 1) + d];
#pragma unroll
      for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) s[i][j] += a[i] * b[j];
    }
#pragma unroll
    for (int i = 0; i < TM; i++) {
      float top = m[i];
#pragma unroll
      for (int j = 0; j < TN; j++) {
        if (n0 + tx + j * COLS > row0 + ty * TM + i) s[i][j] = -1e30f;
        top = fmaxf(top, s[i][j]);
      }
#pragma unroll
      for (int o = COLS / 2; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
      const float a = __expf(m[i] - top);
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < TN; j++) {
        const float p = s[i][j] > -1e29f ? __expf(s[i][j] - top) : 0.0f;
        ps[(ty * TM + i) * (BN + 1) + tx + j * COLS] = p;
        sum += p;
      }
#pragma unroll
      for (int o = COLS / 2; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
      l[i] = l[i] * a + sum;
      m[i] = top;
#pragma unroll
      for (int d = 0; d < TD; d++) acc[i][d] *= a;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < BN * D; i += THREADS)
      ks[i / D * (D + 1) + i % D] = __bfloat162float(v[base + (size_t)n0 * D + i]);
    __syncthreads();
#pragma unroll 4
    for (int n = 0; n < BN; n++) {
      float w[TM];
#pragma unroll
      for (int i = 0; i < TM; i++) w[i] = ps[(ty * TM + i) * (BN + 1) + n];
#pragma unroll
      for (int d = 0; d < TD; d++) {
        const float x = ks[n * (D + 1) + tx + d * COLS];
#pragma unroll
        for (int i = 0; i < TM; i++) acc[i][d] += w[i] * x;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < TM; i++)
#pragma unroll
    for (int d = 0; d < TD; d++)
      out[base + (size_t)(row0 + ty * TM + i) * D + tx + d * COLS] = __float2bfloat16(acc[i][d] / l[i]);
}
"""


def cuda_tile(
    bm: int, bn: int, tm: int, tn: int, *, causal: str = "skip", order: str = "forward", host: str = "ctypes"
) -> Draft:
    """A running softmax over tiles in shared memory, without tensor cores; `bn` / `tn` threads share a row."""
    kernel = fill(
        CU_TILE,
        bm=bm,
        bn=bn,
        tm=tm,
        tn=tn,
        block="blockIdx.x" if order == "forward" else "gridDim.x - 1 - blockIdx.x",
        end="row0 + BM" if causal == "skip" else "T",
    )
    choices: dict[str, object] = {
        "family": "cuda_tile",
        "bm": bm,
        "bn": bn,
        "tm": tm,
        "tn": tn,
        "causal": causal,
        "order": order,
    }
    return cuda_source(
        choices,
        kernel,
        "tile_attention",
        "dim3(T / BM, heads)",
        "THREADS",
        shared="((BM + BN) * ({D} + 1) + BM * (BN + 1)) * 4",
        host=host,
    )


CU_WMMA = """
#include <mma.h>
using namespace nvcuda;

constexpr int WARPS = @warps@, BM = WARPS * 16, BN = @bn@, THREADS = WARPS * 32;

// Tensor cores; scores, weights and sums go through shared memory. A warp owns 16 queries.
template <int D>
__global__ void __launch_bounds__(THREADS) wmma_attention(const bf16* __restrict__ q, const bf16* __restrict__ k,
                                                          const bf16* __restrict__ v, bf16* __restrict__ out,
                                                          int T, float scale) {
  constexpr int LD = D + 8, LS = BN + 4, LP = BN + 8, LO = D + 4;
  extern __shared__ __align__(128) unsigned char raw[];
  bf16* ks = reinterpret_cast<bf16*>(raw);
  bf16* vs = ks + BN * LD;
  bf16* ps = vs + BN * LD;
  float* ss = reinterpret_cast<float*>(ps + BM * LP);
  float* os = ss + BM * LS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row0 = (@block@) * BM;
  const size_t base = (size_t)blockIdx.y * T * D;

  wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> x[D / 16];
#pragma unroll
  for (int c = 0; c < D / 16; c++) wmma::load_matrix_sync(x[c], q + base + (size_t)(row0 + warp * 16) * D + c * 16, D);
  float* o = os + warp * 16 * LO;
  float* s = ss + warp * 16 * LS;
  bf16* p = ps + warp * 16 * LP;
  for (int i = lane; i < 16 * D; i += 32) o[i / D * LO + i % D] = 0.0f;
  // two lanes per row
  const int r = lane / 2, half = lane % 2, row = row0 + warp * 16 + r;
  float m = -1e30f, l = 0.0f;

  for (int n0 = 0; n0 < row0 + BM; n0 += BN) {
    __syncthreads();
    for (int i = threadIdx.x; i < BN * D / 8; i += THREADS) {
      const int n = i / (D / 8), c = i % (D / 8) * 8;
      *reinterpret_cast<uint4*>(ks + n * LD + c) = *reinterpret_cast<const uint4*>(k + base + (size_t)(n0 + n) * D + c);
      *reinterpret_cast<uint4*>(vs + n * LD + c) = *reinterpret_cast<const uint4*>(v + base + (size_t)(n0 + n) * D + c);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < BN / 16; j++) {
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
      wmma::fill_fragment(sum, 0.0f);
#pragma unroll
      for (int c = 0; c < D / 16; c++) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::col_major> y;
        wmma::load_matrix_sync(y, ks + j * 16 * LD + c * 16, LD);
        wmma::mma_sync(sum, x[c], y, sum);
      }
      wmma::store_matrix_sync(s + j * 16, sum, LS, wmma::mem_row_major);
    }
    __syncwarp();
    float top = m;
    for (int n = half; n < BN; n += 2) {
      const float e = n0 + n <= row ? s[r * LS + n] * scale : -1e30f;
      s[r * LS + n] = e;
      top = fmaxf(top, e);
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    const float a = __expf(m - top);
    float sum = 0.0f;
    for (int n = half; n < BN; n += 2) {
      const float e = n0 + n <= row ? __expf(s[r * LS + n] - top) : 0.0f;
      p[r * LP + n] = __float2bfloat16(e);
      sum += e;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    l = l * a + sum;
    m = top;
    for (int d = half; d < D; d += 2) o[r * LO + d] *= a;
    __syncwarp();
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> part;
      wmma::load_matrix_sync(part, o + c * 16, LO, wmma::mem_row_major);
#pragma unroll
      for (int j = 0; j < BN / 16; j++) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> w;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> y;
        wmma::load_matrix_sync(w, p + j * 16, LP);
        wmma::load_matrix_sync(y, vs + j * 16 * LD + c * 16, LD);
        wmma::mma_sync(part, w, y, part);
      }
      wmma::store_matrix_sync(o + c * 16, part, LO, wmma::mem_row_major);
    }
    __syncwarp();
  }
  for (int d = half; d < D; d += 2) out[base + (size_t)row * D + d] = __float2bfloat16(o[r * LO + d] / l);
}
"""


def cuda_wmma(warps: int, bn: int, *, order: str = "forward", host: str = "ctypes") -> Draft:
    """Tensor cores through ``wmma``."""
    kernel = fill(
        CU_WMMA,
        warps=warps,
        bn=bn,
        block="blockIdx.x" if order == "forward" else "gridDim.x - 1 - blockIdx.x",
    )
    choices: dict[str, object] = {"family": "cuda_wmma", "warps": warps, "bn": bn, "order": order}
    return cuda_source(
        choices,
        kernel,
        "wmma_attention",
        "dim3(T / BM, heads)",
        "THREADS",
        shared="2 * BN * ({D} + 8) * 2 + BM * (BN + 8) * 2 + BM * (BN + 4) * 4 + BM * ({D} + 4) * 4",
        host=host,
    )


CU_MMA = """
@ptx@

constexpr int WARPS = @warps@, BM = WARPS * 16, BN = @bn@, THREADS = WARPS * 32, STAGES = @stages@;

__device__ __forceinline__ uint32_t packed(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Scores, weights and sums stay in registers. A warp owns 16 queries.
template <int D>
__global__ void __launch_bounds__(THREADS) mma_attention(const bf16* __restrict__ q, const bf16* __restrict__ k,
                                                         const bf16* __restrict__ v, bf16* __restrict__ out,
                                                         int T, float scale) {
  constexpr int LD = D + 8;
  extern __shared__ __align__(128) bf16 tiles[];
  bf16* ks = tiles;
  bf16* vs = tiles + STAGES * BN * LD;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row0 = (@block@) * BM, row = row0 + warp * 16 + lane / 4;
  const size_t base = (size_t)blockIdx.y * T * D;
  const float factor = scale * 1.4426950408889634f;

  uint32_t x[D / 16][4];
#pragma unroll
  for (int c = 0; c < D / 16; c++)
#pragma unroll
    for (int u = 0; u < 4; u++)
      x[c][u] = *reinterpret_cast<const uint32_t*>(q + base + (size_t)(row + u % 2 * 8) * D + c * 16 + u / 2 * 8 +
                                                   lane % 4 * 2);
  float o[D / 8][4] = {};
  float m[2] = {-1e30f, -1e30f}, l[2] = {0.0f, 0.0f};

  auto fetch = [&](int stage, int n0) {
    for (int i = threadIdx.x; i < BN * D / 8; i += THREADS) {
      const int n = i / (D / 8), c = i % (D / 8) * 8;
      cp_async16(ks + (stage * BN + n) * LD + c, k + base + (size_t)(n0 + n) * D + c);
      cp_async16(vs + (stage * BN + n) * LD + c, v + base + (size_t)(n0 + n) * D + c);
    }
  };
  const int tiles_seen = (row0 + BM + BN - 1) / BN;
@prologue@
  for (int t = 0; t < tiles_seen; t++) {
@arrive@
    const bf16* kt = ks + t % STAGES * BN * LD;
    const bf16* vt = vs + t % STAGES * BN * LD;
    float s[BN / 8][4] = {};
#pragma unroll
    for (int c = 0; c < D / 16; c++)
#pragma unroll
      for (int j = 0; j < BN / 16; j++) {
        uint32_t b[4];
        ldmatrix_x4(b, kt + (16 * j + lane % 8 + lane / 16 * 8) * LD + 16 * c + lane / 8 % 2 * 8);
        mma16816(s[2 * j], x[c], b);
        mma16816(s[2 * j + 1], x[c], b + 2);
      }
    float top[2] = {m[0], m[1]};
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
      for (int u = 0; u < 4; u++) {
        s[j][u] *= factor;
        if (@masked@t * BN + 8 * j + lane % 4 * 2 + u % 2 > row + u / 2 * 8) s[j][u] = -1e30f;
        top[u / 2] = fmaxf(top[u / 2], s[j][u]);
      }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
      top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
      const float a = exp2f(m[h] - top[h]);
      m[h] = top[h];
      l[h] *= a;
#pragma unroll
      for (int d = 0; d < D / 8; d++) {
        o[d][2 * h] *= a;
        o[d][2 * h + 1] *= a;
      }
    }
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
      for (int u = 0; u < 4; u++) {
        s[j][u] = exp2f(s[j][u] - m[u / 2]);
        l[u / 2] += s[j][u];
      }
#pragma unroll
    for (int j = 0; j < BN / 16; j++) {
      const uint32_t w[4] = {packed(s[2 * j][0], s[2 * j][1]), packed(s[2 * j][2], s[2 * j][3]),
                             packed(s[2 * j + 1][0], s[2 * j + 1][1]), packed(s[2 * j + 1][2], s[2 * j + 1][3])};
#pragma unroll
      for (int d = 0; d < D / 16; d++) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, vt + (16 * j + lane % 16) * LD + 16 * d + lane / 16 * 8);
        mma16816(o[2 * d], w, b);
        mma16816(o[2 * d + 1], w, b + 2);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    l[h] += __shfl_xor_sync(0xffffffffu, l[h], 1);
    l[h] += __shfl_xor_sync(0xffffffffu, l[h], 2);
#pragma unroll
    for (int d = 0; d < D / 8; d++)
      *reinterpret_cast<uint32_t*>(out + base + (size_t)(row + 8 * h) * D + 8 * d + lane % 4 * 2) =
          packed(o[d][2 * h] / l[h], o[d][2 * h + 1] / l[h]);
  }
}
"""

CU_MMA_QUEUES = {
    1: (
        "",
        """    fetch(0, t * BN);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();""",
    ),
    2: (
        """  fetch(0, 0);
  cp_async_commit();""",
        """    if (t + 1 < tiles_seen) fetch((t + 1) % STAGES, (t + 1) * BN);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();""",
    ),
    3: (
        """  fetch(0, 0);
  cp_async_commit();
  if (1 < tiles_seen) fetch(1, BN);
  cp_async_commit();""",
        """    if (t + 2 < tiles_seen) fetch((t + 2) % STAGES, (t + 2) * BN);
    cp_async_commit();
    cp_async_wait<2>();
    __syncthreads();""",
    ),
}


def cuda_mma(
    warps: int, bn: int, stages: int, *, order: str = "forward", mask: str = "always", host: str = "ctypes"
) -> Draft:
    """``mma.sync`` with everything in registers; masks ``always`` or at the ``edge`` alone."""
    prologue, arrive = CU_MMA_QUEUES[stages]
    kernel = fill(
        CU_MMA,
        ptx=MMA_PTX.strip("\n"),
        warps=warps,
        bn=bn,
        stages=stages,
        prologue=prologue,
        arrive=arrive,
        masked="(t + 1) * BN > row0 + warp * 16 && " if mask == "edge" else "",
        block="blockIdx.x" if order == "forward" else "gridDim.x - 1 - blockIdx.x",
    )
    choices: dict[str, object] = {
        "family": "cuda_mma",
        "warps": warps,
        "bn": bn,
        "stages": stages,
        "order": order,
        "mask": mask,
    }
    return cuda_source(
        choices,
        kernel,
        "mma_attention",
        "dim3(T / BM, heads)",
        "THREADS",
        shared="2 * STAGES * BN * ({D} + 8) * 2",
        host=host,
    )


CU_STEPS = """
// Three kernels; the scores of a few heads go through memory.
template <int D>
__global__ void score_step(const bf16* q, const bf16* k, float* s, int T, float scale) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x, m = blockIdx.y * blockDim.y + threadIdx.y;
  @skip@
  const size_t base = (size_t)blockIdx.z * T * D;
  float sum = 0.0f;
  for (int d = 0; d < D; d++)
    sum += __bfloat162float(q[base + (size_t)m * D + d]) * __bfloat162float(k[base + (size_t)n * D + d]);
  s[((size_t)blockIdx.z * T + m) * T + n] = n <= m ? sum * scale : -1e30f;
}

__global__ void softmax_step(float* s, int T) {
  // a warp per row
  const int lane = threadIdx.x % 32;
  const int m = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  float* row = s + ((size_t)blockIdx.y * T + m) * T;
  float top = -1e30f, sum = 0.0f;
  for (int n = lane; n <= m; n += 32) top = fmaxf(top, row[n]);
  for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
  for (int n = lane; n <= m; n += 32) sum += expf(row[n] - top);
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  for (int n = lane; n <= m; n += 32) row[n] = expf(row[n] - top) / sum;
}

template <int D>
__global__ void value_step(const float* s, const bf16* v, bf16* out, int T) {
  const int d = threadIdx.x, m = blockIdx.x * blockDim.y + threadIdx.y;
  const size_t base = (size_t)blockIdx.y * T * D;
  const float* row = s + ((size_t)blockIdx.y * T + m) * T;
  float acc = 0.0f;
  for (int n = 0; n <= m; n++) acc += row[n] * __bfloat162float(v[base + (size_t)n * D + d]);
  out[base + (size_t)m * D + d] = __float2bfloat16(acc);
}

template <int D>
void steps(const bf16* q, const bf16* k, const bf16* v, bf16* out, float* work, int heads, int T, float scale) {
  score_step<D><<<dim3(T / @bx@, T / @by@, heads), dim3(@bx@, @by@)>>>(q, k, work, T, scale);
  softmax_step<<<dim3(T / 4, heads), 128>>>(work, T);
  value_step<D><<<dim3(T / @rows@, heads), dim3(D, @rows@)>>>(work, v, out, T);
}
"""


def cuda_steps(bx: int, by: int, rows: int, causal: str) -> Draft:
    """Scores, softmax and product one after the other."""
    kernel = CU_HEAD + fill(
        CU_STEPS,
        bx=bx,
        by=by,
        rows=rows,
        skip=(
            "if (blockIdx.x * blockDim.x > blockIdx.y * blockDim.y + blockDim.y - 1) return;"
            if causal == "skip"
            else ""
        ),
    )
    launch = """  if (D == 64) steps<64>(q, k, v, out, work, heads, T, scale);
  else steps<128>(q, k, v, out, work, heads, T, scale);"""
    call = replace(
        LIBRARY_CALL,
        parameters=(LIBRARY_CALL.parameters[0], "float* work, int heads, int T, int D, float scale"),
        body=LIBRARY_CALL.body + "\nwork = torch.empty((B * H, T, T), dtype=torch.float32, device=q.device)",
        pointers="q, k, v, out, work",
    )
    choices = {"family": "cuda_steps", "bx": bx, "by": by, "rows": rows, "causal": causal}
    return Draft(choices, call.module(kernel, launch), "cuda")
