"""What a report counts and shows, against what can be told by hand."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers import failed, measured, peaked
from report_pages import write_run

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.decision import Measurement, Outcome, Reason
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.ledger.reading import (
    MEASURED_REASONS,
    MeasuredRows,
    improvements,
    measured_rows,
    repeated_speedups,
    snapshot,
)
from gpu_forecasters_plugin.ledger.totals import outcome_costs, pool_segments, pool_trust
from gpu_forecasters_plugin.report.drawing import INK, SERIES, figure, svg
from gpu_forecasters_plugin.report.quality import forecast_quality, forecast_rows
from gpu_forecasters_plugin.report.selection_gain import FEWEST_POOLS, selection_gain
from gpu_forecasters_plugin.report.surprises import biggest_surprises
from gpu_forecasters_plugin.report.texts import code_lines, diff_lines, on_one_line


def rows(
    speedups: list[float],
    forecasts: list[list[float] | None] | None = None,
    *,
    drawn: list[float] | None = None,
    pools: list[int] | None = None,
    anchors: list[float] | None = None,
) -> MeasuredRows:
    """Measured rows; those with a sampling probability are audit rows, the others were chosen."""
    n = len(speedups)
    probability = np.array(drawn or [math.nan] * n)
    audit, top = (MEASURED_REASONS.index(reason) for reason in (Reason.AUDIT, Reason.TOP_FRACTION))
    return MeasuredRows(
        np.arange(n) + 10,
        np.array(pools or [0] * n),
        np.where(np.isnan(probability), top, audit).astype(np.int8),
        np.array(speedups),
        np.array(anchors or [1.0] * n),
        probability,
        np.array([[math.nan] * 8 if f is None else f for f in forecasts or [None] * n]),
    )


def sometimes(number: int) -> Measurement:
    return failed(Outcome.INCORRECT, 0.5) if number % 3 == 0 else measured(1.0 + number % 7)


def test_counts_made_by_the_database_are_those_of_the_rows(ledger: Ledger) -> None:
    write_run(ledger, 5, sometimes)
    decisions = ledger.decisions()
    with snapshot(ledger) as run:
        found, segments, costs = measured_rows(run), pool_segments(run, 3), outcome_costs(run)
        best, trust = improvements(run), pool_trust(run)
    pools = ledger.pool_rows()
    assert trust["pools"] == len(pools) and trust["trust"] == pytest.approx(sum(p["trust"] for p in pools))
    assert trust["miscalibrated"] == sum(bool(p["miscalibrated"]) for p in pools)
    ok = [row for row in decisions if row["outcome"] == "ok"]
    assert found.decision.tolist() == [row["id"] for row in ok]
    assert found.speedup.tolist() == [row["speedup"] for row in ok]
    assert np.isnan(found.sampling_probability).tolist() == [r["sampling_probability"] is None for r in ok]
    assert np.isnan(found.probabilities).any(axis=1).tolist() == [r["probabilities"] is None for r in ok]
    ended = sorted(
        (row for row in decisions if row["outcome"]), key=lambda row: (row["finished_at"], row["id"])
    )
    fastest = list(accumulate((row["speedup"] or 0.0 for row in ended), max))
    new = [n for n, (before, now) in enumerate(pairwise([0.0, *fastest]), start=1) if now > before]
    assert [(row["number"], row["speedup"]) for row in best] == [(n, fastest[n - 1]) for n in new]
    assert sum(s.count for s in segments) == len(decisions) and {s.segment for s in segments} == {0, 1, 2}
    assert {row["outcome"]: row["gpu_seconds"] for row in costs} == {
        "ok": float(len(ok)),
        "incorrect": 0.5 * sum(row["outcome"] == "incorrect" for row in decisions),
    }


def test_kernels_that_were_timed_twice_are_found(ledger: Ledger) -> None:
    write_run(ledger, 1)
    with snapshot(ledger) as run:
        assert repeated_speedups(run, 10) == []
        run.connection.exec_driver_sql("ROLLBACK")
        run.connection.exec_driver_sql("PRAGMA query_only=OFF")
        run.connection.exec_driver_sql("UPDATE measurement SET candidate_key = 'same' WHERE id IN (2, 3)")
        ((first, second),) = repeated_speedups(run, 10)
    assert first > 0 and second > 0


def test_drawn_rows_weigh_by_their_sampling_probability_and_others_do_not_count() -> None:
    forecasts: list[list[float] | None] = [peaked(5), peaked(5), peaked(1), None]
    table = rows([1.2, 0.1, 0.1, 3.0], forecasts, drawn=[0.5, 0.125, math.nan, 0.5])
    drawn = forecast_quality(forecast_rows(table, BINS, drawn_only=True), BINS)
    everything = forecast_quality(forecast_rows(table, BINS, drawn_only=False), BINS)
    assert drawn is not None and everything is not None
    assert (drawn.n, everything.n) == (2, 3)
    assert drawn.measures.exact == pytest.approx(2 / 10)  # weights 2 and 8
    assert everything.measures.exact == pytest.approx(2 / 3)
    assert drawn.effective_n == pytest.approx(100 / 68)
    assert drawn.confusion[4][4] == pytest.approx(0.4) and drawn.confusion[0][4] == pytest.approx(1.6)


def test_forecasts_are_scored_relative_to_their_anchor() -> None:
    table = rows([4.8], [peaked(5)], anchors=[4.0])
    quality = forecast_quality(forecast_rows(table, BINS, drawn_only=False), BINS)
    assert quality is not None and quality.measures.exact == 1.0
    (surprise,) = biggest_surprises(rows([40.0], [peaked(5)], anchors=[4.0]), BINS, 5)
    assert (surprise.measured_bin, surprise.decision) == (8, 10)
    assert surprise.expected == pytest.approx(4.0 * 2 ** (np.array(peaked(5)) @ BINS.log2_midpoints))


def test_no_rows_give_no_quality_and_no_surprise() -> None:
    table = rows([1.2, 0.1])
    assert forecast_quality(forecast_rows(table, BINS, drawn_only=False), BINS) is None
    assert biggest_surprises(table, BINS, 5) == []


def test_speedups_near_an_edge_are_counted() -> None:
    table = rows([1.0, 1.019, 1.03, 2.0], [peaked(4)] * 4)
    quality = forecast_quality(forecast_rows(table, BINS, drawn_only=False), BINS)
    assert quality is not None and quality.near_edge == pytest.approx(0.75)


def test_surprises_are_the_least_probable_first_and_of_equals_the_farthest_off() -> None:
    forecasts: list[list[float] | None] = [
        peaked(4, 0.5),
        peaked(4, 0.9),
        peaked(4, 0.9),
        peaked(4),
        peaked(4),
    ]
    found = biggest_surprises(rows([1.2, 1.2, 8.0, 1.0, 0.3], forecasts), BINS, 2)
    assert [(s.decision, s.faster) for s in found] == [(12, True), (11, True), (14, False)]


def test_the_gain_of_the_filter_is_paired_by_pool() -> None:
    pools = [pool for pool in range(6) for _ in range(2)]
    speedups = [value for pool in range(6) for value in (3.0 * 2**pool, 2.0 * 2**pool)]
    gain = selection_gain(rows(speedups, drawn=[math.nan, 0.5] * 6, pools=pools))
    assert gain.ratio == pytest.approx(1.5) and gain.interval == (pytest.approx(1.5), pytest.approx(1.5))
    assert gain.verdict == "faster" and gain.pools == 6
    few = selection_gain(rows(speedups[:4], drawn=[math.nan, 0.5] * 2, pools=pools[:4]))
    assert few.interval is None and few.pools == 2 < FEWEST_POOLS
    assert selection_gain(rows([2.0], pools=[0])).ratio is None


def test_long_lines_and_sources_are_cut_with_a_marker() -> None:
    (line,) = code_lines("x" * 1_000_000)
    assert len(line.text) < 400 and line.text.endswith("… [999,760 more characters]")
    assert len(code_lines("\t" * 1_000_000)[0].text) < 2000
    many = code_lines("\n".join(map(str, range(100_000))))
    assert len(many) < 500 and many[-1].kind == "note" and many[-1].text == "… 99,600 more lines"
    assert on_one_line("y" * 1_000_000).endswith("[999,600 more characters]")


def test_control_and_direction_characters_become_visible() -> None:
    shown = "".join(line.text for line in code_lines("a\x00b\x1b[31m\u202ec\u200b\r\nd\re\ud800"))
    assert shown == "a\\x00b\\x1b[31m\\u202ec\\u200bd\\re\\ud800"


def test_a_diff_shows_what_changed_and_ends_in_time_on_sources_of_any_length() -> None:
    lines = diff_lines("a\nb\nc\n", "a\nB\nc\n")
    assert [(line.kind, line.text) for line in lines] == [
        ("place", "@@ -1,4 +1,4 @@"),
        ("same", " a"),
        ("removed", "-b"),
        ("added", "+B"),
        ("same", " c"),
        ("same", " "),
    ]
    assert diff_lines("same", "same") == []
    long = "\n".join(f"x = {number % 7}" for number in range(200_000))
    shown = diff_lines(long, "y\n" + long)
    assert shown[0].kind == "note" and "only the first 3,000 of 200,000 lines" in shown[0].text
    assert len(shown) < 500


def test_pictures_take_the_pages_colours_and_clash_with_no_other() -> None:
    with figure(2.0) as (picture, (axes,)):
        axes.plot([0, 1], [0, 1], "o-", color=SERIES[0])
        axes.set_title("<script>$x$", color=INK)
        first, second = (svg(picture, name, "A line.") for name in ("one", "two"))
    assert "var(--series-1)" in first and "var(--ink)" in first
    assert not any(colour in first for colour in (*SERIES, INK))
    assert "&lt;script&gt;$x$" in first and "<script>" not in first
    assert first.replace("one-", "two-") == second and 'id="one-' in first
    assert first.startswith('<svg viewBox="') and 'role="img" aria-label="A line."' in first
    assert "http" not in first.replace("http://www.w3.org/", "")


def test_style_sheet_names_every_colour_in_both_themes() -> None:
    style = (Path(svg.__code__.co_filename).parent / "templates" / "page.css").read_text()
    light, dark = style.split("prefers-color-scheme: dark", 1)
    for number, colour in enumerate(SERIES, start=1):
        assert f"--series-{number}: {colour}" in light and f"--series-{number}: #" in dark
