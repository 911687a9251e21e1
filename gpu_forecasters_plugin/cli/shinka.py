"""``gpu-forecasters shinka``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpu_forecasters_plugin.cli.host_command import HostCommand

__all__ = ["ShinkaCommand", "shinka_command"]


class ShinkaCommand(HostCommand):
    """Says as well when which flags are taken."""

    adapter = "gpu_forecasters_shinka"
    program = "shinka_run"

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        formatter.write("\nWithout --task-dir, the overrides of shinka_launch are taken (hydra's grammar).\n")


def shinka_command(
    context: typer.Context,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", help="Folder of the run (results, ledger): --results_dir, or output_dir."
        ),
    ] = None,
    surrogate: Annotated[
        str | None,
        typer.Option("--surrogate", help="File of the surrogate: section, if it is not in the host's YAML."),
    ] = None,
    measure_jobs: Annotated[
        int | None,
        typer.Option("--measure-jobs", min=1, help="Evaluations at once; default: max_evaluation_jobs."),
    ] = None,
    proposal_jobs: Annotated[
        int | None,
        typer.Option(
            "--proposal-jobs",
            min=1,
            help="Proposals at once; default: max_proposal_jobs times surrogate.oversample.",
        ),
    ] = None,
) -> None:
    """Run ShinkaEvolve with the surrogate filter; takes what shinka_run and shinka_launch take.

    The budget is surrogate.budget.measurements, or the number of generations; the run makes as many proposals
    as that takes. The host's log goes to evolution_run.log in the run's folder, and to the terminal with
    --verbose. Start the same command again to resume an interrupted run.
    """
    from gpu_forecasters_plugin.cli.interrupts import interruptible

    advice = "what was measured is in the ledger: start the same command again to go on"
    with interruptible(advice):
        from gpu_forecasters_shinka.runner import run_filtered  # takes a while

        code = run_filtered(
            context.args,
            out=out,
            surrogate=surrogate,
            measure_jobs=measure_jobs,
            proposal_jobs=proposal_jobs,
        )
    raise typer.Exit(code)
