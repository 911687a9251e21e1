"""The command lines of ``openevolve-run`` and ``gpu-forecasters openevolve``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openevolve")

from gpu_forecasters_openevolve.command_line import output_of_command, parse_host_arguments
from typer.testing import CliRunner

from gpu_forecasters_plugin.cli.app import app
from gpu_forecasters_plugin.errors import ConfigError

FILES = ["initial_program.py", "evaluator.py"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--iteratoins", "5"], "unknown flag --iteratoins, did you mean --iterations?"),
        (["--confg=x"], "unknown flag --confg, did you mean --config?"),
        (["--surogate", "x"], "did you mean --surrogate?"),
        (["--zzz"], "unknown flag --zzz: every flag of openevolve-run is accepted"),
        (["third.py"], "unexpected arguments: third.py"),
        (["--iterations", "many"], "argument --iterations/-i: invalid int value: 'many'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_openevolve_does_not_take_is_one_line(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_host_arguments([*FILES, *arguments])
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_flag_leads_to_the_help_that_lists_them_all() -> None:
    with pytest.raises(ConfigError, match="gpu-forecasters openevolve --help lists them"):
        parse_host_arguments([*FILES, "--iteratoins", "5"])
    text = CliRunner().invoke(app, ["openevolve", "--help"]).output
    ours, _, theirs = text.partition("Example:")[0].partition("Flags of openevolve-run:")
    assert "--surrogate" in ours and "--config" in ours
    assert "--iterations ITERATIONS" in theirs and "--target-score" in theirs and "--evaluator-args" in theirs
    assert "--config" not in theirs and "--output" not in theirs and "--help" not in theirs


def test_the_output_of_openevolve_run_is_known_by_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "evaluator.py"
    for arguments, expected in [
        ([*FILES, "--output", "run"], tmp_path / "run"),
        ([*FILES, "-o", "/a/run", "--iterations", "3"], Path("/a/run")),
        (["task/initial_program.py", "evaluator.py"], tmp_path / "task" / "openevolve_output"),
        (["initial_program.py", "another.py", "--output", "run"], None),
        (["-q", "tests"], None),
        (["--help"], None),
    ]:
        monkeypatch.setattr(sys, "argv", ["openevolve-run", *arguments])
        assert output_of_command(here) == expected
        assert sys.argv == ["openevolve-run", *arguments]


def test_asking_for_the_output_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["--help"], ["--unknown"], []):
        monkeypatch.setattr(sys, "argv", ["script.py", *arguments])
        output_of_command(Path("evaluator.py"))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["openevolve", *FILES],
        [
            "compare",
            "--task",
            "rmsnorm",
            "--host",
            "openevolve",
            "--budget",
            "8",
            "--seeds",
            "1",
            "--out",
            "out",
        ],
    ],
    ids=["openevolve", "compare"],
)
def test_without_openevolve_both_commands_say_what_to_install(tmp_path: Path, arguments: list[str]) -> None:
    script = (
        "import sys; sys.modules['openevolve'] = None\n"
        "from gpu_forecasters_plugin.cli import main\n"
        f"sys.argv = ['gpu-forecasters', *{arguments}]\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "error: openevolve is not installed: pip install 'gpu-forecasters-plugin[openevolve]'"
    )
    assert "Traceback" not in done.stderr
