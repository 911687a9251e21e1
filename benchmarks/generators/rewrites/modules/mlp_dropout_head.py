"""A small multilayer perceptron with dropout that does nothing in evaluation, and a softmax over few classes."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TRITON = """
import triton
import triton.language as tl


@triton.jit
def dense_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, rows, fan_in, fan_out, RELU: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, fan_in, BLOCK_K):
        inner = start + k
        a = tl.load(x_ptr + m[:, None] * fan_in + inner[None, :],
                    mask=(m[:, None] < rows) & (inner[None, :] < fan_in), other=0.0)
        b = tl.load(weight_ptr + n[None, :] * fan_in + inner[:, None],
                    mask=(n[None, :] < fan_out) & (inner[:, None] < fan_in), other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    acc += tl.load(bias_ptr + n, mask=n < fan_out, other=0.0)[None, :]
    if RELU:
        acc = tl.maximum(acc, 0.0)
    tl.store(out_ptr + m[:, None] * fan_out + n[None, :], acc,
             mask=(m[:, None] < rows) & (n[None, :] < fan_out))


def dense(x, weight, bias, relu):
    rows, fan_in = x.shape
    fan_out = weight.shape[0]
    out = torch.empty(rows, fan_out, device=x.device)
    grid = (triton.cdiv(rows, 16), triton.cdiv(fan_out, 32))
    dense_kernel[grid](x, weight, bias, out, rows, fan_in, fan_out, relu, BLOCK_M=16, BLOCK_N=32, BLOCK_K=64)
    return out
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One block per row of the batch; activations live in shared memory. Weights come transposed: (in, out).
__device__ void layer(const float* in, const float* __restrict__ weight, const float* __restrict__ bias, float* out,
                      int fan_in, int fan_out, bool relu) {
    for (int j = threadIdx.x; j < fan_out; j += blockDim.x) {
        float sum = bias[j];
        #pragma unroll 8
        for (int i = 0; i < fan_in; ++i) sum = fmaf(in[i], weight[(long)i * fan_out + j], sum);
        out[j] = relu ? fmaxf(sum, 0.0f) : sum;
    }
    __syncthreads();
}

__global__ void perceptron(const float* __restrict__ x, const float* __restrict__ w1, const float* __restrict__ b1,
                           const float* __restrict__ w2, const float* __restrict__ b2,
                           const float* __restrict__ w3, const float* __restrict__ b3, float* __restrict__ out,
                           int features, int hidden, int classes) {
    extern __shared__ float shared[];
    float* row = shared;
    float* first = row + features;
    float* second = first + hidden;
    float* logits = second + hidden;
    long n = blockIdx.x;
    for (int i = threadIdx.x; i < features; i += blockDim.x) row[i] = x[n * features + i];
    __syncthreads();
    layer(row, w1, b1, first, features, hidden, true);
    layer(first, w2, b2, second, hidden, hidden, true);
    layer(second, w3, b3, logits, hidden, classes, false);
    if (threadIdx.x < 32) {
        float top = -INFINITY;
        for (int j = threadIdx.x; j < classes; j += 32) top = fmaxf(top, logits[j]);
        for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, o));
        float sum = 0.0f;
        for (int j = threadIdx.x; j < classes; j += 32) sum += expf(logits[j] - top);
        for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
        for (int j = threadIdx.x; j < classes; j += 32) out[n * classes + j] = expf(logits[j] - top) / sum;
    }
}

