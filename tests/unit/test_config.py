from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gpu_forecasters_plugin.config import SurrogateConfig, load_surrogate_config, parse_surrogate_config
from gpu_forecasters_plugin.errors import ConfigError

NAN, INF = float("nan"), float("inf")


def complaint(section: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_surrogate_config(section)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_all_that_is_wrong_is_said_and_of_very_much_the_beginning() -> None:
    with pytest.raises(ConfigError) as few:
        parse_surrogate_config({"oversample": 0, "guard": {"decay": 2, "enable": True}})
    assert [problem.partition(":")[0] for problem in few.value.problems] == [
        "surrogate.oversample",
        "surrogate.guard.decay",
        "surrogate.guard.enable",
    ]
    with pytest.raises(ConfigError) as many:
        parse_surrogate_config({f"key{number}": 1 for number in range(1000)})
    assert len(many.value.problems) == 21
    assert many.value.problems[-1] == "surrogate: 980 more problems"


@pytest.mark.parametrize(
    ("section", "key", "nearest"),
    [
        ({"oversampel": 4}, "surrogate.oversampel", "'oversample'"),
        ({"deferral": {"treshold": 0.3}}, "surrogate.deferral.treshold", "'threshold'"),
        ({"forecaster": {"knd": "learned"}}, "surrogate.forecaster.knd", "'kind'"),
        (
            {"forecaster": {"kind": "mixture", "experts": [{"kid": "random"}]}},
            "surrogate.forecaster.experts.0.kid",
            "'kind'",
        ),
        ({"budget": {"measurement": 3}}, "surrogate.budget.measurement", "'measurements'"),
        ({"zzz": 1}, "surrogate.zzz", "known keys: forecaster, oversample"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(section: Any, key: str, nearest: str) -> None:
    message = complaint(section)
    assert message.startswith(f"{key}: unknown key") and nearest in message


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"oversample": "4"}, "oversample"),
        ({"oversample": 4.5}, "oversample"),
        ({"oversample": True}, "oversample"),
        ({"oversample": None}, "oversample"),
        ({"keep_fraction": "a quarter"}, "keep_fraction"),
        ({"keep_fraction": [0.25]}, "keep_fraction"),
        ({"deferral": 0.3}, "deferral"),
        ({"deferral": {"threshold": True}}, "deferral.threshold"),
        ({"forecaster": "learned"}, "forecaster"),
        ({"guard": None}, "guard"),
        ({"guard": {"enabled": 1}}, "guard.enabled"),
        ({"ledger": 3}, "ledger"),
        ({"device": None}, "device"),
        ({1: 2}, "1"),
    ],
    ids=repr,
)
def test_a_value_of_the_wrong_type_is_refused(section: Any, key: str) -> None:
    assert complaint(section).startswith(f"surrogate.{key}: ")


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"deferral": {"threshold": 1.5}}, "deferral.threshold"),
        ({"deferral": {"threshold": -0.1}}, "deferral.threshold"),
        ({"deferral": {"threshold": NAN}}, "deferral.threshold"),
        ({"deferral": {"share": 2}}, "deferral.share"),
        ({"deferral": {"mode": "beside"}}, "deferral.mode"),
        ({"deferral": {"target_risk": 1.5}}, "deferral.target_risk"),
        ({"oversample": 0}, "oversample"),
        ({"keep_fraction": 0}, "keep_fraction"),
        ({"keep_fraction": 1.01}, "keep_fraction"),
        ({"keep_fraction": NAN}, "keep_fraction"),
        ({"audit_fraction": -0.5}, "audit_fraction"),
        ({"ranking": "best"}, "ranking"),
        ({"quantile": 1}, "quantile"),
        ({"budget": {"measurements": 0}}, "budget.measurements"),
        ({"budget": {"gpu_seconds": INF}}, "budget.gpu_seconds"),
        ({"budget": {"gpu_seconds": 0}}, "budget.gpu_seconds"),
        ({"budget": {"count_forecasting": True}}, "budget"),
        ({"forecaster": {"kind": "recalibrated"}}, "forecaster"),
        ({"forecaster": {"forecaster": {"kind": "random"}}}, "forecaster"),
        ({"pool": {"max_wait_s": 0}}, "pool.max_wait_s"),
        ({"metric": {"kind": "minutes"}}, "metric.kind"),
        ({"metric": {"max_speedup": 1}}, "metric.max_speedup"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"ledger": ""}, "ledger"),
        ({"device": ""}, "device"),
        ({"forecaster": {"kind": "guess"}}, "forecaster.kind"),
        ({"forecaster": {"kind": "mixture"}}, "forecaster"),
        ({"forecaster": {"kind": "replay"}}, "forecaster"),
        ({"forecaster": {"kind": "openai_server", "model": "m"}}, "forecaster"),
        ({"forecaster": {"kind": "openai_server", "base_url": "http://host"}}, "forecaster"),
        ({"forecaster": {"kind": "vllm_local", "model": "m", "base_url": "http://host"}}, "forecaster"),
        ({"forecaster": {"readout": "samples"}}, "forecaster"),
        ({"forecaster": {"base_url": "localhost:8000"}}, "forecaster.base_url.0"),
        ({"forecaster": {"base_url": "http://host:port/v1"}}, "forecaster.base_url.0"),
        ({"forecaster": {"path": "x.jsonl"}}, "forecaster"),
        (
            {"forecaster": {"kind": "mixture", "experts": [{"kind": "random"}], "weights": [1, 2]}},
            "forecaster",
        ),
    ],
    ids=repr,
)
def test_a_value_out_of_range_is_refused_by_name_and_value(section: Any, key: str) -> None:
    message = complaint(section)
    assert message.startswith(f"surrogate.{key}: ") and "got " in message


