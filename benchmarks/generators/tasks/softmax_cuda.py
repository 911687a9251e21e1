"""The sources of `softmax` in CUDA C++."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from benchmarks.generators.pool import Draft, Pool
from benchmarks.generators.tasks.nvrtc import nvrtc_module
from benchmarks.generators.text import Manner, fill

MANNER = Manner(
    names={
        "n_cols": ["columns", "N", "width"],
        "peak": ["row_max", "mx", "m"],
        "denom": ["row_sum", "total", "l_sum"],
        "row": ["r", "row_idx", "row_id"],
        "lane": ["lane_id", "laneId", "l"],
        "over_block": ["block_reduce", "blockReduce", "reduce_all"],
        "parts": ["partials", "smem", "scratch"],
    },
    notes=(
        "Row-wise softmax in CUDA C++, built with NVRTC.",
        "Softmax over the last axis of a float32 matrix.",
        "Softmax kernel.\n\nThe maximum goes out first, so that nothing overflows.\n",
    ),
)

HOST: dict[str | None, tuple[str, str]] = {
    None: ("", ""),
    "clone_in": ("x = x.clone()", ""),
    "sync": ("", "torch.cuda.synchronize()"),
    "clone_out": ("", "y = y.clone()"),
    "nan_check": ("", "assert not torch.isnan(y).any()"),
}

VECTORS = {1: "float", 2: "float2", 4: "float4"}
EXPONENTIALS = {
    "expf": "expf({0})",
    "fast": "__expf({0})",
    "exp2": "exp2f(({0}) * 1.44269504f)",
    "double": "(float)exp((double)({0}))",
}

HEAD = """
#define THREADS @threads@
#define NEG -3.0e38f

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float sum(float a, float b) { return a + b; }
"""
PACK = """
union Pack {
  @type@ wide;
  float part[@vec@];
};
"""

# Each defines over_block<OP>(v, neutral): the value over the block's threads, known to all of them.
REDUCTIONS = {
    "shuffle": """template <float (*OP)(float, float)>
__device__ float over_block(float v, float neutral) {
  __shared__ float parts[32];
  for (int o = 16; o > 0; o >>= 1) v = OP(v, __shfl_xor_sync(0xffffffffu, v, o));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < THREADS / 32 ? parts[threadIdx.x % 32] : neutral;
  for (int o = 16; o > 0; o >>= 1) v = OP(v, __shfl_xor_sync(0xffffffffu, v, o));
  __syncthreads();
  return v;
}""",
    "tree": """template <float (*OP)(float, float)>
__device__ float over_block(float v, float neutral) {
  __shared__ float parts[THREADS];
  parts[threadIdx.x] = v;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half >>= 1) {
    if (threadIdx.x < half) parts[threadIdx.x] = OP(parts[threadIdx.x], parts[threadIdx.x + half]);
    __syncthreads();
  }
  v = parts[0];
  __syncthreads();
  return v;
}""",
    "one_thread": """template <float (*OP)(float, float)>
__device__ float over_block(float v, float neutral) {
  __shared__ float parts[THREADS];
  parts[threadIdx.x] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int k = 1; k < THREADS; ++k) parts[0] = OP(parts[0], parts[k]);
  }
  __syncthreads();
  v = parts[0];
  __syncthreads();
  return v;
}""",
}
SIGNATURE = (
    'extern "C" __global__ void softmax(const float* __restrict__ x, float* __restrict__ y,\n'
    "                                   int rows, int n_cols)"
)
ROWS = {
    "rows": "const int row = blockIdx.x;",
    "grid": "for (int row = blockIdx.x; row < rows; row += gridDim.x)",
}

RUN = """
def run(x):
    rows, n_cols = x.shape
    @pre@
    y = torch.empty_like(x)
    @shared@
    softmax((@blocks@, 1, 1), (@threads@, 1, 1), [x, y, rows, n_cols]@bytes@)
    @post@
    return y
