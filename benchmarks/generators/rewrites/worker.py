"""A process that builds all sources of one module, checks them and, when it is told to, times them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.generators.candidate import imported
from benchmarks.generators.rewrites.sources import REFERENCE, Source

ROUNDS = 3
WARM_UP = 3
CALLS = 20
FEW_CALLS = 5
SLOW_MS = 10.0
TOLERANCE = 2e-2
METHOD = (
    f"CUDA events around each call after the GPU has gone idle, so that launches count as they do for a caller who "
    f"waits; L2 as the call before left it; median of {CALLS} calls after {WARM_UP}, of {FEW_CALLS} where one takes "
    f"over {SLOW_MS:.0f} ms; {ROUNDS} rounds over all rewrites of a module and its reference, in one process; "
    f"evaluation mode without gradients; right if the norm of the error is below {TOLERANCE} of the result's"
)


@dataclass
class _Built:
    """A source that is right, as something to call, with the flags of PyTorch that it has set."""

    source: Source
    call: Callable[[], Any]
    flags: tuple[Any, ...]


class _NotBuiltError(Exception):
    """A source could not be imported, or its module could not be made."""


class _WrongError(Exception):
    """The output of a source is not its module's."""


_OUTCOMES: dict[type[Exception], str] = {_NotBuiltError: "compile_error", _WrongError: "incorrect"}


def work(sources: Sequence[Source], folder: Path, told: Connection) -> None:
    """Says ``("at", name)`` before each source is built, ``("ready", rows)`` after the last, and waits.

    Rows are of sources that are not right. Whatever comes then makes it time the others and say ``("timed", rows)``.
    """
    import torch

    torch.set_grad_enabled(False)
    folder.mkdir(parents=True, exist_ok=True)
    plain = _flags()
    built: list[_Built] = []
    failed: list[dict[str, Any]] = []
    expected: Any = None
    for source in sources:
        told.send(("at", source.name))
        _set_flags(plain)
        try:
            one, found = _build(source, folder)
            if expected is None:
                expected = found.clone()
            _compare(found, expected)
        except Exception as error:
            if source.name == REFERENCE:
                raise
            failed.append(_row(source, _OUTCOMES.get(type(error), "runtime_error"), error.__cause__ or error))
            continue
        built.append(one)
    told.send(("ready", failed))
    told.recv()
    times: dict[str, list[float]] = {one.source.name: [] for one in built}
    for _ in range(ROUNDS):
        for one in built:
            _set_flags(one.flags)
            times[one.source.name].append(_median_us(one.call))
    reference = times[REFERENCE]
    rows = [
        {**_row(one.source, "ok"), "time_us": times[one.source.name], "reference_us": reference}
        for one in built
    ]
    told.send(("timed", rows))


def _build(source: Source, folder: Path) -> tuple[_Built, Any]:
    """A source as something to call, and what it puts out."""
    try:
        model, inputs = _load(source, folder)
    except Exception as error:
        raise _NotBuiltError from error
    flags = _flags()
    return _Built(source, lambda: model(*inputs), flags), _twice(model, inputs)


def _compare(found: Any, expected: Any) -> None:
    """Raises where they differ by more than rounding."""
    if found.shape != expected.shape:
        raise _WrongError(f"shape {tuple(found.shape)} in place of {tuple(expected.shape)}")
    distance = float((found.double() - expected.double()).norm())
    size = float(expected.double().norm())
    if not distance <= TOLERANCE * size:
        raise _WrongError(f"error of {distance:.3g} in {size:.3g}")


def _row(source: Source, outcome: str, error: BaseException | None = None) -> dict[str, Any]:
    said = {} if error is None else {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"module": source.module, "name": source.name, "sha": source.sha, "outcome": outcome, **said}


def _load(source: Source, folder: Path) -> tuple[Any, tuple[Any, ...]]:
    """The module on the GPU in evaluation mode, and its inputs."""
    import torch

    space: Any = imported(f"rewrite_{source.module}_{source.name}", source.code, folder)
    torch.manual_seed(0)
    model = getattr(space, "ModelNew", None) or space.Model
    built = model(*space.get_init_inputs()).eval().cuda()
    torch.manual_seed(1)
    return built, tuple(value.cuda() for value in space.get_inputs())


def _twice(model: Any, inputs: tuple[Any, ...]) -> Any:
    """The output of a second call, as what a first one captures is replayed by the next."""
    import torch

    model(*(value.clone() for value in inputs))
    found = model(*inputs)
    torch.cuda.synchronize()
    return found


def _median_us(call: Callable[[], Any]) -> float:
    import torch

    for _ in range(WARM_UP):
        took = _call_ms(call)
    calls = FEW_CALLS if took > SLOW_MS else CALLS
    torch.cuda.synchronize()
    return 1000.0 * statistics.median(_call_ms(call) for _ in range(calls))


def _call_ms(call: Callable[[], Any]) -> float:
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _flags() -> tuple[Any, ...]:
    import torch

    cudnn = torch.backends.cudnn
    return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark


def _set_flags(flags: tuple[Any, ...]) -> None:
    import torch

    precision, allow, benchmark = flags
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = allow
    torch.backends.cudnn.benchmark = benchmark
