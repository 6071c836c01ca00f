#!/usr/bin/env bash
# fresh.sh [SUITE...]: proves on bare systems that `make demo` needs nothing but make and git. By default bookworm, trixie and noble.
#
# Lays each suite out with debootstrap in a folder for temporary files, clones HEAD into it, and does there what a newcomer does: a user without
# root is told once what is missing; root installs that and no more; the user runs the demo, which verifies every row. With FRESH_WHEEL=1 the
# wheel of dist/ is installed besides, outside the clone, and tried without Java and with it. With FRESH_TESTS=1 the packages of tests are laid
# in as well, and no service may be enabled by them. Needs root, about 4 GB and ten minutes for each.
# Mirrors: DEBIAN_MIRROR or UBUNTU_MIRROR, else apt's own where it serves the suite, else debootstrap's. UBUNTU_KEYRING names Ubuntu's keys where
# no package has laid them in. Each system lives in mount and process namespaces of its own, so that nothing of it is left when it ends; its
# folder is removed, or kept with FRESH_KEEP=1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ "$(id -u)" = 0 ] || { echo "fresh: error: run it as root" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "fresh: error: apt-get install debootstrap" >&2; exit 2; }

is_ubuntu() { case $1 in jammy | noble | plucky | questing | resolute) ;; *) return 1 ;; esac; }

mirror_of() {
  if is_ubuntu "$1"; then
    printf '%s' "${UBUNTU_MIRROR:-}"
  else
    printf '%s' "${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep '/debian/\?$' | head -n 1)}"
  fi
}

# lay SUITE FOLDER: a minimal system with git and make, this machine's name servers and certificates, and a clone that belongs to a plain user.
lay() {
  local options=(--variant=minbase "--include=ca-certificates,git,make") mirror scripts=/usr/share/debootstrap/scripts script
  mirror=$(mirror_of "$1")
  script=$scripts/$1
  if is_ubuntu "$1"; then
    # A release that is younger than debootstrap is laid out as all of Ubuntu's are.
    [ -e "$script" ] || script=$scripts/gutsy
    options+=("--components=main,universe" --keyring="${UBUNTU_KEYRING:-/usr/share/keyrings/ubuntu-archive-keyring.gpg}" --force-check-gpg)
  fi
  debootstrap "${options[@]}" "$1" "$2" "$mirror" "$script" >"$2.log" 2>&1 || return 1
  cp -L /etc/resolv.conf "$2/etc/resolv.conf"
  cp -L /etc/hosts "$2/etc/hosts"
  cp -L /etc/ssl/certs/ca-certificates.crt "$2/etc/ssl/fresh.crt"
  chroot "$2" useradd -m newcomer
  git clone -q --no-hardlinks . "$2/home/newcomer/penstock"
  chroot "$2" chown -R newcomer:newcomer /home/newcomer/penstock
}

# inside FOLDER USER COMMAND: runs it there with an empty environment, as root or as the user, in namespaces of its own. `hidden` may name a
# folder that is empty meanwhile.
hidden=
inside() {
  local become=()
  [ "$2" = root ] || become=(setpriv --reuid=newcomer --regid=newcomer --init-groups)
  unshare --mount --pid --fork bash -c '
    root=$1
    [ -z "$2" ] || mount -t tmpfs none "$root$2"
    shift 2
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm"
    mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
    exec chroot "$root" "$@"' inside "$1" "$hidden" "${become[@]}" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    HOME="$([ "$2" = root ] && echo /root || echo /home/newcomer)" PIP_CERT=/etc/ssl/fresh.crt ${PIP_INDEX_URL:+"PIP_INDEX_URL=$PIP_INDEX_URL"} \
    bash -c "cd /home/newcomer/penstock && $3"
}

expect() { # WHAT CONDITION...
  local what=$1
  shift
  if "$@"; then echo "fresh: $suite: $what"; else
    echo "fresh: $suite: NOT SO: $what" >&2
    failed=yes
  fi
}

packages_in() { chroot "$1" dpkg-query -W -f '${Package}\n' | wc -l; }

