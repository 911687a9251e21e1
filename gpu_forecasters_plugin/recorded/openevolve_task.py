"""A recorded task as the three files that OpenEvolve takes."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import yaml

from gpu_forecasters_plugin.files import write_atomically
from gpu_forecasters_plugin.python_syntax import parse_python
from gpu_forecasters_plugin.recorded.pool import RecordedPool, is_pool_path, open_pool
from gpu_forecasters_plugin.recorded.server import MODEL_NAME

__all__ = ["OpenEvolveTask", "write_openevolve_task"]


class OpenEvolveTask(NamedTuple):
    """The files of a task as ``openevolve-run`` takes them."""

    initial_program: Path
    evaluator: Path
    config: Path


_EVALUATOR = '''# Stands for the GPU: answers with what was once measured on {device!r}.

from pathlib import Path

from gpu_forecasters_plugin.recorded.evaluator import evaluate_program_file

POOL = {source!r}


def evaluate(program_path):
    """Recorded measurement of the program in this file."""
    return evaluate_program_file(program_path, POOL, folder=Path(__file__).resolve().parent)
'''

_CONFIG = """# Recorded task {task!r}, replayed through OpenEvolve.
max_iterations: {iterations}
checkpoint_interval: {checkpoint_interval}
log_level: {log_level}
random_seed: {seed}
language: {language}
diff_based_evolution: {diff}
max_code_length: 200000
llm:
  api_base: {api_base}
  api_key: no-key-needed
  models:
    - {{name: {model}, weight: 1.0}}
  timeout: 60
  retries: 2
  retry_delay: 1
prompt:
  num_top_programs: 1
  num_diverse_programs: 1
  include_artifacts: true
  use_template_stochasticity: false
database:
  log_prompts: false                 # else every prompt travels to every worker
  population_size: {population_size}
  archive_size: {archive_size}
  num_islands: {num_islands}
  feature_dimensions: [score, complexity]
  feature_bins: 10
  elite_selection_ratio: 0.2
  exploration_ratio: 0.2
  exploitation_ratio: 0.6
evaluator:
  timeout: {timeout}
  max_retries: 0                     # a recorded answer does not change
  cascade_evaluation: false
  parallel_evaluations: {workers}
"""


def _is_python(code: str) -> bool:
    # A file of preprocessor lines parses as well: as comments.
    tree = parse_python(code)
    return tree is not None and bool(tree.body)


def write_openevolve_task(
    pool_source: str | PathLike[str],
    folder: str | PathLike[str],
    *,
    api_base: str,
    seed: int = 0,
    iterations: int = 100,
    diff: bool = True,
    workers: int = 4,
    population_size: int = 60,
    num_islands: int = 1,
    timeout: int = 60,
    checkpoint_interval: int | None = None,
    log_level: str = "INFO",
) -> OpenEvolveTask:
    """Write ``initial_program``, ``evaluator.py`` and ``config.yaml`` for OpenEvolve 0.4.1.

    The configuration's ``surrogate:`` section, which OpenEvolve itself does not read, says what the task knows of
    itself: operation, device and shapes.

    Args:
        pool_source: name of a recorded task, or path of a pool file (which stays where it is).
        folder: created if missing; files of the same names are replaced.
        api_base: endpoint of the model; :attr:`ProposerServer.base_url` for the recorded proposer.
        seed: OpenEvolve's ``random_seed``.
        iterations: number of proposals.
        diff: ask for SEARCH/REPLACE blocks; otherwise for whole programs.
        workers: OpenEvolve's ``parallel_evaluations``, its number of worker processes.
        population_size: programs that the host keeps; all of them travel to a worker with each iteration.
        num_islands: separate populations.
        timeout: seconds that one evaluation may take.
        checkpoint_interval: iterations between checkpoints; default: one, at the end.
        log_level: OpenEvolve's log level.

    Raises:
        PoolFileError: the pool cannot be read.
    """
    pool = open_pool(pool_source)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    source = str(Path(pool_source).resolve()) if is_pool_path(pool_source) else str(pool_source)
    python = _is_python(pool.reference.code)
    task = OpenEvolveTask(
        target / ("initial_program.py" if python else "initial_program.cu"),
        target / "evaluator.py",
        target / "config.yaml",
    )
    write_atomically(task.initial_program, pool.reference.code)
    write_atomically(task.evaluator, _EVALUATOR.format(device=pool.device, source=source))
    write_atomically(
        task.config,
        _CONFIG.format(
            task=pool.task,
            iterations=iterations,
            checkpoint_interval=checkpoint_interval or max(1, iterations),
            log_level=log_level,
            seed=seed,
            language="python" if python else "cuda",
            diff=str(diff).lower(),
            api_base=json.dumps(api_base),
            model=MODEL_NAME,
            population_size=population_size,
            archive_size=max(1, population_size // 4),
            num_islands=num_islands,
            timeout=timeout,
            workers=workers,
        )
        + _section(pool),
    )
    return task


def _section(pool: RecordedPool) -> str:
    """What is known of the task, for the filter and its forecaster."""
    known = {"task": pool.operation, "device": pool.device, "shapes": pool.shapes or None}
    return yaml.safe_dump({"surrogate": known}, sort_keys=False, allow_unicode=True, width=100_000)