def test_the_refused_value_is_shown() -> None:
    assert complaint({"deferral": {"threshold": 1.5}}).endswith("got 1.5")


@pytest.mark.parametrize("section", [[], "learned", 3, True])
def test_a_section_is_a_mapping(section: Any) -> None:
    assert complaint(section) == f"surrogate: must be a mapping of settings, got {section!r}"


def test_whole_numbers_and_null_are_good_where_they_make_sense() -> None:
    config = parse_surrogate_config({"keep_fraction": 1, "ledger": None, "deferral": {"threshold": None}})
    assert (config.keep_fraction, config.ledger, config.deferral.threshold) == (1.0, None, None)


def test_no_section_is_all_defaults() -> None:
    assert parse_surrogate_config(None) == parse_surrogate_config({}) == SurrogateConfig()


def test_the_documented_section_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "max_iterations: 10\n"
        "surrogate:\n"
        "  forecaster: {kind: learned}\n"
        "  oversample: 4\n"
        "  keep_fraction: 0.25\n"
        "  ranking: upper_quantile\n"
        "  deferral: {confidence: max_prob, threshold: 0.35, target_risk: null, mode: within_quota,"
        " max_fraction: 0.5}\n"
        "  audit_fraction: 0.25\n"
        "  budget: {measurements: 64, gpu_seconds: null}\n"
        "  device: auto\n"
        "  ledger: null\n"
        "  seed: 0\n",
        encoding="utf-8-sig",
    )
    config = load_surrogate_config(path)
    assert (config.ranking, config.budget.measurements) == ("upper_quantile", 64)


