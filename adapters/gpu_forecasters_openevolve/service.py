"""The gate service: one per run, in the host's main process, for all of its workers.

Workers connect to a local socket and block until their program has been skipped or measured. Decisions are the
gate's; measuring happens in processes of its own, so that neither a dying worker nor a dying evaluator takes a result
with it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpu_forecasters_openevolve.awaiting import Awaited
from gpu_forecasters_openevolve.evaluator_process import CallReply
from gpu_forecasters_openevolve.evaluators import EvaluatorPool, EvaluatorProcess, EvaluatorsClosed
from gpu_forecasters_openevolve.measurer import Measurer
from gpu_forecasters_openevolve.messages import EvaluationReply, EvaluationRequest, ServiceAddress
from gpu_forecasters_openevolve.reception import Reception
from gpu_forecasters_openevolve.replies import (
    failure_reply,
    measured_reply,
    not_admitted_reply,
    skip_reply,
    undecided_reply,
)
from gpu_forecasters_openevolve.sessions import ServiceLimits, Session
from gpu_forecasters_plugin.candidate import Candidate, decode_source
from gpu_forecasters_plugin.decision import Action, Decision, Measurement, Outcome, Reason
from gpu_forecasters_plugin.ending import RunEnd
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.measuring import answers_in
from gpu_forecasters_plugin.pooling import PooledGate

__all__ = ["GateService"]

logger = logging.getLogger(__name__)

_DUPLICATE_POLL_S = 0.2
_OVERDUE_S = 30.0
"""Beyond its time-out, how long a measurement may be open before nobody waits for it any more, in seconds."""


class GateService:
    """Serves the workers of one run. Start with :meth:`start`, end with :meth:`close`."""

    def __init__(
        self,
        gate: Gate,
        evaluators: EvaluatorPool,
        limits: ServiceLimits,
        *,
        on_spent: Callable[[], None] = lambda: None,
        on_failure: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """Prepare a service.

        Args:
            gate: who decides.
            evaluators: who measures.
            limits: sizes and times.
            on_spent: called once, when the budget is spent and the host has seen every result.
            on_failure: called once, when the run cannot go on (the ledger cannot be written).
        """
        self.gate = gate
        self._evaluators = evaluators
        self._limits = limits
        self._on_failure = on_failure
        self._measurer = Measurer(gate, limits)
        self._pool = PooledGate(
            gate,
            size=limits.pool_size,
            workers=limits.workers,
            max_wait_s=limits.max_wait_s,
            may_release=lambda: evaluators.has_room,
        )
        self._awaited = Awaited(gate, lambda: self._reception.sessions(), self._fail)
        self._reception = Reception(self._pool, self._answer, self._awaited.settle)
        self._end = RunEnd(gate, limits.pool_size, on_spent)
        self._lock = threading.Lock()
        self._counter = 0
        self._closed = False
        self.failure: BaseException | None = None
        self.worker_died = False

    @property
    def address(self) -> ServiceAddress:
        """What workers need to connect."""
        info = self._evaluators.info
        reception = self._reception
        return ServiceAddress(reception.path, reception.key, os.getpid(), info.functions, info.parameters)

    @property
    def exhausted(self) -> bool:
        """Whether the run ends because nothing new is proposed."""
        return self._end.exhausted

    def start(self) -> None:
        """Accept workers, in a thread of the host's main process."""
        self._reception.start()

    def close(self, *, at_once: bool = False) -> None:
        """Stop serving; a measurement that runs is given its time to end, unless it is to be ``at_once``."""
        if self._closed:
            return
        self._closed = True
        self._reception.close()
        self._measurer.give_up()
        self.gate.close()
        self._pool.close()
        wait = self._end.measuring and not at_once
        self._evaluators.close(grace_s=self._limits.evaluation_timeout_s if wait else 0.0)

    def host_stops(self, worker_died: bool) -> None:
        """The host is about to end its workers, maybe since one ``worker_died``: from now on none is lost any more."""
        self.worker_died |= worker_died
        self._reception.host_stops()
        self.gate.close()

    # -- the host's population ------------------------------------------------------------------------------

    def program_processed(self, key: str, answered: bool) -> None:
        """The host has put a program into its population, or refused it.

        Once the budget is spent and no result is on its way any more, the run can end.

        Args:
            key: the program's source.
            answered: it came with the evaluator's answer. The same source may have been skipped before: that
                earlier program says nothing about the result that is on its way.
        """
        if answered:
            self._awaited.program_processed(key)
        self._end.program_processed(self._awaited.anything)

    # -- one request ----------------------------------------------------------------------------------------

    def _answer(self, session: Session, request: EvaluationRequest) -> EvaluationReply | None:
        try:
            if request.program_path == session.program_path and session.decision is not None:
                return self._next_stage(session, request)
            return self._evaluate(session, request)
        except (OSError, EOFError):
            raise  # the worker is gone
        except Exception as error:
            # Not only our own errors: whatever it is, the run must say so.
            self._fail(error)
            return undecided_reply(str(error))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
        self._measurer.give_up()
        logger.critical("the run cannot go on: %s", error)
        self._on_failure(error)

    # -- one program ----------------------------------------------------------------------------------------

    def _candidate(self, request: EvaluationRequest) -> Candidate:
        with self._lock:
            self._counter += 1
            number = self._counter
        code = decode_source(Path(request.program_path).read_bytes())
        return Candidate(f"{os.getpid()}-{number}", code, request.parent_code)

    def _evaluate(self, session: Session, request: EvaluationRequest) -> EvaluationReply | None:
        self._awaited.settle(session)
        session.decision, session.program_path, session.evaluator = None, request.program_path, None
        candidate = self._candidate(request)
        while True:
            decision = self._decide(candidate, session, request)
            if decision is None:
                return None
            self._end.decided(decision)
            if decision.reason is Reason.DUPLICATE:
                answer = decision.answer or self._await_answer(candidate.key, session)
                if answer is None:
                    if not session.alive:
                        return None
                    candidate = self._candidate(request)
                    continue  # its measurement came to nothing: decide anew
                session.decision = decision
                return self._reply(session, request, answer, decision, duplicate=True)
            if not decision.measure:
                return skip_reply(decision)
            session.decision = decision
            return self._measure(session, request, decision)

    def _decide(self, candidate: Candidate, session: Session, request: EvaluationRequest) -> Decision | None:
        if request.is_seed:
            # A program that the population starts from is no proposal: nothing to choose.
            return self.gate.ask([candidate], measure_all=True)[0]
        decision = self._pool.decide(candidate, session.still_there)
        if decision is not None and decision.measure and not session.still_there():
            self.gate.release(decision.id)
            return None
        return decision

    def _await_answer(self, key: str, session: Session) -> Measurement | None:
        """The result of the same source that is being measured right now, maybe by a process of an earlier run."""
        overdue_s = self._limits.evaluation_timeout_s + _OVERDUE_S
        while session.still_there() and not self._closed:
            answer = self.gate.answer(key)
            if answer is not None or not self.gate.in_flight(key):
                return answer
            self.gate.close_overdue(overdue_s)
            time.sleep(_DUPLICATE_POLL_S)
        return None

    def _measure(
        self, session: Session, request: EvaluationRequest, decision: Decision
    ) -> EvaluationReply | None:
        with self._end.measurement():
            # Before it starts: while nothing is measured, the end of the run waits for what the host has not seen.
            session.awaiting.add(decision.candidate_key)
            try:
                evaluator = session.evaluator = self._evaluators.acquire()
            except EvaluatorsClosed:
                self.gate.release(decision.id)
                return None
            try:
                if not self.gate.start(decision.id, evaluator.worker):
                    self._awaited.expect_nothing(session, decision)
                    return skip_reply(replace(decision, action=Action.SKIP, reason=Reason.BUDGET_SPENT))
                return self._call(session, request, decision, evaluator)
            finally:
                self._evaluators.release(evaluator)

    def _next_stage(self, session: Session, request: EvaluationRequest) -> EvaluationReply | None:
        """A later stage of a cascade belongs to the measurement that its first stage was charged for."""
        decision = session.decision
        assert decision is not None
        if decision.reason is Reason.DUPLICATE:
            answer = self.gate.answer(decision.candidate_key)
            if answer is not None and request.function in answers_in(answer.payload):
                return self._reply(session, request, answer, decision, duplicate=True)
            return failure_reply(request.function, "the earlier measurement of this source stopped before")
        try:
            evaluator = self._evaluators.acquire(preferred=session.evaluator)
        except EvaluatorsClosed:
            return None
        try:
            return self._call(session, request, decision, evaluator)
        finally:
            self._evaluators.release(evaluator)

    def _call(
        self, session: Session, request: EvaluationRequest, decision: Decision, evaluator: EvaluatorProcess
    ) -> EvaluationReply:
        provisional = self._measurer.may_continue(request.function)
        session.calling, session.unsettled = True, decision if provisional else None
        try:
            result = self._measurer.call(request, decision, evaluator)
        finally:
            session.calling = False
        return self._reply(session, request, result.measurement, decision, reply=result)

    def _reply(
        self,
        session: Session,
        request: EvaluationRequest,
        measurement: Measurement,
        decision: Decision,
        *,
        reply: CallReply | None = None,
        duplicate: bool = False,
    ) -> EvaluationReply:
        answer = reply.answer if reply is not None else answers_in(measurement.payload).get(request.function)
        if measurement.outcome is Outcome.IMPLAUSIBLE and not request.is_seed:
            self._awaited.expect_nothing(session, decision)
            return not_admitted_reply(measurement)
        if answer is None:
            trace = reply.traceback if reply is not None else None
            return failure_reply(request.function, measurement.error or str(measurement.outcome), trace)
        return measured_reply(answer, measurement, decision, duplicate=duplicate)
