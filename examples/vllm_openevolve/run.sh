#!/usr/bin/env bash
# A filtered OpenEvolve search on a recorded task, forecast by the model server that the README starts: no GPU needed.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-$(command -v ../../.venv/bin/python || echo python3)} # what `make` has set up, else yours
out=${1:-openevolve_output}
config=${2:-config.yaml}
"$python" -c "
from gpu_forecasters_plugin.recorded.pool import load_task
open('initial_program.py', 'w').write(load_task('rmsnorm').reference.code)"
exec 3< <(exec "$python" -m gpu_forecasters_plugin.recorded.proposer --task rmsnorm --port 8766 --seed 1)
trap "kill $! 2>/dev/null || true" EXIT
read -r words <&3   # it says when it is there, and ends without a word when the port is taken
echo "$words"
"$python" -m gpu_forecasters_plugin openevolve initial_program.py evaluator.py --config "$config" --out "$out"
