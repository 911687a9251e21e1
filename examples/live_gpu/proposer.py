"""An OpenAI-compatible endpoint that proposes kernels by rule: it stands for a language model.

python proposer.py --task add_norm_gelu --port 8790
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from proposing.proposer import TASKS, RuleProposer, space_of

from gpu_forecasters_plugin.recorded.server import serve


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8790, help="0 picks a free one (default: 8790)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    space = space_of(options.task)
    try:
        server = serve(RuleProposer(space, seed=options.seed), options.host, options.port)
    except (OSError, OverflowError) as error:
        parser.exit(1, f"error: port {options.port} cannot be served: {error}\n")
    with server:
        print(f"{options.task}: {space.size:,} kernels at {server.base_url}", flush=True)
        try:
            server.wait()
        except KeyboardInterrupt:
            pass
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
