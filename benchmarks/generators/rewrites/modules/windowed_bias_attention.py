"""Attention to a window of past positions, with a learned bias per head and distance."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_BAND_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def band_kernel(q_ptr, k_ptr, v_ptr, bias_ptr, out_ptr, heads, length, scale, WINDOW: tl.constexpr,
                D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    start = tl.program_id(0) * BLOCK_M
    bh = tl.program_id(1)
    head = bh % heads
    m = start + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    base = bh * length * D
    q = tl.load(q_ptr + base + m[:, None] * D + d[None, :], mask=m[:, None] < length, other=0.0) * scale
    top = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    lowest = tl.maximum(start - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    for first in range(lowest, start + BLOCK_M, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        at = base + n[:, None] * D + d[None, :]
        k = tl.load(k_ptr + at, mask=n[:, None] < length, other=0.0)
        v = tl.load(v_ptr + at, mask=n[:, None] < length, other=0.0)
        distance = m[:, None] - n[None, :]
        seen = (distance >= 0) & (distance < WINDOW)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        s += tl.load(bias_ptr + head * WINDOW + distance, mask=seen, other=0.0)
        s = tl.where(seen, s, -1.0e30)
        higher = tl.maximum(top, tl.max(s, axis=1))
        p = tl.where(seen, tl.exp(s - higher[:, None]), 0.0)
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(p, axis=1)
        acc = acc * fade[:, None] + tl.dot(p, v, input_precision="ieee")
        top = higher
    tl.store(out_ptr + base + m[:, None] * D + d[None, :], acc / total[:, None], mask=m[:, None] < length)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One warp per query; a lane holds one of the 32 features of the head. The softmax runs along with the keys.
__global__ void window_attention(const float* __restrict__ q, const float* __restrict__ k,
                                 const float* __restrict__ v, const float* __restrict__ bias,
                                 float* __restrict__ out, int heads, int length, int window, float scale, long rows) {
    long row = blockIdx.x * (long)(blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= rows) return;
    long bh = row / length;
    int position = row % length;
    int head = bh % heads;
    float mine = q[row * 32 + lane] * scale;
    float top = -1e30f, total = 0.0f, sum = 0.0f;
    int first = max(0, position - window + 1);
    for (int j = first; j <= position; ++j) {
        long at = (bh * length + j) * 32 + lane;
        float score = mine * k[at];
        for (int o = 16; o > 0; o >>= 1) score += __shfl_xor_sync(0xffffffff, score, o);
        score += bias[head * window + position - j];
        float higher = fmaxf(top, score);
        float fade = __expf(top - higher);
        float weight = __expf(score - higher);
        total = total * fade + weight;
        sum = sum * fade + weight * v[at];
        top = higher;
    }
    out[row * 32 + lane] = sum / total;
}

torch::Tensor window_forward(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor bias) {
    TORCH_CHECK(q.size(3) == 32, "heads of 32 features only");
    auto out = torch::empty_like(q);
    int heads = q.size(1), length = q.size(2), window = bias.size(1);
    long rows = q.size(0) * heads * (long)length;
    int warps = 8;
    window_attention<<<(rows + warps - 1) / warps, warps * 32>>>(
        q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), bias.data_ptr<float>(),
        out.data_ptr<float>(), heads, length, window, 1.0f / sqrtf(32.0f), rows);
    return out;
}
"""
window_module = load_inline(
    name="windowed_bias_attention_warp",
    cpp_sources="torch::Tensor window_forward(torch::Tensor q, torch::Tensor k, torch::Tensor v, "
    "torch::Tensor bias);",
    cuda_sources=source,
    functions=["window_forward"],
)
'''

_INIT = """
    self.window = window
    self.bias = nn.Parameter(torch.randn(heads, window) * 0.5)
"""

# (heads, length, length): the bias where a query sees a key, minus infinity elsewhere
_DENSE_BIAS = """
    with torch.no_grad():
        at = torch.arange(length)
        distance = at[:, None] - at[None, :]
        dense = self.bias[:, distance.clamp(0, window - 1)]
        dense = dense.masked_fill((distance < 0) | (distance >= window), float("-inf"))
        self.register_buffer("dense_bias", dense)
"""

_CUDA_BLOCK_PER_QUERY = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

#define THREADS 128

// One block per query: scores of its window in shared memory, softmax, weighted sum of values.
__global__ void windowed_attention_kernel(const float* q, const float* k, const float* v, const float* bias,
                                          float* out, int heads, int length, int head_size, int window,
                                          float scale) {
    extern __shared__ float shared[];
    __shared__ float red[THREADS];
    float* scores = shared;
    float* query = shared + window;
    int tid = threadIdx.x;
    int t = blockIdx.x;
    int head = blockIdx.y % heads;
    long base = (long)blockIdx.y * length * head_size;
    int first = max(0, t - window + 1);
    int count = t - first + 1;

    for (int d = tid; d < head_size; d += THREADS) query[d] = q[base + (long)t * head_size + d];
    __syncthreads();

    float highest = -INFINITY;
    for (int j = tid; j < count; j += THREADS) {
        const float* key = k + base + (long)(first + j) * head_size;
        float dot = 0.0f;
        for (int d = 0; d < head_size; d++) dot += query[d] * key[d];
        float score = dot * scale + bias[head * window + count - 1 - j];
        scores[j] = score;
        highest = fmaxf(highest, score);
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
    for (int j = tid; j < count; j += THREADS) {
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

    for (int d = tid; d < head_size; d += THREADS) {
        float acc = 0.0f;
        for (int j = 0; j < count; j++) acc += scores[j] * v[base + (long)(first + j) * head_size + d];
        out[base + (long)t * head_size + d] = acc / sum;
    }
}

torch::Tensor windowed_attention(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor bias) {
    auto out = torch::empty_like(q);
    int batch = q.size(0), heads = q.size(1), length = q.size(2), head_size = q.size(3), window = bias.size(1);
    dim3 grid(length, batch * heads);
    windowed_attention_kernel<<<grid, THREADS, (window + head_size) * sizeof(float)>>>(
        q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(),
        heads, length, head_size, window, 1.0f / sqrtf((float)head_size));
    return out;
}
"""

windowed_ext = load_inline(
    name="windowed_bias_attention_block_per_query",
    cpp_sources="torch::Tensor windowed_attention(torch::Tensor q, torch::Tensor k, torch::Tensor v, "
    "torch::Tensor bias);",
    cuda_sources=source,
    functions=["windowed_attention"],
    verbose=False,
)
'''

