"""The worker's side: functions that OpenEvolve calls in place of the user's evaluator."""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from typing import Any

import psutil
from openevolve.evaluation_result import EvaluationResult

from gpu_forecasters_openevolve.messages import EvaluationReply, EvaluationRequest, ServiceAddress
from gpu_forecasters_openevolve.parentage import current_parent
from gpu_forecasters_plugin.errors import HostError

__all__ = ["evaluation_functions"]


_SERVICE_CHECK_S = 1.0


def _end_with(service_pid: int) -> None:
    """End this worker when the run's main process has gone: OpenEvolve's workers would wait for work for ever."""
    while True:
        time.sleep(_SERVICE_CHECK_S)
        if not psutil.pid_exists(service_pid):
            os._exit(1)


class _Connections:
    """This process's connections to the gate service.

    The host runs every call, and every stage of a cascade, in whichever thread of its executor is free; the service
    knows a cascade by its connection. So connections belong to no thread, and a later stage gets that of the first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[Connection, str]] = []
        self._owner: tuple[int, str] | None = None

    def take(self, address: ServiceAddress, program_path: str) -> Connection:
        """The connection that this program's last call used, else an idle one, else a new one.

        Raises:
            HostError: there is no gate service any more.
        """
        with self._lock:
            if self._owner != (os.getpid(), address.path):
                # A forked child must not talk over its parent's.
                self._idle, self._owner = [], (os.getpid(), address.path)
                if os.getpid() != address.pid:
                    threading.Thread(target=_end_with, args=(address.pid,), daemon=True).start()
            same = [entry for entry in self._idle if entry[1] == program_path]
            if self._idle:
                entry = same[-1] if same else self._idle[-1]
                self._idle.remove(entry)
                return entry[0]
        try:
            return Client(address.path, family="AF_UNIX", authkey=address.key)
        except (OSError, EOFError) as error:
            raise HostError(f"the gate service of this run is gone ({error}); start the run again") from None

    def give_back(self, connection: Connection, program_path: str) -> None:
        with self._lock:
            self._idle.append((connection, program_path))


_connections = _Connections()


def _evaluate(address: ServiceAddress, function: str, program_path: str, kwargs: dict[str, Any]) -> Any:
    is_seed = os.getpid() == address.pid
    request = EvaluationRequest(
        function, program_path, kwargs, is_seed, None if is_seed else current_parent()
    )
    connection = _connections.take(address, program_path)
    try:
        connection.send(request)
        reply: EvaluationReply = connection.recv()
    except (OSError, EOFError):
        connection.close()
        raise HostError("the gate service of this run has ended; start the run again to resume it") from None
    _connections.give_back(connection, program_path)
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
