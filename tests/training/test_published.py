"""Adapters and data sets by name: small local copies that lie as Hugging Face's own cache has them."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_models import kernel, section, write_gpt_oss, write_model

from gpu_forecasters_plugin.config import load_surrogate_config
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecast import Forecast, Query
from gpu_forecasters_plugin.forecasters.factory import build_forecaster
from gpu_forecasters_plugin.training.answering import merged
from gpu_forecasters_plugin.training.base_model import load_base_model
from gpu_forecasters_plugin.training.data import gather
from gpu_forecasters_plugin.training.settings import (
    TrainingSettings,
    load_training_settings,
    with_local_copies,
)

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(find_spec("peft") is None, reason="needs the extra 'train': make test-train"),
    pytest.mark.filterwarnings("default"),
]


class Hub:
    """A cache of Hugging Face's hub, whose hub cannot be reached."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def publish(self, kind: str, name: str) -> Path:
        """The folder of what is published under a name."""
        top = self._folder / f"{kind}s--{name.replace('/', '--')}"
        snapshot = top / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (top / "refs").mkdir()
        (top / "refs" / "main").write_text("0" * 40)
        return snapshot


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return Hub(tmp_path / "hub")


def load(folder: Path, model: Path, **changes: Any) -> TrainingSettings:
    file = folder / "training.yaml"
    file.write_text(yaml.safe_dump({"training": section(folder, model, **changes)}))
    return with_local_copies(load_training_settings(file))


def evaluation_rows() -> list[dict[str, Any]]:
    """The columns of the published evaluation set; its bins contradict the speed-ups and are never read."""
    return [
        {
            "comparison_id": f"c{number}",
            "pack": "kernelbench",
            "source_id": f"s{number}",
            "anchor_code": kernel("published", 0),
            "candidate_code": kernel("published", number),
            "hardware": "H100",
            "aggregated_speedup": 0.3 * number,
            "true_bin": 1,
        }
        for number in range(1, 9)
    ]


def discovery_rows() -> list[dict[str, Any]]:
    return [
        {
            "pair_id": f"p{number}",
            "problem_id": "trimul",
            "parent_code": kernel("trimul", 0),
            "child_code": kernel("trimul", number),
            "hardware": "B200",
            "g_speedup": 2.0 / number,
        }
        for number in range(1, 7)
    ]


def test_published_data_sets_are_trained_on_by_name(tmp_path: Path, hub: Hub) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    data = hub.publish("dataset", "someone/eval-set") / "data"
    data.mkdir()
    for part in (0, 1):
        table = pyarrow.Table.from_pylist(evaluation_rows()[4 * part : 4 * part + 4])
        parquet.write_table(table, data / f"test-0000{part}-of-00002.parquet")
    lines = [json.dumps(row) + "\n" for row in discovery_rows()]
    (hub.publish("dataset", "someone/discovery") / "pairs.jsonl").write_text("".join(lines))
    named: dict[str, Any] = {
        "data": {"tasks": [], "pairs": ["someone/eval-set", "someone/discovery"]},
        "held_out": {"operations": ["trimul"], "kernels": 0.0},
    }
    split = gather(load(tmp_path, tmp_path / "model", **named)).split
    assert sorted(row.bin for row in split.train) == [2, 3, 4, 5, 6, 6, 7, 7]
    assert {row.device for row in split.unseen_operations} == {"B200"} and len(split.unseen_operations) == 6


def published_adapter(hub: Hub, model: Path, name: str, **lora: Any) -> None:
    """An adapter as PEFT publishes it, with weights that change every answer."""
    import peft
    from transformers import AutoModelForCausalLM

    config = peft.LoraConfig(r=4, init_lora_weights=False, task_type="CAUSAL_LM", **lora)
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)
    saved = hub.publish("model", name)
    adapted.save_pretrained(saved)
    (saved / "README.md").write_text("---\nlibrary_name: peft\n---\n")


EXPERTS = {
    "target_modules": "all-linear",
    "target_parameters": ["1.mlp.experts.gate_up_proj", "1.mlp.experts.down_proj"],
}
"""What is adapted of gpt-oss where its experts are too, which are no linear layers."""


@pytest.mark.parametrize(
    ("write", "lora"),
    [(write_model, {"target_modules": ["q_proj", "v_proj"]}), (write_gpt_oss, EXPERTS)],
    ids=["llama", "gpt-oss"],
)
def test_published_adapters_are_asked_and_trained_further_by_name(
    tmp_path: Path, hub: Hub, write: Any, lora: dict[str, Any]
) -> None:
    model = write(tmp_path / "tiny")
    published_adapter(hub, model, "someone/forecaster", **lora)
    query = Query("key", kernel("scale", 3), kernel("scale", 0), kernel("scale", 0))
    told = []
    for name in ("someone/forecaster", None):
        forecaster = {"kind": "transformers_local", "model": str(model), "lora": name, "hedge": False}
        (tmp_path / "config.yaml").write_text(
            yaml.safe_dump({"surrogate": {"forecaster": forecaster | {"max_kernel_tokens": 136}}})
        )
        config = load_surrogate_config(tmp_path / "config.yaml")
        (outcome,) = build_forecaster(config.forecaster).forecast([query])
        assert isinstance(outcome, Forecast)
        told.append(outcome.probabilities)
    assert told[0] != pytest.approx(told[1], abs=1e-4)
    base = load_base_model(load(tmp_path, model, adapter="someone/forecaster"))
    trained = [name for name, p in base.model.named_parameters() if p.requires_grad]
    assert trained and all("lora" in name for name in trained)
    assert any("experts" in name for name in trained) == ("target_parameters" in lora)
    before = {name: p.clone() for name, p in base.model.named_parameters()}
    with merged(base.model):
        moved = {name for name, p in base.model.named_parameters() if not p.equal(before[name])}
    assert any("experts" in name for name in moved) == ("target_parameters" in lora) and moved
    assert all(p.equal(before[name]) for name, p in base.model.named_parameters())


def test_a_name_that_is_nowhere_says_so(tmp_path: Path, hub: Hub) -> None:
    for changes in ({"adapter": "someone/nothing"}, {"data": {"pairs": ["someone/nothing"]}}):
        with pytest.raises(ConfigError, match="someone/nothing: neither a file here nor a (model|dataset)"):
            load(tmp_path, tmp_path / "model", **changes)
    hub.publish("dataset", "someone/empty")
    with pytest.raises(ConfigError, match="someone/empty: the data set has no file"):
        load(tmp_path, tmp_path / "model", data={"pairs": ["someone/empty"]})


def test_a_folder_that_is_there_is_no_name(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "someone").mkdir()
    (tmp_path / "someone" / "rows.jsonl").write_text("")
    shutil.copytree(tmp_path / "someone", tmp_path / "someone" / "adapter")
    found = load(
        tmp_path, tmp_path / "model", adapter="someone/adapter", data={"pairs": ["someone/rows.jsonl"]}
    )
    assert found.adapter == str(tmp_path / "someone" / "adapter")
    assert found.data.pairs == [str(tmp_path / "someone" / "rows.jsonl")]
