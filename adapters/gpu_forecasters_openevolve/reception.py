"""Where the host's workers connect: one session each."""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener

from gpu_forecasters_openevolve.messages import EvaluationReply, EvaluationRequest
from gpu_forecasters_openevolve.sessions import Session
from gpu_forecasters_plugin.files import socket_folder
from gpu_forecasters_plugin.pooling import PooledGate

__all__ = ["Reception"]

_SOCKET = "gate.sock"


class Reception:
    """A local socket, and a thread for each worker that connects. Thread-safe.

    Attributes:
        path: path of the socket.
        key: what a worker must know to connect.
    """

    def __init__(
        self,
        pool: PooledGate,
        answer: Callable[[Session, EvaluationRequest], EvaluationReply | None],
        on_left: Callable[[Session], None],
    ) -> None:
        """Open the socket.

        Args:
            pool: what waits for workers, and must not wait for those that are lost.
            answer: the reply to a request; ``None`` when the worker has gone meanwhile.
            on_left: called when a worker has gone.
        """
        self._pool = pool
        self._answer = answer
        self._on_left = on_left
        self._folder = socket_folder(_SOCKET)
        self.path = str(self._folder / _SOCKET)
        self.key = secrets.token_bytes(32)
        self._listener = Listener(self.path, family="AF_UNIX", authkey=self.key)
        self._lock = threading.Lock()
        self._sessions: set[Session] = set()
        self._vacant = 0
        self._closed = False
        self._host_stops = False

    def start(self) -> None:
        """Accept workers, in a thread of this process."""
        threading.Thread(target=self._accept, name="gpu-forecasters-gate", daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more."""
        self._closed = True
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def host_stops(self) -> None:
        """The host is about to end its workers: from now on none is lost any more."""
        with self._lock:
            self._host_stops = True

    def sessions(self) -> list[Session]:
        """Those that are connected."""
        with self._lock:
            return list(self._sessions)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError):
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        session = Session(connection)
        self._enter(session)
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
            lost = self._leave(session)
            self._on_left(session)
            connection.close()
            if lost:
                self._pool.worker_lost()

    def _enter(self, session: Session) -> None:
        with self._lock:
            self._sessions.add(session)
            replaces, self._vacant = self._vacant > 0, max(0, self._vacant - 1)
        if replaces:
            self._pool.worker_found()

    def _leave(self, session: Session) -> bool:
        """Whether a worker is lost by it."""
        with self._lock:
            self._sessions.discard(session)
            lost = not self._closed and not self._host_stops
            self._vacant += lost
            return lost
