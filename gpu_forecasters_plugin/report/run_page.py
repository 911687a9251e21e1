"""The page of a run."""

from __future__ import annotations

from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.report.facts import RunFacts
from gpu_forecasters_plugin.report.forecast_sections import (
    calibration_section,
    failures_section,
    surprises_section,
)
from gpu_forecasters_plugin.report.page import Page
from gpu_forecasters_plugin.report.parts import Section
from gpu_forecasters_plugin.report.run_sections import (
    best_section,
    budget_section,
    course_section,
    decisions_section,
    identity_section,
)
from gpu_forecasters_plugin.report.run_story import best_sentence, budget_of, gain_sentence, run_data
from gpu_forecasters_plugin.report.screen_sections import screen_sections
from gpu_forecasters_plugin.report.selection_gain import selection_gain

__all__ = ["about", "run_page", "shared_sections"]


def run_page(facts: RunFacts) -> Page:
    """What a run's page says."""
    gain = selection_gain(facts.measured)
    sentence = best_sentence(facts)
    verdict = sentence if sentence.endswith(".") else f"{sentence}; {gain_sentence(gain)}."
    return Page(
        title=f"Run {facts.run['name']}",
        about=about(facts),
        verdict=verdict,
        notes=_notes(facts),
        figures=_figures(facts),
        sections=[course_section(facts), *shared_sections(facts)],
        data={"kind": "run"} | run_data(facts, gain),
    )


def about(facts: RunFacts) -> str:
    """What a run is of."""
    run = facts.run
    task, device = run["task"] or "a task without a name", run["device"] or "an unknown device"
    return f"{task.rstrip('.')}. On {device}, with the forecaster {run['forecaster'] or 'unknown'}."


def shared_sections(facts: RunFacts) -> list[Section]:
    """What can be told of one run and of several together."""
    return [
        decisions_section(facts),
        *screen_sections(facts),
        calibration_section(facts),
        budget_section(facts),
        best_section(facts),
        surprises_section(facts),
        failures_section(facts),
        identity_section(facts),
    ]


def _notes(facts: RunFacts) -> list[str]:
    notes = []
    if facts.under_way:
        count = facts.under_way
        notes.append(
            f"{count} measurement{' has' if count == 1 else 's have'} been paid for and not ended: the run goes on, or "
            "was ended from outside. Of a pool that is being measured, the fast kernels come first."
        )
    if facts.best is not None:
        notes.append(
            "The fastest kernel's time is as good as its one measurement: the fastest of many is likely to have been "
            "lucky too, so time it again. Whether a search without the filter would have found it as well, a single "
            "run cannot tell; gpu-forecasters compare can."
        )
    return notes


def _figures(facts: RunFacts) -> list[tuple[str, str]]:
    limit = budget_of(facts).measurements
    ok = sum(row["count"] for row in facts.outcomes if row["outcome"] == Outcome.OK)
    best = "none" if facts.best is None else f"{facts.best.row['speedup']:.3g}x"
    return [
        ("best speed-up", best),
        ("measurements", f"{facts.measurements:,}{'' if limit is None else f' of {limit:,}'}"),
        ("of these with a time", f"{ok:,}"),
        ("candidates decided on", f"{facts.candidates:,}"),
        ("GPU-seconds", f"{sum(row['gpu_seconds'] for row in facts.outcomes):,.4g}"),
        ("forecasts", f"{facts.forecasts['answered']:,}"),
    ]
