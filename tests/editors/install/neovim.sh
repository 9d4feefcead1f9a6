#!/bin/bash
# neovim.sh FOLDER: put a Neovim of 0.12 or later into FOLDER, and print its program.
#
# Uses the machine's own where it is new enough. Else, on Debian and its like, takes the packages of a newer suite from the
# mirror that the machine already uses and unpacks them in FOLDER with the C library that they need. Nothing is installed, and
# nothing of the system is changed. Doing it again does nothing.
set -euo pipefail

folder=$(mkdir -p "$1" && cd "$1" && pwd)
program=$folder/bin/nvim
root=$folder/nvim

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
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
newer "$apt" --download-only install neovim

rm -rf "$root" "$folder/patchelf" "$program"
mkdir -p "$root"/usr/{bin,lib,lib64,sbin}
# Some packages still ship /lib and /bin.
for name in bin lib lib64 sbin; do ln -s "usr/$name" "$root/$name"; done
for package in "$apt"/cache/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
done

patchelf=$(command -v patchelf || true)
if [ -z "$patchelf" ]; then
  (cd "$apt" && apt-get -qq -o APT::Sandbox::User=root download patchelf >&2 && dpkg -x patchelf_*.deb "$folder/patchelf")
  patchelf=$folder/patchelf/usr/bin/patchelf
fi
libraries=$(dirname "$(find "$root/usr/lib" -name libc.so.6 | head -1)")
loader=$(find "$root/usr/lib64" "$libraries" -maxdepth 1 -name 'ld-linux-*.so.*' | head -1)
# Written into the program itself: the terminal's Neovim starts itself once more by its own path, and what it starts otherwise,
# such as language servers, must not inherit a path to these libraries.
binary=$(readlink -f "$root/usr/bin/nvim")
"$patchelf" --set-interpreter "$loader" "$binary"
"$patchelf" --force-rpath --set-rpath "$libraries" "$binary"

cat >"$program" <<W
#!/bin/sh
export VIMRUNTIME="$root/usr/share/nvim/runtime"
exec "$root/usr/bin/nvim" "\$@"
W
chmod +x "$program"
new_enough "$program" || {
  say "the Neovim of Debian does not run here"
  exit 1
}
"$program" --version | head -1 >&2
echo "$program"
