"""Answers of a model under training, drawn token by token.

All answers to a question begin with it, so it is read once, and its keys and values are held once, however many answers
there are. On a GPU the step from one token to the next is recorded as a CUDA graph: the kernels of a small model are so
short that starting them takes longer than they do. Models whose layers see a part of the text only, such as gpt-oss,
are asked by transformers' own ``generate``.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpu_forecasters_plugin.errors import TrainingError
from gpu_forecasters_plugin.training.examples import right_padded
from gpu_forecasters_plugin.training.shared_cache import SharedCache, answers_attend

__all__ = ["Drawing", "drawn_answers", "merged", "sees_everything"]

_LOOK_EVERY = 8
"""Tokens between two looks at whether all answers have ended, each of which waits for the GPU."""
_NOT_FINITE = (
    "answers can no longer be drawn, since the model's logits are not finite: lower learning_rate or set dtype: "
    "float32; the checkpoints before are kept"
)


@dataclass(frozen=True)
class Drawing:
    """How answers are drawn.

    Attributes:
        max_tokens: longest answer.
        ends: tokens that end an answer, kept as its last.
        pad_id: token to pad with.
        temperature: of the sampling, over all tokens; 0 takes the likeliest one.
        graph: whether a GPU's steps are recorded.
    """

    max_tokens: int
    ends: frozenset[int]
    pad_id: int
    temperature: float = 1.0
    graph: bool = True


def drawn_answers(
    model: Any, questions: Sequence[Sequence[int]], times: int, how: Drawing
) -> list[list[int]]:
    """The tokens of ``times`` answers to each question; those to one question follow each other.

    Args:
        model: from PEFT; afterwards as it was, its mode included.
        questions: tokens, two at least.
        times: answers to each.
        how: they are drawn.

    Raises:
        TrainingError: the model's logits are not finite.
    """
    import torch

    training = model.training
    model.eval()
    try:
        with merged(model), torch.no_grad():
            draw = _from_shared_questions if sees_everything(model) else _from_copied_questions
            tokens = draw(model, questions, times, how)
    finally:
        model.train(training)
    return [_until_end(answer, how.ends) for answer in tokens]


def sees_everything(model: Any) -> bool:
    """Whether every layer attends to all that stands before, by an attention that a mask or another can replace."""
    config = model.config
    kinds = getattr(config, "layer_types", None)
    whole = all(kind == "full_attention" for kind in kinds) if kinds else not _window(config)
    return bool(whole and config._attn_implementation == "sdpa")


def _window(config: Any) -> bool:
    return getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """The model with its adapter's updates added to its weights, which are put back bit for bit.

    A third of the kernels that a token takes otherwise; the adapted weights are held twice meanwhile.
    """
    # Experts are parameters of a layer and no layers of their own.
    adapted = [
        (module.get_base_layer(), getattr(module, "parameter_name", "weight"))
        for module in model.modules()
        if hasattr(module, "base_layer")
    ]
    kept = [getattr(layer, name).data for layer, name in adapted]
    for layer, name in adapted:
        getattr(layer, name).data = getattr(layer, name).data.clone()
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()
        for (layer, name), values in zip(adapted, kept, strict=True):
            getattr(layer, name).data = values


def _from_shared_questions(
    model: Any, questions: Sequence[Sequence[int]], times: int, how: Drawing
) -> list[list[int]]:
    import torch

    # The last token of a question is the first that each answer's own steps read.
    ids = right_padded([question[:-1] for question in questions], how.pad_id).to(model.device)
    read = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    lengths = torch.tensor([len(question) - 1 for question in questions], device=model.device)
    last = torch.tensor([question[-1] for question in questions], device=model.device)
    cache = SharedCache(read, lengths, times, how.max_tokens)
    with answers_attend(model):
        return _Steps(
            model, cache, last.repeat_interleave(times), lengths.repeat_interleave(times), how
        ).run()


class _Steps:
    """The answers to all questions, one token of each at a time."""

    def __init__(self, model: Any, cache: SharedCache, last: Any, positions: Any, how: Drawing) -> None:
        import torch

        self._model, self._cache, self._how = model, cache, how
        known = inspect.signature(type(model.get_base_model()).forward).parameters
        self._reads_from = "cache" if "cache" in known else "past_key_values"  # before transformers 5.24
        count, device = len(last), last.device
        self._first = (last[:, None], positions[:, None])
        self._token, self._position = (values.clone() for values in self._first)
        self._done = torch.zeros(count, dtype=torch.bool, device=device)
        self._finite = torch.ones((), dtype=torch.bool, device=device)
        self._ends = torch.tensor(sorted(how.ends), device=device)
        self._tokens = torch.full((count, how.max_tokens), how.pad_id, device=device)

    def run(self) -> list[list[int]]:
        step = self._step
        if self._how.graph and self._tokens.is_cuda:
            step = _recorded(self._step)
            self._begin()
        for number in range(self._how.max_tokens):
            step()
            if number % _LOOK_EVERY == _LOOK_EVERY - 1 and bool(self._done.all()):
                break
        if not bool(self._finite):
            raise TrainingError(_NOT_FINITE)
        found: list[list[int]] = self._tokens.tolist()
        return found

    def _begin(self) -> None:
        """As before any step."""
        for values, first in zip((self._token, self._position), self._first, strict=True):
            values.copy_(first)
        self._done.zero_()
        self._finite.fill_(True)
        self._cache.step.zero_()
        self._tokens.fill_(self._how.pad_id)

    def _step(self) -> None:
        """Everything stays where it is in memory, and nothing is decided by the processor, as a recording needs."""
        import torch

        output = self._model(
            input_ids=self._token,
            position_ids=self._position,
            use_cache=True,
            **{self._reads_from: self._cache},
        )
        logits = output.logits[:, -1].float()
        self._finite.logical_and_(logits.isfinite().all())
        if self._how.temperature:
            # The largest sum of a logit and Gumbel noise is a draw from the soft-max.
            noise = torch.empty_like(logits).exponential_().log_()
            logits = logits / self._how.temperature - noise
        drawn = torch.where(self._done, self._how.pad_id, logits.argmax(dim=-1))[:, None]
        self._tokens.index_copy_(1, self._cache.step, drawn)
        self._done.logical_or_((drawn == self._ends).any(dim=1))
        self._token.copy_(drawn)
        self._position.add_(1)
        self._cache.step.add_(1)


def _recorded(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph; as it is where it cannot be recorded."""
    import torch

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # what is chosen and allocated at first use only must not be recorded
            step()
        graph = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                step()
            finally:
                graph.capture_end()
        except RuntimeError as error:
            torch.cuda.synchronize()
            warnings.warn(f"answers are drawn without a CUDA graph: {error}", RuntimeWarning, stacklevel=2)
            return step
    torch.cuda.current_stream().wait_stream(stream)
    replay: Callable[[], None] = graph.replay
    return replay


def _from_copied_questions(
    model: Any, questions: Sequence[Sequence[int]], times: int, how: Drawing
) -> list[list[int]]:
    import torch

    longest = max(map(len, questions))
    ids = torch.tensor([[how.pad_id] * (longest - len(q)) + list(q) for q in questions], device=model.device)
    mask = torch.tensor([[0] * (longest - len(q)) + [1] * len(q) for q in questions], device=model.device)
    sampling: dict[str, Any] = {"do_sample": False}
    if how.temperature:
        sampling = {"do_sample": True, "temperature": how.temperature, "top_k": 0, "top_p": 1.0}
    try:
        sequences = model.generate(
            input_ids=ids.repeat_interleave(times, dim=0),
            attention_mask=mask.repeat_interleave(times, dim=0),
            max_new_tokens=how.max_tokens,
            eos_token_id=sorted(how.ends),
            pad_token_id=how.pad_id,
            **sampling,
        )
    except RuntimeError as error:
        if "probability tensor contains either" not in str(error):
            raise
        raise TrainingError(_NOT_FINITE) from None
    found: list[list[int]] = sequences[:, longest:].tolist()
    return found


def _until_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """The tokens of one answer up to the one that ends it."""
    end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]
