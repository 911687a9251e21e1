"""A PyTorch module and rewrites of it, as texts that stand alone."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

_SOURCE = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
{before}

class {name}(nn.Module):
    \"\"\"{summary}\"\"\"

    def __init__(self{arguments}):
        super().__init__()
{init}

    def forward(self, {takes}):
{forward}
{methods}

{sizes}


def get_inputs():
    return {inputs}


def get_init_inputs():
    return [{values}]
"""


@dataclass(frozen=True)
class Body:
    """What a module of a given signature does.

    Attributes:
        forward: lines of `forward`.
        init: lines of `__init__`; those of the reference if empty.
        before: lines between the imports and the class: further imports, kernels, functions.
        methods: further methods of the class, as they stand in it.
        summary: docstring of the class; that of the reference if empty.
    """

    forward: str
    init: str = ""
    before: str = ""
    methods: str = ""
    summary: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join((self.before, self.init, self.forward, self.methods))

    @property
    def needs_gpu(self) -> bool:
        """Whether it has a kernel of its own, or calls CUDA by name."""
        return any(word in self.text for word in ("triton", "load_inline", "cuda"))


@dataclass(frozen=True)
class Rewritten:
    """A module and rewrites of it by hand.

    Parameters must be made in the same order as the reference makes them: both are built from one random seed.

    Attributes:
        name: of the module, in lower case with underscores.
        sizes: lines that bind the sizes.
        arguments: names of `__init__`'s arguments, each bound in the sizes.
        takes: names of `forward`'s arguments, with commas.
        inputs: list of `forward`'s inputs, on the CPU, as an expression.
        reference: the module as its author wrote it first.
        rewrites: by name. Each computes the same, in single precision up to the order of sums.
        images: whether the one input has four dimensions and goes through convolutions, so that the order of its
            dimensions in memory matters.
        in_half: whether half precision is good enough for the result to pass.
        compiles: whether torch.compile is through with it in less than minutes: it unrolls every loop.
        carries_on: the rewrite that is changed further in ways that any module can be changed; empty for none.
    """

    name: str
    sizes: str
    arguments: tuple[str, ...]
    takes: str
    inputs: str
    reference: Body
    rewrites: Mapping[str, Body] = field(default_factory=dict)
    images: bool = False
    in_half: bool = True
    compiles: bool = True
    carries_on: str = ""

    @property
    def inputs_taken(self) -> tuple[str, ...]:
        """Names of `forward`'s arguments."""
        return tuple(name.strip() for name in self.takes.split(","))

    def source(self, body: Body, name: str = "ModelNew") -> str:
        """The text of a module with that body: a class, its inputs, and the arguments it is built with."""
        before = flush(body.before)
        methods = indented(body.methods, 4)
        return _SOURCE.format(
            name=name,
            summary=body.summary or self.reference.summary,
            before=f"\n{before}\n" if before else "",
            arguments="".join(f", {argument}" for argument in self.arguments),
            values=", ".join(self.arguments),
            init=indented(body.init or self.reference.init, 8),
            takes=self.takes,
            forward=indented(body.forward, 8),
            methods=f"\n{methods}\n" if methods else "",
            sizes=flush(self.sizes),
            inputs=self.inputs,
        )


def flush(text: str) -> str:
    """Lines without the indentation that all have, and without empty ones around them."""
    return textwrap.dedent(text.strip("\n")).rstrip()


def indented(text: str, spaces: int) -> str:
    """Lines of which the outermost have that many spaces before them."""
    return textwrap.indent(flush(text), " " * spaces)
