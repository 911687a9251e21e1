from __future__ import annotations

import pytest

from gpu_forecasters_plugin.language import source_language
from gpu_forecasters_plugin.recorded.pool import load_task


@pytest.mark.parametrize("task", ["cross_entropy", "gdn_chunk_o"])
def test_recorded_kernels_are_what_their_generators_say(task: str) -> None:
    kernels = load_task(task).candidates.values()
    assert {kernel.language for kernel in kernels} == {"cuda", "triton", "pytorch"}
    assert [kernel.id for kernel in kernels if source_language(kernel.code) != kernel.language] == []


@pytest.mark.parametrize("code", ["", "x = 1\n", "# import torch\n", "triton = 'import torch'\n"])
def test_a_source_without_a_mark_is_another(code: str) -> None:
    assert source_language(code) == "other"
