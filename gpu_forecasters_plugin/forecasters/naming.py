"""Experts of one kind and model, told apart by what differs in their settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from gpu_forecasters_plugin.config import ForecasterConfig
from gpu_forecasters_plugin.errors import ConfigError

__all__ = ["distinctions"]

_MADE_OF_OTHERS = ("mixture", "recalibrated")
_TELLING = ("readout", "base_url", "lora", "path", "options")
"""Settings by which people tell two forecasters apart; they come before the others."""
_LONGEST_VALUE = 60


def distinctions(config: ForecasterConfig) -> dict[int, str]:
    """What is added to the names of members of which there are several, by the ``id`` of their settings.

    That is the first setting by which all of them differ, or else all that differ: ``[readout=samples]``. It is part
    of a run's identity, and depends on the settings alone. Those that are made of others take their name from these.

    Raises:
        ConfigError: two members are the same in everything.
    """
    groups: dict[tuple[str, str | None], list[ForecasterConfig]] = {}
    for member in config.members():
        if member.kind not in _MADE_OF_OTHERS:
            groups.setdefault((member.kind, member.model), []).append(member)
    several = [group for group in groups.values() if len(group) > 1]
    return {
        id(member): addition
        for group in several
        for member, addition in zip(group, _told_apart(group), strict=True)
    }


def _told_apart(members: Sequence[ForecasterConfig]) -> list[str]:
    settings = [member.model_dump(mode="json") for member in members]
    differing = [key for key in settings[0] if any(other[key] != settings[0][key] for other in settings)]
    differing.sort(key=lambda key: _TELLING.index(key) if key in _TELLING else len(_TELLING))
    for keys in (*([key] for key in differing), differing):
        additions = [f"[{', '.join(f'{key}={_shown(one[key])}' for key in keys)}]" for one in settings]
        if len(set(additions)) == len(additions):
            return additions
    what = ":".join(filter(None, (members[0].kind, members[0].model)))
    raise ConfigError(
        f"surrogate.forecaster: two experts are {what} with the same settings: leave one out, or let them differ, as "
        "in readout or base_url"
    )


def _shown(value: Any) -> str:
    """A setting's value in a few characters; long ones stay distinct."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[: _LONGEST_VALUE - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"
