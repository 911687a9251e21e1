"""The process that calls the user's evaluator; it talks over an inherited socket.

It loads the evaluator file as OpenEvolve does, calls it with the original path, and writes the measurement into the
ledger itself, right after the evaluator has returned: even if the run around it is gone by then, nothing that was
measured is lost.
"""

from __future__ import annotations

import gc
import importlib.util
import inspect
import os
import sys
import time
import traceback
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from gpu_forecasters_plugin.config import MetricConfig
from gpu_forecasters_plugin.decision import Measurement, Outcome
from gpu_forecasters_plugin.errors import LedgerWriteError
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.measuring import EvaluatorAnswer, MetricReader, parts_of, payload_of

__all__ = ["STAGES", "CallRequest", "CallReply", "EvaluatorInfo", "LoadRequest", "main"]

STAGES = ("evaluate", "evaluate_stage1", "evaluate_stage2", "evaluate_stage3")
_MODULE_NAME = "evaluation_module"
_KEPT_MODULES = 16
_PARENT_CHECK_S = 1.0


@dataclass(frozen=True)
class LoadRequest:
    """First message: which evaluator, and the ledger that results go to."""

    evaluator_path: str
    ledger_url: str
    run_id: int


@dataclass(frozen=True)
class EvaluatorInfo:
    """Answer to :class:`LoadRequest`: what the evaluator file defines, or why it cannot be loaded."""

    functions: tuple[str, ...] = ()
    parameters: tuple[tuple[str, int, bool], ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class CallRequest:
    """Call one function for one candidate.

    Attributes:
        function: ``evaluate`` or a cascade's stage.
        program_path: the candidate's file, as the host wrote it.
        kwargs: the host's ``evaluator_args``.
        decision_id: the decision that was charged.
        metric: how to read the result.
        reference_value: the reference's value of that metric; ``None`` for the reference itself.
        earlier: what earlier stages of the same candidate answered.
        provisional: the host may call another stage after this one.
    """

    function: str
    program_path: str
    kwargs: dict[str, Any]
    decision_id: int
    metric: MetricConfig
    reference_value: float | None
    earlier: dict[str, EvaluatorAnswer] = field(default_factory=dict)
    provisional: bool = False


@dataclass(frozen=True)
class CallReply:
    """What came of a call: the typed measurement and the answer for the host.

    ``written`` says whether the measurement is in the ledger; else the run's own process is to write it.
    """

    measurement: Measurement
    answer: EvaluatorAnswer | None
    traceback: str | None = None
    written: bool = True


class _Evaluator:
    """The user's evaluator file, loaded once, or anew for each candidate of a cascade (as the host does)."""

    def __init__(self, path: str) -> None:
        self._path = path
        folder = os.path.dirname(os.path.abspath(path))
        if folder not in sys.path:
            sys.path.insert(0, folder)
        self.module = self._execute()
        sys.modules[_MODULE_NAME] = self.module
        self._of_candidate: OrderedDict[int, ModuleType] = OrderedDict()

    def _execute(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location(_MODULE_NAME, self._path)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot load {self._path}")
        module = importlib.util.module_from_spec(spec)
        if _MODULE_NAME not in sys.modules:
            sys.modules[_MODULE_NAME] = module
        spec.loader.exec_module(module)
        return module

    def call(self, request: CallRequest) -> Any:
        """The function's own result; a coroutine is awaited."""
        module = self.module
        if request.function != "evaluate":
            known = request.decision_id in self._of_candidate
            module = self._of_candidate.pop(request.decision_id) if known else self._execute()
            self._of_candidate[request.decision_id] = module
            if len(self._of_candidate) > _KEPT_MODULES:
                self._of_candidate.popitem(last=False)
        result = getattr(module, request.function)(request.program_path, **request.kwargs)
        return _awaited(result) if inspect.isawaitable(result) else result


def _awaited(value: Any) -> Any:
    import asyncio  # only here: most evaluators are plain functions

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())


def _describe(module: ModuleType) -> EvaluatorInfo:
    functions = tuple(name for name in STAGES if callable(getattr(module, name, None)))
    if "evaluate" not in functions:
        return EvaluatorInfo(problem="it does not define a function evaluate(program_path)")
    try:
        parameters = inspect.signature(module.evaluate).parameters.values()
    except (TypeError, ValueError):
        return EvaluatorInfo(functions)
    described = [(p.name, int(p.kind), p.default is not inspect.Parameter.empty) for p in parameters]
    return EvaluatorInfo(functions, tuple(described))


def _error_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]


