#!/bin/sh
# Writes requirements/hashes/*.txt: the pins of cpu.txt, dev.txt and docs.txt with the digests of their files on PyPI.
# Needs uv. torch is left out: each machine takes its CPU build from an index of its own, under another digest.
set -eu
cd "$(dirname "$0")/.."
mkdir -p requirements/hashes
for name in cpu dev docs; do
  grep -v '^torch==' "requirements/$name.txt" | uv pip compile -q --no-deps --generate-hashes --python-version 3.12 \
    --no-header --no-annotate -o "requirements/hashes/$name.txt" -
done