"""


def _draft(
    choices: Mapping[str, object],
    kernel: str,
    blocks: str,
    threads: int,
    host: str | None = None,
    shared: bool = False,
    **slots: object,
) -> Draft:
    pre, post = HOST[host]
    text = fill(HEAD + kernel, threads=threads, **slots)
    run = fill(
        RUN,
        blocks=blocks,
        threads=threads,
        pre=pre,
        post=post,
        shared="if 4 * n_cols >= 49152:\n    softmax.set_shared_memory_config(4 * n_cols)" if shared else "",
        bytes=", 4 * n_cols" if shared else "",
    )
    key = {**choices, "threads": threads, "host": host}
    return Draft(key, nvrtc_module(text, run, "softmax"), "cuda", MANNER)


def _blocks(blocks: str) -> tuple[str, str]:
    """How many blocks are launched, and how a block finds its rows."""
    return ("rows", ROWS["rows"]) if blocks == "rows" else (f"min(rows, {blocks})", ROWS["grid"])


THREE_PASSES = (
    PACK
    + "\n@reduce@\n\n"
    + SIGNATURE
    + """ {
  @rows@ {
    const @type@* in = (const @type@*)(x + (long long)row * n_cols);
    @type@* out = (@type@*)(y + (long long)row * n_cols);
    const int n = n_cols / @vec@;
    float peak = NEG;
    for (int i = threadIdx.x; i < n; i += THREADS) {
      Pack p;
      p.wide = in[i];
      for (int k = 0; k < @vec@; ++k) peak = fmaxf(peak, p.part[k]);
    }
    peak = over_block<larger>(peak, NEG);
    float denom = 0.f;
    for (int i = threadIdx.x; i < n; i += THREADS) {
      Pack p;
      p.wide = in[i];
      for (int k = 0; k < @vec@; ++k) denom += @exp@;
    }
    denom = over_block<sum>(denom, 0.f);
    for (int i = threadIdx.x; i < n; i += THREADS) {
      Pack p;
      p.wide = in[i];
      for (int k = 0; k < @vec@; ++k) p.part[k] = @exp@ @scale@;
      out[i] = p.wide;
    }
  }
}
"""
)


def three_passes(
    vec: int,
    threads: int,
    exp: str = "expf",
    reduce: str = "shuffle",
    scale: str = "divide",
    blocks: str = "rows",
    host: str | None = None,
) -> Draft:
    """A block per row that walks along it three times."""
    count, rows = _blocks(blocks)
    return _draft(
        {
            "algorithm": "cuda_three_passes",
            "vec": vec,
            "exp": exp,
            "reduce": reduce,
            "scale": scale,
            "blocks": blocks,
        },
        THREE_PASSES,
        count,
        threads,
        host,
        reduce=REDUCTIONS[reduce],
        rows=rows,
        vec=vec,
        type=VECTORS[vec],
        exp=EXPONENTIALS[exp].format("p.part[k] - peak"),
        scale={"divide": "/ denom", "multiply": "* (1.f / denom)"}[scale],
    )


ONLINE = (
    PACK
    + "\n@reduce@\n\n"
    + SIGNATURE
    + """ {
  @rows@ {
    const @type@* in = (const @type@*)(x + (long long)row * n_cols);
    @type@* out = (@type@*)(y + (long long)row * n_cols);
    const int n = n_cols / @vec@;
    // maximum and sum together: the sum is scaled whenever the maximum grows
    float mine = NEG, denom = 0.f;
    for (int i = threadIdx.x; i < n; i += THREADS) {
      Pack p;
      p.wide = @load@;
      float next = mine;
      for (int k = 0; k < @vec@; ++k) next = fmaxf(next, p.part[k]);
      denom *= @rescale@;
      for (int k = 0; k < @vec@; ++k) denom += @add@;
      mine = next;
    }
    const float peak = over_block<larger>(mine, NEG);
    denom = over_block<sum>(denom * @merge@, 0.f);
    const float inv = 1.f / denom;
    for (int i = @walk@) {
      Pack p;
      p.wide = in[i];
      for (int k = 0; k < @vec@; ++k) p.part[k] = @exp@ * inv;
      @store@
    }
  }
}
"""
)


def online(
    vec: int,
    threads: int,
    exp: str = "expf",
    walk: str = "forwards",
    cache: str = "plain",
    blocks: str = "rows",
    host: str | None = None,
) -> Draft:
    """A block per row with a running maximum: two walks along the row, the second ``backwards`` if told so."""
    count, rows = _blocks(blocks)
    exponential = EXPONENTIALS[exp]
    return _draft(
        {
            "algorithm": "cuda_online",
            "vec": vec,
            "exp": exp,
            "walk": walk,
            "cache": cache,
            "blocks": blocks,
        },
        ONLINE,
        count,
        threads,
        host,
        reduce=REDUCTIONS["shuffle"],
        rows=rows,
        vec=vec,
        type=VECTORS[vec],
        load="__ldg(in + i)" if cache == "streaming" else "in[i]",
        store="__stcs(out + i, p.wide);" if cache == "streaming" else "out[i] = p.wide;",
        rescale=exponential.format("mine - next"),
        add=exponential.format("p.part[k] - next"),
        merge=exponential.format("mine - peak"),
        exp=exponential.format("p.part[k] - peak"),
        walk={
            "forwards": "threadIdx.x; i < n; i += THREADS",
            # what was read last is still in the cache
            "backwards": "n - 1 - threadIdx.x; i >= 0; i -= THREADS",
        }[walk],
    )


REGISTERS = (
    PACK
    + "\n@reduce@\n\n"
    + SIGNATURE
    + """ {
  // rows of up to @most@ numbers stay in registers
  constexpr int PARTS = @parts@;
  const int n = n_cols / @vec@;
  @rows@ {
    const @type@* in = (const @type@*)(x + (long long)row * n_cols);
    @type@* out = (@type@*)(y + (long long)row * n_cols);
    Pack kept[PARTS];
    float peak = NEG, denom = 0.f;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
      const int i = threadIdx.x + p * THREADS;
      if (i < n) {
        kept[p].wide = @load@;
#pragma unroll
        for (int k = 0; k < @vec@; ++k) peak = fmaxf(peak, kept[p].part[k]);
      }
    }
    peak = over_block<larger>(peak, NEG);
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
      if (threadIdx.x + p * THREADS < n) {
#pragma unroll
        for (int k = 0; k < @vec@; ++k) denom += kept[p].part[k] = @exp@;
      }
    }
    denom = over_block<sum>(denom, 0.f);
    const float inv = 1.f / denom;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
      const int i = threadIdx.x + p * THREADS;
      if (i < n) {
#pragma unroll
        for (int k = 0; k < @vec@; ++k) kept[p].part[k] *= inv;
        @store@
      }
    }
  }
}
"""
)


def registers(
    vec: int,
    threads: int,
    exp: str = "expf",
    cache: str = "plain",
    blocks: str = "rows",
    host: str | None = None,
) -> Draft:
    """A block per row that reads the row once."""
    count, rows = _blocks(blocks)
    parts = 32768 // (threads * vec)
    streaming = cache == "streaming"
    return _draft(
        {"algorithm": "cuda_registers", "vec": vec, "exp": exp, "cache": cache, "blocks": blocks},
        REGISTERS,
        count,
        threads,
        host,
        reduce=REDUCTIONS["shuffle"],
        rows=rows,
        vec=vec,
        type=VECTORS[vec],
        parts=parts,
        most=parts * threads * vec,
        exp=EXPONENTIALS[exp].format("kept[p].part[k] - peak"),
        load="__ldcs(in + i)" if streaming else "in[i]",
        store="__stcs(out + i, kept[p].wide);" if streaming else "out[i] = kept[p].wide;",
    )


STAGED = (
    PACK
    + "\n@reduce@\n\n"
    + SIGNATURE
    + """ {
  // the row lies in shared memory
  extern __shared__ float staged[];
  const int row = blockIdx.x, n = n_cols / @vec@;
  const @type@* in = (const @type@*)(x + (long long)row * n_cols);
  @type@* out = (@type@*)(y + (long long)row * n_cols);
  @type@* line = (@type@*)staged;
  float peak = NEG, denom = 0.f;
  for (int i = threadIdx.x; i < n; i += THREADS) {
    Pack p;
    p.wide = in[i];
    for (int k = 0; k < @vec@; ++k) peak = fmaxf(peak, p.part[k]);
    line[i] = p.wide;
  }
  peak = over_block<larger>(peak, NEG);
  for (int i = threadIdx.x; i < n; i += THREADS) {
    Pack p;
    p.wide = line[i];
    for (int k = 0; k < @vec@; ++k) denom += p.part[k] = @exp@;
    line[i] = p.wide;
  }
  denom = over_block<sum>(denom, 0.f);
  for (int i = threadIdx.x; i < n; i += THREADS) {
    Pack p;
    p.wide = line[i];
    for (int k = 0; k < @vec@; ++k) p.part[k] /= denom;
    out[i] = p.wide;
  }
}
"""
)


def staged(vec: int, threads: int, exp: str = "expf") -> Draft:
    """A block per row with the row in shared memory, 128 KiB of it for the longest."""
    return _draft(
        {"algorithm": "cuda_staged", "vec": vec, "exp": exp},
        STAGED,
        "rows",
        threads,
        shared=True,
        reduce=REDUCTIONS["shuffle"],
        vec=vec,
        type=VECTORS[vec],
        exp=EXPONENTIALS[exp].format("p.part[k] - peak"),
    )


WARP_ROW = (
    PACK
    + "\n"
    + SIGNATURE
    + """ {
  // a warp per row: no barrier at all
  const int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const @type@* in = (const @type@*)(x + (long long)row * n_cols);
  @type@* out = (@type@*)(y + (long long)row * n_cols);
  const int n = n_cols / @vec@;
  float peak = NEG, denom = 0.f;
  @statistics@
  const float inv = 1.f / denom;
  for (int i = lane; i < n; i += 32) {
    Pack p;
    p.wide = in[i];
    for (int k = 0; k < @vec@; ++k) p.part[k] = @exp@ * inv;
    out[i] = p.wide;
  }
}
"""
)
WARP_STATISTICS = {
    "three_passes": """for (int i = lane; i < n; i += 32) {
  Pack p;
  p.wide = in[i];
  for (int k = 0; k < @vec@; ++k) peak = fmaxf(peak, p.part[k]);
}
for (int o = 16; o > 0; o >>= 1) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, o));
for (int i = lane; i < n; i += 32) {
  Pack p;
  p.wide = in[i];
  for (int k = 0; k < @vec@; ++k) denom += @exp@;
}
for (int o = 16; o > 0; o >>= 1) denom += __shfl_xor_sync(0xffffffffu, denom, o);""",
    "online": """float mine = NEG;
