"""The sum of two streams, RMS normalisation over the last axis and a gain."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_ROW_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def rms_row(x_ptr, r_ptr, gain_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    h = tl.load(x_ptr + row * width + cols, mask=keep, other=0.0)
    h += tl.load(r_ptr + row * width + cols, mask=keep, other=0.0)
    gain = tl.load(gain_ptr + cols, mask=keep, other=0.0)
    factor = 1.0 / tl.sqrt(tl.sum(h * h, axis=0) / width + eps)
    tl.store(out_ptr + row * width + cols, h * factor * gain, mask=keep)
"""

_TWO_PASS_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def rms_two_passes(x_ptr, r_ptr, gain_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * width
    r_ptr += row * width
    out_ptr += row * width
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        keep = cols < width
        h = tl.load(x_ptr + cols, mask=keep, other=0.0) + tl.load(r_ptr + cols, mask=keep, other=0.0)
        squares += h * h
    factor = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / width + eps)
    for start in range(0, width, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        keep = cols < width
        h = tl.load(x_ptr + cols, mask=keep, other=0.0) + tl.load(r_ptr + cols, mask=keep, other=0.0)
        gain = tl.load(gain_ptr + cols, mask=keep, other=0.0)
        tl.store(out_ptr + cols, h * factor * gain, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void rms_kernel(const float4* __restrict__ x, const float4* __restrict__ r,
                           const float4* __restrict__ gain, float4* __restrict__ out, int quads, float eps) {
    extern __shared__ float4 kept[];
    __shared__ float partial[32];
    long base = (long)blockIdx.x * quads;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 a = x[base + i], b = r[base + i];
        float4 h = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
        kept[i] = h;
        sum += h.x * h.x + h.y * h.y + h.z * h.z + h.w * h.w;
    }
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int w = 0; w < (int)(blockDim.x >> 5); ++w) total += partial[w];
    float factor = rsqrtf(total / (4.0f * quads) + eps);
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 h = kept[i], g = gain[i];
        out[base + i] = make_float4(h.x * factor * g.x, h.y * factor * g.y, h.z * factor * g.z, h.w * factor * g.w);
    }
}

torch::Tensor rms_forward(torch::Tensor x, torch::Tensor r, torch::Tensor gain, double eps) {
    auto out = torch::empty_like(x);
    int quads = x.size(1) / 4;
    rms_kernel<<<(int)x.size(0), 256, quads * sizeof(float4)>>>(
        reinterpret_cast<const float4*>(x.data_ptr<float>()), reinterpret_cast<const float4*>(r.data_ptr<float>()),
        reinterpret_cast<const float4*>(gain.data_ptr<float>()), reinterpret_cast<float4*>(out.data_ptr<float>()),
        quads, (float)eps);
    return out;
}
"""
rms_module = load_inline(
    name="residual_rms_norm_rows",
    cpp_sources="torch::Tensor rms_forward(torch::Tensor x, torch::Tensor r, torch::Tensor gain, double eps);",
    cuda_sources=source,
    functions=["rms_forward"],
)
'''

_CUDA_TREE = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void add_rms_norm_kernel(const float* x, const float* residual, const float* gain, float* out, int width,
                                    float eps) {
    __shared__ float shared[256];
    int row = blockIdx.x;
    int tid = threadIdx.x;

    // Sum of squares
    float sum = 0.0f;
    for (int i = tid; i < width; i += blockDim.x) {
        float h = x[row * width + i] + residual[row * width + i];
        sum += h * h;
    }
    shared[tid] = sum;
    __syncthreads();
    for (int stride = blockDim.x / 2; stride > 0; stride /= 2) {
        if (tid < stride) shared[tid] += shared[tid + stride];
        __syncthreads();
    }
    float rms = sqrtf(shared[0] / width + eps);

    // Normalise and scale
    for (int i = tid; i < width; i += blockDim.x) {
        float h = x[row * width + i] + residual[row * width + i];
        out[row * width + i] = h / rms * gain[i];
    }
}

torch::Tensor add_rms_norm(torch::Tensor x, torch::Tensor residual, torch::Tensor gain, double eps) {
    auto out = torch::empty_like(x);
    int rows = x.size(0);
    int width = x.size(1);
    add_rms_norm_kernel<<<rows, 256>>>(x.data_ptr<float>(), residual.data_ptr<float>(), gain.data_ptr<float>(),
                                       out.data_ptr<float>(), width, (float)eps);
    return out;
}
"""

add_rms_norm_ext = load_inline(
    name="residual_rms_norm_tree",
    cpp_sources="torch::Tensor add_rms_norm(torch::Tensor x, torch::Tensor residual, torch::Tensor gain, double eps);",
    cuda_sources=source,
    functions=["add_rms_norm"],
    verbose=False,
)
'''

_CUDA_FACTORS = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

// A warp per row; writes the sum of the streams and the row's factor.
__global__ void add_and_factor(const float4* __restrict__ x, const float4* __restrict__ r, float4* __restrict__ sum,
                               float* __restrict__ factor, int rows, int quads, float eps) {
    const int row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    const int lane = threadIdx.x & 31;
    if (row >= rows) return;
    const int64_t base = (int64_t)row * quads;
    float squares = 0.0f;
    for (int i = lane; i < quads; i += 32) {
        const float4 a = x[base + i], b = r[base + i];
        const float4 h = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
        sum[base + i] = h;
        squares += h.x * h.x + h.y * h.y + h.z * h.z + h.w * h.w;
    }
    #pragma unroll
    for (int o = 16; o > 0; o >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, o);
    if (lane == 0) factor[row] = rsqrtf(squares / (4.0f * quads) + eps);
}

std::vector<torch::Tensor> add_and_factor_cuda(torch::Tensor x, torch::Tensor r, double eps) {
    TORCH_CHECK(x.is_cuda() && r.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(x.is_contiguous() && r.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(x.size(1) % 4 == 0, "width must be a multiple of four");
    const int rows = x.size(0), quads = x.size(1) / 4;
    auto sum = torch::empty_like(x);
    auto factor = torch::empty({rows, 1}, x.options());
    add_and_factor<<<(rows + 7) / 8, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<const float4*>(x.data_ptr<float>()), reinterpret_cast<const float4*>(r.data_ptr<float>()),
        reinterpret_cast<float4*>(sum.data_ptr<float>()), factor.data_ptr<float>(), rows, quads, (float)eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return {sum, factor};
}
"""

factors = load_inline(
    name="residual_rms_norm_factors",
    cpp_sources="std::vector<torch::Tensor> add_and_factor_cuda(torch::Tensor x, torch::Tensor r, double eps);",
    cuda_sources=cuda_source,
    functions=["add_and_factor_cuda"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)
'''

