"""The extension point of observers: one verb, told what has happened."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gpu_forecasters_plugin.observers.events import Event

__all__ = ["Observer"]


class Observer(ABC):
    """Is told of every forecast, decision and measurement of a run.

    An observer watches and changes nothing: it is called from a thread of its own that reads the ledger, so it may be
    slow, hang or raise, and the run goes on as if it were not there. What it is told comes in the ledger's order: a
    decision after its forecast, a measurement after its decision, decisions by number, measurements as they ended.
    It is built before the run starts: what is wrong with its settings is raised then.
    """

    @abstractmethod
    def notify(self, event: Event) -> None:
        """Take note of something that has happened and is in the ledger.

        Calls come one at a time. What it raises is logged once, and counted.
        """

    def close(self) -> None:  # noqa: B027 - optional by design
        """Let go of files and connections; nothing comes after it.

        Not called when the observer is still busy with an event when the time to end a run is over.
        """