_CUDA_BAND_SOFTMAX = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

// A warp per row of scores, in place: scale, bias and softmax within the window, zeros outside of it.
__global__ void band_softmax(float* __restrict__ scores, const float* __restrict__ bias, int heads, int length,
                             int window, float scale, int64_t rows) {
    const int64_t row = blockIdx.x * (int64_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    const int lane = threadIdx.x & 31;
    if (row >= rows) return;
    const int t = row % length;
    const float* b = bias + (row / length) % heads * window;
    float* s = scores + row * length;
    const int first = max(0, t - window + 1);

    float top = -1e30f, total = 0.0f;
    for (int j = first + lane; j <= t; j += 32) {
        const float v = s[j] * scale + b[t - j];
        const float higher = fmaxf(top, v);
        total = total * __expf(top - higher) + __expf(v - higher);
        top = higher;
    }
    #pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        const float other_top = __shfl_xor_sync(0xffffffffu, top, o);
        const float other_total = __shfl_xor_sync(0xffffffffu, total, o);
        const float higher = fmaxf(top, other_top);
        total = total * __expf(top - higher) + other_total * __expf(other_top - higher);
        top = higher;
    }
    const float inverse = 1.0f / total;
    for (int j = lane; j < length; j += 32) {
        const bool seen = j >= first && j <= t;
        s[j] = seen ? __expf(s[j] * scale + b[t - j] - top) * inverse : 0.0f;
    }
}

