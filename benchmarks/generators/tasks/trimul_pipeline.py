"""A source of ``trimul`` is a pipeline of three stages: projections, product over pairs, closing norm and projection.

Between the stages stand variables of ``run``: ``left``, ``right`` and ``prod`` are [B, H, N, N] (layout ``first``:
the channel comes first) or [B, N, N, H] (``last``), ``gate`` is [B * N * N, H], and the result is ``out``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.generators.pool import Draft
from benchmarks.generators.text import Manner, fill, joined

LAYOUTS = {"first": "(B, H, N, N)", "last": "(B, N, N, H)"}
TORCH_TYPES = {"float32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}

MANNER = Manner(
    names={
        "left": ["lhs", "a_proj", "l_full"],
        "right": ["rhs", "b_proj", "r_full"],
        "prod": ["tri", "pair_sum", "mixed"],
        "xn": ["x_norm", "normed_x", "z"],
        "rows": ["pos", "offs_m", "r_idx"],
        "hs": ["chan", "offs_h", "h_idx"],
        "mean": ["mu", "avg", "row_mean"],
        "rstd": ["inv_std", "rs", "inv"],
        "total": ["s1", "acc_sum", "sum_x"],
        "squares": ["s2", "acc_sq", "sum_sq"],
    },
    notes=(
        "Triangle multiplicative update, outgoing edges.",
        "TriMul forward pass for AlphaFold-style pair representations.",
        "Outgoing triangle multiplication.\n\nProjections with gates, a batched product, a gated output projection.\n",
        "Candidate: fewer passes over the pair representation.",
    ),
)

RUN = """
@imports@


@kernels@
def run(x, mask, norm_w, norm_b, w_l, w_r, w_lg, w_rg, w_og, onorm_w, onorm_b, w_o):
    @prelude@
    B, N, _, C = x.shape
    H = w_l.shape[0]
    M = B * N * N
    @project@
    @product@
    @finish@
    @after@
    return out
"""

# What a careless wrapper does around the work: name -> (before, after).
HOST: dict[str | None, tuple[str, str]] = {
    None: ("", ""),
    "clone_in": ("x = x.clone()\nmask = mask.clone()", ""),
    "sync": ("torch.cuda.synchronize()", "torch.cuda.synchronize()"),
    "clone_out": ("", "out = out.clone().contiguous()"),
    "nan_check": ("", 'if torch.isnan(out).any().item():\n    raise ValueError("NaN in the output")'),
    "item": ("assert x.abs().max().item() < 1e30", ""),
    "roundtrip": ("x = x.double().float()", ""),
    "permuted": ("x = x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1).contiguous()", ""),
}


@dataclass(frozen=True)
class Stage:
    """One of the three parts of a source.

    Attributes:
        choices: What made it; the names begin with the part's.
        lines: Its lines of ``run``.
        kernels: What it needs defined before; a text that two stages share appears once.
        language: ``pytorch``, ``triton`` or ``cuda``.
        tf32: Whether its library calls want TF32.
        imports: Modules beside torch, as import lines.
    """

    choices: Mapping[str, object]
    lines: str
    kernels: Sequence[str] = ()
    language: str = "pytorch"
    tf32: bool = False
    imports: Sequence[str] = ()


def pipeline(project: Stage, product: Stage, finish: Stage, host: str | None = None) -> Draft:
    """Puts three stages together."""
    stages = (project, product, finish)
    languages = {stage.language for stage in stages}
    language = next(name for name in ("cuda", "triton", "pytorch") if name in languages)
    before, after = HOST[host]
    if any(stage.tf32 for stage in stages):
        before = joined("torch.backends.cuda.matmul.allow_tf32 = True", before)
    imports = [line for stage in stages for line in stage.imports]
    if "triton" in languages:
        imports += ["import triton", "import triton.language as tl"]
    kernels = dict.fromkeys(kernel.strip("\n") for stage in stages for kernel in stage.kernels)
    code = fill(
        RUN,
        imports="\n".join(dict.fromkeys(["import torch", *imports])),
        kernels="".join(f"{kernel}\n\n\n" for kernel in kernels).rstrip("\n") + "\n\n" if kernels else "",
        prelude=before,
        project=project.lines.strip("\n"),
        product=product.lines.strip("\n"),
        finish=finish.lines.strip("\n"),
        after=after,
    )
    choices = {**project.choices, **product.choices, **finish.choices, "host": host}
    return Draft(choices, code, language, MANNER)
