#!/bin/sh
# Installs requirements/vision.txt into .vision, once, and prints the folder, for PYTHONPATH.
set -eu
cd "$(dirname "$0")/../.."
list=requirements/hashes/vision.txt
scripts/ci/unpack_once.sh .vision "$list" .venv/bin/pip install -q --no-deps --no-compile --require-hashes -r "$list" --target
echo "$PWD/.vision"
