"""Ctrl-C and SIGTERM: a command ends, whatever is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

HANGING = """
import threading, time, typer
from gpu_forecasters_plugin.cli import interrupts

interrupts._LONGEST_END_S = 0.5
app = typer.Typer()


@app.command()
def hang() -> None:
    with interrupts.interruptible("start again"):
        threading.Thread(target=threading.Event().wait).start()
        print("ready", flush=True)
        time.sleep(600)


app()
"""


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_thread_that_nobody_ends_does_not_keep_an_interrupted_command(
    number: signal.Signals, code: int, word: str
) -> None:
    command = [sys.executable, "-c", HANGING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (code, f"{word}; start again\n")
