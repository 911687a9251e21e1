"""The command: a picture of the run, drawn anew until the run is over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["watch_command"]


def watch_command(
    target: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's or a comparison's folder, a ledger file or URL.")
    ],
    run: Annotated[
        str | None, typer.Option("--run", help="Which run of several; the latest when left out.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print a single picture, and end.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, max=3600, help="Seconds from one picture to the next.")
    ] = 2.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for summary.json, written at the end.")
    ] = None,
) -> None:
    """Watch a run that goes on in other processes: budget, best so far, decisions, forecaster, last results.

    Reads the ledger and changes nothing. Waits for a ledger that is not there yet, and ends with the run; Ctrl-C
    ends it before (exit code 0). Where the output is no terminal, a line is printed whenever something has changed.
    """
    from gpu_forecasters_plugin.cli.interrupts import Terminated, interruptible
    from gpu_forecasters_plugin.cli.watch.screen import follow, print_frame
    from gpu_forecasters_plugin.cli.watch.target import WatchTarget
    from gpu_forecasters_plugin.files import prepare_folder, write_json

    watched = WatchTarget(target, run)
    if out is not None:
        prepare_folder(out)
    with interruptible("the run itself goes on"):
        if once:
            print_frame(watched.look)
        else:
            try:
                follow(watched.look, every)
            except Terminated:
                raise
            except KeyboardInterrupt:
                pass  # the usual way to end it
    if out is not None and (summary := watched.summary()) is not None:
        write_json(out / "summary.json", summary)
