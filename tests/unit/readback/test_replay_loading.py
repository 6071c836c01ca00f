"""What a database holds after rows were loaded is what was given, asked of the database itself."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest

from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.replay_database import ReplayDatabase
from penstock.readback.replay_opening import open_database

DOUBLE = ColumnType(TypeKind.DOUBLE)
KEYED = TableSchema(1, "s", "t", 1, (Column(1, "k", DOUBLE, False, True), Column(2, "v", DOUBLE)))
BAG = TableSchema(2, "s", "b", 1, (Column(1, "v", DOUBLE),))


def rows(**values: list[float | None]) -> pl.DataFrame:
    return pl.DataFrame(values, schema=dict.fromkeys(values, pl.Float64))


def held(database: ReplayDatabase, table: str) -> list[tuple[float | None, ...]]:
    found = database._fetch(f"SELECT * FROM {database.dialect.table('s', table)}", ())
    return sorted((tuple(None if v is None else float(v) for v in row) for row in found), key=repr)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_numbers_that_are_none_are_kept_and_found_again(tmp_path: Path, kind: str) -> None:
    database = open_database(f"{kind}:///{tmp_path}/replayed.db")
    try:
        for table in (KEYED, BAG):
            database.create_table(table)
        numbers = rows(c1=[1.0, math.nan, math.inf, -math.inf], c2=[math.nan, None, math.inf, 0.1])
        database.apply_rows(KEYED, numbers, numbers.clear())
        assert repr(held(database, "t")) == repr(sorted(numbers.rows(), key=repr))
        database.apply_rows(KEYED, rows(c1=[1.0], c2=[2.5]), rows(c1=[math.nan, math.inf], c2=[None, None]))
        assert held(database, "t") == [(-math.inf, 0.1), (1.0, 2.5)]
        database.insert_rows(BAG, rows(c1=[math.nan, math.nan, None, 7.0]))
        database.delete_copies(BAG, rows(c1=[math.nan, 7.0]), pl.Series([1, 1]))
        assert repr(held(database, "b")) == "[(None,), (nan,)]"
        added = Column(2, "n", DOUBLE, initial_default="NaN")
        after = TableSchema(2, "s", "b", 2, (*BAG.columns, added))
        database.rebuild_table(BAG, after, {2: math.nan}, ("new", "old"))
        assert repr(held(database, "b")) == "[(None, nan), (nan, nan)]"
    finally:
        database.close()
