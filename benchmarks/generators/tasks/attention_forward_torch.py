"""PyTorch sources of the recorded task ``attention_forward``."""

from __future__ import annotations

from benchmarks.generators.pool import Draft
from benchmarks.generators.text import begin_run, fill

TORCH = {
    ("library", "default"): """
import torch.nn.functional as F


def run(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
""",
    ("library", "mask"): """
import torch


def run(q, k, v):
    T = q.shape[-2]
    mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
""",
    ("library", "float_mask"): """
import torch


def run(q, k, v):
    T = q.shape[-2]
    mask = torch.full((T, T), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
""",
    ("library", "float32"): """
import torch


def run(q, k, v):
    out = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    return out.to(torch.bfloat16)
""",
    ("library", "float16"): """
import torch


def run(q, k, v):
    out = torch.nn.functional.scaled_dot_product_attention(q.half(), k.half(), v.half(), is_causal=True)
    return out.to(q.dtype)
""",
    ("library", "head_by_head"): """
import torch


def run(q, k, v):
    out = torch.empty_like(q)
    for h in range(q.shape[1]):
        part = slice(h, h + 1)
        out[:, part] = torch.nn.functional.scaled_dot_product_attention(
            q[:, part], k[:, part], v[:, part], is_causal=True
        )
    return out
""",
    ("backend", "flash"): """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def run(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
""",
    ("backend", "efficient"): """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def run(q, k, v):
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
""",
    ("backend", "cudnn"): """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def run(q, k, v):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
""",
    ("backend", "math"): """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def run(q, k, v):
    with sdpa_kernel([SDPBackend.MATH]):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
""",
    ("eager", "bfloat16"): """
import math

import torch


def run(q, k, v):
    T, D = q.shape[-2:]
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(D)
    mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=q.device), diagonal=1)
    scores = scores.masked_fill(mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)
""",
    ("eager", "float32"): """
import math

import torch


def run(q, k, v):
    T, D = q.shape[-2:]
    scores = torch.matmul(q.float(), k.float().transpose(-2, -1)) / math.sqrt(D)
    mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=q.device), diagonal=1)
    scores = scores.masked_fill(mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v.float()).to(q.dtype)
""",
    ("eager", "float32_softmax"): """
import torch


def run(q, k, v):
    T, D = q.shape[-2:]
    scores = (q * D**-0.5) @ k.mT
    bias = torch.full((T, T), float("-inf"), device=q.device).triu_(1)
    weights = torch.softmax(scores.float() + bias, dim=-1).to(v.dtype)
    return weights @ v
""",
    ("eager", "in_place"): """
import torch


def run(q, k, v):
    T, D = q.shape[-2:]
    scores = torch.matmul(q, k.transpose(-2, -1)).float()
    scores.mul_(D**-0.5)
    ahead = torch.arange(T, device=q.device)
    scores.masked_fill_(ahead[:, None] < ahead[None, :], float("-inf"))
    scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
    scores.div_(scores.sum(dim=-1, keepdim=True))
    return torch.matmul(scores.to(v.dtype), v)
""",
    ("eager", "einsum"): """
import torch


def run(q, k, v):
    T, D = q.shape[-2:]
    s = torch.einsum("bhid,bhjd->bhij", q.float(), k.float()) * D**-0.5
    s = torch.where(torch.ones(T, T, device=q.device).tril() > 0, s, torch.tensor(-1e30, device=q.device))
    return torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v.float()).bfloat16()
""",
    ("eager", "baddbmm"): """
import torch


def run(q, k, v):
    B, H, T, D = q.shape
    bias = torch.full((T, T), -1.0e30, dtype=q.dtype, device=q.device).triu(1)
    s = torch.baddbmm(bias.expand(B * H, T, T), q.view(-1, T, D), k.view(-1, T, D).mT, alpha=D**-0.5)
    p = torch.softmax(s, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.bmm(p, v.view(-1, T, D)).view(B, H, T, D)
""",
    ("eager", "log_sum_exp"): """
import torch


def run(q, k, v):
    T, D = q.shape[-2:]
    s = (q.float() @ k.float().mT) * D**-0.5
    s = s + torch.full((T, T), float("-inf"), device=q.device).triu(1)
    p = torch.exp(s - torch.logsumexp(s, dim=-1, keepdim=True))
    return (p @ v.float()).to(torch.bfloat16)
""",
    ("eager", "divided_late"): """
import torch


def run(q, k, v):
    T, D = q.shape[-2:]
    s = torch.matmul(q * D**-0.5, k.transpose(-1, -2))
    e = torch.exp(s.float()).tril_()
    out = torch.matmul(e.to(v.dtype), v).float() / e.sum(dim=-1, keepdim=True)
    return out.to(q.dtype)
""",
    ("eager", "float64"): """
import torch


def run(q, k, v):
    B, H, T, D = q.shape
    mask = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    out = torch.empty_like(q)
    for b in range(B):
        for h in range(H):
            s = q[b, h].double() @ k[b, h].double().T / D**0.5
            out[b, h] = (s.masked_fill(mask, float("-inf")).softmax(-1) @ v[b, h].double()).to(q.dtype)
    return out
""",
    ("query_loop", "in_blocks"): """
import torch


def run(q, k, v):
    T, D = q.shape[-2:]
    out = torch.empty_like(q)
    for i in range(0, T, 256):
        s = (q[..., i : i + 256, :] @ k[..., : i + 256, :].mT).float() * D**-0.5
        n = s.shape[-2]
        s[..., i:] += torch.full((n, n), float("-inf"), device=q.device).triu(1)
        out[..., i : i + 256, :] = s.softmax(-1).to(v.dtype) @ v[..., : i + 256, :]
    return out
""",
    ("query_loop", "float32"): """
import torch


def run(q, k, v):
    T, D = q.shape[-2:]
    kf, vf = k.float(), v.float()
    pieces = []
    for i in range(0, T, 128):
        s = q[:, :, i : i + 128].float() @ kf[:, :, : i + 128].transpose(2, 3) / D**0.5
        n = s.shape[2]
        s[..., i:].masked_fill_(torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1), float("-inf"))
        pieces.append(torch.softmax(s, dim=-1) @ vf[:, :, : i + 128])
    return torch.cat(pieces, dim=2).to(q.dtype)
""",
    ("key_loop", "online"): """
import torch


def run(q, k, v):
    # FlashAttention written in PyTorch
    B, H, T, D = q.shape
    qs = q.float() * D**-0.5
    m = torch.full((B, H, T, 1), float("-inf"), device=q.device)
    l = torch.zeros(B, H, T, 1, device=q.device)
    acc = torch.zeros(B, H, T, D, device=q.device)
    rows = torch.arange(T, device=q.device)[:, None]
    for j in range(0, T, 256):
        s = qs @ k[:, :, j : j + 256].float().mT
        cols = torch.arange(j, j + s.shape[-1], device=q.device)[None, :]
        s = s.masked_fill(rows < cols, -1e30)
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p = torch.exp(s - new).masked_fill(rows < cols, 0.0)
        a = torch.exp(m - new)
        l = l * a + p.sum(-1, keepdim=True)
        acc = acc * a + p @ v[:, :, j : j + 256].float()
        m = new
    return (acc / l).to(q.dtype)
""",
    ("batch_loop", "head_by_head"): """
import torch


def run(q, k, v):
    B, H, T, D = q.shape
    out = torch.empty_like(q)
    mask = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    for b in range(B):
        for h in range(H):
            s = (q[b, h].float() @ k[b, h].float().t()) * D**-0.5
            out[b, h] = (torch.softmax(s.masked_fill(mask, float("-inf")), dim=-1) @ v[b, h].float()).to(q.dtype)
    return out
""",
    ("batch_loop", "bfloat16"): """
import torch


def one_head(q, k, v, mask):
    s = (q @ k.t()).float() * q.shape[-1] ** -0.5
    return torch.softmax(s + mask, dim=-1).to(v.dtype) @ v


def run(q, k, v):
    T = q.shape[2]
    mask = torch.full((T, T), float("-inf"), device=q.device).triu(1)
    heads = [one_head(*three, mask) for three in zip(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))]
    return torch.stack(heads).view_as(q)
""",
    ("batch_loop", "vmap"): """
import torch


def head(q, k, v, mask):
    s = q @ k.mT * q.shape[-1] ** -0.5
    return torch.softmax(torch.where(mask, s, float("-inf")), dim=-1) @ v


def run(q, k, v):
    T = q.shape[2]
    mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    f = torch.vmap(torch.vmap(head, in_dims=(0, 0, 0, None)), in_dims=(0, 0, 0, None))
    return f(q.float(), k.float(), v.float(), mask).to(torch.bfloat16)
""",
    ("recursive", "halves"): """
import torch


def attend(q, k, v, scale):
    \"\"\"Numerators and row sums of a causal square; what lies below the diagonal is one full product.\"\"\"
    n = q.shape[-2]
    if n <= 512:
        e = torch.exp((q @ k.mT).float() * scale).tril()
        return (e.to(v.dtype) @ v).float(), e.sum(-1, keepdim=True)
    half = n // 2
    top, top_sum = attend(q[..., :half, :], k[..., :half, :], v[..., :half, :], scale)
    low, low_sum = attend(q[..., half:, :], k[..., half:, :], v[..., half:, :], scale)
    e = torch.exp((q[..., half:, :] @ k[..., :half, :].mT).float() * scale)
    low = low + (e.to(v.dtype) @ v[..., :half, :]).float()
    low_sum = low_sum + e.sum(-1, keepdim=True)
    return torch.cat([top, low], dim=-2), torch.cat([top_sum, low_sum], dim=-2)


def run(q, k, v):
    out, total = attend(q, k, v, q.shape[-1] ** -0.5)
    return (out / total).to(q.dtype)
""",
}

PRELUDES = {
    "clone": "    q, k, v = q.clone(), k.clone(), v.clone()\n",
    "synchronize": "    torch.cuda.synchronize()\n",
    "check_finite": (
        '    for name, x in (("q", q), ("k", k), ("v", v)):\n        assert torch.isfinite(x).all(), name\n'
    ),
    "tf32": "    torch.backends.cuda.matmul.allow_tf32 = True\n",
}


def torch_source(algorithm: str, how: str, prelude: str | None = None) -> Draft:
    """A PyTorch source, after some lines that do needless or helpful things first."""
    code = TORCH[algorithm, how]
    if prelude:
        code = begin_run(code, PRELUDES[prelude])
    choices = {"family": "torch", "algorithm": algorithm, "how": how, "prelude": prelude}
    return Draft(choices, fill(code), "pytorch")
