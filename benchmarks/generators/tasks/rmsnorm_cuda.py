"""The sources of `rmsnorm` in CUDA C++."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from benchmarks.generators.pool import Draft, Pool
from benchmarks.generators.tasks.nvrtc import nvrtc_module
from benchmarks.generators.text import Manner, fill

MANNER = Manner(
    names={
        "n_cols": ["hidden", "N", "dim"],
        "total": ["sum_sq", "ssq", "acc"],
        "inv": ["rstd", "scale", "inv_rms"],
        "row": ["r", "row_idx", "line"],
        "lane": ["lane_id", "laneId", "l"],
        "up": ["to_float", "bf2f", "widen"],
        "down": ["to_bf16", "f2bf", "narrow"],
        "block_sum": ["sum_over_block", "blockReduceSum", "reduce_block"],
        "sums": ["warp_sums", "partials", "smem"],
    },
    notes=(
        "RMSNorm in CUDA C++, built with NVRTC.",
        "Root mean square normalisation of bf16 rows.",
        "RMSNorm kernel.\n\nbfloat16 comes and goes as 16-bit words, sums are float32.\n",
    ),
)

HOST: dict[str | None, tuple[str, str]] = {
    None: ("", ""),
    "clone_in": ("x = x.clone()", ""),
    "sync": ("", "torch.cuda.synchronize()"),
    "nan_check": ("", 'if torch.isnan(y).any().item():\n    raise ValueError("NaN in the output")'),
}

# Wide loads: how many bfloat16 a type of CUDA holds.
VECTORS = {1: "bf16", 2: "unsigned int", 4: "uint2", 8: "uint4"}

HEAD = """
#define THREADS @threads@
typedef unsigned short bf16;

__device__ __forceinline__ float up(bf16 v) { return __uint_as_float((unsigned int)v << 16); }

__device__ __forceinline__ bf16 down(float f) {
  unsigned int u = __float_as_uint(f);
  return (bf16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);  // to nearest, ties to even
}
"""
PACK = """
union Pack {
  @type@ wide;
  bf16 part[@vec@];
};
"""

# Each defines block_sum(v): the sum over the block's threads, known to all of them.
BLOCK_SUMS = {
    "shuffle": """__device__ float block_sum(float v) {
  __shared__ float sums[32];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = v;
  __syncthreads();
  v = (threadIdx.x & 31) < THREADS / 32 ? sums[threadIdx.x & 31] : 0.f;
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  __syncthreads();
  return v;
}""",
    "tree": """__device__ float block_sum(float v) {
  __shared__ float sums[THREADS];
  sums[threadIdx.x] = v;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half >>= 1) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  v = sums[0];
  __syncthreads();
  return v;
}""",
    "atomic": """__device__ float block_sum(float v) {
  __shared__ float sums;
  if (threadIdx.x == 0) sums = 0.f;
  __syncthreads();
  atomicAdd(&sums, v);
  __syncthreads();
  v = sums;
  __syncthreads();
  return v;
}""",
    "warps_then_loop": """__device__ float block_sum(float v) {
  __shared__ float sums[THREADS / 32];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0.f;
  for (int k = 0; k < THREADS / 32; ++k) v += sums[k];
  __syncthreads();
  return v;
}""",
    "one_thread": """__device__ float block_sum(float v) {
  __shared__ float sums[THREADS];
  sums[threadIdx.x] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int k = 1; k < THREADS; ++k) sums[0] += sums[k];
  }
  __syncthreads();
  v = sums[0];
  __syncthreads();
  return v;
}""",
}
SIGNATURE = (
    'extern "C" __global__ void rms_norm(const bf16* __restrict__ x, const bf16* __restrict__ w,\n'
    "                                    bf16* __restrict__ y, int rows, int n_cols)"
)
INVERSES = {
    "rsqrt": "rsqrtf(total / n_cols + 1e-6f)",
    "sqrt": "1.f / sqrtf(total / n_cols + 1e-6f)",
    "double": "(float)(1.0 / sqrt((double)total / n_cols + 1e-6))",
}

RUN = """
def run(x, weight):
    rows, n_cols = x.shape
    @pre@
    y = torch.empty_like(x)
    rms_norm((@blocks@, 1, 1), (@threads@, 1, 1), [x, weight, y, rows, n_cols]@shared@)
    @post@
    return y