for (int i = lane; i < n; i += 32) {
  Pack p;
  p.wide = in[i];
  float next = mine;
  for (int k = 0; k < @vec@; ++k) next = fmaxf(next, p.part[k]);
  denom *= __expf(mine - next);
  for (int k = 0; k < @vec@; ++k) denom += __expf(p.part[k] - next);
  mine = next;
}
peak = mine;
for (int o = 16; o > 0; o >>= 1) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, o));
denom *= __expf(mine - peak);
for (int o = 16; o > 0; o >>= 1) denom += __shfl_xor_sync(0xffffffffu, denom, o);""",
}


def warp_row(vec: int, threads: int, statistics: str = "online", exp: str = "fast") -> Draft:
    """A warp per row."""
    return _draft(
        {"algorithm": "cuda_warp_row", "vec": vec, "statistics": statistics, "exp": exp},
        WARP_ROW,
        f"(rows + {threads // 32 - 1}) // {threads // 32}",
        threads,
        statistics=WARP_STATISTICS[statistics],
        vec=vec,
        type=VECTORS[vec],
        exp=EXPONENTIALS[exp].format("p.part[k] - peak"),
    )


THREAD_ROW = (
    SIGNATURE
    + """ {
  // a thread per row
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= rows) return;
  const float* in = x + (long long)row * n_cols;
  float* out = y + (long long)row * n_cols;
  float peak = NEG, denom = 0.f;
  for (int i = 0; i < n_cols; ++i) peak = fmaxf(peak, in[i]);
  for (int i = 0; i < n_cols; ++i) denom += out[i] = @exp@;
  for (int i = 0; i < n_cols; ++i) out[i] /= denom;
}
"""
)


def thread_row(threads: int, exp: str = "expf") -> Draft:
    """A thread per row."""
    return _draft(
        {"algorithm": "cuda_thread_row", "exp": exp},
        THREAD_ROW,
        f"(rows + {threads - 1}) // {threads}",
        threads,
        exp=EXPONENTIALS[exp].format("in[i] - peak"),
    )


SPLIT = """
#define THREADS @threads@
#define NEG -3.0e38f

