#!/bin/bash
# helix.sh FOLDER: install Helix into FOLDER and print its path. Uses the machine's own, or on Debian that of a newer suite.
set -euo pipefail

folder=$(mkdir -p "$1/bin" && cd "$1" && pwd)
program=$folder/bin/hx

if ! "$program" --version >/dev/null 2>&1; then
  if own=$(command -v hx); then
    ln -sf "$own" "$program"
  else
    . "$(dirname "$0")/debian.sh"
    unpack_program "$folder/helix" hx hx
    ln -sf "$folder/helix/root/usr/bin/hx" "$program"
  fi
fi
"$program" --version >&2
echo "$program"