"""


def _draft(
    choices: Mapping[str, object],
    kernel: str,
    blocks: str,
    threads: int,
    host: str | None = None,
    shared: str = "",
    **slots: object,
) -> Draft:
    pre, post = HOST[host]
    text = fill(HEAD + kernel, threads=threads, **slots)
    run = fill(RUN, blocks=blocks, threads=threads, pre=pre, post=post, shared=shared)
    key = {**choices, "threads": threads, "host": host}
    return Draft(key, nvrtc_module(text, run, "rms_norm"), "cuda", MANNER)


BLOCK_ROW = (
    PACK
    + "\n@sum@\n\n"
    + SIGNATURE
    + """ {
  @rows@ {
    const @type@* in = (const @type@*)(x + (long long)row * n_cols);
    const @type@* gain = (const @type@*)w;
    @type@* out = (@type@*)(y + (long long)row * n_cols);
    float total = 0.f;
    for (int i = threadIdx.x; i < n_cols / @vec@; i += THREADS) {
      Pack p;
      p.wide = in[i];
      for (int k = 0; k < @vec@; ++k) total += up(p.part[k]) * up(p.part[k]);
    }
    total = block_sum(total);
    const float inv = @inverse@;
    for (int i = threadIdx.x; i < n_cols / @vec@; i += THREADS) {
      Pack p, g;
      p.wide = in[i];
      g.wide = gain[i];
      for (int k = 0; k < @vec@; ++k) p.part[k] = down(up(p.part[k]) * inv * up(g.part[k]));
      out[i] = p.wide;
    }
  }
}
"""
)


def block_row(
    vec: int,
    threads: int,
    reduce: str = "shuffle",
    inverse: str = "rsqrt",
    blocks: str = "rows",
    host: str | None = None,
) -> Draft:
    """A block per row that reads the row twice."""
    exact = blocks == "rows"
    return _draft(
        {
            "algorithm": "cuda_block_row",
            "vec": vec,
            "reduce": reduce,
            "inverse": inverse,
            "blocks": blocks,
        },
        BLOCK_ROW,
        "rows" if exact else f"min(rows, {blocks})",
        threads,
        host,
        sum=BLOCK_SUMS[reduce],
        rows="const int row = blockIdx.x;"
        if exact
        else "for (int row = blockIdx.x; row < rows; row += gridDim.x)",
        vec=vec,
        type=VECTORS[vec],
        inverse=INVERSES[inverse],
    )


REGISTERS = (
    PACK
    + "\n@sum@\n\n"
    + SIGNATURE
    + """ {
  // rows of up to @most@ numbers stay in registers between the two passes
  constexpr int PARTS = @parts@;
  const int n_packs = n_cols / @vec@;
  @weight_first@
  @rows@ {
    const @type@* in = (const @type@*)(x + (long long)row * n_cols);
    @type@* out = (@type@*)(y + (long long)row * n_cols);
    Pack kept[PARTS];
    float total = 0.f;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
      const int i = threadIdx.x + p * THREADS;
      if (i < n_packs) {
        kept[p].wide = @load@;
#pragma unroll
        for (int k = 0; k < @vec@; ++k) total += up(kept[p].part[k]) * up(kept[p].part[k]);
      }
    }
    total = block_sum(total);
    const float inv = rsqrtf(total / n_cols + 1e-6f);
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
      const int i = threadIdx.x + p * THREADS;
      if (i < n_packs) {
        @weight_late@
#pragma unroll
        for (int k = 0; k < @vec@; ++k) kept[p].part[k] = down(up(kept[p].part[k]) * inv * up(@gain@.part[k]));
        @store@
      }
    }
  }
}
"""
)


def registers(
    vec: int, threads: int, cache: str = "plain", blocks: str = "rows", host: str | None = None
) -> Draft:
    """A block per row that reads the row once; with fewer blocks than rows it keeps the weight as well."""
    exact = blocks == "rows"
    streaming = cache == "streaming"
    hoisted = "Pack gains[PARTS];\n#pragma unroll\nfor (int p = 0; p < PARTS; ++p) {\n\
  const int i = threadIdx.x + p * THREADS;\n  if (i < n_packs) gains[p].wide = ((const @type@*)w)[i];\n}"
    return _draft(
        {"algorithm": "cuda_registers", "vec": vec, "cache": cache, "blocks": blocks},
        REGISTERS,
        "rows" if exact else f"min(rows, {blocks})",
        threads,
        host,
        sum=BLOCK_SUMS["shuffle"],
        rows="const int row = blockIdx.x;"
        if exact
        else "for (int row = blockIdx.x; row < rows; row += gridDim.x)",
        weight_first="" if exact else hoisted,
        weight_late="Pack g;\ng.wide = ((const @type@*)w)[i];" if exact else "",
        gain="g" if exact else "gains[p]",
        load="__ldcs(in + i)" if streaming else "in[i]",
        store="__stcs(out + i, kept[p].wide);" if streaming else "out[i] = kept[p].wide;",
        vec=vec,
        type=VECTORS[vec],
        parts=max(1, 8192 // (threads * vec)),
        most=max(1, 8192 // (threads * vec)) * threads * vec,
    )


STAGED = (
    PACK
    + "\n@sum@\n\n"
    + SIGNATURE
    + """ {
  // the row lies in shared memory as @kind@
  extern __shared__ @kind@ staged[];
  const int row = blockIdx.x;
  const @type@* in = (const @type@*)(x + (long long)row * n_cols);
  float total = 0.f;
  for (int i = threadIdx.x; i < n_cols / @vec@; i += THREADS) {
    Pack p;
    p.wide = in[i];
    for (int k = 0; k < @vec@; ++k) {
      const float v = up(p.part[k]);
      staged[i * @vec@ + k] = @keep@;
      total += v * v;
    }
  }
  total = block_sum(total);
  const float inv = rsqrtf(total / n_cols + 1e-6f);
  for (int i = threadIdx.x; i < n_cols / @vec@; i += THREADS) {
    Pack p, g;
    g.wide = ((const @type@*)w)[i];
    for (int k = 0; k < @vec@; ++k) p.part[k] = down(@again@ * inv * up(g.part[k]));
    ((@type@*)(y + (long long)row * n_cols))[i] = p.wide;
  }
}
"""
)


def staged(vec: int, threads: int, kind: str = "bf16") -> Draft:
    """A block per row with the row in shared memory."""
    wide = kind == "float"
    return _draft(
        {"algorithm": "cuda_staged", "vec": vec, "kind": kind},
        STAGED,
        "rows",
        threads,
        shared=f", {'4' if wide else '2'} * n_cols",
        sum=BLOCK_SUMS["shuffle"],
        kind=kind,
        keep="v" if wide else "p.part[k]",
        again="staged[i * @vec@ + k]" if wide else "up(staged[i * @vec@ + k])",
        vec=vec,
        type=VECTORS[vec],
    )


WARP_ROW = (
    PACK
    + "\n"
    + SIGNATURE
    + """ {
  const int row = (blockIdx.x * THREADS + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const @type@* in = (const @type@*)(x + (long long)row * n_cols);
  @type@* out = (@type@*)(y + (long long)row * n_cols);
  float total = 0.f;
  for (int i = lane; i < n_cols / @vec@; i += 32) {
    Pack p;
    p.wide = in[i];
#pragma unroll
    for (int k = 0; k < @vec@; ++k) total += up(p.part[k]) * up(p.part[k]);
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(0xffffffffu, total, o);
  const float inv = @inverse@;
  for (int i = lane; i < n_cols / @vec@; i += 32) {
    Pack p, g;
    p.wide = in[i];
    g.wide = ((const @type@*)w)[i];
#pragma unroll
    for (int k = 0; k < @vec@; ++k) p.part[k] = down(up(p.part[k]) * inv * up(g.part[k]));
    out[i] = p.wide;
  }
}
"""
)


def warp_row(vec: int, threads: int, inverse: str = "rsqrt", host: str | None = None) -> Draft:
    """A warp per row."""
    return _draft(
        {"algorithm": "cuda_warp_row", "vec": vec, "inverse": inverse},
        WARP_ROW,
        f"(rows * 32 + {threads - 1}) // {threads}",
        threads,
        host,
        vec=vec,
        type=VECTORS[vec],
        inverse=INVERSES[inverse],
    )


THREAD_ROW = (
    "\n"
    + SIGNATURE
    + """ {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= rows) return;
  const bf16* in = x + (long long)row * n_cols;
  @kind@ total = 0;
  for (int i = 0; i < n_cols; ++i) total += (@kind@)up(in[i]) * (@kind@)up(in[i]);
  const float inv = rsqrtf((float)(total / n_cols) + 1e-6f);
  for (int i = 0; i < n_cols; ++i) y[(long long)row * n_cols + i] = down(up(in[i]) * inv * up(w[i]));
}
"""
)


def thread_row(threads: int, kind: str = "float") -> Draft:
    """A thread per row."""
    blocks = f"(rows + {threads - 1}) // {threads}"
    choices = {"algorithm": "cuda_thread_row", "kind": kind}
    return _draft(choices, THREAD_ROW, blocks, threads, kind=kind)


TWO_KERNELS = """
@sum@

extern "C" __global__ void inverse_rms(const bf16* x, float* stats, int n_cols) {
  const int row = blockIdx.x;
  float total = 0.f;
  for (int i = threadIdx.x; i < n_cols; i += THREADS) {
    const float v = up(x[(long long)row * n_cols + i]);
    total += v * v;
  }
  total = block_sum(total);
  if (threadIdx.x == 0) stats[row] = rsqrtf(total / n_cols + 1e-6f);
}

extern "C" __global__ void scale_all(const bf16* x, const bf16* w, const float* stats, bf16* y, int total_size,
                                     int n_cols) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < total_size) y[i] = down(up(x[i]) * stats[i / n_cols] * up(w[i % n_cols]));
}
"""
TWO_RUN = """
def run(x, weight):
    rows, n_cols = x.shape
    y = torch.empty_like(x)
    stats = torch.empty(rows, device=x.device, dtype=torch.float32)
    @first@
    @second@
    return y
