"""What other recorded tasks say about a change of structure, before this run has measured anything.

A ridge on the difference in structure features to the reference, how much there is of each and whether there is any,
pooled over operations. It sees no source of the operation in question, and the run decides by its own measurements how
much of it to believe: the prior enters the Gaussian process as one more coordinate with a weight to be learned.

Operations are of two kinds: those whose reference multiplies matrices, where a kernel is fast that keeps the tensor
cores busy, and the others, where one is fast that moves little memory. What helps one kind may well hurt the other, so
tasks of the run's own kind count in full, and those of the other kind little.

Recorded references are kernels. Where the run's own is a program of PyTorch calls, measured rewrites of such programs
say what candidates bring over it, and the recorded tasks what tells one kernel from another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from gpu_forecasters_plugin.forecasters.learned.features import (
    STRUCTURE_NAMES,
    SourceFeatures,
    multiplies_matrices,
)
from gpu_forecasters_plugin.forecasters.learned.known import KnownTask
from gpu_forecasters_plugin.forecasters.learned.rewrites import RewriteModel

__all__ = ["WarmStart", "learned_from"]

Array = NDArray[np.float64]

_RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0)
_REACH = 2.0
"""Differences are squashed to this many standard deviations and the prior to as many octaves: both would
otherwise extrapolate without bound."""

_LEAST_ROWS = 8

_OTHER_KIND = 0.2
"""What a task of the other kind counts, where one of the run's own counts 1."""

_BESIDE_REWRITES = 0.5
"""What recorded kernels count beside rewrites. Best is 0.2 for rewrites of modules that were left out, and 1 for
recorded tasks seen from one of their PyTorch sources."""


class WarmStart:
    """Expected log2 speed-up from the change in structure, learned on other operations.

    There are two models for either kind of operation: of structure alone, and of structure and static profile
    together, for runs whose reference has a profile. A source without one is then expected to be what its structure
    alone makes it.

    Args:
        tasks: recorded tasks of other operations; with none, or too little in them, nothing is expected.
        rewrites: what rewrites of PyTorch modules bring.
    """

    def __init__(self, tasks: Sequence[KnownTask], rewrites: RewriteModel | None = None) -> None:
        self._rewrites = rewrites
        self._blocks = [_block(task) for task in tasks if len(task.targets) >= _LEAST_ROWS]
        self._from_kernels_alone = all(block.from_kernel for block in self._blocks)

    def slope(self, reference: SourceFeatures) -> float:
        """How much of the expectation to believe at first.

        What it would have been worth on each of the tasks when learned on the others only, between 0 and 1.
        """
        rewrites = self._rewrites_for(reference)
        return self._slope_of_tasks(reference) if rewrites is None else rewrites.slope

    def expect(self, reference: SourceFeatures, sources: Sequence[SourceFeatures]) -> Array:
        """Expected log2 speed-up of each source over the reference; zero for the reference itself.

        Nothing is expected of what is no program of the kind that was learned from: of a list of tuning
        parameters, say, whose few structure features mean something else. Nor, where every reference learned from is
        a kernel, of a source without one beside a reference without one: such a change was never seen.
        """
        if not _is_program(reference):
            return np.zeros(len(sources))
        expected = self._expect_of_programs(reference, sources)
        if self._from_kernels_alone and not _defines_kernel(reference.structure):
            expected[[not _defines_kernel(features.structure) for features in sources]] = 0.0
        rewrites = self._rewrites_for(reference)
        if rewrites is None:
            return expected
        # In the units of the rewrites, whose slope the caller multiplies with.
        share = self._slope_of_tasks(reference) / rewrites.slope if rewrites.slope > 0.0 else 0.0
        return rewrites.expect(reference, sources) + _BESIDE_REWRITES * share * expected

    def _slope_of_tasks(self, reference: SourceFeatures) -> float:
        return self._models(reference).for_runs_from(reference).slope

    def _rewrites_for(self, reference: SourceFeatures) -> RewriteModel | None:
        """The model of rewrites, where the reference calls PyTorch and has no kernel of its own."""
        calls = _has_any(reference.structure, "torch") and not _defines_kernel(reference.structure)
        return self._rewrites if calls else None

    def _expect_of_programs(self, reference: SourceFeatures, sources: Sequence[SourceFeatures]) -> Array:
        models = self._models(reference)
        structure = _with_presence(np.array([features.structure for features in sources])) - _with_presence(
            reference.structure
        )
        expected = models.text.expect(structure)
        if models.for_runs_from(reference) is models.text or reference.profile is None:
            return expected
        # In the units of the other model, whose slope the caller multiplies with.
        expected *= models.text.slope / models.profiled.slope
        seen = [index for index, features in enumerate(sources) if features.profile is not None]
        if seen:
            profiles = _change(reference.profile, np.array([sources[index].profile for index in seen]))
            expected[seen] = models.profiled.expect(np.hstack([structure[seen], profiles]))
        return expected

    def _models(self, reference: SourceFeatures) -> _Models:
        return self._with_products if reference.multiplies_matrices else self._without

    @cached_property
    def _with_products(self) -> _Models:
        return _learned(self._blocks, multiplies_matrices=True)

    @cached_property
    def _without(self) -> _Models:
        return _learned(self._blocks, multiplies_matrices=False)


