"""Recorded measurements by source, for evaluators that are a process each: read in milliseconds.

The table lies beside the evaluator. ``answer_program_file`` leaves what ShinkaEvolve reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_forecasters_plugin.candidate import decode_source, source_key
from gpu_forecasters_plugin.recorded.calls import log_call, pretend_to_measure

if TYPE_CHECKING:
    from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["answer_program_file", "write_table"]


def write_table(pool: RecordedPool, path: Path) -> None:
    """Write what was measured for each source of a pool."""
    from gpu_forecasters_plugin.files import write_json
    from gpu_forecasters_plugin.recorded.evaluator import UNKNOWN_SOURCE, lookup

    rows = {c.key: {"id": c.id, **lookup(pool, c.code)} for c in pool.candidates.values()}
    unknown = {"id": None, "combined_score": 0.0, "outcome": "runtime_error", "error": UNKNOWN_SOURCE}
    write_json(path, {"measured": rows, "unknown": unknown})


def answer_program_file(program_path: str, results_dir: str, table: Path) -> None:
    """One call of the real evaluator: look the program up, log it, take its time, leave the result's two files.

    Args:
        program_path: the candidate, as the host wrote it.
        results_dir: where ``metrics.json`` and ``correct.json`` go.
        table: from :func:`write_table`; the call log goes beside it.
    """
    key = source_key(decode_source(Path(program_path).read_bytes()))
    document = json.loads(table.read_bytes())
    row: dict[str, Any] = document["measured"].get(key, document["unknown"])
    outcome = row.get("outcome", "ok")
    pretend_to_measure()
    log_call(
        table.parent,
        {"id": row["id"], "key": key, "outcome": outcome, "combined_score": row["combined_score"]},
    )
    is_ok = outcome == "ok"
    public = {"time_us": row["time_us"]} if is_ok else {}
    metrics = {"combined_score": row["combined_score"], "public": public, "private": {}}
    if not is_ok:
        metrics["private"] = {"outcome": outcome}
    folder = Path(results_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    verdict = {"correct": is_ok, "error": row.get("error")}
    (folder / "correct.json").write_text(json.dumps(verdict), encoding="utf-8")
