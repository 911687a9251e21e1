"""Changes that any module of PyTorch can be given, whatever it computes: precision, capture, layout, bookkeeping."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.generators.rewrites.module import Body, Rewritten, flush
from benchmarks.generators.text import fill, joined

Change = Callable[[Rewritten, Body], Body]

_METHOD = """
def @inner@(self, @takes@):
    @forward@
"""
_CAPTURE = """
def _capture(self, @takes@):
    self.static_inputs = [value.clone() for value in (@takes@,)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            self.@inner@(*self.static_inputs)
    torch.cuda.current_stream().wait_stream(stream)
    self.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(self.graph):
        self.static_output = self.@inner@(*self.static_inputs)
"""
_REPLAY = """
if self.graph is None:
    self._capture(@takes@)
@copies@
self.graph.replay()
return self.static_output@copy@
"""
_AUTOCAST = """
with torch.autocast(device_type="cuda", dtype=torch.@kind@):
    out = self.@inner@(@takes@)
return out.float()
"""
_HALF_WHERE_POSSIBLE = """
if self.use_half:
    return self.@inner@(@halves@).to(torch.float32)
return self.@inner@(@takes@)
"""
_TRACE = """
if self.traced is None:
    self.traced = torch.jit.trace(lambda *values: self.@inner@(*values), (@takes@,), check_trace=False)
return self.traced(@takes@)
"""
_SIDE_STREAM = """
self.stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(self.stream):
    out = self.@inner@(@takes@)
torch.cuda.current_stream().wait_stream(self.stream)
return out
"""
_PREPARE = """
def _prepare(self, value):
    if not torch.is_tensor(value):
        raise TypeError("expected a tensor")
    if not value.is_cuda:
        return value.contiguous()
    if not value.is_contiguous():
        value = value.contiguous()
    if value.requires_grad and not self.training:
        value = value.detach()
    return value
"""
_CHECKED = """
@prepared@
try:
    return self.@inner@(@takes@)
except RuntimeError:
    torch.cuda.empty_cache()
    return self.@inner@(@takes@)
"""
_TF32 = """
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
"""
_BENCHMARK = """
# Let cuDNN look for the fastest algorithm.
torch.backends.cudnn.benchmark = True
"""


def _coin(*texts: str) -> bool:
    return hashlib.sha256("/".join(texts).encode()).digest()[0] % 2 == 0


def _each(module: Rewritten, line: str) -> str:
    """A line for every input, whose name and place stand in it as {0} and {1}."""
    return "\n".join(line.format(name, place) for place, name in enumerate(module.inputs_taken))


def _wrapped(
    module: Rewritten, body: Body, forward: str, *, init: str = "", methods: str = "", **slots: str
) -> Body:
    """What a body did becomes a method, which the new `forward` calls as ``self.@inner@(@takes@)``."""
    inner = next(name for name in ("_compute", "_forward", "_impl") if f"def {name}(" not in body.methods)
    slots |= {"inner": inner, "takes": module.takes}
    method = fill(_METHOD, **slots, forward=flush(body.forward))
    return replace(
        body,
        init=joined(flush(body.init or module.reference.init), fill(init, **slots)),
        methods="\n\n".join(filter(None, (flush(body.methods), method, fill(methods, **slots)))),
        forward=fill(forward, **slots),
    )


def _preceded(body: Body, lines: str) -> Body:
    return replace(body, before=joined(flush(body.before), flush(lines)))


def autocast(module: Rewritten, body: Body) -> Body:
    """Mixed precision over all of it."""
    return _wrapped(module, body, _AUTOCAST, kind="float16" if _coin(module.name) else "bfloat16")


def half(module: Rewritten, body: Body) -> Body:
    """Parameters, inputs and everything between in half precision."""
    halves = ", ".join(f"{name}.half()" for name in module.inputs_taken)
    if _coin(module.name, body.text):
        return _wrapped(
            module, body, "return self.@inner@(@halves@).float()", init="self.half()", halves=halves
        )
    init = "self.use_half = torch.cuda.is_available()\nif self.use_half:\n    self.to(torch.float16)"
    return _wrapped(module, body, _HALF_WHERE_POSSIBLE, init=init, halves=halves)


def tensor_float(module: Rewritten, body: Body) -> Body:
    """Products of matrices on the tensor cores, in TF32."""
    flags = _TF32 if _coin(module.name, "tf32") else 'torch.set_float32_matmul_precision("high")'
    return _preceded(body, flags)


def benchmarked(module: Rewritten, body: Body) -> Body:
    """The algorithms of cuDNN are tried first."""
    return _preceded(body, _BENCHMARK)


def captured(module: Rewritten, body: Body) -> Body:
    """A CUDA graph, captured at the first call and replayed afterwards."""
    copies = _each(module, "self.static_inputs[{1}].copy_({0})")
    copy = "" if _coin(module.name, "kept") else ".clone()"
    return _wrapped(
        module, body, _REPLAY, init="self.graph = None", methods=_CAPTURE, copies=copies, copy=copy
    )


def compiled(module: Rewritten, body: Body) -> Body:
    """What torch.compile makes of it."""
    init = "self.compiled = torch.compile(self.@inner@)"
    return _wrapped(module, body, "return self.compiled(@takes@)", init=init)


def compiled_and_captured(module: Rewritten, body: Body) -> Body:
    """What torch.compile makes of it, in CUDA graphs of its own."""
    init = 'self.compiled = torch.compile(self.@inner@, mode="reduce-overhead")'
    return _wrapped(module, body, "return self.compiled(@takes@).clone()", init=init)


def traced(module: Rewritten, body: Body) -> Body:
    """TorchScript, traced at the first call."""
    return _wrapped(module, body, _TRACE, init="self.requires_grad_(False)\nself.traced = None")


def channels_last(module: Rewritten, body: Body) -> Body:
    """Channels as the fastest dimension, of parameters and of the input."""
    lines = _each(module, "{0} = {0}.contiguous(memory_format=torch.channels_last)")
    back = ".contiguous()" if _coin(module.name, "back") else ""
    init = "self.to(memory_format=torch.channels_last)"
    return _wrapped(module, body, f"{lines}\nreturn self.@inner@(@takes@){back}", init=init)


def side_stream(module: Rewritten, body: Body) -> Body:
    """On a stream of its own, for which the caller's waits."""
    return _wrapped(module, body, _SIDE_STREAM, init="self.stream = torch.cuda.Stream()")


def checked(module: Rewritten, body: Body) -> Body:
    """Inputs are looked at first, and what fails is tried again."""
    prepared = _each(module, "{0} = self._prepare({0})")
    return _wrapped(module, body, _CHECKED, methods=_PREPARE, prepared=prepared)


def copied(module: Rewritten, body: Body) -> Body:
    """Copies of what comes in and of what goes out."""
    lines = _each(module, "{0} = {0}.clone().contiguous()")
    return _wrapped(module, body, f"{lines}\nreturn self.@inner@(@takes@).clone()")


def in_inference_mode(module: Rewritten, body: Body) -> Body:
    """No bookkeeping for gradients."""
    return _wrapped(module, body, "with torch.inference_mode():\n    return self.@inner@(@takes@)")


def waiting(module: Rewritten, body: Body) -> Body:
    """Waits for the GPU before it returns."""
    return _wrapped(module, body, "out = self.@inner@(@takes@)\ntorch.cuda.synchronize()\nreturn out")


_SOMETIMES: dict[str, Change] = {
    "side_stream": side_stream,
    "copied": copied,
    "inference_mode": in_inference_mode,
    "waiting": waiting,
    "compiled_and_captured": compiled_and_captured,
}
_PRODUCTS = ("conv", "inear", "mm(", "matmul", "einsum", " @ ", "LSTM", "GRU", "attention")


def changes(module: Rewritten) -> Iterator[tuple[str, Body]]:
    """Changes of the reference and of the rewrite that carries on, by name."""
    for name, body in _all_changes(module):
        if module.compiles or "torch.compile" not in body.text:
            yield name, body


def _all_changes(module: Rewritten) -> Iterator[tuple[str, Body]]:
    start = module.reference
    halved = module.in_half and "randint" not in module.inputs
    steps: dict[str, Change] = {"graph": captured, "compiled": compiled, "traced": traced, "checked": checked}
    if module.in_half:
        steps["autocast"] = autocast
    if halved:
        steps["half"] = half
    if any(word in start.text for word in _PRODUCTS):
        steps["tf32"] = tensor_float
    if "conv" in start.text.lower():
        steps["benchmark"] = benchmarked
    if module.images:
        steps["channels_last"] = channels_last
    by_chance = sorted(_SOMETIMES, key=lambda name: hashlib.sha256(f"{module.name}/{name}".encode()).digest())
    for name, change in (steps | {name: _SOMETIMES[name] for name in by_chance[:3]}).items():
        yield name, change(module, start)
    if halved:
        yield "half_graph", captured(module, half(module, start))
        yield (
            ("half_channels_last", channels_last(module, half(module, start)))
            if module.images
            else ("half_compiled", compiled(module, half(module, start)))
        )
    if not module.carries_on:
        return
    best = module.rewrites[module.carries_on]
    for name in ("graph", "compiled", "half", "tf32", "benchmark", "channels_last"):
        if name in steps:
            yield f"{module.carries_on}_{name}", steps[name](module, best)
    if halved:
        yield f"{module.carries_on}_half_graph", captured(module, half(module, best))