@lru_cache(maxsize=8)
def learned_from(tasks: tuple[KnownTask, ...], rewrites: RewriteModel | None = None) -> WarmStart:
    """The warm start of those tasks, learned once in a process however many searches start from them."""
    return WarmStart(tasks, rewrites)


class _Model:
    """A ridge on changes, with what its expectation is worth.

    Args:
        blocks: per task, the changes to its reference and the log2 speed-ups over it.
        weights: what each task counts.
    """

    def __init__(self, blocks: Sequence[tuple[Array, Array]], weights: Sequence[float]) -> None:
        self.slope = 0.0
        self._coefficients: Array = np.zeros(0)
        self._scale: Array = np.ones(0)
        if not blocks:
            return
        squares = np.array([(delta**2).mean(axis=0) for delta, _ in blocks])
        self._scale = np.sqrt(squares.mean(axis=0) + 0.05)
        squashed = [(self._squash(delta), np.clip(targets, -4.0, 4.0)) for delta, targets in blocks]
        counts = np.array(weights, dtype=np.float64)
        grams, rights = zip(*(_moments(*block) for block in squashed), strict=True)
        moments = np.array(grams), np.array(rights)
        ridge = _RIDGES[-1]
        if len(squashed) > 1:
            ridge, self.slope = _leave_one_task_out(squashed, moments, counts)
        self._coefficients = _ridge_fit(moments, counts, ridge)

    def expect(self, delta: Array) -> Array:
        """Expected log2 speed-up of each row of changes."""
        if not self._coefficients.any():
            return np.zeros(len(delta))
        expected: Array = _REACH * np.tanh(self._squash(delta) @ self._coefficients / _REACH)
        return expected

    def _squash(self, delta: Array) -> Array:
        squashed: Array = _REACH * np.tanh(delta / self._scale / _REACH)
        return squashed


@dataclass(frozen=True)
class _Models:
    """What is known for operations of one kind."""

    text: _Model
    profiled: _Model

    def for_runs_from(self, reference: SourceFeatures) -> _Model:
        """The model whose expectations a run with that reference starts from."""
        return self.text if reference.profile is None or self.profiled.slope <= 0.0 else self.profiled


@dataclass(frozen=True)
class _Block:
    """Changes of one task's kernels to its reference.

    Attributes:
        multiplies_matrices: of which kind the operation is, by its reference.
        structure: of what :func:`_with_presence` makes of each, a row per kernel.
        profiles: likewise of the static profile; a row of ``nan`` where there is none.
        targets: log2 speed-ups.
        has_profiles: whether the reference has one.
        from_kernel: whether the reference defines a kernel.
    """

    multiplies_matrices: bool
    structure: Array
    profiles: Array
    targets: Array
    has_profiles: bool
    from_kernel: bool

    def weight(self, multiplies_matrices: bool) -> float:
        """What the task counts for operations that multiply matrices, or for those that do not."""
        return 1.0 if self.multiplies_matrices == multiplies_matrices else _OTHER_KIND

    def profiled(self) -> tuple[Array, Array]:
        """Structure and profile of the kernels that have one, with their targets."""
        known = np.isfinite(self.profiles).all(axis=1)
        return np.hstack([self.structure, self.profiles])[known], self.targets[known]


