#!/usr/bin/env bash
# A script of ShinkaEvolve's with the filter, on a recorded task: no key and no GPU needed.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3}
out=${1:-results}
"$python" -c "
from pathlib import Path
from gpu_forecasters_plugin.recorded.shinka_task import write_shinka_task
from shutil import copy
files = write_shinka_task('rmsnorm', 'recorded', api_base='http://127.0.0.1:8766/v1')
copy(files.initial, 'initial.py')
copy(files.folder / 'measured.json', 'measured.json')"
"$python" -m gpu_forecasters_plugin.recorded.proposer --task rmsnorm --port 8766 --seed 1 &
trap 'kill $! 2>/dev/null || true' EXIT
sleep 2
kill -0 $!   # it ends at once when the port is taken
"$python" evolve.py "$out"
