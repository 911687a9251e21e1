"""A shift per feature and the tanh form of GELU, written out term by term."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def shifted_gelu_kernel(x_ptr, shift_ptr, out_ptr, width, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    x = tl.load(x_ptr + at, mask=keep, other=0.0) + tl.load(shift_ptr + at % width, mask=keep, other=0.0)
    twice = 1.5957691216057308 * x * (1.0 + 0.044715 * x * x)
    tl.store(out_ptr + at, x / (1.0 + tl.exp(-twice)), mask=keep)
"""

_CUDA_SIMPLE = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void gelu_kernel(const float* x, const float* shift, float* out, int width, long total) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < total) {
        float v = x[i] + shift[i % width];
        float cubed = powf(v, 3.0f);
        out[i] = 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * cubed)));
    }
}

torch::Tensor shifted_gelu(torch::Tensor x, torch::Tensor shift) {
    auto out = torch::empty_like(x);
    long total = x.numel();
    gelu_kernel<<<(int)((total + 255) / 256), 256>>>(
        x.data_ptr<float>(), shift.data_ptr<float>(), out.data_ptr<float>(), (int)x.size(-1), total);
    return out;
}
"""
gelu_module = load_inline(
    name="gelu_tanh_by_hand_simple",
    cpp_sources="torch::Tensor shifted_gelu(torch::Tensor x, torch::Tensor shift);",
    cuda_sources=source,
    functions=["shifted_gelu"],
)
'''

MODULE = Rewritten(
    name="gelu_tanh_by_hand",
    sizes="""
        batch_size = 2048
        width = 8192
    """,
    arguments=("width",),
    takes="x",
    inputs="[torch.randn(batch_size, width)]",
    reference=Body(
        summary="Adds a learned shift and applies GELU in its tanh form.",
        before="import math",
        init="self.shift = nn.Parameter(torch.randn(width) * 0.5)",
        forward="""
            x = x + self.shift
            cubed = torch.pow(x, 3)
            inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * cubed)
            return 0.5 * x * (1.0 + torch.tanh(inner))
        """,
    ),
    rewrites={
        "library_gelu": Body(forward="return F.gelu(x + self.shift, approximate='tanh')"),
        "product_for_power": Body(
            forward="""
                x = x + self.shift
                inner = 0.7978845608028654 * (x + 0.044715 * (x * x * x))
                return 0.5 * x * (1.0 + torch.tanh(inner))
            """
        ),
        "in_place_horner": Body(
            forward="""
                x = x + self.shift
                # sqrt(2 / pi) * x * (1 + 0.044715 x^2), with one temporary of the full size
                gate = torch.square(x)
                gate.mul_(0.035677408136300125).add_(0.7978845608028654).mul_(x)
                gate.tanh_().add_(1.0)
                return gate.mul_(x).mul_(0.5)
            """
        ),
        "sigmoid_form": Body(
            forward="""
                x = x + self.shift
                u = torch.addcmul(x, x * x, x, value=0.044715)
                return x * torch.sigmoid(1.5957691216057308 * u)
            """
        ),
        "compiled_expression": Body(
            before='''
                expressions = torch.jit.CompilationUnit(
                    """
                def shifted_gelu(x, shift):
                    x = x + shift
                    u = 1.5957691216057308 * x * (1.0 + 0.044715 * x * x)
                    return x * torch.sigmoid(u)
                """
                )
            ''',
            forward="return expressions.shifted_gelu(x, self.shift)",
        ),
        "rows_in_blocks": Body(
            summary="""Shifted GELU in blocks of rows that stay in the second-level cache.

    Every block passes through all elementwise steps while it is still cached, so that device memory
    is read once and written once.
    """,
            init="""
                self.shift = nn.Parameter(torch.randn(width) * 0.5)
                self.rows_per_block = 256
            """,
            methods="""
                def _activate(self, rows, out):
                    torch.add(rows, self.shift, out=out)
                    gate = out * out
                    gate.mul_(0.044715).add_(1.0).mul_(out).mul_(0.7978845608028654).tanh_()
                    out.mul_(gate.add_(1.0)).mul_(0.5)
            """,
            forward="""
                if x.dim() != 2:
                    raise ValueError("expected a matrix")
                result = torch.empty_like(x)
                for start in range(0, x.shape[0], self.rows_per_block):
                    stop = min(start + self.rows_per_block, x.shape[0])
                    self._activate(x[start:stop], result[start:stop])
                return result
            """,
        ),
        "triton_elementwise": Body(
            before=_KERNEL,
            forward="""
                x = x.contiguous()
                out = torch.empty_like(x)
                total = x.numel()
                grid = (triton.cdiv(total, 1024),)
                shifted_gelu_kernel[grid](x, self.shift, out, x.shape[-1], total, BLOCK=1024)
                return out
            """,
        ),
        "cuda_one_thread_each": Body(
            before=_CUDA_SIMPLE,
            forward="return gelu_module.shifted_gelu(x.contiguous(), self.shift)",
        ),
    },
    carries_on="library_gelu",
)
