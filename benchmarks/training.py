"""Does a calibration-shaped reward make a forecaster that knows what it does not know? What is trained, and on what.

A small language model (SmolLM2-135M-Instruct) is taught the form of both kinds of answers (SFT), with two seeds. From
each of these two starts go on, over the same kernels for the same number of steps: GRPO of written forecasts with each
of four rewards, and ``proper``, direct descent on each of three scores of the one-token readout. Two recorded
operations are never trained on, nor is a fifth of the kernels of the others.

``python -m benchmarks.training_drive --model FOLDER --work FOLDER`` trains whatever has no result there yet and keeps
each one's forecasts; ``python -m benchmarks.training_report`` makes table and pictures of them, without a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.training.data import TrainingData, gather
from gpu_forecasters_plugin.training.rows import TrainingRow
from gpu_forecasters_plugin.training.settings import TrainingSettings, parse_training_settings
from gpu_forecasters_plugin.training.splits import Split

__all__ = [
    "BASE",
    "DRAWS",
    "HELD_OUT_OPERATIONS",
    "PARTS",
    "PROFILE",
    "REWARDS",
    "SCORES",
    "SEEDS",
    "SIZES",
    "TRAINED_OPERATIONS",
    "Numbers",
    "Work",
    "gathered",
    "lane",
    "settings_of",
]

HELD_OUT_OPERATIONS = ("softmax", "gdn_chunk_o")
TRAINED_OPERATIONS = ("cross_entropy", "fp8_quant", "rmsnorm")
OTHER_BASELINES = 3
"""Each trained kernel is also compared with so many other trained ones, since the reference alone gives few rows."""
SEEDS = (0, 1)
REWARDS = ("correctness", "correctness_brier", "correctness_crps", "correctness_log")
SCORES = ("nll", "brier", "crps")
BASE = "base"
PROFILE = "profile-correctness_brier-0"
DRAWS = 4
"""Written answers per kernel, drawn at temperature 1 as in training: the likeliest one of this model is worthless."""
PARTS = ("train", "unseen_kernels", "unseen_operations")

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much is trained: full, and a rehearsal's, which shows that all of it works.

    Attributes:
        sft, grpo, proper, longer: settings of each.
        group: answers to each question.
        answer_tokens: longest answer.
        rows: most rows of each part that is tested on.
        kernel_tokens: most tokens of a kernel in a prompt.
        profiled: steps of the profile, of which the last but one is looked into.
        grpo_steps: fewest, usual and most steps of GRPO; ``proper`` has as many.
    """

    sft: Numbers
    grpo: Numbers
    proper: Numbers
    longer: Numbers
    group: int
    answer_tokens: int
    rows: int | None
    kernel_tokens: int
    profiled: int
    grpo_steps: tuple[int, int, int]


_PROPER = {"batch_size": 16, "learning_rate": 5e-4}
_FULL = Sizes(
    sft={"steps": 120, "batch_size": 8, "gradient_accumulation": 4, "learning_rate": 1e-3},
    # 16 questions an update, as many as proper has.
    grpo={"batch_size": 64, "gradient_accumulation": 2, "learning_rate": 3e-4},
    proper=_PROPER,
    longer=_PROPER | {"steps": 150},
    group=8,
    answer_tokens=128,
    rows=200,
    kernel_tokens=1500,
    profiled=5,
    grpo_steps=(12, 24, 40),
)
SIZES = {
    "full": _FULL,
    # What the full size does to a GPU's memory and time, in a minute.
    "trial": replace(
        _FULL,
        sft=_FULL.sft | {"steps": 2},
        longer=_FULL.longer | {"steps": 2},
        rows=16,
        profiled=4,
        grpo_steps=(2, 2, 2),
    ),
    "rehearsal": Sizes(
        sft={"steps": 2, "batch_size": 2, "learning_rate": 1e-3},
        grpo={"batch_size": 4, "gradient_accumulation": 2, "learning_rate": 2e-4},
        proper={"batch_size": 2, "learning_rate": 2e-4},
        longer={"steps": 3, "batch_size": 2, "learning_rate": 2e-4},
        group=2,
        answer_tokens=16,
        rows=2,
        kernel_tokens=200,
        profiled=4,
        grpo_steps=(2, 2, 2),
    ),
}


