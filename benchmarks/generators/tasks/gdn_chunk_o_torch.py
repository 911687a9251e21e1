"""PyTorch families of the recorded task ``gdn_chunk_o``."""

from __future__ import annotations

from benchmarks.generators.pool import Draft
from benchmarks.generators.tasks.gdn_shared import preludes, tf32_run
from benchmarks.generators.text import begin_run, fill, wrap_run

TORCH = {
    ("einsum", "decay_matrix"): '''
import torch


def run(q, k, v_new, h, g):
    """Everything with einsum."""
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    N = T // 64
    q = q.view(B, N, 64, H, K)
    k = k.view(B, N, 64, H, K)
    v = v_new.view(B, N, 64, H, V)
    g = g.view(B, N, 64, H)
    inter = torch.einsum("bnchk,bnhkv->bnchv", q, h) * g.exp().unsqueeze(-1)
    scores = torch.einsum("bnihk,bnjhk->bnhij", q, k)
    gt = g.permute(0, 1, 3, 2)
    decay = torch.exp(gt.unsqueeze(-1) - gt.unsqueeze(-2))
    mask = torch.tril(torch.ones(64, 64, device=q.device, dtype=torch.bool))
    scores = (scores * decay).masked_fill(~mask, 0.0)
    intra = torch.einsum("bnhij,bnjhv->bnihv", scores, v)
    return ((inter + intra) * K ** -0.5).reshape(B, T, H, V)
''',
    ("einsum", "long_subscripts"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.size(-1)
    C = 64
    qc, kc, vc = (x.reshape(B, T // C, C, H, x.size(-1)) for x in (q, k, v_new))
    gc = g.reshape(B, T // C, C, H)
    low = torch.ones(C, C, device=q.device).tril()
    weights = torch.exp((gc[:, :, :, None] - gc[:, :, None, :]).clamp(max=0.0)) * low[None, None, :, :, None]
    out = torch.einsum("bnihk,bnjhk,bnijh,bnjhv->bnihv", qc, kc, weights, vc)
    out = out + torch.einsum("bnihk,bnih,bnhkv->bnihv", qc, torch.exp(gc), h)
    return out.reshape(B, T, H, V) / K ** 0.5
""",
    ("matmul", "decay_matrix"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    # [B, n, H, 64, D]
    qh = q.view(B, n, 64, H, K).transpose(2, 3)
    kh = k.view(B, n, 64, H, K).transpose(2, 3)
    vh = v_new.view(B, n, 64, H, V).transpose(2, 3)
    gh = g.view(B, n, 64, H).transpose(2, 3)
    att = qh @ kh.transpose(-1, -2)
    diff = gh[..., :, None] - gh[..., None, :]
    causal = torch.ones(64, 64, dtype=torch.bool, device=q.device).tril()
    att = att * torch.exp(diff.masked_fill(~causal, float("-inf")))
    o = (qh @ h) * gh.exp()[..., None] + att @ vh
    return (o * K ** -0.5).transpose(2, 3).reshape(B, T, H, V)
""",
    ("matmul", "factored"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    qs = (q * (g.exp() * K ** -0.5).unsqueeze(-1)).view(B, n, 64, H, K).transpose(2, 3)
    ks = (k * torch.exp(-g).unsqueeze(-1)).view(B, n, 64, H, K).permute(0, 1, 3, 4, 2)
    vs = v_new.view(B, n, 64, H, V).transpose(2, 3)
    att = torch.matmul(qs, ks).tril()
    o = torch.matmul(qs, h) + torch.matmul(att, vs)
    return o.transpose(2, 3).reshape(B, T, H, V)
""",
    ("matmul", "concatenated"): '''
import torch


def run(q, k, v_new, h, g):
    """One product instead of two: [q exp(g) | A] @ [h ; v]."""
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    qh, kh, vh = (x.view(B, n, 64, H, -1).transpose(2, 3).contiguous() for x in (q, k, v_new))
    gh = g.view(B, n, 64, H).transpose(2, 3).contiguous()
    a = (qh @ kh.mT) * torch.exp(gh.unsqueeze(-1) - gh.unsqueeze(-2))
    left = torch.cat([qh * gh.exp().unsqueeze(-1), torch.tril(a)], dim=-1)
    right = torch.cat([h, vh], dim=-2)
    o = torch.matmul(left, right) * K ** -0.5
    return o.transpose(2, 3).contiguous().view(B, T, H, V)
''',
    ("bmm", "contiguous"): """
import torch


def to_chunks(x):
    B, T, H, D = x.shape
    return x.view(B, T // 64, 64, H, D).permute(0, 1, 3, 2, 4).contiguous().view(-1, 64, D)


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    qb, kb, vb = to_chunks(q), to_chunks(k), to_chunks(v_new)
    gb = to_chunks(g.unsqueeze(-1))
    hb = h.reshape(-1, K, V)
    inter = torch.bmm(qb, hb) * torch.exp(gb)
    att = torch.bmm(qb, kb.transpose(1, 2))
    att = att * torch.exp(gb - gb.transpose(1, 2))
    att = torch.tril(att)
    out = (inter + torch.bmm(att, vb)) * (K ** -0.5)
    return out.view(B, T // 64, H, 64, V).permute(0, 1, 3, 2, 4).contiguous().view(B, T, H, V)
""",
    ("bmm", "baddbmm"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    N = T // 64
    scale = K ** -0.5

    def rows(x, d):
        return x.reshape(B, N, 64, H, d).transpose(2, 3).reshape(B * N * H, 64, d)

    qb, kb, vb, gb = rows(q, K), rows(k, K), rows(v_new, V), rows(g, 1)
    att = torch.bmm(qb, kb.mT).mul_(torch.exp(gb - gb.mT)).tril_()
    inter = torch.bmm(qb.mul_(gb.exp_()), h.view(-1, K, V))
    out = torch.baddbmm(inter, att, vb, beta=scale, alpha=scale)
    return out.view(B, N, H, 64, V).transpose(2, 3).reshape(B, T, H, V)
""".replace("qb.mul_(gb.exp_())", "qb * gb.exp()"),
    ("chunk_loop", "all_heads"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    out = torch.empty_like(v_new)
    mask = torch.tril(torch.ones(64, 64, device=q.device))
    for n in range(T // 64):
        s = slice(n * 64, (n + 1) * 64)
        qc = q[:, s].transpose(1, 2)
        kc = k[:, s].transpose(1, 2)
        vc = v_new[:, s].transpose(1, 2)
        gc = g[:, s].transpose(1, 2)
        a = (qc @ kc.transpose(-1, -2)) * torch.exp(gc[..., :, None] - gc[..., None, :]) * mask
        o = (qc @ h[:, n]) * gc.exp()[..., None] + a @ vc
        out[:, s] = (o * K ** -0.5).transpose(1, 2)
    return out
""",
    ("chunk_loop", "list_and_cat"): """
import torch


def chunk_output(q, k, v, h, g):
    a = torch.einsum("bihk,bjhk->bhij", q, k)
    gt = g.transpose(1, 2)
    a = torch.tril(a * torch.exp(gt[:, :, :, None] - gt[:, :, None, :]))
    o = torch.einsum("bihk,bhkv->bihv", q * g.exp()[..., None], h)
    return (o + torch.einsum("bhij,bjhv->bihv", a, v)) / q.shape[-1] ** 0.5


def run(q, k, v_new, h, g):
    pieces = zip(q.split(64, 1), k.split(64, 1), v_new.split(64, 1), h.unbind(1), g.split(64, 1))
    return torch.cat([chunk_output(*piece) for piece in pieces], dim=1)
""",
    ("head_loop", "matmul"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    out = torch.zeros(B, T, H, V, device=q.device)
    upper = torch.triu(torch.ones(64, 64, device=q.device, dtype=torch.bool), diagonal=1)
    for b in range(B):
        for head in range(H):
            qi = q[b, :, head].reshape(n, 64, K)
            ki = k[b, :, head].reshape(n, 64, K)
            vi = v_new[b, :, head].reshape(n, 64, V)
            gi = g[b, :, head].reshape(n, 64)
            a = torch.bmm(qi, ki.transpose(1, 2))
            a = a * (gi[:, :, None] - gi[:, None, :]).exp()
            a.masked_fill_(upper, 0)
            o = torch.bmm(qi, h[b, :, head]) * gi.exp()[:, :, None] + torch.bmm(a, vi)
            out[b, :, head] = (o * K ** -0.5).reshape(T, V)
    return out
""",
    ("row_loop", "accumulate"): """
import torch


def run(q, k, v_new, h, g):
    # walk over the 64 positions of all chunks at once
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    N = T // 64
    q = q.view(B, N, 64, H, K)
    k = k.view(B, N, 64, H, K)
    v = v_new.view(B, N, 64, H, V)
    g = g.view(B, N, 64, H)
    out = torch.einsum("bnchk,bnhkv->bnchv", q, h) * torch.exp(g)[..., None]
    for j in range(64):
        w = (q[:, :, j:] * k[:, :, j:j + 1]).sum(-1) * torch.exp(g[:, :, j:] - g[:, :, j:j + 1])
        out[:, :, j:] += w[..., None] * v[:, :, j:j + 1]
    return (out * K ** -0.5).reshape(B, T, H, V)
""",
    ("float64", "matmul"): """
import torch


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    q, k, v, g = (x.double().view(B, n, 64, H, -1).transpose(2, 3) for x in (q, k, v_new, g.unsqueeze(-1)))
    a = torch.tril((q @ k.transpose(-1, -2)) * torch.exp(g - g.transpose(-1, -2)))
    o = (q @ h.double()) * torch.exp(g) + a @ v
    return (o * K ** -0.5).transpose(2, 3).reshape(B, T, H, V).float()
""",
    ("broadcast_sum", "no_matmul"): '''
import torch


def run(q, k, v_new, h, g):
    """Products written as broadcasts and sums, a few chunks at a time."""
    B, T, H, K = q.shape
    out = torch.empty_like(v_new)
    idx = torch.arange(64, device=q.device)
    keep = (idx[:, None] >= idx[None, :])[None, :, :, None]
    for c in range(T // 64):
        lo, hi = c * 64, c * 64 + 64
        qc, kc, vc, gc = q[:, lo:hi], k[:, lo:hi], v_new[:, lo:hi], g[:, lo:hi]
        a = (qc[:, :, None] * kc[:, None]).sum(-1)
        a = torch.where(keep, a * torch.exp(gc[:, :, None] - gc[:, None]), torch.zeros_like(a))
        o = torch.zeros_like(vc)
        for j in range(0, 64, 16):
            o += (a[:, :, j:j + 16, :, None] * vc[:, None, j:j + 16]).sum(2)
        inter = torch.matmul(qc.transpose(1, 2), h[:, c]).transpose(1, 2)
        out[:, lo:hi] = (o + inter * gc.exp()[..., None]) * K ** -0.5
    return out
''',
    ("vmap", "per_chunk"): """
import torch
from torch.func import vmap


def one_chunk(q, k, v, h, g):
    a = torch.tril(q @ k.T * torch.exp(g[:, None] - g[None, :]))
    return ((q * torch.exp(g)[:, None]) @ h + a @ v) * q.shape[-1] ** -0.5


def run(q, k, v_new, h, g):
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    shape = (B, T // 64, 64, H)
    f = vmap(vmap(vmap(one_chunk, in_dims=(1, 1, 1, 0, 1), out_dims=1)))
    o = f(q.view(*shape, K), k.view(*shape, K), v_new.view(*shape, V), h, g.view(shape))
    return o.reshape(B, T, H, V)
""",
}

PRELUDES = preludes("q, k, v_new, h, g")
TF32_RUN = tf32_run("q, k, v_new, h, g")


def torch_source(algorithm: str, how: str, prelude: str | None = None) -> Draft:
    """Plain PyTorch, with or without lines at the start of ``run``."""
    code = TORCH[algorithm, how]
    if prelude == "tf32":
        code = wrap_run(code.rstrip("\n"), TF32_RUN, inner="compute")
    elif prelude:
        code = begin_run(code, PRELUDES[prelude])
    choices = {"family": "torch", "algorithm": algorithm, "how": how, "prelude": prelude}
    return Draft(choices, code, "pytorch")


TORCH_HALF = """
import torch


def run(q, k, v_new, h, g):
    # matrix products in @dtype@, the rest in float32
    B, T, H, K = q.shape
    V = v_new.shape[-1]
    n = T // 64
    dt = torch.@dtype@
    qh = q.view(B, n, 64, H, K).transpose(2, 3).to(dt)
    kh = k.view(B, n, 64, H, K).transpose(2, 3).to(dt)
    vh = v_new.view(B, n, 64, H, V).transpose(2, 3).to(dt)
    gh = g.view(B, n, 64, H).transpose(2, 3)
    a = torch.matmul(qh, kh.transpose(-1, -2)).float()
    a = (a * torch.exp(gh[..., :, None] - gh[..., None, :])).tril()
    o = torch.matmul(qh, h.to(dt)).float() * torch.exp(gh)[..., None]
    o = o + torch.matmul(a.to(dt), vh).float()
    return (o * K ** -0.5).transpose(2, 3).reshape(B, T, H, V)
"""


def torch_half(dtype: str) -> Draft:
    """Matrix products in half precision."""
    choices = {"family": "torch", "algorithm": "matmul", "how": f"in_{dtype}"}
    return Draft(choices, fill(TORCH_HALF, dtype=dtype), "pytorch")
