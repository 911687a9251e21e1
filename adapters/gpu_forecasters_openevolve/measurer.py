"""One call of the user's evaluator for a decision that was charged, whatever becomes of it."""

from __future__ import annotations

import time

from gpu_forecasters_openevolve.evaluator_process import CallReply, CallRequest
from gpu_forecasters_openevolve.evaluators import EvaluatorDied, EvaluatorProcess, EvaluatorTimeout
from gpu_forecasters_openevolve.messages import EvaluationRequest
from gpu_forecasters_openevolve.sessions import ServiceLimits
from gpu_forecasters_plugin.decision import Decision, Measurement, Outcome
from gpu_forecasters_plugin.errors import LedgerWriteError
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.measuring import answers_in

__all__ = ["Measurer"]

_WRITE_ATTEMPTS = 60


class Measurer:
    """Calls evaluators, and sees to it that every charged call ends with a result in the ledger."""

    def __init__(self, gate: Gate, limits: ServiceLimits) -> None:
        self._gate = gate
        self._limits = limits
        self._giving_up = False

    def give_up(self) -> None:
        """The run ends: do not wait for a ledger that cannot be written."""
        self._giving_up = True

    def may_continue(self, function: str) -> bool:
        """Whether the host may call another function for the same program after this one."""
        return function not in ("evaluate", self._limits.last_function)

    def call(self, request: EvaluationRequest, decision: Decision, evaluator: EvaluatorProcess) -> CallReply:
        """Call the evaluator; it has written the result itself unless it died or ran out of time."""
        reference = self._gate.reference_measurement()
        is_reference = decision.candidate_key == self._gate.reference.key
        earlier = self._gate.partial_answer(decision.id) if request.function != "evaluate" else None
        call = CallRequest(
            request.function,
            request.program_path,
            request.kwargs,
            decision.id,
            self._gate.config.metric,
            None if is_reference or reference is None else reference.value,
            answers_in(earlier.payload) if earlier is not None else {},
            self.may_continue(request.function),
        )
        started = time.monotonic()
        try:
            result = evaluator.call(call, self._limits.evaluation_timeout_s)
        except EvaluatorTimeout as error:
            return self._record_loss(decision, Outcome.TIMEOUT, str(error), started)
        except EvaluatorDied as error:
            if self._giving_up:  # it was ended with the run: that says nothing about the kernel
                return self._record_loss(decision, Outcome.INFRASTRUCTURE, "ended with the run", started)
            return self._record_loss(decision, Outcome.RUNTIME_ERROR, str(error), started)
        if not result.written:
            self._tell(decision, result.measurement, provisional=call.provisional)
        return result

    def _record_loss(self, decision: Decision, outcome: Outcome, error: str, started: float) -> CallReply:
        measurement = Measurement(outcome, gpu_seconds=time.monotonic() - started, error=error)
        self._tell(decision, measurement)
        return CallReply(measurement, None)

    def _tell(self, decision: Decision, measurement: Measurement, *, provisional: bool = False) -> None:
        """Write a result that was paid for; a ledger that cannot be written gets a minute to recover."""
        for _ in range(_WRITE_ATTEMPTS - 1):
            try:
                self._gate.tell(decision.id, measurement, provisional=provisional)
                return
            except LedgerWriteError:
                if self._giving_up:
                    break
                time.sleep(1.0)
        self._gate.tell(decision.id, measurement, provisional=provisional)
