"""Events that Python reads: written by hand as the protocol has them, and damaged ones."""

import struct

import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire.log_events import parse_format, parse_payload, parse_query, parse_rotate, parse_xa_prepare, parse_xid


def query(text: bytes, schema: bytes = b"shop", error: int = 0, status: bytes = b"") -> bytes:
    return struct.pack("<IIBHH", 1, 0, len(schema), error, len(status)) + status + schema + b"\0" + text


def event(content: bytes) -> bytes:
    return struct.pack("<IBIIIH", 0, 2, 1, wire.HEADER_BYTES + len(content), 77, 0) + content


def test_statements() -> None:
    found = parse_query(query(b"DROP TABLE t"))
    assert (found.schema, found.text, found.failed) == ("shop", "DROP TABLE t", False)
    assert parse_query(query(b"DROP TABLE t", error=1051)).failed
    ansi = b"\x01" + (4).to_bytes(8, "little")
    assert parse_query(query(b'DROP TABLE "a`b"', status=ansi)).text == "DROP TABLE `a``b`", "a name in double quotes"
    with pytest.raises(PenstockError) as caught:
        parse_query(query(b"")[:-2])
    assert caught.value.code == "DECODE_FAILED"


@pytest.mark.parametrize("charset", ["latin1", "gbk", "utf8mb4", "binary", "unheard_of"])
def test_a_statement_is_read_in_the_charset_of_its_session(charset: str) -> None:
    # The letter of the second name ends with the byte of a backslash.
    text = "ALTER TABLE `t誘` ADD `運` INT" if charset == "gbk" else "DROP TABLE `té`"
    codec = {"latin1": "cp1252", "gbk": "gbk"}.get(charset, "utf-8")
    session = b"\0" + bytes(4) + b"\x01" + bytes(8) + b"\x06\x03std" + b"\x03" + bytes(4) + b"\x04" + struct.pack("<HHH", 77, 1, 2)
    found = parse_query(query(text.encode(codec), status=session + b"\x05\x06SYSTEM"), charset_of={77: charset}.__getitem__)
    assert found.text == text
    assert parse_query(query(b"BEGIN", status=session), charset_of={}.__getitem__).text == "BEGIN", "nobody is asked about ASCII"


def test_a_new_file() -> None:
    assert parse_rotate((4).to_bytes(8, "little") + b"bin.000002\0") == ("bin.000002", 4)
    with pytest.raises(PenstockError):
        parse_rotate(b"\0" * 8)


@pytest.mark.parametrize(("algorithm", "nbytes"), [(0, 0), (1, 4)])
def test_how_long_checksums_are(algorithm: int, nbytes: int) -> None:
    body = bytearray(57 + 5)
    body[56], body[-5] = wire.HEADER_BYTES, algorithm
    assert parse_format(bytes(body)) == nbytes
    with pytest.raises(PenstockError, match="not supported"):
        parse_format(bytes(57 + 5))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_compressed_transaction(compressed: bool) -> None:
    events = event(b"one") + event(b"two!")
    packed = pa.Codec("zstd").compress(events, asbytes=True) if compressed else events
    size = struct.pack("<BH", 252, len(events))
    head = bytes([2, 1, 0 if compressed else 255]) if compressed else bytes([2, 3]) + b"\xfc\xff\x00"
    body = head + bytes([3, len(size)]) + size + b"\0" + packed
    last = len(event(b"one"))
    found = parse_payload(body, b"\x01\x02\x03\x04")
    assert found == events[: last + 13] + b"\x01\x02\x03\x04" + events[last + 17 :]
    with pytest.raises(PenstockError):
        parse_payload(body[: -len(packed) + 2], b"\0\0\0\0")


def test_names_of_xa_transactions() -> None:
    body = struct.pack("<BiII", 1, 7, 2, 3) + b"ggbbb"
    assert parse_xa_prepare(body) == ((b"gg", b"bbb", 7), True)
    assert parse_xid("XA COMMIT X'6767',X'626262',7") == (b"gg", b"bbb", 7)
    for damaged in (body[:12], body[:-1]):
        with pytest.raises(PenstockError):
            parse_xa_prepare(damaged)
    with pytest.raises(PenstockError):
        parse_xid("XA COMMIT 'gg'")
