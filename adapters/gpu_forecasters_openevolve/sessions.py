"""What the gate service knows of each worker, and the sizes and times that it works with."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection

from gpu_forecasters_openevolve.evaluators import EvaluatorProcess
from gpu_forecasters_plugin.decision import Decision

__all__ = ["ServiceLimits", "Session"]


@dataclass(frozen=True)
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

    pool_size: int
    workers: int
    evaluation_timeout_s: float
    host_timeout_s: float
    max_wait_s: float
    last_function: str = "evaluate"

    def __post_init__(self) -> None:
        # Well under the host's own time-out, whatever the configuration says.
        object.__setattr__(self, "max_wait_s", min(self.max_wait_s, self.host_timeout_s / 10))


class Session:
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
