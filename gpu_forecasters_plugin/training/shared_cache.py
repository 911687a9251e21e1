"""Keys and values of questions that several answers share, and the attention that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["SharedCache", "answers_attend"]

_ATTENTION = "answers_to_shared_questions"


class SharedCache:
    """What has been read: keys and values of each question once, and of all answers in place.

    As a cache of transformers, as far as a model asks it; attention finds the layer itself where it expects keys.
    """

    def __init__(self, read: Any, lengths: Any, times: int, room: int) -> None:
        import torch

        keys = read.layers[0].keys
        questions, heads, longest, size = keys.shape
        self.step = torch.zeros(1, dtype=torch.long, device=keys.device)
        self._places = torch.arange(room, device=keys.device)
        beyond = torch.arange(longest, device=keys.device) >= lengths[:, None]
        own = (questions * times, heads, room, size)
        self._layers = [
            _Layer(layer.keys, layer.values, keys.new_zeros(own), keys.new_zeros(own), beyond)
            for layer in read.layers
        ]

    def update(self, key: Any, value: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[_Layer, _Layer]:
        """Keep the keys and values of the token that each answer has come to; (n, heads, 1, size) each."""
        layer = self._layers[layer_idx]
        layer.own_keys.index_copy_(2, self.step, key)
        layer.own_values.index_copy_(2, self.step, value)
        layer.ahead = self._places > self.step
        return layer, layer

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Not asked for, since positions are given."""
        return 0


@dataclass
class _Layer:
    """Keys and values of one layer.

    Attributes:
        keys, values: of the questions, shape (questions, heads, longest, size).
        own_keys, own_values: of the answers, shape (answers, heads, room, size).
        beyond: where a question has ended; shape (questions, longest).
        ahead: where no answer has come to; shape (room,).
    """

    keys: Any
    values: Any
    own_keys: Any
    own_values: Any
    beyond: Any
    ahead: Any = None


def _attention(
    module: Any, query: Any, layer: _Layer, _: Any, mask: Any, scaling: float, **__: Any
) -> tuple[Any, None]:
    """One token of each answer attends to its question and to the answer so far."""
    import torch

    answers, heads, _one, size = query.shape
    questions, pairs, longest, _size = layer.keys.shape
    times, group = answers // questions, heads // pairs
    lowest = torch.finfo(torch.float32).min

    def by_question(
        values: Any, width: int
    ) -> Any:  # (answers, pairs, group, w) to (questions, pairs, -1, w)
        together = values.reshape(questions, times, pairs, group, width).transpose(1, 2)
        return together.reshape(questions, pairs, times * group, width)

    def by_answer(values: Any, width: int) -> Any:
        apart = values.reshape(questions, pairs, times, group, width).transpose(1, 2)
        return apart.reshape(answers, pairs, group, width)

    query = query.reshape(answers, pairs, group, size) * scaling
    before = by_question(query, size) @ layer.keys.transpose(2, 3)
    before = before.float().masked_fill(layer.beyond[:, None, None], lowest)
    own = (query @ layer.own_keys.transpose(2, 3)).float().masked_fill(layer.ahead, lowest)
    weights = torch.cat([by_answer(before, longest), own], dim=-1).softmax(dim=-1).to(query.dtype)
    found = by_answer(by_question(weights[..., :longest], longest) @ layer.values, size)
    found = found + weights[..., longest:] @ layer.own_values
    return found.reshape(answers, 1, heads, size), None


@contextmanager
def answers_attend(model: Any) -> Iterator[None]:
    """The model with the attention that a :class:`SharedCache` needs."""
    from transformers import AttentionInterface

    AttentionInterface.register(_ATTENTION, _attention)
    usual = model.config._attn_implementation
    model.config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        model.config._attn_implementation = usual