// a block per piece of a row leaves its maximum and its sum
extern "C" __global__ void statistics(const float* x, float* peaks, float* sums, int n_cols) {
  __shared__ float parts[THREADS];
  const int width = n_cols / gridDim.x;
  const float* in = x + (long long)blockIdx.y * n_cols + blockIdx.x * width;
  float peak = NEG, denom = 0.f;
  for (int i = threadIdx.x; i < width; i += THREADS) peak = fmaxf(peak, in[i]);
  parts[threadIdx.x] = peak;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half >>= 1) {
    if (threadIdx.x < half) parts[threadIdx.x] = fmaxf(parts[threadIdx.x], parts[threadIdx.x + half]);
    __syncthreads();
  }
  peak = parts[0];
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += THREADS) denom += __expf(in[i] - peak);
  parts[threadIdx.x] = denom;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half >>= 1) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    peaks[blockIdx.y * gridDim.x + blockIdx.x] = peak;
    sums[blockIdx.y * gridDim.x + blockIdx.x] = parts[0];
  }
}

extern "C" __global__ void finish(const float* x, const float* peaks, const float* sums, float* y, int n_cols) {
  const int pieces = gridDim.x, width = n_cols / pieces;
  float peak = NEG, denom = 0.f;
  for (int k = 0; k < pieces; ++k) peak = fmaxf(peak, peaks[blockIdx.y * pieces + k]);
  for (int k = 0; k < pieces; ++k)
    denom += sums[blockIdx.y * pieces + k] * __expf(peaks[blockIdx.y * pieces + k] - peak);
  const float inv = 1.f / denom;
  const long long first = (long long)blockIdx.y * n_cols + blockIdx.x * width;
  for (int i = threadIdx.x; i < width; i += THREADS) y[first + i] = __expf(x[first + i] - peak) * inv;
}
"""
SPLIT_RUN = """
def run(x):
    rows, n_cols = x.shape
    y = torch.empty_like(x)
    peaks = torch.empty((rows, @pieces@), dtype=torch.float32, device=x.device)
    sums = torch.empty_like(peaks)
    statistics((@pieces@, rows, 1), (@threads@, 1, 1), [x, peaks, sums, n_cols])
    finish((@pieces@, rows, 1), (@threads@, 1, 1), [x, peaks, sums, y, n_cols])
    return y
