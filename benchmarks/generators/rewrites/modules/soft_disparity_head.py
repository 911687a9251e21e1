"""A transposed convolution to disparity bins, softmax over them, the expected disparity, a clamp and a scale."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_EXPECTATION_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def expectation_kernel(y_ptr, values_ptr, out_ptr, bins, pixels, temperature, low, high, scale,
                       BLOCK: tl.constexpr):
    # one pass over the bins of each pixel, with a running maximum
    image = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = p < pixels
    top = tl.full((BLOCK,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    weighted = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in range(bins):
        y = tl.load(y_ptr + (image * bins + k) * pixels + p, mask=keep, other=0.0) * temperature
        higher = tl.maximum(top, y)
        old = tl.exp(top - higher)
        new = tl.exp(y - higher)
        total = total * old + new
        weighted = weighted * old + new * tl.load(values_ptr + k)
        top = higher
    d = tl.minimum(tl.maximum(weighted / total, low), high) * scale
    tl.store(out_ptr + image * pixels + p, d, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A thread makes one fine pixel: its features stay in registers, the weights of its corner of the 2x2 kernel are in
// shared memory, and the softmax is taken on the fly.
constexpr int FEATURES = 64;

__global__ void disparity(const float* __restrict__ x, const float* __restrict__ weight,
                          const float* __restrict__ bias, const float* __restrict__ values, float* __restrict__ out,
                          int bins, int height, int width, float temperature, float low, float high, float scale) {
    extern __shared__ float shared[];  // bins * FEATURES weights, then biases, then values
    float* biases = shared + bins * FEATURES;
    float* centres = biases + bins;
    int corner = blockIdx.y;
    long image = blockIdx.z;
    for (int i = threadIdx.x; i < bins * FEATURES; i += blockDim.x)
        shared[i] = weight[((i % FEATURES) * bins + i / FEATURES) * 4 + corner];
    for (int i = threadIdx.x; i < bins; i += blockDim.x) {
        biases[i] = bias[i];
        centres[i] = values[i];
    }
    __syncthreads();
    int pixels = height * width;
    int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= pixels) return;
    float f[FEATURES];
    #pragma unroll
    for (int k = 0; k < FEATURES; ++k) f[k] = x[(image * FEATURES + k) * pixels + p];
    float top = -INFINITY, total = 0.0f, weighted = 0.0f;
    for (int b = 0; b < bins; ++b) {
        float y = biases[b];
        const float4* w = reinterpret_cast<const float4*>(shared + b * FEATURES);
        #pragma unroll
        for (int k = 0; k < FEATURES / 4; ++k) {
            float4 q = w[k];
            y += q.x * f[4 * k] + q.y * f[4 * k + 1] + q.z * f[4 * k + 2] + q.w * f[4 * k + 3];
        }
        y *= temperature;
        float higher = fmaxf(top, y);
        float old = __expf(top - higher), now = __expf(y - higher);
        total = total * old + now;
        weighted = weighted * old + now * centres[b];
        top = higher;
    }
    int row = p / width * 2 + corner / 2, col = p % width * 2 + corner % 2;
    out[image * 4 * pixels + (long)row * 2 * width + col] = fminf(fmaxf(weighted / total, low), high) * scale;
}

torch::Tensor disparity_map(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor values,
                            double temperature, double low, double high, double scale) {
    int bins = weight.size(1), height = x.size(2), width = x.size(3);
    TORCH_CHECK(x.size(1) == FEATURES, "made for 64 features");
    auto out = torch::empty({x.size(0), 1, 2 * height, 2 * width}, x.options());
    dim3 grid((height * width + 255) / 256, 4, x.size(0));
    size_t shared = (bins * FEATURES + 2 * bins) * sizeof(float);
    disparity<<<grid, 256, shared>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                     values.data_ptr<float>(), out.data_ptr<float>(), bins, height, width,
                                     (float)temperature, (float)low, (float)high, (float)scale);
    return out;
}
"""
disparity_module = load_inline(
    name="soft_disparity_head_whole",
    cpp_sources=(
        "torch::Tensor disparity_map(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor values,"
        " double temperature, double low, double high, double scale);"
    ),
    cuda_sources=source,
    functions=["disparity_map"],
)
'''

_INIT = """
    self.up = nn.ConvTranspose2d(features, bins, 2, stride=2)
    self.temperature = 4.0
    self.low = 2.0
    self.high = bins - 6.0
    self.scale = 0.25
    self.register_buffer("values", torch.arange(bins, dtype=torch.float32))
"""

_FLAT = """
    # rows in the order (row of the block, column of the block, bin)
    with torch.no_grad():
        weight = self.up.weight.permute(0, 2, 3, 1).reshape(features, -1)
        self.register_buffer("flat_weight", weight * self.temperature)
        self.register_buffer("flat_bias", self.up.bias.repeat(4) * self.temperature)
"""

MODULE = Rewritten(
    name="soft_disparity_head",
    sizes="""
        batch_size = 8
        features = 64
        bins = 48
        height = 64
        width = 128
    """,
    arguments=("features", "bins"),
    takes="x",
    inputs="[torch.randn(batch_size, features, height, width)]",
    reference=Body(
        summary="Disparities as expectations over bins, at twice the resolution of the features.",
        init=_INIT,
        forward="""
            logits = self.up(x)
            logits = logits * self.temperature
            p = F.softmax(logits, dim=1)
            d = (p * self.values.view(1, -1, 1, 1)).sum(dim=1, keepdim=True)
            d = torch.clamp(d, self.low, self.high)
            return d * self.scale
        """,
    ),
    rewrites={
        "expectation_by_product": Body(
            forward="""
                p = F.softmax(self.up(x).mul_(self.temperature), dim=1)
                d = torch.matmul(self.values, p.flatten(2)).view(p.shape[0], 1, *p.shape[2:])
                return d.clamp_(self.low, self.high).mul_(self.scale)
            """
        ),
        "expectation_by_convolution": Body(
            summary="The weighted sum over bins as a pointwise convolution with one output.",
            forward="""
                p = torch.softmax(self.up(x) * self.temperature, dim=1)
                d = F.conv2d(p, self.values.view(1, -1, 1, 1))
                return torch.clamp(d, self.low, self.high) * self.scale
            """,
        ),
        "bins_innermost": Body(
            summary="""The head with bins as the fastest dimension.

    The stride equals the kernel, so that every coarse pixel makes its four fine ones by itself. The softmax
    then runs over contiguous memory, and only the finished disparities are put in their places.
    """,
            init=_INIT + _FLAT,
            forward="""
                B, C, H, W = x.shape
                tokens = x.permute(0, 2, 3, 1).reshape(-1, C)
                logits = torch.addmm(self.flat_bias, tokens, self.flat_weight)
                p = F.softmax(logits.view(-1, self.values.shape[0]), dim=-1)
                d = torch.mv(p, self.values).clamp_(self.low, self.high).mul_(self.scale)
                d = d.view(B, H, W, 2, 2).permute(0, 1, 3, 2, 4)
                return d.reshape(B, 1, 2 * H, 2 * W)
            """,
        ),
        "temperature_in_weights": Body(
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("hot_weight", self.up.weight * self.temperature)
        self.register_buffer("hot_bias", self.up.bias * self.temperature)
        self.register_buffer("scaled_values", self.values.view(1, bins, 1, 1) * self.scale)
""",
            forward="""
                p = F.conv_transpose2d(x, self.hot_weight, self.hot_bias, stride=2).softmax(dim=1)
                d = p.mul_(self.scaled_values).sum(dim=1, keepdim=True)
                return d.clamp_(self.low * self.scale, self.high * self.scale)
            """,
        ),
        "ratio_of_sums": Body(
            summary="""The expectation as a ratio of two sums of exponentials.

    No softmax is stored: both sums come out of one small product. The maximum is subtracted as usual.
    """,
            init=_INIT
            + """
    self.register_buffer("rows", torch.stack([self.values, torch.ones(bins)]))
""",
            methods='''
                def _exponentials(self, logits):
                    """Exponentials relative to the largest one of each pixel."""
                    top = logits.amax(dim=1, keepdim=True)
                    return logits.sub_(top).mul_(self.temperature).exp_()

                def _finish(self, d):
                    """Clamp and scale."""
                    return d.clamp_(min=self.low, max=self.high).mul_(self.scale)
            ''',
            forward="""
                e = self._exponentials(self.up(x))
                sums = torch.matmul(self.rows, e.flatten(2))
                d = sums[:, 0] / sums[:, 1]
                return self._finish(d.view(x.shape[0], 1, *e.shape[2:]))
            """,
        ),
        "loop_over_bins": Body(
            summary="Two running sums over the bins, so that no distribution is stored.",
            forward="""
                logits = self.up(x).mul_(self.temperature)
                top = logits.max(dim=1, keepdim=True).values
                total = torch.zeros_like(top)
                weighted = torch.zeros_like(top)
                for k in range(logits.shape[1]):
                    e = torch.exp(logits[:, k : k + 1] - top)
                    total += e
                    weighted.add_(e, alpha=float(k))
                return weighted.div_(total).clamp_(self.low, self.high).mul_(self.scale)
            """,
        ),
        "triton_expectation": Body(
            before=_EXPECTATION_KERNEL,
            forward="""
                y = self.up(x).contiguous()
                B, D, H, W = y.shape
                out = torch.empty(B, 1, H, W, device=y.device)
                grid = (triton.cdiv(H * W, 256), B)
                expectation_kernel[grid](
                    y, self.values, out, D, H * W, self.temperature, self.low, self.high, self.scale, BLOCK=256
                )
                return out
            """,
        ),
        "cuda_whole": Body(
            before=_CUDA,
            forward="""
                return disparity_module.disparity_map(
                    x.contiguous(), self.up.weight, self.up.bias, self.values,
                    self.temperature, self.low, self.high, self.scale,
                )
            """,
        ),
    },
    images=True,
    carries_on="bins_innermost",
)
