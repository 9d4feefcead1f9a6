"""What the environment says about connections: certificates, proxies, and the hosts that need no proxy.

httpx reads the same variables, but its errors name none of them, and it refuses entries of NO_PROXY that curl and git accept.
So no client of ours lets httpx read them.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

import httpx

from dg_lsp.wire.model_names import LOOPBACK, PORTS

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For connections without TLS. It accepts no certificate."""
CERTIFICATES, CERTIFICATE_FOLDERS, KEY_LOG = "SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"

_SEPARATORS = re.compile(r"[\s,]+")
_WITH_PORT = re.compile(r"(\[.*\]|[^:]*):(\d+)")


class NetworkError(Exception):
    """A variable of the environment can't be used; the message is a sentence that names it."""


@dataclass(frozen=True, slots=True)
class Route:
    """How to connect to one server: what checks its certificate, and its proxy with the name of the proxy's variable."""

    tls: ssl.SSLContext
    proxy: httpx.Proxy | None = None
    variable: str = ""


def route_to(url: httpx.URL) -> Route:
    """Return how to connect to the server at a URL; raise NetworkError if a variable that this needs can't be used."""
    variable, proxy = ("", None) if url.host in LOOPBACK or _is_exempt(url) else _proxy(url.scheme)
    needs_tls = "https" in (url.scheme, proxy.url.scheme if proxy else "")
    return Route(tls() if needs_tls else NO_TLS, proxy, variable)


def tls() -> ssl.SSLContext:
    """Return what checks the certificates of servers, as the environment says; raise NetworkError if that can't be used."""
    file, name = os.environ.get(CERTIFICATES, ""), CERTIFICATES
    folders = os.environ.get(CERTIFICATE_FOLDERS, "")
    if not file and folders and not any(Path(folder).is_dir() for folder in folders.split(os.pathsep)):
        raise NetworkError(f"{CERTIFICATE_FOLDERS} names {folders}, which is not a folder of certificates; correct or unset it")
    try:
        # Without a file, httpx takes the environment's folders, or the certificates that come with it.
        return ssl.create_default_context(cafile=file) if file else httpx.create_ssl_context()
    except OSError as error:
        # Python writes the keys of connections to this file, and only its errors have the name of a file.
        if error.filename is not None:
            name, file = KEY_LOG, os.environ.get(KEY_LOG, "")
        reason = "has no certificates" if isinstance(error, ssl.SSLError) else f"can't be used ({str(error.strerror).lower()})"
        raise NetworkError(f"{name} names {file}, which {reason}; correct or unset it") from error


def certificate_advice() -> str:
    """Return what may help when a server's certificate is refused."""
    name = next((name for name in (CERTIFICATES, CERTIFICATE_FOLDERS) if os.environ.get(name)), "")
    authority = "the certificate of its authority"
    return f"is {authority} in {name}?" if name else f"set {CERTIFICATES} to a file with {authority}"


def _proxy(scheme: str) -> tuple[str, httpx.Proxy | None]:
    """Return the proxy for a URL's scheme with the name of its variable; raise NetworkError if it can't be used."""
    proxies = getproxies()
    named = proxies.get(scheme) or proxies.get("all")
    if not named:
        return "", None
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    variable = next((name for name in names if os.environ.get(name) == named), "the proxy of the system")
    url = named.strip() if "://" in named else f"http://{named.strip()}"
    try:
        proxy = httpx.Proxy(url)
        is_valid = bool(proxy.url.host) and (proxy.url.port or 0) < 1 << 16
    except (ValueError, httpx.InvalidURL):
        is_valid = False
    if not is_valid:
        # Without its value, which may hold a password.
        raise NetworkError(f"{variable} does not name a proxy such as http://HOST:3128; correct or unset it")
    if proxy.url.scheme.startswith("socks") and find_spec("socksio") is None:
        raise NetworkError(
            f"{variable} names a SOCKS proxy, which needs the package socksio; install it, or name a proxy such as "
            "http://HOST:3128, or add the server's host to NO_PROXY"
        )
    return variable, httpx.Proxy(url, ssl_context=tls()) if proxy.url.scheme == "https" else proxy


def _is_exempt(url: httpx.URL) -> bool:
    """Return whether NO_PROXY or the system's settings exempt a URL's host from the proxies."""
    host, port = url.host.casefold().rstrip("."), url.port or PORTS.get(url.scheme, 0)
    entries = _SEPARATORS.split(getproxies().get("no", ""))
    return any(_exempts(entry, host, port) for entry in entries) or bool(proxy_bypass(f"{host}:{port}"))


def _exempts(entry: str, host: str, port: int) -> bool:
    """Return whether an entry of NO_PROXY means this host: its name or address, a domain around it, a network, or `*`."""
    name = entry.casefold().rpartition("://")[2]
    if match := _WITH_PORT.fullmatch(name):
        name = match[1]
        if match[2] != str(port):
            return False
    # Brackets are not part of an address, but [::1] and [fe80::]/10 are often written.
    name = name.replace("[", "").replace("]", "")
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    except ValueError:
        domain = name.removeprefix("*").strip(".")
        return name == "*" or (bool(domain) and f".{host}".endswith(f".{domain}"))
