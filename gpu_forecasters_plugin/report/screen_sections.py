"""What the compiler said before any GPU was asked: the section on the screen, and profiles beside each other."""

from __future__ import annotations

from gpu_forecasters_plugin.decision import Action
from gpu_forecasters_plugin.ledger.screenings import ScreenTotals
from gpu_forecasters_plugin.report.facts import BestKernel, RunFacts
from gpu_forecasters_plugin.report.parts import Section, Table
from gpu_forecasters_plugin.screen.beside import properties_beside
from gpu_forecasters_plugin.screen.verdict import Status

__all__ = ["profile_tables", "screen_sections"]


def screen_sections(facts: RunFacts) -> list[Section]:
    """What the screen caught and what it missed; nothing where none was in force."""
    totals = facts.screening
    if totals is None:
        return []
    screened = sum(totals.sources.values())
    invalid = totals.sources.get(Status.INVALID, 0)
    text = (
        f"The compiler was asked about {screened:,} distinct candidates, which took "
        f"{totals.cpu_seconds:,.4g} s of processor time; {invalid:,} of them ({invalid / screened:.0%}) cannot run."
    )
    return [
        Section(
            "screen",
            "What the compiler caught",
            [text, *_savings(totals, facts.run["config"].get("keep_fraction"))],
            tables=[*_reasons(totals), _fates(totals)],
        )
    ]


def _savings(totals: ScreenTotals, keep_fraction: float | None) -> list[str]:
    sentences = []
    kept = totals.kept_from_gpu
    if kept and keep_fraction is not None:
        sentences.append(
            f"{kept:,} candidates were kept from the GPU. A filter that measures {keep_fraction:.0%} of its candidates "
            f"and cannot tell what runs would have spent about {kept * keep_fraction:,.0f} measurements on them."
        )
    if totals.missed:
        sentences.append(
            f"{totals.missed:,} measurements went to candidates that it let pass and that did not build or run."
        )
    if totals.wrongly_invalid:
        sentences.append(
            f"{totals.wrongly_invalid:,} measurements were fine although the compiler had called the candidate "
            "invalid: do its versions agree with those of the machine that measures?"
        )
    return sentences


def _reasons(totals: ScreenTotals) -> list[Table]:
    if not totals.reasons:
        return []
    headings = [("fault", False), ("candidates", True), ("what the compiler said of one of them", False)]
    rows = [[reason.fault, f"{reason.count:,}", reason.message] for reason in totals.reasons]
    return [Table("Most frequent faults", headings, rows)]


def _fates(totals: ScreenTotals) -> Table:
    headings = [("verdict", False), ("decision", False), ("reason", False), ("outcome", False)]
    rows = [
        [
            fate.status,
            fate.action,
            fate.reason,
            fate.outcome or ("not ended" if fate.action == Action.MEASURE else "-"),
            f"{fate.count:,}",
        ]
        for fate in totals.fates
    ]
    return Table("What became of screened candidates", [*headings, ("decisions", True)], rows)


def profile_tables(best: BestKernel) -> list[Table]:
    """What the compiler made of the best kernel beside the reference; nothing where the best was not compiled."""
    if best.profile is None:
        return []
    rows = [[line.name, *line.values] for line in properties_beside([best.reference_profile, best.profile])]
    headings = [("property", False), ("reference", True), ("best kernel", True)]
    return [Table(f"What the compiler made of it, for {best.profile.arch}", headings, rows)]
