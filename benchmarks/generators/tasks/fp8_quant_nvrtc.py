"""The sources of `fp8_quant` in CUDA C++ that NVRTC builds."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from benchmarks.generators.pool import Draft, Pool
from benchmarks.generators.tasks.nvrtc import nvrtc_module
from benchmarks.generators.text import Manner, fill

MANNER = Manner(
    names={
        "groups": ["n_groups", "num_groups", "G"],
        "lane": ["lane_id", "laneId", "l"],
        "top": ["amax", "mx", "absmax"],
        "scale": ["sc", "factor", "quant_scale"],
        "group_max": ["reduce_max", "warp_max", "max_over_group"],
        "squeeze": ["quantise4", "quant4", "scaled"],
    },
    notes=(
        "Per-token-group FP8 quantisation in CUDA C++.",
        "Group quantisation (128 values share a scale), built with NVRTC.",
        "FP8 group quantisation.\n\nKeeps the quotients in float32.\n",
    ),
)

HEAD = """
#define THREADS @threads@

__device__ __forceinline__ float max4(float4 v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

__device__ __forceinline__ float clip(float v) { return fminf(fmaxf(v, -448.f), 448.f); }

__device__ __forceinline__ float4 squeeze(float4 v, float scale) {
  @inverse@
  return make_float4(clip(v.x @by@), clip(v.y @by@), clip(v.z @by@), clip(v.w @by@));
}
"""
MATH = {
    "divide": ("", "/ scale"),
    "reciprocal": ("const float inv = 1.f / scale;", "* inv"),
    "fast": ("const float inv = __frcp_rn(scale);", "* inv"),
}
# Each defines group_max(m): the maximum over the LANES threads that share a group.
GROUP_MAX = {
    "shuffle": """__device__ __forceinline__ float group_max(float m) {
#pragma unroll
  for (int o = LANES / 2; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
  return m;
}""",
    "down_then_broadcast": """__device__ __forceinline__ float group_max(float m) {
  for (int o = LANES / 2; o > 0; o /= 2) m = fmaxf(m, __shfl_down_sync(0xffffffffu, m, o, LANES));
  return __shfl_sync(0xffffffffu, m, 0, LANES);
}""",
    "redux": """__device__ __forceinline__ float group_max(float m) {
  // floats that are not negative order like their bits, and for integers there is an instruction
  return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(m)));
}""",
}
SIGNATURE = (
    'extern "C" __global__ void quant(const float4* __restrict__ x, float4* __restrict__ q, float* s,\n'
    "                                 int groups)"
)

RUN = """
def run(x):
    @pre@
    q = torch.empty_like(x)
    s = torch.empty(x.shape[0], x.shape[1] // 128, device=x.device, dtype=torch.float32)
    groups = s.numel()
    quant((@blocks@, 1, 1), (@threads@, 1, 1), [x, q, s, groups])
    @post@
    return q, s
"""
HOST: dict[str | None, tuple[str, str]] = {
    None: ("", ""),
    "sync": ("", "torch.cuda.synchronize()"),
    "clone_in": ("x = x.clone()", ""),
    "nan_check": ("", "if bool(torch.isnan(q).any()):\n    raise RuntimeError('NaN')"),
}


def _draft(
    choices: Mapping[str, object],
    kernel: str,
    blocks: str,
    threads: int,
    math: str,
    host: str | None = None,
    **slots: object,
) -> Draft:
    inverse, by = MATH[math]
    pre, post = HOST[host]
    text = fill(HEAD + "\n" + kernel, threads=threads, inverse=inverse, by=by, **slots)
    run = fill(RUN, blocks=blocks, threads=threads, pre=pre, post=post)
    key = {**choices, "threads": threads, "math": math, "host": host}
    return Draft(key, nvrtc_module(text, run, "quant"), "cuda", MANNER)


UNROLLED = (
    "#define LANES 32\n@max@\n\n"
    + SIGNATURE
    + """ {
  // a warp has the loads of @unroll@ groups in flight before it waits for the first
  const int warp = (blockIdx.x * THREADS + threadIdx.x) / 32;
  const int warps = gridDim.x * THREADS / 32;
  const int lane = threadIdx.x % 32;
  float4 v[@unroll@];
#pragma unroll
  for (int k = 0; k < @unroll@; ++k) {
    const int g = @group@;
    if (g < groups) v[k] = @load@;
  }
#pragma unroll
  for (int k = 0; k < @unroll@; ++k) {
    const int g = @group@;
    if (g >= groups) continue;
    const float top = fmaxf(group_max(max4(v[k])), 1e-10f);
    const float scale = top / 448.f;
    @store@
    if (lane == 0) s[g] = scale;
  }
}
"""
)


def unrolled(
    unroll: int,
    threads: int,
    layout: str = "neighbours",
    reduce: str = "shuffle",
    math: str = "divide",
    cache: str = "plain",
    host: str | None = None,
) -> Draft:
    """A warp takes several groups, side by side or far apart."""
    streaming = cache == "streaming"
    choices = {
        "algorithm": "nvrtc_unrolled",
        "unroll": unroll,
        "layout": layout,
        "reduce": reduce,
        "cache": cache,
    }
    per_block = threads // 32 * unroll
    return _draft(
        choices,
        UNROLLED,
        f"(groups + {per_block - 1}) // {per_block}",
        threads,
        math,
        host,
        max=GROUP_MAX[reduce],
        unroll=unroll,
        group=f"warp * {unroll} + k" if layout == "neighbours" else "warp + k * warps",
        load="__ldcs(x + (long long)g * 32 + lane)" if streaming else "x[(long long)g * 32 + lane]",
        store="__stcs(q + (long long)g * 32 + lane, squeeze(v[k], scale));"
        if streaming
        else "q[(long long)g * 32 + lane] = squeeze(v[k], scale);",
    )


LANES = (
    "#define LANES @lanes@\n@max@\n\n"
    + SIGNATURE
    + """ {
  constexpr int V = 32 / LANES;
  const int g = (blockIdx.x * THREADS + threadIdx.x) / LANES;
  const int lane = threadIdx.x % LANES;
  const bool live = g < groups;
  float4 v[V];
  float top = 1e-10f;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    v[k] = live ? x[(long long)g * 32 + k * LANES + lane] : make_float4(0.f, 0.f, 0.f, 0.f);
    top = fmaxf(top, max4(v[k]));
  }
  const float scale = group_max(top) / 448.f;
  if (!live) return;
#pragma unroll
  for (int k = 0; k < V; ++k) q[(long long)g * 32 + k * LANES + lane] = squeeze(v[k], scale);
  if (lane == 0) s[g] = scale;
}
"""
)


def lanes(count: int, threads: int, reduce: str = "shuffle", math: str = "divide") -> Draft:
    """A part of a warp per group."""
    per_block = threads // count
    return _draft(
        {"algorithm": "nvrtc_lanes", "lanes": count, "reduce": reduce},
        LANES,
        f"(groups + {per_block - 1}) // {per_block}",
        threads,
        math,
        max=GROUP_MAX[reduce],
        lanes=count,
    )


STRIDE = (
    "#define LANES 32\n@max@\n\n"
    + SIGNATURE
    + """ {
  const int lane = threadIdx.x % 32;
  const int warps = gridDim.x * (THREADS / 32);
  for (int g = blockIdx.x * (THREADS / 32) + threadIdx.x / 32; g < groups; g += warps) {
    const float4 v = x[(long long)g * 32 + lane];
    const float scale = fmaxf(group_max(max4(v)), 1e-10f) / 448.f;
    q[(long long)g * 32 + lane] = squeeze(v, scale);
    if (lane == 0) s[g] = scale;
  }
}
"""
)


def stride(blocks: int, threads: int, reduce: str = "shuffle", math: str = "divide") -> Draft:
    """A fixed number of blocks whose warps stride over the groups."""
    choices = {"algorithm": "nvrtc_stride", "blocks": blocks, "reduce": reduce}
    return _draft(choices, STRIDE, str(blocks), threads, math, max=GROUP_MAX[reduce])


STAGED = (
    SIGNATURE
    + """ {
  // the block's groups go through shared memory; one thread finds the maximum of a group
  __shared__ float4 tile[THREADS];
  __shared__ float scales[THREADS / 32];
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  const bool live = at < (long long)groups * 32;
  const float4 v = live ? x[at] : make_float4(0.f, 0.f, 0.f, 0.f);
  tile[threadIdx.x] = v;
  __syncthreads();
  if (threadIdx.x < THREADS / 32) {
    float top = 1e-10f;
    for (int k = 0; k < 32; ++k) top = fmaxf(top, max4(tile[threadIdx.x * 32 + k]));
    scales[threadIdx.x] = top / 448.f;
  }
  __syncthreads();
  const float scale = scales[threadIdx.x / 32];
  if (live) {
    q[at] = squeeze(v, scale);
    if (threadIdx.x % 32 == 0) s[at / 32] = scale;
  }
}
"""
)


def staged(threads: int, math: str = "divide") -> Draft:
    """Few threads find the maxima of all groups of a block."""
    blocks = f"(groups * 32 + {threads - 1}) // {threads}"
    return _draft({"algorithm": "nvrtc_staged"}, STAGED, blocks, threads, math)


def add_cuda(pool: Pool) -> None:
    """Adds the sound sources."""
    pool.add(unrolled(u, t) for u, t in product((1, 2, 4), (64, 128, 256)))
    pool.add([unrolled(8, 128), unrolled(8, 256), unrolled(1, 512), unrolled(1, 32)])
    pool.add(unrolled(u, 128, "far_apart") for u in (2, 4, 8))
    pool.add(unrolled(u, 128, reduce="redux") for u in (1, 2, 4))
    pool.add(unrolled(u, 128, reduce="down_then_broadcast") for u in (1, 2))
    pool.add(
        unrolled(u, 128, math=m) for u, m in ((1, "reciprocal"), (2, "reciprocal"), (4, "fast"), (1, "fast"))
    )
    pool.add(unrolled(u, 128, cache="streaming") for u in (1, 2, 4))
    pool.add([unrolled(4, 128, "far_apart", "redux", "reciprocal", "streaming")])
    pool.add(unrolled(2, 128, host=h) for h in ("sync", "clone_in", "nan_check"))
    pool.add(lanes(n, 128) for n in (4, 8, 16, 32))
    pool.add(
        [
            lanes(8, 256),
            lanes(16, 64),
            lanes(8, 128, math="reciprocal"),
            lanes(16, 128, "down_then_broadcast"),
        ]
    )
    pool.add(stride(b, t) for b, t in ((132, 256), (264, 512), (528, 256), (1056, 128), (8, 256)))
    pool.add([stride(528, 256, "redux"), stride(528, 256, math="reciprocal")])
    pool.add([staged(128), staged(256), staged(1024), staged(256, "reciprocal")])


def break_cuda(pool: Pool) -> None:
    """Adds sources that fail."""
    pool.add_broken(
        unrolled(2, 128),
        no_floor={"fmaxf(group_max(max4(v[k])), 1e-10f)": "group_max(max4(v[k]))"},
        wrong_range={"top / 448.f": "top / 240.f"},
        undefined_name={"squeeze(v[k], scale)": "squeeze(v[k], scales)"},
        wild_pointer={"x[(long long)g * 32 + lane]": "x[(long long)g * 32000003LL + lane]"},
    )
    pool.add_broken(lanes(8, 128), short_shuffle={"LANES / 2;": "LANES / 4;"}, half_grid={"// 16": "// 32"})
    pool.add_broken(
        lanes(16, 128, "down_then_broadcast"),
        no_broadcast={"return __shfl_sync(0xffffffffu, m, 0, LANES);": "return m;"},
    )
    pool.add_broken(staged(256), too_many_threads={"(256, 1, 1)": "(1280, 1, 1)"})
    pool.add_broken(
        stride(528, 256), syntax={"const int lane = threadIdx.x % 32;": "const int lane = threadIdx.x % 32"}
    )


def link_cuda(pool: Pool) -> None:
    """Names the changes of algorithm within these sources that count as one edit."""
    pool.link(unrolled(1, 128), lanes(32, 128), lanes(16, 128))
    pool.link(unrolled(1, 256), stride(528, 256))
    pool.link(unrolled(1, 128), staged(128))
