"""A gated recurrent unit with a linear layer per gate, run as a Python loop, and the mean of its states."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_UPDATE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def reset_kernel(gates_ptr, h_ptr, reset_ptr, hidden, total, BLOCK: tl.constexpr):
    # gates: (batch, 2 * hidden), update before reset; writes the state where it is let through
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    gate = tl.load(gates_ptr + at // hidden * 2 * hidden + hidden + at % hidden, mask=keep, other=0.0)
    h = tl.load(h_ptr + at, mask=keep, other=0.0)
    tl.store(reset_ptr + at, tl.sigmoid(gate) * h, mask=keep)


@triton.jit
def update_kernel(gates_ptr, new_ptr, h_ptr, sum_ptr, hidden, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    z = tl.sigmoid(tl.load(gates_ptr + at // hidden * 2 * hidden + at % hidden, mask=keep, other=0.0))
    n = 2.0 * tl.sigmoid(2.0 * tl.load(new_ptr + at, mask=keep, other=0.0)) - 1.0
    h = tl.load(h_ptr + at, mask=keep, other=0.0)
    h = h + z * (n - h)
    tl.store(h_ptr + at, h, mask=keep)
    tl.store(sum_ptr + at, tl.load(sum_ptr + at, mask=keep, other=0.0) + h, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A block per sample, a thread per unit; states in shared memory. The recurrent weights come as (hidden, hidden)
// with the input unit first, so that neighbouring threads read neighbouring weights.
__global__ void gru_walk(const float* __restrict__ projected, const float* __restrict__ update,
                         const float* __restrict__ reset, const float* __restrict__ candidate,
                         float* __restrict__ out, int steps, int hidden) {
    extern __shared__ float shared[];
    float* h = shared;
    float* passed = shared + hidden;
    int unit = threadIdx.x;
    float mine = 0.0f, sum = 0.0f;
    h[unit] = 0.0f;
    __syncthreads();
    for (int t = 0; t < steps; ++t) {
        const float* at = projected + ((long)blockIdx.x * steps + t) * 3 * hidden + unit;
        float z = at[0], r = at[hidden], n = at[2 * hidden];
        #pragma unroll 8
        for (int i = 0; i < hidden; ++i) {
            z = fmaf(h[i], update[i * hidden + unit], z);
            r = fmaf(h[i], reset[i * hidden + unit], r);
        }
        z = 1.0f / (1.0f + expf(-z));
        passed[unit] = mine / (1.0f + expf(-r));
        __syncthreads();
        #pragma unroll 8
        for (int i = 0; i < hidden; ++i) n = fmaf(passed[i], candidate[i * hidden + unit], n);
        mine += z * (tanhf(n) - mine);
        h[unit] = mine;
        sum += mine;
        __syncthreads();
    }
    out[(long)blockIdx.x * hidden + unit] = sum / steps;
}

torch::Tensor gru_walk_forward(torch::Tensor projected, torch::Tensor update, torch::Tensor reset,
                               torch::Tensor candidate) {
    int batch = projected.size(0), steps = projected.size(1), hidden = update.size(0);
    TORCH_CHECK(hidden <= 1024, "one thread per unit");
    auto out = torch::empty({batch, hidden}, projected.options());
    gru_walk<<<batch, hidden, 2 * hidden * sizeof(float)>>>(
        projected.data_ptr<float>(), update.data_ptr<float>(), reset.data_ptr<float>(),
        candidate.data_ptr<float>(), out.data_ptr<float>(), steps, hidden);
    return out;
}
"""
walk_module = load_inline(
    name="gru_gates_loop_walk",
    cpp_sources="torch::Tensor gru_walk_forward(torch::Tensor projected, torch::Tensor update, "
    "torch::Tensor reset, torch::Tensor candidate);",
    cuda_sources=source,
    functions=["gru_walk_forward"],
)
'''

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def run(projected: Tensor, gates_weight: Tensor, new_weight: Tensor) -> Tensor:
    hidden = new_weight.size(0)
    h = torch.zeros([projected.size(1), hidden], device=projected.device)
    states: List[Tensor] = []
    for t in range(projected.size(0)):
        step = projected[t]
        gates = torch.sigmoid(torch.addmm(step[:, : 2 * hidden], h, gates_weight))
        z, r = gates.chunk(2, 1)
        n = torch.tanh(torch.addmm(step[:, 2 * hidden :], r * h, new_weight))
        h = h + z * (n - h)
        states.append(h)
    return torch.stack(states).mean(0)
""")
'''

