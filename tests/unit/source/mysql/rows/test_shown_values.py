"""UUIDs, addresses, vectors and compressed values of the log as the server shows them; malformed ones are errors."""

from __future__ import annotations

import ipaddress
import random
import uuid
import zlib

import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.rows.shown_values import shown
from penstock.source.mysql.tables.columns import column_type, layout_of
from penstock.source.mysql.tables.ddl_columns import altered_columns, created_columns
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire.tablemap import MapColumn, TableMap


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def addresses(size: int) -> list[bytes]:
    """Return values with runs of zeros in every place, and random ones."""
    rng = random.Random(7)
    found = [bytes(rng.choice((0, 0, 255, rng.randrange(256))) for _ in range(size)) for _ in range(500)]
    return [*found, bytes(size), b"\xff" * size, b"\0" * (size - 1) + b"\1"]


def test_uuids_and_addresses_are_written_as_everybody_writes_them() -> None:
    six, four = addresses(16), addresses(4)
    assert shown(binary(None, *six), wire.F_UUID, "c").to_pylist() == [None, *(str(uuid.UUID(bytes=v)) for v in six)]
    assert shown(binary(*four, None), wire.F_INET4, "c").to_pylist() == [*(str(ipaddress.IPv4Address(v)) for v in four), None]
    texts = shown(binary(*six).slice(3), wire.F_INET6, "c").to_pylist()
    assert [ipaddress.IPv6Address(t).packed for t in texts] == six[3:]
    assert all("::" in t for t, v in zip(texts, six[3:], strict=True) if b"\0\0\0\0" in {v[i : i + 4] for i in range(0, 16, 2)})


def test_compressed_values_are_inflated() -> None:
    plain = b"again and again " * 40
    raw = zlib.compressobj(wbits=-15)
    stream = raw.compress(plain) + raw.flush()
    size = len(plain).to_bytes(2, "big")
    found = shown(
        binary(b"", b"\0", b"\0plain", b"\x82" + size + zlib.compress(plain), b"\x8a" + size + stream, None), wire.F_COMPRESSED, "c"
    )
    assert found.to_pylist() == [b"", b"", b"plain", plain, plain, None]


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (wire.F_UUID, b"short"),
        (wire.F_INET4, b"12345"),
        (wire.F_VECTOR, b"12345"),
        (wire.F_COMPRESSED, b"\x81"),
        (wire.F_COMPRESSED, b"\x10\1\1"),
        (wire.F_COMPRESSED, b"\x81\x05no zlib"),
        (wire.F_COMPRESSED, b"\x81\x09" + zlib.compress(b"too few")),
        (wire.F_COMPRESSED, b"\x84\xff\xff\xff\xff" + zlib.compress(b"a claim")),
    ],
)
def test_what_no_server_writes_is_an_error(form: int, value: bytes) -> None:
    with pytest.raises(PenstockError) as wrong:
        shown(binary(value), form, "c")
    assert wrong.value.code == "DECODE_FAILED"


def test_a_vector_of_mariadb_stands_in_the_log_as_varbinary() -> None:
    table = TableSchema(1, "s", "t", 1, (Column(1, "v", column_type("vector(3)")), Column(2, "u", column_type("uuid"))))
    mapped = TableMap("s", "t", (MapColumn(wire.TYPE_VARCHAR, 12, True), MapColumn(wire.TYPE_STRING, 254 | 16 << 8, True)))
    layout = layout_of(table, mapped)
    assert layout is not None
    assert layout.forms == (wire.F_VECTOR, wire.F_UUID)
    # A CHAR(36) that is no UUID has at least as many bytes as characters.
    plain = layout_of(table, TableMap("s", "t", (mapped.columns[0], MapColumn(wire.TYPE_STRING, 254 | 36 << 8, True))))
    assert plain is not None
    assert plain.forms == (wire.F_VECTOR, wire.F_PLAIN)


def test_statements_with_types_of_mariadb_tell_the_columns() -> None:
    text = "CREATE TABLE t (inet6 INET6 PRIMARY KEY, u UUID NOT NULL, d VARCHAR(9) COMPRESSED, e TEXT COMPRESSED=zlib, f VECTOR(3))"
    made = created_columns(text)
    assert made is not None
    types = [c.type for c in made]
    assert types == [column_type(t) for t in ("inet6", "uuid", "varchar(9) /*M!100301 COMPRESSED*/", "text", "vector(3)")]
    assert [c.name for c in made] == ["inet6", "u", "d", "e", "f"]
    changed = altered_columns(made, "ALTER TABLE t ADD COLUMN inet4 INET4, MODIFY d VARCHAR(20) COMPRESSED")
    assert changed is not None
    assert changed[-1].type == ColumnType(TypeKind.CHAR, length=15)
    assert changed[2].type.length == 20