"""


def split_row(pieces: int, threads: int) -> Draft:
    """Several blocks per row, in two launches."""
    code = nvrtc_module(
        fill(SPLIT, threads=threads),
        fill(SPLIT_RUN, pieces=pieces, threads=threads),
        "statistics",
        "finish",
    )
    choices = {"algorithm": "cuda_split_row", "pieces": pieces, "threads": threads}
    return Draft(choices, code, "cuda", MANNER)


ELEMENTS = """
// the statistics come from PyTorch; a thread per @vec@ numbers does the rest
extern "C" __global__ void scale(const float* x, const float* peaks, const float* sums, float* y, int n_cols,
                                 int pieces) {
  const int i = blockIdx.x * @threads@ + threadIdx.x;
  if (i >= pieces) return;
  const long long first = (long long)i * @vec@;
  const int row = (int)(first / n_cols);
#pragma unroll
  for (int k = 0; k < @vec@; ++k) y[first + k] = expf(x[first + k] - peaks[row]) / sums[row];
}
"""
ELEMENTS_RUN = """
def run(x):
    peaks = x.amax(dim=1)
    sums = @sums@
    y = torch.empty_like(x)
    pieces = x.numel() // @vec@
    blocks = (pieces + @last@) // @threads@
    scale((blocks, 1, 1), (@threads@, 1, 1), [x, peaks, sums, y, x.shape[1], pieces])
    return y
