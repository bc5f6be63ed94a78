#!/bin/sh
# Format, lint, types, structure, and the tests that build no view and take little time. The arguments are pytest's.
set -eu
cd -- "$(dirname -- "$0")/.."

scripts/lint.sh
scripts/build-shims.sh agenthost/bin
exec .venv/bin/python -m pytest -m "not view and not codex and not rootless and not slow and not soak" "$@"
