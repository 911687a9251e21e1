"""A transformer block with layer norms in front, separate projections and a GELU feed-forward network."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_ADD_NORM_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def add_norm_kernel(x_ptr, y_ptr, weight_ptr, bias_ptr, sum_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    at = row * width + cols
    total = tl.load(x_ptr + at, mask=keep, other=0.0) + tl.load(y_ptr + at, mask=keep, other=0.0)
    tl.store(sum_ptr + at, total, mask=keep)
    mean = tl.sum(total, axis=0) / width
    centred = tl.where(keep, total - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / width
    normed = centred / tl.sqrt(variance + eps)
    weight = tl.load(weight_ptr + cols, mask=keep, other=0.0)
    bias = tl.load(bias_ptr + cols, mask=keep, other=0.0)
    tl.store(out_ptr + at, normed * weight + bias, mask=keep)


def add_norm(x, y, norm):
    x, y = x.contiguous(), y.contiguous()
    total, out = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    add_norm_kernel[(x.numel() // width,)](
        x, y, norm.weight, norm.bias, total, out, width, norm.eps, BLOCK=block, num_warps=4
    )
    return total, out
"""

_INIT = """
    self.heads = heads
    self.norm1 = nn.LayerNorm(width)
    self.query = nn.Linear(width, width)
    self.key = nn.Linear(width, width)
    self.value = nn.Linear(width, width)
    self.out = nn.Linear(width, width)
    self.norm2 = nn.LayerNorm(width)
    self.up = nn.Linear(width, 4 * width)
    self.down = nn.Linear(4 * width, width)
    self.dropout = nn.Dropout(0.1)
"""

_PACKED = """
    with torch.no_grad():
        parts = (self.query, self.key, self.value)
        self.register_buffer("qkv_weight", torch.cat([part.weight for part in parts]))
        self.register_buffer("qkv_bias", torch.cat([part.bias for part in parts]))
"""

_PACKED_ATTENTION = """
    def _attend(self, x):
        B, T, C = x.shape
        qkv = F.linear(x, self.qkv_weight, self.qkv_bias)
        q, k, v = qkv.view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(B, T, C))
"""

_CUDA_BLOCK = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

#define TILE 32
#define THREADS 128

__global__ void layer_norm_kernel(const float* x, const float* gamma, const float* beta, float* y, int width,
                                  float eps) {
    __shared__ float sums[THREADS], squares[THREADS];
    const float* row = x + (long)blockIdx.x * width;
    int tid = threadIdx.x;
    float sum = 0.0f;
    for (int i = tid; i < width; i += THREADS) sum += row[i];
    sums[tid] = sum;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (tid < s) sums[tid] += sums[tid + s];
        __syncthreads();
    }
    float mean = sums[0] / width;
    float square = 0.0f;
    for (int i = tid; i < width; i += THREADS) square += (row[i] - mean) * (row[i] - mean);
    squares[tid] = square;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (tid < s) squares[tid] += squares[tid + s];
        __syncthreads();
    }
    float inverse = rsqrtf(squares[0] / width + eps);
    for (int i = tid; i < width; i += THREADS)
        y[(long)blockIdx.x * width + i] = (row[i] - mean) * inverse * gamma[i] + beta[i];
}

// y = x w^T + b, then GELU or a residual
__global__ void linear_kernel(const float* x, const float* w, const float* b, const float* residual, float* y, int M,
                              int N, int K, bool gelu) {
    __shared__ float xs[TILE][TILE + 1];
    __shared__ float ws[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y;
    int col = blockIdx.x * TILE + threadIdx.x;
    int w_row = blockIdx.x * TILE + threadIdx.y;
    float acc = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        int k = k0 + threadIdx.x;
        xs[threadIdx.y][threadIdx.x] = row < M && k < K ? x[(long)row * K + k] : 0.0f;
        ws[threadIdx.y][threadIdx.x] = w_row < N && k < K ? w[(long)w_row * K + k] : 0.0f;
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < TILE; ++i) acc += xs[threadIdx.y][i] * ws[threadIdx.x][i];
        __syncthreads();
    }
    if (row >= M || col >= N) return;
    acc += b[col];
    if (gelu) acc = 0.5f * acc * (1.0f + erff(acc * 0.70710678f));
    if (residual != nullptr) acc += residual[(long)row * N + col];
    y[(long)row * N + col] = acc;
}

