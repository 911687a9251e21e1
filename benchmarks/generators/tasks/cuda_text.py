"""Text of CUDA C++ sources: a module that builds its kernels with ``nvcc`` alone, and parts that kernels share.

A source that calls ``nvcc`` and loads the library with ``ctypes`` compiles in a few seconds: nothing of PyTorch's
headers is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.generators.text import fill, joined

CTYPES_MODULE = """
import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch

CUDA = r'''
#include <cuda_runtime.h>
@kernel@
extern "C" int @name@(@parameters@) {
@launch@
  return (int)cudaGetLastError();
}
'''


def load():
    name = "@name@_" + hashlib.md5(CUDA.encode()).hexdigest()
    path = os.path.join(tempfile.gettempdir(), name)
    if not os.path.exists(path + ".so"):
        scratch = f"{path}_{os.getpid()}"
        with open(scratch + ".cu", "w") as file:
            file.write(CUDA)
        command = ["nvcc", "-O3", "-arch=sm_90", "--shared", "-Xcompiler", "-fPIC"]
        subprocess.run([*command, scratch + ".cu", "-o", scratch + ".so"], check=True)
        os.replace(scratch + ".so", path + ".so")
    return ctypes.CDLL(path + ".so")


LIB = load()


def run(@arguments@):
    @body@
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (@pointers@)]
    error = LIB.@name@(*pointers, @scalars@)
    if error:
        raise RuntimeError(f"launch failed with CUDA error {error}")
    return @result@
"""


@dataclass(frozen=True)
class CudaFunction:
    """The C function through which the module of a source calls its kernels.

    Attributes:
        name: Its name.
        parameters: Its parameters in C, line by line.
        arguments: Those of ``run`` in Python.
        body: Lines of ``run`` that make sizes and outputs.
        pointers: The tensors that are passed first.
        scalars: What is passed after them.
        result: What ``run`` returns.
    """

    name: str
    parameters: Sequence[str]
    arguments: str
    body: str
    pointers: str
    scalars: str
    result: str

    def module(self, kernel: str, launch: str) -> str:
        """The whole source, from the device code and the lines that launch it."""
        indent = "\n" + " " * len(f'extern "C" int {self.name}(')
        return fill(
            CTYPES_MODULE,
            kernel=kernel,
            launch=launch,
            name=self.name,
            parameters=indent.join(self.parameters),
            arguments=self.arguments,
            body=self.body.strip("\n"),
            pointers=self.pointers,
            scalars=self.scalars,
            result=self.result,
        )


# Ways to bring R rows of C floats, `stride` apart, into shared memory, where rows are `ld` apart.
FETCHES = {
    "scalar": """
template <int R, int C>
__device__ void fetch(float* to, int ld, const float* from, size_t stride) {
  for (int i = threadIdx.x; i < R * C; i += THREADS) to[i / C * ld + i % C] = from[i / C * stride + i % C];
}
__device__ void arrive() {}
""",
    "float4": """
// 16 bytes per load
template <int R, int C>
__device__ void fetch(float* to, int ld, const float* from, size_t stride) {
#pragma unroll 4
  for (int i = threadIdx.x; i < R * C / 4; i += THREADS) {
    const int r = i / (C / 4), c = i % (C / 4) * 4;
    *reinterpret_cast<float4*>(to + r * ld + c) = *reinterpret_cast<const float4*>(from + r * stride + c);
  }
}
__device__ void arrive() {}
""",
    "ldg": """
template <int R, int C>
__device__ void fetch(float* to, int ld, const float* __restrict__ from, size_t stride) {
  for (int i = threadIdx.x; i < R * (C / 4); i += THREADS) {
    int r = i / (C / 4), c = 4 * (i % (C / 4));
    float4 x = __ldg((const float4*)(from + r * stride + c));
    float* p = to + r * ld + c;
    p[0] = x.x; p[1] = x.y; p[2] = x.z; p[3] = x.w;
  }
}
__device__ void arrive() {}
""",
    "async": """
#include <cuda_pipeline.h>
// copies that pass the registers by
template <int R, int C>
__device__ void fetch(float* to, int ld, const float* from, size_t stride) {
  for (int i = threadIdx.x; i < R * C / 4; i += THREADS) {
    const int r = i / (C / 4), c = i % (C / 4) * 4;
    __pipeline_memcpy_async(to + r * ld + c, from + r * stride + c, 16);
  }
}
__device__ void arrive() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
}
""",
}

_ELEMENT_A = "(TA ? a[d * lda + @r@] : a[@r@ * lda + d])"
_ELEMENT_B = "(TB ? b[@c@ * ldb + d] : b[d * ldb + @c@])"
_PRODUCT = "template <int M, int N, int D, bool TA, bool TB, class Put>"

# Ways to multiply A [M, D] (as [D, M] if TA) and B [D, N] (as [N, D] if TB) in shared memory; put(r, c, sum).
PRODUCTS = {
    "scalar": """
@head@
__device__ void product(const float* a, int lda, const float* b, int ldb, Put put) {
  for (int i = threadIdx.x; i < M * N; i += THREADS) {
    const int r = i / N, c = i % N;
    float s = 0.f;
    for (int d = 0; d < D; d++) s += @a@ * @b@;
    put(r, c, s);
  }
}
""",
    "strided": """