torch::Tensor perceptron_forward(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, torch::Tensor w2,
                                 torch::Tensor b2, torch::Tensor w3, torch::Tensor b3) {
    int rows = x.size(0), features = x.size(1), hidden = w1.size(1), classes = w3.size(1);
    auto out = torch::empty({rows, classes}, x.options());
    size_t shared = (features + 2 * hidden + classes) * sizeof(float);
    perceptron<<<rows, 256, shared>>>(
        x.data_ptr<float>(), w1.data_ptr<float>(), b1.data_ptr<float>(), w2.data_ptr<float>(),
        b2.data_ptr<float>(), w3.data_ptr<float>(), b3.data_ptr<float>(), out.data_ptr<float>(),
        features, hidden, classes);
    return out;
}
"""
perceptron_module = load_inline(
    name="mlp_dropout_head_whole",
    cpp_sources="torch::Tensor perceptron_forward(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, "
    "torch::Tensor w2, torch::Tensor b2, torch::Tensor w3, torch::Tensor b3);",
    cuda_sources=source,
    functions=["perceptron_forward"],
)
'''

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def run(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, w3: Tensor, b3: Tensor) -> Tensor:
    x = torch.relu(torch.addmm(b1, x, w1))
    x = torch.relu(torch.addmm(b2, x, w2))
    return torch.softmax(torch.addmm(b3, x, w3), dim=1)
""")
'''

_INIT = """
    self.first = nn.Linear(features, hidden)
    self.second = nn.Linear(hidden, hidden)
    self.head = nn.Linear(hidden, classes)
    self.dropout = nn.Dropout(0.3)
"""

_TRANSPOSED = """
    with torch.no_grad():
        self.register_buffer("first_t", self.first.weight.t().contiguous())
        self.register_buffer("second_t", self.second.weight.t().contiguous())
        self.register_buffer("head_t", self.head.weight.t().contiguous())
"""

_CUDA_LAYERS = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void linear_kernel(const float* x, const float* weight, const float* bias, float* y, int rows, int fan_in,
                              int fan_out, bool relu) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= rows * fan_out) return;
    int row = idx / fan_out;
    int col = idx % fan_out;
    float sum = bias[col];
    for (int k = 0; k < fan_in; k++) {
        sum += x[row * fan_in + k] * weight[col * fan_in + k];
    }
    y[idx] = relu ? fmaxf(sum, 0.0f) : sum;
}

__global__ void softmax_kernel(float* y, int rows, int classes) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float* p = y + row * classes;
    float highest = p[0];
    for (int c = 1; c < classes; c++) highest = fmaxf(highest, p[c]);
    float sum = 0.0f;
    for (int c = 0; c < classes; c++) {
        p[c] = expf(p[c] - highest);
        sum += p[c];
    }
    for (int c = 0; c < classes; c++) p[c] /= sum;
}

torch::Tensor linear(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, bool relu) {
    int rows = x.size(0);
    int fan_in = x.size(1);
    int fan_out = weight.size(0);
    auto y = torch::empty({rows, fan_out}, x.options());
    int threads = 256;
    int blocks = (rows * fan_out + threads - 1) / threads;
    linear_kernel<<<blocks, threads>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
                                       y.data_ptr<float>(), rows, fan_in, fan_out, relu);
    return y;
}

torch::Tensor mlp_forward(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, torch::Tensor w2, torch::Tensor b2,
                          torch::Tensor w3, torch::Tensor b3) {
    auto h = linear(x, w1, b1, true);
    h = linear(h, w2, b2, true);
    auto y = linear(h, w3, b3, false);
    int rows = y.size(0);
    softmax_kernel<<<(rows + 63) / 64, 64>>>(y.data_ptr<float>(), rows, (int)y.size(1));
    return y;
}
"""

mlp_cuda = load_inline(
    name="mlp_dropout_head_layers",
    cpp_sources="torch::Tensor mlp_forward(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, torch::Tensor w2, "
    "torch::Tensor b2, torch::Tensor w3, torch::Tensor b3);",
    cuda_sources=source,
    functions=["mlp_forward"],
    verbose=False,
)
'''

_CUDA_CLASSIFIER = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

