"""The forecaster in process, against a stand-in for ``vllm``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import source
from misbehaving_server import PREDICTED, verbalized

from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.doctor import forecasters
from gpu_forecasters_plugin.doctor._base import Status
from gpu_forecasters_plugin.errors import MissingExtraError
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure, Query
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.forecasters.language_model.local import VllmLocalForecaster
from gpu_forecasters_plugin.forecasters.language_model.prompting import PromptWriter
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings


@dataclass
class Record:
    """Stands for any of vLLM's records."""

    fields: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return self.fields[name]


def record(*_: Any, **fields: Any) -> Record:
    return Record(fields)


def completion(text: str, logs: dict[str, float] | None = None, finish_reason: str = "stop") -> Record:
    step = {n: record(decoded_token=t, logprob=p) for n, (t, p) in enumerate((logs or {}).items())}
    logprobs = [step] if logs else None
    return record(text=text, finish_reason=finish_reason, token_ids=[1, 2], logprobs=logprobs)


class Refusal(Exception):
    """vLLM's errors share no base with Python's in every version."""


class Engine:
    """Stands for ``vllm.LLM``; answers what ``text`` makes of the sampling parameters."""

    made: list[Engine] = []
    answer: Callable[[Record], list[Record]]

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.calls: list[dict[str, Any]] = []
        Engine.made.append(self)

    def chat(self, messages: list[Any], sampling: list[Record], **more: Any) -> list[Record]:
        self.calls.append({"messages": messages, "sampling": sampling, **more})
        if any("x" * 2000 in conversation[-1]["content"] for conversation in messages):
            raise Refusal("The decoder prompt is longer than the maximum model length")
        return [
            record(outputs=Engine.answer(one), prompt_token_ids=[0] * 50, num_cached_tokens=40)
            for one in sampling
        ]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Engine]]:
    modules = {name: ModuleType(name) for name in ("vllm", "vllm.lora.request", "vllm.sampling_params")}
    modules["vllm"].__dict__.update(LLM=Engine, SamplingParams=record)
    modules["vllm.lora.request"].__dict__.update(LoRARequest=lambda *parts: parts)
    modules["vllm.sampling_params"].__dict__.update(StructuredOutputsParams=record)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    Engine.made = []
    yield Engine


def build(**more: Any) -> VllmLocalForecaster:
    section = {"kind": "vllm_local", "model": "m", "hedge": False} | more
    forecaster = build_forecaster(parse_surrogate_config({"forecaster": section}).forecaster)
    assert isinstance(forecaster, VllmLocalForecaster)
    return forecaster


def query(code: str) -> Query:
    return Query(code[:20], code, source(0), source(0))


LOGS = {"6": math.log(0.6), " 5": math.log(0.2), "The": math.log(0.1), "7": -math.inf}


@pytest.mark.parametrize(
    ("readout", "answer", "expected"),
    [
        ("logprobs", lambda s: [completion("6", LOGS, "length")], (0, 0, 0, 0, 0.25, 0.75, 0, 0)),
        ("samples", lambda s: [completion("6")] * s.n, (0, 0, 0, 0, 0, 1, 0, 0)),
        ("verbalized", lambda s: [completion(verbalized())], (0.05,) * 5 + (0.65, 0.05, 0.05)),
    ],
)
def test_every_readout_is_read_from_one_batch(
    vllm: type[Engine], readout: str, answer: Callable[[Record], list[Record]], expected: tuple[float, ...]
) -> None:
    vllm.answer = staticmethod(answer)
    outcomes = build(readout=readout).forecast([query(source(number)) for number in range(1, 5)])
    assert len(vllm.made[0].calls) == 1
    for outcome in outcomes:
        assert isinstance(outcome, Forecast) and outcome.probabilities == pytest.approx(expected)
        assert (outcome.cost.prompt_tokens, outcome.cost.cached_tokens) == (50, 40)
        assert outcome.source == "vllm_local:m" and outcome.cost.gpu_seconds > 0


def test_an_adapter_and_engine_arguments_reach_the_engine(vllm: type[Engine]) -> None:
    vllm.answer = staticmethod(lambda s: [completion("6", LOGS)])
    forecaster = build(lora="/adapters/a", engine={"max_model_len": 4096, "max_lora_rank": 32})
    forecaster.forecast([query(source(1))])
    (engine,) = vllm.made
    assert engine.arguments["enable_lora"] and engine.arguments["max_model_len"] == 4096
    assert engine.arguments["max_lora_rank"] == 32
    assert engine.calls[0]["lora_request"] == ("forecaster", 1, "/adapters/a")
    assert forecaster.model == "m+/adapters/a"


def test_a_prompt_that_the_engine_refuses_fails_alone(vllm: type[Engine]) -> None:
    vllm.answer = staticmethod(lambda s: [completion("6", LOGS)])
    outcomes = build().forecast([query(source(1)), query("x" * 2000), query(source(2))])
    assert [isinstance(outcome, Forecast) for outcome in outcomes] == [True, False, True]
    assert isinstance(outcomes[1], ForecastFailure) and "longer" in outcomes[1].detail


