"""``gpu-forecasters evaluate``, and the published data sets' columns."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import Command, Said, candidate, failed, measured, open_gate, peaked, source, surrogate
from misbehaving_server import MODEL, MisbehavingServer, good, replies

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import OutputError
from gpu_forecasters_plugin.evaluation import asking
from gpu_forecasters_plugin.evaluation.asking import Protocol, ask_about
from gpu_forecasters_plugin.evaluation.kept import KeptForecasts
from gpu_forecasters_plugin.evaluation.pairs import Pair, read_pairs
from gpu_forecasters_plugin.evaluation.pictures import PICTURES
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure, Query
from gpu_forecasters_plugin.forecasters import Forecaster, ScriptedForecaster
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.ledger import Ledger, LedgerReader

CONTRACT = {
    "n", "n_forecast", "bins", "exact", "within_one", "mean_abs_log2_error", "brier", "brier_skill", "crps", "nll",
    "ece", "aurc", "spearman", "noise_ceiling", "top_k",
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pictures, but for the tests that are about them: they take most of the time."""
    if "drawn" not in request.node.name:
        monkeypatch.setattr("gpu_forecasters_plugin.evaluation.run.write_pictures", lambda *_: [])


def row(number: int, speedup: float | None = 1.2, task: str = "sum", **more: Any) -> dict[str, Any]:
    return {
        "task": task,
        "language": "triton",
        "reference_code": source(0),
        "candidate_code": source(number),
        "device": "a device that nobody knows",
        "speedup": speedup,
        "outcome": "incorrect" if speedup is None else "ok",
    } | more


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(each) + "\n" for each in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def recorded(path: Path, forecasts: dict[int, Sequence[float]]) -> Path:
    """A configuration that replays these forecasts, by number of the source."""
    rows = [{"candidate_code": source(n), "probabilities": list(p)} for n, p in forecasts.items()]
    write(path / "recorded.jsonl", rows)
    config = path / "config.yaml"
    config.write_text("surrogate: {forecaster: {kind: replay, path: recorded.jsonl, hedge: false}}\n")
    return config


def evaluate(run: Command, pairs: Path, out: Path, *options: str | Path) -> tuple[Said, dict[str, Any]]:
    said = run("evaluate", "--pairs", pairs, "--out", out, "--resamples", "20", *options)
    summary = out / "summary.json"
    return said, json.loads(summary.read_text()) if summary.exists() else {}


def test_recorded_forecasts_are_scored_tabled_and_drawn(gpu_forecasters: Command, tmp_path: Path) -> None:
    speedups = {number: 2.0 ** ((number % 9) / 2 - 2) for number in range(1, 21)}
    rows = [row(n, s, "ab"[n % 2]) for n, s in speedups.items()] + [row(21, None, "a"), row(22, 3.0, "b")]
    config = recorded(tmp_path, {n: peaked(5) for n in speedups})
    said, summary = evaluate(
        gpu_forecasters, write(tmp_path / "p.jsonl.gz", rows), tmp_path / "out", "--config", config
    )
    assert said.code == 0, said.err
    assert set(summary) >= CONTRACT and set(summary["tasks"]["a"]) >= CONTRACT
    assert set(summary["top_k"]) == {"1", "5", "10", "25", "50"}
    assert (summary["n"], summary["n_forecast"], summary["failed"], summary["bins"]) == (
        21,
        20,
        1,
        "standard",
    )
    assert summary["exact"] == sum(1 < s <= 2**0.5 for s in speedups.values()) / 21
    assert summary["failures"] == {"empty": 1} and summary["answered_only"]["n"] == 20
    assert [task["n"] for task in summary["tasks"].values()] == [11, 10]
    low, high = summary["ci95"]["exact"]
    assert low <= summary["exact"] <= high
    for picture in PICTURES:
        assert (tmp_path / "out" / picture).read_bytes().startswith(b"\x89PNG"), picture
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| exact bin |" in report and "no kernel was measured twice" in report.lower()
    replayed = recorded(tmp_path, {}).write_text(
        "surrogate: {forecaster: {kind: replay, path: out/forecasts.jsonl, hedge: false}}\n"
    )
    assert replayed
    _, again = evaluate(gpu_forecasters, tmp_path / "p.jsonl.gz", tmp_path / "again", "--config", config)
    assert again["nll"] == summary["nll"]


