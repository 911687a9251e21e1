"""A space of kernels: families of sources with knobs, from which sources are written and in which they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

__all__ = ["MISTAKE", "RIGHT", "Design", "Family", "Knob", "Space", "numbers", "switch"]

MISTAKE = "mistake"
"""The knob that puts one mistake into a source."""

RIGHT = "none"
"""Its option that puts none in."""

_SLOT = re.compile(r"@(\w+)@")
_OWN_LINE = re.compile(r"[ ]*@(\w+)@\n")


@dataclass(frozen=True)
class Knob:
    """One choice of a family.

    Attributes:
        name: families that have a knob of the same name hand its option on.
        options: for each option, what is written into the slots; a slot that is not named stays empty.
    """

    name: str
    options: Mapping[str, Mapping[str, str]]

    @cached_property
    def slots(self) -> frozenset[str]:
        """Every slot that an option writes into."""
        return frozenset(slot for texts in self.options.values() for slot in texts)


def numbers(name: str, *values: int) -> Knob:
    """A knob that writes one of these numbers into the slot of its name; the first is the usual one."""
    return Knob(name, {str(value): {name: str(value)} for value in values})


def switch(name: str, **options: str | Mapping[str, str]) -> Knob:
    """A knob whose options each write a text into the slot of its name, or texts into several slots."""
    return Knob(name, {key: {name: text} if isinstance(text, str) else text for key, text in options.items()})


@dataclass(frozen=True)
class Design:
    """A source by its choices: a family, and an option for each of its knobs, in the family's order."""

    family: str
    choices: tuple[tuple[str, str], ...]

    def option(self, knob: str) -> str | None:
        """The option of a knob; ``None`` where the family has no such knob."""
        return dict(self.choices).get(knob)

    def with_option(self, knob: str, option: str) -> Design:
        """The same with another option."""
        return Design(self.family, tuple((k, option if k == knob else o) for k, o in self.choices))


@dataclass(frozen=True)
class Family:
    """Sources of one algorithm: a template with ``@slots@`` and the knobs that fill them.

    A slot alone on its line takes a text of several lines, indented as the slot is; empty, it leaves no line.
    """

    name: str
    template: str
    knobs: Sequence[Knob]
    _by_name: dict[str, Knob] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {knob.name: knob for knob in self.knobs})
        object.__setattr__(self, "template", _plain(self.template))
        used = set(_SLOT.findall(self.template))
        filled = [slot for knob in self.knobs for slot in knob.slots]
        if used != set(filled) or len(filled) != len(set(filled)):
            odd = used.symmetric_difference(filled) or {slot for slot in filled if filled.count(slot) > 1}
            raise ValueError(f"family {self.name!r}: no knob, or no single one, fills {sorted(odd)}")

    def knob(self, name: str) -> Knob | None:
        """A knob by its name."""
        return self._by_name.get(name)

    @property
    def size(self) -> int:
        """How many sources without a mistake there are."""
        return prod(len(knob.options) for knob in self.knobs if knob.name != MISTAKE)

    def design(self, **options: str) -> Design:
        """The design with these options, and the usual one for every other knob."""
        unknown = set(options) - set(self._by_name)
        if unknown:
            raise ValueError(f"family {self.name!r} has no knob {sorted(unknown)[0]!r}")
        return Design(
            self.name,
            tuple((knob.name, options.get(knob.name, next(iter(knob.options)))) for knob in self.knobs),
        )

    def write(self, design: Design) -> str:
        """The source of a design."""
        texts = dict.fromkeys(_SLOT.findall(self.template), "")
        for name, option in design.choices:
            texts |= self._by_name[name].options[option]
        return "".join(
            _own_line(line, texts[match[1]])
            if (match := _OWN_LINE.fullmatch(line))
            else _SLOT.sub(lambda slot: texts[slot[1]], line)
            for line in self.template.splitlines(keepends=True)
        )

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        texts: dict[str, set[str]] = {}
        for knob in self.knobs:
            for slot in knob.slots:
                texts[slot] = {option.get(slot, "") for option in knob.options.values()}
        seen: set[str] = set()
        return re.compile(
            "".join(_line_pattern(line, texts, seen) for line in self.template.splitlines(keepends=True))
        )

    def read(self, source: str) -> Design | None:
        """The design of a source of this family; ``None`` for any other text."""
        match = self._pattern.fullmatch(_plain(source))
        if match is None:
            return None
        found = match.groupdict()
        choices = []
        for knob in self.knobs:
            fitting = [
                option
                for option, texts in knob.options.items()
                if all(_plain_slot(found[slot]) == texts.get(slot, "").strip() for slot in knob.slots)
            ]
            if not fitting:
                return None
            choices.append((knob.name, fitting[0]))
        return Design(self.name, tuple(choices))


def _own_line(line: str, text: str) -> str:
    indent = line[: len(line) - len(line.lstrip(" "))]
    return "".join(f"{indent}{part}\n" if part.strip() else "\n" for part in text.splitlines())


def _line_pattern(line: str, texts: Mapping[str, set[str]], seen: set[str]) -> str:
    own = _OWN_LINE.fullmatch(line)
    if own:
        return _slot_pattern(own[1], [_own_line(line, text) for text in texts[own[1]]], seen)
    parts, end = [], 0
    for slot in _SLOT.finditer(line):
        parts += [re.escape(line[end : slot.start()]), _slot_pattern(slot[1], list(texts[slot[1]]), seen)]
        end = slot.end()
    return "".join(parts) + re.escape(line[end:])


def _slot_pattern(slot: str, texts: Sequence[str], seen: set[str]) -> str:
    if slot in seen:
        return f"(?P={slot})"
    seen.add(slot)
    return f"(?P<{slot}>{'|'.join(re.escape(text) for text in sorted(texts, key=len, reverse=True))})"


def _plain(source: str) -> str:
    """Without what hosts change: white space at the ends of lines, and around the whole."""
    return "\n".join(line.rstrip() for line in source.strip().splitlines()) + "\n"


def _plain_slot(text: str) -> str:
    """A slot's text as its option has it: without the indentation of the slot."""
    lines = text.splitlines()
    indent = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines).strip()


class Space:
    """All sources of a task's families."""

    def __init__(self, families: Sequence[Family], start: Design) -> None:
        """Make a space.

        Args:
            families: each with a name of its own.
            start: the design of the initial program.
        """
        self.families = {family.name: family for family in families}
        self.start = start

    @property
    def size(self) -> int:
        """How many sources without a mistake there are."""
        return sum(family.size for family in self.families.values())

    def write(self, design: Design) -> str:
        """The source of a design."""
        return self.families[design.family].write(design)

    def read(self, source: str) -> Design | None:
        """The design of a source; ``None`` where no family writes it."""
        found = (family.read(source) for family in self.families.values())
        return next((design for design in found if design is not None), None)

    def one_of_each(self) -> Iterator[Design]:
        """The usual design of every family, and each with one other option: whatever a template can be filled with."""
        for family in self.families.values():
            usual = family.design()
            yield usual
            for knob in family.knobs:
                yield from (usual.with_option(knob.name, option) for option in list(knob.options)[1:])
