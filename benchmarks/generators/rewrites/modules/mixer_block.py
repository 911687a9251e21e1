"""A mixer block: a small network over tokens and one over channels, each behind a layer norm and in a residual."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_NORM_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def norm_transposed_kernel(x_ptr, gain_ptr, bias_ptr, out_ptr, tokens, width, eps, ROWS: tl.constexpr,
                           COLS: tl.constexpr):
    # layer norm of a tile of tokens, written with channels first: (batch, width, tokens)
    sample = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    keep = (row[:, None] < tokens) & (col[None, :] < width)
    x = tl.load(x_ptr + (sample * tokens + row[:, None]) * width + col[None, :], mask=keep, other=0.0)
    mean = tl.sum(x, axis=1) / width
    centred = tl.where(keep, x - mean[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, axis=1) / width + eps)
    gain = tl.load(gain_ptr + col, mask=col < width, other=0.0)
    bias = tl.load(bias_ptr + col, mask=col < width, other=0.0)
    y = centred * inverse[:, None] * gain[None, :] + bias[None, :]
    tl.store(out_ptr + (sample * width + col[None, :]) * tokens + row[:, None], y, mask=keep)
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

#define TILE 32

// gelu(x w^T + b): a plain tiled product, a tile of 32 x 32 outputs per block of 256 threads, four rows a thread.
__global__ void linear_gelu(const float* __restrict__ x, const float* __restrict__ w,
                            const float* __restrict__ bias, float* __restrict__ out, int rows, int cols,
                            int depth) {
    __shared__ float xs[TILE][TILE + 1];
    __shared__ float ws[TILE][TILE + 1];
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.y * TILE, col = blockIdx.x * TILE;
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int start = 0; start < depth; start += TILE) {
        for (int i = 0; i < 4; ++i) {
            int r = ty + 8 * i;
            bool inside = start + tx < depth;
            xs[r][tx] = (inside && row + r < rows) ? x[(long)(row + r) * depth + start + tx] : 0.0f;
            ws[r][tx] = (inside && col + r < cols) ? w[(long)(col + r) * depth + start + tx] : 0.0f;
        }
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < TILE; ++k) {
            float v = ws[tx][k];
            for (int i = 0; i < 4; ++i) sums[i] = fmaf(xs[ty + 8 * i][k], v, sums[i]);
        }
        __syncthreads();
    }
    if (col + tx >= cols) return;
    float b = bias[col + tx];
    for (int i = 0; i < 4; ++i) {
        int r = row + ty + 8 * i;
        if (r >= rows) return;
        float y = sums[i] + b;
        out[(long)r * cols + col + tx] = 0.5f * y * (1.0f + erff(y * 0.70710678f));
    }
}

torch::Tensor linear_gelu_forward(torch::Tensor x, torch::Tensor w, torch::Tensor bias) {
    int rows = x.size(0), depth = x.size(1), cols = w.size(0);
    auto out = torch::empty({rows, cols}, x.options());
    dim3 grid((cols + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    linear_gelu<<<grid, dim3(TILE, 8)>>>(x.data_ptr<float>(), w.data_ptr<float>(), bias.data_ptr<float>(),
                                         out.data_ptr<float>(), rows, cols, depth);
    return out;
}
"""
tiled_module = load_inline(
    name="mixer_block_tiled_product",
    cpp_sources="torch::Tensor linear_gelu_forward(torch::Tensor x, torch::Tensor w, torch::Tensor bias);",
    cuda_sources=source,
    functions=["linear_gelu_forward"],
)
'''

_INIT = """
    self.token_norm = nn.LayerNorm(width)
    self.token_in = nn.Linear(tokens, token_hidden)
    self.token_out = nn.Linear(token_hidden, tokens)
    self.channel_norm = nn.LayerNorm(width)
    self.channel_in = nn.Linear(width, channel_hidden)
    self.channel_out = nn.Linear(channel_hidden, width)
"""

_FOLDED = """
    with torch.no_grad():
        norm, layer = self.channel_norm, self.channel_in
        self.register_buffer("folded_weight", (layer.weight * norm.weight).t().contiguous())
        self.register_buffer("folded_bias", layer.bias + layer.weight @ norm.bias)
"""

MODULE = Rewritten(
    name="mixer_block",
    sizes="""
        batch_size = 32
        tokens = 196
        width = 256
        token_hidden = 128
        channel_hidden = 1024
    """,
    arguments=("tokens", "width", "token_hidden", "channel_hidden"),
    takes="x",
    inputs="[torch.randn(batch_size, tokens, width)]",
    reference=Body(
        summary="Mixes tokens, then channels.",
        init=_INIT,
        forward="""
            y = self.token_norm(x).transpose(1, 2)
            y = self.token_out(F.gelu(self.token_in(y)))
            x = x + y.transpose(1, 2)
            y = self.channel_norm(x)
            y = self.channel_out(F.gelu(self.channel_in(y)))
            return x + y
        """,
    ),
    rewrites={
        "products_from_the_left": Body(
            summary="Token mixing by matrices from the left, so that nothing is transposed.",
            forward="""
                y = torch.matmul(self.token_in.weight, self.token_norm(x)) + self.token_in.bias[:, None]
                y = torch.matmul(self.token_out.weight, F.gelu(y)) + self.token_out.bias[:, None]
                x = x + y
                return x + self.channel_out(F.gelu(self.channel_in(self.channel_norm(x))))
            """,
        ),
        "batched_addends": Body(
            summary="""A mixer block of batched products with addends.

    The biases of the token products and both residuals enter as addends of the products. The biases are columns
    here, and the one of the second product is added to the residual before. Gains and biases of the second layer
    norm are part of the first channel product.
    """,
            init=_INIT
            + _FOLDED
            + """
    self.register_buffer("in_column", self.token_in.bias.detach().view(1, -1, 1).clone())
    self.register_buffer("out_column", self.token_out.bias.detach().view(1, -1, 1).clone())
    self.register_buffer("out_weight_t", self.channel_out.weight.detach().t().contiguous())
""",
            methods='''
                def _mix_tokens(self, x):
                    """x plus the network over tokens."""
                    B = x.shape[0]
                    w_in = self.token_in.weight.expand(B, -1, -1)
                    w_out = self.token_out.weight.expand(B, -1, -1)
                    y = F.gelu(torch.baddbmm(self.in_column, w_in, self.token_norm(x)))
                    return torch.baddbmm(x + self.out_column, w_out, y)

                def _mix_channels(self, x):
                    """x plus the network over channels, tokens of all samples in rows."""
                    rows = x.view(-1, x.shape[-1])
                    y = F.layer_norm(rows, rows.shape[-1:], eps=self.channel_norm.eps)
                    y = F.gelu(torch.addmm(self.folded_bias, y, self.folded_weight))
                    return torch.addmm(rows + self.channel_out.bias, y, self.out_weight_t).view_as(x)
            ''',
            forward="return self._mix_channels(self._mix_tokens(x))",
        ),
        "tokens_as_conv_channels": Body(
            summary="Tokens are the channels of a convolution of length one.",
            forward="""
                y = F.conv1d(self.token_norm(x), self.token_in.weight.unsqueeze(-1), self.token_in.bias)
                y = F.conv1d(F.gelu(y), self.token_out.weight.unsqueeze(-1), self.token_out.bias)
                x = y.add_(x)
                y = self.channel_in(self.channel_norm(x))
                return self.channel_out(F.gelu(y)).add_(x)
            """,
        ),
        "folded_norm": Body(
            init=_INIT + _FOLDED,
            forward="""
                y = self.token_norm(x).transpose(1, 2)
                y = self.token_out(F.gelu(self.token_in(y)))
                x = x + y.transpose(1, 2)
                y = F.layer_norm(x, x.shape[-1:])
                y = F.gelu(torch.matmul(y, self.folded_weight) + self.folded_bias)
                return x + self.channel_out(y)
            """,
        ),
        "contiguous_everywhere": Body(
            forward="""
                y = self.token_norm(x).transpose(1, 2).contiguous()
                y = F.gelu(self.token_in(y)).contiguous()
                y = self.token_out(y).transpose(1, 2).contiguous()
                x = torch.add(x, y)
                rows = self.channel_norm(x).reshape(-1, x.shape[-1]).clone()
                hidden = F.gelu(torch.addmm(self.channel_in.bias, rows, self.channel_in.weight.t().contiguous()))
                y = torch.addmm(self.channel_out.bias, hidden, self.channel_out.weight.t().contiguous())
                return torch.add(x, y.view_as(x))
            """
        ),
        "sample_by_sample": Body(
            summary="One sample after another, so that its hidden features stay in the cache.",
            forward="""
                out = torch.empty_like(x)
                for b in range(x.shape[0]):
                    y = F.gelu(torch.addmm(self.token_in.bias[:, None], self.token_in.weight, self.token_norm(x[b])))
                    s = torch.addmm(self.token_out.bias[:, None], self.token_out.weight, y).add_(x[b])
                    hidden = F.gelu(self.channel_in(self.channel_norm(s)))
                    torch.add(s, self.channel_out(hidden), out=out[b])
                return out
            """,
        ),
        "triton_norm_transposed": Body(
            summary="The first layer norm writes its result transposed, as the token product reads it.",
            before=_NORM_KERNEL,
            init=_INIT + _FOLDED,
            forward="""
                B, T, C = x.shape
                x = x.contiguous()
                y = torch.empty(B, C, T, device=x.device)
                norm = self.token_norm
                norm_transposed_kernel[(triton.cdiv(T, 16), B)](
                    x, norm.weight, norm.bias, y, T, C, norm.eps, ROWS=16, COLS=triton.next_power_of_2(C)
                )
                y = self.token_out(F.gelu(self.token_in(y)))
                x = x + y.transpose(1, 2)
                y = F.layer_norm(x, (C,), eps=self.channel_norm.eps).view(B * T, C)
                y = F.gelu(torch.addmm(self.folded_bias, y, self.folded_weight))
                return self.channel_out(y).view(B, T, C).add_(x)
            """,
        ),
        "cuda_tiled_product": Body(
            before=_CUDA,
            forward="""
                y = self.token_norm(x).transpose(1, 2).reshape(-1, x.shape[1])
                y = tiled_module.linear_gelu_forward(y, self.token_in.weight, self.token_in.bias)
                y = self.token_out(y).view(x.shape[0], x.shape[2], x.shape[1])
                x = x + y.transpose(1, 2)
                rows = self.channel_norm(x).view(-1, x.shape[-1])
                hidden = tiled_module.linear_gelu_forward(rows, self.channel_in.weight, self.channel_in.bias)
                return x + self.channel_out(hidden).view_as(x)
            """,
        ),
    },
    carries_on="batched_addends",
)
