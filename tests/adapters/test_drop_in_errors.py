"""What is wrong with a drop-in evaluator is said in one line each, not below OpenEvolve's traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_forecasters_openevolve import filtered
from helpers import write_pool
from openevolve_runs import Run, Task, write_task

from gpu_forecasters_plugin.errors import ConfigError

DROP_IN = """from gpu_forecasters_openevolve import filtered

filtered(globals(), program="initial_program.py", evaluator="evaluator.py", config="config.yaml")
"""


@pytest.fixture
def task(tmp_path: Path, pool: Path) -> Task:
    """A task whose model nobody is: no proposal is ever asked for."""
    written = write_task(tmp_path, pool, "http://127.0.0.1:1/v1", budget=6)
    (written.folder / "drop_in.py").write_text(DROP_IN)
    return written


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write_pool(tmp_path / "pool.jsonl")


def wrong_settings(task: Task) -> None:
    task.change(surrogate={"oversampel": 4, "keep_fraction": 7})


def wrong_evaluator(task: Task) -> None:
    task.evaluator.write_text("def evaluate(path):\n    return {'combined_score': 0.0, 'correct': 0.0}\n")


@pytest.mark.parametrize(
    ("spoil", "code", "lines"),
    [
        (
            wrong_settings,
            2,
            ["surrogate.keep_fraction: must be at most 1", "surrogate.oversampel: unknown key"],
        ),
        (wrong_evaluator, 1, ["the initial program is the reference and must measure ok, but did not"]),
    ],
)
def test_openevolve_run_ends_with_the_lines_alone(
    task: Task, spoil: Callable[[Task], None], code: int, lines: list[str]
) -> None:
    spoil(task)
    arguments = [str(task.program), str(task.folder / "drop_in.py"), "--config", str(task.config)]
    done = Run([*arguments, "--output", str(task.out)], task.folder / "said", "openevolve-run").finish()
    assert done.code == code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == len(lines) and all(line in text for line, text in zip(lines, said, strict=True))


def test_a_script_that_calls_openevolve_gets_the_error_itself(task: Task) -> None:
    namespace = {"__file__": str(task.folder / "drop_in.py")}
    files = {"program": "initial_program.py", "evaluator": "evaluator.py", "config": "config.yaml"}
    wrong_settings(task)
    with pytest.raises(ConfigError, match=r"surrogate.keep_fraction: .*; surrogate.oversampel: unknown key"):
        filtered(namespace, **files)
    with pytest.raises(ConfigError, match="cannot read config"):
        filtered(namespace, **{**files, "config": "missing.yaml"})


def test_a_budget_that_is_none_is_refused_by_its_name(task: Task) -> None:
    task.change(surrogate={"budget": {"measurements": None}})
    namespace = {"__file__": str(task.folder / "drop_in.py")}
    with pytest.raises(ConfigError, match="^measurements: must be at least 1, got 0$"):
        filtered(
            namespace,
            program="initial_program.py",
            evaluator="evaluator.py",
            config="config.yaml",
            measurements=0,
        )
