from __future__ import annotations

import gzip
import json
import pickle
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from gpu_forecasters_plugin.candidate import source_key
from gpu_forecasters_plugin.decision import Outcome
from gpu_forecasters_plugin.errors import PoolFileError
from gpu_forecasters_plugin.recorded import shipped
from gpu_forecasters_plugin.recorded.pool import (
    is_pool_path,
    load_pool,
    load_task,
    open_pool,
    recorded_task_names,
)
from gpu_forecasters_plugin.recorded.similarity import nearest_neighbours, possible_duplicates

HEADER: dict[str, Any] = {"pool": {"task": "toy", "device": "H100", "reference_id": "a", "shapes": [[1, 2]]}}


def row(name: str, code: str, time_us: float | None = 10.0, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "code": code,
        "language": "triton",
        "outcome": "ok" if time_us is not None else "incorrect",
        "time_us": time_us,
        **more,
    }


ROWS = [
    row("a", "x = 1\n", 10.0, neighbours=["b"], spread=0.02),
    row("b", "x = 2\n", 5.0, neighbours=["a", "c"]),
    row("c", "x = 3\n", None, neighbours=["b"], error="max |difference| 3.2"),
]


def write(path: Path, rows: list[Any]) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in rows) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["pool.jsonl", "pool.jsonl.gz"])
def test_a_pool_is_read_with_its_speedups(tmp_path: Path, name: str) -> None:
    pool = load_pool(write(tmp_path / name, [HEADER, *ROWS]), strict=True)

    assert (pool.task, pool.device, pool.operation, pool.reference_id) == ("toy", "H100", "toy", "a")
    assert pool.header["shapes"] == [[1, 2]]
    assert list(pool.candidates) == ["a", "b", "c"]
    assert pool.reference.spread == 0.02
    assert [pool.speedup(name) for name in "abc"] == [1.0, 2.0, None]
    assert (pool.best_id, pool.best_speedup) == ("b", 2.0)
    assert pool.candidates["c"].outcome is Outcome.INCORRECT
    assert pool.candidates["c"].error == "max |difference| 3.2"
    assert pool.neighbours("b") == ("a", "c")
    with pytest.raises(KeyError):
        pool.speedup("nobody")


def test_the_operation_is_the_headers_when_it_has_one(tmp_path: Path) -> None:
    header = {"pool": {**HEADER["pool"], "operation": "softmax"}}
    assert load_pool(write(tmp_path / "p.jsonl", [header, *ROWS])).operation == "softmax"


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([{"T": 4096, "V": 32000}, {"T": 2048, "V": 128256}], "T=4096, V=32000; T=2048, V=128256"),
        ("rows up to 4096", "rows up to 4096"),
        ([[1, 2], [3, 4]], "[[1, 2], [3, 4]]"),
        (None, ""),
    ],
)
def test_the_shapes_of_a_task_are_told_in_words(tmp_path: Path, shapes: Any, words: str) -> None:
    header = {"pool": {**HEADER["pool"], "shapes": shapes}}
    assert load_pool(write(tmp_path / "p.jsonl", [header, *ROWS])).shapes == words


@pytest.mark.parametrize("shapes", ["two\nlines", "x" * 3000, [{"\x1b": 1}]])
def test_shapes_that_no_prompt_can_take_are_an_error(tmp_path: Path, shapes: Any) -> None:
    header = {"pool": {**HEADER["pool"], "shapes": shapes}}
    with pytest.raises(PoolFileError, match=r"line 1 \(header\): 'shapes' must be one line"):
        load_pool(write(tmp_path / "p.jsonl", [header, *ROWS]))


def test_candidates_are_found_by_key_and_by_text_that_differs_in_layout(tmp_path: Path) -> None:
    pool = load_pool(write(tmp_path / "p.jsonl", [HEADER, *ROWS]))
    assert pool.by_key(source_key("x = 2")) is pool.candidates["b"]
    assert pool.by_key("0" * 32) is None
    assert pool.find("x = 2") is pool.candidates["b"]
    assert pool.find("# a comment\n\nx  =  2  # more\n") is pool.candidates["b"]
    assert pool.find("x = 4") is None


