"""The CUDA C++ stages of ``trimul``: kernels that NVRTC builds, without any header."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.generators.tasks.trimul_pipeline import TORCH_TYPES, Stage
from benchmarks.generators.text import fill, joined

KERNEL = """
@constant@ = r'''
@text@
'''
@name@ = @compile@(@constant@, "@name@")
"""
LOADERS = {
    "torch": ("torch.cuda._compile_kernel", ""),
    "cupy": (
        "compiled",
        """
def compiled(source, name):
    kernel = cupy.RawKernel(source, name, options=("-std=c++17",))

    def launch(grid, block, args):
        kernel(grid, block, tuple(a.data_ptr() if torch.is_tensor(a) else cupy.int32(a) for a in args))

    return launch
""",
    ),
}


def built(name: str, text: str, loader: str) -> tuple[str, ...]:
    """The lines that build the kernel `name`, after those of the loader."""
    compile_with, definition = LOADERS[loader]
    kernel = fill(KERNEL, constant=name.upper(), text=text.strip("\n"), name=name, compile=compile_with)
    return (definition, kernel) if definition else (kernel,)


def imports(loader: str) -> tuple[str, ...]:
    """What the loader needs imported."""
    return ("import cupy",) if loader == "cupy" else ()


# How a number of each type is read and written: (type, helpers, read, write).
BF16 = """__device__ __forceinline__ unsigned short to_bf16(float v) {
  unsigned u = __float_as_uint(v);
  return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
"""
FP16 = """__device__ __forceinline__ unsigned short to_half(float v) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
  return h;
}
"""
FROM_FP16 = """__device__ __forceinline__ float from_half(unsigned short h) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
  return v;
}
"""
TYPES = {
    "float32": ("float", "", "{0}", "", "{0}"),
    "bfloat16": ("unsigned short", "", "__uint_as_float((unsigned){0} << 16)", BF16, "to_bf16({0})"),
    "float16": ("unsigned short", FROM_FP16, "from_half({0})", FP16, "to_half({0})"),
}
SIGMOID = {
    "expf": "__device__ __forceinline__ float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }\n",
    "fast": (
        "__device__ __forceinline__ float sigmoid(float v) { return __fdividef(1.0f, 1.0f + __expf(-v)); }\n"
    ),
}

NORMS = {
    "warp": """
@helpers@
// a warp per row; the row stays in registers
extern "C" __global__ void layer_norm(const float* x, const float* w, const float* b, @type@* y, int C) {
  const long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32, n = C / 128;
  const float4* p = (const float4*)(x + row * C);
  float4 v[4];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = i < n ? p[i * 32 + lane] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    sum += v[i].x + v[i].y + v[i].z + v[i].w;
  }
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  const float mean = sum / C;
  float var = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= n) break;
    v[i].x -= mean; v[i].y -= mean; v[i].z -= mean; v[i].w -= mean;
    var += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
  }
  for (int o = 16; o > 0; o >>= 1) var += __shfl_xor_sync(0xffffffffu, var, o);
  const float rstd = rsqrtf(var / C + 1e-5f);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= n) break;
    const int c = (i * 32 + lane) * 4;
    const float4 g = *(const float4*)(w + c), s = *(const float4*)(b + c);
    @type@* q = y + row * C + c;
    q[0] = @w0@;
    q[1] = @w1@;
    q[2] = @w2@;
    q[3] = @w3@;
  }
}
""",
    "block": """
@helpers@
// a block per row, sums as trees in shared memory
extern "C" __global__ void layer_norm(const float* x, const float* w, const float* b, @type@* y, int C) {
  __shared__ float part[128];
  const float* p = x + (long long)blockIdx.x * C;
  float sum = 0.0f;
  for (int c = threadIdx.x; c < C; c += 128) sum += p[c];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int s = 64; s > 0; s /= 2) {
    if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
    __syncthreads();
  }
  const float mean = part[0] / C;
  __syncthreads();
  sum = 0.0f;
  for (int c = threadIdx.x; c < C; c += 128) sum += (p[c] - mean) * (p[c] - mean);
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int s = 64; s > 0; s /= 2) {
    if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
    __syncthreads();
  }
  const float rstd = 1.0f / sqrtf(part[0] / C + 1e-5f);
  for (int c = threadIdx.x; c < C; c += 128) {
    float v = (p[c] - mean) * rstd * w[c] + b[c];
    y[(long long)blockIdx.x * C + c] = @wv@;
  }
}
""",
}


def norm_lines(how: str, kind: str, loader: str) -> tuple[tuple[str, ...], str]:
    """The kernel of the first norm, and the lines that make ``xn`` with it."""
    type_name, _, _, helper, write = TYPES[kind]
    if how == "torch":
        cast = "" if kind == "float32" else f".to(torch.{kind})"
        return (), f"xn = torch.nn.functional.layer_norm(x, (C,), norm_w, norm_b, 1e-5){cast}"
    values = {f"w{i}": write.format(f"v[i].{a} * rstd * g.{a} + s.{a}") for i, a in enumerate("xyzw")}
    text = fill(NORMS[how], helpers=helper.strip("\n"), type=type_name, wv=write.format("v"), **values)
    grid = "M // 8, 1, 1), (256" if how == "warp" else "M, 1, 1), (128"
    lines = (
        f"xn = torch.empty(x.shape, dtype=torch.{kind}, device=x.device)\n"
        f"layer_norm(({grid}, 1, 1), [x, norm_w, norm_b, xn, C])"
    )
    return built("layer_norm", text, loader), lines


SPLITS = {
    "tile": """
