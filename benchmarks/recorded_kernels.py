"""What the learned forecaster knows before a run has measured anything.

``python -m benchmarks.recorded_kernels`` extracts the features of every recorded source whose static profile is there
(``python -m benchmarks.profiles`` first) and of every measured rewrite of a PyTorch module, and writes the two tables
that ship with the package. To be run after a change of recorded tasks, of rewrites, of profiles, or of the features.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.generators.rewrites.rows import measured_rewrites
from benchmarks.screening import ROOT
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.forecasters.learned.features import extract_features
from gpu_forecasters_plugin.forecasters.learned.recorded_kernels import kernels_of, pack_recorded
from gpu_forecasters_plugin.forecasters.learned.rewrites import (
    Changes,
    RewriteTable,
    changes_from,
    pack_rewrites,
)
from gpu_forecasters_plugin.recorded.pool import load_task, recorded_task_names
from gpu_forecasters_plugin.recorded.profiles import recorded_verdicts
from gpu_forecasters_plugin.recorded.shipped import profiles_file

FOLDER = ROOT / "gpu_forecasters_plugin" / "forecasters" / "learned"
FILE = FOLDER / "recorded_kernels.npz"
REWRITES = FOLDER / "pytorch_rewrites.npz"


def profiled_task_names() -> list[str]:
    """The recorded tasks whose sources ship with what the compiler made of them."""
    return [name for name in recorded_task_names() if profiles_file(name).is_file()]


def rewrite_table() -> RewriteTable:
    """All measured rewrites of PyTorch modules that are right."""
    rewrites = list(measured_rewrites())
    changes = [
        changes_from(extract_features(rewrite.reference.code), [extract_features(rewrite.source.code)])
        for rewrite in rewrites
    ]
    return RewriteTable(
        tuple(rewrite.source.module for rewrite in rewrites),
        Changes(
            np.concatenate([change.structure for change in changes]),
            np.concatenate([change.shingles for change in changes]),
        ),
        np.array([rewrite.log2_speedup for rewrite in rewrites]),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Extract and write."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    tasks = [kernels_of(load_task(name), recorded_verdicts(name)) for name in profiled_task_names()]
    data = pack_recorded(tasks)
    write_atomically(FILE, data)
    print(f"{', '.join(task.name for task in tasks)}: {len(data) / 1024:.0f} KiB")
    table = rewrite_table()
    data = pack_rewrites(table)
    write_atomically(REWRITES, data)
    print(f"{len(table.modules)} rewrites of {len(set(table.modules))} modules: {len(data) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
