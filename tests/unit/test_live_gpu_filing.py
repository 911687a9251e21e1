"""What a live run left is filed as its ledgers say, or not at all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import candidate, failed, measured, open_gate, peaked, surrogate

from benchmarks import live_gpu
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.evaluation.pairs import read_pairs
from gpu_forecasters_plugin.ledger import Ledger, RunIdentity
from gpu_forecasters_plugin.ledger.engine import open_engine
from gpu_forecasters_plugin.ledger.exchange import import_rows
from gpu_forecasters_plugin.ledger.row_files import read_rows

MADE = {name: "known" for name in ("gpu", "driver", "python", "date")} | {
    "versions": {"openevolve": "0.4.1"},
    "workers": 2,
    "searches_side_by_side": 2,
}
LEFT = {"baseline": 2, "random": 1, "surrogate": 2}
SPEEDUPS = {"baseline": [1.0, 1.5, 2.0, 2.0], "surrogate": [1.0, 3.0, 2.0, 3.0]}


def searched(folder: Path, empty_ledger: Path, speedups: list[float]) -> None:
    """A search's folder: sources 0, 1, ... at these speed-ups, and one more that is wrong."""
    (folder / "run").mkdir(parents=True)
    path = folder / "run" / "ledger.sqlite3"
    path.write_bytes(empty_ledger.read_bytes())
    identity = RunIdentity("toy", candidate(0).key, "evaluator", "a GPU", "1")
    ledger = Ledger(path)
    config = surrogate(budget={"measurements": 9})
    gate = open_gate(ledger, lambda query: peaked(5), config=config, identity=identity)
    numbers = range(len(speedups) + 1)
    for decision in gate.ask([candidate(number) for number in numbers], measure_all=True):
        number = int(decision.candidate_id.removeprefix("c"))
        wrong = number == len(speedups)
        gate.tell(decision.id, failed(Outcome.INCORRECT) if wrong else measured(speedups[number]))
    ledger.close()
    (folder / "search.json").write_text("{}")


def summary_of(speedups: Mapping[str, list[float]], seeds: int) -> str:
    """A task's ``summary.json`` of arms that found the same with every seed."""
    comparison = {"ci95": None, "mean_ratio": 1.5, "p_value_holm": 1.0, "measurements_to_match_ratio": 2.5}
    others = [arm for arm in speedups if arm != "baseline"]
    summary = MADE | {
        "task": "toy",
        "budget": 5,
        "seeds": list(range(seeds)),
        "fastest_speedup": 3.0,
        "arms": {
            arm: {
                "best_speedup": [max(each)] * seeds,
                "confirmed_speedup": [max(each)] * seeds,
                "candidates_considered": [5] * seeds,
                "outcomes": [{"ok": 4, "incorrect": 1}] * seeds,
                "seconds": [9.0] * seeds,
                "curve": [[max(each[: n + 1]) for n in range(4)] + [max(each)]] * seeds,
                "best_code": ["code"] * seeds,
            }
            for arm, each in speedups.items()
        },
        "comparison": {arm: comparison for arm in others},
        "stop_early": {arm: {"reached_at": [2] * seeds, "median": 2} for arm in others},
    }
    return json.dumps(summary)


@pytest.fixture
def run(tmp_path: Path, empty_ledger: Path) -> Path:
    """The folder of a run that has ended: one task, two arms, one seed, and an arm that was begun."""
    out = tmp_path / "run"
    for arm, speedups in SPEEDUPS.items():
        searched(out / "toy" / "runs" / f"{arm}-0", empty_ledger, speedups)
    (out / "toy" / "runs" / "random-0").mkdir()
    (out / "toy" / "summary.json").write_text(summary_of(SPEEDUPS, seeds=1))
    again = [{"code": "code", "initial_us": [100.0, 101.0], "times_us": [50.0, 50.5]}]
    (out / "toy" / "confirmation.json").write_text(json.dumps(again))
    (out / "toy" / "curves.png").write_bytes(b"picture")
    found = {"outcome": "runtime_error", "error": "ptxas: /opt/secret.d/bin/ptxas /tmp/x.ptx failed (3/4)"}
    rows = [
        {"task": "toy", "key": candidate(number).key, "code": candidate(number).code, "result": found}
        for number in (1, 77)
    ]
    lines = [json.dumps(row) for row in rows]
    (out / "measurements.jsonl").write_text(f'{lines[0]}\n{{"task": "to\n{lines[1]}\n')
    return out


