"""A small linear layer whose weights are kept as int8 with a scale per output, and a rectifier."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_INT8_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def int8_linear_kernel(
    x_ptr, q_ptr, scale_ptr, bias_ptr, out_ptr, rows, features, width,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, features, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_ptr + m[:, None] * features + k[None, :],
            mask=(m[:, None] < rows) & (k[None, :] < features),
            other=0.0,
        )
        q = tl.load(
            q_ptr + n[None, :] * features + k[:, None],
            mask=(n[None, :] < width) & (k[:, None] < features),
            other=0,
        )
        acc += tl.dot(x, q.to(tl.float32), input_precision="ieee")
    scale = tl.load(scale_ptr + n, mask=n < width, other=0.0)
    bias = tl.load(bias_ptr + n, mask=n < width, other=0.0)
    y = tl.maximum(acc * scale[None, :] + bias[None, :], 0.0)
    tl.store(out_ptr + m[:, None] * width + n[None, :], y, mask=(m[:, None] < rows) & (n[None, :] < width))
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

#define ROWS 4

// A warp per output feature and four rows of the batch. Weights are read as char4, inputs as float4.
__global__ void int8_linear(const float* __restrict__ x, const char4* __restrict__ q,
                            const float* __restrict__ scale, const float* __restrict__ bias,
                            float* __restrict__ out, int rows, int features, int width) {
    int lane = threadIdx.x & 31;
    int o = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int first = blockIdx.y * ROWS;
    if (o >= width) return;
    int quads = features / 4;
    const char4* line = q + (long)o * quads;
    float sums[ROWS] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int k = lane; k < quads; k += 32) {
        char4 w = line[k];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (first + r < rows) {
                float4 v = reinterpret_cast<const float4*>(x + (long)(first + r) * features)[k];
                sums[r] += v.x * w.x + v.y * w.y + v.z * w.z + v.w * w.w;
            }
        }
    }
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float sum = sums[r];
        for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, offset);
        if (lane == 0 && first + r < rows)
            out[(long)(first + r) * width + o] = fmaxf(sum * scale[o] + bias[o], 0.0f);
    }
}

torch::Tensor int8_linear_relu(torch::Tensor x, torch::Tensor q, torch::Tensor scale, torch::Tensor bias) {
    TORCH_CHECK(x.size(1) % 4 == 0, "the number of features must be a multiple of 4");
    x = x.contiguous();
    int rows = x.size(0), features = x.size(1), width = q.size(0);
    auto out = torch::empty({rows, width}, x.options());
    dim3 grid((width + 7) / 8, (rows + ROWS - 1) / ROWS);
    int8_linear<<<grid, 256>>>(x.data_ptr<float>(), reinterpret_cast<const char4*>(q.data_ptr<int8_t>()),
                               scale.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), rows,
                               features, width);
    return out;
}
"""
int8_module = load_inline(
    name="quantized_weight_linear_warps",
    cpp_sources="torch::Tensor int8_linear_relu(torch::Tensor x, torch::Tensor q, torch::Tensor scale, "
    "torch::Tensor bias);",
    cuda_sources=source,
    functions=["int8_linear_relu"],
)
'''

_INIT = """
    layer = nn.Linear(features, width)
    with torch.no_grad():
        scale = layer.weight.abs().amax(dim=1, keepdim=True) / 127.0
        grid = torch.round(layer.weight / scale).clamp(-127, 127).to(torch.int8)
        self.register_buffer("grid", grid)
        self.register_buffer("scale", scale.clone())
        self.register_buffer("bias", layer.bias.clone())
"""

MODULE = Rewritten(
    name="quantized_weight_linear",
    sizes="""
        batch_size = 16
        features = 1536
        width = 1024
    """,
    arguments=("features", "width"),
    takes="x",
    inputs="[torch.randn(batch_size, features)]",
    reference=Body(
        summary="Restores the weights from their grid, then a linear layer and ReLU.",
        init=_INIT,
        forward="""
            weight = self.grid.float() * self.scale
            y = torch.matmul(x, weight.t())
            y = y + self.bias
            return torch.relu(y)
        """,
    ),
    rewrites={
        "restored_once": Body(
            init=_INIT + '    self.register_buffer("weight", grid.float() * scale)\n',
            forward="return F.relu_(F.linear(x, self.weight, self.bias))",
        ),
        "scale_after_product": Body(
            summary="Scales the few outputs rather than the many weights.",
            init=_INIT + '    self.register_buffer("row", scale.view(1, -1).clone())\n',
            forward="""
                y = torch.mm(x, self.grid.to(x.dtype).t())
                return torch.addcmul(self.bias, y, self.row).clamp_(min=0)
            """,
        ),
        "linear_call": Body(
            forward="return F.relu(F.linear(x, self.grid.float().mul_(self.scale), self.bias))"
        ),
        "restored_lazily": Body(
            summary="""Keeps restored weights per device and type.

    The grid stays the only thing that is saved; the restored, transposed weights are a cache
    that is dropped whenever the module is moved.
    """,
            init=_INIT + "    self._restored = {}\n",
            forward="""
                self.check(x)
                lead = x.shape[:-1]
                flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
                weight = self.restored(flat)
                y = torch.addmm(self.bias, flat, weight)
                y = torch.relu_(y)
                return y if x.dim() == 2 else y.view(*lead, -1)
            """,
            methods="""
                def check(self, x):
                    if x.shape[-1] != self.grid.shape[1]:
                        raise ValueError(f"expected {self.grid.shape[1]} features, got {x.shape[-1]}")
                    if not x.is_floating_point():
                        raise TypeError("inputs must be floating point")

                def restored(self, like):
                    key = (like.device, like.dtype)
                    if key not in self._restored:
                        weight = self.grid.to(like.dtype) * self.scale.to(like.dtype)
                        self._restored[key] = weight.t().contiguous()
                    return self._restored[key]

                def _apply(self, *args, **kwargs):
                    self._restored.clear()
                    return super()._apply(*args, **kwargs)
            """,
        ),
        "output_buffers": Body(
            summary="Restores into one buffer and writes the product into another, so that nothing is allocated.",
            init=_INIT
            + """
    self.register_buffer("weight", torch.empty(width, features), persistent=False)
    self._out = None
""",
            forward="""
                if self._out is None or self._out.shape[0] != x.shape[0] or self._out.device != x.device:
                    self._out = torch.empty(x.shape[0], self.bias.shape[0], device=x.device)
                torch.mul(self.grid, self.scale, out=self.weight)
                torch.addmm(self.bias, x, self.weight.t(), out=self._out)
                return torch.clamp(self._out, min=0.0)
            """,
        ),
        "blocks_of_outputs": Body(
            summary="Restores a block of outputs at a time, so that float weights never exist as a whole.",
            init=_INIT + "    self.block = 128\n",
            forward="""
                pieces = []
                for start in range(0, self.grid.shape[0], self.block):
                    stop = start + self.block
                    weight = self.grid[start:stop].float() * self.scale[start:stop]
                    pieces.append(F.linear(x, weight, self.bias[start:stop]))
                return torch.cat(pieces, dim=1).relu_()
            """,
        ),
        "multiply_and_sum": Body(
            init=_INIT + '    self.register_buffer("weight", grid.float() * scale)\n',
            forward="""
                products = x.unsqueeze(1) * self.weight.unsqueeze(0)
                return F.relu(products.sum(dim=-1) + self.bias)
            """,
        ),
        "triton_int8_product": Body(
            before=_INT8_KERNEL,
            forward="""
                rows, features = x.shape
                width = self.grid.shape[0]
                out = torch.empty(rows, width, device=x.device)
                int8_linear_kernel[(triton.cdiv(rows, 16), triton.cdiv(width, 32))](
                    x.contiguous(), self.grid, self.scale, self.bias, out, rows, features, width,
                    BLOCK_M=16, BLOCK_N=32, BLOCK_K=64, num_warps=2,
                )
                return out
            """,
        ),
        "cuda_warp_per_output": Body(
            before=_CUDA,
            forward="return int8_module.int8_linear_relu(x, self.grid, self.scale, self.bias)",
        ),
    },
    carries_on="restored_once",
)