// every thread keeps @rm@ x @rn@ sums in registers, rows and columns far apart
@head@
__device__ void product(const float* a, int lda, const float* b, int ldb, Put put) {
  constexpr int RM = @rm@, RN = @rn@, ROWS = M / RM, COLS = N / RN;
  for (int i = threadIdx.x; i < ROWS * COLS; i += THREADS) {
    const int r = i / COLS, c = i % COLS;
    float s[RM][RN] = {};
#pragma unroll @unroll@
    for (int d = 0; d < D; d++) {
      float x[RM], y[RN];
#pragma unroll
      for (int m = 0; m < RM; m++) x[m] = @a@;
#pragma unroll
      for (int n = 0; n < RN; n++) y[n] = @b@;
#pragma unroll
      for (int m = 0; m < RM; m++)
#pragma unroll
        for (int n = 0; n < RN; n++) s[m][n] = fmaf(x[m], y[n], s[m][n]);
    }
#pragma unroll
    for (int m = 0; m < RM; m++)
#pragma unroll
      for (int n = 0; n < RN; n++) put(r + m * ROWS, c + n * COLS, s[m][n]);
  }
}
""",
    "blocked": """
// register tiles of @rm@ x @rn@ neighbours
@head@
__device__ void product(const float* a, int lda, const float* b, int ldb, Put put) {
  for (int i = threadIdx.x; i < (M / @rm@) * (N / @rn@); i += THREADS) {
    const int r = i / (N / @rn@) * @rm@, c = i % (N / @rn@) * @rn@;
    float s[@rm@][@rn@];
    for (int m = 0; m < @rm@; m++)
      for (int n = 0; n < @rn@; n++) s[m][n] = 0.f;
    for (int d = 0; d < D; d++) {
#pragma unroll
      for (int m = 0; m < @rm@; m++) {
        const float x = @a@;
#pragma unroll
        for (int n = 0; n < @rn@; n++) s[m][n] += x * @b@;
      }
    }
    for (int m = 0; m < @rm@; m++)
      for (int n = 0; n < @rn@; n++) put(r + m, c + n, s[m][n]);
  }
}
""",
    "wmma": """
#include <mma.h>
#include <type_traits>
using namespace nvcuda;
__device__ float* patch() {
  __shared__ __align__(128) float space[THREADS / 32][256];
  return space[threadIdx.x / 32];
}
// tf32 tensor cores: a warp makes tiles of 16 x 16
@head@
__device__ void product(const float* a, int lda, const float* b, int ldb, Put put) {
  using RowA = typename std::conditional<TA, wmma::col_major, wmma::row_major>::type;
  using RowB = typename std::conditional<TB, wmma::col_major, wmma::row_major>::type;
  for (int tile = threadIdx.x / 32; tile < (M / 16) * (N / 16); tile += THREADS / 32) {
    const int r0 = tile / (N / 16) * 16, c0 = tile % (N / 16) * 16;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
    wmma::fill_fragment(sum, 0.f);
#pragma unroll @unroll@
    for (int d = 0; d < D; d += 8) {
      wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, RowA> x;
      wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, RowB> y;
      wmma::load_matrix_sync(x, TA ? a + d * lda + r0 : a + r0 * lda + d, lda);
      wmma::load_matrix_sync(y, TB ? b + c0 * ldb + d : b + d * ldb + c0, ldb);
      for (int i = 0; i < x.num_elements; i++) x.x[i] = wmma::__float_to_tf32(x.x[i]);
      for (int i = 0; i < y.num_elements; i++) y.x[i] = wmma::__float_to_tf32(y.x[i]);
      wmma::mma_sync(sum, x, y, sum);
    }
    float* out = patch();
    wmma::store_matrix_sync(out, sum, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x % 32; i < 256; i += 32) put(r0 + i / 16, c0 + i % 16, out[i]);
    __syncwarp();
  }
}
""",
}
ENGINES = {
    "scalar": ("scalar", 1, 1, 1),
    "strided_2x2": ("strided", 2, 2, 4),
    "strided_4x2": ("strided", 4, 2, 4),
    "strided_4x4": ("strided", 4, 4, 4),
    "strided_8x4": ("strided", 8, 4, 2),
    "blocked_2x2": ("blocked", 2, 2, 1),
    "blocked_4x4": ("blocked", 4, 4, 1),
    "wmma": ("wmma", 1, 1, 1),
    "wmma_unrolled": ("wmma", 1, 1, 4),
}


def tile_parts(engine: str, fetch: str) -> str:
    """The device functions ``fetch``, ``arrive`` and ``product`` of one way to do each; they read `THREADS`."""
    kind, rm, rn, unroll = ENGINES[engine]
    places = {
        "scalar": ("r", "c"),
        "strided": ("(r + m * ROWS)", "(c + n * COLS)"),
        "blocked": ("(r + m)", "(c + n)"),
        "wmma": ("", ""),
    }[kind]
    body = fill(
        PRODUCTS[kind],
        head=_PRODUCT,
        a=_ELEMENT_A.replace("@r@", places[0]),
        b=_ELEMENT_B.replace("@c@", places[1]),
        rm=rm,
        rn=rn,
        unroll=unroll,
    )
    return joined(FETCHES[fetch].strip("\n"), body)
