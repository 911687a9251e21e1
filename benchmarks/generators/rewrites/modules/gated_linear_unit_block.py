"""A layer norm, a gated linear unit with separate projections, a projection back, a scale and a residual."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_GATE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def gate_kernel(both_ptr, out_ptr, hidden, BLOCK: tl.constexpr):
    # both: (rows, 2 * hidden), values in front of gates
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < hidden
    value = tl.load(both_ptr + row * 2 * hidden + cols, mask=keep, other=0.0)
    gate = tl.load(both_ptr + row * 2 * hidden + hidden + cols, mask=keep, other=0.0)
    tl.store(out_ptr + row * hidden + cols, value * tl.sigmoid(gate), mask=keep)
"""

_PRODUCT_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def gated_product_kernel(x_ptr, value_ptr, gate_ptr, value_bias_ptr, gate_bias_ptr, out_ptr, rows, width, hidden,
                         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    value = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    gate = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, width, BLOCK_K):
        inner = start + k
        a = tl.load(x_ptr + m[:, None] * width + inner[None, :],
                    mask=(m[:, None] < rows) & (inner[None, :] < width), other=0.0)
        at = n[None, :] * width + inner[:, None]
        keep = (n[None, :] < hidden) & (inner[:, None] < width)
        value = tl.dot(a, tl.load(value_ptr + at, mask=keep, other=0.0), value)
        gate = tl.dot(a, tl.load(gate_ptr + at, mask=keep, other=0.0), gate)
    value += tl.load(value_bias_ptr + n, mask=n < hidden, other=0.0)[None, :]
    gate += tl.load(gate_bias_ptr + n, mask=n < hidden, other=0.0)[None, :]
    result = value * tl.sigmoid(gate)
    tl.store(out_ptr + m[:, None] * hidden + n[None, :], result.to(tl.float16),
             mask=(m[:, None] < rows) & (n[None, :] < hidden))
"""

_CUDA = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void gate(const float4* __restrict__ both, float4* __restrict__ out, int quarter, long total) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i >= total) return;
    long row = i / quarter;
    int col = i % quarter;
    float4 v = both[row * 2 * quarter + col];
    float4 g = both[row * 2 * quarter + quarter + col];
    float4 r;
    r.x = v.x / (1.0f + __expf(-g.x));
    r.y = v.y / (1.0f + __expf(-g.y));
    r.z = v.z / (1.0f + __expf(-g.z));
    r.w = v.w / (1.0f + __expf(-g.w));
    out[i] = r;
}

torch::Tensor gate_forward(torch::Tensor both) {
    int hidden = both.size(1) / 2;
    TORCH_CHECK(hidden % 4 == 0, "hidden size must be a multiple of 4");
    auto out = torch::empty({both.size(0), hidden}, both.options());
    long total = out.numel() / 4;
    gate<<<(total + 255) / 256, 256>>>(reinterpret_cast<const float4*>(both.data_ptr<float>()),
                                       reinterpret_cast<float4*>(out.data_ptr<float>()), hidden / 4, total);
    return out;
}
"""
gate_module = load_inline(
    name="gated_linear_unit_block_gate",
    cpp_sources="torch::Tensor gate_forward(torch::Tensor both);",
    cuda_sources=source,
    functions=["gate_forward"],
)
'''

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def gate(value: Tensor, gate: Tensor) -> Tensor:
    return value * torch.sigmoid(gate)

def residual(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    return x + y * scale
""")
'''

_INIT = """
    self.norm = nn.LayerNorm(width)
    self.value = nn.Linear(width, hidden)
    self.gate = nn.Linear(width, hidden)
    self.out = nn.Linear(hidden, width)
    self.scale = nn.Parameter(torch.rand(width))
"""

_PACKED = """
    with torch.no_grad():
        self.register_buffer("both_weight", torch.cat([self.value.weight, self.gate.weight]))
        self.register_buffer("both_bias", torch.cat([self.value.bias, self.gate.bias]))
"""

_SCALED_OUT = """
    with torch.no_grad():
        self.register_buffer("out_t", (self.out.weight * self.scale[:, None]).t().contiguous())
        self.register_buffer("out_bias", self.out.bias * self.scale)
"""

