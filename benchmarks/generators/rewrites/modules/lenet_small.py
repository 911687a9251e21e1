"""A LeNet on small grey images: two convolutions with pooling, three linear layers, log-softmax."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_HEAD_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def dense(x_ptr, weight_ptr, bias_ptr, row, n_in, n_out, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr):
    outs = tl.arange(0, BLOCK_OUT)
    acc = tl.load(bias_ptr + outs, mask=outs < n_out, other=0.0)
    for start in range(0, n_in, BLOCK_IN):
        ins = start + tl.arange(0, BLOCK_IN)
        x = tl.load(x_ptr + row * n_in + ins, mask=ins < n_in, other=0.0)
        keep = (outs[:, None] < n_out) & (ins[None, :] < n_in)
        w = tl.load(weight_ptr + outs[:, None] * n_in + ins[None, :], mask=keep, other=0.0)
        acc += tl.sum(w * x[None, :], axis=1)
    return acc


@triton.jit
def relu_layer_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, n_in, n_out, BLOCK_OUT: tl.constexpr):
    row = tl.program_id(0)
    y = dense(x_ptr, weight_ptr, bias_ptr, row, n_in, n_out, BLOCK_OUT, 32)
    outs = tl.arange(0, BLOCK_OUT)
    tl.store(out_ptr + row * n_out + outs, tl.maximum(y, 0.0), mask=outs < n_out)


@triton.jit
def class_layer_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, n_in, n_out, BLOCK_OUT: tl.constexpr):
    row = tl.program_id(0)
    y = dense(x_ptr, weight_ptr, bias_ptr, row, n_in, n_out, BLOCK_OUT, 32)
    outs = tl.arange(0, BLOCK_OUT)
    y = tl.where(outs < n_out, y, -float("inf"))
    top = tl.max(y, axis=0)
    total = tl.log(tl.sum(tl.exp(y - top), axis=0)) + top
    tl.store(out_ptr + row * n_out + outs, y - total, mask=outs < n_out)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// The whole network for one image in one block: all activations live in shared memory.
__device__ void conv_relu_pool(const float* in, const float* __restrict__ weight, const float* __restrict__ bias,
                               float* out, int c_in, int c_out, int side) {
    const int conv = side - 4, pooled = conv / 2;
    for (int i = threadIdx.x; i < c_out * pooled * pooled; i += blockDim.x) {
        int o = i / (pooled * pooled), r = (i / pooled) % pooled * 2, c = i % pooled * 2;
        float s00 = 0.0f, s01 = 0.0f, s10 = 0.0f, s11 = 0.0f;
        for (int k = 0; k < c_in; ++k)
            for (int dy = 0; dy < 5; ++dy)
                for (int dx = 0; dx < 5; ++dx) {
                    float w = __ldg(weight + ((o * c_in + k) * 5 + dy) * 5 + dx);
                    const float* at = in + (k * side + r + dy) * side + c + dx;
                    s00 += w * at[0];
                    s01 += w * at[1];
                    s10 += w * at[side];
                    s11 += w * at[side + 1];
                }
        float top = fmaxf(fmaxf(s00, s01), fmaxf(s10, s11)) + bias[o];
        out[i] = fmaxf(top, 0.0f);
    }
}

// A warp per output.
__device__ void dense(const float* in, const float* __restrict__ weight, const float* __restrict__ bias, float* out,
                      int n_in, int n_out, bool relu) {
    int lane = threadIdx.x % 32;
    for (int o = threadIdx.x / 32; o < n_out; o += blockDim.x / 32) {
        float sum = 0.0f;
        for (int k = lane; k < n_in; k += 32) sum += in[k] * __ldg(weight + o * n_in + k);
        for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffff, sum, offset);
        if (lane == 0) {
            sum += bias[o];
            out[o] = relu ? fmaxf(sum, 0.0f) : sum;
        }
    }
}

__global__ void lenet(const float* __restrict__ x, const float* w1, const float* b1, const float* w2,
                      const float* b2, const float* w3, const float* b3, const float* w4, const float* b4,
                      const float* w5, const float* b5, float* __restrict__ out, float mean, float inv_std) {
    __shared__ float image[28 * 28];
    __shared__ float first[6 * 12 * 12];
    __shared__ float second[16 * 4 * 4];
    __shared__ float third[120];
    __shared__ float fourth[84];
    __shared__ float logits[10];
    for (int i = threadIdx.x; i < 784; i += blockDim.x) image[i] = (x[blockIdx.x * 784 + i] - mean) * inv_std;
    __syncthreads();
    conv_relu_pool(image, w1, b1, first, 1, 6, 28);
    __syncthreads();
    conv_relu_pool(first, w2, b2, second, 6, 16, 12);
    __syncthreads();
    dense(second, w3, b3, third, 256, 120, true);
    __syncthreads();
    dense(third, w4, b4, fourth, 120, 84, true);
    __syncthreads();
    dense(fourth, w5, b5, logits, 84, 10, false);
    __syncthreads();
    if (threadIdx.x < 10) {
        float top = logits[0], total = 0.0f;
        for (int k = 1; k < 10; ++k) top = fmaxf(top, logits[k]);
        for (int k = 0; k < 10; ++k) total += expf(logits[k] - top);
        out[blockIdx.x * 10 + threadIdx.x] = logits[threadIdx.x] - top - logf(total);
    }
}

torch::Tensor lenet_forward(torch::Tensor x, std::vector<torch::Tensor> p, double mean, double std) {
    auto out = torch::empty({x.size(0), 10}, x.options());
    lenet<<<x.size(0), 256>>>(x.data_ptr<float>(), p[0].data_ptr<float>(), p[1].data_ptr<float>(),
                              p[2].data_ptr<float>(), p[3].data_ptr<float>(), p[4].data_ptr<float>(),
                              p[5].data_ptr<float>(), p[6].data_ptr<float>(), p[7].data_ptr<float>(),
                              p[8].data_ptr<float>(), p[9].data_ptr<float>(), out.data_ptr<float>(), (float)mean,
                              (float)(1.0 / std));
    return out;
}
"""
lenet_module = load_inline(
    name="lenet_small_one_block",
    cpp_sources="torch::Tensor lenet_forward(torch::Tensor x, std::vector<torch::Tensor> p, double mean, double std);",
    cuda_sources=source,
    functions=["lenet_forward"],
)
'''

_INIT = """
    self.mean = 0.1307
    self.std = 0.3081
    self.conv1 = nn.Conv2d(1, 6, 5)
    self.conv2 = nn.Conv2d(6, 16, 5)
    self.fc1 = nn.Linear(256, 120)
    self.fc2 = nn.Linear(120, 84)
    self.fc3 = nn.Linear(84, classes)
"""

_FOLDED = """
    with torch.no_grad():
        self.register_buffer("w1", self.conv1.weight / self.std)
        self.register_buffer("b1", self.conv1.bias - self.w1.sum(dim=(1, 2, 3)) * self.mean)
"""

MODULE = Rewritten(
    name="lenet_small",
    sizes="""
        batch_size = 16
        classes = 10
    """,
    arguments=("classes",),
    takes="x",
    inputs="[torch.rand(batch_size, 1, 28, 28)]",
    reference=Body(
        summary="A LeNet for digits.",
        init=_INIT,
        forward="""
            x = (x - self.mean) / self.std
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            x = x.flatten(1)
            x = F.relu(self.fc1(x))
            x = F.relu(self.fc2(x))
            return F.log_softmax(self.fc3(x), dim=1)
        """,
    ),
    rewrites={
        "input_norm_folded": Body(
            init=_INIT + _FOLDED,
            forward="""
                x = F.max_pool2d(F.conv2d(x, self.w1, self.b1), 2).relu_()
                x = F.max_pool2d(self.conv2(x), 2).relu_()
                x = self.fc1(x.flatten(1)).relu_()
                x = self.fc2(x).relu_()
                return F.log_softmax(self.fc3(x), dim=1)
            """,
        ),
        "pool_then_rectify": Body(
            forward="""
                x = x.sub(self.mean).div_(self.std)
                x = F.relu_(F.max_pool2d(self.conv1(x), 2))
                x = F.relu_(F.max_pool2d(self.conv2(x), 2))
                x = F.relu_(self.fc1(x.view(x.shape[0], -1)))
                x = F.relu_(self.fc2(x))
                return self.fc3(x).log_softmax(1)
            """
        ),
        "convolutions_by_unfold": Body(
            init=_INIT + _FOLDED,
            summary="Both convolutions as im2col and a matrix product.",
            methods="""
                @staticmethod
                def _conv(x, weight, bias):
                    side = x.shape[-1] - 4
                    columns = F.unfold(x, 5)
                    y = torch.matmul(weight.flatten(1), columns) + bias[:, None]
                    return y.view(x.shape[0], -1, side, side)
            """,
            forward="""
                x = F.max_pool2d(self._conv(x, self.w1, self.b1).relu_(), 2)
                x = F.max_pool2d(self._conv(x, self.conv2.weight, self.conv2.bias).relu_(), 2)
                x = torch.addmm(self.fc1.bias, x.flatten(1), self.fc1.weight.t()).relu_()
                x = torch.addmm(self.fc2.bias, x, self.fc2.weight.t()).relu_()
                x = torch.addmm(self.fc3.bias, x, self.fc3.weight.t())
                return F.log_softmax(x, dim=1)
            """,
        ),
        "pools_as_amax": Body(
            forward="""
                x = self.conv1((x - self.mean) * (1.0 / self.std))
                x = x.reshape(x.shape[0], 6, 12, 2, 12, 2).amax(dim=(3, 5)).relu_()
                x = self.conv2(x)
                x = x.reshape(x.shape[0], 16, 4, 2, 4, 2).amax(dim=(3, 5)).relu_()
                x = self.fc2(self.fc1(x.flatten(1)).relu_()).relu_()
                x = self.fc3(x)
                return x - x.logsumexp(dim=1, keepdim=True)
            """
        ),
        "checked_stages": Body(
            summary="""LeNet for digits, in stages.

    Inputs are checked and brought to the expected layout first. The folded first convolution is rebuilt
    if the module has moved to another device.
    """,
            init=_INIT
            + """
    self.stages = ("features", "classifier")
    self._folded = {}
""",
            methods='''
                def _first_layer(self, device):
                    """Weight and bias of the first convolution, with the input's normalisation inside."""
                    key = str(device)
                    if key not in self._folded:
                        weight = self.conv1.weight.detach() / self.std
                        bias = self.conv1.bias.detach() - weight.sum(dim=(1, 2, 3)) * self.mean
                        self._folded[key] = (weight.contiguous(), bias.contiguous())
                    return self._folded[key]

                def features(self, x):
                    """Everything up to the flattened map."""
                    weight, bias = self._first_layer(x.device)
                    x = F.conv2d(x, weight, bias)
                    x = torch.clamp_min_(x, 0.0)
                    x = F.max_pool2d(x, kernel_size=2, stride=2)
                    x = self.conv2(x)
                    x = torch.clamp_min_(x, 0.0)
                    x = F.max_pool2d(x, kernel_size=2, stride=2)
                    return torch.flatten(x, start_dim=1)

                def classifier(self, x):
                    """The three linear layers."""
                    for layer in (self.fc1, self.fc2):
                        x = torch.clamp_min_(layer(x), 0.0)
                    return torch.log_softmax(self.fc3(x), dim=-1)
            ''',
            forward="""
                if x.dim() == 3:
                    x = x.unsqueeze(1)
                if x.shape[1:] != (1, 28, 28):
                    raise ValueError(f"expected images of 28 by 28, got {tuple(x.shape)}")
                if x.dtype != torch.float32:
                    x = x.float()
                x = x.contiguous()
                for stage in self.stages:
                    x = getattr(self, stage)(x)
                return x
            """,
        ),
        "image_by_image": Body(
            summary="One image at a time, so that its maps stay in cache.",
            init=_INIT + _FOLDED,
            forward="""
                rows = []
                for i in range(x.shape[0]):
                    y = F.max_pool2d(F.conv2d(x[i : i + 1], self.w1, self.b1), 2).relu_()
                    y = F.max_pool2d(self.conv2(y), 2).relu_()
                    y = F.relu(self.fc1(y.flatten()))
                    rows.append(self.fc3(F.relu(self.fc2(y))))
                return F.log_softmax(torch.stack(rows), dim=1)
            """,
        ),
        "triton_classifier": Body(
            before=_HEAD_KERNEL,
            init=_INIT + _FOLDED,
            forward="""
                x = F.max_pool2d(F.conv2d(x, self.w1, self.b1), 2).relu_()
                x = F.max_pool2d(self.conv2(x), 2).relu_().flatten(1).contiguous()
                B = x.shape[0]
                h1 = torch.empty(B, 120, device=x.device)
                h2 = torch.empty(B, 84, device=x.device)
                out = torch.empty(B, 10, device=x.device)
                relu_layer_kernel[(B,)](x, self.fc1.weight, self.fc1.bias, h1, 256, 120, BLOCK_OUT=128)
                relu_layer_kernel[(B,)](h1, self.fc2.weight, self.fc2.bias, h2, 120, 84, BLOCK_OUT=128)
                class_layer_kernel[(B,)](h2, self.fc3.weight, self.fc3.bias, out, 84, 10, BLOCK_OUT=16)
                return out
            """,
        ),
        "cuda_block_per_image": Body(
            before=_CUDA,
            forward="""
                layers = (self.conv1, self.conv2, self.fc1, self.fc2, self.fc3)
                parameters = [p for layer in layers for p in (layer.weight, layer.bias)]
                return lenet_module.lenet_forward(x.contiguous(), parameters, self.mean, self.std)
            """,
        ),
    },
    images=True,
    carries_on="input_norm_folded",
)
