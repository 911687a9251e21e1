"""The same task recorded on two devices."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from static_profiles import H100, launch, profile

from gpu_forecasters_plugin.compare import run_comparison
from gpu_forecasters_plugin.compare.hosts import RegisteredHost
from gpu_forecasters_plugin.config import SurrogateConfig
from gpu_forecasters_plugin.errors import ConfigError, PoolFileError
from gpu_forecasters_plugin.evaluation.pairs import Pair, with_recorded_verdicts
from gpu_forecasters_plugin.hookspecs import RecordedTaskFactory
from gpu_forecasters_plugin.plugins import registry
from gpu_forecasters_plugin.plugins.registry import Origin, Registered, Registry
from gpu_forecasters_plugin.plugins.shipped import gpu_forecasters_recorded_tasks
from gpu_forecasters_plugin.recorded import shipped
from gpu_forecasters_plugin.recorded.pool import load_task, open_pool, recorded_task_names
from gpu_forecasters_plugin.recorded.profiles import pack_verdicts, recorded_verdicts, verdicts_by_key
from gpu_forecasters_plugin.recorded.shipped import name_on, recorded_names, short_device
from gpu_forecasters_plugin.screen.verdict import Status, Verdict

H200 = "NVIDIA H200"
CODES = [f"import torch\n\n\ndef run(x):\n    return x * {number}\n" for number in range(8)]


def _write_pool(path: Path, device: str, times: list[float]) -> None:
    header = {"pool": {"task": "toy", "device": device, "reference_id": "c0"}}
    rows: list[dict[str, Any]] = [
        {"id": f"c{number}", "code": code, "language": "pytorch", "outcome": "ok", "time_us": time_us}
        for number, (code, time_us) in enumerate(zip(CODES, times, strict=True))
    ]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in [header, *rows]).encode()))


@pytest.fixture
def two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A task that was measured on an H100 and on an H200, with profiles for each."""
    for kind in ("data", "profiles"):
        (tmp_path / kind).mkdir()
    slower = [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    _write_pool(tmp_path / "data" / "toy.jsonl.gz", H100, slower)
    _write_pool(tmp_path / "data" / "toy@h200.jsonl.gz", H200, [time / 2 for time in reversed(slower)])
    for name, device in (("toy", H100), ("toy@h200", H200)):
        verdicts = {f"c{number}": Verdict(Status.VALID, profile=profile(launch())) for number in range(8)}
        packed = pack_verdicts(verdicts, {"device": device})
        (tmp_path / "profiles" / f"{name}.jsonl.gz").write_bytes(packed)
    monkeypatch.setattr(shipped, "_folder", lambda kind: tmp_path / kind)
    with_toy = Registry()
    for entry in registry().entries():
        with_toy.add(entry)
    for factory in gpu_forecasters_recorded_tasks():
        with_toy.add(Registered(factory, Origin("shipped", "gpu-forecasters-plugin", "1", shipped=True)))
    monkeypatch.setattr("gpu_forecasters_plugin.plugins.registry", lambda: with_toy)
    recorded_verdicts.cache_clear()
    yield tmp_path
    recorded_verdicts.cache_clear()


@pytest.mark.parametrize(
    ("device", "short"),
    [
        (H100, "h100"),
        (H200, "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("Voodoo 2", "voodoo-2"),
        ("h200", "h200"),
    ],
)
def test_a_device_has_a_short_name(device: str, short: str) -> None:
    assert short_device(device) == short


@pytest.mark.usefixtures("two_devices")
def test_a_bare_name_means_what_it_meant_and_a_device_chooses_another_file() -> None:
    assert recorded_task_names() == ("toy",)
    assert recorded_names() == ("toy", "toy@h200")
    assert (open_pool("toy").device, open_pool("toy").best_id) == (H100, "c7")
    other = open_pool("toy@h200")
    assert (other.task, other.device, other.best_speedup) == ("toy", H200, 1.0)
    assert other.source == "toy@h200"  # by which another process finds it again
    assert open_pool("toy@h100").source == load_task("toy@h100").source == "toy"


@pytest.mark.usefixtures("two_devices")
def test_a_device_that_a_task_was_not_measured_on_is_refused_with_those_that_it_was() -> None:
    with pytest.raises(PoolFileError, match=r"'toy' was not measured on 'b200'; it was on: h100, h200"):
        load_task("toy@b200")
    with pytest.raises(PoolFileError, match=r"'toy' was not measured on 'h201'; it was on: h100, h200"):
        open_pool("toy@h201")


@pytest.mark.usefixtures("two_devices")
def test_the_list_of_tasks_shows_the_devices() -> None:
    listed = {factory.name: factory.summary for factory in gpu_forecasters_recorded_tasks()}
    assert listed == {"toy": f"measured on {H100}", "toy@h200": f"measured on {H200}"}


def test_a_plugins_task_may_have_a_device_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = load_task("softmax")
    tasks = Registry()
    factory = RecordedTaskFactory("softmax@b200", lambda: replace(pool, device="NVIDIA B200"))
    tasks.add(Registered(factory, Origin("mine", "mine", "1")))
    monkeypatch.setattr("gpu_forecasters_plugin.plugins.registry", lambda: tasks)
    assert open_pool("softmax@b200").label == "softmax@b200"


@pytest.mark.usefixtures("two_devices")
def test_profiles_are_those_of_the_device() -> None:
    def reference_time(name: str) -> float | None:
        found = verdicts_by_key(load_task(name))[load_task(name).reference.key].profile
        return None if found is None else found.roofline_us

    slower, faster = reference_time("toy"), reference_time("toy@h200")
    assert slower is not None and faster is not None and faster < slower
    assert recorded_verdicts("toy@h100") == recorded_verdicts("toy") != recorded_verdicts("toy@h200")
    assert name_on("toy", "NVIDIA B200") == name_on("toy", H100) == "toy"


@pytest.mark.usefixtures("two_devices")
def test_measured_pairs_get_the_verdicts_of_their_own_device() -> None:
    pool = load_task("toy")
    pairs = [
        Pair(device, "toy", device, pool.reference.code, CODES[3], pool.candidates["c3"].key, 1.0)
        for device in (H100, H200, "")
    ]
    on_h100, on_h200, anywhere = with_recorded_verdicts(pairs)
    assert on_h100.verdict == recorded_verdicts("toy")["c3"] == anywhere.verdict
    assert on_h200.verdict == recorded_verdicts("toy@h200")["c3"] != on_h100.verdict


def _in_this_process(
    host: str, source: str, searches: list[Any], budget: int, folder: Path, on_finished: Any
) -> None:
    for arm, seed in searches:
        on_finished(RegisteredHost(host).run(open_pool(source), arm, seed, budget, folder, lambda done: None))


@pytest.mark.usefixtures("two_devices")
def test_a_comparison_runs_on_the_device_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this process, which knows the made-up task.
    monkeypatch.setattr("gpu_forecasters_plugin.compare.runner.run_searches", _in_this_process)
    setting: dict[str, Any] = {"host": "inprocess", "budget": 6, "seeds": 1, "arms": ["baseline"]}
    setting |= {"surrogate": SurrogateConfig(), "out": tmp_path / "cmp"}
    summary = run_comparison("toy@h200", **setting)
    assert (summary["task"], summary["device"]) == ("toy@h200", H200)
    with pytest.raises(ConfigError, match="with task 'toy@h200' instead of 'toy'"):
        run_comparison("toy@h100", **setting)