_CUDA_PRODUCTS = '''
from torch.utils.cpp_extension import load_inline

products_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

#define TILE 32
#define STRIDE 8

__global__ void layer_norm_kernel(const float* __restrict__ x, const float* __restrict__ gamma,
                                  const float* __restrict__ beta, float* __restrict__ out, int width, float eps) {
    __shared__ float buffer[256];
    const float* row = x + (long)blockIdx.x * width;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += row[i];
    buffer[threadIdx.x] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) buffer[threadIdx.x] += buffer[threadIdx.x + s];
        __syncthreads();
    }
    const float mean = buffer[0] / width;
    __syncthreads();
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
    buffer[threadIdx.x] = squares;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) buffer[threadIdx.x] += buffer[threadIdx.x + s];
        __syncthreads();
    }
    const float inverse = rsqrtf(buffer[0] / width + eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        out[(long)blockIdx.x * width + i] = (row[i] - mean) * inverse * gamma[i] + beta[i];
}

// Values and gates from the same tile of the input; only their product is written.
__global__ void gated_product_kernel(const float* __restrict__ h, const float* __restrict__ wv,
                                     const float* __restrict__ bv, const float* __restrict__ wg,
                                     const float* __restrict__ bg, float* __restrict__ out, int rows, int width,
                                     int hidden) {
    __shared__ float sh[TILE][TILE];
    __shared__ float sv[TILE][TILE + 1];
    __shared__ float sg[TILE][TILE + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int col = blockIdx.x * TILE + tx;
    const int first = blockIdx.y * TILE;
    float value[TILE / STRIDE] = {};
    float gate[TILE / STRIDE] = {};
    for (int k0 = 0; k0 < width; k0 += TILE) {
        const int k = k0 + tx;
        for (int r = ty; r < TILE; r += STRIDE) {
            const int o = blockIdx.x * TILE + r;
            sh[r][tx] = first + r < rows && k < width ? h[(long)(first + r) * width + k] : 0.0f;
            sv[r][tx] = o < hidden && k < width ? wv[(long)o * width + k] : 0.0f;
            sg[r][tx] = o < hidden && k < width ? wg[(long)o * width + k] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const float v = sv[tx][j];
            const float g = sg[tx][j];
#pragma unroll
            for (int i = 0; i < TILE / STRIDE; ++i) {
                value[i] = fmaf(sh[ty + i * STRIDE][j], v, value[i]);
                gate[i] = fmaf(sh[ty + i * STRIDE][j], g, gate[i]);
            }
        }
        __syncthreads();
    }
    if (col >= hidden) return;
    for (int i = 0; i < TILE / STRIDE; ++i) {
        const int row = first + ty + i * STRIDE;
        if (row < rows)
            out[(long)row * hidden + col] = (value[i] + bv[col]) / (1.0f + expf(-(gate[i] + bg[col])));
    }
}

__global__ void output_product_kernel(const float* __restrict__ h, const float* __restrict__ w,
                                      const float* __restrict__ bias, const float* __restrict__ scale,
                                      const float* __restrict__ x, float* __restrict__ out, int rows, int hidden,
                                      int width) {
    __shared__ float sh[TILE][TILE];
    __shared__ float sw[TILE][TILE + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int col = blockIdx.x * TILE + tx;
    const int first = blockIdx.y * TILE;
    float sum[TILE / STRIDE] = {};
    for (int k0 = 0; k0 < hidden; k0 += TILE) {
        const int k = k0 + tx;
        for (int r = ty; r < TILE; r += STRIDE) {
            const int o = blockIdx.x * TILE + r;
            sh[r][tx] = first + r < rows && k < hidden ? h[(long)(first + r) * hidden + k] : 0.0f;
            sw[r][tx] = o < width && k < hidden ? w[(long)o * hidden + k] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < TILE; ++j)
#pragma unroll
            for (int i = 0; i < TILE / STRIDE; ++i) sum[i] = fmaf(sh[ty + i * STRIDE][j], sw[tx][j], sum[i]);
        __syncthreads();
    }
    if (col >= width) return;
    for (int i = 0; i < TILE / STRIDE; ++i) {
        const int row = first + ty + i * STRIDE;
        if (row < rows) out[(long)row * width + col] = x[(long)row * width + col] + (sum[i] + bias[col]) * scale[col];
    }
}

torch::Tensor glu_block(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps, torch::Tensor wv,
                        torch::Tensor bv, torch::Tensor wg, torch::Tensor bg, torch::Tensor wo, torch::Tensor bo,
                        torch::Tensor scale) {
    const int rows = x.size(0), width = x.size(1), hidden = wv.size(0);
    auto normed = torch::empty_like(x);
    auto h = torch::empty({rows, hidden}, x.options());
    auto out = torch::empty_like(x);
    auto stream = at::cuda::getCurrentCUDAStream();
    const dim3 block(TILE, STRIDE);
    layer_norm_kernel<<<rows, 256, 0, stream>>>(x.data_ptr<float>(), gamma.data_ptr<float>(), beta.data_ptr<float>(),
                                                normed.data_ptr<float>(), width, (float)eps);
    const dim3 wide((hidden + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    gated_product_kernel<<<wide, block, 0, stream>>>(
        normed.data_ptr<float>(), wv.data_ptr<float>(), bv.data_ptr<float>(), wg.data_ptr<float>(),
        bg.data_ptr<float>(), h.data_ptr<float>(), rows, width, hidden);
    const dim3 narrow((width + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    output_product_kernel<<<narrow, block, 0, stream>>>(
        h.data_ptr<float>(), wo.data_ptr<float>(), bo.data_ptr<float>(), scale.data_ptr<float>(), x.data_ptr<float>(),
        out.data_ptr<float>(), rows, hidden, width);
    return out;
}
"""
block_module = load_inline(
    name="gated_linear_unit_block_products",
    cpp_sources="torch::Tensor glu_block(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps, "
    "torch::Tensor wv, torch::Tensor bv, torch::Tensor wg, torch::Tensor bg, torch::Tensor wo, torch::Tensor bo, "
    "torch::Tensor scale);",
    cuda_sources=products_source,
    functions=["glu_block"],
    extra_cuda_cflags=["-O3"],
)
'''

