"""GRPO of a tiny random Llama, and of a tiny random gpt-oss, through TRL's own trainer."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny_models import section, write_gpt_oss, write_model

from gpu_forecasters_plugin.errors import ConfigError, TrainingError
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure
from gpu_forecasters_plugin.training import grpo
from gpu_forecasters_plugin.training.answering import Drawing, drawn_answers, merged
from gpu_forecasters_plugin.training.base_model import BaseModel, load_base_model
from gpu_forecasters_plugin.training.data import gather
from gpu_forecasters_plugin.training.memory import Architecture
from gpu_forecasters_plugin.training.settings import TrainingSettings, parse_training_settings
from gpu_forecasters_plugin.training.shared_questions import SharedQuestions

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(find_spec("trl") is None, reason="needs the extra 'train': make test-train"),
    # What transformers, PEFT and TRL deprecate in each other is not ours to mend.
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny-llama")


def settings(folder: Path, model: Path, **changes: Any) -> TrainingSettings:
    given = {
        "steps": 2,
        "batch_size": 2,
        "gradient_accumulation": 2,
        "grpo": {"group_size": 2, "vllm": "never"},
    }
    given["grpo"]["max_answer_tokens"] = 16
    return parse_training_settings(section(folder, model, **(given | changes)))


def trained(base: BaseModel, chosen: TrainingSettings, folder: Path, **more: Any) -> grpo.GrpoLog:
    folder.mkdir(exist_ok=True)
    return grpo.train_grpo(base, gather(chosen), chosen, folder, **more)


def adapter(base: BaseModel) -> dict[str, Any]:
    return {name: p.detach().clone() for name, p in base.model.named_parameters() if p.requires_grad}


def changed(before: dict[str, Any], base: BaseModel) -> bool:
    return any(not before[name].equal(values) for name, values in adapter(base).items())


def alternating(text: str, finished: bool) -> Forecast:
    """A reader that finds a forecast in every answer: a sure one, or in texts of odd length a flat one."""
    return Forecast((0.125,) * 8 if len(text) % 2 else (0.65, *(0.05,) * 7))


def test_answers_that_cannot_be_read_earn_nothing_and_teach_nothing(tmp_path: Path, model: Path) -> None:
    chosen = settings(tmp_path, model)
    base = load_base_model(chosen)
    before = adapter(base)
    log = trained(base, chosen, tmp_path / "out")
    assert (log.steps, log.answers, log.failures) == (2, 8, 8)
    assert not changed(before, base)
    samples = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert {sample["reward"] for sample in samples} == {0.0}


def test_better_answers_of_a_group_are_learned(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "read_answer", alternating)
    chosen = settings(tmp_path, model, grpo={"group_size": 4, "max_answer_tokens": 16, "vllm": "never"})
    base = load_base_model(chosen)
    before = adapter(base)
    log = trained(base, chosen, tmp_path / "out")
    assert log.failures == 0 and log.answer_tokens > 0
    assert changed(before, base)


def test_a_killed_training_goes_on_from_its_last_whole_checkpoint(tmp_path: Path, model: Path) -> None:
    chosen = settings(tmp_path, model, steps=3, save_steps=1)
    base = load_base_model(chosen)

    def kill(step: int) -> bool:
        if step == 2:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        trained(base, chosen, tmp_path / "out", on_step=kill)
    torn = tmp_path / "out" / "checkpoints" / "checkpoint-2"
    torn.mkdir(exist_ok=True)
    seen: list[int] = []
    log = trained(
        load_base_model(chosen), chosen, tmp_path / "out", on_step=lambda step: bool(seen.append(step))
    )
    assert seen == [2, 3] and log.steps == 3


def test_a_training_ends_when_it_is_told_to(tmp_path: Path, model: Path) -> None:
    chosen = settings(tmp_path, model)
    assert trained(load_base_model(chosen), chosen, tmp_path / "out", on_step=lambda step: True).steps == 1


def test_an_update_takes_whole_groups(tmp_path: Path, model: Path) -> None:
    chosen = settings(tmp_path, model, grpo={"group_size": 3})
    with pytest.raises(ConfigError, match="whole groups of 3"):
        trained(load_base_model(chosen), chosen, tmp_path / "out")


def adapted(folder: Path, model: Path) -> BaseModel:
    """With an adapter that changes every answer."""
    base = load_base_model(settings(folder, model))
    for name in adapter(base):
        base.model.get_parameter(name).data.normal_(std=0.2)
    return base


QUESTIONS = [list(range(5, 40)), list(range(50, 60)), list(range(5, 41))]


def test_answers_to_questions_read_once_are_those_to_each_question_alone(tmp_path: Path, model: Path) -> None:
    import torch

    base = adapted(tmp_path, model)
    found = drawn_answers(base.model, QUESTIONS, 2, Drawing(12, frozenset({1}), 0, temperature=0.0))
    assert len(found) == 6 and found[0] != found[2]
    for place, answer in enumerate(found):
        ids = torch.tensor([QUESTIONS[place // 2]])
        alone = base.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=1,
            pad_token_id=0,
        )[0, ids.shape[1] :].tolist()
        assert alone[: len(answer)] == answer
        assert len(answer) == 12 or answer[-1] == 1


def test_answers_are_drawn_from_the_models_own_probabilities(tmp_path: Path, model: Path) -> None:
    import torch

    base = adapted(tmp_path, model)
    torch.manual_seed(0)
    how = Drawing(1, frozenset({1}), 0, temperature=2.0)
    drawn = torch.tensor(drawn_answers(base.model, QUESTIONS[:1], 4000, how))[:, 0]
    shares = torch.bincount(drawn, minlength=base.model.config.vocab_size) / 4000
    with torch.no_grad():
        logits = base.model(input_ids=torch.tensor(QUESTIONS[:1])).logits[0, -1]
    expected = (logits / 2.0).softmax(dim=-1)
    likely = expected.topk(10).indices
    assert (shares[likely] - expected[likely]).abs().max() < 4 * math.sqrt(0.25 / 4000)


def test_an_answer_that_has_ended_stays_ended(tmp_path: Path, model: Path) -> None:
    base = adapted(tmp_path, model)
    free = drawn_answers(base.model, QUESTIONS, 1, Drawing(12, frozenset(), 0, temperature=0.0))
    ends = frozenset({free[0][3]})
    found = drawn_answers(base.model, QUESTIONS, 1, Drawing(12, ends, 0, temperature=0.0))
    for answer, whole in zip(found, free, strict=True):
        assert answer == whole[: len(answer)]
        assert len(answer) == 12 or answer[-1] in ends
    assert len(found[0]) <= 4


def test_logits_that_are_not_finite_draw_no_answers(tmp_path: Path, model: Path) -> None:
    base = adapted(tmp_path, model)
    base.model.get_base_model().lm_head.weight.data.fill_(math.nan)
    with pytest.raises(TrainingError, match="answers can no longer be drawn"):
        drawn_answers(base.model, QUESTIONS, 2, Drawing(4, frozenset({1}), 0))


def test_answers_behind_a_shared_question_have_the_log_probabilities_of_answers_alone(
    tmp_path: Path, model: Path
) -> None:
    import torch

    base = adapted(tmp_path, model)
    answers = [[7, 8, 9], [10], [11, 12, 13, 14], [], [7, 8]]
    rows = list(zip([QUESTIONS[0]] * 3 + [QUESTIONS[1]] * 2, answers, strict=True))
    shared = SharedQuestions.of(rows, 0, "cpu", torch.float32)
    assert len(shared.inputs["input_ids"]) == 2
    inputs = {name: values for name, values in shared.inputs.items() if name != "shift_labels"}
    labels = shared.inputs["shift_labels"]
    logs = base.model(**inputs).logits.log_softmax(dim=-1)
    found = shared.by_answer(logs.gather(2, labels.clamp(min=0)[..., None])[..., 0], 5)
    found.sum().backward()
    together = {name: base.model.get_parameter(name).grad.clone() for name in adapter(base)}
    base.model.zero_grad()
    for row, (question, answer) in enumerate(rows):
        ids = torch.tensor([question + answer])
        alone = base.model(input_ids=ids).logits[0].log_softmax(dim=-1)
        steps = torch.arange(len(answer))
        expected = alone[len(question) - 1 + steps, torch.tensor(answer, dtype=torch.long)]
        expected.sum().backward()
        assert torch.allclose(found[row, : len(answer)], expected, atol=1e-4)
        assert not found[row, len(answer) :].any()
    for name, gradient in together.items():
        assert torch.allclose(gradient, base.model.get_parameter(name).grad, atol=1e-3), name


def test_a_failure_of_infrastructure_moves_nothing(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer whose reward is unknown is left out; were it taken for 0, the others would be better than it."""
    outcomes = iter([ForecastFailure(FailureKind.UNREACHABLE, "gone"), alternating("", True)] * 4)
    monkeypatch.setattr(grpo, "read_answer", lambda text, finished: next(outcomes))
    chosen = settings(tmp_path, model)
    base = load_base_model(chosen)
    before = adapter(base)
    log = trained(base, chosen, tmp_path / "out")
    assert (log.answers, log.failures) == (8, 4)
    assert not changed(before, base)