// One block per query; q, k and v are (B, T, H * D)
__global__ void attention_kernel(const float* q, const float* k, const float* v, float* y, int T, int H, int D,
                                 float scale) {
    extern __shared__ float scores[];
    __shared__ float total;
    int t = blockIdx.x, h = blockIdx.y, C = H * D;
    long base = (long)blockIdx.z * T * C + h * D;
    for (int j = threadIdx.x; j < T; j += blockDim.x) {
        float dot = 0.0f;
        for (int d = 0; d < D; ++d) dot += q[base + (long)t * C + d] * k[base + (long)j * C + d];
        scores[j] = dot * scale;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float highest = scores[0], sum = 0.0f;
        for (int j = 1; j < T; ++j) highest = fmaxf(highest, scores[j]);
        for (int j = 0; j < T; ++j) {
            scores[j] = expf(scores[j] - highest);
            sum += scores[j];
        }
        total = sum;
    }
    __syncthreads();
    for (int d = threadIdx.x; d < D; d += blockDim.x) {
        float acc = 0.0f;
        for (int j = 0; j < T; ++j) acc += scores[j] * v[base + (long)j * C + d];
        y[base + (long)t * C + d] = acc / total;
    }
}

torch::Tensor norm(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps) {
    auto y = torch::empty_like(x);
    layer_norm_kernel<<<(int)(x.numel() / x.size(2)), THREADS>>>(
        x.data_ptr<float>(), gamma.data_ptr<float>(), beta.data_ptr<float>(), y.data_ptr<float>(), (int)x.size(2),
        (float)eps);
    return y;
}

torch::Tensor linear(torch::Tensor x, torch::Tensor w, torch::Tensor b, const float* residual, bool gelu) {
    int M = x.size(0) * x.size(1), K = x.size(2), N = w.size(0);
    auto y = torch::empty({x.size(0), x.size(1), N}, x.options());
    dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
    linear_kernel<<<grid, dim3(TILE, TILE)>>>(x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(),
                                              residual, y.data_ptr<float>(), M, N, K, gelu);
    return y;
}

