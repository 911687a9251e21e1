"""Reading the YAML files in which users configure things."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gpu_forecasters_plugin.errors import ConfigError

__all__ = ["read_yaml"]


def read_yaml(path: str | Path, section: str) -> Any:
    """What a file holds.

    Args:
        path: the file.
        section: a key of the file, beneath which no key may be given twice, nor it itself: YAML would silently keep the
            last. What else is in the file is the host's.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or gives a key twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # not there, not UTF-8, no path at all
        raise ConfigError(f"cannot read config {path}: {error}") from None
    try:
        twice = next(_given_twice(yaml.compose(text, Loader=yaml.SafeLoader), section), None)
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError) as error:
        # PyYAML's own errors, and those of its number and date readers, which it lets through.
        raise ConfigError(f"config {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if twice is not None:
        line = twice.start_mark.line + 1
        raise ConfigError(f"config {path}, line {line}: {twice.value!r} is given twice; put both under one")
    return document


def _given_twice(root: yaml.Node | None, section: str) -> Iterator[yaml.ScalarNode]:
    """The second of two keys that are the same, wherever that happens in a section, or to it."""
    if not isinstance(root, yaml.MappingNode):
        return
    own = [(key, value) for key, value in root.value if key.value == section]
    yield from (key for key, _ in own[1:])
    waiting: list[yaml.Node] = [value for _, value in own]
    looked_at: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in looked_at:  # an alias of what was there before
            continue
        looked_at.add(id(node))
        if isinstance(node, yaml.MappingNode):
            names = [(key.tag, key.value) for key, _ in node.value]
            yield from (key for place, (key, _) in enumerate(node.value) if names[place] in names[:place])
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
