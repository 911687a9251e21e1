"""Sums from each step to the end of the row, over the steps that a mask keeps."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def suffix_sums(x_ptr, mask_ptr, out_ptr, steps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    keep = cols < steps
    x = tl.load(x_ptr + row * steps + cols, mask=keep, other=0.0)
    x *= tl.load(mask_ptr + row * steps + cols, mask=keep, other=0.0)
    sums = tl.sum(x, axis=0) - tl.cumsum(x, axis=0) + x
    tl.store(out_ptr + row * steps + cols, sums, mask=keep)
"""

_CUDA_SERIAL = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void suffix_kernel(const float* x, const float* mask, float* out, int rows, int steps) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = steps - 1; i >= 0; --i) {
        long at = (long)row * steps + i;
        sum += x[at] * mask[at];
        out[at] = sum;
    }
}

torch::Tensor suffix_sums(torch::Tensor x, torch::Tensor mask) {
    auto out = torch::empty_like(x);
    int rows = x.size(0);
    suffix_kernel<<<(rows + 63) / 64, 64>>>(x.data_ptr<float>(), mask.data_ptr<float>(), out.data_ptr<float>(),
                                            rows, (int)x.size(1));
    return out;
}
"""
suffix_module = load_inline(
    name="masked_reverse_cumsum_serial",
    cpp_sources="torch::Tensor suffix_sums(torch::Tensor x, torch::Tensor mask);",
    cuda_sources=source,
    functions=["suffix_sums"],
)
'''

_CUDA_BLOCK = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A block walks a row from its end in tiles of blockDim.x steps; sums within a tile by shuffles in warps.
__global__ void suffix_tiles(const float* __restrict__ x, const float* __restrict__ mask,
                             float* __restrict__ out, int steps) {
    __shared__ float sums[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const long base = (long)blockIdx.x * steps;
    float carry = 0.0f;
    for (int start = 0; start < steps; start += blockDim.x) {
        int at = steps - 1 - start - (int)threadIdx.x;
        float v = at >= 0 ? x[base + at] * mask[base + at] : 0.0f;
        for (int offset = 1; offset < 32; offset <<= 1) {
            float other = __shfl_up_sync(0xffffffffu, v, offset);
            if (lane >= offset) v += other;
        }
        if (lane == 31) sums[warp] = v;
        __syncthreads();
        float before = carry, total = 0.0f;
        for (int w = 0; w < warps; ++w) {
            if (w < warp) before += sums[w];
            total += sums[w];
        }
        if (at >= 0) out[base + at] = v + before;
        carry += total;
        __syncthreads();
    }
}

torch::Tensor suffix_sums_tiled(torch::Tensor x, torch::Tensor mask) {
    auto out = torch::empty_like(x);
    suffix_tiles<<<(int)x.size(0), 256>>>(x.data_ptr<float>(), mask.data_ptr<float>(), out.data_ptr<float>(),
                                          (int)x.size(1));
    return out;
}
"""
tiled_module = load_inline(
    name="masked_reverse_cumsum_tiled",
    cpp_sources="torch::Tensor suffix_sums_tiled(torch::Tensor x, torch::Tensor mask);",
    cuda_sources=source,
    functions=["suffix_sums_tiled"],
)
'''

_CUDA_SHARED_SCAN = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

#define THREADS 1024

// One block per row. Hillis-Steele scan of the reversed row in shared memory, a chunk of 1024 steps at a time.
__global__ void reverse_cumsum_kernel(const float* x, const float* mask, float* out, int steps) {
    __shared__ float s[THREADS];
    __shared__ float carry;
    int tid = threadIdx.x;
    long base = (long)blockIdx.x * steps;
    if (tid == 0) carry = 0.0f;
    __syncthreads();
    for (int start = 0; start < steps; start += THREADS) {
        int i = steps - 1 - start - tid;
        s[tid] = i >= 0 ? x[base + i] * mask[base + i] : 0.0f;
        __syncthreads();
        for (int d = 1; d < THREADS; d *= 2) {
            float other = 0.0f;
            if (tid >= d) other = s[tid - d];
            __syncthreads();
            s[tid] += other;
            __syncthreads();
        }
        if (i >= 0) out[base + i] = s[tid] + carry;
        __syncthreads();
        if (tid == 0) carry += s[THREADS - 1];
        __syncthreads();
    }
}

torch::Tensor reverse_cumsum_cuda(torch::Tensor x, torch::Tensor mask) {
    auto out = torch::empty_like(x);
    int rows = x.size(0);
    int steps = x.size(1);
    reverse_cumsum_kernel<<<rows, THREADS>>>(x.data_ptr<float>(), mask.data_ptr<float>(), out.data_ptr<float>(),
                                             steps);
    return out;
}
"""

reverse_cumsum = load_inline(
    name="masked_reverse_cumsum_shared_scan",
    cpp_sources="torch::Tensor reverse_cumsum_cuda(torch::Tensor x, torch::Tensor mask);",
    cuda_sources=source,
    functions=["reverse_cumsum_cuda"],
    verbose=False,
)
'''

_CUDA_FLIPS = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

template <typename scalar_t>
__global__ void mask_and_flip(const scalar_t* __restrict__ x, const scalar_t* __restrict__ mask,
                              scalar_t* __restrict__ out, int64_t total, int steps) {
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= total) return;
    const int64_t row = i / steps;
    const int64_t from = row * steps + (steps - 1 - i % steps);
    out[i] = x[from] * mask[from];
}

template <typename scalar_t>
__global__ void flip_rows(const scalar_t* __restrict__ in, scalar_t* __restrict__ out, int64_t total, int steps) {
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= total) return;
    const int64_t row = i / steps;
    out[i] = in[row * steps + (steps - 1 - i % steps)];
}

