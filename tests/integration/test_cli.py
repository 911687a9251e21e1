from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from helpers import write_pool

from gpu_forecasters_plugin.cli.app import app

ELSEWHERE = {"ledger"}  # test_cli_ledger.py
COMMANDS = sorted(set(getattr(typer.main.get_command(app), "commands", {})) - ELSEWHERE)
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "openevolve_dropin"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``gpu-forecasters`` as a user runs it."""
    program = [sys.executable, "-m", "gpu_forecasters_plugin", *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=240)


def test_the_commands_are_found() -> None:
    assert {"openevolve", "compare", "forecast", "doctor", "watch"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    found = command(name, "--help")
    assert found.returncode == 0
    assert f"Example: gpu-forecasters {name}" in " ".join(found.stdout.split())


def test_compare_writes_summary_plot_and_table(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool.jsonl")
    out = tmp_path / "out"
    found = command(
        "compare",
        "--pool",
        str(pool),
        "--host",
        "inprocess",
        "--budget",
        "17",
        "--seeds",
        "2",
        "--out",
        str(out),
    )
    assert found.returncode == 0, found.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert sorted(summary["arms"]) == ["baseline", "oracle", "random", "surrogate"]
    assert all(arm["measurements_used"] == [17, 17] for arm in summary["arms"].values())
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "surrogate against baseline:" in found.stdout
    assert re.search(r"\d+/136 measurements: ", found.stderr), "plain progress lines when not on a terminal"


@pytest.mark.slow
def test_compare_through_real_openevolve_spends_the_same_budget_in_every_arm(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool.jsonl")
    out = tmp_path / "out"
    section = tmp_path / "surrogate.yaml"
    # However slow the machine, pools are full.
    section.write_text("surrogate: {pool: {max_wait_s: 600}}\n")
    found = command(
        *("compare", "--pool", str(pool), "--host", "openevolve", "--budget", "14", "--seeds", "1"),
        *("--arms", "baseline,surrogate", "--surrogate", str(section), "--out", str(out)),
    )
    assert found.returncode == 0, found.stderr
    arms = json.loads((out / "summary.json").read_text())["arms"]
    assert arms["baseline"]["measurements_used"] == arms["surrogate"]["measurements_used"] == [14]
    assert arms["surrogate"]["candidates_considered"][0] > 28


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "--task", "rmsnorm", "--pool", "p.jsonl"), "give one of --task and --pool"),
        (("compare",), "give one of --task and --pool"),
        (("compare", "--task", "rmsnorm", "--arms", "magic"), "unknown arm 'magic'"),
        (("compare", "--task", "rmsnorm", "--seeds", "0"), "--seeds is at least 1"),
        (("compare", "--task", "rmsnorm", "--budget", "x"), "Invalid value for '--budget'"),
        (("nonsense",), "No such command"),
    ],
)
def test_wrong_use_ends_with_code_2_and_says_why(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    out = () if arguments[0] == "nonsense" else ("--out", str(tmp_path / "out"))
    found = command(*arguments, *out)
    assert found.returncode == 2
    assert message in " ".join(found.stderr.split())


@pytest.mark.parametrize("name", ["missing.jsonl", "\udcff\x1b[31m\n.jsonl"])
def test_a_pool_file_that_cannot_be_read_is_one_line_and_code_1(tmp_path: Path, name: str) -> None:
    found = command("compare", "--pool", str(tmp_path / name), "--out", str(tmp_path / "out"))
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    assert line.startswith("error: ") and ascii(name)[1:-1] in line


@pytest.mark.slow
def test_the_drop_in_example_runs(tmp_path: Path) -> None:
    folder = tmp_path / "example"
    folder.mkdir()
    for file in EXAMPLE.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    environment = os.environ | {"PYTHON": sys.executable}
    found = subprocess.run(
        ["bash", "run.sh", "out"], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    assert (folder / "out" / "best" / "best_program.py").exists()
    assert (folder / "out" / "ledger.sqlite3").exists() and not (folder / "openevolve_output").exists()
    assert "surrogate filter: 24 of 24 measurements" in found.stdout
