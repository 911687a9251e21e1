"""A chain of two batched small matrices and a vector, scaled and squashed."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_CHAIN_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def chain_kernel(a_ptr, b_ptr, v_ptr, out_ptr, scale, D: tl.constexpr):
    item = tl.program_id(0)
    rows = tl.arange(0, D)
    cols = tl.arange(0, D)
    tile = item * D * D + rows[:, None] * D + cols[None, :]
    v = tl.load(v_ptr + item * D + cols)
    b = tl.load(b_ptr + tile)
    a = tl.load(a_ptr + tile)
    inner = tl.sum(b * v[None, :], axis=1)
    y = tl.sum(a * inner[None, :], axis=1) * scale
    # tanh through the logistic function
    tl.store(out_ptr + item * D + rows, 2.0 * tl.sigmoid(2.0 * y) - 1.0)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One block per item of the batch, one warp per row of a matrix, twice.
__device__ __forceinline__ float warp_sum(float value) {
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_down_sync(0xffffffff, value, offset);
    return value;
}

__global__ void chain(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ v,
                      float* __restrict__ out, int d, float scale) {
    extern __shared__ float shared[];
    float* vec = shared;
    float* inner = shared + d;
    long item = blockIdx.x;
    int lane = threadIdx.x % 32;
    int warp = threadIdx.x / 32;
    int warps = blockDim.x / 32;
    for (int i = threadIdx.x; i < d; i += blockDim.x) vec[i] = v[item * d + i];
    __syncthreads();
    for (int row = warp; row < d; row += warps) {
        const float* line = b + (item * d + row) * d;
        float sum = 0.0f;
        for (int k = lane; k < d; k += 32) sum += line[k] * vec[k];
        sum = warp_sum(sum);
        if (lane == 0) inner[row] = sum;
    }
    __syncthreads();
    for (int row = warp; row < d; row += warps) {
        const float* line = a + (item * d + row) * d;
        float sum = 0.0f;
        for (int k = lane; k < d; k += 32) sum += line[k] * inner[k];
        sum = warp_sum(sum);
        if (lane == 0) out[item * d + row] = tanhf(sum * scale);
    }
}

torch::Tensor chain_vector(torch::Tensor a, torch::Tensor b, torch::Tensor v, double scale) {
    int batch = a.size(0);
    int d = a.size(1);
    auto out = torch::empty_like(v);
    chain<<<batch, 256, 2 * d * sizeof(float)>>>(a.data_ptr<float>(), b.data_ptr<float>(), v.data_ptr<float>(),
                                                 out.data_ptr<float>(), d, (float)scale);
    return out;
}
"""
chain_module = load_inline(
    name="batched_chain_vector_warps",
    cpp_sources="torch::Tensor chain_vector(torch::Tensor a, torch::Tensor b, torch::Tensor v, double scale);",
    cuda_sources=source,
    functions=["chain_vector"],
)
'''

_CUDA_ROWS = '''
from torch.utils.cpp_extension import load_inline

