"""Partitions of a source into databases, whose tables have none: rows that go with a partition go, those that move stay."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from testing.paths.whole_path import WholePath, row_key
from testing.targets.database_kit import MYSQL, TargetDatabase

pytestmark = pytest.mark.integration
COLUMNS = "(id INT PRIMARY KEY, v VARCHAR(40))"
PARTS = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200))"
SETUP = ["CREATE DATABASE d", f"CREATE TABLE d.t {COLUMNS} {PARTS}", f"CREATE TABLE d.u {COLUMNS}"]


def physical(path: WholePath, name: str) -> list[TableSchema]:
    return sorted((t for t in path.upstream.list_tables() if t.full_name == name), key=lambda t: t.table_id)


def put(path: WholePath, table: TableSchema, *ids: int) -> None:
    with path.upstream.txn() as txn:
        txn.put(table, {"id": pa.array(ids, pa.int32()), "v": pa.array([f"v{i}" for i in ids])})


@pytest.mark.parametrize("kind", ["mariadb", "postgres", MYSQL])
def test_rows_go_and_move_with_partitions(kind: str, tmp_path: Path) -> None:
    target = TargetDatabase(kind)
    options = target.options | {"atomicity": "transaction"}
    with contextlib.closing(WholePath(tmp_path, SETUP, target_uri=target.uri, sink_options=options)) as path:

        def held(table: str) -> list[int]:
            path.drain()
            return [i for (i,) in target.rows("d", table, "id")]

        first, second = physical(path, "d.t")
        put(path, first, 1, 2, 3)
        put(path, second, 101, 102)
        put(path, physical(path, "d.u")[0], 7)
        assert held("t") == [1, 2, 3, 101, 102]
        for source, to in ((first, second), (second, first)):
            with path.upstream.txn() as txn:
                txn.delete(source, pa.array([row_key(2)], pa.binary()))
                txn.put(to, {"id": pa.array([2], pa.int32()), "v": pa.array(["moved"])})
            assert held("t") == [1, 2, 3, 101, 102]
        path.upstream.execute_ddl("ALTER TABLE d.t ADD PARTITION (PARTITION p2 VALUES LESS THAN (300))")
        put(path, physical(path, "d.t")[-1], 201)
        assert held("t") == [1, 2, 3, 101, 102, 201]
        path.upstream.execute_ddl("ALTER TABLE d.t TRUNCATE PARTITION p1")
        put(path, physical(path, "d.t")[-1], 103)
        assert held("t") == [1, 2, 3, 103, 201]
        path.upstream.execute_ddl("ALTER TABLE d.t EXCHANGE PARTITION p0 WITH TABLE d.u")
        assert (held("t"), held("u")) == ([7, 103, 201], [1, 2, 3])
        path.upstream.execute_ddl("ALTER TABLE d.t DROP PARTITION p2")
        assert held("t") == [7, 103]


def test_partitions_that_are_apart_need_whole_transactions(tmp_path: Path) -> None:
    target = TargetDatabase("mariadb")
    with contextlib.closing(WholePath(tmp_path, SETUP, target_uri=target.uri, sink_options=target.options)) as path:
        put(path, physical(path, "d.t")[0], 1)
        with pytest.raises(PenstockError, match="would come in no order"):
            path.drain()


@pytest.mark.parametrize("kind", ["mariadb", "postgres", MYSQL])
def test_partitions_that_a_source_sees_as_one_table_change_nothing(kind: str) -> None:
    """The rows that went are told as changes, after the table was read again."""
    target = TargetDatabase(kind)
    maintainer = target.kit().open_maintainer()
    columns = (Column(1, "id", ColumnType(TypeKind.INT), nullable=False, primary_key=True), Column(2, "note", ColumnType(TypeKind.TEXT)))
    table = TableSchema(5, "d", "t", 10, columns)
    maintainer.write_block_event(DdlEvent(10, DdlType.CREATE_TABLE, "CREATE TABLE d.t …", "d", (table,)))
    target.run(f"INSERT INTO {target.name('d', 't')} VALUES (1, 'kept')")
    changes = [DdlType.ADD_PARTITION, DdlType.DROP_PARTITION, DdlType.TRUNCATE_PARTITION, DdlType.REORGANIZE_PARTITION]
    for ts, change in enumerate(changes, start=11):
        after = TableSchema(5, "d", "t", ts, columns)
        assert maintainer.write_block_event(DdlEvent(ts, change, "ALTER TABLE d.t …", "d", (after,))) == ["d.t"]
    assert target.rows("d", "t") == [(1, "kept")]
