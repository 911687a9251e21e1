"""Settings of a training, as they stand in a YAML file under ``training:``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecasters.language_model.settings import LanguageModelSettings
from gpu_forecasters_plugin.forecasters.language_model.trimming import MIN_KERNEL_TOKENS
from gpu_forecasters_plugin.hub import hub_folder, hub_row_files, is_hub_name
from gpu_forecasters_plugin.section import Fraction, PositiveFraction, Section
from gpu_forecasters_plugin.training.rewards import RewardName
from gpu_forecasters_plugin.validation import all_problems
from gpu_forecasters_plugin.yaml_file import read_yaml

__all__ = [
    "PRESETS",
    "ContestSettings",
    "DataSettings",
    "GrpoSettings",
    "HeldOutSettings",
    "LoraSettings",
    "ModelSize",
    "ProperSettings",
    "SftSettings",
    "TrainedReadout",
    "TrainingSettings",
    "load_training_settings",
    "parse_training_settings",
    "with_local_copies",
]

ModelSize = Literal["tiny", "small", "medium", "large"]
TrainedReadout = Literal["logprobs", "verbalized"]
"""What a forecaster is asked for and trained on: one token, or eight numbers that it writes."""

PRESETS: dict[ModelSize, dict[str, Any]] = {
    # Up to 0.5 billion parameters (SmolLM2-135M); trains on a CPU too.
    "tiny": {"learning_rate": 5e-4, "batch_size": 16, "gradient_accumulation": 1, "max_kernel_tokens": 1500},
    # Up to 4 billion (Qwen3-4B): one GPU of 24 GB.
    "small": {
        "learning_rate": 2e-4,
        "batch_size": 4,
        "gradient_accumulation": 4,
        "max_kernel_tokens": 4000,
        "gradient_checkpointing": True,
    },
    # Up to 9 billion: one GPU of 80 GB.
    "medium": {
        "learning_rate": 1e-4,
        "batch_size": 4,
        "gradient_accumulation": 4,
        "max_kernel_tokens": 8000,
        "gradient_checkpointing": True,
    },
    # gpt-oss-20b: one GPU of 80 GB; attention alone is adapted, since its experts are no linear layers. Two kernels of
    # this length, the instructions and an answer are what fits (see training/memory.py).
    "large": {
        "learning_rate": 5e-5,
        "batch_size": 1,
        "gradient_accumulation": 16,
        "max_kernel_tokens": 2200,
        "gradient_checkpointing": True,
        "lora": {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
    },
}
"""What a size of model changes among the defaults; whatever a file says comes first."""

Steps = Annotated[int, Field(ge=1, le=1_000_000)]


class HeldOutSettings(Section):
    """What is tested on and never trained on.

    Attributes:
        operations: names of tasks; ``None`` lets the seed choose a fifth of them, ``[]`` holds out none.
        devices: hardware names.
        kernels: share of the kernels of trained operations, whichever device they ran on.
    """

    operations: list[str] | None = None
    devices: list[str] = Field(default_factory=list)
    kernels: Annotated[float, Field(ge=0, lt=1)] = 0.15


class DataSettings(Section):
    """Where measured kernels come from.

    Attributes:
        tasks: recorded tasks by name, or pool files; the shipped ones unless the file says otherwise.
        ledgers: a run's folder, a ledger file or a database URL each.
        pairs: files of measured kernels, with the columns of pairs files or of the published sets; or names of such
            sets on Hugging Face.
        balance: how alike the bins are trained on: 0 as they come, 1 all as often.
        other_baselines: so many further rows for each kernel, beside other trained kernels instead of the reference.
    """

    tasks: list[str] | None = None
    ledgers: list[str] = Field(default_factory=list)
    pairs: list[str] = Field(default_factory=list)
    balance: Fraction = 1.0
    other_baselines: Annotated[int, Field(ge=0, le=64)] = 0


class LoraSettings(Section):
    """The adapter (Hu et al. 2021); its defaults are what vLLM loads without further arguments.

    Attributes:
        rank: of each update; vLLM takes up to 16 unless told otherwise.
        alpha: the update is scaled by alpha / rank.
        dropout: of the adapter's input.
        target_modules: which layers are adapted: names, or ``all-linear``.
    """

    rank: Annotated[int, Field(ge=1, le=512)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: list[str] | Literal["all-linear"] = "all-linear"


class SftSettings(Section):
    """Imitation of good answers.

    Attributes:
        readouts: which kinds of answers are learned, one drawn for each place.
        blur_octaves: ``verbalized``: standard deviations of the written distribution about the measured log2 speed-up,
            one of which is drawn for each answer: they teach the form and how unsure an answer can be, not how sure it
            ought to be, and leave reinforcement something to choose from.
    """

    readouts: Annotated[list[TrainedReadout], Field(min_length=1)] = Field(
        default_factory=lambda: list(get_args(TrainedReadout))
    )
    blur_octaves: Annotated[list[Annotated[float, Field(ge=0, le=4)]], Field(min_length=1)] = Field(
        default_factory=lambda: [0.25, 0.5, 1.0, 1.5]
    )


class ProperSettings(Section):
    """Direct descent on a proper score of the eight labels' probabilities.

    Attributes:
        score: ``nll``, ``brier`` or ``crps``.
        soft_truth: whether the truth is the probability of each bin under the measured spread, not one bin.
        mass_weight: weight of -ln of the probability that the eight labels have of all tokens: an endpoint that does
            not hold answers to the labels refuses forecasts that have little of it.
    """

    score: Literal["nll", "brier", "crps"] = "brier"
    soft_truth: bool = True
    mass_weight: Annotated[float, Field(ge=0)] = 0.1


class GrpoSettings(Section):
    """Group-relative policy optimisation of written forecasts (Shao et al. 2024).

    Attributes:
        reward: what an answer earns.
        group_size: answers per question.
        max_answer_tokens: longest answer.
        temperature: of the sampling.
        kl_weight: price of moving away from the start.
        clip: how far one step may change the probability of a token.
        scale: whether advantages are divided by their group's standard deviation.
        vllm: whether vLLM makes the answers; ``auto``: where it is installed.
    """

    reward: RewardName = "correctness_brier"
    group_size: Annotated[int, Field(ge=2, le=256)] = 8
    max_answer_tokens: Annotated[int, Field(ge=16, le=2**16)] = 160
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    kl_weight: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    scale: bool = True
    vllm: Literal["auto", "always", "never"] = "auto"


class ContestSettings(Section):
    """When a forecaster that has learned on takes the place of the one it started from.

    Attributes:
        score: by which of the two is better.
        audit_share: part of the new rows drawn at random that both are scored on, and none is trained on.
        fewest_rows: with fewer of these nothing can be told, and the old one stays.
        replay_share: part of each batch that comes from the data of before.
    """

    score: Literal["nll", "brier", "crps"] = "brier"
    audit_share: PositiveFraction = 0.5
    fewest_rows: Annotated[int, Field(ge=1)] = 20
    replay_share: Annotated[float, Field(ge=0, lt=1)] = 0.25


class TrainingSettings(Section):
    """The whole section.

    Attributes:
        base_model: folder of a model, or its name on Hugging Face.
        model_size: whose defaults hold (see :data:`PRESETS`): ``tiny`` to 0.5, ``small`` to 4, ``medium`` to 9 billion
            parameters, ``large`` for gpt-oss-20b.
        adapter: folder of the adapter to go on from, or its name on Hugging Face; ``None`` begins with a new one.
        data: where measured kernels come from.
        held_out: what is tested on.
        lora: the adapter.
        max_kernel_tokens: estimated tokens of one kernel in a prompt; a forecaster that is to use the adapter needs
            the same.
        steps: updates of the weights.
        batch_size: rows at once on the device.
        gradient_accumulation: batches per update.
        learning_rate: largest; it falls to 0 along a cosine.
        warmup: share of the steps in which it rises.
        gradient_norm: longest gradient; longer ones are cut.
        gradient_checkpointing: less memory for a third more time.
        dtype: of the frozen weights; ``auto``: bfloat16 on a GPU, float32 elsewhere.
        save_steps: updates between checkpoints.
        log_steps: updates between the figures of a log.
        samples: held-out rows whose answers are kept at each checkpoint.
        tensorboard: whether the log is written for TensorBoard too.
        evaluation_rows: most rows of each held-out set that are scored; ``None``: all.
        seed: of every random choice.
        sft, proper, grpo: settings of one method each.
        contest: of learning on.
    """

    base_model: Annotated[str, Field(min_length=1)]
    model_size: ModelSize = "tiny"
    adapter: Annotated[str, Field(min_length=1)] | None = None
    data: DataSettings = DataSettings()
    held_out: HeldOutSettings = HeldOutSettings()
    lora: LoraSettings = LoraSettings()
    max_kernel_tokens: Annotated[int, Field(ge=MIN_KERNEL_TOKENS)] = 1500
    steps: Steps = 200
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 16
    gradient_accumulation: Annotated[int, Field(ge=1, le=4096)] = 1
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 5e-4
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.05
    gradient_norm: Annotated[float, Field(gt=0)] = 1.0
    gradient_checkpointing: bool = False
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    save_steps: Steps = 50
    log_steps: Steps = 10
    samples: Annotated[int, Field(ge=0, le=1000)] = 8
    tensorboard: bool = False
    evaluation_rows: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    sft: SftSettings = SftSettings()
    proper: ProperSettings = ProperSettings()
    grpo: GrpoSettings = GrpoSettings()
    contest: ContestSettings = ContestSettings()

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_size(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        preset = PRESETS.get(given.get("model_size", "tiny"), {})
        merged = dict(preset) | given
        if isinstance(given.get("lora"), dict) and "lora" in preset:
            merged["lora"] = preset["lora"] | given["lora"]
        return merged

    def asking(self, readout: TrainedReadout) -> LanguageModelSettings:
        """How a forecaster with the trained model asks: the prompts of training are made by the same settings."""
        return LanguageModelSettings(
            model=self.base_model, readout=readout, max_kernel_tokens=self.max_kernel_tokens
        )


def parse_training_settings(section: Any) -> TrainingSettings:
    """Check a ``training:`` section.

    Raises:
        ConfigError: a line for each wrong setting.
    """
    if not isinstance(section, dict):
        raise ConfigError(f"training: must be a mapping of settings, got {section!r}")
    try:
        return TrainingSettings.model_validate(section)
    except ValidationError as error:
        raise ConfigError(*all_problems(error, TrainingSettings, "training")) from None


def load_training_settings(path: Path, **overrides: Any) -> TrainingSettings:
    """The ``training:`` section of a YAML file; its paths are relative to the file's folder.

    Args:
        path: the file.
        overrides: settings that come from elsewhere, such as a command's options; ``None`` overrides nothing.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or a value is wrong.
    """
    document = read_yaml(path, "training")
    if not isinstance(document, dict) or "training" not in document:
        raise ConfigError(f"config {path} has no 'training:' section")
    settings = parse_training_settings(document["training"])
    located = _located(settings, path.absolute().parent)
    given = {name: value for name, value in overrides.items() if value is not None}
    return parse_training_settings(located | given)


def with_local_copies(settings: TrainingSettings) -> TrainingSettings:
    """The settings with what is published under a name as files here, which are fetched if there are none.

    Raises:
        ConfigError: something cannot be had.
    """
    here, adapter, pairs = Path(), settings.adapter, []
    if adapter is not None and is_hub_name(adapter, here):
        adapter = str(hub_folder(adapter, "model"))
    for name in settings.data.pairs:
        pairs += hub_row_files(name) if is_hub_name(name, here) else [Path(name)]
    data = settings.data.model_copy(update={"pairs": list(map(str, pairs))})
    return settings.model_copy(update={"adapter": adapter, "data": data})


def _located(settings: TrainingSettings, folder: Path) -> dict[str, Any]:
    """The settings with what names a file there as its whole path; a name on a hub stays what it is."""
    found = settings.model_dump()
    for name in ("base_model", "adapter"):
        if found[name] is not None and (folder / found[name]).exists():
            found[name] = str(folder / found[name])
    data = found["data"]
    data["pairs"] = [name if is_hub_name(name, folder) else str(folder / name) for name in data["pairs"]]
    data["ledgers"] = [name if "://" in name else str(folder / name) for name in data["ledgers"]]
    if data["tasks"] is not None:
        data["tasks"] = [str(folder / name) if (folder / name).is_file() else name for name in data["tasks"]]
    return found
