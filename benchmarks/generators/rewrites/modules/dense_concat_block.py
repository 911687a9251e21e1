"""A dense block: every layer sees the concatenated features of all before it through batch norm and ReLU."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_AFFINE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def affine_relu_kernel(x_ptr, scale_ptr, shift_ptr, out_ptr, channels, x_stride, pixels, BLOCK: tl.constexpr):
    # x is the front part of the channels of a wider buffer: samples lie x_stride apart
    plane = tl.program_id(0).to(tl.int64)
    sample = plane // channels
    channel = plane % channels
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < pixels
    x = tl.load(x_ptr + sample * x_stride + channel * pixels + at, mask=keep, other=0.0)
    y = x * tl.load(scale_ptr + channel) + tl.load(shift_ptr + channel)
    tl.store(out_ptr + plane * pixels + at, tl.maximum(y, 0.0), mask=keep)


def affine_relu(x, scale, shift):
    B, C, H, W = x.shape
    out = torch.empty(B, C, H, W, device=x.device)
    affine_relu_kernel[(B * C, triton.cdiv(H * W, 1024))](
        x, scale, shift, out, C, x.stride(0), H * W, BLOCK=1024
    )
    return out
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A thread per pixel and new channel: the norm, ReLU and the 3x3 convolution in one, straight from global memory.
// Input and output are parts of one buffer, so that they carry no __restrict__.
__global__ void layer(const float* x, const float* __restrict__ scale, const float* __restrict__ shift,
                      const float* __restrict__ weight, const float* __restrict__ bias, float* out, int seen,
                      int growth, int all, int height, int width, long total) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i >= total) return;
    int col = i % width;
    int row = (i / width) % height;
    int o = (i / ((long)width * height)) % growth;
    long sample = i / ((long)width * height * growth);
    long pixels = (long)height * width;
    const float* base = x + sample * all * pixels;
    float sum = bias[o];
    for (int c = 0; c < seen; ++c) {
        float s = scale[c], t = shift[c];
        const float* taps = weight + ((long)o * seen + c) * 9;
        for (int dy = -1; dy <= 1; ++dy) {
            int r = row + dy;
            if (r < 0 || r >= height) continue;
            for (int dx = -1; dx <= 1; ++dx) {
                int q = col + dx;
                if (q < 0 || q >= width) continue;
                float v = fmaxf(fmaf(base[c * pixels + r * width + q], s, t), 0.0f);
                sum = fmaf(v, taps[(dy + 1) * 3 + dx + 1], sum);
            }
        }
    }
    out[(sample * all + seen + o) * pixels + (long)row * width + col] = sum;
}

// features: (batch, all channels, height, width), of which the first `seen` are there; writes the next `growth`
void grow(torch::Tensor features, torch::Tensor scale, torch::Tensor shift, torch::Tensor weight,
          torch::Tensor bias) {
    int batch = features.size(0), all = features.size(1), height = features.size(2), width = features.size(3);
    int growth = weight.size(0), seen = weight.size(1);
    long total = (long)batch * growth * height * width;
    float* data = features.data_ptr<float>();
    layer<<<(total + 255) / 256, 256>>>(data, scale.data_ptr<float>(), shift.data_ptr<float>(),
                                        weight.data_ptr<float>(), bias.data_ptr<float>(), data, seen, growth, all,
                                        height, width, total);
}
"""
growth_module = load_inline(
    name="dense_concat_block_grow",
    cpp_sources="void grow(torch::Tensor features, torch::Tensor scale, torch::Tensor shift, torch::Tensor weight, "
    "torch::Tensor bias);",
    cuda_sources=source,
    functions=["grow"],
)
'''

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def affine_relu(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.relu(x * scale + shift)
""")
'''

_INIT = """
    self.norms = nn.ModuleList()
    self.convs = nn.ModuleList()
    for i in range(layers):
        seen = channels + i * growth
        bn = nn.BatchNorm2d(seen)
        nn.init.uniform_(bn.weight, 0.5, 1.5)
        nn.init.normal_(bn.bias, std=0.1)
        bn.running_mean.normal_(0.0, 0.1)
        self.norms.append(bn)
        self.convs.append(nn.Conv2d(seen, growth, 3, padding=1))
"""

_AFFINE = """
    with torch.no_grad():
        for i, bn in enumerate(self.norms):
            scale = bn.weight / torch.sqrt(bn.running_var + bn.eps)
            self.register_buffer(f"scale{i}", scale[:, None, None].clone())
            self.register_buffer(f"shift{i}", (bn.bias - bn.running_mean * scale)[:, None, None].clone())
"""

