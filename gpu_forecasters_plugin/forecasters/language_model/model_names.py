"""Whether the model that an answer names is the one that was asked for."""

from __future__ import annotations

import re

__all__ = ["same_model"]

_RELEASE = re.compile(r"(?:[-@:._](?:latest|free|20\d\d-\d\d-\d\d|\d{3,8}))+$")
"""What an endpoint adds to an alias: ``-latest``, ``:free``, a date (``-2025-08-07``, ``@20250514``, ``-0613``), a
number of three digits or more (``-001``). Shorter numbers belong to the name: ``llama-3`` is not ``llama-3-8``."""


def same_model(asked: str, answered: str) -> bool:
    """Whether two names can mean one model.

    They may differ in case, in the folders or the provider in front of the name (``openai/gpt-oss-20b``) and in a
    release at its end. An answer that names none says nothing against it.
    """
    return not answered.strip() or _alias(asked) == _alias(answered)


def _alias(name: str) -> str:
    return _RELEASE.sub("", name.strip().rstrip("/").rpartition("/")[2].lower())
