"""A target written once and kept: every byte that the storage layout promises, per dialect.

A change that breaks this breaks readers. To add a dialect, add its name and options to ``DIALECTS``, run this file as a script once, and
look at what it wrote before committing it.
"""

import datetime as dt
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.reader import StorageReader
from penstock.sink.storage.replay import replay_table
from penstock.sink.storage.settings import from_uri
from penstock.sink.storage.sink import StorageSink
from penstock.sink.storage.target import ObjectTarget

GOLDEN = Path(__file__).parent / "golden"
DIALECTS = {
    "storage-csv/default": "",
    "storage-csv/plain": "csv.include-commit-ts=false&csv.terminator=%5Cn&date-separator=none&file-index-width=6",
    "storage-csv/old-values": "csv.output-old-value=true&csv.output-field-header=true&date-separator=month",
    "storage-csv/escape-mode": "csv.quote=&csv.delimiter=%7C%7C&csv.binary-encoding-method=hex&date-separator=year&output-column-id=true",
    "storage-canal-json/default": "protocol=canal-json",
    "storage-canal-json/compatible": "protocol=canal-json&content-compatible=true&output-row-key=true&terminator=%5Cn&date-separator=none",
    "storage-canal-json/narrow": "protocol=canal-json&delete-only-output-handle-key-columns=true&only-output-updated-columns=true",
    "storage-debezium/default": "protocol=debezium",
    "storage-debezium/gzip": "protocol=debezium&compression=gzip&date-separator=none",
    "storage-parquet/default": "protocol=parquet",
}
# The bytes of these follow the version of a library; that older files are still read is what counts.
BYTES_VARY = (".parquet", ".gz")
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
        sink.close_dispatcher(dispatcher)
    sink.close()
    maintainer.publish_checkpoint(T0 + 10**15)


def tree(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_byte_is_as_it_was(dialect: str, tmp_path: Path) -> None:
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
    expected = {c.name: sample(c.type.kind, c.type.arrow()) for c in SECOND.columns[1:]}
    assert {k: v for k, v in rows[1].items() if k != "Id"} == expected
    assert set(rows[0].values()) == {1, None}


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
    for name, options in DIALECTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            write(Path(scratch) / "t", options)
            for path, content in tree(Path(scratch) / "t").items():
                kept = GOLDEN / name / path
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(content)
