"""Measuring for several searches at once: one set of warm processes, asked over a socket, nothing measured twice."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.files import socket_folder
from measuring.journal import append_row, rows_of
from measuring.workers import MeasuringError, WarmWorkers

__all__ = ["SERVICE_VARIABLE", "MeasuringService", "ask"]

SERVICE_VARIABLE = "LIVE_GPU_SERVICE"
"""Environment variable that tells evaluators where a service is."""

_SOCKET = "measuring"


class MeasuringService:
    """Answers every evaluator that asks; a context manager.

    What was measured is in a journal, a line each, written to disk before the answer: the same source of the same task
    is not measured a second time, in whatever search, nor by a service that starts with the same journal later.
    """

    def __init__(self, workers: WarmWorkers, journal: Path) -> None:
        """Read the journal.

        Args:
            workers: what measures; they are closed with the service.
            journal: the file.

        Raises:
            MeasuringError: it cannot be read.
        """
        self.workers = workers
        self.answers = 0
        """What evaluators were told so far; a source that was measured before counts each time."""
        self._journal = journal
        self._answers: dict[tuple[str, str], Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        for row in _rows(journal):
            self._answers[row["task"], row["key"]] = _done(row["result"])
        self._folder = socket_folder(_SOCKET)
        self.address = str(self._folder / _SOCKET)
        self._listener = Listener(self.address, family="AF_UNIX", backlog=256)

    def __enter__(self) -> MeasuringService:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.workers.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def measured(self) -> int:
        """How many programs are in the journal."""
        return len(self._answers)

    def measure(self, task: Path, code: str) -> dict[str, Any]:
        """What came of a program, measured now or before.

        Raises:
            MeasuringError: nothing can be measured here.
        """
        key = (task.parent.name, source_key(code))
        with self._lock:
            known = self._answers.get(key)
            if known is None:
                pending = self._answers[key] = Future()
        if known is None:
            self._measure_now(key, task, code, pending)
            known = pending
        found = known.result()
        with self._lock:
            self.answers += 1
        return found

    def _measure_now(
        self, key: tuple[str, str], task: Path, code: str, pending: Future[dict[str, Any]]
    ) -> None:
        try:
            found = self.workers.measure(task, code)
            with self._lock:
                self._write({"task": key[0], "key": key[1], "code": code, "result": found})
        except Exception as error:
            with self._lock:
                del self._answers[key]  # it may be measured later
            pending.set_exception(error)
            return
        pending.set_result(found)

    def _write(self, row: dict[str, Any]) -> None:
        try:
            append_row(self._journal, row)
        except OSError as error:  # nobody may be told what a later run would not know
            raise MeasuringError(f"{self._journal} cannot be written: {error}") from None

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            try:
                task, code = connection.recv()
                try:
                    connection.send(self.measure(Path(task), code))
                except MeasuringError as error:
                    connection.send({"outcome": "infrastructure", "error": str(error)})
            except (EOFError, OSError):
                return  # whoever asked has gone; the journal has the result


def ask(address: str, task: Path, code: str) -> dict[str, Any]:
    """What a service answers for a program.

    Raises:
        OSError: there is no service at that address.
    """
    with Client(address, family="AF_UNIX") as connection:
        connection.send((str(task), code))
        answer: dict[str, Any] = connection.recv()
        return answer


def _rows(journal: Path) -> list[dict[str, Any]]:
    try:
        return list(rows_of(journal, "task", "key", "result"))
    except OSError as error:
        raise MeasuringError(f"{journal} cannot be read: {error}") from None


def _done(result: dict[str, Any]) -> Future[dict[str, Any]]:
    future: Future[dict[str, Any]] = Future()
    future.set_result(result)
    return future
