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
    },
    carries_on="inputs_projected_first",
)
