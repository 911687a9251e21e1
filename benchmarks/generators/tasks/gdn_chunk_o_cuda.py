"""CUDA C++ families of the recorded task ``gdn_chunk_o``."""

from __future__ import annotations

from benchmarks.generators.pool import Draft
from benchmarks.generators.tasks.cuda_text import FETCHES, CudaFunction, tile_parts
from benchmarks.generators.text import fill

OUTPUT = CudaFunction(
    name="gdn_o",
    parameters=(
        "const float* q, const float* k, const float* v, const float* h, const float* g, float* o,",
        "int B, int T, int H, int K, int V, float scale",
    ),
    arguments="q, k, v_new, h, g",
    body="""
B, T, H, K = q.shape
V = v_new.shape[-1]
o = torch.empty_like(v_new)
""",
    pointers="q, k, v_new, h, g, o",
    scalars="B, T, H, K, V, ctypes.c_float(K ** -0.5)",
    result="o",
)

CU_ELEMENT = """
// One thread per output element; everything straight from global memory.
__global__ void one_thread_per_output(const float* q, const float* k, const float* v, const float* h,
                                      const float* g, float* o, int T, int H, int K, int V, float scale) {
  int e = blockIdx.x * blockDim.x + threadIdx.x;
  int t = blockIdx.y, b = blockIdx.z / H, n = blockIdx.z % H;
  if (e >= V) return;
  int chunk = t / 64;
  const float* qt = q + ((size_t)(b * T + t) * H + n) * K;
  const float* state = h + ((size_t)(b * (T / 64) + chunk) * H + n) * K * V;
  float gt = g[(b * T + t) * H + n];
  float acc = 0.0f;
  for (int c = 0; c < K; c++) acc += qt[c] * state[c * V + e];
  acc *= expf(gt);
  for (int j = chunk * 64; j <= t; j++) {
    size_t row = (size_t)(b * T + j) * H + n;
    float s = 0.0f;
    for (int c = 0; c < K; c++) s += qt[c] * k[row * K + c];
    acc += s * expf(gt - g[row]) * v[row * V + e];
  }
  o[((size_t)(b * T + t) * H + n) * V + e] = acc * scale;
}
"""


def cuda_element(threads: int) -> Draft:
    """A thread per element of the output."""
    launch = (
        f"  one_thread_per_output<<<dim3((V + {threads - 1}) / {threads}, T, B * H), {threads}>>>(\n"
        "      q, k, v, h, g, o, T, H, K, V, scale);"
    )
    code = OUTPUT.module(fill(CU_ELEMENT), launch)
    return Draft({"family": "cuda_element", "threads": threads}, code, "cuda")


CU_SHARED = """
#define THREADS @threads@
#define TILE_V @bv@
// One block per chunk, head and tile of V. Scores are kept in shared memory, with the decay folded in.
__global__ void __launch_bounds__(THREADS) chunk_block(const float* q, const float* k, const float* v,
                                                       const float* h, const float* g, float* o,
                                                       int T, int H, int K, int V, float scale) {
  extern __shared__ float smem[];
  float* qs = smem;                 // [64][K + 1]
  float* ks = qs + 64 * (K + 1);    // [64][K + 1]
  float* as = ks + 64 * (K + 1);    // [64][65]
  __shared__ float gs[64];
  const int chunk = blockIdx.y, b = blockIdx.z / H, n = blockIdx.z % H, v0 = blockIdx.x * TILE_V;
  const size_t first = (size_t)b * T + chunk * 64;
  for (int i = threadIdx.x; i < 64 * K; i += THREADS) {
    int r = i / K, c = i % K;
    qs[r * (K + 1) + c] = q[((first + r) * H + n) * K + c];
    ks[r * (K + 1) + c] = k[((first + r) * H + n) * K + c];
  }
  if (threadIdx.x < 64) gs[threadIdx.x] = g[(first + threadIdx.x) * H + n];
  __syncthreads();
  for (int i = threadIdx.x; i < 64 * 64; i += THREADS) {
    int r = i / 64, c = i % 64;
    float s = 0.f;
    if (r >= c) {
      for (int d = 0; d < K; d++) s += qs[r * (K + 1) + d] * ks[c * (K + 1) + d];
      s *= __expf(gs[r] - gs[c]);
    }
    as[r * 65 + c] = s;
  }
  __syncthreads();
  const float* state = h + (((size_t)b * (T / 64) + chunk) * H + n) * K * V;
@output@
}
"""

