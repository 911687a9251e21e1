"""Kernels that fail, written for the screen's figures: recorded ones with one mistake each, of twelve kinds."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.recorded.pool import load_task, recorded_task_names

__all__ = ["KINDS", "BrokenSource", "broken_sources"]


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


def _replaced(code: str, pattern: str, replacement: str, chance: random.Random) -> str | None:
    """The text with one of the places that match replaced; ``None`` where none does."""
    matches = list(re.finditer(pattern, code, re.MULTILINE))
    if not matches:
        return None
    match = chance.choice(matches)
    return code[: match.start()] + match.expand(replacement) + code[match.end() :]


def _syntax(code: str, chance: random.Random) -> str | None:
    pattern, replacement = chance.choice(
        [
            (r"^(def \w+\(.*\)):$", r"\1"),
            (r"\)$", ""),
            (r"^    return\b", "    retrun"),
            (r" = tl\.load\(", " = tl.load(("),
        ]
    )
    return _replaced(code, pattern, replacement, chance)


def _missing_import(code: str, chance: random.Random) -> str | None:
    pattern, replacement = chance.choice(
        [
            (r"^import triton\.language as tl$", "import triton.langage as tl"),
            (r"^import triton\.language as tl$", r"\g<0>\nfrom triton.language import block_reduce"),
            (r"^import torch$", "import torch\nimport kernel_helpers_of_mine"),
            (r"^import torch$", "import torch\nfrom torch import fused_rows"),
            (r"^import triton\.language as tl\n", ""),
        ]
    )
    return _replaced(code, pattern, replacement, chance)


def _unknown_name(code: str, chance: random.Random) -> str | None:
    pattern, replacement = chance.choice(
        [
            (r"\btl\.load\(", "tl.read("),
            (r"\btl\.store\(", "tl.write("),
            (r"\btl\.program_id\(", "tl.block_idx("),
            (r"\btl\.sum\(", "tl.reduce_sum("),
            (r"\btl\.arange\(", "tl.iota("),
        ]
    )
    return _replaced(code, pattern, replacement, chance)


def _undefined_variable(code: str, chance: random.Random) -> str | None:
    names = re.findall(r"^    +(\w+) = tl\.(?:program_id|arange|load)\(", code, re.MULTILINE)
    # Assigned at one place only, and read at another.
    once = [
        name
        for name in names
        if len(re.findall(rf"^\s+{name} (?:[-+*/]?=) |def .*\b{name}\b", code, re.MULTILINE)) == 1
        and len(re.findall(rf"\b{name}\b", code)) > 1
    ]
    if not once:
        return None
    return _replaced(code, rf"^(    +){chance.choice(once)} = ", r"\1unused = ", chance)


def _runtime_as_constexpr(code: str, chance: random.Random) -> str | None:
    names = set(re.findall(r"tl\.arange\(0, (\w+)\)", code)) & set(re.findall(r"(\w+): tl\.constexpr", code))
    # Triton makes a constant of every argument that is 1.
    names -= set(re.findall(r"\b(\w+)=1\b", code))
    return _replaced(code, rf"\b({'|'.join(sorted(names))}): tl\.constexpr", r"\1", chance) if names else None


def _not_a_power_of_two(code: str, chance: random.Random) -> str | None:
    factor = chance.choice((3, 5, 6, 7))
    return _replaced(code, r"tl\.arange\(0, (\w+)\)", rf"tl.arange(0, {factor} * \1)", chance)


def _wrong_types(code: str, chance: random.Random) -> str | None:
    operation = chance.choice(("<< 1", "& 3", "| 1", "^ 1"))
    pattern = (
        r"^(    +)(\w+) = tl\.load\(.*\)\.to\(tl\.float32\)$|^(    +)(\w+) = (?:tl\.exp|tl\.sqrt)\(.*\)$"
    )
    matches = list(re.finditer(pattern, code, re.MULTILINE))
    if not matches:
        return None
    match = chance.choice(matches)
    indent, name = match.group(1) or match.group(3), match.group(2) or match.group(4)
    return f"{code[: match.end()]}\n{indent}{name} = {name} {operation}{code[match.end() :]}"


_LAUNCH = r"^(    +\w+\[[^\n]+\]\()(\s*\w+, )"


def _wrong_arguments(code: str, chance: random.Random) -> str | None:
    pattern, replacement = chance.choice(
        [
            (_LAUNCH, r"\1"),
            (_LAUNCH, r"\1\2\2"),
            (r"\bnum_warps=", "num_wraps="),
            (r"\bnum_stages=", "stages="),
        ]
    )
    return _replaced(code, pattern, replacement, chance)


def _wrong_grid(code: str, chance: random.Random) -> str | None:
    pattern, replacement = chance.choice(
        [
            (r"^(    +\w+)\[\((\w+),\)\]\(", r"\1[(\2 / 1.5,)]("),
            (r"^(    +\w+)\[\((\w+),\)\]\(", r"\1[(-\2,)]("),
            (r"^(    +\w+)\[\((\w+),\)\]\(", r"\1[(1, \2 * 65536)]("),
            (r"^(    +\w+)\[\(triton\.cdiv\((\w+), (\w+)\),\)\]\(", r"\1[(\2 / \3,)]("),
        ]
    )
    return _replaced(code, pattern, replacement, chance)


def _too_much(code: str, chance: random.Random) -> str | None:
    pattern, replacement = chance.choice(
        [(r"\bnum_warps=\d+", "num_warps=64"), (r"tl\.arange\(0, (\w+)\)", r"tl.arange(0, 1048576 * \1)")]
    )
    return _replaced(code, pattern, replacement, chance)


def _wrong_host_name(code: str, chance: random.Random) -> str | None:
    pattern, replacement = chance.choice(
        [
            (r"\btorch\.empty_like\(", "torch.empty_as("),
            (r"\btorch\.empty\(", "torch.uninitialised("),
            (r"\b(\w+)\.shape\b", r"\1.dims"),
            (r"\b(\w+)\.numel\(\)", r"\1.count()"),
        ]
    )
    return _replaced(code, pattern, replacement, chance)


def _missing_entry(code: str, chance: random.Random) -> str | None:
    pattern, replacement = chance.choice(
        [(r"^def run\(", "def launch("), (r"^def run\((\w+)", r"def run(workspace, \1")]
    )
    return _replaced(code, pattern, replacement, chance)


KINDS: dict[str, Callable[[str, random.Random], str | None]] = {
    "syntax": _syntax,
    "missing import": _missing_import,
    "unknown tl name": _unknown_name,
    "undefined variable": _undefined_variable,
    "run-time value as constexpr": _runtime_as_constexpr,
    "not a power of two": _not_a_power_of_two,
    "operation on wrong types": _wrong_types,
    "wrong arguments at a launch": _wrong_arguments,
    "wrong grid": _wrong_grid,
    "too much of a resource": _too_much,
    "unknown name on the host": _wrong_host_name,
    "missing or other entry point": _missing_entry,
}
"""How each kind of mistake is made."""


def _parents(chance: random.Random) -> Iterator[tuple[str, str]]:
    """Sources with one Triton kernel that ran, of one task after the other: a second one may never be launched."""
    pools = {}
    for task in recorded_task_names():
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
    for kind, mistake in KINDS.items():
        chance = random.Random(f"{seed} {kind}")
        texts: dict[str, str] = {}
        for task, code in _parents(chance):
            broken = mistake(code, chance)
            if broken is not None and broken != code:
                texts.setdefault(broken, task)
            if len(texts) == each:
                break
        found += [
            BrokenSource(f"{kind} {number}", task, kind, text)
            for number, (text, task) in enumerate(texts.items())
        ]
    return found
