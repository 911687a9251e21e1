"""What the host still has coming: results on their way to its population, and cascades that may go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu_forecasters_openevolve.sessions import Session
from gpu_forecasters_plugin.decision import Decision
from gpu_forecasters_plugin.errors import GpuForecastersError
from gpu_forecasters_plugin.gate import Gate

__all__ = ["Awaited"]


class Awaited:
    """Follows, in the workers' sessions, what the host has not dealt with yet."""

    def __init__(
        self,
        gate: Gate,
        sessions: Callable[[], Sequence[Session]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Follow a run's sessions.

        Args:
            gate: who knows what a cascade's last stage said.
            sessions: those that are connected.
            on_failure: told when the ledger cannot be written.
        """
        self._gate = gate
        self._sessions = sessions
        self._on_failure = on_failure

    def anything(self) -> bool:
        """Whether any result is on its way to the host."""
        return any(session.awaiting for session in self._sessions())

    def program_processed(self, key: str) -> None:
        """The host has dealt with the program of that source: its cascade has ended, at whatever stage."""
        for session in self._sessions():
            decision = None if session.calling else session.unsettled
            if decision is not None and decision.candidate_key == key:
                self.settle(session)
        for session in self._sessions():
            session.awaiting.discard(key)

    def expect_nothing(self, session: Session, decision: Decision) -> None:
        """The host will refuse this program: no result of it is on its way, and no further stage follows."""
        session.awaiting.discard(decision.candidate_key)
        self.settle(session)

    def settle(self, session: Session) -> None:
        """No further stage follows: let what the last one said stand, so that it answers for duplicates."""
        decision, session.unsettled = session.unsettled, None
        if decision is None:
            return
        try:
            self._gate.settle(decision.id)
        except GpuForecastersError as error:
            self._on_failure(error)
