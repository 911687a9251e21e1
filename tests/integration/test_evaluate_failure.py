"""Foreseen failure and static profiles, from the command line and from a run's own ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import Command, candidate, failed, measured, peaked, surrogate

from gpu_forecasters_plugin.cli.forecast_picture import draw
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.evaluation.asking import Protocol, ask_about
from gpu_forecasters_plugin.evaluation.pairs import Pair, read_pairs, with_recorded_verdicts
from gpu_forecasters_plugin.forecast import Ending, Forecast, Query
from gpu_forecasters_plugin.forecasters import ScriptedForecaster
from gpu_forecasters_plugin.gate import Gate
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.look import Look
from gpu_forecasters_plugin.recorded.pool import load_task
from gpu_forecasters_plugin.screen.verdict import Status


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_forecasters_plugin.evaluation.run.write_pictures", lambda *_: [])


def recorded_rows(task: str, count: int) -> list[dict[str, object]]:
    pool = load_task(task)
    return [
        {
            "task": task,
            "language": c.language,
            "reference_code": pool.reference.code,
            "candidate_code": c.code,
            "device": pool.device,
            "speedup": pool.speedup(name),
            "outcome": str(c.outcome),
        }
        for name, c in list(pool.candidates.items())[:count]
    ]


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def fp8_quant(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    """Kernels of a recorded task, with what the compiler said of them."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    return with_recorded_verdicts(read_pairs(write_rows(path, recorded_rows("fp8_quant", 48))))


def test_failed_kernels_are_asked_about_where_failure_is_foreseen_and_scored_apart(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    rows = recorded_rows("fp8_quant", 48)
    path = write_rows(tmp_path / "pairs.jsonl", rows)
    config = tmp_path / "config.yaml"
    config.write_text("surrogate: {forecaster: {kind: learned, warm_start: false, hedge: false}}\n")
    out = tmp_path / "out"
    said = gpu_forecasters(
        "evaluate",
        "--pairs",
        path,
        "--config",
        config,
        "--within-run",
        "24",
        "--out",
        out,
        "--resamples",
        "5",
    )
    assert said.code == 0, said.err
    summary = json.loads((out / "summary.json").read_text())
    asked = rows[24:]
    wrong = sum(row["speedup"] is None for row in asked)
    assert 0 < wrong < len(asked)
    assert (summary["failure"]["n"], summary["failure"]["failed"]) == (len(asked), wrong)
    assert summary["n"] == len(asked) - wrong and summary["failed"] == sum(r["speedup"] is None for r in rows)
    # The compiler's verdicts on recorded sources are known: what cannot be built is foreseen.
    assert summary["failure"]["auc"] > 0.6
    assert "failure foreseen" in said.out


def test_who_foresees_no_failure_is_not_asked_about_failed_kernels(fp8_quant: list[Pair]) -> None:
    answers = ask_about(
        fp8_quant, Protocol(parse_surrogate_config({"forecaster": {"kind": "random"}}).forecaster)
    )
    assert set(answers.outcomes) == {pair.id for pair in fp8_quant if pair.speedup is not None}


def test_recorded_kernels_come_with_what_the_compiler_said_and_others_without(
    fp8_quant: list[Pair], tmp_path: Path
) -> None:
    assert all(pair.verdict is not None and pair.reference_profile is not None for pair in fp8_quant)
    assert {pair.ending for pair in fp8_quant} == set(Ending)
    strange = recorded_rows("fp8_quant", 1)[0] | {"reference_code": "x = 1"}
    (found,) = with_recorded_verdicts(read_pairs(write_rows(tmp_path / "p.jsonl", [strange])))
    assert found.verdict is None


def test_the_profile_orders_kernels_of_a_task_that_nothing_was_measured_of(fp8_quant: list[Pair]) -> None:
    asked = [pair for pair in fp8_quant if pair.verdict and pair.verdict.status is Status.VALID]

    def concordance(forecaster: dict[str, object]) -> float:
        config = parse_surrogate_config({"forecaster": forecaster | {"hedge": False}}).forecaster
        answers = ask_about(asked, Protocol(config)).outcomes
        known = [
            (answer.expected_log2(), pair.speedup)
            for pair in asked
            if isinstance(answer := answers.get(pair.id), Forecast) and pair.speedup is not None
        ]
        both = [(a, b) for i, a in enumerate(known) for b in known[:i]]
        return sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in both) / len(both)

    assert concordance({"kind": "learned"}) > concordance({"kind": "learned", "static_profile": False})


def test_a_runs_own_foresight_is_scored_from_its_ledger(
    gpu_forecasters: Command, ledger: Ledger, tmp_path: Path
) -> None:
    def foreseen(query: Query) -> Forecast:
        risky = query.candidate_key == candidate(2).key
        return Forecast(tuple(peaked(5)), p_invalid=0.5 if risky else 0.1, p_incorrect=0.1)

    config = surrogate(keep_fraction=1.0)
    with Gate(candidate(0, "reference"), ScriptedForecaster(foreseen), ledger, config) as gate:
        for numbers in ([0], [1, 2, 3]):
            for decision in gate.ask([candidate(n) for n in numbers]):
                gate.start(decision.id)
                wrong = decision.candidate_key == candidate(2).key
                gate.tell(decision.id, failed(Outcome.COMPILE_ERROR) if wrong else measured(1.2))
    said = gpu_forecasters(
        "evaluate", "--ledger", ledger.target, "--out", tmp_path / "out", "--resamples", "5"
    )
    assert said.code == 0, said.err
    failure = json.loads((tmp_path / "out" / "summary.json").read_text())["failure"]
    assert (failure["n"], failure["failed"], failure["auc"]) == (3, 1, 1.0)
    assert failure["brier"] == pytest.approx((0.2**2 + 0.2**2 + 0.4**2) / 3)


def test_one_look_shows_the_risk(
    gpu_forecasters: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forecast = Forecast(tuple(peaked(5)), p_invalid=0.25, p_incorrect=0.125)
    question = Query("key", "x = 1", "x = 2", "x = 2")
    look = Look(question, forecast, "f", "", "", "nothing", surrogate().deferral)
    draw(look)
    assert "runs right  62%; does not build or run 25%, wrong results 12%" in capsys.readouterr().out
    assert (look.summary()["p_ok"], look.summary()["p_invalid"]) == (0.625, 0.25)
