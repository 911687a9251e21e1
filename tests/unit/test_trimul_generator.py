from __future__ import annotations

import pytest
import torch

from benchmarks.generators.checking import compare
from benchmarks.generators.tasks import trimul
from benchmarks.generators.tasks.trimul_pipeline import pipeline
from benchmarks.generators.variant import Variant

SHAPE = {"N": 8, "B": 2, "C": 32, "H": 16}
EAGER = pipeline(*trimul.EAGER).key


@pytest.fixture(scope="module")
def sources() -> dict[str, Variant]:
    pool = trimul.make_pool()
    return {variant.choices.get("bug", "sound"): variant for variant in pool.variants if is_eager(variant)}


def is_eager(variant: Variant) -> bool:
    return tuple(pair for pair in variant.key if pair[0] != "bug") == EAGER


def verdict(variant: Variant) -> str | None:
    inputs = trimul.make_inputs(SHAPE, "cpu", 1)
    names: dict[str, object] = {}
    exec(variant.code, names)
    run = names["run"]
    assert callable(run)
    return compare(trimul, (run(*inputs),), trimul.reference(*inputs))


def test_plain_pytorch_agrees_with_the_reference(sources):
    assert verdict(sources["sound"]) is None


@pytest.mark.parametrize("bug", ["incoming_edges", "gate_before_norm"])
def test_wrong_mathematics_is_outside_the_tolerance(sources, bug):
    said = verdict(sources[bug])
    assert said is not None and "relative error" in said


def test_mask_and_second_batch_change_the_result():
    x, mask, *weights = trimul.make_inputs(SHAPE, "cpu", 1)
    (out,) = trimul.reference(x, mask, *weights)
    (open_out,) = trimul.reference(x, torch.ones_like(mask), *weights)
    assert not torch.equal(out[1], open_out[1])
    assert not torch.equal(out[0], out[1])


def test_linked_sources_differ_in_one_stage():
    pool = trimul.Pool(trimul.add_torch, trimul.add_last, trimul.link_stages)
    by_key = {variant.key: variant for variant in pool.variants}
    assert pool.edges
    for one, other in pool.edges:
        parts = [name for name in trimul.STAGES if by_key[one].choices[name] != by_key[other].choices[name]]
        assert len(parts) == 1
