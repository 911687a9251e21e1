"""A small gated unit: softsign of one half of the features times the hard sigmoid of the other."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def gated_unit(x_ptr, scale_ptr, shift_ptr, out_ptr, half, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    keep = cols < half
    left = tl.load(x_ptr + row * 2 * half + cols, mask=keep, other=0.0)
    right = tl.load(x_ptr + row * 2 * half + half + cols, mask=keep, other=0.0)
    scale = tl.load(scale_ptr + cols, mask=keep, other=0.0)
    shift = tl.load(shift_ptr + cols, mask=keep, other=0.0)
    gate = tl.minimum(tl.maximum(right * 0.16666666666666666 + 0.5, 0.0), 1.0)
    tl.store(out_ptr + row * half + cols, left / (1.0 + tl.abs(left)) * gate * scale + shift, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void gated_unit(const float* __restrict__ x, const float* __restrict__ scale,
                           const float* __restrict__ shift, float* __restrict__ out, int half, int total) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    int row = i / half, col = i - row * half;
    float left = x[row * 2 * half + col];
    float right = x[row * 2 * half + half + col];
    float gate = fminf(fmaxf((right + 3.0f) / 6.0f, 0.0f), 1.0f);
    out[i] = left / (1.0f + fabsf(left)) * gate * scale[col] + shift[col];
}

torch::Tensor gated_unit_forward(torch::Tensor x, torch::Tensor scale, torch::Tensor shift) {
    int half = x.size(1) / 2;
    auto out = torch::empty({x.size(0), half}, x.options());
    int total = out.numel();
    gated_unit<<<(total + 127) / 128, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), scale.data_ptr<float>(), shift.data_ptr<float>(), out.data_ptr<float>(), half, total);
    return out;
}
"""
unit_module = load_inline(
    name="softsign_hard_sigmoid_gate_unit",
    cpp_sources="torch::Tensor gated_unit_forward(torch::Tensor x, torch::Tensor scale, torch::Tensor shift);",
    cuda_sources=source,
    functions=["gated_unit_forward"],
)
'''

_INIT = """
    self.scale = nn.Parameter(torch.randn(width // 2))
    self.shift = nn.Parameter(torch.randn(width // 2))
"""

_CUDA_DISPATCHED = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

template <typename scalar_t>
__global__ void gate_kernel(const scalar_t* __restrict__ x, const scalar_t* __restrict__ scale,
                            const scalar_t* __restrict__ shift, scalar_t* __restrict__ out, int half, int total) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        const int row = i / half;
        const int col = i % half;
        const scalar_t left = x[row * 2 * half + col];
        const scalar_t right = x[row * 2 * half + half + col];
        const scalar_t magnitude = left < 0 ? -left : left;
        scalar_t gate = (right + scalar_t(3)) / scalar_t(6);
        gate = gate < 0 ? scalar_t(0) : (gate > 1 ? scalar_t(1) : gate);
        out[i] = left / (1 + magnitude) * gate * scale[col] + shift[col];
    }
}

torch::Tensor gate_forward(torch::Tensor x, torch::Tensor scale, torch::Tensor shift) {
    TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be a contiguous CUDA tensor");
    const int half = x.size(1) / 2;
    auto out = torch::empty({x.size(0), half}, x.options());
    const int total = out.numel();
    const int threads = 128;
    const int blocks = std::min((total + threads - 1) / threads, 1024);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "gate_forward", [&] {
        gate_kernel<scalar_t><<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
            x.data_ptr<scalar_t>(), scale.data_ptr<scalar_t>(), shift.data_ptr<scalar_t>(),
            out.data_ptr<scalar_t>(), half, total);
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
gate_module = load_inline(
    name="softsign_hard_sigmoid_gate_dispatched",
    cpp_sources="torch::Tensor gate_forward(torch::Tensor x, torch::Tensor scale, torch::Tensor shift);",
    cuda_sources=source,
    functions=["gate_forward"],
)
'''

_CUDA_TWO_ACTIVATIONS = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>

__global__ void softsign_kernel(const float* x, float* out, int half, int total) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < total) {
        float v = x[(idx / half) * 2 * half + idx % half];
        out[idx] = v / (1.0f + fabsf(v));
    }
}

__global__ void hard_sigmoid_gate_kernel(const float* x, float* out, int half, int total) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < total) {
        float v = x[(idx / half) * 2 * half + half + idx % half];
        out[idx] *= fminf(fmaxf((v + 3.0f) / 6.0f, 0.0f), 1.0f);
    }
}

