"""CUDA C++ families of the recorded task ``gdn_chunk_h``."""

from __future__ import annotations

from benchmarks.generators.pool import Draft
from benchmarks.generators.tasks.cuda_text import FETCHES, CudaFunction, tile_parts
from benchmarks.generators.tasks.gdn_chunk_h_torch import ARGUMENTS
from benchmarks.generators.text import fill

STATES = CudaFunction(
    name="gdn_h",
    parameters=(
        "const float* k, const float* w, const float* u, const float* g, float* h, float* v_new,",
        "int B, int T, int H, int K, int V",
    ),
    arguments=ARGUMENTS,
    body="""
B, T, H, K = k.shape
V = u.shape[-1]
h = torch.empty(B, T // 64, H, K, V, device=k.device, dtype=torch.float32)
v_new = torch.empty_like(u)
""",
    pointers="k, w, u, g, h, v_new",
    scalars="B, T, H, K, V",
    result="h, v_new",
)

CU_TILES = """
#define THREADS @threads@
#define BV @bv@
@parts@
// One block per tile of V of one head; its state lives in shared memory.
template <int K>
__global__ void __launch_bounds__(THREADS) states(const float* k, const float* w, const float* u, const float* g,
                                                  float* h, float* v_new, int T, int H, int V) {
  extern __shared__ __align__(128) float smem[];
  constexpr int LK = K + 4, LV = BV + 4;
  float* hs = smem;
  float* ws = hs + K * LV;
  float* ks = ws + @buffers@ * 64 * LK;
  float* vs = ks + @buffers@ * 64 * LK;
  __shared__ float gs[64];
  const int v0 = blockIdx.x * BV, b = blockIdx.y / H, n = blockIdx.y % H, N = T / 64;
  for (int i = threadIdx.x; i < K * BV; i += THREADS) hs[i / BV * LV + i % BV] = 0.f;
  @before@
  for (int c = 0; c < N; c++) {
    const size_t row = ((size_t)b * T + c * 64) * H + n;
    @arrival@
    if (threadIdx.x < 64) gs[threadIdx.x] = g[row + threadIdx.x * H];
    __syncthreads();
    @ahead@
    float* out = h + (((size_t)b * N + c) * H + n) * K * V + v0;
    for (int i = threadIdx.x; i < K * BV; i += THREADS) out[(size_t)(i / BV) * V + i % BV] = hs[i / BV * LV + i % BV];
    product<64, BV, K, false, false>(ws@at_k@, LK, hs, LV, [&](int r, int e, float s) {
      const float x = vs[@at_v@r * LV + e] - s;
      v_new[(row + r * H) * V + v0 + e] = x;
      vs[@at_v@r * LV + e] = x * __expf(gs[63] - gs[r]);
    });
    __syncthreads();
    const float keep = __expf(gs[63]);
    product<K, BV, 64, true, false>(ks@at_k@, LK, vs@plus_v@, LV, [&](int r, int e, float s) {
      hs[r * LV + e] = hs[r * LV + e] * keep + s;
    });
    __syncthreads();
  }
}

template <int K>
void start(const float* k, const float* w, const float* u, const float* g, float* h, float* v_new, int B, int T, int H,
           int V) {
  const int bytes = (K * (BV + 4) + @buffers@ * (2 * 64 * (K + 4) + 64 * (BV + 4))) * sizeof(float);
  cudaFuncSetAttribute(states<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  states<K><<<dim3(V / BV, B * H), THREADS, bytes>>>(k, w, u, g, h, v_new, T, H, V);
}
"""
BY_K = """  if (K == 64) start<64>(k, w, u, g, h, v_new, B, T, H, V);
  else if (K == 128) start<128>(k, w, u, g, h, v_new, B, T, H, V);
  else return 1;"""
_FETCH_CHUNK = """fetch<64, K>(ws@to_k@, LK, w + @row@ * K, (size_t)H * K);
fetch<64, K>(ks@to_k@, LK, k + @row@ * K, (size_t)H * K);
fetch<64, BV>(vs@to_v@, LV, u + @row@ * V + v0, (size_t)H * V);"""

