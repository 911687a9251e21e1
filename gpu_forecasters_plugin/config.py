"""The ``surrogate:`` section of a run's configuration.

It lives in the host's own YAML file or in one of its own. Unknown keys, wrong types and values out of range are
refused before anything runs, in one line each that names the key.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.forecast import ConfidenceKind, RiskKind
from gpu_forecasters_plugin.forecasters.language_model.settings import (
    JsonArguments,
    LanguageModelSettings,
    json_compatible,
    without_secrets,
)
from gpu_forecasters_plugin.plugins.names import ForecasterName, ObserverName, PolicyName, RankingName
from gpu_forecasters_plugin.plugins.settings import check_options, located
from gpu_forecasters_plugin.screen.settings import ScreenConfig
from gpu_forecasters_plugin.section import Fraction, PositiveFraction, Section
from gpu_forecasters_plugin.validation import all_problems
from gpu_forecasters_plugin.yaml_file import read_yaml

__all__ = [
    "BudgetConfig",
    "DeferralConfig",
    "DriftConfig",
    "ForecasterConfig",
    "GuardConfig",
    "MetricConfig",
    "ObserverConfig",
    "PolicyConfig",
    "PoolConfig",
    "SurrogateConfig",
    "load_surrogate_config",
    "parse_surrogate_config",
    "with_option",
]

_LANGUAGE_MODELS = ("openai_server", "vllm_local", "transformers_local")
_OF_SOME_LANGUAGE_MODELS = {
    "base_url": ("openai_server",),
    "extra_body": ("openai_server",),
    "server_gpus": ("openai_server",),
    "lora": _LANGUAGE_MODELS,
    "engine": ("vllm_local", "transformers_local"),
    "static_profile": (*_LANGUAGE_MODELS, "learned"),
}


class ForecasterConfig(LanguageModelSettings):
    """Which forecaster to ask; the settings of language models are :class:`LanguageModelSettings`.

    Attributes:
        kind: ``learned`` (default; trained on this run's measurements, no key, no GPU), ``openai_server`` (a
            language model behind ``base_url``), ``vllm_local`` or ``transformers_local`` (one in this process),
            ``roofline`` (what the compiler foretells; needs the screen), ``mixture`` (of ``experts``),
            ``recalibrated`` (temperature and bin map on top of ``forecaster``), ``climatology``, ``random``,
            ``replay`` (of ``path``), or a plugin's.
        hedge: combine the forecaster with climatology by their log score in this run.
        learn: tell the forecaster of this run's measurements; without, it forecasts as before the first.
        warm_start: let ``learned`` start from the recorded tasks of other operations.
        experts: for ``mixture``: the forecasters to combine.
        forecaster: for ``recalibrated``: the forecaster whose probabilities are mended by its record in this run.
        weights: for ``mixture``: prior weight of each expert, same order; 0.5 each when left out.
        path: for ``replay``: JSONL file of recorded forecasts, relative to the configuration's folder.
        options: the settings of a plugin's forecaster.
    """

    kind: ForecasterName = "learned"
    hedge: bool = True
    learn: bool = True
    warm_start: bool = True
    experts: list[ForecasterConfig] = Field(default_factory=list)
    forecaster: ForecasterConfig | None = None
    weights: list[Annotated[float, Field(gt=0, le=1000)]] | None = None
    path: Annotated[str, Field(min_length=1)] | None = None
    options: JsonArguments = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_kind(self) -> ForecasterConfig:
        if (self.kind == "mixture") != bool(self.experts):
            raise ValueError("experts must be listed for kind 'mixture', and only there")
        if (self.kind == "recalibrated") != (self.forecaster is not None):
            raise ValueError("forecaster must be set for kind 'recalibrated', and only there")
        if self.weights is not None and len(self.weights) != len(self.experts):
            raise ValueError(f"weights must name one number per expert ({len(self.experts)})")
        if (self.kind == "replay") != (self.path is not None):
            raise ValueError("path must be set for kind 'replay', and only there")
        return self

    def members(self) -> Iterator[ForecasterConfig]:
        """This setting and all that are nested in it."""
        yield self
        for nested in (*self.experts, *([] if self.forecaster is None else [self.forecaster])):
            yield from nested.members()

    @property
    def sees_profiles(self) -> bool:
        """Whether it, or one that it is made of, looks at static profiles."""
        seeing = _OF_SOME_LANGUAGE_MODELS["static_profile"]
        return any(m.kind == "roofline" or (m.kind in seeing and m.static_profile) for m in self.members())

    @model_validator(mode="after")
    def _language_model_fits_kind(self) -> ForecasterConfig:
        is_language_model = self.kind in _LANGUAGE_MODELS
        for key, field in LanguageModelSettings.model_fields.items():
            kinds = _OF_SOME_LANGUAGE_MODELS.get(key, _LANGUAGE_MODELS)
            if self.kind not in kinds and getattr(self, key) != field.get_default(call_default_factory=True):
                raise ValueError(f"{key} is a setting of kind {' or '.join(kinds)}")
        if is_language_model and self.model is None:
            raise ValueError(f"model must be set for kind {self.kind!r}")
        if self.kind == "openai_server" and not self.base_url:
            raise ValueError("base_url must be set for kind 'openai_server'")
        return self


class PolicyConfig(Section):
    """Which selection policy chooses from a pool.

    Attributes:
        kind: ``top_fraction`` (default; as ``keep_fraction``, ``audit_fraction`` and ``deferral`` say), or a
            plugin's.
        options: the settings of a plugin's policy.
    """

    kind: PolicyName = "top_fraction"
    options: JsonArguments = Field(default_factory=dict)


class ObserverConfig(Section):
    """Who is told of every forecast, decision and measurement; its settings stand beside ``kind``.

    Attributes:
        kind: ``jsonl``, ``mlflow``, or a plugin's.
    """

    model_config = ConfigDict(extra="allow")

    kind: ObserverName

    @property
    def options(self) -> dict[str, Any]:
        """Its own settings."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _plain_options(self) -> ObserverConfig:
        json_compatible(without_secrets(self.options))
        return self


