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
    },
    carries_on="rsqrt_in_place",
)
