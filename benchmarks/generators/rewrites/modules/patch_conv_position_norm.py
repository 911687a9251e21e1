"""Patches of an image by a strided convolution, position embeddings, layer normalisation and GELU."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def position_norm_gelu_kernel(
    y_ptr, position_ptr, weight_ptr, bias_ptr, out_ptr, tokens, width, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    token = row % tokens
    features = tl.arange(0, BLOCK)
    keep = features < width
    y = tl.load(y_ptr + row * width + features, mask=keep, other=0.0)
    y += tl.load(position_ptr + token * width + features, mask=keep, other=0.0)
    mean = tl.sum(y, axis=0) / width
    centred = tl.where(keep, y - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / width
    y = centred / tl.sqrt(variance + eps)
    y = y * tl.load(weight_ptr + features, mask=keep, other=0.0)
    y += tl.load(bias_ptr + features, mask=keep, other=0.0)
    y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    tl.store(out_ptr + row * width + features, y, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

__device__ __forceinline__ float sum_over_warp(float v) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(0xffffffffu, v, mask);
    return v;
}

// A warp per token; features of a lane stay in registers.
template <int PER_LANE>
__global__ void add_norm_gelu(const float* __restrict__ y, const float* __restrict__ position,
                              const float* __restrict__ weight, const float* __restrict__ bias,
                              float* __restrict__ out, int rows, int tokens, float eps) {
    const int width = PER_LANE * 32;
    int row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    const float* values = y + (long)row * width;
    const float* shift = position + (long)(row % tokens) * width;
    float held[PER_LANE];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        held[i] = values[i * 32 + lane] + shift[i * 32 + lane];
        sum += held[i];
    }
    float mean = sum_over_warp(sum) / width;
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        held[i] -= mean;
        square += held[i] * held[i];
    }
    float rstd = rsqrtf(sum_over_warp(square) / width + eps);
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        int k = i * 32 + lane;
        float v = held[i] * rstd * weight[k] + bias[k];
        out[(long)row * width + k] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
    }
}

torch::Tensor tail(torch::Tensor y, torch::Tensor position, torch::Tensor weight, torch::Tensor bias, double eps) {
    TORCH_CHECK(y.is_contiguous() && y.size(2) == 256, "256 features expected");
    auto out = torch::empty_like(y);
    int rows = y.size(0) * y.size(1);
    add_norm_gelu<8><<<(rows + 7) / 8, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        y.data_ptr<float>(), position.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
        out.data_ptr<float>(), rows, (int)y.size(1), (float)eps);
    return out;
}
"""
declaration = (
    "torch::Tensor tail(torch::Tensor y, torch::Tensor position, torch::Tensor weight, torch::Tensor bias, double eps);"
)
patch_tail = load_inline(
    name="patch_conv_position_norm_tail",
    cpp_sources=declaration,
    cuda_sources=source,
    functions=["tail"],
)
'''

_INIT = """
    self.project = nn.Conv2d(3, width, patch, stride=patch)
    self.position = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
    self.norm = nn.LayerNorm(width)
    nn.init.uniform_(self.norm.weight, 0.5, 1.5)
    nn.init.normal_(self.norm.bias, std=0.1)
"""

_MATRIX = (
    _INIT
    + """
    self.patch = patch
    with torch.no_grad():
        self.register_buffer("matrix", self.project.weight.flatten(1).t().contiguous())
        self.register_buffer("shift", self.position + self.project.bias)
"""
)

_CUDA_WHOLE = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

constexpr int GROUP = 4;

__device__ float block_sum(float v, float* partial) {
    #pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0.0f;
    for (int w = 0; w < (int)blockDim.x / 32; ++w) total += partial[w];
    return total;
}

// A block makes four tokens, a thread one feature of each; the four patches are staged in shared memory.
__global__ void embed_patches(const float* __restrict__ x, const float* __restrict__ matrix,
                              const float* __restrict__ shift, const float* __restrict__ gamma,
                              const float* __restrict__ beta, float* __restrict__ out, int side, int patch,
                              int tokens, long all_tokens, float eps) {
    extern __shared__ float pixels[];
    __shared__ float partial[32];
    const int width = blockDim.x;
    const int c = threadIdx.x;
    const int depth = 3 * patch * patch;
    const int columns = side / patch;
    const long first = blockIdx.x * (long)GROUP;
    for (int i = threadIdx.x; i < GROUP * depth; i += width) {
        long token = first + i / depth;
        int k = i % depth;
        float value = 0.0f;
        if (token < all_tokens) {
            long n = token / tokens;
            int place = token % tokens;
            int channel = k / (patch * patch);
            int row = place / columns * patch + k / patch % patch;
            int column = place % columns * patch + k % patch;
            value = x[((n * 3 + channel) * side + row) * side + column];
        }
        pixels[i] = value;
    }
    __syncthreads();
    float acc[GROUP] = {0.0f, 0.0f, 0.0f, 0.0f};
    #pragma unroll 8
    for (int k = 0; k < depth; ++k) {
        float w = matrix[k * width + c];
        #pragma unroll
        for (int g = 0; g < GROUP; ++g) acc[g] = fmaf(pixels[g * depth + k], w, acc[g]);
    }
    #pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        long token = first + g;
        float h = acc[g] + shift[(token % tokens) * width + c];
        float mean = block_sum(h, partial) / width;
        float var = block_sum((h - mean) * (h - mean), partial) / width;
        float z = (h - mean) * rsqrtf(var + eps) * gamma[c] + beta[c];
        if (token < all_tokens) out[token * width + c] = 0.5f * z * (1.0f + erff(z * 0.70710678f));
    }
}

torch::Tensor embed_forward(torch::Tensor x, torch::Tensor matrix, torch::Tensor shift, torch::Tensor gamma,
                            torch::Tensor beta, int64_t patch, double eps) {
    int side = x.size(2), width = matrix.size(1), tokens = shift.size(1);
    TORCH_CHECK(width % 32 == 0 && width <= 1024, "width must be a multiple of 32, at most 1024");
    long all_tokens = x.size(0) * (long)tokens;
    auto out = torch::empty({x.size(0), tokens, width}, x.options());
    size_t shared = GROUP * 3 * patch * patch * sizeof(float);
    embed_patches<<<(all_tokens + GROUP - 1) / GROUP, width, shared>>>(
        x.data_ptr<float>(), matrix.data_ptr<float>(), shift.data_ptr<float>(), gamma.data_ptr<float>(),
        beta.data_ptr<float>(), out.data_ptr<float>(), side, (int)patch, tokens, all_tokens, (float)eps);
    return out;
}
"""
patch_embed = load_inline(
    name="patch_conv_position_norm_whole",
    cpp_sources="torch::Tensor embed_forward(torch::Tensor x, torch::Tensor matrix, torch::Tensor shift, "
    "torch::Tensor gamma, torch::Tensor beta, int64_t patch, double eps);",
    cuda_sources=source,
    functions=["embed_forward"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_TOKEN_TAIL = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>

// One thread per token. Reads the convolution's (N, C, T) layout and writes (N, T, C).
__global__ void token_norm_gelu_kernel(const float* y, const float* position, const float* gamma, const float* beta,
                                       float* out, int n, int channels, int tokens, float eps) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= n * tokens) return;
    int sample = idx / tokens;
    int t = idx % tokens;
    const float* in = y + (long)sample * channels * tokens + t;
    const float* pos = position + (long)t * channels;

    float mean = 0.0f;
    for (int c = 0; c < channels; c++) mean += in[(long)c * tokens] + pos[c];
    mean /= channels;

    float var = 0.0f;
    for (int c = 0; c < channels; c++) {
        float d = in[(long)c * tokens] + pos[c] - mean;
        var += d * d;
    }
    var /= channels;
    float inv_std = rsqrtf(var + eps);

    for (int c = 0; c < channels; c++) {
        float z = (in[(long)c * tokens] + pos[c] - mean) * inv_std * gamma[c] + beta[c];
        out[(long)idx * channels + c] = 0.5f * z * (1.0f + erff(z * 0.7071067811865476f));
    }
}

torch::Tensor token_norm_gelu(torch::Tensor y, torch::Tensor position, torch::Tensor gamma, torch::Tensor beta,
                              double eps) {
    TORCH_CHECK(y.is_cuda(), "y must be a CUDA tensor");
    TORCH_CHECK(y.is_contiguous() && position.is_contiguous(), "tensors must be contiguous");
    TORCH_CHECK(y.scalar_type() == torch::kFloat32, "y must be float32");
    int n = y.size(0), channels = y.size(1), tokens = y.size(2) * y.size(3);
    auto out = torch::empty({n, tokens, channels}, y.options());
    int threads = 64;
    int blocks = (n * tokens + threads - 1) / threads;
    token_norm_gelu_kernel<<<blocks, threads>>>(y.data_ptr<float>(), position.data_ptr<float>(),
                                                gamma.data_ptr<float>(), beta.data_ptr<float>(),
                                                out.data_ptr<float>(), n, channels, tokens, (float)eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

token_tail = load_inline(
    name="patch_conv_position_norm_token_tail",
    cpp_sources="torch::Tensor token_norm_gelu(torch::Tensor y, torch::Tensor position, torch::Tensor gamma, "
    "torch::Tensor beta, double eps);",
    cuda_sources=cuda_source,
    functions=["token_norm_gelu"],
    verbose=False,
)
'''

