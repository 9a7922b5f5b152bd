#!/bin/sh
# Keeps the parts below $1 (default .whl/gpu) that have arrived, and unpacks them into $2 (default /tmp/tc-gpu/site)
# once all are there. Then:
#   export PYTHONPATH=$PWD:/tmp/tc-gpu/site PATH=/tmp/tc-gpu/site/bin:$PATH
set -eu
cd "$(dirname "$0")/../.."
parts=${1:-.whl/gpu} site=${2:-/tmp/tc-gpu/site}
kept=$(dirname "$site")/parts
mkdir -p "$kept" "$site"
cp "$parts"/part-*-of-* "$kept/"
set -- "$kept"/part-*
number=${1##*-of-}
if [ "$#" -lt "$number" ]; then
  echo "$# of $number parts are here"
  exit 0
fi
cat "$@" | xz -T0 -dc | tar -C "$site" -xf -
echo "unpacked $number parts"