def lane(seed: int) -> list[str]:
    """The trainings of a seed in the order in which they are worth most: a cut leaves what can be compared."""
    order = [
        f"start-{seed}",
        f"grpo-correctness-{seed}",
        f"grpo-correctness_brier-{seed}",
        *(f"proper-{score}-{seed}" for score in ("brier", "nll", "crps")),
        f"grpo-correctness_crps-{seed}",
        f"longer-brier-{seed}",
        f"grpo-correctness_log-{seed}",
    ]
    return [BASE, *order] if seed == SEEDS[-1] else order


@dataclass(frozen=True)
class Work:
    """A folder with everything that is kept.

    Attributes:
        folder: of it all.
        model: folder of the base model.
        size: whose :data:`SIZES` hold.
        until: moment after which nothing is begun, and GRPO ends with its step; in seconds since 1970.
    """

    folder: Path
    model: Path
    size: str = "full"
    until: float = float("inf")

    @property
    def sizes(self) -> Sizes:
        """How much is trained."""
        return SIZES[self.size]

    @property
    def steps(self) -> int:
        """Steps of GRPO, the same for all: as there is time for, once a step was timed."""
        if self.plan_file.exists():
            return int(json.loads(self.plan_file.read_text())["steps"])
        return self.sizes.grpo_steps[1]

    @property
    def plan_file(self) -> Path:
        """Where it stands how many steps there is time for."""
        return self.folder / "plan.json"

    def result(self, name: str) -> Path:
        """Where a training's forecasts are kept."""
        return self.folder / "results" / f"{name}.json"

    def adapter(self, name: str) -> Path:
        """Where its adapter is kept."""
        return self.folder / name / "adapter"


def settings_of(name: str, work: Work) -> TrainingSettings:
    """The settings of one training; all others are the product's defaults."""
    method, _, rest = name.partition("-")
    kind, _, seed = rest.rpartition("-")
    given: Numbers = {
        "base_model": str(work.model),
        "data": {"tasks": [*TRAINED_OPERATIONS, *HELD_OUT_OPERATIONS], "other_baselines": OTHER_BASELINES},
        "held_out": {"operations": list(HELD_OUT_OPERATIONS), "kernels": 0.2},
        "save_steps": 100_000,
        "log_steps": 1,
        "samples": 2 if method == "grpo" else 0,  # others would have to be asked for them
        "max_kernel_tokens": work.sizes.kernel_tokens,
        "seed": int(seed or 0),
    }
    if method == BASE:
        return parse_training_settings(given)
    if method == "sft":
        return parse_training_settings(given | work.sizes.sft)
    given |= {"adapter": str(work.adapter(f"sft-{seed}")), "warmup": 0.1, "steps": work.steps}
    if method in ("grpo", "profile"):
        given |= work.sizes.grpo
        given["grpo"] = {
            "reward": kind,
            "group_size": work.sizes.group,
            "max_answer_tokens": work.sizes.answer_tokens,
            "vllm": "never",
        }
        if method == "profile":
            given["steps"] = work.sizes.profiled
    elif method in ("proper", "longer"):
        given |= getattr(work.sizes, method)
        given["proper"] = {"score": kind}
    return parse_training_settings(given)


@cache
def _divided() -> TrainingData:
    """The same division for every seed."""
    return gather(settings_of(BASE, Work(Path(), Path("model"))))


def gathered(rows: int | None) -> TrainingData:
    """What is trained on, and at most ``rows`` of each part that is tested on."""
    data = _divided()
    tested = [_chosen(part, rows) for part in (data.split.unseen_kernels, data.split.unseen_operations)]
    return replace(data, split=Split(data.split.train, *tested))


def _chosen(rows: Sequence[TrainingRow], count: int | None) -> tuple[TrainingRow, ...]:
    """All rows, or some of them drawn by their names."""
    return tuple(sorted(rows, key=lambda row: keyed_uniform(0, "test", row.id))[:count])
