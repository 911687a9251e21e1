"""The proposer: an answer to each prompt, the same for every arm that has the same seed."""

from __future__ import annotations

import importlib
import random
import threading
from collections import defaultdict
from pathlib import Path

from measuring.journal import append_row, rows_of

from gpu_forecasters_plugin.errors import ProposalError
from gpu_forecasters_plugin.recorded.answers import AnswerFormat, write_answer
from proposing.mutation import mutated
from proposing.space import Design, Space

__all__ = ["TASKS", "RuleProposer", "space_of"]

TASKS = ("add_norm_gelu", "nearest_code")
_TRIES = 50


def space_of(task: str) -> Space:
    """The kernels of a task."""
    space: Space = importlib.import_module(f"proposing.{task}").SPACE
    return space


class RuleProposer:
    """Answers prompts with changes of the program in them. Thread-safe.

    What it makes of a program when it is asked for the n-th time depends on its seed, the program and n alone, so that
    searches with the same seed draw from the same stream; it never makes the same of a program twice. With a file,
    every proposal is written there, and a search that goes on after an interruption goes on in the stream.
    """

    def __init__(self, space: Space, *, seed: int = 0, journal: Path | None = None) -> None:
        """Make a proposer.

        Args:
            space: the kernels that it can write, and change.
            seed: of everything that it draws.
            journal: file of JSON lines, a proposal each.
        """
        self.space = space
        self.seed = seed
        self._journal = journal
        self._children: defaultdict[str, list[str]] = defaultdict(list)
        self._lock = threading.Lock()
        for row in rows_of(journal, "parent", "child") if journal is not None else ():
            self._children[row["parent"]].append(row["child"])

    @property
    def graph(self) -> RuleProposer:
        """What the server of endpoints asks whether a program is known."""
        return self

    def find(self, code: str) -> Design | None:
        """The design of a program; ``None`` where this proposer could not have written it."""
        return self.space.read(code)

    def propose(
        self,
        parent_code: str,
        fmt: AnswerFormat,
        request_seed: int | None = None,
        *,
        language: str = "python",
    ) -> tuple[str, str]:
        """A changed program: its name, and the answer that makes a host write it.

        Raises:
            ProposalError: the program is none of this task, or its change cannot be written in this format.
        """
        parent = self.find(parent_code)
        if parent is None:
            raise ProposalError("the program to change is none that this proposer can read")
        child = self._next_child(parent)
        text = write_answer(parent_code, self.space.write(child), fmt, language)
        if text is None:
            raise ProposalError(f"the change cannot be written as a {fmt} answer")
        return _name(child), text

    def _next_child(self, parent: Design) -> Design:
        name = _name(parent)
        with self._lock:
            known = self._children[name]
            rng = random.Random(f"{self.seed}/{name}/{len(known)}")
            for _ in range(_TRIES):
                child = mutated(self.space, parent, rng)
                if _name(child) not in known:
                    break
            known.append(_name(child))
            if self._journal is not None:
                append_row(self._journal, {"parent": name, "child": _name(child)})
        return child


def _name(design: Design) -> str:
    return " ".join([design.family, *(f"{knob}={option}" for knob, option in design.choices)])
