"""Settings of a training: defaults by size, and clear words about wrong ones."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from helpers import Command

from gpu_forecasters_plugin.errors import ConfigError, TrainingError
from gpu_forecasters_plugin.training import run
from gpu_forecasters_plugin.training.data import NewRows
from gpu_forecasters_plugin.training.memory import GPT_OSS_20B, longest_prompt, training_bytes
from gpu_forecasters_plugin.training.settings import (
    PRESETS,
    ModelSize,
    TrainingSettings,
    load_training_settings,
    parse_training_settings,
)


@pytest.mark.parametrize("size", PRESETS)
def test_each_size_brings_its_defaults_and_a_file_comes_first(size: ModelSize) -> None:
    plain = parse_training_settings({"base_model": "m", "model_size": size})
    assert plain.learning_rate == PRESETS[size]["learning_rate"]
    given = parse_training_settings(
        {"base_model": "m", "model_size": size, "learning_rate": 1e-6, "lora": {"rank": 4}}
    )
    assert given.learning_rate == 1e-6 and given.lora.rank == 4
    assert given.lora.target_modules == plain.lora.target_modules


def test_every_wrong_setting_has_a_line_of_its_own() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_training_settings(
            {"base_modl": "m", "steps": 0, "lora": {"rnk": 2}, "proper": {"score": "mse"}}
        )
    lines = raised.value.problems
    assert "training.base_model: is missing" in lines
    assert "training.base_modl: unknown key; did you mean 'base_model'?" in lines
    assert any(line.startswith("training.steps: must be at least 1") for line in lines)
    assert any(line.startswith("training.lora.rnk: unknown key; did you mean 'rank'?") for line in lines)
    assert any(line.startswith("training.proper.score: must be 'nll', 'brier' or 'crps'") for line in lines)


def test_paths_are_those_of_the_files_folder_and_names_stay_names(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "mine.jsonl").write_text("")
    file = tmp_path / "training.yaml"
    file.write_text(
        "training:\n  base_model: model\n  adapter: no/such\n  data:\n    tasks: [softmax, mine.jsonl]\n"
        "    pairs: [pairs.jsonl]\n    ledgers: [run, 'postgresql+psycopg://host/db']\n"
    )
    found = load_training_settings(file, steps=7, seed=None)
    assert found.base_model == str(tmp_path / "model") and found.adapter == "no/such"
    assert found.data.tasks == ["softmax", str(tmp_path / "mine.jsonl")]
    assert found.data.pairs == [str(tmp_path / "pairs.jsonl")]
    assert found.data.ledgers == [str(tmp_path / "run"), "postgresql+psycopg://host/db"]
    assert found.steps == 7 and found.seed == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("surrogate: {}\n", "has no 'training:' section"),
        ("training: [\n", "is not valid YAML"),
        ("training: 3\n", "must be a mapping of settings, got 3"),
    ],
)
def test_a_file_without_settings_is_wrong_use(
    gpu_forecasters: Command, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "training.yaml"
    file.write_text(text)
    ended = gpu_forecasters("train", "sft", "--config", file, "--out", tmp_path / "out")
    assert ended.code == 2 and said in ended.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "run"], "--from goes on from an adapter: name it with --adapter"),
        (["--since", "2026-11-01"], "--since says what is new in the ledgers of --from"),
        (["--from", "run", "--adapter", "a", "--since", "soon"], "--since is a date such as 2026-11-01"),
    ],
)
def test_options_of_learning_on_that_lack_another_say_which(
    gpu_forecasters: Command, tmp_path: Path, arguments: list[str], said: str
) -> None:
    file = tmp_path / "training.yaml"
    file.write_text("training: {base_model: m}\n")
    ended = gpu_forecasters("train", "proper", "--config", file, "--out", tmp_path / "out", *arguments)
    assert ended.code == 2 and said in ended.err


def test_a_config_that_is_not_there_is_wrong_use(gpu_forecasters: Command, tmp_path: Path) -> None:
    ended = gpu_forecasters("train", "sft", "--config", tmp_path / "none.yaml", "--out", tmp_path / "out")
    assert ended.code == 2 and "cannot read config" in ended.err and ended.err.count("error:") == 1


def test_all_ledgers_behind_from_are_learned_on_since_the_day_in_utc(
    gpu_forecasters: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[NewRows | None] = []

    def note(method: str, settings: TrainingSettings, out: Path, new: NewRows | None) -> None:
        asked.append(new)
        raise TrainingError("enough")

    monkeypatch.setattr(run, "run_training", note)
    file = tmp_path / "training.yaml"
    file.write_text("training: {base_model: m}\n")
    common = ("train", "proper", "--config", file, "--adapter", "a", "--out", tmp_path / "out")
    assert gpu_forecasters(*common, "--since", "1970-01-02", "--from", "one", "two", "three").code == 1
    assert gpu_forecasters(*common, "--from", "one", "--since", "1970-01-01T02:00+01:00").code == 1
    assert asked == [NewRows(("one", "two", "three"), 86_400.0), NewRows(("one",), 3600.0)]


@pytest.mark.skipif(find_spec("transformers") is not None, reason="the extra 'train' is installed")
def test_without_the_extra_a_training_says_what_to_install(gpu_forecasters: Command, tmp_path: Path) -> None:
    file = tmp_path / "training.yaml"
    file.write_text("training: {base_model: m, data: {tasks: [softmax]}, held_out: {operations: []}}\n")
    ended = gpu_forecasters("train", "proper", "--config", file, "--out", tmp_path / "out")
    assert ended.code == 1 and "pip install 'gpu-forecasters-plugin[train]'" in ended.err


def test_the_page_about_training_shows_the_defaults_and_those_of_each_size() -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    shown = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])["training"]
    chosen = {"base_model": "m", "data": {"tasks": None}, "held_out": {"operations": None}}
    found = parse_training_settings(shown).model_dump()
    expected = parse_training_settings(chosen).model_dump()
    for section, names in (("data", ("tasks", "ledgers", "pairs")), ("held_out", ("operations",))):
        for name in names:
            found[section][name] = expected[section][name]
    assert found == expected | {"base_model": found["base_model"]}
    for size, preset in PRESETS.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{size}` |")]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert float(cells[2]) == preset["learning_rate"]
        assert cells[3] == f"{preset['batch_size']} x {preset['gradient_accumulation']}"
        assert int(cells[4]) == preset["max_kernel_tokens"]
        assert cells[5] == ("yes" if preset.get("gradient_checkpointing") else "no")


def test_the_longest_prompt_of_the_large_size_fits_into_80_gb() -> None:
    fits = longest_prompt(GPT_OSS_20B, 80, rank=16)
    assert training_bytes(GPT_OSS_20B, fits, 16) <= 72e9 < training_bytes(GPT_OSS_20B, fits + 1, 16)
    large = parse_training_settings({"base_model": "m", "model_size": "large"})
    instructions_and_answer = 1100
    assert 2 * large.max_kernel_tokens + instructions_and_answer <= fits
    assert longest_prompt(GPT_OSS_20B, 40, rank=16) == 0
