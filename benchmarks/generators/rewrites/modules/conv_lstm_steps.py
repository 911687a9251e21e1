"""A convolutional LSTM cell over a few frames, and a 1x1 convolution of its last state."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_GATES_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def conv_gates_kernel(gates_ptr, c_ptr, h_ptr, plane, total, BLOCK: tl.constexpr):
    # gates: (batch, 4 * hidden, height, width) in the order input, forget, output, cell;
    # plane = hidden * height * width; c is updated in place
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    base = gates_ptr + at // plane * 4 * plane + at % plane
    i = tl.sigmoid(tl.load(base, mask=keep, other=0.0))
    f = tl.sigmoid(tl.load(base + plane, mask=keep, other=0.0))
    o = tl.sigmoid(tl.load(base + 2 * plane, mask=keep, other=0.0))
    g = 2.0 * tl.sigmoid(2.0 * tl.load(base + 3 * plane, mask=keep, other=0.0)) - 1.0
    c = f * tl.load(c_ptr + at, mask=keep, other=0.0) + i * g
    tl.store(c_ptr + at, c, mask=keep)
    tl.store(h_ptr + at, o * (2.0 * tl.sigmoid(2.0 * c) - 1.0), mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A thread per unit and pixel: it sums the four gates over channels of the frame and of the state, then updates.
__global__ void conv_lstm_step(const float* __restrict__ x, long x_stride, const float* __restrict__ h,
                               const float* __restrict__ weight, const float* __restrict__ bias,
                               float* __restrict__ c, float* __restrict__ h_new, int inputs, int hidden,
                               int height, int width, long total) {
    long at = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (at >= total) return;
    int col = at % width;
    int row = (at / width) % height;
    int unit = (at / ((long)width * height)) % hidden;
    long sample = at / ((long)width * height * hidden);
    int channels = inputs + hidden;
    float gates[4];
    for (int k = 0; k < 4; ++k) gates[k] = bias[k * hidden + unit];
    for (int ch = 0; ch < channels; ++ch) {
        const float* plane = ch < inputs
            ? x + sample * x_stride + (long)ch * height * width
            : h + (sample * hidden + ch - inputs) * (long)height * width;
        for (int dy = 0; dy < 3; ++dy) {
            int y = row + dy - 1;
            if (y < 0 || y >= height) continue;
            for (int dx = 0; dx < 3; ++dx) {
                int z = col + dx - 1;
                if (z < 0 || z >= width) continue;
                float value = plane[y * width + z];
                for (int k = 0; k < 4; ++k)
                    gates[k] += value * weight[(((long)k * hidden + unit) * channels + ch) * 9 + dy * 3 + dx];
            }
        }
    }
    float i = 1.0f / (1.0f + expf(-gates[0]));
    float f = 1.0f / (1.0f + expf(-gates[1]));
    float o = 1.0f / (1.0f + expf(-gates[2]));
    float cell = f * c[at] + i * tanhf(gates[3]);
    c[at] = cell;
    h_new[at] = o * tanhf(cell);
}

torch::Tensor conv_lstm_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
    x = x.contiguous();
    int batch = x.size(0), steps = x.size(1), inputs = x.size(2), height = x.size(3), width = x.size(4);
    int hidden = weight.size(0) / 4;
    auto h = torch::zeros({batch, hidden, height, width}, x.options());
    auto c = torch::zeros_like(h);
    auto next = torch::empty_like(h);
    long total = h.numel();
    long frame = (long)inputs * height * width;
    for (int t = 0; t < steps; ++t) {
        conv_lstm_step<<<(total + 127) / 128, 128>>>(
            x.data_ptr<float>() + t * frame, steps * frame, h.data_ptr<float>(), weight.data_ptr<float>(),
            bias.data_ptr<float>(), c.data_ptr<float>(), next.data_ptr<float>(), inputs, hidden, height, width,
            total);
        std::swap(h, next);
    }
    return h;
}
"""
direct_module = load_inline(
    name="conv_lstm_steps_direct",
    cpp_sources="torch::Tensor conv_lstm_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias);",
    cuda_sources=source,
    functions=["conv_lstm_forward"],
)
'''

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def gated(gates: Tensor, c: Tensor) -> Tuple[Tensor, Tensor]:
    i, f, o, g = gates.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c
""")
'''

