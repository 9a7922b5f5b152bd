#!/bin/sh
# Writes requirements/hashes/*.txt: the pins of each list for pip with the digests of their files on PyPI, a package a line.
# Needs uv. torch is left out: each machine takes its CPU build from an index of its own, under another digest.
set -eu
cd "$(dirname "$0")/../.."
mkdir -p requirements/hashes
for list in requirements/*.txt; do
  case $list in requirements/debian*|requirements/npm.txt) continue ;; esac
  grep -v '^torch==' "$list" | uv pip compile -q --no-deps --generate-hashes --python-version 3.12 --no-header \
    --no-annotate - | sed -e ':a' -e '/\\$/{N;s/ *\\\n */ /;ba' -e '}' >"requirements/hashes/${list##*/}"
done
