"""A server that lies: what it hears of the password, and what it can make us hold."""

import base64
import hashlib
import hmac
import struct

import numpy as np
import pytest

from penstock.model.errors import PenstockError
from penstock.source.postgres.snapshot.table_scan import read_copy
from penstock.source.postgres.wire.address import parse_address
from penstock.source.postgres.wire.bounds import Bounds
from penstock.source.postgres.wire.connection import Connection
from penstock.source.postgres.wire.pgoutput import BAD, stream_end
from penstock.source.postgres.wire.scan_buffer import ScanBuffer
from testing.servers.rogue import postgres_asks, postgres_message, rogue
from testing.twins.clock import SimulatedClock

PASSWORD = "S3cretOfTheSource"
READY = postgres_message(b"Z", b"I")
OK, CLEAR, SASL, CONTINUE, FINAL = 0, 3, 10, 11, 12


def begin(peer):
    """Offer no TLS and take the startup message."""
    peer.read(8)
    peer.send(b"N")
    peer.read_postgres(typed=False)


def clear(peer):
    begin(peer)
    peer.send(postgres_asks(CLEAR))
    peer.read_postgres()


def scram_then(answer, salt=b"c2FsdA==", rounds=b"1"):
    def script(peer):
        begin(peer)
        peer.send(postgres_asks(SASL, b"SCRAM-SHA-256\0\0"))
        nonce = peer.read_postgres().rpartition(b"r=")[2]
        peer.send(postgres_asks(CONTINUE, b"r=" + nonce + b"x,s=" + salt + b",i=" + rounds))
        peer.read_postgres()
        peer.send(answer)

    return script


def refused(script, query=""):
    with rogue(script) as server, pytest.raises(PenstockError) as wrong:
        Connection(parse_address(f"postgresql://cdc:{PASSWORD}@127.0.0.1:{server.port}/shop{query}"))
    assert PASSWORD not in str(wrong.value)
    return wrong.value, server.heard


def test_no_password_in_clear_for_a_server_that_nobody_knows():
    error, heard = refused(clear)
    assert error.code == "UPSTREAM_REFUSED"
    assert "verify-full" in error.hint
    assert PASSWORD.encode() not in heard
    _, heard = refused(clear, "?clear_password=on")
    assert PASSWORD.encode() + b"\0" in heard


def test_what_verifies_a_server():
    def verified(query):
        return parse_address(f"postgresql://u@db/x?{query}").is_verified

    modes = ("sslmode=require", "sslmode=verify-ca", "sslmode=verify-ca&sslrootcert=/x", "sslmode=verify-full")
    assert [verified(m) for m in modes] == [False, False, True, True]
    with pytest.raises(PenstockError, match="clear_password must be on or off"):
        verified("clear_password=maybe")


@pytest.mark.parametrize("answer", [postgres_asks(OK) + READY, READY, postgres_asks(CLEAR), postgres_asks(SASL, b"SCRAM-SHA-256\0\0")])
def test_scram_is_not_over_before_the_server_proved_itself(answer):
    error, heard = refused(scram_then(answer), "?clear_password=on")
    assert (error.code, "prove" in error.detail) == ("UPSTREAM_REFUSED", True)
    assert PASSWORD.encode() not in heard


def test_scram_with_a_proof_is_content():
    def script(peer):
        begin(peer)
        peer.send(postgres_asks(SASL, b"SCRAM-SHA-256\0\0"))
        bare = peer.read_postgres().rpartition(b"n,,")[2]
        first = b"r=" + bare.rpartition(b"r=")[2] + b"x,s=c2FsdA==,i=1"
        peer.send(postgres_asks(CONTINUE, first))
        without_proof = peer.read_postgres().rpartition(b",p=")[0]
        salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b"salt", 1)
        signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), b",".join([bare, first, without_proof]), "sha256")
        peer.send(postgres_asks(FINAL, b"v=" + base64.b64encode(signature)) + postgres_asks(OK) + READY)
        peer.read_postgres()

    with rogue(script) as server, Connection(parse_address(f"postgresql://cdc:{PASSWORD}@127.0.0.1:{server.port}/shop")) as connection:
        assert connection.server_version == 0


