#!/usr/bin/env bash
# A script of ShinkaEvolve's with the filter, on a recorded task: no key and no GPU needed.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-$(command -v ../../.venv/bin/python || echo python3)} # what `make` has set up, else yours
out=${1:-results}
export PORT=${PORT:-8766}
"$python" -c "
from pathlib import Path
from gpu_forecasters_plugin.recorded.shinka_task import write_shinka_task
from shutil import copy
files = write_shinka_task('rmsnorm', 'recorded', api_base='http://127.0.0.1:$PORT/v1')
copy(files.initial, 'initial.py')
copy(files.folder / 'measured.json', 'measured.json')"
exec 3< <(exec "$python" -m gpu_forecasters_plugin.recorded.proposer --task rmsnorm --port $PORT --seed 1)
trap "kill $! 2>/dev/null || true" EXIT
read -r words <&3   # it says when it is there, and ends without a word when the port is taken
echo "$words"
"$python" evolve.py "$out"
