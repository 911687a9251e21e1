"""The rule-based proposer of examples/live_gpu: kernels that it writes, reads and changes."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "live_gpu"
sys.path.append(str(EXAMPLE))

from proposing.mutation import MISTAKES, mutated  # noqa: E402
from proposing.proposer import TASKS, RuleProposer, space_of  # noqa: E402
from proposing.space import MISTAKE, RIGHT, Family, numbers  # noqa: E402

from gpu_forecasters_plugin.candidate import source_key  # noqa: E402
from gpu_forecasters_plugin.errors import ProposalError  # noqa: E402

tasks = pytest.mark.parametrize("task", TASKS)


@tasks
def test_whatever_a_template_is_filled_with_is_python_and_is_read_as_what_was_written(task: str) -> None:
    space = space_of(task)
    designs = list(space.one_of_each())
    sources = [space.write(design) for design in designs]
    for design, source in zip(designs, sources, strict=True):
        compile(source, design.family, "exec")
        assert space.read(source) == design
    assert len({source_key(source) for source in sources}) == len(designs)


@tasks
def test_there_are_more_than_a_thousand_kernels_and_the_initial_program_is_one(task: str) -> None:
    space = space_of(task)
    assert all(family.size > 1000 for family in space.families.values())
    program = (EXAMPLE / "tasks" / task / "initial_program.py").read_text()
    assert space.read(program) == space.start
    assert space.start.option(MISTAKE) == RIGHT


def test_a_program_is_read_whatever_a_host_does_to_its_white_space_and_no_other_program_is() -> None:
    space = space_of("nearest_code")
    source = space.write(space.start)
    assert space.read("\n" + source.replace("\n", "  \n").strip()) == space.start
    assert space.read(source.replace("WARPS = 4", "WARPS = 5")) is None
    assert space.read(source + "\nprint()\n") is None


def test_a_template_whose_slots_and_knobs_do_not_match_is_refused() -> None:
    with pytest.raises(ValueError, match="'odd'.*block"):
        Family("odd", "BLOCK = 1\n", (numbers("block", 1, 2),))
    with pytest.raises(ValueError, match="'odd'.*block"):
        Family("odd", "BLOCK = @block@\n", ())
    with pytest.raises(ValueError, match="'odd'.*block"):
        Family("odd", "BLOCK = @block@\n", (numbers("block", 1, 2), numbers("block", 3, 4)))


@tasks
def test_changes_are_small_and_large_and_some_are_mistakes(task: str) -> None:
    space = space_of(task)
    rng = random.Random(0)
    parent = next(iter(space.families.values())).design()
    children = [mutated(space, parent, rng) for _ in range(600)]
    assert parent not in children
    assert {child.family for child in children} == set(space.families)
    near = [child for child in children if child.family == parent.family]
    changed = [
        sum(a != b for a, b in zip(child.choices, parent.choices, strict=True) if a[0] != MISTAKE)
        for child in near
    ]
    assert set(changed) == {1, 2, 3} and 400 < len(near) < 570
    wrong = sum(child.option(MISTAKE) not in (None, RIGHT) for child in children)
    assert 0.5 * MISTAKES < wrong / len(children) < 1.5 * MISTAKES


def test_a_mistake_is_mended_by_most_changes() -> None:
    space = space_of("nearest_code")
    parent = space.start.with_option(MISTAKE, "sign")
    children = [mutated(space, parent, random.Random(number)) for number in range(200)]
    assert sum(child.option(MISTAKE) in (None, RIGHT) for child in children) > 150


def test_the_stream_depends_on_seed_program_and_turn_alone() -> None:
    space = space_of("add_norm_gelu")
    first, second = space.write(space.start), space.write(space.families["row_loops"].design())
    one, other = RuleProposer(space, seed=3), RuleProposer(space, seed=3)
    in_turns = [one.propose(program, "full") for _ in range(5) for program in (first, second)]
    apart = (
        [other.propose(first, "full") for _ in range(5)],
        [other.propose(second, "full") for _ in range(5)],
    )
    assert (in_turns[::2], in_turns[1::2]) == apart
    assert len({name for name, _ in apart[0]}) == 5
    assert RuleProposer(space, seed=4).propose(first, "full") != apart[0][0]


def test_an_interrupted_search_goes_on_in_the_stream(tmp_path: Path) -> None:
    space = space_of("add_norm_gelu")
    program = space.write(space.start)
    whole = RuleProposer(space, seed=1)
    expected = [whole.propose(program, "diff") for _ in range(6)]
    begun = RuleProposer(space, seed=1, journal=tmp_path / "proposals.jsonl")
    found = [begun.propose(program, "diff") for _ in range(3)]
    resumed = RuleProposer(space, seed=1, journal=tmp_path / "proposals.jsonl")
    assert found + [resumed.propose(program, "diff") for _ in range(3)] == expected


def test_a_program_of_elsewhere_is_refused() -> None:
    with pytest.raises(ProposalError, match="can read"):
        RuleProposer(space_of("nearest_code")).propose("def run(x, codes): ...", "full")
