"""What may be compared: one table of named arms, each a change to the ``surrogate:`` section that is compared.

Beside the table there is an arm for every ranking rule, ``rank_<rule>``, and one for every expert of the section's
forecaster alone, ``expert_<kind>``.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_forecasters_plugin.compare.imitation import Table, imitated, inverted, useless
from gpu_forecasters_plugin.config import (
    DeferralConfig,
    DriftConfig,
    ForecasterConfig,
    GuardConfig,
    PolicyConfig,
    SurrogateConfig,
)
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.forecast import Forecast, Query
from gpu_forecasters_plugin.forecasters.oracle import OracleForecaster
from gpu_forecasters_plugin.forecasters.replay import load_forecasts
from gpu_forecasters_plugin.hookspecs import RankingRuleFactory
from gpu_forecasters_plugin.plugins import registry
from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["ARM_NAMES", "PRESETS", "ArmSetting", "Preset", "check_arm_names", "presets_for"]

ARM_NAMES = ("baseline", "surrogate", "random", "oracle")
"""What is compared where nothing else is said."""


@dataclass(frozen=True)
class ArmSetting:
    """What an arm is made from.

    Attributes:
        surrogate: the section that is compared.
        pool: the recorded task.
        folder: where an arm's own files go.
        forecasts: file of recorded forecasts, for ``replay``.
    """

    surrogate: SurrogateConfig
    pool: RecordedPool
    folder: Path
    forecasts: Path | None = None


@dataclass(frozen=True)
class Preset:
    """A named arm.

    Attributes:
        name: what ``--arms`` calls it.
        summary: what it is, in a line.
        section: its configuration; ``None`` is the host without the filter.
    """

    name: str
    summary: str
    section: Callable[[ArmSetting], SurrogateConfig | None]


_NO_DEFERRAL: dict[str, Any] = {
    "deferral": DeferralConfig(threshold=None),
    "drift": DriftConfig(enabled=False),
}
_PLAIN: dict[str, Any] = _NO_DEFERRAL | {
    "guard": GuardConfig(enabled=False),
    "audit_fraction": 0.0,
    "warm_up": 0,
}
"""Nothing but the ranking."""

_DRAWS = 20

_TOP_QUARTER: dict[str, Any] = _PLAIN | {"keep_fraction": 0.25, "policy": PolicyConfig()}


def _changed(**changes: Any) -> Callable[[ArmSetting], SurrogateConfig]:
    return lambda setting: setting.surrogate.model_copy(update=changes)


def _random(setting: ArmSetting) -> SurrogateConfig:
    chance = {"forecaster": ForecasterConfig(kind="random"), "ranking": "random", "anchor": "reference"}
    return setting.surrogate.model_copy(update=_PLAIN | chance)


def _paper(setting: ArmSetting) -> SurrogateConfig:
    """The policy of arXiv 2605.31464: the top quarter by expected bin; its forecaster does not learn in the run."""
    forecaster = setting.surrogate.forecaster.model_copy(update={"hedge": False, "learn": False})
    changes = _TOP_QUARTER | {
        "forecaster": forecaster,
        "ranking": "expected_bin",
        "anchor": "reference",
        "oversample": 4,
    }
    return setting.surrogate.model_copy(update=changes)


def _deferral_only(setting: ArmSetting) -> SurrogateConfig:
    """Every slot that no audit takes goes to the least confident; chance fills what they leave."""
    configured = setting.surrogate.deferral
    threshold = DeferralConfig().threshold if configured.threshold is None else configured.threshold
    rules = configured.model_copy(update={"share": 1.0, "mode": "within_quota", "threshold": threshold})
    return setting.surrogate.model_copy(update={"ranking": "random", "deferral": rules})


def _oracle(setting: ArmSetting) -> SurrogateConfig:
    path = setting.folder / "oracle.jsonl"
    _write_oracle(setting.pool, path)
    forecaster = ForecasterConfig(kind="replay", path=str(path), hedge=False)
    changes = {"forecaster": forecaster, "anchor": "reference", "ranking": "expected_log2"}
    return setting.surrogate.model_copy(update=_PLAIN | changes)


def _write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """In the form that ``replay`` reads."""
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def _write_oracle(pool: RecordedPool, path: Path) -> None:
    """Forecasts of one who knows every time."""
    truth = {c.key: pool.speedup(c.id) for c in pool.candidates.values()}
    oracle = OracleForecaster(truth)
    reference = pool.reference.code
    rows = []
    for candidate in pool.candidates.values():
        (outcome,) = oracle.forecast([Query(candidate.key, candidate.code, reference, reference)])
        assert isinstance(outcome, Forecast)
        rows.append({"candidate_key": candidate.key, "probabilities": outcome.probabilities})
    _write_rows(path, rows)


def _replay(setting: ArmSetting) -> SurrogateConfig:
    """Recorded forecasts are relative to the reference, whatever the section's anchor is."""
    if setting.forecasts is None:
        raise ConfigError("arm 'replay' needs --forecasts FILE, the forecasts that it replays")
    known = load_forecasts(setting.forecasts)
    if not any(candidate.key in known for candidate in setting.pool.candidates.values()):
        raise ConfigError(
            f"{setting.forecasts} has a forecast for none of the {len(setting.pool.candidates)} kernels of "
            f"{setting.pool.task}: record them with gpu-forecasters evaluate"
        )
    return _replaying(setting.surrogate, setting.forecasts)


