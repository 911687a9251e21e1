"""``gpu-forecasters calibrate``: a deferral threshold for a target risk, with a guarantee."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_forecasters_plugin.errors import ConfigError

if TYPE_CHECKING:
    from gpu_forecasters_plugin.calibration.calibrating import Calibration
    from gpu_forecasters_plugin.calibration.losses import ForecastLoss

__all__ = ["calibrate_command"]


def calibrate_command(
    ledger: Annotated[str, typer.Option("--ledger", help="A run's folder, a ledger file or a database URL.")],
    target_risk: Annotated[
        float,
        typer.Option("--target-risk", help="Largest share of wrong forecasts among those trusted, 0 to 1."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for summary.json and thresholds.png.")],
    confidence_level: Annotated[
        float, typer.Option("--confidence-level", help="Probability of the guarantee, 0 to 1.")
    ] = 0.9,
    risk: Annotated[
        str, typer.Option("--risk", help="What is wrong: wrong_bin, or log2_error above --bound.")
    ] = "wrong_bin",
    bound: Annotated[
        float | None, typer.Option("--bound", help="For log2_error, in octaves: 1 is a factor of two.")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="Which run of a shared ledger.")] = None,
) -> None:
    """Find the lowest deferral threshold whose forecasts keep a target risk, from a run's own measurements.

    Uses only rows that were drawn at random (audit, warm-up), weighted by their sampling probability, since what was
    measured for looking promising is a biased sample. Without enough of them there is no threshold, and the exit
    code is 1. The guarantee holds however often it is asked.
    """
    from gpu_forecasters_plugin.calibration.calibrating import calibrate
    from gpu_forecasters_plugin.calibration.threshold_picture import threshold_figure
    from gpu_forecasters_plugin.cli.ledger_choice import open_named
    from gpu_forecasters_plugin.files import prepare_folder, write_atomically, write_json
    from gpu_forecasters_plugin.pictures import png_bytes

    for name, value in (("--target-risk", target_risk), ("--confidence-level", confidence_level)):
        if not 0.0 < value < 1.0:
            raise ConfigError(f"{name} lies between 0 and 1, got {value}")
    loss = _loss(risk, bound)
    opened = open_named(ledger, run)
    prepare_folder(out, ("summary.json", "thresholds.png"))
    found = calibrate(opened, target_risk, confidence_level, loss)
    write_json(out / "summary.json", found.summary())
    write_atomically(out / "thresholds.png", png_bytes(threshold_figure(found)))
    _show(found)
    typer.echo(f"written: {out / 'summary.json'}, {out / 'thresholds.png'}")
    if found.threshold is None:
        typer.echo(f"error: {found.verdict}", err=True)
        raise typer.Exit(1)


def _loss(risk: str, bound: float | None) -> ForecastLoss:
    from gpu_forecasters_plugin.calibration.losses import ForecastLoss

    if risk == "wrong_bin":
        if bound is not None:
            raise ConfigError("--bound is a setting of --risk log2_error")
        return ForecastLoss()
    if risk != "log2_error":
        raise ConfigError(f"--risk is wrong_bin or log2_error, got {risk!r}")
    try:
        return ForecastLoss("log2_error", 1.0 if bound is None else bound)
    except ValueError:
        raise ConfigError(f"--bound is above 0 and finite, got {bound}") from None


def _show(found: Calibration) -> None:
    """A row per threshold, and the verdict where there is one."""
    from rich.table import Table

    from gpu_forecasters_plugin.printable import printable
    from gpu_forecasters_plugin.terminal import table_console

    title = f"{printable(found.run)}: {found.n} rows drawn at random; risk: {found.loss}"
    table = Table(title=title, title_justify="left", pad_edge=False)
    for heading in (
        "threshold",
        "coverage",
        "rows",
        "risk",
        f"bound ({found.confidence_level:.0%})",
        "guaranteed",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row, coverage in zip(found.table, found.coverage, strict=True):
        table.add_row(
            f"{row.threshold:g}",
            "-" if coverage is None else f"{coverage:.0%}",
            str(row.n),
            "-" if row.risk is None else f"{row.risk:.2f}",
            f"{row.upper_bound:.2f}",
            "yes" if row.certified else "no",
        )
    console = table_console()
    console.print(table)
    notes = f"left out: {found.failures} that failed, {found.without_forecast} without a forecast"
    if found.under_way:
        notes += f", {found.under_way} that wait for a measurement to end"
    console.print(notes, highlight=False)
    if found.threshold is not None:
        console.print(found.verdict, highlight=False)
