"""What a live run left is filed as its ledgers say, or not at all."""

from __future__ import annotations

import gzip
import json
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


@pytest.fixture
def run(tmp_path: Path, empty_ledger: Path) -> Path:
    """The folder of a run that has ended: one task, two arms, one seed, and an arm that was begun."""
    out = tmp_path / "run"
    for arm, speedups in SPEEDUPS.items():
        searched(out / "toy" / "runs" / f"{arm}-0", empty_ledger, speedups)
    (out / "toy" / "runs" / "random-0").mkdir()
    comparison = {
        "ci95": None,
        "mean_ratio": 1.5,
        "p_value_holm": 1.0,
        "measurements_to_match_ratio": 2.5,
        "verdict": "too few seeds",
    }
    summary = MADE | {
        "budget": 5,
        "seeds": [0],
        "arms": {
            arm: {
                "best_speedup": [max(each)],
                "confirmed_speedup": [max(each)],
                "candidates_considered": [5],
                "curve": [[max(each[: n + 1]) for n in range(4)] + [max(each)]],
                "best_code": ["code"],
            }
            for arm, each in SPEEDUPS.items()
        },
        "comparison": {"surrogate": comparison},
        "stop_early": {"surrogate": {"reached_at": [2], "median": 2}},
    }
    (out / "toy" / "summary.json").write_text(json.dumps(summary))
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
    assert "| `toy` | surrogate | 5 | 3.00x | 3.00x | 1.500 | 1.00 | 2 of 5 | 2 | 2 |" in text
    assert "on 1 of 1 seeds; in the median: yes; in the mean: yes" in text
    assert "| `toy` | p | 9.0 | +0.10% |" in text and "7 kernels in 2 other processes" in text
    task = json.loads((results / "live_gpu.json").read_text())["tasks"]["toy"]
    assert list(task["forecasts"]) == ["surrogate"] and "best_code" not in task["arms"]["baseline"]
    assert (results / "live_gpu_toy.png").read_bytes() == b"picture"
    data = results / "live_gpu"
    exported = data / "toy" / "surrogate-0.jsonl.gz"
    engine = open_engine(run / "toy" / "runs" / "baseline-0" / "run" / "ledger.sqlite3")
    assert import_rows(engine, read_rows(exported)).added == 5 and len(read_pairs(exported)) == 5
    decided = lines(data / "toy" / "surrogate-0.decisions.jsonl.gz")
    assert [row["measured_as"] for row in decided] == [1, 2, 3, 4, 5]
    known, unknown = lines(data / "measurements.jsonl.gz")
    assert known["searches"] == ["baseline-0", "surrogate-0"] and unknown["searches"] == []
    assert known["result"]["error"] == "ptxas: ptxas x.ptx failed (3/4)"


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
    with pytest.raises(SystemExit, match="is about baseline-0, surrogate-0: let .* end"):
        file(run)
    path.unlink()
    with pytest.raises(SystemExit, match=r"summary\.json cannot be read"):
        file(run)
