"""Store weights that were tuned on repositories: one folder per repository and base model, in the user's data folder.

The weights contain parts of the repository's code, so only the user can read them. They are used only if the store and the
entry belong to this user and no other user can write to them. Knows files. Knows nothing of torch, or of how weights are
trained or used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dg_lsp.engine.calibration_store import ModelId
from dg_lsp.wire import files
from dg_lsp.wire.meeting import MeetingError, locks

FORMAT = 1
"""Increase this when the stored files change their meaning, so that older entries are ignored."""
FACTS, WEIGHTS = "tuned.json", "weights.safetensors"
MAX_FACTS_BYTES = 1 << 16
MAX_WEIGHTS_BYTES = 1 << 30
MAX_ENTRIES = 256
_PARTIAL, _LOCK = ".partial-", ".lock"
LOCK_S = 10.0  # how long to wait for another process that changes the store, which takes about a second


class StoreError(Exception):
    """The store can't be used; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a model on a repository's held-out files: the mean loss, and how many of `holes` it filled exactly."""

    loss: float
    exact: int
    holes: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """One entry: where it is stored, the repository, the base model, the day it was made, and the figures."""

    folder: Path
    root: str
    model: ModelId
    made: str
    before: Figures
    after: Figures

    def covers(self, file: str) -> bool:
        """Return whether a file with this absolute path is below the repository."""
        return os.path.normpath(file).startswith(self.root.rstrip(os.sep) + os.sep)


def folder() -> Path:
    """Return the folder that holds all entries."""
    import platformdirs  # imported here, so that front ends start fast

    return Path(platformdirs.user_data_dir("dg-lsp", appauthor=False)) / "tuned"


def path(root: Path, model: ModelId) -> Path:
    """Return the folder of the entry for a repository, whose path must be resolved, and a base model."""
    digest = hashlib.sha256(json.dumps([FORMAT, str(root), model.name, model.revision]).encode()).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", root.name).strip("-.")[-40:]
    return folder() / f"{readable or 'root'}-{digest}"


def entries() -> tuple[Tuned, ...]:
    """Return the entries in the order of their repositories' paths; none if the store does not exist.

    Raises StoreError if the store is not private to this user. An entry that can't be read is left out.
    """
    store = folder()
    if not store.exists():
        return ()
    if reason := files.folder_problem(store):
        raise StoreError(f"{store} {reason}")
    try:
        places = sorted(place for place in store.iterdir() if not place.name.startswith("."))[:MAX_ENTRIES]
    except OSError as error:
        raise StoreError(f"{store} can't be read: {(error.strerror or str(error)).lower()}") from error
    readable = [entry for place in places if not files.folder_problem(place) and (entry := _read(place)) is not None]
    return tuple(sorted(readable, key=lambda entry: (entry.root, entry.model.name, entry.made)))


def stamps(paths: Iterable[Path]) -> tuple[str, ...]:
    """Return a text for each entry that covers one of these files; it changes when the entry's weights do."""
    try:
        stored_entries = entries()
    except StoreError:  # the engine does not use such a store
        return ()
    if not stored_entries:
        return ()
    names = [os.path.realpath(path) for path in paths]
    return tuple(f"{entry.root} {entry.made}" for entry in stored_entries if any(map(entry.covers, names)))


def read_weights(entry: Tuned) -> bytes:
    """Return the bytes of an entry's safetensors file; raise StoreError."""
    for place in (folder(), entry.folder):
        if reason := files.folder_problem(place):
            raise StoreError(f"{place} {reason}")
    try:
        return files.read_regular(entry.folder / WEIGHTS, MAX_WEIGHTS_BYTES)
    except (files.NotRegularError, files.TooLargeError) as error:
        raise StoreError(f"{entry.folder / WEIGHTS} {error}") from error
    except OSError as error:
        raise StoreError(f"{entry.folder / WEIGHTS} can't be read: {(error.strerror or str(error)).lower()}") from error


