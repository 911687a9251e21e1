"""An LSTM run as a Python loop over a cell, with all hidden states stacked."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_GATES_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def gates_kernel(gates_ptr, c_ptr, h_ptr, out_ptr, hidden, out_stride, total, BLOCK: tl.constexpr):
    # gates: (batch, 4 * hidden) in the order input, forget, cell, output; c is updated in place
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    row = at // hidden
    unit = at % hidden
    base = gates_ptr + row * 4 * hidden + unit
    i = tl.sigmoid(tl.load(base, mask=keep, other=0.0))
    f = tl.sigmoid(tl.load(base + hidden, mask=keep, other=0.0))
    g = 2.0 * tl.sigmoid(2.0 * tl.load(base + 2 * hidden, mask=keep, other=0.0)) - 1.0
    o = tl.sigmoid(tl.load(base + 3 * hidden, mask=keep, other=0.0))
    c = f * tl.load(c_ptr + at, mask=keep, other=0.0) + i * g
    h = o * (2.0 * tl.sigmoid(2.0 * c) - 1.0)
    tl.store(c_ptr + at, c, mask=keep)
    tl.store(h_ptr + at, h, mask=keep)
    tl.store(out_ptr + row * out_stride + unit, h, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A block per sample walks through all steps. A thread computes one of the 4 * hidden gates; the recurrent weight
// comes transposed, (hidden, 4 * hidden), so that neighbours read neighbours; states stay in shared memory.
__global__ void recurrence(const float* __restrict__ projected, const float* __restrict__ weight,
                           float* __restrict__ out, int steps, int hidden) {
    extern __shared__ float shared[];
    float* h = shared;
    float* c = shared + hidden;
    float* gates = shared + 2 * hidden;
    int wide = 4 * hidden;
    for (int j = threadIdx.x; j < hidden; j += blockDim.x) { h[j] = 0.0f; c[j] = 0.0f; }
    __syncthreads();
    for (int t = 0; t < steps; ++t) {
        long step = (long)blockIdx.x * steps + t;
        for (int j = threadIdx.x; j < wide; j += blockDim.x) {
            float sum = projected[step * wide + j];
            #pragma unroll 8
            for (int i = 0; i < hidden; ++i) sum = fmaf(h[i], weight[(long)i * wide + j], sum);
            gates[j] = (j / hidden == 2) ? tanhf(sum) : 1.0f / (1.0f + expf(-sum));
        }
        __syncthreads();
        for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
            float cell = gates[hidden + j] * c[j] + gates[j] * gates[2 * hidden + j];
            float state = gates[3 * hidden + j] * tanhf(cell);
            c[j] = cell;
            h[j] = state;
            out[step * hidden + j] = state;
        }
        __syncthreads();
    }
}

torch::Tensor lstm_forward(torch::Tensor projected, torch::Tensor weight) {
    int batch = projected.size(0), steps = projected.size(1), hidden = weight.size(0);
    auto out = torch::empty({batch, steps, hidden}, projected.options());
    int threads = std::min(4 * hidden, 1024);
    recurrence<<<batch, threads, 6 * hidden * sizeof(float)>>>(
        projected.data_ptr<float>(), weight.data_ptr<float>(), out.data_ptr<float>(), steps, hidden);
    return out;
}
"""
recurrence_module = load_inline(
    name="lstm_cell_loop_recurrence",
    cpp_sources="torch::Tensor lstm_forward(torch::Tensor projected, torch::Tensor weight);",
    cuda_sources=source,
    functions=["lstm_forward"],
)
'''

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def run(projected: Tensor, weight: Tensor, hidden: int) -> Tensor:
    h = torch.zeros([projected.size(1), hidden], device=projected.device)
    c = torch.zeros([projected.size(1), hidden], device=projected.device)
    states: List[Tensor] = []
    for t in range(projected.size(0)):
        i, f, g, o = torch.addmm(projected[t], h, weight).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states, 1)
""")
'''

_INIT = """
    self.hidden = hidden
    self.cell = nn.LSTMCell(features, hidden)
"""

_TRANSPOSED = """
    with torch.no_grad():
        self.register_buffer("bias", self.cell.bias_ih + self.cell.bias_hh)
        self.register_buffer("recurrent_t", self.cell.weight_hh.t().contiguous())
"""

