#!/bin/bash
# tools.sh FOLDER: put StyLua into FOLDER, from the npm registry, and see that there are luacheck and tmux.
set -euo pipefail

version=2.5.2
folder=$(mkdir -p "$1/stylua" && cd "$1" && pwd)
if [ "$("$folder/bin/stylua" --version 2>/dev/null)" != "stylua $version" ]; then
  mkdir -p "$folder/bin"
  (cd "$folder/stylua" && npm install --prefix . --no-save --ignore-scripts --no-audit --no-fund --loglevel=error \
    "@johnnymorganz/stylua-bin@$version" >&2)
  ln -sf "$(ls -d "$folder"/stylua/node_modules/@johnnymorganz/stylua-bin-*/stylua*)" "$folder/bin/stylua"
fi
missing=()
command -v luacheck >/dev/null || missing+=(lua-check)
command -v tmux >/dev/null || missing+=(tmux)
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get -qq update >&2
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}" >&2
  else
    echo "tools.sh: install ${missing[*]} and put them on PATH" >&2
    exit 1
  fi
fi
"$folder/bin/stylua" --version
