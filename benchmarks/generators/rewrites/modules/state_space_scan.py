"""A diagonal linear state space, run over time as a Python loop."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_SCAN_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def scan_kernel(x_ptr, decay_ptr, mix_ptr, skip_ptr, out_ptr, length, width, N: tl.constexpr,
                BLOCK_D: tl.constexpr):
    # states of BLOCK_D features of one sample stay in registers while time runs
    batch = tl.program_id(0)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    n = tl.arange(0, N)
    keep = d < width
    at = d[:, None] * N + n[None, :]
    decay = tl.load(decay_ptr + at, mask=keep[:, None], other=0.0)
    mix = tl.load(mix_ptr + at, mask=keep[:, None], other=0.0)
    skip = tl.load(skip_ptr + d, mask=keep, other=0.0)
    state = tl.zeros((BLOCK_D, N), dtype=tl.float32)
    for t in range(length):
        place = (batch * length + t) * width + d
        x = tl.load(x_ptr + place, mask=keep, other=0.0)
        state = state * decay + x[:, None]
        tl.store(out_ptr + place, tl.sum(state * mix, axis=1) + skip * x, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// 16 lanes hold the 16 states of a feature of a sample; two features share a warp.
__global__ void scan(const float* __restrict__ x, const float* __restrict__ decay, const float* __restrict__ mix,
                     const float* __restrict__ skip, float* __restrict__ out, int length, int width, int pairs) {
    int pair = blockIdx.x * (blockDim.x / 16) + threadIdx.x / 16;
    int n = threadIdx.x % 16;
    bool real = pair < pairs;
    int batch = real ? pair / width : 0;
    int d = real ? pair % width : 0;
    float fade = decay[d * 16 + n];
    float weight = mix[d * 16 + n];
    float direct = skip[d];
    float state = 0.0f;
    long at = (long)batch * length * width + d;
    float next = x[at];
    for (int t = 0; t < length; ++t) {
        float now = next;
        if (t + 1 < length) next = x[at + width];
        state = fmaf(state, fade, now);
        float sum = state * weight;
        for (int o = 8; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
        if (n == 0 && real) out[at] = fmaf(direct, now, sum);
        at += width;
    }
}

torch::Tensor scan_forward(torch::Tensor x, torch::Tensor decay, torch::Tensor mix, torch::Tensor skip) {
    TORCH_CHECK(decay.size(1) == 16, "built for 16 states");
    int batch = x.size(0), length = x.size(1), width = x.size(2);
    auto out = torch::empty_like(x);
    int pairs = batch * width;
    scan<<<(pairs + 7) / 8, 128>>>(x.data_ptr<float>(), decay.data_ptr<float>(), mix.data_ptr<float>(),
                                   skip.data_ptr<float>(), out.data_ptr<float>(), length, width, pairs);
    return out;
}
"""
scan_module = load_inline(
    name="state_space_scan_lanes",
    cpp_sources="torch::Tensor scan_forward(torch::Tensor x, torch::Tensor decay, torch::Tensor mix, "
    "torch::Tensor skip);",
    cuda_sources=source,
    functions=["scan_forward"],
)
'''

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def run(x: Tensor, decay: Tensor, mix: Tensor, skip: Tensor) -> Tensor:
    state = torch.zeros([x.size(0), decay.size(0), decay.size(1)], device=x.device)
    outputs: List[Tensor] = []
    for t in range(x.size(1)):
        now = x[:, t]
        state = state * decay + now.unsqueeze(-1)
        outputs.append((state * mix).sum(-1) + skip * now)
    return torch.stack(outputs, 1)
""")
'''

_INIT = """
    self.decay_logit = nn.Parameter(torch.randn(width, states) + 2.0)
    self.b = nn.Parameter(torch.randn(width, states))
    self.c = nn.Parameter(torch.randn(width, states) / states**0.5)
    self.skip = nn.Parameter(torch.ones(width))
"""

# what goes in by b and out by c may as well go in by 1 and out by b * c
_MIX = """
    with torch.no_grad():
        self.register_buffer("decay", torch.sigmoid(self.decay_logit))
        self.register_buffer("mix", self.b * self.c)
"""

# (width, length): the response to an impulse, by time since then; the direct path is part of it
_RESPONSE = (
    _MIX
    + """
    with torch.no_grad():
        powers = self.decay[:, :, None] ** torch.arange(length)
        response = torch.einsum("dn,dnt->dt", self.mix, powers)
        response[:, 0] += self.skip
"""
)

