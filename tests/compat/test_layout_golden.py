"""A target written once and kept: every byte that the storage layout promises, per dialect.

A change that breaks this breaks readers. To add a dialect, add its name and options to ``DIALECTS``, run this file as a script once, and
look at what it wrote before committing it.
"""

import datetime as dt
import json
import tempfile
from pathlib import Path
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pytest

from penstock.format.column_selection import select_columns
from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.reader import StorageReader
from penstock.readback.replay import replay_table
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.sink import StorageSink
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget

GOLDEN = Path(__file__).parent / "golden"
SELECTORS = quote(json.dumps([{"matcher": ["schema1.*"], "columns": ["*", "!col_*text", "!col_blob"]}]))
DIALECTS = {
    "storage-csv/default": "",
    "storage-csv/plain": "csv.include-commit-ts=false&csv.terminator=%5Cn&date-separator=none&file-index-width=6",
    "storage-csv/old-values": "csv.output-old-value=true&csv.output-field-header=true&date-separator=month",
    "storage-csv/escape-mode": "csv.quote=&csv.delimiter=%7C%7C&csv.binary-encoding-method=hex&date-separator=year&output-column-id=true",
    "storage-csv/other-marks": "csv.quote=%27&csv.delimiter=%09&csv.null=NULL&csv.terminator=%0A%0A&output-old-value=true",
    "storage-csv/selected": f"column-selectors={SELECTORS}&transaction-atomicity=table&enable-partition-separator=false",
    "storage-csv/transactions": "transaction-atomicity=transaction",
    "storage-csv/zstd": "compression=zstd",
    "storage-canal-json/default": "protocol=canal-json",
    "storage-canal-json/bare": "protocol=canal-json&enable-tidb-extension=false&compression=lz4",
    "storage-canal-json/compatible": "protocol=canal-json&content-compatible=true&output-row-key=true&terminator=%5Cn&date-separator=none",
    "storage-canal-json/narrow": "protocol=canal-json&delete-only-output-handle-key-columns=true&only-output-updated-columns=true",
    "storage-debezium/default": "protocol=debezium",
    "storage-debezium/gzip": "protocol=debezium&compression=gzip&date-separator=none",
    "storage-debezium/transactions": "protocol=debezium&transaction-atomicity=transaction",
    "storage-debezium/bare": "protocol=debezium&debezium.output-old-value=false&debezium.terminator=%0D%0A",
    "storage-parquet/default": "protocol=parquet",
    "storage-parquet/text": "protocol=parquet&parquet.codec=zstd&parquet.temporal-as-text=true&parquet.output-old-value=false",
}
TYPES = {
    "types-csv/default": "",
    "types-csv/raw": "output-raw-change-event=true&output-old-value=true&csv.binary-encoding-method=hex",
    "types-canal-json/default": "protocol=canal-json",
    "types-canal-json/compatible": "protocol=canal-json&content-compatible=true",
    "types-debezium/default": "protocol=debezium",
    "types-parquet/default": "protocol=parquet",
}
# The bytes of these follow the version of a library; that older files are still read is what counts.
BYTES_VARY = (".parquet", ".gz", ".zst", ".lz4")
T0 = 441349361156227074
ALL_KINDS = tuple(
    Column(10 + at, f"col_{kind.value.lower()}", ColumnType(kind, elems=("a", "b", "c") if kind in {TypeKind.ENUM, TypeKind.SET} else ()))
    for at, kind in enumerate(TypeKind)
)
FIRST = TableSchema(7, "schema1", "table1", T0, (Column(1, "Id", ColumnType(TypeKind.INT, length=11), False, True), *ALL_KINDS))
SECOND = TableSchema(
    7, "schema1", "table1", T0 + 1000, (*FIRST.columns, Column(90, "OfficeLocation", ColumnType(TypeKind.BLOB, length=20)))
)
SAMPLES = {
    TypeKind.DECIMAL: "129012.1230000",
    TypeKind.DATE: "2000-01-01",
    TypeKind.DATETIME: "1973-12-30 15:30:00",
    TypeKind.TIMESTAMP: "1973-12-30 15:30:00",
    TypeKind.TIME: "-23:59:59",
    TypeKind.JSON: '{"a": [1, "x|y"]}',
    TypeKind.VECTOR: "[1,2.5]",
    TypeKind.YEAR: 1970,
    TypeKind.BIT: 81,
    TypeKind.ENUM: 1,
    TypeKind.SET: 3,
    TypeKind.FLOAT: 1e6,
    TypeKind.DOUBLE: 153.123,
}


