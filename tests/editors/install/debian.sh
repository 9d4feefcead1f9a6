# Functions for the other scripts in this folder: retry commands, install Debian packages, and unpack packages of a newer Debian
# without changing the machine.

# again COMMAND...: run the command up to three times, because registries fail now and then.
again() {
  local pause
  for pause in 5 15 0; do
    "$@" && return
    [ "$pause" = 0 ] || sleep "$pause"
  done
  echo "$(basename "$0"): failed three times: $*" >&2
  return 1
}

# need PROGRAM PACKAGE...: ensure that a program exists; if not, and this is root, install Debian's packages for it.
need() {
  local program=$1
  shift
  if command -v "$program" >/dev/null; then return; fi
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "$(basename "$0"): $program was not found; install it and put it on PATH" >&2
    return 1
  fi
  again install_packages "$@"
}

install_packages() {
  # Another apt-get may be running.
  local wait=(-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  apt-get "${wait[@]}" -qq update >&2 &&
    DEBIAN_FRONTEND=noninteractive apt-get "${wait[@]}" -qq -y --no-install-recommends install "$@" >&2
}

# newer FOLDER COMMAND...: run `apt-get COMMAND...` with the packages of a newer Debian suite, with apt's state in FOLDER, which
# is created. Tries each suite, and retries when the network fails.
newer() {
  local apt=$1 suite
  shift
  mkdir -p "$apt"/sources "$apt"/lists/partial "$apt"/cache/archives/partial "$apt"/log
  chmod 755 "$apt"
  : >"$apt/status"
  local options=(
    -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/sources" -o Dir::Etc::preferences=/dev/null
    -o Dir::Etc::preferencesparts=/dev/null -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status"
    -o "Dir::State::extended_states=$apt/extended" -o "Dir::Cache=$apt/cache" -o "Dir::Log=$apt/log"
    -o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Install-Recommends=false -o APT::Sandbox::User=root
  )
  for suite in forky sid; do
    newer_sources "$apt" "$suite" || return 1
    again newer_packages "$@" && return
  done
  echo "these packages are not available: $*" >&2
  return 1
}

# Uses the variable `options` of `newer`.
newer_packages() {
  apt-get "${options[@]}" -qq update >&2 && apt-get "${options[@]}" -qq -y "$@" >&2
}

# Write the machine's first source of Debian's main archive, changed to another suite.
newer_sources() {
  local apt=$1 suite=$2 file
  for file in /etc/apt/sources.list.d/*.sources; do
    [ -f "$file" ] || continue
    awk -v suite="$suite" '
      BEGIN { RS = ""; FS = "\n" }
      /Types:[^\n]*deb/ && /\nURIs:[^\n]*debian/ && !/\nSuites:[^\n]*security/ {
        for (i = 1; i <= NF; i++) {
          if ($i ~ /^#/) continue
          if ($i ~ /^Suites:/) $i = "Suites: " suite
          if ($i ~ /^Components:/) $i = "Components: main"
          print $i
        }
        exit
      }' "$file" >"$apt/sources/newer.sources"
    [ -s "$apt/sources/newer.sources" ] && return
    rm -f "$apt/sources/newer.sources"
  done
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -f "$file" ] || continue
    { grep -E '^deb .*debian' "$file" || true; } | { grep -v security || true; } | head -1 |
      sed -E "s#^(deb +(\[[^]]*\] +)?[^ ]+) .*#\1 $suite main#" >"$apt/sources/newer.list"
    [ -s "$apt/sources/newer.list" ] && return
    rm -f "$apt/sources/newer.list"
  done
  echo "no source of Debian packages is configured" >&2
  return 1
}

# unpack_program FOLDER PACKAGE PROGRAM: unpack a package of a newer suite and its dependencies into FOLDER/root, so that
# FOLDER/root/usr/bin/PROGRAM runs with its own C library.
unpack_program() {
  local folder=$1 package=$2 name=$3 apt patchelf loader libraries binary each
  local root=$folder/root
  apt=$(mktemp -d)
  newer "$apt" --download-only install "$package"
  rm -rf "$folder"
  mkdir -p "$root"/usr/{bin,lib,lib64,sbin}
  # Some packages still ship /lib and /bin.
  for each in bin lib lib64 sbin; do ln -s "usr/$each" "$root/$each"; done
  for each in "$apt"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$each" | tar -x --keep-directory-symlink -C "$root"
  done
  patchelf=$(command -v patchelf || true)
  if [ -z "$patchelf" ]; then
    (cd "$apt" && apt-get -qq -o APT::Sandbox::User=root download patchelf >&2 && dpkg -x patchelf_*.deb "$folder/patchelf")
    patchelf=$folder/patchelf/usr/bin/patchelf
  fi
  rm -rf "$apt"
  libraries=$(dirname "$(find "$root/usr/lib" -name libc.so.6 | head -1)")
  loader=$(find "$root/usr/lib64" "$libraries" -maxdepth 1 -name 'ld-linux-*.so.*' | head -1)
  # The paths are written into the program itself. Neovim starts itself again by its own path, and other programs that an editor
  # starts, such as language servers, must not inherit a path to these libraries.
  binary=$(readlink -f "$root/usr/bin/$name")
  "$patchelf" --set-interpreter "$loader" "$binary"
  "$patchelf" --force-rpath --set-rpath "$libraries" "$binary"
}
