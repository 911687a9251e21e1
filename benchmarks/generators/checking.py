"""Whether the outputs of a source are right."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def as_tuple(value: object) -> tuple[Any, ...]:
    """What ``run`` or ``reference`` returned, as a tuple of outputs."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _tolerances(task: ModuleType, count: int) -> list[dict[str, float]]:
    """The tolerance of each output: one dictionary for all, or one per output in order."""
    table = task.TOLERANCE
    if all(isinstance(value, dict) for value in table.values()):
        return list(table.values())
    return [dict(table)] * count


def compare(task: ModuleType, outputs: tuple[Any, ...], expected: tuple[Any, ...]) -> str | None:
    """Returns None if the outputs are right, otherwise what is wrong with them."""
    import torch

    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    types = getattr(task, "OUTPUT_DTYPES", [None] * len(expected))
    for number, (out, want, bound, kind) in enumerate(
        zip(outputs, expected, _tolerances(task, len(expected)), types, strict=True)
    ):
        if not isinstance(out, torch.Tensor):
            return f"output {number} is a {type(out).__name__}"
        if out.device != want.device:
            return f"output {number} is on {out.device}"
        if out.shape != want.shape:
            return f"output {number} has shape {tuple(out.shape)} instead of {tuple(want.shape)}"
        if kind is not None and out.dtype != getattr(torch, kind):
            return f"output {number} has type {out.dtype} instead of {kind}"
        wrong = _values(out.float(), want.float(), bound)
        if wrong:
            return f"output {number}: {wrong}"
    return None


def _values(got: Any, want: Any, bound: dict[str, float]) -> str | None:
    import torch

    if not bool(torch.isfinite(got).all()):
        return "has values that are not finite"
    error = (got - want).abs_()
    if "relative_norm" in bound:
        ratio = (error.norm() / want.norm()).item()
        if not ratio <= bound["relative_norm"]:
            return f"relative error {ratio:.3g} above {bound['relative_norm']:g}"
    if "rtol" in bound:
        allowed = want.abs().mul_(bound["rtol"]).add_(bound["atol"])
        wrong = int((error > allowed).sum())
        if wrong:
            return f"{wrong} of {got.numel()} elements outside the tolerance"
    return None


def poison(expected: tuple[Any, ...], task: ModuleType) -> None:
    """Fills the memory that the next outputs will probably get with NaN."""
    import torch

    types = getattr(task, "OUTPUT_DTYPES", [None] * len(expected))
    blocks = []
    for want, kind in zip(expected, types, strict=True):
        dtype = getattr(torch, kind) if kind else torch.float32
        if dtype.is_floating_point:
            blocks += [
                torch.full(want.shape, float("nan"), device=want.device, dtype=dtype) for _ in range(2)
            ]
    del blocks
