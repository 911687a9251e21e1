"""Checks of this machine: host, GPU, ledger."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy.engine import URL

from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.device import UNKNOWN_DEVICE, detect_device
from gpu_forecasters_plugin.doctor._base import CheckResult, Status
from gpu_forecasters_plugin.errors import HostError, LedgerError, MissingExtraError
from gpu_forecasters_plugin.ledger.engine import open_engine
from gpu_forecasters_plugin.ledger.locating import LEDGER_FILE, resolve_url
from gpu_forecasters_plugin.ledger.read_only import ledger_revision
from gpu_forecasters_plugin.ledger.schema import head_revision

__all__ = ["check_gpu", "check_ledger", "check_openevolve"]


def check_openevolve() -> CheckResult:
    """Whether the host is installed, and in a version that the adapter works with."""
    name = "openevolve"
    if find_spec("openevolve") is None:
        advice = "pip install 'gpu-forecasters-plugin[openevolve]'"
        return CheckResult(name, Status.FAIL, "OpenEvolve is not installed", advice)
    from gpu_forecasters_openevolve.population import SUPPORTED_VERSIONS, hooked_method

    found = f"OpenEvolve {version('openevolve')}"
    try:
        hooked_method()
    except HostError as error:
        return CheckResult(name, Status.FAIL, str(error), f"install OpenEvolve {SUPPORTED_VERSIONS}")
    return CheckResult(name, Status.OK, f"{found}, with the hook that the filter needs")


def check_gpu(config: SurrogateConfig) -> CheckResult:
    """Whether forecasts and ledger will know which GPU measures."""
    name, found = "gpu", detect_device()
    seen = f"{found.name}, driver {found.driver}"
    if found.name == UNKNOWN_DEVICE:
        has_program = shutil.which("nvidia-smi") is not None
        seen = "nvidia-smi lists no GPU" if has_program else "there is no nvidia-smi here"
    if config.device != "auto":
        return CheckResult(name, Status.OK, f"device is set to {config.device!r}; {seen}")
    if found.name == UNKNOWN_DEVICE:
        advice = "where another machine measures, write its GPU's name: surrogate.device: NAME"
        return CheckResult(name, Status.WARN, f"{seen}: forecasts would not know the hardware", advice)
    return CheckResult(name, Status.OK, seen)


def check_ledger(config: SurrogateConfig) -> CheckResult:
    """Whether the ledger can be opened and written; a ledger that is there is not changed, nor upgraded."""
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-forecasters-") as folder:
            url = resolve_url(config.ledger or LEDGER_FILE, base=Path(folder))
            is_file = url.get_backend_name() == "sqlite"
            if is_file and Path(str(url.database)).is_relative_to(folder):
                return _tried_in(Path(folder), Path(str(url.database)))
        if is_file and not Path(str(url.database)).exists():
            return _new_file(Path(str(url.database)))
        if is_file:
            _try_write_lock(url)
        return _judged(ledger_revision(url), url.render_as_string())
    except (LedgerError, MissingExtraError) as error:
        return CheckResult("ledger", Status.FAIL, str(error), "mend surrogate.ledger")


def _tried_in(folder: Path, path: Path) -> CheckResult:
    """Of a ledger in the run's folder, which nobody knows yet: whether one can be made at all."""
    open_engine(path).dispose()
    seen = f"{path.relative_to(folder)} in the run's folder, revision {head_revision()}; tried in a temporary one"
    return CheckResult("ledger", Status.OK, seen)


def _new_file(path: Path) -> CheckResult:
    folder = next(parent for parent in path.parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        seen = f"{path} is not there, and {folder} cannot be written"
        return CheckResult("ledger", Status.FAIL, seen, "make it writable, or set surrogate.ledger")
    return CheckResult("ledger", Status.OK, f"{path} will be created, revision {head_revision()}")


def _try_write_lock(url: URL) -> None:
    try:
        with closing(sqlite3.connect(str(url.database), isolation_level=None, timeout=2.0)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise LedgerError(f"ledger {url.database} cannot be written: {error}") from None


def _judged(revision: str | None, shown: str) -> CheckResult:
    name, head = "ledger", head_revision()
    if revision is None:
        return CheckResult(name, Status.OK, f"{shown} holds no ledger yet; a run makes one, revision {head}")
    if revision == head:
        return CheckResult(name, Status.OK, f"{shown}, revision {revision}")
    if revision > head:
        seen = f"{shown} has revision {revision}, which this version does not know"
        return CheckResult(name, Status.FAIL, seen, "upgrade gpu-forecasters-plugin")
    seen = (
        f"{shown} has revision {revision}; a run upgrades it to {head}, and older versions cannot use it then"
    )
    advice = "of a file a copy is kept beside it; of a PostgreSQL database, make one first"
    return CheckResult(name, Status.WARN, seen, advice)
