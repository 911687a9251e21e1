"""``gpu-forecasters forecast`` as a user finds it."""

from __future__ import annotations

import io
import json
import math
import shutil
import sys
from pathlib import Path

import pytest
from helpers import Command, peaked
from misbehaving_server import MODEL, PREDICTED, MisbehavingServer, answers, choice, verbalized

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.cli.forecast_picture import draw
from gpu_forecasters_plugin.config import DeferralConfig
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastCost, ForecastFailure, Query
from gpu_forecasters_plugin.look import Look
from gpu_forecasters_plugin.recorded.pool import load_task, recorded_task_names
from gpu_forecasters_plugin.screen.verdict import Fault, invalid

Kernels = tuple[str, ...]

OTHERS = len(recorded_task_names()) - 1
"""Recorded tasks that are not the one in question."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reference and fastest kernel of a recorded task, in a folder of its name."""
    pool = load_task("softmax")
    path = tmp_path_factory.mktemp("kernels") / "softmax"
    path.mkdir()
    (path / "reference.py").write_text(pool.reference.code)
    (path / "fastest.py").write_text(pool.candidates[pool.best_id].code)
    return path


@pytest.fixture
def kernels(folder: Path) -> Kernels:
    """The two arguments that every forecast needs."""
    return "--reference", str(folder / "reference.py"), "--candidate", str(folder / "fastest.py")


def write_config(folder: Path, forecaster: str, more: str = "") -> Path:
    path = folder / "config.yaml"
    path.write_text(f"surrogate:\n  forecaster: {forecaster}\n{more}")
    return path


def replayed(folder: Path, kernel: Path, weights: list[float], more: str = "") -> Path:
    """A configuration whose forecaster has one recorded forecast."""
    row = {"candidate_key": source_key(kernel.read_text()), "probabilities": weights}
    (folder / "forecasts.jsonl").write_text(json.dumps(row) + "\n")
    return write_config(folder, "{kind: replay, path: forecasts.jsonl, hedge: false}", more)


def test_the_default_forecaster_answers_without_a_run_and_says_what_it_knows(
    gpu_forecasters: Command, kernels: Kernels
) -> None:
    said = gpu_forecasters("forecast", *kernels, "--device", "NVIDIA H100")
    assert said.code == 0 and said.err == ""
    assert "device NVIDIA H100" in said.out
    # All but one: softmax, the folder's name, is what is in question.
    assert (
        f"warm start from {OTHERS} recorded tasks of other operations, and nothing measured yet" in said.out
    )
    for number in range(1, 9):
        assert f"{BINS.labels[number - 1]}" in said.out and BINS.describe(number) in said.out
    assert said.out.count("<- predicted") == 1


def test_a_recorded_task_is_left_out_of_the_warm_start_whatever_its_folder_is_called(
    gpu_forecasters: Command, folder: Path, tmp_path: Path
) -> None:
    elsewhere = shutil.copytree(folder, tmp_path / "my_search")
    kernels = "--reference", str(elsewhere / "reference.py"), "--candidate", str(elsewhere / "fastest.py")
    said = gpu_forecasters("forecast", *kernels, "--device", "NVIDIA H100")
    assert f"warm start from {OTHERS} recorded tasks of other operations" in said.out


def test_json_is_all_that_stdout_holds_and_the_same_is_in_the_file(
    gpu_forecasters: Command, kernels: Kernels, tmp_path: Path
) -> None:
    said = gpu_forecasters("forecast", *kernels, "--json", "--out", tmp_path / "out")
    found = json.loads(said.out)
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == found
    probabilities = found["probabilities"]
    assert math.isclose(sum(probabilities), 1.0) and len(found["bins"]) == 8
    assert found["predicted_bin"] == probabilities.index(max(probabilities)) + 1
    assert found["confidence"] == max(probabilities) and found["failure"] is None
    assert found["deferred"] is (max(probabilities) < 0.35)
    assert found["forecaster"] == "hedged-learned" and found["model"] is None


@pytest.mark.parametrize(("threshold", "deferred"), [(0.35, False), (0.95, True), ("null", False)])
def test_it_is_deferred_below_the_configured_threshold(
    gpu_forecasters: Command,
    folder: Path,
    kernels: Kernels,
    tmp_path: Path,
    threshold: float | str,
    deferred: bool,
) -> None:
    more = f"  deferral: {{threshold: {threshold}}}\n"
    config = replayed(tmp_path, folder / "fastest.py", peaked(6, 0.9), more)
    said = gpu_forecasters("forecast", *kernels, "--config", config)
    assert "predicted   bin 6, significant speed-up (1.41x < S <= 2x)" in said.out
    assert "confidence  0.90 (max_prob)" in said.out
    expected = "yes, to the GPU: its confidence 0.90 is below the threshold 0.95" if deferred else "no"
    assert f"deferred    {expected}\n" in said.out


@pytest.mark.parametrize("kind", ["climatology", "random", "learned"])
def test_every_forecaster_that_needs_no_run_answers(
    gpu_forecasters: Command, kernels: Kernels, tmp_path: Path, kind: str
) -> None:
    config = write_config(tmp_path, f"{{kind: mixture, experts: [{{kind: {kind}}}]}}")
    found = json.loads(gpu_forecasters("forecast", *kernels, "--config", config, "--json").out)
    assert found["basis"].startswith(f"{kind}: ") and kind in found["components"]