_CUDA_NORM_AND_GATE = '''
from torch.utils.cpp_extension import load_inline

pieces_source = r"""
#include <torch/extension.h>

// one thread per row
__global__ void layer_norm_rows(const float* x, const float* gamma, const float* beta, float* out, int rows,
                                int width, float eps) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* line = x + (long)row * width;
    float mean = 0.0f;
    for (int i = 0; i < width; i++) mean += line[i];
    mean /= width;
    float var = 0.0f;
    for (int i = 0; i < width; i++) var += (line[i] - mean) * (line[i] - mean);
    var /= width;
    float inverse = 1.0f / sqrtf(var + eps);
    for (int i = 0; i < width; i++) out[(long)row * width + i] = (line[i] - mean) * inverse * gamma[i] + beta[i];
}

__global__ void multiply_sigmoid(float* value, const float* gate, long total) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total) value[i] *= 1.0f / (1.0f + expf(-gate[i]));
}

torch::Tensor layer_norm(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(x.is_contiguous() && x.dim() == 2, "x must be a contiguous matrix");
    auto out = torch::empty_like(x);
    int rows = x.size(0), width = x.size(1);
    layer_norm_rows<<<(rows + 31) / 32, 32>>>(x.data_ptr<float>(), gamma.data_ptr<float>(), beta.data_ptr<float>(),
                                              out.data_ptr<float>(), rows, width, (float)eps);
    return out;
}

torch::Tensor gate_(torch::Tensor value, torch::Tensor gate) {
    TORCH_CHECK(value.is_contiguous() && gate.is_contiguous(), "contiguous tensors expected");
    TORCH_CHECK(value.sizes() == gate.sizes(), "shapes must agree");
    long total = value.numel();
    multiply_sigmoid<<<(total + 255) / 256, 256>>>(value.data_ptr<float>(), gate.data_ptr<float>(), total);
    return value;
}
"""
pieces_module = load_inline(
    name="gated_linear_unit_block_pieces",
    cpp_sources="torch::Tensor layer_norm(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps); "
    "torch::Tensor gate_(torch::Tensor value, torch::Tensor gate);",
    cuda_sources=pieces_source,
    functions=["layer_norm", "gate_"],
)
'''

