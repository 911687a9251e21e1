"""CUDA C++ families of the recorded task ``gdn_recompute_w_u``."""

from __future__ import annotations

from benchmarks.generators.pool import Draft
from benchmarks.generators.tasks.cuda_text import FETCHES, CudaFunction, tile_parts
from benchmarks.generators.tasks.gdn_recompute_w_u_torch import ARGUMENTS
from benchmarks.generators.text import fill

PRODUCTS = CudaFunction(
    name="gdn_wu",
    parameters=(
        "const float* k, const float* v, const float* beta, const float* A, const float* g, float* w, float* u,",
        "int B, int T, int H, int K, int V",
    ),
    arguments=ARGUMENTS,
    body="""
B, T, H, K = k.shape
V = v.shape[-1]
w, u = torch.empty_like(k), torch.empty_like(v)
""",
    pointers=f"{ARGUMENTS}, w, u",
    scalars="B, T, H, K, V",
    result="w, u",
)

CU_ELEMENT = """
// One thread per element of the outputs; everything straight from global memory.
__global__ void one_thread_per_element(const float* k, const float* v, const float* beta, const float* A,
                                       const float* g, float* w, float* u, int T, int H, int K, int V) {
  const int e = blockIdx.x * blockDim.x + threadIdx.x;
  const int t = blockIdx.y, b = blockIdx.z / H, n = blockIdx.z % H;
  if (e >= K + V) return;
  const size_t row = ((size_t)b * T + t) * H + n;
  float s = 0.f;
  for (int j = 0; j @bound@; j++) {
    const size_t other = ((size_t)b * T + t / 64 * 64 + j) * H + n;
    float x = A[row * 64 + j] * beta[other];
    if (e < K) x *= @exp@(g[other]) * k[other * K + e];
    else x *= v[other * V + e - K];
    s += x;
  }
  if (e < K) w[row * K + e] = s;
  else u[row * V + e - K] = s;
}
"""


def cuda_element(threads: int, bound: str = "dense", exp: str = "expf") -> Draft:
    """A thread per element of the outputs, along the whole row of A or up to the diagonal."""
    bounds = {"dense": "< 64", "triangular": "<= t % 64"}
    launch = (
        f"  one_thread_per_element<<<dim3((K + V + {threads - 1}) / {threads}, T, B * H), {threads}>>>(\n"
        "      k, v, beta, A, g, w, u, T, H, K, V);"
    )
    choices = {"family": "cuda_element", "threads": threads, "bound": bound, "exp": exp}
    return Draft(choices, PRODUCTS.module(fill(CU_ELEMENT, bound=bounds[bound], exp=exp), launch), "cuda")


CU_TILES = """
#define THREADS @threads@
#define BD @bd@
@parts@
// One block per chunk, head and tile of either output.
__global__ void __launch_bounds__(THREADS) chunk_tile(const float* k, const float* v, const float* beta,
                                                      const float* A, const float* g, float* w, float* u,
                                                      int T, int H, int K, int V) {
  constexpr int LA = 68, LD = BD + 4;
  extern __shared__ __align__(128) float smem[];
  float* as = smem;
  float* xs = as + 64 * LA;
  __shared__ float fs[64];
  const bool keys = blockIdx.x < K / BD;
  const int D = keys ? K : V, d0 = (keys ? blockIdx.x : blockIdx.x - K / BD) * BD;
  const int b = blockIdx.z / H, n = blockIdx.z % H;
  const size_t row = ((size_t)b * T + blockIdx.y * 64) * H + n;
  fetch<64, 64>(as, LA, A + row * 64, (size_t)H * 64);
  fetch<64, BD>(xs, LD, (keys ? k : v) + row * D + d0, (size_t)H * D);
  for (int i = threadIdx.x; i < 64; i += THREADS) {
    const float f = beta[row + i * H];
    fs[i] = keys ? f * __expf(g[row + i * H]) : f;
  }
  arrive();
  __syncthreads();
  @scale@
  __syncthreads();
  float* out = (keys ? w : u) + row * D + d0;
  product<64, BD, 64, false, false>(as, LA, xs, LD, [&](int r, int c, float s) { out[(size_t)r * H * D + c] = s; });
}
"""
TILE_SCALES = {
    "rows": "for (int i = threadIdx.x; i < 64 * BD; i += THREADS) xs[i / BD * LD + i % BD] *= fs[i / BD];",
    "columns": "for (int i = threadIdx.x; i < 64 * 64; i += THREADS) as[i / 64 * LA + i % 64] *= fs[i % 64];",
}
TILE_LAUNCH = """  const int bytes = 64 * (68 + BD + 4) * sizeof(float);
  cudaFuncSetAttribute(chunk_tile, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  chunk_tile<<<dim3((K + V) / BD, T / 64, B * H), THREADS, bytes>>>(k, v, beta, A, g, w, u, T, H, K, V);"""


