# Finds what Penstock needs outside Python, and installs it on Debian and Ubuntu. Sourced, never run.
#
# Owns the version floors. A machine that already has a fitting Python and Java is never changed.

PYTHON_MINOR_MIN=11
JAVA_MAJOR_MIN=17

# What a release of Debian or Ubuntu may call them, in the order in which they are tried. python3 is the release's own.
PYTHON_PACKAGES=(python3 python3.13 python3.12 python3.11)
JAVA_PACKAGES=(openjdk-17-jre-headless openjdk-21-jre-headless)

# Debian packages of the database servers that tests start, on loopback and in folders of their own; mariadb-client has mariadb-binlog, a peer
# of `make bench NAME=sources`.
SERVER_PACKAGES=(mariadb-server-core mariadb-client-core mariadb-client postgresql)

# The browser in which a test tries what web pages can do to the API; that test is left out where no package source has it.
BROWSER_PACKAGE=chromium

say() { printf 'setup: %s\n' "$*"; }

fail() {
  printf 'setup: error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf 'setup: hint: %s\n' "$2" >&2
  exit 2
}

# as_root COMMAND...: runs it as root, through sudo where needed; sudo never asks, because nobody may be there to answer.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    sudo -n "$@"
  else
    return 126
  fi
}

apt_updated=no

# apt_install PURPOSE PACKAGE...: installs packages, with a fresh index once per run.
apt_install() {
  local purpose=$1
  shift
  apt_update "$purpose" "$@"
  say "installing $* for $purpose"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 "$@" ||
    fail "apt-get could not install $*" "Read its message above; check the package sources and the network."
}

# apt_update PURPOSE PACKAGE...: refreshes the package index, or says what to install by hand where that is not possible.
apt_update() {
  local purpose=$1
  shift
  [ "$apt_updated" = no ] || return 0
  command -v apt-get >/dev/null 2>&1 ||
    fail "$purpose is missing and this is not Debian or Ubuntu" "Install $* (or what your system calls it), then run make setup again."
  as_root true ||
    fail "$purpose is missing and installing it needs root" "Run: sudo apt-get update && sudo apt-get install -y $*"
  say "refreshing the package index"
  as_root apt-get update -qq -o DPkg::Lock::Timeout=120 || fail "apt-get update failed" "Check the package sources and the network."
  apt_updated=yes
}

# apt_knows PACKAGE: whether the package index has it.
apt_knows() {
  apt-cache show "$1" >/dev/null 2>&1
}

# python_fits PROGRAM: whether it is a Python that is new enough.
python_fits() {
  "$1" -c "import sys; sys.exit(sys.version_info < (3, $PYTHON_MINOR_MIN))" >/dev/null 2>&1
}

# find_python: prints the first fitting Python; $PYTHON wins.
find_python() {
  local name
  for name in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    if [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 && python_fits "$name"; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}

# java_fits PROGRAM: whether it is a Java that is new enough.
java_fits() {
  local major
  major=$("$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
  [ -n "$major" ] && [ "$major" -ge "$JAVA_MAJOR_MIN" ]
}

# find_java_home: prints the home of the first fitting Java: JAVA_HOME, then the path, then where Debian puts them.
find_java_home() {
  local java
  for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java 2>/dev/null)" /usr/lib/jvm/*/bin/java; do
    if [ -n "$java" ] && [ -x "$java" ] && java_fits "$java"; then
      java=$(readlink -f "$java")
      printf '%s\n' "${java%/bin/java}"
      return 0
    fi
  done
  return 1
}
