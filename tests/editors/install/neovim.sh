#!/bin/bash
# neovim.sh FOLDER: put a Neovim of 0.12 or later into FOLDER, and print its program.
#
# Uses the machine's own where it is new enough. Else, on Debian and its like, takes the packages of a newer suite from the
# mirror that the machine already uses and unpacks them in FOLDER with the C library that they need. Nothing is installed, and
# nothing of the system is changed. Doing it again does nothing.
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
  say "there is no Neovim of 0.12 or later, and no apt-get to get one with; put one on PATH"
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
  say "the Neovim of Debian does not run here"
  exit 1
}
"$program" --version | head -1 >&2
echo "$program"
