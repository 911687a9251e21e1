"""The sections of a run's page on its forecasts: calibration, surprises, failures."""

from __future__ import annotations

import numpy as np

from gpu_forecasters_plugin.bins import N_BINS, BinScheme
from gpu_forecasters_plugin.calibration.ceiling import NoiseCeiling
from gpu_forecasters_plugin.ledger.summary import anchor_in_words
from gpu_forecasters_plugin.report.facts import RunFacts
from gpu_forecasters_plugin.report.parts import Item, Listing, Picture, Section, Table
from gpu_forecasters_plugin.report.quality import NEAR_EDGE, ForecastQuality
from gpu_forecasters_plugin.report.quality_charts import confusion_picture, reliability_picture
from gpu_forecasters_plugin.report.surprises import Surprise
from gpu_forecasters_plugin.report.texts import code_lines

__all__ = ["calibration_section", "failures_section", "surprises_section"]

_FEW = 30
"""Below so many rows, measures say little."""


def calibration_section(facts: RunFacts) -> Section:
    """How far forecasts could be trusted."""
    title = "Could the forecasts be trusted?"
    drawn, everything = facts.quality_drawn, facts.quality
    if everything is None:
        return Section(
            "calibration", title, ["No candidate has both a forecast and a time, so nothing is known."]
        )
    paragraphs = [
        "What was measured for looking promising is a biased sample. The rows drawn at random, each weighted by the "
        "inverse of its sampling probability, stand for all candidates; the other column is of all that was measured."
    ]
    if drawn is None:
        paragraphs.append(
            "Here no row with a forecast was drawn at random: the figures are of the biased sample only."
        )
    elif drawn.n < _FEW:
        rows = "row was" if drawn.n == 1 else "rows were"
        paragraphs.append(f"Only {drawn.n} {rows} drawn at random: those figures may change much with more.")
    paragraphs += [_relative_to(facts), _trust(facts), _noise(facts, drawn or everything)]
    reliability = Picture(
        reliability_picture(drawn, everything),
        "Reliability: on the dashed line, forecasts are right as often as they say; below it, they are overconfident. "
        "Bars are 95 % intervals.",
        _reliability_table(drawn, everything),
    )
    return Section(
        "calibration",
        title,
        paragraphs,
        [reliability, *_confusions(drawn, everything)],
        [_scores(drawn, everything, facts.ceiling)],
    )


def _relative_to(facts: RunFacts) -> str:
    return f"Bins, here and below, are of the speed-up over {_anchor(facts)} when the forecast was made."


def _anchor(facts: RunFacts) -> str:
    return anchor_in_words(facts.run["config"].get("anchor"))


def _trust(facts: RunFacts) -> str:
    pools, alarms = facts.trust["pools"], facts.trust["miscalibrated"]
    text = (
        f"The run itself left its forecasts {facts.trust['trust'] / pools:.0%} of the slots meant for them, in the "
        f"mean of {pools:,} pools: the guard hands slots to chance when forecasts order kernels no better."
    )
    if not alarms:
        return text
    return (
        f"{text} In {alarms:,} of them forecasts counted as miscalibrated, and more candidates were deferred."
    )


def _noise(facts: RunFacts, quality: ForecastQuality) -> str:
    text = (
        f"Noise: {quality.near_edge:.0%} of the measured speed-ups lie within {NEAR_EDGE:.0%} of an edge between two "
        "bins, where timing again may change the bin; not even a perfect forecast is sure of these."
    )
    ceiling = facts.ceiling
    if ceiling is None:
        return (
            f"{text} No kernel of this run was timed twice, so how well its times repeat is not known, and the noise "
            "ceiling below is undefined."
        )
    kernels = "One kernel was" if ceiling.n == 1 else f"{ceiling.n:,} kernels were"
    apart = 2 ** (ceiling.median_abs_log2_difference or 0.0) - 1
    return (
        f"{text} {kernels} timed more than once: two times of a kernel fell into the same bin in {ceiling.exact:.0%} "
        f"of the cases and were {apart:.1%} apart in the median, which is what forecasts can be measured against."
    )


_MEASURES = (
    ("predicted bin was measured", "exact", ".0%"),
    ("predicted bin or a neighbour was", "within_one", ".0%"),
    ("mean |log2 error|, octaves", "mean_abs_log2_error", ".2f"),
    ("Brier score (0 is perfect)", "brier", ".3f"),
    ("Brier skill against climatology", "brier_skill", "+.2f"),
    ("CRPS (0 is perfect)", "crps", ".3f"),
    ("CRPS skill against climatology", "crps_skill", "+.2f"),
    ("negative log-likelihood, nats", "nll", ".2f"),
    ("its skill against climatology", "nll_skill", "+.2f"),
    ("expected calibration error", "ece", ".3f"),
    ("area under the risk-coverage curve", "aurc", ".3f"),
)
"""What it is, its name among the measures, its digits."""


_CEILINGS = {
    "exact": "noise ceiling of that: same bin when timed again",
    "within_one": "noise ceiling of that",
}
"""What stands below a measure: how well a second measurement does as a forecast of the first."""


