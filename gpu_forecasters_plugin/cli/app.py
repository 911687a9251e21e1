"""The command line. Exit codes: 0 done, 1 failed, 2 wrong use."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gpu_forecasters_plugin._version import __version__
from gpu_forecasters_plugin.cli.calibrate import calibrate_command
from gpu_forecasters_plugin.cli.compare import CompareCommand, compare_command
from gpu_forecasters_plugin.cli.doctor import doctor_command
from gpu_forecasters_plugin.cli.evaluate import evaluate_command
from gpu_forecasters_plugin.cli.forecast import forecast_command
from gpu_forecasters_plugin.cli.host_command import HostCommand
from gpu_forecasters_plugin.cli.ledger import ledger_app
from gpu_forecasters_plugin.cli.plugins import plugins_command
from gpu_forecasters_plugin.cli.profile import profile_command
from gpu_forecasters_plugin.cli.report import report_command
from gpu_forecasters_plugin.cli.shinka import ShinkaCommand, shinka_command
from gpu_forecasters_plugin.cli.train import train_app
from gpu_forecasters_plugin.cli.watch import watch_command
from gpu_forecasters_plugin.complaints import complain
from gpu_forecasters_plugin.errors import GpuForecastersError

__all__ = ["app", "main"]

app = typer.Typer(
    name="gpu-forecasters",
    help="A selective surrogate for evolutionary GPU-kernel search.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Example: gpu-forecasters compare --task rmsnorm --host inprocess --budget 32 --seeds 5 --out cmp",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A selective surrogate for evolutionary GPU-kernel search."""


app.add_typer(ledger_app)
app.add_typer(train_app)
app.command(
    "forecast",
    epilog="Example: gpu-forecasters forecast --reference initial_program.py --candidate kernel.py",
)(forecast_command)
app.command(
    "calibrate", epilog="Example: gpu-forecasters calibrate --ledger run --target-risk 0.5 --out calibration"
)(calibrate_command)
app.command(
    "evaluate",
    epilog="Example: gpu-forecasters evaluate --pairs pairs.jsonl --forecaster learned --out evaluation",
)(evaluate_command)
app.command("report", epilog="Example: gpu-forecasters report openevolve_output --out report.html")(
    report_command
)
app.command("watch", epilog="Example: gpu-forecasters watch openevolve_output --every 5")(watch_command)
app.command("doctor", epilog="Example: gpu-forecasters doctor --config config.yaml")(doctor_command)
app.command(
    "profile",
    epilog="Example: gpu-forecasters profile kernel.py -r initial_program.py --evaluator evaluator.py --out profile",
)(profile_command)
app.command("plugins", epilog="Example: gpu-forecasters plugins --out plugins")(plugins_command)


class _OpenEvolveCommand(HostCommand):
    adapter = "gpu_forecasters_openevolve"
    program = "openevolve-run"


@app.command(
    "openevolve",
    cls=_OpenEvolveCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog="Example: gpu-forecasters openevolve initial_program.py evaluator.py --config config.yaml --out run",
)
def openevolve_command(
    context: typer.Context,
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="Initial program; the reference.")],
    evaluator: Annotated[str, typer.Argument(metavar="EVALUATOR", help="Your evaluator, as it is.")],
    config: Annotated[
        str | None, typer.Option("--config", "-c", help="OpenEvolve's YAML, with a surrogate: section.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "--output", "-o", help="Folder of the run (results, ledger).")
    ] = None,
    surrogate: Annotated[
        str | None, typer.Option("--surrogate", help="File of the surrogate: section, if it is elsewhere.")
    ] = None,
) -> None:
    """Run OpenEvolve with the surrogate filter; takes every flag of openevolve-run.

    The budget is surrogate.budget.measurements, or the number of iterations and the initial program; the
    run makes as many proposals as that takes. Start the same command again to resume an interrupted run.
    """
    from gpu_forecasters_openevolve.evaluators import one_started_ahead

    from gpu_forecasters_plugin.cli.interrupts import interruptible

    arguments = [program, evaluator, *context.args]
    for flag, value in (("--config", config), ("--output", out)):
        arguments += [] if value is None else [flag, value]
    advice = "what was measured is in the ledger: start the same command again to go on"
    with interruptible(advice), one_started_ahead():
        from gpu_forecasters_openevolve.runner import run_filtered  # takes a while

        code = run_filtered(arguments, surrogate)
    raise typer.Exit(code)


app.command(
    "shinka",
    cls=ShinkaCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog="Example: gpu-forecasters shinka --task-dir task --num_generations 64 --surrogate surrogate.yaml --out run",
)(shinka_command)


app.command(
    "compare",
    cls=CompareCommand,
    epilog="Example: gpu-forecasters compare --task rmsnorm --host inprocess --budget 64 --seeds 30 --out cmp",
)(compare_command)


def main() -> None:
    """Entry point of the ``gpu-forecasters`` command."""
    # Before numpy loads: the learned forecaster's small matrices are slower with threads than without.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except (GpuForecastersError, OSError) as error:
        sys.exit(complain(error))
