"""``gpu-forecasters ledger``: looking at a ledger, and rows out of it and into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_forecasters_plugin.errors import ConfigError, LedgerError

if TYPE_CHECKING:
    from gpu_forecasters_plugin.ledger import Ledger

__all__ = ["export_command", "import_command", "ledger_app", "show_command"]

ledger_app = typer.Typer(
    name="ledger",
    help="Look at a ledger; export and import its measured rows.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _target(ledger: str) -> str | Path:
    """What a user names a ledger by: a run's folder, a file or a URL."""
    from gpu_forecasters_plugin.ledger.engine import LEDGER_FILE

    return Path(ledger) / LEDGER_FILE if "://" not in ledger and Path(ledger).is_dir() else ledger


def _choose_run(ledger: Ledger, name: str | None) -> str | None:
    """Point the ledger at the run to show: of that name, or the latest; what to say about the others."""
    names = {run["name"]: run["id"] for run in ledger.runs()}
    if not names:
        imported = ledger.imported_rows()
        raise LedgerError(
            f"ledger {ledger.url} has no run" + (f", only {imported} imported rows" if imported else "")
        )
    chosen = next(reversed(names)) if name is None else name
    if chosen not in names:
        raise ConfigError(f"no run {chosen!r} in ledger {ledger.url}; there are: {', '.join(names)}")
    ledger.follow_run(names[chosen])
    if name is not None or len(names) == 1:
        return None
    return f"the latest of {len(names)} runs; --run shows another: {', '.join(names)}"


def _write_decisions(path: Path, decisions: list[dict[str, Any]]) -> None:
    from gpu_forecasters_plugin.files import write_atomically
    from gpu_forecasters_plugin.ledger.summary import expected_speedup

    rows = (decision | {"expected_speedup": expected_speedup(decision)} for decision in decisions)
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


@ledger_app.command("show", epilog="Example: gpu-forecasters ledger show openevolve_output --limit 10")
def show_command(
    ledger: Annotated[
        str, typer.Argument(metavar="RUN_OR_URL", help="A run's folder, a ledger file or a database URL.")
    ],
    run: Annotated[str | None, typer.Option("--run", help="Which run of a shared ledger.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for summary.json and decisions.jsonl.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many of the last decisions.")] = 20,
) -> None:
    """Show what a run did: budget, outcomes, reasons, the best kernels and the last decisions."""
    from gpu_forecasters_plugin.cli.ledger_tables import print_run
    from gpu_forecasters_plugin.files import write_atomically
    from gpu_forecasters_plugin.ledger import Ledger
    from gpu_forecasters_plugin.ledger.summary import summarise

    opened = Ledger(_target(ledger), create=False)
    others = _choose_run(opened, run)
    summary, decisions = summarise(opened), opened.decisions()
    print_run(summary, decisions[len(decisions) - min(limit, len(decisions)) :], others)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "summary.json", json.dumps(summary, indent=2) + "\n")
        _write_decisions(out / "decisions.jsonl", decisions)
        typer.echo(f"written: {out / 'summary.json'}, {out / 'decisions.jsonl'}")


@ledger_app.command("export", epilog="Example: gpu-forecasters ledger export run --out rows.jsonl.gz")
def export_command(
    ledger: Annotated[
        str, typer.Argument(metavar="LEDGER", help="A run's folder, a ledger file or a database URL.")
    ],
    out: Annotated[Path, typer.Option("--out", help="File to write: .jsonl, .jsonl.gz or .parquet.")],
) -> None:
    """Write every finished measurement, and every imported row, as one row with both sources.

    Columns: id, key, task, language, hardware, reference_code, candidate_code, outcome, speedup, time_us,
    reason, sampling_probability.
    """
    from gpu_forecasters_plugin.ledger.engine import open_engine
    from gpu_forecasters_plugin.ledger.exchange import export_rows, rows_without_reference
    from gpu_forecasters_plugin.ledger.row_files import write_rows

    engine = open_engine(_target(ledger), create=False)
    count = write_rows(out, export_rows(engine))
    typer.echo(f"{count} rows written to {out}")
    left_out = rows_without_reference(engine)
    if left_out:
        typer.echo(f"warning: {left_out} left out: the ledger has no source of their reference", err=True)


@ledger_app.command(
    "import", epilog="Example: gpu-forecasters ledger import rows.jsonl.gz --ledger training.sqlite3"
)
def import_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rows as export writes them.")],
    ledger: Annotated[
        str, typer.Option("--ledger", help="Ledger file or database URL; a file is created if missing.")
    ],
) -> None:
    """Add rows of elsewhere for training and evaluation; they never answer for a run's own candidates.

    All rows or none are added; those that the ledger has already are left alone. id, time_us, reason and
    sampling_probability may be missing; key is computed anew.
    """
    from gpu_forecasters_plugin.ledger.engine import open_engine
    from gpu_forecasters_plugin.ledger.exchange import import_rows
    from gpu_forecasters_plugin.ledger.row_files import read_rows

    rows = list(read_rows(file))  # a file that is wrong creates no ledger
    count = import_rows(open_engine(_target(ledger)), rows)
    known = f"; {count.known} were there already" if count.known else ""
    typer.echo(f"{count.added} rows added to {ledger}{known}")
