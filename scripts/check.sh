#!/bin/sh
# Format, lint, types, structure, and the tests that take no view, no Codex and little time. The arguments are pytest's.
set -eu
cd -- "$(dirname -- "$0")/.."
. scripts/common.sh

scripts/setup.sh
scripts/build-shims.sh agenthost/bin

.venv/bin/python -m ruff format --check .
.venv/bin/python -m ruff check .
.venv/bin/python -m mypy
if have shellcheck; then shellcheck -x scripts/*.sh .ci/run; else say "no shellcheck here: scripts are not checked"; fi
exec .venv/bin/python -m pytest -m "not view and not codex and not rootless and not slow and not soak and not bench" "$@"
