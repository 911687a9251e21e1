"""One picture of a run for the terminal, at least 80 columns wide."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gpu_forecasters_plugin.cli.watch.target import Sight
from gpu_forecasters_plugin.decision import Action, Outcome
from gpu_forecasters_plugin.ledger.standing import RunStanding
from gpu_forecasters_plugin.ledger.summary import expected_speedup
from gpu_forecasters_plugin.printable import printable

__all__ = ["duration", "frame", "status_line"]

Row = Mapping[str, Any]

_FEWEST_RESULTS = 3
_ROOMY = 30
"""Lines from which on there is room for empty ones."""
_LABELS = 13
_BAR = 30
_REASON_BAR = 10
_KEY_DIGITS = 12
_BREAKS_AFTER = 2
"""So many pools without a forecast the circuit breaker bears."""


def frame(sight: Sight, *, height: int | None = None, now: float | None = None) -> RenderableType:
    """The picture.

    Args:
        sight: the run as it was seen.
        height: lines that it may take, as far as some measurements can be left out; ten are listed without a limit.
        now: the time, in seconds since the epoch.
    """
    now = time.time() if now is None else now
    seen = sight.standing
    rows = _labelled()
    parts = (
        _heading(sight, now),
        [*_budget(seen), *_outcomes(seen), *_best(seen, now)],
        _decisions(seen),
        _forecaster(seen),
    )
    for number, part in enumerate(parts):
        if number and (height is None or height >= _ROOMY):
            rows.add_row()
        for label, content in part:
            rows.add_row(label, content)
    if not seen.last:
        return rows
    taken = rows.row_count + max(0, _most_reasons(seen) - 1) + 2
    room = 10 if height is None else max(_FEWEST_RESULTS, height - taken)
    return Group(rows, Text(""), _last(seen.last[-room:], now))


def status_line(sight: Sight) -> str:
    """The same in one line, for output that is no terminal."""
    seen = sight.standing
    best = "no speed-up yet" if seen.best is None else f"best {seen.best['speedup']:.3f}x"
    name = f"{sight.name}: " if sight.name else ""
    candidates = sum(seen.decisions.values())
    return printable(
        f"{name}{_measurements(seen)} measured of {candidates} candidates; {best}; {_health(seen)}"
    )


def duration(seconds: float) -> str:
    """A time span in its two largest units: ``3 s``, ``4 min 05 s``, ``2 h 03 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _labelled() -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=_LABELS, style="bold", no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    return grid


def _text(content: str, style: str = "") -> Text:
    return Text(printable(content), style=style)


def _heading(sight: Sight, now: float) -> list[tuple[str, RenderableType]]:
    seen, run = sight.standing, sight.standing.run
    last = seen.last[-1]["finished_at"] if seen.last else run["created_at"]
    name = sight.name or run["name"]
    style = "bold green" if sight.over else "bold"
    state = Text.assemble(
        (f"{sight.state}", style),
        f"; begun {duration(now - run['created_at'])} ago, last result {duration(now - last)} ago"
        if seen.last
        else f"; begun {duration(now - run['created_at'])} ago",
    )
    model = f", model {run['model']}" if run["model"] else ""
    return [
        ("run", _text(f"{name}: {run['task'] or '-'}")),
        ("", state),
        ("", _text(f"{run['device'] or 'no device'}; {run['forecaster']}{model}; seed {run['seed']}", "dim")),
    ]


def _measurements(seen: RunStanding) -> str:
    limit = seen.budget.measurements
    return f"{seen.use.measurements}{'' if limit is None else f' of {limit}'}"


def _progress(done: float, total: float, width: int) -> ProgressBar:
    return ProgressBar(total=total, completed=done, width=width, complete_style="cyan", finished_style="cyan")