def test_edges_count_from_both_ends_and_a_pool_survives_pickling(tmp_path: Path) -> None:
    rows = [row("a", "x = 1", neighbours=["b", "a", "b"]), row("b", "x = 2"), row("c", "x = 3")]
    rows[2]["neighbours"] = ["a"]
    pool = pickle.loads(pickle.dumps(load_pool(write(tmp_path / "p.jsonl", [HEADER, *rows]))))
    assert pool.candidates["a"].neighbours == ("b",)
    assert pool.neighbours("a") == ("b", "c")
    assert pool.neighbours("b") == ("a",)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "empty; the first row must be"),
        (ROWS, "line 1: no header"),
        ([{"pool": {"task": "t", "device": "d"}}, *ROWS], r"line 1 \(header\): 'reference_id' must be"),
        ([{"pool": {"task": "t", "device": "d", "reference_id": "z"}}, *ROWS], "reference 'z' is not in"),
        ([{"pool": {"task": "t", "device": "d", "reference_id": "c"}}, *ROWS], "reference 'c' has no time"),
        ([HEADER, *ROWS, row("b", "x = 9")], "line 5: id 'b' is taken by line 3"),
        ([HEADER, *ROWS, row("d", "x = 9", outcome="fine")], r"line 5 \(id 'd'\): unknown outcome 'fine'"),
        ([HEADER, *ROWS, row("d", "x = 9", None, outcome="ok")], "line 5.*needs a positive 'time_us'"),
        ([HEADER, *ROWS, row("d", "x = 9", 0.0)], "line 5.*needs a positive 'time_us', got 0.0"),
        ([HEADER, *ROWS, row("d", "x = 9", float("inf"))], "line 5.*'time_us' must be a finite number"),
        ([HEADER, *ROWS, row("d", "x = 9", float("nan"))], "line 5.*'time_us' must be a finite number"),
        ([HEADER, *ROWS, row("d", "x = 9", True)], "line 5.*'time_us' must be a finite number"),
        ([HEADER, *ROWS, row("d", "x = 9", 10**400)], "line 5.*'time_us' must be a finite number"),
        ([HEADER, *ROWS, row("d", "x = 9", spread=10**400)], "line 5.*'spread' must be a finite number"),
        ([HEADER, *ROWS, row("d", "x = 9", 5e-324)], "line 5.*'time_us' lies between 1e-06 and 1e"),
        ([HEADER, *ROWS, row("d", "x = 9", 1e300)], "line 5.*'time_us' lies between 1e-06 and 1e"),
        ([HEADER, *ROWS, row("d", "x = 9", 3.0, outcome="timeout")], "line 5.*must not have a 'time_us'"),
        ([HEADER, *ROWS, row("d", "x = 9", spread=-1)], "line 5.*'spread' must not be negative"),
        ([HEADER, *ROWS, row("d", "x = 9", neighbours=["q"])], r"line 5 \(id 'd'\): neighbour 'q' is not in"),
        ([HEADER, *ROWS, row("d", "x = 9", neighbours="ab")], "line 5.*'neighbours' must be a list of ids"),
        ([HEADER, *ROWS, row("d", " \n")], "line 5.*'code' must be a non-empty text"),
        ([HEADER, *ROWS, row("", "x = 9")], "line 5: 'id' must be a non-empty text"),
        ([HEADER, *ROWS, {"id": "d", "code": "x = 9", "outcome": "ok", "time_us": 1}], "'language' must be"),
        ([HEADER, *ROWS, "", "{oops"], "line 6: not JSON"),
        ([HEADER, *ROWS, "[1]"], "line 5: expected a JSON object, got list"),
    ],
)
def test_a_bad_row_is_an_error_with_its_line(tmp_path: Path, rows: list[Any], message: str) -> None:
    path = write(tmp_path / "pool.jsonl", rows)
    with pytest.raises(PoolFileError, match=message) as caught:
        load_pool(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("repeats", value) for value in ("many", [], 1.5, True, 0, -3, 10**400)),
        *(
            (key, value)
            for key in ("task", "device", "operation")
            for value in ("a\nb", "\x1b[31m", "\ud800", 7)
        ),
    ],
)
def test_a_header_of_odd_values_is_an_error_that_names_the_key(tmp_path: Path, key: str, value: Any) -> None:
    path = write(tmp_path / "pool.jsonl", [{"pool": HEADER["pool"] | {key: value}}, *ROWS])
    with pytest.raises(PoolFileError, match=rf"line 1 \(header\): '{key}' must be") as caught:
        load_pool(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("code", ["# nothing\n", "x = '\ud800'\n", "x = 1\n" * 100_000])
def test_a_reference_that_cannot_be_a_kernel_is_an_error(tmp_path: Path, code: str) -> None:
    reference = ROWS[0] | {"code": code}
    with pytest.raises(PoolFileError, match=r"line 2: reference 'a': source (is|has)"):
        load_pool(write(tmp_path / "pool.jsonl", [HEADER, reference, *ROWS[1:]]))


def test_unreadable_files_are_pool_errors(tmp_path: Path) -> None:
    with pytest.raises(PoolFileError, match="cannot be read"):
        load_pool(tmp_path / "absent.jsonl")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"pool": {}}\n')[:-6])
    with pytest.raises(PoolFileError, match="damaged gzip"):
        load_pool(tmp_path / "cut.jsonl.gz")
    (tmp_path / "latin.jsonl").write_bytes(b'{"pool": "\xff"}\n')
    with pytest.raises(PoolFileError, match="not UTF-8"):
        load_pool(tmp_path / "latin.jsonl")


