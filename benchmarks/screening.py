"""How well the screen tells, without a GPU, what would fail on one; and what that costs.

``python -m benchmarks.screening`` screens every source of the recorded tasks, whose outcomes an H100 gave, and the
broken sources of :mod:`benchmarks.screening_sources`. Best with the versions of torch and triton that measured (2.11
and 3.6): another triton accepts other sources.

``python -m benchmarks.screening_truth`` finds out on a GPU which of the broken sources really fail; those that were not
run there count as failing by construction.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import machine, write_result
from benchmarks.screening_sources import broken_sources
from benchmarks.screening_truth import read_truth, truth_of
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.recorded.pool import load_task, recorded_task_names
from gpu_forecasters_plugin.screen import Screener, ScreenJob, Verdict
from gpu_forecasters_plugin.screen.cache import compiler_versions

ROOT = Path(__file__).parent.parent
SECONDS = 60.0
_AFTER_THE_LAUNCH = re.compile(
    r"illegal memory access|misaligned address|not supported on global/shared|no result within", re.IGNORECASE
)
"""What goes wrong on the device, once a kernel runs: out of sight of any compiler."""


@dataclass(frozen=True)
class Row:
    """A source, what a GPU made of it, and what the screen says."""

    id: str
    task: str
    kind: str
    language: str
    outcome: str
    error: str
    status: str
    fault: str | None
    says: str
    seconds: float
    cpu_seconds: float

    @property
    def must_be_caught(self) -> bool:
        """Whether it failed to build or to launch."""
        return self.outcome in ("compile_error", "runtime_error") and not _AFTER_THE_LAUNCH.search(self.error)


def write_task_file(folder: Path, task: str) -> Path:
    """A task file with the inputs of a recorded task, in all its shapes."""
    path = folder / f"{task}_task.py"
    path.write_text(
        f"import sys\n\nsys.path.insert(0, {str(ROOT)!r})\n\n"
        f"from benchmarks.generators.tasks import {task} as task\n\nENTRY_POINT = 'run'\n\n\n"
        "def make_inputs():\n    return [task.make_inputs(shape, 'cuda', 0) for shape in task.SHAPES]\n"
    )
    return path


@dataclass(frozen=True)
class _Source:
    id: str
    task: str
    kind: str
    language: str
    outcome: str
    error: str
    code: str


def _recorded(every: int) -> list[_Source]:
    return [
        _Source(c.id, task, "recorded", c.language, str(c.outcome), c.error or "", c.code)
        for task in recorded_task_names()
        for number, c in enumerate(load_task(task).candidates.values())
        if number % every == 0 or c.outcome not in ("ok", "incorrect")
    ]


def _written() -> list[_Source]:
    known = read_truth()
    sources = []
    for broken in broken_sources():
        row = truth_of(broken, known) or {"outcome": "runtime_error", "error": "by construction"}
        sources.append(
            _Source(broken.id, broken.task, broken.kind, "triton", row["outcome"], row["error"], broken.code)
        )
    return sources


def _row(source: _Source, verdict: Verdict) -> Row:
    return Row(
        source.id,
        source.task,
        source.kind,
        source.language,
        source.outcome,
        source.error[:200],
        str(verdict.status),
        None if verdict.fault is None else str(verdict.fault),
        verdict.headline()[:200],
        verdict.seconds,
        verdict.cpu_seconds,
    )


def screen_all(sources: Sequence[_Source], workers: int | None) -> tuple[list[Row], list[float], list[str]]:
    """Screen sources; their rows, the milliseconds of asking each again, and the protections that held."""
    rows: list[Row] = []
    again: list[float] = []
    held: tuple[str, ...] = ()
    with tempfile.TemporaryDirectory() as name, WorkProgress(len(sources), "sources") as progress:
        folder = Path(name)
        for task in sorted({source.task for source in sources}):
            mine = [source for source in sources if source.task == task]
            job = ScreenJob("", "sm_90", task_file=str(write_task_file(folder, task)), seconds=SECONDS)
            screener = Screener(job, workers=workers)
            done = len(rows)
            verdicts = screener.screen(
                [s.code for s in mine], 1e6, seen=lambda n, d=done, t=task: progress.update(d + n, t)
            )
            rows += [_row(source, verdict) for source, verdict in zip(mine, verdicts, strict=True)]
            held = next((verdict.sandbox for verdict in verdicts if verdict.sandbox), held)
            for source in mine[:40]:
                started = time.perf_counter()
                screener.screen([source.code], 10.0)
                again.append((time.perf_counter() - started) * 1e3)
            screener.close()
    return rows, again, list(held)


# -- figures ----------------------------------------------------------------------------------------------------


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "none"


def _caught(rows: Iterable[Row]) -> tuple[int, int, int]:
    failing = [row for row in rows if row.must_be_caught]
    statuses = Counter(row.status for row in failing)
    return statuses["invalid"], statuses["undecided"], len(failing)


def figures(rows: Sequence[Row], again: Sequence[float]) -> dict[str, Any]:
    """All figures, for JSON."""
    groups = {}
    kinds = {
        "recorded": [r for r in rows if r.kind == "recorded"],
        "written": [r for r in rows if r.kind != "recorded"],
    }
    for name, group in kinds.items():
        caught, undecided, failing = _caught(group)
        ok = [row for row in group if row.outcome == "ok"]
        groups[name] = {
            "failing": failing,
            "caught": caught,
            "undecided": undecided,
            "ok": len(ok),
            "incorrect": sum(row.outcome == "incorrect" for row in group),
            "ok_called_invalid": [row.id for row in ok if row.status == "invalid"],
            "ok_undecided": sum(row.status == "undecided" for row in ok),
        }
    triton = [row for row in rows if row.language == "triton"]
    return {
        "groups": groups,
        "by_kind": {
            kind: _caught(r for r in rows if r.kind == kind) for kind in dict.fromkeys(r.kind for r in rows)
        },
        "triton_cpu_seconds_median": statistics.median(row.cpu_seconds for row in triton),
        "triton_cpu_seconds_p90": statistics.quantiles([row.cpu_seconds for row in triton], n=10)[-1],
        "triton_seconds_median": statistics.median(row.seconds for row in triton),
        "cached_milliseconds_median": statistics.median(again),
        "missed": [asdict(row) for row in rows if row.must_be_caught and row.status != "invalid"],
    }


def _measured(written: dict[str, Any]) -> list[str]:
    """On what GPU the written sources were run, and how many of them fail."""
    devices = sorted({row["device"] for row in read_truth().values()})
    if not devices:
        return ["The written sources fail by construction: no GPU was asked.", ""]
    return [
        f"The written sources were run on {', '.join(devices)}: {written['failing']} fail to build or launch. "
        f"{written['incorrect']} run and give wrong results.",
        "",
    ]


def text(found: dict[str, Any], versions: dict[str, str], held: Sequence[str], where: str, every: int) -> str:
    """The figures for people."""
    lines = [
        f"{where}",
        "",
        f"torch {versions.get('torch')}, triton {versions.get('triton')}, for sm_90. "
        f"Sandbox: {', '.join(held) or 'none'}. Recorded: all that failed, and every {every}. source that ran.",
        "",
        *_measured(found["groups"]["written"]),
        "| sources | fail to build or launch, caught | undecided | ran ok, called invalid | ok, undecided |",
        "|---|---|---|---|---|",
    ]
    for name, group in found["groups"].items():
        wrong = len(group["ok_called_invalid"])
        lines.append(
            f"| {name} | {_share(group['caught'], group['failing'])} | {group['undecided']} "
            f"| {_share(wrong, group['ok'])} | {group['ok_undecided']} |"
        )
    lines += ["", "| kind of mistake | caught | undecided |", "|---|---|---|"]
    for kind, (caught, undecided, failing) in found["by_kind"].items():
        lines.append(f"| {kind} | {_share(caught, failing)} | {undecided} |")
    lines += [
        "",
        "| cost of a Triton source, all shapes of its task | |",
        "|---|---|",
        f"| processor time, median | {found['triton_cpu_seconds_median']:.2f} s |",
        f"| processor time, 90th percentile | {found['triton_cpu_seconds_p90']:.2f} s |",
        f"| asked again | {found['cached_milliseconds_median']:.2f} ms |",
        "",
        "Failing, and not called invalid:",
        "",
    ]
    lines += [
        f"* {row['task']} {row['id']}, {row['language']}: {row['error'][:110]} -> {row['says'][:110]}"
        for row in found["missed"]
    ] or ["* none"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Screen and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--every", type=int, default=1, help="of the recorded sources that ran, only every so many"
    )
    parser.add_argument("--workers", type=int)
    parser.add_argument("--name", default="screening", help="name of the results")
    options = parser.parse_args(arguments)
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    rows, again, held = screen_all([*_recorded(options.every), *_written()], options.workers)
    found = figures(rows, again)
    versions = compiler_versions()
    numbers = {**found, "compilers": versions, "sandbox": held, "rows": [asdict(row) for row in rows]}
    write_result(options.name, numbers, text(found, versions, held, machine(), options.every))


if __name__ == "__main__":
    main()
