"""Real trainings of a tiny random Llama: what they learn, leave behind, and do on bad days."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers import Command
from tiny_models import kernel, section, write_model, write_pool

from gpu_forecasters_plugin.calibration.scores import brier, crps, nll
from gpu_forecasters_plugin.errors import ConfigError, OutputError, TrainingError
from gpu_forecasters_plugin.forecast import Forecast, ForecastFailure
from gpu_forecasters_plugin.forecasters.language_model.parsing import Answer, ReadForecast, read_verbalized
from gpu_forecasters_plugin.training.loop import newest_checkpoint
from gpu_forecasters_plugin.training.run import run_training
from gpu_forecasters_plugin.training.settings import TrainingSettings, parse_training_settings

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(find_spec("peft") is None, reason="needs the extra 'train': make test-train"),
    # What transformers and PEFT deprecate in each other is not ours to mend.
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of a few thousand weights."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny-llama")


def settings(folder: Path, model: Path, **changes: Any) -> TrainingSettings:
    return parse_training_settings(section(folder, model, **changes))


def config(folder: Path, model: Path, **changes: Any) -> Path:
    file = folder / "training.yaml"
    file.write_text(yaml.safe_dump({"training": section(folder, model, **changes)}))
    return file


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(folder / "adapter_model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first)


def learn_flat(folder: Path, model: Path, score: str) -> dict[str, Any]:
    """Kernels of which all are twice as fast as the reference but a few, which are slow."""
    rows: list[dict[str, Any]] = [{"pool": {"task": "flat", "device": "H100", "reference_id": "k0"}}]
    for number in range(24):
        time_us = 100.0 if number == 0 else 200.0 if number % 6 == 0 else 60.0
        code = kernel("flat", number)
        rows.append(
            {"id": f"k{number}", "code": code, "language": "triton", "outcome": "ok", "time_us": time_us}
        )
    pool = folder / "flat.jsonl"
    pool.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes: dict[str, Any] = {
        "data": {"tasks": [str(pool)], "balance": 0.0},
        "held_out": {"operations": [], "kernels": 0.3},
        "proper": {"score": score},
        "steps": 30,
        "save_steps": 30,
        "samples": 0,
        "learning_rate": 0.05,
        "evaluation_rows": None,
    }
    return run_training("proper", settings(folder, model, **changes), folder / "out")


@pytest.mark.parametrize("score", ["nll", "brier", "crps"])
def test_each_proper_score_teaches_how_often_a_bin_comes(tmp_path: Path, model: Path, score: str) -> None:
    summary = learn_flat(tmp_path, model, score)
    losses = [entry["loss"] for entry in summary["log"]["curve"]]
    assert np.mean(losses[-5:]) < 0.7 * losses[0]
    found = summary["held_out"]["unseen_kernels"]
    uniform = {"nll": float(np.log(8)), "brier": 7 / 16, "crps": 0.1}
    assert found[score] < 0.7 * uniform[score]
    assert found["exact"] > 0.5


def test_losses_are_the_scores_that_forecasts_are_judged_by() -> None:
    import torch

    from gpu_forecasters_plugin.training.proper import proper_score

    generator = np.random.default_rng(0)
    p, q = generator.dirichlet(np.ones(8), 16), generator.dirichlet(np.ones(8), 16)
    logs = torch.tensor(np.log(p), requires_grad=True)
    for name, judge in (("nll", nll), ("brier", brier), ("crps", crps)):
        loss = proper_score(logs, torch.tensor(q), name)  # type: ignore[arg-type]
        assert loss.item() == pytest.approx(float(judge(p, q).mean()))
        (gradient,) = torch.autograd.grad(loss, logs)
        assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0


def test_imitation_learns_the_answers_alone_and_of_both_readouts(tmp_path: Path, model: Path) -> None:
    from gpu_forecasters_plugin.training.base_model import load_base_model
    from gpu_forecasters_plugin.training.data import gather
    from gpu_forecasters_plugin.training.sft import SftObjective

    chosen = settings(tmp_path, model)
    base, rows = load_base_model(chosen), gather(chosen).split.train[:8]
    batch = SftObjective(base, chosen).batch(list(enumerate(rows)))
    kinds, names = set(), ("input_ids", "first", "length")
    for ids, first, length, row in zip(*(batch[name].tolist() for name in names), rows, strict=True):
        answer = ids[first : first + length]
        assert answer[-1] in base.answer_ends and not set(answer[:-1]) & base.answer_ends
        text = base.tokenizer.decode(answer, skip_special_tokens=True)
        kinds.add(text.startswith("{"))
        if not text.startswith("{"):
            assert text == str(row.bin)
            continue
        read = read_verbalized(Answer(text, finish_reason="stop"))
        assert isinstance(read, ReadForecast) and read.raw_sum == pytest.approx(1.0) and not read.disagrees
        expected = sum(p * (place + 1) for place, p in enumerate(read.probabilities))
        assert abs(expected - row.bin) < 1.5
    assert kinds == {True, False}


def test_the_loss_of_imitation_is_that_of_each_answer_alone(tmp_path: Path, model: Path) -> None:
    import torch

    from gpu_forecasters_plugin.training.base_model import load_base_model
    from gpu_forecasters_plugin.training.data import gather
    from gpu_forecasters_plugin.training.sft import SftObjective

    chosen = settings(tmp_path, model)
    base, rows = load_base_model(chosen), gather(chosen).split.train[:5]
    objective = SftObjective(base, chosen)
    batch = objective.batch(list(enumerate(rows)))
    alone = []
    for ids, first, length in zip(batch["input_ids"], batch["first"], batch["length"], strict=True):
        whole = ids[None, : first + length]
        logits = base.model(input_ids=whole).logits[0, first - 1 : -1]
        alone.append(torch.nn.functional.cross_entropy(logits, whole[0, first:]).item())
    assert objective.loss(base.model, batch).item() == pytest.approx(float(np.mean(alone)), rel=1e-4)


def test_a_training_leaves_an_adapter_that_peft_loads_and_says_how_to_ask_it(
    gpu_forecasters: Command, tmp_path: Path, model: Path
) -> None:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    file = config(tmp_path, model, tensorboard=True)
    ended = gpu_forecasters("train", "proper", "--config", file, "--out", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert "unseen operations" in ended.out and "4/4 steps" in ended.err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["rows"]["train"] > 0 and summary["held_out_operations"] == ["shift"]
    assert summary["held_out"]["unseen_operations"]["n"] == 4
    card = json.loads((tmp_path / "out" / "adapter" / "forecaster.json").read_text())
    assert card["base_model"] == str(model) and card["readouts"] == ["logprobs"]
    assert card["prompt_hashes"].keys() == {"logprobs"} and card["max_kernel_tokens"] == 136
    assert card["held_out"]["unseen_operations"]["brier"] == summary["held_out"]["unseen_operations"]["brier"]
    samples = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert {sample["step"] for sample in samples} == {2, 4} and len(samples[0]["probabilities"]) == 8
    assert list((tmp_path / "out").rglob("events.out.tfevents*"))
    plain = AutoModelForCausalLM.from_pretrained(model)
    ids = torch.tensor([[1, 2, 3]])
    before = plain(ids).logits.detach().clone()
    loaded = peft.PeftModel.from_pretrained(plain, tmp_path / "out" / "adapter")
    assert not torch.allclose(before, loaded(ids).logits)


def test_a_trained_adapter_is_evaluated_and_warned_of_when_asked_otherwise(
    gpu_forecasters: Command, tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = config(tmp_path, model, samples=0, evaluation_rows=1)
    assert gpu_forecasters("train", "proper", "--config", file, "--out", tmp_path / "out").code == 0
    pairs = write_rows(tmp_path / "pairs.jsonl", None, count=3)
    briers = []
    for lora, tokens in ((None, 136), ("out/adapter", 136), ("out/adapter", 200)):
        forecaster = {"kind": "transformers_local", "model": str(model), "lora": lora, "hedge": False}
        asking = tmp_path / "asking.yaml"
        asking.write_text(
            yaml.safe_dump({"surrogate": {"forecaster": forecaster | {"max_kernel_tokens": tokens}}})
        )
        scores = tmp_path / f"scores-{len(briers)}"
        command = ("evaluate", "--pairs", pairs, "--forecaster", "transformers_local", "--config", asking)
        ended = gpu_forecasters(*command, "--out", scores)
        assert ended.code == 0, ended.err
        warned = any(
            "trained with max_kernel_tokens 136, and is asked with 200" in m for m in caplog.messages
        )
        assert warned == (tokens == 200)
        summary = json.loads((scores / "summary.json").read_text())
        assert summary["n_forecast"] == summary["n"] == 6
        briers.append(summary["brier"])
    assert briers[0] != pytest.approx(briers[1], abs=1e-4)


def test_a_training_that_was_finished_stays_as_it_is(
    gpu_forecasters: Command, tmp_path: Path, model: Path
) -> None:
    file = config(tmp_path, model, samples=0, evaluation_rows=1)
    for _ in range(2):
        assert gpu_forecasters("train", "proper", "--config", file, "--out", tmp_path / "out").code == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["log"]["rows"] == 0 and summary["log"]["steps"] == 4


def test_a_training_that_is_told_to_end_keeps_its_checkpoints_and_says_how_to_go_on(
    tmp_path: Path, model: Path
) -> None:
    file = config(tmp_path, model, steps=10_000, samples=0)
    command = [sys.executable, "-m", "gpu_forecasters_plugin", "train", "proper", "--config", str(file)]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "/10000 steps" in line and list((tmp_path / "out").rglob("complete.json")):
                process.terminate()
                break
        said = process.stderr.read()
    assert process.returncode == 143
    assert "terminated; checkpoints are kept: start the same command again to go on" in said
    assert newest_checkpoint(tmp_path / "out") is not None


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import transformers
from gpu_forecasters_plugin.training.run import run_training
from gpu_forecasters_plugin.training.settings import load_training_settings

{fault}
run_training("proper", load_training_settings(Path(sys.argv[1])), Path(sys.argv[2]))
"""
IN_STEP = """
from gpu_forecasters_plugin.training.proper import ProperObjective
loss, calls = ProperObjective.loss, [0]
def dying(self, *arguments):
    calls[0] += 1
    if calls[0] == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss(self, *arguments)
ProperObjective.loss = dying
"""
IN_CHECKPOINT = """
save, calls = transformers.Trainer._save_optimizer_and_scheduler, [0]
def dying(self, folder):
    calls[0] += 1
    if calls[0] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return save(self, folder)
transformers.Trainer._save_optimizer_and_scheduler = dying
"""


