#!/bin/bash
# Comment the text in $BODY on pull request $NUMBER of $GITHUB_REPOSITORY, in place of the comment of the run before.
set -euo pipefail

comments=repos/$GITHUB_REPOSITORY/issues/$NUMBER/comments
before=$(gh api --paginate "$comments" --jq '.[] | select(.body | startswith("<!-- dg-lsp -->")) | .id' | head -n 1) || before=
if [ -z "$before" ] && ! grep -q '^[`]*diff$' "$BODY"; then
  exit 0 # nothing to show, and nothing to replace
fi
if [ -n "$before" ]; then
  set -- --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$before"
else
  set -- --method POST "$comments"
fi
# A pull request from a fork may not comment: the job's summary has the patch.
gh api --silent "$@" --field "body=@$BODY" || echo "::warning::the patch could not be commented; see the job's summary"
