"""The sections of a run's page, but for those on its forecasts."""

from __future__ import annotations

import json

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.report.charts import course_picture, reasons_picture, seconds_picture
from gpu_forecasters_plugin.report.facts import RunFacts
from gpu_forecasters_plugin.report.parts import Listing, Picture, Section, Table
from gpu_forecasters_plugin.report.run_story import budget_of, decision_counts, identity_rows
from gpu_forecasters_plugin.report.screen_sections import profile_tables
from gpu_forecasters_plugin.report.texts import CodeLine, code_lines, diff_lines

__all__ = ["best_section", "budget_section", "course_section", "decisions_section", "identity_section"]

_KEY_DIGITS = 12

_MEANING = {
    "top_fraction": "among the most promising of its pool",
    "uncertain": "its forecast was not sure enough: deferred to the GPU",
    "no_forecast": "no forecast came for it: deferred to the GPU",
    "audit": "drawn at random, so that forecasts can be judged",
    "warm_up": "drawn at random before forecasts counted",
    "fallback": "drawn at random while the forecaster was out, or not trusted",
    "not_selected": "less promising than others of its pool",
    "duplicate": "the same source was measured before; that answers",
    "invalid_source": "it cannot run: no kernel at all, or the compiler refuses it",
    "budget_spent": "proposed after the budget was spent",
}


def course_section(facts: RunFacts) -> Section:
    """Best speed-up over GPU measurements."""
    title = "Best speed-up over GPU measurements"
    ended = facts.measurements - facts.under_way
    if not facts.course:
        return Section("course", title, ["No kernel has got a time yet."])
    headings = [
        ("after", True),
        ("speed-up", True),
        ("time (us)", True),
        ("chosen as", False),
        ("kernel", False),
    ]
    rows = [
        [
            str(row["number"]),
            f"{row['speedup']:.3f}x",
            "-" if row["time_us"] is None else f"{row['time_us']:.4g}",
            row["reason"],
            row["candidate_key"][:_KEY_DIGITS],
        ]
        for row in facts.course
    ]
    last = facts.course[-1]
    text = f"The fastest kernel came with measurement {last['number']} of the {ended} that have ended."
    table = Table("Each kernel that was the fastest so far", headings, rows)
    caption = "Best speed-up over the reference. Every measurement counts, also those of kernels that failed."
    return Section("course", title, [text], [Picture(course_picture(facts.course, ended), caption, table)])


def decisions_section(facts: RunFacts) -> Section:
    """What was measured and why."""
    title = "What was measured, and why"
    counts = decision_counts(facts)
    if not counts:
        return Section("decisions", title, ["Nothing has been decided yet."])
    total = facts.candidates
    measured = sum(count for action, _, count in counts if action == "measure")
    text = (
        f"{total:,} candidates were decided on; {measured:,} ({measured / total:.0%}) were to be measured. "
        "Those drawn at random keep the forecasts honest: they stand for all candidates."
    )
    headings = [
        ("reason", False),
        ("decision", False),
        ("candidates", True),
        ("share", True),
        ("meaning", False),
    ]
    rows = [
        [reason, action, f"{count:,}", f"{count / total:.1%}", _MEANING.get(reason, "")]
        for action, reason, count in counts
    ]
    parts = max(segment.segment for segment in facts.segments) + 1
    picture = Picture(
        reasons_picture(facts.segments, parts),
        "Decisions over the course of the run: above what was measured, below what was not.",
        _by_part(facts, parts),
    )
    return Section("decisions", title, [text], [picture], [Table("Decisions by reason", headings, rows)])


def _by_part(facts: RunFacts, parts: int) -> Table:
    reasons = [(action, reason) for action, reason, _ in decision_counts(facts)]
    counts = {(s.segment, s.action, s.reason): s.count for s in facts.segments}
    headings = [("part", True), *((f"{reason}", True) for _, reason in reasons)]
    rows = [
        [str(part + 1), *(f"{counts.get((part, *reason), 0):,}" for reason in reasons)]
        for part in range(parts)
    ]
    return Table("Candidates by part of the run and reason", headings, rows)


