"""A soft mixture of two small experts with a learned gate."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_BLEND_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def blend_kernel(logits_ptr, first_ptr, second_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    # the softmax of two logits is the logistic function of their difference
    gate = tl.sigmoid(tl.load(logits_ptr + 2 * row) - tl.load(logits_ptr + 2 * row + 1))
    first = tl.load(first_ptr + row * width + cols, mask=keep, other=0.0)
    second = tl.load(second_ptr + row * width + cols, mask=keep, other=0.0)
    tl.store(out_ptr + row * width + cols, second + gate * (first - second), mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A block per row of the batch does everything: gate, both hidden layers, both outputs, mixture.
// Shared memory: the row (features), the scaled hidden units (2 * hidden), partial outputs (blockDim.x).
__global__ void mixture(const float* __restrict__ x, const float* __restrict__ gate_weight, float gate_bias,
                        const float* __restrict__ in_weight, const float* __restrict__ in_bias,
                        const float* __restrict__ out_weight, const float* __restrict__ out_bias,
                        float* __restrict__ out, int features, int hidden, int width) {
    extern __shared__ float shared[];
    float* row = shared;
    float* units = row + features;
    __shared__ float gate;
    long n = blockIdx.x;
    int both = 2 * hidden;
    for (int i = threadIdx.x; i < features; i += blockDim.x) row[i] = x[n * features + i];
    __syncthreads();
    if (threadIdx.x < 32) {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < features; i += 32) sum += row[i] * gate_weight[i];
        for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffff, sum, offset);
        if (threadIdx.x == 0) gate = 1.0f / (1.0f + expf(-(sum + gate_bias)));
    }
    __syncthreads();
    float left = gate;
    float right = 1.0f - left;
    for (int j = threadIdx.x; j < both; j += blockDim.x) {
        float sum = in_bias[j];
        for (int i = 0; i < features; ++i) sum += row[i] * in_weight[i * both + j];
        units[j] = fmaxf(sum, 0.0f) * (j < hidden ? left : right);
    }
    __syncthreads();
    for (int o = threadIdx.x; o < width; o += blockDim.x) {
        float sum = left * out_bias[o] + right * out_bias[width + o];
        for (int j = 0; j < both; ++j) sum += units[j] * out_weight[j * width + o];
        out[n * width + o] = sum;
    }
}

torch::Tensor mixture_forward(torch::Tensor x, torch::Tensor gate_weight, double gate_bias, torch::Tensor in_weight,
                              torch::Tensor in_bias, torch::Tensor out_weight, torch::Tensor out_bias) {
    int n = x.size(0), features = x.size(1), hidden = in_weight.size(1) / 2, width = out_weight.size(1);
    auto out = torch::empty({n, width}, x.options());
    size_t shared = (features + 2 * hidden) * sizeof(float);
    mixture<<<n, 256, shared>>>(x.data_ptr<float>(), gate_weight.data_ptr<float>(), (float)gate_bias,
                                in_weight.data_ptr<float>(), in_bias.data_ptr<float>(),
                                out_weight.data_ptr<float>(), out_bias.data_ptr<float>(), out.data_ptr<float>(),
                                features, hidden, width);
    return out;
}
"""
mixture_module = load_inline(
    name="two_expert_mixture_whole",
    cpp_sources="torch::Tensor mixture_forward(torch::Tensor x, torch::Tensor gate_weight, double gate_bias, "
    "torch::Tensor in_weight, torch::Tensor in_bias, torch::Tensor out_weight, torch::Tensor out_bias);",
    cuda_sources=source,
    functions=["mixture_forward"],
)
'''

_INIT = """
    self.gate = nn.Linear(features, 2)
    self.first = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, width))
    self.second = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, width))
"""

_JOINED = """
    with torch.no_grad():
        self.register_buffer("in_weight", torch.cat([self.first[0].weight, self.second[0].weight]))
        self.register_buffer("in_bias", torch.cat([self.first[0].bias, self.second[0].bias]))
        self.register_buffer("out_weight", torch.cat([self.first[2].weight, self.second[2].weight], dim=1))
        self.register_buffer("out_bias", torch.stack([self.first[2].bias, self.second[2].bias]))
"""

_CUDA_UNITS = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// Hidden units of both experts, (rows, 2, hidden)
__global__ void hidden_kernel(const float* x, const float* wa, const float* ba, const float* wb, const float* bb,
                              float* h, int rows, int features, int hidden) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= rows * 2 * hidden) return;
    int j = idx % hidden;
    int expert = (idx / hidden) % 2;
    int row = idx / (2 * hidden);
    const float* w = expert == 0 ? wa : wb;
    float sum = expert == 0 ? ba[j] : bb[j];
    for (int k = 0; k < features; k++) sum += x[row * features + k] * w[j * features + k];
    h[idx] = fmaxf(sum, 0.0f);
}

// Second layers and the mixture; every thread computes the gates of its row again
__global__ void mixture_kernel(const float* x, const float* h, const float* wg, const float* bg, const float* wa,
                               const float* ba, const float* wb, const float* bb, float* out, int rows, int features,
                               int hidden, int width) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= rows * width) return;
    int row = idx / width;
    int o = idx % width;
    float g0 = bg[0];
    float g1 = bg[1];
    for (int k = 0; k < features; k++) {
        float v = x[row * features + k];
        g0 += v * wg[k];
        g1 += v * wg[features + k];
    }
    float highest = fmaxf(g0, g1);
    float e0 = expf(g0 - highest);
    float e1 = expf(g1 - highest);
    float first = ba[o];
    float second = bb[o];
    for (int j = 0; j < hidden; j++) {
        first += h[row * 2 * hidden + j] * wa[o * hidden + j];
        second += h[row * 2 * hidden + hidden + j] * wb[o * hidden + j];
    }
    out[idx] = (e0 * first + e1 * second) / (e0 + e1);
}

torch::Tensor mixture_forward(torch::Tensor x, torch::Tensor wg, torch::Tensor bg, torch::Tensor wa1,
                              torch::Tensor ba1, torch::Tensor wa2, torch::Tensor ba2, torch::Tensor wb1,
                              torch::Tensor bb1, torch::Tensor wb2, torch::Tensor bb2) {
    int rows = x.size(0), features = x.size(1), hidden = wa1.size(0), width = wa2.size(0);
    auto h = torch::empty({rows, 2, hidden}, x.options());
    auto out = torch::empty({rows, width}, x.options());
    int threads = 128;
    hidden_kernel<<<(rows * 2 * hidden + threads - 1) / threads, threads>>>(
        x.data_ptr<float>(), wa1.data_ptr<float>(), ba1.data_ptr<float>(), wb1.data_ptr<float>(),
        bb1.data_ptr<float>(), h.data_ptr<float>(), rows, features, hidden);
    mixture_kernel<<<(rows * width + threads - 1) / threads, threads>>>(
        x.data_ptr<float>(), h.data_ptr<float>(), wg.data_ptr<float>(), bg.data_ptr<float>(), wa2.data_ptr<float>(),
        ba2.data_ptr<float>(), wb2.data_ptr<float>(), bb2.data_ptr<float>(), out.data_ptr<float>(), rows, features,
        hidden, width);
    return out;
}
"""

units_ext = load_inline(
    name="two_expert_mixture_units",
    cpp_sources="torch::Tensor mixture_forward(torch::Tensor x, torch::Tensor wg, torch::Tensor bg, torch::Tensor wa1, "
    "torch::Tensor ba1, torch::Tensor wa2, torch::Tensor ba2, torch::Tensor wb1, torch::Tensor bb1, "
    "torch::Tensor wb2, torch::Tensor bb2);",
    cuda_sources=source,
    functions=["mixture_forward"],
    verbose=False,
)
'''

