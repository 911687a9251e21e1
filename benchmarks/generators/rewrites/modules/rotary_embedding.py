"""Rotary position embedding of queries by rotated halves, with angles made anew at each call."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def rotate(x_ptr, cos_ptr, sin_ptr, out_ptr, length, rows, HALF: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, HALF)
    keep = (row < rows)[:, None]
    place = (row % length)[:, None] * HALF + cols[None, :]
    at = row.to(tl.int64)[:, None] * (2 * HALF) + cols[None, :]
    cos = tl.load(cos_ptr + place, mask=keep, other=0.0)
    sin = tl.load(sin_ptr + place, mask=keep, other=0.0)
    left = tl.load(x_ptr + at, mask=keep, other=0.0)
    right = tl.load(x_ptr + at + HALF, mask=keep, other=0.0)
    tl.store(out_ptr + at, left * cos - right * sin, mask=keep)
    tl.store(out_ptr + at + HALF, right * cos + left * sin, mask=keep)
"""

_TABLES = """
    self.head_size = head_size
    self.length = length
    position = torch.arange(length).float()
    frequency = 1.0 / (10000.0 ** (torch.arange(0, head_size, 2).float() / head_size))
    angles = torch.outer(position, frequency)
    self.register_buffer("cos", angles.cos())
    self.register_buffer("sin", angles.sin())
"""

_CUDA_ANGLES = '''
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One thread per output element; the angle is computed on the fly.
__global__ void rope_kernel(const float* x, float* out, int length, int head_size, long total) {
    long idx = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int d = idx % head_size;
    int position = (idx / head_size) % length;
    int half = head_size / 2;
    int pair = d % half;
    float frequency = 1.0f / powf(10000.0f, (2.0f * pair) / head_size);
    float angle = position * frequency;
    float rotated = d < half ? -x[idx + half] : x[idx - half];
    out[idx] = x[idx] * cosf(angle) + rotated * sinf(angle);
}

torch::Tensor rope_forward(torch::Tensor x) {
    auto out = torch::empty_like(x);
    long total = x.numel();
    int threads = 256;
    rope_kernel<<<(total + threads - 1) / threads, threads>>>(x.data_ptr<float>(), out.data_ptr<float>(),
                                                              (int)x.size(2), (int)x.size(3), total);
    return out;
}
"""

rope_module = load_inline(
    name="rotary_embedding_angles",
    cpp_sources="torch::Tensor rope_forward(torch::Tensor x);",
    cuda_sources=source,
    functions=["rope_forward"],
    verbose=False,
)
'''

_CUDA_QUADS = '''
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

// Four pairs per thread: a quad from the left half and its partner from the right one.
__global__ void rotate_quads(const float4* __restrict__ x, const float4* __restrict__ cosines,
                             const float4* __restrict__ sines, float4* __restrict__ out, int length, int half_quads,
                             int64_t total) {
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= total) return;
    const int64_t row = i / half_quads;
    const int d = i % half_quads;
    const int64_t left_at = row * 2 * half_quads + d;
    const int64_t right_at = left_at + half_quads;
    const int64_t table_at = (row % length) * half_quads + d;
    const float4 l = x[left_at], r = x[right_at];
    const float4 c = cosines[table_at], s = sines[table_at];
    out[left_at] = make_float4(l.x * c.x - r.x * s.x, l.y * c.y - r.y * s.y, l.z * c.z - r.z * s.z,
                               l.w * c.w - r.w * s.w);
    out[right_at] = make_float4(r.x * c.x + l.x * s.x, r.y * c.y + l.y * s.y, r.z * c.z + l.z * s.z,
                                r.w * c.w + l.w * s.w);
}

torch::Tensor rotate_quads_cuda(torch::Tensor x, torch::Tensor cosines, torch::Tensor sines) {
    TORCH_CHECK(x.is_cuda() && cosines.is_cuda() && sines.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(x.is_contiguous() && cosines.is_contiguous() && sines.is_contiguous(), "dense tensors expected");
    TORCH_CHECK(x.size(-1) % 8 == 0, "head size must be a multiple of eight");
    TORCH_CHECK(cosines.size(0) >= x.size(-2), "tables are too short");
    auto out = torch::empty_like(x);
    const int64_t total = x.numel() / 8;
    const int threads = 256;
    rotate_quads<<<(total + threads - 1) / threads, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<const float4*>(x.data_ptr<float>()),
        reinterpret_cast<const float4*>(cosines.data_ptr<float>()),
        reinterpret_cast<const float4*>(sines.data_ptr<float>()), reinterpret_cast<float4*>(out.data_ptr<float>()),
        (int)x.size(-2), (int)(x.size(-1) / 8), total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

quads = load_inline(
    name="rotary_embedding_quads",
    cpp_sources="torch::Tensor rotate_quads_cuda(torch::Tensor x, torch::Tensor cosines, torch::Tensor sines);",
    cuda_sources=cuda_source,
    functions=["rotate_quads_cuda"],
    extra_cuda_cflags=["-O3"],
)
'''

