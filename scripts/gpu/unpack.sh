#!/bin/sh
# Installs every wheel that is complete among the parts below $1 (default .whl/gpu) into $2 (default
# /tmp/tc-gpu/site), also when some parts are missing: what came before is kept. Then:
#   export PYTHONPATH=$PWD:/tmp/tc-gpu/site PATH=/tmp/tc-gpu/site/bin:$PATH
set -eu
cd "$(dirname "$0")/../.."
parts=${1:-.whl/gpu} site=${2:-/tmp/tc-gpu/site}
python=${PYTHON:-python3}
kept=$(dirname "$site")/parts wheels=$(dirname "$site")/wheels
mkdir -p "$kept" "$site"
for part in "$parts"/part-*; do
  [ -d "$part" ] || continue
  cp -r "$part" "$kept/"
done
"$python" scripts/gpu/parts.py join "$kept" "$wheels"
new=
for wheel in "$wheels"/*.whl; do
  [ -e "$wheel" ] && [ ! -e "$wheel.installed" ] && new="$new $wheel"
done
[ -n "$new" ] || { echo "nothing new"; exit 0; }
# One call for all: pip takes two seconds to start. Into a folder of its own: pip takes away what lies in a target
# under a name that comes again, such as all of bin/ with the first part's shfmt.
stage=$(dirname "$site")/stage
rm -rf "$stage"
# shellcheck disable=SC2086
"$python" -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir \
  --target "$stage" $new
cp -a "$stage/." "$site/"
rm -rf "$stage"
for wheel in $new; do
  touch "$wheel.installed"
done
echo "installed $(echo "$new" | wc -w) wheels"