_INIT = """
    self.features = features
    self.hidden = hidden
    self.update = nn.Linear(features + hidden, hidden)
    self.reset = nn.Linear(features + hidden, hidden)
    self.candidate = nn.Linear(features + hidden, hidden)
"""

# weights of inputs and of states apart, gates side by side
_SPLIT = """
    with torch.no_grad():
        layers = (self.update, self.reset, self.candidate)
        self.register_buffer("in_weight", torch.cat([layer.weight[:, :features] for layer in layers]))
        self.register_buffer("in_bias", torch.cat([layer.bias for layer in layers]))
        gates = torch.cat([layer.weight[:, features:] for layer in layers[:2]])
        self.register_buffer("gates_weight", gates.t().contiguous())
        self.register_buffer("new_weight", self.candidate.weight[:, features:].t().contiguous())
"""

MODULE = Rewritten(
    name="gru_gates_loop",
    sizes="""
        batch_size = 16
        steps = 20
        features = 32
        hidden = 64
    """,
    arguments=("features", "hidden"),
    takes="x",
    inputs="[torch.randn(batch_size, steps, features)]",
    reference=Body(
        summary="A gated recurrent unit (reset gate before the product) and the mean of its states over time.",
        init=_INIT,
        forward="""
            h = torch.zeros(x.shape[0], self.hidden, device=x.device)
            states = []
            for t in range(x.shape[1]):
                combined = torch.cat([x[:, t], h], dim=1)
                z = torch.sigmoid(self.update(combined))
                r = torch.sigmoid(self.reset(combined))
                n = torch.tanh(self.candidate(torch.cat([x[:, t], r * h], dim=1)))
                h = (1 - z) * h + z * n
                states.append(h)
            return torch.stack(states, dim=1).mean(dim=1)
        """,
    ),
    rewrites={
        "inputs_projected_first": Body(
            init=_INIT + _SPLIT,
            forward="""
                H = self.hidden
                projected = F.linear(x.transpose(0, 1), self.in_weight, self.in_bias)
                h = x.new_zeros(x.shape[0], H)
                total = torch.zeros_like(h)
                for gates, new in zip(*projected.split([2 * H, H], dim=-1)):
                    z, r = torch.addmm(gates, h, self.gates_weight).sigmoid_().chunk(2, dim=1)
                    n = torch.addmm(new, r * h, self.new_weight).tanh_()
                    h = torch.lerp(h, n, z)
                    total += h
                return total / x.shape[1]
            """,
        ),
        "packed_gates": Body(
            summary="Update and reset gates in one product.",
            init=_INIT
            + """
    self.register_buffer("both_weight", torch.cat([self.update.weight, self.reset.weight]).detach())
    self.register_buffer("both_bias", torch.cat([self.update.bias, self.reset.bias]).detach())
""",
            forward="""
                h = torch.zeros(x.shape[0], self.hidden, device=x.device)
                states = []
                for t in range(x.shape[1]):
                    combined = torch.cat([x[:, t], h], dim=1)
                    z, r = torch.sigmoid(F.linear(combined, self.both_weight, self.both_bias)).chunk(2, dim=1)
                    n = torch.tanh(self.candidate(torch.cat([x[:, t], r * h], dim=1)))
                    h = (1 - z) * h + z * n
                    states.append(h)
                return torch.stack(states, dim=1).mean(dim=1)
            """,
        ),
        "running_mean": Body(
            forward="""
                T = x.shape[1]
                h = x.new_zeros(x.shape[0], self.hidden)
                mean = x.new_zeros(x.shape[0], self.hidden)
                for step in x.unbind(dim=1):
                    combined = torch.cat([step, h], dim=1)
                    z = self.update(combined).sigmoid_()
                    r = self.reset(combined).sigmoid_()
                    n = self.candidate(torch.cat([step, r.mul_(h)], dim=1)).tanh_()
                    h = torch.lerp(h, n, z)
                    mean.add_(h, alpha=1.0 / T)
                return mean
            """
        ),
        "workspace": Body(
            summary="""A gated recurrent unit that keeps all its memory between calls.

    Input and state stand side by side in one workspace: the inputs are copied once per step, the state is written
    where the next product reads it. A second workspace has the inputs with the state that the reset gate lets
    through. The workspaces belong to a batch size and a device and are made anew when one of these changes.
    """,
            init=_INIT
            + """
    with torch.no_grad():
        gates = torch.cat([self.update.weight, self.reset.weight])
        self.register_buffer("gates_t", gates.t().contiguous())
        self.register_buffer("gates_bias", torch.cat([self.update.bias, self.reset.bias]))
        self.register_buffer("candidate_t", self.candidate.weight.t().contiguous())
    self._kept = {}
""",
            methods="""
                def _workspaces(self, x):
                    key = (x.shape[0], x.device, x.dtype)
                    kept = self._kept.get(key)
                    if kept is None:
                        wide = self.features + self.hidden
                        kept = (
                            x.new_empty(x.shape[0], wide),
                            x.new_empty(x.shape[0], wide),
                            x.new_empty(x.shape[0], 2 * self.hidden),
                            x.new_empty(x.shape[0], self.hidden),
                        )
                        self._kept = {key: kept}
                    return kept
            """,
            forward="""
                F_, H = self.features, self.hidden
                seen, passed, gates, new = self._workspaces(x)
                h = seen[:, F_:]
                h.zero_()
                states = x.new_empty(x.shape[1], x.shape[0], H)
                for t in range(x.shape[1]):
                    seen[:, :F_].copy_(x[:, t])
                    passed[:, :F_].copy_(x[:, t])
                    torch.addmm(self.gates_bias, seen, self.gates_t, out=gates)
                    gates.sigmoid_()
                    torch.mul(gates[:, H:], h, out=passed[:, F_:])
                    torch.addmm(self.candidate.bias, passed, self.candidate_t, out=new)
                    new.tanh_()
                    h.lerp_(new, gates[:, :H])
                    states[t].copy_(h)
                return states.mean(dim=0)
            """,
        ),
        "einsum_gates": Body(
            summary="Every product written as a sum over named axes, inputs and states apart.",
            forward="""
                f = self.features
                wx = [layer.weight[:, :f] for layer in (self.update, self.reset, self.candidate)]
                wh = [layer.weight[:, f:] for layer in (self.update, self.reset, self.candidate)]
                h = torch.zeros(x.shape[0], self.hidden, device=x.device)
                states = []
                for t in range(x.shape[1]):
                    xz, xr, xn = (torch.einsum("bf,hf->bh", x[:, t], w) for w in wx)
                    z = torch.sigmoid(xz + torch.einsum("bi,hi->bh", h, wh[0]) + self.update.bias)
                    r = torch.sigmoid(xr + torch.einsum("bi,hi->bh", h, wh[1]) + self.reset.bias)
                    n = torch.tanh(xn + torch.einsum("bi,hi->bh", r * h, wh[2]) + self.candidate.bias)
                    h = h - z * h + z * n
                    states.append(h)
                return torch.mean(torch.stack(states), dim=0)
            """,
        ),
        "scripted_loop": Body(
            before=_SCRIPTED,
            init=_INIT + _SPLIT,
            forward="""
                projected = F.linear(x.transpose(0, 1), self.in_weight, self.in_bias)
                return scripted.run(projected, self.gates_weight, self.new_weight)
            """,
        ),
        "triton_gates": Body(
            before=_UPDATE_KERNEL,
            init=_INIT + _SPLIT,
            forward="""
                B, T, _ = x.shape
                H = self.hidden
                total = B * H
                projected = F.linear(x.transpose(0, 1), self.in_weight, self.in_bias)
                h = torch.zeros(B, H, device=x.device)
                sums = torch.zeros_like(h)
                passed = torch.empty_like(h)
                grid = (triton.cdiv(total, 256),)
                for step in projected.unbind(0):
                    gates = torch.addmm(step[:, : 2 * H], h, self.gates_weight)
                    reset_kernel[grid](gates, h, passed, H, total, BLOCK=256)
                    new = torch.addmm(step[:, 2 * H :], passed, self.new_weight)
                    update_kernel[grid](gates, new, h, sums, H, total, BLOCK=256)
                return sums / T
            """,
        ),
        "cuda_recurrence": Body(
            before=_CUDA,
            init=_INIT
            + _SPLIT
            + """
    self.register_buffer("update_weight", self.gates_weight[:, :hidden].contiguous())
    self.register_buffer("reset_weight", self.gates_weight[:, hidden:].contiguous())
""",
            forward="""
                projected = F.linear(x, self.in_weight, self.in_bias).contiguous()
                return walk_module.gru_walk_forward(
                    projected, self.update_weight, self.reset_weight, self.new_weight
                )
            """,
        ),
    },
    carries_on="inputs_projected_first",
)
