"""Only the bearer of the token, on this machine and outside a browser, is served."""

from __future__ import annotations

import httpx
from hypothesis import example, given
from hypothesis import strategies as st

from dg_lsp.engine.serve import endpoints
from dg_lsp.wire.messages import MAX_BODY_BYTES

TOKEN = "0123456789abcdef"
AUTHORIZED = f"Bearer {TOKEN}"

authorizations = st.one_of(
    st.none(),
    st.sampled_from(
        [AUTHORIZED, AUTHORIZED.lower(), f"bearer  {TOKEN} ", "Bearer", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}"]
    ),
    st.text(max_size=40),
)
hosts = st.one_of(
    st.none(),
    st.sampled_from(
        ["localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]", "[::1]:80", "localhost.evil.example", "127.0.0.1.evil"]
    ),
    st.sampled_from(["evil.example", "evil@localhost", "localhost:80:90", "[::2]", "localhost.", "", ":80", "127.0.0.2"]),
    st.text(max_size=30),
)
types = st.one_of(
    st.none(), st.sampled_from(["application/json", "Application/JSON; charset=utf-8", "text/plain", ""]), st.text(max_size=30)
)
lengths = st.one_of(st.none(), st.integers(0, 10**25).map(str), st.text(max_size=10))


def is_local(host: str | None) -> bool:
    """Return whether a host names this machine, read by another library than ours."""
    if not host or any(char in host for char in "@/?#\\ ") or not host.isascii():
        return False
    try:
        url = httpx.URL(f"http://{host}/")
    except (httpx.InvalidURL, ValueError):
        return False
    return url.host in ("localhost", "127.0.0.1", "::1")


@given(
    method=st.sampled_from(["GET", "POST", "OPTIONS", "DELETE"]),
    authorization=authorizations,
    origin=st.one_of(st.none(), st.sampled_from(["null", "http://localhost", "https://evil.example", ""])),
    host=hosts,
    kind=types,
    length=lengths,
)
@example(method="POST", authorization=AUTHORIZED, origin=None, host="localhost", kind="application/json", length="2")
def test_only_local_requests_with_the_token_and_without_origin_pass(
    method: str, authorization: str | None, origin: str | None, host: str | None, kind: str | None, length: str | None
) -> None:
    stated = {"authorization": authorization, "origin": origin, "host": host, "content-type": kind, "content-length": length}
    refusal = endpoints.refused(method, {name: value for name, value in stated.items() if value is not None}, TOKEN)
    has_token = authorization is not None and authorization.partition(" ")[2].strip() == TOKEN
    if refusal is None:
        assert has_token
        assert authorization is not None
        assert authorization[:6].lower() == "bearer"
        assert origin is None
        assert is_local(host)
        if method == "POST":
            assert kind is not None
            assert kind.partition(";")[0].strip().lower() == "application/json"
        assert not (length and length.isdecimal() and len(length) < 20 and int(length) > MAX_BODY_BYTES)
    else:
        assert refusal.status in (401, 403, 413, 415)
        assert TOKEN not in refusal.problem.message
        if not has_token:
            assert refusal.status == 401  # without the token, the answer reveals nothing more