@helpers@
// 32 rows x 32 channels through shared memory, so that reads and writes are both contiguous
extern "C" __global__ void split_gates(const @from@* p, const float* mask, @to@* l, @to@* r, @to@* gate,
                                       int NN, int H) {
  __shared__ float tl[32][33], tr[32][33];
  const int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
  const int row0 = blockIdx.x * 32, h = blockIdx.y * 32 + tx;
  for (int i = ty; i < 32; i += @strips@) {
    const int row = row0 + i;
    const @from@* q = p + (long long)row * 5 * H + h;
    const float keep = mask[row];
    tl[i][tx] = @v0@ * sigmoid(@v2@) * keep;
    tr[i][tx] = @v1@ * sigmoid(@v3@) * keep;
    const float o = sigmoid(@v4@);
    gate[(long long)row * H + h] = @wo@;
  }
  __syncthreads();
  const int b = row0 / NN, place = row0 % NN + tx;
  for (int i = ty; i < 32; i += @strips@) {
    const long long at = (long long)(b * H + blockIdx.y * 32 + i) * NN + place;
    l[at] = @wl@;
    r[at] = @wr@;
  }
}
""",
    "naive": """
@helpers@
// a thread per row and channel
extern "C" __global__ void split_gates(const @from@* p, const float* mask, @to@* l, @to@* r, @to@* gate,
                                       int NN, int H) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const int row = (int)(i / H), h = (int)(i % H);
  const @from@* q = p + (long long)row * 5 * H + h;
  const float keep = mask[row];
  const long long at = (long long)(row / NN * H + h) * NN + row % NN;
  const float a = @v0@ * sigmoid(@v2@) * keep;
  const float c = @v1@ * sigmoid(@v3@) * keep;
  const float o = sigmoid(@v4@);
  l[at] = @wa@;
  r[at] = @wc@;
  gate[i] = @wo@;
}
""",
    "columns": """
