#!/bin/bash
# node.sh FOLDER: ensure Node 20 or later and npm, and print the folder of the programs, to be put first on PATH.
#
# Uses the machine's own if they are new enough. Otherwise both are installed into FOLDER from the npm registry. This needs any
# npm; if there is none, and this is root on Debian, the distribution's is installed.
set -euo pipefail

node=24.21.0
npm=11.19.1
folder=$(mkdir -p "$1" && cd "$1" && pwd)
. "$(dirname "$0")/debian.sh"

will_do() { [ -x "$1/node" ] && [ -x "$1/npm" ] && "$1/node" -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)'; }

own=$(dirname "$(command -v node || echo /nowhere/node)")
for each in "$own" "$folder/node/bin"; do
  if will_do "$each"; then
    echo "$each"
    exit
  fi
done
need npm npm
rm -rf "$folder/node"
mkdir -p "$folder/node/bin"
kind=$(uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')
again npm install --prefix "$folder/node" --no-save --ignore-scripts --no-audit --no-fund --loglevel=error \
  "node-linux-$kind@$node" "npm@$npm" >&2
ln -sf "$folder/node/node_modules/node-linux-$kind/bin/node" "$folder/node/bin/node"
ln -sf ../node_modules/npm/bin/npm-cli.js "$folder/node/bin/npm"
will_do "$folder/node/bin" || {
  echo "node.sh: the Node of the npm registry does not run here; put Node 20 or later on PATH" >&2
  exit 1
}
echo "$folder/node/bin"
