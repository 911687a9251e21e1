"""All rows of a training by what they are for; new and old apart when learning goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_forecasters_plugin.draws import keyed_uniform
from gpu_forecasters_plugin.errors import TrainingError
from gpu_forecasters_plugin.ledger.exchange import check_row, export_rows
from gpu_forecasters_plugin.ledger.locating import named_ledger
from gpu_forecasters_plugin.ledger.published import from_pairs
from gpu_forecasters_plugin.ledger.read_only import open_to_read
from gpu_forecasters_plugin.ledger.row_files import read_rows
from gpu_forecasters_plugin.recorded.pool import open_pool, recorded_task_names
from gpu_forecasters_plugin.training.rows import (
    TrainingRow,
    TrainingRows,
    pair_rows,
    pool_rows,
    rows_identity,
    with_other_baselines,
)
from gpu_forecasters_plugin.training.settings import TrainingSettings
from gpu_forecasters_plugin.training.splits import (
    Split,
    check_leaks,
    deduplicated,
    held_operations,
    split_rows,
)

__all__ = ["NewRows", "TrainingData", "gather"]


@dataclass(frozen=True)
class NewRows:
    """What a forecaster learns on from.

    Attributes:
        ledgers: names of ledgers, as users name them.
        since: moment from which measurements are new, in seconds since 1970; older ones are replayed.
    """

    ledgers: tuple[str, ...]
    since: float = 0.0


@dataclass(frozen=True)
class TrainingData:
    """Rows by what they are for.

    Attributes:
        split: what is learned from, and what is tested on.
        replay: rows of before, of which a share of each batch is; empty unless learning goes on.
        audit: new rows drawn at random, on which the old and the new forecaster are compared.
        failed: measurements without a speed-up, which teach nothing.
    """

    split: Split
    replay: tuple[TrainingRow, ...] = ()
    audit: tuple[TrainingRow, ...] = ()
    failed: int = 0
    identity: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", rows_identity((*self.split.train, *self.replay)))


def gather(settings: TrainingSettings, new: NewRows | None = None) -> TrainingData:
    """Read and divide the rows of a training.

    Args:
        settings: where they come from, and what is held out.
        new: ledgers to learn on from.

    Raises:
        TrainingError: there are none, they are all of one bin, or something leaks.
        ConfigError, LedgerError, PoolFileError, RowFileError: a source cannot be read.
    """
    known = _known_rows(settings)
    if new is None:
        rows = deduplicated(known.rows)
        found = TrainingData(split_rows(rows, settings.held_out, settings.seed), failed=known.failed)
    else:
        found = _learning_on(known, new, settings)
    _check_bins(found.split.train)
    # Divided before: a kernel that is tested on is the baseline of no other.
    train, replay = (
        tuple(with_other_baselines(rows, settings.data.other_baselines, settings.seed))
        for rows in (found.split.train, found.replay)
    )
    return replace(found, split=replace(found.split, train=train), replay=replay)


def _known_rows(settings: TrainingSettings) -> TrainingRows:
    data, found = settings.data, TrainingRows(())
    for name in recorded_task_names() if data.tasks is None else data.tasks:
        found += pool_rows(open_pool(name))
    for name in data.ledgers:
        found += _ledger_rows(name)
    for name in data.pairs:
        found += pair_rows(read_rows(Path(name), from_pairs))
    return found


def _ledger_rows(name: str, since: float | None = None, before: float | None = None) -> TrainingRows:
    engine = open_to_read(str(named_ledger(name)))
    try:
        rows = export_rows(engine, since=since, before=before)
        return pair_rows(check_row(row, f"{name}, row {row['id']}") for row in rows)
    finally:
        engine.dispose()


def _learning_on(known: TrainingRows, new: NewRows, settings: TrainingSettings) -> TrainingData:
    fresh, older = TrainingRows(()), known
    for name in new.ledgers:
        fresh += _ledger_rows(name, since=new.since)
        older += _ledger_rows(name, before=new.since)
    if not fresh.rows:
        raise TrainingError(
            f"no new rows: the ledgers hold no measured speed-up since then ({fresh.failed} measurements failed)"
        )
    share = settings.contest.audit_share
    audit = tuple(
        row
        for row in deduplicated(fresh.rows)
        if row.sampling_probability is not None
        and keyed_uniform(settings.seed, "audit", row.candidate_key) < share
    )
    held = {row.candidate_key for row in audit}
    fresh_rows = _without(deduplicated(fresh.rows), held)
    older_rows = _without(deduplicated(older.rows), held | {row.candidate_key for row in fresh_rows})
    operations = held_operations(older.rows, settings.held_out, settings.seed, choose_from_one=True)
    kept = settings.held_out.model_copy(update={"operations": sorted(operations)})
    # New rows come first: of what was measured before and again, the new measurement counts.
    split = split_rows([*fresh_rows, *older_rows], kept, settings.seed)
    names = {row.id for row in fresh_rows}
    train = tuple(row for row in split.train if row.id in names)
    replay = tuple(row for row in split.train if row.id not in names)
    if not train:
        raise TrainingError("no new rows: those there are all belong to what is held out")
    check_leaks(Split(split.train, audit, ()))
    found = Split(train, split.unseen_kernels, split.unseen_operations)
    return TrainingData(found, replay, audit, fresh.failed + older.failed)


def _without(rows: Iterable[TrainingRow], keys: set[str]) -> list[TrainingRow]:
    return [row for row in rows if row.candidate_key not in keys]


def _check_bins(rows: Sequence[TrainingRow]) -> None:
    bins = {row.bin for row in rows}
    if len(bins) == 1:
        raise TrainingError(
            f"all {len(rows)} rows to train on fall into bin {bins.pop()}: there is nothing to tell apart: add data"
        )
