"""What deferral is in force: the configured threshold, one fitted to a target risk, or a wider one after drift."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import numpy as np

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.calibration.audit import AuditRow, audit_rows, nominal_rate
from gpu_forecasters_plugin.calibration.drift import DriftChange, DriftPool, DriftState, DriftTest
from gpu_forecasters_plugin.calibration.losses import ForecastLoss
from gpu_forecasters_plugin.calibration.thresholds import THRESHOLDS, AuditSample, certified_threshold
from gpu_forecasters_plugin.config import DeferralConfig, SurrogateConfig
from gpu_forecasters_plugin.forecast import Observation

__all__ = ["DeferralInForce", "Deferring", "ThresholdSource"]

logger = logging.getLogger(__name__)


class ThresholdSource(StrEnum):
    """Where the threshold in force comes from."""

    CONFIGURED = "configured"
    TARGET_RISK = "target_risk"
    DRIFT = "drift"


@dataclass(frozen=True)
class DeferralInForce:
    """What a pool is decided by.

    Attributes:
        rules: the deferral settings with the threshold and the shares in force.
        source: where the threshold comes from.
        drift: where the drift test stands; ``None`` where it does not run.
    """

    rules: DeferralConfig
    source: ThresholdSource
    drift: DriftState | None = None

    @property
    def miscalibrated(self) -> bool | None:
        """Whether forecasts have become miscalibrated; ``None`` where nobody looks."""
        return None if self.drift is None else self.drift.miscalibrated


class Deferring:
    """Follows a run's measurements, and says how deferral stands for the next pool.

    A pure function of the measured pools but for its announcements: the same ledger gives the same threshold.

    With ``deferral.target_risk``, the lowest threshold is in force that has the guarantee of
    :mod:`~gpu_forecasters_plugin.calibration.thresholds`, which holds at all looks at once; while there is none,
    ``deferral.threshold``.

    After an alarm of the drift test, until forecasts have caught up, ``share`` and ``max_fraction`` are doubled (1 at
    most), and the threshold is halfway between the configured one and 1; fitted thresholds wait. A threshold of
    ``None`` stays: no forecast is deferred.

    Args:
        config: the run's configuration.
        announced: whether the run's last pool, in the ledger, was decided after an alarm: it is not announced again.
    """

    def __init__(self, config: SurrogateConfig, *, announced: bool = False) -> None:
        self._deferral = config.deferral
        self._drift = config.drift
        self._loss = ForecastLoss(config.deferral.risk, config.deferral.bound)
        self._rate = nominal_rate(config.keep_fraction, config.audit_fraction)
        self._announced = announced
        self._start_again()

    def _start_again(self) -> None:
        self._seen: list[Observation] = []
        self._audited: list[AuditRow] = []
        self._test = DriftTest(self._drift.false_alarm_rate) if self._drift.enabled else None
        drift = None if self._test is None else self._test.state
        self._in_force = DeferralInForce(self._deferral, ThresholdSource.CONFIGURED, drift)

    def in_force(
        self, observations: Sequence[Observation], first_open_pool: int | None = None
    ) -> DeferralInForce:
        """The deferral for the next pool.

        Args:
            observations: measured candidates, by pool number.
            first_open_pool: number of the first pool of which a measurement has not ended. It and those after it
                do not count yet, since what ends first is no random part of a pool: slow kernels take longer.
                ``None``: all have ended.
        """
        end = math.inf if first_open_pool is None else first_open_pool
        settled = [o for o in observations if o.pool_id is not None and o.pool_id < end]
        seen = len(self._seen)
        if settled[:seen] != self._seen:
            self._start_again()  # a pool was not as complete as it looked
            seen = 0
        if len(settled) > seen:
            self._learn(settled[seen:])
            self._in_force = self._look()
        return self._in_force

    def _learn(self, rows: list[Observation]) -> None:
        self._seen += rows
        if self._deferral.target_risk is not None:
            self._audited += audit_rows(rows, self._loss, self._deferral.confidence)
        if self._test is not None:
            for pool in _drift_pools(rows):
                self._test.add(pool)

    def _look(self) -> DeferralInForce:
        drift = None if self._test is None else self._test.state
        if drift is not None:
            self._announce(drift)
            if drift.miscalibrated:
                return DeferralInForce(_widened(self._deferral), ThresholdSource.DRIFT, drift)
        fitted = self._fitted()
        if fitted is None:
            return DeferralInForce(self._deferral, ThresholdSource.CONFIGURED, drift)
        rules = self._deferral.model_copy(update={"threshold": fitted})
        return DeferralInForce(rules, ThresholdSource.TARGET_RISK, drift)

    def _fitted(self) -> float | None:
        rules = self._deferral
        if rules.target_risk is None:
            return None
        sample = AuditSample.of(self._audited, self._rate)
        return certified_threshold(
            sample, rules.target_risk, rules.confidence_level, THRESHOLDS[rules.confidence]
        )

    def _announce(self, drift: DriftState) -> None:
        changed = drift.miscalibrated != self._announced
        self._announced = drift.miscalibrated
        if changed and drift.changes:  # none where a resumed run is harder to alarm than before
            _say(drift.changes[-1])


def _say(change: DriftChange) -> None:
    if change.miscalibrated:
        logger.warning(
            "forecasts have become miscalibrated (evidence e^%.1f by pool %d; %s forecasts would have done better): "
            "more candidates are deferred to the GPU until they have caught up",
            change.log_evidence,
            change.pool,
            change.correction,
        )
    else:
        logger.warning("forecasts have caught up by pool %d: deferral is as configured again", change.pool)


def _widened(rules: DeferralConfig) -> DeferralConfig:
    """Twice the room, and a threshold halfway to certainty."""
    threshold = None if rules.threshold is None else (1.0 + rules.threshold) / 2
    shares = {"share": min(1.0, 2 * rules.share), "max_fraction": min(1.0, 2 * rules.max_fraction)}
    return rules.model_copy(update={"threshold": threshold} | shares)


def _drift_pools(settled: Sequence[Observation]) -> list[DriftPool]:
    """The measured rows that had a forecast, pool by pool."""
    foretold = [
        (o.pool_id or 0, o.forecast.probabilities, BINS.index(o.relative_speedup) - 1)
        for o in settled
        if o.forecast is not None
    ]
    pools = []
    for number, rows in groupby(foretold, key=lambda row: row[0]):
        _, probabilities, truth = zip(*rows, strict=True)
        pools.append(DriftPool(number, np.array(probabilities), np.array(truth, dtype=np.intp)))
    return pools