_CUDA_GATED_BLEND = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

// A block per row: the first warp makes the gate, a sigmoid of the difference of both logits; then all blend.
__global__ void gated_blend(const float* __restrict__ x, const float* __restrict__ weight,
                            const float* __restrict__ bias, const float* __restrict__ first,
                            const float* __restrict__ second, float* __restrict__ out, int features, int width) {
    __shared__ float gate;
    const int64_t row = blockIdx.x;
    if (threadIdx.x < 32) {
        float difference = 0.0f;
        for (int k = threadIdx.x; k < features; k += 32)
            difference = fmaf(x[row * features + k], weight[k] - weight[features + k], difference);
        #pragma unroll
        for (int o = 16; o > 0; o >>= 1) difference += __shfl_xor_sync(0xffffffffu, difference, o);
        if (threadIdx.x == 0) gate = 1.0f / (1.0f + __expf(-(difference + bias[0] - bias[1])));
    }
    __syncthreads();
    const float g = gate;
    for (int o = threadIdx.x; o < width; o += blockDim.x) {
        const float b = second[row * width + o];
        out[row * width + o] = fmaf(g, first[row * width + o] - b, b);
    }
}

torch::Tensor gated_blend_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor first,
                               torch::Tensor second) {
    TORCH_CHECK(x.is_cuda() && first.is_cuda() && second.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(x.is_contiguous() && first.is_contiguous() && second.is_contiguous(), "dense tensors expected");
    TORCH_CHECK(weight.size(0) == 2, "two experts expected");
    auto out = torch::empty_like(first);
    gated_blend<<<(int)x.size(0), 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), first.data_ptr<float>(),
        second.data_ptr<float>(), out.data_ptr<float>(), (int)x.size(1), (int)first.size(1));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

