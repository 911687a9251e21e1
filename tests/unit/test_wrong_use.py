"""Commands that are used wrongly say so in one line, before they do anything; tables are not cut short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from static_profiles import launch, profile

from gpu_forecasters_plugin.cli.evaluate import _protocol
from gpu_forecasters_plugin.cli.profile import profile_command
from gpu_forecasters_plugin.cli.profile_table import show
from gpu_forecasters_plugin.errors import ConfigError, OutputError
from gpu_forecasters_plugin.screen.architectures import architecture_to_compile_for
from gpu_forecasters_plugin.screen.verdict import Status, Verdict
from gpu_forecasters_plugin.terminal import table_console

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("arch", "device", "target"),
    [
        (None, "", "sm_90"),
        (None, "NVIDIA A100-SXM4-80GB", "sm_80"),
        ("sm_90", "NVIDIA H200", "sm_90"),
        ("8.6", "Voodoo 2", "sm_86"),
    ],
)
def test_a_device_says_what_is_compiled_for(arch: str | None, device: str, target: str) -> None:
    assert architecture_to_compile_for(arch, device).name == target


@pytest.mark.parametrize(
    ("arch", "device", "complaint"),
    [
        (None, "Voodoo 2", r"unknown device 'Voodoo 2'; known: .*H200.*--arch sm_80"),
        (None, "AMD Instinct MI300X", r"unknown device 'AMD Instinct MI300X'"),
        ("sm_80", "NVIDIA H200", r"'NVIDIA H200' is of architecture sm_90, not sm_80"),
    ],
)
def test_a_device_that_cannot_be_compiled_for_is_refused(
    arch: str | None, device: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        architecture_to_compile_for(arch, device)
    assert "MI300X" not in str(refused.value).partition("known:")[2]


def test_profiles_that_cannot_be_written_are_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def run(x):\n    return x\n")
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match=r"folder .*out cannot be written"):
        profile_command([kernel], tmp_path / "out", evaluator=kernel, device="NVIDIA H200")
    with pytest.raises(ConfigError, match="unknown device"):
        profile_command([kernel], tmp_path / "new", evaluator=kernel, device="Voodoo 2")
    assert not (tmp_path / "new").exists()


def test_a_forecaster_that_needs_settings_points_at_the_file_for_them() -> None:
    with pytest.raises(ConfigError) as refused:
        _protocol("openai_server", None, 0, None)
    assert "--config FILE" in refused.value.problems[-1]


def test_examples_that_start_an_endpoint_run_side_by_side() -> None:
    ports = {}
    for name in ("openevolve_dropin", "vllm_openevolve"):
        (started,) = re.findall(r"--port (\d+)", (EXAMPLES / name / "run.sh").read_text())
        for config in (EXAMPLES / name).glob("*.yaml"):
            assert f"api_base: http://127.0.0.1:{started}/v1" in config.read_text()
        ports[name] = started
    assert len(set(ports.values())) == len(ports)


def test_a_narrow_terminal_folds_lines_rather_than_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert table_console().width == 80
    assert table_console(110).width == 110
    verdict = Verdict(Status.VALID, profile=profile(launch(kernel="a_kernel_with_quite_a_long_name")))
    show(["reference.py"], [verdict], "sm_90")
    said = capsys.readouterr().out
    assert "a_kernel_with_quite_a_long_name" in said
    assert "…" not in said
