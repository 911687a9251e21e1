"""What pydantic found wrong, in our own words: the one place where its messages are translated."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from gpu_forecasters_plugin.printable import listed

__all__ = ["SECRET_WORDS", "all_problems", "first_problem"]

_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_unicode": "text of whole Unicode characters",
    "list_type": "a list",
    "model_type": "a mapping of settings",
    "dict_type": "a mapping",
    "string_too_short": "text that is not empty",
    "string_too_long": "shorter text",
}
_LIMITS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
_CHOICES = ("literal_error", "enum")
_LONGEST_SHOWN = 80
_MOST_LISTED = 16
_MOST_PROBLEMS = 20
_URL_USER = re.compile(r"(?<=://)[^/\s'\"]*@")
SECRET_WORDS = "passwords?|passphrase|secrets?|authorization|bearer|credentials?"
"""What a setting's name ends with, as a pattern, when its value is nobody's business; ``key`` and ``token`` apart."""
_NAMED_SECRET = re.compile(
    rf"((?:token|keys?|{SECRET_WORDS})': )('[^']*'?|\"[^\"]*\"?|\[[^\]]*\]?|\{{[^}}]*\}}?|[^,}}\]]+)",
    re.IGNORECASE,
)
_URL_QUERY = re.compile(r"(?<=\w)\?[^\s'\"]+")


def all_problems(error: ValidationError, model: type[BaseModel], root: str = "") -> list[str]:
    """Everything that is wrong, in one line each: where, what is wanted, what was given, what to write instead.

    Args:
        error: what ``model`` raised.
        model: what was validated.
        root: what the path to each value begins with.

    Returns:
        At least one line; of very many problems the first, and how many more there are.
    """
    found = error.errors(include_url=False)
    lines = [_in_words(problem, model, root) for problem in found[:_MOST_PROBLEMS]]
    more = len(found) - len(lines)
    return [*lines, f"{root or 'there'}: {more} more problems"] if more else lines


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """The first of :func:`all_problems`: for a row of a file, of which one is enough."""
    return _in_words(error.errors(include_url=False)[0], model, "")


def _in_words(problem: Mapping[str, Any], model: type[BaseModel], root: str) -> str:
    location, kind = problem["loc"], problem["type"]
    path = ".".join(str(step) for step in (root, *location) if step != "")
    if kind in ("extra_forbidden", "invalid_key"):
        known = _keys(_model_at(model, location[:-1]))
        return f"{path}: unknown key; {_nearest(str(location[-1]), known)}"
    if kind == "missing":
        return f"{path}: is missing"
    if kind == "value_error":
        message = problem["msg"].removeprefix("Value error, ")
    else:
        message = f"must be {_wanted(kind, problem.get('ctx', {}))}"
    advice = _advice(problem, model)
    return f"{path}: {message}, got {_shown(problem['input'])}{advice and '; '}{advice}"


def _wanted(kind: str, context: Mapping[str, Any]) -> str:
    if kind in _LIMITS:
        word, key = _LIMITS[kind]
        limit = context[key]
        return f"{word} {int(limit) if limit == int(limit) else limit}"
    if kind in _CHOICES:
        return str(context["expected"])
    return _WANTED.get(kind, "another kind of value")


def _advice(problem: Mapping[str, Any], model: type[BaseModel]) -> str:
    """What to write instead, where that can be told."""
    location, kind, given = problem["loc"], problem["type"], problem["input"]
    key = location[-1] if location else None
    if given is None:
        # An entry of a list has no default.
        is_optional = (
            isinstance(key, str) and not _model_at(model, location[:-1]).model_fields[key].is_required()
        )
        return "leave it out for the default" if is_optional else ""
    if kind == "model_type":
        return _as_mapping(_model_at(model, location), given, f"{key}: " if isinstance(key, str) else "")
    if kind in ("int_type", "float_type") and isinstance(given, str):
        number = _number(given)
        return "" if number is None else f"write {key}: {number:.15g}"
    if kind in _CHOICES and isinstance(given, str):
        close = difflib.get_close_matches(given, re.findall(r"'([^']*)'", problem["ctx"]["expected"]), n=1)
        return f"did you mean {close[0]!r}?" if close else ""
    return ""


def _as_mapping(model: type[BaseModel], given: Any, key: str) -> str:
    """A value that stands where a mapping should, under the first setting that would take it."""
    for name in model.model_fields:
        try:
            model.model_validate({name: given})
        except ValidationError:
            continue
        text = _cut(given) if isinstance(given, str) else _shown(given).lower()
        return f"write {key}{{{name}: {text}}}"
    return f"its keys are {listed(_keys(model), _MOST_LISTED)}"


def _keys(model: type[BaseModel]) -> list[str]:
    """The settings of a section, its own before those that it takes over."""
    return sorted(model.model_fields, key=lambda name: name not in model.__annotations__)


def _model_at(model: type[BaseModel], location: tuple[str | int, ...]) -> type[BaseModel]:
    """The model that the value at a location has to fit."""
    for step in location:
        if isinstance(step, int):
            continue
        annotation = model.model_fields[step].annotation
        nested = [annotation, *get_args(annotation)]
        model = next(t for t in nested if isinstance(t, type) and issubclass(t, BaseModel))
    return model


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known keys: {listed(known, _MOST_LISTED)}"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    try:
        return _cut(_without_secrets(repr(value)))
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"


def _without_secrets(text: str) -> str:
    """The text without the users, passwords and queries of URLs, and without what a key calls a secret."""
    return _NAMED_SECRET.sub(r"\1***", _URL_QUERY.sub("?***", _URL_USER.sub("***@", text)))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