"""
FIRSTS = {
    "cuda": "inverse_rms((rows, 1, 1), (@threads@, 1, 1), [x, stats, n_cols])",
    "torch": "stats = torch.rsqrt(x.float().square().mean(-1) + 1e-6)",
}
SECONDS = {
    "cuda": "blocks = (x.numel() + @threads@ - 1) // @threads@\n"
    "scale_all((blocks, 1, 1), (@threads@, 1, 1), [x, weight, stats, y, x.numel(), n_cols])",
    "torch": "torch.mul(x.float() * stats[:, None], weight, out=y)",
}


def two_kernels(threads: int, reduce: str = "shuffle", first: str = "cuda", second: str = "cuda") -> Draft:
    """A launch for the statistics, one to apply them; either may be left to PyTorch."""
    choices = {
        "algorithm": "cuda_two_kernels",
        "threads": threads,
        "reduce": reduce,
        "first": first,
        "second": second,
    }
    entries = ["inverse_rms"] * (first == "cuda") + ["scale_all"] * (second == "cuda")
    kernels = fill(HEAD + TWO_KERNELS, threads=threads, sum=BLOCK_SUMS[reduce])
    run = fill(TWO_RUN, first=FIRSTS[first], second=SECONDS[second], threads=threads)
    return Draft(choices, nvrtc_module(kernels, run, *entries), "cuda", MANNER)


def add_cuda(pool: Pool) -> None:
    """Adds the sound CUDA C++ sources."""
    pool.add(block_row(v, t) for v, t in product((1, 2, 4, 8), (128, 256, 512)))
    pool.add([block_row(1, 1024), block_row(8, 1024), block_row(8, 64), block_row(1, 32)])
    pool.add(block_row(4, 256, r) for r in ("tree", "atomic", "warps_then_loop", "one_thread"))
    pool.add(
        [block_row(1, 256, "tree"), block_row(1, 1024, "one_thread"), block_row(8, 128, "warps_then_loop")]
    )
    pool.add(block_row(4, 256, inverse=i) for i in ("sqrt", "double"))
    pool.add(block_row(8, 256, blocks=b) for b in ("132", "528", "16"))
    pool.add(block_row(8, 256, host=h) for h in ("clone_in", "sync", "nan_check"))
    pool.add(
        registers(v, t) for v, t in ((8, 128), (8, 256), (8, 512), (8, 1024), (4, 256), (4, 512), (2, 512))
    )
    pool.add(registers(8, t, "streaming") for t in (128, 256))
    pool.add(registers(8, t, blocks=b) for t, b in ((256, "264"), (256, "1056"), (512, "264"), (128, "1056")))
    pool.add(registers(8, 256, host=h) for h in ("sync", "clone_in"))
    pool.add(
        staged(v, t, k)
        for v, t, k in ((8, 128, "bf16"), (8, 256, "bf16"), (1, 256, "bf16"), (4, 256, "float"))
    )
    pool.add([staged(1, 256, "float"), staged(8, 512, "float")])
    pool.add(warp_row(v, t) for v, t in ((8, 32), (8, 128), (8, 256), (4, 128), (2, 128), (1, 128)))
    pool.add([warp_row(8, 128, "sqrt"), warp_row(8, 128, host="sync")])
    pool.add([thread_row(32), thread_row(128), thread_row(64, "double")])
    pool.add(two_kernels(t) for t in (128, 256, 1024))
    pool.add([two_kernels(256, "tree"), two_kernels(256, first="torch"), two_kernels(256, second="torch")])


def break_cuda(pool: Pool) -> None:
    """Adds CUDA C++ sources that fail."""
    pool.add_broken(
        block_row(4, 256),
        short_shuffle={"o = 16;": "o = 8;"},
        undefined_name={"rsqrtf(total": "rsqrtf(variance"},
        wild_pointer={"(long long)row * n_cols": "(long long)row * n_cols * 1048576"},
        weight_left_out={" * up(g.part[k])": ""},
    )
    pool.add_broken(
        block_row(8, 128), syntax={"Pack p, g;": "Pack p, g"}, half_of_row={"n_cols / 8;": "n_cols / 16;"}
    )
    pool.add_broken(registers(8, 256), few_parts={"PARTS = 4": "PARTS = 2"})
    pool.add_broken(registers(8, 512), too_many_threads={"(512, 1, 1)": "(2048, 1, 1)"})
    pool.add_broken(staged(8, 256), shared_too_small={"2 * n_cols)": "n_cols // 512)"})
    pool.add_broken(warp_row(8, 128), truncated={"(u + 0x7fffu + ((u >> 16) & 1u)) >> 16": "u >> 15"})
    pool.add_broken(two_kernels(256), column_for_row={"stats[i / n_cols]": "stats[i % n_cols]"})
