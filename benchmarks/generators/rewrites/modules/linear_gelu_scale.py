"""A linear layer with a wide output, GELU, a learned scale per feature and a sum over pairs of features."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def tail_kernel(y_ptr, scale_ptr, out_ptr, n, half, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < half
    left = tl.load(y_ptr + row * n + 2 * cols, mask=keep, other=0.0)
    right = tl.load(y_ptr + row * n + 2 * cols + 1, mask=keep, other=0.0)
    left_scale = tl.load(scale_ptr + 2 * cols, mask=keep, other=0.0)
    right_scale = tl.load(scale_ptr + 2 * cols + 1, mask=keep, other=0.0)
    left = 0.5 * left * (1.0 + tl.erf(left * 0.7071067811865476)) * left_scale
    right = 0.5 * right * (1.0 + tl.erf(right * 0.7071067811865476)) * right_scale
    tl.store(out_ptr + row * half + cols, left + right, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void tail(const float* __restrict__ y, const float* __restrict__ scale, float* __restrict__ out,
                     int half, long total) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < total; i += gridDim.x * (long)blockDim.x) {
        float2 v = reinterpret_cast<const float2*>(y)[i];
        float2 s = reinterpret_cast<const float2*>(scale)[i % half];
        float left = 0.5f * v.x * (1.0f + erff(v.x * 0.70710678f));
        float right = 0.5f * v.y * (1.0f + erff(v.y * 0.70710678f));
        out[i] = left * s.x + right * s.y;
    }
}

torch::Tensor fused_tail(torch::Tensor y, torch::Tensor scale) {
    int half = y.size(1) / 2;
    auto out = torch::empty({y.size(0), half}, y.options());
    long total = out.numel();
    tail<<<(int)std::min((total + 255) / 256, 8192L), 256>>>(
        y.data_ptr<float>(), scale.data_ptr<float>(), out.data_ptr<float>(), half, total);
    return out;
}
"""
tail_module = load_inline(
    name="linear_gelu_scale_tail",
    cpp_sources="torch::Tensor fused_tail(torch::Tensor y, torch::Tensor scale);",
    cuda_sources=source,
    functions=["fused_tail"],
)
'''

_INIT = """
    self.linear = nn.Linear(features, width)
    self.scale = nn.Parameter(torch.randn(width))
"""

MODULE = Rewritten(
    name="linear_gelu_scale",
    sizes="""
        batch_size = 2048
        features = 1024
        width = 4096
    """,
    arguments=("features", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, features)]",
    reference=Body(
        summary="A linear layer, GELU, a scale per feature, and the sums of neighbouring features.",
        init=_INIT,
        forward="""
            x = self.linear(x)
            x = F.gelu(x)
            x = x * self.scale
            x = x.view(x.shape[0], -1, 2)
            return x.sum(dim=-1)
        """,
    ),
    rewrites={
        "strided_sum": Body(
            forward="""
                x = F.gelu(self.linear(x)).mul_(self.scale)
                return x[:, 0::2] + x[:, 1::2]
            """
        ),
        "einsum": Body(
            forward="""
                y = F.gelu(torch.addmm(self.linear.bias, x, self.linear.weight.t()))
                return torch.einsum("bkp,kp->bk", y.view(y.shape[0], -1, 2), self.scale.view(-1, 2))
            """
        ),
        "split_halves": Body(
            init=_INIT
            + """
    with torch.no_grad():
        order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
        self.register_buffer("sorted_weight", self.linear.weight[order].clone())
        self.register_buffer("sorted_bias", self.linear.bias[order].clone())
        self.register_buffer("sorted_scale", self.scale[order].clone())
""",
            forward="""
                y = F.gelu(F.linear(x, self.sorted_weight, self.sorted_bias)).mul_(self.sorted_scale)
                left, right = y.chunk(2, dim=-1)
                return left + right
            """,
        ),
        "row_by_row": Body(
            forward="""
                outputs = []
                for rows in x.split(128):
                    y = F.gelu(self.linear(rows)) * self.scale
                    outputs.append(y.view(y.shape[0], -1, 2).sum(dim=-1))
                return torch.cat(outputs)
            """
        ),
        "triton_tail": Body(
            before=_TAIL_KERNEL,
            forward="""
                y = self.linear(x)
                half = y.shape[1] // 2
                out = torch.empty(y.shape[0], half, device=y.device)
                tail_kernel[(y.shape[0], triton.cdiv(half, 1024))](y, self.scale, out, y.shape[1], half, BLOCK=1024)
                return out
            """,
        ),
        "cuda_tail": Body(before=_CUDA, forward="return tail_module.fused_tail(self.linear(x), self.scale)"),
    },
    carries_on="split_halves",
)
