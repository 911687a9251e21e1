"""OpenEvolve's evaluator for this task."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from measuring.evaluation import evaluator_of  # noqa: E402

evaluate = evaluator_of(HERE / "task.py")