_CUDA_TILED = '''
from torch.utils.cpp_extension import load_inline

tiled_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define TILE 16
#define CHUNK 8
#define GROWTH 16

// Norm and ReLU are applied while a chunk of channels goes into shared memory, zeros around the image after them.
// Every thread has one pixel and all 16 new channels.
__global__ void dense_layer(const float* features, const float* __restrict__ scale, const float* __restrict__ shift,
                            const float* __restrict__ weight, const float* __restrict__ bias, float* grown, int seen,
                            int all, int height, int width) {
    __shared__ float tile[CHUNK][TILE + 2][TILE + 2];
    __shared__ float taps[CHUNK][9][GROWTH];
    const int side = TILE + 2;
    const int x = blockIdx.x * TILE + threadIdx.x;
    const int y = blockIdx.y * TILE + threadIdx.y;
    const int tid = threadIdx.y * TILE + threadIdx.x;
    const long pixels = (long)height * width;
    const float* base = features + blockIdx.z * all * pixels;
    float acc[GROWTH];
#pragma unroll
    for (int o = 0; o < GROWTH; ++o) acc[o] = bias[o];
    for (int c0 = 0; c0 < seen; c0 += CHUNK) {
        const int count = min(CHUNK, seen - c0);
        for (int i = tid; i < count * side * side; i += TILE * TILE) {
            const int c = i / (side * side), r = (i / side) % side, q = i % side;
            const int gy = blockIdx.y * TILE + r - 1, gx = blockIdx.x * TILE + q - 1;
            float v = 0.0f;
            if (gy >= 0 && gy < height && gx >= 0 && gx < width)
                v = fmaxf(fmaf(base[(c0 + c) * pixels + gy * width + gx], scale[c0 + c], shift[c0 + c]), 0.0f);
            tile[c][r][q] = v;
        }
        for (int i = tid; i < count * 9 * GROWTH; i += TILE * TILE) {
            const int o = i % GROWTH, k = (i / GROWTH) % 9, c = i / (9 * GROWTH);
            taps[c][k][o] = weight[(o * seen + c0 + c) * 9 + k];
        }
        __syncthreads();
        for (int c = 0; c < count; ++c) {
#pragma unroll
            for (int k = 0; k < 9; ++k) {
                const float v = tile[c][threadIdx.y + k / 3][threadIdx.x + k % 3];
#pragma unroll
                for (int o = 0; o < GROWTH; ++o) acc[o] = fmaf(v, taps[c][k][o], acc[o]);
            }
        }
        __syncthreads();
    }
    if (x < width && y < height) {
#pragma unroll
        for (int o = 0; o < GROWTH; ++o)
            grown[(blockIdx.z * all + seen + o) * pixels + (long)y * width + x] = acc[o];
    }
}

void dense_layer_forward(torch::Tensor features, torch::Tensor scale, torch::Tensor shift, torch::Tensor weight,
                         torch::Tensor bias) {
    const int n = features.size(0), all = features.size(1), height = features.size(2), width = features.size(3);
    TORCH_CHECK(weight.size(0) == GROWTH, "the kernel grows by 16 channels");
    dim3 grid((width + TILE - 1) / TILE, (height + TILE - 1) / TILE, n);
    dense_layer<<<grid, dim3(TILE, TILE), 0, at::cuda::getCurrentCUDAStream()>>>(
        features.data_ptr<float>(), scale.data_ptr<float>(), shift.data_ptr<float>(), weight.data_ptr<float>(),
        bias.data_ptr<float>(), features.data_ptr<float>(), (int)weight.size(1), all, height, width);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""
tiled_module = load_inline(
    name="dense_concat_block_tiled",
    cpp_sources="void dense_layer_forward(torch::Tensor features, torch::Tensor scale, torch::Tensor shift, "
    "torch::Tensor weight, torch::Tensor bias);",
    cuda_sources=tiled_source,
    functions=["dense_layer_forward"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_NORM_RELU = '''
from torch.utils.cpp_extension import load_inline

