"""``python -m benchmarks.local_vllm --port 8000`` runs the server until it is interrupted."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from benchmarks.local_vllm.server import MODEL_NAME, LocalVllm


def _end(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Start the server, say where it is, wait."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--log", type=Path, default=Path("build/vllm.log"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    try:
        with LocalVllm(arguments.log, port=arguments.port) as server:
            print(f"model {MODEL_NAME} at {server.base_url}; Ctrl-C ends it", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
