"""A transposed convolution that doubles the side, the upsampled input added, a clamp and a gate per channel."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def shuffle_add_clamp_gate_kernel(
    y_ptr, x_ptr, bias_ptr, gate_ptr, out_ptr, channels, height, width, total, bound, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    column = at % (2 * width)
    row = (at // (2 * width)) % (2 * height)
    plane = at // (4 * width * height)
    channel = plane % channels
    tap = (row % 2) * 2 + column % 2
    pixel = (row // 2) * width + column // 2
    area = height * width
    y = tl.load(y_ptr + (plane * 4 + tap) * area + pixel, mask=keep, other=0.0)
    x = tl.load(x_ptr + plane * area + pixel, mask=keep, other=0.0)
    y = y + tl.load(bias_ptr + channel, mask=keep, other=0.0) + x
    y = tl.minimum(tl.maximum(y, -bound), bound)
    tl.store(out_ptr + at, y * tl.load(gate_ptr + channel, mask=keep, other=0.0), mask=keep)
"""

_INIT = """
    self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)
    self.gate = nn.Parameter(torch.randn(channels, 1, 1))
"""

_ADDED = (
    _INIT
    + """
    with torch.no_grad():
        weight = self.up.weight.clone()
        diagonal = torch.arange(channels)
        weight[diagonal, diagonal] += 1.0
        self.register_buffer("weight", weight)
        self.register_buffer("gates", torch.sigmoid(self.gate))
"""
)

_CUDA_QUAD = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__device__ __forceinline__ float clamp_gate(float v, float gate) { return fminf(fmaxf(v, -1.5f), 1.5f) * gate; }

// A thread turns an input pixel into the 2 x 2 outputs of one channel; that channel's weights are shared.
__global__ void upsample_quad(const float* __restrict__ x, const float4* __restrict__ weight,
                              const float* __restrict__ bias, const float* __restrict__ gate,
                              float2* __restrict__ out, int channels, int height, int width) {
    extern __shared__ float4 held[];
    const int co = blockIdx.y % channels;
    const int n = blockIdx.y / channels;
    for (int ci = threadIdx.x; ci < channels; ci += blockDim.x) held[ci] = weight[ci * channels + co];
    __syncthreads();
    const int area = height * width;
    const int pixel = blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= area) return;
    const float* in = x + (long)n * channels * area + pixel;
    const float start = bias[co] + in[(long)co * area];
    float4 sum = make_float4(start, start, start, start);
    #pragma unroll 8
    for (int ci = 0; ci < channels; ++ci) {
        const float v = in[(long)ci * area];
        const float4 w = held[ci];
        sum.x = fmaf(v, w.x, sum.x);
        sum.y = fmaf(v, w.y, sum.y);
        sum.z = fmaf(v, w.z, sum.z);
        sum.w = fmaf(v, w.w, sum.w);
    }
    const float g = 1.0f / (1.0f + expf(-gate[co]));
    const int row = pixel / width, column = pixel % width;
    const long at = ((long)blockIdx.y * 2 * height + 2 * row) * width + column;
    out[at] = make_float2(clamp_gate(sum.x, g), clamp_gate(sum.y, g));
    out[at + width] = make_float2(clamp_gate(sum.z, g), clamp_gate(sum.w, g));
}

