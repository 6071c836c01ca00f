# shellcheck shell=bash disable=SC2034
# Finds what Penstock needs outside Python, and installs it on Debian and Ubuntu. Sourced, never run.
#
# Owns the version floors, the names of packages, and how packages are installed: quietly, into a log, and with no service started or enabled.
# A machine that already has what is asked for is never changed.

PYTHON_MINOR_MIN=11
JAVA_MAJOR_MIN=17

# What a release of Debian or Ubuntu may call them, in the order in which they are tried. python3 is the release's own.
PYTHON_PACKAGES=(python3 python3.13 python3.12 python3.11)
JAVA_PACKAGES=(openjdk-17-jre-headless openjdk-21-jre-headless)

# The database servers that tests start, on loopback and in folders of their own; mariadb-client has mariadb-binlog, a peer of
# `make bench NAME=sources`.
MARIADB_PACKAGES=(mariadb-server-core mariadb-client-core mariadb-client)
POSTGRES_PACKAGES=(postgresql)

# The browser in which tests try the web page; they are left out where no package source has it.
BROWSER_PACKAGE=chromium

# Where the system begins; a test gives it a folder.
system=${PENSTOCK_SETUP_SYSTEM:-}

# Where the folder's name has letters that are not ASCII, Python must know UTF-8 before it can read where its packages are.
case $PWD/${BASH_SOURCE[0]}:${LC_ALL:-${LC_CTYPE:-${LANG:-C}}} in
  *[!\ -~]*:C | *[!\ -~]*:POSIX) export LC_ALL=C.UTF-8 ;;
esac

say() { printf 'setup: %s\n' "$*"; }

fail() {
  printf 'setup: error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf 'setup: hint: %s\n' "$2" >&2
  exit 2
}

# Where package managers write; it is there once something was installed.
log=${PENSTOCK_SETUP_LOG:-build/setup.log}

# logged COMMAND...: runs it with its output in the log; on a terminal the seconds are shown. May be a function, but sets no variable.
# It has a process group of its own, so that Ctrl-C ends it by `interrupted` and never in the middle of what dpkg does.
logged() {
  local pid what=$1 began=$SECONDS rc=0
  mkdir -p "$(dirname "$log")"
  printf '\n== %s\n' "$*" >>"$log"
  set -m
  (
    trap 'apt_wait_s=0' USR1
    "$@"
  ) >>"$log" 2>&1 </dev/null &
  pid=$!
  set +m
  trap 'interrupted "$pid" "$what"' INT TERM HUP
  while [ -t 1 ] && kill -0 "$pid" 2>/dev/null; do
    printf '\r  %d s ' $((SECONDS - began))
    sleep 1
  done
  [ ! -t 1 ] || printf '\r          \r'
  wait "$pid" || rc=$?
  trap - INT TERM HUP
  return "$rc"
}

# interrupted GROUP COMMAND: ends a group of processes and the script. What changes the system is let end: half an installation is worse.
interrupted() {
  trap '' INT TERM HUP
  case $2 in
    apt_get | apt_get_install | install_servers)
      # One that waits for somebody else's lock waits no more.
      kill -USR1 "$1" 2>/dev/null || true
      say "apt-get is let finish; then this ends"
      wait "$1" || true
      ;;
    *)
      kill -TERM -- "-$1" 2>/dev/null || true
      wait "$1" 2>/dev/null || true
      ;;
  esac
  printf 'setup: interrupted\n' >&2
  exit 130
}

