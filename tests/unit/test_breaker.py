from __future__ import annotations

import logging

import pytest

from gpu_forecasters_plugin.breaker import OutageBreaker


def fail(breaker: OutageBreaker, times: int) -> None:
    for _ in range(times):
        breaker.record(answered=False, detail="unreachable: refused")


def test_two_bad_pools_are_tolerated_and_the_third_pauses() -> None:
    breaker = OutageBreaker()
    fail(breaker, 2)
    assert not breaker.open
    fail(breaker, 1)
    assert breaker.open


def test_pauses_double_up_to_sixteen_pools() -> None:
    breaker = OutageBreaker()
    fail(breaker, 2)
    pauses = []
    for _ in range(7):
        fail(breaker, 1)
        pauses.append(0)
        while breaker.open:
            breaker.skipped()
            pauses[-1] += 1
    assert pauses == [1, 2, 4, 8, 16, 16, 16]


def test_an_outage_and_its_end_are_each_said_once(caplog: pytest.LogCaptureFixture) -> None:
    breaker = OutageBreaker()
    fail(breaker, 9)
    breaker.record(answered=True)
    breaker.record(answered=True)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
    assert "unreachable: refused" in caplog.text


def test_one_forecast_closes_it() -> None:
    breaker = OutageBreaker()
    fail(breaker, 4)
    breaker.record(answered=True)
    assert not breaker.open
    fail(breaker, 2)
    assert not breaker.open
