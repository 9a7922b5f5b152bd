#!/bin/sh
# Puts the wheels of requirements/light.txt into .wheels, once: tests install them without an index.
set -eu
cd "$(dirname "$0")/.."
folder=.wheels
mkdir -p .wheels-lock; exec 9>.wheels-lock/lock
flock 9
if ! cmp -s requirements/light.txt "$folder/requirements.txt"; then
  part=$(mktemp -d "$folder.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  .venv/bin/pip wheel -q --no-deps --wheel-dir "$part" -r requirements/light.txt
  cp requirements/light.txt "$part/requirements.txt"
  rm -rf "$folder"
  mv "$part" "$folder"
fi
