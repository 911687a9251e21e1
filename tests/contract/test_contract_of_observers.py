"""The observers that ship keep the contract, and no observer touches a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_forecasters_plugin.observers import Observer
from gpu_forecasters_plugin.observers.jsonl import JsonLinesObserver
from gpu_forecasters_plugin.testing import ObserverContract


class TestJsonLines(ObserverContract):
    @pytest.fixture
    def observer(self, tmp_path: Path) -> Observer:
        return JsonLinesObserver(str(tmp_path / "events.jsonl"))
