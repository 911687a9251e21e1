"""``python -m benchmarks.generators.rewrites.check NAME``: do rewrites compute what their module does, on a CPU?

Those with a kernel of their own are only compiled as Python.
"""

from __future__ import annotations

import sys
import time

import torch

from benchmarks.generators.rewrites.module import Rewritten
from benchmarks.generators.rewrites.sources import REFERENCE, module_named


def check(module: Rewritten) -> list[str]:
    """A line per body that is wrong, after a line on stdout for each."""
    wrong = []
    expected: torch.Tensor | None = None
    for name, body in {REFERENCE: module.reference, **module.rewrites}.items():
        source = module.source(body, "Model" if name == REFERENCE else "ModelNew")
        code = compile(source, name, "exec")
        if body.needs_gpu:
            print(f"  {name}: needs a GPU")
            continue
        try:
            started = time.perf_counter()
            found = outputs_of(code)
            seconds = time.perf_counter() - started
            if expected is None:
                expected = found
            error = float((found - expected).norm() / expected.norm())
            said = f"{name}: {tuple(found.shape)}, error {error:.1e}, {seconds:.2f} s"
            fine = found.shape == expected.shape and error < 1e-4
        except Exception as caught:
            said, fine = f"{name}: {type(caught).__name__}: {caught}", False
        print(f"  {said}" + ("" if fine else "   WRONG"))
        if not fine:
            wrong.append(f"{module.name} {said}")
    return wrong


@torch.no_grad()
def outputs_of(code: object) -> torch.Tensor:
    """The one output of a source's module on its inputs, in evaluation mode."""
    space: dict[str, object] = {"__name__": "source"}
    exec(code, space)  # noqa: S102
    model = space.get("ModelNew") or space["Model"]
    torch.manual_seed(0)
    built = model(*space["get_init_inputs"]()).eval()  # type: ignore[operator]
    torch.manual_seed(1)
    return built(*space["get_inputs"]())  # type: ignore[operator]


if __name__ == "__main__":
    failed = []
    for asked in sys.argv[1:]:
        print(asked)
        failed += check(module_named(asked))
    sys.exit("\n".join(failed) or 0)
