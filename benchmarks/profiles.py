"""What the compiler makes of every source of the recorded tasks.

``python -m benchmarks.profiles`` compiles them for the device that measured them and writes
``gpu_forecasters_plugin/recorded/profiles``, which forecasters of a comparison read in place of a compiler. It needs
torch, triton and nvcc, and takes about a second of a core per source. What was compiled is kept in a folder
(``--cache``), so that it goes on where it was ended.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.screening import ROOT, write_task_file
from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.progress import WorkProgress
from gpu_forecasters_plugin.recorded.pool import RecordedPool, load_task
from gpu_forecasters_plugin.recorded.profiles import pack_verdicts
from gpu_forecasters_plugin.recorded.shipped import recorded_names
from gpu_forecasters_plugin.screen import Screener, ScreenJob, Verdict
from gpu_forecasters_plugin.screen.architectures import architecture_of_device
from gpu_forecasters_plugin.screen.cache import compiler_versions

FOLDER = ROOT / "gpu_forecasters_plugin" / "recorded" / "profiles"
SECONDS = 90.0


def profile_task(pool: RecordedPool, folder: Path, workers: int | None) -> dict[str, Verdict]:
    """Verdicts on all sources of a recorded task, by id, with the instruction mixes of their kernels."""
    arch = architecture_of_device(pool.device)
    assert arch is not None
    folder.mkdir(parents=True, exist_ok=True)
    task_file = str(write_task_file(folder, pool.task))
    job = ScreenJob("", arch.name, task_file=task_file, device=pool.device, disassemble=True, seconds=SECONDS)
    screener = Screener(job, folder=folder / "verdicts", workers=workers)
    candidates = list(pool.candidates.values())
    try:
        with WorkProgress(len(candidates), "sources") as bar:
            verdicts = screener.screen(
                [c.code for c in candidates], 1e6, seen=lambda done: bar.update(done, pool.label)
            )
    finally:
        screener.close()
    return {candidate.id: verdict for candidate, verdict in zip(candidates, verdicts, strict=True)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tasks", nargs="*", default=recorded_names(), help="such as softmax or cross_entropy@h200"
    )
    parser.add_argument("--cache", type=Path, help="folder for what was compiled; by default nothing is kept")
    parser.add_argument("--workers", type=int)
    options = parser.parse_args(arguments)
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    FOLDER.mkdir(exist_ok=True)
    versions = {name: text for name, text in compiler_versions().items() if name != "nvcc"}
    for task in options.tasks:
        pool = load_task(task)
        with tempfile.TemporaryDirectory() as folder:
            verdicts = profile_task(pool, options.cache or Path(folder), options.workers)
        arch = architecture_of_device(pool.device)
        assert arch is not None
        compiled = {"arch": arch.name, "device": pool.device} | versions
        data = pack_verdicts(verdicts, compiled)
        write_atomically(FOLDER / f"{task}.jsonl.gz", data)
        counts = Counter(str(verdict.status) for verdict in verdicts.values())
        profiles = sum(verdict.profile is not None for verdict in verdicts.values())
        print(f"{task}: {dict(counts)}, {profiles} profiles, {len(data) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
