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

_CUDA_VECTORS = '''
from torch.utils.cpp_extension import load_inline

vector_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2 u))
__device__ __forceinline__ float gelu_tanh(float v) {
    const float u = v * fmaf(0.07135481627f * v, v, 1.5957691216f);
    return v / (1.0f + __expf(-u));
}

// A block walks down the rows with the same columns, so that the shift stays in a register.
__global__ void shift_gelu_kernel(const float4* __restrict__ x, const float4* __restrict__ shift,
                                  float4* __restrict__ out, int rows, int quads) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= quads) return;
    const float4 s = shift[col];
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const long at = (long)row * quads + col;
        float4 v = __ldg(x + at);
        v.x = gelu_tanh(v.x + s.x);
        v.y = gelu_tanh(v.y + s.y);
        v.z = gelu_tanh(v.z + s.z);
        v.w = gelu_tanh(v.w + s.w);
        out[at] = v;
    }
}

torch::Tensor shift_gelu(torch::Tensor x, torch::Tensor shift) {
    TORCH_CHECK(x.is_cuda() && x.is_contiguous() && x.dim() == 2, "a contiguous CUDA matrix is expected");
    TORCH_CHECK(x.size(1) % 4 == 0 && x.size(1) == shift.numel(), "the width must be a multiple of four");
    auto out = torch::empty_like(x);
    const int rows = x.size(0), quads = x.size(1) / 4;
    dim3 grid((quads + 255) / 256, std::min(rows, 512));
    shift_gelu_kernel<<<grid, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<const float4*>(x.data_ptr<float>()),
        reinterpret_cast<const float4*>(shift.data_ptr<float>()), reinterpret_cast<float4*>(out.data_ptr<float>()),
        rows, quads);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
vector_module = load_inline(
    name="gelu_tanh_by_hand_vectors",
    cpp_sources="torch::Tensor shift_gelu(torch::Tensor x, torch::Tensor shift);",
    cuda_sources=vector_source,
    functions=["shift_gelu"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)
'''

_CUDA_RUNS = '''
from torch.utils.cpp_extension import load_inline

runs_source = r"""
#include <torch/extension.h>

#define RUN 8

// every thread has 8 elements in a row
__global__ void gelu_inplace_kernel(float* x, long total) {
    long start = ((long)blockIdx.x * blockDim.x + threadIdx.x) * RUN;
    for (int i = 0; i < RUN; i++) {
        if (start + i < total) {
            float v = x[start + i];
            float inner = 0.7978845608f * (v + 0.044715f * v * v * v);
            x[start + i] = 0.5f * v * (1.0f + tanhf(inner));
        }
    }
}

torch::Tensor gelu_(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
    TORCH_CHECK(x.scalar_type() == torch::kFloat32, "x must be float32");
    long total = x.numel();
    long threads = (total + RUN - 1) / RUN;
    gelu_inplace_kernel<<<(threads + 127) / 128, 128>>>(x.data_ptr<float>(), total);
    return x;
}
"""
runs_module = load_inline(
    name="gelu_tanh_by_hand_runs",
    cpp_sources="torch::Tensor gelu_(torch::Tensor x);",
    cuda_sources=runs_source,
    functions=["gelu_"],
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
        "cuda_float4_columns": Body(
            before=_CUDA_VECTORS,
            forward="return vector_module.shift_gelu(x.contiguous(), self.shift)",
        ),
        "cuda_gelu_in_place": Body(
            summary="Adds a learned shift by the library and applies GELU in its tanh form to the sum, in place.",
            before=_CUDA_RUNS,
            init="self.shift = nn.Parameter(torch.randn(width) * 0.5)",
            methods='''
                def _activate(self, y):
                    """GELU of y, which is overwritten where the kernel applies."""
                    if y.is_cuda and y.dtype == torch.float32 and y.is_contiguous():
                        return runs_module.gelu_(y)
                    return F.gelu(y, approximate="tanh")
            ''',
            forward="return self._activate(x + self.shift)",
        ),
    },
    carries_on="library_gelu",
)
