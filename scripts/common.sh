# shellcheck shell=sh
# What the scripts share. Sourced with the source tree as the working directory.

say() { printf 'agenthost: %s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

can_be_root() { [ "$(id -u)" -eq 0 ] || have sudo; }

# Runs a command as root: directly, or with sudo.
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -- "$@"; fi; }

# Installs Debian packages; their names are the arguments. False where that is impossible, or failed.
apt_install() {
    have apt-get && can_be_root || return 1
    say "installing Debian packages: $*"
    apt_get -qq update && apt_get -qq --yes --no-install-recommends install "$@" >/dev/null
}

apt_get() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@"; }

# Prints a python3 that is new enough. /usr/bin/python3 comes first: one below somebody's home cannot be reached by an
# unprivileged user, and a virtual environment made with it neither.
find_python() {
    for candidate in "${PYTHON:-}" /usr/bin/python3 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11 \
        python3 python3.13 python3.12 python3.11; do
        path=$(command -v "$candidate") || continue
        if "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$path"
            return 0
        fi
    done
    die "there is no Python 3.11 or newer here; install one (Debian package python3), or set PYTHON to it"
}

# Prints the checksum of standard input.
checksum() { sha256sum | cut -d ' ' -f 1; }

# Prints what agenthost needs to run, with Codex, one requirement a line. $1 is an interpreter.
requirements() {
    "$1" -c 'import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(*project["dependencies"], *project["optional-dependencies"]["codex"], sep="\n")'
}

# Prints the checksum of all that decides which versions of them the interpreter $1 gets installed.
dependency_checksum() {
    {
        "$1" -c 'import sys; print(sys.executable, sys.version)'
        requirements "$1"
        cat scripts/constraints.txt
    } | checksum
}

# pip of the interpreter $1, versions held by scripts/constraints.txt. python-prctl has no wheel: without --use-pep517
# an old pip looks for a package `wheel`, which a fresh virtual environment lacks.
pip_install() {
    interpreter=$1
    shift
    "$interpreter" -m pip --disable-pip-version-check --no-input -qq install --use-pep517 \
        --constraint scripts/constraints.txt "$@"
}

# Prints where the things lie that several clones may share and that every user of the machine can read.
cache_directory() {
    if [ -n "${AGENTHOST_TEST_CACHE:-}" ]; then
        printf '%s\n' "$AGENTHOST_TEST_CACHE"
    elif [ "$(id -u)" -eq 0 ]; then
        echo /var/cache/agenthost-tests
    else
        printf '%s\n' "${XDG_CACHE_HOME:-$HOME/.cache}/agenthost-tests"
    fi
}