def train_with(fault: str, file: Path, out: Path) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(tests=str(Path(__file__).parent), fault=fault)
    return subprocess.run(
        [sys.executable, "-c", script, str(file), str(out)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("fault", [IN_STEP, IN_CHECKPOINT], ids=["in a step", "in a checkpoint"])
def test_after_a_kill_the_same_command_goes_on_to_the_same_adapter(
    gpu_forecasters: Command, tmp_path: Path, model: Path, fault: str
) -> None:
    file = config(tmp_path, model, samples=0, evaluation_rows=1)
    killed = train_with(fault, file, tmp_path / "killed")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "killed" / "adapter").exists()
    again = gpu_forecasters("train", "proper", "--config", file, "--out", tmp_path / "killed")
    assert again.code == 0, again.err
    assert gpu_forecasters("train", "proper", "--config", file, "--out", tmp_path / "whole").code == 0
    assert same_weights(tmp_path / "killed" / "adapter", tmp_path / "whole" / "adapter")
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("killed", "whole")]
    # What was done before the kill is not done again.
    assert summaries[0]["log"]["rows"] == 8 and summaries[1]["log"]["rows"] == 16


def test_a_full_disk_ends_with_advice_and_the_training_goes_on_when_there_is_room(
    gpu_forecasters: Command, tmp_path: Path, model: Path
) -> None:
    file = config(tmp_path, model, samples=0, evaluation_rows=1)
    # Files end at 20 kB, as on a disk without room: the optimiser's state has more.
    fault = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1))"
    ended = train_with(fault, file, tmp_path / "out")
    assert ended.returncode == 1
    assert "OutputError: a checkpoint cannot be written below" in ended.stderr
    assert "make room, and start the same command again" in ended.stderr
    assert gpu_forecasters("train", "proper", "--config", file, "--out", tmp_path / "out").code == 0


