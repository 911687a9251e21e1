from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from helpers import Command, candidate, failed, measured, open_gate, wait_until, write_pool
from report_pages import PageText, hostile_run, write_report, write_run

from benchmarks.report_scale import POOL, write_ledger
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.statistics import summarise
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure, Query
from gpu_forecasters_plugin.ledger import Ledger, LedgerReader
from gpu_forecasters_plugin.ledger.reading import snapshot
from gpu_forecasters_plugin.report import gather

DATA = Path(__file__).parents[1] / "data"
SECTIONS = ["course", "decisions", "calibration", "budget", "best", "surprises", "failures", "identity"]


def in_order(page: PageText) -> list[str]:
    return [attributes["id"] or "" for tag, attributes in page.tags if tag == "h2"]


def test_a_page_of_a_run_says_all_that_there_is_to_say_and_loads_nothing(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 6)
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "pages" / "report.html")
    assert in_order(page) == SECTIONS
    assert "The fastest kernel is 7 times as fast as the reference, after 25 measurements" in page.text
    assert page.data["measurements"] == 25 and page.data["candidates"] == 49
    assert page.data["best"]["speedup"] == 7.0
    drawn, everything = (page.data["quality"][name]["measures"]["n"] for name in ("drawn", "all_measured"))
    assert 0 < drawn < everything == 24
    assert {tag for tag, _ in page.tags} & {"img", "link", "iframe", "object", "form", "base"} == set()
    assert [attributes.get("type") for tag, attributes in page.tags if tag == "script"] == [
        "application/json"
    ]
    assert not re.search(r'(?:src|href)="(?!#)|url\((?!#)|@import|\bon[a-z]+="', page.html)
    assert "default-src 'none'" in page.html


def test_the_same_ledger_gives_the_same_page(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 3)
    first = write_report(gpu_forecasters, tmp_path, tmp_path / "first.html")
    shutil.copytree(tmp_path, tmp_path.with_name("elsewhere"))
    again = write_report(gpu_forecasters, tmp_path.with_name("elsewhere"), tmp_path / "again.html")
    assert first.html == again.html


def test_every_picture_has_a_description_and_its_numbers_and_every_table_has_headings(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 4)
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(pictures) == 6
    assert all(p["role"] == "img" and len(p["aria-label"] or "") > 20 for p in pictures)
    assert page.text.count("The numbers behind this picture") == len(pictures)
    tables = sum(tag == "table" for tag, _ in page.tags)
    assert tables == sum(tag == "caption" for tag, _ in page.tags) > len(pictures)
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.tags if tag == "th")
    names = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(names) == len(set(names))


def test_a_best_kernel_is_shown_as_its_difference_from_the_reference(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 1, lambda number: measured(3.0 if number >= 104 else 0.5))
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    best = page.data["best"]
    number = ledger_number(ledger, best["decision"])
    assert f'<span class="removed">-BLOCK = 0</span><span class="added">+BLOCK = {number}</span>' in page.html


def ledger_number(ledger: Ledger, decision: int) -> int:
    row = next(row for row in ledger.decisions() if row["id"] == decision)
    return int(row["candidate_id"][1:])


def test_surprises_go_both_ways_and_show_their_source(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 2, lambda number: measured(8.0 if number % 2 else 0.1))
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    assert "Faster than foretold" in page.text and "Slower than foretold" in page.text
    faster = [s for s in page.data["surprises"] if s["faster"]]
    assert all(s["measured_bin"] == 8 and s["predicted_bin"] == 5 for s in faster)
    assert all(f"BLOCK = {ledger_number(ledger, s['decision'])}" in page.text for s in faster)