def _block(task: KnownTask) -> _Block:
    reference, ran = task.reference, task.ran
    changes = np.full(ran.profiles.shape, np.nan)
    if reference.compiled[0]:
        changes[ran.compiled] = _change(reference.profiles[0], ran.profiles[ran.compiled])
    structure = _with_presence(ran.structure) - _with_presence(reference.structure[0])
    kind = multiplies_matrices(task.reference_code)
    from_kernel = _defines_kernel(reference.structure[0])
    return _Block(kind, structure, changes, task.targets, bool(reference.compiled[0]), from_kernel)


def _learned(blocks: Sequence[_Block], multiplies_matrices: bool) -> _Models:
    """What tasks of both kinds say of operations of one kind."""
    weights = [block.weight(multiplies_matrices) for block in blocks]
    text = [(block.structure, block.targets) for block in blocks]
    profiled = [
        (block.profiled(), weight)
        for block, weight in zip(blocks, weights, strict=True)
        if block.has_profiles
    ]
    profiled = [(known, weight) for known, weight in profiled if len(known[1]) >= _LEAST_ROWS]
    return _Models(
        _Model(text, weights), _Model([known for known, _ in profiled], [weight for _, weight in profiled])
    )


def _with_presence(structure: Array) -> Array:
    """How much there is of every structure feature, and then whether there is any of each."""
    return np.concatenate([structure, structure > 0.0], axis=-1)


def _change(reference: Array, profiles: Array) -> Array:
    """Profile features relative to the reference's; no change where either has no number."""
    return np.nan_to_num(profiles - reference)


def _is_program(features: SourceFeatures) -> bool:
    """Whether a source defines a kernel, loads memory or calls PyTorch."""
    return _has_any(features.structure, "kernel", "load", "torch")


def _defines_kernel(structure: Array) -> bool:
    """Whether a source with these structure features defines a kernel, in Triton or CUDA C++."""
    return _has_any(structure, "kernel")


def _has_any(structure: Array, *names: str) -> bool:
    return any(structure[STRUCTURE_NAMES.index(name)] > 0 for name in names)


def _moments(features: Array, targets: Array) -> tuple[Array, Array]:
    """What a ridge needs of one task. Its level is free: a poor reference makes everything of a task fast."""
    centred = features - features.mean(axis=0)
    # What a task counts does not depend on how many kernels it has.
    return centred.T @ centred / len(targets), centred.T @ (targets - float(targets.mean())) / len(targets)


def _ridge_fit(moments: tuple[Array, Array], weights: Array, ridge: float) -> Array:
    """Coefficients that tasks share, from the stacked :func:`_moments` of all and what each counts."""
    grams, rights = moments
    shares = weights / weights.sum()
    gram, right = np.tensordot(shares, grams, axes=1), shares @ rights
    return np.asarray(np.linalg.solve(gram + ridge * np.eye(len(right)), right), dtype=np.float64)


def _leave_one_task_out(
    blocks: Sequence[tuple[Array, Array]], moments: tuple[Array, Array], weights: Array
) -> tuple[float, float]:
    """Ridge that carries over best to a task that it has not seen, and the slope to believe it with."""
    best = (math.inf, _RIDGES[-1], 0.0)
    for ridge in _RIDGES:
        products, squares, power = np.zeros((3, len(blocks)))
        for index, (features, targets) in enumerate(blocks):
            others = _ridge_fit(moments, np.where(np.arange(len(blocks)) == index, 0.0, weights), ridge)
            expected = (features - features.mean(axis=0)) @ others
            truth = targets - targets.mean()
            products[index] = float(expected @ truth) / len(truth)
            squares[index] = float(expected @ expected) / len(truth)
            power[index] = float(truth @ truth) / len(truth)
        # Shrunk by one imaginary task, of their mean weight, on which the expectation was worth nothing.
        imaginary = float(weights @ squares) / float(weights.sum())
        slope = float(weights @ products) / (float(weights @ squares) + imaginary + 1e-9)
        slope = min(1.0, max(0.0, slope))
        loss = float(weights @ (power - 2 * slope * products + slope**2 * squares))
        if loss < best[0]:
            best = (loss, ridge, slope)
    return best[1], best[2]