// A warp per row: lane c ends up with the logit of class c, so at most 32 classes.
__global__ void classifier_softmax(const float* __restrict__ h, const float* __restrict__ weight,
                                   const float* __restrict__ bias, float* __restrict__ out, int rows, int hidden,
                                   int classes) {
    const int lane = threadIdx.x % 32;
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    const float* in = h + (long)row * hidden;
    float logit = -INFINITY;
    for (int c = 0; c < classes; ++c) {
        float sum = 0.0f;
        for (int k = lane; k < hidden; k += 32) sum = fmaf(in[k], weight[c * hidden + k], sum);
        #pragma unroll
        for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (lane == c) logit = sum + bias[c];
    }
    float highest = logit;
    #pragma unroll
    for (int o = 16; o > 0; o >>= 1) highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, o));
    float e = lane < classes ? __expf(logit - highest) : 0.0f;
    float total = e;
    #pragma unroll
    for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(0xffffffffu, total, o);
    if (lane < classes) out[(long)row * classes + lane] = e / total;
}

torch::Tensor classifier_softmax_forward(torch::Tensor h, torch::Tensor weight, torch::Tensor bias) {
    TORCH_CHECK(h.is_cuda() && h.is_contiguous(), "h must be a contiguous CUDA tensor");
    TORCH_CHECK(weight.size(0) <= 32, "at most 32 classes");
    const int rows = h.size(0), hidden = h.size(1), classes = weight.size(0);
    auto out = torch::empty({rows, classes}, h.options());
    const int warps = 4;
    classifier_softmax<<<(rows + warps - 1) / warps, warps * 32, 0, at::cuda::getCurrentCUDAStream()>>>(
        h.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), rows, hidden,
        classes);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
