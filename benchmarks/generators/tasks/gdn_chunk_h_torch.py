"""PyTorch families of the recorded task ``gdn_chunk_h``."""

from __future__ import annotations

from benchmarks.generators.pool import Draft
from benchmarks.generators.tasks.gdn_shared import preludes, tf32_run
from benchmarks.generators.text import begin_run, wrap_run

TORCH = {
    ("loop", "matmul"): """
import torch


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    h = torch.empty(B, T // 64, H, K, V, device=k.device)
    v_new = torch.empty_like(u)
    state = torch.zeros(B, H, K, V, device=k.device)
    for n in range(T // 64):
        s = slice(n * 64, (n + 1) * 64)
        kc = k[:, s].transpose(1, 2)
        wc = w[:, s].transpose(1, 2)
        uc = u[:, s].transpose(1, 2)
        gc = g[:, s].transpose(1, 2)
        h[:, n] = state
        v = uc - wc @ state
        v_new[:, s] = v.transpose(1, 2)
        last = gc[..., -1:]
        v = v * torch.exp(last - gc)[..., None]
        state = state * torch.exp(last)[..., None] + kc.transpose(-1, -2) @ v
    return h, v_new
""",
    ("loop", "einsum"): '''
import torch


def step(state, k, w, u, g):
    """One chunk: what is written, and the state after it."""
    v = u - torch.einsum("bthk,bhkv->bthv", w, state)
    last = g[:, -1:]
    decayed = v * (last - g).exp().unsqueeze(-1)
    state = state * last[:, 0, :, None, None].exp() + torch.einsum("bthk,bthv->bhkv", k, decayed)
    return state, v


def run(k, w, u, g):
    B, T, H, K = k.shape
    state = k.new_zeros(B, H, K, u.shape[-1])
    states, values = [], []
    for pieces in zip(k.split(64, 1), w.split(64, 1), u.split(64, 1), g.split(64, 1)):
        states.append(state)
        state, v = step(state, *pieces)
        values.append(v)
    return torch.stack(states, dim=1), torch.cat(values, dim=1)
''',
    ("loop", "bmm"): """
import torch


def to_chunks(x):
    # [T / 64, B * H, 64, D], contiguous, so that a chunk is one block of memory
    B, T, H, D = x.shape
    return x.view(B, T // 64, 64, H, D).permute(1, 0, 3, 2, 4).contiguous().view(T // 64, B * H, 64, D)


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64
    ks, ws, us, gs = to_chunks(k), to_chunks(w), to_chunks(u), to_chunks(g.unsqueeze(-1))
    last = gs[:, :, -1:]
    ks = (ks * torch.exp(last - gs)).transpose(-1, -2)
    keep = last.exp()
    h = torch.zeros(N + 1, B * H, K, V, device=k.device)
    for n in range(N):
        us[n] -= torch.bmm(ws[n], h[n])
        h[n + 1] = h[n] * keep[n] + torch.bmm(ks[n], us[n])
    states = h[:N].view(N, B, H, K, V).transpose(0, 1).contiguous()
    return states, us.view(N, B, H, 64, V).permute(1, 0, 3, 2, 4).reshape(B, T, H, V)
""",
    ("loop", "baddbmm"): """
import torch


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64

    def rows(x, d):
        return x.reshape(B, N, 64, H, d).permute(1, 0, 3, 2, 4).reshape(N, B * H, 64, d)

    ks, ws, vs, gs = rows(k, K), rows(w, K), rows(u, V).clone(), rows(g, 1)
    last = gs[:, :, 63:]
    ks = ks.mul(torch.exp(last - gs))
    keep = torch.exp(last)
    h = torch.empty(N, B * H, K, V, device=k.device)
    state = torch.zeros(B * H, K, V, device=k.device)
    for n in range(N):
        h[n].copy_(state)
        vs[n].baddbmm_(ws[n], state, alpha=-1)
        state.mul_(keep[n]).baddbmm_(ks[n].mT, vs[n])
    h = h.view(N, B, H, K, V).transpose(0, 1).contiguous()
    return h, vs.view(N, B, H, 64, V).permute(1, 0, 3, 2, 4).contiguous().view(B, T, H, V)
""",
    ("transition", "addmm_loop"): """
import torch


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64
    kc, wc, uc = (x.view(B, N, 64, H, -1).transpose(2, 3) for x in (k, w, u))
    gc = g.view(B, N, 64, H).transpose(2, 3)
    last = gc[..., -1:]
    kt = (kc * torch.exp(last - gc)[..., None]).transpose(-1, -2)
    # h <- m h + r: two products per chunk become one in the loop
    m = torch.eye(K, device=k.device) * last.exp()[..., None] - kt @ wc
    r = kt @ uc
    h = torch.zeros(B, N, H, K, V, device=k.device)
    for n in range(N - 1):
        h[:, n + 1] = m[:, n] @ h[:, n] + r[:, n]
    v_new = uc - wc @ h
    return h, v_new.transpose(2, 3).reshape(B, T, H, V)
""",
    ("transition", "baddbmm_out"): """
import torch


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64

    def chunked(x):
        return x.reshape(B, N, 64, H, -1).permute(1, 0, 3, 2, 4).reshape(N * B * H, 64, -1)

    kc, wc, uc, gc = chunked(k), chunked(w), chunked(u), chunked(g)
    last = gc[:, -1:]
    kt = (kc * torch.exp(last - gc)).mT
    m = torch.bmm(kt, wc).neg_()
    m.diagonal(dim1=1, dim2=2).add_(last.exp().squeeze(-1))
    r = torch.bmm(kt, uc).view(N, B * H, K, V)
    m = m.view(N, B * H, K, K)
    h = torch.zeros(N, B * H, K, V, device=k.device)
    for n in range(1, N):
        torch.baddbmm(r[n - 1], m[n - 1], h[n - 1], out=h[n])
    v = torch.baddbmm(uc, wc, h.view(N * B * H, K, V), alpha=-1)
    v = v.view(N, B, H, 64, V).permute(1, 0, 3, 2, 4).contiguous().view(B, T, H, V)
    return h.view(N, B, H, K, V).transpose(0, 1).contiguous(), v
""",
    ("transition", "doubling"): '''
import torch


def run(k, w, u, g):
    """A parallel scan: after log2(N) rounds every chunk knows the product of all steps before it."""
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64
    kc, wc, uc = (x.view(B, N, 64, H, -1).transpose(2, 3) for x in (k, w, u))
    gc = g.view(B, N, 64, H).transpose(2, 3)
    last = gc[..., -1:]
    kt = (kc * torch.exp(last - gc)[..., None]).transpose(-1, -2)
    m = torch.eye(K, device=k.device) * last.exp()[..., None] - kt @ wc
    r = kt @ uc
    step = 1
    while step < N:
        m_after, m_before = m[:, step:], m[:, :-step]
        r = torch.cat([r[:, :step], m_after @ r[:, :-step] + r[:, step:]], dim=1)
        m = torch.cat([m[:, :step], m_after @ m_before], dim=1)
        step *= 2
    h = torch.cat([torch.zeros_like(r[:, :1]), r[:, :-1]], dim=1)
    v_new = uc - wc @ h
    return h, v_new.transpose(2, 3).reshape(B, T, H, V)
''',
    ("transition", "blocks_of_eight"): """
import torch


def run(k, w, u, g):
    # eight chunks are folded into one step of a short loop, then unfolded side by side
    B, T, H, K = k.shape
    V = u.shape[-1]
    N, E = T // 64, 8
    kc, wc, uc = (x.view(B, N, 64, H, -1).transpose(2, 3) for x in (k, w, u))
    gc = g.view(B, N, 64, H).transpose(2, 3)
    last = gc[..., -1:]
    kt = (kc * torch.exp(last - gc)[..., None]).transpose(-1, -2)
    m = (torch.eye(K, device=k.device) * last.exp()[..., None] - kt @ wc).view(B, N // E, E, H, K, K)
    r = (kt @ uc).view(B, N // E, E, H, K, V)
    fold_m, fold_r = m[:, :, 0], r[:, :, 0]
    for i in range(1, E):
        fold_r = m[:, :, i] @ fold_r + r[:, :, i]
        fold_m = m[:, :, i] @ fold_m
    h = torch.zeros(B, N // E, E, H, K, V, device=k.device)
    for n in range(N // E - 1):
        h[:, n + 1, 0] = fold_m[:, n] @ h[:, n, 0] + fold_r[:, n]
    for i in range(1, E):
        h[:, :, i] = m[:, :, i - 1] @ h[:, :, i - 1] + r[:, :, i - 1]
    h = h.view(B, N, H, K, V)
    return h, (uc - wc @ h).transpose(2, 3).reshape(B, T, H, V)
""",
    ("loop", "head_by_head"): """
import torch


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    h = torch.zeros(B, T // 64, H, K, V, device=k.device)
    v_new = torch.zeros_like(u)
    for head in range(H):
        state = torch.zeros(B, K, V, device=k.device)
        for n in range(T // 64):
            t = slice(n * 64, n * 64 + 64)
            h[:, n, head] = state
            v = u[:, t, head] - w[:, t, head] @ state
            v_new[:, t, head] = v
            last = g[:, n * 64 + 63, head]
            v = v * torch.exp(last[:, None] - g[:, t, head]).unsqueeze(-1)
            state = state * torch.exp(last)[:, None, None] + k[:, t, head].transpose(1, 2) @ v
    return h, v_new
""",
    ("loop", "float64"): """
import torch


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    k, w, u, g = (x.double().transpose(1, 2) for x in (k, w, u, g.unsqueeze(-1)))
    h, v_new = [], []
    state = torch.zeros(B, H, K, V, device=k.device, dtype=torch.float64)
    for n in range(T // 64):
        s = slice(64 * n, 64 * n + 64)
        h.append(state)
        v = u[:, :, s] - w[:, :, s] @ state
        v_new.append(v)
        last = g[:, :, 64 * n + 63:64 * n + 64]
        state = state * last.exp() + k[:, :, s].mT @ (v * (last - g[:, :, s]).exp())
    return torch.stack(h, 1).float(), torch.cat(v_new, 2).transpose(1, 2).float().contiguous()
""",
    ("loop", "broadcast_sum"): '''
import torch


def run(k, w, u, g):
    """Products written as broadcasts and sums."""
    B, T, H, K = k.shape
    V = u.shape[-1]
    h = torch.empty(B, T // 64, H, K, V, device=k.device)
    v_new = torch.empty_like(u)
    state = torch.zeros(B, H, K, V, device=k.device)
    for n in range(T // 64):
        lo, hi = n * 64, n * 64 + 64
        h[:, n] = state
        v = u[:, lo:hi] - (w[:, lo:hi, :, :, None] * state[:, None]).sum(-2)
        v_new[:, lo:hi] = v
        last = g[:, hi - 1:hi]
        v = v * torch.exp(last - g[:, lo:hi])[..., None]
        state = state * last.exp().view(B, H, 1, 1) + (k[:, lo:hi, :, :, None] * v[:, :, :, None]).sum(1)
    return h, v_new
''',
    ("loop", "joined_rows"): """
import torch


def run(k, w, u, g):
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64
    kc, wc, uc = (x.view(B, N, 64, H, -1).transpose(2, 3) for x in (k, w, u))
    gc = g.view(B, N, 64, H).transpose(2, 3)
    last = gc[..., -1:]
    kt = (kc * torch.exp(last - gc)[..., None]).mT
    # [w; m] h gives the values and the next state in one product
    both = torch.cat([wc, kt @ wc - torch.eye(K, device=k.device) * last.exp()[..., None]], dim=-2)
    add = torch.cat([uc, kt @ uc], dim=-2)
    state = torch.zeros(B, H, K, V, device=k.device)
    h, v_new = [], []
    for n in range(N):
        h.append(state)
        out = add[:, n] - both[:, n] @ state
        v_new.append(out[:, :, :64])
        state = out[:, :, 64:]
    return torch.stack(h, 1), torch.stack(v_new, 1).transpose(2, 3).reshape(B, T, H, V)
""",
    ("loop", "half_tensors"): """
import torch


def run(k, w, u, g):
    # products in float16, the state in float32
    B, T, H, K = k.shape
    V = u.shape[-1]
    N = T // 64
    kc, wc, uc = (x.view(B, N, 64, H, -1).permute(1, 0, 3, 2, 4) for x in (k, w, u))
    gc = g.view(B, N, 64, H).permute(1, 0, 3, 2).unsqueeze(-1)
    last = gc[:, :, :, -1:]
    kt = (kc * torch.exp(last - gc)).half().mT.contiguous()
    wc = wc.half().contiguous()
    state = torch.zeros(B, H, K, V, device=k.device)
    h = torch.empty(B, N, H, K, V, device=k.device)
    v_new = torch.empty(N, B, H, 64, V, device=k.device)
    for n in range(N):
        h[:, n] = state
        v_new[n] = uc[n] - (wc[n] @ state.half()).float()
        state = state * last[n].exp() + (kt[n] @ v_new[n].half()).float()
    return h, v_new.permute(1, 0, 3, 2, 4).reshape(B, T, H, V)
""",
}
ARGUMENTS = "k, w, u, g"
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
