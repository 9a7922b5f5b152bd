#!/bin/sh
# Installs what the proof needs (requirements/gpu-proof.txt, for Python 3.12, without dependencies of theirs) into a
# folder, compresses it and cuts it: .whl/gpu/part-K-of-N. One part and the checkout travel together, in 64 MiB.
# On the machine: unpack.sh.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
work=.whl/gpu-work site=.whl/gpu-work/site parts=.whl/gpu
rm -rf "$work" "$parts"
mkdir -p "$site" "$parts"
platforms=
for n in 5 12 17 24 26 27 28 31 34 35; do platforms="$platforms --platform manylinux_2_${n}_x86_64"; done
for old in 1 2010 2014; do platforms="$platforms --platform manylinux${old}_x86_64"; done
# Not a wheel on PyPI: made here. The entry points of trinity-compat, by which verl and vLLM find its plugins.
grep '^antlr4-python3-runtime==' requirements/hashes/light.txt |
  "$python" -m pip wheel -q --disable-pip-version-check --no-deps --require-hashes -w "$work" -r /dev/stdin
"$python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$work" .
# shellcheck disable=SC2086
"$python" -m pip install -q --disable-pip-version-check --no-deps --no-compile --only-binary=:all: --require-hashes \
  --python-version 3.12 --implementation cp $platforms --target "$site" -r requirements/hashes/gpu-proof.txt
"$python" -m pip install -q --disable-pip-version-check --no-deps --no-compile --target "$site" "$work"/*.whl
# What nothing opens on one Hopper GPU with Python 3.12: kernels of other GPUs (vLLM takes FlashAttention 3 there, 2
# elsewhere), headers, Java, tokenizers of Mistral's models, country names in other languages, the checkout itself.
(
  cd "$site"
  rm -rf vllm/vllm-rs vllm/third_party/fmha_sm100 vllm/third_party/deep_gemm/include \
    vllm/vllm_flash_attn/_vllm_fa2_C.* ray/jars ray/dashboard/client ray/rllib mistral_common/data pycountry/locales \
    trinity_compat
  find vllm/third_party/deep_gemm -name '_C.cpython-3*' ! -name '_C.cpython-312*' -delete
)
checkout=$(git ls-files -z | tar --null -T - -cf - | wc -c)
room=$((64 * 1024 * 1024 - checkout - 512 * 1024))
tar -C "$site" --sort=name -cf - . | sh scripts/gpu/parts.sh "$room" "$parts"
rm -rf "$work"
ls -s --block-size=K "$parts"