REPEATED = [
    row("a", "x = 1", 10.0, neighbours=["b"]),
    row("b", "x = 2", 5.0, neighbours=["a", "b2"]),
    row("b2", "x = 2  # again", 6.0, neighbours=["b", "c"]),
    row("c", "x = 3", 4.0, neighbours=["b2"]),
]


def test_a_repeated_source_is_an_error_when_strict_naming_both(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [HEADER, *REPEATED])
    with pytest.raises(PoolFileError, match=r"line 4: 'b2' has the same source as 'b' \(line 3\)"):
        load_pool(path, strict=True)


def test_otherwise_the_first_is_kept_and_its_edges_join(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [HEADER, *REPEATED])
    with pytest.warns(UserWarning, match=r"1 candidate\(s\) repeat an earlier source.*'b2'.*'b'"):
        pool = load_pool(path)
    assert list(pool.candidates) == ["a", "b", "c"]
    assert pool.candidates["b"].time_us == 5.0
    assert pool.neighbours("b") == ("a", "c")
    assert pool.neighbours("c") == ("b",)


def test_a_repeated_reference_is_remapped(tmp_path: Path) -> None:
    header = {"pool": {**HEADER["pool"], "reference_id": "b2"}}
    with pytest.warns(UserWarning):
        assert load_pool(write(tmp_path / "p.jsonl", [header, *REPEATED])).reference_id == "b"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("x = 1\n", "# note\nx  = 1  # 'quoted'\n\n"),
        ("f('a # b', x)", "f('a # b',\n  x)  # c"),
        ("y = a // b\nz = 1", "y = a // b  # it's\n\nz = 1"),
        ('S = """#include <x>\nint a; // one\n"""', 'S = """#include <x>\nint  a; /* two */\n"""'),
        ("int f() { return 1; } // it's (", "int f() {\n  return 1; /* one ( */ }"),
    ],
)
def test_whatever_shares_an_identity_is_suspected(one: str, two: str) -> None:
    assert source_key(one) == source_key(two)
    assert possible_duplicates(["q = 7", one, two]) == [1, 2]


