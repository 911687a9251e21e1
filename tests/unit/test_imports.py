from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

import gpu_forecasters_plugin

HEAVY = {
    "gpu_forecasters_openevolve",
    "gpu_forecasters_shinka",
    "openevolve",
    "shinka",
    "torch",
    "triton",
    "vllm",
    "openai",
    "jinja2",
    "transformers",
    "sklearn",
    "scipy",
    "pandas",
    "mlflow",
    "kernel_tuner",
}
LIGHT = [
    "",
    ".gate",
    ".ledger",
    ".forecasters",
    ".forecasters.factory",
    ".forecasters.language_model.server",
    ".forecasters.language_model.local",
    ".plugins.shipped",
    ".recorded.server",
    ".compare",
    ".cli",
    ".look",
    ".doctor",
]


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def public_modules() -> list[str]:
    package = gpu_forecasters_plugin
    found = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    names = [
        name
        for name in found
        if not any(part.startswith("_") for part in name.split("."))
        and not name.startswith("gpu_forecasters_plugin.ledger.migrations.")
    ]
    return [package.__name__, *names]


def test_importing_the_package_loads_nothing_heavy() -> None:
    names = [f"gpu_forecasters_plugin{part}" for part in LIGHT]
    loaded = run(f"import sys, {', '.join(names)}\nprint(*sorted(m.partition('.')[0] for m in sys.modules))")
    assert "gpu_forecasters_plugin" in loaded.split()
    assert not HEAVY & set(loaded.split())


def test_no_import_has_side_effects_on_randomness_or_logging() -> None:
    script = (
        "import logging, random\n"
        "before = random.getstate(), logging.getLogger().handlers[:]\n"
        "import gpu_forecasters_plugin.cli, gpu_forecasters_plugin.gate\n"
        "print((random.getstate(), logging.getLogger().handlers[:]) == before)"
    )
    assert run(script).strip() == "True"


@pytest.mark.parametrize("name", public_modules())
def test_every_public_module_lists_names_that_it_has(name: str) -> None:
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", None)
    own = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", None) == name
    }
    if listed is None:
        assert not own, f"{name} defines {sorted(own)} and has no __all__"
        return
    assert len(set(listed)) == len(listed)
    assert [key for key in listed if not hasattr(module, key)] == []
    assert own & set(listed) or not own, "__all__ lists nothing that the module defines"


@pytest.mark.skipif(find_spec("openevolve") is None, reason="the extra 'openevolve' is not installed")
def test_the_openevolve_adapter_lists_names_that_it_has() -> None:
    script = (
        "import importlib, pkgutil, gpu_forecasters_openevolve as package\n"
        "names = [m.name for m in pkgutil.iter_modules(package.__path__, package.__name__ + '.')]\n"
        "for name in [package.__name__, *names]:\n"
        "    module = importlib.import_module(name)\n"
        "    missing = [key for key in module.__all__ if not hasattr(module, key)]\n"
        "    if missing: print(name, missing)"
    )
    assert run(script) == ""