MODULE = Rewritten(
    name="gated_linear_unit_block",
    sizes="""
        rows = 2048
        width = 768
        hidden = 2048
    """,
    arguments=("width", "hidden"),
    takes="x",
    inputs="[torch.randn(rows, width)]",
    reference=Body(
        summary="A pre-norm gated linear unit with a learned scale per feature in its residual branch.",
        init=_INIT,
        forward="""
            h = self.norm(x)
            h = self.value(h) * torch.sigmoid(self.gate(h))
            h = self.out(h)
            return x + h * self.scale
        """,
    ),
    rewrites={
        "packed_glu": Body(
            init=_INIT + _PACKED,
            forward="""
                h = F.glu(F.linear(self.norm(x), self.both_weight, self.both_bias), dim=-1)
                return torch.addcmul(x, self.out(h), self.scale)
            """,
        ),
        "all_folded": Body(
            summary="""A gated linear unit with everything linear folded into two products.

    The norm's scale and shift go into the packed projections, the learned scale into the projection back, and
    the residual is the addend of the last product.
    """,
            init=_INIT
            + _PACKED
            + _SCALED_OUT
            + """
    with torch.no_grad():
        self.both_bias.add_(self.both_weight @ self.norm.bias)
        self.both_weight.mul_(self.norm.weight)
""",
            methods='''
                def _expand(self, x):
                    """Values in front of gates."""
                    normed = F.layer_norm(x, (x.shape[-1],), eps=self.norm.eps)
                    return F.linear(normed, self.both_weight, self.both_bias)
            ''',
            forward="""
                h = F.glu(self._expand(x), dim=-1)
                return torch.addmm(x + self.out_bias, h, self.out_t)
            """,
        ),
        "in_place": Body(
            forward="""
                h = self.norm(x)
                gate = self.gate(h).sigmoid_()
                h = self.value(h).mul_(gate)
                return self.out(h).mul_(self.scale).add_(x)
            """
        ),
        "scripted_tails": Body(
            before=_SCRIPTED,
            forward="""
                h = self.norm(x)
                h = scripted.gate(self.value(h), self.gate(h))
                return scripted.residual(x, self.out(h), self.scale)
            """,
        ),
        "row_chunks": Body(
            summary="""The block, a chunk of rows at a time.

    The wide activations of a chunk should stay in the cache until they are read again. The size of a chunk follows
    from a limit in bytes, and small inputs go through in one piece.
    """,
            init=_INIT + _PACKED + "\n    self.limit = 4 * 1024 * 1024\n",
            methods='''
                def _rows_at_once(self, x):
                    """As many rows as have their values and gates within the limit, in multiples of 64."""
                    per_row = self.both_weight.shape[0] * x.element_size()
                    return max(64, self.limit // per_row // 64 * 64)

                def _chunk(self, source, target):
                    """The block on some rows."""
                    both = F.linear(self.norm(source), self.both_weight, self.both_bias)
                    value, gate = both.chunk(2, dim=-1)
                    h = self.out(value * gate.sigmoid_())
                    torch.addcmul(source, h, self.scale, out=target)
            ''',
            forward="""
                out = torch.empty_like(x)
                rows = self._rows_at_once(x)
                if rows >= x.shape[0]:
                    self._chunk(x, out)
                    return out
                for source, target in zip(x.split(rows), out.split(rows)):
                    self._chunk(source, target)
                return out
            """,
        ),
        "triton_gate": Body(
            before=_GATE_KERNEL,
            init=_INIT + _PACKED + _SCALED_OUT,
            forward="""
                both = F.linear(self.norm(x), self.both_weight, self.both_bias)
                hidden = both.shape[1] // 2
                h = torch.empty(both.shape[0], hidden, device=x.device)
                gate_kernel[(both.shape[0], triton.cdiv(hidden, 1024))](both, h, hidden, BLOCK=1024)
                return torch.addmm(self.out_bias, h, self.out_t).add_(x)
            """,
        ),
        "triton_product_half": Body(
            summary="Both projections and the gate in one kernel, with half-precision operands.",
            before=_PRODUCT_KERNEL,
            init=_INIT
            + _SCALED_OUT
            + """
    self.register_buffer("value_half", self.value.weight.detach().half())
    self.register_buffer("gate_half", self.gate.weight.detach().half())
    self.register_buffer("out_half", self.out_t.half())
""",
            forward="""
                h = self.norm(x).half()
                rows, width = h.shape
                hidden = self.value_half.shape[0]
                y = torch.empty(rows, hidden, device=x.device, dtype=torch.float16)
                grid = (triton.cdiv(rows, 64), triton.cdiv(hidden, 64))
                gated_product_kernel[grid](
                    h, self.value_half, self.gate_half, self.value.bias, self.gate.bias, y, rows, width, hidden,
                    BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, num_warps=4, num_stages=3
                )
                return torch.mm(y, self.out_half).float().add_(self.out_bias).add_(x)
            """,
        ),
        "cuda_gate": Body(
            before=_CUDA,
            init=_INIT + _PACKED,
            forward="""
                both = F.linear(self.norm(x), self.both_weight, self.both_bias)
                return torch.addcmul(x, self.out(gate_module.gate_forward(both)), self.scale)
            """,
        ),
        "cuda_tiled_products": Body(
            before=_CUDA_PRODUCTS,
            forward="""
                norm, value, gate, out = self.norm, self.value, self.gate, self.out
                return block_module.glu_block(
                    x.contiguous(), norm.weight, norm.bias, norm.eps, value.weight, value.bias, gate.weight, gate.bias,
                    out.weight, out.bias, self.scale
                )
            """,
        ),
        "cuda_norm_and_gate": Body(
            summary="Layer norm and gate by kernels, the three products by the library.",
            before=_CUDA_NORM_AND_GATE,
            init=_INIT,
            methods='''
                def _fallback(self, x):
                    """The block by library calls, for other devices and types."""
                    h = self.norm(x)
                    h = self.value(h) * torch.sigmoid(self.gate(h))
                    return torch.addcmul(x, self.out(h), self.scale)
            ''',
            forward="""
                if not x.is_cuda or x.dtype != torch.float32 or x.dim() != 2:
                    return self._fallback(x)
                x = x.contiguous()
                h = pieces_module.layer_norm(x, self.norm.weight, self.norm.bias, self.norm.eps)
                h = pieces_module.gate_(self.value(h), self.gate(h))
                return torch.addcmul(x, self.out(h), self.scale)
            """,
        ),
    },
    carries_on="all_folded",
)
