"""Attention with a feature map in place of the softmax, a gain per head and a layer norm."""

from benchmarks.generators.rewrites.module import Body, Rewritten

_SUMS_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def features(x):
    return tl.where(x > 0, x + 1.0, tl.exp(tl.minimum(x, 0.0)))


@triton.jit
def sums_kernel(k_ptr, v_ptr, kv_ptr, z_ptr, length, per_part, D: tl.constexpr, BLOCK: tl.constexpr):
    # a part of the sequence of one head: adds its share of phi(k)^T v and of the sum of phi(k)
    head = tl.program_id(0)
    d = tl.arange(0, D)
    kv = tl.zeros((D, D), dtype=tl.float32)
    z = tl.zeros((D,), dtype=tl.float32)
    start = tl.program_id(1) * per_part
    for first in range(start, tl.minimum(start + per_part, length), BLOCK):
        n = first + tl.arange(0, BLOCK)
        inside = (n < length) & (n < start + per_part)
        at = (head * length + n[:, None]) * D + d[None, :]
        k = features(tl.load(k_ptr + at, mask=inside[:, None], other=0.0))
        k = tl.where(inside[:, None], k, 0.0)
        v = tl.load(v_ptr + at, mask=inside[:, None], other=0.0)
        kv += tl.dot(tl.trans(k), v, input_precision="ieee")
        z += tl.sum(k, axis=0)
    tl.atomic_add(kv_ptr + (head * D + d[:, None]) * D + d[None, :], kv)
    tl.atomic_add(z_ptr + head * D + d, z)


