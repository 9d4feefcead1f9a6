"""Parse a model's name: the embedded model, a laptop model, a folder, a hub id, or a server with its address.

A folder is written as a path that begins with `/`, `./`, `../` or `~`. Otherwise a folder in the current directory,
which may be a cloned repository, could shadow a hub id. This module parses names only; it contacts no server.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.wire import laptop
from dg_lsp.wire.settings import AUTO, EMBEDDED

REMOTE = ("vllm:", "chat:", "fim:")
HELP = "vllm:URL[#MODEL], chat:URL[#MODEL], or fim:DIALECT[:URL][#MODEL]"
# The lint takes this end of a sentence for a password.
NO_PASSWORD = "must hold no user name or password, which logs and process lists would show. Put a key into [keys]."  # noqa: S105
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

USUAL_URLS = {
    "openai": "https://api.openai.com",
    "mercury": "https://api.inceptionlabs.ai",
    "deepseek": "https://api.deepseek.com",
    "codestral": "https://codestral.mistral.ai",
    "llama": "http://127.0.0.1:8080",
    "ollama": "http://127.0.0.1:11434",
}
"""The default URL of each dialect's server."""

# A URL's path may contain commas, but not before `http://` or `https://`.
_NEXT_URL = re.compile(r",(?=https?://)")
PORTS = {"http": 80, "https": 443}
# Stricter than URLs in general: an address that two parsers could read as two hosts is rejected, and so is a query.
_URL = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(?:/[!-\"$->@-~]*)?")


class ModelNameError(ValueError):
    """A model's name can't be parsed. The message is a sentence."""


@dataclass(frozen=True, slots=True)
class Remote:
    """The parts of a remote model's name, and its server's address.

    `url` is "" for the dialect's default server. `model` is "" for the server's default model.
    """

    backend: str
    dialect: str
    url: str
    model: str
    address: Address


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address."""

    scheme: str
    host: str
    port: int

    @property
    def is_here(self) -> bool:
        """Whether the server is on this machine."""
        return self.host in LOOPBACK

    @property
    def is_clear(self) -> bool:
        """Whether requests cross a network unencrypted."""
        return self.scheme == "http" and not self.is_here

    @property
    def name(self) -> str:
        """The host, with its port unless that is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def is_remote(model: str) -> bool:
    """Return whether the model's name means that code is sent to a server, even one on this machine."""
    return model.startswith(REMOTE)


def parse_remote(name: str) -> Remote:
    """Return the parts of a remote model's name; raise ModelNameError if it is not one, or no server can have its URL."""
    if has_password(name):
        raise ModelNameError(f"the model's URL {NO_PASSWORD}")
    before, _, model = name.partition("#")
    backend, _, url = before.partition(":")
    dialect = ""
    if backend == "fim":
        dialect, _, url = url.partition(":")
        dialect = dialect.casefold()
        if not dialect or "/" in dialect or dialect in PORTS:
            raise ModelNameError(f"{name} names no dialect; write {HELP}")
        if dialect not in USUAL_URLS:
            raise ModelNameError(f"there is no dialect {dialect}; choose one of {', '.join(USUAL_URLS)}")
    elif backend not in ("vllm", "chat") or not url:
        raise ModelNameError(f"{name} is not a remote model; write {HELP}")
    if _NEXT_URL.search(url):
        raise ModelNameError(f"{name} names several servers; name one, such as a load balancer in front of them")
    address = address_of(url or USUAL_URLS.get(dialect, ""))
    if address is None:
        needed = "http:// or https://, a host in ASCII, and maybe a port and a path, but no query"
        shown = url.partition("?")[0]  # a query may hold a key
        raise ModelNameError(f"{shown} is not a server's URL, which is {needed}")
    return Remote(backend, dialect, url.rstrip("/"), model.strip(), address)


def address_of(url: str) -> Address | None:
    """Return a URL's address, or None if it is not a server's URL or holds a password."""
    match = _URL.fullmatch(url)
    if match is None or int(match[3] or 1) not in range(1, 1 << 16):
        return None
    scheme, host, port = match.groups()
    return Address(scheme, host.strip("[]").casefold(), int(port or PORTS[scheme]))


def has_password(model: str) -> bool:
    """Return whether a remote model's URL holds a user name or password, which logs and process lists would show."""
    urls = model.partition("#")[0].split("//")[1:]
    return is_remote(model) and any("@" in url.partition("/")[0] for url in urls)


def folder_of(model: str, beside: Path | None = None) -> Path | None:
    """Return the full path of the folder that a model's name means, existing or not; None for other names.

    A relative path starts at `beside`, or else at the current folder.
    """
    if "\0" in model:
        return None  # no path contains it
    path = expanded(model)
    if is_remote(model) or not (path.is_absolute() or model in (".", "..") or model.startswith(("./", "../"))):
        return None
    try:
        return Path(os.path.realpath((beside or Path()) / path))
    except FileNotFoundError:  # the current folder was removed
        return Path(os.path.realpath(os.sep / path))


def is_gguf(path: Path) -> bool:
    """Return whether a path that means a model is that of a GGUF file, existing or not, which is converted once."""
    return path.suffix.lower() == ".gguf" and not path.is_dir()


def is_hub_id(model: str) -> bool:
    """Return whether the name has the form of a hub id, `OWNER/NAME`, maybe with `@REVISION`."""
    repository = model.partition("@")[0]
    return repository.count("/") == 1 and not is_remote(model) and not model.startswith((".", "/", "~"))


def full(model: str, beside: Path | None = None) -> str:
    """Return a model's name, with the full path of a folder (see `folder_of`)."""
    return str(folder_of(model, beside) or model)


def expanded(name: str) -> Path:
    """Return the path with `~` replaced by the home folder; unchanged if that user is unknown."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 -- Path.expanduser raises for an unknown user


def comes_with_the_package(model: str) -> bool:
    """Return whether the name means a model whose weights this package has or knows by their hash, such as a laptop model."""
    folder = folder_of(model)
    return (
        model in (AUTO, EMBEDDED)
        or laptop.by_name(model) is not None
        or (folder is not None and folder.is_relative_to(Path(__file__).resolve().parents[1]))
    )