def test_logits_that_are_not_finite_stop_the_training_before_anything_is_learned_from_them(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    broken = write_model(tmp_path / "broken")
    state = load_file(broken / "model.safetensors")
    state["model.norm.weight"].fill_(float("nan"))
    save_file(state, broken / "model.safetensors", {"format": "pt"})
    file = config(tmp_path, broken)
    ended = gpu_forecasters("train", "proper", "--config", file, "--out", tmp_path / "out")
    assert ended.code == 1
    assert "step 1: the loss is nan: the model's logits are not finite: lower learning_rate" in ended.err
    assert not (tmp_path / "out" / "adapter").exists()


def test_a_prompt_longer_than_the_context_names_the_knob(tmp_path: Path) -> None:
    short = write_model(tmp_path / "short", context=512)
    with pytest.raises(
        TrainingError, match=r"has \d+ tokens .* more than the 512 of .*lower max_kernel_tokens \(now 136\)"
    ):
        run_training("proper", settings(tmp_path, short), tmp_path / "out")


def test_memory_that_runs_out_names_the_knobs(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from gpu_forecasters_plugin.training.proper import ProperObjective

    def full(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(ProperObjective, "loss", full)
    with pytest.raises(TrainingError, match=r"out of memory: halve batch_size \(now 4\)"):
        run_training("proper", settings(tmp_path, model), tmp_path / "out")


def test_an_adapter_of_another_base_model_is_refused(tmp_path: Path, model: Path) -> None:
    plain = settings(tmp_path, model, steps=1, samples=0, evaluation_rows=1)
    run_training("proper", plain, tmp_path / "first")
    adapter = str(tmp_path / "first" / "adapter")
    other = write_model(tmp_path / "other-llama")
    with pytest.raises(ConfigError, match="belongs to base model .*tiny-llama, not to .*other-llama"):
        run_training("proper", settings(tmp_path, other, adapter=adapter), tmp_path / "second")
    larger = write_model(tmp_path / "tiny-llama", hidden=32)
    with pytest.raises(ConfigError, match="does not fit the base model"):
        run_training("proper", settings(tmp_path, larger, adapter=adapter), tmp_path / "third")
    with pytest.raises(ConfigError, match="was trained with max_kernel_tokens 136, not 200"):
        changed = settings(tmp_path, model, adapter=adapter, max_kernel_tokens=200)
        run_training("proper", changed, tmp_path / "fourth")
    with pytest.raises(ConfigError, match="adapter_model.safetensors cannot be read"):
        run_training("proper", settings(tmp_path, model, adapter=str(tmp_path)), tmp_path / "fifth")


def test_a_base_model_that_is_none_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="base_model: .*empty.* cannot be loaded"):
        run_training("proper", settings(tmp_path, tmp_path / "empty"), tmp_path / "out")


def test_a_model_without_a_chat_template_cannot_be_asked(tmp_path: Path) -> None:
    plain = write_model(tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    with pytest.raises(TrainingError, match="has no chat template: take an instruction-tuned model"):
        run_training("proper", settings(tmp_path, plain), tmp_path / "out")


def test_another_training_in_the_folder_is_refused(tmp_path: Path, model: Path) -> None:
    plain: dict[str, Any] = {"steps": 1, "samples": 0, "evaluation_rows": 1}
    run_training("proper", settings(tmp_path, model, **plain), tmp_path / "out")
    with pytest.raises(OutputError, match="holds another training"):
        run_training("proper", settings(tmp_path, model, **plain, seed=1), tmp_path / "out")


def test_answers_that_cannot_be_read_are_failures_and_score_as_uniform(tmp_path: Path, model: Path) -> None:
    from gpu_forecasters_plugin.training.base_model import load_base_model
    from gpu_forecasters_plugin.training.data import gather
    from gpu_forecasters_plugin.training.scoring import forecast_rows, held_out_scores

    chosen = settings(tmp_path, model)
    base, rows = load_base_model(chosen), gather(chosen).split.unseen_operations[:3]
    outcomes = forecast_rows(base, rows, chosen, "verbalized")
    assert all(isinstance(outcome, ForecastFailure) for outcome in outcomes)
    found = held_out_scores(rows, outcomes)
    assert found["n_forecast"] == 0 and found["brier"] == pytest.approx(7 / 16)
    assert sum(found["failures"].values()) == 3


def test_labels_are_read_alike_alone_and_in_a_padded_batch(tmp_path: Path, model: Path) -> None:
    from gpu_forecasters_plugin.training.base_model import load_base_model
    from gpu_forecasters_plugin.training.data import gather
    from gpu_forecasters_plugin.training.scoring import forecast_rows

    pool = write_pool(tmp_path, "scale_with_a_rather_long_name_of_its_own", kernels=4)
    chosen = settings(tmp_path, model)
    longer = chosen.model_copy(update={"data": chosen.data.model_copy(update={"tasks": [str(pool)]})})
    held = longer.held_out.model_copy(update={"operations": [], "kernels": 0.0})
    rows = (
        *gather(chosen).split.train[:2],
        *gather(longer.model_copy(update={"held_out": held})).split.train[:2],
    )
    base = load_base_model(chosen)
    together = forecast_rows(base, rows, chosen, "logprobs")
    alone = [forecast_rows(base, [row], chosen, "logprobs")[0] for row in rows]
    for one, other in zip(together, alone, strict=True):
        assert isinstance(one, Forecast) and isinstance(other, Forecast)
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
        assert one.covered_mass == pytest.approx(other.covered_mass, abs=1e-5)


FAST, SLOW = 3.0, 0.3


def write_rows(path: Path, audited: float | None, count: int = 24) -> Path:
    """Measured kernels that are fast or slow by turns; further ones, drawn at random, that are all ``audited``.

    Without that number none was drawn at random.
    """
    lines = []
    for number in range(1, 2 * count + 1):
        drawn = number > count
        lines.append(
            {
                "task": "mine",
                "language": "triton",
                "hardware": "H100",
                "reference_code": kernel("mine", 0),
                "candidate_code": kernel("mine", number),
                "outcome": "ok",
                "speedup": audited if drawn and audited else (FAST if number % 4 else 1.2),
                "sampling_probability": 0.25 if drawn and audited else None,
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def learn_on(
    run: Command, folder: Path, model: Path, audited: float | None, **changes: Any
) -> tuple[Any, Path]:
    """A first adapter behind the link ``current``, then a second that learns on from a ledger of imported rows."""
    quick: dict[str, Any] = {"samples": 0, "evaluation_rows": 1}
    file = config(folder, model, **quick)
    assert run("train", "proper", "--config", file, "--out", folder / "first", "--steps", "1").code == 0
    (folder / "current").symlink_to(folder / "first" / "adapter")
    rows = write_rows(folder / "rows.jsonl", audited)
    assert run("ledger", "import", rows, "--ledger", folder / "ledger.sqlite3").code == 0
    more: dict[str, Any] = {
        "steps": 20,
        "save_steps": 20,
        "learning_rate": 0.05,
        "contest": {"audit_share": 1.0, "fewest_rows": 10},
    }
    file = config(folder, model, **(quick | more | changes))
    ended = run(
        *("train", "proper", "--config", file, "--adapter", folder / "current", "--since", "2026-01-01"),
        *("--out", folder / "second", "--from", folder / "ledger.sqlite3"),
    )
    return ended, folder / "current"


def test_a_forecaster_that_has_learned_on_takes_the_old_ones_place_behind_its_link(
    gpu_forecasters: Command, tmp_path: Path, model: Path
) -> None:
    ended, link = learn_on(gpu_forecasters, tmp_path, model, audited=FAST)
    assert ended.code == 0, ended.err
    assert "accepted: brier on 24 audit rows" in ended.out
    assert link.resolve() == (tmp_path / "second" / "adapter").resolve()
    summary = json.loads((tmp_path / "second" / "summary.json").read_text())
    assert summary["contest"]["after"] < summary["contest"]["before"]
    assert summary["rows"]["audit"] == 24 and summary["rows"]["replay"] > 0


def test_one_that_scores_worse_on_audit_rows_is_refused_and_the_old_one_stays(
    gpu_forecasters: Command, tmp_path: Path, model: Path
) -> None:
    # It learns that most kernels are fast; those drawn at random are slow.
    ended, link = learn_on(gpu_forecasters, tmp_path, model, audited=SLOW)
    assert ended.code == 1
    assert "is refused and" in ended.err and "current stays: brier on 24 audit rows" in ended.err
    assert link.resolve() == (tmp_path / "first" / "adapter").resolve()
    assert (tmp_path / "second" / "refused" / "adapter_model.safetensors").exists()
    assert not (tmp_path / "second" / "adapter").exists()
    assert json.loads((tmp_path / "second" / "summary.json").read_text())["accepted"] is False


def test_without_audit_rows_nothing_can_be_told_and_the_old_one_stays(
    gpu_forecasters: Command, tmp_path: Path, model: Path
) -> None:
    only_new: dict[str, Any] = {"data": {"tasks": []}, "held_out": {"operations": [], "kernels": 0.0}}
    ended, link = learn_on(gpu_forecasters, tmp_path, model, audited=None, steps=1, **only_new)
    assert ended.code == 1
    assert "there are 0 audit rows, and contest.fewest_rows is 10: nothing can be told" in ended.err
    assert link.resolve() == (tmp_path / "first" / "adapter").resolve()
