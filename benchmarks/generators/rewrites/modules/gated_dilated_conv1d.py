"""Causal dilated 1-D convolutions for a filter and a gate, a 1x1 convolution and a scaled residual."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_GATE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def gate_kernel(both_ptr, out_ptr, channels, length, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    per_sample = channels * length
    sample = at // per_sample
    base = at + sample * per_sample
    signal = tl.load(both_ptr + base, mask=keep, other=0.0)
    gate = tl.load(both_ptr + base + per_sample, mask=keep, other=0.0)
    out = (2.0 * tl.sigmoid(2.0 * signal) - 1.0) * tl.sigmoid(gate)
    tl.store(out_ptr + at, out, mask=keep)
"""

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def gated(signal: Tensor, gate: Tensor) -> Tensor:
    return torch.tanh(signal) * torch.sigmoid(gate)

def residual(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) * 0.7071067811865476
""")
'''

_INIT = """
    self.filter = nn.Conv1d(channels, channels, 3, dilation=dilation)
    self.gate = nn.Conv1d(channels, channels, 3, dilation=dilation)
    self.mix = nn.Conv1d(channels, channels, 1)
    self.padding = 2 * dilation
"""

_JOINED = (
    _INIT
    + """
    with torch.no_grad():
        self.register_buffer("weight", torch.cat([self.filter.weight, self.gate.weight]))
        self.register_buffer("bias", torch.cat([self.filter.bias, self.gate.bias]))
        self.register_buffer("mix_weight", self.mix.weight * 0.5**0.5)
        self.register_buffer("mix_bias", self.mix.bias * 0.5**0.5)
"""
)

_CUDA_LAYER = '''
from torch.utils.cpp_extension import load_inline

layer_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define C 32
#define STEPS 16
#define MAX_HALO 64

// A block has 16 time steps of one sample and all 32 channels: a thread per step and channel. The input with what lies
// before it and the gated signal are shared by the block.
__global__ void gated_layer_kernel(const float* __restrict__ x, const float* __restrict__ wf,
                                   const float* __restrict__ bf, const float* __restrict__ wg,
                                   const float* __restrict__ bg, const float* __restrict__ wm,
                                   const float* __restrict__ bm, float* __restrict__ out, int length, int dilation) {
    __shared__ float window[C][STEPS + MAX_HALO];
    __shared__ float gated[C][STEPS];
    const int halo = 2 * dilation;
    const int start = blockIdx.x * STEPS;
    const int s = threadIdx.x % STEPS;
    const int c = threadIdx.x / STEPS;
    const float* base = x + (long)blockIdx.y * C * length;
    for (int i = threadIdx.x; i < C * (STEPS + halo); i += blockDim.x) {
        const int row = i / (STEPS + halo);
        const int at = i % (STEPS + halo);
        const int t = start + at - halo;
        window[row][at] = t >= 0 && t < length ? base[row * length + t] : 0.0f;
    }
    __syncthreads();

    float signal = bf[c];
    float gate = bg[c];
#pragma unroll 4
    for (int k = 0; k < C; ++k) {
#pragma unroll
        for (int tap = 0; tap < 3; ++tap) {
            const float v = window[k][s + tap * dilation];
            signal = fmaf(v, wf[(c * C + k) * 3 + tap], signal);
            gate = fmaf(v, wg[(c * C + k) * 3 + tap], gate);
        }
    }
    gated[c][s] = tanhf(signal) / (1.0f + expf(-gate));
    __syncthreads();

    float y = bm[c];
#pragma unroll
    for (int k = 0; k < C; ++k) y = fmaf(gated[k][s], wm[c * C + k], y);
    if (start + s < length)
        out[((long)blockIdx.y * C + c) * length + start + s] = (window[c][s + halo] + y) * 0.70710678118654752f;
}

torch::Tensor gated_layer(torch::Tensor x, torch::Tensor wf, torch::Tensor bf, torch::Tensor wg, torch::Tensor bg,
                          torch::Tensor wm, torch::Tensor bm, int64_t dilation) {
    TORCH_CHECK(x.size(1) == C && 2 * dilation <= MAX_HALO, "unsupported shape");
    const int length = x.size(2);
    auto out = torch::empty_like(x);
    dim3 grid((length + STEPS - 1) / STEPS, x.size(0));
    gated_layer_kernel<<<grid, C * STEPS, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), wf.data_ptr<float>(), bf.data_ptr<float>(), wg.data_ptr<float>(), bg.data_ptr<float>(),
        wm.data_ptr<float>(), bm.data_ptr<float>(), out.data_ptr<float>(), length, (int)dilation);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
layer_module = load_inline(
    name="gated_dilated_conv1d_layer",
    cpp_sources="torch::Tensor gated_layer(torch::Tensor x, torch::Tensor wf, torch::Tensor bf, torch::Tensor wg, "
    "torch::Tensor bg, torch::Tensor wm, torch::Tensor bm, int64_t dilation);",
    cuda_sources=layer_source,
    functions=["gated_layer"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_GATES = '''
from torch.utils.cpp_extension import load_inline

gates_source = r"""
#include <torch/extension.h>

