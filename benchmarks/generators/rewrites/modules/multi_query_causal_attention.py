"""Causal attention by hand in which all heads share one head of keys and values."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_SOFTMAX_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def causal_softmax_kernel(scores_ptr, length, scale, BLOCK: tl.constexpr):
    # one program per row of scores; what lies in the future is neither read nor exponentiated
    row = tl.program_id(0).to(tl.int64)
    position = row % length
    cols = tl.arange(0, BLOCK)
    past = cols <= position
    at = scores_ptr + row * length + cols
    s = tl.load(at, mask=past, other=float("-inf")) * scale
    e = tl.exp(s - tl.max(s, axis=0))
    tl.store(at, e / tl.sum(e, axis=0), mask=cols < length)
"""

_FLASH_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def flash_kernel(q_ptr, k_ptr, v_ptr, out_ptr, heads, length, scale, D: tl.constexpr, BLOCK_M: tl.constexpr,
                 BLOCK_N: tl.constexpr):
    # q and out: (batch, length, heads, D); k and v: (batch, length, D); all in half precision
    start = tl.program_id(0) * BLOCK_M
    b = tl.program_id(1) // heads
    h = tl.program_id(1) % heads
    m = start + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    inside = m < length
    q_at = ((b * length + m[:, None]) * heads + h) * D + d[None, :]
    q = tl.load(q_ptr + q_at, mask=inside[:, None], other=0.0)
    top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    for first in range(0, start + BLOCK_M, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        kv_at = (b * length + n[:, None]) * D + d[None, :]
        k = tl.load(k_ptr + kv_at, mask=n[:, None] < length, other=0.0)
        v = tl.load(v_ptr + kv_at, mask=n[:, None] < length, other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        s = tl.where((n[None, :] <= m[:, None]) & (n[None, :] < length), s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp(s - higher[:, None])
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(p, axis=1)
        acc = acc * fade[:, None] + tl.dot(p.to(tl.float16), v)
        top = higher
    acc = acc / total[:, None]
    tl.store(out_ptr + q_at, acc.to(tl.float16), mask=inside[:, None])
"""

_INIT = """
    self.heads = heads
    self.head_size = width // heads
    self.query = nn.Linear(width, width)
    self.key = nn.Linear(width, self.head_size)
    self.value = nn.Linear(width, self.head_size)
    self.out = nn.Linear(width, width)
"""

_PACKED = """
    with torch.no_grad():
        self.register_buffer(
            "packed_weight", torch.cat([self.query.weight, self.key.weight, self.value.weight])
        )
        self.register_buffer("packed_bias", torch.cat([self.query.bias, self.key.bias, self.value.bias]))
"""

_CUDA_BLOCK_PER_QUERY = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

#define TILE 16
#define THREADS 128

__global__ void linear_tiled(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                             float* __restrict__ y, int M, int N, int K) {
    __shared__ float xs[TILE][TILE];
    __shared__ float ws[TILE][TILE + 1];
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.y * TILE + ty;
    int col = blockIdx.x * TILE + tx;
    int w_row = blockIdx.x * TILE + ty;
    float acc = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        xs[ty][tx] = (row < M && k0 + tx < K) ? x[(long)row * K + k0 + tx] : 0.0f;
        ws[ty][tx] = (w_row < N && k0 + tx < K) ? w[(long)w_row * K + k0 + tx] : 0.0f;
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < TILE; ++k) acc += xs[ty][k] * ws[tx][k];
        __syncthreads();
    }
    if (row < M && col < N) y[(long)row * N + col] = acc + b[col];
}

// One block per query and head; the scores of the query live in shared memory.
__global__ void attention_kernel(const float* __restrict__ q, const float* __restrict__ k,
                                 const float* __restrict__ v, float* __restrict__ y, int T, int H, int D,
                                 float scale) {
    extern __shared__ float smem[];
    __shared__ float red[THREADS];
    float* scores = smem;
    float* qs = smem + T;
    int t = blockIdx.x, h = blockIdx.y, b = blockIdx.z, tid = threadIdx.x;
    long q_at = ((long)b * T + t) * H * D + h * D;
    const float* keys = k + (long)b * T * D;
    const float* values = v + (long)b * T * D;
    for (int d = tid; d < D; d += THREADS) qs[d] = q[q_at + d] * scale;
    __syncthreads();

    float highest = -1e30f;
    for (int j = tid; j <= t; j += THREADS) {
        float dot = 0.0f;
        for (int d = 0; d < D; ++d) dot += qs[d] * keys[j * D + d];
        scores[j] = dot;
        highest = fmaxf(highest, dot);
    }
    red[tid] = highest;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (tid < s) red[tid] = fmaxf(red[tid], red[tid + s]);
        __syncthreads();
    }
    highest = red[0];
    __syncthreads();

    float sum = 0.0f;
    for (int j = tid; j <= t; j += THREADS) {
        scores[j] = expf(scores[j] - highest);
        sum += scores[j];
    }
    red[tid] = sum;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (tid < s) red[tid] += red[tid + s];
        __syncthreads();
    }
    sum = red[0];

    for (int d = tid; d < D; d += THREADS) {
        float acc = 0.0f;
        for (int j = 0; j <= t; ++j) acc += scores[j] * values[j * D + d];
        y[q_at + d] = acc / sum;
    }
}

torch::Tensor linear(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    int M = x.size(0) * x.size(1), K = x.size(2), N = w.size(0);
    auto y = torch::empty({x.size(0), x.size(1), N}, x.options());
    dim3 block(TILE, TILE);
    dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
    linear_tiled<<<grid, block>>>(x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(),
                                  M, N, K);
    return y;
}

torch::Tensor mqa_forward(torch::Tensor x, torch::Tensor wq, torch::Tensor bq, torch::Tensor wk, torch::Tensor bk,
                          torch::Tensor wv, torch::Tensor bv, torch::Tensor wo, torch::Tensor bo, int64_t heads) {
    auto q = linear(x, wq, bq);
    auto k = linear(x, wk, bk);
    auto v = linear(x, wv, bv);
    auto y = torch::empty_like(q);
    int B = x.size(0), T = x.size(1), D = k.size(2);
    size_t shared = (T + D) * sizeof(float);
    attention_kernel<<<dim3(T, heads, B), THREADS, shared>>>(q.data_ptr<float>(), k.data_ptr<float>(),
                                                             v.data_ptr<float>(), y.data_ptr<float>(), T, (int)heads,
                                                             D, 1.0f / sqrtf((float)D));
    return linear(y, wo, bo);
}
"""

mqa_cuda = load_inline(
    name="multi_query_causal_attention_block_per_query",
    cpp_sources="torch::Tensor mqa_forward(torch::Tensor x, torch::Tensor wq, torch::Tensor bq, torch::Tensor wk, "
    "torch::Tensor bk, torch::Tensor wv, torch::Tensor bv, torch::Tensor wo, torch::Tensor bo, int64_t heads);",
    cuda_sources=source,
    functions=["mqa_forward"],
    verbose=False,
)
'''

_CUDA_FLASH = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

constexpr int D = 64;
constexpr int ROWS = 64;
constexpr int KEYS = 32;

// A thread per query: query and output in registers, tiles of keys and values in shared memory.
__global__ void __launch_bounds__(ROWS) flash_kernel(const float* __restrict__ q, const float* __restrict__ k,
                                                     const float* __restrict__ v, float* __restrict__ y, int T,
                                                     int H, float scale) {
    __shared__ float4 ks[KEYS][D / 4];
    __shared__ float4 vs[KEYS][D / 4];
    const int first = blockIdx.x * ROWS;
    const int h = blockIdx.y, b = blockIdx.z;
    const int t = first + threadIdx.x;
    const bool active = t < T;
    const long at = (((long)b * T + (active ? t : 0)) * H + h) * D;
    float mine[D], acc[D];
    #pragma unroll
    for (int d = 0; d < D; ++d) {
        mine[d] = q[at + d] * scale;
        acc[d] = 0.0f;
    }
    float top = -1e30f, total = 0.0f;
    const int end = min(first + ROWS, T);
    const float4* k4 = reinterpret_cast<const float4*>(k + (long)b * T * D);
    const float4* v4 = reinterpret_cast<const float4*>(v + (long)b * T * D);
    for (int start = 0; start < end; start += KEYS) {
        for (int i = threadIdx.x; i < KEYS * D / 4; i += ROWS) {
            int j = start + i / (D / 4);
            float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            ks[i / (D / 4)][i % (D / 4)] = j < T ? k4[(long)j * (D / 4) + i % (D / 4)] : zero;
            vs[i / (D / 4)][i % (D / 4)] = j < T ? v4[(long)j * (D / 4) + i % (D / 4)] : zero;
        }
        __syncthreads();
        for (int j = 0; j < KEYS && start + j <= t && start + j < T; ++j) {
            float s = 0.0f;
            #pragma unroll
            for (int d = 0; d < D / 4; ++d) {
                float4 key = ks[j][d];
                s += mine[4 * d] * key.x + mine[4 * d + 1] * key.y + mine[4 * d + 2] * key.z + mine[4 * d + 3] * key.w;
            }
            if (s > top) {
                float fade = __expf(top - s);
                total *= fade;
                #pragma unroll
                for (int d = 0; d < D; ++d) acc[d] *= fade;
                top = s;
            }
            float p = __expf(s - top);
            total += p;
            #pragma unroll
            for (int d = 0; d < D / 4; ++d) {
                float4 value = vs[j][d];
                acc[4 * d] += p * value.x;
                acc[4 * d + 1] += p * value.y;
                acc[4 * d + 2] += p * value.z;
                acc[4 * d + 3] += p * value.w;
            }
        }
        __syncthreads();
    }
    if (!active) return;
    const float inverse = 1.0f / total;
    #pragma unroll
    for (int d = 0; d < D; ++d) y[at + d] = acc[d] * inverse;
}

torch::Tensor flash_forward(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
    TORCH_CHECK(q.is_cuda() && k.is_cuda() && v.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(q.is_contiguous() && k.is_contiguous() && v.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(q.scalar_type() == torch::kFloat32, "float32 expected");
    TORCH_CHECK(k.size(2) == D, "heads of 64 features only");
    const int B = q.size(0), T = q.size(1), H = q.size(2) / D;
    auto y = torch::empty_like(q);
    dim3 grid((T + ROWS - 1) / ROWS, H, B);
    flash_kernel<<<grid, ROWS, 0, at::cuda::getCurrentCUDAStream()>>>(
        q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), y.data_ptr<float>(), T, H,
        1.0f / sqrtf((float)D));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""
flash = load_inline(
    name="multi_query_causal_attention_flash",
    cpp_sources="torch::Tensor flash_forward(torch::Tensor q, torch::Tensor k, torch::Tensor v);",
    cuda_sources=source,
    functions=["flash_forward"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="multi_query_causal_attention",
    sizes="""
        batch_size = 4
        length = 1024
        width = 512
        heads = 8
    """,
    arguments=("width", "heads"),
    takes="x",
    inputs="[torch.randn(batch_size, length, width)]",
    reference=Body(
        summary="Multi-query attention: every head has queries of its own, keys and values are shared.",
        init=_INIT,
        forward="""
            B, T, C = x.shape
            q = self.query(x).view(B, T, self.heads, self.head_size).transpose(1, 2)
            k = self.key(x).unsqueeze(1).repeat(1, self.heads, 1, 1)
            v = self.value(x).unsqueeze(1).repeat(1, self.heads, 1, 1)
            scores = q @ k.transpose(-2, -1) / self.head_size**0.5
            mask = torch.tril(torch.ones(T, T, device=x.device))
            scores = scores.masked_fill(mask == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
            y = y.transpose(1, 2).contiguous().view(B, T, C)
            return self.out(y)
        """,
    ),
    rewrites={
        "library_attention": Body(
            forward="""
                B, T, C = x.shape
                q = self.query(x).view(B, T, self.heads, self.head_size).transpose(1, 2)
                k = self.key(x).unsqueeze(1).expand(-1, self.heads, -1, -1)
                v = self.value(x).unsqueeze(1).expand(-1, self.heads, -1, -1)
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                return self.out(y.transpose(1, 2).reshape(B, T, C))
            """
        ),
        "packed_projection": Body(
            summary="Queries, keys and values from one product, and attention by the library.",
            init=_INIT + _PACKED,
            forward="""
                B, T, C = x.shape
                packed = F.linear(x, self.packed_weight, self.packed_bias)
                q, k, v = packed.split([C, self.head_size, self.head_size], dim=-1)
                q = q.view(B, T, self.heads, self.head_size).transpose(1, 2)
                k = k.unsqueeze(1).expand(-1, self.heads, -1, -1)
                v = v.unsqueeze(1).expand(-1, self.heads, -1, -1)
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                return self.out(y.transpose(1, 2).reshape(B, T, C))
            """,
        ),
        "heads_as_rows": Body(
            summary="""Multi-query attention without repeated keys.

    All heads of a position meet the same keys, so that heads can stand among the rows of one batched product:
    (B, T * heads, D) times (B, D, T). The scale is folded into the query projection, and the mask is kept.
    """,
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("scaled_weight", self.query.weight / self.head_size**0.5)
        self.register_buffer("scaled_bias", self.query.bias / self.head_size**0.5)
    self._mask = None
""",
            methods='''
                def _future(self, T, device):
                    """True where a key lies after the query; remembered for the last length."""
                    if self._mask is None or self._mask.shape[0] != T or self._mask.device != device:
                        future = torch.ones(T, T, dtype=torch.bool, device=device).triu(1)
                        self._mask = future.view(T, 1, T)
                    return self._mask
            ''',
            forward="""
                B, T, C = x.shape
                q = F.linear(x, self.scaled_weight, self.scaled_bias).view(B, T * self.heads, self.head_size)
                scores = torch.bmm(q, self.key(x).transpose(1, 2))
                scores.view(B, T, self.heads, T).masked_fill_(self._future(T, x.device), float("-inf"))
                y = torch.bmm(torch.softmax(scores, dim=-1), self.value(x))
                return self.out(y.view(B, T, C))
            """,
        ),
        "bias_in_product": Body(
            summary="The causal mask is added by the product of queries and keys itself.",
            forward="""
                B, T, C = x.shape
                H, D = self.heads, self.head_size
                mask = torch.full((T, T), float("-inf"), device=x.device).triu_(1)
                q = self.query(x).view(B, T, H, D).transpose(1, 2).reshape(B * H, T, D)
                k = self.key(x).repeat_interleave(H, dim=0)
                v = self.value(x).repeat_interleave(H, dim=0)
                p = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=D**-0.5).softmax(dim=-1)
                y = torch.bmm(p, v).view(B, H, T, D).transpose(1, 2).reshape(B, T, C)
                return self.out(y)
            """,
        ),
        "query_chunks": Body(
            summary="Queries in chunks; a chunk never looks at keys after its end.",
            init=_INIT + "\n    self.chunk = 256\n",
            forward="""
                B, T, C = x.shape
                H, D = self.heads, self.head_size
                q = self.query(x).view(B, T, H, D).transpose(1, 2) * D**-0.5
                k = self.key(x).unsqueeze(1).transpose(-2, -1)
                v = self.value(x).unsqueeze(1)
                pieces = []
                for start in range(0, T, self.chunk):
                    end = min(start + self.chunk, T)
                    scores = q[:, :, start:end] @ k[..., :end]
                    rows = torch.arange(start, end, device=x.device).unsqueeze(1)
                    cols = torch.arange(end, device=x.device)
                    scores.masked_fill_(cols > rows, float("-inf"))
                    pieces.append(scores.softmax(dim=-1) @ v[:, :, :end])
                y = torch.cat(pieces, dim=2).transpose(1, 2).reshape(B, T, C)
                return self.out(y)
            """,
        ),
        "head_by_head": Body(
            summary="One head after another, to keep one matrix of scores at a time.",
            forward="""
                B, T, C = x.shape
                q = self.query(x)
                k = self.key(x).transpose(1, 2).contiguous()
                v = self.value(x)
                mask = torch.ones(T, T, dtype=torch.bool, device=x.device).triu_(diagonal=1)
                y = torch.empty_like(q)
                for h in range(self.heads):
                    part = slice(h * self.head_size, (h + 1) * self.head_size)
                    scores = torch.bmm(q[:, :, part], k).mul_(self.head_size**-0.5)
                    scores.masked_fill_(mask, float("-inf"))
                    y[:, :, part] = torch.bmm(scores.softmax(dim=-1), v)
                return self.out(y)
            """,
        ),
        "triton_softmax": Body(
            before=_SOFTMAX_KERNEL,
            forward="""
                B, T, C = x.shape
                H, D = self.heads, self.head_size
                q = self.query(x).view(B, T, H, D).transpose(1, 2).reshape(B, H * T, D)
                scores = torch.bmm(q, self.key(x).transpose(1, 2))
                causal_softmax_kernel[(B * H * T,)](scores, T, D**-0.5, BLOCK=triton.next_power_of_2(T))
                y = torch.bmm(scores, self.value(x)).view(B, H, T, D)
                return self.out(y.transpose(1, 2).reshape(B, T, C))
            """,
        ),
        "triton_flash_half": Body(
            summary="Attention in one kernel with half-precision products and single-precision sums.",
            before=_FLASH_KERNEL,
            init=_INIT + _PACKED,
            forward="""
                B, T, C = x.shape
                H, D = self.heads, self.head_size
                packed = F.linear(x, self.packed_weight, self.packed_bias).half()
                q = packed[..., :C].contiguous()
                k = packed[..., C : C + D].contiguous()
                v = packed[..., C + D :].contiguous()
                y = torch.empty_like(q)
                grid = (triton.cdiv(T, 64), B * H)
                flash_kernel[grid](q, k, v, y, H, T, D**-0.5, D=D, BLOCK_M=64, BLOCK_N=64, num_warps=4)
                return self.out(y.float())
            """,
        ),
        "cuda_block_per_query": Body(
            before=_CUDA_BLOCK_PER_QUERY,
            init=_INIT,
            forward="""
                return mqa_cuda.mqa_forward(
                    x.contiguous(), self.query.weight, self.query.bias, self.key.weight, self.key.bias,
                    self.value.weight, self.value.bias, self.out.weight, self.out.bias, self.heads,
                )
            """,
        ),
        "cuda_thread_per_query": Body(
            summary="""Multi-query attention whose scores are never written to memory.

    Projections are the library's; softmax and both products of the attention are one kernel in single precision.
    Heads of another size than 64, and other types, take the library's attention.
    """,
            before=_CUDA_FLASH,
            init=_INIT,
            methods='''
                def _attend(self, q, k, v):
                    """Causal attention, (B, T, heads * head_size) with keys and values of one head."""
                    if q.is_cuda and q.dtype == torch.float32 and self.head_size == 64:
                        return flash.flash_forward(q.contiguous(), k.contiguous(), v.contiguous())
                    B, T, C = q.shape
                    q = q.view(B, T, self.heads, self.head_size).transpose(1, 2)
                    k = k.unsqueeze(1).expand(-1, self.heads, -1, -1)
                    v = v.unsqueeze(1).expand(-1, self.heads, -1, -1)
                    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    return y.transpose(1, 2).reshape(B, T, C)
            ''',
            forward="return self.out(self._attend(self.query(x), self.key(x), self.value(x)))",
        ),
    },
    carries_on="packed_projection",
)