def budget_section(facts: RunFacts) -> Section:
    """Where the budget went."""
    title = "Where the budget went"
    if not facts.measurements:
        return Section("budget", title, ["Nothing has been spent yet."])
    seconds = sum(row["gpu_seconds"] for row in facts.outcomes)
    wasted = sum(row["gpu_seconds"] for row in facts.outcomes if row["outcome"] not in (Outcome.OK, None))
    limit = budget_of(facts).gpu_seconds
    of = "" if limit is None or len(facts.names) > 1 else f" of {limit:,.4g}"
    text = f"Measuring took {seconds:,.4g}{of} GPU-seconds"
    text += f", {wasted / seconds:.0%} of it for kernels that failed." if seconds else "."
    rows = [(row["outcome"] or "not ended", row["count"], row["gpu_seconds"]) for row in facts.outcomes]
    costs, forecasts = facts.forecasts, [("forecasting (waited for)", facts.forecasts["waited_seconds"])]
    if costs["gpu_seconds"]:
        forecasts.append(("forecasting (GPU)", costs["gpu_seconds"]))
    spent = Table(
        "Measurements by outcome",
        [("outcome", False), ("measurements", True), ("GPU-seconds", True), ("share", True)],
        [[name, f"{n:,}", f"{s:,.4g}", f"{s / seconds:.0%}" if seconds else "-"] for name, n, s in rows],
    )
    bars = [(name, value) for name, _, value in rows] + forecasts
    picture = Picture(
        seconds_picture(bars),
        "GPU-seconds of the evaluator by outcome, and the seconds for which pools waited for their forecasts.",
        Table(
            "Seconds", [("for", False), ("seconds", True)], [[name, f"{value:,.4g}"] for name, value in bars]
        ),
    )
    return Section("budget", title, [text], [picture], [spent, _forecast_costs(facts)])


def _forecast_costs(facts: RunFacts) -> Table:
    costs = facts.forecasts
    answered = costs["answered"]
    rows = [["forecasts given", f"{answered:,}", ""]]
    for name, key in (
        ("prompt tokens", "prompt_tokens"),
        ("of these from the prefix cache", "cached_tokens"),
        ("completion tokens", "completion_tokens"),
        ("of these thought with", "reasoning_tokens"),
    ):
        rows.append([name, f"{costs[key]:,}", f"{costs[key] / answered:,.1f}" if answered else "-"])
    for name, key in (
        ("seconds that pools waited", "waited_seconds"),
        ("GPU-seconds, as far as priced", "gpu_seconds"),
    ):
        rows.append([name, f"{costs[key]:,.4g}", f"{costs[key] / answered:,.3g}" if answered else "-"])
    return Table("What forecasts cost", [("cost", False), ("in all", True), ("per forecast", True)], rows)


def best_section(facts: RunFacts) -> Section:
    """The best kernel beside the reference."""
    title = "The best kernel"
    best = facts.best
    if best is None:
        return Section("best", title, ["No kernel has got a time yet."])
    row = best.row
    text = f"{row['speedup']:.3f} times as fast as the reference"
    text += "" if row["time_us"] is None else f" ({row['time_us']:.4g} us)"
    text += f", measured as {row['reason']}, measurement {row['number']}"
    text += f" of run {best.run}" if len(facts.names) > 1 else ""
    text += f"; kernel {row['candidate_key'][:_KEY_DIGITS]}."
    if best.reference_code is None:
        return Section(
            "best",
            title,
            [text, "The ledger does not hold the reference's source."],
            listings=[Listing("Source", code_lines(best.code))],
        )
    lines = diff_lines(best.reference_code, best.code)
    if not lines:
        return Section("best", title, [text, "It is the reference itself: nothing faster was measured."])
    return Section(
        "best",
        title,
        [text],
        tables=profile_tables(best),
        listings=[Listing("Difference from the reference", lines)],
    )


def identity_section(facts: RunFacts) -> Section:
    """What makes the run comparable with others."""
    rows = [[name, value] for name, value in identity_rows(facts)]
    settings = json.dumps(facts.run["config"], indent=2, sort_keys=True, ensure_ascii=False).split("\n")
    lines = (
        [line for text in settings for line in code_lines(text)]
        if facts.run["config"]
        else [CodeLine("note", "not recorded")]
    )
    return Section(
        "identity",
        "Run identity",
        ["Two measurements are comparable only where all of this agrees."],
        tables=[Table("Identity", [("what", False), ("value", False)], rows)],
        listings=[Listing("Configuration", lines)],
    )
