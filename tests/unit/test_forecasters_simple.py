"""Climatology, random, oracle, inverted, replay and scripted forecasters."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path

import pytest

from gpu_forecasters_plugin.bins import BINS
from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.config import load_surrogate_config, parse_surrogate_config
from gpu_forecasters_plugin.errors import ConfigError, ForecasterError
from gpu_forecasters_plugin.forecast import FailureKind, Forecast, ForecastFailure, Observation, Query
from gpu_forecasters_plugin.forecasters import (
    ClimatologyForecaster,
    Forecaster,
    InvertedForecaster,
    OracleForecaster,
    RandomForecaster,
    ReplayForecaster,
    ScriptedForecaster,
)
from gpu_forecasters_plugin.forecasters.climatology import PRIOR
from gpu_forecasters_plugin.forecasters.factory import build_forecaster

REFERENCE = "BLOCK = 1\n"


def query(key: str, anchor_speedup: float = 1.0) -> Query:
    return Query(key, f"BLOCK = {key!r}\n", REFERENCE, REFERENCE, anchor_speedup)


def observation(key: str, speedup: float) -> Observation:
    return Observation(key, f"BLOCK = {key!r}\n", speedup)


def only(forecaster: Forecaster, asked: Query) -> Forecast:
    (outcome,) = forecaster.forecast([asked])
    assert isinstance(outcome, Forecast)
    return outcome


def test_climatology_without_data_is_its_prior() -> None:
    assert only(ClimatologyForecaster(), query("a")).probabilities == pytest.approx(PRIOR)
    assert sum(PRIOR[2:5]) > 0.5


def test_climatology_approaches_the_frequencies() -> None:
    forecaster = ClimatologyForecaster(prior_rows=1.0)
    forecaster.observe([observation(str(i), 1.2 if i % 4 else 3.0) for i in range(400)])
    probabilities = only(forecaster, query("a")).probabilities
    assert probabilities[4] == pytest.approx(0.75, abs=0.01)
    assert probabilities[6] == pytest.approx(0.25, abs=0.01)


def test_climatology_is_relative_to_the_anchor_of_each_query() -> None:
    forecaster = ClimatologyForecaster()
    forecaster.observe([observation(str(i), 3.0) for i in range(100)])
    to_reference, to_incumbent = forecaster.forecast([query("a"), query("a", anchor_speedup=3.0)])
    assert isinstance(to_reference, Forecast)
    assert isinstance(to_incumbent, Forecast)
    assert to_reference.predicted_bin == 7
    assert to_incumbent.predicted_bin == 4


@pytest.mark.parametrize("prior", [(0.5, 0.5), (0.0, *(1 / 7,) * 7), (0.2,) * 8])
def test_climatology_rejects_what_is_no_prior(prior: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="eight positive probabilities"):
        ClimatologyForecaster(prior=prior)


@pytest.mark.parametrize("rows", [0.0, -1.0, math.nan, math.inf])
def test_climatology_rejects_prior_rows(rows: float) -> None:
    with pytest.raises(ValueError, match="prior_rows"):
        ClimatologyForecaster(prior_rows=rows)


def test_random_depends_on_seed_and_key_alone() -> None:
    queries = [query(str(i)) for i in range(20)]
    forward = RandomForecaster(1).forecast(queries)
    backward = RandomForecaster(1).forecast(queries[::-1])
    assert forward == backward[::-1]
    assert forward != RandomForecaster(2).forecast(queries)
    assert len(set(forward_probabilities(forward))) == 20


def forward_probabilities(outcomes: list[Forecast | ForecastFailure]) -> list[tuple[float, ...]]:
    return [outcome.probabilities for outcome in outcomes if isinstance(outcome, Forecast)]


def test_oracle_orders_every_pair_rightly() -> None:
    truth: dict[str, float | None] = {str(i): 2.0 ** (-4.4 + i / 16) for i in range(140)}
    forecaster = OracleForecaster(truth)
    for anchor_speedup in (1.0, 1.7):
        outcomes = forecaster.forecast([query(key, anchor_speedup) for key in truth])
        expected = [outcome.expected_log2() for outcome in outcomes if isinstance(outcome, Forecast)]
        inside = [
            e
            for e, s in zip(expected, truth.values(), strict=True)
            if s and abs(math.log2(s / anchor_speedup)) < 3.9
        ]
        assert all(a < b for a, b in zip(inside, inside[1:], strict=False))


def test_oracle_puts_the_mass_on_the_true_bin() -> None:
    truth: dict[str, float | None] = {"slow": 0.1, "equal": 1.0, "fast": 9.0, "broken": None}
    forecaster = OracleForecaster(truth, 0.8)
    for key, speedup in truth.items():
        forecast = only(forecaster, query(key))
        assert forecast.predicted_bin == (BINS.index(speedup) if speedup else 1)
        assert max(forecast.probabilities) >= 0.79
    (missing,) = forecaster.forecast([query("unheard of")])
    assert isinstance(missing, ForecastFailure)
    assert missing.kind is FailureKind.EMPTY


@pytest.mark.parametrize("sharpness", [0.5, 1.0, math.nan])
def test_oracle_rejects_a_sharpness_that_breaks_the_order(sharpness: float) -> None:
    with pytest.raises(ValueError, match="sharpness"):
        OracleForecaster({}, sharpness)


def test_inverted_mirrors_forecasts_and_passes_failures_and_observations_on() -> None:
    inner = ScriptedForecaster([(8, 7, 6, 5, 4, 3, 2, 1), ForecastFailure(FailureKind.TIMEOUT)])
    inverted = InvertedForecaster(inner)
    rows = [observation("x", 1.5)]
    inverted.observe(rows)
    first, second = inverted.forecast([query("a"), query("b")])
    assert isinstance(first, Forecast)
    assert first.probabilities == pytest.approx([i / 36 for i in range(1, 9)])
    assert first.source == inverted.name == "inverted-scripted"
    assert second == ForecastFailure(FailureKind.TIMEOUT)
    assert inner.observed == [rows]


def test_scripted_answers_in_order_and_remembers() -> None:
    failure = ForecastFailure(FailureKind.REFUSED, "no")
    forecaster = ScriptedForecaster([(1,) * 8, failure])
    assert [type(o) for o in forecaster.forecast([query("a"), query("b")])] == [Forecast, ForecastFailure]
    assert [asked.candidate_key for asked in forecaster.queries] == ["a", "b"]
    with pytest.raises(ForecasterError, match="used up"):
        forecaster.forecast([query("c")])


def test_scripted_takes_a_function() -> None:
    forecaster = ScriptedForecaster(lambda asked: [1.0 if asked.candidate_key == "a" else 2.0] + [1.0] * 7)
    a, b = forecaster.forecast([query("a"), query("b")])
    assert isinstance(a, Forecast)
    assert isinstance(b, Forecast)
    assert b.probabilities[0] > a.probabilities[0]


def test_replay_answers_from_a_file(tmp_path: Path) -> None:
    code = "BLOCK = 4  # four\n"
    rows = [
        {"candidate_key": "a", "probabilities": [0, 0, 0, 1, 0, 0, 0, 0], "model": "m"},
        {"candidate_code": code, "probabilities": [1] * 8},
        {"candidate_key": "a", "probabilities": [0, 0, 0, 0, 0, 3, 1, 0]},
    ]
    text = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    plain, packed = tmp_path / "f.jsonl", tmp_path / "f.jsonl.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        forecaster = ReplayForecaster.from_file(path)
        assert only(forecaster, query("a")).probabilities[5:7] == (0.75, 0.25)
        assert only(forecaster, query(source_key("BLOCK = 4\n"))).probabilities == (0.125,) * 8
        (missing,) = forecaster.forecast([query("b")])
        assert isinstance(missing, ForecastFailure)
        assert missing.kind is FailureKind.EMPTY


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 2"),
        ("[1, 2]", "line 2: expected a JSON object, got list"),
        ("[" * 100_000, "line 2: not JSON"),
        ('{"candidate_key": "a"}', "line 2: a row needs 'probabilities'"),
        ('{"candidate_key": "a", "probabilities": [%s, 0, 0, 0, 0, 0, 0, 0]}' % 10**400, "line 2"),
        ('{"candidate_key": "a", "probabilities": [NaN, 0, 0, 0, 0, 0, 0, 0]}', "line 2"),
        ('{"candidate_key": "a", "probabilities": 3}', "line 2"),
        ('{"probabilities": [1,1,1,1,1,1,1,1]}', "candidate_key"),
        ('{"candidate_key": "a", "probabilities": [1, 2]}', "line 2"),
        ('{"candidate_key": "a", "probabilities": [0,0,0,0,0,0,0,0]}', "line 2"),
        ('{"candidate_key": "a", "probabilities": null}', "line 2"),
        ('{"candidate_key": "a", "probabilities": "12345678"}', "line 2: 'probabilities' is a list"),
        (
            '{"candidate_key": "a", "probabilities": {"1": 0, "2": 0, "3": 0, "4": 1}}',
            "line 2: 'probabilities' is a list",
        ),
        ('{"candidate_key": ["a"], "probabilities": [1,1,1,1,1,1,1,1]}', "line 2: 'candidate_key' is text"),
        (
            '{"candidate_key": "a", "draw": -1, "probabilities": [1,1,1,1,1,1,1,1]}',
            "line 2: 'draw' is a whole",
        ),
    ],
)
def test_replay_names_the_line_that_is_wrong(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"candidate_key": "z", "probabilities": [1,1,1,1,1,1,1,1]}\n' + line + "\n")
    with pytest.raises(ForecasterError, match=message):
        ReplayForecaster.from_file(path)


def test_replay_takes_one_draw_of_several(tmp_path: Path) -> None:
    rows = [{"candidate_key": "a", "draw": draw, "probabilities": [draw, 1] + [0] * 6} for draw in range(3)]
    rows.append({"candidate_key": "b", "probabilities": [1] * 8})
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for draw, share in ((0, 0.0), (1, 1 / 2), (2, 2 / 3), (3, 0.0)):
        forecaster = ReplayForecaster.from_file(path, draw=draw)
        assert only(forecaster, query("a")).probabilities[0] == pytest.approx(share)
        assert only(forecaster, query("b")).probabilities == (0.125,) * 8


def test_draws_are_counted_round_whatever_their_numbers_are(tmp_path: Path) -> None:
    rows = [{"candidate_key": "a", "draw": draw, "probabilities": [draw, 1] + [0] * 6} for draw in (1, 3)]
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for draw, share in ((0, 1 / 2), (1, 3 / 4), (2, 1 / 2)):
        forecaster = ReplayForecaster.from_file(path, draw=draw)
        assert only(forecaster, query("a")).probabilities[0] == pytest.approx(share)


@pytest.mark.parametrize("name", ["none.jsonl", "", "no\x00path", "n" * 300])
def test_replay_says_that_a_file_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ForecasterError, match="cannot be read"):
        ReplayForecaster.from_file(tmp_path / name)


@pytest.mark.parametrize(("kind", "said"), [("device", "device"), ("pipe", "pipe"), ("folder", "folder")])
def test_replay_reads_files_alone(tmp_path: Path, kind: str, said: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = {"device": Path("/dev/zero"), "pipe": tmp_path / "pipe", "folder": tmp_path}[kind]
    with pytest.raises(ForecasterError, match=f"cannot be read: it is a .*{said}"):
        ReplayForecaster.from_file(path)


def test_replay_wants_a_path() -> None:
    with pytest.raises(ConfigError, match="path"):
        parse_surrogate_config({"forecaster": {"kind": "replay", "path": ""}})


PACKED = gzip.compress(b'{"candidate_key": "a", "probabilities": [1,1,1,1,1,1,1,1]}\n', mtime=0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not gzip", "line 1: not JSON"),
        (PACKED[:-9], "damaged gzip file"),
        (PACKED[:14] + b"\xff" * 8 + PACKED[22:], "damaged gzip file"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_replay_says_that_a_file_is_damaged(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "f.jsonl.gz"
    path.write_bytes(data)
    with pytest.raises(ForecasterError, match=message):
        ReplayForecaster.from_file(path)


def test_replay_takes_a_file_for_what_it_holds_and_not_for_its_name(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(PACKED)
    assert isinstance(ReplayForecaster.from_file(path).forecast([query("a")])[0], Forecast)


def test_replay_rejects_a_row_that_is_no_distribution() -> None:
    with pytest.raises(ForecasterError, match="recorded forecast of 'a'"):
        ReplayForecaster({"a": [1.0] * 7})


def test_replay_finds_its_file_beside_the_configuration_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f.jsonl").write_bytes(PACKED)
    (tmp_path / "c.yaml").write_text(
        "surrogate: {forecaster: {kind: mixture, experts: [{kind: replay, path: f.jsonl}, {kind: random}]}}"
    )
    section = load_surrogate_config(tmp_path / "c.yaml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert section.forecaster.experts[0].path == str(tmp_path / "f.jsonl")
    assert build_forecaster(section.forecaster).name == "mixture"
