"""What openevolve-run takes as evaluator: the surrogate filter in front of evaluator.py."""

from gpu_forecasters_openevolve import filtered

filtered(globals(), program="initial_program.py", evaluator="evaluator.py", config="config.yaml")
