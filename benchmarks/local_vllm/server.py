"""Starting, killing and ending the local vLLM server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

__all__ = ["MODEL_NAME", "LocalVllm"]

MODEL_NAME = "smollm2-135m"

_ROOT = Path(__file__).resolve().parents[2]
_PYTHON = _ROOT / ".venv-vllm" / "bin" / "python"
_MODEL = _ROOT / "build" / "smollm2-135m-instruct"
_READY_WITHIN_S = 300.0
_ENDED_WITHIN_S = 20.0


class LocalVllm:
    """One server on a port of its own; killed and started again, it keeps its address.

    The server is a group of processes: all of them end with it. Not thread-safe.

    Args:
        log: file that its output is appended to.
        port: of its own when left out.
        cache_gib: memory for keys and values.
        adapters: folders of LoRA adapters of a rank up to 8 by the names that they are served as.
    """

    def __init__(
        self,
        log: Path,
        *,
        port: int | None = None,
        cache_gib: int = 2,
        adapters: Mapping[str, Path] | None = None,
    ) -> None:
        if not (_PYTHON.exists() and _MODEL.exists()):
            raise FileNotFoundError("no local vLLM server here: `make vllm` sets it up")
        self.log = log
        self.port = port or _free_port()
        self._cache_gib = cache_gib
        self._adapters = adapters or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes."""
        return f"http://127.0.0.1:{self.port}/v1"

    def command(self) -> list[str]:
        """How the server is started.

        In float32 the order in which requests are batched changes a log-probability by about 1e-5; in bfloat16
        by about a tenth. Cached tokens are in the usage only if asked for. Prompts are not computed in parts: on a
        processor vLLM 0.32 ends with "CPU Generator does not use offset" when the prompt of a request with a seed
        and a temperature is.
        """
        options = {
            "--model": str(_MODEL),
            "--served-model-name": MODEL_NAME,
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--max-model-len": "4096",
            "--max-num-batched-tokens": "8192",
            "--block-size": "32",
            "--dtype": "float32",
        }
        flags = ["--enforce-eager", "--enable-prompt-tokens-details", "--no-enable-chunked-prefill"]
        if self._adapters:
            flags += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules"]
            flags += [f"{name}={folder}" for name, folder in self._adapters.items()]
        module = [str(_PYTHON), "-m", "vllm.entrypoints.openai.api_server"]
        return [*module, *(word for pair in options.items() for word in pair), *flags]

    def start(self) -> None:
        """Start the server; returns at once, before it answers."""
        cores = sorted(os.sched_getaffinity(0))
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self._cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_NO_USAGE_STATS": "1",
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env=environment, cwd=_ROOT, start_new_session=True
            )

    def wait_until_ready(self) -> None:
        """Wait until the server answers.

        Raises:
            RuntimeError: it ended, or did not answer in time; the message ends with its log.
        """
        deadline = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            if self.healthy():
                return
            time.sleep(0.5)
        tail = self.log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"the local vLLM server does not answer:\n{tail}")

    def healthy(self) -> bool:
        """Whether the server answers right now."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        """End every process of the server at once, with kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Let the server end; what has not ended after a while is killed."""
        self._end(signal.SIGTERM)

    def _end(self, first: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _signal_group(process.pid, first)
        try:
            process.wait(_ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            pass
        _signal_group(process.pid, signal.SIGKILL)  # whatever of the group outlived its leader
        process.wait()

    def __enter__(self) -> LocalVllm:
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        pass


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
