#!/bin/bash
# emacs.sh FOLDER: put lsp-mode 10, which has inline completion, into FOLDER, and see that there is an Emacs of 28 or later.
#
# On Debian and its like. Emacs is the machine's own; where there is none and apt-get may install, it is installed. lsp-mode and
# what it needs are unpacked from a newer suite. Doing it again does nothing. Prints the folder of the packages.
set -euo pipefail

folder=$(mkdir -p "$1" && cd "$1" && pwd)
packages=$folder/emacs/usr/share/emacs/site-lisp/elpa-src

. "$(dirname "$0")/debian.sh"
need emacs emacs-nox
if [ ! -f "$folder/emacs/whole" ]; then
  rm -rf "$folder/emacs"
  mkdir -p "$folder/emacs"
  apt=$(mktemp -d)
  trap 'rm -rf "$apt"' EXIT
  (
    cd "$folder/emacs"
    newer "$apt" download elpa-lsp-mode elpa-dash elpa-f elpa-ht elpa-lv elpa-markdown-mode elpa-s elpa-spinner
    # Part of Emacs since 29; the distribution has it apart before.
    apt-get -qq -o APT::Sandbox::User=root download elpa-eglot >&2 || true
    for package in *.deb; do dpkg -x "$package" .; done
    rm -- *.deb
  )
  touch "$folder/emacs/whole"
fi
echo "$packages"