K = TypeKind
WIDE = TableSchema(
    9,
    "schema1",
    "types",
    T0,
    (
        Column(1, "id", ColumnType(K.BIGINT, unsigned=True, length=20), False, True),
        Column(2, "mail", ColumnType(K.VARCHAR, length=40), False),
        Column(3, "t1", ColumnType(K.TINYINT, length=1), default="1"),
        Column(4, "t2", ColumnType(K.TINYINT, unsigned=True)),
        Column(5, "s1", ColumnType(K.SMALLINT, unsigned=True, zerofill=True, length=5)),
        Column(6, "m1", ColumnType(K.MEDIUMINT, unsigned=True)),
        Column(7, "i1", ColumnType(K.INT, unsigned=True)),
        Column(8, "d1", ColumnType(K.DECIMAL, length=65, scale=30)),
        Column(9, "d2", ColumnType(K.DECIMAL, unsigned=True, zerofill=True, length=10, scale=0), default="0"),
        Column(10, "f1", ColumnType(K.FLOAT, length=7, scale=3)),
        Column(11, "f2", ColumnType(K.DOUBLE)),
        Column(12, "b1", ColumnType(K.BIT, length=64)),
        Column(13, "y1", ColumnType(K.YEAR, length=4)),
        Column(14, "dt", ColumnType(K.DATETIME, scale=6)),
        Column(15, "ts", ColumnType(K.TIMESTAMP, scale=3), False, default="CURRENT_TIMESTAMP(3)"),
        Column(16, "tm", ColumnType(K.TIME, scale=2)),
        Column(17, "en", ColumnType(K.ENUM, elems=("it's", "b")), default="it's"),
        Column(18, "se", ColumnType(K.SET, elems=tuple(f"e{n}" for n in range(64)))),
        Column(19, "bi", ColumnType(K.BINARY, length=3)),
        Column(20, "ge", ColumnType(K.GEOMETRY)),
        Column(21, "js", ColumnType(K.JSON)),
        Column(22, "stored", ColumnType(K.INT), generated="STORED"),
        Column(23, "virtual", ColumnType(K.INT), generated="VIRTUAL"),
    ),
    unique_keys=((2,), (7, 3)),
)
LEAST = (0, "", -128, 0, 0, 0, 0, "-" + "9" * 35 + "." + "9" * 30, "0", -1.5, 5e-324, 0, 0, "0000-00-00 00:00:00.000000")
LEAST += ("1970-01-01 00:00:01.000", "-838:59:59.00", 0, 0, b"\x00\xff\x80", b"", "{}", -1, -1)
MOST = (2**64 - 1, "a@b", 127, 255, 65535, 2**24 - 1, 2**32 - 1, "9" * 35 + "." + "9" * 30, "9999999999", 1e6, 1.7976931348623157e308)
MOST += (2**64 - 1, 2155, "9999-12-31 23:59:59.999999", "2038-01-19 03:14:07.999", "838:59:59.99", 2, 2**64 - 1, b"abc", b"\x01")
MOST += ('{"a": [1.0, "\u00e9<"]}', 1, 1)


def sample(kind: TypeKind, dtype: pa.DataType) -> object:
    if kind in SAMPLES:
        return SAMPLES[kind]
    if pa.types.is_binary(dtype):
        return "阿斯".encode()
    return -7 if pa.types.is_integer(dtype) else 'quote " back\\slash, || \r\n😀 \\N'


def batch(table: TableSchema, changes: list[tuple[int, Op, int, bool]]) -> pa.RecordBatch:
    made = []
    for ts, op, key, filled in changes:
        row: dict[str, object] = {"_ts": ts, "_op": int(op), "_key": b"%d" % key, "c1": key}
        for column in table.columns[1:]:
            row[column.field_name] = sample(column.type.kind, column.type.arrow()) if filled else None
        made.append(row)
    return pa.RecordBatch.from_pylist(made, schema=table.batch_schema())


