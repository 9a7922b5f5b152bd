#!/bin/sh
# Unpacks another release of veRL that a run takes into .verl-VERSION, once, and prints the folder. Its sources are
# compared with what we use of veRL (scripts/generate/make_upstream_symbols.py); nothing of it is imported.
set -eu
cd "$(dirname "$0")/../.."
version=${1:-0.9.0}
folder=.verl-$version list=requirements/hashes/verl-$version.txt
scripts/ci/unpack_once.sh "$folder" "$list" .venv/bin/pip install -q --no-deps --no-compile --require-hashes -r "$list" --target
echo "$PWD/$folder"
