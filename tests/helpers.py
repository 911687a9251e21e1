"""What several tests share: small tasks and files."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gpu_forecasters_plugin.candidate import Candidate
from gpu_forecasters_plugin.config import SurrogateConfig, parse_surrogate_config
from gpu_forecasters_plugin.decision import Decision, Measurement, Outcome
from gpu_forecasters_plugin.forecast import Query
from gpu_forecasters_plugin.forecasters import Forecaster, ScriptedForecaster
from gpu_forecasters_plugin.forecasters.language_model.event_loop import loop_thread
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger


@dataclass(frozen=True)
class Said:
    """What a command ended with and printed."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


def write_pool(path: Path, blocks: int = 4) -> Path:
    """Twelve sources per block size (48) that differ in three numbers; neighbours differ in one by one place."""
    axes: list[list[int]] = [[32 * 2**place for place in range(blocks)], [1, 2, 4, 8], [1, 2, 3]]
    names = {
        spot: "k" + "_".join(map(str, spot)) for spot in itertools.product(*(range(len(a)) for a in axes))
    }
    rows: list[dict[str, Any]] = [{"pool": {"task": "toy", "device": "none", "reference_id": "k0_0_0"}}]
    for spot, name in names.items():
        block, warps, stages = (axis[place] for axis, place in zip(axes, spot, strict=True))
        body = "".join(f"    acc = acc + load(x, {index})  # part {index}\n\n" for index in range(12))
        code = (
            f'"""Sum, block {block}."""\nimport triton\n\nBLOCK = {block}\n\n\n'
            "def kernel(x):\n    acc = 0\n\n"
            f"{body}    return acc\n\n\ndef run(x):\n"
            f"    return launch(kernel, x, BLOCK, num_warps={warps}, num_stages={stages})\n"
        )
        broken = sum(spot) % 7 == 5
        near = [
            other
            for at, other in names.items()
            if sum(abs(a - b) for a, b in zip(at, spot, strict=True)) == 1
        ]
        rows.append(
            {
                "id": name,
                "code": code,
                "language": "triton",
                "outcome": "incorrect" if broken else "ok",
                "time_us": None if broken else 400.0 / (10 + sum(spot)),
                "neighbours": near,
                "error": "wrong sum" if broken else None,
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def source(number: int) -> str:
    """A small source that differs from all others in its number."""
    return f"BLOCK = {number}\n\n\ndef run(x):\n    return x * BLOCK\n"


def candidate(number: int, name: str | None = None) -> Candidate:
    """The candidate with that source; number 0 is the reference of :func:`open_gate`."""
    return Candidate(name or f"c{number}", source(number))


def peaked(index: int, mass: float = 0.9) -> list[float]:
    """Eight weights with most of the mass in one bin."""
    return [mass if i == index - 1 else (1 - mass) / 7 for i in range(8)]


def number_of(code: str) -> int:
    """Inverse of :func:`source`."""
    return int(code.split("\n", 1)[0].removeprefix("BLOCK = "))


def by_number(query: Query) -> list[float]:
    """A forecast that calls larger numbers faster: bins 1 to 8 in steps, by number modulo 8."""
    return peaked(number_of(query.candidate_code) % 8 + 1)


def measured(speedup: float, gpu_seconds: float = 1.0) -> Measurement:
    """A measurement that went well."""
    return Measurement(Outcome.OK, time_us=100.0 / speedup, speedup=speedup, gpu_seconds=gpu_seconds)


def failed(outcome: Outcome, gpu_seconds: float = 1.0) -> Measurement:
    """A measurement that did not."""
    return Measurement(outcome, gpu_seconds=gpu_seconds, error=f"a {outcome}")


def surrogate(**section: Any) -> SurrogateConfig:
    """A configuration: all defaults but those given."""
    return parse_surrogate_config(section)


def open_gate(
    ledger: Ledger | Path,
    forecaster: Forecaster | Callable[[Query], Sequence[float]] = by_number,
    *,
    config: SurrogateConfig | None = None,
    **more: Any,
) -> Gate:
    """A gate whose reference is :func:`candidate` 0, on a ledger or in a folder."""
    if isinstance(ledger, Path):
        ledger = Ledger(ledger / "ledger.sqlite3")
    if not isinstance(forecaster, Forecaster):
        forecaster = ScriptedForecaster(forecaster)
    return Gate(candidate(0, "reference"), forecaster, ledger, config, **more)


def measure_all(gate: Gate, decisions: Sequence[Decision], speedup: float = 1.0) -> list[Decision]:
    """Start and close every decision to measure; those that the budget let start."""
    started = [decision for decision in decisions if decision.measure and gate.start(decision.id)]
    for decision in started:
        gate.tell(decision.id, measured(speedup))
    return started


def times(few: int, many: int) -> int:
    """How often a long test repeats what it does: ``few`` times, or ``many`` where ``LONG_TESTS`` is set."""
    return many if os.environ.get("LONG_TESTS") else few


def wait_until(condition: Callable[[], Any], timeout: float = 120.0) -> Any:
    """Poll for something that another process does; its value."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"did not happen within {timeout:.0f} s: {condition}")


def complete_lines(path: Path) -> list[str]:
    """The lines of a log that another process may be writing: what has no end yet is left out."""
    # Bytes: what has no end yet may end within a character.
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [line.decode() for line in whole.splitlines()]


def ended(processes: Sequence[psutil.Process]) -> bool:
    """Whether all of them have ended; whoever is to collect them may take its time."""
    return all(map(_has_ended, processes))


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it went between the two looks
        return True


class _Clock:
    """An event loop's clock, so many seconds fast."""

    def __init__(self, real: Callable[[], float]) -> None:
        self._real = real
        self.ahead = 0.0

    def __call__(self) -> float:
        return self._real() + self.ahead


def let_time_pass(seconds: float) -> None:
    """Put the clock of the event loop that forecasts wait in forward, and no other: deadlines come without waiting.

    It is never put back, and so never runs backwards. Who has asked for the clock before the first call keeps the
    real one.
    """
    loop = loop_thread().loop
    clock = loop.time if isinstance(loop.time, _Clock) else _Clock(loop.time)
    loop.time = clock  # type: ignore[method-assign]
    clock.ahead += seconds
    loop.call_soon_threadsafe(lambda: None)  # it looks at its clock when something happens
