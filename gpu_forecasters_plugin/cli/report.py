"""``gpu-forecasters report``: one HTML page for a run or a comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_forecasters_plugin.errors import ConfigError

if TYPE_CHECKING:
    from gpu_forecasters_plugin.report import Page, RunFacts

__all__ = ["report_command"]

_SUMMARY = "summary.json"
_LONG = 50_000
"""From so many measurements on, reading them takes long enough to show how far it is."""
_OF_SURROGATE = re.compile(r"surrogate-(\d+)")
"""Folder of a search of the surrogate arm in a comparison's."""


def report_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run's or a comparison's folder, a ledger file or a database URL."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page: an .html file.")],
    run: Annotated[
        str | None, typer.Option("--run", help="Which run of a shared ledger, or of a comparison.")
    ] = None,
) -> None:
    """Write one HTML page that tells the story of a run or a comparison.

    The verdict with its uncertainty, what was measured and why, how far the forecasts could be trusted, where the
    budget went, the best kernel and the biggest surprises. The page needs no network and runs no script; its data is
    in it as JSON. The ledger may be written to meanwhile, and stays as it is.
    """
    from gpu_forecasters_plugin.files import prepare_folder, write_atomically
    from gpu_forecasters_plugin.report import render

    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out is the page, a file that ends with .html, got {str(out)!r}")
    page = _page(target, run)
    prepare_folder(out.parent, (out.name,))
    write_atomically(out, render(page))
    typer.echo(page.verdict)
    typer.echo(f"written: {out}")


def _page(target: str, run: str | None) -> Page:
    from gpu_forecasters_plugin.cli.ledger_choice import open_named, runs_below
    from gpu_forecasters_plugin.ledger.locating import LEDGER_FILE
    from gpu_forecasters_plugin.printable import listed
    from gpu_forecasters_plugin.progress import WorkProgress
    from gpu_forecasters_plugin.report import comparison_page, gather, load_comparison, run_page

    folder = Path(target)
    if run is None and (folder / _SUMMARY).is_file() and not (folder / LEDGER_FILE).exists():
        comparison = load_comparison(folder / _SUMMARY)
        return comparison_page(comparison, _searches(runs_below(target), comparison.seeds))
    below = runs_below(target) if run is None else {}
    if below:
        raise ConfigError(
            f"{target} holds no finished comparison; name one of its runs with --run: {listed(below)}"
        )
    with closing(open_named(target, run)) as ledger:
        measured = ledger.budget_use().measurements
        if measured < _LONG:
            return run_page(gather(ledger))
        with WorkProgress(measured) as progress:
            facts = gather(ledger, on_rows=lambda count: progress.update(count, "reading"))
            progress.update(measured, "drawing")
            return run_page(facts)


def _searches(below: Mapping[str, Path], seeds: Sequence[int]) -> list[RunFacts]:
    """The surrogate arm's searches with these seeds, as far as there are ledgers of them."""
    from gpu_forecasters_plugin.cli.ledger_choice import choose_run
    from gpu_forecasters_plugin.ledger import LedgerReader
    from gpu_forecasters_plugin.report import gather

    of_seed = {
        int(match[1]): path
        for name, path in below.items()
        for part in Path(name).parts
        if (match := _OF_SURROGATE.fullmatch(part))
    }
    found = []
    for seed in (seed for seed in seeds if seed in of_seed):
        with closing(choose_run(LedgerReader(of_seed[seed]), None)) as ledger:
            found.append(gather(ledger, f"surrogate-{seed}"))
    return found
