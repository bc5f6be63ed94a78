#!/bin/sh
# Gets Codex 0.171.0 from the npm registry into a cache directory and prints the path of its binary.
#
# Usage: fetch-codex.sh [DIRECTORY]    (default: as for rootless-env.sh)
set -eu
cd -- "$(dirname -- "$0")/.."
. scripts/common.sh
umask 022

case $(uname -m) in
x86_64) platform=linux-x64 triple=x86_64-unknown-linux-musl ;;
aarch64) platform=linux-arm64 triple=aarch64-unknown-linux-musl ;;
*) die "there is no Codex for $(uname -m)" ;;
esac
version=0.171.0-$platform

base=${1:-$(cache_directory)}
mkdir -p -- "$base"
base=$(cd -- "$base" && pwd)
exec 9>"$base/lock"
flock 9

directory=$base/codex-$version
binary=$directory/package/vendor/$triple/bin/codex
if [ ! -e "$directory/complete" ]; then
    have npm || apt_install npm || die "npm is needed to get Codex 0.171.0 (Debian package npm)"
    say "getting Codex $version into $directory"
    rm -rf -- "$directory"
    mkdir -- "$directory"
    npm --silent pack "@openai/codex@$version" --pack-destination "$directory" >/dev/null
    tar -C "$directory" --no-same-owner -xzf "$directory/openai-codex-$version.tgz"
    rm -- "$directory/openai-codex-$version.tgz"
    [ -x "$binary" ] || die "the package @openai/codex@$version has no $binary"
    touch "$directory/complete"
fi
# rootless-env.sh takes away what was not used for a week.
touch "$directory"
printf '%s\n' "$binary"
