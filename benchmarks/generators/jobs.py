"""What there is to measure: tasks, their sources, and which of these have rows already."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generators import tasks
from benchmarks.generators.candidate import load_task
from benchmarks.generators.processes import Row
from benchmarks.generators.variant import Variant, check_distinct

RUNS = (1, 2)


@dataclass
class Job:
    """One task's sources and what is known of them.

    Attributes:
        name: The task.
        variants: Its sources.
        wanted: Indices of those to measure.
        seed: Index of the one that speed-ups will be relative to; it is measured first.
        rows: By run, the rows of those that were measured.
    """

    name: str
    variants: list[Variant]
    wanted: list[int]
    seed: int
    rows: dict[int, dict[str, Row]]

    def todo(self, run: int) -> list[int]:
        """What a run has still to measure, in its order."""
        done = self.rows[run]
        left = [index for index in self.wanted if self.variants[index].id not in done]
        random.Random(f"{self.name} {run}").shuffle(left)
        return sorted(left, key=lambda index: index != self.seed)

    def sources_to_do(self) -> Iterator[tuple[str, int, str]]:
        """Task, index and language of what some run has still to measure, in the order of the first that does."""
        for index in dict.fromkeys(index for run in RUNS for index in self.todo(run)):
            yield self.name, index, self.variants[index].language


def choose(variants: Sequence[Variant], sample: int | None, languages: Sequence[str] | None) -> list[int]:
    """Indices of the sources in these languages, or a sample that takes turns between families and mistakes."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, variant in enumerate(variants):
        if not languages or variant.language in languages:
            choices = variant.choices
            family = choices.get("algorithm") or choices.get("family")
            groups.setdefault((variant.broken, variant.language, family), []).append(index)
    size = sum(map(len, groups.values()))
    picked: list[int] = []
    generator = random.Random(0)
    for members in groups.values():
        generator.shuffle(members)
    while len(picked) < min(size if sample is None else sample, size):
        picked += [members.pop() for members in groups.values() if members]
    return sorted(picked[:sample])


def job_of(
    name: str, sample: int | None, languages: Sequence[str] | None, rows: dict[int, dict[str, Row]]
) -> Job:
    """A task's sources, with what was measured of them before."""
    task = load_task(name)
    variants = task.make_pool().variants
    check_distinct(variants)
    seed = next(index for index, variant in enumerate(variants) if variant.key == task.SEED.key)
    wanted = sorted({seed, *choose(variants, sample, languages)})
    return Job(name, variants, wanted, seed, rows)


def task_names() -> list[str]:
    """The tasks that have a generator; parts of one do not count."""
    files = Path(tasks.__path__[0]).glob("*.py")
    return sorted(path.stem for path in files if "\nTASK = " in path.read_text())
