"""A GGUF file that the user names as a model: converted once into a folder of the store, and again when it changes."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dg_lsp.engine.model.pull.conversion import GgufError, convert, described
from dg_lsp.engine.model.weights.fetch import PullError
from dg_lsp.wire import files, laptop
from dg_lsp.wire.discovery import DiscoveryError, hold

MAGIC = b"GGUF"


def folder_of(path: Path, on_progress: Callable[[str, float], None] = lambda _text, _share: None) -> Path:
    """Return the converted folder of a GGUF file; raise PullError if it can't be converted.

    `on_progress` receives a text and a share.
    """
    store = laptop.store()
    with _reported(path):
        status = path.stat()
        _check_is_gguf(path)
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        if problem := files.folder_problem(store):
            raise PullError(f"{store} {problem}")
        start = f"{path.stem}-{_hash(str(path))}-"
        folder = store / f"{start}{_hash(f'{status.st_size} {status.st_mtime_ns}')}"
        if not folder.exists():
            _convert(path, store, start, folder, on_progress)
    return folder


def config_values(path: Path) -> dict[str, Any]:
    """Return what the converted folder's `config.json` will state, without a conversion; raise PullError if it can't be one."""
    with _reported(path):
        _check_is_gguf(path)
        return described(path)


def _check_is_gguf(path: Path) -> None:
    with path.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise PullError(f"{path} is not a GGUF file")


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Raise PullError with a sentence for what may be wrong with a file."""
    try:
        yield
    except PullError:
        raise
    except DiscoveryError as error:
        raise PullError(str(error)) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename == str(path):
            raise PullError(f"there is no file {path}") from error
        raise PullError(f"{error.filename or path} can't be used: {(error.strerror or str(error)).lower()}") from error
    except GgufError as error:
        raise PullError(f"{path} {error}") from error
    except struct.error as error:  # the bytes of a number are not all there
        raise PullError(f"{path} is cut short") from error
    except Exception as error:  # the file's content was not checked
        raise PullError(f"{path} can't be converted: {str(error) or type(error).__name__}") from error


def _convert(path: Path, store: Path, start: str, folder: Path, on_progress: Callable[[str, float], None]) -> None:
    """Convert a file into `folder`, and remove what else begins with `start`: of older files, and of killed processes."""
    lock = hold(store / f".{start}lock")
    if lock is None:
        raise PullError(f"{path} is being converted by another process; wait for it")
    try:
        if folder.exists():  # another process was faster
            return
        for killed in store.glob(f".{glob.escape(start)}*"):
            if killed != lock.path:
                shutil.rmtree(killed, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{start}", dir=store))
        try:
            convert(path, work, lambda text, share: on_progress(f"{text} (once)", share))
            for older in store.glob(f"{glob.escape(start)}*"):
                shutil.rmtree(older, ignore_errors=True)
            work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        lock.release()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
