#!/usr/bin/env bash
# test.sh: lints, and runs every test but the chaos ones. Most tests wait for most of their time, for servers, leases and intervals, so there are
# more processes than cores; those with Spark are a part of their own, whose output is shown at the end. Where one part fails, the other is
# run to its end all the same, but none goes on where lint fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p build
said=build/spark-tests.log
# Whoever does not want compiled modules in the tree would have every worker and every server that a test starts compile them all.
unset PYTHONDONTWRITEBYTECODE
# Short, because paths of sockets are; and not pytest's own folder, which each run shuts against the servers that another one has started.
temporary=$(mktemp -d "${TMPDIR:-/tmp}/ptXXXXXX")

# Jobs have process groups of their own then, and hear an interrupt, which otherwise no job in the background of a script does.
set -m
parts=()
# A test that hangs is ended, but one that others keep waiting is not.
part() {
  local name=$1
  shift
  scripts/run.sh python -m pytest -q --basetemp "$temporary/$name" --timeout 600 --dist worksteal "$@" </dev/null
}
end_parts() {
  local pid
  for pid in ${parts[@]+"${parts[@]}"}; do
    kill -INT -- "-$pid" 2>/dev/null || continue
    wait "$pid" || true
  done
}
trap end_parts EXIT
trap 'exit 130' INT TERM

part s -n 2 -m "not chaos" tests/spark >"$said" 2>&1 &
parts+=("$!")
make --no-print-directory lint
part r -n 5 -m "not chaos and not mysql" --ignore=tests/spark &
parts+=("$!")

spark=0 others=0
wait "${parts[1]}" || others=$?
wait "${parts[0]}" || spark=$?
printf '\nThe tests with Spark, which ran beside (%s):\n' "$said"
cat "$said"
if ((others || spark)); then
  echo "what the tests left is in $temporary"
  exit $((others ? others : spark))
fi
rm -rf "$temporary"