def test_a_failed_forecast_says_its_kind_and_what_to_do(
    gpu_forecasters: Command, folder: Path, kernels: Kernels, tmp_path: Path
) -> None:
    config = replayed(tmp_path, folder / "reference.py", peaked(4))
    said = gpu_forecasters("forecast", *kernels, "--config", config, "--json", "--out", tmp_path / "out")
    assert said.code == 1
    found = json.loads(said.out)
    assert found["failure"]["kind"] == "empty" and found["deferred"] and found["probabilities"] is None
    assert (tmp_path / "out" / "summary.json").read_text() == said.out
    error, advice = said.err.splitlines()
    assert error.startswith("error: no forecast, empty: no forecast is recorded for ")
    assert advice.startswith("what to do: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--candidate", "missing.py"), "cannot read the candidate missing.py"),
        (("--candidate", "."), "cannot read the candidate ."),
        (("--config", "missing.yaml"), "cannot read config missing.yaml"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(
    gpu_forecasters: Command, kernels: Kernels, arguments: tuple[str, ...], message: str
) -> None:
    said = gpu_forecasters("forecast", *kernels, *arguments)
    assert said.code == 2 and said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith(f"error: {message}")


def test_a_file_that_is_no_kernel_is_wrong_use(
    gpu_forecasters: Command, kernels: Kernels, tmp_path: Path
) -> None:
    (tmp_path / "empty.py").write_text("# nothing\n")
    said = gpu_forecasters("forecast", *kernels, "--candidate", tmp_path / "empty.py")
    assert said.code == 2 and "source is empty but for comments" in said.err


def test_the_picture_fits_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    forecast = Forecast.from_weights(
        peaked(8, 0.65), cost=ForecastCost(2.5, 900, 850, 40, 30, 0.5), source="model"
    )
    query = Query("key", "code", "anchor", "reference", device="H100\x1b[31m")
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    draw(Look(query, forecast, "model", "some-model", "", "some-model", DeferralConfig()))
    terminal.flush()
    terminal.seek(0)
    text = terminal.read()
    assert f" 65.0%  {'#' * 26}  <- predicted" in text and "\x1b" not in text
    assert "2.50 s, 900 prompt tokens (850 cached), 40 completion tokens (30 of reasoning)" in text


def test_a_kernel_that_talks_to_the_forecaster_is_deferred_however_confident_it_made_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    forecast = Forecast(tuple(peaked(8, 0.99)), suspicions=("tells the forecaster what to answer",))
    look = Look(
        Query("key", "code", "anchor", "reference"), forecast, "model", "", "", "model", DeferralConfig()
    )
    draw(look)
    assert "deferred    yes, to the GPU: " in capsys.readouterr().out
    assert look.summary()["suspicions"] == ["tells the forecaster what to answer"]


def test_what_the_compiler_said_of_the_kernel_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    refused = invalid(Fault.COMPILE, "no such thing\x1b[2J", 3)
    failure = ForecastFailure(FailureKind.EMPTY, "no static profile", "roofline")
    query = Query("key", "code", "anchor", "reference")
    look = Look(query, failure, "roofline", "", "", "", DeferralConfig(), refused)
    draw(look)
    said = capsys.readouterr().out
    assert "compiler    invalid (compile), line 3: no such thing" in said and "\x1b" not in said
    assert look.summary()["screening"]["line"] == 3


@pytest.mark.parametrize("nesting", ["{}", "{{kind: recalibrated, forecaster: {}}}"])
def test_a_language_model_is_asked_as_in_a_run(
    gpu_forecasters: Command, kernels: Kernels, tmp_path: Path, nesting: str
) -> None:
    with MisbehavingServer() as server:
        model = f"{{kind: openai_server, base_url: {server.base_url}, model: {MODEL}, readout: verbalized}}"
        config = write_config(tmp_path, nesting.format(model))
        found = json.loads(gpu_forecasters("forecast", *kernels, "--config", config, "--json").out)
        assert found["model"] == MODEL and found["predicted_bin"] == PREDICTED and found["prompt_hash"]
        assert found["basis"] == f"{MODEL} at {server.base_url}, read out by verbalized"
        assert found["cost"]["prompt_tokens"] == 1000 and found["cost"]["cached_tokens"] == 900
        server.script(answers(choice(verbalized(), finish_reason="length")))
        said = gpu_forecasters("forecast", *kernels, "--config", config)
    assert said.code == 1
    error, advice = said.err.splitlines()
    assert error.startswith("error: no forecast, truncated: ") and advice.startswith("what to do: raise ")


def test_no_endpoint_is_one_error_and_what_to_do(
    gpu_forecasters: Command, kernels: Kernels, tmp_path: Path
) -> None:
    config = write_config(tmp_path, "{kind: openai_server, base_url: 'http://127.0.0.1:1/v1', model: m}")
    said = gpu_forecasters("forecast", *kernels, "--config", config)
    assert said.code == 1 and "<- predicted" not in said.out
    error, advice = said.err.splitlines()
    assert error.startswith("error: no forecast, unreachable: http://127.0.0.1:1/v1: ConnectionRefusedError")
    assert "check forecaster.base_url" in advice
