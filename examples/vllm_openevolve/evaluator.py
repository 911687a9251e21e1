"""Your own evaluator, as it is. This one stands for a GPU: it answers with what was measured on an H100."""

from pathlib import Path

from gpu_forecasters_plugin.recorded.evaluator import evaluate_program_file


def evaluate(program_path):
    """Compile, check and time the kernel in this file."""
    return evaluate_program_file(program_path, "rmsnorm", folder=Path(__file__).resolve().parent)