torch::Tensor mask_and_flip_cuda(torch::Tensor x, torch::Tensor mask) {
    TORCH_CHECK(x.is_cuda() && mask.is_cuda(), "inputs must be CUDA tensors");
    TORCH_CHECK(x.sizes() == mask.sizes(), "x and mask must have the same shape");
    auto out = torch::empty_like(x);
    const int64_t total = x.numel();
    const int threads = 256;
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "mask_and_flip", [&] {
        mask_and_flip<scalar_t><<<(total + threads - 1) / threads, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
            x.data_ptr<scalar_t>(), mask.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), total, (int)x.size(1));
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}

torch::Tensor flip_rows_cuda(torch::Tensor in) {
    TORCH_CHECK(in.is_cuda(), "input must be a CUDA tensor");
    auto out = torch::empty_like(in);
    const int64_t total = in.numel();
    const int threads = 256;
    AT_DISPATCH_FLOATING_TYPES(in.scalar_type(), "flip_rows", [&] {
        flip_rows<scalar_t><<<(total + threads - 1) / threads, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
            in.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), total, (int)in.size(1));
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

cpp_source = """
torch::Tensor mask_and_flip_cuda(torch::Tensor x, torch::Tensor mask);
torch::Tensor flip_rows_cuda(torch::Tensor in);
"""

flips = load_inline(
    name="masked_reverse_cumsum_flips",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["mask_and_flip_cuda", "flip_rows_cuda"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="masked_reverse_cumsum",
    sizes="""
        rows = 8192
        steps = 2048
    """,
    arguments=("steps",),
    takes="x, mask",
    inputs="[torch.randn(rows, steps), (torch.rand(rows, steps) > 0.25).float()]",
    in_half=False,
    reference=Body(
        summary="Cumulative sum from the right of the values that the mask keeps.",
        init="self.steps = steps",
        forward="""
            kept = x * mask
            flipped = torch.flip(kept, dims=[1])
            summed = torch.cumsum(flipped, dim=1)
            return torch.flip(summed, dims=[1])
        """,
    ),
    rewrites={
        "total_less_prefix": Body(
            forward="""
                kept = x * mask
                prefix = torch.cumsum(kept, dim=1)
                return kept.add_(prefix[:, -1:]).sub_(prefix)
            """
        ),
        "total_by_sum": Body(
            forward="""
                kept = x * mask
                return kept.sum(dim=1, keepdim=True) - kept.cumsum(dim=1) + kept
            """
        ),
        "triangular_product": Body(
            init="""
                self.steps = steps
                self.register_buffer("triangle", torch.ones(steps, steps).tril())
            """,
            forward="return torch.mm(x * mask, self.triangle)",
        ),
        "two_levels": Body(
            summary="""Suffix sums in two levels: within blocks of 64 steps by a triangular product, then over blocks.

    The product of the blocks is a plain matrix product, and the sums over blocks are 64 times shorter.
    """,
            init="""
                self.steps = steps
                self.block = 64
                self.register_buffer("triangle", torch.ones(self.block, self.block).tril())
            """,
            methods="""
                def _later_blocks(self, totals):
                    # sum of all blocks that come after each block
                    prefix = totals.cumsum(dim=1)
                    return prefix[:, -1:] - prefix
            """,
            forward="""
                rows, steps = x.shape
                blocks = (x * mask).view(rows, steps // self.block, self.block)
                within = torch.matmul(blocks, self.triangle)
                within += self._later_blocks(within[:, :, 0]).unsqueeze(2)
                return within.view(rows, steps)
            """,
        ),
        "transposed_scan": Body(
            forward="""
                kept = (x * mask).t().contiguous()
                summed = kept.flip(0).cumsum(dim=0).flip(0)
                return summed.t().contiguous()
            """
        ),
        "triton_row_scan": Body(
            before=_KERNEL,
            forward="""
                out = torch.empty_like(x)
                block = triton.next_power_of_2(x.shape[1])
                suffix_sums[(x.shape[0],)](x, mask, out, x.shape[1], BLOCK=block, num_warps=4)
                return out
            """,
        ),
        "cuda_thread_per_row": Body(before=_CUDA_SERIAL, forward="return suffix_module.suffix_sums(x, mask)"),
        "cuda_block_per_row": Body(
            before=_CUDA_BLOCK,
            forward="""
                if not x.is_contiguous():
                    x = x.contiguous()
                return tiled_module.suffix_sums_tiled(x, mask.contiguous())
            """,
        ),
        "cuda_scan_in_shared": Body(
            before=_CUDA_SHARED_SCAN,
            forward="return reverse_cumsum.reverse_cumsum_cuda(x.contiguous(), mask.contiguous())",
        ),
        "cuda_flips_library_cumsum": Body(
            summary="""Reverse cumulative sum with the product and both flips in kernels.

    The scan itself is the library's. Anything but dense CUDA matrices goes through plain PyTorch.
    """,
            before=_CUDA_FLIPS,
            methods='''
                def _usable(self, x, mask):
                    """Whether the kernels take these tensors."""
                    if not (x.is_cuda and mask.is_cuda):
                        return False
                    return x.dim() == 2 and x.dtype == mask.dtype and x.dtype in (torch.float32, torch.float64)

                def _fallback(self, x, mask):
                    return torch.flip(torch.cumsum(torch.flip(x * mask, dims=[1]), dim=1), dims=[1])
            ''',
            forward="""
                if not self._usable(x, mask):
                    return self._fallback(x, mask)
                flipped = flips.mask_and_flip_cuda(x.contiguous(), mask.contiguous())
                return flips.flip_rows_cuda(torch.cumsum(flipped, dim=1))
            """,
        ),
    },
    carries_on="total_less_prefix",
)
