#!/bin/sh
# Makes .venv with agenthost (editable), Codex and the development tools, and installs the Debian packages that are
# missing. Takes no time when nothing has changed. With --with-tests: also what only the test suite needs.
set -eu
cd -- "$(dirname -- "$0")/.."
. scripts/common.sh

tests=no
[ "${1:-}" != --with-tests ] || tests=yes

# Prints the packages without which nothing can be built or run with the interpreter $1.
required_packages() {
    have cc || echo gcc
    have make || echo make
    have git || echo git
    [ -e /usr/include/stdlib.h ] || echo libc6-dev
    [ -e /usr/include/linux/landlock.h ] || echo linux-libc-dev
    [ -e /usr/include/sys/capability.h ] || echo libcap-dev
    /sbin/ldconfig -p 2>/dev/null | grep -q libseccomp.so.2 || echo libseccomp2
    case $1 in
    /usr/bin/*)
        "$1" -c 'import ensurepip, venv' 2>/dev/null || echo "$(python_package "$1")-venv"
        [ -e "$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
            echo "$(python_package "$1")-dev"
        ;;
    esac
}

# Debian's package of an interpreter in /usr/bin: `python3` for the default one, else `python3.N`.
python_package() {
    if [ "$(readlink -f -- "$1")" = "$(readlink -f /usr/bin/python3)" ]; then echo python3; else basename -- "$1"; fi
}

# Prints the packages without which the build falls back, or tests are skipped.
optional_packages() {
    have musl-gcc || echo musl-tools
    [ "$tests" = yes ] || return 0
    have bwrap || echo bubblewrap
    have setpriv || echo util-linux
    have npm || echo npm
}

python=$(find_python)
required=$(required_packages "$python" | paste -s -d ' ')
optional=$(optional_packages | paste -s -d ' ')
# shellcheck disable=SC2086 # package names are words
if [ -n "$required$optional" ] && ! apt_install $required $optional; then
    remedy="as root: apt-get update && apt-get install $required${required:+ }$optional"
    [ -z "$required" ] || die "these Debian packages are missing: $required; $remedy"
    say "going on without these Debian packages: $optional; $remedy"
fi

# A virtual environment holds absolute paths: one that was moved, or whose interpreter changed, is made anew.
place=$(printf '%s\n' "$python" "$PWD" | checksum)
wanted="$place $(dependency_checksum "$python") $(cat pyproject.toml setup.py scripts/*.sh | checksum)"
stamp=$(cat .venv/agenthost-stamp 2>/dev/null || :)
[ "$stamp" != "$wanted" ] || exit 0
if [ ! -x .venv/bin/python ] || [ "${stamp%% *}" != "$place" ]; then
    say "making .venv with $python"
    rm -rf .venv
    "$python" -m venv .venv
fi
say "installing agenthost, its dependencies, Codex and the development tools into .venv"
pip_install .venv/bin/python --editable '.[codex,dev]'
# Where the path is not plain, pip writes it between double quotes into line 2, whatever is in it.
# shellcheck disable=SC2016 # it is the program that expands them
sed -i '2s|^\(.*exec. \)".*" "$0"|\1"$(dirname -- "$(readlink -f -- "$0")")/python" "$0"|' \
    .venv/bin/agenthost .venv/bin/agenthost-codex
printf '%s\n' "$wanted" >.venv/agenthost-stamp
