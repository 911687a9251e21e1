"""A bidirectional GRU over a sequence, its output at the last step, and a linear classifier."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_GATES_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def gru_gates_kernel(from_x_ptr, x_stride, from_h_ptr, h_ptr, hidden, total, BLOCK: tl.constexpr):
    # both parts of the gates: (batch, 3 * hidden) in the order reset, update, new; h is updated in place
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    row = at // hidden
    unit = at % hidden
    x = from_x_ptr + row * x_stride + unit
    s = from_h_ptr + row * 3 * hidden + unit
    r = tl.sigmoid(tl.load(x, mask=keep, other=0.0) + tl.load(s, mask=keep, other=0.0))
    z = tl.sigmoid(tl.load(x + hidden, mask=keep, other=0.0) + tl.load(s + hidden, mask=keep, other=0.0))
    n = tl.load(x + 2 * hidden, mask=keep, other=0.0) + r * tl.load(s + 2 * hidden, mask=keep, other=0.0)
    n = 2.0 * tl.sigmoid(2.0 * n) - 1.0
    h = tl.load(h_ptr + at, mask=keep, other=0.0)
    tl.store(h_ptr + at, n + z * (h - n), mask=keep)
"""

_RECURRENCE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def gru_recurrence_kernel(from_x_ptr, weight_ptr, bias_ptr, state_ptr, steps, HIDDEN: tl.constexpr,
                          BLOCK: tl.constexpr):
    # One program per sample walks through all steps. Its state lies twice in memory, (2, HIDDEN): one is read
    # while the other is written. from_x: (batch, steps, 3 * HIDDEN); weight: (3 * HIDDEN, HIDDEN).
    sample = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, HIDDEN)
    state = state_ptr + sample * 2 * HIDDEN
    for t in range(0, steps):
        old = state + (t % 2) * HIDDEN
        new = state + ((t + 1) % 2) * HIDDEN
        x = from_x_ptr + (sample * steps + t) * 3 * HIDDEN
        h = tl.load(old + cols)
        for start in range(0, HIDDEN, BLOCK):
            rows = start + tl.arange(0, BLOCK)
            w = weight_ptr + rows[:, None] * HIDDEN + cols[None, :]
            r = tl.sum(tl.load(w) * h[None, :], axis=1) + tl.load(bias_ptr + rows)
            z = tl.sum(tl.load(w + HIDDEN * HIDDEN) * h[None, :], axis=1) + tl.load(bias_ptr + HIDDEN + rows)
            n = tl.sum(tl.load(w + 2 * HIDDEN * HIDDEN) * h[None, :], axis=1)
            n += tl.load(bias_ptr + 2 * HIDDEN + rows)
            r = tl.sigmoid(r + tl.load(x + rows))
            z = tl.sigmoid(z + tl.load(x + HIDDEN + rows))
            n = 2.0 * tl.sigmoid(2.0 * (tl.load(x + 2 * HIDDEN + rows) + r * n)) - 1.0
            tl.store(new + rows, n + z * (tl.load(old + rows) - n))
        tl.debug_barrier()
"""

_INIT = """
    self.hidden = hidden
    self.gru = nn.GRU(features, hidden, batch_first=True, bidirectional=True)
    self.head = nn.Linear(2 * hidden, classes)
"""

MODULE = Rewritten(
    name="bidirectional_gru_last_step",
    sizes="""
        batch_size = 64
        steps = 64
        features = 128
        hidden = 256
        classes = 10
    """,
    arguments=("features", "hidden", "classes"),
    takes="x",
    inputs="[torch.randn(batch_size, steps, features)]",
    reference=Body(
        summary="Classifies sequences from the last output of a bidirectional GRU.",
        init=_INIT,
        forward="""
            outputs, _ = self.gru(x)
            last = outputs[:, -1, :]
            return self.head(last)
        """,
    ),
    rewrites={
        "backward_one_step": Body(
            summary="The backward direction has seen a single step when it stands at the last one.",
            forward="""
                gru = self.gru
                h = x.new_zeros(x.shape[0], self.hidden)
                weights = [gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0]
                _, forward = torch.gru(x, h.unsqueeze(0), weights, True, 1, 0.0, False, False, True)
                backward = torch.gru_cell(
                    x[:, -1],
                    h,
                    gru.weight_ih_l0_reverse,
                    gru.weight_hh_l0_reverse,
                    gru.bias_ih_l0_reverse,
                    gru.bias_hh_l0_reverse,
                )
                return self.head(torch.cat([forward[0], backward], dim=1))
            """,
        ),
        "one_direction_layer": Body(
            summary="""A GRU in one direction and one step of the other, by hand.

    At the last step the backward direction starts from a state of zeros, so that its recurrent product is its
    recurrent bias: h = (1 - z) * tanh(W_n x + b_n + r * c_n). The forward direction gets a layer of its own.
    """,
            init=_INIT
            + """
    self.forward_gru = nn.GRU(features, hidden, batch_first=True)
    with torch.no_grad():
        for kind in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            getattr(self.forward_gru, kind).copy_(getattr(self.gru, kind))
        # reset and update gates take the sum of both biases
        bias = self.gru.bias_ih_l0_reverse.clone()
        bias[: 2 * hidden] += self.gru.bias_hh_l0_reverse[: 2 * hidden]
        self.register_buffer("backward_bias", bias)
        self.register_buffer("new_bias", self.gru.bias_hh_l0_reverse[2 * hidden :].clone())
