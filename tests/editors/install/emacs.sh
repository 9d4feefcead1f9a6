#!/bin/bash
# emacs.sh FOLDER: unpack lsp-mode 10, which has inline completion, into FOLDER, ensure Emacs 28 or later, and print the folder of
# the packages.
#
# Needs Debian or a derivative. Uses the machine's Emacs; if there is none and this is root, it is installed. lsp-mode and its
# dependencies come from a newer suite. A second run does nothing.
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
    # Eglot is part of Emacs since 29; for older versions the distribution has a separate package.
    apt-get -qq -o APT::Sandbox::User=root download elpa-eglot >&2 || true
    for package in *.deb; do dpkg -x "$package" .; done
    rm -- *.deb
  )
  touch "$folder/emacs/whole"
fi
echo "$packages"