__global__ void gate_kernel(const float* __restrict__ signal, const float* __restrict__ gate,
                            float* __restrict__ out, int total) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total) out[i] = tanhf(signal[i]) / (1.0f + expf(-gate[i]));
}

__global__ void residual_kernel(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out,
                                int total) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total) out[i] = (x[i] + y[i]) * 0.70710678f;
}

torch::Tensor gate(torch::Tensor signal, torch::Tensor gate) {
    TORCH_CHECK(signal.is_cuda() && gate.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(signal.is_contiguous() && gate.is_contiguous(), "contiguous tensors expected");
    auto out = torch::empty_like(signal);
    int total = signal.numel();
    gate_kernel<<<(total + 255) / 256, 256>>>(signal.data_ptr<float>(), gate.data_ptr<float>(),
                                              out.data_ptr<float>(), total);
    return out;
}

torch::Tensor residual(torch::Tensor x, torch::Tensor y) {
    TORCH_CHECK(x.is_contiguous() && y.is_contiguous() && x.sizes() == y.sizes(), "shapes must agree");
    auto out = torch::empty_like(x);
    int total = x.numel();
    residual_kernel<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), out.data_ptr<float>(),
                                                  total);
    return out;
}
"""
gates_module = load_inline(
    name="gated_dilated_conv1d_gates",
    cpp_sources="torch::Tensor gate(torch::Tensor signal, torch::Tensor gate); "
    "torch::Tensor residual(torch::Tensor x, torch::Tensor y);",
    cuda_sources=gates_source,
    functions=["gate", "residual"],
)
'''

MODULE = Rewritten(
    name="gated_dilated_conv1d",
    sizes="""
        batch_size = 4
        channels = 32
        dilation = 4
        length = 512
    """,
    arguments=("channels", "dilation"),
    takes="x",
    inputs="[torch.randn(batch_size, channels, length)]",
    reference=Body(
        summary="A gated residual layer of a causal convolutional network over time.",
        init=_INIT,
        forward="""
            padded = F.pad(x, (self.padding, 0))
            signal = torch.tanh(self.filter(padded))
            gate = torch.sigmoid(self.gate(padded))
            y = self.mix(signal * gate)
            return (x + y) * 0.5**0.5
        """,
    ),
    rewrites={
        "joined_convolutions": Body(
            init=_JOINED,
            forward="""
                both = F.conv1d(F.pad(x, (self.padding, 0)), self.weight, self.bias, dilation=self.filter.dilation)
                signal, gate = both.chunk(2, dim=1)
                y = F.conv1d(torch.tanh(signal) * torch.sigmoid(gate), self.mix_weight, self.mix_bias)
                return torch.add(y, x, alpha=0.5**0.5)
            """,
        ),
        "joined_in_place": Body(
            init=_JOINED,
            forward="""
                both = F.conv1d(F.pad(x, (self.padding, 0)), self.weight, self.bias, dilation=self.filter.dilation)
                half = both.shape[1] // 2
                signal = both[:, :half].tanh_()
                signal *= both[:, half:].sigmoid_()
                return F.conv1d(signal, self.mix_weight, self.mix_bias).add_(x, alpha=0.5**0.5)
            """,
        ),
        "symmetric_padding_sliced": Body(
            summary="Pads on both sides inside the convolutions and cuts off the end.",
            forward="""
                length = x.shape[-1]
                dilation = self.filter.dilation
                signal = F.conv1d(x, self.filter.weight, self.filter.bias, padding=self.padding, dilation=dilation)
                gate = F.conv1d(x, self.gate.weight, self.gate.bias, padding=self.padding, dilation=dilation)
                y = torch.tanh(signal[..., :length]) * torch.sigmoid(gate[..., :length])
                return (x + self.mix(y)).mul_(0.5**0.5)
            """,
        ),
        "mixing_by_baddbmm": Body(
            init=_JOINED,
            forward="""
                n, c, length = x.shape
                both = F.conv1d(F.pad(x, (self.padding, 0)), self.weight, self.bias, dilation=self.filter.dilation)
                y = torch.tanh(both[:, :c]) * torch.sigmoid(both[:, c:])
                weight = self.mix_weight[:, :, 0].expand(n, -1, -1)
                y = torch.baddbmm(x, weight, y, beta=0.5**0.5)
                return y.add_(self.mix_bias[:, None])
            """,
        ),
        "stacked_taps": Body(
            summary="The three taps side by side in the channels, then ordinary matrix products.",
            init=_JOINED
            + """
    self.dilation = dilation
    self.register_buffer("taps", self.weight.permute(0, 2, 1).reshape(2 * channels, 3 * channels).contiguous())
    self._buffers_of = {}
