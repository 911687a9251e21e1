"""The forecaster that transformers run, against a tiny random Llama."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers import source
from tiny_models import write_model

from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure, Query
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.forecasters.language_model.transformers_local import TransformersLocalForecaster

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(find_spec("peft") is None, reason="needs the extra 'train': make test-train"),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny-llama")


def build(folder: Path, **more: Any) -> TransformersLocalForecaster:
    section = {
        "kind": "transformers_local",
        "model": str(folder),
        "hedge": False,
        "max_kernel_tokens": 136,
    } | more
    forecaster = build_forecaster(parse_surrogate_config({"forecaster": section}).forecaster)
    assert isinstance(forecaster, TransformersLocalForecaster)
    return forecaster


def queries(count: int) -> list[Query]:
    codes = [source(number) + "#" * number for number in range(1, count + 1)]
    return [Query(code[:20], code, source(0), source(0)) for code in codes]


def test_probabilities_are_the_models_own_whatever_the_batch(model: Path) -> None:
    import torch

    forecaster = build(model)
    together = forecaster.forecast(queries(5))
    for query, outcome in zip(queries(5), together, strict=True):
        assert isinstance(outcome, Forecast) and outcome.covered_mass is None
        tokenizer, network = forecaster._tokenizer, forecaster._model
        text = tokenizer.apply_chat_template(
            forecaster._writer.write(query).messages, tokenize=False, add_generation_prompt=True
        )
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        logits = network(input_ids=ids).logits[0, -1]
        labels = [tokenizer.convert_tokens_to_ids(str(number)) for number in range(1, 9)]
        assert outcome.probabilities == pytest.approx(logits[labels].softmax(0).tolist(), abs=1e-4)


def test_what_the_labels_have_of_all_tokens_shows_without_a_constraint(model: Path) -> None:
    (outcome,) = build(model, constraint="none", min_label_mass=0.9).forecast(queries(1))
    assert isinstance(outcome, ForecastFailure) and "min_label_mass" in outcome.detail


def test_samples_are_drawn_from_the_same_probabilities(model: Path) -> None:
    (exact,) = build(model).forecast(queries(1))
    (drawn,) = build(model, readout="samples", samples=128).forecast(queries(1))
    assert isinstance(exact, Forecast) and isinstance(drawn, Forecast)
    for frequency, probability in zip(drawn.probabilities, exact.probabilities, strict=True):
        assert abs(frequency - probability) < 5 * math.sqrt(0.25 / 128)


def test_a_written_answer_that_never_ends_is_truncated(model: Path) -> None:
    (outcome,) = build(model, readout="verbalized", max_tokens=4).forecast(queries(1))
    assert isinstance(outcome, ForecastFailure) and outcome.kind is FailureKind.TRUNCATED
    assert outcome.cost.completion_tokens == 4


def test_a_prompt_longer_than_the_context_fails_alone(tmp_path: Path) -> None:
    forecaster = build(write_model(tmp_path / "short", context=900), max_kernel_tokens=4000)
    short, long = queries(2)
    long = Query("long", "x = 1\n" * 1500, long.anchor_code, long.reference_code)
    outcomes = forecaster.forecast([long, short])
    assert isinstance(outcomes[0], ForecastFailure) and "max_kernel_tokens" in outcomes[0].detail
    assert isinstance(outcomes[1], Forecast)


def test_batches_are_halved_when_memory_runs_out(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    forecaster = build(model)
    expected = forecaster.forecast(queries(5))
    answers, sizes = forecaster._answers, []

    def short_of_memory(batch: Any) -> Any:
        sizes.append(len(batch))
        if len(batch) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return answers(batch)

    monkeypatch.setattr(forecaster, "_answers", short_of_memory)
    found = forecaster.forecast(queries(5))
    assert sizes[0] > 1 and sizes[-1] == 1
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, Forecast) and isinstance(other, Forecast)
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-4)


def test_an_adapter_changes_the_forecast(model: Path, tmp_path: Path) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    lora = peft.LoraConfig(target_modules="all-linear", r=4, init_lora_weights=False, task_type="CAUSAL_LM")
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model), lora).save_pretrained(
        tmp_path / "adapter"
    )
    adapted = build(model, lora=str(tmp_path / "adapter"))
    (one,), (other,) = build(model).forecast(queries(1)), adapted.forecast(queries(1))
    assert isinstance(one, Forecast) and isinstance(other, Forecast)
    assert one.probabilities != pytest.approx(other.probabilities, abs=1e-4)
    assert adapted.model.endswith("+" + str(tmp_path / "adapter"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"reasoning": True}, "think first"),
        ({"model": "/nowhere/model"}, "cannot be loaded"),
        ({"lora": "/nowhere/adapter"}, "cannot be loaded"),
    ],
)
def test_what_cannot_work_is_refused_when_built(model: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(model, **more)
