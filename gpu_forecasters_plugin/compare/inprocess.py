"""A small evolutionary search in this process: the host for comparisons over many seeds.

Two parents a step, the best kernel so far and one drawn by rank; four candidates per parent are measured, chosen from
as many without the filter and from four times as many with it, in one pool of both parents' children.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.replay import PARENTS, Archive, ParentChoice, replay
from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["InProcessHost"]

_RANK_DECAY = 0.6


class _BestAndRanked(ParentChoice):
    """The best kernel, and another drawn by rank: each is 0.6 times as likely as the one before it."""

    one_pool = True

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def parents(self, archive: Archive, step: int) -> list[str]:
        ranked = archive.ranked()
        weights = [_RANK_DECAY**rank for rank in range(len(ranked))]
        # A draw of its own for each step: nothing that an arm did before shifts those that follow.
        chance = random.Random(f"inprocess/{self._seed}/{step}")
        return [ranked[0], chance.choices(ranked, weights)[0]][:PARENTS]


class InProcessHost:
    """Replays a recorded task without any other process."""

    name = "inprocess"

    def run(
        self,
        pool: RecordedPool,
        arm: Arm,
        seed: int,
        budget: int,
        folder: Path,
        on_measurements: Callable[[int], None] = lambda done: None,
    ) -> ArmRun:
        """Search until the budget is spent, or nothing new is left to propose."""
        return replay(_BestAndRanked(seed), pool, arm, seed, budget, folder, on_measurements)
