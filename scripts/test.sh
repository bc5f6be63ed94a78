#!/bin/sh
# Runs the test suite with all that it needs. The arguments are pytest's.
#
# As root it also makes an environment for the tests that act as an unprivileged user. As anybody else it runs what can
# be run without root, and says what it skipped.
set -eu
cd -- "$(dirname -- "$0")/.."
. scripts/common.sh

scripts/setup.sh --with-tests
scripts/build-shims.sh agenthost/bin

# What cannot be had is for the tests to say: they skip, or fail under AGENTHOST_MUST_WORK=1.
if [ -z "${AGENTHOST_TEST_CODEX_171:-}" ] && AGENTHOST_TEST_CODEX_171=$(scripts/fetch-codex.sh); then
    export AGENTHOST_TEST_CODEX_171
fi
if [ "$(id -u)" -eq 0 ]; then
    [ -n "${AGENTHOST_TEST_ROOTLESS_ENV:-}" ] || AGENTHOST_TEST_ROOTLESS_ENV=$(scripts/rootless-env.sh)
    export AGENTHOST_TEST_ROOTLESS_ENV
else
    say "not root: tests that need root are skipped"
fi
exec .venv/bin/python -m pytest "$@"
