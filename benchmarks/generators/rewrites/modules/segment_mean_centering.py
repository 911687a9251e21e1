"""Features less the mean of their segment, with the means by a product with one-hot rows."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def add_to_segments(x_ptr, segment_ptr, sums_ptr, counts_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    segment = tl.load(segment_ptr + row)
    x = tl.load(x_ptr + row * width + cols, mask=keep, other=0.0)
    tl.atomic_add(sums_ptr + segment * width + cols, x, mask=keep)
    tl.atomic_add(counts_ptr + segment, 1.0)


@triton.jit
def subtract_means(x_ptr, segment_ptr, sums_ptr, counts_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    segment = tl.load(segment_ptr + row)
    count = tl.load(counts_ptr + segment)
    total = tl.load(sums_ptr + segment * width + cols, mask=keep, other=0.0)
    x = tl.load(x_ptr + row * width + cols, mask=keep, other=0.0)
    tl.store(out_ptr + row * width + cols, x - total / count, mask=keep)
"""

_CUDA_BLOCK_PER_SEGMENT = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

#define LANES 4

// A block per segment looks through all rows for its own: 64 columns by 4 lanes of rows. No atomics.
__global__ void center_segments(const float* __restrict__ x, const int64_t* __restrict__ segment,
                                float* __restrict__ out, int rows, int width) {
    __shared__ float sums[LANES][64];
    __shared__ int counts[LANES];
    int col = threadIdx.x;
    int lane = threadIdx.y;
    int mine = blockIdx.x;
    for (int c0 = 0; c0 < width; c0 += 64) {
        int c = c0 + col;
        float sum = 0.0f;
        int count = 0;
        for (int r = lane; r < rows; r += LANES) {
            if (segment[r] == mine) {
                if (c < width) sum += x[(long)r * width + c];
                ++count;
            }
        }
        sums[lane][col] = sum;
        if (col == 0) counts[lane] = count;
        __syncthreads();
        float total = 0.0f;
        int members = 0;
        for (int l = 0; l < LANES; ++l) {
            total += sums[l][col];
            members += counts[l];
        }
        float mean = total / max(members, 1);
        for (int r = lane; r < rows; r += LANES) {
            if (segment[r] == mine && c < width) out[(long)r * width + c] = x[(long)r * width + c] - mean;
        }
        __syncthreads();
    }
}

torch::Tensor center(torch::Tensor x, torch::Tensor segment, int64_t segments) {
    auto out = torch::empty_like(x);
    center_segments<<<(int)segments, dim3(64, LANES)>>>(x.data_ptr<float>(), segment.data_ptr<int64_t>(),
                                                        out.data_ptr<float>(), (int)x.size(0), (int)x.size(1));
    return out;
}
"""
center_module = load_inline(
    name="segment_mean_centering_block_per_segment",
    cpp_sources="torch::Tensor center(torch::Tensor x, torch::Tensor segment, int64_t segments);",
    cuda_sources=source,
    functions=["center"],
)
'''

_CUDA_ROW_ATOMICS = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>

// Each thread adds one row to its segment.
__global__ void segment_sum_kernel(const float* x, const int64_t* segment, float* sums, float* counts, int rows,
                                   int width) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int64_t s = segment[row];
    for (int c = 0; c < width; ++c) {
        atomicAdd(&sums[s * width + c], x[(int64_t)row * width + c]);
    }
    atomicAdd(&counts[s], 1.0f);
}

std::vector<torch::Tensor> segment_sum_cuda(torch::Tensor x, torch::Tensor segment, int64_t segments) {
    TORCH_CHECK(x.is_cuda() && segment.is_cuda(), "inputs must be on the GPU");
    TORCH_CHECK(x.is_contiguous() && segment.is_contiguous(), "inputs must be contiguous");
    TORCH_CHECK(x.scalar_type() == torch::kFloat32, "x must be float32");
    TORCH_CHECK(segment.scalar_type() == torch::kInt64, "segment must be int64");
    int rows = x.size(0);
    int width = x.size(1);
    auto sums = torch::zeros({segments, width}, x.options());
    auto counts = torch::zeros({segments}, x.options());
    segment_sum_kernel<<<(rows + 31) / 32, 32>>>(x.data_ptr<float>(), segment.data_ptr<int64_t>(),
                                                 sums.data_ptr<float>(), counts.data_ptr<float>(), rows, width);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return {sums, counts};
}
"""

