"""A grouped 1-D convolution, leaky ReLU, a bias per channel and maximum pooling."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def pool_kernel(y_ptr, bias_ptr, out_ptr, channels, pooled, total, slope, POOL: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    taps = tl.arange(0, POOL)
    y = tl.load(y_ptr + at[:, None] * POOL + taps[None, :], mask=keep[:, None], other=0.0)
    y = tl.max(y, axis=1)
    y = tl.where(y >= 0.0, y, y * slope)
    channel = (at // pooled) % channels
    tl.store(out_ptr + at, y + tl.load(bias_ptr + channel, mask=keep, other=0.0), mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A thread per output of the pooling: it computes the four convolution outputs it needs by itself.
template <int TAPS, int POOL>
__global__ void grouped_conv_pool(const float* __restrict__ x, const float* __restrict__ weight,
                                  const float* __restrict__ inner, const float* __restrict__ outer,
                                  float* __restrict__ out, int channels, int width, int groups, int length,
                                  float slope) {
    int pooled = length / POOL;
    int p = blockIdx.x * blockDim.x + threadIdx.x;
    int feature = blockIdx.y;
    int sample = blockIdx.z;
    if (p >= pooled) return;
    int each = channels / groups;
    int group = feature / (width / groups);
    float total[POOL];
#pragma unroll
    for (int j = 0; j < POOL; ++j) total[j] = inner[feature];
    for (int c = 0; c < each; ++c) {
        const float* row = x + ((long)sample * channels + group * each + c) * length;
        float window[POOL + TAPS - 1];
#pragma unroll
        for (int i = 0; i < POOL + TAPS - 1; ++i) {
            int at = p * POOL + i - TAPS / 2;
            window[i] = at >= 0 && at < length ? row[at] : 0.0f;
        }
#pragma unroll
        for (int t = 0; t < TAPS; ++t) {
            float w = weight[(feature * each + c) * TAPS + t];
#pragma unroll
            for (int j = 0; j < POOL; ++j) total[j] += w * window[j + t];
        }
    }
    float highest = total[0];
#pragma unroll
    for (int j = 1; j < POOL; ++j) highest = fmaxf(highest, total[j]);
    highest = highest >= 0.0f ? highest : highest * slope;
    out[((long)sample * width + feature) * pooled + p] = highest + outer[feature];
}

torch::Tensor forward(torch::Tensor x, torch::Tensor weight, torch::Tensor inner, torch::Tensor outer, int64_t groups) {
    TORCH_CHECK(weight.size(2) == 9, "nine taps expected");
    x = x.contiguous();
    int n = x.size(0), channels = x.size(1), length = x.size(2), width = weight.size(0);
    auto out = torch::empty({n, width, length / 4}, x.options());
    dim3 grid((length / 4 + 127) / 128, width, n);
    grouped_conv_pool<9, 4><<<grid, 128>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), inner.data_ptr<float>(), outer.data_ptr<float>(),
        out.data_ptr<float>(), channels, width, (int)groups, length, 0.2f);
    return out;
}
"""
declaration = (
    "torch::Tensor forward(torch::Tensor x, torch::Tensor weight, torch::Tensor inner, torch::Tensor outer,"
    " int64_t groups);"
)
whole_module = load_inline(
    name="grouped_conv1d_leaky_max_whole",
    cpp_sources=declaration,
    cuda_sources=source,
    functions=["forward"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)
'''

_INIT = """
    self.conv = nn.Conv1d(channels, width, 9, padding=4, groups=groups)
    self.activation = nn.LeakyReLU(0.2)
    self.bias = nn.Parameter(torch.randn(width, 1))
    self.pool = nn.MaxPool1d(4)
"""

MODULE = Rewritten(
    name="grouped_conv1d_leaky_max",
    sizes="""
        batch_size = 32
        channels = 64
        width = 128
        groups = 4
        length = 1024
    """,
    arguments=("channels", "width", "groups"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, length)]",
    reference=Body(
        summary="Grouped 1-D convolution, leaky ReLU, a bias, maximum of four neighbours.",
        init=_INIT,
        forward="""
            x = self.conv(x)
            x = self.activation(x)
            x = x + self.bias
            return self.pool(x)
        """,
    ),
    rewrites={
        "pool_first": Body(
            summary="Neither the activation nor the bias changes which of four neighbours is largest.",
            forward="""
                x = F.max_pool1d(self.conv(x), 4)
                return F.leaky_relu(x, 0.2, inplace=True).add_(self.bias)
            """,
        ),
        "amax_of_a_view": Body(
            forward="""
                x = self.conv(x)
                x = x.view(x.shape[0], x.shape[1], -1, 4).amax(dim=-1)
                return F.leaky_relu(x, 0.2) + self.bias
            """
        ),
        "two_maxima": Body(
            summary="Maxima of strided slices in place of a pooling layer.",
            forward="""
                x = self.conv(x)
                x = torch.maximum(x[..., 0::2], x[..., 1::2])
                x = torch.maximum(x[..., 0::2], x[..., 1::2])
                return torch.maximum(x, 0.2 * x) + self.bias
            """,
        ),
        "in_place_tail": Body(
            forward="""
                x = F.leaky_relu_(self.conv(x), 0.2)
                return F.max_pool1d(x.add_(self.bias), kernel_size=4)
            """
        ),
        "as_images_of_height_one": Body(
            summary="2-D convolution and pooling over images of height one, whose kernels are more widely tuned.",
            init=_INIT
            + '    self.register_buffer("weight", self.conv.weight.detach().unsqueeze(2).contiguous())\n',
            forward="""
                y = F.conv2d(x.unsqueeze(2), self.weight, self.conv.bias, padding=(0, 4), groups=self.conv.groups)
                y = F.max_pool2d(y, (1, 4))
                return F.leaky_relu_(y, 0.2).squeeze(2).add_(self.bias)
            """,
        ),
        "group_products": Body(
            summary="Windows of each group as a matrix, all groups multiplied in one batch.",
            methods='''
                def windows_of(self, x, groups):
                    """(batch, groups, channels in group * taps, length) with the padding included."""
                    n, c, length = x.shape
                    taps = self.conv.kernel_size[0]
                    padded = F.pad(x, (taps // 2, taps // 2))
                    windows = padded.unfold(2, taps, 1)
                    windows = windows.permute(0, 1, 3, 2)
                    return windows.reshape(n, groups, (c // groups) * taps, length)
            ''',
            forward="""
                groups = self.conv.groups
                windows = self.windows_of(x, groups)
                weight = self.conv.weight.view(groups, -1, windows.shape[2])
                y = torch.matmul(weight, windows) + self.conv.bias.view(groups, -1, 1)
                y = y.view(x.shape[0], -1, x.shape[2] // 4, 4).amax(dim=3)
                return F.leaky_relu(y, 0.2).add_(self.bias)
            """,
        ),
        "dense_weights": Body(
            init=_INIT
            + """
    with torch.no_grad():
        blocks = self.conv.weight.view(groups, width // groups, channels // groups, 9)
        dense = torch.zeros(groups, width // groups, groups, channels // groups, 9)
        for group in range(groups):
            dense[group, :, group] = blocks[group]
        self.register_buffer("dense", dense.view(width, channels, 9))
""",
            forward="""
                y = F.max_pool1d(F.conv1d(x, self.dense, self.conv.bias, padding=4), 4)
                return F.leaky_relu(y, 0.2).add_(self.bias)
            """,
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            forward="""
                y = self.conv(x).contiguous()
                n, c, length = y.shape
                out = torch.empty((n, c, length // 4), device=y.device, dtype=y.dtype)
                total = out.numel()
                pool_kernel[(triton.cdiv(total, 512),)](
                    y, self.bias, out, c, length // 4, total, 0.2, POOL=4, BLOCK=512
                )
                return out
            """,
        ),
        "cuda_whole": Body(
            before=_CUDA,
            forward="""
                return whole_module.forward(
                    x, self.conv.weight, self.conv.bias, self.bias.view(-1), self.conv.groups
                )
            """,
        ),
    },
    carries_on="pool_first",
)