def _bar(done: float, total: float, width: int, text: str) -> Table:
    """A bar and what it says, side by side."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=width)
    grid.add_column(no_wrap=True)
    grid.add_row(_progress(min(done, total), max(total, 1e-9), width), Text(text))
    return grid


def _budget(seen: RunStanding) -> list[tuple[str, RenderableType]]:
    budget, use = seen.budget, seen.use
    running = f", {use.open} running" if use.open else ""
    rows: list[tuple[str, RenderableType]] = []
    if budget.measurements is None:
        rows.append(("measurements", Text(f"{use.measurements}, no limit{running}")))
    else:
        left = max(0, budget.measurements - use.measurements)
        text = f"{_measurements(seen)}, {left} left{running}"
        rows.append(("measurements", _bar(use.measurements, budget.measurements, _BAR, text)))
    what = " with forecasting" if budget.count_forecasting else ""
    if budget.gpu_seconds is None:
        rows.append(("GPU-seconds", Text(f"{seen.gpu_seconds:.1f} in the evaluator")))
    else:
        left_s = max(0.0, budget.gpu_seconds - seen.gpu_seconds)
        text = f"{seen.gpu_seconds:.1f} of {budget.gpu_seconds:g}, {left_s:.1f} left{what}"
        rows.append(("GPU-seconds", _bar(seen.gpu_seconds, budget.gpu_seconds, _BAR, text)))
    return rows


def _outcomes(seen: RunStanding) -> list[tuple[str, RenderableType]]:
    return [("", _text(f"ended {_counts(seen.outcomes)}"))] if seen.outcomes else []


def _counts(numbers: Mapping[str, int]) -> str:
    """How many of each kind, the most frequent first."""
    return ", ".join(
        f"{n} {kind}" for kind, n in sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    )


def _best(seen: RunStanding, now: float) -> list[tuple[str, RenderableType]]:
    best = seen.best
    if best is None:
        return [("best", Text("no speed-up measured yet"))]
    time_us = "" if best["time_us"] is None else f", {best['time_us']:.4g} us"
    found = f" over the reference{time_us}; kernel {best['candidate_key'][:_KEY_DIGITS]}"
    ago = duration(now - best["finished_at"])
    return [
        ("best", Text.assemble((f"{best['speedup']:.3f}x", "bold green"), printable(found))),
        ("", _text(f"{_belief(best)}; chosen as {best['reason']}, {ago} ago")),
    ]


def _belief(row: Row) -> str:
    """What was forecast of a measured kernel."""
    expected = expected_speedup(row)
    if expected is None:
        return "not forecast" if row["failure"] is None else f"no forecast ({row['failure']})"
    sure = "" if row["confidence"] is None else f" at confidence {row['confidence']:.2f}"
    return f"forecast {expected:.2f}x{sure}"


def _most_reasons(seen: RunStanding) -> int:
    """How many lines the reasons take, side by side."""
    return max((sum(of == action for of, _ in seen.decisions) for action in Action), default=0)


def _decisions(seen: RunStanding) -> list[tuple[str, RenderableType]]:
    """Two columns: what was to be measured and what was skipped, by reason."""
    total = sum(seen.decisions.values())
    if not total:
        return [("decisions", Text("none yet"))]
    columns = [_reasons(seen, action) for action in Action]
    measured = sum(n for (action, _), n in seen.decisions.items() if action == Action.MEASURE)
    heading = (
        f"{total} candidates: {measured} to measure ({measured / total:.0%}), {total - measured} skipped"
    )
    side_by_side = Table.grid(padding=(0, 3))
    side_by_side.add_row(*columns)
    return [("decisions", Text(heading)), ("", side_by_side)]


def _reasons(seen: RunStanding, action: Action) -> Table:
    counts = {reason: n for (of, reason), n in seen.decisions.items() if of == action}
    most = max(counts.values(), default=1)
    table = Table.grid(padding=(0, 1))
    table.add_column(width=14, no_wrap=True, overflow="ellipsis")
    table.add_column(width=_REASON_BAR)
    table.add_column(justify="right", width=5)
    for reason, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(_text(reason), _progress(n, most, _REASON_BAR), str(n))
    return table


def _health(seen: RunStanding) -> str:
    if not seen.answered and not seen.failures and not seen.silent_pools:
        return "forecaster not asked yet"
    if not seen.silent_pools:
        return "forecaster answers"
    silent = f"no forecast in the last {seen.silent_pools} pools that needed one"
    return f"forecaster is down ({silent})" if seen.silent_pools > _BREAKS_AFTER else silent


def _forecaster(seen: RunStanding) -> list[tuple[str, RenderableType]]:
    is_down = seen.silent_pools > _BREAKS_AFTER
    parts = [f"{seen.answered} forecasts"]
    failed = sum(seen.failures.values())
    if failed:
        parts.append(f"{failed} failed ({_counts(seen.failures)})")
    if seen.suspicious:
        parts.append(f"{seen.suspicious} not to be trusted")
    rows: list[tuple[str, RenderableType]] = [
        ("forecaster", _text(_health(seen), "bold red" if is_down else "")),
        ("", _text("; ".join(parts), "yellow" if failed else "")),
    ]
    return [*rows, *_trust(seen), *((("", _text(line))) for line in _cost(seen))]


def _trust(seen: RunStanding) -> list[tuple[str, RenderableType]]:
    """How far it is followed, by the latest pool."""
    pool = seen.pool
    if pool is None:
        return []
    threshold = "" if pool["threshold"] is None else f"; deferral threshold {pool['threshold']:.2f}"
    rows: list[tuple[str, RenderableType]] = [
        ("", _text(f"the guard leaves it {pool['trust']:.0%} of its slots{threshold}"))
    ]
    if pool["miscalibrated"]:
        rows.append(("", _text("its forecasts have become miscalibrated: deferral is widened", "yellow")))
    return rows


def _cost(seen: RunStanding) -> list[str]:
    costs = seen.costs
    gpu = f", {costs['gpu_seconds']:.1f} GPU-seconds" if costs["gpu_seconds"] else ""
    lines = [f"forecasts took {costs['seconds']:.1f} s{gpu}"]
    if costs["prompt_tokens"]:
        cached = costs["cached_tokens"] / costs["prompt_tokens"]
        lines.append(
            f"tokens: {costs['prompt_tokens']:,} prompt ({cached:.0%} cached), "
            f"{costs['completion_tokens']:,} completion"
        )
    return lines


def _last(rows: Sequence[Row], now: float) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for heading in ("last measured", "kernel", "chosen as"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for heading in ("forecast", "measured", "GPU-s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in reversed(rows):
        expected = expected_speedup(row)
        is_ok = row["outcome"] == Outcome.OK
        table.add_row(
            f"{duration(now - row['finished_at'])} ago",
            _text(row["candidate_key"][:_KEY_DIGITS]),
            _text(row["reason"]),
            _text(row["failure"] or "-") if expected is None else f"{expected:.2f}x",
            f"{row['speedup']:.2f}x" if is_ok else _text(row["outcome"], "yellow"),
            f"{row['gpu_seconds'] or 0.0:.1f}",
        )
    return table
