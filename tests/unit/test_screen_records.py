from __future__ import annotations

from dataclasses import asdict

import pytest

from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.screen.architectures import architecture, architecture_of_device, typical_device
from gpu_forecasters_plugin.screen.binaries import count_instructions
from gpu_forecasters_plugin.screen.completing import completed
from gpu_forecasters_plugin.screen.profile import LaunchProfile, LibraryCall, SourceProfile
from gpu_forecasters_plugin.screen.roofline import LAUNCH_US
from gpu_forecasters_plugin.screen.verdict import Fault, Status, Verdict, invalid, undecided

SASS = """
	.section	.text.first,"ax",@progbits
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.U16 R0, desc[UR4][R2.64] ;
        /*0030*/                   STG.E.64 desc[UR4][R2.64], R4 ;
        /*0040*/                   HMMA.16816.F32 R4, R4, R2, R4 ;
        /*0050*/                   MUFU.EX2 R0, R0 ;
        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0070*/                   SHFL.BFLY PT, R0, R0, 0x10, 0x1f ;
        /*0080*/                   FFMA R0, R0, R1, R2 ;
        /*0090*/                   STL [R1], R0 ;
        /*00a0*/                   LDS.128 R4, [R0] ;
        /*00b0*/                   RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2.64], R5 ;
        /*00c0*/               @P0 BRA `(.L_x_1) ;
        /*00d0*/                   F2FP.BF16.F32.PACK_AB R0, R1, R0 ;
        /*00e0*/                   NOP ;
	.section	.text.second,"ax",@progbits
        /*0000*/                   EXIT ;
""".splitlines()


def test_instructions_are_counted_by_kind_and_width() -> None:
    mix = count_instructions(SASS, "first")
    assert (mix.total, mix.global_loads, mix.global_stores) == (14, {"128": 1, "16": 1}, {"64": 1})
    kinds = (mix.tensor_core, mix.special_functions, mix.barriers, mix.shuffles, mix.floating_point)
    assert kinds == (1, 1, 1, 1, 1)
    assert (mix.local, mix.shared, mix.atomics, mix.branches, mix.conversions) == (1, 1, 1, 1, 1)
    assert count_instructions(SASS).total == 15


FORGED = {
    "registers": -1,
    "spill_bytes": 1e999,
    "kernel": "k" * 100_000,
    "threads": True,
    "occupancy": float("nan"),
    "waves": "many",
    "argument_bytes": 10**400,
    "grid": [1, 2],
    "options": {"num_warps": "eight"},
    "instructions": {"global_loads": {"wide": 1}},
    "limited_by": ["registers"],
}


@pytest.mark.parametrize("name", FORGED)
def test_a_profile_that_no_compiler_could_have_made_is_refused(name: str) -> None:
    launch = LaunchProfile("k", "triton", 1, (1, 1, 1), 32, 16, 0, 0, 0)
    fields = asdict(SourceProfile("sm_90", 1, (launch,)))
    assert SourceProfile.from_json(fields).launches == (launch,)
    fields["launches"][0][name] = FORGED[name]
    with pytest.raises(ValueError):
        SourceProfile.from_json(fields)


def test_a_verdict_holds_no_more_text_than_anybody_reads_and_no_control_characters_for_the_host() -> None:
    verdict = invalid(Fault.RAISES, "\x1b[2J\n" + "x" * 10_000, stopped="y" * 10_000)
    assert len(verdict.message) == len(verdict.stopped) == 4000
    assert "\x1b" not in verdict.explanation() and "\n" in verdict.explanation()


# As the CUDA Occupancy Calculator has them.
@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limited_by"),
    [
        ("sm_90", 128, 32, 0, 16, "warps"),
        ("sm_90", 256, 255, 0, 1, "registers"),
        ("sm_90", 128, 40, 0, 12, "registers"),
        ("sm_90", 32, 16, 0, 32, "blocks"),
        ("sm_90", 128, 32, 100 * 1024, 2, "shared memory"),
        ("sm_80", 128, 32, 100 * 1024, 1, "shared memory"),
        ("sm_86", 128, 32, 0, 12, "warps"),
        ("sm_75", 1024, 32, 0, 1, "warps"),
    ],
)
def test_occupancy(
    arch: str, threads: int, registers: int, shared: int, blocks: int, limited_by: str
) -> None:
    found = architecture(arch).occupancy(threads, registers, shared)
    assert (found.blocks_per_sm, found.limited_by) == (blocks, limited_by)
    assert found.fraction == blocks * threads / 32 / architecture(arch).warps_per_sm


def test_registers_limit_the_threads_of_a_block() -> None:
    assert architecture("sm_90").max_threads(64) == 1024
    assert architecture("sm_90").max_threads(255) == 256


@pytest.mark.parametrize("name", ["sm_90", "SM90", "90", "9.0", "sm_90a", "compute_90"])
def test_an_architecture_goes_by_many_names(name: str) -> None:
    assert architecture(name).name == "sm_90"


@pytest.mark.parametrize("name", ["hopper", "sm_91", ""])
def test_an_unknown_architecture_is_refused_with_those_known(name: str) -> None:
    with pytest.raises(ConfigError, match="sm_80"):
        architecture(name)


def test_devices_know_their_architecture() -> None:
    found = architecture_of_device("NVIDIA A100-SXM4-80GB")
    assert found is not None and found.name == "sm_80"
    assert architecture_of_device("AMD Instinct MI300X") is None
    facts = typical_device(architecture("sm_90"), "NVIDIA A100-SXM4-80GB")
    assert facts is not None and facts.name == "H100"  # the architecture that is compiled for counts


def profile() -> SourceProfile:
    launch = LaunchProfile("k", "triton", 2, (264, 1, 1), 128, 32, 0, 0, 1024, argument_bytes=3352_000)
    return SourceProfile("sm_90", 1, (launch,), (LibraryCall("aten.mm", 1, 0, 989_000_000),))


def test_a_bound_adds_launches_bytes_and_operations() -> None:
    done = completed(profile())
    # Twice a launch with a microsecond of bytes, and a library call with a microsecond of operations.
    assert done.roofline_us == pytest.approx(2 * (LAUNCH_US + 1) + LAUNCH_US + 1)
    assert done.launches[0].waves == pytest.approx(264 / (16 * 132))
    assert (done.launch_count, done.library_count, done.moved_bytes) == (2, 1, 2 * 3352_000)


def test_a_verdict_survives_json() -> None:
    verdict = Verdict(
        Status.VALID, stopped="it needs data", profile=completed(profile()), sandbox=("namespaces",)
    )
    assert Verdict.from_json(verdict.to_json()) == verdict


@pytest.mark.parametrize(
    "broken",
    [
        {"status": "fine"},
        {"status": "valid", "fault": "syntax"},
        {"status": "invalid"},
        {"status": "valid", "line": "7"},
        {"status": "valid", "profile": {"arch": "sm_90", "surprise": 1}},
        {"status": "valid", "profile": {"arch": "sm_90", "roofline_us": float("nan")}},
        {"status": "valid", "more": 1},
        {},
    ],
)
def test_what_is_no_verdict_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Verdict.from_json(broken)


def test_a_headline_is_one_line_that_says_most() -> None:
    found = invalid(Fault.COMPILE, "at 3:4:\n    x = tl.lode(p)\n        ^\nno attribute 'lode'", 12)
    assert found.headline() == "invalid (compile), line 12: no attribute 'lode'"
    assert undecided("it needs data").headline() == "undecided: it needs data"


def test_a_megabyte_of_message_is_cut() -> None:
    assert len(invalid(Fault.RAISES, "x" * 10**6).message) == 4000
