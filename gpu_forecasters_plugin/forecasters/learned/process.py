"""A Gaussian process on log2 speed-ups with automatic relevance determination.

Covariance of two sources: sigma^2 (1 + tau^2 m m' + exp(-d^2 / 2) + noise), where d^2 sums the squared
differences of the coordinates, each with a relevance of its own, and the token distance; m is what a prior
(the warm start) expects of a source, so its weight is learned like everything else. The relevances and the
noise are found by maximum a posteriori; sigma^2 has an inverse-gamma prior and is integrated out, which makes
predictions Student-t. A leave-one-out factor widens them when the fit turns out too sure of itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecasters.learned.space import Points, squared_distances

__all__ = ["GaussianProcess", "Prediction"]

Array = NDArray[np.float64]

_STEPS = 20
_FEW_STEPS = 6
_RATE = 0.25
_GROUP_CENTRES = (math.log(1.4), math.log(1.2), math.log(1.2))
"""Of bindings, structure and profile, in this order."""
_TOKEN_CENTRE = math.log(1.0)
_RELEVANCE_SD = 0.7
_NOISE = math.log(0.05)
_NOISE_SD = 1.0
_SHAPE = 2.0
_VARIANCE = 0.8**2
_PRIOR_WEIGHT_VARIANCE = 0.5
_CALIBRATION_ROWS = 5.0
_JITTER = 1e-8


@dataclass(frozen=True)
class Prediction:
    """Student-t beliefs about log2 speed-ups over the reference, one per source.

    Attributes:
        mean: centre.
        scale: scale of the t distribution (not its standard deviation).
        freedom: degrees of freedom, the same for all.
    """

    mean: Array
    scale: Array
    freedom: float


@dataclass(frozen=True)
class _Hyper:
    """Log relevances of coordinates, of their groups and of the tokens, then the log noise, as one vector.

    Attributes:
        groups: how many coordinates each group has.
    """

    groups: tuple[int, ...]

    @property
    def columns(self) -> int:
        return sum(self.groups)

    @property
    def centre(self) -> Array:
        groups = _GROUP_CENTRES[: len(self.groups)]
        return np.concatenate([np.zeros(self.columns), groups, [_TOKEN_CENTRE, _NOISE]])

    @property
    def spread(self) -> Array:
        relevances = self.columns + len(self.groups) + 1
        return np.concatenate([np.full(relevances, _RELEVANCE_SD), [_NOISE_SD]])

    def weights(self, theta: Array) -> Array:
        group = np.repeat(theta[self.columns : -2], self.groups)
        weights: Array = np.exp(theta[: self.columns] + group)
        return weights

    def by_group(self, by_column: Array) -> list[float]:
        """Sums of a column vector over each group."""
        ends = np.cumsum(self.groups)
        return [float(by_column[end - size : end].sum()) for end, size in zip(ends, self.groups, strict=True)]


class GaussianProcess:
    """Fits on construction; immutable afterwards.

    Args:
        points: measured sources.
        groups: how many of their live coordinates belong to each group, in the groups' order.
        targets: their log2 speed-ups.
        prior: what the warm start expects of each; zeros without one.
        prior_slope: how much of the prior is believed before anything is measured.
        chosen: rows that the hyper-parameters are fitted on; all rows enter the predictions.
        start: a process on the same points whose hyper-parameters are nearly right; spares most of the steps.

    Attributes:
        theta: the fitted hyper-parameters, in log.
        evidence: log marginal likelihood of the chosen rows at the fitted hyper-parameters, their prior
            included; only differences between fits to the same rows mean anything.
    """

    def __init__(
        self,
        points: Points,
        groups: tuple[int, ...],
        targets: Array,
        prior: Array,
        prior_slope: float,
        chosen: NDArray[np.intp],
        start: GaussianProcess | None = None,
    ) -> None:
        self._points = points
        self._prior = prior
        self._slope = prior_slope
        self._hyper = _Hyper(groups)
        residual = targets - prior_slope * prior
        begin: Array = self._hyper.centre if start is None else start.theta
        steps = _STEPS if start is None else _FEW_STEPS
        theta, evidence = self._fit(begin, steps, chosen, residual[chosen], prior[chosen])
        self.theta: Array = theta
        self.evidence: float = evidence
        self._weights = self._hyper.weights(theta)
        self._token_weight, self._noise = np.exp(theta[-2]), np.exp(theta[-1])
        weighted = points.live * self._weights
        distances = squared_distances(weighted, weighted)
        distances += self._token_weight**2 * points.own_distances
        covariance = np.exp(-0.5 * distances) + self._low_rank(prior, prior)
        covariance[np.diag_indices(len(targets))] += self._noise + _JITTER
        self._inverse = np.linalg.inv(covariance)
        self._solved = self._inverse @ residual
        rows = len(targets)
        self._freedom = 2.0 * _SHAPE + rows
        fit = max(float(residual @ self._solved), 0.0)
        self._variance = (_SHAPE * _VARIANCE + fit / 2.0) / (_SHAPE + rows / 2.0)
        precision = np.diag(self._inverse)
        surprise = float((self._solved**2 / precision).sum()) / self._variance
        self._widening = max(1.0, (surprise + _CALIBRATION_ROWS) / (rows + _CALIBRATION_ROWS))

    @staticmethod
    def _low_rank(left: Array, right: Array) -> Array:
        product: Array = 1.0 + _PRIOR_WEIGHT_VARIANCE * np.outer(left, right)
        return product

    def _fit(
        self, begin: Array, steps: int, chosen: NDArray[np.intp], residual: Array, prior: Array
    ) -> tuple[Array, float]:
        """Maximum a posteriori by Adam: the best step visited, and its value."""
        live, base = self._points.live[chosen], self._low_rank(prior, prior)
        fixed = self._points.own_distances[np.ix_(chosen, chosen)]
        centre, spread = self._hyper.centre, self._hyper.spread
        theta, best, best_value = begin.copy(), begin.copy(), -math.inf
        first, second = np.zeros_like(theta), np.zeros_like(theta)
        for step in range(1, steps + 2):
            value, gradient = self._objective(theta, live, fixed, base, residual)
            deviation = (theta - centre) / spread
            value -= 0.5 * float(deviation @ deviation)
            if value > best_value:
                best, best_value = theta.copy(), value
            gradient -= deviation / spread
            first = 0.8 * first + 0.2 * gradient
            second = 0.95 * second + 0.05 * gradient**2
            stride = (first / (1 - 0.8**step)) / (np.sqrt(second / (1 - 0.95**step)) + 1e-8)
            theta = np.clip(theta + _RATE * stride, centre - 6 * spread, centre + 4 * spread)
        return best, best_value

    def _objective(
        self, theta: Array, live: Array, fixed: Array, base: Array, residual: Array
    ) -> tuple[float, Array]:
        """Log marginal likelihood, sigma^2 integrated out, and its gradient."""
        rows, columns = len(residual), self._hyper.columns
        token, noise = math.exp(theta[-2]) ** 2, math.exp(theta[-1])
        weighted = live * self._hyper.weights(theta)
        similarity = np.exp(-0.5 * (squared_distances(weighted, weighted) + token * fixed))
        covariance = similarity + base
        covariance[np.diag_indices(rows)] += noise + _JITTER
        try:
            log_determinant = 2.0 * float(np.log(np.diag(np.linalg.cholesky(covariance))).sum())
        except np.linalg.LinAlgError:
            return -math.inf, np.zeros_like(theta)
        inverse = np.linalg.inv(covariance)
        solved = inverse @ residual
        evidence = _SHAPE * _VARIANCE + max(float(residual @ solved), 0.0) / 2.0
        value = -0.5 * log_determinant - (_SHAPE + rows / 2.0) * math.log(evidence)
        slope = 0.5 * (np.outer(solved, solved) * (_SHAPE + rows / 2.0) / evidence - inverse)
        pulled = slope * similarity
        gradient = np.zeros_like(theta)
        by_column = -2.0 * (
            (weighted**2).T @ pulled.sum(axis=1) - (weighted * (pulled @ weighted)).sum(axis=0)
        )
        gradient[:columns] = by_column
        gradient[columns:-2] = self._hyper.by_group(by_column)
        gradient[-2] = -float((pulled * fixed).sum()) * token
        gradient[-1] = noise * float(np.trace(slope))
        return value, gradient

    def predict(self, points: Points, fixed: Array, prior: Array) -> Prediction:
        """Beliefs about what measuring these sources would give.

        Args:
            points: the sources.
            fixed: their :meth:`Points.fixed_distances` to the measured ones.
            prior: what the warm start expects of each.
        """
        distances = squared_distances(points.live * self._weights, self._points.live * self._weights)
        distances += self._token_weight**2 * fixed
        cross = np.exp(-0.5 * distances) + self._low_rank(prior, self._prior)
        mean = self._slope * prior + cross @ self._solved
        own = 2.0 + _PRIOR_WEIGHT_VARIANCE * prior**2
        variance = np.maximum(own - ((cross @ self._inverse) * cross).sum(axis=1), 0.0) + self._noise
        scale = np.sqrt(self._variance * self._widening * variance)
        return Prediction(mean, scale, self._freedom)
