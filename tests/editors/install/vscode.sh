#!/bin/bash
# vscode.sh FOLDER: install code-server, which is VS Code behind a web server, into FOLDER, and print its path.
#
# Everything comes from the npm registry, including Node. No install scripts run and nothing is compiled. The browser is the
# machine's Chromium; if there is none and this is root, it is installed. A second run does nothing.
set -euo pipefail

server=4.139.1
node=24.21.0
versions="code-server $server, node $node"

folder=$(mkdir -p "$1" && cd "$1" && pwd)
program=$folder/bin/code-server

. "$(dirname "$0")/debian.sh"
npm=$("$(dirname "$0")/node.sh" "$1")
export PATH="$npm:$PATH"

npm_install() { # FOLDER ARGUMENTS...
  local where=$1
  shift
  (cd "$where" && again npm install --no-save --ignore-scripts --no-audit --no-fund --loglevel=error "$@" >&2)
}

chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$chromium" ]; then
  need chromium chromium fonts-dejavu-core
  chromium=$(command -v chromium)
fi

if [ ! -x "$program" ] || [ "$(cat "$folder/vscode/VERSIONS" 2>/dev/null)" != "$versions" ]; then
  rm -rf "$folder/vscode"
  mkdir -p "$folder/vscode/node" "$folder/vscode/server" "$folder/bin"
  npm_install "$folder/vscode/node" --prefix . "node-linux-$(uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')@$node"
  binary=$(echo "$folder"/vscode/node/node_modules/node-linux-*/bin/node)
  export PATH="${binary%/*}:$PATH"
  npm_install "$folder/vscode/server" --prefix . "code-server@$server"
  inside=$folder/vscode/server/node_modules/code-server/lib/vscode
  # Does the same as the package's own install script, except for the parts in C++, which the server does not need.
  npm_install "$inside" --omit=dev
  # Large extensions that the tests do not need.
  rm -rf "$inside"/extensions/{copilot,mermaid-markdown-features,microsoft-authentication,ms-vscode.*}
  find "$folder/vscode/server" -name '*.map' -delete
  cat >"$program" <<W
#!/bin/sh
exec "$binary" "$folder/vscode/server/node_modules/code-server/out/node/entry.js" "\$@"
W
  chmod +x "$program"
  XDG_CONFIG_HOME=$folder/vscode "$program" --version >&2
  echo "$versions" >"$folder/vscode/VERSIONS"
fi
ln -sf "$chromium" "$folder/bin/chromium"
echo "$program"
