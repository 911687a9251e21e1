"""Measures rewrites of PyTorch modules on a GPU: ``python -m benchmarks.generators.rewrites.measure --out results``.

Modules are built and checked several at a time, each in a process of its own, and then timed one after the other while
all else rests. A source that brings its process down or takes too long is left out when the module is built again. Rows
are appended module by module; modules that are in ``rows.jsonl`` are skipped, so that it can be stopped and
started again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.generators.rewrites.rows import filed_rows
from benchmarks.generators.rewrites.sources import REFERENCE, Source, module_names, sources_of
from benchmarks.generators.rewrites.worker import METHOD, work

SETTINGS = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "MAX_JOBS": "2", "OMP_NUM_THREADS": "2"}
LONGEST_SOURCE_S = 150.0
OWN_KERNELS = ("load_inline", "triton")


class _Module:
    """The process of one module, and what it has said."""

    def __init__(self, name: str, sources: Sequence[Source], folder: Path) -> None:
        self.name = name
        self._wanted = sources
        self.rows: list[dict[str, Any]] = []
        self.state = "building"
        self._folder = folder
        self._start()

    def _start(self) -> None:
        done = {row["name"] for row in self.rows}
        left = [source for source in self._wanted if source.name not in done]
        # What may bring the process down comes first, so that little is built twice.
        left[1:] = sorted(left[1:], key=lambda source: not any(word in source.code for word in OWN_KERNELS))
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=work, args=(left, self._folder, theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        self._sources = {source.name: source for source in left}
        self._at: Source | None = None
        self._since = time.monotonic()

    def listen(self) -> None:
        """Takes one message, or notices that the process has ended."""
        try:
            what, value = self.connection.recv()
        except (EOFError, OSError):
            self.give_up_source("runtime_error", "the process ended")
            return
        if what == "at":
            self._at, self._since = self._sources[value], time.monotonic()
        else:
            self.rows += value
            self.state = what

    def give_up_source(self, outcome: str, why: str) -> None:
        """Leaves out the source that is being built, or the whole module where that is its reference."""
        self.stop()
        source = self._at
        print(f"{self.name}: {source.name if source else 'start'}: {why}", flush=True)
        if source is None or source.name == REFERENCE or self.state != "building":
            self.state, self.rows = "lost", []
            return
        self.rows.append(
            {"module": self.name, "name": source.name, "sha": source.sha, "outcome": outcome, "error": why}
        )
        self._start()

    def check_time(self) -> None:
        """Gives up a source that has taken too long."""
        if self.state == "building" and time.monotonic() - self._since > LONGEST_SOURCE_S:
            self.give_up_source("timeout", f"not built and run in {LONGEST_SOURCE_S:.0f} s")

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def to_measure(name: str, filed: Collection[str]) -> list[Source]:
    """The reference of a module, and its rewrites but for those with a filed hash; nothing where that is all."""
    reference, *rewrites = sources_of(name)
    new = [source for source in rewrites if source.sha not in filed]
    return [reference, *new] if new or reference.sha not in filed else []


def measured(
    modules: Mapping[str, Sequence[Source]], folder: Path, processes: int, until: float
) -> Iterator[_Module]:
    """Modules as they are done, until there is no time for more."""
    names = list(modules)
    for first in range(0, len(names), processes):
        started = time.monotonic()
        batch = [_Module(name, modules[name], folder) for name in names[first : first + processes]]
        while building := [module for module in batch if module.state == "building"]:
            by_connection: dict[Any, _Module] = {module.connection: module for module in building}
            for ready in wait(list(by_connection), timeout=5.0):
                assert isinstance(ready, Connection)
                by_connection[ready].listen()
            for module in building:
                module.check_time()
            if time.monotonic() > until:
                for module in building:
                    module.stop()
                    module.state = "late"
        print(f"built {len(batch)} modules in {time.monotonic() - started:.0f} s", flush=True)
        for module in batch:
            if module.state == "ready":
                module.connection.send("go")
                while module.state == "ready":
                    module.listen()
                module.stop()
                yield module
        if time.monotonic() > until:
            return


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch
    import triton

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "date": time.strftime("%Y-%m-%d"),
        "timing": METHOD,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of rows.jsonl")
    parser.add_argument(
        "--modules", nargs="*", choices=module_names(), default=module_names(), help="default: all"
    )
    parser.add_argument("--again", action="store_true", help="measure what is filed already, too")
    parser.add_argument("--processes", type=int, default=12, help="modules that are built side by side")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which nothing is begun")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    os.environ.update(SETTINGS)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "rows.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    done = {row["module"] for row in known if "module" in row}
    with file.open("a") as rows:
        print(json.dumps(machine()), file=rows, flush=True)
        filed = set() if options.again else {row["sha"] for row in filed_rows() if "sha" in row}
        wanted = {name: to_measure(name, filed) for name in options.modules if name not in done}
        modules = {name: sources for name, sources in wanted.items() if sources}
        for module in measured(modules, options.out / "sources", options.processes, until):
            for row in module.rows:
                print(json.dumps(row), file=rows)
            rows.flush()
            right = sum(row["outcome"] == "ok" for row in module.rows)
            print(f"{module.name}: {right} of {len(module.rows)} right", flush=True)


if __name__ == "__main__":
    main()
