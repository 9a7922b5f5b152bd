#!/bin/sh
# Puts the wheels of requirements/light.txt into .wheels, once: tests install them without an index.
set -eu
cd "$(dirname "$0")/../.."
list=requirements/hashes/light.txt
scripts/ci/unpack_once.sh .wheels "$list" .venv/bin/pip wheel -q --no-deps --require-hashes -r "$list" --wheel-dir