@helpers@
// a thread per row that walks over the channels: the writes are contiguous, the reads are not
extern "C" __global__ void split_gates(const @from@* p, const float* mask, @to@* l, @to@* r, @to@* gate,
                                       int NN, int H) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  const float keep = mask[row];
  for (int h = blockIdx.y * 16; h < blockIdx.y * 16 + 16; ++h) {
    const @from@* q = p + (long long)row * 5 * H + h;
    const long long at = (long long)(row / NN * H + h) * NN + row % NN;
    const float a = @v0@ * sigmoid(@v2@) * keep;
    const float c = @v1@ * sigmoid(@v3@) * keep;
    const float o = sigmoid(@v4@);
    l[at] = @wa@;
    r[at] = @wc@;
    gate[(long long)row * H + h] = @wo@;
  }
}
""",
}
SPLIT_LAUNCH = {
    "tile": "split_gates((M // 32, H // 32, 1), ({strips} * 32, 1, 1), ",
    "naive": "split_gates((M * H // 256, 1, 1), (256, 1, 1), ",
    "columns": "split_gates((M // 128, H // 16, 1), (128, 1, 1), ",
}


def split_lines(
    how: str, source: str, store: str, loader: str, sigmoid: str = "expf", strips: int = 8
) -> tuple[tuple[str, ...], str]:
    """The kernel that gates the five projections in ``p``, and the lines that launch it."""
    from_type, reader, read, _, _ = TYPES[source]
    to_type, _, _, writer, write = TYPES[store]
    text = fill(
        SPLITS[how],
        helpers=joined(reader.strip("\n"), writer.strip("\n"), SIGMOID[sigmoid].strip("\n")),
        to=to_type,
        strips=strips,
        wo=write.format("o"),
        wa=write.format("a"),
        wc=write.format("c"),
        wl=write.format("tl[tx][i]"),
        wr=write.format("tr[tx][i]"),
        **{"from": from_type},
        **{f"v{i}": read.format(f"q[{i} * H]" if i else "q[0]") for i in range(5)},
    )
    lines = (
        f"left = torch.empty((B, H, N, N), dtype=torch.{store}, device=x.device)\n"
        "right = torch.empty_like(left)\n"
        f"gate = torch.empty((M, H), dtype=torch.{store}, device=x.device)\n"
        + SPLIT_LAUNCH[how].format(strips=strips)
        + "[p, mask, left, right, gate, N * N, H])"
    )
    return built("split_gates", text, loader), lines


# --------------------------------------------------------------------------------- products, each row times each row

TILE = """
// D[z] = A[z] B[z]^T with tiles of @ts@ x @ts@, a thread per element
extern "C" __global__ void @name@(const float* A, const float* B, float* D, int m, int n, int k) {
  __shared__ float sa[@ts@][@ts@ + 1], sb[@ts@][@ts@ + 1];
  A += (long long)blockIdx.z * m * k;
  B += (long long)blockIdx.z * n * k;
  D += (long long)blockIdx.z * m * n;
  const int tx = threadIdx.x % @ts@, ty = threadIdx.x / @ts@;
  const long long row = (long long)blockIdx.x * @ts@ + ty;
  const int col0 = blockIdx.y * @ts@;
  float acc = 0.0f;
  for (int k0 = 0; k0 < k; k0 += @ts@) {
    sa[ty][tx] = A[row * k + k0 + tx];
    sb[ty][tx] = B[(long long)(col0 + ty) * k + k0 + tx];
    __syncthreads();
    @unroll@
    for (int e = 0; e < @ts@; ++e) acc += sa[ty][e] * sb[tx][e];
    __syncthreads();
  }
  D[row * n + col0 + tx] = acc;
}
"""

REGISTERS = """
#define BM @bm@
#define BN @bn@
#define BK @bk@
#define TM @tm@
#define TN @tn@
#define THREADS (BM / TM * (BN / TN))

// D[z] = A[z] B[z]^T; each thread keeps TM x TN sums in registers
extern "C" __global__ void __launch_bounds__(THREADS) @name@(const float* A, const float* B, float* D,
                                                             int m, int n, int k) {
  __shared__ __align__(16) float sa[BK][BM + 4], sb[BK][BN + 4];
  const int tx = threadIdx.x % (BN / TN), ty = threadIdx.x / (BN / TN);
  A += (long long)blockIdx.z * m * k + (long long)blockIdx.x * BM * k;
  B += (long long)blockIdx.z * n * k + (long long)blockIdx.y * BN * k;
  D += (long long)blockIdx.z * m * n + (long long)blockIdx.x * BM * n + blockIdx.y * BN;
  float acc[TM][TN];
  for (int i = 0; i < TM; ++i)
    for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;
  for (int k0 = 0; k0 < k; k0 += BK) {
    for (int e = threadIdx.x; e < BM * BK / 4; e += THREADS) {
      const int r = e / (BK / 4), c = e % (BK / 4) * 4;
      const float4 v = *(const float4*)(A + (long long)r * k + k0 + c);
      sa[c][r] = v.x; sa[c + 1][r] = v.y; sa[c + 2][r] = v.z; sa[c + 3][r] = v.w;
    }
    for (int e = threadIdx.x; e < BN * BK / 4; e += THREADS) {
      const int r = e / (BK / 4), c = e % (BK / 4) * 4;
      const float4 v = *(const float4*)(B + (long long)r * k + k0 + c);
      sb[c][r] = v.x; sb[c + 1][r] = v.y; sb[c + 2][r] = v.z; sb[c + 3][r] = v.w;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < BK; ++e) {
      float a[TM], b[TN];
#pragma unroll
      for (int i = 0; i < TM; i += 4) *(float4*)(a + i) = *(const float4*)&sa[e][@row@];
#pragma unroll
      for (int j = 0; j < TN; j += 4) *(float4*)(b + j) = *(const float4*)&sb[e][@col@];
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; j += 4)
      *(float4*)(D + (long long)(@row_of_i@) * n + @col@) = *(float4*)&acc[i][j];
}
"""

MMA_HEADS = {
    "bf16": (
        "unsigned short",
        """__device__ __forceinline__ void mma16816(float* d, const unsigned* a, const unsigned* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}""",
    ),
    "fp16": (
        "unsigned short",
        """__device__ __forceinline__ void mma16816h(float* d, const unsigned* a, const unsigned* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}""",
    ),
    "tf32": (
        "float",
        """__device__ __forceinline__ void mma1688(float* d, const unsigned* a, const unsigned* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}""",
    ),
}
FRAGMENTS = {
    "16": """
#pragma unroll
    for (int i = 0; i < MI; ++i) {
      const elem* q = ta + (wm + i * 16 + g) * LD + e + 2 * t;
      a[i][0] = *(const unsigned*)q;
      a[i][1] = *(const unsigned*)(q + 8 * LD);
      a[i][2] = *(const unsigned*)(q + 8);
      a[i][3] = *(const unsigned*)(q + 8 * LD + 8);
    }
#pragma unroll
    for (int j = 0; j < NI; ++j) {
      const elem* q = tb + (wn + j * 8 + g) * LD + e + 2 * t;
      b[j][0] = *(const unsigned*)q;
      b[j][1] = *(const unsigned*)(q + 8);
    }""",
    "tf32": """
#pragma unroll
    for (int i = 0; i < MI; ++i) {
      const elem* q = ta + (wm + i * 16 + g) * LD + e + t;
      a[i][0] = @round@(q[0]);
      a[i][1] = @round@(q[8 * LD]);
      a[i][2] = @round@(q[4]);
      a[i][3] = @round@(q[8 * LD + 4]);
    }
#pragma unroll
    for (int j = 0; j < NI; ++j) {
      const elem* q = tb + (wn + j * 8 + g) * LD + e + t;
      b[j][0] = @round@(q[0]);
      b[j][1] = @round@(q[4]);
    }""",
}
TO_TF32 = """__device__ __forceinline__ unsigned to_tf32(float v) {
  unsigned u;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(v));
  return u;
}
"""
CP_ASYNC = """__device__ __forceinline__ void cp_async16(void* to, const void* from) {
  unsigned at = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from));
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
template <int N>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }
"""
MMA_LOOPS = {
    "plain": """
