#!/usr/bin/env bash
# Makes this clone runnable: Python, Java, .venv with Penstock and its test tools. May be run any number of times; a run with
# nothing to do ends at once. Changes the system only where Python, its venv module or Java is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/toolchain.sh

stamp=.venv/.penstock-setup

# wanted_stamp PYTHON: prints what the stamp holds when .venv fits the present pins.
wanted_stamp() {
  "$1" - pyproject.toml constraints.txt constraints-hashes.txt <<'PY'
import hashlib
import sys
from pathlib import Path

digest = hashlib.sha256(sys.version.encode())
for name in sys.argv[1:]:
    digest.update(b"\0" + Path(name).read_bytes())
print(digest.hexdigest())
PY
}

ensure_python() {
  python=$(find_python) || install_python
  python=$(find_python) ||
    fail "no Python 3.$PYTHON_MINOR_MIN or newer here, nor in the package sources" "Install one and run: PYTHON=/path/to/python3 make setup"
  if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    # Debian ships the venv module apart from each interpreter, under the interpreter's name.
    apt_install "Python's venv module" "$(basename "$python")-venv"
  fi
}

install_python() {
  local package purpose="Python 3.$PYTHON_MINOR_MIN or newer"
  apt_update "$purpose" python3 python3-venv
  for package in "${PYTHON_PACKAGES[@]}"; do
    apt_knows "$package" || continue
    apt_install "$purpose" "$package" "$package-venv"
    ! find_python >/dev/null || return 0
  done
}

ensure_java() {
  find_java_home >/dev/null || install_java
  find_java_home >/dev/null ||
    fail "no Java $JAVA_MAJOR_MIN or newer here, nor in the package sources" "Install one, set JAVA_HOME to it, and run make setup again."
}

install_java() {
  local package purpose="Java (Spark runs on it)"
  apt_update "$purpose" "${JAVA_PACKAGES[0]}"
  for package in "${JAVA_PACKAGES[@]}"; do
    apt_knows "$package" || continue
    apt_install "$purpose" "$package"
    ! find_java_home >/dev/null || return 0
  done
}

ensure_servers() {
  local package missing=()
  for package in ${SERVER_PACKAGES[@]+"${SERVER_PACKAGES[@]}"}; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  # Azurite and a peer of `make bench NAME=sources` come from npm; any npm will do.
  command -v npm >/dev/null 2>&1 || missing+=(npm)
  [ "${#missing[@]}" = 0 ] || apt_install "the servers that tests and demo start" "${missing[@]}"
}

ensure_browser() {
  ! command -v "$BROWSER_PACKAGE" >/dev/null 2>&1 || return 0
  # In a shell of its own: what fails in there ends nothing but the attempt.
  (as_root true && apt_knows "$BROWSER_PACKAGE" && apt_install "the test of web pages against the API" "$BROWSER_PACKAGE") ||
    say "no $BROWSER_PACKAGE here; the test of web pages against the API is left out"
}

# install_pinned: the packages whose files are those on record, then Penstock itself and whatever this platform needs besides.
install_pinned() {
  local install=(.venv/bin/python -m pip install -q)
  export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
  if ! "${install[@]}" --no-deps --require-hashes -r constraints-hashes.txt; then
    [ "${PENSTOCK_REQUIRE_HASHES:-}" != 1 ] || fail "the packages here are not those of constraints-hashes.txt" "Read pip's message above."
    say "WARNING: packages here are not those of constraints-hashes.txt; going on by version alone (PENSTOCK_REQUIRE_HASHES=1 stops here)"
  fi
  "${install[@]}" -c constraints.txt -e '.[test]'
}

ensure_venv() {
  local wanted
  # pip is there last, so a creation that was cut short does not count.
  if [ -x .venv/bin/pip ] && python_fits .venv/bin/python; then
    wanted=$(wanted_stamp .venv/bin/python)
    if [ -x .venv/bin/penstock ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
      say "up to date"
      return 0
    fi
  else
    say "creating .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
    wanted=$(wanted_stamp .venv/bin/python)
  fi
  say "installing Penstock and what it needs, as pinned in constraints.txt (some minutes the first time)"
  rm -f "$stamp"
  install_pinned ||
    fail "pip could not install the pinned packages" "Read its message above; check the network and pip's own configuration."
  say "compiling the kernels, once"
  .venv/bin/python -m penstock.server.warm_kernels || fail "the kernels did not compile" "Report it with the message above."
  printf '%s\n' "$wanted" >"$stamp"
  say "done"
}

# Spark's JVM then maps its classes instead of reading them, which is most of its start.
ensure_class_archive() {
  JAVA_HOME=$(find_java_home) .venv/bin/python -m penstock.feed.spark.class_archive >/dev/null 2>&1 ||
    say "Spark's classes could not be archived; everything works, but Spark starts slower"
}

ensure_python
ensure_java
ensure_servers
ensure_browser
ensure_venv
ensure_class_archive