CU_SHARED_OUTPUT = {
    "scalar": """  for (int i = threadIdx.x; i < 64 * TILE_V; i += THREADS) {
    int r = i / TILE_V, e = v0 + i % TILE_V;
    float x = 0.f, y = 0.f;
    for (int d = 0; d < K; d++) x += qs[r * (K + 1) + d] * state[d * V + e];
    for (int j = 0; j <= r; j++) y += as[r * 65 + j] * v[((first + j) * H + n) * V + e];
    o[((first + r) * H + n) * V + e] = (x * __expf(gs[r]) + y) * scale;
  }""",
    "register_rows": """  // each thread owns one column and eight rows, so a loaded value is used eight times
  for (int i = threadIdx.x; i < 8 * TILE_V; i += THREADS) {
    const int e = v0 + i % TILE_V, r0 = (i / TILE_V) * 8;
    float x[8], y[8];
#pragma unroll
    for (int u = 0; u < 8; u++) x[u] = y[u] = 0.f;
    for (int d = 0; d < K; d++) {
      float s = state[d * V + e];
#pragma unroll
      for (int u = 0; u < 8; u++) x[u] += qs[(r0 + u) * (K + 1) + d] * s;
    }
    for (int j = 0; j < r0 + 8; j++) {
      float w = v[((first + j) * H + n) * V + e];
#pragma unroll
      for (int u = 0; u < 8; u++) y[u] += as[(r0 + u) * 65 + j] * w;
    }
#pragma unroll
    for (int u = 0; u < 8; u++) {
      const size_t row = (first + r0 + u) * H + n;
      o[row * V + e] = (x[u] * __expf(gs[r0 + u]) + y[u]) * scale;
    }
  }""",
}

SHARED_LAUNCH = """  const int bytes = (2 * 64 * (K + 1) + 64 * 65) * sizeof(float);
  cudaFuncSetAttribute(chunk_block, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  chunk_block<<<dim3(V / TILE_V, T / 64, B * H), THREADS, bytes>>>(q, k, v, h, g, o, T, H, K, V, scale);"""


def cuda_shared(output: str, threads: int, bv: int) -> Draft:
    """A block per chunk, head and tile of V, with the scores in shared memory."""
    kernel = fill(CU_SHARED, threads=threads, bv=bv, output=CU_SHARED_OUTPUT[output])
    choices = {"family": "cuda_shared", "output": output, "threads": threads, "bv": bv}
    return Draft(choices, OUTPUT.module(kernel, SHARED_LAUNCH), "cuda")


CU_TILES = """
#define THREADS @threads@
#define BV @bv@
@parts@
// One block per chunk, head and tile of V, as three products of tiles in shared memory.
template <int K>
__global__ void __launch_bounds__(THREADS) chunk_output(const float* q, const float* k, const float* v, const float* h,
                                                        const float* g, float* o, int T, int H, int V, float scale) {
  extern __shared__ __align__(128) float smem[];
  constexpr int LK = K + 4, LV = BV + 4, LA = 68;
  float* qs = smem;
  float* ks = qs + 64 * LK;  // keys, and once the scores are made the state
  float* vs = ks + (64 * LK > K * LV ? 64 * LK : K * LV);
  float* as = vs + 64 * LV;
  float* os = as + 64 * LA;
  __shared__ float gs[64];
  const int v0 = blockIdx.x * BV, b = blockIdx.z / H, n = blockIdx.z % H;
  const size_t row = ((size_t)b * T + blockIdx.y * 64) * H + n;
  fetch<64, K>(qs, LK, q + row * K, (size_t)H * K);
  fetch<64, K>(ks, LK, k + row * K, (size_t)H * K);
  for (int i = threadIdx.x; i < 64; i += THREADS) gs[i] = g[row + i * H];
  arrive();
  __syncthreads();
  product<64, 64, K, false, true>(qs, LK, ks, LK, [&](int r, int c, float s) {
    as[r * LA + c] = r >= c ? s * @exp@(gs[r] - gs[c]) : 0.f;
  });
  __syncthreads();
  fetch<K, BV>(ks, LV, h + (((size_t)b * (T / 64) + blockIdx.y) * H + n) * K * V + v0, V);
  fetch<64, BV>(vs, LV, v + row * V + v0, (size_t)H * V);
  arrive();
  __syncthreads();
  product<64, BV, K, false, false>(qs, LK, ks, LV, [&](int r, int c, float s) {
    os[r * LV + c] = s * @exp@(gs[r]);
  });
  __syncthreads();
  product<64, BV, 64, false, false>(as, LA, vs, LV, [&](int r, int c, float s) {
    o[(row + r * H) * V + v0 + c] = (os[r * LV + c] + s) * scale;
  });
}

template <int K>
void start(const float* q, const float* k, const float* v, const float* h, const float* g, float* o, int B, int T,
           int H, int V, float scale) {
  const int LK = K + 4, LV = BV + 4;
  const int bytes = (64 * LK + (64 * LK > K * LV ? 64 * LK : K * LV) + 2 * 64 * LV + 64 * 68) * sizeof(float);
  cudaFuncSetAttribute(chunk_output<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  chunk_output<K><<<dim3(V / BV, T / 64, B * H), THREADS, bytes>>>(q, k, v, h, g, o, T, H, V, scale);
}
"""
BY_K = """  if (K == 64) start<64>(q, k, v, h, g, o, B, T, H, V, scale);
  else if (K == 128) start<128>(q, k, v, h, g, o, B, T, H, V, scale);
  else return 1;"""


