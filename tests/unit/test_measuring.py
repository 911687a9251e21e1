from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpu_forecasters_plugin.config import MetricConfig
from gpu_forecasters_plugin.decision import FAILURES, Measurement, Outcome
from gpu_forecasters_plugin.measuring import (
    LONGEST_PAYLOAD,
    EvaluatorAnswer,
    MetricReader,
    answers_in,
    parts_of,
    payload_of,
)

NAN, INF = float("nan"), float("inf")


def read(raw: Any, reference: float | None = None, **metric: Any) -> Measurement:
    return MetricReader(MetricConfig(**metric), reference).read(raw, 2.5)


@pytest.fixture
def coroutine() -> Iterator[Any]:
    async def evaluate() -> dict[str, float]:
        return {"combined_score": 1.0}

    made = evaluate()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        ({"combined_score": NAN}, Outcome.IMPLAUSIBLE),
        ({"combined_score": INF}, Outcome.IMPLAUSIBLE),
        ({"combined_score": -INF}, Outcome.IMPLAUSIBLE),
        ({"combined_score": None}, Outcome.IMPLAUSIBLE),
        ({"combined_score": "fast"}, Outcome.IMPLAUSIBLE),
        ({"combined_score": "1.5"}, Outcome.IMPLAUSIBLE),
        ({"combined_score": True}, Outcome.IMPLAUSIBLE),
        ({"combined_score": [1.0]}, Outcome.IMPLAUSIBLE),
        ({"combined_score": 1j}, Outcome.IMPLAUSIBLE),
        ({"combined_score": 10**400}, Outcome.IMPLAUSIBLE),
        ({"combined_score": 0.0}, Outcome.INCORRECT),
        ({"combined_score": -2.0}, Outcome.INCORRECT),
        ({"accuracy": 0.9}, Outcome.IMPLAUSIBLE),
        ({"time_us": 0}, Outcome.IMPLAUSIBLE),
        ({"time_us": 1e-12}, Outcome.IMPLAUSIBLE),
        ({"runtime_ms": 1e-12}, Outcome.IMPLAUSIBLE),
        ({"time": 1e-12}, Outcome.IMPLAUSIBLE),
        ({"time_us": -3.0}, Outcome.IMPLAUSIBLE),
        ({"combined_score": 2.0, "time_us": 0}, Outcome.IMPLAUSIBLE),
        ({"speedup": 2.0, "time_us": 1e-12}, Outcome.IMPLAUSIBLE),
        ({"correct": True, "combined_score": 1.0, "max_error": NAN}, Outcome.IMPLAUSIBLE),
        ({"correct": True, "combined_score": 1.0, "error": NAN}, Outcome.IMPLAUSIBLE),
        ({"correct": True, "combined_score": 1.0, "max_error": np.float32(NAN)}, Outcome.IMPLAUSIBLE),
        ({"correct": NAN, "combined_score": 1.0}, Outcome.IMPLAUSIBLE),
        ({"correct": None, "combined_score": 1.0}, Outcome.IMPLAUSIBLE),
        ({"correct": "no", "combined_score": 1.0}, Outcome.IMPLAUSIBLE),
        ({"correct": np.array([1.0, 0.0]), "combined_score": 1.0}, Outcome.IMPLAUSIBLE),
        ({"correct": np.array([]), "combined_score": 1.0}, Outcome.IMPLAUSIBLE),
        ({"correct": np.array([0.0]), "combined_score": 1.0}, Outcome.INCORRECT),
        ({"correct": np.array([NAN]), "combined_score": 1.0}, Outcome.IMPLAUSIBLE),
        ({"combined_score": np.ones((2, 2))}, Outcome.IMPLAUSIBLE),
        ({"combined_score": np.array([NAN])}, Outcome.IMPLAUSIBLE),
        ({"outcome": np.array(["incorrect", "timeout"])}, Outcome.IMPLAUSIBLE),
        ({"correct": False, "combined_score": 1.0}, Outcome.INCORRECT),
        ({"correct": 0.5, "combined_score": 1.0}, Outcome.INCORRECT),
        ({"passed": np.bool_(False), "time_us": 3.0}, Outcome.INCORRECT),
        ({"error": "nvcc failed with exit code 1", "combined_score": 0.0}, Outcome.COMPILE_ERROR),
        ({"error": "CUDA error: an illegal memory access", "combined_score": 1.0}, Outcome.RUNTIME_ERROR),
        ({"error": 0.0}, Outcome.RUNTIME_ERROR),
        ({"timeout": True, "error": 0.0}, Outcome.TIMEOUT),
        ({}, Outcome.RUNTIME_ERROR),
        (NAN, Outcome.RUNTIME_ERROR),
        (INF, Outcome.RUNTIME_ERROR),
        ("fast", Outcome.RUNTIME_ERROR),
        (None, Outcome.RUNTIME_ERROR),
        (True, Outcome.RUNTIME_ERROR),
        (1.5, Outcome.RUNTIME_ERROR),
        ([{"combined_score": 1.0}], Outcome.RUNTIME_ERROR),
    ],
    ids=repr,
)
def test_whatever_is_no_time_of_a_correct_kernel_is_a_typed_failure(raw: Any, outcome: Outcome) -> None:
    measurement = read(raw, reference=1.0)
    assert measurement.outcome is outcome
    assert measurement.error and "\n" not in measurement.error
    assert (measurement.speedup, measurement.time_us) == (None, None)
    assert measurement.gpu_seconds == 2.5


