"""PyTorch families of the recorded task ``gdn_recompute_w_u``."""

from __future__ import annotations

from benchmarks.generators.pool import Draft
from benchmarks.generators.tasks.gdn_shared import preludes, tf32_run
from benchmarks.generators.text import begin_run, fill, wrap_run

TORCH = {
    ("matmul", "transposed"): """
import torch


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    n = T // 64
    # [B, n, H, 64, D]
    kc = k.view(B, n, 64, H, K).transpose(2, 3)
    vc = v.view(B, n, 64, H, V).transpose(2, 3)
    bc = beta.view(B, n, 64, H).transpose(2, 3).unsqueeze(-1)
    gc = g.view(B, n, 64, H).transpose(2, 3).unsqueeze(-1)
    ac = A.view(B, n, 64, H, 64).transpose(2, 3)
    u = ac @ (vc * bc)
    w = ac @ (kc * bc * gc.exp())
    return w.transpose(2, 3).reshape(B, T, H, K), u.transpose(2, 3).reshape(B, T, H, V)
""",
    ("matmul", "columns_of_a"): '''
import torch


def run(k, v, beta, A, g):
    """The factors go into the columns of A, which is smaller than keys and values."""
    B, T, H, K = k.shape
    V = v.shape[-1]
    n = T // 64
    a = A.view(B, n, 64, H, 64).transpose(2, 3)
    a = a * beta.view(B, n, 64, H).transpose(2, 3).unsqueeze(-2)
    u = a @ v.view(B, n, 64, H, V).transpose(2, 3)
    a = a * torch.exp(g).view(B, n, 64, H).transpose(2, 3).unsqueeze(-2)
    w = a @ k.view(B, n, 64, H, K).transpose(2, 3)
    return w.transpose(2, 3).contiguous().view(B, T, H, K), u.transpose(2, 3).contiguous().view(B, T, H, V)
''',
    ("matmul", "concatenated"): """
import torch


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    n = T // 64
    x = torch.cat([k * torch.exp(g).unsqueeze(-1), v], dim=-1) * beta.unsqueeze(-1)
    x = x.view(B, n, 64, H, K + V).transpose(2, 3)
    y = A.view(B, n, 64, H, 64).transpose(2, 3) @ x
    y = y.transpose(2, 3).reshape(B, T, H, K + V)
    return y[..., :K].contiguous(), y[..., K:].contiguous()
""",
    ("einsum", "two"): """
import torch


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    N = T // 64
    a = A.view(B, N, 64, H, 64)
    kb = (k * beta[..., None] * g.exp()[..., None]).view(B, N, 64, H, K)
    vb = (v * beta[..., None]).view(B, N, 64, H, V)
    w = torch.einsum("bnihj,bnjhk->bnihk", a, kb)
    u = torch.einsum("bnihj,bnjhv->bnihv", a, vb)
    return w.reshape(B, T, H, K), u.reshape(B, T, H, V)
""",
    ("einsum", "long_subscripts"): """
import torch


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    C = 64
    a, kc, vc = (x.reshape(B, T // C, C, H, x.size(-1)) for x in (A, k, v))
    bc, gc = (x.reshape(B, T // C, C, H) for x in (beta, g))
    w = torch.einsum("bnihj,bnjhk,bnjh,bnjh->bnihk", a, kc, bc, torch.exp(gc))
    u = torch.einsum("bnihj,bnjhv,bnjh->bnihv", a, vc, bc)
    return w.reshape_as(k), u.reshape_as(v)
""",
    ("bmm", "contiguous"): """
import torch


def to_chunks(x):
    B, T, H, D = x.shape
    return x.view(B, T // 64, 64, H, D).permute(0, 1, 3, 2, 4).contiguous().view(-1, 64, D)


def from_chunks(y, like):
    B, T, H, D = like.shape
    return y.view(B, T // 64, H, 64, D).permute(0, 1, 3, 2, 4).contiguous().view(B, T, H, D)


def run(k, v, beta, A, g):
    a = to_chunks(A)
    b = to_chunks(beta.unsqueeze(-1))
    e = torch.exp(to_chunks(g.unsqueeze(-1)))
    u = torch.bmm(a, to_chunks(v) * b)
    w = torch.bmm(a, to_chunks(k) * (b * e))
    return from_chunks(w, k), from_chunks(u, v)
""",
    ("bmm", "in_place"): """
import torch


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    N = T // 64

    def rows(x, d):
        return x.reshape(B, N, 64, H, d).transpose(2, 3).reshape(B * N * H, 64, d)

    a = rows(A, 64).clone().mul_(rows(beta, 1).mT)
    u = torch.bmm(a, rows(v, V))
    w = torch.bmm(a.mul_(rows(g, 1).exp().mT), rows(k, K))
    u = u.view(B, N, H, 64, V).transpose(2, 3).reshape(B, T, H, V)
    return w.view(B, N, H, 64, K).transpose(2, 3).reshape(B, T, H, K), u
""",
    ("chunk_loop", "all_heads"): """
import torch


def run(k, v, beta, A, g):
    w = torch.empty_like(k)
    u = torch.empty_like(v)
    for n in range(k.shape[1] // 64):
        s = slice(n * 64, (n + 1) * 64)
        a = A[:, s].transpose(1, 2)
        b = beta[:, s].transpose(1, 2).unsqueeze(-1)
        e = g[:, s].transpose(1, 2).unsqueeze(-1).exp()
        u[:, s] = (a @ (v[:, s].transpose(1, 2) * b)).transpose(1, 2)
        w[:, s] = (a @ (k[:, s].transpose(1, 2) * b * e)).transpose(1, 2)
    return w, u
""",
    ("chunk_loop", "list_and_cat"): """
import torch


def one_chunk(k, v, b, a, g):
    kb = k * (b * g.exp())[..., None]
    return torch.einsum("bihj,bjhd->bihd", a, kb), torch.einsum("bihj,bjhd->bihd", a, v * b[..., None])


def run(k, v, beta, A, g):
    pieces = [one_chunk(*p) for p in zip(*(x.split(64, 1) for x in (k, v, beta, A, g)))]
    return torch.cat([w for w, _ in pieces], 1), torch.cat([u for _, u in pieces], 1)
""",
    ("head_loop", "matmul"): """
import torch


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    w = torch.zeros_like(k)
    u = torch.zeros_like(v)
    for b in range(B):
        for h in range(H):
            a = A[b, :, h].reshape(-1, 64, 64)
            s = beta[b, :, h, None]
            u[b, :, h] = torch.bmm(a, (v[b, :, h] * s).view(-1, 64, V)).view(T, V)
            s = s * g[b, :, h, None].exp()
            w[b, :, h] = torch.bmm(a, (k[b, :, h] * s).view(-1, 64, K)).view(T, K)
    return w, u
""",
    ("row_loop", "accumulate"): """
import torch


def run(k, v, beta, A, g):
    # walk over the 64 positions of all chunks at once
    B, T, H, K = k.shape
    V = v.shape[-1]
    N = T // 64
    a = A.view(B, N, 64, H, 64)
    kb = (k * (beta * g.exp())[..., None]).view(B, N, 64, H, K)
    vb = (v * beta[..., None]).view(B, N, 64, H, V)
    w, u = torch.zeros_like(kb), torch.zeros_like(vb)
    for j in range(64):
        w[:, :, j:] += a[:, :, j:, :, j, None] * kb[:, :, j:j + 1]
        u[:, :, j:] += a[:, :, j:, :, j, None] * vb[:, :, j:j + 1]
    return w.view(B, T, H, K), u.view(B, T, H, V)
""",
    ("row_loop", "dot_per_row"): """
import torch


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    V = v.shape[-1]
    N = T // 64
    a = A.view(B, N, 64, H, 64)
    x = torch.cat([k * g.exp()[..., None], v], -1).mul_(beta[..., None]).view(B, N, 64, H, K + V)
    y = torch.empty_like(x)
    for i in range(64):
        weights = a[:, :, i, :, :i + 1].transpose(2, 3).unsqueeze(-1)
        y[:, :, i] = (weights * x[:, :, :i + 1]).sum(2)
    y = y.view(B, T, H, K + V)
    return y[..., :K].contiguous(), y[..., K:].contiguous()
""",
    ("float64", "matmul"): """
import torch


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    n = T // 64
    k, v, b, a, g = (
        x.double().view(B, n, 64, H, -1).transpose(2, 3) for x in (k, v, beta.unsqueeze(-1), A, g.unsqueeze(-1))
    )
    w, u = a @ (k * b * torch.exp(g)), a @ (v * b)
    return tuple(x.transpose(2, 3).reshape(B, T, H, -1).float() for x in (w, u))
""",
    ("broadcast_sum", "no_matmul"): '''
import torch


def run(k, v, beta, A, g):
    """Products written as broadcasts and sums, sixteen positions at a time."""
    B, T, H, K = k.shape
    N = T // 64
    a = A.view(B, N, 64, H, 64)
    kb = (k * (beta * g.exp()).unsqueeze(-1)).view(B, N, 64, H, -1)
    vb = (v * beta.unsqueeze(-1)).view(B, N, 64, H, -1)
    w, u = torch.zeros_like(kb), torch.zeros_like(vb)
    for n in range(N):
        for j in range(0, 64, 16):
            part = a[:, n, :, :, j:j + 16].transpose(2, 3).unsqueeze(-1)
            w[:, n] += (part * kb[:, n, None, j:j + 16]).sum(2)
            u[:, n] += (part * vb[:, n, None, j:j + 16]).sum(2)
    return w.view_as(k), u.view_as(v)
''',
    ("vmap", "per_chunk"): """
import torch
from torch.func import vmap


def one_chunk(k, v, b, a, g):
    return a @ (k * (b * torch.exp(g))[:, None]), a @ (v * b[:, None])


def run(k, v, beta, A, g):
    B, T, H, K = k.shape
    shape = (B, T // 64, 64, H)
    f = vmap(vmap(vmap(one_chunk, in_dims=1, out_dims=1)))
    w, u = f(k.view(*shape, K), v.view(*shape, -1), beta.view(shape), A.view(*shape, 64), g.view(shape))
    return w.reshape(B, T, H, K), u.reshape_as(v)
""",
    ("solve", "triangular"): """
import torch


def run(k, v, beta, A, g):
    # A is unit lower triangular: keep only that part, whatever lies above
    B, T, H, K = k.shape
    V = v.shape[-1]
    n = T // 64
    a = torch.tril(A.view(B, n, 64, H, 64).transpose(2, 3))
    x = torch.cat([k * (beta * torch.exp(g))[..., None], v * beta[..., None]], -1)
    y = torch.matmul(a, x.view(B, n, 64, H, K + V).transpose(2, 3))
    w, u = y.transpose(2, 3).reshape(B, T, H, K + V).split([K, V], -1)
    return w.contiguous(), u.contiguous()
""",
}
ARGUMENTS = "k, v, beta, A, g"
PRELUDES = preludes(ARGUMENTS)


