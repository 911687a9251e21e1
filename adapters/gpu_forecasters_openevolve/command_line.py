"""The command line of ``openevolve-run``, as OpenEvolve's own parser has it."""

from __future__ import annotations

import difflib
import io
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from openevolve import cli as host_cli

from gpu_forecasters_plugin.errors import ConfigError

__all__ = [
    "default_output",
    "flags_help",
    "host_arguments",
    "output_of_command",
    "parse_host_arguments",
]

_PROGRAM = "openevolve-run"
_OUR_FLAGS = ("--config", "--out", "--output", "--surrogate")
_FLAG = re.compile(r"(?<!\S)-{1,2}[a-z][\w-]*")


@contextmanager
def host_arguments(values: Sequence[str]) -> Iterator[None]:
    """OpenEvolve reads ``sys.argv``."""
    before = sys.argv
    sys.argv = [_PROGRAM, *values]
    try:
        yield
    finally:
        sys.argv = before


def parse_host_arguments(values: Sequence[str]) -> Namespace:
    """What OpenEvolve makes of these arguments.

    Raises:
        ConfigError: it does not take them; one line, with the nearest flag where one is unknown.
    """
    said = io.StringIO()
    try:
        with host_arguments(values), redirect_stderr(said), redirect_stdout(io.StringIO()):
            return host_cli.parse_args()
    except SystemExit:
        problem = said.getvalue().rpartition(f"{_PROGRAM}: error: ")[2].strip()
    unknown = problem.removeprefix("unrecognized arguments: ")
    raise ConfigError(problem if unknown == problem else _about_unknown(unknown)) from None


def default_output(program: Path) -> Path:
    """Where OpenEvolve puts the output of a run that names no folder."""
    return program.resolve().parent / "openevolve_output"


def output_of_command(evaluator: Path) -> Path | None:
    """The output folder of the ``openevolve-run`` that this process is.

    Args:
        evaluator: the file that it was given as evaluator; another command line says nothing about this run.

    Returns:
        The folder; ``None`` when this process is something else.
    """
    try:
        arguments = parse_host_arguments(sys.argv[1:])
    except ConfigError:
        return None
    if Path(arguments.evaluation_file).resolve() != evaluator.resolve():
        return None
    if arguments.output:
        return Path(arguments.output).resolve()
    return default_output(Path(arguments.initial_program))


def _about_unknown(arguments: str) -> str:
    flag = next((part.partition("=")[0] for part in arguments.split() if part.startswith("-")), None)
    if flag is None:
        return f"unexpected arguments: {arguments}"
    known = [*_OUR_FLAGS, *_FLAG.findall(_options_text())]
    close = difflib.get_close_matches(flag, known, n=1)
    hint = f", did you mean {close[0]}?" if close else ":"
    return (
        f"unknown flag {flag}{hint} every flag of {_PROGRAM} is accepted, and "
        "gpu-forecasters openevolve --help lists them"
    )


def flags_help() -> str:
    """OpenEvolve's own words on its flags, without those that ``gpu-forecasters openevolve`` explains itself."""
    entries = re.split(r"\n(?=  -)", _options_text())
    theirs = [entry for entry in entries if not re.match(r"\s*(-h|--help|--config|--output)\b", entry)]
    return "\n".join(theirs)


def _options_text() -> str:
    """The part of OpenEvolve's help that lists its flags."""
    said = io.StringIO()
    try:
        with host_arguments(["--help"]), redirect_stdout(said):
            host_cli.parse_args()
    except SystemExit:
        pass
    return said.getvalue().partition("options:\n")[2].rstrip()
