"""The example's configurations, as they stand; its README tells how they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.local_vllm import MODEL_NAME
from gpu_forecasters_plugin.config import load_surrogate_config

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "vllm_openevolve"


@pytest.mark.parametrize("name", ["config.yaml", "gpt_oss.yaml"])
def test_configurations_of_the_example_are_valid(name: str) -> None:
    forecaster = load_surrogate_config(EXAMPLE / name, required=True).forecaster
    assert forecaster.kind == "openai_server"
    assert forecaster.base_url == ["http://127.0.0.1:8000/v1"]


def test_the_small_models_name_is_the_servers() -> None:
    assert load_surrogate_config(EXAMPLE / "config.yaml").forecaster.model == MODEL_NAME
