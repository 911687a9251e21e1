"""``gpu-forecasters forecast``: one look at one kernel."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_forecasters_plugin.printable import printable

if TYPE_CHECKING:
    from gpu_forecasters_plugin.look import Look

__all__ = ["forecast_command"]


def forecast_command(
    reference: Annotated[
        Path, typer.Option("--reference", help="Source of the kernel that speed-ups are relative to.")
    ],
    candidate: Annotated[Path, typer.Option("--candidate", help="Source of the kernel in question.")],
    device: Annotated[
        str | None, typer.Option("--device", help="Hardware name; the configuration's when left out.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML with a surrogate: section; else its defaults.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for summary.json.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
) -> None:
    """Forecast one kernel, without a run and without a GPU.

    Shows the probability of each speed-up bin, what is expected, whether a run would defer the kernel to the GPU,
    and what the forecast cost. Exit code 1 when there is no forecast.
    """
    from gpu_forecasters_plugin.cli.interrupts import interruptible
    from gpu_forecasters_plugin.config import SurrogateConfig, load_surrogate_config, with_option
    from gpu_forecasters_plugin.files import prepare_folder, write_json
    from gpu_forecasters_plugin.look import look_at, read_kernel

    section = SurrogateConfig() if config is None else load_surrogate_config(config)
    if device is not None:
        section = with_option(section, "--device", device=device)
    kernels = read_kernel(reference, "reference"), read_kernel(candidate, "candidate")
    task = printable(reference.resolve().parent.name)
    if out is not None:
        prepare_folder(out)  # before the forecast is paid for
    # What a forecaster prints is no part of the answer.
    with interruptible("nothing was written"), redirect_stdout(sys.stderr):
        look = look_at(*kernels, section, task)
    summary = {"reference": str(reference), "candidate": str(candidate)} | look.summary()
    if out is not None:
        write_json(out / "summary.json", summary)
    _show(look, summary if as_json else None)


def _show(look: Look, summary: dict[str, Any] | None) -> None:
    """Print the summary as JSON, or the picture; a failure ends the command with code 1."""
    from gpu_forecasters_plugin.cli.forecast_picture import draw
    from gpu_forecasters_plugin.forecast import ForecastFailure
    from gpu_forecasters_plugin.look import ADVICE

    if summary is None:
        draw(look)
    else:
        typer.echo(json.dumps(summary, indent=1, allow_nan=False))
    if isinstance(look.outcome, ForecastFailure):
        kind, detail = look.outcome.kind, printable(look.outcome.detail)
        typer.echo(f"error: no forecast, {kind}: {detail}", err=True)
        typer.echo(f"what to do: {ADVICE[kind]}; gpu-forecasters doctor tests the endpoint", err=True)
        raise typer.Exit(1)