def _replaying(surrogate: SurrogateConfig, path: Path) -> SurrogateConfig:
    forecaster = ForecasterConfig(kind="replay", path=str(path.resolve()), hedge=surrogate.forecaster.hedge)
    return surrogate.model_copy(update={"forecaster": forecaster, "anchor": "reference"})


def _imitated(
    name: str, forecasts: Callable[[RecordedPool, int], Table]
) -> Callable[[ArmSetting], SurrogateConfig]:
    """As configured, with made-up forecasts in place of the forecaster: other errors in each of some seeds."""

    def section(setting: ArmSetting) -> SurrogateConfig:
        path = setting.folder / f"{name}.jsonl"
        rows = (
            {"draw": draw, "candidate_key": key, "probabilities": [round(p, 6) for p in probabilities]}
            for draw in range(_DRAWS)
            for key, probabilities in forecasts(setting.pool, draw).items()
        )
        _write_rows(path, rows)
        return _replaying(setting.surrogate, path)

    return section


PRESETS = (
    Preset("baseline", "the host without the filter", lambda setting: None),
    Preset("surrogate", "the filter as configured", lambda setting: setting.surrogate),
    Preset("random", "the filter with chance in place of forecasts: the floor", _random),
    Preset("oracle", "the filter with a forecaster that knows every time: the limit", _oracle),
    Preset("paper", "arXiv 2605.31464: top quarter by expected bin; no deferral, audit or learning", _paper),
    Preset(
        "top_quarter", "the top quarter by the section's ranking, and nothing else", _changed(**_TOP_QUARTER)
    ),
    Preset("no_deferral", "as configured, without deferral", _changed(**_NO_DEFERRAL)),
    Preset("deferral_only", "the least confident; chance in place of the ranking", _deferral_only),
    Preset("replay", "as configured, with the recorded forecasts of --forecasts", _replay),
    Preset(
        "imitated_llm",
        "as configured, with forecasts as good as a language model's: 35 % right, 75 % at most a bin off",
        _imitated("imitated_llm", imitated),
    ),
    Preset(
        "useless", "as configured, with such forecasts dealt out at random", _imitated("useless", useless)
    ),
    Preset("inverted", "as configured, with such forecasts mirrored", _imitated("inverted", inverted)),
)
"""The arms with names of their own, in the order in which help and documentation list them."""


def _ranked_by(rule: str) -> Preset:
    return Preset(f"rank_{rule}", f"as configured, ranked by {rule}", _changed(ranking=rule))


def _experts(surrogate: SurrogateConfig) -> list[Preset]:
    """Each expert of the section's forecaster in its place; climatology is always one."""
    forecaster = surrogate.forecaster
    configs = [*(forecaster.experts or [forecaster]), ForecasterConfig(kind="climatology")]
    found = []
    seen: Counter[str] = Counter()
    for config in configs:
        seen[config.kind] += 1
        if config.kind == "climatology" and seen[config.kind] > 1:
            continue
        alone = config.model_copy(update={"hedge": False})
        name = f"expert_{config.kind}" + (f"_{seen[config.kind]}" if seen[config.kind] > 1 else "")
        found.append(Preset(name, f"as configured, with {config.kind} alone", _changed(forecaster=alone)))
    return found


def presets_for(surrogate: SurrogateConfig) -> dict[str, Preset]:
    """Every arm that a section can be compared with, by name."""
    rules = [_ranked_by(rule) for rule in registry().names(RankingRuleFactory)]
    return {preset.name: preset for preset in (*PRESETS, *rules, *_experts(surrogate))}


def check_arm_names(names: Sequence[str], surrogate: SurrogateConfig) -> None:
    """Refuse names that are no arms.

    Raises:
        ConfigError: names the first such one, and what it may have been meant for.
    """
    known = presets_for(surrogate)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"unknown arm {name!r}; {hint}there are: {', '.join(known)}")
