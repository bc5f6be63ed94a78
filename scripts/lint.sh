#!/bin/sh
# Format, lint and types of everything; scripts only where shellcheck is.
set -eu
cd -- "$(dirname -- "$0")/.."
. scripts/common.sh

scripts/setup.sh
.venv/bin/python -m ruff format --check .
.venv/bin/python -m ruff check .
.venv/bin/python -m mypy
if have shellcheck; then shellcheck -x scripts/*.sh .ci/run; else say "no shellcheck here: scripts are not checked"; fi