torch::Tensor upsample_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor gate) {
    const int n = x.size(0), channels = x.size(1), height = x.size(2), width = x.size(3);
    auto out = torch::empty({n, channels, 2 * height, 2 * width}, x.options());
    dim3 grid((height * width + 255) / 256, n * channels);
    upsample_quad<<<grid, 256, channels * sizeof(float4), at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), reinterpret_cast<const float4*>(weight.data_ptr<float>()), bias.data_ptr<float>(),
        gate.data_ptr<float>(), reinterpret_cast<float2*>(out.data_ptr<float>()), channels, height, width);
    return out;
}
"""
upsample_module = load_inline(
    name="upsample_residual_gate_quad",
    cpp_sources="torch::Tensor upsample_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, "
    "torch::Tensor gate);",
    cuda_sources=source,
    functions=["upsample_forward"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_TAIL = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>

// Adds the nearest-neighbour upsampling of x, clamps and gates; one thread per output.
__global__ void skip_clamp_gate_kernel(const float* __restrict__ y, const float* __restrict__ x,
                                       const float* __restrict__ gate, float* __restrict__ out, int channels,
                                       int height, int width, int total) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int ox = idx % width;
    int oy = (idx / width) % height;
    int plane = idx / (width * height);
    int c = plane % channels;
    float v = y[idx] + x[(plane * (height / 2) + oy / 2) * (width / 2) + ox / 2];
    v = fminf(fmaxf(v, -1.5f), 1.5f);
    out[idx] = v / (1.0f + expf(-gate[c]));
}

torch::Tensor skip_clamp_gate(torch::Tensor y, torch::Tensor x, torch::Tensor gate) {
    TORCH_CHECK(y.is_cuda() && x.is_cuda() && gate.is_cuda(), "all tensors must be on the GPU");
    TORCH_CHECK(y.is_contiguous() && x.is_contiguous(), "tensors must be contiguous");
    TORCH_CHECK(y.size(2) == 2 * x.size(2) && y.size(3) == 2 * x.size(3), "y must be twice as large as x");
    auto out = torch::empty_like(y);
    int total = y.numel();
    skip_clamp_gate_kernel<<<(total + 255) / 256, 256>>>(y.data_ptr<float>(), x.data_ptr<float>(),
                                                         gate.data_ptr<float>(), out.data_ptr<float>(),
                                                         (int)y.size(1), (int)y.size(2), (int)y.size(3), total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

tail_ext = load_inline(
    name="upsample_residual_gate_tail",
    cpp_sources="torch::Tensor skip_clamp_gate(torch::Tensor y, torch::Tensor x, torch::Tensor gate);",
    cuda_sources=cuda_source,
    functions=["skip_clamp_gate"],
    verbose=False,
)
'''

MODULE = Rewritten(
    name="upsample_residual_gate",
    sizes="""
        batch_size = 16
        channels = 32
        height = 48
        width = 64
    """,
    arguments=("channels",),
    takes="x",
    inputs="[torch.randn(batch_size, channels, height, width)]",
    reference=Body(
        summary="Learned upsampling by two with the input's nearest-neighbour upsampling added, clamped and gated.",
        init=_INIT,
        forward="""
            y = self.up(x)
            skip = F.interpolate(x, scale_factor=2, mode="nearest")
            y = y + skip
            y = torch.clamp(y, -1.5, 1.5)
            gate = torch.sigmoid(self.gate)
            return y * gate
        """,
    ),
    rewrites={
        "in_place": Body(
            forward="""
                y = self.up(x)
                y.add_(F.interpolate(x, scale_factor=2, mode="nearest"))
                return y.clamp_(-1.5, 1.5).mul_(torch.sigmoid(self.gate))
            """
        ),
        "residual_in_weights": Body(
            summary="Nearest-neighbour upsampling is a transposed convolution by ones: add it to the weights.",
            init=_ADDED,
            forward="""
                y = F.conv_transpose2d(x, self.weight, self.up.bias, stride=2)
                return y.clamp_(-1.5, 1.5).mul_(self.gates)
            """,
        ),
        "product_and_pixel_shuffle": Body(
            summary="Kernel and stride agree, so each pixel becomes four by one matrix product.",
            init=_ADDED
            + """
    self.register_buffer("matrix", self.weight.view(channels, -1).t().contiguous())
    self.register_buffer("biases", self.up.bias.detach().repeat_interleave(4).view(1, -1, 1))
