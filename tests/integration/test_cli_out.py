"""Every command finds out that its results cannot be written before it does any work."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import Command, candidate, open_gate, source, write_pool

from gpu_forecasters_plugin import look
from gpu_forecasters_plugin.compare import runner
from gpu_forecasters_plugin.doctor import examination
from gpu_forecasters_plugin.errors import ConfigError, OutputError
from gpu_forecasters_plugin.files import prepare_folder, write_json
from gpu_forecasters_plugin.folder_lock import hold_folder


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever costs something must not be reached."""

    def reached(*arguments: object, **more: object) -> None:
        raise AssertionError("work was done before the output was checked")

    monkeypatch.setattr(look, "build_forecaster", reached)
    monkeypatch.setattr(examination, "bounded", reached)
    monkeypatch.setattr(runner, "_all_runs", reached)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("out", ["file", "file/below", "taken"])
@pytest.mark.parametrize("name", ["forecast", "doctor", "compare", "ledger show", "watch"])
def test_an_out_that_cannot_be_written_is_one_line_before_any_work(
    gpu_forecasters: Command, tmp_path: Path, name: str, out: str
) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "taken" / "summary.json").mkdir(parents=True)
    (tmp_path / "kernel.py").write_text(source(1))
    open_gate(tmp_path).ask([candidate(1)])
    kernel = tmp_path / "kernel.py"
    arguments = {
        "forecast": ("--reference", kernel, "--candidate", kernel),
        "compare": ("--pool", write_pool(tmp_path / "pool.jsonl"), "--budget", "4", "--seeds", "1"),
        "ledger show": (tmp_path,),
        "watch": (tmp_path, "--once"),
    }
    said = gpu_forecasters(*name.split(), *arguments.get(name, ()), "--out", tmp_path / out)
    assert said.code == 1 and said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and "cannot be written: " in said.err
    assert str(tmp_path / out) in said.err


def test_an_export_onto_a_folder_is_refused_at_once(gpu_forecasters: Command, tmp_path: Path) -> None:
    open_gate(tmp_path).ask([candidate(1)])
    (tmp_path / "rows.jsonl").mkdir()
    said = gpu_forecasters("ledger", "export", tmp_path, "--out", tmp_path / "rows.jsonl")
    assert said.code == 1 and said.err == f"error: {tmp_path}/rows.jsonl: cannot be written: Is a directory\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_folder_of_a_run_is_checked_with_its_lock(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file cannot be written: "):
        hold_folder(tmp_path / "file")


def test_a_folder_is_made_with_all_above_it_and_nothing_stays_in_it(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    with pytest.raises(OutputError, match="null byte"):
        prepare_folder(Path("a\0b"))


def test_numbers_that_json_does_not_have_are_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": None})
    assert (tmp_path / "x.json").read_text() == '{\n "a": null\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert (tmp_path / "x.json").read_text() == '{\n "a": null\n}\n'


# -- settings from the command line ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "x" * 201, "\udcff"])
def test_a_device_on_the_command_line_is_checked_as_one_in_a_file(
    gpu_forecasters: Command, tmp_path: Path, name: str
) -> None:
    (tmp_path / "kernel.py").write_text(source(1))
    kernel = tmp_path / "kernel.py"
    said = gpu_forecasters("forecast", "--reference", kernel, "--candidate", kernel, "--device", name)
    assert said.code == 2 and said.out == ""
    assert said.err.startswith("error: --device: must be ") and said.err.count("\n") == 1


def test_every_wrong_setting_is_a_line_of_its_own(gpu_forecasters: Command, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(source(1))
    (tmp_path / "config.yaml").write_text(
        "surrogate:\n  oversampel: 4\n  keep_fraction: 2\n  deferral: {threshold: 1.5}\n"
    )
    kernel, config = tmp_path / "kernel.py", tmp_path / "config.yaml"
    said = gpu_forecasters("forecast", "--reference", kernel, "--candidate", kernel, "--config", config)
    assert said.code == 2 and said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 3 and all(line.startswith("error: surrogate.") for line in lines)
    assert {line.split(": ")[1] for line in lines} == {
        "surrogate.oversampel",
        "surrogate.keep_fraction",
        "surrogate.deferral.threshold",
    }


def test_the_first_of_a_group_of_helps_has_an_example(gpu_forecasters: Command) -> None:
    said = gpu_forecasters("--help")
    assert said.code == 0 and "Example: gpu-forecasters compare" in " ".join(said.out.split())


def test_an_error_of_several_problems_is_one_line_where_one_is_wanted() -> None:
    error = ConfigError("a is wrong", "b is wrong")
    assert str(error) == "a is wrong; b is wrong" and error.problems == ("a is wrong", "b is wrong")