try() {
  local folder=$1 out=$1.out began=$SECONDS before services
  before=$(packages_in "$folder")
  inside "$folder" newcomer 'make demo' >"$out" 2>&1 && rc=0 || rc=$?
  expect "a user without root is told at once, in one message, what root must do" test "$rc" = 2 -a "$(grep -c 'setup: error' "$out")" = 1
  grep -h 'setup: ' "$out" | sed 's/^/  | /'
  expect "it names Python and Java" grep -q 'Python 3.11 or newer, Java 17 or newer' "$out"
  inside "$folder" root 'scripts/setup.sh packages run' >"$out" 2>&1 && rc=0 || rc=$?
  sed 's/^/  | /' "$out"
  expect "root's part ends well after $((SECONDS - began)) s: $before packages became $(packages_in "$folder")" test "$rc" = 0
  expect "no database, no npm and no compiler came along" test -z "$(chroot "$folder" dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' | grep -E '^ii +(mariadb-server|postgresql|npm$|gcc$)')"
  expect "nothing of root's is in the clone" test -z "$(find "$folder/home/newcomer/penstock" -user root | head -n 1)"
  began=$SECONDS
  inside "$folder" newcomer "make demo ARGS='--seconds 10'" >"$out" 2>&1 && rc=0 || rc=$?
  grep -E 'setup:|verified|error' "$out" | sed 's/^/  | /'
  expect "make demo from the clone to verified rows after $((SECONDS - began)) s, $(wc -l <"$out") lines" test "$rc" = 0
  expect "every row is identical" grep -q '^verified: ' "$out"
  [ "$rc" = 0 ] || tail -n 30 "$out"
  began=$SECONDS
  inside "$folder" newcomer 'make setup' >"$out" 2>&1 && rc=0 || rc=$?
  expect "set-up again: $((SECONDS - began)) s, $(tail -n 1 "$out")" grep -q 'up to date' "$out"
  expect "the clone is clean" test -z "$(inside "$folder" newcomer 'git status --porcelain')"
  echo "fresh: $suite: $(inside "$folder" newcomer '.venv/bin/python --version; . scripts/toolchain.sh; "$(find_java_home)/bin/java" -version 2>&1 | head -n 1; du -sm .venv | cut -f 1' | tr '\n' ' ')MB"
  [ "${FRESH_WHEEL:-}" != 1 ] || try_wheel "$folder"
  [ "${FRESH_TESTS:-}" = 1 ] || return 0
  inside "$folder" root 'scripts/setup.sh packages test' >"$out" 2>&1 && rc=0 || rc=$?
  sed 's/^/  | /' "$out"
  expect "the packages of tests come in" test "$rc" = 0
  services=$(find "$folder/etc/systemd/system" -name '*postgres*' -o -name '*maria*' -o -name '*mysql*')
  services+=$(find "$folder/etc/postgresql" -mindepth 1 2>/dev/null)
  expect "no service is enabled, no cluster is made${services:+: $services}" test -z "$services"
  expect "what forbade services is gone again" test ! -e "$folder/usr/sbin/policy-rc.d" -a ! -e "$folder/etc/postgresql-common/createcluster.conf.penstock"
}

try_wheel() {
  local folder=$1 out=$1.out began=$SECONDS home=$1/home/newcomer
  cp dist/penstock-*.whl constraints.txt "$home/"
  chmod a+r "$home"/penstock-*.whl "$home/constraints.txt"
  inside "$folder" newcomer 'cd ~ && python3 -m venv "my penstock" && "my penstock/bin/pip" install -q -c constraints.txt penstock-*.whl' >"$out" 2>&1 && rc=0 || rc=$?
  sed 's/^/  | /' "$out"
  expect "pip installs the wheel outside the clone in $((SECONDS - began)) s" test "$rc" = 0
  hidden=/usr/lib/jvm inside "$folder" newcomer 'cd ~ && "my penstock/bin/penstock" demo' >"$out" 2>&1 && rc=0 || rc=$?
  sed 's/^/  | /' "$out"
  expect "without Java the demo ends with a hint" test "$rc" = 2 -a "$(grep -c '^error: \[JAVA_MISSING\]' "$out")" = 1 -a "$(grep -c '^hint: .*openjdk-' "$out")" = 1
  began=$SECONDS
  inside "$folder" newcomer 'cd ~ && "my penstock/bin/penstock" demo --seconds 5' >"$out" 2>&1 && rc=0 || rc=$?
  grep -E 'compil|verified|error' "$out" | sed 's/^/  | /'
  expect "the wheel's demo verifies every row after $((SECONDS - began)) s" test "$rc" = 0 -a "$(grep -c '^verified: ' "$out")" = 1
  [ "$rc" = 0 ] || tail -n 30 "$out"
}

failed=no
[ "$#" != 0 ] || set -- bookworm trixie noble
for suite in "$@"; do
  folder=$(mktemp -d "${TMPDIR:-/tmp}/fresh-$suite-XXXXXX")
  chmod 755 "$folder"
  echo "fresh: $suite: laying it out in $folder"
  if lay "$suite" "$folder"; then
    try "$folder"
  else
    echo "fresh: $suite: could not be laid out, so it was not tried: $(tail -n 1 "$folder.log")" >&2
    failed=yes
  fi
  # Nothing is mounted in it any more: the mounts ended with their namespaces.
  [ "${FRESH_KEEP:-}" = 1 ] || rm -rf --one-file-system "$folder" "$folder.log" "$folder.out"
done
[ "$failed" = no ]
