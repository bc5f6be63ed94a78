#!/bin/sh
# Makes a virtual environment that every user of this machine can read, with agenthost (not editable) and Codex in it,
# and prints its path. The source tree may lie where other users cannot go; a test that acts as one of them needs this.
#
# Usage: rootless-env.sh [DIRECTORY]    (default: /var/cache/agenthost-tests, or ~/.cache/agenthost-tests for non-root)
#
#   DIRECTORY/dependencies-CHECKSUM     shared by every state of the sources with the same dependencies
#   DIRECTORY/agenthost-CHECKSUM        one state of the sources; sees the dependencies through a .pth file
#
# Neither changes once it is complete, so runs from several clones do not meet. What was not used for a week goes.
set -eu
cd -- "$(dirname -- "$0")/.."
. scripts/common.sh
umask 022

base=${1:-$(cache_directory)}
mkdir -p -- "$base"
base=$(cd -- "$base" && pwd)
# Descriptor 9 holds the lock until this shell ends.
exec 9>"$base/lock"
flock 9

python=$(find_python)
dependencies=$base/dependencies-$(dependency_checksum "$python" | cut -c 1-16)
if [ ! -e "$dependencies/complete" ]; then
    say "installing dependencies and Codex for every user into $dependencies"
    rm -rf -- "$dependencies"
    "$python" -m venv "$dependencies"
    requirements "$python" >"$dependencies/requirements.txt"
    pip_install "$dependencies/bin/python" --requirement "$dependencies/requirements.txt" >&2
    touch "$dependencies/complete"
fi
touch "$dependencies"

# What a wheel is made of, in the order of names, without what a build leaves in the tree.
sources() {
    find agenthost shims contracts scripts setup.py pyproject.toml README.md LICENSE -type f ! -name '*.py[co]' \
        ! -path 'agenthost/bin/*' ! -path 'agenthost/contracts/*' ! -path 'shims/build/*' -print0 | LC_ALL=C sort -z
}

environment=$base/agenthost-$({ echo "$dependencies" && sources | xargs -0 sha256sum; } | checksum | cut -c 1-16)
if [ ! -e "$environment/complete" ]; then
    say "installing agenthost for every user into $environment"
    rm -rf -- "$environment"
    "$python" -m venv --without-pip "$environment"
    purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$dependencies/bin/python" -c "$purelib" >"$("$environment/bin/python" -c "$purelib")/dependencies.pth"
    # From a copy: setuptools would take what an earlier build left in build/lib of the tree.
    mkdir "$environment/source"
    sources | xargs -0 cp --parents --target-directory "$environment/source"
    # pip, too, is found through the .pth file.
    pip_install "$environment/bin/python" --no-deps "$environment/source" >&2
    rm -rf -- "$environment/source"
    touch "$environment/complete"
fi
touch "$environment"

find "$base" -mindepth 1 -maxdepth 1 -type d -mtime +7 -exec rm -rf -- {} +
printf '%s\n' "$environment"
