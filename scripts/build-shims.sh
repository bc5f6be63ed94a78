#!/bin/sh
# Compiles the static programs of shims/ and puts them into the directory $1. CC chooses the compiler: by default
# musl-gcc where it is (the programs get much smaller), else the system's cc.
set -eu
[ $# -eq 1 ] || { echo "usage: build-shims.sh DIRECTORY" >&2; exit 2; }
mkdir -p -- "$1"
destination=$(cd -- "$1" && pwd)
cd -- "$(dirname -- "$0")/.."
. scripts/common.sh

compiler=${CC:-}
[ -n "$compiler" ] || { have musl-gcc && compiler=musl-gcc; } || compiler=cc
for program in make "${compiler%% *}"; do
    have "$program" || die "$program is needed to build shims/ (Debian packages make, gcc, libc6-dev, musl-tools)"
done

# OUT is relative: make cannot name a file below a directory with a space in its path. One directory for each compiler,
# so that no object of another one is linked.
out=../build/shims/$(printf %s "$compiler" | tr -c 'A-Za-z0-9._-' _)
make --no-print-directory --silent -C shims CC="$compiler" OUT="$out" all
for program in oac-shim oac-init oac-attack; do
    cmp -s -- "shims/$out/$program" "$destination/$program" ||
        install -m 0755 -- "shims/$out/$program" "$destination/$program"
done
