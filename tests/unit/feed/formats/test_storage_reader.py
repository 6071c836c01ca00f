"""The format ``penstock-storage`` without a JVM: what is planned in the driver, and what tasks yield."""

import itertools
from collections.abc import Sequence

import pytest
from pyspark.sql.datasource import InputPartition

from penstock.feed.formats.storage_reader import AT, ROW, StorageBatchReader, StorageSource, StorageStreamReader
from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from testing.paths.storage_lab import StorageLab

T0 = compose_ts(1_700_000_000_000)
ID = Column(1, "id", ColumnType(TypeKind.BIGINT), False, True)
NAME = Column(2, "name", ColumnType(TypeKind.VARCHAR, length=40))
SEEN = Column(3, "seen", ColumnType(TypeKind.DATE))
FIRST = TableSchema(1, "s", "t", T0, (ID, NAME))
SECOND = TableSchema(1, "s", "t", T0 + 10, (ID, NAME, SEEN))
_numbers = itertools.count()


def lab() -> StorageLab:
    made = StorageLab(f"memory://source-{next(_numbers)}/")
    made.maintainer.claim("lab")
    made.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", FIRST)
    made.write(FIRST, [(T0 + 1, Op.INSERT, 1, "a"), (T0 + 2, Op.INSERT, 2, "b")])
    made.write(FIRST, [(T0 + 3, Op.DELETE, 1, "a"), (T0 + 4, Op.UPDATE, 2, "b2")])
    made.checkpoint(T0 + 5)
    return made


def batch(source: StorageLab, **options: str) -> tuple[list[list[tuple[object, ...]]], list[str]]:
    """Return the rows of each task of a batch query, and the columns."""
    made = StorageSource({"path": source.uri, "table": "s.t", **{k.replace("_", "-"): v for k, v in options.items()}})
    schema = made.schema()
    reader = made.reader(schema)
    assert isinstance(reader, StorageBatchReader)
    return [rows_of(reader, part) for part in reader.partitions()], schema.names


def rows_of(reader: StorageBatchReader | StorageStreamReader, part: InputPartition) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for records in reader.read(part) for row in records.to_pylist()]


def flat(tasks: Sequence[list[tuple[object, ...]]]) -> list[tuple[object, ...]]:
    return [row for task in tasks for row in task]


def test_changes_come_file_by_file() -> None:
    tasks, names = batch(lab())
    assert names == ["_commit_ts", "_op", "id", "name"]
    assert tasks == [
        [(T0 + 1, "insert", 1, "a"), (T0 + 2, "insert", 2, "b")],
        [(T0 + 3, "delete", 1, "a"), (T0 + 4, "update", 2, "b2")],
    ]
    assert flat(batch(lab(), from_ts=str(T0 + 1), to_ts=str(T0 + 3))[0]) == [(T0 + 2, "insert", 2, "b"), (T0 + 3, "delete", 1, "a")]


def test_a_table_as_of_a_ts_is_divided_into_shares() -> None:
    source = lab()
    source.write(FIRST, [(T0 + 6, Op.INSERT, n, "x") for n in range(10, 60)])
    source.checkpoint(T0 + 9)
    tasks, names = batch(source, as_of="checkpoint", tasks="4")
    assert names == ["id", "name"]
    assert len(tasks) == 4
    assert all(tasks)
    assert sorted(flat(tasks)) == [(2, "b2"), *((n, "x") for n in range(10, 60))]
    assert sorted(flat(batch(source, as_of=str(T0 + 2))[0])) == [(1, "a"), (2, "b")]


def test_a_lineage_has_an_order_and_names_rows() -> None:
    source = lab()
    tasks, names = batch(source, lineage="true")
    assert names[:2] == [AT, ROW]
    rows = flat(tasks)
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})
    assert [row[1] for row in rows] == ["1:1", "1:2", "1:1", "1:2"]


def test_a_frame_whose_table_has_changed_since_is_refused() -> None:
    source = lab()
    made = StorageSource({"path": source.uri, "table": "s.t", "as-of": "checkpoint"})
    schema = made.schema()
    source.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE t ADD seen DATE", SECOND)
    source.checkpoint(T0 + 15)
    with pytest.raises(PenstockError, match="SCHEMA_CHANGED"):
        made.reader(schema).partitions()


def test_a_stream_stops_before_new_columns_and_goes_on_with_them() -> None:
    source = lab()
    made = StorageSource({"path": source.uri, "table": "s.t"})
    stream = made.streamReader(made.schema())
    assert isinstance(stream, StorageStreamReader)
    start = stream.initialOffset()
    end = stream.latestOffset(start, None)
    assert flat([rows_of(stream, p) for p in stream.partitions(start, end)])[-1] == (T0 + 4, "update", 2, "b2")
    assert stream.latestOffset(end, None) == end
    source.write(FIRST, [(T0 + 7, Op.INSERT, 3, "c")])
    source.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE t ADD seen DATE", SECOND)
    source.write(SECOND, [(T0 + 11, Op.INSERT, 4, "d", "2023-05-09"), (T0 + 20, Op.INSERT, 5, "e", None)])
    source.checkpoint(T0 + 15)
    before = stream.latestOffset(end, None)
    assert before["ts"] == T0 + 9
    assert flat([rows_of(stream, p) for p in stream.partitions(end, before)]) == [(T0 + 7, "insert", 3, "c")]
    with pytest.raises(PenstockError, match=r"SCHEMA_CHANGED.*seen"):
        stream.latestOffset(before, None)
    again = made.streamReader(made.schema())
    after = again.latestOffset(before, None)
    found = flat([rows_of(again, p) for p in again.partitions(before, after)])
    assert [row[:4] for row in found] == [(T0 + 11, "insert", 4, "d")]
    source.checkpoint(T0 + 25)
    last = again.latestOffset(after, None)
    assert [row[:4] for row in flat([rows_of(again, p) for p in again.partitions(after, last)])] == [(T0 + 20, "insert", 5, "e")]


@pytest.mark.parametrize(
    ("options", "what"), [({}, "path"), ({"path": "memory://x/"}, "table"), ({"path": "memory://x/", "table": "t"}, "database.table")]
)
def test_options_that_are_missing_are_named(options: dict[str, str], what: str) -> None:
    with pytest.raises(PenstockError, match=what):
        StorageSource(options)