blend_ext = load_inline(
    name="two_expert_mixture_gated_blend",
    cpp_sources="torch::Tensor gated_blend_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, "
    "torch::Tensor first, torch::Tensor second);",
    cuda_sources=cuda_source,
    functions=["gated_blend_cuda"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="two_expert_mixture",
    sizes="""
        batch_size = 64
        features = 128
        hidden = 256
        width = 128
    """,
    arguments=("features", "hidden", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, features)]",
    reference=Body(
        summary="The outputs of two experts, weighted by a softmax gate.",
        init=_INIT,
        forward="""
            gates = F.softmax(self.gate(x), dim=-1)
            first = self.first(x)
            second = self.second(x)
            stacked = torch.stack([first, second], dim=1)
            return (gates.unsqueeze(-1) * stacked).sum(dim=1)
        """,
    ),
    rewrites={
        "sigmoid_lerp": Body(
            forward="""
                logits = self.gate(x)
                share = torch.sigmoid(logits[:, :1] - logits[:, 1:])
                return torch.lerp(self.second(x), self.first(x), share)
            """
        ),
        "joined_experts": Body(
            summary="Both experts side by side: gates scale the hidden units, and one product sums the experts.",
            init=_INIT + _JOINED,
            forward="""
                gates = self.gate(x).softmax(dim=-1)
                h = F.relu(F.linear(x, self.in_weight, self.in_bias))
                h = (h.view(x.shape[0], 2, -1) * gates.unsqueeze(-1)).flatten(1)
                return torch.addmm(gates @ self.out_bias, h, self.out_weight.t())
            """,
        ),
        "everything_joined": Body(
            summary="Gate, hidden layers and output biases all ride in two products.",
            init=_INIT
            + """
    self.hidden = hidden
    with torch.no_grad():
        gate_row = self.gate.weight[:1] - self.gate.weight[1:]
        gate_bias = self.gate.bias[:1] - self.gate.bias[1:]
        # Columns: both hidden layers, the gate's difference of logits, and padding to a multiple of eight.
        padding = torch.zeros(7, features)
        self.register_buffer(
            "wide_weight",
            torch.cat([self.first[0].weight, self.second[0].weight, gate_row, padding]).t().contiguous(),
        )
        self.register_buffer(
            "wide_bias", torch.cat([self.first[0].bias, self.second[0].bias, gate_bias, torch.zeros(7)])
        )
        self.register_buffer("first_out", self.first[2].weight.t().contiguous())
        self.register_buffer("second_out", self.second[2].weight.t().contiguous())
""",
            forward="""
                wide = torch.addmm(self.wide_bias, x, self.wide_weight)
                share = torch.sigmoid(wide[:, 2 * self.hidden : 2 * self.hidden + 1])
                h = F.relu(wide[:, : 2 * self.hidden], inplace=True)
                first = torch.addmm(self.first[2].bias, h[:, : self.hidden], self.first_out)
                second = torch.addmm(self.second[2].bias, h[:, self.hidden :], self.second_out)
                return second.lerp_(first, share)
            """,
        ),
        "batched_experts": Body(
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("w1", torch.stack([self.first[0].weight.t(), self.second[0].weight.t()]))
        self.register_buffer("b1", torch.stack([self.first[0].bias, self.second[0].bias])[:, None])
        self.register_buffer("w2", torch.stack([self.first[2].weight.t(), self.second[2].weight.t()]))
        self.register_buffer("b2", torch.stack([self.first[2].bias, self.second[2].bias])[:, None])
""",
            forward="""
                gates = self.gate(x).softmax(-1)
                h = torch.baddbmm(self.b1, x.expand(2, -1, -1), self.w1).relu_()
                y = torch.baddbmm(self.b2, h, self.w2)
                return torch.einsum("ne,enw->nw", gates, y)
            """,
        ),
        "functional_in_place": Body(
            forward="""
                g = F.linear(x, self.gate.weight, self.gate.bias).softmax(dim=1)
                h = F.relu(F.linear(x, self.first[0].weight, self.first[0].bias), inplace=True)
                y = F.linear(h, self.first[2].weight, self.first[2].bias).mul_(g[:, 0:1])
                h = F.relu(F.linear(x, self.second[0].weight, self.second[0].bias), inplace=True)
                return y.addcmul_(F.linear(h, self.second[2].weight, self.second[2].bias), g[:, 1:2])
            """
        ),
        "experts_where_needed": Body(
            summary="Evaluates an expert only on the rows where its gate is not negligible.",
            init=_INIT
            + """
    self.threshold = 1e-7
""",
            forward="""
                gates = torch.softmax(self.gate(x), dim=-1)
                out = torch.zeros(x.shape[0], self.first[2].out_features, device=x.device, dtype=x.dtype)
                for index, expert in enumerate((self.first, self.second)):
                    self.add_expert(out, x, gates[:, index], expert)
                return out
            """,
            methods="""
                def add_expert(self, out, x, share, expert):
                    rows = torch.nonzero(share > self.threshold).squeeze(1)
                    if rows.numel() == 0:
                        return
                    y = expert(x.index_select(0, rows))
                    out.index_add_(0, rows, y * share.index_select(0, rows).unsqueeze(1))
            """,
        ),
        "triton_blend": Body(
            before=_BLEND_KERNEL,
            forward="""
                logits = self.gate(x)
                first, second = self.first(x), self.second(x)
                out = torch.empty_like(first)
                width = out.shape[1]
                blend_kernel[(out.shape[0],)](
                    logits, first, second, out, width, BLOCK=triton.next_power_of_2(width), num_warps=1
                )
                return out
            """,
        ),
        "cuda_whole": Body(
            before=_CUDA,
            init=_INIT
            + _JOINED
            + """
    with torch.no_grad():
        # Transposed, so that neighbouring threads read neighbouring weights.
        self.register_buffer("in_columns", self.in_weight.t().contiguous())
        self.register_buffer("out_columns", self.out_weight.t().contiguous())
        self.register_buffer("gate_row", self.gate.weight[0] - self.gate.weight[1])
        self.gate_shift = float(self.gate.bias[0] - self.gate.bias[1])
""",
            forward="""
                return mixture_module.mixture_forward(
                    x.contiguous(), self.gate_row, self.gate_shift,
                    self.in_columns, self.in_bias, self.out_columns, self.out_bias,
                )
            """,
        ),
        "cuda_thread_per_unit": Body(
            before=_CUDA_UNITS,
            init=_INIT,
            forward="""
                a, b = self.first, self.second
                return units_ext.mixture_forward(
                    x, self.gate.weight, self.gate.bias, a[0].weight, a[0].bias, a[2].weight, a[2].bias,
                    b[0].weight, b[0].bias, b[2].weight, b[2].bias,
                )
            """,
        ),
        "cuda_gated_blend": Body(
            summary="""Two experts by the library; the gate and the mixture are one kernel.

    A softmax of two logits is a sigmoid of their difference, so that one dot product per row is enough.
    """,
            before=_CUDA_GATED_BLEND,
            init=_INIT,
            methods='''
                def _mix(self, x, first, second):
                    """Both outputs weighted by the gate."""
                    if x.is_cuda and x.dtype == torch.float32 and x.dim() == 2:
                        return blend_ext.gated_blend_cuda(
                            x.contiguous(), self.gate.weight, self.gate.bias, first.contiguous(), second.contiguous()
                        )
                    gates = F.softmax(self.gate(x), dim=-1)
                    return gates[..., :1] * first + gates[..., 1:] * second
            ''',
            forward="return self._mix(x, self.first(x), self.second(x))",
        ),
    },
    carries_on="joined_experts",
)