@pytest.mark.parametrize(
    "script",
    [
        scram_then(postgres_asks(FINAL, b"v=not base64!")),
        scram_then(b"", salt=b"@@@"),
        scram_then(b"", rounds="²".encode()),
        lambda peer: (begin(peer), peer.send(postgres_message(b"R", b"\0"))),
        lambda peer: (begin(peer), peer.send(postgres_message(b"S", b"nothing"))),
        lambda peer: (begin(peer), peer.send(postgres_message(b"S", b"\xff\0\xff\0"))),
        lambda peer: (begin(peer), peer.send(b"R" + struct.pack("!i", 100_000))),
        lambda peer: (begin(peer), peer.send(b"HTTP/1.1 400 Bad Request\r\n")),
    ],
)
def test_messages_that_make_no_sense_are_an_error_of_the_server(script):
    assert refused(script)[0].code in {"DECODE_FAILED", "UPSTREAM_REFUSED"}


def answering(rows):
    def script(peer):
        begin(peer)
        peer.send(postgres_asks(OK) + READY)
        peer.read_postgres()
        peer.send(rows)
        peer.read_postgres()

    return script


@pytest.mark.parametrize("row", [b"\0\1\0\0\0", b"\0\1\0\0\0\1\xff"])
def test_a_row_that_makes_no_sense_is_an_error_of_the_server(row):
    with rogue(answering(postgres_message(b"D", row) + READY)) as server:
        connection = Connection(parse_address(f"postgresql://cdc@127.0.0.1:{server.port}/shop"))
        with connection, pytest.raises(PenstockError, match="DECODE_FAILED"):
            connection.query("SELECT 1")


def test_frames_longer_than_can_be_are_refused_before_their_bytes_are_waited_for():
    head = b"d\xff\xff\xff\xff" + b"w" + bytes(40)
    buffer = ScanBuffer(1 << 10, 4, "db")
    buffer.append(head)
    with pytest.raises(PenstockError, match="DECODE_FAILED"):
        buffer.scan()
    assert stream_end(np.frombuffer(head, dtype=np.uint8), 0, len(head))[0] == BAD
    copied = postgres_message(b"H", b"\0\0\0") + b"d\x7f\xff\xff\xff" + READY
    with rogue(answering(copied)) as server:
        connection = Connection(parse_address(f"postgresql://cdc@127.0.0.1:{server.port}/shop"))
        with connection, pytest.raises(PenstockError, match="DECODE_FAILED"):
            next(read_copy(connection, "COPY t TO STDOUT", 1, 10))


def floods(message):
    def script(peer):
        begin(peer)
        while not peer.wait_gone(0.0):
            peer.send(message * 100)

    return script


def test_a_login_without_an_end_is_not_held():
    for message in (postgres_message(b"N", b"SNOTICE\0Mx\0\0"), postgres_message(b"S", b"p\0" + b"v" * 10_000 + b"\0")):
        assert refused(floods(message))[0].code == "DECODE_FAILED"


def test_a_login_that_trickles_ends():
    clock = SimulatedClock()
    bounds = Bounds(100.0, clock=clock)
    assert bounds.wait_s() == 100.0
    clock.advance(550)
    assert bounds.wait_s() == pytest.approx(50.0)
    with rogue(lambda peer: (begin(peer), peer.send(b"R"), clock.advance(50), peer.send(b"\0"))) as server:
        address = parse_address(f"postgresql://cdc@127.0.0.1:{server.port}/shop")
        with pytest.raises(PenstockError, match="the login took too long"):
            Connection(address, bounds=bounds)
    bounds.enter()
    assert bounds.wait_s() is None


@pytest.mark.parametrize(
    "message", [postgres_message(b"D", b"\0\1\0\0\0\1x"), postgres_message(b"N", b"Mx\0\0"), postgres_message(b"E", b"Mx\0\0")]
)
def test_an_answer_without_an_end_is_not_held(message):
    def script(peer):
        begin(peer)
        peer.send(postgres_asks(OK) + READY)
        peer.read_postgres()
        while not peer.wait_gone(0.0):
            peer.send(message * 1000)

    with rogue(script) as server:
        connection = Connection(parse_address(f"postgresql://cdc@127.0.0.1:{server.port}/shop"), bounds=Bounds(60.0, 1 << 17))
        with connection, pytest.raises(PenstockError, match="DECODE_FAILED"):
            connection.query("SELECT 1")


def test_what_a_server_says_is_repeated_in_part():
    said = postgres_message(b"E", b"C57P01\0M" + b"x" * 100_000 + b"\0H" + b"y" * 100_000 + b"\0\0")
    with rogue(answering(said + READY)) as server:
        connection = Connection(parse_address(f"postgresql://cdc@127.0.0.1:{server.port}/shop"))
        with connection, pytest.raises(PenstockError) as wrong:
            connection.query("SELECT 1")
    assert wrong.value.code == "UPSTREAM_UNREACHABLE"
    assert wrong.value.detail.endswith(": " + "x" * 2_000 + " (SQLSTATE 57P01)")
    assert wrong.value.hint == "y" * 2_000