_INIT = """
    self.channels = channels
    self.hidden = hidden
    self.gates = nn.Conv2d(channels + hidden, 4 * hidden, kernel_size=3, padding=1)
    self.head = nn.Conv2d(hidden, 1, kernel_size=1)
"""

_SPLIT = """
    with torch.no_grad():
        self.register_buffer("frame_weight", self.gates.weight[:, :channels].contiguous())
        self.register_buffer("state_weight", self.gates.weight[:, channels:].contiguous())
"""

MODULE = Rewritten(
    name="conv_lstm_steps",
    sizes="""
        batch_size = 4
        steps = 6
        channels = 16
        hidden = 32
        height = 48
        width = 64
    """,
    arguments=("channels", "hidden"),
    takes="x",
    inputs="[torch.randn(batch_size, steps, channels, height, width)]",
    reference=Body(
        summary="A convolutional LSTM over frames that predicts one map from the last state.",
        init=_INIT,
        forward="""
            B, T, _, height, width = x.shape
            h = torch.zeros(B, self.hidden, height, width, device=x.device)
            c = torch.zeros(B, self.hidden, height, width, device=x.device)
            for t in range(T):
                combined = torch.cat([x[:, t], h], dim=1)
                i, f, o, g = torch.split(self.gates(combined), self.hidden, dim=1)
                i = torch.sigmoid(i)
                f = torch.sigmoid(f)
                o = torch.sigmoid(o)
                g = torch.tanh(g)
                c = f * c + i * g
                h = o * torch.tanh(c)
            return self.head(h)
        """,
    ),
    rewrites={
        "frames_convolved_first": Body(
            summary="Frames of all steps in one convolution; the first step has no state to convolve.",
            init=_INIT + _SPLIT,
            forward="""
                B, T = x.shape[:2]
                seen = F.conv2d(x.flatten(0, 1), self.frame_weight, self.gates.bias, padding=1)
                seen = seen.view(B, T, *seen.shape[1:])
                h = c = None
                for t in range(T):
                    gates = seen[:, t]
                    if h is not None:
                        gates = gates + F.conv2d(h, self.state_weight, padding=1)
                    i, f, o, g = gates.chunk(4, dim=1)
                    new = torch.sigmoid(i) * torch.tanh(g)
                    c = new if c is None else torch.addcmul(new, torch.sigmoid(f), c)
                    h = torch.sigmoid(o) * torch.tanh(c)
                return self.head(h)
            """,
        ),
        "first_step_apart": Body(
            summary="""A convolutional LSTM whose first step is simpler than the others.

    Before the first frame the state is zero: the convolution needs the channels of the frame only, and the forget
    gate has nothing to forget. All other steps are as usual.
    """,
            init=_INIT
            + """
    with torch.no_grad():
        keep = [0, 2, 3]
        weight = self.gates.weight.view(4, hidden, channels + hidden, 3, 3)[keep, :, :channels]
        self.register_buffer("start_weight", weight.reshape(3 * hidden, channels, 3, 3).contiguous())
        self.register_buffer("start_bias", self.gates.bias.view(4, hidden)[keep].reshape(-1).clone())
""",
            methods='''
                def _start(self, frame):
                    """States after the first frame."""
                    i, o, g = F.conv2d(frame, self.start_weight, self.start_bias, padding=1).chunk(3, dim=1)
                    c = torch.sigmoid(i) * torch.tanh(g)
                    return torch.sigmoid(o) * torch.tanh(c), c

                def _step(self, frame, h, c):
                    """States after a further frame."""
                    i, f, o, g = self.gates(torch.cat([frame, h], dim=1)).chunk(4, dim=1)
                    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                    return torch.sigmoid(o) * torch.tanh(c), c
            ''',
            forward="""
                h, c = self._start(x[:, 0])
                for t in range(1, x.shape[1]):
                    h, c = self._step(x[:, t], h, c)
                return self.head(h)
            """,
        ),
        "gates_in_place": Body(
            forward="""
                B, T, _, height, width = x.shape
                n = self.hidden
                both = x.new_zeros(B, self.channels + n, height, width)
                c = x.new_zeros(B, n, height, width)
                for t in range(T):
                    both[:, : self.channels] = x[:, t]
                    gates = self.gates(both)
                    gates[:, : 3 * n].sigmoid_()
                    gates[:, 3 * n :].tanh_()
                    c.mul_(gates[:, n : 2 * n]).addcmul_(gates[:, :n], gates[:, 3 * n :])
                    torch.mul(gates[:, 2 * n : 3 * n], c.tanh(), out=both[:, self.channels :])
                return self.head(both[:, self.channels :])
            """
        ),
        "scripted_tail": Body(
            before=_SCRIPTED,
            forward="""
                h = x.new_zeros(x.shape[0], self.hidden, x.shape[3], x.shape[4])
                c = torch.zeros_like(h)
                for frame in x.unbind(1):
                    h, c = scripted.gated(self.gates(torch.cat((frame, h), 1)), c)
                return self.head(h)
            """,
        ),
        "unfolded_product": Body(
            summary="The convolution of frames and states as a matrix product over unfolded patches.",
            forward="""
                B, T, _, height, width = x.shape
                weight = self.gates.weight.flatten(1)
                bias = self.gates.bias.view(-1, 1)
                h = torch.zeros(B, self.hidden, height, width, device=x.device)
                c = torch.zeros_like(h)
                for t in range(T):
                    patches = F.unfold(torch.cat([x[:, t], h], dim=1), kernel_size=3, padding=1)
                    gates = (weight @ patches + bias).view(B, 4, self.hidden, height, width)
                    i, f, o = torch.sigmoid(gates[:, :3]).unbind(1)
                    c = f * c + i * torch.tanh(gates[:, 3])
                    h = o * torch.tanh(c)
                y = torch.matmul(self.head.weight.view(1, -1), h.flatten(2)) + self.head.bias
                return y.view(B, 1, height, width)
            """,
        ),
        "convolution_per_gate": Body(
            summary="A convolution for each gate, so that no gate needs to be cut out of a larger tensor.",
            forward="""
                B, T, _, height, width = x.shape
                weights = [w.contiguous() for w in self.gates.weight.chunk(4)]
                biases = self.gates.bias.chunk(4)
                h = torch.zeros(B, self.hidden, height, width, device=x.device)
                c = torch.zeros_like(h)
                for t in range(T):
                    both = torch.cat([x[:, t], h], dim=1).contiguous()
                    i = torch.sigmoid_(F.conv2d(both, weights[0], biases[0], padding=1))
                    f = torch.sigmoid_(F.conv2d(both, weights[1], biases[1], padding=1))
                    o = torch.sigmoid_(F.conv2d(both, weights[2], biases[2], padding=1))
                    g = torch.tanh_(F.conv2d(both, weights[3], biases[3], padding=1))
                    c = c.mul_(f).add_(i.mul_(g))
                    h = o.mul_(torch.tanh(c))
                return self.head(h)
            """,
        ),
        "triton_gates": Body(
            before=_GATES_KERNEL,
            forward="""
                B, T, _, height, width = x.shape
                plane = self.hidden * height * width
                h = torch.zeros(B, self.hidden, height, width, device=x.device)
                c = torch.zeros_like(h)
                grid = (triton.cdiv(B * plane, 512),)
                for t in range(T):
                    gates = self.gates(torch.cat([x[:, t], h], dim=1)).contiguous()
                    conv_gates_kernel[grid](gates, c, h, plane, B * plane, BLOCK=512)
                return self.head(h)
            """,
        ),
        "cuda_direct_step": Body(
            before=_CUDA,
            forward="""
                h = direct_module.conv_lstm_forward(x, self.gates.weight, self.gates.bias)
                return self.head(h)
            """,
        ),
    },
    carries_on="frames_convolved_first",
)