def cuda_tiles(engine: str, fetch: str, threads: int, bd: int, scale: str = "rows") -> Draft:
    """A block per chunk, head and tile of either output."""
    kernel = fill(CU_TILES, threads=threads, bd=bd, parts=tile_parts(engine, fetch), scale=TILE_SCALES[scale])
    choices = {
        "family": "cuda_tiles",
        "engine": engine,
        "fetch": fetch,
        "threads": threads,
        "bd": bd,
        "scale": scale,
    }
    return Draft(choices, PRODUCTS.module(kernel, TILE_LAUNCH), "cuda")


CU_WHOLE = """
#define THREADS @threads@
@parts@
// One block per chunk and head: A stays in shared memory for both outputs.
template <int D>
__device__ void one_output(const float* as, float* xs, const float* x, float* y, const float* fs, size_t row, int H) {
  constexpr int LD = D + 4;
  fetch<64, D>(xs, LD, x + row * D, (size_t)H * D);
  arrive();
  __syncthreads();
  for (int i = threadIdx.x; i < 64 * D; i += THREADS) xs[i / D * LD + i % D] *= fs[i / D];
  __syncthreads();
  product<64, D, 64, false, false>(as, 68, xs, LD, [&](int r, int c, float s) { y[(row + r * H) * D + c] = s; });
  __syncthreads();
}

template <int K, int V>
__global__ void __launch_bounds__(THREADS) whole_chunk(const float* k, const float* v, const float* beta,
                                                       const float* A, const float* g, float* w, float* u, int T,
                                                       int H) {
  extern __shared__ __align__(128) float smem[];
  float* as = smem;
  float* xs = as + 64 * 68;
  __shared__ float fs[64], es[64];
  const size_t row = ((size_t)(blockIdx.y / H) * T + blockIdx.x * 64) * H + blockIdx.y % H;
  fetch<64, 64>(as, 68, A + row * 64, (size_t)H * 64);
  for (int i = threadIdx.x; i < 64; i += THREADS) {
    fs[i] = beta[row + i * H];
    es[i] = fs[i] * __expf(g[row + i * H]);
  }
  one_output<V>(as, xs, v, u, fs, row, H);
  one_output<K>(as, xs, k, w, es, row, H);
}

template <int K, int V>
void start(const float* k, const float* v, const float* beta, const float* A, const float* g, float* w, float* u,
           int B, int T, int H) {
  const int bytes = 64 * (68 + (K > V ? K : V) + 4) * sizeof(float);
  cudaFuncSetAttribute(whole_chunk<K, V>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  whole_chunk<K, V><<<dim3(T / 64, B * H), THREADS, bytes>>>(k, v, beta, A, g, w, u, T, H);
}
"""
BY_SIZES = """  if (K == 64 && V == 64) start<64, 64>(k, v, beta, A, g, w, u, B, T, H);
  else if (K == 128 && V == 128) start<128, 128>(k, v, beta, A, g, w, u, B, T, H);
  else if (K == 64 && V == 128) start<64, 128>(k, v, beta, A, g, w, u, B, T, H);
  else if (K == 128 && V == 64) start<128, 64>(k, v, beta, A, g, w, u, B, T, H);
  else return 1;"""


