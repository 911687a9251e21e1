"""Rows, splits and their order: what a forecaster is trained on."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import candidate, measured, open_gate, peaked, surrogate, write_pool

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import ConfigError, LedgerError, TrainingError
from gpu_forecasters_plugin.forecasters.language_model.prompting import PromptWriter
from gpu_forecasters_plugin.ledger import Ledger
from gpu_forecasters_plugin.ledger.engine import open_engine
from gpu_forecasters_plugin.ledger.exchange import PairRow, import_rows
from gpu_forecasters_plugin.ledger.published import from_pairs
from gpu_forecasters_plugin.ledger.row_files import read_rows
from gpu_forecasters_plugin.recorded.pool import load_pool
from gpu_forecasters_plugin.training.data import NewRows, gather
from gpu_forecasters_plugin.training.rows import TrainingRow, pair_rows, pool_rows, with_other_baselines
from gpu_forecasters_plugin.training.settings import (
    HeldOutSettings,
    TrainingSettings,
    parse_training_settings,
)
from gpu_forecasters_plugin.training.splits import (
    Split,
    balanced_order,
    check_leaks,
    deduplicated,
    split_rows,
)


def source(operation: str, number: int) -> str:
    return f"import triton\n\n\ndef {operation}(x):\n    return launch(x, {number})\n"


def row(operation: str, number: int, speedup: float = 1.2, device: str = "H100", **more: Any) -> TrainingRow:
    code, reference = source(operation, number), source(operation, 0)
    return TrainingRow(
        task=operation,
        language="triton",
        device=device,
        reference_code=reference,
        candidate_code=code,
        candidate_key=source_key(code),
        reference_key=source_key(reference),
        speedup=speedup,
        **more,
    )


def rows(operation: str, count: int, **more: Any) -> list[TrainingRow]:
    return [
        row(operation, number, 2.0 ** ((number % 8 - 3.5) / 1.4), **more) for number in range(1, count + 1)
    ]


def settings(**section: Any) -> TrainingSettings:
    return parse_training_settings({"base_model": "none"} | section)


def keys(some: tuple[TrainingRow, ...]) -> set[str]:
    return {one.candidate_key for one in some}


def test_a_recorded_task_gives_its_measured_kernels_with_both_spreads(tmp_path: Path) -> None:
    pool = load_pool(write_pool(tmp_path / "toy.jsonl"))
    found = pool_rows(pool)
    ok = [c for c in pool.candidates.values() if c.outcome is Outcome.OK]
    assert len(found.rows) == len(ok) - 1
    assert found.failed == len(pool.candidates) - len(ok)
    assert pool.reference.key not in keys(found.rows)
    assert {one.speedup for one in found.rows} <= {pool.speedup(name) for name in pool.candidates}
    noisy = replace(pool, candidates={name: replace(c, spread=0.02) for name, c in pool.candidates.items()})
    assert pool_rows(noisy).rows[0].log2_sd == pytest.approx(0.0404, abs=1e-4)


def test_a_question_is_the_one_that_a_forecaster_asks_with_the_same_settings() -> None:
    one = row("softmax", 1, shapes="4096 x 1024", reference_time_us=120.0)
    asking = settings(max_kernel_tokens=2000).asking("logprobs")
    writer = PromptWriter.from_settings(asking)
    deployed = PromptWriter("logprobs", reasoning=False, max_kernel_tokens=2000)
    assert writer.hash == deployed.hash
    user = writer.write(one.query).messages[1]["content"]
    assert "softmax" in user and "4096 x 1024" in user and "120 us" in user


def test_a_soft_bin_splits_at_an_edge_and_nowhere_else() -> None:
    edge = row("softmax", 1, speedup=1.0, log2_sd=0.02).soft_bin
    assert edge[3] == pytest.approx(0.5) and edge[4] == pytest.approx(0.5)
    middle = row("softmax", 1, speedup=2.0**0.25, log2_sd=0.02)
    assert middle.soft_bin[middle.bin - 1] > 0.999
    assert max(middle.blurred_bin(1.0)) < 0.5


def test_published_rows_are_binned_anew_from_their_raw_speedup(tmp_path: Path) -> None:
    published = {
        "comparison_id": 1,
        "pack": "gdn",
        "source_id": "a",
        "anchor_code": source("gdn", 0),
        "candidate_code": source("gdn", 1),
        "hardware": "A100",
        "aggregated_speedup": 1.2,
        "true_bin": 4,
    }
    path = tmp_path / "eval.jsonl"
    path.write_text(json.dumps(published) + "\n")
    (found,) = pair_rows(read_rows(path, from_pairs)).rows
    assert found.bin == BINS.index(1.2) == 5
    assert found.operation == "gdn" and found.device == "A100"


def test_formatting_apart_a_kernel_is_there_once() -> None:
    one = row("softmax", 1)
    code = "# another comment\n" + one.candidate_code.replace("\n\n\n", "\n\n\n\n")
    again = replace(one, candidate_code=code, candidate_key=source_key(code))
    other_device = replace(one, device="A100")
    assert deduplicated([one, again, other_device]) == [one, other_device]


def test_repeated_measurements_are_one_row_with_their_mean_and_spread() -> None:
    one = row("softmax", 1, speedup=1.0, log2_sd=0.02)
    (merged,) = deduplicated([one, replace(one, speedup=4.0)])
    assert merged.speedup == pytest.approx(2.0)
    assert merged.log2_sd == pytest.approx(1.0, abs=1e-3)


def test_held_out_operations_and_kernels_are_never_trained_on_whatever_the_device() -> None:
    data = rows("softmax", 40) + rows("softmax", 40, device="A100") + rows("rmsnorm", 20)
    split = split_rows(data, HeldOutSettings(operations=["RMSNorm"], kernels=0.25), seed=1)
    assert {one.operation for one in split.unseen_operations} == {"rmsnorm"}
    assert {one.operation for one in split.train} == {"softmax"}
    assert not keys(split.train) & keys(split.unseen_kernels)
    # Both measurements of a kernel are on one side.
    assert set(Counter(one.candidate_key for one in split.train).values()) == {2}
    assert 10 <= len(split.unseen_kernels) <= 30
    assert len(split.train) + len(split.unseen_kernels) + len(split.unseen_operations) == len(data)


def test_a_device_that_is_held_out_takes_its_kernels_along() -> None:
    data = rows("softmax", 30) + rows("softmax", 10, device="A100")
    split = split_rows(data, HeldOutSettings(operations=[], devices=["A100"], kernels=0.0), seed=0)
    assert {one.device for one in split.train} == {"H100"} and len(split.train) == 20
    assert not keys(split.train) & keys(split.unseen_operations)


def test_without_names_the_seed_chooses_the_held_out_operation() -> None:
    data = [one for name in ("a", "b", "c", "d", "e") for one in rows(name, 6)]
    chosen = {
        tuple({one.operation for one in split_rows(data, HeldOutSettings(), seed=seed).unseen_operations})
        for seed in range(8)
    }
    assert all(len(names) == 1 for names in chosen) and len(chosen) > 1


def test_one_operation_only_says_how_to_go_on() -> None:
    with pytest.raises(ConfigError, match=r"one operation only \(softmax\).*operations: \[\]"):
        split_rows(rows("softmax", 10), HeldOutSettings(), seed=0)
    split = split_rows(rows("softmax", 10), HeldOutSettings(operations=[]), seed=0)
    assert split.train and not split.unseen_operations


def test_a_held_out_name_that_is_in_no_row_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"held_out.operations: no rows of 'sofmax'; there are: softmax"):
        split_rows(rows("softmax", 4), HeldOutSettings(operations=["sofmax"]), seed=0)
    with pytest.raises(ConfigError, match=r"held_out.devices: no rows of 'H200'; there are: H100"):
        split_rows(rows("softmax", 4), HeldOutSettings(operations=[], devices=["H200"]), seed=0)


def test_leaks_are_loud() -> None:
    trained = tuple(rows("softmax", 4))
    with pytest.raises(TrainingError, match="leak: kernel .* trained on"):
        check_leaks(Split(trained, (replace(trained[0], device="A100"),), ()))
    with pytest.raises(TrainingError, match="leak: operation softmax"):
        check_leaks(Split(trained, (), (row("softmax", 99),)))
    renamed = replace(row("softmax", 99), task="my_softmax")
    with pytest.raises(TrainingError, match="leak: my_softmax is unseen and softmax trained on"):
        check_leaks(Split(trained, (), (renamed,)))


def test_bins_are_trained_on_alike_and_no_row_is_learned_by_heart() -> None:
    many = [row("softmax", number, 1.2) for number in range(1, 61)]
    few = [row("softmax", number, 3.0) for number in range(61, 81)]
    order = balanced_order(many + few, 80, 1.0, seed=0)
    counts = Counter((many + few)[number].bin for number in order)
    assert counts == {5: 40, 7: 40}
    assert set(Counter(order[:]).values()) <= {1, 2}
    unbalanced = Counter((many + few)[number].bin for number in balanced_order(many + few, 80, 0.0, seed=0))
    assert unbalanced == {5: 60, 7: 20}
    rare = [*many, row("softmax", 99, 0.1)]
    places = [place for place, number in enumerate(balanced_order(rare, 61, 1.0, seed=0)) if number == 60]
    assert len(places) == 4 and min(b - a for a, b in itertools.pairwise(places)) > 10
    assert balanced_order(rare, 61, 1.0, seed=0) == balanced_order(rare, 61, 1.0, seed=0)
    assert balanced_order(rare, 61, 1.0, seed=0) != balanced_order(rare, 61, 1.0, seed=1)


def test_further_baselines_are_ratios_of_measurements_and_tell_incumbents_from_references() -> None:
    data = rows("softmax", 8)
    found = with_other_baselines(data, 3, seed=0)
    assert len(found) == 8 * 4 and found[:8] == data
    speed = {one.candidate_code: one.speedup for one in data}
    for one in found[8:]:
        baseline = one.incumbent_code or one.reference_code
        assert one.speedup == pytest.approx(speed[one.candidate_code] / speed[baseline])
        assert one.log2_sd > data[0].log2_sd
        assert one.query.anchor_code == baseline
    incumbents = [one for one in found if one.incumbent_code is not None]
    assert incumbents and all(one.incumbent_speedup > 1.0 for one in incumbents)
    assert len({one.id for one in found}) == len(found)


def test_no_rows_and_one_bin_only_say_so(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no rows: nothing was measured"):
        gather(settings(data={"tasks": []}))
    lines = [{"pool": {"task": "flat", "device": "H100", "reference_id": "k0"}}]
    lines += [
        {"id": f"k{n}", "code": source("flat", n), "language": "triton", "outcome": "ok", "time_us": 10.0}
        for n in range(6)
    ]
    path = tmp_path / "flat.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(TrainingError, match="all 5 rows to train on fall into bin 4"):
        gather(settings(data={"tasks": [str(path)]}, held_out={"operations": [], "kernels": 0.0}))


def test_a_ledger_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger .*nowhere"):
        gather(settings(data={"tasks": [], "ledgers": [str(tmp_path / "nowhere")]}))


def write_run(ledger: Ledger, count: int) -> None:
    """Candidates of which half are measured, all of these drawn at random; speed by number."""
    config = surrogate(audit_fraction=1.0, keep_fraction=0.5, anchor="reference")
    gate = open_gate(ledger, lambda query: peaked(5), config=config)
    gate.tell(gate.ask([candidate(0)])[0].id, measured(1.0))
    for start in range(1, count, 8):
        for decision in gate.ask([candidate(number) for number in range(start, start + 8)]):
            if decision.measure:
                number = int(decision.candidate_id.removeprefix("c"))
                gate.tell(decision.id, measured(2.0 ** ((number % 5 - 2) / 1.1)))


def test_new_rows_of_a_ledger_are_trained_on_audited_or_replayed_but_never_two_of_these(
    ledger: Ledger,
) -> None:
    write_run(ledger, 64)
    plain = settings(data={"tasks": []}, held_out={"operations": [], "kernels": 0.0})
    found = gather(plain, NewRows((str(ledger.target),)))
    assert len(found.audit) >= 8 and found.split.train
    assert all(one.sampling_probability is not None for one in found.audit)
    assert not keys(found.audit) & keys(found.split.train)
    assert not found.replay
    with pytest.raises(TrainingError, match="no new rows"):
        gather(plain, NewRows((str(ledger.target),), since=4e9))
    with_tasks = settings(data={"tasks": ["softmax"]}, held_out={"operations": [], "kernels": 0.0})
    replayed = gather(with_tasks, NewRows((str(ledger.target),)))
    assert {one.operation for one in replayed.replay} == {"softmax"}
    assert not keys(replayed.replay) & keys(replayed.audit)


def test_what_was_measured_before_the_day_is_replayed(ledger: Ledger) -> None:
    write_run(ledger, 32)
    moment = time.time()
    imported = [
        PairRow(
            task="later",
            language="triton",
            hardware="H100",
            reference_code=source("later", 0),
            candidate_code=source("later", number),
            outcome=Outcome.OK,
            speedup=1.2 if number % 2 else 3.0,
        )
        for number in range(1, 9)
    ]
    import_rows(open_engine(ledger.target), imported)
    plain = settings(data={"tasks": []}, held_out={"operations": [], "kernels": 0.0})
    found = gather(plain, NewRows((str(ledger.target),), since=moment))
    assert {one.operation for one in found.split.train} == {"later"} and len(found.split.train) == 8
    assert "later" not in {one.operation for one in found.replay} and len(found.replay) >= 8
