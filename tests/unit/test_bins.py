from __future__ import annotations

import math

import pytest

from gpu_forecasters_plugin.bins import BINS, N_BINS, PUBLISHED_LABELS, SCHEMES, BinScheme, scheme

BOTH = pytest.mark.parametrize("bins", [BINS, PUBLISHED_LABELS], ids=lambda bins: bins.name)


def published_formula(speedup: float) -> int:
    return min(8, max(1, math.floor(2 * math.log2(speedup)) + 4))


def test_the_standard_edges_are_those_of_the_paper() -> None:
    assert BINS.edges == (0.25, 0.5, 2**-0.5, 1.0, 2**0.5, 2.0, 4.0)


@pytest.mark.parametrize(("position", "edge"), list(enumerate(BINS.edges, start=1)))
def test_a_standard_bin_holds_its_upper_edge_and_nothing_above(position: int, edge: float) -> None:
    assert BINS.index(math.nextafter(edge, 0.0)) == position
    assert BINS.index(edge) == position
    assert BINS.index(math.nextafter(edge, math.inf)) == position + 1


@pytest.mark.parametrize(("position", "edge"), list(enumerate(PUBLISHED_LABELS.edges, start=1)))
def test_a_published_bin_holds_its_lower_edge_and_nothing_below(position: int, edge: float) -> None:
    assert PUBLISHED_LABELS.index(math.nextafter(edge, 0.0)) == position
    assert PUBLISHED_LABELS.index(edge) == position + 1
    assert PUBLISHED_LABELS.index(math.nextafter(edge, math.inf)) == position + 1


def test_the_published_scheme_is_the_published_formula() -> None:
    # Odd multiples of an eighth of an octave lie off every edge, where rounding would decide.
    for step in range(-39, 40, 2):
        speedup = 2 ** (step / 8)
        assert PUBLISHED_LABELS.index(speedup) == published_formula(speedup), speedup
    assert [PUBLISHED_LABELS.index(power) for power in (0.25, 0.5, 1.0, 2.0, 4.0)] == [
        published_formula(power) for power in (0.25, 0.5, 1.0, 2.0, 4.0)
    ]


def test_the_two_schemes_disagree_about_a_speedup_of_1_2() -> None:
    assert (BINS.index(1.2), PUBLISHED_LABELS.index(1.2)) == (5, 4)


@pytest.mark.parametrize(
    ("speedup", "label"),
    [
        (0.2, "severe slowdown"),
        (0.3, "significant slowdown"),
        (0.6, "moderate slowdown"),
        (1.0, "minor slowdown or equal"),
        (1.2, "minor speed-up"),
        (1.9, "significant speed-up"),
        (3.0, "high speed-up"),
        (9.0, "extreme speed-up"),
    ],
)
def test_each_bin_has_its_name(speedup: float, label: str) -> None:
    assert BINS.labels[BINS.index(speedup) - 1] == label


@BOTH
def test_midpoints_and_bounds_derive_from_the_edges(bins: BinScheme) -> None:
    middle = bins.log2_midpoints
    assert len(middle) == N_BINS
    for index in range(1, N_BINS + 1):
        low, high = bins.bounds(index)
        assert bins.index(2 ** middle[index - 1]) == index
        if low > 0 and math.isfinite(high):
            assert middle[index - 1] == pytest.approx((math.log2(low) + math.log2(high)) / 2)
    assert bins.bounds(1)[0] == 0.0 and math.isinf(bins.bounds(8)[1])


def test_the_open_ends_have_their_midpoint_one_octave_out() -> None:
    assert (BINS.log2_midpoints[0], BINS.log2_midpoints[-1]) == (-3.0, 3.0)


@BOTH
def test_descriptions_say_which_edge_belongs_to_the_bin(bins: BinScheme) -> None:
    holds, excludes = ("<=", "<") if bins.holds_upper_edge else ("<", "<=")
    for index in range(2, N_BINS):
        low, high = bins.bounds(index)
        assert bins.describe(index) == f"{low:.3g}x {excludes} S {holds} {high:.3g}x"
    assert bins.describe(1) == f"S {holds} {bins.edges[0]:.3g}x"
    assert bins.describe(8) == f"S {'>' if bins.holds_upper_edge else '>='} {bins.edges[-1]:.3g}x"


@pytest.mark.parametrize("speedup", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_what_is_no_speedup_has_no_bin(speedup: float) -> None:
    with pytest.raises(ValueError, match=repr(speedup)):
        BINS.index(speedup)


@pytest.mark.parametrize("index", [0, 9, -1])
def test_there_are_eight_bins(index: int) -> None:
    with pytest.raises(ValueError, match=f"got {index}"):
        BINS.bounds(index)


@pytest.mark.parametrize("edges", [(1.0, 2.0), (0.25, 0.5, 1.0, 0.7, 1.4, 2.0, 4.0)])
def test_a_scheme_needs_seven_ascending_edges(edges: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="seven ascending edges"):
        BinScheme("broken", edges, holds_upper_edge=True)


def test_schemes_are_found_by_name() -> None:
    assert {name: scheme(name) for name in SCHEMES} == SCHEMES
    with pytest.raises(ValueError, match="standard, published_labels"):
        scheme("paper")
