"""Runs of ledgers on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.ledger.summary import anchor_in_words, expected_speedup, summary_lines
from gpu_forecasters_plugin.printable import printable
from gpu_forecasters_plugin.terminal import table_console

__all__ = ["print_run", "print_runs"]

Row = Mapping[str, Any]

_KEY_DIGITS = 12
_LONGEST_TASK = 30


def print_run(summary: Row, decisions: Sequence[Row], note: str | None = None) -> None:
    """Print a run.

    Args:
        summary: as :func:`~gpu_forecasters_plugin.ledger.summary.summarise` gives it.
        decisions: those to list, oldest first.
        note: what to say about other runs of the ledger.
    """
    console = table_console()
    heading = f"run {summary['run']!r}: task {summary['task'] or '-'}, device {summary['device'] or '-'}"
    for line in (heading, f"ledger {summary['ledger']}", note, *summary_lines(summary), _seconds(summary)):
        if line is not None:
            console.print(printable(line), soft_wrap=True)
    if summary["best"]:
        console.print(_best_table(summary["best"]))
    if decisions:
        console.print(_decision_table(decisions, summary["candidates_considered"]))
        console.print(_meaning(summary["anchor"]), soft_wrap=True)


def print_runs(folder: str, summaries: Mapping[str, Row]) -> None:
    """List the runs of a folder, by their names in it."""
    headings = {"run": "left", "task": "left", "measured": "right", "candidates": "right", "best": "right"}
    table = _table(f"runs below {printable(folder)}", headings)
    for name, summary in summaries.items():
        limit, best = summary["budget"], summary["best_speedup"]
        _add(
            table,
            name,
            _shortened(summary["task"] or "-"),
            f"{summary['measurements_used']}{'' if limit is None else f' of {limit}'}",
            str(summary["candidates_considered"]),
            "-" if best is None else f"{best:.3f}x",
        )
    console = table_console()
    console.print(table)
    console.print(
        printable(f"one of them: gpu-forecasters ledger show {folder} --run {next(iter(summaries), 'NAME')}"),
        soft_wrap=True,
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TASK else f"{text[: _LONGEST_TASK - 3]}..."


def _meaning(anchor: str | None) -> str:
    """What the columns of the decisions are relative to."""
    return (
        "forecast and measured: speed-up over the reference (the forecast's is its expectation); "
        f"confidence: of the bin relative to {anchor_in_words(anchor)}"
    )


def _seconds(summary: Row) -> str:
    limit, spent = summary["budget_gpu_seconds"], summary["gpu_seconds"]
    where = "in the evaluator"
    if summary["budget_counts_forecasting"]:
        spent += summary["forecasting"]["gpu_seconds"]
        where += " and in forecasting"
    return f"{spent:.1f}{'' if limit is None else f' of {limit:g}'} s {where}"


def _table(title: str, headings: Mapping[str, str]) -> Table:
    """A table; ``headings`` maps each to its side."""
    table = Table(title=title, title_justify="left", pad_edge=False)
    for heading, side in headings.items():
        table.add_column(heading, justify="right" if side == "right" else "left", no_wrap=True)
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(printable(cell)) for cell in cells))


def _best_table(best: Sequence[Row]) -> Table:
    headings = {"after": "right", "speed-up": "right", "time": "right", "chosen as": "left"}
    table = _table("best kernels over time", headings | {"kernel": "left", "measured at": "left"})
    for row in _told_apart(best):
        _add(
            table,
            str(row["measurement"]),
            _speedup(row),
            "-" if row["time_us"] is None else f"{row['time_us']:.4g} us",
            row["reason"],
            row["candidate_key"][:_KEY_DIGITS],
            datetime.fromtimestamp(row["finished_at"]).astimezone().strftime("%m-%d %H:%M:%S"),
        )
    return table


def _speedup(row: Row) -> str:
    return f"{row['speedup']:.3f}x"


def _told_apart(best: Sequence[Row]) -> list[Row]:
    """Of kernels in a row whose speed-ups read the same, the first: what differs beyond is noise."""
    return [row for before, row in zip([None, *best], best, strict=False) if _reads_new(before, row)]


def _reads_new(before: Row | None, row: Row) -> bool:
    return before is None or _speedup(before) != _speedup(row)


def _decision_table(decisions: Sequence[Row], total: int) -> Table:
    headings = {"id": "right", "pool": "right", "decision": "left", "reason": "left", "kernel": "left"}
    table = _table(
        f"the last {len(decisions)} of {total} decisions",
        headings | {"forecast": "right", "confidence": "right", "measured": "right"},
    )
    for row in decisions:
        forecast, confidence = expected_speedup(row), row["confidence"]
        _add(
            table,
            str(row["id"]),
            str(row["pool_number"]),
            row["action"],
            row["reason"],
            row["candidate_key"][:_KEY_DIGITS],
            row["failure"] or ("-" if forecast is None else f"{forecast:.2f}x"),
            "-" if confidence is None else f"{confidence:.2f}",
            _measured(row),
        )
    return table


def _measured(row: Row) -> str:
    if row["outcome"] == Outcome.OK:
        return f"{row['speedup']:.2f}x"
    if row["outcome"] is None and row["screen_fault"] is not None:
        return f"cannot run: {row['screen_fault']}"
    return row["outcome"] or "-"