for (int k0 = 0; k0 < k; k0 += BK) {
  fetch(sa[0], A + k0, BM, k);
  fetch(sb[0], B + k0, BN, k);
  __syncthreads();
  multiply(sa[0], sb[0]);
  __syncthreads();
}""",
    "async": """
fetch(sa[0], A, BM, k);
fetch(sb[0], B, BN, k);
cp_async_commit();
for (int k0 = 0, s = 0; k0 < k; k0 += BK, s ^= 1) {
  if (k0 + BK < k) {
    fetch(sa[s ^ 1], A + k0 + BK, BM, k);
    fetch(sb[s ^ 1], B + k0 + BK, BN, k);
  }
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  multiply(sa[s], sb[s]);
  __syncthreads();
}""",
}
MMA = """
#define BM @bm@
#define BN @bn@
#define BK @bk@
#define LD (BK + @pad@)
#define MI (@wm@ / 16)
#define NI (@wn@ / 8)
#define THREADS (BM / @wm@ * (BN / @wn@) * 32)
typedef @elem@ elem;

@helpers@
__device__ __forceinline__ void fetch(elem* to, const elem* from, int rows, int k) {
  const int per_row = BK * sizeof(elem) / 16, wide = 16 / sizeof(elem);
  for (int e = threadIdx.x; e < rows * per_row; e += THREADS) {
    const int r = e / per_row, c = e % per_row * wide;
    @copy@
  }
}

// D[z] = A[z] B[z]^T on tensor cores
extern "C" __global__ void __launch_bounds__(THREADS) @name@(const elem* A, const elem* B, @outputs@,
                                                             int m, int n, int k) {
  __shared__ __align__(16) elem sa[@buffers@][BM * LD], sb[@buffers@][BN * LD];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int wm = warp / (BN / @wn@) * @wm@, wn = warp % (BN / @wn@) * @wn@;
  const int row0 = blockIdx.x * BM, col0 = blockIdx.y * BN;
  A += (long long)blockIdx.z * m * k + (long long)row0 * k;
  B += (long long)blockIdx.z * n * k + (long long)col0 * k;
  float acc[MI][NI][4];
  for (int i = 0; i < MI; ++i)
    for (int j = 0; j < NI; ++j)
      for (int e = 0; e < 4; ++e) acc[i][j][e] = 0.0f;
  auto multiply = [&](const elem* ta, const elem* tb) {
#pragma unroll
    for (int e = 0; e < BK; e += @step@) {
      unsigned a[MI][4], b[NI][2];
      @fragments@
#pragma unroll
      for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NI; ++j) @mma@(acc[i][j], a[i], b[j]);
    }
  };
  @loop@
  @epilogue@
}
"""
EPILOGUES = {
    "float32": """
