"""All checks that a configuration asks for, in the order that they build on each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import yaml

from gpu_forecasters_plugin.config import ForecasterConfig, SurrogateConfig, load_surrogate_config
from gpu_forecasters_plugin.doctor._base import CheckResult, Status, bounded
from gpu_forecasters_plugin.doctor.endpoint import EndpointProbe
from gpu_forecasters_plugin.doctor.forecasters import (
    LOCAL_PACKAGES,
    check_forecaster,
    check_hardware,
    check_local_model,
)
from gpu_forecasters_plugin.doctor.language_model import (
    check_chat,
    check_logprobs,
    check_models,
    check_reasoning,
    check_served_model,
    check_structured_output,
)
from gpu_forecasters_plugin.doctor.machine import check_gpu, check_ledger, check_openevolve
from gpu_forecasters_plugin.doctor.prompts import check_context, check_prefix_caching
from gpu_forecasters_plugin.doctor.screening import check_screen
from gpu_forecasters_plugin.errors import ConfigError, MissingExtraError
from gpu_forecasters_plugin.forecasters.language_model.client import import_openai

__all__ = ["examine"]

_ENDPOINT_CHECKS = {
    "models": check_models,
    "chat": check_chat,
    "served model": check_served_model,
    "reasoning": check_reasoning,
    "structured output": check_structured_output,
    "logprobs": check_logprobs,
    "prefix caching": check_prefix_caching,
    "context length": check_context,
}
_ESSENTIAL = ("models", "chat")
"""Where one of these fails, there is no point in the checks after it."""


def examine(config: Path | None, *, deadline_s: float) -> list[CheckResult]:
    """Look at everything that a run with this configuration would need.

    Args:
        config: file with the ``surrogate:`` section; ``None`` for its defaults.
        deadline_s: how long one check may take, in seconds.

    Returns:
        What each check found; no API key is in it.
    """
    read, section = _read_config(config)
    results = [read, bounded("openevolve", check_openevolve, deadline_s)]
    if section is None:
        return results
    results.append(bounded("gpu", partial(check_gpu, section), deadline_s))
    results.append(bounded("ledger", partial(check_ledger, section), deadline_s))
    if section.screen.policy != "off":
        results.append(bounded("screen", partial(check_screen, section, config, deadline_s), deadline_s))
    models = [m for m in section.forecaster.members() if m.kind in ("openai_server", *LOCAL_PACKAGES)]
    if models:
        results.append(bounded("hardware facts", partial(check_hardware, section), deadline_s))
    for settings in models:
        results += _examine_language_model(settings, deadline_s)
    results.append(_examine_forecaster(section, results, deadline_s))
    return _without_keys(results, models)


def _read_config(path: Path | None) -> tuple[CheckResult, SurrogateConfig | None]:
    """What the configuration file holds; nothing further can be checked when it is wrong."""
    name = "config"
    if path is None:
        return CheckResult(name, Status.OK, "no file given: all defaults"), SurrogateConfig()
    try:
        section = load_surrogate_config(path)
    except ConfigError as error:
        return CheckResult(name, Status.FAIL, str(error), "mend it; the other checks need it"), None
    if "surrogate" not in (yaml.safe_load(path.read_text("utf-8-sig")) or {}):
        seen = f"{path} has no surrogate: section: all defaults"
        return CheckResult(name, Status.WARN, seen, "add surrogate: {budget: {measurements: 64}}"), section
    return CheckResult(name, Status.OK, f"{path} is valid"), section


def _examine_language_model(settings: ForecasterConfig, deadline_s: float) -> list[CheckResult]:
    """The checks of one language model; its endpoints at the same time, each one's checks in turn."""
    if settings.kind in LOCAL_PACKAGES:
        return [bounded("local model", partial(check_local_model, settings), deadline_s)]
    try:
        import_openai()
    except MissingExtraError as error:
        return [CheckResult("endpoint", Status.FAIL, str(error))]
    found: dict[str, list[CheckResult]] = {}

    def examine_endpoint(url: str) -> None:
        found[url] = _examine_endpoint(settings, deadline_s, url)

    # Daemons: whoever interrupts need not wait for them.
    threads = [
        threading.Thread(target=examine_endpoint, args=(url,), daemon=True) for url in settings.base_url
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [result for url in settings.base_url for result in found[url]]


def _examine_endpoint(settings: ForecasterConfig, deadline_s: float, url: str) -> list[CheckResult]:
    results: list[CheckResult] = []
    probe = EndpointProbe(settings, url, deadline_s)
    given_up: str | None = None
    for name, check in _ENDPOINT_CHECKS.items():
        if given_up is not None:
            results.append(CheckResult(name, Status.SKIPPED, f"{given_up!r} has failed", subject=url))
            continue
        found = bounded(name, partial(check, probe), deadline_s, url)
        results.append(found)
        # What hangs once would hang in every further check.
        if found.hung or (found.status is Status.FAIL and name in _ESSENTIAL):
            given_up = name
    probe.close()
    return results


def _examine_forecaster(
    section: SurrogateConfig, results: Sequence[CheckResult], deadline_s: float
) -> CheckResult:
    """A whole forecast, where it does not take minutes and something can come of it."""
    name = "forecaster"
    if any(result.name == "local model" for result in results):
        return CheckResult(
            name, Status.SKIPPED, "loading the model takes a while: gpu-forecasters forecast does it"
        )
    essential = [result for result in results if result.name in _ESSENTIAL]
    if essential and not any(result.name == "chat" and result.status is Status.OK for result in essential):
        return CheckResult(name, Status.SKIPPED, "no endpoint answers")
    return bounded(name, partial(check_forecaster, section), deadline_s)


def _without_keys(results: Sequence[CheckResult], models: Sequence[ForecasterConfig]) -> list[CheckResult]:
    """The results without the API keys, which an endpoint may have repeated in what it said."""
    keys = [key for settings in models if (key := os.environ.get(settings.api_key_env, "").strip())]

    def clean(text: str) -> str:
        for key in keys:
            text = text.replace(key, "***")
        return text

    return [replace(result, seen=clean(result.seen), advice=clean(result.advice)) for result in results]
