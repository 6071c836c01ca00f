"""Certificates that say nothing: run out, of another host, of an authority that nobody trusts. No password and no token goes there."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.access.mysql_server import parse_uri
from penstock.cli.server_client import ServerClient
from penstock.config.api_settings import ApiSettings
from penstock.meta.database import MetaDatabase
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.source.mysql.connection import Session
from penstock.source.postgres.wire.address import parse_address
from penstock.source.postgres.wire.connection import Connection
from penstock.store.flight.credentials import make_tls
from testing.servers.api_server import ApiServer
from testing.servers.rogue import Peer, mysql_greeting, mysql_switch, postgres_asks, rogue
from testing.twins.clock import SimulatedClock

PASSWORD = "S3cretOfTheSource"
WRONG = ["expired", "another host", "another authority"]


class Shown:
    """What a server shows, as files: its certificate and key, and the authority that callers trust."""

    def __init__(self, folder: Path, what: str) -> None:
        clock = SimulatedClock(1_000_000_000_000) if what == "expired" else SystemClock()
        made = make_tls(["other.example" if what == "another host" else "127.0.0.1"], clock)
        trusted = make_tls(["127.0.0.1"], SystemClock()) if what == "another authority" else made
        self.certificate, self.key, self.authority = folder / "server.pem", folder / "server.key", folder / "authority.pem"
        self.certificate.write_bytes(made.certificate)
        self.key.write_bytes(made.key)
        self.authority.write_bytes(trusted.readers_ca)

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def mysql(context: ssl.SSLContext) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.send(mysql_greeting(tls=True))
        peer.read_mysql()
        peer.start_tls(context)
        peer.read_mysql()
        peer.send(mysql_switch(3, "mysql_clear_password"))
        peer.read_mysql()

    return script


def postgres(context: ssl.SSLContext) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.read(8)
        peer.send(b"S")
        peer.start_tls(context)
        peer.read_postgres(typed=False)
        peer.send(postgres_asks(3))
        peer.read_postgres()

    return script


def enter_mysql(port: int, authority: Path) -> None:
    Session(parse_uri(f"mysql://cdc:{PASSWORD}@127.0.0.1:{port}/?ssl=verify-identity&ssl-ca={authority}"))


def enter_postgres(port: int, authority: Path) -> None:
    Connection(parse_address(f"postgresql://cdc:{PASSWORD}@127.0.0.1:{port}/shop?sslmode=verify-full&sslrootcert={authority}"))


@pytest.mark.parametrize("what", [*WRONG, "good"])
@pytest.mark.parametrize(("script", "enter"), [(mysql, enter_mysql), (postgres, enter_postgres)], ids=["mysql", "postgres"])
def test_a_source_is_known_by_its_certificate(
    tmp_path: Path,
    script: Callable[[ssl.SSLContext], Callable[[Peer], None]],
    enter: Callable[[int, Path], None],
    what: str,
) -> None:
    shown = Shown(tmp_path, what)
    with rogue(script(shown.context())) as server, pytest.raises(PenstockError) as refused:
        enter(server.port, shown.authority)
    # Where the certificate says who it is, it may ask for the password; then this one breaks off.
    assert (PASSWORD.encode() in server.heard) is (what == "good")
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("also", ["", "&ssl_verify_cert=false", "&ssl_check_hostname=false"])
def test_a_meta_database_is_known_by_its_certificate(tmp_path: Path, also: str) -> None:
    shown = Shown(tmp_path, "another authority")
    with rogue(mysql(shown.context())) as server, pytest.raises(PenstockError) as refused:
        MetaDatabase(f"mysql://meta:{PASSWORD}@127.0.0.1:{server.port}/meta?ssl_ca={shown.authority}{also}")
    assert PASSWORD.encode() not in server.heard
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("what", [*WRONG, "good"])
def test_a_server_is_known_by_its_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    shown = Shown(tmp_path, what)
    with ApiServer(tmp_path, api=ApiSettings(tls_certificate=shown.certificate, tls_key=shown.key)) as server:
        monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "elsewhere"))
        monkeypatch.setenv("PENSTOCK_TOKEN", server.token)
        monkeypatch.setenv("PENSTOCK_CA_FILE", str(shown.authority))
        with ServerClient(server.url) as client:
            if what == "good":
                assert client.list_feeds() == []
            else:
                with pytest.raises(PenstockError) as refused:
                    client.list_feeds()
                assert refused.value.code == "SERVER_UNREACHABLE"
