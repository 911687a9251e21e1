"""A recorded task as the folder that ShinkaEvolve takes."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.python_syntax import parse_python
from gpu_forecasters_plugin.recorded.lookup_table import write_table
from gpu_forecasters_plugin.recorded.pool import open_pool
from gpu_forecasters_plugin.recorded.server import MODEL_NAME
from gpu_forecasters_plugin.recorded.tagged_answers import BLOCK_END, BLOCK_START

__all__ = ["ShinkaTask", "write_shinka_task"]


class ShinkaTask(NamedTuple):
    """The files of a task as ``shinka_run --task-dir`` takes them."""

    folder: Path
    initial: Path
    evaluate: Path
    config: Path


_EVALUATE = """# Stands for the GPU: answers with what was once measured on {device!r}.

import argparse
from pathlib import Path

from gpu_forecasters_plugin.python_syntax import parse_python
from gpu_forecasters_plugin.recorded.lookup_table import answer_program_file

parser = argparse.ArgumentParser()
parser.add_argument("--program_path", required=True)
parser.add_argument("--results_dir", required=True)
options = parser.parse_args()
answer_program_file(options.program_path, options.results_dir, Path({table!r}))
"""


def write_shinka_task(
    pool_source: str | PathLike[str],
    folder: str | PathLike[str],
    *,
    api_base: str,
    patch_types: Mapping[str, float] = {"diff": 0.6, "full": 0.3, "cross": 0.1},  # noqa: B006 - read only
    num_islands: int = 1,
    timeout: str = "00:01:00",
) -> ShinkaTask:
    """Write ``initial.py`` (or ``.cu``), ``evaluate.py`` and ``config.yaml`` for ShinkaEvolve 0.0.7.

    Args:
        pool_source: name of a recorded task, or path of a pool file.
        folder: created if missing; files of the same names are replaced.
        api_base: endpoint of the model; :attr:`ProposerServer.base_url` for the recorded proposer.
        patch_types: kinds of proposals, with their probabilities.
        num_islands: separate populations.
        timeout: time for one evaluation, ``hh:mm:ss``.

    Raises:
        PoolFileError: the pool cannot be read.
    """
    pool = open_pool(pool_source)
    target = Path(folder).resolve()
    target.mkdir(parents=True, exist_ok=True)
    tree = parse_python(pool.reference.code)
    is_cuda = tree is None or not tree.body  # a file of preprocessor lines parses as well: as comments
    mark = "//" if is_cuda else "#"
    task = ShinkaTask(
        target,
        target / f"initial.{'cu' if is_cuda else 'py'}",
        target / "evaluate.py",
        target / "config.yaml",
    )
    code = f"{mark} {BLOCK_START}\n{pool.reference.code.rstrip()}\n{mark} {BLOCK_END}\n"
    write_atomically(task.initial, code)
    table = target / "measured.json"
    write_table(pool, table)
    write_atomically(task.evaluate, _EVALUATE.format(device=pool.device, table=str(table)))
    document = _config(f"local/{MODEL_NAME}@{api_base}", patch_types, num_islands, timeout)
    # What is known of the task, for the filter and its forecaster.
    known = {"task": pool.operation, "device": pool.device, "shapes": pool.shapes or None}
    write_atomically(task.config, yaml.safe_dump(document | {"surrogate": known}, sort_keys=False))
    return task


def _config(model: str, patch_types: Mapping[str, float], num_islands: int, timeout: str) -> dict[str, Any]:
    return {
        "evo_config": {
            "llm_models": [model],
            "llm_dynamic_selection": None,
            "llm_kwargs": {"temperatures": 0.0, "max_tokens": 16384},
            "patch_types": list(patch_types),
            "patch_type_probs": list(patch_types.values()),
            "embedding_model": None,  # nothing to embed with
            "meta_rec_interval": None,
        },
        "db_config": {"num_islands": num_islands, "archive_size": 20},
        "job_config": {"time": timeout},
    }
