"""Python text is parsed right whoever parses at the same time."""

from __future__ import annotations

import ast
import gc
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpu_forecasters_plugin.python_syntax import parse_python
from gpu_forecasters_plugin.recorded.pool import load_task


@contextmanager
def threads_take_turns_in_collections() -> Iterator[None]:
    """Each garbage collection, which building a tree sets off, lets another thread go on."""

    def yield_turn(phase: str, info: dict[str, int]) -> None:
        time.sleep(0.0001)

    gc.callbacks.append(yield_turn)
    try:
        yield
    finally:
        gc.callbacks.remove(yield_turn)


def in_threads(work: Callable[[], Any], count: int) -> list[BaseException]:
    """What the same work raised in several threads at once."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_do_not_spoil_each_others_trees() -> None:
    code = load_task("cross_entropy").reference.code
    expected = ast.dump(ast.parse(code))

    def parse_often() -> None:
        for _ in range(8):
            tree = parse_python(code)
            assert tree is not None and ast.dump(tree) == expected

    with threads_take_turns_in_collections():
        assert in_threads(parse_often, 8) == []


def test_a_tree_that_somebody_else_spoilt_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, failures = ast.parse, [SystemError("AST constructor recursion depth mismatch")] * 2

    def spoilt(text: str) -> ast.Module:
        if failures:
            raise failures.pop()
        return parse(text)

    monkeypatch.setattr(ast, "parse", spoilt)
    assert parse_python("x = 1") is not None


def test_what_the_interpreter_cannot_do_is_no_verdict_on_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str) -> ast.Module:
        raise SystemError("broken")

    monkeypatch.setattr(ast, "parse", broken)
    with pytest.raises(SystemError):
        parse_python("x = 1")


@pytest.mark.parametrize("text", ["def f(:", "x\0", "(" * 10_000 + ")" * 10_000])
def test_what_is_not_python_has_no_tree(text: str) -> None:
    assert parse_python(text) is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_forked_while_another_thread_parses_can_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    parsing, go_on = threading.Event(), threading.Event()
    parse, here = ast.parse, threading.main_thread()

    def held(text: str) -> ast.Module:
        if threading.current_thread() is not here:
            parsing.set()
            go_on.wait(60)
        return parse(text)

    monkeypatch.setattr(ast, "parse", held)
    holder = threading.Thread(target=parse_python, args=("x = 1",))
    holder.start()
    assert parsing.wait(60)
    child = multiprocessing.get_context("fork").Process(target=parse_python, args=("x = 1",))
    child.start()
    child.join(60)
    go_on.set()
    holder.join()
    assert child.exitcode == 0
