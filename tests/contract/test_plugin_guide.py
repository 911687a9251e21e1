"""docs/plugins.md tells the truth: its plugin is installed, named in a configuration and tested as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpu_forecasters_plugin import hookspecs, testing

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide's plugin and its tests, installed as its metadata says."""
    folder = tmp_path_factory.mktemp("guide")
    (metadata,) = map(tomllib.loads, blocks("toml"))
    plugin, tests = blocks("python")
    (folder / "acme_forecasters.py").write_text(plugin)
    (folder / "test_warps.py").write_text(tests)
    project = metadata["project"]
    information = folder / f"acme_forecasters-{project['version']}.dist-info"
    information.mkdir()
    header = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (information / "METADATA").write_text(header)
    points = project["entry-points"]["gpu_forecasters"]
    lines = "".join(f"{name} = {target}\n" for name, target in points.items())
    (information / "entry_points.txt").write_text(f"[gpu_forecasters]\n{lines}")
    return folder


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (site, ROOT)))}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=site, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_guides_plugin_forecasts_as_its_configuration_says(site: Path) -> None:
    (settings,) = blocks("yaml")
    (site / "surrogate.yaml").write_text(settings)
    (site / "reference.py").write_text("launch(num_warps=1)\n")
    (site / "kernel.py").write_text("launch(num_warps=4)\n")
    files = ("--reference", "reference.py", "--candidate", "kernel.py", "--config", "surrogate.yaml")
    done = run(site, "gpu_forecasters_plugin", "forecast", *files)
    assert done.returncode == 0, done.stderr
    assert "acme-forecasters 1.0" in done.stdout and "predicted   bin 5" in done.stdout


def test_the_guides_plugin_passes_its_contract(site: Path) -> None:
    done = run(site, "pytest", "-q", "-p", "no:cacheprovider", "test_warps.py")
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d\d passed", done.stdout)


def test_the_guide_names_every_hook_and_every_suite() -> None:
    for name in (*hookspecs.HOOKS, *(factory.__name__ for factory in hookspecs.HOOKS.values())):
        assert f"`{name}`" in GUIDE
    for name in testing.__all__:
        assert name == "HostHarness" or f"`{name}`" in GUIDE
