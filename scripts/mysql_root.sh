#!/usr/bin/env bash
# mysql_root.sh: lays MySQL from Debian's unstable distribution into a cache folder with debootstrap, once, and prints the folder.
# Nothing of it is installed on this system; about 560 MB. PENSTOCK_MYSQL_ROOT names another folder, DEBIAN_MIRROR another mirror.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/toolchain.sh

# A server that runs under another user must be able to read it, so it is not in the home folder.
folder=${PENSTOCK_MYSQL_ROOT:-/var/cache/penstock/mysql-root}
if [ ! -e "$folder/.penstock-complete" ]; then
  command -v debootstrap >/dev/null 2>&1 || apt_install "MySQL's own folder" debootstrap >&2
  say "laying MySQL into its own folder, once (about a minute)" >&2
  # A run that was cut short leaves a folder that debootstrap does not mend.
  as_root rm -rf "$folder"
  as_root mkdir -p "$(dirname "$folder")"
  as_root debootstrap --variant=minbase --include=mysql-server-core unstable "$folder" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >&2 ||
    fail "debootstrap could not lay MySQL out" "Read its message above; it needs root and the package mirror."
  as_root touch "$folder/.penstock-complete"
fi
printf '%s\n' "$folder"
