"""Fetch a file over HTTP into a file on the disk: resumable, bounded, with retries.

A redirect is followed to any host, because only the hash of the content counts, but not from https to http, and no
credentials go along.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx

CONNECT_S, READ_S = 5.0, 60.0
REACH_S = 5.0
MAX_REDIRECTS = 5
TRIES, PAUSE_S = 5, 0.5
PIECE_BYTES = 1 << 18
_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


class PullError(Exception):
    """A model can't be pulled; the message is a sentence, without its full stop."""


def new_client(*, verify: bool | str = True, proxy: str = "") -> httpx.Client:
    """Return a client; `verify` may be the file of the accepted certificates."""
    import ssl

    context = ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
    timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
    return httpx.Client(verify=context, proxy=proxy or None, timeout=timeout)


@contextlib.contextmanager
def opened(client: httpx.Client, url: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
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
        with contextlib.suppress(httpx.HTTPError, PullError, httpx.InvalidURL), opened(client, url, {}) as response:
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
    with opened(client, url, {"Accept": accept}) as response:
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
    with opened(client, url, headers) as response:
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
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
