"""Experts of one kind and model have names of their own, by what differs in their settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import surrogate

from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecast import Query
from gpu_forecasters_plugin.forecasters import MixtureForecaster
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.forecasters.language_model.model_names import same_model

SERVER = {"kind": "openai_server", "base_url": "http://one/v1", "model": "m"}


def names(*experts: dict[str, Any]) -> list[str]:
    """Names of the experts of a mixture, climatology apart."""
    mixture = build_forecaster(surrogate(forecaster={"kind": "mixture", "experts": list(experts)}).forecaster)
    assert isinstance(mixture, MixtureForecaster)
    return [name for name in mixture.weights if name != "climatology"]


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([{}, {"readout": "samples"}], ["[readout=logprobs]", "[readout=samples]"]),
        ([{}, {"base_url": "http://two/v1"}], ["[base_url=http://one/v1]", "[base_url=http://two/v1]"]),
        ([{"temperature": 0.5}, {}], ["[temperature=0.5]", "[temperature=null]"]),
        (
            [{}, {"readout": "samples"}, {"readout": "samples", "samples": 3}],
            ["[readout=logprobs, samples=8]", "[readout=samples, samples=8]", "[readout=samples, samples=3]"],
        ),
    ],
    ids=["readout", "base_url", "temperature", "two of three alike"],
)
def test_servers_of_one_model_are_told_apart(differences: list[dict[str, Any]], expected: list[str]) -> None:
    pytest.importorskip("openai")
    assert names(*(SERVER | more for more in differences)) == [f"openai_server:m{end}" for end in expected]


def test_an_only_expert_of_its_kind_and_model_keeps_its_name() -> None:
    pytest.importorskip("openai")
    assert names(SERVER, SERVER | {"model": "n"}, {"kind": "random"}) == [
        "openai_server:m",
        "openai_server:n",
        "random",
    ]


def test_experts_that_are_the_same_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        ConfigError, match="two experts are openai_server:m .* leave one out, or let them differ"
    ):
        names(SERVER, SERVER)


def test_long_settings_are_cut_and_stay_distinct() -> None:
    pytest.importorskip("openai")
    found = names(*(SERVER | {"base_url": f"http://{'a' * 60}/{end}"} for end in "xy"))
    assert len(set(found)) == 2 and max(map(len, found)) < 100


def test_what_is_inside_recalibrated_experts_is_told_apart_as_well(tmp_path: Path) -> None:
    experts = []
    for number in (1, 2):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps({"candidate_key": "k", "probabilities": [number] + [1] * 7}) + "\n")
        experts.append({"kind": "recalibrated", "forecaster": {"kind": "replay", "path": str(path)}})
    mixture = build_forecaster(surrogate(forecaster={"kind": "mixture", "experts": experts}).forecaster)
    (outcome,) = mixture.forecast([Query("k", "x", "y", "y")])
    inner = [name for name in outcome.components if name.startswith("replay[path=")]  # type: ignore[union-attr]
    assert len(inner) == 2


@pytest.mark.parametrize(
    ("asked", "answered", "same"),
    [
        ("gpt-5", "gpt-5-2025-08-07", True),
        ("gpt-4", "gpt-4-0613", True),
        ("claude-sonnet-4", "claude-sonnet-4@20250514", True),
        ("mistral-large-latest", "mistral-large-2411", True),
        ("gemini-2.0-flash", "models/gemini-2.0-flash-001", True),
        ("openai/gpt-oss-20b", "gpt-oss-20b:free", True),
        ("Qwen/Qwen3-8B", "qwen3-8b", True),
        ("/models/smol/", "smol", True),
        ("anything", " ", True),
        ("gpt-5", "gpt-5-mini", False),
        ("gpt-5-mini", "gpt-5", False),
        ("llama3:8b", "llama3:70b", False),
        ("llama-3-8", "llama-3-70", False),
        ("gpt-oss-20b", "gpt-oss-120b", False),
        ("gpt-5", "gpt-5.1", False),
    ],
)
def test_releases_and_providers_make_no_other_model(asked: str, answered: str, same: bool) -> None:
    assert same_model(asked, answered) is same
