#!/bin/sh
# One turn of the real Codex against a scripted model, in a fresh sample workspace. Exits as `agenthost run` does.
set -eu
cd -- "$(dirname -- "$0")/.."
. scripts/common.sh

scripts/setup.sh
scripts/build-shims.sh agenthost/bin
rm -rf build/demo
scripts/demo-workspace.sh build/demo/workspace
exec .venv/bin/python -m agenthost run --scripted demo --workspace "$PWD/build/demo/workspace" \
    --state-dir "$PWD/build/demo/state" "Say what this repository does, and leave a note about it."
