"""Read files of a workspace that are related to a document, as context.

Which files may be read is decided by `ignoring`, and what of them is worth sending by `core.paragraphs`. This module does not
know models.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path, PurePath

from dg_lsp.core import context, languages, secrets
from dg_lsp.core.values import Document, Snippet
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.wire import files
from dg_lsp.wire.config import WORKSPACE_FILE

# Limits that keep the collection of context within a few milliseconds: files to read, bytes of each file, paths to try for
# imports, and entries to list of a folder.
MAX_FILES = 24
MAX_FILE_BYTES = 64_000
MAX_GUESSES = 1_500
MAX_ENTRIES = 500
MAX_NAME_CHARS = 400  # a file's name helps the model, but must not take the room of the text


def name_of(path: PurePath) -> str:
    """Return the path for a prompt: as valid Unicode text, and without its first folders if it is very long.

    Bytes that are not UTF-8 are replaced. Several files may have the same name.
    """
    name = path.as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    end = name[-MAX_NAME_CHARS:]
    return end if end == name else end.partition("/")[2] or end


def related(
    root: str | Path,
    path: str | Path,
    document: Document,
    *,
    ignore: Ignore | None = None,
    text_of: Callable[[Path], str] | None = None,
) -> tuple[Snippet, ...]:
    """Return the files below `root` that are related to the file at `path`, at most `MAX_FILES`, with their paths for a prompt.

    Related files are those that it imports, then files of the same language in its folder. Ignored files, files that may
    hold secrets, files with another workspace's settings, and files that are not UTF-8 text are left out; a workspace that
    can't be read yields nothing. Text that looks like a secret is masked. `ignore` is renewed for this request, or shared by
    the requests of one run. `text_of` replaces `masked_text`, for a caller that caches texts or is about to change files.
    """
    try:
        ignore = ignore or Ignore.for_root(root).renewed()
        here = Path(path).resolve()
    except (OSError, RuntimeError, ValueError):
        return ()
    if not here.is_relative_to(ignore.root):
        return ()
    files: dict[Path, None] = {}
    settings = _settings_of(here, ignore.root)
    for place in (*_imported(ignore.root, here, document), *siblings(here, document.language)):
        if place not in files and place != here and ignore.allows(place) and _settings_of(place, ignore.root) == settings:
            files[place] = None
        if len(files) >= MAX_FILES:
            break
    read = ((place, (text_of or masked_text)(place)) for place in files)
    return tuple(Snippet(name_of(place.relative_to(ignore.root)), text) for place, text in read if text)


def masked_text(path: Path) -> str:
    """Return the start of a file with its secrets masked; "" if it can't be read or is not UTF-8 text."""
    try:
        data = files.read_start(path, MAX_FILE_BYTES + 1)
        whole = len(data) <= MAX_FILE_BYTES
        text = data.decode("utf-8") if whole else data[: data.rfind(b"\n") + 1].decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    # Mask before the text is cut further, so that a key is recognized as a whole.
    return "" if "\0" in text else secrets.mask(text)


def _settings_of(path: Path, root: Path) -> Path | None:
    """Return the folder below the root whose `.dg-lsp.toml` applies to the file; None for the root's own.

    A folder with its own file may have other `privacy.local_only` patterns, which the root's requests do not apply.
    """
    inner = path.relative_to(root).parents if path.is_relative_to(root) else ()
    return next((root / folder for folder in inner if folder.name and (root / folder / WORKSPACE_FILE).exists()), None)


def _imported(root: Path, here: Path, document: Document) -> Iterator[Path]:
    """Yield the files that the document's imports may refer to, relative to its folder and to each parent folder."""
    language = languages.row(document.language)
    bases = [base for base in here.parents if base.is_relative_to(root)]
    bases += [root / name for name in ("src", "lib", "include")]
    guesses = (
        guess
        for name in context.imports(document.text, document.language)
        for base in bases
        for guess in _guesses(base, name, language.extensions)
    )
    module_files = set()
    for guess in islice(guesses, MAX_GUESSES):
        if guess not in module_files and _is_file(guess):
            yield guess.resolve()
        module_files.add(guess)


def _guesses(base: Path, name: str, endings: tuple[str, ...]) -> Iterator[Path]:
    parts = context.name_parts(name)
    if set(endings) & set(context.FOLDER_ENDINGS):
        # The parts before the folder's name may be the repository's address, so try only the last parts.
        for size in range(min(len(parts), 3), 0, -1):
            folder = base.joinpath(*parts[-size:])
            yield from (folder / entry for entry in _entries(folder) if entry.endswith(endings))
        return
    # `./util.js` and `vector.h` are file names; `package.module`, `crate::module` and `Name\Space` need an extension.
    if re.search(r"/|\.\w+$", name):
        yield Path(os.path.normpath(base / name))
    # The last part may be a class or a function rather than a module.
    for name_parts in (parts, parts[:-1]):
        if name_parts:
            place = base.joinpath(*name_parts)
            for ending in endings:
                yield place.with_name(place.name + ending)
                yield from (place / f"{index}{ending}" for index in ("__init__", "index", "mod", place.name))


def siblings(here: Path, language: str) -> list[Path]:
    """Return the files of the same language in the same folder, or without one those of the same ending.

    Those with the most similar names come first.
    """
    names = _entries(here.parent)
    same = [name for name in names if _kind(name) == (language or here.suffix)]
    return [here.parent / name for name in sorted(same, key=lambda name: (-_similar(name, here.name), name))]


def _entries(folder: Path) -> list[str]:
    """Return the names of the folder's files, or nothing when it can't be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, MAX_ENTRIES) if entry.is_file(follow_symlinks=False))
    # A name from an import may contain characters that are invalid in a path.
    except (OSError, ValueError):
        return []


def _kind(name: str) -> str:
    language = languages.for_path(name)
    return language.name if language else PurePath(name).suffix


def _similar(one: str, other: str) -> int:
    words, others = (set(re.findall(r"[a-z]+|\d+", name.casefold())) for name in (one, other))
    return len(words & others)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    # A name from an import may contain characters that are invalid in a path.
    except (OSError, ValueError):
        return False
