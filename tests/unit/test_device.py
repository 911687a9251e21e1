from __future__ import annotations

from pathlib import Path

import pytest

from gpu_forecasters_plugin.device import Device, detect_device


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put an ``nvidia-smi`` of that script on an otherwise empty path."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_name_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi(tmp_path, monkeypatch, "echo 'NVIDIA H100, 570.1'")
    assert detect_device("Tesla V100") == Device("Tesla V100", "")


def test_the_first_gpu_is_read_from_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi(tmp_path, monkeypatch, "echo 'NVIDIA H100 80GB HBM3, 570.86.15'; echo 'NVIDIA A100, 570.86.15'")
    assert detect_device() == Device("NVIDIA H100 80GB HBM3", "570.86.15")


@pytest.mark.parametrize("script", ["exit 9", "true", "echo", "echo 'No devices were found'"])
def test_without_a_usable_answer_the_device_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    smi(tmp_path, monkeypatch, script)
    assert detect_device("auto") == Device("unknown")


def test_without_nvidia_smi_the_device_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect_device() == Device("unknown")
