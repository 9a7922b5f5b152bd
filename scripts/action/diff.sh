#!/usr/bin/env bash
# Writes $RUNNER_TEMP/trinity-compat.md: for each script that differs from the commit $BASE, the settings that differ in
# effect. Empty where none does. Whole trees are compared, since a script may read files beside it.
set -euo pipefail
. "$(dirname "$0")/reader.sh"
mapfile -t sources < <(grep -v '^[[:space:]]*$' <<<"$SOURCES")
old=$RUNNER_TEMP/trinity-compat-base
told=$RUNNER_TEMP/trinity-compat.md
git cat-file -e "$BASE" 2>/dev/null || git fetch -q --depth 1 origin "$BASE"
git worktree add -q --detach "$old" "$BASE"
trap 'git worktree remove --force "$old"' EXIT
: >"$told"
git diff -z --name-only --diff-filter=M "$BASE" -- "${sources[@]}" | while IFS= read -r -d '' file; do
  code=0
  found=$(reader diff --also-read "$old" "$old/$file" "$file" --format md 2>&1) || code=$?
  [ "$code" != 0 ] || continue
  [ "$code" = 1 ] || found=$(sed 's/^/    /' <<<"$found") # an error, with words of the script: shown as code
  # a name is text of whoever opened the pull request: no markup of it
  printf '### `%s`\n\n%s\n\n' "${file//[^A-Za-z0-9._\/ -]/_}" "${found//"$old/"/base:}" >>"$told"
done