@pytest.mark.parametrize(
    "text",
    [
        "a: b: c",
        "surrogate: {seed: 2020-13-45}",
        "surrogate: {seed: 0x_}",
        "surrogate: !!timestamp soon",
        "surrogate: !!python/object:os.system {}",
        "? [a]\n: {",
        "\x00",
        "[" * 5000,
    ],
    ids="colons date hex timestamp object open nul nested".split(),
)
def test_what_yaml_cannot_read_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not valid YAML") as caught:
        load_surrogate_config(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("surrogate: {seed: 1}\nllm: {}\nsurrogate: {device: H100}\n", "line 3: 'surrogate' is given twice"),
        ("surrogate:\n  budget:\n    measurements: 1\n    measurements: 2\n", "line 4: 'measurements'"),
        ("surrogate:\n  forecaster:\n    experts: [{kind: learned}, {kind: a, kind: b}]\n", "line 3: 'kind'"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=what):
        load_surrogate_config(path)


def test_keys_that_the_host_is_given_twice_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("llm: {seed: 1, seed: 2}\nllm: {}\nbase: &base {seed: 3}\nsurrogate: *base\n")
    assert load_surrogate_config(path).seed == 3


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "just text", "3"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="must be a mapping, got (list|str|int)"):
        load_surrogate_config(path)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"surrogate: {device: '\xff'}\n")
    with pytest.raises(ConfigError, match=f"cannot read config {path}"):
        load_surrogate_config(path)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot read config"):
        load_surrogate_config(tmp_path / name)


def test_a_required_section_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("max_iterations: 3\n")
    assert load_surrogate_config(path) == SurrogateConfig()
    with pytest.raises(ConfigError, match="no 'surrogate:' section"):
        load_surrogate_config(path, required=True)


@pytest.mark.parametrize(
    ("section", "advice"),
    [
        ({"budget": 64}, "write budget: {measurements: 64}"),
        ({"forecaster": "learned"}, "write forecaster: {kind: learned}"),
        ({"deferral": 0.3}, "write deferral: {threshold: 0.3}"),
        ({"deferral": "on_top"}, "write deferral: {mode: on_top}"),
        ({"guard": False}, "write guard: {enabled: false}"),
        ({"pool": 10}, "write pool: {max_wait_s: 10}"),
        ({"forecaster": {"kind": "mixture", "experts": ["random"]}}, "write {kind: random}"),
        ({"budget": "many"}, "its keys are measurements, gpu_seconds, count_forecasting"),
        ({"oversample": "4"}, "write oversample: 4"),
        ({"keep_fraction": "1e-1"}, "write keep_fraction: 0.1"),
        ({"ranking": "upper_quantil"}, "did you mean 'upper_quantile'?"),
        ({"budget": None}, "got null; leave it out for the default"),
    ],
)
def test_what_to_write_instead_is_said(section: Any, advice: str) -> None:
    assert complaint(section).endswith(advice)


def wrong_sections(model: Any = SurrogateConfig) -> Iterator[dict[str, Any]]:
    """Every setting with all sorts of values, nested sections included."""
    for name, field in model.model_fields.items():
        for value in (None, True, "x", -1, 1e9, NAN, 1 << 70_000, [], {}, [None], [1], {"x": 1}, {2: 3}):
            yield {name: value}
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from ({name: section} for section in wrong_sections(field.annotation))


def test_no_wording_of_the_validator_reaches_the_user() -> None:
    messages = []
    for section in wrong_sections():
        with suppress(ConfigError):
            parse_surrogate_config(section)
            continue
        messages.append(complaint(section))
    assert len(messages) > 200
    foreign = re.compile(r"Input should|should be|instance of|Value error|another kind of value|pydantic")
    assert [message for message in messages if foreign.search(message) or len(message) > 300] == []


@pytest.mark.parametrize("url", ["https://user:hunter2@host/v1", "https://host/v1?api_key=hunter2"])
def test_a_secret_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    message = complaint({"forecaster": {"kind": "openai_server", "base_url": [url], "model": "m"}})
    assert "api_key_env" in message and "hunter2" not in message


