#!/bin/sh
# Installs the Debian packages of a list, requirements/debian.txt by default, whose programs (or files) are missing. Needs
# root; says the command otherwise.
set -eu
cd "$(dirname "$0")/../.."
list=${1:-requirements/debian.txt}
PATH="$PATH:/usr/sbin:/sbin"
for bin in /usr/lib/postgresql/*/bin; do PATH="$PATH:$bin"; done
missing() {
  grep -v '^#' "$list" | while read -r package program; do
    command -v "$program" >/dev/null || [ -e "$program" ] || printf ' %s' "$package"
  done
}
packages=$(missing)
[ -n "$packages" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "install_system: missing for some tests:$packages; run: sudo apt-get install$packages" >&2
  exit 1
fi
apt-get update -qq
# shellcheck disable=SC2086  # a list of names
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
packages=$(missing)
[ -z "$packages" ] || { echo "install_system: installed, but without the program of:$packages" >&2; exit 1; }
