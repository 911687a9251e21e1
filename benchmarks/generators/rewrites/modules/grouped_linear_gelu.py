"""Linear layers on groups of features, each with its own weights, and GELU."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_GROUP_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def group_kernel(x_ptr, w_ptr, bias_ptr, out_ptr, n, groups,
                 BLOCK_N: tl.constexpr, D_IN: tl.constexpr, D_OUT: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    group = tl.program_id(1)
    i = tl.arange(0, D_IN)
    o = tl.arange(0, D_OUT)
    keep = rows[:, None] < n
    x = tl.load(x_ptr + rows[:, None] * (groups * D_IN) + group * D_IN + i[None, :], mask=keep, other=0.0)
    # weights are stored as (group, in, out)
    w = tl.load(w_ptr + group * D_IN * D_OUT + i[:, None] * D_OUT + o[None, :])
    y = tl.dot(x, w, input_precision="ieee") + tl.load(bias_ptr + group * D_OUT + o)[None, :]
    y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    tl.store(out_ptr + rows[:, None] * (groups * D_OUT) + group * D_OUT + o[None, :], y, mask=keep)
"""

_INIT = """
    self.groups = groups
    self.layers = nn.ModuleList([nn.Linear(group_in, group_out) for _ in range(groups)])
"""

_STACKED = """
    with torch.no_grad():
        self.register_buffer("weight", torch.stack([layer.weight.t() for layer in self.layers]).contiguous())
        self.register_buffer("bias", torch.stack([layer.bias for layer in self.layers]).unsqueeze(1))
"""

_CUDA_SHARED_WEIGHTS = '''
from torch.utils.cpp_extension import load_inline

shared_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define IN 64
#define OUT 64
#define ROWS 16

// A block has a group and 16 rows: the group's weights and its part of the rows are in shared memory.
__global__ void grouped_linear_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                                      const float* __restrict__ bias, float* __restrict__ out, int rows,
                                      int groups) {
    __shared__ float sw[OUT][IN + 1];
    __shared__ float sx[ROWS][IN];
    const int group = blockIdx.y;
    const int first = blockIdx.x * ROWS;
    for (int i = threadIdx.x; i < OUT * IN; i += blockDim.x) sw[i / IN][i % IN] = weight[group * OUT * IN + i];
    for (int i = threadIdx.x; i < ROWS * IN; i += blockDim.x) {
        const int r = i / IN;
        sx[r][i % IN] = first + r < rows ? x[((first + r) * groups + group) * IN + i % IN] : 0.0f;
    }
    __syncthreads();
    const int o = threadIdx.x % OUT;
    const float b = bias[group * OUT + o];
    float sum[4] = {b, b, b, b};
    const int r0 = threadIdx.x / OUT * 4;
#pragma unroll 16
    for (int k = 0; k < IN; ++k) {
        const float w = sw[o][k];
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[j] = fmaf(sx[r0 + j][k], w, sum[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int row = first + r0 + j;
        if (row < rows) {
            const float v = sum[j];
            out[(row * groups + group) * OUT + o] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
        }
    }
}

torch::Tensor grouped_linear(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
    const int rows = x.size(0), groups = weight.size(0);
    TORCH_CHECK(weight.size(1) == OUT && weight.size(2) == IN, "groups must map 64 to 64 features");
    auto out = torch::empty({rows, groups * OUT}, x.options());
    dim3 grid((rows + ROWS - 1) / ROWS, groups);
    grouped_linear_kernel<<<grid, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), rows, groups);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
linear_module = load_inline(
    name="grouped_linear_gelu_shared",
    cpp_sources="torch::Tensor grouped_linear(torch::Tensor x, torch::Tensor weight, torch::Tensor bias);",
    cuda_sources=shared_source,
    functions=["grouped_linear"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_JOIN = '''
from torch.utils.cpp_extension import load_inline