@triton.jit
def read_kernel(q_ptr, kv_ptr, z_ptr, gain_ptr, weight_ptr, bias_ptr, out_ptr, heads, length, eps, tiny,
                D: tl.constexpr, BLOCK: tl.constexpr):
    head = tl.program_id(1)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    inside = n[:, None] < length
    q = features(tl.load(q_ptr + (head * length + n[:, None]) * D + d[None, :], mask=inside, other=0.0))
    kv = tl.load(kv_ptr + (head * D + d[:, None]) * D + d[None, :])
    z = tl.load(z_ptr + head * D + d)
    y = tl.dot(q, kv, input_precision="ieee") / (tl.sum(q * z[None, :], axis=1) + tiny)[:, None]
    y = y * tl.load(gain_ptr + head % heads)
    mean = tl.sum(y, axis=1) / D
    y = y - mean[:, None]
    y = y * tl.rsqrt(tl.sum(y * y, axis=1) / D + eps)[:, None]
    y = y * tl.load(weight_ptr + d)[None, :] + tl.load(bias_ptr + d)[None, :]
    row = (head // heads * length + n[:, None]) * heads + head % heads
    tl.store(out_ptr + row * D + d[None, :], y, mask=inside)
"""

_QUADRATIC_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def quadratic_kernel(q_ptr, k_ptr, v_ptr, out_ptr, length, tiny, D: tl.constexpr, BLOCK_M: tl.constexpr,
                     BLOCK_N: tl.constexpr):
    # q and k have been through the feature map; every tile of queries meets every tile of keys
    head = tl.program_id(1)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    q_at = (head * length + m[:, None]) * D + d[None, :]
    q = tl.load(q_ptr + q_at, mask=m[:, None] < length, other=0.0)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    for first in range(0, length, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        at = (head * length + n[:, None]) * D + d[None, :]
        k = tl.load(k_ptr + at, mask=n[:, None] < length, other=0.0)
        v = tl.load(v_ptr + at, mask=n[:, None] < length, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        total += tl.sum(s, axis=1)
        acc += tl.dot(s, v, input_precision="ieee")
    tl.store(out_ptr + q_at, acc / (total + tiny)[:, None], mask=m[:, None] < length)
"""

_SCRIPTED = '''
scripted = torch.jit.CompilationUnit("""
def features(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1.0, torch.exp(x))

def attend(q: Tensor, k: Tensor, v: Tensor, gain: Tensor) -> Tensor:
    q = features(q)
    k = features(k)
    kv = torch.matmul(k.transpose(2, 3), v)
    z = k.sum(dim=2).unsqueeze(3)
    y = torch.matmul(q, kv) / (torch.matmul(q, z) + 1e-6)
    return (y * gain).transpose(1, 2)
""")
'''

_INIT = """
    self.gain = nn.Parameter(torch.rand(heads, 1, 1) + 0.5)
    self.norm = nn.LayerNorm(head_size)
"""

MODULE = Rewritten(
    name="kernel_feature_attention",
    sizes="""
        batch_size = 2
        heads = 8
        length = 2048
        head_size = 64
    """,
    arguments=("heads", "head_size"),
    takes="q, k, v",
    inputs="[torch.randn(batch_size, heads, length, head_size) for _ in range(3)]",
    reference=Body(
        summary="Attention whose weights are products of positive features, normalised over the keys.",
        init=_INIT,
        forward="""
            q = F.elu(q) + 1
            k = F.elu(k) + 1
            weights = torch.matmul(q, k.transpose(-2, -1))
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-6)
            y = torch.matmul(weights, v)
            y = (y * self.gain).transpose(1, 2)
            y = self.norm(y)
            return y.reshape(y.shape[0], y.shape[1], -1)
        """,
    ),
    rewrites={
        "keys_with_values_first": Body(
            summary="The product is associative: keys meet values first, and no matrix of weights is made.",
            forward="""
                q = F.elu(q) + 1
                k = F.elu(k) + 1
                kv = torch.matmul(k.transpose(-2, -1), v)
                total = torch.matmul(q, k.sum(dim=2).unsqueeze(-1)) + 1e-6
                y = torch.matmul(q, kv) / total
                y = self.norm((y * self.gain).transpose(1, 2))
                return y.flatten(2)
            """,
        ),
        "column_of_ones": Body(
            summary="""Linear attention with its normaliser in the same product.

    Values get a further column of ones, whose product with keys is the sum of keys, so that a single product with
    the queries gives numerators and denominator. Columns are padded to a multiple of eight.
    """,
            init=_INIT + "\n    self._wide = None\n",
            methods='''
                def _values_and_ones(self, v):
                    """Values, a column of ones, and zeros; all but the values is written once."""
                    shape = (*v.shape[:-1], v.shape[-1] + 8)
                    if self._wide is None or self._wide.shape != shape or self._wide.device != v.device:
                        self._wide = torch.zeros(shape, device=v.device, dtype=v.dtype)
                        self._wide[..., v.shape[-1]] = 1.0
                    self._wide[..., : v.shape[-1]] = v
                    return self._wide
            ''',
            forward="""
                D = v.shape[-1]
                k = F.elu(k).add_(1.0)
                summed = k.transpose(-2, -1) @ self._values_and_ones(v)
                y = F.elu(q).add_(1.0) @ summed
                y = y[..., :D] * (self.gain / (y[..., D : D + 1] + 1e-6))
                return self.norm(y.transpose(1, 2)).flatten(2)
            """,
        ),
        "einsum": Body(
            forward="""
                q, k = F.elu(q) + 1, F.elu(k) + 1
                kv = torch.einsum("bhnd,bhne->bhde", k, v)
                z = 1 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(2)) + 1e-6)
                y = torch.einsum("bhnd,bhde,bhn->bnhe", q, kv, z)
                y = self.norm(y * self.gain.view(1, 1, -1, 1))
                return y.reshape(y.shape[0], y.shape[1], -1)
            """
        ),
        "normalised_afterwards": Body(
            summary="The output is divided rather than the weights; the sums come from the sum of the keys.",
            forward="""
                q = F.elu(q).add_(1)
                k = F.elu(k).add_(1)
                total = torch.matmul(q, k.sum(dim=-2, keepdim=True).transpose(-2, -1)).add_(1e-6)
                y = torch.matmul(torch.matmul(q, k.transpose(-2, -1)), v)
                y = y.div_(total).mul_(self.gain).transpose(1, 2)
                return self.norm(y).flatten(2)
            """,
        ),
        "query_chunks": Body(
            summary="Queries in chunks, so that only a strip of the weights is in memory.",
            forward="""
                q = F.elu(q) + 1
                k_t = (F.elu(k) + 1).transpose(-2, -1)
                strips = []
                for part in q.split(256, dim=2):
                    weights = part @ k_t
                    weights.div_(weights.sum(dim=-1, keepdim=True).add_(1e-6))
                    strips.append(weights @ v)
                y = torch.cat(strips, dim=2).mul_(self.gain)
                y = self.norm(y.transpose(1, 2).contiguous())
                return y.view(y.shape[0], y.shape[1], -1)
            """,
        ),
        "outer_products_summed": Body(
            summary="Outer products of keys and values, a block of positions at a time, summed elementwise.",
            forward="""
                B, H, N, D = q.shape
                q = F.elu(q) + 1
                k = F.elu(k) + 1
                kv = q.new_zeros(B, H, D, D)
                for start in range(0, N, 512):
                    block = slice(start, start + 512)
                    kv += (k[:, :, block, :, None] * v[:, :, block, None, :]).sum(dim=2)
                total = (q * k.sum(dim=2, keepdim=True)).sum(dim=-1, keepdim=True) + 1e-6
                y = q @ kv / total
                y = self.norm((y * self.gain).transpose(1, 2))
                return y.reshape(B, N, H * D)
            """,
        ),
        "scripted": Body(
            before=_SCRIPTED,
            forward="""
                y = scripted.attend(q, k, v, self.gain)
                y = F.layer_norm(y, y.shape[-1:], self.norm.weight, self.norm.bias, self.norm.eps)
                return y.flatten(2)
            """,
        ),
        "triton_two_kernels": Body(
            summary="One kernel sums keys with values, another reads them with the queries and normalises.",
            before=_SUMS_KERNEL,
            forward="""
                B, H, N, D = q.shape
                q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
                kv = torch.zeros(B * H, D, D, device=q.device)
                z = torch.zeros(B * H, D, device=q.device)
                out = torch.empty(B, N, H * D, device=q.device)
                sums_kernel[(B * H, triton.cdiv(N, 256))](k, v, kv, z, N, 256, D=D, BLOCK=32)
                read_kernel[(triton.cdiv(N, 64), B * H)](
                    q, kv, z, self.gain, self.norm.weight, self.norm.bias, out, H, N, self.norm.eps, 1e-6, D=D, BLOCK=64
                )
                return out
            """,
        ),
        "triton_quadratic_tiles": Body(
            before=_QUADRATIC_KERNEL,
            forward="""
                B, H, N, D = q.shape
                q = (F.elu(q) + 1).contiguous()
                k = (F.elu(k) + 1).contiguous()
                y = torch.empty_like(q)
                quadratic_kernel[(triton.cdiv(N, 64), B * H)](
                    q, k, v.contiguous(), y, N, 1e-6, D=D, BLOCK_M=64, BLOCK_N=32
                )
                y = self.norm((y * self.gain).transpose(1, 2))
                return y.flatten(2)
            """,
        ),
    },
    in_half=False,
    carries_on="keys_with_values_first",
)
