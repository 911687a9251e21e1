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
    },
    carries_on="total_less_prefix",
)
