#!/usr/bin/env bash
# run.sh PROGRAM ARGUMENTS...: runs a program of .venv with a Java that Spark accepts, whatever the shell's own Java is.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/scripts/toolchain.sh"
JAVA_HOME=$(find_java_home) || fail "no Java $JAVA_MAJOR_MIN or newer" "Run make setup."
export JAVA_HOME
export PATH="$root/.venv/bin:$PATH"
program=$1
shift
exec "$root/.venv/bin/$program" "$@"
