"""``gpu-forecasters doctor`` as a user finds it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from helpers import Command

from gpu_forecasters_plugin.config import SurrogateConfig, parse_surrogate_config
from gpu_forecasters_plugin.doctor import Status, machine
from gpu_forecasters_plugin.doctor._base import CheckResult, bounded
from gpu_forecasters_plugin.doctor.forecasters import check_forecaster, check_hardware
from gpu_forecasters_plugin.ledger.schema import head_revision

SAVED_LEDGERS = Path(__file__).resolve().parents[1] / "data"


def write_config(folder: Path, section: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(f"surrogate: {section}\n")
    return path


def checks(folder: Path) -> dict[str, Any]:
    """Each check of the summary by name."""
    return {check["name"]: check for check in json.loads((folder / "summary.json").read_text())["checks"]}


def test_without_a_configuration_the_defaults_are_examined(gpu_forecasters: Command, tmp_path: Path) -> None:
    said = gpu_forecasters("doctor", "--out", tmp_path)
    assert said.code == 0 and said.err == ""
    found = checks(tmp_path)
    assert list(found) == ["config", "openevolve", "gpu", "ledger", "forecaster"]
    assert (
        found["forecaster"]["status"] == "ok" and "forecasts a sample kernel" in found["forecaster"]["seen"]
    )
    assert head_revision() in found["ledger"]["seen"]
    assert all(name in said.out for name in found)


def test_a_wrong_configuration_fails_and_says_what_would_be_right(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    said = gpu_forecasters("doctor", "--config", write_config(tmp_path, "{oversampel: 4}"), "--out", tmp_path)
    assert said.code == 1
    assert checks(tmp_path)["config"]["status"] == "fail" and "did you mean 'oversample'?" in said.out


def test_a_configuration_without_the_section_is_a_warning(gpu_forecasters: Command, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("max_iterations: 10\n")
    said = gpu_forecasters("doctor", "--config", tmp_path / "config.yaml", "--out", tmp_path)
    assert said.code == 0 and checks(tmp_path)["config"]["status"] == "warn"


def test_a_forecaster_that_cannot_be_built_fails(gpu_forecasters: Command, tmp_path: Path) -> None:
    config = write_config(tmp_path, "{forecaster: {kind: replay, path: missing.jsonl}}")
    said = gpu_forecasters("doctor", "--config", config, "--out", tmp_path)
    assert said.code == 1
    assert "missing.jsonl" in checks(tmp_path)["forecaster"]["seen"]


@pytest.mark.parametrize(("policy", "status"), [("skip", Status.OK), ("off", Status.FAIL)])
def test_roofline_needs_the_screen_and_not_the_sample_kernels(policy: str, status: Status) -> None:
    section = {"forecaster": {"kind": "roofline"}, "screen": {"policy": policy}}
    assert check_forecaster(parse_surrogate_config(section)).status is status


def test_an_endpoint_that_is_not_there_is_named_once_in_its_line(
    gpu_forecasters: Command, tmp_path: Path
) -> None:
    url = "http://127.0.0.1:9/v1"
    config = write_config(tmp_path, f"{{forecaster: {{kind: openai_server, base_url: '{url}', model: m}}}}")
    said = gpu_forecasters("doctor", "--config", config)
    assert said.code == 1
    assert f"unreachable: {url}: " in said.out and f"{url}: unreachable" not in said.out


def test_a_gpu_that_is_not_known_is_not_looked_up_by_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no nvidia-smi
    found = check_hardware(SurrogateConfig())
    assert found.status is Status.WARN and found.seen.endswith("no GPU is known")
    assert check_hardware(SurrogateConfig(device="Voodoo 2")).seen == "nothing is known of 'Voodoo 2'"


def test_a_host_that_is_not_installed_or_not_supported_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from openevolve.database import ProgramDatabase

    assert machine.check_openevolve().status is Status.OK
    monkeypatch.setattr(ProgramDatabase, "add", lambda self: None)
    other = machine.check_openevolve()
    assert other.status is Status.FAIL and other.advice.startswith("install OpenEvolve 0.4.1")
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    missing = machine.check_openevolve()
    assert missing.status is Status.FAIL and "gpu-forecasters-plugin[openevolve]" in missing.advice


@pytest.mark.parametrize(
    ("script", "device", "status", "seen"),
    [
        ("echo 'NVIDIA H100, 580.1'", "auto", "ok", "NVIDIA H100, driver 580.1"),
        ("exit 9", "auto", "warn", "nvidia-smi lists no GPU"),
        (None, "auto", "warn", "there is no nvidia-smi here"),
        (None, "H200", "ok", "device is set to 'H200'"),
    ],
)
def test_the_gpu_is_what_nvidia_smi_says_or_what_is_configured(
    gpu_forecasters: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    script: str | None,
    device: str,
    status: str,
    seen: str,
) -> None:
    if script is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    gpu_forecasters(
        "doctor",
        "--config",
        write_config(tmp_path, f"{{device: {device}, forecaster: {{kind: climatology}}}}"),
        "--out",
        tmp_path,
    )
    found = checks(tmp_path)["gpu"]
    assert found["status"] == status and seen in found["seen"]


def examine_ledger(gpu_forecasters: Command, folder: Path, target: str | Path) -> tuple[int, Any]:
    section = {"ledger": str(target), "forecaster": {"kind": "climatology"}}  # it answers at once
    config = write_config(folder, json.dumps(section))
    said = gpu_forecasters("doctor", "--config", config, "--out", folder)
    return said.code, checks(folder)["ledger"]


def test_an_older_ledger_is_reported_and_left_as_it_is(gpu_forecasters: Command, tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite3"
    shutil.copyfile(SAVED_LEDGERS / "ledger_0002.sqlite3", path)
    before = path.read_bytes()
    code, found = examine_ledger(gpu_forecasters, tmp_path, path)
    assert code == 0 and found["status"] == "warn"
    assert f"has revision 0002; a run upgrades it to {head_revision()}" in found["seen"]
    assert path.read_bytes() == before


def test_a_ledger_of_a_newer_version_fails(
    gpu_forecasters: Command, empty_ledger: Path, tmp_path: Path
) -> None:
    path = tmp_path / "newer.sqlite3"
    shutil.copyfile(empty_ledger, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    code, found = examine_ledger(gpu_forecasters, tmp_path, path)
    assert code == 1 and "9999, which this version does not know" in found["seen"]


def test_a_ledger_that_is_not_there_yet_is_not_made(gpu_forecasters: Command, tmp_path: Path) -> None:
    code, found = examine_ledger(gpu_forecasters, tmp_path, tmp_path / "new" / "ledger.sqlite3")
    assert code == 0 and "will be created" in found["seen"] and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (b"no database, but text that is long enough for one" * 40, "file is not a database"),
        (None, "cannot be"),
    ],
)
def test_a_ledger_that_cannot_be_opened_fails(
    gpu_forecasters: Command, tmp_path: Path, content: bytes | None, seen: str
) -> None:
    path = tmp_path / "ledger"
    path.mkdir() if content is None else path.write_bytes(content)
    code, found = examine_ledger(gpu_forecasters, tmp_path, path)
    assert code == 1 and found["status"] == "fail" and seen in found["seen"]


def test_a_database_password_is_never_shown(gpu_forecasters: Command, tmp_path: Path) -> None:
    config = write_config(tmp_path, "{ledger: 'postgresql+psycopg://me:hush-hush@127.0.0.1:1/db'}")
    said = gpu_forecasters("doctor", "--config", config, "--out", tmp_path)
    assert said.code == 1
    assert "hush-hush" not in said.out + said.err + (tmp_path / "summary.json").read_text()


def test_a_check_that_hangs_is_left_behind_at_its_deadline() -> None:
    never = threading.Event()

    def hang() -> CheckResult:
        never.wait()
        return CheckResult("patience", Status.OK, "")

    found = bounded("patience", hang, 0.05)
    never.set()
    assert found.status is Status.FAIL and found.hung and found.seen == "no answer in 0.05 s"


def test_a_check_that_raises_is_a_finding() -> None:
    def broken() -> CheckResult:
        raise RuntimeError("boom\nbang")

    found = bounded("luck", broken, 10.0)
    assert found.status is Status.FAIL and found.seen == "RuntimeError: boom bang"
