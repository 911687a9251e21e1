"""The ``screen:`` section of a run's configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gpu_forecasters_plugin.section import Section

__all__ = ["ScreenConfig"]


def _off_unquoted(policy: Any) -> Any:
    # YAML reads a bare `off` as false.
    return "off" if policy is False else policy


class ScreenConfig(Section):
    """Whether candidates are compiled, without a GPU, before they are forecast.

    Off unless asked for: it runs candidates, confined, on the machine of the host, and needs torch and triton there.

    Attributes:
        policy: ``off``; ``skip``: candidates that cannot run are not measured; ``defer``: they are measured anyway,
            and the verdict is only noted.
        arch: what to compile for, such as ``sm_90``; ``auto`` goes by the device.
        task_file: Python file with ``make_inputs()`` and ``ENTRY_POINT``, relative to the configuration's folder;
            without one, the host's evaluator is run dry.
        timeout_s: how long one candidate may take, in seconds.
        deadline_s: how long a pool waits for its verdicts, in seconds; late candidates are undecided.
        memory_mib: memory that one candidate may use, in MiB.
        workers: candidates at once; as many as there are cores when left out.
    """

    policy: Annotated[Literal["skip", "defer", "off"], BeforeValidator(_off_unquoted)] = "off"
    arch: Annotated[str, Field(min_length=1)] = "auto"
    task_file: Annotated[str, Field(min_length=1)] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 20.0
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    memory_mib: Annotated[int, Field(ge=512)] = 6144
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
