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

_CUDA_TILES = '''
from torch.utils.cpp_extension import load_inline

tiles_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define DIM 96
#define PAIRS 32
#define CHUNK 32

// A block has one output and 32 pairs, a warp four of the pairs. The form comes through shared memory in chunks of
// 32 rows; a lane keeps columns lane, lane + 32 and lane + 64 of a^T W in registers.
__global__ void bilinear_tile_kernel(const float* __restrict__ a, const float* __restrict__ b,
                                     const float* __restrict__ w, const float* __restrict__ bias,
                                     float* __restrict__ out, int pairs, int outputs, float slope) {
    __shared__ float sa[PAIRS][DIM];
    __shared__ float sb[PAIRS][DIM];
    __shared__ float sw[CHUNK][DIM];
    const int which = blockIdx.y;
    const int first = blockIdx.x * PAIRS;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < PAIRS * DIM; i += blockDim.x) {
        const int r = i / DIM;
        const int c = i % DIM;
        const bool inside = first + r < pairs;
        sa[r][c] = inside ? a[(first + r) * DIM + c] : 0.0f;
        sb[r][c] = inside ? b[(first + r) * DIM + c] : 0.0f;
    }
    float left[4][3] = {};
    for (int start = 0; start < DIM; start += CHUNK) {
        __syncthreads();
        for (int i = threadIdx.x; i < CHUNK * DIM; i += blockDim.x)
            sw[i / DIM][i % DIM] = w[((long)which * DIM + start) * DIM + i];
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < CHUNK; ++k) {
            const float w0 = sw[k][lane];
            const float w1 = sw[k][lane + 32];
            const float w2 = sw[k][lane + 64];
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const float v = sa[warp * 4 + p][start + k];
                left[p][0] = fmaf(v, w0, left[p][0]);
                left[p][1] = fmaf(v, w1, left[p][1]);
                left[p][2] = fmaf(v, w2, left[p][2]);
            }
        }
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        const int r = warp * 4 + p;
        float sum = left[p][0] * sb[r][lane] + left[p][1] * sb[r][lane + 32] + left[p][2] * sb[r][lane + 64];
        for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffff, sum, offset);
        if (lane == 0 && first + r < pairs) {
            const float y = sum + bias[which];
            out[(first + r) * outputs + which] = y > 0.0f ? y : slope * y;
        }
    }
}

torch::Tensor bilinear_leaky(torch::Tensor a, torch::Tensor b, torch::Tensor w, torch::Tensor bias, double slope) {
    TORCH_CHECK(a.size(1) == DIM, "the kernel is made for vectors of 96");
    const int pairs = a.size(0), outputs = w.size(0);
    auto out = torch::empty({pairs, outputs}, a.options());
    dim3 grid((pairs + PAIRS - 1) / PAIRS, outputs);
    bilinear_tile_kernel<<<grid, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), b.data_ptr<float>(), w.data_ptr<float>(), bias.data_ptr<float>(),
        out.data_ptr<float>(), pairs, outputs, (float)slope);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
tiles_module = load_inline(
    name="bilinear_scores_tiles",
    cpp_sources="torch::Tensor bilinear_leaky(torch::Tensor a, torch::Tensor b, torch::Tensor w, torch::Tensor bias, "
    "double slope);",
    cuda_sources=tiles_source,
    functions=["bilinear_leaky"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_DOTS = '''
from torch.utils.cpp_extension import load_inline

dots_source = r"""
#include <torch/extension.h>

// one thread per pair and output
__global__ void dots_leaky_kernel(const float* left, const float* b, const float* bias, float* out, int pairs,
                                  int outputs, int dim) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pairs * outputs) return;
    int pair = i / outputs;
    int which = i % outputs;
    float score = bias[which];
    for (int j = 0; j < dim; j++) {
        score += left[((long)pair * outputs + which) * dim + j] * b[pair * dim + j];
    }
    out[i] = score > 0.0f ? score : 0.1f * score;
}

torch::Tensor dots_leaky(torch::Tensor left, torch::Tensor b, torch::Tensor bias) {
    TORCH_CHECK(left.is_cuda() && left.is_contiguous(), "left must be a contiguous CUDA tensor");
    TORCH_CHECK(b.is_cuda() && b.is_contiguous(), "b must be a contiguous CUDA tensor");
    TORCH_CHECK(left.scalar_type() == torch::kFloat32, "float32 expected");
    int pairs = b.size(0), dim = b.size(1), outputs = bias.size(0);
    auto out = torch::empty({pairs, outputs}, b.options());
    int total = pairs * outputs;
    dots_leaky_kernel<<<(total + 127) / 128, 128>>>(left.data_ptr<float>(), b.data_ptr<float>(),
                                                    bias.data_ptr<float>(), out.data_ptr<float>(), pairs, outputs,
                                                    dim);
    return out;
}
"""
dots_module = load_inline(
    name="bilinear_scores_dots",
    cpp_sources="torch::Tensor dots_leaky(torch::Tensor left, torch::Tensor b, torch::Tensor bias);",
    cuda_sources=dots_source,
    functions=["dots_leaky"],
)
'''

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
        "cuda_shared_tiles": Body(
            before=_CUDA_TILES,
            forward="""
                weight, bias = self.bilinear.weight, self.bilinear.bias
                return tiles_module.bilinear_leaky(a.contiguous(), b.contiguous(), weight, bias, 0.1)
            """,
        ),
        "cuda_dots_after_product": Body(
            summary="One library product for the left halves of all forms; dots, bias and rectifier in a kernel.",
            before=_CUDA_DOTS,
            init=_INIT + _PACKED,
            methods='''
                def _fallback(self, a, b):
                    """The same with the layer as it is."""
                    return F.leaky_relu(self.bilinear(a, b), negative_slope=0.1)
            ''',
            forward="""
                if not a.is_cuda or a.dtype != torch.float32 or a.dim() != 2:
                    return self._fallback(a, b)
                left = torch.mm(a, self.packed)
                return dots_module.dots_leaky(left, b.contiguous(), self.bilinear.bias)
            """,
        ),
    },
    carries_on="product_then_dots",
)