def torch_source(algorithm: str, how: str, prelude: str | None = None) -> Draft:
    """Plain PyTorch, with or without lines at the start of ``run``."""
    code = TORCH[algorithm, how]
    if prelude == "tf32":
        code = wrap_run(code.rstrip("\n"), tf32_run(ARGUMENTS), inner="compute")
    elif prelude:
        code = begin_run(code, PRELUDES[prelude])
    choices = {"family": "torch", "algorithm": algorithm, "how": how, "prelude": prelude}
    return Draft(choices, code, "pytorch")


TORCH_HALF = """
import torch


def run(k, v, beta, A, g):
    # matrix products in @dtype@, the rest in float32
    B, T, H, K = k.shape
    n = T // 64
    dt = torch.@dtype@
    a = A.view(B, n, 64, H, 64).transpose(2, 3).to(dt)
    kb = (k * (beta * g.exp())[..., None]).view(B, n, 64, H, -1).transpose(2, 3).to(dt)
    vb = (v * beta[..., None]).view(B, n, 64, H, -1).transpose(2, 3).to(dt)
    w = torch.matmul(a, kb).float().transpose(2, 3).reshape(k.shape)
    u = torch.matmul(a, vb).float().transpose(2, 3).reshape(v.shape)
    return w, u
"""


def torch_half(dtype: str) -> Draft:
    """Matrix products in half precision."""
    choices = {"family": "torch", "algorithm": "matmul", "how": f"in_{dtype}"}
    return Draft(choices, fill(TORCH_HALF, dtype=dtype), "pytorch")
