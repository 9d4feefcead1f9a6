#!/bin/bash
# Fill the holes of $INPUT_PATHS, with the options of $INPUT_ARGS, both one on each line. Writes the patch, and a text to comment.
# An open hole fails nothing; what can't be done as asked does.
set -euo pipefail

folder=$(mktemp -d "${RUNNER_TEMP:-/tmp}/dg-lsp.XXXXXX")
patch=$folder/patch.diff said=$folder/said.txt body=$folder/comment.md
# Bash 3.2, which macOS has, knows no mapfile, and takes an empty array for an unset variable.
paths=() options=()
while IFS= read -r line; do paths+=("$line"); done < <(printf '%s\n' "${INPUT_PATHS:-.}" | sed '/^[[:space:]]*$/d')
while IFS= read -r line; do options+=("$line"); done < <(printf '%s\n' "${INPUT_ARGS:-}" | sed '/^[[:space:]]*$/d')
if [ -n "${BASE_SHA:-}" ]; then
  # A checkout of depth 1 lacks it.
  git cat-file -e "$BASE_SHA^{commit}" 2>/dev/null || git fetch --quiet --depth=1 origin "$BASE_SHA"
  options+=(--changed-since "$BASE_SHA")
fi

status=0
dg-lsp infill ${options[@]+"${options[@]}"} -- "${paths[@]}" >"$patch" 2>"$said" || status=$?
cat "$said" >&2
if [ "$status" -gt 1 ]; then exit "$status"; fi

# Longer than any run of backquotes in the patch, which would end the block.
fence=$(grep -o '`\{3,\}' "$patch" | sort | tail -n 1 || true)
fence="${fence:-\`\`}\`"
most=60000 # of the 65536 characters that a comment may have
{
  echo '<!-- dg-lsp -->'
  tail -n 2 "$said" | sed -n 's/^dg-lsp: \(filled\|wrote\|no holes\)/**dg-lsp** \1/p'
  echo
  if [ -s "$patch" ]; then
    echo '<details open><summary>Patch</summary>'
    echo
    echo "${fence}diff"
    head -c "$most" "$patch" | iconv -c -f UTF-8 -t UTF-8
    echo "$fence"
    if [ "$(wc -c <"$patch")" -gt "$most" ]; then echo; echo 'The patch is longer than a comment; the job has all of it.'; fi
    echo '</details>'
  fi
} >"$body"
cat "$body" >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
printf 'patch=%s\nbody=%s\nstatus=%s\n' "$patch" "$body" "$status" >>"${GITHUB_OUTPUT:-/dev/null}"