class DeferralConfig(Section):
    """When not to trust a forecast and let the GPU decide. Deferred always means measured.

    Uncertain candidates come before the promising ones, the least confident first, as far as ``share`` or
    ``max_fraction`` lets them; those beyond compete by rank like all others.

    Attributes:
        confidence: which confidence is compared with the threshold.
        threshold: a forecast less confident than this is uncertain; ``None`` turns the rule off.
        target_risk: risk of the forecasts trusted, in (0, 1), that a threshold is fitted to as measurements arrive
            (see :mod:`~gpu_forecasters_plugin.calibration.thresholds`); ``threshold`` is in force until there are
            rows enough. ``None``: ``threshold`` is all there is.
        confidence_level: probability of the guarantee that a fitted threshold has.
        risk: what is wrong: ``wrong_bin``, or ``log2_error``: the expected log2 speed-up is more than ``bound`` off.
        bound: for ``log2_error``, in octaves: 1 is a factor of two.
        mode: ``within_quota``: uncertain candidates take a share of the measured slots; ``on_top``: they are
            measured beyond the quota.
        share: ``within_quota``: largest share of the measured slots that uncertain candidates take.
        max_fraction: ``on_top``: largest part of the pool that is measured beyond the quota.
    """

    confidence: ConfidenceKind = "max_prob"
    threshold: Fraction | None = 0.35
    target_risk: Annotated[float, Field(gt=0, lt=1)] | None = None
    confidence_level: Annotated[float, Field(gt=0, lt=1)] = 0.9
    risk: RiskKind = "wrong_bin"
    bound: Annotated[float, Field(gt=0)] = 1.0
    mode: Literal["within_quota", "on_top"] = "within_quota"
    share: Fraction = 0.25
    max_fraction: Fraction = 0.5


class DriftConfig(Section):
    """When deferral widens since forecasts have become miscalibrated.

    Attributes:
        enabled: whether a sequential test watches the forecasts (:mod:`~gpu_forecasters_plugin.calibration.drift`).
        false_alarm_rate: probability that calibrated forecasts raise any alarm in a run, however long it is.
    """

    enabled: bool = True
    false_alarm_rate: Annotated[float, Field(gt=0, lt=1)] = 0.01