_CUDA_SEQUENCE = '''
from torch.utils.cpp_extension import load_inline

sequence_source = r"""
#include <torch/extension.h>

__device__ float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }

// One block per sequence, one thread per gate and unit; all steps in one launch.
__global__ void lstm_sequence_kernel(const float* __restrict__ x, const float* __restrict__ w_ih,
                                     const float* __restrict__ w_hh, const float* __restrict__ b_ih,
                                     const float* __restrict__ b_hh, float* __restrict__ out, int steps, int features,
                                     int hidden) {
    extern __shared__ float shared[];
    float* input = shared;
    float* h = input + features;
    float* c = h + hidden;
    float* gates = c + hidden;
    int j = threadIdx.x;
    if (j < hidden) {
        h[j] = 0.0f;
        c[j] = 0.0f;
    }
    for (int t = 0; t < steps; t++) {
        long step = (long)blockIdx.x * steps + t;
        for (int k = j; k < features; k += blockDim.x) input[k] = x[step * features + k];
        __syncthreads();
        float sum = b_ih[j] + b_hh[j];
        for (int k = 0; k < features; k++) sum += w_ih[j * features + k] * input[k];
        for (int k = 0; k < hidden; k++) sum += w_hh[j * hidden + k] * h[k];
        gates[j] = sum;
        __syncthreads();
        if (j < hidden) {
            float i = sigmoid(gates[j]);
            float f = sigmoid(gates[hidden + j]);
            float g = tanhf(gates[2 * hidden + j]);
            float o = sigmoid(gates[3 * hidden + j]);
            c[j] = f * c[j] + i * g;
            h[j] = o * tanhf(c[j]);
            out[step * hidden + j] = h[j];
        }
        __syncthreads();
    }
}

torch::Tensor lstm_sequence(torch::Tensor x, torch::Tensor w_ih, torch::Tensor w_hh, torch::Tensor b_ih,
                            torch::Tensor b_hh) {
    int batch = x.size(0), steps = x.size(1), features = x.size(2), hidden = w_hh.size(1);
    TORCH_CHECK(4 * hidden <= 1024, "the gates must fit into a block");
    auto out = torch::empty({batch, steps, hidden}, x.options());
    size_t bytes = (features + 6 * hidden) * sizeof(float);
    lstm_sequence_kernel<<<batch, 4 * hidden, bytes>>>(
        x.data_ptr<float>(), w_ih.data_ptr<float>(), w_hh.data_ptr<float>(), b_ih.data_ptr<float>(),
        b_hh.data_ptr<float>(), out.data_ptr<float>(), steps, features, hidden);
    return out;
}
"""
sequence_module = load_inline(
    name="lstm_cell_loop_sequence",
    cpp_sources="torch::Tensor lstm_sequence(torch::Tensor x, torch::Tensor w_ih, torch::Tensor w_hh, "
    "torch::Tensor b_ih, torch::Tensor b_hh);",
    cuda_sources=sequence_source,
    functions=["lstm_sequence"],
)
'''