def test_a_coroutine_that_nobody_awaited_is_a_failure(coroutine: Any) -> None:
    measurement = read(coroutine)
    assert measurement.outcome is Outcome.RUNTIME_ERROR and "coroutine" in (measurement.error or "")


@pytest.mark.parametrize("outcome", sorted(FAILURES))
@pytest.mark.parametrize("place", ["metrics", "artifacts"])
def test_an_outcome_that_the_evaluator_names_is_taken(outcome: Outcome, place: str) -> None:
    parts = {"metrics": {"combined_score": 3.0}, "artifacts": {}}
    parts[place]["outcome"] = str(outcome)
    assert read(SimpleNamespace(**parts), 1.0).outcome is outcome


def test_an_unknown_outcome_text_says_nothing() -> None:
    assert read({"outcome": "fine", "combined_score": 3.0}, 1.0).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("raw", "reference", "speedup", "time_us"),
    [
        ({"speedup": 3.0}, 2.0, 1.5, None),
        ({"combined_score": 3.0}, 2.0, 1.5, None),
        ({"combined_score": 3.0, "time_us": 40.0}, 80.0, 2.0, 40.0),
        ({"time_us": 40.0}, 80.0, 2.0, 40.0),
        ({"runtime_ms": 0.04}, 0.08, 2.0, 40.0),
        ({"latency": 4e-5}, 8e-5, 2.0, 40.0),
        ({"combined_score": np.float32(3.0), "correct": np.bool_(True)}, 2.0, 1.5, None),
        ({"combined_score": 3, "correct": 1}, 2.0, 1.5, None),
        ({"combined_score": np.array([3.0]), "correct": np.array([1.0])}, 2.0, 1.5, None),
        ({"combined_score": np.array(3.0), "correct": np.array([[True]])}, 2.0, 1.5, None),
    ],
)
def test_times_and_scores_are_read_relative_to_the_reference(
    raw: Any, reference: float, speedup: float, time_us: float | None
) -> None:
    measurement = read(raw, reference)
    assert measurement.outcome is Outcome.OK and measurement.speedup == pytest.approx(speedup)
    assert measurement.time_us == (None if time_us is None else pytest.approx(time_us))


def test_the_reference_itself_has_a_speedup_of_one() -> None:
    measurement = read({"runtime_ms": 0.5})
    assert (measurement.speedup, measurement.value, measurement.time_us) == (1.0, 0.5, 500.0)


def test_a_slow_kernel_is_slow_and_no_failure() -> None:
    measurement = read({"time_us": 1e9}, 10.0)
    assert measurement.outcome is Outcome.OK and measurement.speedup == pytest.approx(1e-8)


@pytest.mark.parametrize(("score", "limit"), [(1001.0, 1000.0), (11.0, 10.0), (1e308, 1000.0)])
def test_a_speedup_beyond_the_limit_is_implausible(score: float, limit: float) -> None:
    assert read({"combined_score": score}, 1.0, max_speedup=limit).outcome is Outcome.IMPLAUSIBLE
    assert read({"combined_score": limit}, 1.0, max_speedup=limit).outcome is Outcome.OK


def test_a_ratio_that_is_no_float_is_implausible() -> None:
    assert read({"combined_score": 1e300}, 1e-300).outcome is Outcome.IMPLAUSIBLE
    assert read({"combined_score": 1e-300}, 1e300).outcome is Outcome.IMPLAUSIBLE


def test_the_metric_to_read_can_be_named() -> None:
    raw = {"combined_score": 9.0, "p50": 20.0, "tflops": 3.0, "ok": False}
    assert read(raw, 40.0, name="p50", kind="time_us").speedup == 2.0
    assert read(raw, 1.5, name="tflops").speedup == 2.0
    assert read(raw, 1.0, correct="ok").outcome is Outcome.INCORRECT
    missing = read(raw, 1.0, name="p99")
    assert missing.outcome is Outcome.IMPLAUSIBLE and "p99" in (missing.error or "")


