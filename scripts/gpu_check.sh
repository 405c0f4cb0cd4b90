#!/usr/bin/env bash
# The GPU checks in one go, on a host with no more than torch and transformers, without a network, in six minutes:
# parity of the models with the CPU, recompiles, data wait, and the benchmark of the two geometries of the paper.
#
#   scripts/gpu_check.sh prepare            on any machine with the package installed: writes the blocks to bring along
#   scripts/gpu_check.sh [OUT]              on the GPU host: writes OUT/gpu_check.json and OUT/gpu_check.txt
#   scripts/gpu_check.sh --rehearse [OUT]   the same on a CPU, a hundredth of the size
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || command -v python3)}
export PYTHONPATH=. HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "$PYTHON" scripts/gpu_check.py "$@"