def write(directory: Path, query: str) -> None:
    uri, settings = from_uri(f"file://{directory}?{query}")
    target = ObjectTarget.open(uri)
    maintainer = StorageMaintainer(target, settings)
    maintainer.write_block_event(DdlEvent(T0 - 74, DdlType.CREATE_SCHEMA, "CREATE DATABASE `schema1`", "schema1"))
    sink = StorageSink(target, settings)
    results: list[DispatcherResult] = []
    for dispatcher in (DispatcherId(7), DispatcherId(7, 1, 2)):
        sink.open_dispatcher(DispatcherWork(dispatcher, FIRST, T0, T0 + 10**15))
        base = 100 * dispatcher.span
        before = [(T0 + 3, Op.BEFORE, base + 1, True)] if settings.needs_old_values else []
        changes = [(T0 + 1, Op.INSERT, base + 1, True), (T0 + 2, Op.INSERT, base + 2, False), *before, (T0 + 3, Op.UPDATE, base + 1, False)]
        sink.add_dml_event(DmlEvent(dispatcher, FIRST, batch(FIRST, changes)))
        ddl = DdlEvent(T0 + 1000, DdlType.ADD_COLUMN, "ALTER TABLE schema1.table1 ADD OfficeLocation blob(20)", "schema1", (SECOND,))
        sink.pass_block_event(dispatcher, ddl)
        maintainer.write_block_event(ddl)
        next_day = T0 + (86_400_000 << 18)
        sink.add_dml_event(
            DmlEvent(dispatcher, SECOND, batch(SECOND, [(T0 + 1001, Op.DELETE, base + 2, False), (next_day, Op.INSERT, base + 3, True)]))
        )
        results.append(sink.close_dispatcher(dispatcher))
    sink.close()
    if settings.indexes_transactions:
        maintainer.record_window(T0, T0 + 10**15, results)
    maintainer.publish_checkpoint(T0 + 10**15)


def write_types(directory: Path, query: str) -> None:
    uri, settings = from_uri(f"file://{directory}?{query}")
    target = ObjectTarget.open(uri)
    maintainer = StorageMaintainer(target, settings)
    maintainer.write_block_event(DdlEvent(T0, DdlType.CREATE_TABLE, "CREATE TABLE types (...)", "schema1", (WIDE,)))
    moved = (LEAST[0], "another", *LEAST[2:])
    rows = [(1, Op.INSERT, LEAST), (2, Op.INSERT, MOST), (3, Op.BEFORE, LEAST), (3, Op.UPDATE, moved)]
    rows += [(4, Op.BEFORE, MOST), (4, Op.UPDATE, (*MOST[:10], None, *MOST[11:]))]
    schema = WIDE.batch_schema()
    made = [(T0 + at, int(op), b"%d" % row[0], *row) for at, op, row in rows]
    records = pa.RecordBatch.from_arrays([pa.array([r[at] for r in made], f.type) for at, f in enumerate(schema)], schema=schema)
    sink = StorageSink(target, settings)
    sink.open_dispatcher(DispatcherWork(DispatcherId(9), WIDE, T0, T0 + 10**6))
    sink.add_dml_event(DmlEvent(DispatcherId(9), WIDE, records))
    sink.close_dispatcher(DispatcherId(9))
    sink.close()
    maintainer.publish_checkpoint(T0 + 10**6)


