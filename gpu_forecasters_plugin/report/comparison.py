"""A comparison as its ``summary.json`` tells it, checked before anything is drawn from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpu_forecasters_plugin.compare.significance import LEVEL
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.validation import first_problem

__all__ = ["ArmResult", "ArmVerdict", "Comparison", "load_comparison"]

_Positive = Annotated[float, Field(gt=0)]
_Seconds = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    # What a later version adds is no reason to refuse all that this one understands.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class ArmResult(_Part):
    """The searches of one arm, seed by seed: the keys of ``summary.json``."""

    best_speedup: Annotated[list[_Positive], Field(min_length=1)]
    measurements_used: list[int]
    curve: list[list[_Positive]]
    candidates_considered: list[int]
    gpu_seconds: list[_Seconds]
    forecast_gpu_seconds: list[_Seconds] | None = None


class ArmVerdict(_Part):
    """One arm against another: the keys of ``summary.json``."""

    share_of_pool_best: float | None = None
    measurements_to_match_ratio: float | None = None
    worse_than_2pct_share: float | None = None
    mean_ratio: _Positive
    ci95: Annotated[tuple[float, float], Field(strict=False)] | None
    verdict: str
    p_value_holm: float | None = None

    @property
    def is_borne_out(self) -> bool:
        """Whether the corrected paired test, where there is one, shows the difference as well."""
        return self.p_value_holm is None or self.p_value_holm <= LEVEL

    @property
    def interval(self) -> str:
        """The interval of the ratio in words."""
        if self.ci95 is None:
            return "no interval from a single pair"
        return f"95 % interval {self.ci95[0]:.3f} to {self.ci95[1]:.3f}"


class Comparison(_Part):
    """The content of a comparison's ``summary.json``."""

    task: str
    host: str
    budget: Annotated[int, Field(ge=1)]
    seeds: Annotated[list[int], Field(min_length=1)]
    pool_best_speedup: _Positive
    arms: Annotated[dict[str, ArmResult], Field(min_length=1)]
    comparison: dict[str, ArmVerdict]
    surrogate_against_random: ArmVerdict | None = None
    device: str = ""

    @model_validator(mode="after")
    def _is_whole(self) -> Comparison:
        for name, arm in self.arms.items():
            columns = (arm.best_speedup, arm.measurements_used, arm.curve, arm.gpu_seconds)
            if any(len(column) != len(self.seeds) for column in columns) or not all(arm.curve):
                raise ValueError(f"arm {name!r} does not have a curve and a result for each of the seeds")
            if name not in self.comparison:
                raise ValueError(f"arm {name!r} is not in the comparison")
        return self

    @property
    def sentence(self) -> str:
        """What came of it, with its uncertainty."""
        against = {name: v for name, v in self.comparison.items() if name != "baseline"}
        if not against:
            return "There is only one arm, and nothing to compare it with."
        name = "surrogate" if "surrogate" in against else next(iter(against))
        verdict, seeds = against[name], len(self.seeds)
        budget = "At equal budget" if verdict.is_borne_out else "By the interval, but not by the paired test,"
        found = {
            "better": f"{budget} the {name} arm found faster kernels",
            "worse": f"{budget} the {name} arm found slower kernels",
            "no difference shown": f"At equal budget no difference between {name} arm and baseline is shown",
        }.get(verdict.verdict, f"Of {name} arm and baseline neither is shown to be better, {verdict.verdict}")
        return (
            f"{found}: its best after {self.budget:,} measurements was {verdict.mean_ratio:.3f} times as fast as the "
            f"baseline's ({verdict.interval}; geometric mean of {seeds} paired seed{'s' if seeds > 1 else ''})."
        )


def load_comparison(path: Path) -> Comparison:
    """Read a comparison's ``summary.json``.

    Raises:
        ConfigError: it is not one; names the key.
        OSError: it cannot be read.
    """
    try:
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict):
            raise ValueError(f"it holds a {type(document).__name__}")
        if isinstance(document.get("tasks"), list):
            raise ValueError("it is of several tasks, which have a folder each beside it")
        return Comparison.model_validate(document)
    except ValidationError as error:
        problem = first_problem(error, Comparison)
    except (ValueError, RecursionError) as error:
        problem = str(error)
    raise ConfigError(
        f"{path} is no comparison's summary: {problem}; give a run's folder or ledger, or the folder that "
        "gpu-forecasters compare has written"
    )
