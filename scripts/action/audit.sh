#!/usr/bin/env bash
# Writes $RUNNER_TEMP/trinity-compat.sarif, and its path and the audit's exit code to the step's outputs (action.yml).
set -euo pipefail
. "$(dirname "$0")/reader.sh"
mapfile -t sources < <(grep -v '^[[:space:]]*$' <<<"$SOURCES")
options=()
[ -z "$RULES" ] || options+=(--rules "$RULES")
[ -z "$FAIL_ON" ] || options+=(--fail-on "$FAIL_ON")
sarif=$RUNNER_TEMP/trinity-compat.sarif
code=0
reader audit "${options[@]}" --format sarif -o "$sarif" "${sources[@]}" || code=$?
reader audit "${options[@]}" "${sources[@]}" || true
printf 'sarif=%s\ncode=%s\n' "$sarif" "$code" >>"$GITHUB_OUTPUT"
[ -f "$sarif" ] || exit 2 # nothing was read: there is nothing to upload
