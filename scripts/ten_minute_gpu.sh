#!/usr/bin/env bash
# The preset ten-minute-gpu on a host with no more than torch, transformers and scikit-learn, without a network: the five models of
# Table 3, fine-tuned, in ten minutes. What cannot begin in time is left out and said to be.
#
#   scripts/ten_minute_gpu.sh prepare CORPUS GLUE   where the package is installed: writes text and tasks to bring along
#   scripts/ten_minute_gpu.sh [OUT]                 on the GPU host: writes OUT/results.jsonl and OUT/curves.jsonl
#   scripts/ten_minute_gpu.sh --rehearse [OUT]      the same on a CPU, a hundredth of the size
#
# Back home: copy both files into reports/ten-minute-gpu, then
#   make report PRESET=ten-minute-gpu ARGS="-p report_from records -p corpus runs/ten-minute-gpu/text -p glue runs/ten-minute-gpu/glue"
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || command -v python3)}
export PYTHONPATH=. HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "$PYTHON" scripts/ten_minute_gpu.py "$@"