segment_sums = load_inline(
    name="segment_mean_centering_row_atomics",
    cpp_sources=(
        "std::vector<torch::Tensor> segment_sum_cuda(torch::Tensor x, torch::Tensor segment, int64_t segments);"
    ),
    cuda_sources=cuda_source,
    functions=["segment_sum_cuda"],
    verbose=False,
)
'''

MODULE = Rewritten(
    name="segment_mean_centering",
    sizes="""
        rows = 32768
        width = 64
        segments = 512
    """,
    arguments=("segments",),
    takes="x, segment",
    inputs="[torch.randn(rows, width) + 1, torch.randint(0, segments, (rows,))]",
    reference=Body(
        summary="Subtracts from each row the mean of all rows of its segment.",
        init="self.segments = segments",
        forward="""
            member = F.one_hot(segment, num_classes=self.segments).float()
            sums = member.t() @ x
            counts = member.sum(dim=0).clamp(min=1).unsqueeze(1)
            means = sums / counts
            return x - member @ means
        """,
    ),
    rewrites={
        "gathered_means": Body(
            forward="""
                member = F.one_hot(segment, num_classes=self.segments).to(x.dtype)
                means = torch.mm(member.t(), x) / member.sum(dim=0).clamp_(min=1).unsqueeze(1)
                return x - means[segment]
            """
        ),
        "comparison_one_hot": Body(
            init="""
                self.segments = segments
                self.register_buffer("names", torch.arange(segments))
            """,
            forward="""
                member = (self.names[:, None] == segment[None, :]).to(x.dtype)
                means = member / member.sum(dim=1, keepdim=True).clamp_(min=1) @ x
                return torch.addmm(x, member.t(), means, alpha=-1)
            """,
        ),
        "index_add": Body(
            forward="""
                sums = x.new_zeros(self.segments, x.shape[1]).index_add_(0, segment, x)
                counts = torch.bincount(segment, minlength=self.segments).clamp_(min=1)
                return x - (sums / counts.unsqueeze(1)).index_select(0, segment)
            """
        ),
        "counts_in_extra_column": Body(
            forward="""
                padded = F.pad(x, (0, 1), value=1.0)
                sums = torch.zeros(self.segments, x.shape[1] + 1, device=x.device, dtype=x.dtype)
                sums.index_add_(0, segment, padded)
                means = sums[:, :-1] / sums[:, -1:].clamp(min=1)
                return x - F.embedding(segment, means)
            """
        ),
        "scatter_reduce_mean": Body(
            forward="""
                index = segment.unsqueeze(1).expand(-1, x.shape[1])
                means = torch.zeros(self.segments, x.shape[1], device=x.device, dtype=x.dtype)
                means.scatter_reduce_(0, index, x, reduce="mean", include_self=False)
                return x - means.gather(0, index)
            """
        ),
        "sorted_prefix_sums": Body(
            summary="""Means of segments without atomics.

    Rows are sorted by segment; the rows of a segment are then a run, whose sum comes from one reduction
    over runs, and its length from the ends of the runs.
    """,
            init="""
                self.segments = segments
                self.register_buffer("names", torch.arange(segments))
            """,
            methods="""
                def _runs(self, ordered):
                    ends = torch.searchsorted(ordered, self.names, right=True)
                    return torch.diff(ends, prepend=ends.new_zeros(1))
            """,
            forward="""
                if x.shape[0] != segment.shape[0]:
                    raise ValueError("a segment is needed for each row")
                ordered, order = torch.sort(segment)
                lengths = self._runs(ordered)
                sums = torch.segment_reduce(x[order], "sum", lengths=lengths, axis=0)
                means = sums / lengths.clamp(min=1).unsqueeze(1)
                return x - means[segment]
            """,
        ),
        "loop_over_segments": Body(
            forward="""
                out = x.clone()
                order = torch.argsort(segment)
                sizes = torch.bincount(segment, minlength=self.segments).tolist()
                for rows in order.split(sizes):
                    if rows.numel():
                        part = x[rows]
                        out[rows] = part - part.mean(dim=0)
                return out
            """
        ),
        "triton_atomics": Body(
            before=_KERNEL,
            forward="""
                rows, width = x.shape
                sums = torch.zeros(self.segments, width, device=x.device)
                counts = torch.zeros(self.segments, device=x.device)
                out = torch.empty_like(x)
                block = triton.next_power_of_2(width)
                add_to_segments[(rows,)](x, segment, sums, counts, width, BLOCK=block, num_warps=1)
                subtract_means[(rows,)](x, segment, sums, counts, out, width, BLOCK=block, num_warps=1)
                return out
            """,
        ),
        "cuda_block_per_segment": Body(
            before=_CUDA_BLOCK_PER_SEGMENT,
            forward="return center_module.center(x.contiguous(), segment.contiguous(), self.segments)",
        ),
        "cuda_row_atomics": Body(
            summary="Sums and counts of segments by a kernel with atomics; means and centring by the library.",
            before=_CUDA_ROW_ATOMICS,
            methods='''
                def _sums(self, x, segment):
                    """Sums of rows and numbers of rows of all segments."""
                    if x.is_cuda and x.dtype == torch.float32 and segment.dtype == torch.int64:
                        return segment_sums.segment_sum_cuda(x.contiguous(), segment.contiguous(), self.segments)
                    sums = x.new_zeros(self.segments, x.shape[1]).index_add_(0, segment, x)
                    return sums, torch.bincount(segment, minlength=self.segments).to(x.dtype)
            ''',
            forward="""
                sums, counts = self._sums(x, segment)
                means = sums / counts.clamp(min=1).unsqueeze(1)
                return x - means[segment]
            """,
        ),
    },
    carries_on="counts_in_extra_column",
)
