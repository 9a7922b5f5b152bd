#!/usr/bin/env bash
# Comments on pull request $NUMBER with $RUNNER_TEMP/trinity-compat.md, in place of its own last comment.
set -euo pipefail
told=$RUNNER_TEMP/trinity-compat.md
[ -s "$told" ] || exit 0
{
  echo '**Settings that this pull request changes in effect** (trinity-compat diff)'
  echo
  head -c 60000 "$told" | sed "$([ "$(wc -c <"$told")" -le 60000 ] || echo '$d')" # a half line may have an open code span
} >"$told.comment"
gh pr comment "$NUMBER" --edit-last --create-if-none --body-file "$told.comment"
