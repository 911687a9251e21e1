"""What the recorded tasks of Gated DeltaNet share: shapes, inputs, precisions of products, manners of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchmarks.generators.pool import Draft
from benchmarks.generators.text import write_dots

if TYPE_CHECKING:
    import torch

CHUNK = 64
SHAPES: list[dict[str, int]] = [
    {"B": 2, "T": 1024, "H": 3, "K": 64, "V": 64},
    {"B": 2, "T": 4096, "H": 8, "K": 128, "V": 128},
    {"B": 1, "T": 8192, "H": 16, "K": 64, "V": 128},
]


def wy_inputs(shape: Mapping[str, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Draws what the chunks of a Gated DeltaNet start from.

    Returns:
        Unit keys k [B, T, H, K], values v [B, T, H, V], write strengths beta [B, T, H] between 0 and 1, the inverse
        A [B, T, H, 64] of the unit lower triangular matrix that has beta_i (k_i . k_j) exp(g_i - g_j) below its
        diagonal, a row per position, and the log decay g [B, T, H], cumulated within the chunk; all float32.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device=device)

    batch, length, heads, k_dim, v_dim = (shape[name] for name in ("B", "T", "H", "K", "V"))
    chunks = length // CHUNK
    k = torch.nn.functional.normalize(normal(batch, length, heads, k_dim), dim=-1)
    v = normal(batch, length, heads, v_dim)
    beta = torch.sigmoid(normal(batch, length, heads))
    step = torch.nn.functional.logsigmoid(normal(batch, chunks, CHUNK, heads) + 4.0)
    g = step.cumsum(dim=2).reshape(batch, length, heads).contiguous()

    def rows(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(batch, chunks, CHUNK, heads, -1).transpose(2, 3)

    decay = torch.exp((rows(g) - rows(g).transpose(-1, -2)).clamp(max=0.0))
    strict = torch.tril((rows(k) @ rows(k).transpose(-1, -2)) * decay * rows(beta), -1)
    unit = torch.eye(CHUNK, device=device)
    inverse = torch.linalg.solve_triangular(strict + unit, unit.expand_as(strict), upper=False)
    inverse = inverse.transpose(2, 3).reshape(batch, length, heads, CHUNK)
    return k, v, beta, inverse.contiguous(), g


def dotted(choices: Mapping[str, object], code: str, precision: str) -> Draft:
    """Writes out each ``<<a|b>>`` of a source as a matrix product of the given precision."""
    return Draft({**choices, "precision": precision}, write_dots(code, precision))


def tf32_run(arguments: str) -> str:
    """A ``run`` that calls ``compute`` with tf32 on; the setting is global, so it is put back."""
    return f"""


def run({arguments}):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return compute({arguments})
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
"""


def preludes(arguments: str) -> dict[str, str]:
    """Needless or useful lines at the start of ``run``, by name."""
    return {
        "clone": f"    {arguments} = (x.clone().contiguous() for x in ({arguments}))\n",
        "synchronize": "    torch.cuda.synchronize()\n",
        "check_finite": (
            f"    for x in ({arguments}):\n"
            "        if not torch.isfinite(x).all().item():\n"
            '            raise ValueError("input is not finite")\n'
        ),
        "check_decay": '    assert g.max().item() <= 0.0, "the decay must not grow"\n',
        "roundtrip": f"    {arguments} = (x.double().float() for x in ({arguments}))\n",
    }