_CUDA_SERIAL = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A thread per sample and feature: its states stay in registers while it walks through the sequence.
template <int STATES>
__global__ void ssm_kernel(const float* __restrict__ x, const float* __restrict__ decay_logit,
                           const float* __restrict__ b, const float* __restrict__ c, const float* __restrict__ skip,
                           float* __restrict__ out, int batch, int length, int width) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= batch * width) return;
    int d = idx % width;
    int n = idx / width;
    float h[STATES], decay[STATES], in[STATES], mix[STATES];
    #pragma unroll
    for (int s = 0; s < STATES; ++s) {
        h[s] = 0.0f;
        decay[s] = 1.0f / (1.0f + expf(-decay_logit[d * STATES + s]));
        in[s] = b[d * STATES + s];
        mix[s] = c[d * STATES + s];
    }
    float direct = skip[d];
    for (int t = 0; t < length; ++t) {
        long at = ((long)n * length + t) * width + d;
        float v = x[at];
        float y = direct * v;
        #pragma unroll
        for (int s = 0; s < STATES; ++s) {
            h[s] = h[s] * decay[s] + v * in[s];
            y += h[s] * mix[s];
        }
        out[at] = y;
    }
}

torch::Tensor ssm_forward(torch::Tensor x, torch::Tensor decay_logit, torch::Tensor b, torch::Tensor c,
                          torch::Tensor skip) {
    TORCH_CHECK(decay_logit.size(1) == 16, "16 states expected");
    auto out = torch::empty_like(x);
    int batch = x.size(0), length = x.size(1), width = x.size(2);
    int threads = 64;
    ssm_kernel<16><<<(batch * width + threads - 1) / threads, threads>>>(
        x.data_ptr<float>(), decay_logit.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(),
        skip.data_ptr<float>(), out.data_ptr<float>(), batch, length, width);
    return out;
}
"""
ssm_module = load_inline(
    name="state_space_scan_serial",
    cpp_sources="torch::Tensor ssm_forward(torch::Tensor x, torch::Tensor decay_logit, torch::Tensor b, "
    "torch::Tensor c, torch::Tensor skip);",
    cuda_sources=source,
    functions=["ssm_forward"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_STATES = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>

// All states of all steps, (batch, length, width, states); a thread per state.
__global__ void recurrence_kernel(const float* x, const float* decay, const float* b, float* states, int batch,
                                  int length, int width, int count) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= batch * width * count) return;
    int s = idx % (width * count);
    int d = s / count;
    int n = idx / (width * count);
    float h = 0.0f;
    for (int t = 0; t < length; t++) {
        h = h * decay[s] + x[(n * length + t) * width + d] * b[s];
        states[(long)(n * length + t) * width * count + s] = h;
    }
}

torch::Tensor recurrence(torch::Tensor x, torch::Tensor decay, torch::Tensor b) {
    TORCH_CHECK(x.is_cuda() && decay.is_cuda() && b.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(x.is_contiguous() && decay.is_contiguous() && b.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(x.scalar_type() == torch::kFloat32, "float32 expected");
    int batch = x.size(0), length = x.size(1), width = x.size(2), count = decay.size(1);
    auto states = torch::empty({batch, length, width, count}, x.options());
    int total = batch * width * count;
    recurrence_kernel<<<(total + 127) / 128, 128>>>(x.data_ptr<float>(), decay.data_ptr<float>(),
                                                    b.data_ptr<float>(), states.data_ptr<float>(), batch, length,
                                                    width, count);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return states;
}
"""

