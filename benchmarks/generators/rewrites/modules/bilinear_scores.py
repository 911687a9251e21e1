"""Scores of pairs of vectors by a bilinear form per output, with a leaky rectifier."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_FORM_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def form_kernel(a_ptr, b_ptr, w_ptr, bias_ptr, out_ptr, n, dim, outputs,
                BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    which = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    keep = (rows[:, None] < n) & (d[None, :] < dim)
    a = tl.load(a_ptr + rows[:, None] * dim + d[None, :], mask=keep, other=0.0)
    w = tl.load(w_ptr + which * dim * dim + d[:, None] * dim + d[None, :],
                mask=(d[:, None] < dim) & (d[None, :] < dim), other=0.0)
    left = tl.dot(a, w, input_precision="ieee")
    b = tl.load(b_ptr + rows[:, None] * dim + d[None, :], mask=keep, other=0.0)
    y = tl.sum(left * b, axis=1) + tl.load(bias_ptr + which)
    y = tl.where(y > 0, y, 0.1 * y)
    tl.store(out_ptr + rows * outputs + which, y, mask=rows < n)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void bilinear(const float* a, const float* b, const float* w, const float* bias, float* out,
                         int n, int dim, int outputs) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= n * outputs) return;
    int row = index / outputs;
    int o = index % outputs;
    const float* form = w + (long)o * dim * dim;
    float total = bias[o];
    for (int i = 0; i < dim; ++i) {
        float inner = 0.0f;
        for (int j = 0; j < dim; ++j) inner += form[i * dim + j] * b[row * dim + j];
        total += a[row * dim + i] * inner;
    }
    out[index] = total > 0.0f ? total : 0.1f * total;
}

torch::Tensor bilinear_forward(torch::Tensor a, torch::Tensor b, torch::Tensor w, torch::Tensor bias) {
    int n = a.size(0), dim = a.size(1), outputs = w.size(0);
    auto out = torch::empty({n, outputs}, a.options());
    int threads = 128;
    int blocks = (n * outputs + threads - 1) / threads;
    bilinear<<<blocks, threads>>>(a.data_ptr<float>(), b.data_ptr<float>(), w.data_ptr<float>(),
                                  bias.data_ptr<float>(), out.data_ptr<float>(), n, dim, outputs);
    return out;
}
"""
bilinear_module = load_inline(
    name="bilinear_scores_plain",
    cpp_sources="torch::Tensor bilinear_forward(torch::Tensor a, torch::Tensor b, torch::Tensor w, "
    "torch::Tensor bias);",
    cuda_sources=source,
    functions=["bilinear_forward"],
)
'''

_INIT = """
    self.bilinear = nn.Bilinear(dim, dim, outputs)
"""

_PACKED = """
    # (dim, outputs * dim): one product then makes all left halves of the forms.
    packed = self.bilinear.weight.detach().permute(1, 0, 2).reshape(dim, outputs * dim)
    self.register_buffer("packed", packed.contiguous())
    self.outputs = outputs
"""

MODULE = Rewritten(
    name="bilinear_scores",
    sizes="""
        pairs = 1024
        dim = 96
        outputs = 24
    """,
    arguments=("dim", "outputs"),
    takes="a, b",
    inputs="[torch.randn(pairs, dim), torch.randn(pairs, dim)]",
    reference=Body(
        summary="A bilinear layer on pairs of vectors, with a leaky rectifier after it.",
        init=_INIT,
        forward="""
            scores = self.bilinear(a, b)
            return F.leaky_relu(scores, negative_slope=0.1)
        """,
    ),
    rewrites={
        "product_then_dots": Body(
            init=_INIT + _PACKED,
            forward="""
                left = torch.mm(a, self.packed).view(-1, self.outputs, a.shape[1])
                y = torch.bmm(left, b.unsqueeze(-1)).squeeze(-1)
                return F.leaky_relu_(y.add_(self.bilinear.bias), 0.1)
            """,
        ),
        "product_then_sum": Body(
            forward="""
                o, d, _ = self.bilinear.weight.shape
                w = self.bilinear.weight.permute(1, 0, 2).reshape(d, o * d)
                left = (a @ w).view(a.shape[0], o, d)
                scores = (left * b.unsqueeze(1)).sum(dim=-1) + self.bilinear.bias
                return F.leaky_relu(scores, 0.1)
            """
        ),
        "einsum": Body(
            forward="""
                y = torch.einsum("ni,oij,nj->no", a, self.bilinear.weight, b)
                return F.leaky_relu(y + self.bilinear.bias, 0.1)
            """
        ),
        "outer_products": Body(
            summary="Outer products of the pairs, flattened, through one wide linear layer.",
            init=_INIT
            + """
    self.register_buffer("flat_weight", self.bilinear.weight.detach().flatten(1).clone())
""",
            forward="""
                outer = torch.bmm(a.unsqueeze(2), b.unsqueeze(1)).flatten(1)
                return F.leaky_relu(F.linear(outer, self.flat_weight, self.bilinear.bias), 0.1)
            """,
        ),
        "output_by_output": Body(
            forward="""
                columns = []
                for form, shift in zip(self.bilinear.weight, self.bilinear.bias):
                    columns.append(torch.sum(torch.mm(a, form) * b, dim=1) + shift)
                return F.leaky_relu(torch.stack(columns, dim=1), negative_slope=0.1)
            """
        ),
        "forms_as_batch": Body(
            summary="One batched product over outputs; the dot products are one reduction in place.",
            init=_INIT,
            forward="""
                self.verify(a, b)
                left = torch.matmul(a, self.bilinear.weight)  # (outputs, pairs, dim)
                scores = left.mul_(b).sum(dim=-1)
                scores = scores.add_(self.bilinear.bias.unsqueeze(1)).t()
                return F.leaky_relu(scores, negative_slope=0.1).contiguous()
            """,
            methods="""
                def verify(self, a, b):
                    if a.dim() != 2 or b.dim() != 2:
                        raise ValueError("expected two matrices of row vectors")
                    if a.shape[0] != b.shape[0]:
                        raise ValueError(f"got {a.shape[0]} and {b.shape[0]} vectors")
                    if a.shape[1] != self.bilinear.in1_features or b.shape[1] != self.bilinear.in2_features:
                        raise ValueError("vectors have the wrong length")
            """,
        ),
        "triton_forms": Body(
            before=_FORM_KERNEL,
            forward="""
                a, b = a.contiguous(), b.contiguous()
                n, d = a.shape
                o = self.bilinear.out_features
                out = torch.empty(n, o, device=a.device)
                form_kernel[(triton.cdiv(n, 32), o)](
                    a, b, self.bilinear.weight, self.bilinear.bias, out, n, d, o,
                    BLOCK_N=32, BLOCK_D=128, num_warps=8,
                )
                return out
            """,
        ),
        "cuda_plain": Body(
            before=_CUDA,
            forward="return bilinear_module.bilinear_forward(a, b, self.bilinear.weight, self.bilinear.bias)",
        ),
    },
    carries_on="product_then_dots",
)
