"""Text of sources: templates, what goes around a kernel, and the manners of different authors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TRITON_IMPORTS = "import torch\nimport triton\nimport triton.language as tl\n\n\n"
DOTS = {
    "tf32": "tl.dot({0}, {1})",
    "ieee": 'tl.dot({0}, {1}, input_precision="ieee")',
    "tf32x3": 'tl.dot({0}, {1}, input_precision="tf32x3")',
    "fp16": "tl.dot({0}.to(tl.float16), {1}.to(tl.float16))",
    "bf16": "tl.dot({0}.to(tl.bfloat16), {1}.to(tl.bfloat16))",
}


def fill(template: str, **slots: object) -> str:
    """Fills the ``@name@`` slots of a template, less its outer newlines; a value may have slots of its own.

    A slot that stands alone on its line takes several lines, indented as it is, and the line goes away if the
    value is empty. Raises KeyError for a slot without a value.
    """
    lines = template.strip("\n").split("\n")
    return "\n".join(part for line in lines for part in _filled(line, slots))


def _filled(line: str, slots: Mapping[str, object]) -> list[str]:
    alone = re.fullmatch(r"(\s*)@(\w+)@", line)
    if alone:
        text = str(slots[alone[2]])
        parts = [alone[1] + part if part.strip() else "" for part in text.split("\n")] if text else []
        return [filled for part in parts for filled in _filled(part, slots)]
    text = re.sub(r"@(\w+)@", lambda slot: str(slots[slot[1]]), line)
    return [text] if text == line else _filled(text, slots)


def joined(*parts: str) -> str:
    """Puts the parts that are not empty on lines of their own."""
    return "\n".join(filter(None, parts))


def write_dots(code: str, precision: str) -> str:
    """Writes out each ``<<a|b>>`` of a Triton source as a matrix product of the given precision (see `DOTS`)."""
    return re.sub(r"<<(.+?)\|(.+?)>>", lambda found: DOTS[precision].format(*found.groups()), code)


def eviction(order: str, when: bool = True) -> str:
    """The argument of a Triton load or store that says which lines leave the cache ``first`` or ``last``."""
    return f', eviction_policy="evict_{order}"' if when else ""


def triton_configs(pairs: Iterable[tuple[int, int]]) -> str:
    """The lines of an autotuner's list, from pairs of block size and warps."""
    return "\n".join(f'triton.Config({{"BLOCK": {block}}}, num_warps={warps}),' for block, warps in pairs)


def begin_run(code: str, lines: str) -> str:
    """Puts lines at the start of ``run``."""
    return re.sub(r"(?m)^def run\(.*\):\n", lambda signature: signature[0] + lines, code)


def wrap_run(code: str, outer: str, inner: str = "launch") -> str:
    """Renames ``run`` to `inner` and appends `outer`, which defines a ``run`` that calls it."""
    return code.replace("def run(", f"def {inner}(") + outer


@dataclass(frozen=True)
class Manner:
    """How other authors would have written the same kernels: other names, fewer comments, a docstring.

    Attributes:
        names: For a name those that other authors use; one list index serves all of them.
        notes: Texts for a module docstring, one of which some authors write.
    """

    names: Mapping[str, Sequence[str]]
    notes: Sequence[str]

    def rewrite(self, code: str, key: object) -> str:
        """Rewrites a source as the author whom the hash of the key chooses: it says nothing about speed."""
        digest = hashlib.sha256(repr(key).encode()).digest()
        author = digest[0] % (1 + max(map(len, self.names.values())))
        if author:
            code = self._rename(code, author - 1)
        habit = digest[1] % 3
        if habit == 1:
            return re.sub(r"(?m)^[ \t]*# .*\n", "", code)
        if habit == 2 and not code.lstrip().startswith('"""'):
            return f'"""{self.notes[digest[2] % len(self.notes)]}"""\n\n{code}'
        return code

    def _rename(self, code: str, author: int) -> str:
        table = {name: others[author % len(others)] for name, others in self.names.items()}
        names = "|".join(map(re.escape, table))
        # A lower-case name before "=" without a space is a keyword argument of somebody else's function.
        return re.sub(rf"(?<![\w.])({names})\b(?!(?<=[a-z])=\S)", lambda found: table[found[1]], code)