rows_source = r"""
#include <torch/extension.h>

// One block per item, one thread per row of the matrices.
template <typename scalar_t>
__global__ void chain_rows_kernel(const scalar_t* __restrict__ a, const scalar_t* __restrict__ b,
                                  const scalar_t* __restrict__ v, scalar_t* __restrict__ out, int dim,
                                  scalar_t scale) {
    __shared__ scalar_t inner[1024];
    const int row = threadIdx.x;
    const long item = blockIdx.x;
    if (row < dim) {
        scalar_t sum = 0;
        for (int k = 0; k < dim; ++k) sum += b[(item * dim + row) * dim + k] * v[item * dim + k];
        inner[row] = sum;
    }
    __syncthreads();
    if (row < dim) {
        scalar_t sum = 0;
        for (int k = 0; k < dim; ++k) sum += a[(item * dim + row) * dim + k] * inner[k];
        out[item * dim + row] = tanh(sum * scale);
    }
}

torch::Tensor chain_rows(torch::Tensor a, torch::Tensor b, torch::Tensor v, double scale) {
    const int batch = a.size(0), dim = a.size(1);
    TORCH_CHECK(dim <= 1024, "rows must fit into a block");
    auto out = torch::empty_like(v);
    AT_DISPATCH_FLOATING_TYPES(v.scalar_type(), "chain_rows", ([&] {
        chain_rows_kernel<scalar_t><<<batch, dim>>>(a.data_ptr<scalar_t>(), b.data_ptr<scalar_t>(),
                                                    v.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), dim,
                                                    static_cast<scalar_t>(scale));
    }));
    return out;
}
"""
rows_module = load_inline(
    name="batched_chain_vector_rows",
    cpp_sources="torch::Tensor chain_rows(torch::Tensor a, torch::Tensor b, torch::Tensor v, double scale);",
    cuda_sources=rows_source,
    functions=["chain_rows"],
)
'''

_CUDA_SECOND = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

// tanh(scale * A u): 16 lanes per row, each with float4 loads, two rows per warp.
__global__ void matvec_tanh_kernel(const float4* __restrict__ a, const float4* __restrict__ u,
                                   float* __restrict__ out, int dim, int quads, float scale, long rows) {
    const long row = (long)blockIdx.x * (blockDim.x / 16) + threadIdx.x / 16;
    const int lane = threadIdx.x % 16;
    float sum = 0.0f;
    if (row < rows) {
        const float4* line = a + row * quads;
        const float4* vec = u + (row / dim) * quads;
        for (int k = lane; k < quads; k += 16) {
            const float4 p = line[k];
            const float4 q = vec[k];
            sum += p.x * q.x + p.y * q.y + p.z * q.z + p.w * q.w;
        }
    }
#pragma unroll
    for (int offset = 8; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffff, sum, offset, 16);
    if (row < rows && lane == 0) out[row] = tanhf(sum * scale);
}

torch::Tensor matvec_tanh(torch::Tensor a, torch::Tensor u, double scale) {
    TORCH_CHECK(a.is_cuda() && u.is_cuda(), "inputs must be CUDA tensors");
    TORCH_CHECK(a.is_contiguous() && u.is_contiguous(), "inputs must be contiguous");
    const int dim = a.size(1);
    TORCH_CHECK(dim % 4 == 0, "dim must be a multiple of 4");
    auto out = torch::empty({a.size(0), dim}, a.options());
    const long rows = a.size(0) * dim;
    const int threads = 256;
    const int blocks = (rows + threads / 16 - 1) / (threads / 16);
    matvec_tanh_kernel<<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<const float4*>(a.data_ptr<float>()), reinterpret_cast<const float4*>(u.data_ptr<float>()),
        out.data_ptr<float>(), dim, dim / 4, (float)scale, rows);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
matvec_module = load_inline(
    name="batched_chain_vector_matvec_tanh",
    cpp_sources="torch::Tensor matvec_tanh(torch::Tensor a, torch::Tensor u, double scale);",
    cuda_sources=cuda_source,
    functions=["matvec_tanh"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="batched_chain_vector",
    sizes="""
        batch_size = 2048
        dim = 64
    """,
    arguments=("dim",),
    takes="a, b, v",
    inputs="""[
        torch.randn(batch_size, dim, dim),
        torch.randn(batch_size, dim, dim),
        torch.randn(batch_size, dim),
    ]""",
    reference=Body(
        summary="tanh(A B v / dim), for a batch of square matrices A and B and vectors v.",
        init="""
            self.dim = dim
            self.scale = 1.0 / dim
        """,
        forward="""
            product = torch.bmm(a, b)
            y = torch.bmm(product, v.unsqueeze(-1)).squeeze(-1)
            y = y * self.scale
            return torch.tanh(y)
        """,
    ),
    rewrites={
        "vector_first": Body(
            forward="""
                y = torch.bmm(a, torch.bmm(b, v.unsqueeze(-1))).squeeze(-1)
                return torch.tanh_(y.mul_(self.scale))
            """
        ),
        "folded_scale": Body(
            summary="The scale rides along in the second product as alpha.",
            forward="""
                inner = torch.bmm(b, v.unsqueeze(2))
                empty = inner.new_empty(())
                return torch.baddbmm(empty.expand(a.shape[0], self.dim, 1), a, inner, beta=0, alpha=self.scale)\\
                    .squeeze(2).tanh_()
            """,
        ),
        "one_einsum": Body(forward='return torch.tanh(torch.einsum("bij,bjk,bk->bi", a, b, v) * self.scale)'),
        "two_einsums": Body(
            forward="""
                inner = torch.einsum("bjk,bk->bj", b, v * self.scale)
                return torch.einsum("bij,bj->bi", a, inner).tanh()
            """
        ),
        "multiply_and_sum": Body(
            forward="""
                inner = (b * v[:, None, :]).sum(dim=-1)
                return torch.tanh((a * inner[:, None, :]).sum(dim=-1) * self.scale)
            """
        ),
        "chunked_batch": Body(
            summary="Works on slices of the batch, to keep the intermediate vectors in cache.",
            init="""
                self.dim = dim
                self.scale = 1.0 / dim
                self.slice = 64
            """,
            forward="""
                out = torch.empty_like(v)
                for start in range(0, a.shape[0], self.slice):
                    stop = min(start + self.slice, a.shape[0])
                    self.one_slice(a[start:stop], b[start:stop], v[start:stop], out[start:stop])
                return out
            """,
            methods="""
                def one_slice(self, a, b, v, out):
                    inner = torch.matmul(b, v.unsqueeze(-1))
                    y = torch.matmul(a, inner).squeeze(-1)
                    torch.tanh(y.mul_(self.scale), out=out)
            """,
        ),
        "triton_chain": Body(
            before=_CHAIN_KERNEL,
            forward="""
                out = torch.empty_like(v)
                chain_kernel[(v.shape[0],)](a, b, v, out, self.scale, D=self.dim, num_warps=4)
                return out
            """,
        ),
        "cuda_warps": Body(
            before=_CUDA,
            forward="return chain_module.chain_vector(a.contiguous(), b.contiguous(), v.contiguous(), self.scale)",
        ),
        "cuda_thread_per_row": Body(
            before=_CUDA_ROWS,
            forward="return rows_module.chain_rows(a.contiguous(), b.contiguous(), v.contiguous(), self.scale)",
        ),
        "cuda_second_product": Body(
            summary="""The chain from right to left, with scale and tanh in the kernel of the second product.

    The first product is left to the library. Inputs that the kernel does not take go through plain PyTorch.
    """,
            before=_CUDA_SECOND,
            methods='''
                def _kernel_applies(self, a, u):
                    """Whether the kernel can take these tensors."""
                    if not (a.is_cuda and u.is_cuda):
                        return False
                    return a.dtype == torch.float32 and u.dtype == torch.float32 and self.dim % 4 == 0
            ''',
            forward="""
                u = torch.bmm(b, v.unsqueeze(-1)).squeeze(-1)
                if not self._kernel_applies(a, u):
                    return torch.tanh(torch.bmm(a, u.unsqueeze(-1)).squeeze(-1) * self.scale)
                return matvec_module.matvec_tanh(a.contiguous(), u.contiguous(), self.scale)
            """,
        ),
    },
    carries_on="vector_first",
)