@pytest.mark.parametrize("where", ["writer", "output", "readout"])
def test_an_unexpected_error_costs_one_forecast(
    vllm: type[Engine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    def second_trips(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        calls = count(1)

        def call(argument: Any) -> Any:
            if next(calls) == 2:
                raise LookupError("odd")
            return function(argument)

        return call

    vllm.answer = staticmethod(lambda s: [completion("6", LOGS)])
    forecaster = build()
    owner, name = {
        "writer": (forecaster._writer, "write"),
        "output": (forecaster, "_reply"),
        "readout": (forecaster._readout, "read"),
    }[where]
    monkeypatch.setattr(owner, name, second_trips(getattr(owner, name)))
    outcomes = forecaster.forecast([query(source(number)) for number in range(1, 4)])
    assert [isinstance(outcome, Forecast) for outcome in outcomes] == [True, False, True]
    assert isinstance(outcomes[1], ForecastFailure) and outcomes[1].kind is FailureKind.INVALID
    assert len(caplog.records) == 1 and "LookupError: odd: one kernel" in caplog.text


@pytest.mark.parametrize(
    "text",
    ["1 or 6?</think>\n\n6", "<|channel|>analysis<|message|>1<|end|><|channel|>final<|message|>6<|return|>"],
)
def test_a_thought_is_told_from_the_answer(vllm: type[Engine], text: str) -> None:
    vllm.answer = staticmethod(lambda s: [completion(text, LOGS)])
    (outcome,) = build(reasoning=True).forecast([query(source(1))])
    assert isinstance(outcome, Forecast) and outcome.predicted_bin == PREDICTED


def test_a_thought_that_never_ends_is_truncated(vllm: type[Engine]) -> None:
    vllm.answer = staticmethod(lambda s: [completion("1 or 6? or", LOGS, "length")])
    (outcome,) = build(reasoning=True).forecast([query(source(1))])
    assert isinstance(outcome, ForecastFailure) and outcome.kind is FailureKind.TRUNCATED


def test_a_thought_is_held_to_nothing_unless_the_engine_can_tell_where_it_ends(vllm: type[Engine]) -> None:
    vllm.answer = staticmethod(lambda s: [completion("6", LOGS)])
    for engine, held in (({}, False), ({"reasoning_parser": "qwen3"}, True)):
        build(reasoning=True, engine=engine).forecast([query(source(1))])
        sampling = vllm.made[-1].calls[0]["sampling"][0]
        assert ("structured_outputs" in sampling.fields) is held


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"gpu-forecasters-plugin\[vllm\]"):
        build()


def test_what_to_install_for_a_server_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    section = {"kind": "openai_server", "base_url": "http://host", "model": "m"}
    with pytest.raises(MissingExtraError, match=r"gpu-forecasters-plugin\[openai\]"):
        build_forecaster(parse_surrogate_config({"forecaster": section}).forecaster)


def write_card(folder: Path, **changes: Any) -> Path:
    """What a training leaves beside an adapter that was trained for the settings of :func:`build`."""
    settings = LanguageModelSettings(model="m", max_kernel_tokens=1500)
    card = {
        "max_kernel_tokens": 1500,
        "prompt_hashes": {"logprobs": PromptWriter.from_settings(settings).hash},
    }
    (folder / "forecaster.json").write_text(json.dumps(card | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "more", "said"),
    [
        ({}, {}, None),
        ({}, {"max_kernel_tokens": 8000}, "was trained with max_kernel_tokens 1500, and is asked with 8000"),
        ({}, {"readout": "verbalized"}, "was trained for the readout logprobs, not for verbalized"),
        ({}, {"static_profile": False}, "was trained on prompts of another form"),
        ({"prompt_hashes": {"logprobs": "of old"}}, {}, "was trained on prompts of another form"),
        ({"prompt_hashes": None}, {}, "cannot be read"),
        ({"prompt_hashes": [[1, 2], ["a", 3]]}, {}, "was trained for the readout 1, a, not for logprobs"),
        ({"max_kernel_tokens": math.inf}, {}, "cannot be read"),
    ],
)
@pytest.mark.parametrize("kind", ["vllm_local", "openai_server"])
def test_an_adapter_that_is_asked_otherwise_than_it_was_trained_is_a_warning(
    vllm: type[Engine],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    changes: dict[str, Any],
    more: dict[str, Any],
    said: str | None,
) -> None:
    section = {"kind": kind, "model": "m", "lora": str(write_card(tmp_path, **changes)), "hedge": False}
    section |= {"max_kernel_tokens": 1500} | (
        {"base_url": "http://host/v1"} if kind == "openai_server" else {}
    )
    build_forecaster(parse_surrogate_config({"forecaster": section | more}).forecaster)
    assert [said is not None and said in line for line in caplog.messages] == ([True] if said else [])


def test_the_doctor_warns_of_an_adapter_that_is_asked_otherwise(
    vllm: type[Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasters, "find_spec", lambda name: object())
    (write_card(tmp_path) / "adapter_config.json").write_text("{}")
    section = {"kind": "vllm_local", "model": "m", "lora": str(tmp_path), "max_kernel_tokens": 1500}
    for tokens, status in ((1500, Status.OK), (3000, Status.WARN)):
        config = parse_surrogate_config({"forecaster": section | {"max_kernel_tokens": tokens}})
        assert forecasters.check_local_model(config.forecaster).status is status
