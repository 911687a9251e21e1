"""A pointwise convolution of a few small maps, alone."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_PRODUCT_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def pointwise_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, channels, outputs, pixels,
                     BLOCK_O: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr):
    image = tl.program_id(2)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    acc = tl.zeros((BLOCK_O, BLOCK_P), dtype=tl.float32)
    for start in range(0, channels, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        w_keep = (o[:, None] < outputs) & (k[None, :] < channels)
        w = tl.load(weight_ptr + o[:, None] * channels + k[None, :], mask=w_keep, other=0.0)
        x_keep = (k[:, None] < channels) & (p[None, :] < pixels)
        x = tl.load(x_ptr + (image * channels + k[:, None]) * pixels + p[None, :], mask=x_keep, other=0.0)
        acc += tl.dot(w, x, input_precision="ieee")
    acc += tl.load(bias_ptr + o, mask=o < outputs, other=0.0)[:, None]
    keep = (o[:, None] < outputs) & (p[None, :] < pixels)
    tl.store(out_ptr + (image * outputs + o[:, None]) * pixels + p[None, :], acc, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One thread per output: consecutive threads are consecutive pixels, and share their weights.
__global__ void pointwise(const float* __restrict__ x, const float* __restrict__ weight,
                          const float* __restrict__ bias, float* __restrict__ out, int channels, int outputs,
                          int pixels, int total) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    int p = i % pixels;
    int o = i / pixels % outputs;
    int b = i / (pixels * outputs);
    const float* in = x + (long)b * channels * pixels + p;
    const float* w = weight + o * channels;
    float sum = bias[o];
    #pragma unroll 8
    for (int k = 0; k < channels; ++k) sum += w[k] * in[k * pixels];
    out[i] = sum;
}

torch::Tensor pointwise_conv(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
    int outputs = weight.size(0), pixels = x.size(2) * x.size(3);
    auto out = torch::empty({x.size(0), outputs, x.size(2), x.size(3)}, x.options());
    int total = out.numel();
    pointwise<<<(total + 127) / 128, 128>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                            out.data_ptr<float>(), x.size(1), outputs, pixels, total);
    return out;
}
"""
pointwise_module = load_inline(
    name="pointwise_conv_small_maps_direct",
    cpp_sources="torch::Tensor pointwise_conv(torch::Tensor x, torch::Tensor weight, torch::Tensor bias);",
    cuda_sources=source,
    functions=["pointwise_conv"],
)
'''

_INIT = """
    self.conv = nn.Conv2d(channels, outputs, 1)
"""

MODULE = Rewritten(
    name="pointwise_conv_small_maps",
    sizes="""
        batch_size = 4
        channels = 96
        outputs = 160
        side = 14
    """,
    arguments=("channels", "outputs"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, side, side)]",
    reference=Body(
        summary="A 1x1 convolution with a bias.",
        init=_INIT,
        forward="return self.conv(x)",
    ),
    rewrites={
        "broadcast_product": Body(
            init=_INIT
            + """
    self.register_buffer("matrix", self.conv.weight.detach().flatten(1).clone())
    self.register_buffer("column", self.conv.bias.detach().view(-1, 1).clone())
""",
            forward="""
                y = torch.matmul(self.matrix, x.flatten(2)).add_(self.column)
                return y.view(x.shape[0], -1, *x.shape[2:])
            """,
        ),
        "baddbmm": Body(
            forward="""
                B, C, H, W = x.shape
                weight = self.conv.weight.view(1, -1, C).expand(B, -1, -1)
                bias = self.conv.bias.view(1, -1, 1)
                return torch.baddbmm(bias, weight, x.reshape(B, C, H * W)).view(B, -1, H, W)
            """
        ),
        "linear_over_pixels": Body(
            summary="Pixels as rows of one linear layer.",
            forward="""
                y = F.linear(x.permute(0, 2, 3, 1), self.conv.weight.flatten(1), self.conv.bias)
                return y.permute(0, 3, 1, 2)
            """,
        ),
        "kept_output": Body(
            summary="""A 1x1 convolution as a batched product into memory that is kept between calls.

    The expanded weight and the output are made once per input shape.
    """,
            init=_INIT
            + """
    self._shape = None
    self._weight = None
    self._out = None
""",
            methods='''
                def _prepare(self, x):
                    """Expanded weight and output for inputs of this shape."""
                    B, C, H, W = x.shape
                    matrix = self.conv.weight.detach().reshape(1, -1, C)
                    self._weight = matrix.expand(B, -1, -1).contiguous()
                    self._out = torch.empty(B, matrix.shape[1], H * W, dtype=x.dtype, device=x.device)
                    self._shape = tuple(x.shape)

                def _fallback(self, x):
                    """For anything but a batch of maps."""
                    return self.conv(x)
            ''',
            forward="""
                if x.dim() != 4:
                    return self._fallback(x)
                if self._shape != tuple(x.shape) or self._out.device != x.device:
                    self._prepare(x)
                B, C, H, W = x.shape
                bias = self.conv.bias.view(1, -1, 1)
                torch.baddbmm(bias, self._weight, x.reshape(B, C, H * W), out=self._out)
                return self._out.view(B, -1, H, W)
            """,
        ),
        "einsum": Body(
            forward="""
                weight = self.conv.weight.squeeze(-1).squeeze(-1)
                return torch.einsum("bchw,oc->bohw", x, weight) + self.conv.bias[:, None, None]
            """
        ),
        "multiply_and_sum": Body(
            summary="All products at once, then their sum over the input channels.",
            forward="""
                products = x.unsqueeze(1) * self.conv.weight.unsqueeze(0)
                return products.sum(dim=2) + self.conv.bias.view(1, -1, 1, 1)
            """,
        ),
        "triton_product": Body(
            before=_PRODUCT_KERNEL,
            forward="""
                x = x.contiguous()
                B, C, H, W = x.shape
                outputs = self.conv.weight.shape[0]
                out = torch.empty(B, outputs, H, W, device=x.device)
                grid = (triton.cdiv(H * W, 32), triton.cdiv(outputs, 32), B)
                pointwise_kernel[grid](
                    x, self.conv.weight, self.conv.bias, out, C, outputs, H * W, BLOCK_O=32, BLOCK_P=32, BLOCK_K=32
                )
                return out
            """,
        ),
        "cuda_direct": Body(
            before=_CUDA,
            forward="return pointwise_module.pointwise_conv(x.contiguous(), self.conv.weight, self.conv.bias)",
        ),
    },
    images=True,
    carries_on="broadcast_product",
)