// p: weights and biases of norm1, query, key, value, out, norm2, up and down
torch::Tensor block_forward(torch::Tensor x, std::vector<torch::Tensor> p, int64_t heads, double eps) {
    int B = x.size(0), T = x.size(1), C = x.size(2), D = C / heads;
    auto h = norm(x, p[0], p[1], eps);
    auto q = linear(h, p[2], p[3], nullptr, false);
    auto k = linear(h, p[4], p[5], nullptr, false);
    auto v = linear(h, p[6], p[7], nullptr, false);
    auto y = torch::empty_like(q);
    attention_kernel<<<dim3(T, heads, B), 64, T * sizeof(float)>>>(
        q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), y.data_ptr<float>(), T, (int)heads, D,
        1.0f / sqrtf((float)D));
    auto z = linear(y, p[8], p[9], x.data_ptr<float>(), false);
    h = norm(z, p[10], p[11], eps);
    h = linear(h, p[12], p[13], nullptr, true);
    return linear(h, p[14], p[15], z.data_ptr<float>(), false);
}
"""

encoder_cuda = load_inline(
    name="transformer_encoder_block_whole",
    cpp_sources="torch::Tensor block_forward(torch::Tensor x, std::vector<torch::Tensor> p, int64_t heads, "
    "double eps);",
    cuda_sources=source,
    functions=["block_forward"],
    verbose=False,
)
'''

_CUDA_EPILOGUES = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__device__ __forceinline__ float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678118f)); }

__global__ void bias_gelu(float4* __restrict__ y, const float4* __restrict__ bias, int quads, int64_t total) {
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= total) return;
    const float4 b = bias[i % quads];
    float4 v = y[i];
    v = make_float4(gelu(v.x + b.x), gelu(v.y + b.y), gelu(v.z + b.z), gelu(v.w + b.w));
    y[i] = v;
}

__global__ void bias_residual(float4* __restrict__ y, const float4* __restrict__ bias, const float4* __restrict__ x,
                              int quads, int64_t total) {
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= total) return;
    const float4 b = bias[i % quads], r = x[i];
    const float4 v = y[i];
    y[i] = make_float4(v.x + b.x + r.x, v.y + b.y + r.y, v.z + b.z + r.z, v.w + b.w + r.w);
}

static void check(const torch::Tensor& t) {
    TORCH_CHECK(t.is_cuda() && t.is_contiguous(), "contiguous CUDA tensors expected");
    TORCH_CHECK(t.scalar_type() == torch::kFloat32, "float32 expected");
    TORCH_CHECK(t.size(-1) % 4 == 0, "the last dimension must be a multiple of four");
}

torch::Tensor bias_gelu_(torch::Tensor y, torch::Tensor bias) {
    check(y);
    const int64_t total = y.numel() / 4;
    bias_gelu<<<(total + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<float4*>(y.data_ptr<float>()), reinterpret_cast<const float4*>(bias.data_ptr<float>()),
        (int)(y.size(-1) / 4), total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}

torch::Tensor bias_residual_(torch::Tensor y, torch::Tensor bias, torch::Tensor x) {
    check(y);
    check(x);
    const int64_t total = y.numel() / 4;
    bias_residual<<<(total + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<float4*>(y.data_ptr<float>()), reinterpret_cast<const float4*>(bias.data_ptr<float>()),
        reinterpret_cast<const float4*>(x.data_ptr<float>()), (int)(y.size(-1) / 4), total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

epilogues = load_inline(
    name="transformer_encoder_block_epilogues",
    cpp_sources=(
        "torch::Tensor bias_gelu_(torch::Tensor y, torch::Tensor bias);"
        "torch::Tensor bias_residual_(torch::Tensor y, torch::Tensor bias, torch::Tensor x);"
    ),
    cuda_sources=cuda_source,
    functions=["bias_gelu_", "bias_residual_"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="transformer_encoder_block",
    sizes="""
        batch_size = 16
        length = 128
        width = 384
        heads = 6
    """,
    arguments=("width", "heads"),
    takes="x",
    inputs="[torch.randn(batch_size, length, width)]",
    reference=Body(
        summary="Pre-norm self-attention and a feed-forward network, both with residuals.",
        init=_INIT,
        forward="""
            B, T, C = x.shape
            h = self.norm1(x)
            q = self.query(h).view(B, T, self.heads, -1).transpose(1, 2)
            k = self.key(h).view(B, T, self.heads, -1).transpose(1, 2)
            v = self.value(h).view(B, T, self.heads, -1).transpose(1, 2)
            scores = torch.matmul(q, k.transpose(-2, -1)) / (C // self.heads) ** 0.5
            p = self.dropout(torch.softmax(scores, dim=-1))
            h = torch.matmul(p, v).transpose(1, 2).reshape(B, T, C)
            x = x + self.dropout(self.out(h))
            h = self.down(self.dropout(F.gelu(self.up(self.norm2(x)))))
            return x + self.dropout(h)
        """,
    ),
    rewrites={
        "packed_projections": Body(
            init=_INIT + _PACKED,
            methods=_PACKED_ATTENTION,
            forward="""
                x = x + self._attend(self.norm1(x))
                return x + self.down(F.gelu(self.up(self.norm2(x))))
            """,
        ),
        "norms_folded": Body(
            summary="""A transformer block whose layer norms have no weights of their own.

    Scale and shift of either norm are linear, and so is what follows it: they are folded into the packed
    projections and into the first layer of the feed-forward network when the block is built.
    """,
            init=_INIT
            + _PACKED
            + """
    with torch.no_grad():
        self.qkv_bias.add_(self.qkv_weight @ self.norm1.bias)
        self.qkv_weight.mul_(self.norm1.weight)
        self.register_buffer("up_bias", self.up.bias + self.up.weight @ self.norm2.bias)
        self.register_buffer("up_weight", self.up.weight * self.norm2.weight)
""",
            methods=_PACKED_ATTENTION
            + """
    def _feed_forward(self, x):
        h = F.linear(F.layer_norm(x, x.shape[-1:], eps=self.norm2.eps), self.up_weight, self.up_bias)
        return F.linear(F.gelu(h), self.down.weight, self.down.bias)
""",
            forward="""
                h = self._attend(F.layer_norm(x, x.shape[-1:], eps=self.norm1.eps)).add_(x)
                return self._feed_forward(h).add_(h)
            """,
        ),
        "functional_multi_head": Body(
            init=_INIT + _PACKED,
            forward="""
                h = self.norm1(x).transpose(0, 1)
                y, _ = F.multi_head_attention_forward(
                    h, h, h, h.shape[-1], self.heads, self.qkv_weight, self.qkv_bias, None, None, False, 0.0,
                    self.out.weight, self.out.bias, training=False, need_weights=False
                )
                x = x + y.transpose(0, 1)
                return x + self.down(F.gelu(self.up(self.norm2(x))))
            """,
        ),
        "library_layer": Body(
            summary="nn.TransformerEncoderLayer with the same weights, for its fast path.",
            init=_INIT
            + """
    self.layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
    )
    with torch.no_grad():
        attention = self.layer.self_attn
        attention.in_proj_weight.copy_(torch.cat([self.query.weight, self.key.weight, self.value.weight]))
        attention.in_proj_bias.copy_(torch.cat([self.query.bias, self.key.bias, self.value.bias]))
        attention.out_proj.load_state_dict(self.out.state_dict())
        self.layer.linear1.load_state_dict(self.up.state_dict())
        self.layer.linear2.load_state_dict(self.down.state_dict())
        self.layer.norm1.load_state_dict(self.norm1.state_dict())
        self.layer.norm2.load_state_dict(self.norm2.state_dict())
