"""Which ledger, and which of its runs, a command line means."""

from __future__ import annotations

from pathlib import Path

from gpu_forecasters_plugin.errors import ConfigError, LedgerMissingError
from gpu_forecasters_plugin.ledger import LedgerReader
from gpu_forecasters_plugin.ledger.locating import LEDGER_FILE, ledgers_below, named_ledger
from gpu_forecasters_plugin.ledger.soundness import check_run
from gpu_forecasters_plugin.printable import listed

__all__ = ["choose_run", "open_named", "runs_below"]


def runs_below(target: str) -> dict[str, Path]:
    """The ledgers of the runs below a folder that has none of its own, such as a comparison's.

    Args:
        target: what a user names a ledger by.

    Returns:
        Each ledger by the path of its folder; empty where the name means a single ledger.
    """
    folder = Path(target)
    if "://" in target or not folder.is_dir() or (folder / LEDGER_FILE).exists():
        return {}
    return {str(path.parent.relative_to(folder)): path for path in ledgers_below(folder)}


def open_named(target: str, run: str | None) -> LedgerReader:
    """The ledger that a user names, following the run that is meant: the named one, else the latest.

    Args:
        target: a run's folder, a ledger file or a database URL; or the folder of many runs.
        run: name of a run in a shared ledger, or the folder of one below a folder of many.

    Raises:
        ConfigError: there is no run of that name, or there are several and none is named; names those there are.
        LedgerError: there is no ledger, or it holds no run, or it cannot be read.
    """
    below = runs_below(target)
    if not below:
        return choose_run(LedgerReader(named_ledger(target)), run)
    meant = [path for name, path in below.items() if run in (None, name, *Path(name).parts)]
    if run is None and len(meant) > 1:
        raise ConfigError(f"{target} holds several runs: say --run; there are: {listed(below)}")
    if len(meant) != 1:
        raise ConfigError(
            f"{'no' if not meant else 'more than one'} run {run!r} below {target}; there are: {listed(below)}"
        )
    return choose_run(LedgerReader(meant[0]), None)


def choose_run(ledger: LedgerReader, name: str | None) -> LedgerReader:
    """Point a ledger at its run of that name, or at the latest.

    Raises:
        ConfigError: there is no run of that name.
        LedgerError: there is no run, or numbers of it cannot be.
    """
    names = {row["name"]: row["id"] for row in ledger.runs()}
    if not names:
        imported = ledger.imported_rows()
        more = f", only {imported} imported rows" if imported else ""
        raise LedgerMissingError(f"ledger {ledger.url} has no run{more}")
    chosen = next(reversed(names)) if name is None else name
    if chosen not in names:
        raise ConfigError(f"no run {chosen!r} in ledger {ledger.url}; there are: {listed(names)}")
    ledger.follow_run(names[chosen])
    with ledger.connection() as connection:
        check_run(connection, ledger.run())
    return ledger
