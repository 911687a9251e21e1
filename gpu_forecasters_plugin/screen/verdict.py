"""What a compiler says about a candidate before any GPU is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_plugin.screen.profile import SourceProfile

__all__ = ["LATE", "Fault", "Status", "Verdict", "invalid", "telling_line", "undecided"]

LATE = "no verdict by the deadline"
"""The message of a verdict that was not waited for any longer."""

_LONGEST_MESSAGE = 4000


class Status(StrEnum):
    """What is known of a candidate."""

    VALID = "valid"
    INVALID = "invalid"
    UNDECIDED = "undecided"


class Fault(StrEnum):
    """Why a candidate cannot run."""

    SYNTAX = "syntax"
    IMPORT = "import"
    ENTRY_POINT = "entry_point"
    SIGNATURE = "signature"
    COMPILE = "compile"
    RESOURCES = "resources"
    LAUNCH = "launch"
    RAISES = "raises"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a screening. Immutable.

    Attributes:
        status: ``valid``: all that was reached without a GPU built, and the launches fit the device; ``invalid``: it
            cannot run there; ``undecided``: nobody can tell without a GPU.
        fault: why it is invalid; ``None`` otherwise.
        message: what the compiler or the interpreter said, or why nothing could be decided; at most 4,000
            characters of text that the candidate has a say in: show it with ``printable``.
        line: line of the candidate, counted from 1, where it failed; ``None`` where no single one did.
        stopped: where a dry run ended before the program did (it needed data, or a clock), likewise bounded; empty if
            it ran through.
        profile: what was compiled; ``None`` where nothing was.
        seconds: wall time of the screening.
        cpu_seconds: processor time of it, the compilers' included.
        sandbox: the protections that held (see ``docs/screening.md``).
    """

    status: Status
    fault: Fault | None = None
    message: str = ""
    line: int | None = None
    stopped: str = ""
    profile: SourceProfile | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    sandbox: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.status is Status.INVALID) != (self.fault is not None):
            raise ValueError(f"a verdict that is {self.status} has fault {self.fault}")
        for name in ("message", "stopped"):
            text = getattr(self, name)
            if len(text) > _LONGEST_MESSAGE:
                object.__setattr__(self, name, text[: _LONGEST_MESSAGE - 3] + "...")

    @property
    def is_invalid(self) -> bool:
        """Whether the candidate certainly cannot run."""
        return self.status is Status.INVALID

    @property
    def is_late(self) -> bool:
        """Whether it was not waited for any longer: it may come yet."""
        return self.status is Status.UNDECIDED and self.message == LATE

    def headline(self) -> str:
        """One line for people: status, fault, line, and the last line of the message, which says most."""
        if self.status is Status.VALID:
            return f"valid; {self.stopped}" if self.stopped else "valid"
        what = f"{self.status}" if self.fault is None else f"{self.status} ({self.fault})"
        where = "" if self.line is None else f", line {self.line}"
        return f"{what}{where}: {telling_line(self.message) or 'no reason given'}"

    def explanation(self) -> str:
        """What is wrong, in the compiler's words, for whoever is to mend it; control characters are escaped."""
        if self.fault is None:
            return printable(self.headline())
        where = "" if self.line is None else f" at line {self.line}"
        message = "\n".join(map(printable, self.message.splitlines()))
        return f"cannot run ({self.fault}){where}: {message}"

    def to_json(self) -> dict[str, Any]:
        """All fields, as JSON takes them."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Verdict:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError, KeyError, TypeError: it is no verdict.
        """
        known = {**fields}
        known["status"] = Status(known["status"])
        known["fault"] = None if known.get("fault") is None else Fault(known["fault"])
        known["profile"] = None if known.get("profile") is None else SourceProfile.from_json(known["profile"])
        known["sandbox"] = tuple(str(name) for name in known.get("sandbox", ()))
        known["message"], known["stopped"] = str(known.get("message", "")), str(known.get("stopped", ""))
        line = known.get("line")
        if not (line is None or (isinstance(line, int) and line > 0)):
            raise ValueError(f"a line is a positive number, got {line!r}")
        return cls(**known)


def telling_line(message: str) -> str:
    """The line of a compiler's message that says most: the last one, marks below a place in the source apart."""
    lines = [line.strip() for line in message.splitlines() if line.strip(" ^~\t")]
    return lines[-1] if lines else ""


def undecided(message: str, **more: Any) -> Verdict:
    """Nothing can be told without a GPU."""
    return Verdict(Status.UNDECIDED, message=message, **more)


def invalid(fault: Fault, message: str, line: int | None = None, **more: Any) -> Verdict:
    """The candidate cannot run."""
    return Verdict(Status.INVALID, fault, message, line, **more)