def test_forecasting_that_counts_needs_a_price_wherever_the_model_is_nested() -> None:
    budget = {"gpu_seconds": 60.0, "count_forecasting": True}
    server: dict[str, Any] = {"kind": "openai_server", "base_url": "http://host/v1", "model": "m"}
    nested = {"kind": "mixture", "experts": [{"kind": "recalibrated", "forecaster": server}]}
    assert "set server_gpus" in complaint({"budget": budget, "forecaster": nested})
    server["server_gpus"] = 2.0
    assert parse_surrogate_config({"budget": budget, "forecaster": nested}).budget.count_forecasting


def test_one_url_is_a_list_of_one() -> None:
    section = {"kind": "openai_server", "base_url": "http://host:8000/v1/", "model": "m"}
    assert parse_surrogate_config({"forecaster": section}).forecaster.base_url == ["http://host:8000/v1"]


def test_a_written_configuration_reads_back() -> None:
    section = {"kind": "openai_server", "base_url": "http://host/v1", "model": "m", "temperature": 0.5}
    for forecaster in (section, {"kind": "learned"}):
        config = parse_surrogate_config({"forecaster": forecaster})
        assert parse_surrogate_config(config.model_dump(mode="json")) == config


def test_an_adapter_lies_relative_to_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("surrogate: {forecaster: {kind: vllm_local, model: m, lora: adapter}}\n")
    assert load_surrogate_config(path).forecaster.lora == str(tmp_path / "adapter")


@pytest.mark.parametrize(
    "section",
    [
        {"kind": "vllm_local", "model": "m", "engine": {"hf_token": "hunter2"}},
        {"kind": "openai_server", "model": "m", "extra_body": {"a": [{"Authorization": "hunter2"}]}},
        {"kind": "openai_server", "model": "m", "extra_body": {"api_key": "hunter2"}},
        {"kind": "openai_server", "model": "m", "extra_body": {"apiKey": "hunter2"}},
        {"kind": "openai_server", "model": "m", "extra_body": {"api_keys": ["hunter2"]}},
        {"kind": "openai_server", "model": "m", "extra_body": {"passwords": ["hunter2"]}},
        {"kind": "openai_server", "model": "m", "extra_body": {"bearer": "hunter2"}},
        {"kind": "openai_server", "model": "m", "extra_body": {"api_key": ["x", "hunter2"]}},
        {"kind": "openai_server", "model": "m", "extra_body": {"password": {"x": 1, "y": "hunter2"}}},
        {"kind": "openai_server", "model": "m", "api_key": "hunter2"},
    ],
)
def test_a_secret_among_further_arguments_is_refused_and_not_repeated(section: Any) -> None:
    assert "hunter2" not in complaint({"forecaster": section})


def test_a_secret_that_is_a_number_is_not_repeated() -> None:
    section = {"kind": "openai_server", "model": "m", "extra_body": {"password": 31415926, "top_k": 5}}
    said = complaint({"forecaster": section})
    assert "31415926" not in said and "'top_k': 5" in said


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"extra_body": {"model": "other"}}, "must not hold 'model'"),
        ({"extra_body": {"stream": True}}, "must not hold 'stream'"),
        ({"extra_body": {"date": datetime.date(2026, 1, 1)}}, "put dates in quotes"),
        ({"chat_template_kwargs": {"x": float("nan")}}, "must be what JSON can hold"),
        ({"deadline_s": 1e12}, "at most 86400"),
    ],
)
def test_what_no_endpoint_could_be_sent_is_refused(settings: dict[str, Any], says: str) -> None:
    section = {"kind": "openai_server", "base_url": "http://localhost/v1", "model": "m"} | settings
    assert says in complaint({"forecaster": section})


def test_settings_that_change_answers_change_the_identity() -> None:
    def identity(**settings: Any) -> str:
        section = {"kind": "openai_server", "base_url": "http://localhost/v1", "model": "m"} | settings
        return parse_surrogate_config({"forecaster": section}).forecaster.asking_hash("prompts")

    assert identity() == identity(deadline_s=5.0, concurrency=2)
    assert (
        len({identity(), identity(extra_body={"reasoning_effort": "low"}), identity(constraint="none")}) == 3
    )