def file(run: Path, *more: str) -> Path:
    results = run.parent / "results"
    live_gpu.main(["--run", str(run), "--results", str(results), "--arms", "baseline,surrogate", *more])
    return results


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_figures_pictures_and_rows_are_filed_and_the_rows_can_be_used(run: Path, tmp_path: Path) -> None:
    check = {
        "task": "toy",
        "neighbours_measured": 7,
        "processes": 3,
        "programs": [
            {"program": "p", "alone_us": [9.0], "ratio": 1.001, "range_alone": 0.0, "range_busy": 0.0}
        ],
    }
    (tmp_path / "check").mkdir()
    (tmp_path / "check" / "summary.json").write_text(json.dumps(check))
    results = file(run, "--check", str(tmp_path / "check"))
    text = (results / "live_gpu.md").read_text()
    assert "| `toy` | 1 | surrogate | 5 | 1 | 9 | 3.00x | 3.00x | 1.500 | 1.000 | 2 of 5 | 2 | 2 |" in text
    assert "on 1 of 1 seeds; in the median: yes; in the mean: yes" in text
    assert "Begun, and counted nowhere: `toy` random-0 (not ended)." in text
    assert "| `toy` | p | 9.0 | +0.10% |" in text and "7 kernels in 2 other processes" in text
    task = json.loads((results / "live_gpu.json").read_text())["tasks"]["toy"]
    (comparison,) = task["comparisons"]
    assert list(task["forecasts"]) == ["surrogate"] and "best_code" not in comparison["arms"]["baseline"]
    assert (results / "live_gpu_toy_1_seeds.png").read_bytes() == b"picture"
    data = results / "live_gpu"
    exported = data / "toy" / "surrogate-0.jsonl.gz"
    engine = open_engine(run / "toy" / "runs" / "baseline-0" / "run" / "ledger.sqlite3")
    assert import_rows(engine, read_rows(exported)).added == 5 and len(read_pairs(exported)) == 5
    decided = lines(data / "toy" / "surrogate-0.decisions.jsonl.gz")
    assert [row["measured_as"] for row in decided] == [1, 2, 3, 4, 5]
    known, unknown = lines(data / "measurements.jsonl.gz")
    assert known["searches"] == ["baseline-0", "surrogate-0"] and unknown["searches"] == []
    assert known["result"]["error"] == "ptxas: ptxas x.ptx failed (3/4)"


def test_an_arm_with_fewer_seeds_is_compared_with_the_baseline_of_the_same_seeds(
    run: Path, empty_ledger: Path, tmp_path: Path
) -> None:
    runs, chance = run / "toy" / "runs", [1.0, 1.0, 1.2, 1.2]
    (runs / "random-0").rmdir()
    searched(runs / "random-0", empty_ledger, chance)
    for arm, speedups in SPEEDUPS.items():
        searched(runs / f"{arm}-1", empty_ledger, speedups)
    (runs / "random-1").mkdir()
    earlier = tmp_path / "toy.seeds1.json"
    earlier.write_text(summary_of(SPEEDUPS | {"random": chance}, seeds=1))
    earlier.with_suffix(".png").write_bytes(b"earlier picture")
    (run / "toy" / "summary.json").write_text(summary_of(SPEEDUPS, seeds=2))
    with pytest.raises(
        SystemExit, match=r"about baseline-0, baseline-1, surrogate-0, surrogate-1; .*--earlier"
    ):
        file(run, "--arms", "baseline,surrogate,random:1")
    results = file(run, "--arms", "baseline,surrogate,random:1", "--earlier", str(earlier))
    text = (results / "live_gpu.md").read_text()
    rows = [
        line.split(" | ")[1:3] for line in text.splitlines() if line.startswith("| `toy` |") and "x |" in line
    ]
    assert rows == [
        *(["2", arm] for arm in ("baseline", "surrogate")),
        *(["1", arm] for arm in ("baseline", "surrogate", "random")),
    ]
    assert "| `toy` | 1 | surrogate | 2.500 | 1.000 |" in text and "random-1 (not ended)" in text
    assert (results / "live_gpu_toy_1_seeds.png").read_bytes() == b"earlier picture"
    assert (results / "live_gpu_toy_2_seeds.png").read_bytes() == b"picture"
    filed = sorted(path.name for path in (results / "live_gpu" / "toy").glob("*-?.jsonl.gz"))
    assert filed == [f"{arm}-{seed}.jsonl.gz" for arm, seeds in LEFT.items() for seed in range(seeds)]


def test_summaries_that_cannot_be_told_apart_or_are_of_another_task_are_refused(
    run: Path, tmp_path: Path
) -> None:
    same, other = tmp_path / "same.json", tmp_path / "other.json"
    same.write_text(summary_of(SPEEDUPS, seeds=1))
    other.write_text(summary_of(SPEEDUPS, seeds=1).replace('"toy"', '"plaything"'))
    with pytest.raises(SystemExit, match="two comparisons of toy have as many seeds"):
        file(run, "--earlier", str(same))
    with pytest.raises(SystemExit, match="about plaything, which is none of the run's tasks"):
        file(run, "--earlier", str(other))
    with pytest.raises(SystemExit):
        file(run, "--arms", "baseline:few")


def test_searches_that_have_not_ended_are_named_and_nothing_is_filed(run: Path) -> None:
    with pytest.raises(SystemExit, match=r"1 of 3 searches have not ended: toy random-0; .*--arms"):
        live_gpu.main(["--run", str(run), "--results", str(run.parent / "results")])
    (run / "toy" / "runs" / "surrogate-0" / "search.json").unlink()
    with pytest.raises(SystemExit, match="1 of 2 searches have not ended: toy surrogate-0"):
        file(run)
    assert not (run.parent / "results").exists()


def test_a_summary_that_its_ledgers_contradict_is_refused(run: Path, empty_ledger: Path) -> None:
    path = run / "toy" / "summary.json"
    summary = path.read_text()
    path.write_text(summary.replace("[1.0, 3.0, 3.0", "[1.0, 3.1, 3.1"))
    with pytest.raises(SystemExit, match="does not say of surrogate-0 what its ledger says"):
        file(run)
    path.write_text(summary)
    searched(run / "toy" / "runs" / "surrogate-1", empty_ledger, [1.0, 2.0])
    with pytest.raises(SystemExit, match="about baseline-0, surrogate-0; let .* end"):
        file(run)
    path.unlink()
    with pytest.raises(SystemExit, match=r"summary\.json cannot be read"):
        file(run)
