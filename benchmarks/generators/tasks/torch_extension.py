"""Text of CUDA C++ sources that have PyTorch build an extension, which takes half a minute: for a few of a pool."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.generators.pool import KEY_HASH
from benchmarks.generators.text import fill

_MODULE = """
import torch
from torch.utils.cpp_extension import load_inline

CUDA_SOURCE = r'''
@kernel@

torch::Tensor @name@(@parameters@) {
@launch@
}
'''

extension = load_inline(
    name="@name@_@hash@",
    cpp_sources="torch::Tensor @name@(@parameters@);",
    cuda_sources=CUDA_SOURCE,
    functions=["@name@"],
    extra_cuda_cflags=["-O3"],
)


def run(@arguments@):
    return extension.@name@(@arguments@)
"""


@dataclass(frozen=True)
class Extension:
    """The C++ function of an extension that takes tensors alone and returns one.

    Attributes:
        name: Its name.
        arguments: Its tensors, separated by ``, ``.
    """

    name: str
    arguments: str

    def module(self, kernel: str, launch: str) -> str:
        """The whole source, from the device code and the body of the function.

        Its extension is named after `KEY_HASH`, since no two sources may share a name.
        """
        parameters = ", ".join(f"torch::Tensor {name}" for name in self.arguments.split(", "))
        return fill(
            _MODULE,
            kernel=kernel.strip("\n"),
            name=self.name,
            hash=KEY_HASH,
            parameters=parameters,
            launch=launch.strip("\n"),
            arguments=self.arguments,
        )