norm_source = r"""
#include <torch/extension.h>

__global__ void batch_norm_kernel(const float* x, const float* mean, const float* var, const float* gamma,
                                  const float* beta, float* out, int channels, int area, float eps, long total) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total) {
        int c = (i / area) % channels;
        out[i] = (x[i] - mean[c]) * rsqrtf(var[c] + eps) * gamma[c] + beta[c];
    }
}

__global__ void relu_kernel(float* x, long total) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total && x[i] < 0.0f) x[i] = 0.0f;
}

torch::Tensor norm_relu(torch::Tensor x, torch::Tensor mean, torch::Tensor var, torch::Tensor gamma,
                        torch::Tensor beta, double eps) {
    TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be a contiguous CUDA tensor");
    TORCH_CHECK(x.size(1) == mean.size(0), "wrong number of channels");
    auto out = torch::empty_like(x);
    long total = x.numel();
    int threads = 128;
    int blocks = (total + threads - 1) / threads;
    batch_norm_kernel<<<blocks, threads>>>(x.data_ptr<float>(), mean.data_ptr<float>(), var.data_ptr<float>(),
                                           gamma.data_ptr<float>(), beta.data_ptr<float>(), out.data_ptr<float>(),
                                           (int)x.size(1), (int)(x.size(2) * x.size(3)), (float)eps, total);
    relu_kernel<<<blocks, threads>>>(out.data_ptr<float>(), total);
    return out;
}
"""
norm_module = load_inline(
    name="dense_concat_block_norm_relu",
    cpp_sources="torch::Tensor norm_relu(torch::Tensor x, torch::Tensor mean, torch::Tensor var, torch::Tensor gamma, "
    "torch::Tensor beta, double eps);",
    cuda_sources=norm_source,
    functions=["norm_relu"],
)
'''

MODULE = Rewritten(
    name="dense_concat_block",
    sizes="""
        batch_size = 16
        channels = 32
        growth = 16
        layers = 4
        height = 64
        width = 64
    """,
    arguments=("channels", "growth", "layers"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, height, width)]",
    reference=Body(
        summary="Layers of batch norm, ReLU and convolution that append their features to those that they saw.",
        init=_INIT,
        forward="""
            for norm, conv in zip(self.norms, self.convs):
                y = conv(F.relu(norm(x)))
                x = torch.cat([x, y], dim=1)
            return x
        """,
    ),
    rewrites={
        "one_buffer": Body(
            summary="""A dense block without concatenations.

    All features have their place in one buffer from the start. A layer reads the front part of the channels as a
    view and writes its own behind it.
    """,
            init=_INIT,
            methods='''
                def _buffer_for(self, x):
                    """Room for the input's channels and for those of all layers."""
                    B, C, H, W = x.shape
                    total = C + sum(conv.out_channels for conv in self.convs)
                    return torch.empty(B, total, H, W, device=x.device, dtype=x.dtype)
            ''',
            forward="""
                features = self._buffer_for(x)
                end = x.shape[1]
                features[:, :end].copy_(x)
                for norm, conv in zip(self.norms, self.convs):
                    seen = features[:, :end]
                    y = conv(F.relu(norm(seen), inplace=True))
                    features[:, end : end + y.shape[1]].copy_(y)
                    end += y.shape[1]
                return features
            """,
        ),
        "relu_in_place": Body(
            forward="""
                for norm, conv in zip(self.norms, self.convs):
                    h = F.batch_norm(
                        x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
                    )
                    x = torch.cat((x, F.conv2d(h.relu_(), conv.weight, conv.bias, padding=1)), 1)
                return x
            """
        ),
        "affine_norms": Body(
            summary="Norms as one multiplication and addition with numbers known from the start.",
            init=_INIT + _AFFINE,
            forward="""
                for i, conv in enumerate(self.convs):
                    h = torch.addcmul(getattr(self, f"shift{i}"), x, getattr(self, f"scale{i}")).relu_()
                    x = torch.cat([x, conv(h)], dim=1)
                return x
            """,
        ),
        "scale_in_convolution": Body(
            summary="Positive scales commute with ReLU and go into the convolutions: only a shift is left.",
            init=_INIT
            + """
    with torch.no_grad():
        for i, (bn, conv) in enumerate(zip(self.norms, self.convs)):
            scale = bn.weight / torch.sqrt(bn.running_var + bn.eps)
            if not bool((scale > 0).all()):
                raise ValueError("scales must be positive")
            # relu(s * x + t) = s * relu(x + t / s)
            self.register_buffer(f"shift{i}", (bn.bias / scale - bn.running_mean)[:, None, None].clone())
            self.register_buffer(f"weight{i}", conv.weight * scale[:, None, None])
""",
            forward="""
                for i, conv in enumerate(self.convs):
                    h = (x + getattr(self, f"shift{i}")).relu_()
                    y = F.conv2d(h, getattr(self, f"weight{i}"), conv.bias, padding=1)
                    x = torch.cat([x, y], dim=1)
                return x
            """,
        ),
        "parts_summed": Body(
            summary="""A dense block without concatenations before its end.

    A convolution of concatenated features is the sum of convolutions of the parts. Slices of weights, scales and
    shifts for each part are cut once.
    """,
            init=_INIT
            + _AFFINE
            + """
    self.edges = [0] + [channels + i * growth for i in range(layers)]
    self._slices = None
""",
            methods='''
                def _prepare(self):
                    """For each layer a list of (weight, scale, shift), one per part that it sees."""
                    slices = []
                    for i, conv in enumerate(self.convs):
                        scale, shift = getattr(self, f"scale{i}"), getattr(self, f"shift{i}")
                        rows = []
                        for start, end in zip(self.edges[: i + 1], self.edges[1 : i + 2]):
                            weight = conv.weight[:, start:end].contiguous()
                            rows.append((weight, scale[start:end], shift[start:end]))
                        slices.append(rows)
                    return slices

                def _grow(self, parts, rows, bias):
                    """The new features of one layer."""
                    total = None
                    for part, (weight, scale, shift) in zip(parts, rows):
                        h = torch.addcmul(shift, part, scale).relu_()
                        if total is None:
                            total = F.conv2d(h, weight, bias, padding=1)
                        else:
                            total += F.conv2d(h, weight, padding=1)
                    return total
            ''',
            forward="""
                if self._slices is None:
                    self._slices = self._prepare()
                parts = [x]
                for conv, rows in zip(self.convs, self._slices):
                    parts.append(self._grow(parts, rows, conv.bias))
                return torch.cat(parts, dim=1)
            """,
        ),
        "list_of_features": Body(
            before=_SCRIPTED,
            init=_INIT + _AFFINE,
            forward="""
                parts = [x]
                for i, conv in enumerate(self.convs):
                    seen = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
                    h = scripted.affine_relu(seen, getattr(self, f"scale{i}"), getattr(self, f"shift{i}"))
                    parts.append(conv(h))
                return torch.cat(parts, dim=1)
            """,
        ),
        "triton_affine": Body(
            before=_AFFINE_KERNEL,
            init=_INIT + _AFFINE,
            forward="""
                B, C, H, W = x.shape
                total = C + sum(conv.out_channels for conv in self.convs)
                features = torch.empty(B, total, H, W, device=x.device)
                features[:, :C] = x
                end = C
                for i, conv in enumerate(self.convs):
                    h = affine_relu(features[:, :end], getattr(self, f"scale{i}"), getattr(self, f"shift{i}"))
                    y = conv(h)
                    features[:, end : end + y.shape[1]] = y
                    end += y.shape[1]
                return features
            """,
        ),
        "cuda_direct": Body(
            before=_CUDA,
            init=_INIT + _AFFINE,
            forward="""
                B, C, H, W = x.shape
                total = C + sum(conv.out_channels for conv in self.convs)
                features = torch.empty(B, total, H, W, device=x.device)
                features[:, :C] = x
                for i, conv in enumerate(self.convs):
                    growth_module.grow(
                        features, getattr(self, f"scale{i}"), getattr(self, f"shift{i}"), conv.weight, conv.bias
                    )
                return features
            """,
        ),
        "cuda_tiled_layers": Body(
            summary="All layers by one kernel each, which writes into the buffer of all features.",
            before=_CUDA_TILED,
            init=_INIT + _AFFINE,
            forward="""
                B, C, H, W = x.shape
                total = C + sum(conv.out_channels for conv in self.convs)
                features = torch.empty(B, total, H, W, device=x.device, dtype=x.dtype)
                features[:, :C].copy_(x)
                for i, conv in enumerate(self.convs):
                    scale, shift = getattr(self, f"scale{i}"), getattr(self, f"shift{i}")
                    tiled_module.dense_layer_forward(features, scale, shift, conv.weight.contiguous(), conv.bias)
                return features
            """,
        ),
        "cuda_norm_relu": Body(
            summary="Norm and ReLU by kernels, convolutions and concatenations by the library.",
            before=_CUDA_NORM_RELU,
            init=_INIT,
            methods='''
                def _norm_relu(self, x, norm):
                    """ReLU of the norm with its running statistics; by library calls where the kernels do not fit."""
                    if not x.is_cuda or x.dtype != torch.float32 or norm.training:
                        return F.relu(norm(x))
                    return norm_module.norm_relu(
                        x.contiguous(), norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.eps
                    )
            ''',
            forward="""
                for norm, conv in zip(self.norms, self.convs):
                    x = torch.cat([x, conv(self._norm_relu(x, norm))], dim=1)
                return x
            """,
        ),
    },
    images=True,
    carries_on="scale_in_convolution",
)
