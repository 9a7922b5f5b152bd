#!/bin/bash
# Builds the shell parser of a web page (docs/web.md) in .scratch/web/parser, or in the folder given. It needs Debian's
# packages of requirements/debian-web.txt. Nothing is built where the folder was built from the same files.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-.scratch/web/parser}
library=/usr/share/gocode/src/mvdan.cc/sh/v3
if ! command -v go >/dev/null || ! [ -d "$library" ]; then
  echo "build_web_parser: Go or mvdan/sh's source is missing; run: scripts/ci/install_system.sh requirements/debian-web.txt" >&2
  exit 1
fi
support=$(go env GOROOT)/misc/wasm/wasm_exec.js
inputs=$({ go version; cat scripts/site/build_web_parser.sh web/parser/* "$support" "$library"/syntax/*.go; } | sha256sum)
if [ "$(cat "$out/inputs" 2>/dev/null)" = "$inputs" ]; then exit 0; fi
rm -rf "$out"
mkdir -p "$out"
GO111MODULE=off GOPATH=/usr/share/gocode GOFLAGS=-trimpath GOOS=js GOARCH=wasm \
  go build -ldflags "-s -w" -o "$out/parser.wasm" ./web/parser
cp "$support" web/parser/parser.js "$out"
cat /usr/share/doc/golang-mvdan-sh-dev/copyright /usr/share/doc/golang-*-go/copyright >"$out/parser.LICENSE"
echo "$inputs" >"$out/inputs"
