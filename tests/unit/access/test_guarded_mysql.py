"""A server that lies: what it hears of the password, and what it can make us hold."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from penstock.access.guarded_mysql import GuardedConnection
from penstock.access.mysql_server import parse_uri
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.source.mysql.connection import Session
from testing.servers.rogue import Peer, mysql_greeting, mysql_packet, mysql_switch, rogue

PASSWORD = "S3cretOfTheSource"
PLAIN = PASSWORD.encode()
OK = bytes([0, 0, 0, 2, 0, 0, 0])
KEY = b"-----BEGIN PUBLIC KEY-----\nof the rogue itself\n-----END PUBLIC KEY-----\n"


def switch_to(plugin: str) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.send(mysql_greeting())
        peer.read_mysql()
        peer.send(mysql_switch(2, plugin))
        peer.read_mysql()
        peer.send(mysql_packet(4, b"\x01\x04" if plugin == "caching_sha2_password" else b"\x01" + KEY))
        peer.read_mysql()

    return script


def ask_at_once(peer: Peer) -> None:
    peer.send(mysql_greeting("sha256_password"))
    peer.read_mysql()
    peer.send(mysql_switch(2, "sha256_password"))
    peer.read_mysql()


def dialog(peer: Peer) -> None:
    peer.send(mysql_greeting())
    peer.read_mysql()
    peer.send(mysql_packet(2, b"\xfedialog\0" + b"\x05Password: "))
    peer.read_mysql()


def refused(script: Callable[[Peer], None], query: str = "") -> tuple[PenstockError, bytes]:
    with rogue(script) as server, pytest.raises(PenstockError) as wrong:
        Session(parse_uri(f"mysql://cdc:{PASSWORD}@127.0.0.1:{server.port}/{query}"))
    assert PASSWORD not in str(wrong.value)
    return wrong.value, server.heard


@pytest.mark.parametrize("plugin", ["mysql_clear_password", "sha256_password", "caching_sha2_password", "mysql_old_password"])
def test_no_plugin_shows_the_password_to_a_server_that_nobody_knows(plugin: str) -> None:
    error, heard = refused(switch_to(plugin))
    assert error.code == "UPSTREAM_REFUSED"
    assert "verify-identity" in error.hint
    assert PLAIN not in heard
    assert heard[-1:] != b"\x02"  # nor was a key asked for


@pytest.mark.parametrize("script", [ask_at_once, dialog])
def test_neither_does_a_greeting_or_a_question(script: Callable[[Peer], None]) -> None:
    error, heard = refused(script)
    assert error.code == "UPSTREAM_REFUSED"
    assert PLAIN not in heard


def test_who_trusts_the_network_says_so() -> None:
    _, heard = refused(switch_to("mysql_clear_password"), "?clear-password=on")
    assert PLAIN + b"\0" in heard
    _, heard = refused(switch_to("mysql_old_password"), "?clear-password=on")
    assert PLAIN not in heard
    with pytest.raises(PenstockError, match="clear-password"):
        parse_uri("mysql://db/?clear-password=maybe")


def test_what_verifies_a_server() -> None:
    verified = {
        query: parse_uri(f"mysql://db/?{query}").is_verified
        for query in ("ssl=required", "ssl=verify-ca", "ssl=verify-ca&ssl-ca=/x", "ssl=verify-identity")
    }
    assert verified == {"ssl=required": False, "ssl=verify-ca": False, "ssl=verify-ca&ssl-ca=/x": True, "ssl=verify-identity": True}


def test_an_answer_longer_than_can_be_is_not_waited_for() -> None:
    error, _ = refused(lambda peer: peer.send(struct.pack("<I", 0xFFFFFF)[:3] + b"\0"))
    assert error.code == "DECODE_FAILED"
    assert "16777" in error.detail


@pytest.mark.parametrize(
    "greeting",
    [b"\x0aveteran\0", b"\x0a" + b"9" * 5, b"", b"\x0a8\0" + bytes(40), b"\x0ax.y\0" + bytes(60)],
)
def test_a_greeting_that_makes_no_sense_is_an_error_of_the_server(greeting: bytes) -> None:
    error, _ = refused(lambda peer: peer.send(mysql_packet(0, greeting)))
    assert error.code in {"DECODE_FAILED", "UPSTREAM_UNREACHABLE"}


def test_a_server_that_wants_a_file_gets_none() -> None:
    def script(peer: Peer) -> None:
        peer.send(mysql_greeting())
        peer.read_mysql()
        peer.send(mysql_packet(2, bytes([0, 0, 0, 2, 0, 0, 0])))
        peer.read_mysql()
        peer.send(mysql_packet(1, bytes([0, 0, 0, 2, 0, 0, 0])))
        peer.read_mysql()
        peer.send(mysql_packet(1, b"\xfb/etc/hostname"))
        peer.read_mysql()

    error, heard = refused(script)
    assert error.code == "DECODE_FAILED"
    with open("/etc/hostname", "rb") as file:
        assert file.read().strip() not in heard


def entered(peer: Peer) -> None:
    """Let somebody in who sets what the driver and we set."""
    peer.send(mysql_greeting())
    peer.read_mysql()
    peer.send(mysql_packet(2, OK))
    for _ in range(2):
        peer.read_mysql()
        peer.send(mysql_packet(1, OK))


class HurriedClock(SystemClock):
    """A second passes whenever somebody looks."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic_s(self) -> float:
        self._now_s += 1.0
        return self._now_s


