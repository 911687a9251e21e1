"""``gpu-forecasters train``: measured kernels to a language model that forecasts them better."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_forecasters_plugin.errors import ConfigError

if TYPE_CHECKING:
    from gpu_forecasters_plugin.training.run import Method

__all__ = ["train_app"]

train_app = typer.Typer(
    name="train",
    help="Train a language model's adapter on measured kernels.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Example: gpu-forecasters train proper --config training.yaml --out trained",
)

_Config = Annotated[Path, typer.Option("--config", "-c", help="YAML with a training: section.")]
_Out = Annotated[
    Path, typer.Option("--out", "-o", help="Folder for the adapter, summary.json, samples and checkpoints.")
]
_Adapter = Annotated[
    Path | None, typer.Option("--adapter", help="Go on from this adapter; a symbolic link may name the last.")
]
_From = Annotated[
    list[str] | None,
    typer.Option("--from", metavar="LEDGER...", help="Learn on from the new measurements of these ledgers."),
]
_More = Annotated[list[str] | None, typer.Argument(metavar="[LEDGER]...", help="Further ledgers of --from.")]
_Since = Annotated[
    str | None,
    typer.Option("--since", metavar="DATE", help="What is new, such as 2026-11-01 (UTC); older is replayed."),
]
_Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Updates, instead of the file's.")]
_Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed, instead of the file's.")]


def _add_command(method: Method, summary: str, example: str) -> None:
    """All methods take the same options."""

    @train_app.command(method, help=summary, epilog=f"Example: gpu-forecasters train {example}")
    def command(
        config: _Config,
        out: _Out,
        more: _More = None,
        adapter: _Adapter = None,
        new: _From = None,
        since: _Since = None,
        steps: _Steps = None,
        seed: _Seed = None,
    ) -> None:
        _train(method, config, out, [*(new or []), *(more or [])], since, adapter, steps, seed)


_add_command(
    "sft",
    """Imitate right answers: the start of the other two.

    The same command again goes on from the last checkpoint.
    """,
    "sft --config training.yaml --out sft",
)
_add_command(
    "grpo",
    """Reinforce written forecasts by a reward that pays for calibration.

    The same command again goes on from the last checkpoint.
    """,
    "grpo --config training.yaml --adapter sft/adapter --out grpo",
)
_add_command(
    "proper",
    """Train the probabilities of the one-token readout directly on a proper score.

    With --from, the adapter learns on from what these ledgers measured since a date, with a share of older rows in
    each batch. It takes the old one's place only if it scores at least as well on audit rows that neither has seen:
    otherwise the old one stays, the new one is put into OUT/refused, and the exit code is 1. The same command again
    goes on from the last checkpoint.
    """,
    "proper --config training.yaml --adapter last --from run1 run2 --since 2026-11-01 --out next",
)


def _train(
    method: Method,
    config: Path,
    out: Path,
    ledgers: list[str],
    since: str | None,
    adapter: Path | None,
    steps: int | None,
    seed: int | None,
) -> None:
    from gpu_forecasters_plugin.cli.interrupts import interruptible
    from gpu_forecasters_plugin.training.data import NewRows
    from gpu_forecasters_plugin.training.run import run_training
    from gpu_forecasters_plugin.training.settings import load_training_settings

    overrides = {"adapter": None if adapter is None else str(adapter), "steps": steps, "seed": seed}
    settings = load_training_settings(config, **overrides)
    new = None
    if ledgers:
        if settings.adapter is None:
            raise ConfigError("--from goes on from an adapter: name it with --adapter")
        new = NewRows(tuple(ledgers), _moment(since))
    elif since is not None:
        raise ConfigError("--since says what is new in the ledgers of --from: name them")
    with interruptible("checkpoints are kept: start the same command again to go on"):
        summary = run_training(method, settings, out, new)
    _show(summary, out)
    if not summary["accepted"]:
        typer.echo(
            f"error: the new forecaster is refused and {settings.adapter} stays: {summary['contest']['verdict']}",
            err=True,
        )
        raise typer.Exit(1)


def _moment(since: str | None) -> float:
    """Seconds since 1970 of a date or a date with a time; UTC unless it says another zone."""
    if since is None:
        return 0.0
    try:
        moment = datetime.fromisoformat(since)
    except ValueError:
        raise ConfigError(
            f"--since is a date such as 2026-11-01 or 2026-11-01T18:00, got {since!r}"
        ) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _show(summary: Mapping[str, Any], out: Path) -> None:
    """Rows, cost and held-out scores."""
    from rich.table import Table

    from gpu_forecasters_plugin.terminal import table_console

    rows, log = summary["rows"], summary["log"]
    typer.echo(
        f"{summary['method']}: {log['steps']} steps on {rows['train']} rows"
        + (f" and {rows['replay']} replayed" if rows["replay"] else "")
        + f"; {log['seconds']:.0f} s"
    )
    table = Table(pad_edge=False)
    for heading in ("held out", "rows", "exact", "within one", "Brier", "skill", "CRPS", "NLL", "ECE"):
        table.add_column(heading, justify="left" if heading == "held out" else "right", no_wrap=True)
    names = ("exact", "within_one", "brier", "brier_skill", "crps", "nll", "ece")
    for name, scores in summary["held_out"].items():
        values = ["-" if scores[key] is None else f"{scores[key]:.3f}" for key in names]
        table.add_row(name.replace("_", " "), str(scores["n"]), *values)
    table_console().print(table)
    if summary["contest"] is not None and summary["accepted"]:
        typer.echo(f"accepted: {summary['contest']['verdict']}")
    typer.echo(f"written: {summary['adapter']}, {out / 'summary.json'}")