def test_both_bin_schemes_are_reported(gpu_forecasters: Command, tmp_path: Path) -> None:
    pairs = write(tmp_path / "p.jsonl", [row(n) for n in range(1, 4)])
    config = recorded(tmp_path, {n: peaked(5) for n in range(1, 4)})
    for bins, exact in (("standard", 1.0), ("published_labels", 0.0)):
        _, summary = evaluate(gpu_forecasters, pairs, tmp_path / bins, "--config", config, "--bins", bins)
        assert (summary["bins"], summary["exact"]) == (bins, exact)


def test_within_a_run_the_first_measured_are_learned_from_and_not_scored(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    # Fast first, slow after: what was learned from the first is wrong for the rest.
    rows = [row(n, 3.0) for n in range(1, 41)] + [row(n, 0.1) for n in range(41, 51)]
    pairs = write(tmp_path / "p.jsonl", rows)
    _, cold = evaluate(gpu_forecasters, pairs, tmp_path / "cold", "--forecaster", "climatology")
    _, warm = evaluate(
        gpu_forecasters, pairs, tmp_path / "warm", "--forecaster", "climatology", "--within-run", "20"
    )
    assert (cold["n"], cold["exact"]) == (50, 0.0)
    assert (warm["n"], warm["exact"], warm["protocol"]["learned_from"]) == (30, 20 / 30, 20)


def test_each_task_is_forecast_from_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[tuple[set[str], str]] = []

    def build(config: Any, *, training: Sequence[Any], operation: str, **_: Any) -> Forecaster:
        known.append(({task.operation for task in training}, operation))
        return ScriptedForecaster(lambda query: peaked(5))

    monkeypatch.setattr(asking, "build_forecaster", build)
    pairs = [
        Pair(f"{task}{n}", task, "", source(0), source(n), source_key(source(n)), 1.5, (1.5,))
        for task in ("one", "two", "softmax")
        for n in range(1, 9)
    ]
    answers = ask_about(pairs, Protocol(parse_surrogate_config({}).forecaster))
    assert known == [({"two", "softmax"}, ""), ({"one", "softmax"}, ""), ({"one", "two"}, "softmax")]
    assert len(answers.outcomes) == 24


def test_the_learned_forecaster_uses_the_other_tasks_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_forecasters_plugin.forecasters.learned.warm_start_tasks", lambda **_: [])

    def others(sign: int) -> list[asking.WarmStartTask]:
        """Two tasks in which every further addition makes a kernel faster, or slower."""
        codes = tuple(
            f"import torch\n\ndef run(x):\n    return {' + '.join(['x'] * n)}\n" for n in range(1, 13)
        )
        slopes = tuple(sign * 0.3 * n for n in range(12))
        return [asking.WarmStartTask(name, codes[0], codes, slopes) for name in ("one", "two")]

    reference = "import torch\n\ndef run(x):\n    return x\n"
    fresh = "import torch\n\ndef run(x):\n    return x + x + x + x + x + x\n"
    query = Query(source_key(fresh), fresh, reference, reference)
    config = parse_surrogate_config({"forecaster": {"kind": "learned", "hedge": False}}).forecaster
    (faster,), (slower,) = (
        build_forecaster(config, training=others(sign)).forecast([query]) for sign in (1, -1)
    )
    assert isinstance(faster, Forecast) and isinstance(slower, Forecast)
    assert faster.expected_log2() > slower.expected_log2() + 0.5


def test_repeated_rows_set_the_noise_ceiling(gpu_forecasters: Command, tmp_path: Path) -> None:
    rows = [row(1, 0.99), row(1, 1.02), row(2, 3.0), row(2, 3.0), row(2, 3.1), row(3, 2.5)]
    pairs = write(tmp_path / "p.jsonl", rows)
    _, summary = evaluate(gpu_forecasters, pairs, tmp_path / "out", "--forecaster", "climatology")
    assert (summary["n"], summary["noise_ceiling"], summary["noise"]["n"]) == (3, 0.5, 2)
    assert summary["soft_truth"]["nll"] > 0
    again = write(tmp_path / "again.jsonl", [row(3, 1.9), row(9, 1.0)])
    _, more = evaluate(
        gpu_forecasters, pairs, tmp_path / "more", "--forecaster", "climatology", "--repeats", again
    )
    assert (more["n"], more["noise"]["n"], more["noise_ceiling"]) == (3, 3, pytest.approx(1 / 3))


def test_paid_answers_are_kept_and_asked_for_once(gpu_forecasters: Command, tmp_path: Path) -> None:
    pairs = write(tmp_path / "p.jsonl", [row(n) for n in range(1, 81)])
    out = tmp_path / "out"

    def config(server: MisbehavingServer) -> Path:
        path = tmp_path / "config.yaml"
        model = f"kind: openai_server, base_url: {server.base_url}, model: {MODEL}, hedge: false"
        path.write_text(f"surrogate: {{forecaster: {{{model}, deadline_s: 200}}}}\n")
        return path

    with MisbehavingServer(*[good] * 32, replies(429, Retry_After="3600")) as server:
        said, _ = evaluate(gpu_forecasters, pairs, out, "--config", config(server))
    assert said.code == 1 and "nobody answers" in said.err and "start the same command again" in said.err
    assert len((out / "forecasts.jsonl").read_text().splitlines()) == 32
    with (out / "forecasts.jsonl").open("a") as file:
        file.write('{"pair": "of a process that was kil')
    with MisbehavingServer() as server:
        said, summary = evaluate(gpu_forecasters, pairs, out, "--config", config(server))
        assert said.code == 0 and len(server.requests) == 48
        assert (summary["n_forecast"], summary["cost"]["prompt_tokens"]) == (80, 80_000)
        evaluate(gpu_forecasters, pairs, out, "--config", config(server))
        assert len(server.requests) == 48


def test_an_outage_is_asked_again_and_a_useless_answer_is_not(tmp_path: Path) -> None:
    pairs = [Pair(name, "t", "", "", "", name, 1.0) for name in ("slow", "nonsense")]
    kinds = (FailureKind.TIMEOUT, FailureKind.INVALID)
    KeptForecasts(tmp_path, "mine").add(pairs, [ForecastFailure(kind) for kind in kinds])
    kept = KeptForecasts(tmp_path, "mine")
    assert kept.get(pairs[0]) is None
    assert kept.get(pairs[1]) == ForecastFailure(FailureKind.INVALID)
    with pytest.raises(OutputError, match="another evaluation"):
        KeptForecasts(tmp_path, "another")


def test_another_evaluation_in_the_folder_is_refused(gpu_forecasters: Command, tmp_path: Path) -> None:
    pairs = write(tmp_path / "p.jsonl", [row(n) for n in range(1, 4)])
    evaluate(gpu_forecasters, pairs, tmp_path / "out", "--forecaster", "climatology")
    said, _ = evaluate(gpu_forecasters, pairs, tmp_path / "out", "--forecaster", "random")
    assert said.code == 1 and "choose another --out" in said.err


def test_failures_only_leave_nothing_to_score(gpu_forecasters: Command, tmp_path: Path) -> None:
    pairs = write(tmp_path / "p.jsonl", [row(n, None) for n in range(1, 4)])
    said, summary = evaluate(gpu_forecasters, pairs, tmp_path / "out", "--forecaster", "climatology")
    assert said.code == 1 and "no kernel has both" in said.err
    assert (summary["n"], summary["failed"], summary["exact"], summary["ece"]) == (0, 3, None, None)
    assert "undefined" in (tmp_path / "out" / "report.md").read_text()
    assert not (tmp_path / "out" / PICTURES[0]).exists()


def test_one_row_is_scored_and_drawn(gpu_forecasters: Command, tmp_path: Path) -> None:
    pairs = write(tmp_path / "p.jsonl", [row(1)])
    said, summary = evaluate(gpu_forecasters, pairs, tmp_path / "out", "--forecaster", "random")
    assert said.code == 0 and (summary["n"], summary["spearman"], summary["brier_skill"]) == (1, None, None)
    assert summary["ci95"]["brier"] is None
    assert (tmp_path / "out" / "recovery.png").exists()


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("", "holds no rows"),
        (json.dumps(row(1)) + "\n" + json.dumps(row(2)).replace("1.2", "NaN"), "line 2: speedup"),
        (json.dumps(row(1)) + "\n{", "line 2: not JSON"),
        (json.dumps(row(1, -1.0)), "line 1: speedup: must be at least 1e-06"),
        (json.dumps(row(1, outcome="incorrect")), "line 1: speedup: must be null"),
        ('{"pair_id": 1}', "line 1: no column 'problem_id'"),
        ('{"candidate_code": "x = 1"}', "line 1: task: is missing"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    gpu_forecasters: Command, tmp_path: Path, lines: str, problem: str
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(lines)
    said, summary = evaluate(gpu_forecasters, path, tmp_path / "out", "--forecaster", "climatology")
    assert said.code == 1 and not summary
    assert problem in said.err and len(said.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "give one of --pairs and --ledger"),
        (["--pairs", "p.jsonl"], "name a forecaster"),
        (["--pairs", "p.jsonl", "--forecaster", "learnt"], "did you mean 'learned'"),
        (["--pairs", "p.jsonl", "--forecaster", "learned", "--bins", "mine"], "--bins is standard or"),
        (["--pairs", "p.csv", "--forecaster", "learned"], "ends in .jsonl"),
        (["--pairs", "p.jsonl", "--forecaster", "learned", "--spread", "2"], "--spread lies between"),
        (["--ledger", "run", "--forecaster", "learned", "--run", "x"], "--run chooses among"),
    ],
)
def test_wrong_use_is_refused(
    gpu_forecasters: Command, tmp_path: Path, options: Sequence[str], problem: str
) -> None:
    said = gpu_forecasters("evaluate", "--out", tmp_path / "out", *options)
    assert said.code == 2 and problem in said.err


