from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.generators import tasks
from benchmarks.generators.build import DATA, ROWS, build
from benchmarks.generators.candidate import load_task
from benchmarks.generators.graph import edit_graph, edits_between
from benchmarks.generators.pool import KEY_HASH, Draft, Pool
from benchmarks.generators.text import Manner, fill
from benchmarks.generators.variant import check_distinct
from gpu_forecasters_plugin.recorded.shipped import recorded_names

PLAIN = Draft({"family": "plain", "block": 256}, "def run(x):\n    return x + 1", "pytorch")
OTHER = Draft({"family": "other"}, "def run(x):\n    return 1 + x", "pytorch")
GENERATORS = sorted(
    path.stem for path in Path(tasks.__path__[0]).glob("*.py") if "\nTASK = " in path.read_text()
)


@pytest.mark.parametrize("task", recorded_names())
def test_generator_and_rows_give_the_shipped_pool(task, tmp_path):
    build(task, ROWS, tmp_path)
    name = f"{task}.jsonl.gz"
    assert gzip.decompress((tmp_path / name).read_bytes()) == gzip.decompress((DATA / name).read_bytes())


@pytest.mark.parametrize("name", GENERATORS)
def test_generator_gives_enough_distinct_sources_that_a_search_can_reach(name):
    task = load_task(name)
    pool = task.make_pool()
    variants = pool.variants
    check_distinct(variants)
    languages = Counter(variant.language for variant in variants)
    assert languages.total() >= 320 and languages["cuda"] >= 60
    assert 0.05 <= sum(variant.broken for variant in variants) / len(variants) <= 0.25
    seed = next(variant.id for variant in variants if variant.key == task.SEED.key)
    assert len(edits_between(edit_graph(variants, pool.edges), seed)) == len(variants)


def test_slot_alone_on_its_line_is_indented_and_vanishes_if_empty():
    template = "def run(x):\n    @pre@\n    return x@how@\n"
    assert fill(template, pre="a = 1\nb = @size@", how="", size=2) == (
        "def run(x):\n    a = 1\n    b = 2\n    return x"
    )
    assert fill(template, pre="", how=" + @size@", size=2) == "def run(x):\n    return x + 2"


def test_slot_without_a_value_is_refused():
    with pytest.raises(KeyError, match="block"):
        fill("BLOCK = @block@")


def test_broken_source_is_its_parent_with_a_mistake():
    pool = Pool()
    pool.add([PLAIN])
    pool.add_broken(PLAIN, minus={"x + 1": "x - 1"})
    sound, broken = pool.variants
    assert broken.choices == {**sound.choices, "bug": "minus"}
    assert broken.code == "def run(x):\n    return x - 1\n"


@pytest.mark.parametrize(
    "slip",
    [
        lambda pool: pool.add([PLAIN]),
        lambda pool: pool.add_broken(PLAIN, minus={"x * 1": "x - 1"}),
        lambda pool: pool.add_broken(OTHER, minus={"1 + x": "1 - x"}),
        lambda pool: pool.link(PLAIN, OTHER),
    ],
    ids=["key twice", "mistake without a place", "parent not in the pool", "link out of the pool"],
)
def test_slip_of_a_generator_is_refused(slip):
    pool = Pool()
    pool.add([PLAIN])
    with pytest.raises(ValueError):
        slip(pool)


def test_wrapper_keeps_the_finished_source_and_calls_it():
    outer = "\n\ndef run(x):\n    return launch(x).clone()\n"
    wrapped = PLAIN.wrapped("copies", outer).variant()
    assert wrapped.code == "def launch(x):\n    return x + 1\n" + outer
    assert wrapped.choices == {"family": "plain", "block": "256", "wrap": "copies"}


def test_manner_renames_no_keyword_arguments():
    manner = Manner({"mask": ["valid"]}, ["A note."])
    codes = {manner.rewrite("load(mask, mask=mask)  # all\n", key) for key in range(40)}
    assert {code.splitlines()[-1] for code in codes} == {
        "load(mask, mask=mask)  # all",
        "load(valid, mask=valid)  # all",
    }


def test_key_hash_differs_between_a_source_and_its_broken_copy():
    named = Draft({"family": "extension"}, f'name = "{KEY_HASH}"\nx = 1', "cuda")
    first, second = named.variant(), named.broken("two", {"x = 1": "x = 2"}).variant()
    assert KEY_HASH not in first.code
    assert first.code.splitlines()[0] != second.code.splitlines()[0]


def test_only_close_sizes_that_change_together_are_one_edit():
    def tuned(block: int, warps: int) -> Draft:
        return Draft({"block": block, "warps": warps}, f"# {block} {warps}", "pytorch")

    near, far = tuned(512, 8), tuned(8192, 16)
    pool = Pool()
    pool.add([tuned(256, 4), near, far])
    pool.link_retuned()
    assert pool.edges == [(near.key, tuned(256, 4).key)]
