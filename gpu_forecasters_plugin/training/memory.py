"""How long a prompt a GPU's memory holds while an adapter of a large model is trained, worked out from its shapes.

Counted is what grows with model and prompt: weights, the adapter with its optimiser, what checkpointed activations keep
and the layer that is computed again, with attention's scores as transformers computes them for models with attention
sinks, such as gpt-oss: every pair of tokens, several times. The rest has a share of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["GPT_OSS_20B", "Architecture", "longest_prompt", "training_bytes"]

_BFLOAT16 = 2
_ADAPTER_BYTES = 16
"""Of each adapted weight: itself, its gradient and Adam's two moments, in float32."""
_SCORE_COPIES = 7
"""Scores of a layer at once: raw, with sinks, less their maximum and as probabilities; and gradients of three."""
_RESERVE = 0.1
"""Share of the memory for kernels' workspaces, fragments and the CUDA context."""


@dataclass(frozen=True)
class Architecture:
    """A transformer with a mixture of experts; one expert, and one active, without.

    Attributes:
        parameters: of the whole model, in billions.
        layers: of the transformer.
        hidden: width.
        heads: of attention.
        head_size: of each.
        key_heads: heads of keys and values.
        active_experts: of each token.
        expert_width: inner width of an expert.
    """

    parameters: float
    layers: int
    hidden: int
    heads: int
    head_size: int
    key_heads: int
    active_experts: int
    expert_width: int

    @property
    def attention_lora(self) -> int:
        """Weights of an adapter of rank 1 of the four projections of attention."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        return self.layers * (2 * (self.hidden + queries) + 2 * (self.hidden + keys))


GPT_OSS_20B = Architecture(20.9, 24, 2880, 64, 64, 8, 4, 2880)
"""Its configuration; in bfloat16, since no gradient goes through its four-bit weights."""


def training_bytes(model: Architecture, tokens: int, rank: int) -> float:
    """Memory that one prompt takes while it is trained on, with checkpointed activations, weights included.

    Args:
        model: whose attention is adapted.
        tokens: of the prompt with its answer.
        rank: of the adapter.
    """
    weights = model.parameters * 1e9 * _BFLOAT16
    adapter = model.attention_lora * rank * _ADAPTER_BYTES
    kept = model.layers * model.hidden * _BFLOAT16
    # An expert's two inner vectors, their product and its output; once for the values and once for their gradients.
    again = 2 * model.active_experts * (3 * model.expert_width + model.hidden) * _BFLOAT16
    again += 2 * (2 * model.heads + 2 * model.key_heads) * model.head_size * _BFLOAT16
    scores = _SCORE_COPIES * model.heads * _BFLOAT16
    return weights + adapter + tokens * (kept + again) + tokens**2 * scores


def longest_prompt(model: Architecture, gigabytes: float, rank: int) -> int:
    """Most tokens of a prompt with its answer that fit; 0 where the model alone does not.

    Args:
        model: whose attention is adapted.
        gigabytes: of the GPU, in powers of ten.
        rank: of the adapter.
    """
    room = gigabytes * 1e9 * (1.0 - _RESERVE)
    if training_bytes(model, 0, rank) > room:
        return 0
    linear = training_bytes(model, 1, rank) - training_bytes(model, 0, rank)
    square = _SCORE_COPIES * model.heads * _BFLOAT16
    linear -= square
    left = room - training_bytes(model, 0, rank)
    return int((math.sqrt(linear**2 + 4 * square * left) - linear) / (2 * square))
