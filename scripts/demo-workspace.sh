#!/bin/sh
# Makes the directory $1 (which must not exist) a small git repository for the demo to work in.
set -eu
[ $# -eq 1 ] || { echo "usage: demo-workspace.sh DIRECTORY" >&2; exit 2; }
mkdir -p -- "$(dirname -- "$1")"
mkdir -- "$1"
cd -- "$1"

cat >README.md <<'TEXT'
# Fibonacci

`python3 fibonacci.py N` prints the first N Fibonacci numbers.
TEXT
cat >fibonacci.py <<'TEXT'
import sys


def fibonacci(count):
    a, b = 0, 1
    for _ in range(count):
        yield a
        a, b = b, a + b


if __name__ == "__main__":
    print(*fibonacci(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
TEXT

# Whatever the caller's own git configuration says, this repository is the same.
GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
export GIT_CONFIG_NOSYSTEM GIT_CONFIG_GLOBAL
git init --quiet --initial-branch=main
git add --all
git -c user.name=Demo -c user.email=demo@example.com commit --quiet --message='Print Fibonacci numbers'
