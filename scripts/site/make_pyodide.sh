#!/bin/sh
# Puts Python as WebAssembly (requirements/pyodide) into .pyodide, once; npm compares each package with the lock's digest.
set -eu
cd "$(dirname "$0")/../.."
scripts/ci/unpack_once.sh .pyodide requirements/pyodide/package-lock.json sh -c '
  cp requirements/pyodide/package.json requirements/pyodide/package-lock.json "$0"
  npm ci --prefix "$0" --ignore-scripts --no-audit --no-fund --silent'
