"""``gpu-forecasters profile``: what the compiler makes of kernels, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["profile_command"]

_FOREVER_S = 86_400.0


def profile_command(
    candidates: Annotated[list[Path], typer.Argument(metavar="CANDIDATE...", help="Sources of kernels.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for summary.json.")],
    evaluator: Annotated[
        Path | None, typer.Option("--evaluator", "-e", help="Your evaluator, which is run dry.")
    ] = None,
    task_file: Annotated[
        Path | None, typer.Option("--task-file", help="File with make_inputs() and ENTRY_POINT, instead.")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option("--arch", help="What to compile for, such as sm_80; default: the device's, or sm_90."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option("--reference", "-r", help="Kernel to compare with; the first when left out."),
    ] = None,
    device: Annotated[
        str,
        typer.Option("--device", help="GPU whose figures count; default: a usual one of the architecture."),
    ] = "",
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, max=3600, help="Seconds that one kernel may take.")
    ] = 60.0,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, max=256, help="Kernels at once; all cores when left out."),
    ] = None,
) -> None:
    """Compile kernels for a GPU that is not there, and show what the compiler made of them.

    Kernels run dry, confined, on tensors without data: your evaluator (or the task file) calls them, and what they
    launch is compiled and read. Shows verdict, registers, spills, shared memory, occupancy, waves, instructions and a
    lower bound of the time, the reference first. Exit code 1 when the reference cannot be run dry.
    """
    from gpu_forecasters_plugin.cli.interrupts import interruptible
    from gpu_forecasters_plugin.cli.profile_table import show
    from gpu_forecasters_plugin.errors import ConfigError
    from gpu_forecasters_plugin.files import prepare_folder, write_atomically
    from gpu_forecasters_plugin.look import read_kernel
    from gpu_forecasters_plugin.progress import WorkProgress
    from gpu_forecasters_plugin.screen.architectures import architecture_to_compile_for
    from gpu_forecasters_plugin.screen.cache import compiler_versions
    from gpu_forecasters_plugin.screen.jobs import ScreenJob
    from gpu_forecasters_plugin.screen.screener import Screener

    if (evaluator is None) == (task_file is None):
        raise ConfigError("give one of --evaluator and --task-file")
    target = architecture_to_compile_for(arch, device)
    caller = evaluator or task_file
    assert caller is not None
    if not caller.is_file():
        raise ConfigError(f"there is no file {caller}")
    paths = [*([] if reference is None else [reference]), *candidates]
    codes = [read_kernel(path, "kernel").code for path in paths]
    job = ScreenJob(
        "",
        target.name,
        evaluator=None if evaluator is None else str(evaluator.resolve()),
        task_file=None if task_file is None else str(task_file.resolve()),
        device=device,
        disassemble=True,
        seconds=timeout,
    )
    prepare_folder(out)
    screener = Screener(job, reference=codes[0], folder=out / "screen", workers=workers)
    try:
        with interruptible("verdicts reached so far are kept: start the same command again to go on"):
            with WorkProgress(len(codes), "kernels") as progress:
                reached = screener.screen(
                    codes, _FOREVER_S, seen=lambda done: progress.update(done, "compiling")
                )
                progress.update(len(codes), "compiled")
            first = screener.reference_verdict(_FOREVER_S)
    finally:
        screener.close()
    verdicts = [*([] if first is None else [first]), *reached[1:]]
    summary = {
        "arch": job.arch,
        "device": device or None,
        "caller": str(caller),
        "compilers": compiler_versions(),
        "reference": str(paths[0]),
        "kernels": [
            {"path": str(path), **verdict.to_json()} for path, verdict in zip(paths, verdicts, strict=True)
        ],
    }
    write_atomically(out / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    show([str(path) for path in paths], verdicts, job.arch)
    if screener.problem is not None:
        advice = (
            ""
            if evaluator is None
            else "; give --task-file a file with make_inputs() and ENTRY_POINT instead"
        )
        typer.echo(f"error: {screener.problem}{advice}", err=True)
        raise typer.Exit(1)
