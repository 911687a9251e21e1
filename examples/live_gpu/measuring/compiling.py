"""Compiles a Triton program's kernels ahead of its first launch, without touching the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["compile_ahead"]

_ALIGNED_ADDRESS = 1 << 20
_DRY = ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedOperatorException")
"""Raised where a program looks at values of a tensor that has none: the rest is compiled at its first launch."""


def compile_ahead(program: ModuleType, arguments: Sequence[tuple[Any, ...]]) -> None:
    """Call ``program.run`` with tensors that have shapes and types but no values, and compile what it launches.

    The kernels stay in the program's memory, so a later call with real tensors finds them ready.

    Args:
        program: the imported candidate.
        arguments: tensors for each of the calls.

    Raises:
        Exception: whatever the program or the compiler raises.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triton.runtime.autotuner import Autotuner

    with _launches_compile():
        for call in arguments:
            with FakeTensorMode(allow_non_fake_inputs=False) as mode:
                try:
                    program.run(*(mode.from_tensor(tensor) for tensor in call))
                except Exception as error:
                    if type(error).__name__ not in _DRY:
                        raise
    for value in vars(program).values():
        if isinstance(value, Autotuner):
            value.cache.clear()  # it has tried nothing yet


@contextmanager
def _launches_compile() -> Iterator[None]:
    """Meanwhile every launch is a compilation, and a tuner compiles all of its configurations."""
    from torch._subclasses.fake_tensor import FakeTensor
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    run, bench, own_address = JITFunction.run, Autotuner._bench, vars(FakeTensor).get("data_ptr")

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    def compile_configuration(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        try:
            self.fn.run(*args, **dict(meta, **config.all_kwargs()))
        except Exception:
            return [float("inf")] * 3  # a tuner leaves out what does not compile
        return [1.0] * 3

    def address(tensor: Any) -> int:
        # Aligned as the allocator's blocks are, so that kernels are specialised as they will be.
        return _ALIGNED_ADDRESS + tensor.storage_offset() * tensor.element_size()

    JITFunction.run, Autotuner._bench = compile_only, compile_configuration
    FakeTensor.data_ptr = address
    try:
        yield
    finally:
        JITFunction.run, Autotuner._bench = run, bench
        if own_address is None:
            del FakeTensor.data_ptr
        else:
            FakeTensor.data_ptr = own_address
