"""``gpu-forecasters ledger``: looking at a ledger, and rows out of it and into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_forecasters_plugin.errors import ConfigError, LedgerError
from gpu_forecasters_plugin.printable import listed, printable

if TYPE_CHECKING:
    from gpu_forecasters_plugin.ledger import LedgerReader

__all__ = ["export_command", "import_command", "ledger_app", "show_command", "upgrade_command"]

ledger_app = typer.Typer(
    name="ledger",
    help="Look at a ledger; export and import its measured rows.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Example: gpu-forecasters ledger show openevolve_output",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _others(ledger: LedgerReader, name: str | None) -> str | None:
    """What to say about the other runs of a ledger."""
    names = [run["name"] for run in ledger.runs()]
    if name is not None or len(names) == 1:
        return None
    return f"the latest of {len(names)} runs; --run shows another: {listed(names)}"


def _write_decisions(path: Path, ledger: LedgerReader) -> None:
    from gpu_forecasters_plugin.files import atomic_file
    from gpu_forecasters_plugin.ledger.summary import expected_speedup

    with atomic_file(path) as file:
        for decision in ledger.each_decision():
            row = decision | {"expected_speedup": expected_speedup(decision)}
            file.write(json.dumps(row).encode() + b"\n")


@ledger_app.command("show", epilog="Example: gpu-forecasters ledger show openevolve_output --limit 10")
def show_command(
    ledger: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_URL", help="A run's or a comparison's folder, a ledger file or a database URL."
        ),
    ],
    run: Annotated[
        str | None, typer.Option("--run", help="Which run of a shared ledger, or of a comparison.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for summary.json and decisions.jsonl.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many of the last decisions.")] = 20,
) -> None:
    """Show what a run did: budget, outcomes, reasons, the best kernels and the last decisions.

    Of a folder of many runs, such as a comparison's, it lists them. The ledger stays as it is, also one of an
    older version.
    """
    from gpu_forecasters_plugin.cli.ledger_choice import open_named, runs_below
    from gpu_forecasters_plugin.cli.ledger_tables import print_run
    from gpu_forecasters_plugin.files import prepare_folder, write_json
    from gpu_forecasters_plugin.ledger.summary import summarise

    below = runs_below(ledger) if run is None else {}
    if below:
        _show_many(ledger, below, out)
        return
    opened = open_named(ledger, run)
    if out is not None:
        prepare_folder(out, ("summary.json", "decisions.jsonl"))
    summary = summarise(opened)
    print_run(summary, opened.decisions(last=limit), _others(opened, run))
    if out is not None:
        write_json(out / "summary.json", summary)
        _write_decisions(out / "decisions.jsonl", opened)
        typer.echo(f"written: {out / 'summary.json'}, {out / 'decisions.jsonl'}")


def _show_many(folder: str, ledgers: Mapping[str, Path], out: Path | None) -> None:
    """List the runs below a folder; those that cannot be read are named too."""
    from gpu_forecasters_plugin.cli.ledger_choice import choose_run
    from gpu_forecasters_plugin.cli.ledger_tables import print_runs
    from gpu_forecasters_plugin.files import prepare_folder, write_json
    from gpu_forecasters_plugin.ledger import LedgerReader
    from gpu_forecasters_plugin.ledger.summary import summarise

    if out is not None:
        prepare_folder(out)
    summaries: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for name, path in ledgers.items():
        try:
            summaries[name] = summarise(choose_run(LedgerReader(path), None))
        except LedgerError as error:
            problems.append(str(error))
    print_runs(folder, summaries)
    for problem in problems:
        typer.echo(f"error: {printable(problem)}", err=True)
    if out is not None:
        write_json(out / "summary.json", {"runs": summaries})
        typer.echo(f"written: {out / 'summary.json'}")
    if problems:
        raise typer.Exit(1)


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
    from gpu_forecasters_plugin.ledger.exchange import export_rows, rows_without_reference
    from gpu_forecasters_plugin.ledger.locating import named_ledger
    from gpu_forecasters_plugin.ledger.read_only import open_to_read
    from gpu_forecasters_plugin.ledger.row_files import write_rows
    from gpu_forecasters_plugin.ledger.soundness import check_runs

    engine = open_to_read(named_ledger(ledger))
    check_runs(engine)
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
    format: Annotated[
        str, typer.Option("--format", help="Of FILE: ledger, or gpu-forecasters for the published data sets.")
    ] = "ledger",
) -> None:
    """Add rows of elsewhere for training and evaluation; they never answer for a run's own candidates.

    All rows or none are added; those that the ledger has already are left alone. id, time_us, reason and
    sampling_probability may be missing; key is computed anew. --format gpu-forecasters reads the columns of the
    published evaluation set (comparison_id, pack, anchor_code, candidate_code, hardware, aggregated_speedup) and of
    its discovery pairs (pair_id, problem_id, parent_code, child_code, hardware, g_speedup).
    """
    from gpu_forecasters_plugin.ledger.engine import open_engine
    from gpu_forecasters_plugin.ledger.exchange import import_rows
    from gpu_forecasters_plugin.ledger.locating import named_ledger
    from gpu_forecasters_plugin.ledger.published import FORMATS
    from gpu_forecasters_plugin.ledger.row_files import read_rows

    if format not in FORMATS:
        raise ConfigError(f"--format is {' or '.join(FORMATS)}, got {printable(format)!r}")
    rows = list(read_rows(file, FORMATS[format]))  # a file that is wrong creates no ledger
    count = import_rows(open_engine(named_ledger(ledger)), rows)
    known = f"; {count.known} were there already" if count.known else ""
    typer.echo(f"{count.added} rows added to {ledger}{known}")


@ledger_app.command("upgrade", epilog="Example: gpu-forecasters ledger upgrade openevolve_output")
def upgrade_command(
    ledger: Annotated[
        str, typer.Argument(metavar="LEDGER", help="A run's folder, a ledger file or a database URL.")
    ],
) -> None:
    """Bring a ledger of an older version to the newest revision, as a run that resumes it does.

    Older versions of this package cannot use it any more then. Of a file, a copy is kept beside it; of a PostgreSQL
    database, make one first. Looking at a ledger needs no upgrade.
    """
    from gpu_forecasters_plugin.ledger.engine import open_engine
    from gpu_forecasters_plugin.ledger.locating import named_ledger, resolve_url
    from gpu_forecasters_plugin.ledger.read_only import ledger_revision
    from gpu_forecasters_plugin.ledger.schema import head_revision

    url = resolve_url(named_ledger(ledger))
    before = ledger_revision(url)
    open_engine(named_ledger(ledger), create=False).dispose()
    was = "had that revision already" if before == head_revision() else f"had revision {before}"
    typer.echo(f"{printable(url.render_as_string())}: revision {head_revision()}; it {was}")