""",
            methods='''
                def _backward_step(self, last):
                    """State of the backward direction after it has read the last step alone."""
                    gates = F.linear(last, self.gru.weight_ih_l0_reverse, self.backward_bias)
                    r, z, n = gates.chunk(3, dim=1)
                    n = torch.tanh(torch.addcmul(n, torch.sigmoid(r), self.new_bias))
                    return n * torch.sigmoid(-z)
            ''',
            forward="""
                _, h = self.forward_gru(x)
                return self.head(torch.cat([h[-1], self._backward_step(x[:, -1])], dim=1))
            """,
        ),
        "final_state_and_step": Body(
            forward="""
                outputs, h_n = self.gru(x)
                backward = outputs[:, -1, self.hidden :]
                weight_f, weight_b = self.head.weight.split(self.hidden, dim=1)
                return torch.addmm(F.linear(h_n[0], weight_f, self.head.bias), backward, weight_b.t())
            """
        ),
        "time_major": Body(
            summary="Steps first, as the library prefers them.",
            forward="""
                x = x.transpose(0, 1).contiguous()
                h = torch.zeros(2, x.shape[1], self.hidden, device=x.device, dtype=x.dtype)
                outputs, _ = torch.gru(x, h, self.gru._flat_weights, True, 1, 0.0, False, True, False)
                return F.linear(outputs[-1], self.head.weight, self.head.bias)
            """,
        ),
        "cell_loop": Body(
            summary="Forward direction step by step with the library's cell; backward direction a single step.",
            forward="""
                g = self.gru
                h = torch.zeros(x.shape[0], self.hidden, device=x.device)
                back = torch.gru_cell(
                    x[:, -1],
                    h,
                    g.weight_ih_l0_reverse,
                    g.weight_hh_l0_reverse,
                    g.bias_ih_l0_reverse,
                    g.bias_hh_l0_reverse,
                )
                for step in x.unbind(1):
                    h = torch.gru_cell(step, h, g.weight_ih_l0, g.weight_hh_l0, g.bias_ih_l0, g.bias_hh_l0)
                return self.head(torch.cat((h, back), 1))
            """,
        ),
        "two_separate_directions": Body(
            summary="""Both directions by layers of one direction.

    The backward direction is a forward GRU over the sequence turned around. Its output at the last step of the
    sequence is the first of its own outputs.
    """,
            methods='''
                def _direction(self, x, suffix):
                    """Outputs of one direction; the suffix names its parameters."""
                    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
                    weights = [getattr(self.gru, name + suffix) for name in names]
                    h = x.new_zeros(1, x.shape[0], self.hidden)
                    outputs, _ = torch.gru(x, h, weights, True, 1, 0.0, False, False, True)
                    return outputs
            ''',
            forward="""
                ahead = self._direction(x, "")
                back = self._direction(x.flip(1).contiguous(), "_reverse")
                return self.head(torch.cat([ahead[:, -1], back[:, 0]], dim=-1))
            """,
        ),
        "triton_gates": Body(
            before=_GATES_KERNEL,
            forward="""
                g = self.gru
                B, T, _ = x.shape
                H = self.hidden
                grid = (triton.cdiv(B * H, 256),)
                from_x = F.linear(x, g.weight_ih_l0, g.bias_ih_l0)
                states = torch.zeros(2, B, H, device=x.device)
                from_h = torch.empty(B, 3 * H, device=x.device)
                recurrent = g.weight_hh_l0.t()
                for t in range(T):
                    torch.addmm(g.bias_hh_l0, states[0], recurrent, out=from_h)
                    gru_gates_kernel[grid](from_x[:, t], T * 3 * H, from_h, states[0], H, B * H, BLOCK=256)
                last = F.linear(x[:, -1], g.weight_ih_l0_reverse, g.bias_ih_l0_reverse)
                from_h.copy_(g.bias_hh_l0_reverse)
                gru_gates_kernel[grid](last, 3 * H, from_h, states[1], H, B * H, BLOCK=256)
                return self.head(torch.cat([states[0], states[1]], dim=1))
            """,
        ),
        "triton_recurrence": Body(
            summary="All steps of the forward direction in one kernel; the backward one has one step.",
            before=_RECURRENCE_KERNEL,
            forward="""
                g = self.gru
                B, T, _ = x.shape
                H = self.hidden
                from_x = F.linear(x, g.weight_ih_l0, g.bias_ih_l0)
                states = torch.zeros(B, 2, H, device=x.device)
                gru_recurrence_kernel[(B,)](
                    from_x, g.weight_hh_l0, g.bias_hh_l0, states, T, HIDDEN=H, BLOCK=32, num_warps=8
                )
                last = F.linear(x[:, -1], g.weight_ih_l0_reverse, g.bias_ih_l0_reverse)
                r, z, n = last.chunk(3, dim=1)
                r_bias, z_bias, n_bias = g.bias_hh_l0_reverse.chunk(3)
                n = torch.tanh(n + torch.sigmoid(r + r_bias) * n_bias)
                back = n - torch.sigmoid(z + z_bias) * n
                return self.head(torch.cat([states[:, T % 2], back], dim=1))
            """,
        ),
    },
    compiles=False,
    carries_on="backward_one_step",
)
