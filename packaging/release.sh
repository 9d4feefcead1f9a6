#!/bin/bash
# release.sh BIN: build all that is published into dist/, twice, see that both builds are the same bytes, and try the wheel in an
# environment of its own. BIN has the tools of the dependency group `release`; `make release` calls this.
#
# Wheel and sdist, the VS Code extension (which carries the wheel), the Neovim plugin, an SBOM and checksums of them all.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$PWD/$1
: "${SOURCE_DATE_EPOCH:?make release sets it to the time of the commit}"
export SOURCE_DATE_EPOCH
umask 022

build() { # FOLDER
  local to=$1
  rm -rf "$to"
  mkdir -p "$to"
  "$bin/python" -m build --no-isolation --outdir "$to" . >/dev/null
  rm -f editors/vscode/server/*.whl
  cp "$to"/*.whl editors/vscode/server/
  (cd editors/vscode && npm run --silent package >/dev/null)
  mv editors/vscode/dg-lsp.vsix "$to/dg-lsp-$version.vsix"
  git ls-files -z editors/nvim | tar --create --null --files-from=- --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
    --numeric-owner --mode=u=rwX,go=rX --transform="s#^editors/nvim#dg-lsp.nvim-$version#" | gzip -n9 >"$to/dg-lsp.nvim-$version.tar.gz"
  "$bin/cyclonedx-py" requirements editors/vscode/server/requirements.txt --pyproject pyproject.toml --output-reproducible \
    --output-format JSON --output-file "$to/dg-lsp-$version.cdx.json"
  (cd "$to" && sha256sum -- * >SHA256SUMS)
}

version=$("$bin/python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
node=$(tests/editors/install/node.sh build/editors)
export PATH="$node:$PATH"
[ -d editors/vscode/node_modules ] || (cd editors/vscode && npm ci --ignore-scripts --no-audit --no-fund)

build build/release
build dist
diff build/release/SHA256SUMS dist/SHA256SUMS || {
  echo "release.sh: two builds of one commit differ; what is in build/release and in dist tells how" >&2
  exit 1
}
"$bin/twine" check --strict dist/*.whl "dist/dg_lsp-$version.tar.gz"

# As a user would: an environment with nothing in it, and only what the wheel itself asks for.
trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
"$bin/python" -m venv "$trial/venv"
"$trial/venv/bin/pip" install --quiet --disable-pip-version-check --constraint constraints.txt "dist/dg_lsp-$version-py3-none-any.whl"
(
  cd "$trial"
  export HOME=$trial DG_LSP_RUNTIME_DIR=$trial/run
  [ "$(venv/bin/dg-lsp --version)" = "dg-lsp $version" ]
  venv/bin/dg-lsp doctor --no-sample >doctor.txt || true
  grep -q '^ok  grammars:' doctor.txt && grep -q '^ok  embedded model:' doctor.txt
)
cat dist/SHA256SUMS
