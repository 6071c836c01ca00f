"""Where a connection leads, whom it trusts, and what it says of itself."""

import socket
import ssl
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.sink.http.connection import Connection
from penstock.sink.http.settings import address_of, read_settings
from penstock.store.flight.credentials import make_tls
from testing.servers.http_receiver import http_receiver


def look(uri: str, **options: str) -> int:
    address_uri, settings = read_settings(uri, {"request-timeout": "20s"} | options)
    with closing(Connection(address_of(address_uri), settings, SystemClock())) as connection:
        return connection.look().status


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name have these addresses, as a DNS server of somebody else could."""

    def found(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "fe80::1%eth0", "::ffff:169.254.169.254", "100.100.100.200", "fd00:ec2::254", "0.0.0.0"]
)
def test_a_name_that_leads_to_credentials_is_refused_when_it_is_used(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    resolving(monkeypatch, "127.0.0.1", address)
    with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*hooks.example.com resolves to") as error:
        look("http+json://hooks.example.com:9/?code=geheim")
    assert "geheim" not in str(error.value)


def test_any_address_that_answers_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_receiver() as receiver:
        port = receiver.url.rpartition(":")[2]
        resolving(monkeypatch, "127.0.0.2", "127.0.0.1")
        assert look(f"http+json://hooks.example.com:{port}/x") == 405


@pytest.mark.parametrize(
    "uri",
    ["http+json://169.254.169.254/x", "http+json://metadata.google.internal/", "https+json:///x", "http+json://h:x/", "http+json://h:0/"],
)
def test_addresses_that_are_none(uri: str) -> None:
    with pytest.raises(PenstockError, match=r"SINK_URI_INVALID"):
        address_of(uri)


def test_what_a_uri_says_goes_where_it_should() -> None:
    uri, settings = read_settings("https+json://us%40er:p%3Aw@h.example:8443/a/b?code=1&lanes=3&x=", {"token": "t"})
    address = address_of(uri)
    assert (address.url, address.host, address.port) == ("https://h.example:8443/a/b?code=1&x=", "h.example", 8443)
    assert address.credentials == "Basic dXNAZXI6cDp3"
    assert address.shown == "https+json://h.example:8443/a/b"
    assert settings.lanes == 3
    assert address_of("http+json://[::1]:80").url == "http://[::1]:80/"
    assert address_of("http+json://h/hä%20?c=ö").url == "http://h/h%C3%A4%20?c=%C3%B6"


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"lanes": "0"}, "lanes"),
        ({"secret": "whsec_%"}, "secret"),
        *(({"token": token}, "token") for token in ("a\nb", "a ", "a\0b", "a\x01", "é")),
        ({"secret": "whsec_"}, "secret"),
        ({"dead-letter": "ftp://x"}, "dead-letter"),
    ],
)
def test_settings_that_are_wrong(options: dict[str, str], path: str) -> None:
    with pytest.raises(PenstockError, match=f"CONFIG_INVALID.*{path}"):
        read_settings("https+json://h/", options)


@pytest.mark.parametrize("name", ["127.0.0.1", "other.example"])
def test_a_certificate_must_be_one_that_is_trusted_and_of_the_host(tmp_path: Path, name: str) -> None:
    made = make_tls([name], SystemClock())
    files = {kind: tmp_path / f"{kind}.pem" for kind in ("certificate", "key", "readers_ca")}
    for kind, file in files.items():
        file.write_bytes(getattr(made, kind))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["certificate"], files["key"])
    with http_receiver(tls=context) as receiver:
        with pytest.raises(PenstockError, match=r"SINK_UNAVAILABLE.*CERTIFICATE_VERIFY_FAILED") as refused:
            look(receiver.uri)
        assert "self-signed or of your own with ca" in str(refused.value.hint)
        if name == "127.0.0.1":
            assert look(receiver.uri, ca=str(files["readers_ca"])) == 405
        else:
            with pytest.raises(PenstockError, match=r"SINK_UNAVAILABLE.*CERTIFICATE_VERIFY_FAILED"):
                look(receiver.uri, ca=str(files["readers_ca"]))
        with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*ca"):
            look(receiver.uri, ca="/nowhere/ca.pem")
