"""Changes of a kernel, small and large, right and wrong, as a language model's are."""

from __future__ import annotations

import random

from proposing.space import MISTAKE, RIGHT, Design, Knob, Space

__all__ = ["mutated"]

OTHER_FAMILY = 0.15
"""Share of the changes that rewrite the kernel as another algorithm."""

MISTAKES = 0.10
"""Share of the changes that put a mistake in."""

_CHANGED_KNOBS = (1, 1, 1, 2, 2, 3)
_NEXT_SIZE = 0.6
"""Share of the changed numbers that go to the next larger or smaller one."""


def mutated(space: Space, parent: Design, rng: random.Random) -> Design:
    """A design that differs from its parent: in one to three choices, or in the algorithm.

    A mistake of the parent's is mended, mostly.
    """
    while True:
        child = (
            _rewritten(space, parent, rng) if rng.random() < OTHER_FAMILY else _changed(space, parent, rng)
        )
        if child != parent:
            return child


def _changed(space: Space, parent: Design, rng: random.Random) -> Design:
    family = space.families[parent.family]
    knobs = [knob for knob in family.knobs if knob.name != MISTAKE]
    child = parent
    for knob in rng.sample(knobs, min(rng.choice(_CHANGED_KNOBS), len(knobs))):
        child = child.with_option(knob.name, _other_option(knob, child.option(knob.name), rng))
    return _with_mistake(child, family.knob(MISTAKE), rng)


def _rewritten(space: Space, parent: Design, rng: random.Random) -> Design:
    """Another family; what it has in common with the parent's stays mostly, the rest is as usual or by chance."""
    family = space.families[rng.choice([name for name in space.families if name != parent.family])]
    options = {}
    for knob in family.knobs:
        kept = parent.option(knob.name)
        if knob.name == MISTAKE:
            continue
        if kept in knob.options and rng.random() < 0.8:
            options[knob.name] = kept
        elif rng.random() < 0.5:
            options[knob.name] = rng.choice(list(knob.options))
    return _with_mistake(family.design(**options), family.knob(MISTAKE), rng)


def _with_mistake(child: Design, knob: Knob | None, rng: random.Random) -> Design:
    if knob is None:
        return child
    wrong = [option for option in knob.options if option != RIGHT]
    return child.with_option(MISTAKE, rng.choice(wrong) if rng.random() < MISTAKES else RIGHT)


def _other_option(knob: Knob, present: str | None, rng: random.Random) -> str:
    others = [option for option in knob.options if option != present]
    if present is not None and all(option.isdigit() for option in knob.options) and rng.random() < _NEXT_SIZE:
        sizes = sorted(knob.options, key=int)
        place = sizes.index(present)
        others = [sizes[near] for near in (place - 1, place + 1) if 0 <= near < len(sizes)]
    return rng.choice(others)