""",
            forward="return self.layer(x)",
        ),
        "flat_products": Body(
            summary="addmm and bmm on flattened tensors, with the residuals as addends.",
            init=_INIT
            + """
    with torch.no_grad():
        scale = (width // heads) ** -0.5
        self.register_buffer("q_weight", (self.query.weight * scale).t().contiguous())
        self.register_buffer("q_bias", self.query.bias * scale)
""",
            forward="""
                B, T, C = x.shape
                H, D = self.heads, C // self.heads
                flat = x.reshape(B * T, C)
                h = self.norm1(flat)

                def split(t):
                    return t.view(B, T, H, D).transpose(1, 2).reshape(B * H, T, D)

                q = split(torch.addmm(self.q_bias, h, self.q_weight))
                k = split(torch.addmm(self.key.bias, h, self.key.weight.t()))
                v = split(torch.addmm(self.value.bias, h, self.value.weight.t()))
                p = torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1)
                y = torch.bmm(p, v).view(B, H, T, D).transpose(1, 2).reshape(B * T, C)
                flat = torch.addmm(flat + self.out.bias, y, self.out.weight.t())
                h = torch.addmm(self.up.bias, self.norm2(flat), self.up.weight.t())
                flat = torch.addmm(flat + self.down.bias, F.gelu(h), self.down.weight.t())
                return flat.view(B, T, C)
            """,
        ),
        "sample_by_sample": Body(
            init=_INIT + _PACKED,
            methods=_PACKED_ATTENTION,
            forward="""
                outputs = torch.empty_like(x)
                for i in range(x.shape[0]):
                    one = x[i : i + 1]
                    one = one + self._attend(self.norm1(one))
                    outputs[i : i + 1] = one + self.down(F.gelu(self.up(self.norm2(one))))
                return outputs
            """,
        ),
        "triton_add_norm": Body(
            summary="The first residual and the second norm in one pass over memory.",
            before=_ADD_NORM_KERNEL,
            init=_INIT + _PACKED,
            methods=_PACKED_ATTENTION,
            forward="""
                x, h = add_norm(x, self._attend(self.norm1(x)), self.norm2)
                return self.down(F.gelu(self.up(h))).add_(x)
            """,
        ),
        "half_feed_forward": Body(
            summary="The two widest products in half precision, the rest in single precision.",
            init=_INIT
            + _PACKED
            + """
    self.register_buffer("up_half", self.up.weight.detach().half())
    self.register_buffer("up_bias_half", self.up.bias.detach().half())
    self.register_buffer("down_half", self.down.weight.detach().half())
    self.register_buffer("down_bias_half", self.down.bias.detach().half())
""",
            methods=_PACKED_ATTENTION,
            forward="""
                x = x + self._attend(self.norm1(x))
                h = self.norm2(x)
                if not x.is_cuda:
                    return x + self.down(F.gelu(self.up(h)))
                h = F.gelu(F.linear(h.half(), self.up_half, self.up_bias_half))
                return x + F.linear(h, self.down_half, self.down_bias_half).float()
            """,
        ),
        "cuda_every_step": Body(
            before=_CUDA_BLOCK,
            init=_INIT,
            forward="""
                parts = (
                    self.norm1, self.query, self.key, self.value, self.out, self.norm2, self.up, self.down
                )
                parameters = []
                for part in parts:
                    parameters += [part.weight, part.bias]
                return encoder_cuda.block_forward(x.contiguous(), parameters, self.heads, self.norm1.eps)
            """,
        ),
        "cuda_epilogues": Body(
            summary="""Encoder block with biases, GELU and residuals in kernels after the library's products.

    Attention is the library's. With dropout, or anywhere but on the GPU, all is plain PyTorch.
    """,
            before=_CUDA_EPILOGUES,
            init=_INIT + _PACKED,
            methods='''
                def _attention(self, h):
                    """Heads side by side, before the output projection."""
                    B, T, C = h.shape
                    qkv = F.linear(h, self.qkv_weight, self.qkv_bias)
                    q, k, v = qkv.view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
                    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C)

                def _plain(self, x):
                    x = x + self.dropout(self.out(self._attention(self.norm1(x))))
                    return x + self.dropout(self.down(self.dropout(F.gelu(self.up(self.norm2(x))))))
            ''',
            forward="""
                if self.training or not x.is_cuda or x.dtype != torch.float32:
                    return self._plain(x)
                x = x.contiguous()
                y = torch.matmul(self._attention(self.norm1(x)), self.out.weight.t())
                x = epilogues.bias_residual_(y, self.out.bias, x)
                h = torch.matmul(self.norm2(x), self.up.weight.t())
                h = epilogues.bias_gelu_(h, self.up.bias)
                return epilogues.bias_residual_(torch.matmul(h, self.down.weight.t()), self.down.bias, x)
            """,
        ),
    },
    carries_on="norms_folded",
)