join_source = r"""
#include <torch/extension.h>

// y: (groups, rows, each) -> (rows, groups * each), with bias and GELU on the way
__global__ void join_gelu_kernel(const float* y, const float* bias, float* out, int rows, int groups, int each) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    int total = rows * groups * each;
    if (idx >= total) return;
    int row = idx % rows;
    int feature = idx / rows;
    int group = feature / each;
    float v = y[(group * rows + row) * each + feature % each] + bias[feature];
    out[row * groups * each + feature] = 0.5f * v * (1.0f + erff(v / 1.41421356f));
}

torch::Tensor join_gelu(torch::Tensor y, torch::Tensor bias) {
    TORCH_CHECK(y.is_cuda() && bias.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(y.is_contiguous() && bias.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(y.scalar_type() == torch::kFloat32, "float32 expected");
    int groups = y.size(0), rows = y.size(1), each = y.size(2);
    auto out = torch::empty({rows, groups * each}, y.options());
    int total = rows * groups * each;
    join_gelu_kernel<<<(total + 127) / 128, 128>>>(y.data_ptr<float>(), bias.data_ptr<float>(),
                                                   out.data_ptr<float>(), rows, groups, each);
    return out;
}
"""
join_module = load_inline(
    name="grouped_linear_gelu_join",
    cpp_sources="torch::Tensor join_gelu(torch::Tensor y, torch::Tensor bias);",
    cuda_sources=join_source,
    functions=["join_gelu"],
)
'''

MODULE = Rewritten(
    name="grouped_linear_gelu",
    sizes="""
        batch_size = 256
        groups = 12
        group_in = 64
        group_out = 64
    """,
    arguments=("groups", "group_in", "group_out"),
    takes="x",
    inputs="[torch.randn(batch_size, groups * group_in)]",
    reference=Body(
        summary="Splits the features into groups, passes each through its own linear layer, and joins them.",
        init=_INIT,
        forward="""
            pieces = torch.chunk(x, self.groups, dim=-1)
            outputs = [layer(piece) for layer, piece in zip(self.layers, pieces)]
            return F.gelu(torch.cat(outputs, dim=-1))
        """,
    ),
    rewrites={
        "batched_product": Body(
            init=_INIT + _STACKED,
            forward="""
                n = x.shape[0]
                pieces = x.view(n, self.groups, -1).transpose(0, 1)
                y = torch.baddbmm(self.bias, pieces, self.weight)
                return F.gelu(y.transpose(0, 1).reshape(n, -1))
            """,
        ),
        "einsum": Body(
            init=_INIT + _STACKED,
            forward="""
                y = torch.einsum("ngi,gio->ngo", x.view(x.shape[0], self.groups, -1), self.weight)
                return F.gelu((y + self.bias.squeeze(1)).flatten(1))
            """,
        ),
        "stacked_on_each_call": Body(
            forward="""
                w = torch.stack([layer.weight for layer in self.layers])
                b = torch.stack([layer.bias for layer in self.layers])
                pieces = x.view(x.shape[0], self.groups, -1).permute(1, 0, 2).contiguous()
                y = torch.bmm(pieces, w.transpose(1, 2)) + b[:, None]
                return F.gelu(y).permute(1, 0, 2).reshape(x.shape[0], -1)
            """
        ),
        "block_diagonal": Body(
            summary="One dense layer with a block-diagonal weight, most of it zeros.",
            init=_INIT
            + """
    with torch.no_grad():
        dense = torch.block_diag(*[layer.weight for layer in self.layers])
        self.register_buffer("dense", dense)
        self.register_buffer("dense_bias", torch.cat([layer.bias for layer in self.layers]))
""",
            forward="return F.gelu(F.linear(x, self.dense, self.dense_bias))",
        ),
        "grouped_convolution": Body(
            init=_INIT
            + """
    with torch.no_grad():
        kernel = torch.cat([layer.weight for layer in self.layers]).unsqueeze(-1)
        self.register_buffer("kernel", kernel)
        self.register_buffer("kernel_bias", torch.cat([layer.bias for layer in self.layers]))
""",
            forward="""
                y = F.conv1d(x.unsqueeze(-1), self.kernel, self.kernel_bias, groups=self.groups)
                return F.gelu(y.squeeze(-1))
            """,
        ),
        "written_into_place": Body(
            summary="Every group writes straight into its columns of the output: no list and no join.",
            init=_INIT
            + """
    self.group_in = group_in
    self.group_out = group_out
""",
            forward="""
                out = x.new_empty(x.shape[0], self.groups * self.group_out)
                for index, layer in enumerate(self.layers):
                    source = x[:, index * self.group_in : (index + 1) * self.group_in]
                    target = out[:, index * self.group_out : (index + 1) * self.group_out]
                    torch.addmm(layer.bias, source, layer.weight.t(), out=target)
                return F.gelu(out)
            """,
        ),
        "pairs_of_groups": Body(
            summary="Two groups at a time: half as many products, each twice as wide and half zeros.",
            init=_INIT
            + """
    self.pairs = groups // 2
    with torch.no_grad():
        blocks = [
            torch.block_diag(self.layers[2 * pair].weight, self.layers[2 * pair + 1].weight).t()
            for pair in range(self.pairs)
        ]
        shifts = [
            torch.cat([self.layers[2 * pair].bias, self.layers[2 * pair + 1].bias]) for pair in range(self.pairs)
        ]
        self.register_buffer("blocks", torch.stack(blocks).contiguous())
        self.register_buffer("shifts", torch.stack(shifts).unsqueeze(1))
""",
            forward="""
                if self.groups % 2 != 0:
                    return self.one_by_one(x)
                n = x.shape[0]
                pieces = x.view(n, self.pairs, -1).transpose(0, 1)
                y = torch.baddbmm(self.shifts, pieces, self.blocks)
                return F.gelu(y).transpose(0, 1).reshape(n, -1)
            """,
            methods="""
                def one_by_one(self, x):
                    pieces = x.chunk(self.groups, dim=-1)
                    return torch.cat([F.gelu(layer(p)) for layer, p in zip(self.layers, pieces)], dim=-1)
            """,
        ),
        "triton_groups": Body(
            before=_GROUP_KERNEL,
            init=_INIT
            + _STACKED
            + """
    self.group_in = group_in
    self.group_out = group_out
""",
            forward="""
                n = x.shape[0]
                out = torch.empty(n, self.groups * self.group_out, device=x.device)
                group_kernel[(triton.cdiv(n, 16), self.groups)](
                    x, self.weight, self.bias, out, n, self.groups,
                    BLOCK_N=16, D_IN=self.group_in, D_OUT=self.group_out,
                )
                return out
            """,
        ),
        "cuda_shared_weights": Body(
            before=_CUDA_SHARED_WEIGHTS,
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("weights", torch.stack([layer.weight for layer in self.layers]).contiguous())
        self.register_buffer("biases", torch.stack([layer.bias for layer in self.layers]).contiguous())
""",
            forward="return linear_module.grouped_linear(x.contiguous(), self.weights, self.biases)",
        ),
        "cuda_join_gelu": Body(
            summary="A batched product for all groups; a kernel adds the bias, applies GELU and joins the groups.",
            before=_CUDA_JOIN,
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("weights_t", torch.stack([layer.weight.t() for layer in self.layers]).contiguous())
        self.register_buffer("biases", torch.cat([layer.bias for layer in self.layers]))
""",
            methods='''
                def _join(self, y):
                    """From (groups, rows, features) to the activated rows."""
                    if y.is_cuda and y.dtype == torch.float32:
                        return join_module.join_gelu(y.contiguous(), self.biases)
                    return F.gelu(y.transpose(0, 1).reshape(y.shape[1], -1) + self.biases)
            ''',
            forward="""
                pieces = x.view(x.shape[0], self.groups, -1).transpose(0, 1)
                return self._join(torch.bmm(pieces, self.weights_t))
            """,
        ),
    },
    carries_on="batched_product",
)
