from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
from pathlib import Path

import pytest

from gpu_forecasters_plugin.errors import ConfigError, FolderInUseError
from gpu_forecasters_plugin.files import socket_folder, write_atomically
from gpu_forecasters_plugin.folder_lock import hold_folder, release_folder
from gpu_forecasters_plugin.printable import printable

# -- files that are whole or absent ---------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["new \u00e4\n", b"\x00new"])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "summary.json"
    for text in ("old", content):
        write_atomically(path, text)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_what_was_there_stays_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, "old")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


# -- one run at a time in a folder ----------------------------------------------------------------------------------


def _try_to_hold(folder: Path, answers: multiprocessing.Queue[str]) -> None:
    try:
        hold_folder(folder)
        answers.put("held")
    except FolderInUseError as error:
        answers.put(str(error))


def from_elsewhere(folder: Path) -> str:
    """What another process, which ends right after, hears when it wants the folder."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_try_to_hold, args=(folder, answers))
    process.start()
    process.join()
    answer: str = answers.get(timeout=10)  # it is there, unless the process has failed
    return answer


def test_a_folder_is_one_processs_until_it_lets_go_or_ends(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    assert from_elsewhere(folder) == "held"
    hold_folder(folder)  # the other process has ended without a word
    hold_folder(folder / ".." / "out")  # twice is once
    try:
        assert f"in use by another run (process {os.getpid()})" in from_elsewhere(folder)
    finally:
        release_folder(folder)
    assert from_elsewhere(folder) == "held"


# -- sockets --------------------------------------------------------------------------------------------------------


def test_a_socket_finds_room_where_the_path_of_temporary_files_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = socket_folder("gate.sock")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "gate.sock"))
    (folder / "gate.sock").unlink()
    folder.rmdir()
    assert list(long.iterdir()) == []


def test_no_room_for_a_socket_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(ConfigError, match="TMPDIR"):
        socket_folder("x" * 108)


# -- text of unknown origin -----------------------------------------------------------------------------------------


def test_what_steers_a_terminal_or_cannot_be_encoded_is_shown_as_an_escape() -> None:
    text = "a\x1b[31m\n\ud800\udcff\u2028\u202e \u00e4\u65e5\U0001f600"
    assert printable(text) == r"a\x1b[31m\n\ud800\udcff\u2028\u202e" + " \u00e4\u65e5\U0001f600"