_FETCH_AHEAD = """if (c + 1 < N) {
  const int nk = 64 * LK - bk, nv = 64 * LV - bv;
  @fetch@
}"""


def cuda_tiles(engine: str, fetch: str, threads: int, bv: int, buffers: int = 1) -> Draft:
    """A block per tile of V with its state in shared memory; with two buffers a chunk is fetched ahead."""
    if buffers == 1:
        slots = {
            "before": "",
            "arrival": fill(_FETCH_CHUNK, row="row", to_k="", to_v="") + "\narrive();",
            "ahead": "",
            "at_k": "",
            "at_v": "",
            "plus_v": "",
        }
    else:
        slots = {
            "before": fill(_FETCH_CHUNK, row="((size_t)b * T * H + n)", to_k="", to_v=""),
            "arrival": "const int bk = (c % 2) * 64 * LK, bv = (c % 2) * 64 * LV;\narrive();",
            "ahead": fill(
                _FETCH_AHEAD,
                fetch=fill(_FETCH_CHUNK, row="(row + (size_t)64 * H)", to_k=" + nk", to_v=" + nv"),
            ),
            "at_k": " + bk",
            "at_v": "bv + ",
            "plus_v": " + bv",
        }
    kernel = fill(CU_TILES, threads=threads, bv=bv, parts=tile_parts(engine, fetch), buffers=buffers, **slots)
    choices = {
        "family": "cuda_tiles",
        "engine": engine,
        "fetch": fetch,
        "threads": threads,
        "bv": bv,
        "buffers": buffers,
    }
    return Draft(choices, STATES.module(kernel, BY_K), "cuda")


CU_COLUMNS = """
#define SPLIT @split@
#define COLUMNS @columns@
#define THREADS (SPLIT * COLUMNS)
@fetch@
// SPLIT neighbouring threads keep one column of the state in registers, K / SPLIT rows each.
template <int K>
__global__ void __launch_bounds__(THREADS) states(const float* k, const float* w, const float* u, const float* g,
                                                  float* h, float* v_new, int T, int H, int V) {
  constexpr int R = K / SPLIT;
  extern __shared__ __align__(128) float smem[];
  float* ws = smem;
  float* ks = ws + 64 * K;
  __shared__ float gs[64];
  const int part = threadIdx.x % SPLIT, e = blockIdx.x * COLUMNS + threadIdx.x / SPLIT;
  const int b = blockIdx.y / H, n = blockIdx.y % H, N = T / 64;
  float s[R];
#pragma unroll
  for (int i = 0; i < R; i++) s[i] = 0.f;
  for (int c = 0; c < N; c++) {
    const size_t row = ((size_t)b * T + c * 64) * H + n;
    fetch<64, K>(ws, K, w + row * K, (size_t)H * K);
    fetch<64, K>(ks, K, k + row * K, (size_t)H * K);
    arrive();
    for (int i = threadIdx.x; i < 64; i += THREADS) gs[i] = g[row + i * H];
    float* out = h + (((size_t)b * N + c) * H + n) * K * V + e;
    float add[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
      out[(size_t)(@index@) * V] = s[i];
      add[i] = 0.f;
    }
    __syncthreads();
#pragma unroll @unroll@
    for (int j = 0; j < 64; j++) {
      const size_t at = (row + j * H) * V + e;
      float x = 0.f;
#pragma unroll
      for (int i = 0; i < R; i++) x += ws[j * K + @index@] * s[i];
#pragma unroll
      for (int d = SPLIT / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
      x = u[at] - x;
      if (part == 0) v_new[at] = x;
      x *= __expf(gs[63] - gs[j]);
#pragma unroll
      for (int i = 0; i < R; i++) add[i] += ks[j * K + @index@] * x;
    }
    const float keep = __expf(gs[63]);
#pragma unroll
    for (int i = 0; i < R; i++) s[i] = s[i] * keep + add[i];
    __syncthreads();
  }
}

template <int K>
void start(const float* k, const float* w, const float* u, const float* g, float* h, float* v_new, int B, int T, int H,
           int V) {
  const int bytes = 2 * 64 * K * sizeof(float);
  cudaFuncSetAttribute(states<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  states<K><<<dim3(V / COLUMNS, B * H), THREADS, bytes>>>(k, w, u, g, h, v_new, T, H, V);
}
"""


