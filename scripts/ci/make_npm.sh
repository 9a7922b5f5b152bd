#!/bin/sh
# Puts the packages of requirements/npm.txt into .npm, once.
set -eu
cd "$(dirname "$0")/../.."
list=requirements/npm.txt
command -v npm >/dev/null || { echo "make_npm: no npm (make install-system)" >&2; exit 1; }
# shellcheck disable=SC2046  # a list of names
scripts/ci/unpack_once.sh .npm "$list" \
  npm install --silent --no-audit --no-fund --ignore-scripts $(grep -v '^#' "$list") --prefix
