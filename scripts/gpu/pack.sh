#!/bin/sh
# Downloads what the proof needs (requirements/gpu-proof.txt, cp312, no dependencies of theirs) and cuts it into
# parts of at most 52 MiB: .whl/gpu/part-NN. Prints the sum first. Bring them over one by one, then unpack.sh.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
here=.whl/gpu-wheels parts=.whl/gpu
rm -rf "$here"  # pip keeps one of each version, and two of a package stop its installation
mkdir -p "$here"
platforms=
for n in 5 12 17 24 27 28 31 34 35; do platforms="$platforms --platform manylinux_2_${n}_x86_64"; done
for old in 1 2010 2014; do platforms="$platforms --platform manylinux${old}_x86_64"; done
# shellcheck disable=SC2086
"$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
  --implementation cp $platforms -d "$here" -r requirements/gpu-proof.txt
# Not a wheel on PyPI: made here. The entry points of trinity-compat, by which verl and vLLM find its plugins.
"$python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$here" antlr4-python3-runtime==4.9.3
"$python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$here" .
"$python" scripts/gpu/parts.py cut "$here" "$parts"
