#!/usr/bin/env bash
# openevolve-run with the drop-in evaluator, on a recorded task: no key and no GPU needed.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-$(command -v ../../.venv/bin/python || echo python3)} # what `make` has set up, else yours
out=${1:-openevolve_output}
"$python" -c "
from gpu_forecasters_plugin.recorded.pool import load_task
open('initial_program.py', 'w').write(load_task('rmsnorm').reference.code)"
exec 3< <(exec "$python" -m gpu_forecasters_plugin.recorded.proposer --task rmsnorm --port 8765 --seed 1)
trap "kill $! 2>/dev/null || true" EXIT
read -r words <&3   # it says when it is there, and ends without a word when the port is taken
echo "$words"
"$python" -m openevolve.cli initial_program.py filtered_evaluator.py --config config.yaml --output "$out"
