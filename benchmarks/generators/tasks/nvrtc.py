"""Sources in CUDA C++ that are built when they are imported, without the headers of PyTorch.

NVRTC builds a kernel within a second, an extension of PyTorch takes half a minute: where sources are many, this is how
most of them are built.
"""

from __future__ import annotations

from benchmarks.generators.text import fill

MODULE = '''
import torch

SOURCE = r"""
@kernels@
"""

@handles@


@run@
'''


def nvrtc_module(kernels: str, run: str, *entries: str) -> str:
    """Returns a module that builds `kernels` and defines `run`.

    Args:
        kernels: CUDA C++ with the ``extern "C" __global__`` functions.
        run: The text of the function ``run``, which launches a kernel by its name, as in
            ``scan((blocks, 1, 1), (256, 1, 1), [x, y, n])``; numbers become ``int`` or ``double``.
        entries: The names of the kernels that `run` launches.
    """
    handles = "\n".join(f'{name} = torch.cuda._compile_kernel(SOURCE, "{name}")' for name in entries)
    return fill(MODULE, kernels=kernels.strip("\n"), handles=handles, run=run.strip("\n"))
