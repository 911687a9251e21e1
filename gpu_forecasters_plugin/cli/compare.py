"""``gpu-forecasters compare``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gpu_forecasters_plugin.errors import ConfigError

__all__ = ["CompareCommand", "compare_command"]


class CompareCommand(TyperCommand):
    """Lists the arms below the options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        from gpu_forecasters_plugin.compare.presets import PRESETS
        from gpu_forecasters_plugin.hookspecs import RankingRuleFactory
        from gpu_forecasters_plugin.plugins import registry

        rows = [(preset.name, preset.summary) for preset in PRESETS]
        rules = ", ".join(registry().names(RankingRuleFactory))
        rows.append(("rank_RULE", f"as configured, with another ranking: {rules}"))
        rows.append(("expert_KIND", "as configured, with one expert of its forecaster alone, or climatology"))
        with formatter.section("Arms"):
            formatter.write_dl(rows)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def compare_command(
    out: Annotated[Path, typer.Option("--out", help="Folder for summary.json, curves.png and the runs.")],
    task: Annotated[
        str | None,
        typer.Option(
            "--task", help="Name of a recorded task; of several, comma-separated, all are compared."
        ),
    ] = None,
    pool: Annotated[Path | None, typer.Option("--pool", help="A pool file of your own, instead.")] = None,
    host: Annotated[
        str, typer.Option("--host", help="inprocess, puct, openevolve, shinka, or a plugin's.")
    ] = "inprocess",
    budget: Annotated[int, typer.Option("--budget", help="Measurements of each search.")] = 64,
    seeds: Annotated[int, typer.Option("--seeds", help="Paired seeds.")] = 10,
    arms: Annotated[
        str, typer.Option("--arms", help="What is compared, comma-separated; the names are below.")
    ] = "baseline,surrogate,random,oracle",
    surrogate: Annotated[
        Path | None, typer.Option("--surrogate", help="YAML with the surrogate: section to compare.")
    ] = None,
    measurement_seconds: Annotated[
        float | None,
        typer.Option(
            "--measurement-seconds",
            help="GPU-seconds that a measurement takes in reality; default: the recorded kernel time.",
        ),
    ] = None,
    forecasts: Annotated[
        Path | None,
        typer.Option("--forecasts", help="JSONL of recorded forecasts, for the arm replay."),
    ] = None,
) -> None:
    """Compare searches with and without the filter at exactly the same number of GPU measurements.

    With surrogate.budget.gpu_seconds, every arm gets the same GPU-seconds instead, for measuring and, with
    count_forecasting, forecasting together, and --budget is the most that it may measure.

    The seeds are paired: each arm's search is made the same proposals. Differences are tested by a paired
    permutation test, corrected for the number of arms and tasks that are compared.

    Ctrl-C ends it with exit code 130, SIGTERM with 143; the searches that had finished are kept, and the same
    command goes on with the others.
    """
    from gpu_forecasters_plugin.cli.interrupts import interruptible
    from gpu_forecasters_plugin.compare import run_comparison, run_comparisons
    from gpu_forecasters_plugin.compare.output import print_result, print_results
    from gpu_forecasters_plugin.config import SurrogateConfig, load_surrogate_config

    tasks = _names(task or "")
    if bool(tasks) == (pool is not None):
        raise ConfigError("give one of --task and --pool")
    section = SurrogateConfig() if surrogate is None else load_surrogate_config(surrogate, required=True)
    setting: dict[str, Any] = {"host": host, "budget": budget, "seeds": seeds, "arms": _names(arms)}
    setting |= {"measurement_seconds": measurement_seconds, "forecasts": forecasts}
    with interruptible("finished searches are kept: start the same command again to go on"):
        if len(tasks) > 1:
            print_results(run_comparisons(tasks, surrogate=section, out=out, **setting), out)
        else:
            source = tasks[0] if pool is None else os.path.realpath(pool)
            print_result(run_comparison(source, surrogate=section, out=out, **setting), out)
