"""What a model's name means: the embedded model, a folder, a model of the hub, or a server and where it is.

A folder is written as a path, with `/`, `./`, `../` or `~` at its start: a hub id must never turn into a folder because
the current folder, maybe a cloned repository, has one of that name.
Knows names alone, and asks no server.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.wire.settings import EMBEDDED

REMOTE = ("vllm:", "fim:")
HELP = "vllm:URL[#MODEL], or fim:DIALECT[:URL][#MODEL]"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

USUAL_URLS = {
    "openai": "https://api.openai.com",
    "mercury": "https://api.inceptionlabs.ai",
    "deepseek": "https://api.deepseek.com",
    "codestral": "https://codestral.mistral.ai",
    "llama": "http://127.0.0.1:8080",
    "ollama": "http://127.0.0.1:11434",
}
"""Where the server of a dialect is when no URL names another."""

_PORTS = {"http": 80, "https": 443}
# Narrower than URLs are: what two parsers could read as two hosts is no address here.
_URL = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(?:/[!-~]*)?")


class ModelNameError(ValueError):
    """A model's name can't be understood; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A remote model's name, taken apart. `url` is "" for a dialect's usual server, `model` "" for the server's own choice."""

    backend: str
    dialect: str
    url: str
    model: str

    @property
    def address(self) -> Address | None:
        """Where the server is; None where that can't be told."""
        return address_of(self.url or USUAL_URLS.get(self.dialect.casefold(), ""))


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address. `is_clear` means that what is sent there crosses a network unencrypted."""

    scheme: str
    host: str
    port: int

    @property
    def is_here(self) -> bool:
        """Whether it is this machine."""
        return self.host in LOOPBACK

    @property
    def is_clear(self) -> bool:
        """Whether what is sent there crosses a network unencrypted."""
        return self.scheme == "http" and not self.is_here

    @property
    def name(self) -> str:
        """The host, with its port where that is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def is_remote(model: str) -> bool:
    """Return whether a model's name means that code leaves this process for a server, be it on this machine."""
    return model.startswith(REMOTE)


def parse_remote(name: str) -> Remote:
    """Return what a remote model's name says; raise ModelNameError when it says nothing of the kind."""
    address, _, model = name.partition("#")
    backend, _, rest = address.partition(":")
    dialect, url = "", rest
    if backend == "fim":
        dialect, _, url = rest.partition(":")
        if not dialect or "/" in dialect or dialect in _PORTS:
            raise ModelNameError(f"{without_password(name)} names no dialect; a remote model is named {HELP}")
    elif backend != "vllm" or not url:
        raise ModelNameError(f"{without_password(name)} is no remote model; one is named {HELP}")
    return Remote(backend, dialect, url.rstrip("/"), model.strip())


def address_of(url: str) -> Address | None:
    """Return a URL's address; None where it is no URL of a server, or holds a password."""
    match = _URL.fullmatch(url)
    if match is None:
        return None
    scheme, host, port = match.groups()
    return Address(scheme, host.strip("[]").casefold(), int(port or _PORTS[scheme]))


def has_password(model: str) -> bool:
    """Return whether a remote model's URL holds a user's name or password, which logs and process lists would show."""
    return is_remote(model) and "@" in model.partition("#")[0].partition("//")[2].partition("/")[0]


def without_password(model: str) -> str:
    """Return a model's name for people, without what its URL may say before the host."""
    return re.sub(r"(//)[^/#]*@", r"\1", model)


def folder_of(model: str, beside: Path | None = None) -> Path | None:
    """Return the folder that a model's name means, by its full path, whether it exists or not; None for other names.

    A relative path begins at `beside`, or else at the current folder.
    """
    path = expanded(model)
    if is_remote(model) or not (path.is_absolute() or model in (".", "..") or model.startswith(("./", "../"))):
        return None
    return Path(os.path.realpath((beside or Path()) / path))


def expanded(name: str) -> Path:
    """Return the path with a home folder in place of its ~; as it is where nobody is called so."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 -- that of Path raises for a user that there is not


def comes_with_the_package(model: str) -> bool:
    """Return whether a model's name means the embedded model or another folder of this package."""
    folder = folder_of(model)
    return model == EMBEDDED or (folder is not None and folder.is_relative_to(Path(__file__).resolve().parents[1]))
