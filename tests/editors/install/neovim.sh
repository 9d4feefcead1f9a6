#!/bin/bash
# neovim.sh FOLDER: install Neovim 0.12 or later into FOLDER and print its path.
#
# Uses the machine's own if it is new enough. Otherwise, on Debian and its derivatives, it unpacks the packages of a newer suite
# and their C library in FOLDER, from the mirror that the machine already uses. The system is not changed. A second run does
# nothing.
set -euo pipefail

folder=$(mkdir -p "$1" && cd "$1" && pwd)
program=$folder/bin/nvim

say() { echo "neovim.sh: $*" >&2; }

new_enough() {
  [ -x "$1" ] && [ "$("$1" --clean --headless +'lua io.stdout:write(vim.fn.has("nvim-0.12"))' +qa 2>/dev/null)" = 1 ]
}

if new_enough "$program"; then
  echo "$program"
  exit
fi
mkdir -p "$folder/bin"
if own=$(command -v nvim) && new_enough "$own"; then
  ln -sf "$own" "$program"
  echo "$program"
  exit
fi
command -v apt-get >/dev/null || {
  say "Neovim 0.12 or later was not found, and apt-get is not available to install it; put one on PATH"
  exit 1
}

. "$(dirname "$0")/debian.sh"
unpack_program "$folder/nvim" neovim nvim
cat >"$program" <<W
#!/bin/sh
export VIMRUNTIME="$folder/nvim/root/usr/share/nvim/runtime"
exec "$folder/nvim/root/usr/bin/nvim" "\$@"
W
chmod +x "$program"
new_enough "$program" || {
  say "Debian's Neovim does not run on this machine"
  exit 1
}
"$program" --version | head -1 >&2
echo "$program"
