#!/usr/bin/env bash
# wheel_test.sh: builds the wheel from what git has at HEAD into dist/, checks what it holds, installs it into a new environment outside the clone,
# and runs the demo there, with no word of the clone on the path. The folder's name has a space, because people have such folders. It is built
# twice: whoever builds the same commit with the pinned tools gets the same bytes, so a published sum can be checked by anybody.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
place=$(mktemp -d "${TMPDIR:-/tmp}/penstock wheel XXXXXX")
trap 'rm -rf "$place"' EXIT

# What lies in build/ or is not committed must not get in.
mkdir "$place/elsewhere"
mkdir -p dist
rm -f dist/penstock-*.whl
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
build() { # INTO
  # What an earlier build left in its folder gets into no other one; archives carry modes, so those are not the user's.
  rm -rf "$place/source"
  mkdir "$place/source"
  git -c tar.umask=0022 archive HEAD | (umask 022 && tar -x -C "$place/source")
  .venv/bin/python -m build --wheel --no-isolation -o "$1" "$place/source" >"$place/build.log" 2>&1 || { cat "$place/build.log" >&2; exit 1; }
}
build "$place/again"
build dist
.venv/bin/python "$place/source/scripts/wheel_check.py" dist/penstock-*.whl
cmp dist/penstock-*.whl "$place/again"/penstock-*.whl || { echo "two builds of one commit differ" >&2; exit 1; }

echo "installing it outside the clone, without extras"
.venv/bin/python -m venv "$place/installed"
"$place/installed/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt dist/penstock-*.whl
echo "$(du -sm "$place/installed" | cut -f 1) MB"

. scripts/toolchain.sh
java=$(find_java_home)
cd "$place/elsewhere"
unset PYTHONPATH
env JAVA_HOME="$java" NUMBA_CACHE_DIR="$place/kernels" "$place/installed/bin/penstock" demo --seconds 5 --out "$place/files" >"$place/demo.log" 2>&1 &&
  grep '^verified: ' "$place/demo.log" || { cat "$place/demo.log" >&2; exit 1; }
[ -z "$(ls -A "$place/elsewhere")" ] || { echo "the demo left something in the folder that it ran in" >&2; exit 1; }
cd "$root"
echo "the wheel works outside the clone: dist/$(basename dist/penstock-*.whl)"
