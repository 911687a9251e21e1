"""A LoRA adapter in the real server, in the files that ``gpu-forecasters train`` leaves.

A server of its own and minutes of a processor's time: ``LONG_TESTS=1 make test-vllm``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.local_vllm import MODEL_NAME, LocalVllm
from gpu_forecasters_plugin.config import parse_surrogate_config
from gpu_forecasters_plugin.forecast import Forecast, Query
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.forecasters.language_model.trimming import MIN_KERNEL_TOKENS
from gpu_forecasters_plugin.recorded.pool import load_task

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not os.environ.get("LONG_TESTS"), reason="takes minutes: LONG_TESTS=1 make test-vllm"),
]

LAYERS, HIDDEN, VALUES, RANK = 30, 576, 192, 4


def write_adapter(folder: Path, weight: float) -> Path:
    """An adapter as PEFT saves it; with a weight of 0 it changes nothing."""
    generator = np.random.default_rng(0)
    tensors = {}
    for layer in range(LAYERS):
        for module, width in (("q_proj", HIDDEN), ("v_proj", VALUES)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = generator.normal(size=(RANK, HIDDEN), scale=0.05)
            tensors[f"{name}.lora_B.weight"] = generator.normal(size=(width, RANK), scale=0.05) * weight
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    config: dict[str, Any] = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "r": RANK}
    config |= {"lora_alpha": 2 * RANK, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.0}
    config |= {"base_model_name_or_path": "smollm2-135m-instruct", "inference_mode": True}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def safetensors(tensors: dict[str, Any]) -> bytes:
    """The file format: the header's length, the header, and the numbers of all tensors."""
    header, body = {}, b""
    for name, values in tensors.items():
        numbers = values.astype("<f4").tobytes()
        offsets = [len(body), len(body) + len(numbers)]
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": offsets}
        body += numbers
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + body


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalVllm]:
    """A server of its own, with the model and two adapters of it."""
    folder = tmp_path_factory.mktemp("adapters")
    adapters = {
        "trained": write_adapter(folder / "trained", 1.0),
        "idle": write_adapter(folder / "idle", 0.0),
    }
    try:
        started = LocalVllm(folder / "server.log", adapters=adapters)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with started:
        yield started


def probabilities(server: LocalVllm, model: str) -> tuple[float, ...]:
    """What a model forecasts for a short kernel: with an adapter, each token costs a processor much."""
    task = load_task("rmsnorm")
    kernel = min(task.candidates.values(), key=lambda c: (len(c.code), c.id)).code
    query = Query("kernel", kernel, kernel, kernel, task=task.task, device=task.device)
    section = {"kind": "openai_server", "base_url": server.base_url, "model": model, "deadline_s": 400.0}
    section |= {"max_kernel_tokens": MIN_KERNEL_TOKENS, "hedge": False}
    (outcome,) = build_forecaster(parse_surrogate_config({"forecaster": section}).forecaster).forecast(
        [query]
    )
    assert isinstance(outcome, Forecast), outcome
    return outcome.probabilities


def test_an_adapter_is_asked_by_its_name_and_changes_the_forecast(adapted: LocalVllm) -> None:
    plain, idle, trained = (probabilities(adapted, name) for name in (MODEL_NAME, "idle", "trained"))
    assert idle == pytest.approx(plain, abs=1e-3)
    assert trained != pytest.approx(plain, abs=1e-2)
