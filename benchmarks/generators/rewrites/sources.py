"""All sources that there are: every module, every rewrite of it, every change of either."""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generators.rewrites.anywhere import changes
from benchmarks.generators.rewrites.module import Rewritten

REFERENCE = "reference"


@dataclass(frozen=True)
class Source:
    """One text, with a name that it alone has among those of its module."""

    module: str
    name: str
    code: str

    @property
    def sha(self) -> str:
        """What tells whether the text is still the one that was measured."""
        return hashlib.sha256(self.code.encode()).hexdigest()[:16]


def module_names() -> list[str]:
    """Names of all modules."""
    return sorted(path.stem for path in (Path(__file__).parent / "modules").glob("[a-z]*.py"))


def module_named(name: str) -> Rewritten:
    """The module of that name."""
    found: Rewritten = importlib.import_module(f"benchmarks.generators.rewrites.modules.{name}").MODULE
    return found


def sources_of(name: str) -> list[Source]:
    """The reference first, and then all that was made of it, without those that say the same."""
    module = module_named(name)
    texts = {REFERENCE: module.source(module.reference, "Model")}
    for key, body in (*module.rewrites.items(), *changes(module)):
        texts.setdefault(key, module.source(body))
    first = {code: key for key, code in reversed(texts.items())}
    return [Source(name, key, code) for key, code in texts.items() if first[code] == key]
