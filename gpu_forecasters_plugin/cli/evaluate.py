"""``gpu-forecasters evaluate``: how good a forecaster is on kernels that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_forecasters_plugin.errors import ConfigError

if TYPE_CHECKING:
    from gpu_forecasters_plugin.evaluation.asking import Protocol
    from gpu_forecasters_plugin.evaluation.pairs import Pair
    from gpu_forecasters_plugin.evaluation.run import Scoring

__all__ = ["evaluate_command"]


def evaluate_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for summary.json, report.md and pictures.")
    ],
    pairs: Annotated[
        Path | None, typer.Option("--pairs", help="Measured kernels: .jsonl, .jsonl.gz or .parquet.")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="A run's folder, a ledger file or a database URL, instead.")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="Which run of a shared ledger.")] = None,
    forecaster: Annotated[
        str | None,
        typer.Option("--forecaster", help="Kind of the forecaster, such as learned or climatology."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="YAML with the forecaster in its surrogate: section."),
    ] = None,
    bins: Annotated[
        str, typer.Option("--bins", help="Scheme to score by: standard or published_labels.")
    ] = "standard",
    within_run: Annotated[
        int, typer.Option("--within-run", min=0, help="Learn from the first N measured kernels of each run.")
    ] = 0,
    shuffle: Annotated[
        int | None,
        typer.Option("--shuffle", min=0, help="Seed of the kernels' order; the file's when left out."),
    ] = None,
    repeats: Annotated[
        Path | None, typer.Option("--repeats", help="The same kernels measured again, for the noise ceiling.")
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option("--spread", help="Relative spread of a time, where nothing was measured twice."),
    ] = None,
    resamples: Annotated[
        int, typer.Option("--resamples", min=0, help="Bootstrap resamples; 0: no intervals.")
    ] = 500,
) -> None:
    """Score a forecaster on measured kernels, or the forecasts that a run has recorded.

    A pairs file has the columns task, language, reference_code, candidate_code, device, speedup (null if it failed)
    and outcome, or those of the published data sets. Forecasters know nothing of a kernel's own task: what learns
    across tasks learns from the others, unless --within-run lets it measure first. With --ledger and no forecaster,
    the run's own forecasts are scored.

    Forecasts are kept as they arrive: the same command goes on where it was ended, and nothing is paid twice.
    """
    from gpu_forecasters_plugin.bins import SCHEMES
    from gpu_forecasters_plugin.cli.interrupts import interruptible
    from gpu_forecasters_plugin.evaluation.run import Scoring, evaluate_pairs
    from gpu_forecasters_plugin.evaluation.summary import Intervals

    if (pairs is None) == (ledger is None):
        raise ConfigError("give one of --pairs and --ledger")
    if bins not in SCHEMES:
        raise ConfigError(f"--bins is {' or '.join(SCHEMES)}, got {bins!r}")
    if spread is not None and not 0.0 < spread < 1.0:
        raise ConfigError(f"--spread lies between 0 and 1, got {spread}")
    scoring = Scoring(SCHEMES[bins], Intervals(resamples), spread)
    if forecaster is None and config is None:
        if ledger is None:
            raise ConfigError("name a forecaster: --forecaster learned, say, or --config FILE")
        summary = _recorded(ledger, run, scoring, out)
    else:
        if run is not None:
            raise ConfigError("--run chooses among runs' own forecasts: leave out --forecaster and --config")
        protocol = _protocol(forecaster, config, within_run, shuffle)
        kernels = _kernels(pairs, ledger, repeats)
        with interruptible("forecasts so far are kept: start the same command again to go on"):
            summary = evaluate_pairs(kernels, protocol, scoring, out)
    _show(summary)
    typer.echo(f"written: {out / 'summary.json'}, {out / 'report.md'} and pictures beside them")
    if not summary["n"]:
        typer.echo("error: no kernel has both a measured time and a forecast to score", err=True)
        raise typer.Exit(1)


def _recorded(ledger: str, run: str | None, scoring: Scoring, out: Path) -> Mapping[str, Any]:
    from gpu_forecasters_plugin.cli.ledger_choice import open_named
    from gpu_forecasters_plugin.evaluation.run import evaluate_ledger

    return evaluate_ledger(open_named(ledger, run), scoring, out)


def _kernels(pairs: Path | None, ledger: str | None, repeats: Path | None) -> list[Pair]:
    from gpu_forecasters_plugin.evaluation.pairs import (
        ledger_pairs,
        read_pairs,
        with_recorded_verdicts,
        with_repeats,
    )
    from gpu_forecasters_plugin.ledger.locating import named_ledger

    kernels = read_pairs(pairs) if pairs is not None else ledger_pairs(str(named_ledger(ledger or "")))
    kernels = with_recorded_verdicts(kernels)
    return kernels if repeats is None else with_repeats(kernels, read_pairs(repeats))


def _protocol(kind: str | None, config: Path | None, within_run: int, shuffle: int | None) -> Protocol:
    """Who is asked: a kind with its defaults, or what a configuration says."""
    from gpu_forecasters_plugin.config import load_surrogate_config, parse_surrogate_config
    from gpu_forecasters_plugin.evaluation.asking import Protocol

    if config is None:
        try:
            section = parse_surrogate_config({"forecaster": {"kind": kind, "hedge": False}})
        except ConfigError as error:
            raise ConfigError(
                *error.problems,
                f"--forecaster {kind} alone says too little: put its settings into --config FILE",
            ) from None
        return Protocol(section.forecaster, within_run=within_run, shuffle=shuffle)
    section = load_surrogate_config(config, required=True)
    members = [m for m in section.forecaster.members() if kind in (None, m.kind)]
    if not members:
        raise ConfigError(f"--forecaster {kind}: {config} configures {section.forecaster.kind}")
    return Protocol(members[0], section.seed, section.shapes or "", within_run, shuffle)


def _show(summary: Mapping[str, Any]) -> None:
    """The scores with their intervals."""
    import sys

    from rich.console import Console
    from rich.markdown import Markdown

    from gpu_forecasters_plugin.evaluation.tables import score_table

    if sys.stdout.isatty():
        Console(markup=False, emoji=False).print(Markdown(score_table(summary)))
    else:
        typer.echo(score_table(summary))
