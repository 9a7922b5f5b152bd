#!/bin/sh
# Makes .venv-upstream-<version> with the real trinity-rft (0.6.0 or 0.4.1), once; prints its interpreter.
# What a list shares with .venv's is taken from there (base.pth), in the same version. 0.4.1 is laid over
# 0.6.0 in the same way: its own pins (verl 0.7, transformers 4) come first on the path.
set -eu
cd "$(dirname "$0")/../.."
version=$1
python=${PYTHON:-$(command -v python3.11 || command -v python3.12)}
shared=requirements/hashes/cpu.txt

packages() { # environment
  "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

build() { # version; the environments that its packages lie over
  list=requirements/hashes/upstream-$1.txt venv=.venv-upstream-$1
  shift
  cmp -s "$list" "$venv/requirements.txt" && cmp -s "$shared" "$venv/shared.txt" && return
  rm -rf "$venv"
  "$python" -m venv "$venv"
  own=$(grep -vxFf "$shared" "$list")
  echo "$own" | "$venv/bin/pip" install -q --disable-pip-version-check --no-deps --no-compile --require-hashes -r /dev/stdin >&2
  for base in "$@"; do packages "$base"; done >"$(packages "$venv")/base.pth"
  cp "$shared" "$venv/shared.txt"
  cp "$list" "$venv/requirements.txt"
}

mkdir -p .venv-upstream-lock; exec 9>.venv-upstream-lock/lock
flock 9
build 0.6.0 .venv
[ "$version" = 0.6.0 ] || build "$version" .venv-upstream-0.6.0 .venv
echo ".venv-upstream-$version/bin/python"