def cuda_whole(engine: str, fetch: str, threads: int) -> Draft:
    """A block per chunk and head, for both outputs one after the other."""
    kernel = fill(CU_WHOLE, threads=threads, parts=tile_parts(engine, fetch))
    choices = {"family": "cuda_whole", "engine": engine, "fetch": fetch, "threads": threads}
    return Draft(choices, PRODUCTS.module(kernel, BY_SIZES), "cuda")


CU_COLUMNS = """
#define THREADS @threads@
@fetch@
// A thread keeps the 64 scaled values of one column in registers; the rows of A are read by all threads at once.
__global__ void __launch_bounds__(THREADS) columns(const float* k, const float* v, const float* beta, const float* A,
                                                   const float* g, float* w, float* u, int T, int H, int K, int V) {
  __shared__ __align__(16) float as[64 * 64];
  __shared__ float bs[64], es[64];
  const int e = blockIdx.x * THREADS + threadIdx.x, b = blockIdx.z / H, n = blockIdx.z % H;
  const size_t row = ((size_t)b * T + blockIdx.y * 64) * H + n;
  fetch<64, 64>(as, 64, A + row * 64, (size_t)H * 64);
  for (int i = threadIdx.x; i < 64; i += THREADS) {
    bs[i] = beta[row + i * H];
    es[i] = expf(g[row + i * H]);
  }
  arrive();
  __syncthreads();
  if (e >= K + V) return;
  const bool keys = e < K;
  const int D = keys ? K : V;
  const float* in = keys ? k + e : v + e - K;
  float* out = keys ? w + e : u + e - K;
  float x[64];
#pragma unroll
  for (int j = 0; j < 64; j++) {
    x[j] = in[(row + j * H) * D] * bs[j];
    if (keys) x[j] *= es[j];
  }
@rows@
}
"""
COLUMN_ROWS = {
    "dense": """  for (int r = 0; r < 64; r++) {
    float s = 0.f;
#pragma unroll
    for (int j = 0; j < 64; j++) s += as[r * 64 + j] * x[j];
    out[(row + r * H) * D] = s;
  }""",
    "quads": """  for (int r = 0; r < 64; r++) {
    float s0 = 0.f, s1 = 0.f;
#pragma unroll
    for (int j = 0; j < 64; j += 4) {
      const float4 a = *reinterpret_cast<const float4*>(as + r * 64 + j);
      s0 = fmaf(a.x, x[j], fmaf(a.y, x[j + 1], s0));
      s1 = fmaf(a.z, x[j + 2], fmaf(a.w, x[j + 3], s1));
    }
    out[(row + r * H) * D] = s0 + s1;
  }""",
    "triangular": """  // fully unrolled, so that nothing above the diagonal is multiplied
#pragma unroll
  for (int r = 0; r < 64; r++) {
    float s = 0.f;
#pragma unroll
    for (int j = 0; j <= r; j++) s += as[r * 64 + j] * x[j];
    out[(row + r * H) * D] = s;
  }""",
    "two_rows": """  for (int r = 0; r < 64; r += 2) {
    float s = 0.f, t = 0.f;
#pragma unroll
    for (int j = 0; j < 64; j += 2) {
      const float2 a = *(const float2*)(as + r * 64 + j), c = *(const float2*)(as + r * 64 + 64 + j);
      s += a.x * x[j] + a.y * x[j + 1];
      t += c.x * x[j] + c.y * x[j + 1];
    }
    out[(row + r * H) * D] = s;
    out[(row + (r + 1) * H) * D] = t;
  }""",
}


def cuda_columns(rows: str, threads: int, fetch: str) -> Draft:
    """A thread per column, with the column in registers."""
    choices = {"family": "cuda_columns", "rows": rows, "threads": threads, "fetch": fetch}
    kernel = fill(CU_COLUMNS, threads=threads, fetch=FETCHES[fetch].strip("\n"), rows=COLUMN_ROWS[rows])
    launch = (
        "  columns<<<dim3((K + V + THREADS - 1) / THREADS, T / 64, B * H), THREADS>>>(\n"
        "      k, v, beta, A, g, w, u, T, H, K, V);"
    )
    return Draft(choices, PRODUCTS.module(kernel, launch), "cuda")