D += (long long)blockIdx.z * m * n;
for (int i = 0; i < MI; ++i)
  for (int j = 0; j < NI; ++j) {
    float* q = D + (long long)(row0 + wm + i * 16 + g) * n + col0 + wn + j * 8 + 2 * t;
    *(float2*)q = make_float2(acc[i][j][0], acc[i][j][1]);
    *(float2*)(q + 8 * (long long)n) = make_float2(acc[i][j][2], acc[i][j][3]);
  }""",
    "16": """
D += (long long)blockIdx.z * m * n;
for (int i = 0; i < MI; ++i)
  for (int j = 0; j < NI; ++j) {
    unsigned short* q = D + (long long)(row0 + wm + i * 16 + g) * n + col0 + wn + j * 8 + 2 * t;
    *(ushort2*)q = make_ushort2(@d0@, @d1@);
    *(ushort2*)(q + 8 * (long long)n) = make_ushort2(@d2@, @d3@);
  }""",
    "gated": """
// columns come as 8 values and their 8 gates in turn; n is 4 H
const int H = n / 4;
for (int i = 0; i < MI; ++i)
  for (int half = 0; half < 2; ++half) {
    const int row = row0 + wm + i * 16 + g + half * 8;
    const float keep = mask[row];
    for (int j = 0; j < NI; j += 2) {
      const int pair = (col0 + wn + j * 8) / 2 + 2 * t;
      D_type* q = D + (long long)(pair / H) * m * H + ((long long)(row / NN) * H + pair % H) * NN + row % NN;
      for (int e = 0; e < 2; ++e) {
        const float v = acc[i][j][2 * half + e] * sigmoid(acc[i][j + 1][2 * half + e]) * keep;
        q[(long long)e * NN] = @wv@;
      }
    }
  }""",
}


def mma_text(
    name: str,
    precision: str,
    tile: tuple[int, int, int],
    warp: tuple[int, int],
    loads: str,
    out: str,
    rounding: bool = False,
) -> str:
    """A product on tensor cores that stores `out`: float32, bfloat16, float16, or ``gated:`` and one of these."""
    elem, head = MMA_HEADS[precision]
    gated, _, kind = out.rpartition(":")
    to_type, _, _, writer, write = TYPES[kind]
    narrow = kind != "float32"
    helpers = joined(
        head,
        CP_ASYNC.strip("\n") if loads == "async" else "",
        TO_TF32.strip("\n") if rounding else "",
        writer.strip("\n"),
        SIGMOID["fast"].strip("\n") if gated else "",
        f"typedef {to_type} D_type;" if gated else "",
    )
    target = "to + r * LD + c"
    source = "from + (long long)r * k + c"
    if loads == "async":
        copy = f"cp_async16({target}, {source});"
    else:
        copy = f"*(uint4*)({target}) = *(const uint4*)({source});"
    return fill(
        MMA,
        name=name,
        bm=tile[0],
        bn=tile[1],
        bk=tile[2],
        pad=4 if precision == "tf32" else 8,
        wm=warp[0],
        wn=warp[1],
        elem=elem,
        helpers=helpers,
        copy=copy,
        outputs=f"{to_type}* D" if not gated else "const float* mask, D_type* D, int NN",
        buffers=2 if loads == "async" else 1,
        step=8 if precision == "tf32" else 16,
        fragments=FRAGMENTS["tf32" if precision == "tf32" else "16"].strip("\n"),
        round="to_tf32" if rounding else "__float_as_uint",
        mma={"bf16": "mma16816", "fp16": "mma16816h", "tf32": "mma1688"}[precision],
        loop=MMA_LOOPS[loads].strip("\n"),
        epilogue=EPILOGUES[("gated" if gated else "16" if narrow else "float32")].strip("\n"),
        wv=write.format("v"),
        **{f"d{e}": write.format(f"acc[i][j][{e}]") for e in range(4)},
    )


def tile_text(name: str, size: int, unroll: bool) -> str:
    """A product with a thread per element."""
    return fill(TILE, name=name, ts=size, unroll="#pragma unroll" if unroll else "")


def register_text(name: str, tile: tuple[int, int, int], sums: tuple[int, int], spread: bool) -> str:
    """A product with several sums per thread; `spread` leaves a gap after each four of them."""
    row, col, row_of_i = "ty * TM + i", "tx * TN + j", "ty * TM + i"
    if spread:
        row = "ty * 4 + i / 4 * (BM / TM * 4)"
        col = "tx * 4 + j / 4 * (BN / TN * 4)"
        row_of_i = "ty * 4 + i % 4 + i / 4 * (BM / TM * 4)"
    return fill(
        REGISTERS,
        name=name,
        bm=tile[0],
        bn=tile[1],
        bk=tile[2],
        tm=sums[0],
        tn=sums[1],
        row=row,
        col=col,
        row_of_i=row_of_i,
    )


class Gemm(NamedTuple):
    """A product kernel as the stages want it: its name, text, tile, threads, precision and key."""

    name: str
    text: str
    rows: int
    columns: int
    threads: int
    precision: str
    key: str

    def built(self, loader: str) -> tuple[str, ...]:
        """See `built`."""
        return built(self.name, self.text, loader)

    def launch(self, batch: str, arguments: str, m: str, n: str, k: str) -> str:
        """The line of ``run`` that launches it."""
        grid = f"({m} // {self.rows}, {n} // {self.columns}, {batch})"
        return f"{self.name}({grid}, ({self.threads}, 1, 1), [{arguments}, {m}, {n}, {k}])"


def tile_gemm(name: str, size: int, unroll: bool = True) -> Gemm:
    """See `tile_text`."""
    key = f"tile_{size}" + ("" if unroll else "_rolled")
    return Gemm(name, tile_text(name, size, unroll), size, size, size * size, "float32", key)


def register_gemm(name: str, tile: tuple[int, int, int], sums: tuple[int, int], spread: bool = False) -> Gemm:
    """See `register_text`."""
    threads = tile[0] // sums[0] * (tile[1] // sums[1])
    key = "registers_" + "x".join(map(str, tile + sums)) + ("_spread" if spread else "")
    return Gemm(name, register_text(name, tile, sums, spread), tile[0], tile[1], threads, "float32", key)


def mma_gemm(
    name: str,
    precision: str,
    tile: tuple[int, int, int],
    warp: tuple[int, int],
    loads: str = "plain",
    out: str = "float32",
    rounding: bool = False,
) -> Gemm:
    """See `mma_text`."""
    threads = tile[0] // warp[0] * (tile[1] // warp[1]) * 32
    key = f"mma_{precision}_" + "x".join(map(str, tile + warp)) + f"_{loads}" + ("_rna" if rounding else "")
    text = mma_text(name, precision, tile, warp, loads, out, rounding)
    return Gemm(name, text, tile[0], tile[1], threads, precision, key)


# ----------------------------------------------------------------------------------------------------- the stages


def projection(
    norm: str,
    split: str,
    precision: str,
    store: str,
    *,
    gemm: Gemm | None = None,
    loader: str = "torch",
    sigmoid: str = "expf",
    strips: int = 8,
) -> Stage:
    """The norm, one product for all five projections (the library's, or `gemm`), the gates."""
    kind = TORCH_TYPES[precision]
    norm_kernels, norm_text = norm_lines(norm, kind, loader)
    cast = "" if kind == "float32" else f".to(torch.{kind})"
    lines = f"{norm_text}\nweights = torch.cat((w_l, w_r, w_lg, w_rg, w_og)){cast}"
    kernels = norm_kernels
    if gemm:
        kernels += gemm.built(loader)
        lines += "\np = torch.empty((M, 5 * H), dtype=torch.float32, device=x.device)\n"
        lines += gemm.launch("1", "xn, weights, p", "M", "5 * H", "C")
    else:
        lines += "\np = torch.matmul(xn.view(M, C), weights.t())"
    split_kernels, split_text = split_lines(
        split, "float32" if gemm else kind, store, loader, sigmoid, strips
    )
    return Stage(
        {
            "project": f"cuda_{split}",
            "project_gemm": gemm.key if gemm else "library",
            "project_precision": precision,
            "project_norm": norm,
            "project_sigmoid": sigmoid,
            "project_strips": strips if split == "tile" else None,
            "layout": "first",
            "store": store,
            "loader": loader,
        },
        f"{lines}\n{split_text}",
        kernels + split_kernels,
        "cuda",
        tf32=precision == "tf32" and gemm is None,
        imports=imports(loader),
    )


GATED_LINES = """
@norm@
values = torch.cat((w_l, w_r)).view(-1, 8, C)
gates = torch.cat((w_lg, w_rg)).view(-1, 8, C)
weights = torch.stack((values, gates), dim=1).view(4 * H, C)@cast@.contiguous()
pair = torch.empty((2, B, H, N, N), dtype=torch.@store@, device=x.device)
@launch@
left, right = pair[0], pair[1]
gate = torch.sigmoid(torch.matmul(xn.view(M, C), w_og.t()@cast@))
"""


def gated_projection(
    norm: str,
    precision: str,
    tile: tuple[int, int, int],
    warp: tuple[int, int],
    loads: str,
    store: str,
    loader: str = "torch",
) -> Stage:
    """The gates and the mask right behind the product on tensor cores, in one kernel."""
    kind = TORCH_TYPES[precision]
    gemm = mma_gemm("gated_projection", precision, tile, warp, loads, f"gated:{store}")
    kernels, norm_text = norm_lines(norm, kind, loader)
    return Stage(
        {
            "project": "cuda_gated",
            "project_gemm": gemm.key,
            "project_precision": precision,
            "project_norm": norm,
            "layout": "first",
            "store": store,
            "loader": loader,
        },
        fill(
            GATED_LINES,
            norm=norm_text,
            cast="" if kind == "float32" else f".to(torch.{kind})",
            store=store,
            launch=gemm.launch("1", "xn, weights, mask, pair, N * N", "M", "4 * H", "C"),
        ),
        kernels + gemm.built(loader),
        "cuda",
        tf32=precision == "tf32",
        imports=imports(loader),
    )


def product(gemm: Gemm, store: str = "float32", loader: str = "torch", cast: bool = False) -> Stage:
    """The product over pairs by `gemm`; `cast` if its operands have another type."""
    kind = TORCH_TYPES[gemm.precision]
    half = f".to(torch.{kind})" if cast else ""
    lines = f"prod = torch.empty((B, H, N, N), dtype=torch.{store}, device=x.device)\n"
    lines += gemm.launch("B * H", f"left{half}, right{half}, prod", "N", "N", "N")
    return Stage(
        {"product": "cuda", "product_gemm": gemm.key, "product_store": store, "loader": loader},
        lines,
        gemm.built(loader),
        "cuda",
        imports=imports(loader),
    )


LANES = """
// the channel is the fastest axis: a warp takes 32 channels, a thread @ti@ x @tj@ pairs of one channel
extern "C" __global__ void pair_product(const float* L, const float* R, float* D, int N, int H) {
  const int groups = H / 32;
  const int b = blockIdx.z / groups, h = blockIdx.z % groups * 32 + threadIdx.x % 32;
  const int i0 = (blockIdx.x * 4 + threadIdx.x / 32 % 4) * @ti@;
  const int j0 = (blockIdx.y * @wj@ + threadIdx.x / 128) * @tj@;
  const float* l = L + ((long long)(b * N + i0) * N) * H + h;
  const float* r = R + ((long long)(b * N + j0) * N) * H + h;
  float acc[@ti@][@tj@];
  for (int i = 0; i < @ti@; ++i)
    for (int j = 0; j < @tj@; ++j) acc[i][j] = 0.0f;
  for (int k = 0; k < N; ++k) {
    float a[@ti@], c[@tj@];
#pragma unroll
    for (int i = 0; i < @ti@; ++i) a[i] = l[((long long)i * N + k) * H];
#pragma unroll
    for (int j = 0; j < @tj@; ++j) c[j] = r[((long long)j * N + k) * H];
#pragma unroll
    for (int i = 0; i < @ti@; ++i)
#pragma unroll
      for (int j = 0; j < @tj@; ++j) acc[i][j] += a[i] * c[j];
  }
  for (int i = 0; i < @ti@; ++i)
    for (int j = 0; j < @tj@; ++j)
      D[((long long)(b * N + i0 + i) * N + j0 + j) * H + h] = acc[i][j];
}
"""


def lanes_product(ti: int, tj: int, wj: int, loader: str = "torch") -> Stage:
    """The product with the channels last: no tensor cores, but every load contiguous."""
    lines = (
        "prod = torch.empty((B, N, N, H), dtype=torch.float32, device=x.device)\n"
        f"grid = (N // {4 * ti}, N // {wj * tj}, B * H // 32)\n"
        f"pair_product(grid, ({128 * wj}, 1, 1), [left, right, prod, N, H])"
    )
    return Stage(
        {
            "product": "cuda_lanes",
            "product_gemm": f"lanes_{ti}x{tj}x{wj}",
            "product_store": "float32",
            "loader": loader,
        },
        lines,
        built("pair_product", fill(LANES, ti=ti, tj=tj, wj=wj), loader),
        "cuda",
        imports=imports(loader),
    )


NORM_GATES = {
    "tile": """
@helpers@
// 32 pairs of 128 channels in shared memory; a warp finishes four pairs
extern "C" __global__ void norm_and_gate(const @from@* p, const @gate@* gate, const float* w, const float* b,
                                         @to@* y, int NN) {
  __shared__ float s[128][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const long long row0 = (long long)blockIdx.x * 32;
  const @from@* q = p + row0 / NN * 128 * NN + row0 % NN + lane;
  for (int h = warp; h < 128; h += 8) s[h][lane] = @read@;
  __syncthreads();
  for (int r = warp; r < 32; r += 8) {
    float v[4], sum = 0.0f, var = 0.0f;
    for (int e = 0; e < 4; ++e) sum += v[e] = s[lane + 32 * e][r];
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    for (int e = 0; e < 4; ++e) {
      v[e] -= sum / 128.0f;
      var += v[e] * v[e];
    }
    for (int o = 16; o > 0; o >>= 1) var += __shfl_xor_sync(0xffffffffu, var, o);
    const float rstd = rsqrtf(var / 128.0f + 1e-5f);
    for (int e = 0; e < 4; ++e) {
      const int h = lane + 32 * e;
      const long long at = (row0 + r) * 128 + h;
      const float z = (v[e] * rstd * w[h] + b[h]) * @gate_at@;
      y[at] = @write@;
    }
  }
}
""",
    "thread": """
@helpers@
// a thread per pair: it walks over the channels twice
extern "C" __global__ void norm_and_gate(const @from@* p, const @gate@* gate, const float* w, const float* b,
                                         @to@* y, int NN) {
  const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const @from@* q = p + row / NN * 128 * NN + row % NN;
  float sum = 0.0f, squares = 0.0f;
  for (int h = 0; h < 128; ++h) {
    const float v = @read@;
    sum += v;
    squares += v * v;
  }
  const float mean = sum / 128.0f;
  const float rstd = rsqrtf(squares / 128.0f - mean * mean + 1e-5f);
  for (int h = 0; h < 128; ++h) {
    const long long at = row * 128 + h;
    const float z = ((@read@ - mean) * rstd * w[h] + b[h]) * @gate_at@;
    y[at] = @write@;
  }
}
""",
}


def finish(
    how: str,
    source: str,
    gate: str,
    precision: str,
    *,
    gemm: Gemm | None = None,
    loader: str = "torch",
) -> Stage:
    """A kernel for norm and gate (128 channels), then a product: the library's, or `gemm`."""
    kind = TORCH_TYPES[precision]
    from_type, from_helper, read, _, _ = TYPES[source]
    gate_type, gate_helper, read_gate, _, _ = TYPES[gate]
    to_type, _, _, to_helper, write = TYPES[kind]
    helpers = dict.fromkeys(text.strip("\n") for text in (from_helper, gate_helper, to_helper))
    text = fill(
        NORM_GATES[how],
        helpers=joined(*helpers),
        gate=gate_type,
        to=to_type,
        read=read.format("q[(long long)h * NN]"),
        gate_at=read_gate.format("gate[at]"),
        write=write.format("z"),
        **{"from": from_type},
    )
    rows, threads = (32, 256) if how == "tile" else (128, 128)
    half = kind != "float32"
    cast = f".to(torch.{kind})" if half else ""
    lines = (
        f"y = torch.empty((M, H), dtype=torch.{kind}, device=x.device)\n"
        f"norm_and_gate((M // {rows}, 1, 1), ({threads}, 1, 1), [prod, gate, onorm_w, onorm_b, y, N * N])\n"
    )
    kernels = built("norm_and_gate", text, loader)
    if gemm:
        kernels += gemm.built(loader)
        lines += "out = torch.empty_like(x)\n" + gemm.launch("1", f"y, w_o{cast}, out", "M", "C", "H")
    else:
        up = ".float()" if half else ""
        lines += f"out = torch.matmul(y, w_o.t(){cast}){up}.view(B, N, N, C)"
    return Stage(
        {
            "finish": f"cuda_{how}",
            "finish_gemm": gemm.key if gemm else "library",
            "finish_precision": precision,
            "loader": loader,
        },
        lines,
        kernels,
        "cuda",
        tf32=precision == "tf32" and gemm is None,
        imports=imports(loader),
    )