classifier = load_inline(
    name="mlp_dropout_head_classifier",
    cpp_sources="torch::Tensor classifier_softmax_forward(torch::Tensor h, torch::Tensor weight, torch::Tensor bias);",
    cuda_sources=source,
    functions=["classifier_softmax_forward"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)
'''

MODULE = Rewritten(
    name="mlp_dropout_head",
    sizes="""
        batch_size = 64
        features = 128
        hidden = 256
        classes = 10
    """,
    arguments=("features", "hidden", "classes"),
    takes="x",
    inputs="[torch.randn(batch_size, features)]",
    reference=Body(
        summary="Two hidden layers with ReLU and dropout, and class probabilities.",
        init=_INIT,
        forward="""
            x = self.dropout(torch.relu(self.first(x)))
            x = self.dropout(torch.relu(self.second(x)))
            return torch.softmax(self.head(x), dim=1)
        """,
    ),
    rewrites={
        "without_dropout": Body(
            summary="""The network as it is in evaluation, with the training path kept for completeness.

    Dropout is the identity in evaluation, so that three calls of F.linear, two of ReLU in place and a softmax
    remain. Inputs of more than two dimensions are flattened and restored.
    """,
            methods='''
                def _train_forward(self, x):
                    """With dropout."""
                    x = self.dropout(torch.relu(self.first(x)))
                    x = self.dropout(torch.relu(self.second(x)))
                    return torch.softmax(self.head(x), dim=-1)

                def _eval_forward(self, x):
                    """Without dropout, activations in place."""
                    x = F.relu_(F.linear(x, self.first.weight, self.first.bias))
                    x = F.relu_(F.linear(x, self.second.weight, self.second.bias))
                    return torch.softmax(F.linear(x, self.head.weight, self.head.bias), dim=-1)
            ''',
            forward="""
                if self.training:
                    return self._train_forward(x)
                if x.dim() == 2:
                    return self._eval_forward(x)
                leading = x.shape[:-1]
                return self._eval_forward(x.reshape(-1, x.shape[-1])).view(*leading, -1)
            """,
        ),
        "relu_epilogue": Body(
            summary="The ReLUs ride in the epilogues of the matrix products; dropout is the identity here.",
            forward="""
                x = torch._addmm_activation(self.first.bias, x, self.first.weight.t())
                x = torch._addmm_activation(self.second.bias, x, self.second.weight.t())
                return torch.softmax(torch.addmm(self.head.bias, x, self.head.weight.t()), dim=1)
            """,
        ),
        "preallocated_buffers": Body(
            summary="""The network with its activations in buffers that are kept between calls.

    Buffers are made when the first batch comes, and again when the batch size or the device changes.
    """,
            init=_INIT
            + _TRANSPOSED
            + """
    self._buffers_key = None
    self._workspace = None
""",
            methods='''
                def _workspace_for(self, x):
                    """Activations of both hidden layers, logits and probabilities."""
                    key = (x.shape[0], x.device, x.dtype)
                    if self._buffers_key != key:
                        hidden, classes = self.first.out_features, self.head.out_features
                        self._workspace = tuple(
                            torch.empty(x.shape[0], width, device=x.device, dtype=x.dtype)
                            for width in (hidden, hidden, classes, classes)
                        )
                        self._buffers_key = key
                    return self._workspace
            ''',
            forward="""
                if x.dim() != 2 or x.shape[1] != self.first.in_features:
                    raise ValueError(f"expected (batch, {self.first.in_features}), got {tuple(x.shape)}")
                first, second, logits, out = self._workspace_for(x)
                torch.addmm(self.first.bias, x, self.first_t, out=first)
                first.clamp_(min=0.0)
                torch.addmm(self.second.bias, first, self.second_t, out=second)
                second.clamp_(min=0.0)
                torch.addmm(self.head.bias, second, self.head_t, out=logits)
                return torch.softmax(logits, dim=1, out=out)
            """,
        ),
        "scripted": Body(
            before=_SCRIPTED,
            init=_INIT + _TRANSPOSED,
            forward="""
                return scripted.run(x, self.first_t, self.first.bias, self.second_t, self.second.bias, self.head_t,
                                    self.head.bias)
            """,
        ),
        "separate_bias_and_softmax": Body(
            summary="Plain products on transposed weights; the softmax is written out.",
            init=_INIT + _TRANSPOSED,
            forward="""
                x = torch.mm(x, self.first_t)
                x.add_(self.first.bias).clamp_(min=0)
                x = torch.mm(x, self.second_t)
                x.add_(self.second.bias).clamp_(min=0)
                x = torch.mm(x, self.head_t).add_(self.head.bias)
                x = x.sub_(x.amax(dim=1, keepdim=True)).exp_()
                return x.div_(x.sum(dim=1, keepdim=True))
            """,
        ),
        "triton_layers": Body(
            before=_TRITON,
            forward="""
                x = dense(x.contiguous(), self.first.weight, self.first.bias, True)
                x = dense(x, self.second.weight, self.second.bias, True)
                return dense(x, self.head.weight, self.head.bias, False).softmax(dim=1)
            """,
        ),
        "cuda_whole_network": Body(
            before=_CUDA,
            init=_INIT + _TRANSPOSED,
            forward="""
                return perceptron_module.perceptron_forward(
                    x.contiguous(), self.first_t, self.first.bias, self.second_t, self.second.bias, self.head_t,
                    self.head.bias
                )
            """,
        ),
        "cuda_thread_per_unit": Body(
            before=_CUDA_LAYERS,
            forward="""
                return mlp_cuda.mlp_forward(
                    x, self.first.weight, self.first.bias, self.second.weight, self.second.bias,
                    self.head.weight, self.head.bias,
                )
            """,
        ),
        "cuda_classifier": Body(
            summary="The hidden layers are the library's; the last layer and the softmax are one kernel.",
            before=_CUDA_CLASSIFIER,
            methods='''
                def _classify(self, h):
                    """Class probabilities from hidden features."""
                    if h.is_cuda and h.dtype == torch.float32 and self.head.out_features <= 32:
                        return classifier.classifier_softmax_forward(h.contiguous(), self.head.weight, self.head.bias)
                    return torch.softmax(self.head(h), dim=1)
            ''',
            forward="""
                h = self.dropout(F.relu_(self.first(x)))
                h = self.dropout(F.relu_(self.second(h)))
                return self._classify(h)
            """,
        ),
    },
    carries_on="relu_epilogue",
)