MODULE = Rewritten(
    name="residual_rms_norm",
    sizes="""
        tokens = 6144
        width = 4096
    """,
    arguments=("width",),
    takes="x, residual",
    inputs="[torch.randn(tokens, width), torch.randn(tokens, width)]",
    reference=Body(
        summary="Adds the residual stream and normalises by the root of the mean square.",
        init="""
            self.gain = nn.Parameter(1 + 0.1 * torch.randn(width))
            self.eps = 1e-6
        """,
        forward="""
            h = x + residual
            mean_square = torch.mean(torch.pow(h, 2), dim=-1, keepdim=True)
            h = h / torch.sqrt(mean_square + self.eps)
            return h * self.gain
        """,
    ),
    rewrites={
        "rsqrt_in_place": Body(
            forward="""
                h = x + residual
                factor = h.square().mean(dim=-1, keepdim=True).add_(self.eps).rsqrt_()
                return h.mul_(factor).mul_(self.gain)
            """
        ),
        "library_rms_norm": Body(
            forward="return F.rms_norm(x + residual, (x.shape[-1],), self.gain, self.eps)"
        ),
        "inner_product": Body(
            forward="""
                h = torch.add(x, residual)
                squares = torch.bmm(h.unsqueeze(1), h.unsqueeze(2)).squeeze(2)
                factor = torch.rsqrt(squares / h.shape[1] + self.eps)
                return h.mul_(factor).mul_(self.gain)
            """
        ),
        "expanded_square": Body(
            summary="RMS normalisation of a sum, with the mean square taken from the three products of the streams.",
            forward="""
                # |x + r|^2 = |x|^2 + 2 x.r + |r|^2, so that the sum need not be stored before it is normalised
                squares = torch.einsum("tw,tw->t", x, x)
                squares += 2 * torch.einsum("tw,tw->t", x, residual)
                squares += torch.einsum("tw,tw->t", residual, residual)
                factor = torch.rsqrt(squares / x.shape[1] + self.eps).unsqueeze(1)
                return (x + residual) * (factor * self.gain)
            """,
        ),
        "token_chunks": Body(
            init="""
                self.gain = nn.Parameter(1 + 0.1 * torch.randn(width))
                self.eps = 1e-6
                self.chunk = 1024
            """,
            methods="""
                def _normalise(self, h):
                    # rms_norm without a gain, then the gain in place
                    return F.rms_norm(h, (h.shape[-1],), None, self.eps).mul_(self.gain)
            """,
            forward="""
                out = torch.empty_like(x)
                for i in range(0, x.shape[0], self.chunk):
                    out[i : i + self.chunk] = self._normalise(x[i : i + self.chunk] + residual[i : i + self.chunk])
                return out
            """,
        ),
        "triton_row": Body(
            before=_ROW_KERNEL,
            forward="""
                out = torch.empty_like(x)
                block = triton.next_power_of_2(x.shape[1])
                rms_row[(x.shape[0],)](x, residual, self.gain, out, x.shape[1], self.eps, BLOCK=block, num_warps=8)
                return out
            """,
        ),
        "triton_two_passes": Body(
            before=_TWO_PASS_KERNEL,
            forward="""
                out = torch.empty_like(x)
                rms_two_passes[(x.shape[0],)](x, residual, self.gain, out, x.shape[1], self.eps, BLOCK=512)
                return out
            """,
        ),
        "cuda_shared_row": Body(
            before=_CUDA,
            forward="""
                return rms_module.rms_forward(x.contiguous(), residual.contiguous(), self.gain, self.eps)
            """,
        ),
        "cuda_tree_reduction": Body(
            before=_CUDA_TREE,
            forward="return add_rms_norm_ext.add_rms_norm(x, residual, self.gain, self.eps)",
        ),
        "cuda_sum_and_factor": Body(
            summary="The sum of both streams and the factor of every row in one kernel, scaling by the library.",
            before=_CUDA_FACTORS,
            methods='''
                def _add_and_factor(self, x, residual):
                    """x + residual and the inverse root of its mean square, one per row."""
                    fits = x.is_cuda and x.dim() == 2 and x.shape[-1] % 4 == 0
                    if fits and x.dtype == residual.dtype == torch.float32:
                        return factors.add_and_factor_cuda(x.contiguous(), residual.contiguous(), self.eps)
                    h = x + residual
                    return h, torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + self.eps)
            ''',
            forward="""
                h, factor = self._add_and_factor(x, residual)
                return h.mul_(factor).mul_(self.gain)
            """,
        ),
    },
    carries_on="rsqrt_in_place",
)
