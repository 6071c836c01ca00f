"""Avro against fastavro, through a registry that looks at compatibility."""

import io
import itertools
import struct
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.kafka.encode.avro_rows import AvroRows, key_schema, value_schema
from penstock.sink.kafka.encode.registry import SchemaRegistry
from testing.servers.kafka.registry import Registry, schema_registry

COLUMNS = (
    Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),
    Column(2, "tiny", ColumnType(TypeKind.TINYINT)),
    Column(3, "unsigned small", ColumnType(TypeKind.SMALLINT, unsigned=True)),
    Column(4, "huge", ColumnType(TypeKind.BIGINT, unsigned=True)),
    Column(5, "f", ColumnType(TypeKind.FLOAT)),
    Column(6, "d", ColumnType(TypeKind.DOUBLE)),
    Column(7, "price", ColumnType(TypeKind.DECIMAL, length=65, scale=30)),
    Column(8, "2text", ColumnType(TypeKind.TEXT)),
    Column(9, "raw", ColumnType(TypeKind.BLOB)),
    Column(10, "colour", ColumnType(TypeKind.ENUM, elems=("red", "blue"))),
)
TABLE = TableSchema(7, "shop", "things", 5, COLUMNS)


def rows() -> pa.RecordBatch:
    values: list[list[Any]] = [
        [1, -(2**63), 2**63 - 1, -1, 0],
        [None, -128, 127, 0, 1],
        [65535, None, 0, 1, 2],
        [2**64 - 1, 0, None, 1, 2],
        [1.5, None, float("inf"), -0.0, 3.25],
        [1e300, 5e-324, None, 0.1, -1.0],
        ["1.000000000000000000000000000001", None, "-5", "0", "9"],
        ["", "ü" * 3000, None, "\0\n", "x"],
        [b"", b"\xff\0\n", None, b"a", b"b" * 200],
        [1, 2, None, 1, 2],
    ]
    columns = [pa.array(v, c.type.arrow()) for v, c in zip(values, COLUMNS, strict=True)]
    meta = [pa.array([10, 11, 2**62, 13, 14], pa.uint64()), pa.array([0, 1, 2, 0, 1], pa.uint8())]
    return pa.RecordBatch.from_arrays([*meta, *columns], names=["_ts", "_op", *(c.field_name for c in COLUMNS)])


def decoded(registry: Registry, message: bytes) -> dict[str, Any]:
    magic, schema_id = struct.unpack(">bI", message[:5])
    assert magic == 0
    stream = io.BytesIO(message[5:])
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(registry.schema(schema_id)), None)
    assert not stream.read(), "nothing is left over"
    assert isinstance(found, dict)
    return found


def pieces(encoder: AvroRows, records: pa.RecordBatch) -> list[bytes]:
    data, offsets = encoder.encode(records)
    return [data[low:high].tobytes() for low, high in itertools.pairwise(offsets)]


def test_every_type_reads_back_with_fastavro() -> None:
    with schema_registry() as registry:
        client = SchemaRegistry(registry.url, "", 30)
        encoder = AvroRows(COLUMNS, client.schema_id("t-value", value_schema(TABLE)), is_key=False)
        records = rows()
        found = [decoded(registry, piece) for piece in pieces(encoder, records.slice(1))]
        frame = pl.DataFrame(records).slice(1)
        names = ["id", "tiny", "unsigned_x20_small", "huge", "f", "d", "price", "_x32_text", "raw", "colour"]
        for row, (values, ts, op) in enumerate(zip(frame.drop("_ts", "_op").rows(), frame["_ts"], frame["_op"], strict=True)):
            wanted: dict[str, Any] = dict(zip(names, values, strict=True))
            wanted["huge"] = None if wanted["huge"] is None else str(wanted["huge"])
            wanted["colour"] = None if wanted["colour"] is None else {1: "red", 2: "blue"}[wanted["colour"]]
            assert found[row] == wanted | {"_op": {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d"}[op], "_commit_ts": ts}
        keys = AvroRows(TABLE.handle_columns, client.schema_id("t-key", key_schema(TABLE)), is_key=True)
        assert [decoded(registry, piece) for piece in pieces(keys, records)] == [{"id": i} for i in [1, -(2**63), 2**63 - 1, -1, 0]]
        assert client.schema_id("t-value", value_schema(TABLE)) == 1


def test_odd_columns_keep_names_and_values_apart() -> None:
    """Names that look like what others become, and like the fields that are no columns."""
    names = ["id", "_op", "_commit_ts", "a-b", "a_x2d_b", "1st", "_1st", "_x31_st", "_x5f_op", "Op", "é", "_xe9_", "_op_", "a b.c"]
    columns = tuple(Column(at, name, ColumnType(TypeKind.BIGINT), at > 0, at == 0) for at, name in enumerate(names))
    table = TableSchema(7, "sh-op", "sh_x2d_op", 5, columns)
    arrays = [pa.array([6], pa.uint64()), pa.array([int(Op.UPDATE)], pa.uint8()), *(pa.array([at]) for at in range(len(names)))]
    records = pa.RecordBatch.from_arrays(arrays, names=["_ts", "_op", *(c.field_name for c in columns)])
    with schema_registry() as registry:
        encoder = AvroRows(columns, SchemaRegistry(registry.url, "", 30).schema_id("t", value_schema(table)), is_key=False)
        found = decoded(registry, pieces(encoder, records)[0])
        told = {one.get("doc", one["name"]): found[one["name"]] for one in registry.schema(1)["fields"][: len(names)]}
    assert told == {name: at for at, name in enumerate(names)}
    assert (found["_op"], found["_commit_ts"], len(found)) == ("u", 6, len(names) + 2)


def test_tables_change_as_the_registry_allows() -> None:
    with schema_registry() as registry:
        registry.user = "me:secret"
        url = registry.url.replace("http://", "http://me:secret@")
        client = SchemaRegistry(url, "", 30)
        first = client.schema_id("t", value_schema(TABLE))
        fewer = TableSchema(7, "shop", "things", 6, COLUMNS[:4])
        more = TableSchema(7, "shop", "things", 7, (*COLUMNS[:4], Column(20, "new", ColumnType(TypeKind.INT))))
        assert [first, client.schema_id("t", value_schema(fewer)), client.schema_id("t", value_schema(more))] == [1, 2, 3]
        other = TableSchema(7, "shop", "things", 8, (COLUMNS[0], Column(21, "tiny", ColumnType(TypeKind.BLOB))))
        with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*409") as caught:
            client.schema_id("t", value_schema(other))
        assert "secret" not in str(caught.value)
        registry.fails = 1
        with pytest.raises(PenstockError, match=r"SINK_UNAVAILABLE.*503"):
            client.schema_id("u", value_schema(TABLE))
        assert client.schema_id("u", value_schema(TABLE)) == 1
        with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*401"):
            SchemaRegistry(registry.url, "", 30).schema_id("t", value_schema(TABLE))
    with pytest.raises(PenstockError, match="SINK_UNAVAILABLE"):
        SchemaRegistry(url, "", 5).schema_id("t", "x")
