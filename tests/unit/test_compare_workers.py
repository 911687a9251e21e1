from __future__ import annotations

import subprocess
import sys

_SEARCH_THAT_WARNS = """
import logging
from types import SimpleNamespace
from gpu_forecasters_plugin.compare import workers
workers._pool = workers._host = SimpleNamespace(run=lambda *search: logging.getLogger("gate").warning("odd"))
for seed in (3, 4):
    workers._run(SimpleNamespace(name="surrogate"), seed, 1, None)
"""


def test_what_a_search_warns_of_names_its_arm_and_seed() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _SEARCH_THAT_WARNS], capture_output=True, text=True, check=True
    )
    assert said.stderr == "surrogate, seed 3: odd\nsurrogate, seed 4: odd\n"