def test_failed_forecasts_are_counted_by_kind_with_their_reason(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    def silent(query: Query) -> Any:
        return ForecastFailure(FailureKind.TIMEOUT, "no answer within 3 s")

    write_run(ledger, 2, forecast=silent)
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    (row,) = page.data["failures"]
    assert (row["failure"], row["detail"]) == ("timeout", "no answer within 3 s")
    assert f"{row['count']} of {row['count']} forecasts (100.0%) failed" in page.text
    assert page.data["quality"] == {"drawn": None, "all_measured": None}
    assert "No candidate has both a forecast and a time" in page.text


@pytest.mark.parametrize("pools", [0, 1])
def test_an_empty_run_and_one_with_a_single_row_say_that_little_is_known(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path, pools: int
) -> None:
    gate = open_gate(ledger)
    for decision in gate.ask([candidate(0)]) if pools else []:
        gate.tell(decision.id, measured(1.0))
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    assert in_order(page) == SECTIONS
    if pools:
        assert "The fastest kernel is 1 times as fast as the reference" in page.text
        assert "It is the reference itself: nothing faster was measured." in page.text
    else:
        assert "Nothing has been measured yet." in page.text and "Nothing has been decided yet." in page.text
    assert "nothing is known" in page.text


def test_what_noise_allows_is_undefined_until_a_kernel_was_timed_twice(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    write_run(ledger, 2)
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    assert "same bin when timed again undefined undefined" in page.text
    assert page.data["noise_ceiling"] is None
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as connection, connection:
        connection.execute("UPDATE measurement SET candidate_key = 'k', speedup = id WHERE id IN (2, 3)")
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    assert page.data["noise_ceiling"]["n"] == 1 and page.data["noise_ceiling"]["exact"] == 0.0
    assert "same bin when timed again 0% 0%" in page.text


def test_a_run_of_failures_only_has_no_best_kernel_and_tells_where_its_seconds_went(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    gate = open_gate(ledger)
    for decision in gate.ask([candidate(number) for number in range(4)]):
        if decision.measure:
            gate.tell(decision.id, failed(Outcome.COMPILE_ERROR, 2.0))
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    assert "No kernel has got a time, after" in page.text and page.data["best"] is None
    assert "100% of it for kernels that failed" in page.text
    assert page.data["outcomes"][0]["outcome"] == "compile_error"


@pytest.mark.parametrize("probability", [1.0, 0.125])
def test_identical_forecasts_of_the_most_extreme_confidences_in_one_measured_bin(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path, probability: float
) -> None:
    def forecast(query: Query) -> Forecast:
        rest = (1 - probability) / 7
        return Forecast((*[rest] * 4, probability, *[rest] * 3))

    write_run(ledger, 4, lambda number: measured(1.2), forecast)
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    quality = page.data["quality"]["all_measured"]
    (bucket,) = quality["reliability"]
    assert bucket["confidence"] == pytest.approx(probability)
    assert bucket["high"] == (1.0 if probability == 1.0 else 0.2)
    # All in one bin: climatology is perfect, and there is no skill to be had.
    assert quality["measures"]["brier_skill"] is None and "undefined" in page.text


def test_hostile_text_is_inert_and_does_not_blow_up_the_page(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    hostile_run(ledger)
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    assert "document.title='owned'" in page.text  # as text, in kernels, names and complaints
    assert sum(tag == "script" for tag, _ in page.tags) == 1 == page.html.count("</script>")
    assert not {tag for tag, _ in page.tags} & {"img", "b"} and page.html.count("<style>") == 1
    harmful = "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
    assert not re.search(harmful, page.html)
    assert "\\x1b[31mred" in page.text and "\\u202egnp.exe" in page.text and "{{ 7 * 7 }}" in page.text
    assert "more characters]" in page.text
    assert len(page.html) < 600_000
    assert page.data["surprises"] and page.data["failures"]


def test_a_run_that_goes_on_meanwhile_is_shown_as_it_was_at_one_moment(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    script = (
        "import itertools, sys, time\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from helpers import candidate, measured, open_gate, surrogate\n"
        "from gpu_forecasters_plugin.ledger import Ledger\n"
        f"gate = open_gate(Ledger({ledger.target!r}), config=surrogate(keep_fraction=0.5))\n"
        "gate.tell(gate.ask([candidate(0)])[0].id, measured(1.0))\n"
        "for number in itertools.count(1):\n"
        "    for decision in gate.ask([candidate(8 * number + i) for i in range(8)]):\n"
        "        if decision.measure and gate.start(decision.id):\n"
        "            gate.tell(decision.id, measured(2.0))\n"
        "    time.sleep(0.05)\n"  # as an evaluator would: the other core is the report's
    )
    writer = subprocess.Popen([sys.executable, "-c", script])
    try:
        reader = LedgerReader(ledger.target)
        wait_until(lambda: reader.runs())
        reader.follow_run(reader.runs()[0]["id"])
        wait_until(lambda: reader.pools() > 3)
        first = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
        count = "SELECT count(*) FROM measurement"
        with snapshot(reader) as seen:
            before = seen.connection.exec_driver_sql(count).scalar_one()
            grown = reader.pools() + 2
            wait_until(lambda: reader.pools() > grown)
            assert seen.connection.exec_driver_sql(count).scalar_one() == before
        second = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    finally:
        writer.kill()
        writer.wait()
    for page in (first, second):
        to_measure = sum(s["count"] for s in page.data["decisions"] if s["action"] == "measure")
        assert to_measure - 4 <= page.data["measurements"] <= to_measure
    assert second.data["measurements"] > first.data["measurements"]


def test_measurements_that_have_not_ended_are_named(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    gate = open_gate(ledger)
    gate.tell(gate.ask([candidate(0)])[0].id, measured(1.0))
    started = [d for d in gate.ask([candidate(n) for n in range(1, 9)]) if d.measure and gate.start(d.id)]
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    assert page.data["under_way"] == len(started) > 0
    assert "paid for and not ended" in page.text and "The fastest kernel so far" in page.text


@pytest.mark.parametrize("path", sorted(DATA.glob("ledger_*.sqlite3")), ids=lambda path: path.stem)
def test_ledgers_of_every_version_have_a_page(gpu_forecasters: Command, path: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copy(path, tmp_path / "ledger.sqlite3"))
    expected = json.loads(path.with_suffix(".json").read_text())
    page = write_report(gpu_forecasters, copied, tmp_path / "report.html")
    assert page.data["best"]["speedup"] == expected["best_speedup"]


def test_a_ledger_of_a_newer_version_is_refused_in_one_line(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    said = gpu_forecasters("report", tmp_path, "--out", tmp_path / "report.html")
    assert said.code == 1 and said.err.count("\n") == 1
    assert "schema '9999', which this version does not know: upgrade" in said.err
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("target", "out", "code", "complaint"),
    [
        ("absent", "report.html", 1, "there is no ledger"),
        (".", "report", 2, "a file that ends with .html"),
        (".", "folder.html", 1, "it is a folder"),
    ],
)
def test_wrong_use_is_named_before_anything_is_written(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path, target: str, out: str, code: int, complaint: str
) -> None:
    open_gate(ledger)
    (tmp_path / "folder.html").mkdir()
    said = gpu_forecasters("report", tmp_path / target, "--out", tmp_path / out)
    assert (said.code, said.err.count("\n")) == (code, 1) and complaint in said.err


def test_of_a_shared_ledger_a_run_can_be_named(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    for name, speedup in (("first", 2.0), ("second", 3.0)):
        gate = open_gate(ledger, run_name=name)
        gate.tell(gate.ask([candidate(0)])[0].id, measured(speedup))
    latest = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    named = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html", "--run", "first")
    assert (latest.data["best"]["speedup"], named.data["best"]["speedup"]) == (3.0, 2.0)


def test_memory_does_not_grow_with_candidates_that_were_not_measured(tmp_path: Path) -> None:
    write_ledger(tmp_path / "ledger.sqlite3", 150)
    reader = LedgerReader(tmp_path / "ledger.sqlite3")
    reader.follow_run(1)
    tracemalloc.start()
    try:
        facts = gather(reader)
        _, streamed = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        assert len(reader.decisions()) == facts.candidates == 150 * POOL
        _, listed = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert streamed < 6e6 < listed


def comparison(seeds: int = 6, arms: tuple[str, ...] = ("baseline", "surrogate", "random")) -> dict[str, Any]:
    """A summary as ``compare`` writes it: the surrogate's curve is a fifth higher."""
    curves = {
        arm: [
            [1.0, 1.0 + seed / 10, (2.0 + seed / 10) * (1.2 if arm == "surrogate" else 1.0)]
            for seed in range(seeds)
        ]
        for arm in arms
    }
    runs = {
        arm: [ArmRun(arm, seed, tuple(curve), 12, 3.0) for seed, curve in enumerate(found)]
        for arm, found in curves.items()
    }
    return summarise(runs, task="toy", host="inprocess", budget=3, pool_best=3.5)


def test_a_comparison_has_its_verdict_with_interval_its_bands_and_every_seed(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(comparison()))
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    assert in_order(page) == ["curves", "arms", "pairs"]
    assert (
        "the surrogate arm found faster kernels: its best after 3 measurements was 1.200 times" in page.text
    )
    assert "95 % interval 1.200 to 1.200; geometric mean of 6 paired seeds" in page.text
    assert "Against chance in place of forecasts" in page.text and "There are no ledgers" in page.text
    assert page.data["comparison"]["arms"]["surrogate"]["best_speedup"][5] == pytest.approx(3.0)


def test_a_win_that_the_corrected_test_does_not_bear_out_is_said_to_be_one(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    summary = comparison(5)
    assert summary["comparison"]["surrogate"]["p_value_holm"] > 0.05
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    assert "By the interval, but not by the paired test, the surrogate arm found faster kernels" in page.text


@pytest.mark.parametrize(
    ("seeds", "arms", "said"),
    [
        (1, ("baseline", "surrogate"), "no interval from a single pair"),
        (2, ("baseline", "surrogate"), "too few seeds for a verdict (2; it takes 5)"),
        (6, ("baseline", "random"), "no difference between random arm and baseline is shown"),
        (6, ("baseline",), "nothing to compare it with"),
    ],
)
def test_a_comparison_claims_no_more_than_it_shows(
    gpu_forecasters: Command, tmp_path: Path, seeds: int, arms: tuple[str, ...], said: str
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(comparison(seeds, arms)))
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    assert said in page.text


def test_a_comparison_tells_of_the_surrogates_searches_where_there_are_ledgers_of_them(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(comparison()))
    for arm, seed, best in (("surrogate", 0, 3.0), ("surrogate", 1, 6.0), ("random", 0, 9.0)):
        folder = tmp_path / "runs" / f"{arm}-{seed}" / "run"
        write_run(Ledger(folder / "ledger.sqlite3"), 1, lambda number, best=best: measured(best))  # type: ignore[misc]
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html")
    assert in_order(page) == ["curves", "arms", "pairs", *SECTIONS[1:]]
    searches = page.data["surrogate"]
    assert searches["runs"] == ["surrogate-0", "surrogate-1"]
    assert (searches["measurements"], searches["candidates"]) == (10, 18)
    assert searches["best"]["speedup"] == 6.0 and searches["best"]["run"] == "surrogate-1"
    assert searches["quality"]["all_measured"]["measures"]["n"] == 8


def test_a_comparison_in_process_keeps_its_searches_for_report_watch_and_show(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    pool, out = write_pool(tmp_path / "pool.jsonl"), tmp_path / "cmp"
    left_over = out / "runs" / "surrogate-7"
    write_run(Ledger(left_over / "ledger.sqlite3"), 1)
    setting = ["--budget", "9", "--seeds", "2", "--arms", "surrogate", "--out", out]
    assert gpu_forecasters("compare", "--pool", pool, "--host", "inprocess", *setting).code == 0
    page = write_report(gpu_forecasters, out, tmp_path / "report.html")
    assert page.data["surrogate"]["runs"] == ["surrogate-0", "surrogate-1"]
    assert page.data["surrogate"]["measurements"] == 18 and "of them have a ledger" not in page.text
    watched = gpu_forecasters("watch", out, "--run", "surrogate-0", "--once").out
    assert "9 of 9, 0 left" in watched and "over: its budget is spent" in watched
    assert sorted(path.name for path in (out / "runs" / "surrogate-0").iterdir()) == [
        ".lock",
        "ledger.sqlite3",
    ]
    (out / "runs" / "surrogate-0" / "ledger.sqlite3").unlink()
    page = write_report(gpu_forecasters, out, tmp_path / "report.html")
    assert "In the surrogate's searches (1 of them have a ledger here)" in page.text


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"budget": "many"}, "budget: must be a whole number, got 'many'"),
        ({"seeds": [0]}, "arm 'baseline' does not have a curve and a result for each of the seeds"),
        ({"comparison": {}}, "arm 'baseline' is not in the comparison"),
        ({"pool_best_speedup": -1.0}, "pool_best_speedup: must be above 0"),
    ],
)
def test_a_summary_that_is_no_comparison_is_refused_with_what_is_wrong(
    gpu_forecasters: Command, tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(comparison() | change))
    said = gpu_forecasters("report", tmp_path, "--out", tmp_path / "report.html")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert complaint in said.err and "gpu-forecasters compare has written" in said.err


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"task": NaN}', "\x00", "[" * 100_000])
def test_a_summary_that_is_not_even_json_is_refused(
    gpu_forecasters: Command, tmp_path: Path, text: str
) -> None:
    (tmp_path / "summary.json").write_text(text)
    said = gpu_forecasters("report", tmp_path, "--out", tmp_path / "report.html")
    assert (said.code, said.err.count("\n")) == (2, 1) and "is no comparison's summary" in said.err


def test_a_folder_of_runs_without_a_finished_comparison_names_them(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    write_run(Ledger(tmp_path / "runs" / "surrogate-0" / "ledger.sqlite3"), 0)
    said = gpu_forecasters("report", tmp_path, "--out", tmp_path / "report.html")
    assert said.code == 2 and "name one of its runs with --run: runs/surrogate-0" in said.err
    page = write_report(gpu_forecasters, tmp_path, tmp_path / "report.html", "--run", "surrogate-0")
    assert page.data["measurements"] == 1