def write(
    root: Path, model: ModelId, weights: bytes, *, made: str, before: Figures, after: Figures, facts: Mapping[str, object]
) -> Tuned:
    """Write the entry of a repository, in place of an older one, and return it; raise StoreError.

    A reader sees the old entry, the new one, or for a moment none, but never a part of one. Also removes what a killed
    process left in the store.
    """
    target = path(root, model)
    values = {
        "format": FORMAT,
        "root": str(root),
        "model": asdict(model),
        "made": made,
        "before": asdict(before),
        "after": asdict(after),
        "facts": dict(facts),
    }
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if reason := files.folder_problem(target.parent):
            raise StoreError(f"{target.parent} {reason}")
        with _locked():
            _move_into(target, {WEIGHTS: weights, FACTS: json.dumps(values, indent=2).encode() + b"\n"})
    except OSError as error:
        raise StoreError(f"{target} can't be written: {(error.strerror or str(error)).lower()}") from error
    return Tuned(target, str(root), model, made, before, after)


def remove(root: Path) -> int:
    """Remove the entries of a repository, for all base models, and return their number; raise StoreError.

    Also removes what a killed process left in the store, because that may be code of this repository.
    """
    if not folder().exists():
        return 0
    if reason := files.folder_problem(folder()):
        raise StoreError(f"{folder()} {reason}")
    with _locked():
        matching = [entry for entry in entries() if entry.root == str(root)]
        for entry in matching:
            # Under this name the next process that holds the lock removes the rest if this one is killed.
            doomed = folder() / f"{_PARTIAL}{entry.folder.name}"
            try:
                entry.folder.rename(doomed)
            except OSError as error:
                raise StoreError(f"{entry.folder} can't be removed: {(error.strerror or str(error)).lower()}") from error
            _remove(doomed)
    return len(matching)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Hold the lock of the store, which must exist, and remove what a killed process left there; raise StoreError."""
    deadline = time.monotonic() + LOCK_S
    try:
        while (lock := locks.hold(folder() / _LOCK)) is None:
            if time.monotonic() >= deadline:
                raise StoreError(f"{folder()} is in use by another process; try again")
            time.sleep(0.05)
    except MeetingError as error:
        raise StoreError(str(error)) from error
    try:
        # Every process that writes holds the lock, so no process is still writing these.
        for place in folder().glob(f"{_PARTIAL}*"):
            _remove(place)
        yield
    finally:
        lock.release()


def _remove(place: Path) -> None:
    """Remove a folder with its contents, or a file; a link's target stays. Raises StoreError."""
    try:
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()
    except OSError as error:
        raise StoreError(f"{place} can't be removed: {(error.strerror or str(error)).lower()}") from error


def _move_into(target: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files of an entry to a new folder and move that to its place; raise OSError, and leave the old one then."""
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=target.parent))  # created with mode 0700
    try:
        for name, data in contents.items():
            files.replace(partial / name, data, is_durable=True)
        old = partial / "old"
        with contextlib.suppress(FileNotFoundError):
            target.rename(old)
        # The old entry moves with the new one, because one folder can't replace another that is not empty.
        try:
            partial.rename(target)
        except OSError:
            with contextlib.suppress(OSError):
                old.rename(target)
            raise
        shutil.rmtree(target / "old", ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _read(place: Path) -> Tuned | None:
    """Return the entry in a folder, or None if it is not one of this format."""
    try:
        values = json.loads(files.read_regular(place / FACTS, MAX_FACTS_BYTES))
        if values["format"] != FORMAT:
            return None
        model = ModelId(str(values["model"]["name"]), str(values["model"]["revision"]))
        root = str(values["root"])
        entry = Tuned(place, root, model, str(values["made"]), _figures(values["before"]), _figures(values["after"]))
    except (OSError, ValueError, TypeError, LookupError, RecursionError, OverflowError):
        return None
    # A copied or renamed folder must not change which files its weights are used for.
    return entry if place == path(Path(root), model) else None


def _figures(values: Mapping[str, Any]) -> Figures:
    return Figures(float(values["loss"]), int(values["exact"]), int(values["holes"]))
