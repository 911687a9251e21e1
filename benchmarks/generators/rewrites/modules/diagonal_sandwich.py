"""A matrix between two diagonal ones, a bias and a rectifier."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_SCALE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def sandwich_kernel(x_ptr, left_ptr, right_ptr, bias_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = at < cols
    left = tl.load(left_ptr + row)
    right = tl.load(right_ptr + at, mask=keep, other=0.0)
    bias = tl.load(bias_ptr + at, mask=keep, other=0.0)
    x = tl.load(x_ptr + row * cols + at, mask=keep, other=0.0)
    tl.store(out_ptr + row * cols + at, tl.maximum(left * x * right + bias, 0.0), mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void sandwich(const float4* __restrict__ x, const float* __restrict__ left,
                         const float4* __restrict__ right, const float4* __restrict__ bias,
                         float4* __restrict__ out, int quads) {
    int row = blockIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= quads) return;
    float l = left[row];
    float4 r = right[col];
    float4 b = bias[col];
    float4 v = x[(long)row * quads + col];
    v.x = fmaxf(fmaf(l * v.x, r.x, b.x), 0.0f);
    v.y = fmaxf(fmaf(l * v.y, r.y, b.y), 0.0f);
    v.z = fmaxf(fmaf(l * v.z, r.z, b.z), 0.0f);
    v.w = fmaxf(fmaf(l * v.w, r.w, b.w), 0.0f);
    out[(long)row * quads + col] = v;
}

torch::Tensor sandwich_forward(torch::Tensor x, torch::Tensor left, torch::Tensor right, torch::Tensor bias) {
    TORCH_CHECK(x.dim() == 2 && x.size(1) % 4 == 0, "columns must come in fours");
    x = x.contiguous();
    auto out = torch::empty_like(x);
    int quads = x.size(1) / 4;
    dim3 grid((quads + 127) / 128, x.size(0));
    sandwich<<<grid, 128>>>(
        reinterpret_cast<const float4*>(x.data_ptr<float>()), left.data_ptr<float>(),
        reinterpret_cast<const float4*>(right.data_ptr<float>()),
        reinterpret_cast<const float4*>(bias.data_ptr<float>()),
        reinterpret_cast<float4*>(out.data_ptr<float>()), quads);
    return out;
}
"""
sandwich_module = load_inline(
    name="diagonal_sandwich_vectorised",
    cpp_sources="torch::Tensor sandwich_forward(torch::Tensor x, torch::Tensor left, torch::Tensor right, "
    "torch::Tensor bias);",
    cuda_sources=source,
    functions=["sandwich_forward"],
)
'''

_INIT = """
    self.left = nn.Parameter(torch.randn(rows))
    self.right = nn.Parameter(torch.randn(cols))
    self.bias = nn.Parameter(torch.randn(cols))
"""

_CUDA_GRID = '''
from torch.utils.cpp_extension import load_inline

grid_source = r"""
#include <torch/extension.h>

__global__ void sandwich_kernel(const float* __restrict__ x, const float* __restrict__ left,
                                const float* __restrict__ right, const float* __restrict__ bias,
                                float* __restrict__ out, int rows, int cols) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < rows && col < cols) {
        float value = left[row] * x[row * cols + col] * right[col] + bias[col];
        out[row * cols + col] = value > 0.0f ? value : 0.0f;
    }
}

torch::Tensor sandwich(torch::Tensor x, torch::Tensor left, torch::Tensor right, torch::Tensor bias) {
    auto out = torch::empty_like(x);
    int rows = x.size(0), cols = x.size(1);
    dim3 block(16, 16);
    dim3 grid((cols + 15) / 16, (rows + 15) / 16);
    sandwich_kernel<<<grid, block>>>(x.data_ptr<float>(), left.data_ptr<float>(), right.data_ptr<float>(),
                                     bias.data_ptr<float>(), out.data_ptr<float>(), rows, cols);
    return out;
}
"""
sandwich_module = load_inline(
    name="diagonal_sandwich_grid",
    cpp_sources="torch::Tensor sandwich(torch::Tensor x, torch::Tensor left, torch::Tensor right, "
    "torch::Tensor bias);",
    cuda_sources=grid_source,
    functions=["sandwich"],
)
'''

_CUDA_LEFT = '''
from torch.utils.cpp_extension import load_inline

left_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// diag(left) X, one thread per row
template <typename scalar_t>
__global__ void scale_rows_kernel(const scalar_t* __restrict__ x, const scalar_t* __restrict__ left,
                                  scalar_t* __restrict__ out, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const scalar_t factor = left[row];
    for (int col = 0; col < cols; ++col) out[(long)row * cols + col] = factor * x[(long)row * cols + col];
}