def cuda_columns(split: int, columns: int, fetch: str, unroll: int = 1, rows: str = "cyclic") -> Draft:
    """Columns of the state in registers, position by position."""
    choices = {
        "family": "cuda_columns",
        "split": split,
        "columns": columns,
        "fetch": fetch,
        "unroll": unroll,
        "rows": rows,
    }
    index = {"cyclic": "i * SPLIT + part", "blocked": "part * R + i"}[rows]
    code = fill(
        CU_COLUMNS,
        split=split,
        columns=columns,
        fetch=FETCHES[fetch].strip("\n"),
        unroll=unroll,
        index=index,
    )
    return Draft(choices, STATES.module(code, BY_K), "cuda")


CU_LAUNCHES = """
#define THREADS @threads@
// Two launches per chunk, everything straight from global memory.
__global__ void values(const float* w, const float* u, const float* h, float* v_new, int chunk, int T, int H, int K,
                       int V) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= 64 * V) return;
  const int e = i % V, b = blockIdx.y / H, n = blockIdx.y % H;
  const size_t row = ((size_t)b * T + chunk * 64 + i / V) * H + n;
  const float* state = h + (((size_t)b * (T / 64) + chunk) * H + n) * K * V;
  float s = 0.f;
  for (int d = 0; d < K; d++) s += w[row * K + d] * state[d * V + e];
  v_new[row * V + e] = u[row * V + e] - s;
}

__global__ void advance(const float* k, const float* g, const float* v_new, float* h, int chunk, int T, int H, int K,
                        int V) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= K * V) return;
  const int d = i / V, e = i % V, b = blockIdx.y / H, n = blockIdx.y % H;
  const size_t row = ((size_t)b * T + chunk * 64) * H + n;
  float* state = h + (((size_t)b * (T / 64) + chunk) * H + n) * K * V;
  const float last = g[row + 63 * H];
  float s = state[i] * @exp@(last);
@unroll@
  for (int j = 0; j < 64; j++) {
    const size_t at = row + (size_t)j * H;
    s += k[at * K + d] * v_new[at * V + e] * @exp@(last - g[at]);
  }
  state[(size_t)H * K * V + i] = s;
}

__global__ void clear(float* h, int T, int H, int size) {
  const int b = blockIdx.y / H, n = blockIdx.y % H;
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < size) h[((size_t)b * (T / 64) * H + n) * size + i] = 0.f;
}
"""
LAUNCHES = """  const dim3 state((K * V + THREADS - 1) / THREADS, B * H), rows((64 * V + THREADS - 1) / THREADS, B * H);
  clear<<<state, THREADS>>>(h, T, H, K * V);
  for (int chunk = 0; chunk < T / 64; chunk++) {
    values<<<rows, THREADS>>>(w, u, h, v_new, chunk, T, H, K, V);
    if (chunk + 1 < T / 64) advance<<<state, THREADS>>>(k, g, v_new, h, chunk, T, H, K, V);
  }"""


def cuda_launches(threads: int, exp: str = "expf", unroll: int = 0) -> Draft:
    """Two launches per chunk, a thread per element."""
    choices = {"family": "cuda_launches", "threads": threads, "exp": exp, "unroll": unroll}
    pragma = f"#pragma unroll {unroll}" if unroll else ""
    return Draft(
        choices, STATES.module(fill(CU_LAUNCHES, threads=threads, exp=exp, unroll=pragma), LAUNCHES), "cuda"
    )
