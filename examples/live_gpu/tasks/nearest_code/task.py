"""The nearest of many codes to each vector, as in vector quantisation.

A kernel source defines ``run(x, codes)`` with x [rows, width] and codes [count, width], both float16, and returns the
index of the code nearest to each row (int32 or int64) and the squared distance to it (float32). Of codes that are
equally near, any will do.
"""

import torch

ENTRY_POINT = "run"
SHAPES = {
    "cuda": [{"rows": 16384, "count": 4096, "width": 128}, {"rows": 65536, "count": 1024, "width": 64}],
    "cpu": [{"rows": 6, "count": 72, "width": 64}],
}


def inputs(shape, device, seed):
    """Vectors scattered around the codes."""
    generator = torch.Generator(device=device).manual_seed(seed)
    rows, count, width = shape["rows"], shape["count"], shape["width"]
    codes = torch.randn(count, width, device=device, generator=generator)
    near = torch.randint(count, (rows,), device=device, generator=generator)
    x = codes[near] + 0.7 * torch.randn(rows, width, device=device, generator=generator)
    return x.to(torch.float16), codes.to(torch.float16)


def make_inputs():
    """What the compiler's dry run calls a candidate with (``surrogate.screen.task_file``)."""
    return [inputs(shape, "cuda", 0) for shape in SHAPES["cuda"]]


def reference(x, codes):
    """Smallest squared distance of each row, in float32."""
    wide, table = x.float(), codes.float()
    tables = (wide.square().sum(1, keepdim=True) - 2.0 * wide @ table.T) + table.square().sum(1)
    index = tables.argmin(1)
    return ((wide - table[index]).square().sum(1),)


def check(outputs, expected, arguments):
    """Raise AssertionError where an output is wrong."""
    assert len(outputs) == 2, f"{len(outputs)} outputs instead of 2"
    (x, codes), (index, distance) = arguments, outputs
    assert index.dtype in (torch.int32, torch.int64), f"the index is {index.dtype}"
    assert distance.dtype == torch.float32, f"the distance is {distance.dtype}"
    assert index.shape == distance.shape == x.shape[:1], f"outputs of {index.shape} and {distance.shape}"
    assert bool(((index >= 0) & (index < len(codes))).all()), "an index is not that of a code"
    chosen = (x.float() - codes[index.long()].float()).square().sum(1)
    torch.testing.assert_close(chosen, expected[0], rtol=2e-3, atol=2e-2)
    torch.testing.assert_close(distance, expected[0], rtol=2e-3, atol=2e-2)