def test_a_kind_without_a_name_narrows_the_search() -> None:
    assert read({"combined_score": 9.0, "time_ms": 2.0}, 3.0, kind="score").speedup == 3.0


def test_the_shortest_plausible_time_is_set_in_config() -> None:
    assert read({"time_us": 0.5}, 1.0, min_time_us=1.0).outcome is Outcome.IMPLAUSIBLE
    assert read({"time_us": 0.5}, 1.0, min_time_us=0.0).outcome is Outcome.OK
    assert read({"time_us": 0.0}, 1.0, min_time_us=0.0).outcome is Outcome.IMPLAUSIBLE


def test_the_message_is_the_last_line_of_what_the_evaluator_said() -> None:
    raw = {"error": "Traceback (most recent call last):\n  ...\nRuntimeError: out of shared memory\n"}
    assert read(raw).error == "RuntimeError: out of shared memory"
    stderr = SimpleNamespace(metrics={"correct": 0.0}, artifacts={"stderr": b"row 3 \xff differs"})
    assert read(stderr).error == "row 3 \ufffd differs"


def test_metrics_are_found_in_dicts_and_in_results_with_artifacts() -> None:
    assert parts_of({"a": 1}) == EvaluatorAnswer({"a": 1}, {})
    assert parts_of(SimpleNamespace(metrics={"a": 1}, artifacts={"b": "c"})) == EvaluatorAnswer(
        {"a": 1}, {"b": "c"}
    )
    assert parts_of(SimpleNamespace(metrics={"a": 1}, artifacts=None)) == EvaluatorAnswer({"a": 1}, {})
    assert parts_of(SimpleNamespace(metrics=[1])) is None


def test_a_payload_gives_back_each_stages_answer() -> None:
    answers = {
        "evaluate_stage1": EvaluatorAnswer(
            {"a": 1.5, "b": True, "c": None}, {"log": "x\ud800\x00", "raw": b"\xff"}
        ),
        "evaluate_stage2": EvaluatorAnswer({"d": INF}, {}),
    }
    assert answers_in(payload_of(answers)) == answers
    assert answers_in(None) == {}


def test_what_json_cannot_hold_is_kept_as_text() -> None:
    payload = payload_of({"evaluate": EvaluatorAnswer({"x": np.float64(1.5), 3: {1}}, {})})  # type: ignore[dict-item]
    metrics = answers_in(payload)["evaluate"].metrics
    assert metrics["x"] == 1.5 and metrics["3"] == "{1}"
    assert not math.isnan(metrics["x"])


def test_metrics_that_are_arrays_of_one_number_become_that_number() -> None:
    several = np.array([1.0, 2.0])
    answer = parts_of({"a": np.float32(1.5), "b": np.array([2.0]), "c": np.bool_(True), "d": several})
    assert answer is not None and answer.metrics["d"] is several
    found = [answer.metrics[name] for name in "abc"]
    assert found == [1.5, 2.0, True] and [type(value) for value in found] == [float, float, bool]


def test_long_artifacts_are_cut_with_a_mark_and_short_ones_are_whole() -> None:
    log, dump = "\u00e4" * 30_000_000, b"\x00" * 5_000_000
    answer = EvaluatorAnswer({"combined_score": 1.5}, {"log": log, "dump": dump, "note": "x" * 1000})
    payload = payload_of({"evaluate_stage1": answer, "evaluate_stage2": answer})
    assert len(payload) <= LONGEST_PAYLOAD
    kept = answers_in(payload)["evaluate_stage2"]
    assert kept.metrics == {"combined_score": 1.5} and kept.artifacts["note"] == "x" * 1000
    start, _, rest = kept.artifacts["log"].partition("[")
    assert log.startswith(start) and rest == f"gpu-forecasters: {30_000_000 - len(start):,} characters cut]"
    start, _, rest = kept.artifacts["dump"].partition(b"[")
    assert (
        dump.startswith(start) and rest == f"gpu-forecasters: {5_000_000 - len(start):,} bytes cut]".encode()
    )


def test_more_artifacts_than_can_be_kept_are_left_out_with_a_mark() -> None:
    answer = EvaluatorAnswer({"combined_score": 1.5}, {f"line {i}": "x" * 100 for i in range(20_000)})
    payload = payload_of({"evaluate": answer})
    assert len(payload) <= LONGEST_PAYLOAD
    kept = answers_in(payload)["evaluate"]
    assert kept == EvaluatorAnswer(
        {"combined_score": 1.5}, {"surrogate_cut": "[gpu-forecasters: 20,000 artifacts cut]"}
    )
