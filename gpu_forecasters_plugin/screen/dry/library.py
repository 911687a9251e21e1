"""Which operators of torch a candidate calls, with the bytes and operations that their shapes tell."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from gpu_forecasters_plugin.screen.dry.recorder import Recorder
from gpu_forecasters_plugin.screen.profile import LibraryCall

__all__ = ["LibraryLog", "tensor_bytes"]

_FREE = (
    "prim.",
    "aten.empty",
    "aten.new_empty",
    "aten.detach",
    "aten.lift_fresh",
    "aten._local_scalar_dense",
    "aten._unsafe_view",
)
"""How the names of operators begin that launch nothing on a GPU."""


def tensor_bytes(values: Any) -> int:
    """Bytes of the distinct tensors in a nest of lists, tuples and mappings, expanded dimensions counted once."""
    torch = importlib.import_module("torch")
    seen: dict[int, int] = {}
    for value in _leaves(values):
        if isinstance(value, torch.Tensor):
            places = 1
            for size, stride in zip(value.shape, value.stride(), strict=True):
                places *= int(size) if stride or not size else 1
            seen[id(value)] = places * value.element_size()
    return sum(seen.values())


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _leaves(entry)
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _leaves(entry)
    else:
        yield value


class LibraryLog:
    """Notes operators in a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._flops = importlib.import_module("torch.utils.flop_counter").flop_registry

    def note(self, operator: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Note one call, unless it launches nothing (views, allocations)."""
        packet = operator.overloadpacket
        name = str(packet)
        if name.startswith(_FREE) or _is_view(operator):
            return
        count = self._flops.get(packet)
        flops = int(count(*args, **kwargs, out_val=result)) if count is not None else 0
        size = tensor_bytes([args, kwargs, result])
        before = self._recorder.library.get(name, LibraryCall(name, 0, 0, 0))
        self._recorder.library[name] = LibraryCall(
            name, before.count + 1, before.bytes + size, before.flops + flops
        )


def _is_view(operator: Any) -> bool:
    returns = operator._schema.returns
    aliases = [entry.alias_info for entry in returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
