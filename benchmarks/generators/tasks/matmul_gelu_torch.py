"""PyTorch sources of the recorded task ``matmul_gelu``."""

from __future__ import annotations

from benchmarks.generators.pool import Draft
from benchmarks.generators.text import begin_run, fill

TORCH = {
    ("eager", "matmul_add_gelu"): """
import torch
import torch.nn.functional as F


def run(x, weight, bias):
    return F.gelu(torch.matmul(x, weight) + bias)
""",
    ("eager", "addmm"): """
import torch


def run(x, weight, bias):
    h = torch.addmm(bias, x, weight)
    return torch.nn.functional.gelu(h)
""",
    ("eager", "addmm_tanh"): """
import torch


def run(x, weight, bias):
    return torch.nn.functional.gelu(torch.addmm(bias, x, weight), approximate="tanh")
""",
    ("eager", "linear"): """
import torch.nn.functional as F


def run(x, weight, bias):
    return F.gelu(F.linear(x, weight.t(), bias))
""",
    ("eager", "linear_contiguous"): """
import torch.nn.functional as F


def run(x, weight, bias):
    w = weight.t().contiguous()
    return F.gelu(F.linear(x, w, bias))
""",
    ("eager", "in_place"): """
import torch


def run(x, weight, bias):
    h = torch.mm(x, weight)
    h.add_(bias)
    return torch.ops.aten.gelu(h)
""",
    ("eager", "written_out"): """
import math

import torch


def run(x, weight, bias):
    h = (x @ weight + bias).float()
    return (0.5 * h * (1.0 + torch.erf(h / math.sqrt(2.0)))).to(x.dtype)
""",
    ("eager", "written_out_tanh"): """
import math

import torch


def run(x, weight, bias):
    h = x @ weight + bias
    h = h.float()
    inner = math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3))
    return (0.5 * h * (1.0 + torch.tanh(inner))).bfloat16()
""",
    ("eager", "normal_distribution"): """
import torch


def run(x, weight, bias):
    h = torch.addmm(bias, x, weight).float()
    return (h * torch.special.ndtr(h)).to(torch.bfloat16)
""",
    ("eager", "einsum"): """
import torch


def run(x, weight, bias):
    h = torch.einsum("mk,kn->mn", x, weight) + bias[None, :]
    return torch.nn.functional.gelu(h)
""",
    ("eager", "baddbmm"): """
import torch


def run(x, weight, bias):
    h = torch.baddbmm(bias.view(1, 1, -1), x.unsqueeze(0), weight.unsqueeze(0))
    return torch.nn.functional.gelu(h.squeeze(0))
""",
    ("eager", "out_argument"): """
import torch


def run(x, weight, bias):
    h = torch.empty(x.size(0), weight.size(1), dtype=x.dtype, device=x.device)
    torch.addmm(bias, x, weight, out=h)
    y = torch.empty_like(h)
    torch._C._nn.gelu(h, approximate="none", out=y)
    return y
""",
    ("activation", "fused_library"): """
import torch


def run(x, weight, bias):
    # the library applies bias and GELU itself
    return torch.ops.aten._addmm_activation(bias, x, weight, use_gelu=True)
""",
    ("float32", "everything"): """
import torch
import torch.nn.functional as F


def run(x, weight, bias):
    y = F.gelu(x.float() @ weight.float() + bias.float())
    return y.to(torch.bfloat16)
""",
    ("float32", "tf32"): """
import torch

torch.backends.cuda.matmul.allow_tf32 = True


def run(x, weight, bias):
    torch.backends.cuda.matmul.allow_tf32 = True
    h = torch.addmm(bias.float(), x.float(), weight.float())
    return torch.nn.functional.gelu(h).bfloat16()
""",
    ("float32", "by_rows"): """
import torch


def run(x, weight, bias):
    w, b = weight.float(), bias.float()
    rows = [torch.nn.functional.gelu(part.float() @ w + b) for part in x.split(128)]
    return torch.cat(rows).to(x.dtype)
""",
    ("float32", "epilogue"): """
import torch


def run(x, weight, bias):
    h = torch.mm(x, weight).float() + bias.float()
    return torch.nn.functional.gelu(h).to(torch.bfloat16)
""",
    ("float64", "everything"): """
import torch


def run(x, weight, bias):
    h = torch.addmm(bias.double(), x.double(), weight.double())
    return torch.nn.functional.gelu(h).to(torch.bfloat16)
""",
    ("float16", "everything"): """
import torch


def run(x, weight, bias):
    h = torch.addmm(bias.half(), x.half(), weight.half())
    return torch.nn.functional.gelu(h).to(torch.bfloat16)
""",
    ("loop", "columns"): """
import torch


def run(x, weight, bias):
    y = torch.empty(x.shape[0], weight.shape[1], dtype=x.dtype, device=x.device)
    for n in range(0, weight.shape[1], 256):
        y[:, n : n + 256] = torch.nn.functional.gelu(x @ weight[:, n : n + 256] + bias[n : n + 256])
    return y
""",
    ("loop", "rows"): """
import torch


def run(x, weight, bias):
    y = torch.empty(x.shape[0], weight.shape[1], dtype=x.dtype, device=x.device)
    for m in range(0, x.shape[0], 64):
        y[m : m + 64] = torch.nn.functional.gelu(torch.addmm(bias, x[m : m + 64], weight))
    return y
""",
    ("loop", "depth"): """
import torch


def run(x, weight, bias):
    h = bias.float().expand(x.shape[0], -1).clone()
    for k in range(0, x.shape[1], 128):
        h += (x[:, k : k + 128] @ weight[k : k + 128]).float()
    return torch.nn.functional.gelu(h).to(torch.bfloat16)
""",
    ("loop", "outer_products"): """
import torch


def run(x, weight, bias):
    # one outer product per step of k, eight at a time
    h = torch.zeros(x.shape[0], weight.shape[1], device=x.device)
    xf, wf = x.float(), weight.float()
    for k in range(0, x.shape[1], 8):
        h.addmm_(xf[:, k : k + 8], wf[k : k + 8])
    return torch.nn.functional.gelu(h + bias.float()).to(x.dtype)
""",
    ("split", "bmm"): """
import torch


def run(x, weight, bias):
    M, K = x.shape
    parts = torch.bmm(
        x.view(M, 4, K // 4).transpose(0, 1), weight.view(4, K // 4, -1), out_dtype=torch.float32
    )
    return torch.nn.functional.gelu(parts.sum(dim=0) + bias.float()).to(x.dtype)
""",
    ("split", "two_halves"): """
import torch


def run(x, weight, bias):
    half = x.shape[1] // 2
    h = torch.mm(x[:, :half], weight[:half]).float()
    h = h + torch.mm(x[:, half:], weight[half:]).float()
    return torch.nn.functional.gelu(h + bias).to(torch.bfloat16)
""",
    ("streams", "two"): """
import torch

SIDE = torch.cuda.Stream()


def run(x, weight, bias):
    y = torch.empty(x.shape[0], weight.shape[1], dtype=x.dtype, device=x.device)
    half = weight.shape[1] // 2
    main = torch.cuda.current_stream()
    SIDE.wait_stream(main)
    with torch.cuda.stream(SIDE):
        y[:, :half] = torch.nn.functional.gelu(torch.addmm(bias[:half], x, weight[:, :half]))
    y[:, half:] = torch.nn.functional.gelu(torch.addmm(bias[half:], x, weight[:, half:]))
    main.wait_stream(SIDE)
    return y
""",
}

PRELUDES = {
    "clone": "    x, weight, bias = x.clone(), weight.clone(), bias.clone()\n",
    "synchronize": "    torch.cuda.synchronize()\n",
    "check_finite": (
        '    if not torch.isfinite(x).all():\n        raise ValueError("x has values that are not finite")\n'
    ),
    "reduced_precision": "    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True\n",
}


def torch_source(algorithm: str, how: str, prelude: str | None = None) -> Draft:
    """A PyTorch source, after some lines that do needless or helpful things first."""
    code = TORCH[algorithm, how]
    if prelude:
        code = begin_run(code, PRELUDES[prelude])
    choices = {"family": "torch", "algorithm": algorithm, "how": how, "prelude": prelude}
    return Draft(choices, fill(code), "pytorch")
