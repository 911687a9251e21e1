"""Mixing of tokens by a learned lower-triangular matrix with rows that sum to one, and a gate."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_MIX_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def mix_kernel(w_ptr, x_ptr, out_ptr, tokens, channels,
               BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr):
    tile = tl.program_id(0)
    base = tl.program_id(2) * tokens * channels
    rows = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_T, BLOCK_C), dtype=tl.float32)
    # Blocks right of the diagonal are zero and are not visited.
    for start in range(0, (tile + 1) * BLOCK_T, BLOCK_S):
        at = start + tl.arange(0, BLOCK_S)
        w = tl.load(w_ptr + rows[:, None] * tokens + at[None, :],
                    mask=(rows[:, None] < tokens) & (at[None, :] < tokens), other=0.0)
        x = tl.load(x_ptr + base + at[:, None] * channels + cols[None, :],
                    mask=(at[:, None] < tokens) & (cols[None, :] < channels), other=0.0)
        acc = MULTIPLY
    keep = (rows[:, None] < tokens) & (cols[None, :] < channels)
    place = base + rows[:, None] * channels + cols[None, :]
    gate = tl.load(x_ptr + place, mask=keep, other=0.0)
    tl.store(out_ptr + place, acc * tl.sigmoid(gate), mask=keep)
"""

_INIT = """
    self.mix = nn.Parameter(torch.randn(tokens, tokens))
"""

_WEIGHTS = """
    with torch.no_grad():
        mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(diagonal=1)
        weights = torch.softmax(self.mix.masked_fill(mask, float("-inf")), dim=-1)
    self.register_buffer("weights", weights)
"""

_CUDA_PER_TOKEN = '''
from torch.utils.cpp_extension import load_inline

token_source = r"""
#include <torch/extension.h>

// A block computes one token of one sample: softmax of the row up to the diagonal, weighted sum, gate.
__global__ void causal_mix_kernel(const float* __restrict__ x, const float* __restrict__ mix,
                                  float* __restrict__ out, int tokens, int channels) {
    extern __shared__ float weights[];
    __shared__ float partial[256];
    int t = blockIdx.x;
    int sample = blockIdx.y;
    int tid = threadIdx.x;
    int seen = t + 1;

    // maximum
    float best = -INFINITY;
    for (int s = tid; s < seen; s += blockDim.x) best = fmaxf(best, mix[t * tokens + s]);
    partial[tid] = best;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (tid < half) partial[tid] = fmaxf(partial[tid], partial[tid + half]);
        __syncthreads();
    }
    best = partial[0];
    __syncthreads();

    // exponentials and their sum
    float sum = 0.0f;
    for (int s = tid; s < seen; s += blockDim.x) {
        float e = expf(mix[t * tokens + s] - best);
        weights[s] = e;
        sum += e;
    }
    partial[tid] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (tid < half) partial[tid] += partial[tid + half];
        __syncthreads();
    }
    float inverse = 1.0f / partial[0];

    // weighted mean and gate
    const float* base = x + (long)sample * tokens * channels;
    for (int c = tid; c < channels; c += blockDim.x) {
        float total = 0.0f;
        for (int s = 0; s < seen; s++) total += weights[s] * base[s * channels + c];
        float own = base[t * channels + c];
        out[((long)sample * tokens + t) * channels + c] = total * inverse / (1.0f + expf(-own));
    }
}

torch::Tensor causal_mix(torch::Tensor x, torch::Tensor mix) {
    int batch = x.size(0), tokens = x.size(1), channels = x.size(2);
    TORCH_CHECK(tokens <= 8192, "too many tokens for shared memory");
    auto out = torch::empty_like(x);
    dim3 grid(tokens, batch);
    causal_mix_kernel<<<grid, 256, tokens * sizeof(float)>>>(x.data_ptr<float>(), mix.data_ptr<float>(),
                                                             out.data_ptr<float>(), tokens, channels);
    return out;
}
"""
token_module = load_inline(
    name="causal_token_mixing_per_token",
    cpp_sources="torch::Tensor causal_mix(torch::Tensor x, torch::Tensor mix);",
    cuda_sources=token_source,
    functions=["causal_mix"],
)
'''

