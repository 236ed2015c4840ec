#!/usr/bin/env bash
# Training on a GPU, in eight minutes at most: bash tests/performance/gpu_train.sh
# Needs the project installed (pip install -e .) and the reference data; without a GPU it says so.
set -euo pipefail
cd "$(dirname "$0")/../.."
timeout 480 python -m tests.performance.gpu_train "$@"