def _run(evaluator: _Evaluator, request: CallRequest) -> CallReply:
    """Call the evaluator; whatever it does short of ending this process becomes a typed outcome."""
    reader = MetricReader(request.metric, request.reference_value, early=request.provisional)
    started = time.perf_counter()
    try:
        raw = evaluator.call(request)
    except (Exception, SystemExit) as error:
        seconds = time.perf_counter() - started
        outcome = Outcome.COMPILE_ERROR if isinstance(error, SyntaxError) else Outcome.RUNTIME_ERROR
        measurement = Measurement(outcome, gpu_seconds=seconds, error=_error_line(error))
        return CallReply(measurement, None, traceback.format_exc())
    seconds = time.perf_counter() - started
    try:
        return _read(raw, request, reader, seconds)
    except Exception as error:
        # It was measured and paid for, but what it returned cannot even be looked at.
        problem = f"cannot read what the evaluator returned: {_error_line(error)}"
        measurement = Measurement(Outcome.IMPLAUSIBLE, gpu_seconds=seconds, error=problem)
        return CallReply(measurement, None, traceback.format_exc())


def _read(raw: Any, request: CallRequest, reader: MetricReader, seconds: float) -> CallReply:
    """The typed measurement of what the evaluator returned."""
    answer = parts_of(raw)
    answers = dict(request.earlier) | ({request.function: answer} if answer is not None else {})
    merged = _merged(answers) if request.earlier and answer is not None else raw
    measurement = reader.read(merged, seconds)
    if request.provisional and measurement.outcome is Outcome.OK:
        # An early stage's score is not a speed; only a later stage can say that.
        measurement = Measurement(
            Outcome.INCORRECT, gpu_seconds=seconds, error=f"stopped after {request.function}"
        )
    payload = payload_of(answers) if answers else None
    return CallReply(replace(measurement, payload=payload), answer)


def _merged(answers: dict[str, EvaluatorAnswer]) -> EvaluatorAnswer:
    metrics: dict[str, Any] = {}
    artifacts: dict[str, Any] = {}
    for answer in answers.values():
        metrics |= dict(answer.metrics)
        artifacts |= dict(answer.artifacts)
    return EvaluatorAnswer(metrics, artifacts)


def _serve(connection: Connection) -> None:
    parent = os.getppid()
    # Most evaluators answer with it: loaded here before the first of them waits, as it is in the host's own processes.
    import openevolve.evaluation_result  # noqa: F401

    load: LoadRequest = connection.recv()
    try:
        evaluator = _Evaluator(load.evaluator_path)
        info = _describe(evaluator.module)
    except (Exception, SystemExit) as error:
        connection.send(EvaluatorInfo(problem=_error_line(error)))
        return
    ledger = Ledger(load.ledger_url)
    ledger.follow_run(load.run_id)
    connection.send(info)
    # What is loaded by now stays: no collection need look at it again, in the midst of a measurement or at the end.
    gc.freeze()
    while _called(connection, parent):
        request: CallRequest = connection.recv()
        reply = _run(evaluator, request)
        try:
            ledger.record_result(request.decision_id, reply.measurement, provisional=request.provisional)
        except LedgerWriteError:
            reply = replace(reply, written=False)
        try:
            connection.send(reply)
        except BrokenPipeError:
            return  # the run has ended; the ledger has the result
        except Exception:
            # An answer that cannot be pickled still reaches the host as plain values.
            plain = EvaluatorAnswer(*_plain_parts(reply))
            connection.send(replace(reply, answer=plain))


def _called(connection: Connection, parent: int) -> bool:
    """Wait for the next call; False when ``parent``, who started this process, has gone, maybe during the last one.

    Its end of the connection may outlive it: processes that it forked have inherited it.
    """
    while not connection.poll(_PARENT_CHECK_S):
        if os.getppid() != parent:
            return False
    return True


def _plain_parts(reply: CallReply) -> tuple[dict[str, Any], dict[str, Any]]:
    if reply.answer is None:
        return {}, {}
    keep = (bool, int, float, str, bytes)
    return (
        {str(k): v if isinstance(v, keep) else str(v) for k, v in reply.answer.metrics.items()},
        {str(k): v if isinstance(v, keep) else str(v) for k, v in reply.answer.artifacts.items()},
    )


def main(descriptor: int) -> None:
    """Serve calls until the other end closes."""
    with Connection(descriptor) as connection:
        try:
            _serve(connection)
        except (EOFError, ConnectionError):
            return