_CUDA_ENDS = '''
from torch.utils.cpp_extension import load_inline

ends_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// One warp per row; columns behind the diagonal become zero.
__global__ void causal_softmax_kernel(const float* __restrict__ scores, float* __restrict__ weights, int tokens) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= tokens) return;
    const float* line = scores + (long)row * tokens;
    float best = -INFINITY;
    for (int j = lane; j <= row; j += 32) best = fmaxf(best, line[j]);
    for (int o = 16; o > 0; o >>= 1) best = fmaxf(best, __shfl_xor_sync(0xffffffff, best, o));
    float sum = 0.0f;
    for (int j = lane; j <= row; j += 32) sum += __expf(line[j] - best);
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
    const float inverse = 1.0f / sum;
    for (int j = lane; j < tokens; j += 32)
        weights[(long)row * tokens + j] = j <= row ? __expf(line[j] - best) * inverse : 0.0f;
}

__device__ __forceinline__ float gated(float value, float by) { return value / (1.0f + __expf(-by)); }

__global__ void gate_kernel(float4* mixed, const float4* __restrict__ x, long total) {
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    float4 m = mixed[i];
    const float4 g = x[i];
    m.x = gated(m.x, g.x);
    m.y = gated(m.y, g.y);
    m.z = gated(m.z, g.z);
    m.w = gated(m.w, g.w);
    mixed[i] = m;
}

torch::Tensor causal_softmax(torch::Tensor scores) {
    TORCH_CHECK(scores.is_contiguous() && scores.size(0) == scores.size(1), "a contiguous square matrix is expected");
    const int tokens = scores.size(0);
    auto weights = torch::empty_like(scores);
    causal_softmax_kernel<<<(tokens + 3) / 4, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        scores.data_ptr<float>(), weights.data_ptr<float>(), tokens);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return weights;
}

torch::Tensor gate_(torch::Tensor mixed, torch::Tensor x) {
    TORCH_CHECK(mixed.is_contiguous() && x.is_contiguous() && mixed.numel() == x.numel(), "shapes must agree");
    TORCH_CHECK(x.numel() % 4 == 0, "a multiple of four elements is expected");
    const long total = x.numel() / 4;
    gate_kernel<<<(total + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<float4*>(mixed.data_ptr<float>()), reinterpret_cast<const float4*>(x.data_ptr<float>()),
        total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return mixed;
}
"""
ends_module = load_inline(
    name="causal_token_mixing_ends",
    cpp_sources="torch::Tensor causal_softmax(torch::Tensor scores); "
    "torch::Tensor gate_(torch::Tensor mixed, torch::Tensor x);",
    cuda_sources=ends_source,
    functions=["causal_softmax", "gate_"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)
'''

