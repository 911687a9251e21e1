"""What a worker of the host and the gate service say to each other."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from gpu_forecasters_plugin.errors import HostError

__all__ = ["ADDRESS_VARIABLE", "EvaluationRequest", "EvaluationReply", "ServiceAddress"]

ADDRESS_VARIABLE = "GPU_FORECASTERS_GATE"
"""Environment variable by which worker processes find the gate service of their run."""


@dataclass(frozen=True)
class ServiceAddress:
    """Where the service listens, the key of its connections, and the process that it lives in."""

    path: str
    key: bytes
    pid: int
    functions: tuple[str, ...] = ()
    parameters: tuple[tuple[str, int, bool], ...] = ()

    def publish(self) -> None:
        """Put it into the environment, for the worker processes."""
        document = {
            "path": self.path,
            "key": self.key.hex(),
            "pid": self.pid,
            "functions": self.functions,
            "parameters": self.parameters,
        }
        os.environ[ADDRESS_VARIABLE] = json.dumps(document)

    @classmethod
    def published(cls) -> ServiceAddress | None:
        """The address in the environment, if any.

        Raises:
            HostError: the variable holds something else.
        """
        text = os.environ.get(ADDRESS_VARIABLE)
        if text is None:
            return None
        try:
            document = json.loads(text)
            return cls(
                document["path"],
                bytes.fromhex(document["key"]),
                document["pid"],
                tuple(document["functions"]),
                tuple((name, kind, default) for name, kind, default in document["parameters"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise HostError(f"{ADDRESS_VARIABLE} is not an address of a gate service: {error}") from None


@dataclass(frozen=True)
class EvaluationRequest:
    """A worker asks for the evaluation of one program.

    Attributes:
        function: ``evaluate`` or a cascade's stage.
        program_path: the file that the host wrote.
        kwargs: the host's ``evaluator_args``.
        is_seed: the host's own process evaluates a program that its population starts from.
        parent_code: source of the program that it was derived from, where the worker knows.
    """

    function: str
    program_path: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    is_seed: bool = False
    parent_code: str | None = None


@dataclass(frozen=True)
class EvaluationReply:
    """What the worker hands to the host.

    Attributes:
        metrics: the evaluator's own metrics, or a mark that keeps the program out of the population.
        artifacts: the evaluator's own artifacts and the surrogate's note.
    """

    metrics: dict[str, Any]
    artifacts: dict[str, Any] = field(default_factory=dict)
