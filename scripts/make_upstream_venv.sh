#!/bin/sh
# Makes .venv-upstream-<version> with the real trinity-rft (0.6.0 or 0.4.1), once; prints its interpreter.
# 0.4.1 is laid over 0.6.0's packages: its own pins (verl 0.7, transformers 4) come first on the path.
set -eu
cd "$(dirname "$0")/.."
version=$1
python=${PYTHON:-$(command -v python3.11 || command -v python3.12)}

build() { # name
  list="requirements/upstream-$1.txt"
  venv=".venv-upstream-$1"
  cmp -s "$list" "$venv/requirements.txt" && return
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r "$list" >&2
  if [ "$1" = 0.4.1 ]; then
    base=$(.venv-upstream-0.6.0/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$base" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
  fi
  cp "$list" "$venv/requirements.txt"
}

mkdir -p .venv-upstream-lock; exec 9>.venv-upstream-lock/lock
flock 9
build 0.6.0
[ "$version" = 0.6.0 ] || build "$version"
echo ".venv-upstream-$version/bin/python"
