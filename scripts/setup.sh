#!/usr/bin/env bash
# Makes this clone runnable: Python, Java, .venv with Penstock and its test tools. May be run any number of times; a run with
# nothing to do ends at once. Changes the system only where Python, its venv module or Java is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/toolchain.sh

stamp=.venv/.penstock-setup

# wanted_stamp PYTHON: prints what the stamp holds when .venv fits the present pins.
wanted_stamp() {
  "$1" - pyproject.toml constraints.txt <<'PY'
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
  python=$(find_python) || {
    apt_install "Python 3.$PYTHON_MINOR_MIN or newer" python3 python3-venv
    python=$(find_python) || fail "no Python 3.$PYTHON_MINOR_MIN or newer here, nor in the package sources" "Install one and run: PYTHON=/path/to/python3 make setup"
  }
  if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    local package=python3-venv
    # Debian ships the venv module apart from each interpreter; its default interpreter has a package without the minor version.
    [ "$(basename "$python")" = python3 ] || package="$(basename "$python")-venv"
    apt_install "Python's venv module" "$package"
  fi
}

ensure_java() {
  find_java_home >/dev/null && return 0
  local package
  if command -v apt-cache >/dev/null 2>&1 && as_root true; then
    apt_update
    for package in "${JAVA_PACKAGES[@]}"; do
      if apt-cache show "$package" >/dev/null 2>&1; then
        apt_install "Java (Spark runs on it)" "$package"
        break
      fi
    done
  else
    apt_install "Java (Spark runs on it)" "${JAVA_PACKAGES[0]}"
  fi
  find_java_home >/dev/null ||
    fail "no Java $JAVA_MAJOR_MIN or newer here, nor in the package sources" "Install one, set JAVA_HOME to it, and run make setup again."
}

ensure_servers() {
  local package missing=()
  for package in ${SERVER_PACKAGES[@]+"${SERVER_PACKAGES[@]}"}; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ "${#missing[@]}" = 0 ] || apt_install "the servers that tests and demo start" "${missing[@]}"
}

ensure_venv() {
  local wanted
  if [ -x .venv/bin/python ] && python_fits .venv/bin/python; then
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
  PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip install -q -c constraints.txt -e '.[test]' ||
    fail "pip could not install the pinned packages" "Read its message above; check the network and pip's own configuration."
  printf '%s\n' "$wanted" >"$stamp"
  say "done"
}

ensure_python
ensure_java
ensure_servers
ensure_venv
