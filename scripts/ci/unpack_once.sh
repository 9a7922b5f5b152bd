#!/bin/sh
# unpack_once.sh FOLDER LIST COMMAND…: `COMMAND… DIR` fills a folder from the list of packages LIST, which
# becomes FOLDER, from the repository's root. Once for each content of LIST; one process at a time.
set -eu
cd "$(dirname "$0")/../.."
folder=$1 list=$2
shift 2
mkdir -p "$folder-lock"; exec 9>"$folder-lock/lock"
flock 9
if ! cmp -s "$list" "$folder/requirements.txt"; then
  part=$(mktemp -d "$folder.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  "$@" "$part"
  cp "$list" "$part/requirements.txt"
  rm -rf "$folder"
  mv "$part" "$folder"
fi
