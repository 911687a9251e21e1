"""The worker's side: functions that OpenEvolve calls in place of the user's evaluator."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from typing import Any

from openevolve.evaluation_result import EvaluationResult

from gpu_forecasters_openevolve.messages import EvaluationReply, EvaluationRequest, ServiceAddress
from gpu_forecasters_plugin.errors import HostError

__all__ = ["evaluation_functions"]

_local = threading.local()


def _connection(address: ServiceAddress) -> Connection:
    """This thread's connection; a forked child must not talk over its parent's."""
    found = getattr(_local, "connection", None)
    if found is None or _local.owner != (os.getpid(), address.path):
        try:
            found = Client(address.path, family="AF_UNIX", authkey=address.key)
        except (OSError, EOFError) as error:
            raise HostError(f"the gate service of this run is gone ({error}); start the run again") from None
        _local.connection, _local.owner = found, (os.getpid(), address.path)
    return found


def _evaluate(address: ServiceAddress, function: str, program_path: str, kwargs: dict[str, Any]) -> Any:
    request = EvaluationRequest(function, program_path, kwargs, is_seed=os.getpid() == address.pid)
    connection = _connection(address)
    try:
        connection.send(request)
        reply: EvaluationReply = connection.recv()
    except (OSError, EOFError):
        _local.connection = None
        raise HostError("the gate service of this run has ended; start the run again to resume it") from None
    return EvaluationResult(metrics=reply.metrics, artifacts=reply.artifacts)


def evaluation_functions(address: ServiceAddress) -> dict[str, Callable[..., Any]]:
    """``evaluate`` and the cascade stages that the user's evaluator defines, by name.

    Their signature is the user's own, so that OpenEvolve checks ``evaluator_args`` against it as ever.
    """

    def make(function: str) -> Callable[..., Any]:
        def call(program_path: str, **kwargs: Any) -> Any:
            return _evaluate(address, function, program_path, kwargs)

        call.__name__ = call.__qualname__ = function
        call.__doc__ = "The user's evaluator behind the surrogate filter."
        if function == "evaluate" and address.parameters:
            call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
                [
                    inspect.Parameter(
                        name,
                        inspect._ParameterKind(kind),
                        default=None if has_default else inspect.Parameter.empty,
                    )
                    for name, kind, has_default in address.parameters
                ]
            )
        return call

    return {function: make(function) for function in address.functions}
