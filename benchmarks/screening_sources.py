"""Kernels that fail, written for the screen's figures: recorded ones with one mistake each, of twelve kinds."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.recorded.pool import load_task

__all__ = ["KINDS", "PARENT_TASKS", "BrokenSource", "broken_sources", "with_mistake"]

PARENT_TASKS = ("cross_entropy", "fp8_quant", "gdn_chunk_o", "rmsnorm", "softmax")
"""Recorded tasks whose kernels get the mistakes. With others the sources would be others, of which no GPU was asked."""


@dataclass(frozen=True)
class BrokenSource:
    """A recorded kernel with a mistake.

    Attributes:
        id: its kind and number.
        task: the recorded task that its parent is of.
        kind: what is wrong with it.
        code: its text.
    """

    id: str
    task: str
    kind: str
    code: str


Edit = tuple[str, str]
"""A pattern, and what one of the places that match becomes."""

_LAUNCH = r"^(    +\w+\[[^\n]+\]\()(\s*\w+, )"
_GRID = r"^(    +\w+)\[\((\w+),\)\]\("
_FLOATS = r"^(    +)(\w+) = (?:tl\.load\(.*\)\.to\(tl\.float32\)|(?:tl\.exp|tl\.sqrt)\(.*\))$"
_RANGE = r"tl\.arange\(0, (\w+)\)"


def _undefined_variable(code: str) -> list[Edit]:
    """A variable that is assigned at one place only, and read at another, under another name."""
    names = re.findall(r"^    +(\w+) = tl\.(?:program_id|arange|load)\(", code, re.MULTILINE)
    once = [
        name
        for name in names
        if len(re.findall(rf"^\s+{name} (?:[-+*/]?=) |def .*\b{name}\b", code, re.MULTILINE)) == 1
        and len(re.findall(rf"\b{name}\b", code)) > 1
    ]
    return [(rf"^(    +){name} = ", r"\1unused = ") for name in once]


def _runtime_as_constexpr(code: str) -> list[Edit]:
    """The size of a block that is no constant."""
    names = set(re.findall(_RANGE, code)) & set(re.findall(r"(\w+): tl\.constexpr", code))
    # Triton makes a constant of every argument that is 1.
    names -= set(re.findall(r"\b(\w+)=1\b", code))
    return [(rf"\b({'|'.join(sorted(names))}): tl\.constexpr", r"\1")] if names else []


KINDS: dict[str, Sequence[Edit] | Callable[[str], Sequence[Edit]]] = {
    "syntax": (
        (r"^(def \w+\(.*\)):$", r"\1"),
        (r"\)$", ""),
        (r"^    return\b", "    retrun"),
        (r" = tl\.load\(", " = tl.load(("),
    ),
    "missing import": (
        (r"^import triton\.language as tl$", "import triton.langage as tl"),
        (r"^import triton\.language as tl$", r"\g<0>\nfrom triton.language import block_reduce"),
        (r"^import torch$", "import torch\nimport kernel_helpers_of_mine"),
        (r"^import torch$", "import torch\nfrom torch import fused_rows"),
        (r"^import triton\.language as tl\n", ""),
    ),
    "unknown tl name": (
        (r"\btl\.load\(", "tl.read("),
        (r"\btl\.store\(", "tl.write("),
        (r"\btl\.program_id\(", "tl.block_idx("),
        (r"\btl\.sum\(", "tl.reduce_sum("),
        (r"\btl\.arange\(", "tl.iota("),
    ),
    "undefined variable": _undefined_variable,
    "run-time value as constexpr": _runtime_as_constexpr,
    "not a power of two": tuple((_RANGE, rf"tl.arange(0, {factor} * \1)") for factor in (3, 5, 6, 7)),
    "operation on wrong types": tuple(
        (_FLOATS, rf"\g<0>\n\1\2 = \2 {operation}") for operation in ("<< 1", "& 3", "| 1", "^ 1")
    ),
    "wrong arguments at a launch": (
        (_LAUNCH, r"\1"),
        (_LAUNCH, r"\1\2\2"),
        (r"\bnum_warps=", "num_wraps="),
        (r"\bnum_stages=", "stages="),
    ),
    "wrong grid": (
        (_GRID, r"\1[(\2 / 1.5,)]("),
        (_GRID, r"\1[(-\2,)]("),
        (_GRID, r"\1[(1, \2 * 65536)]("),
        (r"^(    +\w+)\[\(triton\.cdiv\((\w+), (\w+)\),\)\]\(", r"\1[(\2 / \3,)]("),
    ),
    "too much of a resource": (
        (r"\bnum_warps=\d+", "num_warps=64"),
        (_RANGE, r"tl.arange(0, 1048576 * \1)"),
    ),
    "unknown name on the host": (
        (r"\btorch\.empty_like\(", "torch.empty_as("),
        (r"\btorch\.empty\(", "torch.uninitialised("),
        (r"\b(\w+)\.shape\b", r"\1.dims"),
        (r"\b(\w+)\.numel\(\)", r"\1.count()"),
    ),
    "missing or other entry point": (
        (r"^def run\(", "def launch("),
        (r"^def run\((\w+)", r"def run(workspace, \1"),
    ),
}
"""The edits, one of which makes a mistake of a kind; those that depend on the source are functions of it."""


def with_mistake(code: str, kind: str, chance: random.Random) -> str | None:
    """The text with a mistake of that kind; ``None`` where the edit that was drawn has no place in it."""
    known = KINDS[kind]
    edits = known(code) if callable(known) else known
    if not edits:
        return None
    pattern, replacement = chance.choice(edits)
    matches = list(re.finditer(pattern, code, re.MULTILINE))
    if not matches:
        return None
    match = chance.choice(matches)
    return code[: match.start()] + match.expand(replacement) + code[match.end() :]


def _parents(chance: random.Random) -> Iterator[tuple[str, str]]:
    """Sources with one Triton kernel that ran, of one task after the other: a second one may never be launched."""
    pools = {}
    for task in PARENT_TASKS:
        sources = [
            c.code
            for c in load_task(task).candidates.values()
            if c.language == "triton" and c.outcome is Outcome.OK and c.code.count("@triton.jit") == 1
        ]
        chance.shuffle(sources)
        pools[task] = sources
    for number in range(max(map(len, pools.values()))):
        for task, sources in pools.items():
            if number < len(sources):
                yield task, sources[number]


def broken_sources(each: int = 20, seed: int = 0) -> list[BrokenSource]:
    """Distinct sources, ``each`` of every kind; the same for the same seed."""
    found: list[BrokenSource] = []
    for kind in KINDS:
        chance = random.Random(f"{seed} {kind}")
        texts: dict[str, str] = {}
        for task, code in _parents(chance):
            broken = with_mistake(code, kind, chance)
            if broken is not None and broken != code:
                texts.setdefault(broken, task)
            if len(texts) == each:
                break
        found += [
            BrokenSource(f"{kind} {number}", task, kind, text)
            for number, (text, task) in enumerate(texts.items())
        ]
    return found