MODULE = Rewritten(
    name="causal_token_mixing",
    sizes="""
        batch_size = 32
        tokens = 512
        channels = 256
    """,
    arguments=("tokens",),
    takes="x",
    inputs="[torch.randn(batch_size, tokens, channels)]",
    reference=Body(
        summary="Each token becomes a weighted mean of those up to it, gated by itself.",
        init=_INIT,
        forward="""
            t = x.shape[1]
            mask = torch.tril(torch.ones(t, t, device=x.device))
            scores = self.mix.masked_fill(mask == 0, float("-inf"))
            weights = F.softmax(scores, dim=-1)
            mixed = torch.matmul(weights, x)
            return mixed * torch.sigmoid(x)
        """,
    ),
    rewrites={
        "kept_mask": Body(
            init=_INIT
            + """
    self.register_buffer("future", torch.ones(tokens, tokens, dtype=torch.bool).triu(1))
""",
            forward="""
                w = self.mix.masked_fill(self.future, float("-inf")).softmax(dim=-1)
                return torch.matmul(w, x).mul_(torch.sigmoid(x))
            """,
        ),
        "kept_weights": Body(
            init=_INIT + _WEIGHTS,
            forward="return torch.matmul(self.weights, x).mul_(x.sigmoid())",
        ),
        "repeated_weights": Body(
            forward="""
                batch, t, _ = x.shape
                future = torch.arange(t, device=x.device)
                future = future[None, :] > future[:, None]
                w = torch.softmax(self.mix.masked_fill(future, float("-inf")), dim=-1)
                w = w.repeat(batch, 1, 1).contiguous()
                return torch.bmm(w, x) * torch.sigmoid(x)
            """
        ),
        "one_wide_product": Body(
            summary="All sequences side by side, so that the mixing is one large product.",
            init=_INIT + _WEIGHTS,
            forward="""
                batch, t, c = x.shape
                wide = x.permute(1, 0, 2).reshape(t, batch * c)
                mixed = torch.mm(self.weights, wide)
                mixed = mixed.view(t, batch, c).permute(1, 0, 2)
                return (mixed * torch.sigmoid(x)).contiguous()
            """,
        ),
        "blocks_of_rows": Body(
            summary="Skips most of the zero half: block rows multiply only what lies left of their end.",
            init=_INIT
            + _WEIGHTS
            + """
    self.block = 128
""",
            forward="""
                t = x.shape[1]
                mixed = torch.empty_like(x)
                for start, stop in self.spans(t):
                    torch.matmul(self.weights[start:stop, :stop], x[:, :stop], out=mixed[:, start:stop])
                return mixed.mul_(torch.sigmoid(x))
            """,
            methods="""
                def spans(self, t):
                    return [(start, min(start + self.block, t)) for start in range(0, t, self.block)]
            """,
        ),
        "transposed_linear": Body(
            init=_INIT + _WEIGHTS,
            forward="""
                # Tokens last, so that F.linear mixes them.
                mixed = F.linear(x.transpose(1, 2), self.weights).transpose(1, 2)
                return mixed * torch.sigmoid(x)
            """,
        ),
        "triton_triangle": Body(
            before=_MIX_KERNEL.replace("MULTIPLY", 'tl.dot(w, x, acc, input_precision="tf32x3")'),
            init=_INIT + _WEIGHTS,
            forward="""
                batch, t, c = x.shape
                out = torch.empty_like(x)
                grid = (triton.cdiv(t, 64), triton.cdiv(c, 64), batch)
                mix_kernel[grid](self.weights, x, out, t, c, BLOCK_T=64, BLOCK_S=32, BLOCK_C=64, num_warps=4)
                return out
            """,
        ),
        "triton_half": Body(
            before=_MIX_KERNEL.replace("MULTIPLY", "tl.dot(w.to(tl.float16), x.to(tl.float16), acc)"),
            init=_INIT + _WEIGHTS,
            forward="""
                x = x.contiguous()
                batch, t, c = x.shape
                out = torch.empty_like(x)
                grid = (triton.cdiv(t, 128), triton.cdiv(c, 128), batch)
                mix_kernel[grid](self.weights, x, out, t, c, BLOCK_T=128, BLOCK_S=64, BLOCK_C=128, num_warps=8)
                return out
            """,
        ),
        "cuda_block_per_token": Body(
            before=_CUDA_PER_TOKEN,
            forward="return token_module.causal_mix(x.contiguous(), self.mix.contiguous())",
        ),
        "cuda_softmax_and_gate": Body(
            summary="""Causal softmax and gate as kernels around the library's product.

    The softmax reads only the lower triangle and writes the zeros behind it; the gate works in place on the product.
    """,
            before=_CUDA_ENDS,
            init=_INIT,
            methods='''
                def _supported(self, x):
                    """Whether the kernels take this input."""
                    return x.is_cuda and x.dtype == torch.float32 and x.numel() % 4 == 0

                def _plain(self, x):
                    t = x.shape[1]
                    later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
                    weights = F.softmax(self.mix.masked_fill(later, float("-inf")), dim=-1)
                    return torch.matmul(weights, x) * torch.sigmoid(x)
            ''',
            forward="""
                if not self._supported(x):
                    return self._plain(x)
                x = x.contiguous()
                mixed = torch.matmul(ends_module.causal_softmax(self.mix.contiguous()), x)
                return ends_module.gate_(mixed.contiguous(), x)
            """,
        ),
    },
    carries_on="kept_weights",
)
