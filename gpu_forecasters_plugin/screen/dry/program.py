"""Watches the candidate's module, however an evaluator loads it."""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import sys
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

from gpu_forecasters_plugin.screen.dry.recorder import Recorder

__all__ = ["watch_program"]

_METHODS_WATCHED = ("__init__", "__call__", "forward")


def watch_program(recorder: Recorder) -> None:
    """From now on, calls into the candidate are guarded and names missing from it are noted."""
    program = os.path.realpath(recorder.program)
    with open(program, encoding="utf-8", errors="surrogateescape") as file:
        text = file.read().strip()
    original: Any = importlib.machinery.SourceFileLoader.exec_module

    def exec_module(self: Any, module: ModuleType) -> None:
        if os.path.realpath(self.path) != program:
            original(self, module)
            return
        recorder.guarded(original, is_entry=False)(self, module)
        _guard_names(vars(module), recorder)
        module.__class__ = _watched_module(recorder)

    loader: Any = importlib.machinery.SourceFileLoader
    loader.exec_module = exec_module
    _watch_exec(recorder, program, text)


def _watched_module(recorder: Recorder) -> type[ModuleType]:
    class Watched(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__"):
                recorder.missing.append(name)
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)

    return Watched


def _guard_names(names: dict[str, Any], recorder: Recorder) -> None:
    """Guard what the candidate defines at its top: functions, and the usual methods of classes."""
    for name, value in list(names.items()):
        if isinstance(value, FunctionType) and value.__globals__ is names:
            names[name] = recorder.guarded(value)
        elif isinstance(value, type) and value.__module__ == names.get("__name__"):
            for method in _METHODS_WATCHED:
                function = vars(value).get(method)
                if isinstance(function, FunctionType):
                    setattr(value, method, recorder.guarded(function))


def _watch_exec(recorder: Recorder, program: str, text: str) -> None:
    """Evaluators that read the program and ``exec`` it, or run its compiled code."""
    original: Callable[..., Any] = builtins.exec

    def is_program(source: Any) -> bool:
        if isinstance(source, CodeType):
            return source.co_name == "<module>" and os.path.realpath(source.co_filename) == program
        return isinstance(source, str) and source.strip() == text

    def watched_exec(source: Any, globals: Any = None, locals: Any = None, /, **more: Any) -> None:
        if globals is None:
            caller = sys._getframe(1)
            globals, locals = caller.f_globals, caller.f_locals if locals is None else locals
        elif locals is None:
            locals = globals
        if recorder.depth or not is_program(source):
            original(source, globals, locals, **more)
            return
        recorder.guarded(original, is_entry=False)(source, globals, locals, **more)
        _guard_names(locals if isinstance(locals, dict) else globals, recorder)

    builtins.exec = watched_exec
