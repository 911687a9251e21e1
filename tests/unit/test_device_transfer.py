"""How what was measured on one device carries over to another, on made-up times."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import device_transfer
from gpu_forecasters_plugin.recorded import shipped
from gpu_forecasters_plugin.recorded.pool import load_task
from gpu_forecasters_plugin.recorded.profiles import recorded_verdicts

TASK = "fp8_quant"


@pytest.fixture
def two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A recorded task, and the same on a device that is 1.5 times as fast, where one kernel of its own is the best."""
    rows = [json.loads(line) for line in gzip.decompress(shipped.pool_file(TASK).read_bytes()).splitlines()]
    profiles = shipped.profiles_file(TASK).read_bytes()
    ok = [row for row in rows[1:] if row["outcome"] == "ok" and row["id"] != rows[0]["pool"]["reference_id"]]
    fastest = min(row["time_us"] for row in ok)
    other = [dict(row) for row in rows]
    other[0] = {"pool": rows[0]["pool"] | {"device": "NVIDIA H200"}}
    for row in other[1:]:
        if row["outcome"] == "ok":
            row["time_us"] = fastest / 3 if row["id"] == ok[0]["id"] else row["time_us"] / 1.5
    failed = next(row for row in other[1:] if row["id"] == ok[1]["id"])
    failed |= {"outcome": "runtime_error", "time_us": None}
    for kind in ("data", "profiles"):
        (tmp_path / kind).mkdir()
    for name, content in ((TASK, rows), (f"{TASK}@h200", other)):
        text = "".join(json.dumps(row) + "\n" for row in content)
        (tmp_path / "data" / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        (tmp_path / "profiles" / f"{name}.jsonl.gz").write_bytes(profiles)
    monkeypatch.setattr(shipped, "_folder", lambda kind: tmp_path / kind)
    recorded_verdicts.cache_clear()
    yield tmp_path
    recorded_verdicts.cache_clear()


@pytest.mark.usefixtures("two_devices")
def test_devices_agree_but_on_one_kernel_and_one_failure() -> None:
    assert device_transfer.pairs_of_devices() == [(TASK, f"{TASK}@h200")]
    one, other = load_task(TASK), load_task(f"{TASK}@h200")
    found = device_transfer.agreement(one, other)
    sound = found["sound_on_both"]
    assert found["same_outcome"] == pytest.approx(1 - 1 / found["sources"])
    assert found["same_bin"] == pytest.approx(1 - 1 / sound)
    assert 0.9 < found["spearman"] < 1.0
    assert found["median_abs_log2"] == pytest.approx(0.0, abs=1e-9)
    assert found["best_of_first_on_second"] == pytest.approx(0.5)
    assert 0.0 < found["best_of_second_on_first"] < 1.0


@pytest.mark.usefixtures("two_devices")
def test_forecasts_are_scored_for_each_device_learned_from_and_asked_about() -> None:
    rows = device_transfer.transfer(load_task(TASK), load_task(f"{TASK}@h200"), seeds=1)
    assert [(row["learned_on"], row["asked_on"]) for row in rows] == [
        (None, "h100"),
        ("h100", "h100"),
        ("h200", "h100"),
        (None, "h200"),
        ("h100", "h200"),
        ("h200", "h200"),
    ]
    nowhere, here, elsewhere = (row["spearman"] for row in rows[3:6])
    # All times but one differ by the same factor, which a speed-up does not have in it.
    assert here == pytest.approx(elsewhere, abs=0.1)
    assert min(here, elsewhere) > max(nowhere, 0.4)
    assert "| h200 | nowhere |" in device_transfer.table([_row(rows)], 1)


def _row(forecasts: list[dict[str, object]]) -> dict[str, object]:
    one, other = load_task(TASK), load_task(f"{TASK}@h200")
    head = {"devices": [one.device, other.device], "task": TASK, "forecasts": forecasts}
    return head | device_transfer.agreement(one, other)


def test_without_a_second_device_there_is_nothing_to_compare(
    two_devices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (two_devices / "data" / f"{TASK}@h200.jsonl.gz").unlink()
    with pytest.raises(SystemExit) as ended:
        device_transfer.main([])
    assert ended.value.code == 2
    assert "measured on two devices" in capsys.readouterr().err