def test_a_login_that_trickles_ends() -> None:
    with rogue(entered) as server:
        connection = GuardedConnection(False, host="127.0.0.1", port=server.port, user="cdc", connect_timeout=1, defer_connect=True)
        connection._clock = HurriedClock()
        with pytest.raises(PenstockError, match="the login took too long"):
            connection.connect()


@pytest.mark.parametrize(
    "answer", [b"\x01" + b"\x03def" + b"\0" * 4 + bytes([12]) + bytes(13), b"\xfe" + b"\xff" * 7 + b"\x7f"], ids=["rows", "columns"]
)
def test_an_answer_without_an_end_is_not_held(answer: bytes) -> None:
    def script(peer: Peer) -> None:
        entered(peer)
        peer.read_mysql()
        peer.send(mysql_packet(1, answer[:1] if answer[0] == 1 else answer))
        definition = b"\x03def" + b"\0" * 5 + b"\x0c" + struct.pack("<HIBHB", 45, 10, 253, 0, 0) + b"\0\0"
        if answer[0] == 1:
            peer.send(mysql_packet(2, definition) + mysql_packet(3, b"\xfe\0\0\2\0"))
        number = 4 if answer[0] == 1 else 2
        row = b"\xfc\xf4\x01" + b"x" * 500 if answer[0] == 1 else definition
        while not peer.wait_gone(0.0):
            peer.send(b"".join(mysql_packet((number + at) % 256, row) for at in range(256)))

    with rogue(script) as server:
        session = Session(parse_uri(f"mysql://cdc@127.0.0.1:{server.port}/"))
        session.raw._answer_bytes_max = 1 << 18
        with pytest.raises(PenstockError, match="DECODE_FAILED"):
            session.rows("SELECT 1")


@pytest.mark.parametrize(("text", "shown"), [(b"", ""), (b"x" * 10_000, "x" * 2_000), (b"a\nb", "a")])
def test_what_a_server_says_is_repeated_in_part(text: bytes, shown: str) -> None:
    def script(peer: Peer) -> None:
        peer.send(mysql_greeting())
        peer.read_mysql()
        peer.send(mysql_packet(2, b"\xff\x15\x04#28000" + text))

    error, _ = refused(script)
    assert (error.code, error.detail.partition(": ")[2]) == ("UPSTREAM_REFUSED", shown)
