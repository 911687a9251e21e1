"""Beliefs: what a forecaster is asked, what it answers, and how sure it is.

A forecast never knows the budget, and nothing here decides anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from gpu_forecasters_plugin.bins import BINS, N_BINS, BinScheme

if TYPE_CHECKING:
    from gpu_forecasters_plugin.screen.profile import SourceProfile

__all__ = [
    "UNIFORM",
    "Attempt",
    "ConfidenceKind",
    "Ending",
    "FailureKind",
    "Forecast",
    "ForecastCost",
    "ForecastFailure",
    "ForecastOutcome",
    "Observation",
    "Query",
    "RiskKind",
]

UNIFORM: tuple[float, ...] = (1.0 / N_BINS,) * N_BINS
_SUM_TOLERANCE = 1e-6

ConfidenceKind = Literal["max_prob", "neg_entropy", "top2_margin"]
RiskKind = Literal["wrong_bin", "log2_error"]


class Ending(StrEnum):
    """How a kernel fared that was measured, as far as it says something about the kernel.

    ``invalid``: it did not build, or did not run to its end in time; ``incorrect``: its results, or its time, cannot be
    true.
    """

    OK = "ok"
    INVALID = "invalid"
    INCORRECT = "incorrect"


class FailureKind(StrEnum):
    """Why there is no forecast."""

    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    INVALID = "invalid"


@dataclass(frozen=True)
class Query:
    """One question to a forecaster: how fast is ``candidate_code`` relative to ``anchor_code``?

    Attributes:
        candidate_key: identity of the candidate (normalised source hash).
        candidate_code: source text of the candidate.
        anchor_code: the kernel that the bins are relative to: the reference, or the incumbent.
        anchor_speedup: measured speed-up of the anchor over the reference; 1.0 when the anchor is the
            reference.
        reference_code: the reference kernel of the run.
        task: name of the task.
        device: hardware name.
        parent_code: the program that the candidate was derived from, when known.
        shapes: the inputs that the kernel is timed on, in words; empty when not known.
        reference_time_us: measured time of the reference; ``None`` when it has none.
        profile: what the compiler made of the candidate; ``None`` where nobody compiled it, or nothing came of it.
        anchor_profile: likewise of the anchor.
        reference_profile: likewise of the reference.
        screened: the compiler's verdict on the candidate, ``valid``, ``invalid`` or ``undecided``; ``None`` where it
            was not asked.
    """

    candidate_key: str
    candidate_code: str
    anchor_code: str
    reference_code: str
    anchor_speedup: float = 1.0
    task: str = ""
    device: str = ""
    parent_code: str | None = None
    shapes: str = ""
    reference_time_us: float | None = None
    profile: SourceProfile | None = None
    anchor_profile: SourceProfile | None = None
    reference_profile: SourceProfile | None = None
    screened: str | None = None


@dataclass(frozen=True)
class ForecastCost:
    """What a forecast cost; zeros for models that run in process.

    Attributes:
        seconds: from the question to its answer, waiting included.
        prompt_tokens: of the prompt, cached ones included.
        cached_tokens: of these, the ones that a prefix cache answered.
        completion_tokens: of the answer, reasoning included.
        reasoning_tokens: of these, the ones that the model thought with.
        gpu_seconds: of the GPUs that the model runs on; 0 unless their number is configured.
    """

    seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    gpu_seconds: float = 0.0

    def __add__(self, other: ForecastCost) -> ForecastCost:
        """What both cost together."""
        return ForecastCost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(ForecastCost)))


@dataclass(frozen=True)
class Forecast:
    """Eight probabilities, from bin 1 (slowest) to bin 8 (fastest), given that the candidate runs right.

    Attributes:
        probabilities: eight numbers in [0, 1] that sum to 1.
        raw_sum: what they summed to before normalisation (1 where nothing was normalised).
        source: name of the forecaster that they come from.
        cost: tokens and seconds.
        components: for combined forecasts, the probabilities of each expert by name.
        covered_mass: probability that the model gave to the eight bins together, of all that it might have
            answered; ``None`` where no such number is known.
        suspicions: why it must not be trusted; with any, its candidate is deferred to the GPU whatever its
            confidence.
        disagrees: the model named another bin than the one it gave the largest probability.
        p_invalid: probability that the candidate does not build or run; ``None`` where nothing is said of it.
        p_incorrect: probability that it runs, with wrong results; ``None`` together with ``p_invalid``.
    """

    probabilities: tuple[float, ...]
    raw_sum: float = 1.0
    source: str = ""
    cost: ForecastCost = ForecastCost()
    components: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    covered_mass: float | None = None
    suspicions: tuple[str, ...] = ()
    disagrees: bool = False
    p_invalid: float | None = None
    p_incorrect: float | None = None

    def __post_init__(self) -> None:
        probabilities = self.probabilities
        if len(probabilities) != N_BINS:
            raise ValueError(f"a forecast has {N_BINS} probabilities, got {len(probabilities)}")
        if not all(math.isfinite(p) and 0.0 <= p <= 1.0 + _SUM_TOLERANCE for p in probabilities):
            raise ValueError(f"probabilities lie in [0, 1], got {probabilities}")
        if abs(math.fsum(probabilities) - 1.0) > _SUM_TOLERANCE:
            raise ValueError(f"probabilities sum to 1, got {math.fsum(probabilities)!r}")
        if self.covered_mass is not None and not 0.0 <= self.covered_mass <= 1.0 + _SUM_TOLERANCE:
            raise ValueError(f"a covered mass lies in [0, 1], got {self.covered_mass!r}")
        if (self.p_invalid is None) != (self.p_incorrect is None):
            raise ValueError("p_invalid and p_incorrect are given together")
        if self.p_ok is not None and not (
            min(self.p_invalid or 0.0, self.p_incorrect or 0.0) >= 0.0 and self.p_ok >= -_SUM_TOLERANCE
        ):
            raise ValueError(
                f"p_invalid and p_incorrect are at least 0 and sum to at most 1, got {self.p_invalid!r} and "
                f"{self.p_incorrect!r}"
            )

    @property
    def p_ok(self) -> float | None:
        """Probability that the candidate builds, runs and is right; ``None`` where nothing is said of it."""
        if self.p_invalid is None or self.p_incorrect is None:
            return None
        return 1.0 - self.p_invalid - self.p_incorrect

    def as_lottery(self, safest: float = 1.0) -> Forecast:
        """What measuring the candidate gives, failures included: a failure counts as certainly the slowest bin.

        With probability P(ok) the bins are as forecast; the rest of the mass goes to bin 1. So a rule that is linear in
        the bins scores P(ok) times value, where value is counted from the slowest bin, and no negative logarithm gains
        by failing; quantiles and draws are those of the lottery. Without a P(ok), the forecast itself.

        Args:
            safest: the P(ok) that counts as none to be lost, above 0: where candidates are ranked, the largest among
                them, so that a risk that all share changes nothing.
        """
        if self.p_ok is None:
            return self
        ok = min(1.0, max(0.0, self.p_ok / safest))
        if ok == 1.0:
            return self
        slowest, *rest = (ok * p for p in self.probabilities)
        weights = (slowest + 1.0 - ok, *rest)
        total = math.fsum(weights)
        return replace(self, probabilities=tuple(weight / total for weight in weights))

    @classmethod
    def from_weights(
        cls,
        weights: Sequence[float],
        *,
        source: str = "",
        cost: ForecastCost | None = None,
        components: Mapping[str, tuple[float, ...]] | None = None,
    ) -> Forecast:
        """Normalise eight non-negative weights.

        Raises:
            ValueError: a weight is negative or not finite, or all are zero.
        """
        values = [float(weight) for weight in weights]
        try:
            total = math.fsum(values)
        except (OverflowError, ValueError):  # their sum is beyond a float, or infinities of both signs
            total = math.inf
        if not (math.isfinite(total) and total > 0 and min(values) >= 0):
            raise ValueError(f"weights must be non-negative, finite and not all zero, got {values}")
        return cls(
            tuple(value / total for value in values), total, source, cost or ForecastCost(), components or {}
        )

    @property
    def predicted_bin(self) -> int:
        """Number, 1 to 8, of the most probable bin; the slower one of equals."""
        return max(range(N_BINS), key=lambda i: (self.probabilities[i], -i)) + 1

    def confidence(self, kind: ConfidenceKind = "max_prob") -> float:
        """How sure the forecast is, in [0, 1].

        ``max_prob``: probability of the predicted bin. ``neg_entropy``: 1 - H / ln 8.
        ``top2_margin``: distance between the two largest probabilities.
        """
        if kind == "max_prob":
            return max(self.probabilities)
        if kind == "neg_entropy":
            entropy = -math.fsum(p * math.log(p) for p in self.probabilities if p > 0)
            return min(1.0, max(0.0, 1.0 - entropy / math.log(N_BINS)))
        if kind == "top2_margin":
            second, first = sorted(self.probabilities)[-2:]
            return first - second
        raise ValueError(f"unknown confidence {kind!r}; known: max_prob, neg_entropy, top2_margin")

    def expected_log2(self, bins: BinScheme = BINS) -> float:
        """Expected log2 speed-up by the bins' midpoints."""
        return math.fsum(p * m for p, m in zip(self.probabilities, bins.log2_midpoints, strict=True))

    def expected_bin(self) -> float:
        """Expected bin number, 1 to 8."""
        return math.fsum(p * (i + 1) for i, p in enumerate(self.probabilities))

    def exceedance(self, log2_speedup: float, bins: BinScheme = BINS) -> float:
        """P(log2 S > ``log2_speedup``), taking each bin's mass as spread evenly over its interval.

        The open ends are taken to reach two octaves past their edge (twice the way to their midpoint).
        """
        edges = (bins.log2_edges[0] - 2.0, *bins.log2_edges, bins.log2_edges[-1] + 2.0)
        total = 0.0
        for probability, low, high in zip(self.probabilities, edges, edges[1:], strict=False):
            share = (high - log2_speedup) / (high - low)
            total += probability * min(1.0, max(0.0, share))
        return min(1.0, total)

    def quantile(self, level: float, bins: BinScheme = BINS) -> float:
        """Quantile of log2 S at ``level`` in (0, 1), mass spread evenly within bins as in :meth:`exceedance`."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"a quantile level lies in (0, 1), got {level!r}")
        edges = (bins.log2_edges[0] - 2.0, *bins.log2_edges, bins.log2_edges[-1] + 2.0)
        cumulative, top = 0.0, edges[0]
        for probability, low, high in zip(self.probabilities, edges, edges[1:], strict=False):
            if probability > 0:
                if cumulative + probability >= level:
                    return low + (high - low) * (level - cumulative) / probability
                top = high
            cumulative += probability
        return top  # rounding has left the level just above the sum


@dataclass(frozen=True)
class ForecastFailure:
    """There is no forecast, and why. Its candidate is deferred to the GPU."""

    kind: FailureKind
    detail: str = ""
    source: str = ""
    cost: ForecastCost = ForecastCost()
    suspicions: tuple[str, ...] = ()


ForecastOutcome = Forecast | ForecastFailure


@dataclass(frozen=True)
class Observation:
    """A measured candidate, with the forecast made before it was measured.

    Attributes:
        candidate_key: identity of the candidate.
        candidate_code: its source text.
        speedup: measured speed-up over the reference; only measurements with outcome ``ok`` are observed.
        pool_id: the pool that it was decided in; ``None`` for the reference itself.
        forecast: the forecast that the decision was based on, if any.
        anchor_speedup: measured speed-up of the kernel that the forecast's bins are relative to.
        sampling_probability: chance with which an ``audit`` row was drawn; ``None`` for other reasons.
        profile: what the compiler made of it; ``None`` where nobody compiled it, or nothing came of it.
    """

    candidate_key: str
    candidate_code: str
    speedup: float
    pool_id: int | None = None
    forecast: Forecast | None = None
    anchor_speedup: float = 1.0
    sampling_probability: float | None = None
    profile: SourceProfile | None = None

    @property
    def log2_speedup(self) -> float:
        """log2 of the measured speed-up over the reference."""
        return math.log2(self.speedup)

    @property
    def relative_speedup(self) -> float:
        """Measured speed-up over the anchor of its forecast: the truth that the forecast is scored by."""
        return self.speedup / self.anchor_speedup


@dataclass(frozen=True)
class Attempt:
    """A measurement that has ended, and says whether its candidate runs right.

    Attributes:
        candidate_key: identity of the candidate.
        candidate_code: its source text.
        ending: how it fared.
        profile: what the compiler made of it; ``None`` where nobody compiled it, or nothing came of it.
        screened: the compiler's verdict, as in :class:`Query`.
    """

    candidate_key: str
    candidate_code: str
    ending: Ending
    profile: SourceProfile | None = None
    screened: str | None = None
