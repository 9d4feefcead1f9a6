#!/bin/bash
# tools.sh FOLDER: install StyLua into FOLDER from the npm registry, and ensure luacheck and tmux.
set -euo pipefail

. "$(dirname "$0")/debian.sh"
node=$("$(dirname "$0")/node.sh" "$1")
export PATH="$node:$PATH"
version=2.5.2
folder=$(mkdir -p "$1/stylua" && cd "$1" && pwd)
if [ "$("$folder/bin/stylua" --version 2>/dev/null)" != "stylua $version" ]; then
  mkdir -p "$folder/bin"
  again npm install --prefix "$folder/stylua" --no-save --ignore-scripts --no-audit --no-fund --loglevel=error \
    "@johnnymorganz/stylua-bin@$version" >&2
  ln -sf "$(ls -d "$folder"/stylua/node_modules/@johnnymorganz/stylua-bin-*/stylua*)" "$folder/bin/stylua"
fi
need luacheck lua-check
need tmux tmux
"$folder/bin/stylua" --version
