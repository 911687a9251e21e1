"""The command lines of ``shinka_run`` and ``shinka_launch``, and what is ours among them."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml
from shinka.cli import run as shinka_run

from gpu_forecasters_plugin.config import SurrogateConfig, load_surrogate_config
from gpu_forecasters_plugin.errors import ConfigError
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.folder_lock import hold_folder

__all__ = ["RunCommand", "flags_help", "host_parser", "is_run_command", "parse_run_command"]

_build_parser = shinka_run._build_parser


def is_run_command(arguments: Sequence[str]) -> bool:
    """Whether these are arguments of ``shinka_run``; else they are overrides for ``shinka_launch``."""
    return any(word == "--task-dir" or word.startswith("--task-dir=") for word in arguments)


@dataclass(frozen=True)
class RunCommand:
    """A ``shinka_run`` command.

    Attributes:
        arguments: for the host's own parser.
        out: the run's folder.
        section: the ``surrogate:`` section.
        task: name of the task where the section has none.
    """

    arguments: tuple[str, ...]
    out: Path
    section: SurrogateConfig
    task: str


def parse_run_command(arguments: Sequence[str], surrogate: str | None) -> RunCommand:
    """Check a command line, and take our section out of the configuration file.

    The host refuses unknown sections: it gets a copy of the file without ours, in ``OUT/gpu_forecasters``.

    Args:
        arguments: what ``shinka_run`` takes; ``--num_generations`` may be missing where the section has a budget.
        surrogate: file of the ``surrogate:`` section, when it is not in the ``--config-fname`` file.

    Raises:
        ConfigError: the host's parser refuses them, or the section is wrong.
        OutputError: the run's folder cannot be written.
        FolderInUseError: another process runs in it.
    """
    known, _ = _reader().parse_known_args(arguments)
    section, config = SurrogateConfig(), None
    if known.config is not None:
        config = Path(known.task_dir or ".") / known.config
        section = load_surrogate_config(config)
    if surrogate is not None:
        section = load_surrogate_config(surrogate, required=True)
    values = list(arguments)
    if known.num_generations is None and section.budget.measurements is not None:
        values += ["--num_generations", str(section.budget.measurements)]
    parsed = host_parser().parse_args(values)
    out = Path(parsed.results_dir).resolve()
    hold_folder(out)  # before anything is written there
    if config is not None and "surrogate" in (document := _mapping(config)):
        del document["surrogate"]
        values += ["--config-fname", str(_write_config(document, out))]
    if parsed.verbose is None and "verbose" not in (_mapping(config) if config is not None else {}):
        values.append("--no-verbose")
    return RunCommand(tuple(values), out, section, Path(parsed.task_dir).resolve().name)


def _reader() -> argparse.ArgumentParser:
    """Reads the few flags that have to be known before the host's own parser can run."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    reader.add_argument("--task-dir")
    reader.add_argument("--config-fname", dest="config")
    reader.add_argument("--num_generations")
    return reader


def _mapping(config: Path) -> dict[str, Any]:
    document = yaml.safe_load(config.read_text("utf-8-sig")) or {}
    return dict(document)


def _write_config(document: dict[str, Any], out: Path) -> Path:
    folder = out / "gpu_forecasters"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # a copy of what the user configured, a key perhaps among it
    path = folder / "config.yaml"
    write_atomically(path, yaml.safe_dump(document, sort_keys=False))
    return path


def host_parser() -> argparse.ArgumentParser:
    """The host's own parser; what it refuses is a ``ConfigError`` of one line."""
    parser: argparse.ArgumentParser = _build_parser()

    def refuse(message: str) -> NoReturn:
        text = message.replace("--results_dir", "--out (or --results_dir)")
        raise ConfigError(f"{text}; gpu-forecasters shinka --help lists what is taken") from None

    parser.error = refuse  # type: ignore[method-assign]
    return parser


def flags_help() -> str:
    """The host's own words on the flags of ``shinka_run``."""
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            _build_parser().parse_args(["--help"])
    except SystemExit:
        pass
    return said.getvalue().partition("required arguments:\n")[2].partition("\nOverride grammar:")[0].rstrip()