class BudgetConfig(Section):
    """What the real evaluator may cost.

    Attributes:
        measurements: calls of the real evaluator, the reference's own included; ``None`` means as many as
            the host would have made (its iterations and the initial program).
        gpu_seconds: seconds that those calls may take in sum.
        count_forecasting: whether ``gpu_seconds`` pays for the GPUs of the forecaster too, at the price that its
            own settings name.
    """

    measurements: Annotated[int, Field(ge=1)] | None = None
    gpu_seconds: Annotated[float, Field(gt=0)] | None = None
    count_forecasting: bool = False

    @model_validator(mode="after")
    def _counts_within_a_limit(self) -> BudgetConfig:
        if self.count_forecasting and self.gpu_seconds is None:
            raise ValueError("count_forecasting needs gpu_seconds, the limit that it counts in")
        return self


class GuardConfig(Section):
    """When the surrogate loses its slots to chance.

    Attributes:
        enabled: whether forecasts that disagree with measurements lose their say.
        decay: weight of a pool's evidence one pool later.
        prior_pairs: how many pairs the credit of a new forecaster is worth.
    """

    enabled: bool = True
    decay: PositiveFraction = 0.9
    prior_pairs: Annotated[float, Field(gt=0)] = 16.0


class PoolConfig(Section):
    """How candidates gather before a decision.

    Attributes:
        max_wait_s: longest time that a candidate waits for its pool to fill, in seconds.
    """

    max_wait_s: Annotated[float, Field(gt=0)] = 30.0


class MetricConfig(Section):
    """How a speed-up is read from what the user's evaluator returns.

    Attributes:
        name: the metric to read; ``None`` looks for the usual names (``speedup``, ``time_us``, ``runtime_ms``,
            ..., ``combined_score``), in this order.
        kind: what the metric is: a speed-up over the reference, a time, or a score that is proportional to
            speed; ``auto`` tells by its name.
        correct: the metric that says whether results were right; ``None`` looks for ``correct``,
            ``correctness``, ``passed``, ``is_correct``, ``valid``.
        min_time_us: shorter times are implausible, in microseconds.
        max_speedup: larger speed-ups are implausible.
    """

    name: str | None = None
    kind: Literal["auto", "speedup", "time_us", "time_ms", "time_s", "score"] = "auto"
    correct: str | None = None
    min_time_us: Annotated[float, Field(ge=0)] = 0.1
    max_speedup: Annotated[float, Field(gt=1)] = 1000.0


