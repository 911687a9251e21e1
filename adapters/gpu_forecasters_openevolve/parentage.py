"""Which program a proposal was derived from: OpenEvolve does not tell an evaluator, but its prompts say it.

A worker of the host makes one proposal at a time: it builds the prompt from the parent, asks the language model, and
calls the evaluator. So who has listened to the public ``PromptSampler.build_prompt`` knows the parent of what is
evaluated next in this process. Where that is not called, candidates come without a parent, and rules do without.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from openevolve.prompt.sampler import PromptSampler

__all__ = ["current_parent", "listen_for_parents"]

_parent: str | None = None


def listen_for_parents() -> None:
    """Remember the parent of every prompt that this process builds from now on; again is no more than once."""
    original = PromptSampler.build_prompt
    if getattr(original, "_tells_parent", False):
        return

    @wraps(original)
    def build_prompt(self: PromptSampler, *arguments: Any, **named: Any) -> Any:
        global _parent
        # The host's prompts that judge a program, rather than ask for a new one, have no parent.
        _parent = named.get("parent_program") or _parent
        return original(self, *arguments, **named)

    build_prompt._tells_parent = True  # type: ignore[attr-defined]
    PromptSampler.build_prompt = build_prompt  # type: ignore[method-assign]


def current_parent() -> str | None:
    """Source of the program that this process's proposal was derived from, if it is known."""
    return _parent
