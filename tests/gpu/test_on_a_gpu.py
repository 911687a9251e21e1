"""What only a machine with an NVIDIA GPU can show: ``make test-gpu``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.screening_sources import PARENT_TASKS, broken_sources
from benchmarks.screening_truth import read_truth, truth_of
from gpu_forecasters_plugin.device import detect_device

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
]
ROOT = Path(__file__).parents[2]


def test_the_device_is_known_by_the_name_that_its_driver_gives() -> None:
    assert detect_device().name == torch.cuda.get_device_name(0)


@pytest.mark.timeout(400)
def test_written_mistakes_fail_here_as_recorded_and_the_references_run(tmp_path: Path) -> None:
    out = tmp_path / "truth.json"
    command = [sys.executable, "-m", "benchmarks.screening_truth", "--out", str(out), "--seconds", "300"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    here, recorded = read_truth(out), read_truth()

    controls = [row["outcome"] for row in here.values() if row["id"].startswith("reference")]
    assert controls == ["ok"] * len(PARENT_TASKS)
    for source in broken_sources():
        found, expected = truth_of(source, here), truth_of(source, recorded)
        assert found is not None and expected is not None, source.id
        assert (found["outcome"] == "incorrect") == (expected["outcome"] == "incorrect"), source.id
