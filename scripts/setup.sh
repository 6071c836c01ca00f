#!/usr/bin/env bash
# setup.sh [run|test] [DEMO'S OPTIONS]: makes this clone runnable. May be run any number of times; a run with nothing to do ends at once.
#
# run (also: no word) is what the demo and a server need: Python, Java, and .venv with Penstock. `--source mysql` or `--source postgres` among
# the demo's options adds that database. test adds the servers and tools of tests. What is missing of the system is installed by apt-get
# where that is allowed, all at once; where it is not, one message names everything. No service is started or enabled.
# `setup.sh packages run|test`, as root, installs what the system must have and nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages_only=no
if [ "${1:-}" = packages ]; then
  packages_only=yes
  shift
  # Root leaves nothing of its own in a user's clone.
  PENSTOCK_SETUP_LOG=${PENSTOCK_SETUP_LOG:-/var/log/penstock-setup.log}
fi
level=${1:-run}
[ "$#" = 0 ] || shift
. scripts/toolchain.sh
case $level in
  run | test) ;;
  *) fail "what is $level?" "Say: scripts/setup.sh run, or: scripts/setup.sh test" ;;
esac

stamp=.venv/.penstock-setup
more="# What tests, documentation and development need besides."

# wanted_stamp PYTHON: prints what the stamp holds when .venv fits the present pins and the present Java.
wanted_stamp() {
  "$1" - pyproject.toml constraints.txt constraints-hashes.txt src/penstock/__init__.py "$(find_java_home)/release" <<'PY'
import hashlib
import sys
from pathlib import Path

digest = hashlib.sha256(sys.version.encode())
for name in sys.argv[1:]:
    file = Path(name)
    digest.update(b"\0" + (file.read_bytes() if file.is_file() else name.encode()))
print(digest.hexdigest())
PY
}

# look_around DEMO'S OPTIONS: collects in `missing` the packages to install, in `purposes` what for, in `wished` what may stay away.
look_around() {
  local package python servers=()
  missing=() purposes=() wished=()
  if python=$(find_python); then
    # Debian ships the venv module apart from each interpreter, under the interpreter's name.
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || want "Python's venv module" "$(basename "$python")-venv"
  else
    package=$(python_package)
    want "Python 3.$PYTHON_MINOR_MIN or newer" "$package" "$package-venv"
  fi
  find_java_home >/dev/null || want "Java $JAVA_MAJOR_MIN or newer" "$(first_candidate "${JAVA_PACKAGES[@]}")"
  case " $level $* " in
    *" test "*) servers=("${MARIADB_PACKAGES[@]}" "${POSTGRES_PACKAGES[@]}") ;;
    *" --source mysql "* | *" --source=mysql "*) servers=("${MARIADB_PACKAGES[@]:0:2}") ;;
    *" --source postgres "* | *" --source=postgres "*) servers=("${POSTGRES_PACKAGES[@]}") ;;
  esac
  for package in ${servers[@]+"${servers[@]}"}; do
    is_installed "$package" || want "the databases that are started here" "$package"
  done
  [ "$level" = test ] || return 0
  # Azurite and a peer of `make bench NAME=sources` come from npm; any npm will do.
  command -v npm >/dev/null 2>&1 || want "npm, which brings a storage emulator" npm
  command -v "$BROWSER_PACKAGE" >/dev/null 2>&1 || wished+=("$BROWSER_PACKAGE")
  # It brings promtool, which a test lets check the alert rules.
  command -v promtool >/dev/null 2>&1 || wished+=(prometheus)
}

want() {
  case "${purposes[*]-}" in
    *"$1"*) ;;
    *) purposes+=("$1") ;;
  esac
  shift
  missing+=("$@")
}

joined() {
  local IFS=,
  printf '%s' "$*" | sed 's/,\([^ ]\)/, \1/g'
}

