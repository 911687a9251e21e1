"""Real ShinkaEvolve runs for the tests: a model that answers with given programs, evaluations that log their calls."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpu_forecasters_shinka import filtered
from gpu_forecasters_shinka.filtering import FilteredRun
from helpers import complete_lines
from rich.console import Console
from shinka.core import EvolutionConfig, ShinkaEvolveRunner
from shinka.core.async_runner import RichTeeConsole
from shinka.database import DatabaseConfig
from shinka.launch import LocalJobConfig

from gpu_forecasters_plugin.config import SurrogateConfig, parse_surrogate_config
from gpu_forecasters_plugin.recorded.tagged_answers import in_tags

EVALUATE = """
import argparse, json, os, re, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--program_path")
parser.add_argument("--results_dir")
options = parser.parse_args()
results = Path(options.results_dir)
results.mkdir(parents=True, exist_ok=True)
code = Path(options.program_path).read_text()
number = int(re.search(r"NUMBER = (\\d+)", code).group(1))


def log(event):
    row = dict(event=event, number=number, path=options.program_path, pid=os.getpid(), time=time.time())
    descriptor = os.open(Path(__file__).with_name("calls.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, (json.dumps(row) + "\\n").encode())
    os.close(descriptor)


def leave(time_us=None, correct=True, error=None):
    score = 0.0 if time_us is None else 100.0 / time_us
    public = {} if time_us is None else {"time_us": time_us}
    metrics = dict(combined_score=score, public=public, private={}, text_feedback="as measured")
    (results / "metrics.json").write_text(json.dumps(metrics))
    (results / "correct.json").write_text(json.dumps({"correct": correct, "error": error}))


log("start")
"""
"""Start of an evaluation: it logs its start, and has the program's ``number`` and ``leave(time_us)`` for results."""

PLAIN = EVALUATE + "leave(100.0 / (1 + number % 50))\nlog('end')\n"


def program(number: int) -> str:
    return f"# EVOLVE-BLOCK-START\nNUMBER = {number}\n# EVOLVE-BLOCK-END\n"


class ModelServer:
    """An OpenAI-compatible endpoint: answers with programs 1, 2, 3, ..., embeds by their number, finds all novel.

    Attributes:
        asked: requests so far, by path.
    """

    def __init__(self, answers: Callable[[int], int] = lambda count: count) -> None:
        self.asked: list[str] = []
        self._answers = answers
        self._proposed = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                data = json.dumps(outer._answer(self.path, body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def model(self, name: str = "toy") -> str:
        """Name that ShinkaEvolve knows this endpoint by."""
        return f"local/{name}@http://127.0.0.1:{self._server.server_address[1]}/v1"

    def _answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        if path.endswith("/embeddings"):
            self.asked.append("embedding")
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            rows = [
                {"object": "embedding", "index": i, "embedding": self._vector(t)} for i, t in enumerate(texts)
            ]
            return {"object": "list", "data": rows, "model": body["model"], "usage": usage}
        prompt = "\n".join(str(message["content"]) for message in body["messages"])
        if "NOT_NOVEL" in prompt:
            self.asked.append("novelty")
            content = "NOVEL: it is another one"
        else:
            self.asked.append("proposal")
            with self._lock:
                self._proposed += 1
                number = self._answers(self._proposed)
            content = in_tags("CODE", f"```python\nNUMBER = {number}\n```")
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        head = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
        return head | {"choices": [choice], "usage": usage}

    @staticmethod
    def _vector(text: str) -> list[float]:
        found = re.search(r"NUMBER = (\d+)", text)
        number = int(found.group(1)) if found else 0
        return [1.0, (number % 7) / 7, (number % 11) / 11]


@dataclass
class Task:
    """A task in one folder, and what its runs leave there."""

    folder: Path
    model: str
    evo: dict[str, Any] = field(default_factory=dict)
    db: dict[str, Any] = field(default_factory=dict)
    job: Any = None

    @classmethod
    def write(cls, folder: Path, server: ModelServer, evaluate: str = PLAIN, **more: Any) -> Task:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "initial.py").write_text(program(0))
        (folder / "evaluate.py").write_text(evaluate)
        return cls(folder, server.model(), **more)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def evo_settings(self) -> dict[str, Any]:
        plain = {
            "llm_models": [self.model],
            "llm_dynamic_selection": None,
            "llm_kwargs": {"temperatures": 0.0, "max_tokens": 1024},
            "patch_types": ["full"],
            "patch_type_probs": [1.0],
            "embedding_model": None,
            "meta_rec_interval": None,
            "num_generations": 9,
        }
        return plain | self.evo

    def runner(self, **settings: Any) -> ShinkaEvolveRunner:
        """The runner as a user's script makes it, without words on the terminal."""
        evo = EvolutionConfig(
            init_program_path=str(self.folder / "initial.py"),
            results_dir=str(self.out),
            **self.evo_settings(),
        )
        job = self.job or LocalJobConfig(eval_program_path=str(self.folder / "evaluate.py"))
        with redirect_stdout(io.StringIO()):
            runner = ShinkaEvolveRunner(
                evo, job, DatabaseConfig(**({"num_islands": 1} | self.db)), verbose=False, **settings
            )
        runner.console = RichTeeConsole(Console(quiet=True))
        return runner

    def run(
        self, *, measure_jobs: int | None = 2, proposal_jobs: int | None = 4, **section: Any
    ) -> FilteredRun:
        """Run the task with the filter to its end."""
        run = filtered(
            self.runner(), surrogate(**section), measure_jobs=measure_jobs, proposal_jobs=proposal_jobs
        )
        run.runner.run()
        return run

    def calls(self, event: str = "start") -> list[dict[str, Any]]:
        """The evaluation's own log, first call first."""
        # Beside the evaluation: shinka_run works on a copy in the run's folder.
        logs = (self.folder / "calls.jsonl", self.out / "calls.jsonl")
        rows = [json.loads(line) for log in logs for line in complete_lines(log)]
        return [row for row in rows if row["event"] == event]

    def ledger(self, query: str) -> list[tuple[Any, ...]]:
        return self._rows("ledger.sqlite3", query)

    def programs(self, columns: str = "code") -> list[tuple[Any, ...]]:
        """Columns of every program that ShinkaEvolve has stored, by generation."""
        return self.stored(f"SELECT {columns} FROM programs ORDER BY generation")

    def stored(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of ShinkaEvolve's own database."""
        return self._rows("programs.sqlite", query)

    def _rows(self, name: str, query: str) -> list[tuple[Any, ...]]:
        # A run that begins or ends has its database to itself for as long as the disk takes.
        with closing(sqlite3.connect(self.out / name, timeout=60.0)) as connection:
            return connection.execute(query).fetchall()

    def outcomes(self) -> dict[int, str]:
        """Outcome of every measurement, by the program's number."""
        rows = self.ledger(
            "SELECT code, outcome FROM measurement JOIN candidate ON candidate.key = measurement.candidate_key"
        )
        return {number_in(code): outcome for code, outcome in rows}


def number_in(code: str) -> int:
    found = re.search(r"NUMBER = (\d+)", code)
    assert found is not None
    return int(found.group(1))


def surrogate(**section: Any) -> SurrogateConfig:
    plain: dict[str, Any] = {"forecaster": {"kind": "climatology"}, "device": "none"}
    return parse_surrogate_config(plain | {"pool": {"max_wait_s": 5.0}} | section)


def at_once(calls: Sequence[dict[str, Any]], ends: Sequence[dict[str, Any]]) -> int:
    """Most evaluations that ran at the same time."""
    events = sorted([(row["time"], 1) for row in calls] + [(row["time"], -1) for row in ends])
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    return most
