"""A deferral threshold from a ledger: the rows that count, what is known of each threshold, and in which words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpu_forecasters_plugin.calibration.audit import audit_rows, nominal_rate
from gpu_forecasters_plugin.calibration.losses import ForecastLoss
from gpu_forecasters_plugin.calibration.thresholds import (
    METHOD,
    THRESHOLDS,
    AuditSample,
    ThresholdRisk,
    risk_table,
    rows_needed,
)
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.forecast import ConfidenceKind
from gpu_forecasters_plugin.ledger import LedgerReader, Result

__all__ = ["Calibration", "calibrate"]


@dataclass(frozen=True)
class Calibration:
    """What a run's audit rows say about deferral thresholds.

    Attributes:
        run: name of the run.
        target_risk: the risk that the forecasts trusted are to have at most.
        confidence_level: probability of the guarantee.
        loss: when a forecast was wrong.
        confidence: the confidence that is compared with thresholds, as the run was configured.
        table: what is known of each threshold, ascending.
        coverage: share of all the run's forecasts that each threshold trusts, measured or not; ``None`` without any.
        n: rows used: drawn at random, with a forecast and a time.
        rows_needed: the fewest rows that could certify a threshold.
        failures: rows drawn at random whose kernel failed; forecasts say nothing about these.
        without_forecast: rows drawn at random that had no forecast, or none to be trusted whatever its confidence.
        under_way: rows that wait for a measurement in their pool, or before, to end.
    """

    run: str
    target_risk: float
    confidence_level: float
    loss: ForecastLoss
    confidence: ConfidenceKind
    table: tuple[ThresholdRisk, ...]
    coverage: tuple[float | None, ...]
    n: int
    rows_needed: int
    failures: int
    without_forecast: int
    under_way: int

    @property
    def chosen(self) -> int | None:
        """Index of the lowest threshold with the guarantee; ``None`` when there is none."""
        return next((index for index, row in enumerate(self.table) if row.certified), None)

    @property
    def threshold(self) -> float | None:
        """That threshold."""
        return None if self.chosen is None else self.table[self.chosen].threshold

    @property
    def verdict(self) -> str:
        """What came of it, in a sentence or two."""
        level, target = f"{self.confidence_level:.0%}", f"{self.target_risk:g}"
        if self.chosen is not None:
            row = self.table[self.chosen]
            return (
                f"threshold {row.threshold:g}: with {level} confidence at most {target} of the forecasts at or above "
                f"it are wrong ({self.loss})"
            )
        most = max(row.effective_n for row in self.table)
        if most < self.rows_needed:
            return (
                f"too few rows: {self.n} drawn at random with a forecast and a time"
                f"{_counting_as(most, self.n)}, and a target risk of {target} with {level} confidence takes at least "
                f"{self.rows_needed}; measure more, raise surrogate.audit_fraction, or the target"
            )
        nearest = min(self.table, key=lambda row: row.upper_bound)
        return (
            f"no threshold has the guarantee: the risk is at most {nearest.upper_bound:.3g} with {level} confidence at "
            f"{nearest.threshold:g} ({nearest.n} rows), above the target {target}; measure more, raise "
            "surrogate.audit_fraction, or the target"
        )

    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``."""
        row = None if self.chosen is None else self.table[self.chosen]
        return {
            "threshold": self.threshold,
            "coverage": None if self.chosen is None else self.coverage[self.chosen],
            "risk": None if row is None else row.risk,
            "n": self.n,
            "method": METHOD,
            "upper_bound": None if row is None else row.upper_bound,
            "n_trusted": None if row is None else row.n,
            "effective_n": None if row is None else row.effective_n,
            "rows_needed": self.rows_needed,
            "run": self.run,
            "target_risk": self.target_risk,
            "confidence_level": self.confidence_level,
            "risk_kind": self.loss.kind,
            "bound": self.loss.bound if self.loss.kind == "log2_error" else None,
            "confidence": self.confidence,
            "failures": self.failures,
            "without_forecast": self.without_forecast,
            "under_way": self.under_way,
            "verdict": self.verdict,
            "thresholds": [
                asdict(row) | {"coverage": coverage}
                for row, coverage in zip(self.table, self.coverage, strict=True)
            ],
        }


def _counting_as(effective: float, n: int) -> str:
    # Rounded down: it is compared with how many it takes.
    return "" if effective > n - 0.5 else f" (as good as {math.floor(effective)} of equal weight)"


def calibrate(
    ledger: LedgerReader, target_risk: float, confidence_level: float, loss: ForecastLoss
) -> Calibration:
    """Look for a threshold in what the run that the ledger follows has measured.

    Args:
        ledger: follows the run; it may still be written to.
        target_risk: in (0, 1).
        confidence_level: in (0, 1).
        loss: when a forecast was wrong.
    """
    run = ledger.run()
    config: dict[str, Any] = run["config"]
    kind: ConfidenceKind = config.get("deferral", {}).get("confidence", "max_prob")
    thresholds = THRESHOLDS[kind]
    drawn = ledger.audit_results()
    settled = _settled(ledger, drawn)
    observations = [result.observation for result in settled if result.observation is not None]
    rate = nominal_rate(config.get("keep_fraction", 0.25), config.get("audit_fraction", 0.25))
    sample = AuditSample.of(audit_rows(observations, loss, kind), rate)
    confidences = np.array(ledger.confidences())
    return Calibration(
        run=run["name"],
        target_risk=target_risk,
        confidence_level=confidence_level,
        loss=loss,
        confidence=kind,
        table=tuple(risk_table(sample, target_risk, confidence_level, thresholds)),
        coverage=tuple(
            float((confidences >= threshold).mean()) if len(confidences) else None for threshold in thresholds
        ),
        n=sample.size,
        rows_needed=rows_needed(target_risk, confidence_level, len(thresholds)),
        failures=sum(result.measurement.outcome is not Outcome.OK for result in settled),
        without_forecast=sum(observation.forecast is None for observation in observations),
        under_way=len(drawn) - len(settled),
    )


def _settled(ledger: LedgerReader, drawn: list[Result]) -> list[Result]:
    """The results of the pools before the first of which a measurement still runs.

    What ends first is no random part of a pool, since slow kernels take longer. What a dead process has left open
    will not end.
    """
    running = [charge.decision_id for charge in ledger.open_charges() if charge.worker.may_be_alive()]
    end = ledger.first_pool_of(running)
    return [r for r in drawn if not r.provisional and (end is None or r.pool_number < end)]