def test_absent_neighbours_are_the_nearest_symmetric_and_connected(tmp_path: Path) -> None:
    def code(block: int, other: int) -> str:
        return f"BLOCK = {block}\nWARPS = {other}\ndef run(x):\n    return kernel(x, BLOCK, WARPS)\n"

    rows = [row("a", code(64, 4)), row("b", code(64, 8)), row("c", code(32, 4)), row("far", "import torch")]
    pool = load_pool(write(tmp_path / "p.jsonl", [HEADER, *rows]))
    assert {"b", "c"} <= set(pool.neighbours("a"))
    for name in pool.candidates:
        assert name not in pool.neighbours(name)
        assert all(name in pool.neighbours(other) for other in pool.neighbours(name))

    groups = [f"alpha beta gamma {index}" for index in range(5)] + [f"one two three {i}" for i in range(5)]
    joined = nearest_neighbours(groups, k=1)
    reached, frontier = {0}, [0]
    while frontier:
        for other in set(joined[frontier.pop()]) - reached:
            reached.add(other)
            frontier.append(other)
    assert reached == set(range(10))
    assert nearest_neighbours(["alone"]) == [()]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        nearest_neighbours(groups, k=0)


def test_rows_with_neighbours_keep_them_beside_rows_without(tmp_path: Path) -> None:
    rows = [row("a", "x = 1", neighbours=["b"]), row("b", "x = 2", neighbours=["a"]), row("c", "x = 3")]
    pool = load_pool(write(tmp_path / "p.jsonl", [HEADER, *rows]))
    assert pool.neighbours("c") == ("a", "b")
    assert "b" in pool.neighbours("a")


def test_three_thousand_rows_load_without_computing_every_key(tmp_path: Path) -> None:
    body = "\n".join(f"    acc = acc + tl.load(ptr + {i})  # part {i}" for i in range(40))
    rows = [row(f"c{i}", f"BLOCK = {i}\ndef kernel(ptr):\n{body}\n") for i in range(3000)]
    header = {"pool": {**HEADER["pool"], "reference_id": "c0"}}
    path = write(tmp_path / "big.jsonl", [header, *rows])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        started = time.thread_time()
        pool = load_pool(path)
        spent = time.thread_time() - started
    assert not any("key" in vars(candidate) for candidate in pool.candidates.values())
    assert spent < 20.0  # about 0.7 s on a slow core; the bound leaves room for a much slower one
    assert pool.find(rows[7]["code"]) is pool.candidates["c7"]


def test_tasks_are_package_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "toy.jsonl.gz", [HEADER, *ROWS])
    monkeypatch.setattr(shipped, "_folder", lambda kind: tmp_path)
    assert recorded_task_names() == ("toy",)
    assert load_task("toy").best_speedup == 2.0
    assert open_pool(tmp_path / "toy.jsonl.gz").task == "toy"
    with pytest.raises(PoolFileError, match="no recorded task 'toi'; did you mean 'toy'"):
        load_task("toi")
    with pytest.raises(PoolFileError, match="there are: toy"):
        load_task("quite different")


@pytest.mark.parametrize("name", shipped.recorded_names())
def test_every_task_that_ships_is_valid_and_connected(name: str) -> None:
    # As a file, it is searched for repeated sources as well.
    pool = load_pool(shipped.pool_file(name), strict=True)
    reached, frontier = {pool.reference_id}, [pool.reference_id]
    while frontier:
        for other in set(pool.neighbours(frontier.pop())) - reached:
            reached.add(other)
            frontier.append(other)
    assert reached == set(pool.candidates)
    assert pool.best_speedup > 1


def test_names_and_paths_are_told_apart() -> None:
    assert is_pool_path("pool.jsonl")
    assert is_pool_path("dir/pool")
    assert is_pool_path(Path("softmax"))
    assert not is_pool_path("softmax")