recurrence_ext = load_inline(
    name="state_space_scan_states",
    cpp_sources="torch::Tensor recurrence(torch::Tensor x, torch::Tensor decay, torch::Tensor b);",
    cuda_sources=cuda_source,
    functions=["recurrence"],
    verbose=False,
)
'''

MODULE = Rewritten(
    name="state_space_scan",
    sizes="""
        batch_size = 8
        length = 192
        width = 128
        states = 16
    """,
    arguments=("length", "width", "states"),
    takes="x",
    inputs="[torch.randn(batch_size, length, width)]",
    reference=Body(
        summary="States of every feature decay, take in the input and are mixed into the output.",
        init=_INIT,
        forward="""
            decay = torch.sigmoid(self.decay_logit)
            h = torch.zeros(x.shape[0], *decay.shape, device=x.device)
            outputs = []
            for t in range(x.shape[1]):
                h = h * decay + x[:, t].unsqueeze(-1) * self.b
                y = (h * self.c).sum(dim=-1) + self.skip * x[:, t]
                outputs.append(y)
            return torch.stack(outputs, dim=1)
        """,
    ),
    rewrites={
        "states_kept": Body(
            summary="The loop has the recurrence only; outputs come from all states at once.",
            init=_INIT + _MIX,
            forward="""
                B, T, D = x.shape
                states = torch.empty(T, B, D, self.decay.shape[1], device=x.device)
                h = torch.zeros_like(states[0])
                inputs = x.transpose(0, 1).unsqueeze(-1)
                for t in range(T):
                    h = torch.addcmul(inputs[t], h, self.decay, out=states[t])
                y = torch.einsum("tbdn,dn->btd", states, self.mix)
                return torch.addcmul(y, x, self.skip)
            """,
        ),
        "doubling": Body(
            summary="All times at once: after k rounds a state has taken in the last 2^k inputs.",
            init=_INIT + _MIX,
            forward="""
                h = x.unsqueeze(-1).expand(-1, -1, -1, self.decay.shape[1])
                factor = self.decay
                reach = 1
                while reach < x.shape[1]:
                    grown = h[:, reach:] + factor * h[:, :-reach]
                    h = torch.cat([h[:, :reach], grown], dim=1)
                    factor = factor * factor
                    reach *= 2
                return (h * self.mix).sum(dim=-1) + self.skip * x
            """,
        ),
        "long_convolution": Body(
            summary="The impulse response as the weight of a depthwise convolution over time.",
            init=_INIT
            + _RESPONSE
            + '    self.register_buffer("taps", response.flip(-1).unsqueeze(1).contiguous())\n',
            forward="""
                T = self.taps.shape[-1]
                y = F.conv1d(F.pad(x.transpose(1, 2), (T - 1, 0)), self.taps, groups=x.shape[-1])
                return y.transpose(1, 2).contiguous()
            """,
        ),
        "fourier": Body(
            summary="""The state space as a causal convolution by Fourier transforms.

    The transform of the impulse response is known when the module is built. Twice the length keeps the end of
    the sequence from running into its beginning.
    """,
            init=_INIT
            + _RESPONSE
            + """
    self.padded = 2 * length
    self.register_buffer("transfer", torch.fft.rfft(response, n=self.padded).t().contiguous())
""",
            methods='''
                def _filtered(self, x):
                    """x times the transfer function, back in time."""
                    spectrum = torch.fft.rfft(x, n=self.padded, dim=1)
                    return torch.fft.irfft(spectrum * self.transfer, n=self.padded, dim=1)
            ''',
            forward="""
                if 2 * x.shape[1] > self.padded:
                    raise ValueError("sequence longer than the module was built for")
                return self._filtered(x)[:, : x.shape[1]].contiguous()
            """,
        ),
        "triangular_products": Body(
            summary="A lower triangular matrix over time for every feature, in one batched product.",
            init=_INIT
            + _RESPONSE
            + """
    at = torch.arange(length)
    since = at[:, None] - at[None, :]
    matrices = response[:, since.clamp(min=0)] * (since >= 0)
    self.register_buffer("matrices", matrices.contiguous())
""",
            forward="""
                y = torch.bmm(self.matrices, x.permute(2, 1, 0))
                return y.permute(2, 1, 0).contiguous()
            """,
        ),
        "scripted_loop": Body(
            before=_SCRIPTED,
            init=_INIT + _MIX,
            forward="return scripted.run(x, self.decay, self.mix, self.skip)",
        ),
        "triton_scan": Body(
            before=_SCAN_KERNEL,
            init=_INIT + _MIX,
            forward="""
                x = x.contiguous()
                B, T, D = x.shape
                out = torch.empty_like(x)
                scan_kernel[(B, triton.cdiv(D, 8))](
                    x, self.decay, self.mix, self.skip, out, T, D, N=self.decay.shape[1], BLOCK_D=8, num_warps=1
                )
                return out
            """,
        ),
        "cuda_lanes": Body(
            before=_CUDA,
            init=_INIT + _MIX,
            forward="return scan_module.scan_forward(x.contiguous(), self.decay, self.mix, self.skip)",
        ),
        "cuda_thread_per_feature": Body(
            before=_CUDA_SERIAL,
            init=_INIT,
            forward="""
                return ssm_module.ssm_forward(x.contiguous(), self.decay_logit, self.b, self.c, self.skip)
            """,
        ),
        "cuda_states_then_product": Body(
            summary="The recurrence is a kernel that writes all states; the read-out is the library's.",
            before=_CUDA_STATES,
            init=_INIT,
            methods='''
                def _states(self, x, decay):
                    """(batch, length, width, states)."""
                    if x.is_cuda and x.dtype == torch.float32:
                        return recurrence_ext.recurrence(x.contiguous(), decay, self.b)
                    h = torch.zeros(x.shape[0], *decay.shape, device=x.device, dtype=x.dtype)
                    states = []
                    for t in range(x.shape[1]):
                        h = h * decay + x[:, t].unsqueeze(-1) * self.b
                        states.append(h)
                    return torch.stack(states, dim=1)
            ''',
            forward="""
                states = self._states(x, torch.sigmoid(self.decay_logit))
                return torch.addcmul((states * self.c).sum(dim=-1), x, self.skip)
            """,
        ),
    },
    compiles=False,
    carries_on="triangular_products",
)
