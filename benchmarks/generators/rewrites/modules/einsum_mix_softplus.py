"""A 4-D tensor contracted with a matrix along its last axis, a shifted softplus and a scale per feature."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_TAIL = """
import triton
import triton.language as tl


@triton.jit
def softplus_scale_kernel(y_ptr, scale_ptr, total, features, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < total
    y = tl.load(y_ptr + at, mask=keep, other=0.0)
    scale = tl.load(scale_ptr + at % features, mask=keep, other=0.0)
    y = tl.maximum(y, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(y))) - shift
    tl.store(y_ptr + at, y * scale, mask=keep)
"""

_WHOLE = """
import triton
import triton.language as tl


@triton.jit
def mix_kernel(
    x_ptr, w_ptr, scale_ptr, out_ptr, M, N, shift,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(
            x_ptr + rows[:, None] * K + k[None, :],
            mask=(rows[:, None] < M) & (k[None, :] < K), other=0.0,
        )
        w = tl.load(
            w_ptr + k[:, None] * N + cols[None, :],
            mask=(k[:, None] < K) & (cols[None, :] < N), other=0.0,
        )
        # half precision in, single precision sums
        acc += tl.dot(x.to(tl.float16), w.to(tl.float16))
    scale = tl.load(scale_ptr + cols, mask=cols < N, other=0.0)
    y = tl.maximum(acc, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(acc))) - shift
    tl.store(
        out_ptr + rows[:, None] * N + cols[None, :], y * scale[None, :],
        mask=(rows[:, None] < M) & (cols[None, :] < N),
    )
"""

_INIT = """
    self.mix = nn.Parameter(torch.randn(channels, features) / channels**0.5)
    self.scale = nn.Parameter(torch.rand(features) + 0.5)
    self.shift = math.log(2.0)
"""

MODULE = Rewritten(
    name="einsum_mix_softplus",
    sizes="""
        batch_size = 16
        height = 48
        width = 64
        channels = 256
        features = 192
    """,
    arguments=("channels", "features"),
    takes="x",
    inputs="[torch.randn(batch_size, height, width, channels)]",
    reference=Body(
        summary="Mixes the last axis of a 4-D tensor, then softplus less log 2, and a scale per feature.",
        before="import math",
        init=_INIT,
        forward="""
            y = torch.einsum("bhwc,cf->bhwf", x, self.mix)
            y = F.softplus(y)
            y = y - self.shift
            y = y * self.scale
            return y
        """,
    ),
    rewrites={
        "flat_product": Body(
            before="import math",
            forward="""
                y = torch.mm(x.view(-1, x.shape[-1]), self.mix)
                y = F.softplus(y).sub_(self.shift).mul_(self.scale)
                return y.view(*x.shape[:-1], -1)
            """,
        ),
        "addcmul": Body(
            summary="Shift and scale in one pass: scale * softplus - scale * log 2.",
            before="import math",
            init=_INIT
            + """
    with torch.no_grad():
        self.register_buffer("offset", -self.shift * self.scale)
""",
            forward="""
                y = F.softplus(torch.matmul(x, self.mix))
                return torch.addcmul(self.offset, y, self.scale, out=y)
            """,
        ),
        "log1p_exp": Body(
            summary="Softplus written out in its stable form.",
            before="import math",
            forward="""
                y = x @ self.mix
                y = torch.clamp(y, min=0.0) + torch.log1p(torch.exp(-torch.abs(y)))
                return (y - self.shift) * self.scale
            """,
        ),
        "logaddexp": Body(
            before="import math",
            init=_INIT
            + """
    self.register_buffer("zero", torch.zeros(()))
""",
            forward="""
                y = F.linear(x, self.mix.t())
                return (torch.logaddexp(y, self.zero) - self.shift).mul_(self.scale)
            """,
        ),
        "batched_shared": Body(
            summary="A batched product with one item per image row, all of them with the same matrix.",
            before="import math",
            forward="""
                b, h, w, c = x.shape
                rows = x.reshape(b * h, w, c)
                mix = self.mix.unsqueeze(0).expand(b * h, -1, -1).contiguous()
                y = torch.bmm(rows, mix)
                y = (F.softplus(y) - self.shift) * self.scale
                return y.reshape(b, h, w, -1)
            """,
        ),
        "split_channels": Body(
            summary="Adds up the products of eight slices of the channels.",
            before="import math",
            forward="""
                flat = x.reshape(-1, x.shape[-1])
                y = flat.new_zeros(flat.shape[0], self.mix.shape[1])
                for piece, weight in zip(flat.chunk(8, dim=1), self.mix.chunk(8, dim=0)):
                    y.addmm_(piece, weight)
                y = F.softplus(y)
                y -= self.shift
                y *= self.scale
                return y.reshape(x.shape[:-1] + (-1,))
            """,
        ),
        "pointwise_conv": Body(
            summary="The contraction as a 1x1 convolution, with channels moved to where that wants them.",
            before="import math",
            forward="""
                images = x.permute(0, 3, 1, 2).contiguous()
                y = F.conv2d(images, self._kernel())
                y = self._activate(y)
                return y.permute(0, 2, 3, 1).contiguous()
            """,
            methods="""
                def _kernel(self):
                    return self.mix.t().contiguous()[:, :, None, None]

                def _activate(self, y):
                    scale = self.scale.view(1, -1, 1, 1)
                    return (F.softplus(y) - self.shift) * scale
            """,
        ),
        "triton_tail": Body(
            before="import math\n" + _TAIL,
            forward="""
                y = torch.matmul(x, self.mix)
                total = y.numel()
                softplus_scale_kernel[(triton.cdiv(total, 1024),)](
                    y, self.scale, total, y.shape[-1], self.shift, BLOCK=1024
                )
                return y
            """,
        ),
        "triton_half_whole": Body(
            before="import math\n" + _WHOLE,
            forward="""
                flat = x.reshape(-1, x.shape[-1]).contiguous()
                m, k = flat.shape
                n = self.mix.shape[1]
                out = torch.empty(m, n, device=x.device, dtype=x.dtype)
                grid = (triton.cdiv(m, 128), triton.cdiv(n, 64))
                mix_kernel[grid](
                    flat, self.mix, self.scale, out, m, n, self.shift, K=k, BM=128, BN=64, BK=64, num_warps=8
                )
                return out.view(*x.shape[:-1], n)
            """,
        ),
    },
    carries_on="addcmul",
)
