"""What a dry run has seen so far, and how it stops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from gpu_forecasters_plugin.screen.profile import LaunchProfile, LibraryCall

__all__ = ["LaunchRefused", "Recorder", "Stop"]


class Stop(BaseException):
    """The dry run cannot go on: data or a clock is needed, or the candidate has failed.

    Not an ``Exception``: evaluators catch those and go on.
    """


class LaunchRefused(RuntimeError):
    """A launch that the CUDA driver would refuse."""


@dataclass
class Recorder:
    """One dry run.

    Attributes:
        program: path of the candidate.
        entered: whether a function or class of the candidate was called from outside of it.
        returned: how many such calls returned.
        failure: the first exception that left the candidate.
        stopped: why the run could not go on; empty while it can.
        stopped_inside: whether that was within the candidate.
        missing: names that were looked for in the candidate in vain.
        guesses: what was answered without being known; an exception after a guess proves nothing.
        launches: kernels by their binary, grid and bytes of arguments.
        library: operators by name.
    """

    program: str
    entered: bool = False
    returned: int = 0
    failure: BaseException | None = None
    stopped: str = ""
    stopped_inside: bool = False
    missing: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)
    launches: dict[tuple[Any, ...], LaunchProfile] = field(default_factory=dict)
    library: dict[str, LibraryCall] = field(default_factory=dict)
    binaries: dict[str, bytes] = field(default_factory=dict)
    enter_thread: Callable[[], Any] | None = None
    _inside: threading.local = field(default_factory=threading.local)

    @property
    def depth(self) -> int:
        """Calls of the candidate that this thread is in."""
        return getattr(self._inside, "depth", 0)

    def stop(self, reason: str) -> None:
        """Note why the run cannot go on, the first time, and end it.

        Raises:
            Stop: always.
        """
        if not self.stopped and self.failure is None:
            self.stopped, self.stopped_inside = reason, self.depth > 0
        raise Stop(reason)

    def guess(self, what: str) -> None:
        """Note that an answer was made up."""
        if what not in self.guesses:
            self.guesses.append(what)

    def guarded(self, function: Callable[..., Any], *, is_entry: bool = True) -> Callable[..., Any]:
        """A function of the candidate whose exceptions are noted when they leave the candidate.

        Args:
            function: the function.
            is_entry: False for the module's own execution.
        """

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.depth == 0 and self.enter_thread is not None:
                self.enter_thread()
            if is_entry:
                self.entered = True
            self._inside.depth = self.depth + 1
            try:
                result = function(*args, **kwargs)
            except Stop:
                raise
            except BaseException as error:
                if self.depth > 1:
                    raise  # the candidate may catch it itself
                if self.failure is None and not self.stopped:
                    self.failure = error
                raise Stop("the candidate has failed") from error
            else:
                self.returned += is_entry and self.depth == 1
                return result
            finally:
                self._inside.depth = self.depth - 1

        return call