def _scores(
    drawn: ForecastQuality | None, everything: ForecastQuality, ceiling: NoiseCeiling | None
) -> Table:
    both = (drawn, everything)
    rows = [
        ["rows with a forecast and a time", *("0" if q is None else f"{q.n:,}" for q in both)],
        [
            "rows of equal weight that say as much",
            *("0" if q is None else f"{q.effective_n:,.0f}" for q in both),
        ],
    ]
    for text, name, digits in _MEASURES:
        rows.append([text, *(_value(q, name, digits) for q in both)])
        if name in _CEILINGS:
            limit = "undefined" if ceiling is None else format(getattr(ceiling, name), digits)
            rows.append([_CEILINGS[name], limit, limit])
    headings = [("measure", False), ("drawn at random, weighted", True), ("all measured", True)]
    caption = (
        "Scores. Climatology is a forecaster that only knows how often each bin was measured here: a skill above 0 "
        "is better than that."
    )
    return Table(caption, headings, rows)


def _value(quality: ForecastQuality | None, name: str, digits: str) -> str:
    value = None if quality is None else getattr(quality.measures, name)
    return "undefined" if value is None else format(value, digits)


def _reliability_table(drawn: ForecastQuality | None, everything: ForecastQuality) -> Table:
    headings = [
        ("rows", False),
        ("confidence from", True),
        ("to", True),
        ("count", True),
        ("mean confidence", True),
        ("right", True),
        ("95 % interval", True),
    ]
    rows = [
        [
            name,
            f"{b.low:.1f}",
            f"{b.high:.1f}",
            f"{b.n:,}",
            f"{b.confidence:.2f}",
            f"{b.accuracy:.0%}",
            f"{low:.0%} to {high:.0%}",
        ]
        for name, quality in (("drawn at random", drawn), ("all measured", everything))
        if quality is not None
        for b, (low, high) in zip(quality.reliability, quality.intervals, strict=True)
    ]
    return Table("Confidence and how often it was right", headings, rows)


def _confusions(drawn: ForecastQuality | None, everything: ForecastQuality) -> list[Picture]:
    found = []
    if drawn is not None:
        svg = confusion_picture(
            drawn, "confusion-drawn", "drawn at random: per cent of all candidates", shares=True
        )
        caption = "What was measured when each bin was predicted: estimated for all candidates."
        found.append(
            Picture(svg, caption, _confusion_table(drawn, "Per cent of all candidates", shares=True))
        )
    svg = confusion_picture(everything, "confusion-all", "all measured: rows", shares=False)
    found.append(
        Picture(
            svg,
            "What was measured when each bin was predicted: all measured rows.",
            _confusion_table(everything, "Rows", shares=False),
        )
    )
    return found


def _confusion_table(quality: ForecastQuality, caption: str, *, shares: bool) -> Table:
    matrix = np.array(quality.confusion)
    shown = 100 * matrix / matrix.sum() if shares else matrix
    headings = [("measured", True), *((str(number), True) for number in range(1, N_BINS + 1))]
    rows = [
        [str(number), *(f"{value:.1f}" if shares else f"{value:.0f}" for value in row)]
        for number, row in enumerate(shown, start=1)
    ]
    return Table(f"{caption}: a row for each measured bin, a column for each predicted one", headings, rows)


def surprises_section(facts: RunFacts) -> Section:
    """Confident and wrong, in both directions."""
    title = "The biggest surprises"
    if not facts.surprises:
        return Section("surprises", title, ["No forecast was wrong about its bin."])
    several = len(facts.names) > 1
    groups = [
        (heading, [_item(s, facts.bins, several) for s in facts.surprises if s.faster is faster])
        for heading, faster in (("Faster than foretold", True), ("Slower than foretold", False))
    ]
    text = (
        "Wrong forecasts that gave what was then measured the least probability, of all measured candidates. "
        f"Factors are over the reference, bins over {_anchor(facts)}."
    )
    return Section("surprises", title, [text], groups=[group for group in groups if group[1]])


def _item(surprise: Surprise, bins: BinScheme, several: bool) -> Item:
    name = f"decision {surprise.decision}" + (f" of run {surprise.run}" if several else "")
    text = (
        f"{name}: {surprise.speedup:.3g}x measured, {surprise.expected:.3g}x expected. Foretold was "
        f"{bins.labels[surprise.predicted_bin - 1]} with confidence {surprise.confidence:.2f}; it became "
        f"{bins.labels[surprise.measured_bin - 1]}, which had been given {surprise.probability:.2g}."
    )
    return Item(text, Listing(f"Source of {name}", code_lines(surprise.code)))


def failures_section(facts: RunFacts) -> Section:
    """Forecasts that did not come."""
    title = "Failures of the forecaster"
    suspicious = facts.forecasts["suspicious"]
    noted = (
        [
            f"{suspicious:,} candidates had a forecast that was not to be trusted, and were deferred to the GPU."
        ]
        if suspicious
        else []
    )
    if not facts.failures:
        return Section("failures", title, ["No forecast failed.", *noted])
    failed = sum(row["count"] for row in facts.failures)
    asked = failed + facts.forecasts["answered"]
    text = (
        f"{failed:,} of {asked:,} forecasts ({failed / asked:.1%}) failed. No number was invented for them."
    )
    headings = [("kind", False), ("forecasts", True), ("the first of them", False)]
    rows = [[row["failure"], f"{row['count']:,}", row["detail"] or "-"] for row in facts.failures]
    return Section(
        "failures", title, [text, *noted], tables=[Table("Failed forecasts by kind", headings, rows)]
    )