def tree(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("dialect", [*DIALECTS, *TYPES])
def test_every_byte_is_as_it_was(dialect: str, tmp_path: Path) -> None:
    if dialect in TYPES:
        write_types(tmp_path / "target", TYPES[dialect])
    else:
        write(tmp_path / "target", DIALECTS[dialect])
    found, kept = tree(tmp_path / "target"), tree(GOLDEN / dialect)
    assert sorted(found) == sorted(kept)
    for path, content in found.items():
        assert path.endswith(BYTES_VARY) or content == kept[path], path


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_was_written_is_still_read(dialect: str) -> None:
    uri, settings = from_uri(f"file://{GOLDEN / dialect}?{DIALECTS[dialect]}")
    rows = replay_table(StorageReader(ObjectTarget.open(uri), settings), "schema1", "table1").sort("Id").rows(named=True)
    assert [r["Id"] for r in rows] == [1, 3, 101, 103]
    kept = select_columns(SECOND, settings.column_selectors).columns[1:]
    expected = {c.name: sample(c.type.kind, c.type.arrow()) for c in kept}
    assert {k: v for k, v in rows[1].items() if k != "Id"} == expected
    assert set(rows[0].values()) == {1, None}


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name.endswith("/transactions")])
def test_transactions_are_still_found(dialect: str) -> None:
    uri, settings = from_uri(f"file://{GOLDEN / dialect}?{DIALECTS[dialect]}")
    (window,) = StorageReader(ObjectTarget.open(uri), settings).transaction_windows(0)
    moments = [T0 + 1, T0 + 2, T0 + 3, T0 + 1001, T0 + (86_400_000 << 18)]
    assert window.transactions().rows() == [(ts, 2) for ts in moments]
    assert (window.from_ts, window.to_ts, len(window.files)) == (T0, T0 + 10**15, 6)


@pytest.mark.parametrize("dialect", TYPES)
def test_every_type_with_its_options_is_still_read(dialect: str) -> None:
    uri, settings = from_uri(f"file://{GOLDEN / dialect}?{TYPES[dialect]}")
    rows = replay_table(StorageReader(ObjectTarget.open(uri), settings), "schema1", "types").sort("id").rows()
    # A virtual column's values are in no file.
    assert rows == [(LEAST[0], "another", *LEAST[2:-1], None), (*MOST[:10], None, *MOST[11:-1], None)]


def test_duckdb_reads_parquet_with_plain_settings() -> None:
    files = f"{GOLDEN}/storage-parquet/default/schema1/table1/{FIRST.version}/*/CDC*.parquet"
    query = "SELECT _op, _commit_ts, Id, col_date, col_blob, _old, _old_col_set FROM read_parquet(?) ORDER BY Id, _commit_ts"
    found = duckdb.connect().execute(query, [files]).fetchall()
    filled = (dt.date(2000, 1, 1), "阿斯".encode())
    expected = []
    for base in (0, 100):
        expected += [
            ("I", T0 + 1, base + 1, *filled, False, None),
            ("U", T0 + 3, base + 1, None, None, True, "a,b"),
            ("I", T0 + 2, base + 2, None, None, False, None),
        ]
    assert found == expected


def test_duckdb_reads_json_lines() -> None:
    files = f"{GOLDEN}/storage-debezium/default/schema1/table1/{FIRST.version}/*/CDC*.json"
    query = "SELECT op, source.commit_ts, after.Id, after.col_varchar FROM read_json(?, format='newline_delimited') ORDER BY 3, 2"
    found = duckdb.connect().execute(query, [files]).fetchall()
    filled = sample(TypeKind.VARCHAR, pa.string())
    assert found[:3] == [("c", T0 + 1, 1, filled), ("u", T0 + 3, 1, None), ("c", T0 + 2, 2, None)]


def test_duckdb_reads_the_default_dialect_with_plain_settings() -> None:
    files = f"{GOLDEN}/storage-csv/default/schema1/table1/{FIRST.version}/*/CDC*.csv"
    names = ["op", "table", "schema", "ts", *(c.name for c in FIRST.columns)]
    query = "SELECT op, ts, Id, col_varchar, col_double, col_set FROM read_csv(?, header=false, nullstr=?, names=?) ORDER BY Id, ts"
    found = duckdb.connect().execute(query, [files, "\\N", names]).fetchall()
    filled = (sample(TypeKind.VARCHAR, pa.string()), 153.123, "a,b")
    expected = []
    for base in (0, 100):
        expected += [("I", T0 + 1, base + 1, *filled), ("U", T0 + 3, base + 1, None, None, None), ("I", T0 + 2, base + 2, None, None, None)]
    assert found == expected


if __name__ == "__main__":
    for name, options in (DIALECTS | TYPES).items():
        if (GOLDEN / name).exists():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            (write_types if name in TYPES else write)(Path(scratch) / "t", options)
            for path, content in tree(Path(scratch) / "t").items():
                kept = GOLDEN / name / path
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(content)
