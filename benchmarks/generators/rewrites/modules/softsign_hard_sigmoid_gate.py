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
    },
    carries_on="library_activations",
)
