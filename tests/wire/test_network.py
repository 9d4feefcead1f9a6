"""Certificates and proxies of the environment: a variable that can't be used is named, and NO_PROXY is read as curl does."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from dg_lsp.wire import network
from dg_lsp.wire.network import NetworkError, route_to, tls
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("network.txt"))

NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
FAR = httpx.URL("https://models.example")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, network.CERTIFICATES, network.CERTIFICATE_FOLDERS, network.KEY_LOG):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("name", "value", "reason"), ROWS["wrong"])
def test_a_variable_that_cant_be_used_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(NetworkError, match=reason) as caught:
        route_to(FAR)
    assert str(caught.value).startswith(f"{name} ")
    assert "cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"])
def test_a_connection_without_tls_needs_no_certificates(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "/nonexistent/x")
    assert route_to(httpx.URL("http://models.example")).tls is network.NO_TLS


def test_a_file_of_certificates_counts_before_folders_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = ssl.DER_cert_to_PEM_cert(httpx.create_ssl_context().get_ca_certs(binary_form=True)[0])
    (tmp_path / "one.pem").write_text(authority)
    monkeypatch.setenv("SSL_CERT_DIR", "/nonexistent")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "one.pem"))
    assert len(tls().get_ca_certs()) == 1


def test_one_folder_of_several_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_DIR", f"/nonexistent:{tmp_path}")
    assert not tls().get_ca_certs()


@pytest.mark.parametrize(("url", "entries"), ROWS["exempt"])
def test_no_proxy_exempts_hosts_domains_addresses_and_networks(monkeypatch: pytest.MonkeyPatch, url: str, entries: str) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", entries)
    assert route_to(httpx.URL(url)).proxy is None


@pytest.mark.parametrize(
    "entries",
    [
        "localhost,[::1]", "fe80::/10", "[fe80::]/10", "[", "]:,[:]:", "::1/999", "10.0.0.0/8", "http://models:port",
        "model.example, odels.example, models.example.org", "models.example:80", "models.example:" + "4" * 5000,
        "a b,%zz,://,*x,/",
    ],
)  # fmt: skip
def test_other_entries_of_no_proxy_are_ignored(monkeypatch: pytest.MonkeyPatch, entries: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")
    monkeypatch.setenv("NO_PROXY", entries)
    route = route_to(FAR)
    assert (str(route.proxy and route.proxy.url), route.variable) == ("http://proxy:3128", "HTTPS_PROXY")


@pytest.mark.parametrize(
    ("variables", "variable"),
    [
        ({"https_proxy": "http://one:1", "HTTPS_PROXY": "http://two:1"}, "https_proxy"),
        ({"ALL_PROXY": "http://one:1", "HTTP_PROXY": "http://two:1"}, "ALL_PROXY"),
        ({"HTTPS_PROXY": " http://one:1 "}, "HTTPS_PROXY"),
    ],
)
def test_the_proxy_is_that_of_the_urls_scheme(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], variable: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    route = route_to(FAR)
    assert (str(route.proxy and route.proxy.url), route.variable) == ("http://one:1", variable)
