"""The gate service: one per run, in the host's main process, for all of its workers.

Workers connect to a local socket and block until their program has been skipped or measured. Decisions are the
gate's; measuring happens in processes of its own, so that neither a dying worker nor a dying evaluator takes a result
with it.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from gpu_forecasters_openevolve.evaluator_process import CallReply, CallRequest
from gpu_forecasters_openevolve.evaluators import (
    EvaluatorDied,
    EvaluatorPool,
    EvaluatorProcess,
    EvaluatorTimeout,
)
from gpu_forecasters_openevolve.messages import EvaluationReply, EvaluationRequest, ServiceAddress
from gpu_forecasters_openevolve.replies import (
    failure_reply,
    measured_reply,
    not_admitted_reply,
    skip_reply,
    undecided_reply,
)
from gpu_forecasters_plugin.candidate import Candidate, decode_source
from gpu_forecasters_plugin.decision import Action, Decision, Measurement, Outcome, Reason
from gpu_forecasters_plugin.errors import GpuForecastersError, LedgerWriteError
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.measuring import answers_in
from gpu_forecasters_plugin.pooling import PooledGate

__all__ = ["GateService", "ServiceLimits"]

logger = logging.getLogger(__name__)

_DUPLICATE_POLL_S = 0.1
_WRITE_ATTEMPTS = 60


class ServiceLimits:
    """Sizes and times of a service.

    Attributes:
        pool_size: candidates of a full pool.
        workers: worker processes of the host.
        evaluation_timeout_s: time that one call of the evaluator may take, in seconds.
        host_timeout_s: time after which the host gives up on an evaluation, waiting included, in seconds.
        max_wait_s: longest wait for a pool to fill, in seconds.
        last_function: the last function of the evaluator that the host may call for one candidate.
    """

    def __init__(
        self,
        *,
        pool_size: int,
        workers: int,
        evaluation_timeout_s: float,
        host_timeout_s: float,
        max_wait_s: float,
        last_function: str = "evaluate",
    ) -> None:
        self.last_function = last_function
        self.pool_size = pool_size
        self.workers = workers
        self.evaluation_timeout_s = evaluation_timeout_s
        self.host_timeout_s = host_timeout_s
        # Well under the host's own time-out, whatever the configuration says.
        self.max_wait_s = min(max_wait_s, host_timeout_s / 10)


class _Session:
    """One worker's connection, with the cascade that it is in the middle of."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.alive = True
        self.decision: Decision | None = None
        self.program_path = ""
        self.evaluator: EvaluatorProcess | None = None
        self.awaiting: set[str] = set()
        self.calling = False
        self.unsettled: Decision | None = None

    def still_there(self) -> bool:
        """Whether the worker lives: it sends nothing while it waits, so readable means closed."""
        try:
            if self.connection.poll(0):
                self.alive = False
        except (OSError, EOFError):
            self.alive = False
        return self.alive

    def hung_up(self) -> bool:
        """Whether the worker's end is closed; a request that was not read yet is none."""
        try:
            with socket.socket(fileno=os.dup(self.connection.fileno())) as peer:
                return peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


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
        self._on_spent = on_spent
        self._on_failure = on_failure
        self._pool = PooledGate(
            gate,
            size=limits.pool_size,
            workers=limits.workers,
            max_wait_s=limits.max_wait_s,
            may_release=lambda: evaluators.has_room,
        )
        self._folder = tempfile.mkdtemp(prefix="gpu-forecasters-")
        self._key = secrets.token_bytes(32)
        self._listener = Listener(str(Path(self._folder) / "gate.sock"), family="AF_UNIX", authkey=self._key)
        self._lock = threading.Lock()
        self._sessions: set[_Session] = set()
        self._measuring = 0
        self._counter = 0
        self._closed = False
        self._spent_announced = False
        self._host_stops = False
        self.workers_lost = 0
        self.failure: BaseException | None = None

    @property
    def address(self) -> ServiceAddress:
        """What workers need to connect."""
        info = self._evaluators.info
        return ServiceAddress(
            str(self._listener.address), self._key, os.getpid(), info.functions, info.parameters
        )

    def start(self) -> None:
        """Accept workers, in a thread of the host's main process."""
        threading.Thread(target=self._accept, name="gpu-forecasters-gate", daemon=True).start()

    def close(self) -> None:
        """Stop serving; a measurement that runs is given its time to end."""
        if self._closed:
            return
        self._closed = True
        self._pool.close()
        self._evaluators.close(grace_s=self._limits.evaluation_timeout_s if self._measuring else 0.0)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def host_stops(self) -> None:
        """The host is about to end its workers: from now on none is lost any more."""
        with self._lock:
            self.workers_lost += sum(session.hung_up() for session in self._sessions)
            self._host_stops = True

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
            self._settle_stopped(key)
        with self._lock:
            for session in self._sessions if answered else ():
                session.awaiting.discard(key)
        # In this order: what has been started by now is among those that are measured or awaited.
        if not self.gate.budget_spent() or self.gate.has_unstarted():
            return
        with self._lock:
            if self._spent_announced or self._measuring or any(s.awaiting for s in self._sessions):
                return
            self._spent_announced = True
        self._on_spent()

    def _settle_stopped(self, key: str) -> None:
        """A cascade whose program the host has dealt with has ended, at whatever stage."""
        with self._lock:
            idle = [session for session in self._sessions if not session.calling]
        for session in idle:
            if session.unsettled is not None and session.unsettled.candidate_key == key:
                self._settle(session)

    def _expect_nothing(self, session: _Session, decision: Decision) -> None:
        """The host will refuse this program: no result of it is on its way, and no further stage follows."""
        with self._lock:
            session.awaiting.discard(decision.candidate_key)
        self._settle(session)

    def _settle(self, session: _Session) -> None:
        """No further stage follows: let what the last one said stand, so that it answers for duplicates."""
        decision, session.unsettled = session.unsettled, None
        if decision is None:
            return
        try:
            self.gate.settle(decision.id)
        except GpuForecastersError as error:
            self._fail(error)

    # -- connections ----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError):
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        session = _Session(connection)
        with self._lock:
            self._sessions.add(session)
        try:
            while True:
                request: EvaluationRequest = connection.recv()
                reply = self._answer(session, request)
                if reply is None:
                    break
                connection.send(reply)
        except (EOFError, OSError):
            pass
        finally:
            with self._lock:
                self._sessions.discard(session)
                lost = not self._closed and not self._host_stops
                self.workers_lost += lost
            self._settle(session)
            connection.close()
            if lost:
                self._pool.worker_lost()

    def _answer(self, session: _Session, request: EvaluationRequest) -> EvaluationReply | None:
        try:
            if request.program_path == session.program_path and session.decision is not None:
                return self._next_stage(session, request)
            return self._evaluate(session, request)
        except GpuForecastersError as error:
            self._fail(error)
            return undecided_reply(str(error))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
        logger.critical("the run cannot go on: %s", error)
        self._on_failure(error)

    # -- one program ----------------------------------------------------------------------------------------

    def _candidate(self, request: EvaluationRequest) -> Candidate:
        with self._lock:
            self._counter += 1
            number = self._counter
        code = decode_source(Path(request.program_path).read_bytes())
        return Candidate(f"{os.getpid()}-{number}", code)

    def _evaluate(self, session: _Session, request: EvaluationRequest) -> EvaluationReply | None:
        self._settle(session)
        session.decision, session.program_path, session.evaluator = None, request.program_path, None
        candidate = self._candidate(request)
        while True:
            decision = self._decide(candidate, session, request)
            if decision is None:
                return None
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

    def _decide(self, candidate: Candidate, session: _Session, request: EvaluationRequest) -> Decision | None:
        if request.is_seed:
            # A program that the population starts from is no proposal: nothing to choose.
            return self.gate.ask([candidate], measure_all=True)[0]
        decision = self._pool.decide(candidate, session.still_there)
        if decision is not None and decision.measure and not session.still_there():
            self.gate.release(decision.id)
            return None
        return decision

    def _await_answer(self, key: str, session: _Session) -> Measurement | None:
        """The result of the same source that is being measured right now."""
        while session.still_there() and not self._closed:
            answer = self.gate.answer(key)
            if answer is not None or not self.gate.in_flight(key):
                return answer
            time.sleep(_DUPLICATE_POLL_S)
        return None

    def _measure(
        self, session: _Session, request: EvaluationRequest, decision: Decision
    ) -> EvaluationReply | None:
        with self._lock:
            self._measuring += 1
            session.awaiting.add(decision.candidate_key)
        try:
            evaluator = self._evaluators.acquire()
            session.evaluator = evaluator
            try:
                if not self.gate.start(decision.id, evaluator.worker):
                    self._expect_nothing(session, decision)
                    spent = Decision(
                        decision.id,
                        decision.candidate_id,
                        decision.candidate_key,
                        decision.pool_id,
                        Action.SKIP,
                        Reason.BUDGET_SPENT,
                    )
                    return skip_reply(spent)
                return self._call(session, request, decision, evaluator)
            finally:
                self._evaluators.release(evaluator)
        finally:
            with self._lock:
                self._measuring -= 1

    def _next_stage(self, session: _Session, request: EvaluationRequest) -> EvaluationReply | None:
        """A later stage of a cascade belongs to the measurement that its first stage was charged for."""
        decision = session.decision
        assert decision is not None
        if decision.reason is Reason.DUPLICATE:
            answer = self.gate.answer(decision.candidate_key)
            if answer is not None and request.function in answers_in(answer.payload):
                return self._reply(session, request, answer, decision, duplicate=True)
            return failure_reply(request.function, "the earlier measurement of this source stopped before")
        evaluator = self._evaluators.acquire(preferred=session.evaluator)
        try:
            return self._call(session, request, decision, evaluator)
        finally:
            self._evaluators.release(evaluator)

    def _call(
        self, session: _Session, request: EvaluationRequest, decision: Decision, evaluator: EvaluatorProcess
    ) -> EvaluationReply:
        """Call the evaluator; it has written the result itself unless it died or ran out of time."""
        reference = self.gate.reference_measurement()
        is_reference = decision.candidate_key == self.gate.reference.key
        earlier = self.gate.partial_answer(decision.id) if request.function != "evaluate" else None
        call = CallRequest(
            request.function,
            request.program_path,
            request.kwargs,
            decision.id,
            self.gate.config.metric,
            None if is_reference or reference is None else reference.value,
            answers_in(earlier.payload) if earlier is not None else {},
            self._may_continue(request.function),
        )
        session.calling, session.unsettled = True, decision if call.provisional else None
        started = time.monotonic()
        try:
            result = evaluator.call(call, self._limits.evaluation_timeout_s)
            if not result.written:
                self._tell(decision, result.measurement, provisional=call.provisional)
        except EvaluatorTimeout as error:
            result = self._record_loss(decision, Outcome.TIMEOUT, str(error), started)
        except EvaluatorDied as error:
            result = self._record_loss(decision, Outcome.RUNTIME_ERROR, str(error), started)
        finally:
            session.calling = False
        return self._reply(session, request, result.measurement, decision, reply=result)

    def _may_continue(self, function: str) -> bool:
        return function not in ("evaluate", self._limits.last_function)

    def _record_loss(self, decision: Decision, outcome: Outcome, error: str, started: float) -> CallReply:
        measurement = Measurement(outcome, gpu_seconds=time.monotonic() - started, error=error)
        self._tell(decision, measurement)
        return CallReply(measurement, None)

    def _tell(self, decision: Decision, measurement: Measurement, *, provisional: bool = False) -> None:
        """Write a result that was paid for; a ledger that cannot be written gets a minute to recover."""
        for _ in range(_WRITE_ATTEMPTS - 1):
            try:
                self.gate.tell(decision.id, measurement, provisional=provisional)
                return
            except LedgerWriteError:
                if self._closed or self.failure is not None:
                    break
                time.sleep(1.0)
        self.gate.tell(decision.id, measurement, provisional=provisional)

    def _reply(
        self,
        session: _Session,
        request: EvaluationRequest,
        measurement: Measurement,
        decision: Decision,
        *,
        reply: CallReply | None = None,
        duplicate: bool = False,
    ) -> EvaluationReply:
        answer = reply.answer if reply is not None else answers_in(measurement.payload).get(request.function)
        if measurement.outcome is Outcome.IMPLAUSIBLE and not request.is_seed:
            self._expect_nothing(session, decision)
            return not_admitted_reply(measurement)
        if answer is None:
            trace = reply.traceback if reply is not None else None
            return failure_reply(request.function, measurement.error or str(measurement.outcome), trace)
        return measured_reply(answer, measurement, decision, duplicate=duplicate)
