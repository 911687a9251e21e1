"""Files what was measured: ``python -m benchmarks.generators.rewrites.rows results/rows.jsonl ...``.

They are added to those that are filed. Of a source that was measured several times the last session counts; its row has
the times of the module's reference in the same session. Rows of sources that the generator no longer writes are left
out; sources without a row are named.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.generators.build import write_jsonl
from benchmarks.generators.rewrites.sources import REFERENCE, Source, module_names, sources_of
from benchmarks.generators.rows import read_rows

FILE = Path(__file__).with_name("measured.jsonl.gz")


@dataclass(frozen=True)
class MeasuredRewrite:
    """A rewrite that is right, beside its module.

    Attributes:
        source: the rewrite.
        reference: the module.
        log2_speedup: over the module, the mean of the rounds.
    """

    source: Source
    reference: Source
    log2_speedup: float


def all_sources() -> dict[tuple[str, str], Source]:
    """Every source by the names of its module and its own."""
    return {(source.module, source.name): source for name in module_names() for source in sources_of(name)}


def filed_rows() -> list[dict[str, Any]]:
    """The rows that ship, a head for every session among them."""
    return list(read_rows(FILE))


def measured_rewrites() -> Iterator[MeasuredRewrite]:
    """Every rewrite that is right, in the order of the file."""
    sources = all_sources()
    for row in filed_rows():
        if row.get("outcome") == "ok" and row["name"] != REFERENCE:
            ratios = zip(row["reference_us"], row["time_us"], strict=True)
            mean = statistics.fmean(math.log2(reference / own) for reference, own in ratios)
            module = row["module"]
            yield MeasuredRewrite(sources[module, row["name"]], sources[module, REFERENCE], mean)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sessions", nargs="+", type=Path, help="rows of sessions, oldest first")
    heads: list[dict[str, Any]] = []
    by_source: dict[tuple[str, str], dict[str, Any]] = {}
    sessions = parser.parse_args(arguments).sessions
    for row in itertools.chain(filed_rows(), *map(read_rows, sessions)):
        if "module" in row:
            by_source[row["module"], row["name"]] = row
        elif row not in heads:
            heads.append(row)
    sources = all_sources()
    rows = [
        by_source[key]
        for key, source in sources.items()
        if key in by_source and by_source[key]["sha"] == source.sha
    ]
    missing = set(sources) - {(row["module"], row["name"]) for row in rows}
    write_jsonl(FILE, [*heads, *rows])
    modules = {row["module"] for row in rows}
    print(f"{len(rows)} rows of {len(modules)} modules, {FILE.stat().st_size / 1024:.0f} KiB")
    for module, name in sorted(missing):
        print(f"not measured: {module} {name}")


if __name__ == "__main__":
    main()
