#!/bin/bash
# Fill the holes of $INPUT_PATHS, with the options of $INPUT_ARGS, both one on each line. Writes the patch, and a text to comment.
# Wrong options fail this step. The action's last step fails with any other status, after the comment.
set -euo pipefail

folder=$(mktemp -d "${RUNNER_TEMP:-/tmp}/dg-lsp.XXXXXX")
patch=$folder/patch.diff shown=$folder/shown.diff report=$folder/report.json said=$folder/said.txt body=$folder/comment.md
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
dg-lsp infill ${options[@]+"${options[@]}"} --fail-on "${INPUT_FAIL_ON:-never}" --patch "$patch" --json -- "${paths[@]}" >"$report" 2>"$said" || status=$?
cat "$said" >&2
if [ "$status" -ne 1 ] && [ "$status" -ne 3 ] && [ "$status" -ne 0 ]; then exit "$status"; fi
touch "$patch" # an engine that can't start leaves none
sed '1{/^#/d;}' "$patch" >"$shown" # its first line says whose it is

# Longer than any run of backquotes in the patch, which would end the block.
fence=$(grep -o '`\{3,\}' "$patch" | sort | tail -n 1 || true)
fence="${fence:-\`\`}\`"
most=60000 # of the 65536 characters that a comment may have
{
  echo '<!-- dg-lsp -->'
  tail -n 2 "$said" | sed -n 's/^dg-lsp: \(filled\|wrote\|no holes\)/**dg-lsp** \1/p'
  echo
  if [ -s "$shown" ]; then
    echo '<details open><summary>Patch</summary>'
    echo
    echo "${fence}diff"
    head -c "$most" "$shown" | iconv -c -f UTF-8 -t UTF-8
    echo "$fence"
    if [ "$(wc -c <"$shown")" -gt "$most" ]; then echo; echo 'The patch is longer than a comment; the job has all of it.'; fi
    echo '</details>'
  fi
} >"$body"
cat "$body" >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
printf 'patch=%s\nreport=%s\nbody=%s\nstatus=%s\n' "$patch" "$report" "$body" "$status" >>"${GITHUB_OUTPUT:-/dev/null}"