class SurrogateConfig(Section):
    """The whole section; every field has a default.

    Attributes:
        forecaster: which forecaster to ask.
        oversample: proposals per measurement that the host is let to make.
        max_proposals: proposals per measurement after which a run ends though its budget is not spent: a model
            that only repeats itself, or does not answer, must not be asked for ever.
        keep_fraction: part of a pool that is measured.
        ranking: rule by which candidates are ranked: ``expected_log2``, ``expected_bin``, ``p_better``,
            ``upper_quantile``, ``thompson``, ``random``, or a plugin's.
        policy: who chooses from a pool.
        quantile: level for the ``upper_quantile`` ranking.
        discovery_factor: how many times faster than its parent a child is to be, for the ``p_beats_parent`` ranking.
        anchor: kernel that bins are relative to: the ``reference`` or the ``incumbent`` (best so far).
        deferral: when a forecast is not trusted.
        audit_fraction: part of the measured slots that goes to random candidates.
        warm_up: measurements chosen at random before forecasts are followed.
        budget: what the real evaluator may cost.
        guard: when the surrogate loses its slots to chance.
        drift: when deferral widens since forecasts have become miscalibrated.
        pool: how candidates gather.
        screen: whether candidates are compiled, without a GPU, before they are forecast.
        metric: how a speed-up is read from the evaluator's result.
        device: hardware name for forecasts and ledger; ``auto`` asks the machine.
        task: name of the task; ``None`` takes the name of the program's folder.
        shapes: the inputs that kernels are timed on, in words, for forecasters that read them.
        ledger: SQLAlchemy URL or path; ``None`` puts ``ledger.sqlite3`` into the run's folder.
        seed: seed of every random choice of the plugin.
        observers: who is told what happens.
    """

    forecaster: ForecasterConfig = ForecasterConfig()
    oversample: Annotated[int, Field(ge=1, le=64)] = 4
    max_proposals: Annotated[int, Field(ge=1)] = 16
    keep_fraction: PositiveFraction = 0.25
    ranking: RankingName = "upper_quantile"
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.95
    discovery_factor: Annotated[float, Field(gt=0, le=1000)] = 1.2
    policy: PolicyConfig = PolicyConfig()
    anchor: Literal["reference", "incumbent"] = "incumbent"
    deferral: DeferralConfig = DeferralConfig()
    audit_fraction: Fraction = 0.25
    warm_up: Annotated[int, Field(ge=0)] = 0
    budget: BudgetConfig = BudgetConfig()
    guard: GuardConfig = GuardConfig()
    drift: DriftConfig = DriftConfig()
    pool: PoolConfig = PoolConfig()
    screen: ScreenConfig = ScreenConfig()
    metric: MetricConfig = MetricConfig()
    device: Annotated[str, Field(min_length=1, max_length=200)] = "auto"
    task: Annotated[str, Field(max_length=400)] | None = None
    shapes: Annotated[str, Field(max_length=2000)] | None = None
    ledger: Annotated[str, Field(min_length=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    observers: list[ObserverConfig] = Field(default_factory=list)

    @model_validator(mode="after")
    def _forecasts_that_count_have_a_price(self) -> SurrogateConfig:
        free = [m.kind for m in self.forecaster.members() if m.kind == "openai_server" and not m.server_gpus]
        if self.budget.count_forecasting and free:
            raise ValueError("budget.count_forecasting needs the forecaster's price: set server_gpus")
        return self

    @model_validator(mode="after")
    def _target_risk_has_rows(self) -> SurrogateConfig:
        if self.deferral.target_risk is not None and self.audit_fraction == 0.0:
            raise ValueError("deferral.target_risk needs rows drawn at random: set audit_fraction above 0")
        return self


def parse_surrogate_config(section: Any) -> SurrogateConfig:
    """Check a ``surrogate:`` section that was read from YAML.

    Raises:
        ConfigError: a line for each wrong setting that names the key, what is wrong and what would be right.
    """
    if section is None:
        section = {}
    if not isinstance(section, dict):
        raise ConfigError(f"surrogate: must be a mapping of settings, got {section!r}")
    try:
        config = SurrogateConfig.model_validate(section)
    except ValidationError as error:
        raise ConfigError(*all_problems(error, SurrogateConfig, "surrogate")) from None
    check_options(config)
    return config


def with_option(config: SurrogateConfig, option: str, **values: Any) -> SurrogateConfig:
    """The configuration with settings from elsewhere than its file, checked as those in a file are.

    Args:
        config: a checked configuration.
        option: where the settings come from, such as ``--device``.
        values: the settings.

    Raises:
        ConfigError: a line for each wrong setting that names the option.
    """
    try:
        return SurrogateConfig.model_validate(dict(config) | values)
    except ValidationError as error:
        found = (problem.partition(": ")[2] for problem in all_problems(error, SurrogateConfig))
        raise ConfigError(*(f"{option}: {problem}" for problem in found)) from None


def load_surrogate_config(path: str | Path, *, required: bool = False) -> SurrogateConfig:
    """Read the ``surrogate:`` section of a YAML file.

    Args:
        path: the host's configuration file, or a file that holds nothing but the section.
        required: whether a file without the section is an error rather than all defaults.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or a value is wrong.
    """
    document = read_yaml(path, "surrogate")
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ConfigError(f"config {path} must be a mapping, got {type(document).__name__}")
    if required and "surrogate" not in document:
        raise ConfigError(f"config {path} has no 'surrogate:' section")
    if "surrogate" not in document:
        close = difflib.get_close_matches("surrogate", [str(key) for key in document], n=1, cutoff=0.75)
        if close:
            raise ConfigError(f"config {path} has a section {close[0]!r}; did you mean 'surrogate'?")
    section = parse_surrogate_config(document.get("surrogate"))
    return located(section, Path(path).absolute().parent)
