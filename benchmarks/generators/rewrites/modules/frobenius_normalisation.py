"""Every matrix of a large batch divided by its Frobenius norm, which is written out."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TRITON = """
import triton
import triton.language as tl


@triton.jit
def partial_squares_kernel(x_ptr, partial_ptr, size, blocks, BLOCK: tl.constexpr):
    item = tl.program_id(1)
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + item.to(tl.int64) * size + at, mask=at < size, other=0.0)
    tl.store(partial_ptr + item * blocks + block, tl.sum(x * x, axis=0))


@triton.jit
def scale_kernel(x_ptr, squares_ptr, out_ptr, size, BLOCK: tl.constexpr):
    item = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scale = 1.0 / tl.sqrt(tl.load(squares_ptr + item))
    base = item.to(tl.int64) * size
    x = tl.load(x_ptr + base + at, mask=at < size, other=0.0)
    tl.store(out_ptr + base + at, x * scale, mask=at < size)


def normalise(x):
    x = x.contiguous()
    items = x.shape[0]
    size = x[0].numel()
    blocks = triton.cdiv(size, 4096)
    partial = torch.empty(items, blocks, device=x.device, dtype=torch.float32)
    partial_squares_kernel[(blocks, items)](x, partial, size, blocks, BLOCK=4096, num_warps=8)
    squares = partial.sum(dim=1)
    out = torch.empty_like(x)
    scale_kernel[(blocks, items)](x, squares, out, size, BLOCK=4096, num_warps=8)
    return out
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void add_squares(const float* __restrict__ x, float* __restrict__ squares, long size) {
    __shared__ float partial[8];
    const float* item = x + blockIdx.y * size;
    float sum = 0.0f;
    for (long i = blockIdx.x * 256L + threadIdx.x; i < size; i += gridDim.x * 256L) sum += item[i] * item[i];
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float all = 0.0f;
        for (int i = 0; i < 8; ++i) all += partial[i];
        atomicAdd(squares + blockIdx.y, all);
    }
}

__global__ void divide(const float* __restrict__ x, const float* __restrict__ squares, float* __restrict__ out,
                       long size) {
    float scale = rsqrtf(squares[blockIdx.y]);
    long base = blockIdx.y * size;
    for (long i = blockIdx.x * 256L + threadIdx.x; i < size; i += gridDim.x * 256L)
        out[base + i] = x[base + i] * scale;
}

torch::Tensor normalise(torch::Tensor x) {
    auto out = torch::empty_like(x);
    auto squares = torch::zeros({x.size(0)}, x.options());
    long size = x.numel() / x.size(0);
    dim3 grid((unsigned)std::min((size + 255) / 256, 64L), (unsigned)x.size(0));
    add_squares<<<grid, 256>>>(x.data_ptr<float>(), squares.data_ptr<float>(), size);
    divide<<<grid, 256>>>(x.data_ptr<float>(), squares.data_ptr<float>(), out.data_ptr<float>(), size);
    return out;
}
"""
norm_module = load_inline(
    name="frobenius_normalisation_atomics",
    cpp_sources="torch::Tensor normalise(torch::Tensor x);",
    cuda_sources=source,
    functions=["normalise"],
)
'''

MODULE = Rewritten(
    name="frobenius_normalisation",
    sizes="""
        matrices = 32
        height = 1024
        width = 1024
    """,
    arguments=(),
    takes="x",
    inputs="[torch.randn(matrices, height, width)]",
    reference=Body(
        summary="Each matrix of a batch over the square root of the sum of its squared absolute values.",
        forward="""
            squares = torch.abs(x) ** 2
            norm = torch.sqrt(torch.sum(squares, dim=(1, 2), keepdim=True))
            return x / norm
        """,
    ),
    rewrites={
        "matrix_norm": Body(forward='return x / torch.linalg.matrix_norm(x, ord="fro", keepdim=True)'),
        "reciprocal": Body(
            summary="One division for each matrix, and a product for each element.",
            forward="""
                scale = torch.norm(x, p=2, dim=(1, 2), keepdim=True).reciprocal()
                return torch.mul(x, scale)
            """,
        ),
        "einsum": Body(
            forward="""
                squares = torch.einsum("nhw,nhw->nh", x, x).sum(dim=1)
                return x * torch.rsqrt(squares).view(-1, 1, 1)
            """
        ),
        "square_in_place": Body(
            summary="Squares into a buffer that is then used again for the result.",
            forward="""
                buffer = torch.mul(x, x)
                norm = buffer.sum(dim=(1, 2), keepdim=True).sqrt_()
                return torch.div(x, norm, out=buffer)
            """,
        ),
        "normalize_flat": Body(forward="return F.normalize(x.flatten(1), p=2.0, dim=1).view_as(x)"),
        "gram_trace": Body(
            summary="The sum of squares as the trace of a product of 64 slices of a matrix with each other.",
            forward="""
                slices = x.reshape(x.shape[0], 64, -1)
                gram = torch.bmm(slices, slices.transpose(1, 2))
                squares = gram.diagonal(dim1=1, dim2=2).sum(dim=-1)
                return x / squares.sqrt()[:, None, None]
            """,
        ),
        "matrix_loop": Body(
            summary="Matrix by matrix, so that each is still in the cache when it is divided.",
            forward="""
                self._check(x)
                out = torch.empty_like(x)
                for matrix, target in zip(x.unbind(0), out.unbind(0)):
                    torch.div(matrix, self._norm(matrix), out=target)
                return out
            """,
            methods="""
                def _check(self, x):
                    if x.dim() != 3:
                        raise ValueError(f"expected a batch of matrices, got {tuple(x.shape)}")

                def _norm(self, matrix):
                    # Rows first, then the norm of their norms.
                    return torch.linalg.vector_norm(torch.linalg.vector_norm(matrix, dim=1))
            """,
        ),
        "triton_two_passes": Body(before=_TRITON, forward="return normalise(x)"),
        "cuda_atomics": Body(before=_CUDA, forward="return norm_module.normalise(x.contiguous())"),
    },
    in_half=False,
    carries_on="matrix_norm",
)