# fail_logged WHAT HINT: ends with the last lines of the log and its name.
fail_logged() {
  printf 'setup: the last lines of %s:\n' "$log" >&2
  tail -n 12 "$log" | sed 's/^/  | /' >&2
  fail "$1" "$2 The whole log is $log."
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

is_installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# candidate PACKAGE: prints the version that would be installed. `apt-cache show` will not do: it succeeds for a package that others only mention.
candidate() { LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n '/(none)/d; s/^  Candidate: //p'; }

# first_candidate PACKAGE...: prints the first one that can be installed, or the first one where the index is empty.
first_candidate() {
  local package
  for package in "$@"; do
    if [ -n "$(candidate "$package")" ]; then
      printf '%s\n' "$package"
      return 0
    fi
  done
  printf '%s\n' "$1"
}

# python_package: prints the first package of a Python that is new enough.
python_package() {
  local package version
  for package in "${PYTHON_PACKAGES[@]}"; do
    version=$(candidate "$package")
    case $version in
      3.*) version=${version#3.} ;;
      *) continue ;;
    esac
    if [ "${version%%[!0-9]*}" -ge "$PYTHON_MINOR_MIN" ]; then
      printf '%s\n' "$package"
      return 0
    fi
  done
  printf '%s\n' "${PYTHON_PACKAGES[0]}"
}

# How long another apt-get, such as that of automatic upgrades, may have the locks.
apt_wait_s=${PENSTOCK_SETUP_APT_WAIT:-300}

# apt_get ARGUMENTS...: runs apt-get as root, once nobody else has its locks. By itself it would wait for dpkg's at most, not for those of its lists.
apt_get() {
  local began=$SECONDS told rc
  while :; do
    rc=0
    { told=$(as_root env LC_ALL=C DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l apt-get "$@" -q 2>&1 >&3) || rc=$?; } 3>&1
    [ -z "$told" ] || printf '%s\n' "$told"
    case $rc:$told in
      0:*) return 0 ;;
      *"Could not get lock"*) [ $((SECONDS - began)) -lt "$apt_wait_s" ] || return "$rc" ;;
      *) return "$rc" ;;
    esac
    sleep 1
  done
}

apt_updated=no

apt_update() {
  [ "$apt_updated" = no ] || return 0
  say "refreshing the package index"
  logged apt_get update || fail_logged "apt-get update failed" "Check the package sources and the network."
  apt_updated=yes
}

# apt_install PURPOSE PACKAGE...: installs packages, or says what to install by hand where that is not possible.
apt_install() {
  local purpose=$1
  shift
  command -v apt-get >/dev/null 2>&1 ||
    fail "this machine lacks $purpose, and it is not Debian or Ubuntu" "Install $* (or what your system calls it), then run this again."
  as_root true || fail "this machine lacks $purpose, and installing it needs root" "Run: sudo apt-get update && sudo apt-get install -y $*"
  apt_update
  say "installing $* for $purpose"
  logged apt_get_install "$@" || fail_logged "apt-get could not install $*" "Check the package sources and the network."
}

apt_get_install() { apt_get install -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@"; }

# install_servers PACKAGE...: installs packages of which some bring a service: none is started, PostgreSQL's makes no cluster and is not enabled.
install_servers() {
  local policy=$system/usr/sbin/policy-rc.d cluster=$system/etc/postgresql-common/createcluster.conf own_policy=no new_postgres=no rc=0
  if [ ! -e "$policy" ]; then
    own_policy=yes
    # What a package's script asks before it starts a service; 101 is no.
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
  fi
  if [[ " $* " == *" postgresql "* ]] && ! is_installed postgresql-common; then
    new_postgres=yes
    apt_get_install postgresql-common &&
      as_root cp -p "$cluster" "$cluster.penstock" &&
      printf 'create_main_cluster = false\n' | as_root tee -a "$cluster" >/dev/null || rc=$?
  fi
  [ "$rc" != 0 ] || apt_get_install "$@" || rc=$?
  if [ "$new_postgres" = yes ]; then
    [ ! -e "$cluster.penstock" ] || as_root mv "$cluster.penstock" "$cluster"
    # It asks who calls; the package's own script is who enabled it.
    as_root env DPKG_MAINTSCRIPT_PACKAGE=postgresql-common deb-systemd-helper disable postgresql.service || true
  fi
  [ "$own_policy" = no ] || as_root rm -f "$policy"
  return "$rc"
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
  for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java 2>/dev/null)" "$system"/usr/lib/jvm/*/bin/java; do
    if [ -n "$java" ] && [ -x "$java" ] && java_fits "$java"; then
      java=$(readlink -f "$java")
      printf '%s\n' "${java%/bin/java}"
      return 0
    fi
  done
  return 1
}
