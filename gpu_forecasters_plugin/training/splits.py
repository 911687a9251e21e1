"""What is trained on and what is tested on: by operation, device and kernel, never by row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.errors import ConfigError, TrainingError
from gpu_forecasters_plugin.training.rows import TrainingRow
from gpu_forecasters_plugin.training.settings import HeldOutSettings

__all__ = ["Split", "balanced_order", "check_leaks", "deduplicated", "held_operations", "split_rows"]

_MOST_REPEATS = 4
"""How much more often than the mean a row of a rare bin may come: beyond, it would be learned by heart."""
_FEWEST_OPERATIONS = 2
_CHOSEN_OPERATIONS = 0.2


@dataclass(frozen=True)
class Split:
    """Rows by what they are for.

    Attributes:
        train: what is learned from.
        unseen_kernels: kernels of the trained operations that are not trained on, on any device.
        unseen_operations: kernels of operations, or on devices, that nothing is trained on.
    """

    train: tuple[TrainingRow, ...]
    unseen_kernels: tuple[TrainingRow, ...]
    unseen_operations: tuple[TrainingRow, ...]


def deduplicated(rows: Iterable[TrainingRow]) -> list[TrainingRow]:
    """Each kernel once per operation, device and reference, formatting apart, as it came first.

    Different speed-ups of one kernel are repeated measurements: their geometric mean is learned, and their spread tells
    how exactly, together with what was thought of one measurement before.
    """
    first: dict[str, TrainingRow] = {}
    measured: dict[str, list[float]] = {}
    for row in rows:
        first.setdefault(row.id, row)
        values = measured.setdefault(row.id, [])
        if row.log2_speedup not in values:
            values.append(row.log2_speedup)
    return [_merged(row, measured[name]) for name, row in first.items()]


def _merged(row: TrainingRow, log2_speedups: Sequence[float]) -> TrainingRow:
    if len(log2_speedups) == 1:
        return row
    middle = fmean(log2_speedups)
    # The spread assumed of one measurement counts as one more of them, since two say little about theirs.
    squares = row.log2_sd**2 + math.fsum((value - middle) ** 2 for value in log2_speedups)
    return replace(row, speedup=2.0**middle, log2_sd=math.sqrt(squares / len(log2_speedups)))


def split_rows(rows: Sequence[TrainingRow], held_out: HeldOutSettings, seed: int) -> Split:
    """Divide rows; each kernel of an operation falls on one side whatever device it ran on.

    Args:
        rows: each kernel once.
        held_out: what is kept from training. Without named operations, a fifth of them is chosen by the seed.
        seed: of the choice.

    Raises:
        ConfigError: a named operation or device is in no row, or there is but one operation to choose from.
        TrainingError: there is no row, or none is left to train on.
    """
    if not rows:
        raise TrainingError("no rows: nothing was measured in the tasks, ledgers and pairs of data")
    operations = held_operations(rows, held_out, seed)
    devices = _known("devices", held_out.devices, {row.device for row in rows})
    outside = [row for row in rows if row.operation in operations or row.device in devices]
    inside = [row for row in rows if row.operation not in operations and row.device not in devices]
    # A source may serve several operations; what is tested must not be trained on under another name.
    tested = {row.candidate_key for row in outside}
    inside = [row for row in inside if row.candidate_key not in tested]
    unseen = {key for key in {row.candidate_key for row in inside} if _is_held(key, held_out.kernels, seed)}
    split = Split(
        tuple(row for row in inside if row.candidate_key not in unseen),
        tuple(row for row in inside if row.candidate_key in unseen),
        tuple(outside),
    )
    if not split.train:
        raise TrainingError(
            f"no rows are left to train on: {len(rows)} rows, all of them held out: hold out less, or add data"
        )
    check_leaks(split)
    return split


def check_leaks(split: Split) -> None:
    """Make sure that nothing tested was trained on.

    Raises:
        TrainingError: a kernel stands on two sides, or an operation on one device is both trained and unseen.
    """
    trained = {row.candidate_key: row for row in split.train}
    for row in (*split.unseen_kernels, *split.unseen_operations):
        if row.candidate_key in trained:
            raise TrainingError(
                f"leak: kernel {row.candidate_key[:12]} of {row.task} on {row.device} is tested on and, as one of "
                f"{trained[row.candidate_key].task}, trained on"
            )
    sides = {(row.operation, row.device) for row in split.train}
    references = {row.reference_key: row for row in split.train}
    for row in split.unseen_operations:
        other = references.get(row.reference_key, row)
        if other.operation != row.operation:
            raise TrainingError(
                f"leak: {row.task} is unseen and {other.task} trained on, and both have the same reference: "
                "give them one name, or hold out both"
            )
        if (row.operation, row.device) in sides:
            raise TrainingError(
                f"leak: operation {row.task} on {row.device} is unseen and trained on at once"
            )


def held_operations(
    rows: Sequence[TrainingRow], held_out: HeldOutSettings, seed: int, *, choose_from_one: bool = False
) -> set[str]:
    """The operations that nothing is trained on.

    Args:
        rows: whose operations there are to choose from.
        held_out: names them, or leaves the choice to the seed.
        seed: of the choice.
        choose_from_one: whether to choose none where there is but one.

    Raises:
        ConfigError: a named one is in no row, or there is but one to choose from.
    """
    names = {row.operation for row in rows}
    if held_out.operations is not None:
        return _known("operations", [name.strip().lower() for name in held_out.operations], names)
    if len(names) < _FEWEST_OPERATIONS:
        if choose_from_one:
            return set()
        raise ConfigError(
            f"held_out.operations: there is one operation only ({', '.join(names)}): add data of another, or write "
            "operations: [] to test on unseen kernels alone"
        )
    chosen = sorted(names, key=lambda name: keyed_uniform(seed, "operation", name))
    return set(chosen[: max(1, round(_CHOSEN_OPERATIONS * len(names)))])


def balanced_order(rows: Sequence[TrainingRow], count: int, balance: float, seed: int) -> list[int]:
    """Which rows to train on, in which order: ``count`` numbers of rows.

    Each bin gets a share of the places by its number of rows to the power 1 - ``balance``, but no row comes more than
    four times as often as the mean; within a bin, every row comes before any comes again.

    Args:
        rows: at least one.
        count: how many places.
        balance: 0: as the rows are; 1: all bins alike.
        seed: of the order.
    """
    bins: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        bins.setdefault(row.bin, []).append(number)
    share = _shares({index: len(members) for index, members in bins.items()}, balance)
    phase = {index: keyed_uniform(seed, "place", index) for index in bins}
    given: Counter[int] = Counter()
    queues: dict[int, list[int]] = {}
    order: list[int] = []
    while len(order) < count:
        # The bin that is furthest behind its share.
        index = min(bins, key=lambda b: ((given[b] + phase[b]) / share[b], b))
        turn, place = divmod(given[index], len(bins[index]))
        if place == 0:
            queues[index] = _shuffled(bins[index], seed, turn)
        order.append(queues[index][place])
        given[index] += 1
    return order


def _shares(sizes: Mapping[int, int], balance: float) -> dict[int, float]:
    """Share of the places by bin; what a limit takes from one goes to the others."""
    limit = {index: _MOST_REPEATS * size / sum(sizes.values()) for index, size in sizes.items()}
    wanted = {index: size ** (1.0 - balance) for index, size in sizes.items()}
    found: dict[int, float] = {}
    while len(found) < len(sizes):
        left, weight = 1.0 - sum(found.values()), sum(wanted[b] for b in sizes if b not in found)
        shares = {b: left * wanted[b] / weight for b in sizes if b not in found}
        over = {b: limit[b] for b, share in shares.items() if share > limit[b]}
        found |= over or shares
    return found


def _shuffled(members: Sequence[int], seed: int, turn: int) -> list[int]:
    """The rows of a bin in the order in which they come for the ``turn``-th time."""
    return sorted(members, key=lambda number: keyed_uniform(seed, "row", turn, number))


def _known(what: str, wanted: Sequence[str], there: set[str]) -> set[str]:
    missing = sorted(set(wanted) - there)
    if missing:
        known = ", ".join(sorted(there)) or "none"
        raise ConfigError(f"held_out.{what}: no rows of {missing[0]!r}; there are: {known}")
    return set(wanted)


def _is_held(candidate_key: str, share: float, seed: int) -> bool:
    return keyed_uniform(seed, "kernel", candidate_key) < share
