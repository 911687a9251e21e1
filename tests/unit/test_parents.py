from __future__ import annotations

from pathlib import Path

from helpers import candidate, measured, open_gate, peaked, surrogate, write_pool

from gpu_forecasters_plugin.candidate import Candidate, source_key
from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.inprocess import InProcessHost
from gpu_forecasters_plugin.ledger import Ledger, LedgerReader
from gpu_forecasters_plugin.recorded.pool import load_pool


def test_children_are_ranked_by_their_chance_to_beat_their_own_parent(ledger: Ledger) -> None:
    section = surrogate(
        ranking="p_beats_parent",
        anchor="reference",
        keep_fraction=0.1,
        audit_fraction=0.0,
        deferral={"threshold": None},
        guard={"enabled": False},
    )
    gate = open_gate(ledger, lambda query: peaked(6), config=section)
    slow, fast = candidate(1), candidate(2)
    for parent, speedup in ((slow, 0.5), (fast, 3.0)):
        gate.tell(gate.ask([parent], measure_all=True)[0].id, measured(speedup))
    children = [Candidate(f"c{i}", f"X = {i}\n", (slow if i == 3 else fast).code) for i in range(4)]
    decisions = gate.ask(
        [*children, Candidate("orphan", "X = 9\n"), Candidate("other", "X = 10\n", "Y = 1\n")]
    )
    assert [d.candidate_id for d in decisions if d.measure] == ["c3"]
    orphan, stranger = decisions[-2:]
    assert orphan.score == stranger.score == decisions[0].score  # the incumbent is the fast parent
    parents = {row["candidate_id"]: row["parent_key"] for row in ledger.decisions()}
    assert (parents["c3"], parents["c0"], parents["orphan"]) == (slow.key, fast.key, None)


def test_a_search_in_this_process_tells_every_parent(tmp_path: Path) -> None:
    pool = load_pool(write_pool(tmp_path / "pool.jsonl"))
    section = surrogate(ranking="p_beats_parent", forecaster={"kind": "climatology"})
    InProcessHost().run(pool, Arm("surrogate", section), 0, 12, tmp_path / "run")
    ledger = LedgerReader(tmp_path / "run" / "ledger.sqlite3")
    ledger.follow_run(1)
    reference, *children = ledger.decisions()
    measured_keys = {row["candidate_key"] for row in ledger.decisions() if row["action"] == "measure"}
    assert reference["parent_key"] is None and children
    assert {row["parent_key"] for row in children} <= measured_keys


def test_a_parent_is_known_by_its_normalised_source() -> None:
    child = Candidate("c", "X = 1\n", "Y = 2  # as the host has it\n")
    assert child.parent_key == source_key("Y = 2\n")
    assert Candidate("c", "X = 1\n").parent_key is None
