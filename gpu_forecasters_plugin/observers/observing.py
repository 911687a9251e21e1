"""Tells observers what a run writes into its ledger, without the run waiting for any of them.

The ledger is the queue: each observer has a thread of its own that reads what is new, so that nothing is kept in
memory, nothing is dropped while the run goes on, and a slow observer is merely late. When the run ends it waits for
observers that are behind, up to :data:`CLOSING_S` seconds in all; what has not reached them by then is in the ledger
alone.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields

from gpu_forecasters_plugin.config import ObserverConfig, SurrogateConfig
from gpu_forecasters_plugin.errors import LedgerError
from gpu_forecasters_plugin.failure_log import FailureLog
from gpu_forecasters_plugin.hookspecs import ObserverFactory, ObserverSetup
from gpu_forecasters_plugin.ledger import Ledger, RunIdentity
from gpu_forecasters_plugin.observers._base import Observer
from gpu_forecasters_plugin.observers.events import Event, RunStarted
from gpu_forecasters_plugin.observers.following import RunFollower
from gpu_forecasters_plugin.plugins import made_by, options_of, registry

__all__ = ["CLOSING_S", "Observing", "build_observers", "observe_run"]

logger = logging.getLogger(__name__)

CLOSING_S = 10.0
"""How long the end of a run waits for its observers, in seconds, all of them together."""

_CONSEQUENCE = "the run goes on without it"

_POLL_S = 1.0
"""How often the ledger is looked at unasked: measuring processes write into it too."""


def build_observers(config: SurrogateConfig) -> dict[str, Observer]:
    """The observers that a configuration names, by a name that tells them apart.

    Raises:
        ConfigError: a setting is wrong, such as a file that cannot be written.
        MissingExtraError: a package is not installed.
        PluginError: a plugin is broken.
    """
    observers: dict[str, Observer] = {}
    for index, section in enumerate(config.observers):
        where = f"surrogate.observers.{index}"
        observers[f"{where} ({section.kind})"] = _build(section, where)
    return observers


def _build(section: ObserverConfig, where: str) -> Observer:
    entry = registry().find(ObserverFactory, section.kind)
    setup = ObserverSetup(options_of(entry, section.options, where))
    wanted: type[Observer] = Observer  # type: ignore[type-abstract]
    return made_by(entry, lambda: entry.factory.build(setup), wanted)


def observe_run(observers: Mapping[str, Observer], ledger: Ledger, *, resumed: bool) -> Observing:
    """Begin to tell observers of the run that was begun in a ledger.

    Args:
        observers: as :func:`build_observers` made them.
        ledger: the run's.
        resumed: whether an earlier process had begun it.
    """
    if not observers:
        return Observing({}, ledger, None)
    row = next(row for row in ledger.runs() if row["id"] == ledger.run_id)
    identity = RunIdentity(**{field.name: row[field.name] for field in fields(RunIdentity)})
    # Of what stays as it is wherever the ledger is moved.
    birth = json.dumps([row["name"], row["created_at"], asdict(identity)])
    run_key = hashlib.sha256(birth.encode()).hexdigest()[:32]
    started = RunStarted(time.time(), run_key, row["name"], identity, row["config"], resumed)
    return Observing(observers, ledger, started)


class _Watch(threading.Thread):
    """One observer and its view of the ledger."""

    def __init__(self, name: str, observer: Observer, follower: RunFollower, started: RunStarted) -> None:
        super().__init__(name=f"gpu-forecasters-observer-{name}", daemon=True)
        self.label = name
        self._observer = observer
        self._follower = follower
        self._started_event = started
        self._woken = threading.Event()
        self._ending = threading.Event()
        self._failures = FailureLog(f"observer {name}")

    def wake(self) -> None:
        self._woken.set()

    def end(self) -> None:
        self._ending.set()
        self._woken.set()

    def run(self) -> None:
        self._tell(self._started_event)
        ending = False
        while not ending:
            self._woken.wait(_POLL_S)
            self._woken.clear()
            # Before reading: whatever was written until the end is told.
            ending = self._ending.is_set()
            self._tell_news()
        self._tell(self._follower.ended())
        self._attempt(self._observer.close)
        self._follower.close()
        if self._failures.count > 1:
            logger.warning("observer %s has failed %d times", self.label, self._failures.count)

    def _tell_news(self) -> None:
        try:
            news = self._follower.new_events()
        except LedgerError as error:
            self._failures.add(error, _CONSEQUENCE)
            return
        for event in news:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        self._attempt(lambda: self._observer.notify(event))

    def _attempt(self, call: Callable[[], None]) -> None:
        try:
            call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it may be anybody's: a run never ends for it
            self._failures.add(error, _CONSEQUENCE)


class Observing:
    """The observers of one run, from its start to :meth:`close`.

    Args:
        observers: who is told, by name.
        ledger: in which the run was begun.
        started: the first event; ``None`` only without observers.
    """

    def __init__(self, observers: Mapping[str, Observer], ledger: Ledger, started: RunStarted | None) -> None:
        self._pid = os.getpid()
        self._watches: Sequence[_Watch] = [
            _Watch(name, observer, RunFollower(ledger.target, ledger.run_id), started)
            for name, observer in observers.items()
            if started is not None
        ]
        for watch in self._watches:
            watch.start()
        if self._watches:
            atexit.register(self.close)

    def wake(self) -> None:
        """Something new is in the ledger."""
        for watch in self._watches:
            watch.wake()

    def close(self) -> None:
        """Let every observer catch up, within :data:`CLOSING_S` seconds. A second call does nothing."""
        watches, self._watches = self._watches, ()
        if not watches:
            return
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return  # a forked child: the threads are its parent's
        for watch in watches:
            watch.end()
        deadline = time.monotonic() + CLOSING_S
        for watch in watches:
            watch.join(max(0.0, deadline - time.monotonic()))
            if watch.is_alive():
                logger.warning(
                    "observer %s is still busy after %.0f s: what it was not told is in the ledger",
                    watch.label,
                    CLOSING_S,
                )