def test_merging_puts_weights_back_bit_for_bit(tmp_path: Path, model: Path) -> None:
    base = load_base_model(settings(tmp_path, model))
    for name in adapter(base):
        base.model.get_parameter(name).data.normal_()
    before = {name: p.clone() for name, p in base.model.named_parameters()}
    with merged(base.model):
        added = {name: p.clone() for name, p in base.model.named_parameters()}
    assert any(not before[name].equal(values) for name, values in added.items())
    assert all(before[name].equal(values) for name, values in base.model.named_parameters())


def test_failures_of_infrastructure_are_left_out() -> None:
    truth = [1.0, *[0.0] * 7]
    outcomes = [
        ForecastFailure(FailureKind.UNREACHABLE, "gone"),
        ForecastFailure(FailureKind.INVALID, "no JSON"),
        Forecast((1.0, *(0.0,) * 7)),
    ]
    assert grpo.answer_rewards("correctness_brier", outcomes, [truth] * 3) == [None, 0.0, 2.0]


def test_gpt_oss_learns_by_each_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_forecasters_plugin.training.proper import train_proper
    from gpu_forecasters_plugin.training.sft import train_sft

    monkeypatch.setattr(grpo, "read_answer", alternating)
    tiny = write_gpt_oss(tmp_path / "tiny-gpt-oss")
    chosen = settings(tmp_path, tiny, model_size="large", steps=1, samples=0)
    base = load_base_model(chosen)
    assert base.frame.before == "<|channel|>final<|message|>"
    shapes = Architecture(0.0, 2, 16, 2, 8, 1, 2, 16)
    assert sum(values.numel() for values in adapter(base).values()) == 16 * shapes.attention_lora
    for train in (train_sft, train_proper, grpo.train_grpo):
        folder = tmp_path / train.__name__
        folder.mkdir()
        before = adapter(base)
        train(base, gather(chosen), chosen, folder)
        assert changed(before, base), train.__name__