ensure_packages() {
  look_around "$@"
  if [ "${#missing[@]}" != 0 ]; then
    command -v apt-get >/dev/null 2>&1 ||
      fail "this machine lacks $(joined "${purposes[@]}"), and it is not Debian or Ubuntu" "Install ${missing[*]} (or what your system calls it), then run this again."
    as_root true ||
      fail "this machine lacks $(joined "${purposes[@]}"), and installing needs root" "Run: sudo scripts/setup.sh packages $level${*:+ $*}   (it installs ${missing[*]} and enables no service)"
    apt_update
    # With a fresh index the names may be others.
    look_around "$@"
    say "installing ${missing[*]}"
    logged install_servers "${missing[@]}" || fail_logged "apt-get could not install ${missing[*]}" "Check the package sources and the network."
    look_around "$@"
    [ "${#missing[@]}" = 0 ] || fail "no package source here has $(joined "${purposes[@]}")" "Install it by hand (PYTHON and JAVA_HOME name other ones), then run this again."
  fi
  local package
  for package in ${wished[@]+"${wished[@]}"}; do
    # Looked for once, when the clone is set up first, or by root.
    { [ "$packages_only" = yes ] || [ ! -e "$stamp" ]; } && as_root true && apt_update && [ -n "$(candidate "$package")" ] && say "installing $package" && logged install_servers "$package" ||
      say "no $package here; the tests that need it are left out"
  done
}

# install_pinned LEVEL: the packages whose files are those on record, then Penstock itself and whatever this platform needs besides.
install_pinned() {
  local install=(.venv/bin/python -m pip install) pins=.venv/.penstock-pins extras=mysql,postgres
  export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off
  cp constraints-hashes.txt "$pins"
  if [ "$1" = run ]; then
    sed "/^$more/,\$d" constraints-hashes.txt >"$pins"
  else
    extras="test"
  fi
  if ! "${install[@]}" --no-deps --require-hashes -r "$pins"; then
    if [ "${PENSTOCK_REQUIRE_HASHES:-}" = 1 ]; then
      echo "the packages here are not those of constraints-hashes.txt"
      return 1
    fi
    touch .venv/.penstock-unchecked
    "${install[@]}" -c constraints.txt setuptools
  fi
  # What builds Penstock is pinned too, so it is built with what is there.
  "${install[@]}" --no-build-isolation -c constraints.txt -e ".[$extras]"
}

ensure_venv() {
  local wanted held
  # pip is there last, so a creation that was cut short does not count.
  if [ -x .venv/bin/pip ] && python_fits .venv/bin/python; then
    wanted=$(wanted_stamp .venv/bin/python)
    held=$(cat "$stamp" 2>/dev/null || true)
    if [ -x .venv/bin/penstock ] && { [ "$held" = "$level $wanted" ] || [ "$held" = "test $wanted" ]; }; then
      say "up to date"
      return 0
    fi
    # Who has run tests here will run them again.
    [ "${held%% *}" != test ] || level="test"
  else
    local python
    python=$(find_python)
    say "creating .venv with $("$python" --version)"
    rm -rf .venv
    logged "$python" -m venv .venv || fail_logged "$python could not make .venv" "Is there room on the disk?"
    wanted=$(wanted_stamp .venv/bin/python)
  fi
  say "installing Penstock and what it needs, as pinned in constraints.txt (minutes the first time; $log has the details)"
  rm -f "$stamp" .venv/.penstock-unchecked
  logged install_pinned "$level" ||
    fail_logged "pip could not install the pinned packages" "Check the network, the room on the disk and pip's own configuration."
  [ ! -e .venv/.penstock-unchecked ] ||
    say "WARNING: packages here are not those of constraints-hashes.txt; went on by version alone (PENSTOCK_REQUIRE_HASHES=1 stops here)"
  prepare
  printf '%s %s\n' "$level" "$wanted" >"$stamp"
  say "done"
}

# prepare: what would make the first run slow. Both at once, because each keeps one core busy.
prepare() {
  local archive
  say "compiling kernels, and archiving Spark's classes so that Spark starts in a third of the time (about a minute, once)"
  # In a JVM that reads its classes from an archive, most of its start is gone.
  set -m
  JAVA_HOME=$(find_java_home) .venv/bin/python -m penstock.feed.spark.class_archive >>"$log" 2>&1 </dev/null &
  archive=$!
  set +m
  trap 'interrupted "$archive" archive' INT TERM HUP
  .venv/bin/python -m penstock.server.warm_kernels 2>>"$log" | sed -u 's/^/setup:   /' || {
    kill -TERM -- "-$archive" 2>/dev/null || true
    fail_logged "the kernels did not compile" "Report it with the lines above."
  }
  wait "$archive" || say "Spark's classes could not be archived; everything works, but Spark starts slower ($log says why)"
  trap - INT TERM HUP
}

ensure_packages "$@"
[ "$packages_only" = no ] || exit 0
ensure_venv
