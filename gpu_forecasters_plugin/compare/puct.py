"""The paper's own search as a host: max-reward PUCT over an archive of everything that was measured.

"GPU Forecasters" (arXiv 2605.31464) searches with max-reward PUCT, two parents a step, 40 steps, four candidates per
parent measured: all of four without a surrogate, the best four of sixteen with it. The score is that of "Learning to
Discover at Test Time" (arXiv 2601.16175, section 3.2). A kernel s of the archive has::

    score(s) = Q(s) + c * scale * P(s) * sqrt(1 + T) / (1 + n(s))

    Q(s)    the largest reward among its measured children; its own while it has none
    P(s)    (N - rank(s)) / (N (N + 1) / 2): linear in the rank by reward of N kernels, the best of rank 0
    n(s)    how often it, or a kernel that descends from it, was a parent
    T       how often any kernel was
    scale   largest less smallest reward in the archive
    c       1

The reward is the speed-up over the reference. Each parent's children are a pool of their own; both pools of a step are
decided on before either is measured. The first step has no parent but the reference: 40 steps are a budget of
1 + 4 + 39 * 8 = 317 measurements.
Ours are the ties (the faster first, then by id) and what the archive holds: kernels that ran. A failure is nobody's
parent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gpu_forecasters_plugin.compare.arms import Arm
from gpu_forecasters_plugin.compare.records import ArmRun
from gpu_forecasters_plugin.compare.replay import PARENTS, Archive, ParentChoice, replay
from gpu_forecasters_plugin.recorded.pool import RecordedPool

__all__ = ["EXPLORATION", "MaxRewardPuct", "PuctHost"]

EXPLORATION = 1.0
"""The constant c."""


class MaxRewardPuct(ParentChoice):
    """The two kernels of the highest scores.

    Attributes:
        visits: n by id.
        expansions: T.
    """

    def __init__(self, exploration: float = EXPLORATION) -> None:
        self._exploration = exploration
        self.visits: Counter[str] = Counter()
        self.expansions = 0

    def scores(self, archive: Archive) -> dict[str, float]:
        """Score by id, the fastest kernel first."""
        reward = {name: speedup for name, speedup in archive.measured.items() if speedup is not None}
        best_child: dict[str, float] = {}
        for name, parent in archive.parent_of.items():
            if name in reward:
                best_child[parent] = max(best_child.get(parent, 0.0), reward[name])
        scale = max(reward.values()) - min(reward.values())
        spread = self._exploration * scale * math.sqrt(1.0 + self.expansions)
        total = len(reward) * (len(reward) + 1) / 2
        return {
            name: best_child.get(name, reward[name])
            + spread * (len(reward) - rank) / total / (1.0 + self.visits[name])
            for rank, name in enumerate(archive.ranked())
        }

    def parents(self, archive: Archive, step: int) -> list[str]:
        scores = self.scores(archive)
        chosen = sorted(scores, key=lambda name: -scores[name])[:PARENTS]
        for name in chosen:
            self.expansions += 1
            line: str | None = name
            while line is not None:
                self.visits[line] += 1
                line = archive.parent_of.get(line)
        return chosen


class PuctHost:
    """The paper's search on a recorded task, in this process."""

    name = "puct"

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
        return replay(MaxRewardPuct(), pool, arm, seed, budget, folder, on_measurements)