_CUDA_CELL = '''
from torch.utils.cpp_extension import load_inline

cell_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__device__ __forceinline__ float logistic(float v) { return 1.0f / (1.0f + __expf(-v)); }

// The cell's pointwise part of step t: sums the two products, updates both states and stores h in the output.
// projected: (batch, steps, 4 * hidden); recurrent: (batch, 4 * hidden); gates in the order i, f, g, o.
__global__ void cell_kernel(const float* __restrict__ projected, const float* __restrict__ recurrent,
                            float* __restrict__ h, float* __restrict__ c, float* __restrict__ out, int steps, int t,
                            int hidden, int total) {
    const int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= total) return;
    const int row = idx / hidden;
    const int unit = idx % hidden;
    const float* p = projected + ((long)row * steps + t) * 4 * hidden + unit;
    const float* r = recurrent + (long)row * 4 * hidden + unit;
    const float i = logistic(p[0] + r[0]);
    const float f = logistic(p[hidden] + r[hidden]);
    const float g = 2.0f * logistic(2.0f * (p[2 * hidden] + r[2 * hidden])) - 1.0f;
    const float o = logistic(p[3 * hidden] + r[3 * hidden]);
    const float cell = fmaf(f, c[idx], i * g);
    const float state = o * tanhf(cell);
    c[idx] = cell;
    h[idx] = state;
    out[((long)row * steps + t) * hidden + unit] = state;
}

void cell_step(torch::Tensor projected, torch::Tensor recurrent, torch::Tensor h, torch::Tensor c, torch::Tensor out,
               int64_t t) {
    TORCH_CHECK(projected.is_cuda() && recurrent.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(projected.is_contiguous() && recurrent.is_contiguous() && h.is_contiguous() && c.is_contiguous() &&
                out.is_contiguous(), "contiguous tensors expected");
    const int batch = h.size(0), hidden = h.size(1), steps = projected.size(1);
    TORCH_CHECK(t >= 0 && t < steps, "no such step");
    const int total = batch * hidden;
    cell_kernel<<<(total + 127) / 128, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        projected.data_ptr<float>(), recurrent.data_ptr<float>(), h.data_ptr<float>(), c.data_ptr<float>(),
        out.data_ptr<float>(), steps, (int)t, hidden, total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""
cell_module = load_inline(
    name="lstm_cell_loop_cell",
    cpp_sources="void cell_step(torch::Tensor projected, torch::Tensor recurrent, torch::Tensor h, torch::Tensor c, "
    "torch::Tensor out, int64_t t);",
    cuda_sources=cell_source,
    functions=["cell_step"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="lstm_cell_loop",
    sizes="""
        batch_size = 32
        steps = 48
        features = 64
        hidden = 128
    """,
    arguments=("features", "hidden"),
    takes="x",
    inputs="[torch.randn(batch_size, steps, features)]",
    reference=Body(
        summary="An LSTM over time, one step after another.",
        init=_INIT,
        forward="""
            h = torch.zeros(x.shape[0], self.hidden, device=x.device)
            c = torch.zeros(x.shape[0], self.hidden, device=x.device)
            outputs = []
            for t in range(x.shape[1]):
                h, c = self.cell(x[:, t], (h, c))
                outputs.append(h)
            return torch.stack(outputs, dim=1)
        """,
    ),
    rewrites={
        "inputs_projected_first": Body(
            summary="The inputs' part of all gates in one product, with both biases; the loop has the rest.",
            init=_INIT + _TRANSPOSED,
            forward="""
                B, T, _ = x.shape
                projected = F.linear(x.transpose(0, 1), self.cell.weight_ih, self.bias)
                h = x.new_zeros(B, self.hidden)
                c = x.new_zeros(B, self.hidden)
                outputs = []
                for gates in projected.unbind(0):
                    gates = torch.addmm(gates, h, self.recurrent_t)
                    i, f, g, o = gates.chunk(4, dim=1)
                    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                    h = torch.sigmoid(o) * torch.tanh(c)
                    outputs.append(h)
                return torch.stack(outputs, dim=1)
            """,
        ),
        "library_lstm": Body(
            summary="""The same recurrence by nn.LSTM.

    The cell stays the owner of the parameters. A library layer gets copies of them when the module is built, and
    the plain loop is there for inputs that the layer does not take.
    """,
            init=_INIT
            + """
    self.lstm = nn.LSTM(features, hidden, batch_first=True)
    with torch.no_grad():
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(self.lstm, kind + "_l0").copy_(getattr(self.cell, kind))
    self._flat = False
""",
            methods='''
                def _loop(self, x):
                    """One step after another, for odd data types."""
                    h = torch.zeros(x.shape[0], self.hidden, device=x.device, dtype=x.dtype)
                    c = torch.zeros_like(h)
                    outputs = []
                    for t in range(x.shape[1]):
                        h, c = self.cell(x[:, t], (h, c))
                        outputs.append(h)
                    return torch.stack(outputs, dim=1)
            ''',
            forward="""
                if x.dtype != self.cell.weight_ih.dtype or x.shape[1] == 0:
                    return self._loop(x)
                if not self._flat:
                    # once, as the module has been moved to its device by now
                    self.lstm.flatten_parameters()
                    self._flat = True
                output, _ = self.lstm(x)
                return output
            """,
        ),
        "library_function": Body(
            forward="""
                state = x.new_zeros(1, x.shape[0], self.hidden)
                cell = self.cell
                weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
                return torch.lstm(x, (state, state), weights, True, 1, 0.0, False, False, True)[0]
            """
        ),
        "gates_in_place": Body(
            summary="""An LSTM that writes its states straight into the output.

    Gates are computed in a workspace that is kept between calls. The sigmoid is taken of all four gates at once
    after the cell's columns were doubled, as tanh(z) = 2 * sigmoid(2 z) - 1.
    """,
            init=_INIT
            + """
    with torch.no_grad():
        double = torch.ones(4 * hidden)
        double[2 * hidden : 3 * hidden] = 2.0
        self.register_buffer("in_weight", self.cell.weight_ih * double[:, None])
        self.register_buffer("all_bias", (self.cell.bias_ih + self.cell.bias_hh) * double)
        self.register_buffer("recurrent_t", (self.cell.weight_hh * double[:, None]).t().contiguous())
    self._gates = None
""",
            methods="""
                def _workspace(self, x):
                    if self._gates is None or self._gates.shape[0] != x.shape[0] or self._gates.device != x.device:
                        self._gates = torch.empty(x.shape[0], 4 * self.hidden, device=x.device)
                    return self._gates
            """,
            forward="""
                B, T, _ = x.shape
                H = self.hidden
                projected = F.linear(x, self.in_weight, self.all_bias)
                out = x.new_empty(B, T, H)
                gates = self._workspace(x)
                c = x.new_zeros(B, H)
                h = c
                for t in range(T):
                    torch.addmm(projected[:, t], h, self.recurrent_t, out=gates)
                    gates.sigmoid_()
                    cell = gates[:, 2 * H : 3 * H].mul_(2.0).sub_(1.0)
                    c = torch.addcmul(gates[:, H : 2 * H] * c, gates[:, :H], cell)
                    h = torch.mul(gates[:, 3 * H :], torch.tanh(c), out=out[:, t])
                return out
            """,
        ),
        "one_product_per_step": Body(
            summary="Input and state side by side, so that a step has a single product.",
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("bias", self.cell.bias_ih + self.cell.bias_hh)
        self.register_buffer("weight", torch.cat([self.cell.weight_ih, self.cell.weight_hh], dim=1).t())
""",
            forward="""
                h = torch.zeros(x.shape[0], self.hidden, device=x.device)
                c = torch.zeros_like(h)
                outputs = []
                for t in range(x.shape[1]):
                    gates = torch.addmm(self.bias, torch.cat([x[:, t], h], dim=1), self.weight)
                    i, f, g, o = gates.split(self.hidden, dim=1)
                    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                    h = o.sigmoid() * c.tanh()
                    outputs.append(h.unsqueeze(1))
                return torch.cat(outputs, dim=1)
            """,
        ),
        "scripted_loop": Body(
            before=_SCRIPTED,
            init=_INIT + _TRANSPOSED,
            forward="""
                projected = F.linear(x.transpose(0, 1), self.cell.weight_ih, self.bias)
                return scripted.run(projected, self.recurrent_t, self.hidden)
            """,
        ),
        "triton_gates": Body(
            before=_GATES_KERNEL,
            init=_INIT + _TRANSPOSED,
            forward="""
                B, T, _ = x.shape
                H = self.hidden
                projected = F.linear(x.transpose(0, 1), self.cell.weight_ih, self.bias).contiguous()
                h = torch.zeros(B, H, device=x.device)
                c = torch.zeros(B, H, device=x.device)
                out = torch.empty(B, T, H, device=x.device)
                gates = torch.empty(B, 4 * H, device=x.device)
                grid = (triton.cdiv(B * H, 256),)
                for t in range(T):
                    torch.addmm(projected[t], h, self.recurrent_t, out=gates)
                    gates_kernel[grid](gates, c, h, out[:, t], H, T * H, B * H, BLOCK=256)
                return out
            """,
        ),
        "cuda_recurrence": Body(
            before=_CUDA,
            init=_INIT + _TRANSPOSED,
            forward="""
                projected = F.linear(x, self.cell.weight_ih, self.bias)
                return recurrence_module.lstm_forward(projected.contiguous(), self.recurrent_t)
            """,
        ),
        "cuda_whole_sequence": Body(
            before=_CUDA_SEQUENCE,
            forward="""
                cell = self.cell
                return sequence_module.lstm_sequence(
                    x.contiguous(), cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
                )
            """,
        ),
        "cuda_cell_steps": Body(
            summary="""An LSTM with products from the library and the pointwise part of a step in one kernel.

    All inputs are projected at once before the loop, with both biases.
    """,
            before=_CUDA_CELL,
            init=_INIT + _TRANSPOSED,
            methods='''
                def _plain(self, x):
                    """The loop over the cell, for other devices and types."""
                    h = x.new_zeros(x.shape[0], self.hidden)
                    c = torch.zeros_like(h)
                    outputs = []
                    for t in range(x.shape[1]):
                        h, c = self.cell(x[:, t], (h, c))
                        outputs.append(h)
                    return torch.stack(outputs, dim=1)
            ''',
            forward="""
                if not x.is_cuda or x.dtype != torch.float32:
                    return self._plain(x)
                B, T, _ = x.shape
                projected = F.linear(x, self.cell.weight_ih, self.bias).contiguous()
                h = x.new_zeros(B, self.hidden)
                c = x.new_zeros(B, self.hidden)
                out = x.new_empty(B, T, self.hidden)
                for t in range(T):
                    cell_module.cell_step(projected, torch.mm(h, self.recurrent_t), h, c, out, t)
                return out
            """,
        ),
    },
    carries_on="inputs_projected_first",
)
