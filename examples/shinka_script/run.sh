#!/usr/bin/env bash
# A script of ShinkaEvolve's with the filter, on a recorded task: no key and no GPU needed.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-$(command -v ../../.venv/bin/python || echo python3)} # what `make` has set up, else yours
out=${1:-results}
exec 3< <(exec "$python" -m gpu_forecasters_plugin.recorded.proposer --task rmsnorm --port "${PORT:-0}" --seed 1)
trap "kill $! 2>/dev/null || true" EXIT
read -r words <&3   # it says where it is once it is there, and ends without a word when $PORT is taken
echo "$words"
url=${words##* }
PORT=${url##*:} && export PORT=${PORT%/*}
"$python" -c "
from pathlib import Path
from gpu_forecasters_plugin.recorded.shinka_task import write_shinka_task
from shutil import copy
files = write_shinka_task('rmsnorm', 'recorded', api_base='$url')
copy(files.initial, 'initial.py')
copy(files.folder / 'measured.json', 'measured.json')"
"$python" evolve.py "$out"