torch::Tensor band_softmax_(torch::Tensor scores, torch::Tensor bias, double scale) {
    TORCH_CHECK(scores.is_cuda() && bias.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(scores.is_contiguous() && bias.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(scores.size(1) == bias.size(0), "one row of biases per head expected");
    const int64_t rows = scores.numel() / scores.size(3);
    band_softmax<<<(rows + 7) / 8, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        scores.data_ptr<float>(), bias.data_ptr<float>(), (int)scores.size(1), (int)scores.size(3),
        (int)bias.size(1), (float)scale, rows);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return scores;
}
"""

band_ext = load_inline(
    name="windowed_bias_attention_band_softmax",
    cpp_sources="torch::Tensor band_softmax_(torch::Tensor scores, torch::Tensor bias, double scale);",
    cuda_sources=cuda_source,
    functions=["band_softmax_"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="windowed_bias_attention",
    sizes="""
        batch_size = 4
        heads = 4
        length = 1024
        head_size = 32
        window = 128
    """,
    arguments=("heads", "length", "window"),
    takes="q, k, v",
    inputs="[torch.randn(batch_size, heads, length, head_size) for _ in range(3)]",
    reference=Body(
        summary="Sliding-window attention: a query sees its own position and those shortly before it.",
        init=_INIT,
        forward="""
            T = q.shape[2]
            at = torch.arange(T, device=q.device)
            distance = at[:, None] - at[None, :]
            scores = torch.matmul(q, k.transpose(-2, -1)) / q.shape[-1] ** 0.5
            scores = scores + self.bias[:, distance.clamp(0, self.window - 1)]
            outside = (distance < 0) | (distance >= self.window)
            scores = scores.masked_fill(outside, float("-inf"))
            return torch.matmul(torch.softmax(scores, dim=-1), v)
        """,
    ),
    rewrites={
        "kept_bias": Body(
            init=_INIT + _DENSE_BIAS,
            forward="""
                scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-2, -1))
                scores += self.dense_bias
                return torch.softmax(scores, dim=-1) @ v
            """,
        ),
        "library_with_bias": Body(
            summary="Bias and window in one additive mask for the library's attention.",
            init=_INIT + _DENSE_BIAS,
            forward="return F.scaled_dot_product_attention(q, k, v, attn_mask=self.dense_bias)",
        ),
        "bias_in_product": Body(
            summary="The mask enters as the addend of a batched product; copies of it per sample are made once.",
            init=_INIT + _DENSE_BIAS + "\n    self._addend = None\n",
            forward="""
                B, H, T, D = q.shape
                if self._addend is None or self._addend.shape[0] != B * H or self._addend.device != q.device:
                    self._addend = self.dense_bias.repeat(B, 1, 1)
                scores = torch.baddbmm(
                    self._addend, q.reshape(B * H, T, D), k.reshape(B * H, T, D).transpose(1, 2), alpha=D**-0.5
                )
                return torch.bmm(scores.softmax(-1), v.reshape(B * H, T, D)).view(B, H, T, D)
            """,
        ),
        "blocks_of_window": Body(
            summary="""Sliding-window attention in blocks as long as the window.

    A block of queries sees keys of its own block and of the one before only, so that scores are
    (blocks, window, 2 * window) rather than (length, length). The length must be a multiple of the window.
    """,
            init=_INIT
            + """
    with torch.no_grad():
        rows = torch.arange(window)[:, None] + window
        distance = rows - torch.arange(2 * window)[None, :]
        band = self.bias[:, distance.clamp(0, window - 1)]
        band = band.masked_fill((distance < 0) | (distance >= window), float("-inf"))
        # the first block has nothing before it
        start = band.clone()
        start[:, :, :window] = float("-inf")
        blocks = torch.stack([start] + [band] * (length // window - 1), dim=1)
        self.register_buffer("band", blocks)
""",
            methods='''
                def _with_previous(self, t):
                    """(B, H, blocks, 2 * window, D): each block behind the one before it."""
                    B, H, T, D = t.shape
                    padded = F.pad(t, (0, 0, self.window, 0))
                    before = padded[:, :, :T].view(B, H, T // self.window, self.window, D)
                    own = t.view(B, H, T // self.window, self.window, D)
                    return torch.cat([before, own], dim=3)
            ''',
            forward="""
                B, H, T, D = q.shape
                blocks = q.view(B, H, T // self.window, self.window, D) * D**-0.5
                scores = blocks @ self._with_previous(k).transpose(-2, -1)
                scores += self.band
                y = torch.softmax(scores, dim=-1) @ self._with_previous(v)
                return y.view(B, H, T, D)
            """,
        ),
        "loop_over_blocks": Body(
            summary="""Sliding-window attention, a block of queries at a time.

    Blocks are views, and each sees only the keys that some query of it can see. All blocks but the first few are
    alike, so their bias, with minus infinity outside the window, is remembered by the shape of the block.
    """,
            init=_INIT + "\n    self._band_cache = {}\n",
            methods='''
                def _band(self, rows, before, device):
                    """(heads, rows, before + rows): bias of a block with so many keys in front of it."""
                    key = (rows, before, device)
                    band = self._band_cache.get(key)
                    if band is None:
                        queries = torch.arange(before, before + rows, device=device)[:, None]
                        distance = queries - torch.arange(before + rows, device=device)[None, :]
                        outside = (distance < 0) | (distance >= self.window)
                        band = self.bias[:, distance.clamp(0, self.window - 1)]
                        band = band.masked_fill(outside, float("-inf"))
                        self._band_cache[key] = band
                    return band
            ''',
            forward="""
                T, D = q.shape[2:]
                out = torch.empty_like(q)
                for start in range(0, T, self.window):
                    end = min(start + self.window, T)
                    low = max(0, start - self.window)
                    scores = q[:, :, start:end] @ k[:, :, low:end].transpose(-2, -1)
                    scores.mul_(D**-0.5).add_(self._band(end - start, start - low, q.device))
                    out[:, :, start:end] = scores.softmax(dim=-1) @ v[:, :, low:end]
                return out
            """,
        ),
        "keys_unfolded": Body(
            summary="Every query meets a window of keys of its own, as views of padded keys and values.",
            init=_INIT
            + """
    # the window runs from the oldest key to the query itself
    self.register_buffer("oldest_first", self.bias.detach().flip(-1).clone())
    early = torch.arange(length)[:, None] + torch.arange(window)[None, :] < window - 1
    self.register_buffer("early", early)
""",
            forward="""
                D = q.shape[-1]
                keys = F.pad(k, (0, 0, self.window - 1, 0)).unfold(2, self.window, 1)
                values = F.pad(v, (0, 0, self.window - 1, 0)).unfold(2, self.window, 1)
                scores = torch.matmul(q.unsqueeze(-2) * D**-0.5, keys).squeeze(-2)
                scores = scores + self.oldest_first[:, None, :]
                scores = scores.masked_fill(self.early, float("-inf"))
                p = torch.softmax(scores, dim=-1)
                return torch.matmul(values, p.unsqueeze(-1)).squeeze(-1)
            """,
        ),
        "triton_band": Body(
            before=_BAND_KERNEL,
            forward="""
                B, H, T, D = q.shape
                q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
                out = torch.empty_like(q)
                band_kernel[(triton.cdiv(T, 64), B * H)](
                    q, k, v, self.bias, out, H, T, D**-0.5, WINDOW=self.window, D=D, BLOCK_M=64, BLOCK_N=32
                )
                return out
            """,
        ),
        "cuda_warp_per_query": Body(
            before=_CUDA,
            forward="""
                return window_module.window_forward(q.contiguous(), k.contiguous(), v.contiguous(), self.bias)
            """,
        ),
        "cuda_block_per_query": Body(
            before=_CUDA_BLOCK_PER_QUERY,
            init=_INIT,
            forward="""
                return windowed_ext.windowed_attention(q.contiguous(), k.contiguous(), v.contiguous(), self.bias)
            """,
        ),
        "cuda_band_softmax": Body(
            summary="Both products by the library; scale, bias, window and softmax are one kernel in place.",
            before=_CUDA_BAND_SOFTMAX,
            init=_INIT,
            methods='''
                def _weights(self, scores, scale):
                    """Softmax of scaled and biased scores within the window."""
                    if scores.is_cuda and scores.dtype == torch.float32:
                        return band_ext.band_softmax_(scores.contiguous(), self.bias, scale)
                    T = scores.shape[-1]
                    at = torch.arange(T, device=scores.device)
                    distance = at[:, None] - at[None, :]
                    scores = scores * scale + self.bias[:, distance.clamp(0, self.window - 1)]
                    outside = (distance < 0) | (distance >= self.window)
                    return torch.softmax(scores.masked_fill(outside, float("-inf")), dim=-1)
            ''',
            forward="""
                scores = torch.matmul(q, k.transpose(-2, -1))
                return torch.matmul(self._weights(scores, q.shape[-1] ** -0.5), v)
            """,
        ),
    },
    carries_on="blocks_of_window",
)
