"""Residual add, LayerNorm and GELU of bfloat16 rows, in one operation.

A kernel source defines ``run(x, residual, weight, bias)`` with x and residual [rows, hidden], weight and bias [hidden],
all bfloat16, and returns ``gelu(layer_norm(x + residual) * weight + bias)`` and ``x + residual``, both bfloat16.
"""

import torch

ENTRY_POINT = "run"
SHAPES = {
    "cuda": [{"rows": 8192, "hidden": 4096}, {"rows": 16384, "hidden": 1536}],
    "cpu": [{"rows": 3, "hidden": 96}],
}
EPS = 1e-5


def inputs(shape, device, seed):
    """Rows whose magnitudes and means differ, so that a wrong epsilon or a lost mean shows."""
    generator = torch.Generator(device=device).manual_seed(seed)
    rows, hidden = shape["rows"], shape["hidden"]
    scale = 10 ** (torch.rand(rows, 1, device=device, generator=generator) * 3 - 2)
    x = (torch.randn(rows, hidden, device=device, generator=generator) + 0.5) * scale
    residual = torch.randn(rows, hidden, device=device, generator=generator) * scale
    weight = 1 + 0.2 * torch.randn(hidden, device=device, generator=generator)
    bias = 0.3 * torch.randn(hidden, device=device, generator=generator)
    return tuple(tensor.to(torch.bfloat16) for tensor in (x, residual, weight, bias))


def make_inputs():
    """What the compiler's dry run calls a candidate with (``surrogate.screen.task_file``)."""
    return [inputs(shape, "cuda", 0) for shape in SHAPES["cuda"]]


def reference(x, residual, weight, bias):
    """Both outputs in float32."""
    total = x.float() + residual.float()
    normed = torch.nn.functional.layer_norm(total, total.shape[-1:], weight.float(), bias.float(), EPS)
    return torch.nn.functional.gelu(normed), total


def check(outputs, expected, arguments):
    """Raise AssertionError where an output is wrong."""
    assert len(outputs) == 2, f"{len(outputs)} outputs instead of 2"
    for output, want in zip(outputs, expected, strict=True):
        assert output.dtype == torch.bfloat16, f"an output is {output.dtype}"
        torch.testing.assert_close(output.float(), want, rtol=0.02, atol=0.015)
