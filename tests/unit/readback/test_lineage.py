"""What a name means at a ts: renames, swaps, names that are used again."""

import itertools

import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.lineage import lineage
from penstock.readback.replay import Share, replay_table
from testing.paths.storage_lab import StorageLab

T0 = compose_ts(1_700_000_000_000)
ID = Column(1, "id", ColumnType(TypeKind.BIGINT), False, True)
NAME = Column(2, "name", ColumnType(TypeKind.VARCHAR, length=40))
NOTE = Column(3, "note", ColumnType(TypeKind.VARCHAR, length=40), default="none")
_numbers = itertools.count()


def lab(query: str = "") -> StorageLab:
    return StorageLab(f"memory://lineage-{next(_numbers)}/?{query}")


def version(table: str, table_id: int, ts: int, *columns: Column) -> TableSchema:
    return TableSchema(table_id, "s", table, ts, columns or (ID, NAME))


def created(source: StorageLab, table: str, table_id: int, ts: int, *rows: tuple[int, str]) -> None:
    made = version(table, table_id, ts)
    source.ddl(ts, DdlType.CREATE_TABLE, f"CREATE TABLE {table} (...)", made)
    source.write(made, [(ts + 1, Op.INSERT, *row) for row in rows])


def rows(source: StorageLab, table: str, up_to_ts: int | None = None) -> list[tuple[object, ...]]:
    return sorted(replay_table(source.reader(), "s", table, up_to_ts).rows())


def test_a_swap_in_one_statement_and_names_that_are_used_again() -> None:
    source = lab()
    created(source, "a", 1, T0, (1, "of a"))
    created(source, "b", 2, T0 + 10, (2, "of b"))
    swap = "RENAME TABLE a TO t, b TO a, t TO b"
    new_a, new_b = version("a", 2, T0 + 20), version("b", 1, T0 + 20)
    source.ddl(T0 + 20, DdlType.RENAME_TABLE, swap, new_a, old_names=((2, "s", "b"),))
    source.ddl(T0 + 20, DdlType.RENAME_TABLE, swap, new_b, old_names=((1, "s", "a"),))
    source.write(new_a, [(T0 + 21, Op.INSERT, 3, "of b, later")])
    source.checkpoint(T0 + 30)
    assert rows(source, "a") == [(2, "of b"), (3, "of b, later")]
    assert rows(source, "b") == [(1, "of a")]
    assert rows(source, "a", T0 + 15) == [(1, "of a")]
    created(source, "b", 3, T0 + 40, (9, "anew"))
    source.checkpoint(T0 + 50)
    assert rows(source, "b") == [(9, "anew")]
    assert rows(source, "a") == [(2, "of b"), (3, "of b, later")]


def test_columns_go_on_through_renames_of_the_table() -> None:
    source = lab()
    created(source, "a", 1, T0, (1, "x"), (2, "y"))
    wide = version("a", 1, T0 + 5, ID, NOTE, NAME)
    source.ddl(T0 + 5, DdlType.ADD_COLUMN, "ALTER TABLE a ADD COLUMN note VARCHAR(40) DEFAULT 'none' AFTER id", wide)
    source.write(wide, [(T0 + 6, Op.UPDATE, 1, "kept", "x")])
    moved = version("b", 1, T0 + 10, ID, NOTE, NAME)
    source.ddl(T0 + 10, DdlType.RENAME_TABLE, "ALTER TABLE a RENAME TO b", moved, old_names=((1, "s", "a"),))
    narrow = version("b", 1, T0 + 15, ID, NOTE)
    source.ddl(T0 + 15, DdlType.DROP_COLUMN, "ALTER TABLE b DROP COLUMN name", narrow)
    source.write(narrow, [(T0 + 16, Op.DELETE, 7, ""), (T0 + 16, Op.INSERT, 3, "new")])
    source.checkpoint(T0 + 20)
    assert rows(source, "b") == [(1, "kept"), (2, "none"), (3, "new")]
    life = lineage(source.reader(), "s", "b", T0 + 20)
    assert [(s.table, [v.version for v in s.versions], s.to_ts) for s in life.segments] == [
        ("a", [T0, T0 + 5], T0 + 9),
        ("b", [T0 + 10, T0 + 15], T0 + 20),
    ]
    assert life.row_key == ["c100"]


def test_a_name_without_a_file_at_that_time_is_unknown() -> None:
    source = lab()
    created(source, "a", 1, T0 + 5, (1, "x"))
    source.checkpoint(T0 + 9)
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        lineage(source.reader(), "s", "a", T0 + 4)


@pytest.mark.parametrize("keyed", [True, False])
def test_shares_together_are_the_table(keyed: bool) -> None:
    source = lab("output-old-value=true")
    table = version("a", 1, T0, Column(1, "id", ColumnType(TypeKind.BIGINT), not keyed, keyed), NAME)
    source.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE a (...)", table)
    source.write(table, [(T0 + 1, Op.INSERT, n, str(n % 3)) for n in range(200)])
    changed = range(0, 200, 2)
    source.write(table, [*((T0 + 2, Op.BEFORE, n, str(n % 3)) for n in changed), *((T0 + 2, Op.UPDATE, n, "new") for n in changed)])
    source.checkpoint(T0 + 9)
    parts = [replay_table(source.reader(), "s", "a", share=Share(n, 3)).rows() for n in range(3)]
    assert all(parts)
    assert sorted(row for part in parts for row in part) == rows(source, "a")
    assert len(rows(source, "a")) == 200
