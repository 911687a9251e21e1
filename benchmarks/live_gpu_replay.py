"""The live run's two tasks once more, over many seeds: ``python -m benchmarks.live_gpu_replay``.

A live search takes minutes of a GPU, so there are few of them. But together they have measured some nine hundred
kernels of each task. What ``benchmarks.live_gpu`` has filed becomes a pool of recorded kernels, whose edits are those
that the proposer made, and the arms search it in process. Nothing was chosen on these kernels. They are those that the
live searches came upon, so that a pool holds no kernel that all of them passed over, and few edits of most: a search is
led through what is there.

Results go to ``results/live_gpu_replay.{json,md}``. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, machine, provenance, write_result
from benchmarks.search import correct_together, figures, table
from gpu_forecasters_plugin.compare import ARM_NAMES, run_comparison
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.errors import PoolFileError
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.json_lines import stream_json_lines

ARMS = (*ARM_NAMES, "paper")
BUDGETS = (32, 64)
DATA = RESULTS / "live_gpu"

Edits = defaultdict[str, set[str]]
"""The measured kernels that are one edit away from each."""


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    return (row for _, row in stream_json_lines(path, path.name, PoolFileError))


def _edits(folder: Path, measured: Mapping[str, Any]) -> tuple[str, Edits]:
    """The initial program, and the kernels that are one edit away from each, in either direction."""
    edits: Edits = defaultdict(set)
    initial = ""
    for path in sorted(folder.glob("*.decisions.jsonl.gz")):
        for row in _rows(path):
            child, parent = row["candidate_key"], row["parent_key"]
            if parent is None:
                initial = initial or child
            elif child != parent and child in measured and parent in measured:
                edits[child].add(parent)
                edits[parent].add(child)
    return initial, edits


def _reached(initial: str, edits: Edits) -> set[str]:
    """Everything that edits lead to from the initial program."""
    found, left = {initial}, [initial]
    while left:
        fresh = edits[left.pop()] - found
        found |= fresh
        left += fresh
    return found


def pool_text(data: Path, task: str, device: str) -> str:
    """The kernels that a task's live searches have measured, as a pool file.

    Args:
        data: what ``benchmarks.live_gpu`` has filed.
        task: of the live run.
        device: what it was measured on.
    """
    measured = {row["key"]: row for row in _rows(data / "measurements.jsonl.gz") if row["task"] == task}
    initial, edits = _edits(data / task, measured)
    reached = _reached(initial, edits)
    lines: list[dict[str, Any]] = [{"pool": {"task": task, "device": device, "reference_id": initial}}]
    for key in sorted(reached):
        result = measured[key]["result"]
        times = {name: result[name] for name in ("time_us", "spread") if result["outcome"] == "ok"}
        row = {"id": key, "code": measured[key]["code"], "language": "triton", "outcome": result["outcome"]}
        lines.append(row | times | {"neighbours": sorted(edits[key])})
    return "".join(json.dumps(line) + "\n" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the pools, search them, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--device", default="NVIDIA H200", help="what the live run was measured on")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    sizes: list[str] = []
    for task in sorted(path.name for path in DATA.iterdir() if path.is_dir()):
        with tempfile.TemporaryDirectory() as folder:
            pool = Path(folder, f"{task}.jsonl")
            write_atomically(pool, pool_text(DATA, task, options.device))
            sizes.append(f"{len(pool.read_text().splitlines()) - 1} of `{task}`")
            summary = run_comparison(
                str(pool),
                host="inprocess",
                budget=max(BUDGETS),
                seeds=options.seeds,
                arms=ARMS,
                surrogate=SurrogateConfig(),
                out=Path(folder, "out"),
            )
        rows += figures(summary, BUDGETS)
    correct_together(rows)
    text = (
        f"The kernels that the live searches have measured, {' and '.join(sizes)}, searched again in process, "
        f"{options.seeds} paired seeds. {machine()}\n\n"
    )
    numbers = {"seeds": options.seeds, "made": provenance(), "rows": rows}
    write_result("live_gpu_replay", numbers, text + table(rows))


if __name__ == "__main__":
    main()