torch::Tensor gated_softsign(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
    TORCH_CHECK(x.size(1) % 2 == 0, "width must be even");
    int half = x.size(1) / 2;
    auto out = torch::empty({x.size(0), half}, x.options());
    int total = out.numel();
    int threads = 32;
    int blocks = (total + threads - 1) / threads;
    softsign_kernel<<<blocks, threads>>>(x.data_ptr<float>(), out.data_ptr<float>(), half, total);
    hard_sigmoid_gate_kernel<<<blocks, threads>>>(x.data_ptr<float>(), out.data_ptr<float>(), half, total);
    return out;
}
"""

gated_softsign_ext = load_inline(
    name="softsign_hard_sigmoid_gate_two_activations",
    cpp_sources="torch::Tensor gated_softsign(torch::Tensor x);",
    cuda_sources=cuda_source,
    functions=["gated_softsign"],
    extra_cuda_cflags=["--use_fast_math"],
)
'''

MODULE = Rewritten(
    name="softsign_hard_sigmoid_gate",
    sizes="""
        batch_size = 32
        width = 768
    """,
    arguments=("width",),
    takes="x",
    inputs="[torch.randn(batch_size, width) * 2]",
    reference=Body(
        summary="Softsign of the left half, gated by a hard sigmoid of the right half, with scale and shift.",
        init=_INIT,
        forward="""
            half = x.shape[1] // 2
            left = x[:, :half]
            right = x[:, half:]
            soft = left / (1 + torch.abs(left))
            gate = torch.clamp((right + 3) / 6, min=0, max=1)
            return soft * gate * self.scale + self.shift
        """,
    ),
    rewrites={
        "library_activations": Body(
            forward="""
                left, right = x.chunk(2, dim=1)
                return torch.addcmul(self.shift, F.softsign(left) * F.hardsigmoid(right), self.scale)
            """
        ),
        "scale_with_sixth": Body(
            init=_INIT + '    self.register_buffer("sixth", (self.scale / 6).detach().clone())\n',
            forward="""
                left, right = x.chunk(2, dim=1)
                soft = left / (left.abs() + 1)
                gate = (right + 3).clamp_(0, 6)
                return soft.mul_(gate).mul_(self.sixth).add_(self.shift)
            """,
        ),
        "relu6_addcmul": Body(
            init=_INIT + '    self.register_buffer("sixth", (self.scale / 6).detach().clone())\n',
            forward="""
                left, right = x.chunk(2, dim=1)
                gate = F.relu6(right + 3) * self.sixth
                return torch.addcdiv(self.shift, left * gate, left.abs().add_(1))
            """,
        ),
        "contiguous_halves": Body(
            forward="""
                half = x.size(1) // 2
                left = x[:, :half].contiguous()
                right = x[:, half:].contiguous()
                gate = F.hardtanh(right * (1.0 / 6.0) + 0.5, 0.0, 1.0)
                return left.div(left.abs().add(1.0)).mul(gate).mul(self.scale).add(self.shift)
            """
        ),
        "checked_wrapper": Body(
            summary="""Gated unit with preallocated work space.

    The output of the gate is kept in a buffer per shape, device and type, so that repeated calls
    do not go through the allocator for it.
    """,
            init=_INIT + "    self.half = width // 2\n    self.workspaces = {}\n",
            methods="""
                def _workspace(self, x):
                    key = (tuple(x.shape), x.device, x.dtype)
                    found = self.workspaces.get(key)
                    if found is None:
                        found = torch.empty(x.shape[0], self.half, device=x.device, dtype=x.dtype)
                        self.workspaces[key] = found
                    return found

                def _validate(self, x):
                    if x.dim() != 2:
                        raise ValueError(f"expected two dimensions, got {x.dim()}")
                    if x.shape[1] != 2 * self.half:
                        raise ValueError(f"expected {2 * self.half} features, got {x.shape[1]}")
            """,
            forward="""
                self._validate(x)
                left = x.narrow(1, 0, self.half)
                right = x.narrow(1, self.half, self.half)
                work = self._workspace(x)
                torch.add(right, 3.0, out=work)
                work.clamp_(0.0, 6.0).mul_(1.0 / 6.0)
                work.mul_(left)
                work.div_(left.abs().add_(1.0))
                return torch.addcmul(self.shift, work, self.scale)
            """,
        ),
        "triton_rows": Body(
            before=_KERNEL,
            forward="""
                half = x.shape[1] // 2
                out = torch.empty(x.shape[0], half, device=x.device)
                block = triton.next_power_of_2(half)
                gated_unit[(x.shape[0],)](x, self.scale, self.shift, out, half, BLOCK=block, num_warps=4)
                return out
            """,
        ),
        "cuda_flat": Body(
            before=_CUDA,
            forward="return unit_module.gated_unit_forward(x, self.scale, self.shift)",
        ),
        "cuda_grid_stride": Body(
            before=_CUDA_DISPATCHED,
            forward="return gate_module.gate_forward(x.contiguous(), self.scale, self.shift)",
        ),
        "cuda_two_activations": Body(
            summary="Both activations by kernels; scale and shift by one call of the library.",
            before=_CUDA_TWO_ACTIVATIONS,
            methods='''
                @staticmethod
                def _gated(x):
                    """Softsign of the left half times hard sigmoid of the right half."""
                    if x.is_cuda and x.dtype == torch.float32 and x.dim() == 2:
                        return gated_softsign_ext.gated_softsign(x.contiguous())
                    left, right = x.chunk(2, dim=1)
                    return F.softsign(left) * F.hardsigmoid(right)
            ''',
            forward="return torch.addcmul(self.shift, self._gated(x), self.scale)",
        ),
    },
    carries_on="library_activations",
)