MODULE = Rewritten(
    name="patch_conv_position_norm",
    sizes="""
        batch_size = 32
        side = 224
        patch = 16
        tokens = (side // patch) ** 2
        width = 256
    """,
    arguments=("patch", "tokens", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, 3, side, side)]",
    reference=Body(
        summary="Patch embedding with learned positions, layer normalisation and GELU.",
        init=_INIT,
        forward="""
            x = self.project(x)
            x = x.flatten(2).transpose(1, 2)
            x = x + self.position
            x = self.norm(x)
            return F.gelu(x)
        """,
    ),
    rewrites={
        "patches_times_matrix": Body(
            summary="Kernel and stride agree, so patches are cut out by a reshape and multiplied by the weights.",
            init=_MATRIX,
            forward="""
                n, c, h, w = x.shape
                p = self.patch
                x = x.view(n, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5).reshape(n, -1, c * p * p)
                x = torch.matmul(x, self.matrix).add_(self.shift)
                return F.gelu(F.layer_norm(x, self.norm.normalized_shape, self.norm.weight, self.norm.bias))
            """,
        ),
        "unfolded_linear": Body(
            init=_MATRIX,
            forward="""
                columns = F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)
                y = F.linear(columns, self.project.weight.flatten(1), self.project.bias)
                return F.gelu(self.norm(y + self.position))
            """,
        ),
        "bias_in_positions": Body(
            init=_MATRIX,
            forward="""
                y = F.conv2d(x, self.project.weight, stride=self.patch)
                y = y.flatten(2).transpose(1, 2) + self.shift
                return F.gelu(self.norm(y))
            """,
        ),
        "positions_in_image_layout": Body(
            summary="Positions are added before the transposition, which is then made dense for the normalisation.",
            init=_MATRIX
            + '    self.register_buffer("image_shift", self.shift[0].t().reshape(1, width, tokens).contiguous())\n',
            forward="""
                y = F.conv2d(x, self.project.weight, stride=self.patch).flatten(2)
                y += self.image_shift
                y = y.transpose(1, 2).contiguous()
                y = F.layer_norm(y, (y.shape[-1],), self.norm.weight, self.norm.bias, self.norm.eps)
                return F.gelu(y)
            """,
        ),
        "baddbmm_with_positions": Body(
            init=_MATRIX,
            methods='''
                def patches(self, x):
                    """(batch, tokens, channels * patch * patch), rows of patches after each other."""
                    p = self.patch
                    if x.shape[2] % p or x.shape[3] % p:
                        raise ValueError("image sides must be multiples of the patch")
                    cut = x.unfold(2, p, p).unfold(3, p, p)
                    return cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)

                def embed(self, x):
                    """Projection, its bias and positions in one batched product."""
                    n = x.shape[0]
                    return torch.baddbmm(self.shift, self.patches(x), self.matrix.expand(n, -1, -1))
            ''',
            forward="return F.gelu(self.norm(self.embed(x)))",
        ),
        "norm_over_channels_by_hand": Body(
            summary="Normalises over the channels of the image, and transposes only the result.",
            init=_MATRIX,
            forward="""
                y = self.project(x).flatten(2) + self.position.transpose(1, 2)
                var, mean = torch.var_mean(y, dim=1, keepdim=True, unbiased=False)
                y = (y - mean) * torch.rsqrt(var + self.norm.eps)
                y = torch.addcmul(self.norm.bias[:, None], y, self.norm.weight[:, None])
                return F.gelu(y).transpose(1, 2).contiguous()
            """,
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            init=_MATRIX,
            forward="""
                n, c, h, w = x.shape
                p = self.patch
                x = x.reshape(n, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5).reshape(-1, c * p * p)
                y = torch.mm(x, self.matrix)
                tokens, width = self.shift.shape[1:]
                out = torch.empty((n, tokens, width), device=y.device, dtype=y.dtype)
                position_norm_gelu_kernel[(n * tokens,)](
                    y, self.shift, self.norm.weight, self.norm.bias, out, tokens, width, self.norm.eps,
                    BLOCK=triton.next_power_of_2(width), num_warps=2,
                )
                return out
            """,
        ),
        "cuda_tail": Body(
            before=_CUDA,
            init=_MATRIX,
            forward="""
                y = F.conv2d(x, self.project.weight, stride=self.patch).flatten(2).transpose(1, 2).contiguous()
                return patch_tail.tail(y, self.shift, self.norm.weight, self.norm.bias, self.norm.eps)
            """,
        ),
        "cuda_whole": Body(
            before=_CUDA_WHOLE,
            init=_MATRIX,
            forward="""
                return patch_embed.embed_forward(
                    x.contiguous(), self.matrix, self.shift, self.norm.weight, self.norm.bias, self.patch,
                    self.norm.eps,
                )
            """,
        ),
        "cuda_thread_per_token_tail": Body(
            summary="Transposition, positions, normalisation and GELU in one kernel after the library's convolution.",
            before=_CUDA_TOKEN_TAIL,
            init=_INIT,
            methods='''
                def _tail(self, y):
                    """What follows the convolution, in plain PyTorch."""
                    y = y.flatten(2).transpose(1, 2) + self.position
                    return F.gelu(self.norm(y))
            ''',
            forward="""
                y = self.project(x)
                if not (y.is_cuda and y.dtype == torch.float32):
                    return self._tail(y)
                return token_tail.token_norm_gelu(
                    y.contiguous(), self.position, self.norm.weight, self.norm.bias, self.norm.eps
                )
            """,
        ),
    },
    images=True,
    carries_on="bias_in_positions",
)
