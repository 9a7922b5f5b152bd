#!/bin/sh
# Installs requirements/vision.txt into .vision, once, and prints the folder, for PYTHONPATH.
set -eu
cd "$(dirname "$0")/.."
folder=.vision
mkdir -p .vision-lock; exec 9>.vision-lock/lock
flock 9
if ! cmp -s requirements/vision.txt "$folder/requirements.txt"; then
  part=$(mktemp -d "$folder.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  .venv/bin/pip install -q --no-deps --no-compile --target "$part" -r requirements/vision.txt
  cp requirements/vision.txt "$part/requirements.txt"
  rm -rf "$folder"
  mv "$part" "$folder"
fi
echo "$PWD/$folder"