def cuda_tiles(engine: str, fetch: str, threads: int, bv: int, exp: str = "__expf") -> Draft:
    """Three products of tiles in shared memory."""
    kernel = fill(CU_TILES, threads=threads, bv=bv, parts=tile_parts(engine, fetch), exp=exp)
    choices = {
        "family": "cuda_tiles",
        "engine": engine,
        "fetch": fetch,
        "threads": threads,
        "bv": bv,
        "exp": exp,
    }
    return Draft(choices, OUTPUT.module(kernel, BY_K), "cuda")


CU_RECURRENT = """
#define SPLIT @split@
#define COLUMNS @columns@
#define THREADS (SPLIT * COLUMNS)
@fetch@
// SPLIT neighbouring threads carry one column of the state through the chunk: decay, add k v, read with q.
template <int K>
__global__ void __launch_bounds__(THREADS) carry_state(const float* q, const float* k, const float* v, const float* h,
                                                       const float* g, float* o, int T, int H, int V, float scale) {
  constexpr int R = K / SPLIT;
  extern __shared__ __align__(128) float smem[];
  float* qs = smem;
  float* ks = qs + 64 * K;
  __shared__ float gs[64];
  const int part = threadIdx.x % SPLIT, e = blockIdx.x * COLUMNS + threadIdx.x / SPLIT;
  const int b = blockIdx.z / H, n = blockIdx.z % H;
  const size_t row = ((size_t)b * T + blockIdx.y * 64) * H + n;
  fetch<64, K>(qs, K, q + row * K, (size_t)H * K);
  fetch<64, K>(ks, K, k + row * K, (size_t)H * K);
  for (int i = threadIdx.x; i < 64; i += THREADS) gs[i] = g[row + i * H];
  const float* state = h + (((size_t)b * (T / 64) + blockIdx.y) * H + n) * K * V + e;
  float s[R];
#pragma unroll
  for (int i = 0; i < R; i++) s[i] = state[(size_t)(i * SPLIT + part) * V];
  arrive();
  __syncthreads();
  float before = 0.f;
#pragma unroll @unroll@
  for (int j = 0; j < 64; j++) {
    const size_t at = (row + j * H) * V + e;
    const float x = v[at], keep = __expf(gs[j] - before);
    float y = 0.f;
#pragma unroll
    for (int i = 0; i < R; i++) {
      s[i] = s[i] * keep + ks[j * K + i * SPLIT + part] * x;
      y += qs[j * K + i * SPLIT + part] * s[i];
    }
#pragma unroll
    for (int d = SPLIT / 2; d > 0; d /= 2) y += __shfl_xor_sync(0xffffffffu, y, d);
    if (part == 0) o[at] = y * scale;
    before = gs[j];
  }
}

template <int K>
void start(const float* q, const float* k, const float* v, const float* h, const float* g, float* o, int B, int T,
           int H, int V, float scale) {
  const int bytes = 2 * 64 * K * sizeof(float);
  cudaFuncSetAttribute(carry_state<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  carry_state<K><<<dim3(V / COLUMNS, T / 64, B * H), THREADS, bytes>>>(q, k, v, h, g, o, T, H, V, scale);
}
"""


def cuda_recurrent(split: int, columns: int, fetch: str, unroll: int = 1) -> Draft:
    """Columns of the state in registers, carried through the chunk."""
    choices = {
        "family": "cuda_recurrent",
        "split": split,
        "columns": columns,
        "fetch": fetch,
        "unroll": unroll,
    }
    kernel = fill(CU_RECURRENT, split=split, columns=columns, fetch=FETCHES[fetch].strip("\n"), unroll=unroll)
    return Draft(choices, OUTPUT.module(kernel, BY_K), "cuda")