torch::Tensor scale_rows(torch::Tensor x, torch::Tensor left) {
    TORCH_CHECK(x.is_cuda() && left.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(x.is_contiguous() && left.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(x.dim() == 2 && x.size(0) == left.size(0), "a factor per row expected");
    auto out = torch::empty_like(x);
    const int rows = x.size(0), cols = x.size(1), threads = 64;
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scale_rows", ([&] {
        scale_rows_kernel<scalar_t><<<(rows + threads - 1) / threads, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
            x.data_ptr<scalar_t>(), left.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), rows, cols);
    }));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
rows_module = load_inline(
    name="diagonal_sandwich_left",
    cpp_sources="torch::Tensor scale_rows(torch::Tensor x, torch::Tensor left);",
    cuda_sources=left_source,
    functions=["scale_rows"],
)
'''

MODULE = Rewritten(
    name="diagonal_sandwich",
    sizes="""
        rows = 2048
        cols = 2048
    """,
    arguments=("rows", "cols"),
    takes="x",
    inputs="[torch.randn(rows, cols)]",
    reference=Body(
        summary="relu(diag(left) X diag(right) + bias).",
        init=_INIT,
        forward="""
            left = torch.diag(self.left)
            right = torch.diag(self.right)
            y = left @ x @ right
            return torch.relu(y + self.bias)
        """,
    ),
    rewrites={
        "cached_diagonals": Body(
            init=_INIT
            + """
    self.register_buffer("left_matrix", torch.diag(self.left.detach()))
    self.register_buffer("right_matrix", torch.diag(self.right.detach()))
""",
            forward="""
                y = torch.matmul(self.left_matrix, x)
                return torch.addmm(self.bias, y, self.right_matrix).relu_()
            """,
        ),
        "scaled_right_matrix": Body(
            forward="""
                # The left factor scales rows; only the right one stays a product.
                y = torch.addmm(self.bias, self.left.unsqueeze(1) * x, torch.diag(self.right))
                return torch.relu_(y)
            """
        ),
        "broadcast": Body(
            forward="""
                y = x * self.left.unsqueeze(1) * self.right.unsqueeze(0)
                return torch.relu(y + self.bias)
            """
        ),
        "addcmul_in_place": Body(
            forward="return torch.addcmul(self.bias, x * self.left[:, None], self.right).relu_()",
        ),
        "outer_scale": Body(
            forward="""
                scale = torch.outer(self.left, self.right)
                return F.relu(torch.addcmul(self.bias, scale, x), inplace=True)
            """
        ),
        "preallocated": Body(
            summary="Row and column scales in place in a buffer that is kept from call to call.",
            init=_INIT + "\n    self.buffers_by_shape = {}\n",
            forward="""
                out = self.buffer_for(x)
                torch.mul(x, self.left.view(-1, 1), out=out)
                out.mul_(self.right)
                out.add_(self.bias)
                return out.clamp_(min=0)
            """,
            methods="""
                def buffer_for(self, x):
                    key = (tuple(x.shape), x.device, x.dtype)
                    if key not in self.buffers_by_shape:
                        if len(self.buffers_by_shape) > 8:
                            self.buffers_by_shape.clear()
                        self.buffers_by_shape[key] = torch.empty_like(x)
                    return self.buffers_by_shape[key]
            """,
        ),
        "triton_rows": Body(
            before=_SCALE_KERNEL,
            forward="""
                x = x.contiguous()
                out = torch.empty_like(x)
                grid = (x.shape[0], triton.cdiv(x.shape[1], 1024))
                sandwich_kernel[grid](x, self.left, self.right, self.bias, out, x.shape[1], BLOCK=1024)
                return out
            """,
        ),
        "cuda_vectorised": Body(
            before=_CUDA,
            forward="return sandwich_module.sandwich_forward(x, self.left, self.right, self.bias)",
        ),
        "cuda_square_blocks": Body(
            before=_CUDA_GRID,
            forward="return sandwich_module.sandwich(x.contiguous(), self.left, self.right, self.bias)",
        ),
        "cuda_left_factor": Body(
            summary="The left factor by a kernel over rows, the right one and the bias by addcmul.",
            before=_CUDA_LEFT,
            init=_INIT,
            methods='''
                def _scaled_rows(self, x):
                    """diag(left) X."""
                    if x.is_cuda and x.dtype == self.left.dtype:
                        return rows_module.scale_rows(x.contiguous(), self.left)
                    return x * self.left.unsqueeze(1)
            ''',
            forward="return torch.addcmul(self.bias, self._scaled_rows(x), self.right).relu_()",
        ),
    },
    carries_on="addcmul_in_place",
)
