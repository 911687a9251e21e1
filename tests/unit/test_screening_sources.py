"""The mistakes written into kernels for the screen's figures: a GPU was asked about every one of them."""

from __future__ import annotations

from benchmarks.screening_sources import KINDS, broken_sources
from benchmarks.screening_truth import read_truth, truth_of


def test_every_written_mistake_was_run_on_a_gpu() -> None:
    known = read_truth()

    unasked = [source.id for source in broken_sources() if truth_of(source, known) is None]

    assert not unasked


def test_each_kind_of_mistake_has_as_many_sources_as_asked_for_all_distinct() -> None:
    sources = broken_sources(each=5)

    assert [source.kind for source in sources] == [kind for kind in KINDS for _ in range(5)]
    assert len({source.code for source in sources}) == len(sources)