MODULE = Rewritten(
    name="rotary_embedding",
    sizes="""
        batch_size = 8
        heads = 16
        length = 2048
        head_size = 128
    """,
    arguments=("head_size", "length"),
    takes="x",
    inputs="[torch.randn(batch_size, heads, length, head_size)]",
    reference=Body(
        summary="Rotates pairs of features by angles that grow with the position.",
        init="""
            self.head_size = head_size
            self.length = length
        """,
        forward="""
            position = torch.arange(x.shape[2], device=x.device).float()
            exponent = torch.arange(0, self.head_size, 2, device=x.device).float() / self.head_size
            frequency = 1.0 / (10000.0 ** exponent)
            angles = position[:, None] * frequency[None, :]
            angles = torch.cat([angles, angles], dim=-1)[None, None]
            cos = angles.cos().expand_as(x).contiguous()
            sin = angles.sin().expand_as(x).contiguous()
            half = self.head_size // 2
            rotated = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
            return x * cos + rotated * sin
        """,
    ),
    rewrites={
        "cached_tables": Body(
            init=_TABLES,
            forward="""
                cos = torch.cat([self.cos, self.cos], dim=-1)
                sin = torch.cat([self.sin, self.sin], dim=-1)
                left, right = x.chunk(2, dim=-1)
                return x * cos + torch.cat([-right, left], dim=-1) * sin
            """,
        ),
        "roll_signed_sine": Body(
            init=_TABLES
            + """
    self.register_buffer("cos_twice", torch.cat([self.cos, self.cos], dim=-1))
    self.register_buffer("signed_sin", torch.cat([-self.sin, self.sin], dim=-1))
""",
            forward="""
                rolled = torch.roll(x, self.head_size // 2, dims=-1)
                return rolled.mul_(self.signed_sin).addcmul_(x, self.cos_twice)
            """,
        ),
        "halves_into_result": Body(
            init=_TABLES,
            forward="""
                half = self.head_size // 2
                left, right = x[..., :half], x[..., half:]
                out = torch.empty_like(x)
                torch.mul(left, self.cos, out=out[..., :half])
                out[..., :half].addcmul_(right, self.sin, value=-1)
                torch.mul(right, self.cos, out=out[..., half:])
                out[..., half:].addcmul_(left, self.sin)
                return out
            """,
        ),
        "complex_product": Body(
            init=_TABLES
            + '    self.register_buffer("phase", torch.polar(torch.ones_like(angles), angles))\n',
            forward="""
                left, right = x.float().chunk(2, dim=-1)
                turned = torch.complex(left, right) * self.phase
                return torch.cat([turned.real, turned.imag], dim=-1)
            """,
        ),
        "lazy_cache": Body(
            summary="""Rotary embedding with tables that grow on demand.

    Tables of cosines and sines are kept per device and type, and built again only for a longer sequence.
    """,
            init="""
                self.head_size = head_size
                self.length = length
                self.base = 10000.0
                self._tables = {}
            """,
            methods="""
                def _build(self, length, device, dtype):
                    position = torch.arange(length, device=device).float()
                    exponent = torch.arange(0, self.head_size, 2, device=device).float() / self.head_size
                    angles = torch.outer(position, 1.0 / (self.base**exponent))
                    return angles.cos().to(dtype), angles.sin().to(dtype)

                def _lookup(self, x):
                    key = (x.device, x.dtype)
                    tables = self._tables.get(key)
                    if tables is None or tables[0].shape[0] < x.shape[-2]:
                        tables = self._build(max(x.shape[-2], self.length), x.device, x.dtype)
                        self._tables[key] = tables
                    return tables[0][: x.shape[-2]], tables[1][: x.shape[-2]]
            """,
            forward="""
                if x.shape[-1] != self.head_size:
                    raise ValueError(f"expected heads of size {self.head_size}, got {x.shape[-1]}")
                cos, sin = self._lookup(x)
                left, right = x.chunk(2, dim=-1)
                return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
            """,
        ),
        "rotation_einsum": Body(
            init=_TABLES
            + """
    rotation = torch.stack([torch.stack([self.cos, -self.sin]), torch.stack([self.sin, self.cos])])
    self.register_buffer("rotation", rotation)
""",
            forward="""
                pairs = x.unflatten(-1, (2, self.head_size // 2))
                return torch.einsum("oilk,bhlik->bhlok", self.rotation, pairs).flatten(-2)
            """,
        ),
        "triton_rotate": Body(
            before=_KERNEL,
            init=_TABLES,
            forward="""
                x = x.contiguous()
                out = torch.empty_like(x)
                rows = x.numel() // x.shape[-1]
                rotate[(triton.cdiv(rows, 16),)](
                    x, self.cos, self.sin, out, x.shape[-2], rows, HALF=x.shape[-1] // 2, ROWS=16, num_warps=4
                )
                return out
            """,
        ),
        "cuda_angles_per_element": Body(
            before=_CUDA_ANGLES,
            forward="return rope_module.rope_forward(x.contiguous())",
        ),
        "cuda_quads_with_tables": Body(
            summary="""Rotary embedding with tables made by PyTorch and a kernel for the rotation.

    The tables follow the device of the module; longer sequences than they hold are rotated in plain PyTorch.
    """,
            before=_CUDA_QUADS,
            init=_TABLES,
            methods='''
                def _kernel_fits(self, x):
                    """Single precision on the GPU, no longer than the tables, halves in whole quads."""
                    if not x.is_cuda or x.dtype != torch.float32:
                        return False
                    return x.shape[-2] <= self.cos.shape[0] and x.shape[-1] % 8 == 0

                def _rotate(self, x):
                    position = torch.arange(x.shape[-2], device=x.device).float()
                    exponent = torch.arange(0, self.head_size, 2, device=x.device).float() / self.head_size
                    angles = torch.outer(position, 1.0 / (10000.0**exponent))
                    cos, sin = angles.cos(), angles.sin()
                    left, right = x.chunk(2, dim=-1)
                    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
            ''',
            forward="""
                if self._kernel_fits(x):
                    return quads.rotate_quads_cuda(x.contiguous(), self.cos, self.sin)
                return self._rotate(x)
            """,
        ),
    },
    carries_on="roll_signed_sine",
)