"""
SUMS = {
    "exp": "torch.exp(x - peaks[:, None]).sum(dim=1)",
    "logsumexp": "torch.exp(torch.logsumexp(x, dim=1) - peaks)",
}


def elements(vec: int, threads: int, sums: str = "exp") -> Draft:
    """Statistics in PyTorch, the quotients in a kernel."""
    code = nvrtc_module(
        fill(ELEMENTS, vec=vec, threads=threads),
        fill(ELEMENTS_RUN, vec=vec, threads=threads, last=threads - 1, sums=SUMS[sums]),
        "scale",
    )
    choices = {"algorithm": "cuda_elements", "vec": vec, "threads": threads, "sums": sums}
    return Draft(choices, code, "cuda", MANNER)


def add_cuda(pool: Pool) -> None:
    """Adds the sound sources."""
    pool.add(three_passes(vec, threads) for vec, threads in product((1, 2, 4), (128, 256, 512, 1024)))
    pool.add(
        [
            three_passes(1, 64),
            three_passes(4, 64),
            *(three_passes(1, 256, exp) for exp in ("fast", "exp2", "double")),
            *(three_passes(4, 512, exp) for exp in ("fast", "exp2")),
            *(
                three_passes(vec, 256, reduce=reduce)
                for vec, reduce in product((1, 4), ("tree", "one_thread"))
            ),
            three_passes(1, 256, scale="multiply"),
            three_passes(4, 512, "fast", scale="multiply"),
            *(three_passes(4, 256, blocks=blocks) for blocks in ("132", "528", "32")),
            *(three_passes(1, 256, host=host) for host in ("clone_in", "sync", "nan_check", "clone_out")),
        ]
    )
    pool.add(online(vec, threads) for vec, threads in product((1, 4), (128, 256, 512, 1024)))
    pool.add(
        [
            *(online(4, 512, exp) for exp in ("fast", "exp2", "double")),
            *(online(4, threads, "fast", walk="backwards") for threads in (256, 512, 1024)),
            *(online(4, threads, "fast", "backwards", "streaming") for threads in (512, 1024)),
            *(online(4, 512, blocks=blocks) for blocks in ("132", "528")),
            online(2, 256),
            *(online(4, 512, host=host) for host in ("clone_in", "sync")),
        ]
    )
    pool.add(registers(4, threads, exp) for threads, exp in product((256, 512, 1024), ("expf", "fast")))
    pool.add(registers(4, threads, "fast", "streaming") for threads in (512, 1024))
    pool.add(registers(4, 1024, "fast", blocks=blocks) for blocks in ("132", "264"))
    pool.add([registers(1, 1024), registers(2, 512), registers(2, 1024), registers(4, 1024, "exp2")])
    pool.add(registers(4, 1024, host=host) for host in ("clone_out", "nan_check"))
    pool.add(staged(vec, threads) for vec, threads in product((1, 4), (256, 512, 1024)))
    pool.add(staged(4, threads, "fast") for threads in (512, 1024))
    pool.add(
        warp_row(vec, threads, statistics)
        for vec, threads, statistics in product((1, 4), (64, 128, 256), ("online", "three_passes"))
    )
    pool.add([warp_row(2, 128), warp_row(4, 128, exp="expf"), warp_row(4, 32), warp_row(4, 512)])
    pool.add([thread_row(32), thread_row(64), thread_row(128), thread_row(64, "fast")])
    pool.add(split_row(pieces, threads) for pieces, threads in product((2, 4, 8), (128, 256)))
    pool.add(elements(vec, threads) for vec, threads in ((1, 256), (4, 256), (1, 1024)))
    pool.add([elements(1, 256, "logsumexp"), elements(4, 128, "logsumexp")])


def break_cuda(pool: Pool) -> None:
    """Adds those that fail, each derived from a sound one."""
    pool.add_broken(
        three_passes(1, 256),
        no_max={"expf(p.part[k] - peak)": "expf(p.part[k])"},
        first_column_left_out={"int i = threadIdx.x; i < n": "int i = threadIdx.x + 1; i < n"},
        undeclared_variable={"denom += expf": "total_sum += expf"},
        too_many_threads={"(256, 1, 1), [x, y": "(2048, 1, 1), [x, y"},
    )
    pool.add_broken(
        online(4, 512),
        no_rescale={"denom *= expf(mine - next);\n": ""},
        not_merged={"denom * expf(mine - peak)": "denom"},
        missing_brace={"      mine = next;\n    }\n": "      mine = next;\n"},
    )
    pool.add_broken(
        registers(4, 1024),
        half_of_the_parts={"int PARTS = 8;": "int PARTS = 4;"},
        half_of_the_lanes={"for (int o = 16;": "for (int o = 8;"},
    )
    pool.add_broken(staged(4, 512), limit_not_raised={"softmax.set_shared_memory_config(4 * n_cols)": "pass"})
    pool.add_broken(
        warp_row(4, 128),
        rows_overlap={"blockIdx.x * (THREADS / 32) + threadIdx.x / 32": "blockIdx.x + threadIdx.x / 32"},
    )
    pool.add_broken(
        split_row(4, 256), wrong_piece={"sums[blockIdx.y * pieces + k] *": "sums[blockIdx.y * pieces] *"}
    )
