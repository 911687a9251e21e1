"""A real ShinkaEvolve search whose language model proposes kernels that cannot run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broken_kernels import BAD, GOOD, KERNEL, SAYS, SCREEN
from shinka_runs import ModelServer, Task, number_in

from gpu_forecasters_plugin.recorded.tagged_answers import in_tags

pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

TASK_FILE = """
import torch

ENTRY_POINT = "run"


def make_inputs():
    return (torch.randn(1024, 1024, device="cuda"),)
"""


class KernelServer(ModelServer):
    """A model that answers with these programs, over and over."""

    def _answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = super()._answer(path, body)
        number = number_in(answer["choices"][0]["message"]["content"])
        text = [*BAD, *GOOD][(number - 1) % 8]
        answer["choices"][0]["message"]["content"] = in_tags(
            "CODE", f"```python\nNUMBER = {number}\n{text}```"
        )
        return answer


def test_shinka_spends_nothing_on_kernels_that_cannot_run_and_stores_why_as_feedback(
    tmp_path: Path, serve: Callable[..., ModelServer]
) -> None:
    task = Task.write(tmp_path, serve(kind=KernelServer), evo={"use_text_feedback": True})
    (tmp_path / "initial.py").write_text(f"# EVOLVE-BLOCK-START\nNUMBER = 0\n{KERNEL}\n# EVOLVE-BLOCK-END\n")
    (tmp_path / "task.py").write_text(TASK_FILE)
    screen = SCREEN | {"task_file": str(tmp_path / "task.py")}
    task.run(screen=screen, budget={"measurements": 3}, keep_fraction=0.5)
    assert not [call for call in task.calls() if "tl.lode" in Path(call["path"]).read_text()]
    stored = task.programs("code, correct, text_feedback")
    broken = [(correct, feedback) for code, correct, feedback in stored if "tl.lode" in code]
    assert broken and all(not correct and SAYS in feedback for correct, feedback in broken)
    assert task.ledger("select count(*) from decision where reason = 'invalid_source'")[0][0] >= len(broken)