def test_names_of_unknown_origin_are_shown_inert(gpu_forecasters: Command, tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", "red\x1b[31m|x", "$\\frac{"]
    pairs = write(tmp_path / "p.jsonl", [row(n, 1.2, name) for n, name in enumerate(names, start=1)])
    said, _ = evaluate(gpu_forecasters, pairs, tmp_path / "out", "--forecaster", "climatology")
    report = (tmp_path / "out" / "report.md").read_text()
    assert said.code == 0 and "<script>" not in report and "\x1b" not in report + said.out + said.err


def published(number: int) -> dict[str, Any]:
    return {
        "comparison_id": f"c{number}",
        "pack": "sums",
        "source_id": "s",
        "anchor_code": source(0),
        "candidate_code": source(number),
        "hardware": "NVIDIA A100",
        "aggregated_speedup": 1.2,
        "true_bin": 4,
    }


def discovered(number: int) -> dict[str, Any]:
    return {
        "pair_id": number,
        "problem_id": 7,
        "parent_code": source(0),
        "child_code": source(number),
        "hardware": "NVIDIA A100",
        "g_speedup": 1.2 if number < 3 else None,
    }


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("made", [published, discovered])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_published_rows_are_evaluated_with_bins_of_their_own(
    gpu_forecasters: Command, tmp_path: Path, made: Any, kind: str
) -> None:
    rows = [made(number) for number in (1, 2, 3)]
    path = (write if kind == "jsonl" else write_parquet)(tmp_path / f"p.{kind}", rows)
    config = recorded(tmp_path, {n: peaked(5) for n in (1, 2, 3)})
    said, summary = evaluate(gpu_forecasters, path, tmp_path / "out", "--config", config)
    assert said.code == 0, said.err
    assert (summary["exact"], summary["n"] + summary["failed"]) == (1.0, 3)
    assert summary["discovery"]["1.2"]["found"] == summary["n"]


@pytest.mark.parametrize("made", [published, discovered])
def test_published_rows_are_imported_and_evaluated_from_the_ledger(
    gpu_forecasters: Command, tmp_path: Path, made: Any
) -> None:
    path, ledger = write(tmp_path / "p.jsonl", [made(n) for n in (1, 2)]), tmp_path / "l.sqlite3"
    said = gpu_forecasters("ledger", "import", path, "--ledger", ledger, "--format", "gpu-forecasters")
    assert said.code == 0 and said.out.startswith("2 rows added"), said.err
    assert LedgerReader(ledger).imported_rows() == 2
    out = tmp_path / "out"
    said = gpu_forecasters("evaluate", "--ledger", ledger, "--forecaster", "climatology", "--out", out)
    assert said.code == 0, said.err
    assert json.loads((out / "summary.json").read_text())["n"] == 2
    assert gpu_forecasters("ledger", "import", path, "--ledger", ledger, "--format", "csv").code == 2
    wrong = gpu_forecasters("ledger", "import", path, "--ledger", ledger)
    assert wrong.code == 1 and "line 1" in wrong.err


def test_pairs_are_distinct_kernels_in_their_order(tmp_path: Path) -> None:
    rows = [row(2, 2.0), row(1), row(2, 8.0), row(1, device="another"), row(1, None)]
    rows.append(row(2, 4.0, candidate_code=source(2) + "# the same\n"))
    pairs = read_pairs(write(tmp_path / "p.jsonl", rows))
    assert [(pair.candidate_code, pair.speedup) for pair in pairs] == [
        (source(2), pytest.approx(4.0)),
        (source(1), 1.2),
        (source(1), 1.2),
    ]
    assert pairs[0].repeats == (2.0, 8.0, 4.0) and pairs[2].device == "another"


def test_a_runs_own_forecasts_are_scored_the_random_ones_apart(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    config = surrogate(anchor="reference", audit_fraction=0.5, keep_fraction=0.5)
    gate = open_gate(ledger, lambda query: peaked(5), config=config)
    gate.tell(gate.ask([candidate(0)], measure_all=True)[0].id, measured(1.0))
    for pool in range(4):
        for number, decision in enumerate(gate.ask([candidate(100 + 8 * pool + i) for i in range(8)])):
            if decision.measure:
                drawn = decision.reason == "audit"
                result = measured(1.2 if drawn else 3.0) if number else failed(Outcome.TIMEOUT)
                gate.tell(decision.id, result)
    out = tmp_path / "out"
    said = gpu_forecasters("evaluate", "--ledger", ledger.target, "--out", out, "--resamples", "20")
    summary = json.loads((out / "summary.json").read_text())
    assert said.code == 0, said.err
    assert summary["n"] + summary["failed"] == 16 and summary["n_forecast"] == summary["n"]
    drawn = summary["drawn_at_random"]
    assert 0.0 < summary["exact"] < 1.0 and drawn["exact"] == 1.0 and drawn["n"] < summary["n"]
    assert "Rows drawn at random" in (out / "report.md").read_text()


def test_a_ledger_without_a_measurement_says_so(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    said = gpu_forecasters(
        "evaluate", "--ledger", ledger.target, "--forecaster", "random", "--out", tmp_path / "out"
    )
    assert said.code == 1 and "nothing to evaluate on" in said.err


def test_help_has_an_example(gpu_forecasters: Command) -> None:
    assert "Example: gpu-forecasters evaluate" in gpu_forecasters("evaluate", "--help").out
