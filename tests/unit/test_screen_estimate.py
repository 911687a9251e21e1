"""The estimated time of a static profile: which way it goes with what, and when there is none."""

from __future__ import annotations

import pytest
from static_profiles import MIB, launch, profile

from gpu_forecasters_plugin.screen.profile import InstructionMix, LibraryCall, SourceProfile


def estimate(*launches: object, **more: object) -> float:
    found = profile(*launches, **more).estimated_us  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_kernel_that_only_moves_its_arguments_takes_as_long_as_the_bound() -> None:
    found = profile(launch())
    assert found.estimated_us == pytest.approx(found.roofline_us)
    assert found.estimated_us == pytest.approx(64 * MIB / 3.352e6 + 2.5)


@pytest.mark.parametrize(
    "slower",
    [
        launch(argument_bytes=128 * MIB),
        launch(count=2),
        launch(instructions=InstructionMix(total=5000, global_loads={"128": 1}, global_stores={"128": 1})),
        # One block for all: the others of the device have nothing to do, and a loop runs long.
        launch(grid=(1, 1, 1)),
        # Narrow accesses take four times as many.
        launch(
            grid=(256, 1, 1),
            instructions=InstructionMix(total=1000, global_loads={"32": 1}, global_stores={"32": 1}),
        ),
    ],
)
def test_more_work_or_less_parallelism_is_estimated_to_take_longer(slower: object) -> None:
    assert estimate(slower) > estimate(launch()) * 1.2


def test_narrow_accesses_need_more_passes_than_wide_ones() -> None:
    def mix(bits: str) -> InstructionMix:
        return InstructionMix(total=1000, global_loads={bits: 1}, global_stores={bits: 1})

    few = {"grid": (256, 1, 1)}
    assert estimate(launch(instructions=mix("32"), **few)) == pytest.approx(
        4 * estimate(launch(instructions=mix("128"), **few)), rel=0.05
    )


def test_library_calls_count_with_their_launch() -> None:
    calls = (LibraryCall("aten.exp", 3, 3 * 64 * MIB, 0),)
    assert estimate(library=calls) == pytest.approx(3 * (2.5 + 64 * MIB / 3.352e6))


@pytest.mark.parametrize(
    "unseen",
    [
        profile(),
        profile(launch(grid=None, threads=None, count=0)),
        profile(launch(), launch(grid=None, threads=None, count=0)),
        profile(launch(), complete=False),
    ],
)
def test_there_is_no_estimate_of_work_that_is_out_of_sight(unseen: SourceProfile) -> None:
    assert unseen.estimated_us is None
