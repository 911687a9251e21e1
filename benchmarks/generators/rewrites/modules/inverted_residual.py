"""An inverted residual: a widening pointwise convolution, a depthwise one, a narrowing one, all with batch norm."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_DEPTHWISE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def depthwise_kernel(x_ptr, in_bias_ptr, weight_ptr, bias_ptr, out_ptr, channels, height, width,
                     BLOCK: tl.constexpr):
    # bias and ReLU6 of the layer before are applied on reading, those of this one on writing
    plane = tl.program_id(0).to(tl.int64)
    channel = plane % channels
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    pixels = height * width
    row = at // width
    col = at % width
    before = tl.load(in_bias_ptr + channel)
    acc = tl.zeros((BLOCK,), dtype=tl.float32) + tl.load(bias_ptr + channel)
    for dy in tl.static_range(3):
        for dx in tl.static_range(3):
            r = row + dy - 1
            c = col + dx - 1
            keep = (r >= 0) & (r < height) & (c >= 0) & (c < width) & (at < pixels)
            v = tl.load(x_ptr + plane * pixels + r * width + c, mask=keep, other=0.0) + before
            v = tl.minimum(tl.maximum(v, 0.0), 6.0)
            acc += tl.where(keep, v, 0.0) * tl.load(weight_ptr + channel * 9 + dy * 3 + dx)
    acc = tl.minimum(tl.maximum(acc, 0.0), 6.0)
    tl.store(out_ptr + plane * pixels + at, acc, mask=at < pixels)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A block per plane. The plane, with a border of zeros, is brought to shared memory and read nine times there.
__global__ void depthwise(const float* __restrict__ x, const float* __restrict__ weight,
                          const float* __restrict__ bias, float* __restrict__ out, int channels, int height,
                          int width) {
    extern __shared__ float tile[];
    __shared__ float taps[9];
    long plane = blockIdx.x;
    int channel = blockIdx.x % channels;
    int wide = width + 2, padded = (height + 2) * wide;
    if (threadIdx.x < 9) taps[threadIdx.x] = weight[channel * 9 + threadIdx.x];
    for (int i = threadIdx.x; i < padded; i += blockDim.x) {
        int r = i / wide - 1, c = i % wide - 1;
        bool inside = r >= 0 && r < height && c >= 0 && c < width;
        tile[i] = inside ? x[(plane * height + r) * width + c] : 0.0f;
    }
    __syncthreads();
    float b = bias[channel];
    for (int i = threadIdx.x; i < height * width; i += blockDim.x) {
        int r = i / width, c = i % width;
        float sum = b;
        #pragma unroll
        for (int dy = 0; dy < 3; ++dy)
            #pragma unroll
            for (int dx = 0; dx < 3; ++dx) sum += tile[(r + dy) * wide + c + dx] * taps[dy * 3 + dx];
        out[plane * height * width + i] = fminf(fmaxf(sum, 0.0f), 6.0f);
    }
}

torch::Tensor depthwise_relu6(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
    int channels = x.size(1), height = x.size(2), width = x.size(3);
    auto out = torch::empty_like(x);
    size_t shared = (height + 2) * (width + 2) * sizeof(float);
    TORCH_CHECK(shared <= 48000, "plane too large for shared memory");
    depthwise<<<x.size(0) * channels, 256, shared>>>(x.data_ptr<float>(), weight.data_ptr<float>(),
                                                     bias.data_ptr<float>(), out.data_ptr<float>(), channels,
                                                     height, width);
    return out;
}
"""
depthwise_module = load_inline(
    name="inverted_residual_depthwise",
    cpp_sources="torch::Tensor depthwise_relu6(torch::Tensor x, torch::Tensor weight, torch::Tensor bias);",
    cuda_sources=source,
    functions=["depthwise_relu6"],
)
'''

_INIT = """
    wide = channels * factor
    self.expand = nn.Conv2d(channels, wide, 1, bias=False)
    self.bn1 = nn.BatchNorm2d(wide)
    self.depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
    self.bn2 = nn.BatchNorm2d(wide)
    self.project = nn.Conv2d(wide, channels, 1, bias=False)
    self.bn3 = nn.BatchNorm2d(channels)
    for bn in (self.bn1, self.bn2, self.bn3):
        nn.init.uniform_(bn.weight, 0.5, 1.5)
        nn.init.normal_(bn.bias, std=0.1)
        bn.running_mean.normal_(0.0, 0.1)
        bn.running_var.uniform_(0.5, 1.5)
"""

_FOLDED = """
    with torch.no_grad():
        pairs = ((self.expand, self.bn1), (self.depthwise, self.bn2), (self.project, self.bn3))
        for i, (conv, bn) in enumerate(pairs, 1):
            scale = bn.weight * torch.rsqrt(bn.running_var + bn.eps)
            self.register_buffer(f"w{i}", conv.weight * scale[:, None, None, None])
            self.register_buffer(f"b{i}", bn.bias - bn.running_mean * scale)
"""

MODULE = Rewritten(
    name="inverted_residual",
    sizes="""
        batch_size = 32
        channels = 32
        factor = 6
        height = 56
        width = 56
    """,
    arguments=("channels", "factor"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, height, width)]",
    reference=Body(
        summary="Expansion, depthwise convolution and projection, with a residual around them.",
        init=_INIT,
        forward="""
            h = F.relu6(self.bn1(self.expand(x)))
            h = F.relu6(self.bn2(self.depthwise(h)))
            h = self.bn3(self.project(h))
            return x + h
        """,
    ),
    rewrites={
        "norms_folded": Body(
            init=_INIT + _FOLDED,
            forward="""
                h = F.conv2d(x, self.w1, self.b1).clamp_(0, 6)
                h = F.conv2d(h, self.w2, self.b2, padding=1, groups=h.shape[1]).clamp_(0, 6)
                return F.conv2d(h, self.w3, self.b3).add_(x)
            """,
        ),
        "activations_in_place": Body(
            forward="""
                h = self.bn1(self.expand(x))
                F.relu6(h, inplace=True)
                h = self.bn2(self.depthwise(h))
                F.relu6(h, inplace=True)
                return self.bn3(self.project(h)).add_(x)
            """
        ),
        "pointwise_as_products": Body(
            summary="""An inverted residual whose pointwise convolutions are batched matrix products.

    Batch norms are folded into the weights. The residual and the last shift are the addend of the last product.
    """,
            init=_INIT + _FOLDED,
            methods='''
                def _widen(self, x):
                    """The first pointwise convolution as a batched product over pixels."""
                    B, C, H, W = x.shape
                    weight = self.w1.flatten(1).unsqueeze(0).expand(B, -1, -1)
                    h = torch.baddbmm(self.b1[None, :, None], weight, x.reshape(B, C, H * W))
                    return h.view(B, -1, H, W)

                def _narrow(self, h, x):
                    """The last pointwise convolution, onto the residual."""
                    B, C, H, W = x.shape
                    weight = self.w3.flatten(1).unsqueeze(0).expand(B, -1, -1)
                    addend = (x + self.b3[:, None, None]).view(B, C, H * W)
                    return torch.baddbmm(addend, weight, h.flatten(2)).view(B, C, H, W)
            ''',
            forward="""
                x = x.contiguous()
                h = self._widen(x).clamp_(0.0, 6.0)
                h = F.conv2d(h, self.w2, self.b2, padding=1, groups=h.shape[1]).clamp_(0.0, 6.0)
                return self._narrow(h, x)
            """,
        ),
        "residual_in_weight": Body(
            summary="The residual as an identity inside a projection that sees the input's channels as well.",
            init=_INIT
            + _FOLDED
            + """
    with torch.no_grad():
        identity = torch.eye(channels)[:, :, None, None]
        self.register_buffer("w3_and_input", torch.cat([self.w3, identity], dim=1))
""",
            forward="""
                h = F.hardtanh_(F.conv2d(x, self.w1, self.b1), 0.0, 6.0)
                h = F.hardtanh_(F.conv2d(h, self.w2, self.b2, padding=1, groups=h.shape[1]), 0.0, 6.0)
                return F.conv2d(torch.cat([h, x], dim=1), self.w3_and_input, self.b3)
            """,
        ),
        "shifted_slices": Body(
            summary="The depthwise convolution as a sum of nine shifted images, each times a number per channel.",
            init=_INIT + _FOLDED,
            forward="""
                H, W = x.shape[2:]
                h = F.pad(F.relu6(F.conv2d(x, self.w1, self.b1)), (1, 1, 1, 1))
                total = self.b2[:, None, None]
                for dy in range(3):
                    for dx in range(3):
                        tap = self.w2[:, :, dy, dx].unsqueeze(-1)
                        total = torch.addcmul(total, h[:, :, dy : dy + H, dx : dx + W], tap)
                return x + F.conv2d(F.relu6(total), self.w3, self.b3)
            """,
        ),
        "channel_groups": Body(
            summary="A quarter of the wide channels at a time: they add up in the projection.",
            init=_INIT + _FOLDED,
            forward="""
                wide = self.w1.shape[0]
                step = wide // 4
                out = x + self.b3[:, None, None]
                for start in range(0, wide, step):
                    part = slice(start, start + step)
                    h = F.conv2d(x, self.w1[part], self.b1[part]).clamp_(0, 6)
                    h = F.conv2d(h, self.w2[part], self.b2[part], padding=1, groups=step).clamp_(0, 6)
                    out += F.conv2d(h, self.w3[:, part])
                return out
            """,
        ),
        "triton_depthwise": Body(
            before=_DEPTHWISE_KERNEL,
            init=_INIT + _FOLDED,
            forward="""
                h = F.conv2d(x, self.w1).contiguous()
                B, C, H, W = h.shape
                y = torch.empty_like(h)
                grid = (B * C, triton.cdiv(H * W, 1024))
                depthwise_kernel[grid](h, self.b1, self.w2, self.b2, y, C, H, W, BLOCK=1024)
                return F.conv2d(y, self.w3, self.b3).add_(x)
            """,
        ),
        "cuda_depthwise": Body(
            before=_CUDA,
            init=_INIT + _FOLDED,
            forward="""
                h = F.conv2d(x, self.w1, self.b1).clamp_(0, 6).contiguous()
                h = depthwise_module.depthwise_relu6(h, self.w2, self.b2)
                return F.conv2d(h, self.w3, self.b3).add_(x)
            """,
        ),
    },
    images=True,
    carries_on="norms_folded",
)