""",
            forward="""
                n, c, h, w = x.shape
                y = torch.baddbmm(self.biases, self.matrix.expand(n, -1, -1), x.reshape(n, c, h * w))
                y = F.pixel_shuffle(y.view(n, 4 * c, h, w), 2)
                return y.clamp_(-1.5, 1.5).mul_(self.gates)
            """,
        ),
        "clamp_before_shuffle": Body(
            init=_ADDED
            + """
    self.register_buffer("kernel", self.weight.permute(1, 2, 3, 0).reshape(4 * channels, channels, 1, 1).contiguous())
    self.register_buffer("biases", self.up.bias.detach().repeat_interleave(4))
    self.register_buffer("gates4", self.gates.repeat_interleave(4, dim=0))
""",
            forward="""
                y = F.conv2d(x, self.kernel, self.biases)
                y = F.hardtanh_(y, -1.5, 1.5).mul_(self.gates4)
                return F.pixel_shuffle(y, 2)
            """,
        ),
        "skip_by_broadcasting": Body(
            init=_INIT + '    self.register_buffer("gates", torch.sigmoid(self.gate.detach()))\n',
            forward="""
                n, c, h, w = x.shape
                y = self.up(x).view(n, c, h, 2, w, 2)
                y = y + x.view(n, c, h, 1, w, 1)
                return y.clamp_(-1.5, 1.5).view(n, c, 2 * h, 2 * w).mul_(self.gates)
            """,
        ),
        "four_strided_writes": Body(
            summary="One pointwise convolution for each of the four positions, written into its place.",
            init=_ADDED,
            methods='''
                def position(self, x, row, column):
                    """What lands on one of the four positions of each doubled pixel."""
                    kernel = self.weight[:, :, row, column].t()[:, :, None, None]
                    y = F.conv2d(x, kernel, self.up.bias)
                    return torch.clamp(y, min=-1.5, max=1.5) * self.gates
            ''',
            forward="""
                n, c, h, w = x.shape
                out = torch.empty(n, c, 2 * h, 2 * w, dtype=x.dtype, device=x.device)
                for row in (0, 1):
                    for column in (0, 1):
                        out[:, :, row::2, column::2] = self.position(x, row, column)
                return out
            """,
        ),
        "triton_shuffle_tail": Body(
            before=_TAIL_KERNEL,
            init=_INIT
            + """
    with torch.no_grad():
        matrix = self.up.weight.view(channels, -1).t().contiguous()
        self.register_buffer("matrix", matrix)
        self.register_buffer("gates", torch.sigmoid(self.gate).flatten())
""",
            forward="""
                x = x.contiguous()
                n, c, h, w = x.shape
                y = torch.matmul(self.matrix, x.view(n, c, h * w))
                out = torch.empty((n, c, 2 * h, 2 * w), device=x.device, dtype=x.dtype)
                total = out.numel()
                shuffle_add_clamp_gate_kernel[(triton.cdiv(total, 1024),)](
                    y, x, self.up.bias, self.gates, out, c, h, w, total, 1.5, BLOCK=1024
                )
                return out
            """,
        ),
        "cuda_quad_per_pixel": Body(
            before=_CUDA_QUAD,
            init=_INIT,
            forward="""
                return upsample_module.upsample_forward(x.contiguous(), self.up.weight, self.up.bias, self.gate)
            """,
        ),
        "cuda_tail": Body(
            summary="The library's transposed convolution; skip, clamp and gate are one kernel.",
            before=_CUDA_TAIL,
            init=_INIT,
            methods='''
                def _finish(self, y, x):
                    """Skip connection, clamp and gate."""
                    if y.is_cuda and y.dtype == torch.float32 and x.dtype == torch.float32:
                        return tail_ext.skip_clamp_gate(y.contiguous(), x.contiguous(), self.gate)
                    y = y + F.interpolate(x, scale_factor=2, mode="nearest")
                    return torch.clamp(y, -1.5, 1.5) * torch.sigmoid(self.gate)
            ''',
            forward="return self._finish(self.up(x), x)",
        ),
    },
    images=True,
    carries_on="residual_in_weights",
)
