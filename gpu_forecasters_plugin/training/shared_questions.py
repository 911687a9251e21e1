"""Log-probabilities of several answers to the same questions, each question read once for all of them.

The answers to a question follow it in one sequence, each behind a copy of the question's last token, and see the
question and themselves alone: the numbers are those of each answer behind a question of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

__all__ = ["SharedQuestions"]

_NO_LABEL = -100
_MULTIPLE = 8
"""Of which a mask's width must be one for the faster attention."""


@dataclass(frozen=True)
class SharedQuestions:
    """A batch of answers, those to one question in one sequence.

    Attributes:
        inputs: ``input_ids``, ``position_ids`` and ``shift_labels`` of shape (questions, longest), and
            ``attention_mask`` of shape (questions, 1, longest, longest), 0 where a token sees another, else lowest.
        places: question and first label of each answer in these.
        lengths: of the answers.
    """

    inputs: dict[str, Any]
    places: list[tuple[int, int]]
    lengths: list[int]

    @classmethod
    def of(
        cls, rows: Sequence[tuple[list[int], list[int]]], pad_id: int, device: Any, dtype: Any
    ) -> SharedQuestions:
        """Questions and answers as tokens; answers to the same question follow each other.

        Args:
            rows: a question and one answer to it each.
            pad_id: token to pad with.
            device: where the tensors are.
            dtype: of the mask: that of the model, or each layer makes a mask of its own of it.
        """
        sequences, places = [], []
        for number, (question, group) in enumerate(groupby(rows, key=lambda row: row[0])):
            sequence = _Sequence(question[:-1])
            for _, answer in group:
                places.append((number, sequence.add(question[-1], answer)))
            sequences.append(sequence)
        lengths = [len(answer) for _, answer in rows]
        return cls(_tensors(sequences, pad_id, device, dtype), places, lengths)

    def by_answer(self, values: Any, width: int) -> Any:
        """What was found at each label; (questions, longest) to (answers, width), with 0 behind an answer's end."""
        import torch

        question, start = torch.tensor(self.places, device=values.device).T[:, :, None]
        lengths = torch.tensor(self.lengths, device=values.device)[:, None]
        label = torch.arange(width, device=values.device)
        found = values[question, (start + label).clamp(max=values.shape[1] - 1)]
        return found.masked_fill(label >= lengths, 0.0)


class _Sequence:
    """A question but its last token, and the answers behind it."""

    def __init__(self, question: list[int]) -> None:
        self.ids = list(question)
        self.positions = list(range(len(question)))
        self.labels = [_NO_LABEL] * len(question)
        self.parts = [0] * len(question)
        self._start, self._count = len(question), 0

    def add(self, last: int, answer: list[int]) -> int:
        """Append an answer; where its first label stands."""
        place = len(self.ids)
        self._count += 1
        self.ids += [last, *answer][: len(answer)]
        self.positions += range(self._start, self._start + len(answer))
        self.labels += answer
        self.parts += [self._count] * len(answer)
        return place


def _tensors(sequences: Sequence[_Sequence], pad_id: int, device: Any, dtype: Any) -> dict[str, Any]:
    import torch

    longest = -(-max(len(sequence.ids) for sequence in sequences) // _MULTIPLE) * _MULTIPLE

    def tensor(name: str, filler: int) -> Any:
        rows = [getattr(sequence, name) for sequence in sequences]
        return torch.tensor([row + [filler] * (longest - len(row)) for row in rows], device=device)

    parts, places = tensor("parts", -1), torch.arange(longest, device=device)
    seen = (parts[:, None, :] == parts[:, :, None]) | (parts[:, None, :] == 0)
    seen &= places[None, :] <= places[:, None]
    mask = torch.zeros(seen.shape, dtype=dtype, device=device)
    return {
        "input_ids": tensor("ids", pad_id),
        "position_ids": tensor("positions", 0),
        "shift_labels": tensor("labels", _NO_LABEL),
        "attention_mask": mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None],
    }