""",
            methods='''
                def history_buffer(self, x):
                    """A zeroed buffer for the padded input; its first columns are never written again."""
                    key = (tuple(x.shape), x.device, x.dtype)
                    found = self._buffers_of.get(key)
                    if found is None:
                        found = x.new_zeros(x.shape[0], x.shape[1], x.shape[2] + self.padding)
                        self._buffers_of[key] = found
                    return found

                def stack(self, x):
                    """(batch, 3 * channels, length): the input two, one and no dilations ago."""
                    history = self.history_buffer(x)
                    history[..., self.padding :].copy_(x)
                    length = x.shape[-1]
                    views = [history[..., tap * self.dilation : tap * self.dilation + length] for tap in range(3)]
                    return torch.cat(views, dim=1)
            ''',
            forward="""
                both = torch.matmul(self.taps, self.stack(x)).add_(self.bias[:, None])
                signal, gate = both.chunk(2, dim=1)
                y = torch.tanh(signal).mul_(torch.sigmoid(gate))
                y = torch.matmul(self.mix_weight[:, :, 0], y).add_(self.mix_bias[:, None])
                return y.add_(x, alpha=0.5**0.5)
            """,
        ),
        "tanh_from_sigmoid": Body(
            summary="tanh(a) = 2 sigmoid(2 a) - 1, so one sigmoid serves both halves.",
            init=_JOINED
            + """
    with torch.no_grad():
        self.weight[:channels] *= 2.0
        self.bias[:channels] *= 2.0
""",
            forward="""
                both = F.conv1d(F.pad(x, (self.padding, 0)), self.weight, self.bias, dilation=self.filter.dilation)
                signal, gate = both.sigmoid_().chunk(2, dim=1)
                y = F.conv1d((2.0 * signal - 1.0) * gate, self.mix_weight, self.mix_bias)
                return y + x * 0.5**0.5
            """,
        ),
        "scripted_gates": Body(
            before=_SCRIPTED,
            forward="""
                padded = F.pad(x, (self.padding, 0))
                y = scripted.gated(self.filter(padded), self.gate(padded))
                return scripted.residual(x, self.mix(y))
            """,
        ),
        "triton_gate": Body(
            before=_GATE_KERNEL,
            init=_JOINED,
            forward="""
                n, c, length = x.shape
                padded = F.pad(x, (self.padding, 0))
                both = F.conv1d(padded, self.weight, self.bias, dilation=self.filter.dilation).contiguous()
                y = torch.empty((n, c, length), device=x.device, dtype=x.dtype)
                total = y.numel()
                gate_kernel[(triton.cdiv(total, 512),)](both, y, c, length, total, BLOCK=512)
                return F.conv1d(y, self.mix_weight, self.mix_bias).add_(x, alpha=0.5**0.5)
            """,
        ),
        "cuda_whole_layer": Body(
            before=_CUDA_LAYER,
            forward="""
                f, g, m = self.filter, self.gate, self.mix
                return layer_module.gated_layer(
                    x.contiguous(), f.weight, f.bias, g.weight, g.bias, m.weight, m.bias, self.padding // 2
                )
            """,
        ),
        "cuda_gate_and_residual": Body(
            summary="The three convolutions by the library, what is between and after them by two small kernels.",
            before=_CUDA_GATES,
            init=_INIT,
            methods='''
                def _plain(self, x, padded):
                    """The layer by library calls."""
                    y = torch.tanh(self.filter(padded)) * torch.sigmoid(self.gate(padded))
                    return (x + self.mix(y)) * 0.5**0.5
            ''',
            forward="""
                padded = F.pad(x, (self.padding, 0))
                if not x.is_cuda or x.dtype != torch.float32:
                    return self._plain(x, padded)
                signal = self.filter(padded).contiguous()
                y = gates_module.gate(signal, self.gate(padded).contiguous())
                return gates_module.residual(x.contiguous(), self.mix(y).contiguous())
            """,
        ),
    },
    carries_on="joined_convolutions",
)
