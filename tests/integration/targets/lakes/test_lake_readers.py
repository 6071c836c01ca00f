"""What readers that did not write a lake see in it: polars, DuckDB, delta-rs and pyiceberg, against values that are written out here.

DuckDB's own extensions come from the network, so it reads the Parquet files: those of Delta by a reading of the log that is here alone.
"""

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.model.batch import Op
from penstock.model.timestamp import TS_ZERO
from penstock.sink.iceberg.catalogs import open_catalog
from testing.targets.lake_kit import LAKES, Lake
from tests.contract.test_sink import T0, TABLE, rows_of
from tests.integration.targets.lakes.test_lakes import deliver
from tests.unit.sink.lake.test_columns import RECORDS as KINDS_RECORDS
from tests.unit.sink.lake.test_columns import TABLE as KINDS_TABLE

SEEN: dict[str, list[Any]] = {
    "tiny": [-128, 127],
    "utiny": [0, 255],
    "usmall": [0, 65535],
    "uint": [0, 4294967295],
    "big": [-(1 << 63), (1 << 63) - 1],
    "ubig": [Decimal(0), Decimal((1 << 64) - 1)],
    "bits": [0, 255],
    "bits64": [Decimal(0), Decimal((1 << 64) - 1)],
    "year": [0, 2155],
    "f": [0.5, -1.25],
    "d": [1e300, -0.1],
    "dec": [Decimal("1234567890123456789012345678.0123456789"), Decimal("-0.0000000001")],
    "dec65": ["1" * 35 + "." + "2" * 30, "0.000000000000000000000000000001"],
    "date": [dt.date(1000, 1, 1), dt.date(9999, 12, 31)],
    "dt": [dt.datetime(1000, 1, 1), dt.datetime(2024, 2, 29, 23, 59, 59)],  # noqa: DTZ001 - a DATETIME has no zone
    "dt3": [dt.datetime(2024, 2, 29, 23, 59, 59, 120_000), dt.datetime(1999, 1, 1)],  # noqa: DTZ001 - as above
    "ts6": [dt.datetime(2024, 2, 29, 23, 59, 59, 1, dt.UTC), dt.datetime(1970, 1, 1, 0, 0, 1, 999_999, dt.UTC)],
    "time": ["-838:59:59.000000", "00:00:00.000001"],
    "text": ["", "käse \u2603 'q' \\ \n"],
    "blob": [b"", b"\x00\xff"],
    "enum": ["a", "b,c"],
    "set": ["", "x,y"],
    "json": ['{"a": [1, 2.50]}', "null"],
    "__op": [1, 2],
}


def log_files(folder: Path) -> list[str]:
    """Return the files of a Delta table by its log, as the protocol says: what was added and not removed since."""
    there: dict[str, str] = {}
    for entry in sorted((folder / "_delta_log").glob("*.json")):
        for action in map(json.loads, entry.read_text().splitlines()):
            if "remove" in action:
                there.pop(action["remove"]["path"])
            if "add" in action:
                there[action["add"]["path"]] = str(folder / action["add"]["path"])
    return list(there.values())


def by_duckdb(paths: list[str]) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql("SELECT * FROM read_parquet(?)", params=[paths]).to_arrow_table()


def delta_readers(lake: Lake, schema: str, table: str) -> dict[str, Callable[[], pa.Table]]:
    folder = lake.root / schema / table
    return {
        "polars": lambda: pl.read_delta(str(folder)).to_arrow(),
        "delta-rs": lambda: DeltaTable(str(folder)).to_pyarrow_table(),
        "duckdb": lambda: by_duckdb(log_files(folder)),
    }


def iceberg_readers(lake: Lake, schema: str, table: str) -> dict[str, Callable[[], pa.Table]]:
    opened = open_catalog(lake.root.as_uri(), "", f"file://{lake.root}").load_table((schema, table))
    paths = [task.file.file_path.removeprefix("file://") for task in opened.scan().plan_files()]
    return {
        "polars": lambda: pl.scan_iceberg(opened).collect().to_arrow(),
        "pyiceberg": lambda: opened.scan().to_arrow(),
        "duckdb": lambda: by_duckdb(paths),
    }


READERS = {"delta": delta_readers, "iceberg": iceberg_readers}


@pytest.mark.parametrize("kind", sorted(LAKES))
def test_every_reader_sees_the_values_of_every_kind(tmp_path: Path, kind: str) -> None:
    lake = LAKES[kind](tmp_path / "lake")
    deliver(lake, KINDS_TABLE, KINDS_RECORDS.combine_chunks().to_batches()[0], TS_ZERO, T0)
    for name, read in READERS[kind](lake, "d", "t").items():
        found = read()
        assert found.column_names == list(SEEN), name
        for column, values in SEEN.items():
            assert found.column(column).to_pylist() == [*values, None], (name, column)


@pytest.mark.parametrize("kind", sorted(LAKES))
def test_every_reader_sees_the_rows_behind_windows_that_changed_them(tmp_path: Path, kind: str) -> None:
    lake, want = LAKES[kind](tmp_path / "lake"), {}
    for at in range(4):
        window = T0 + 10 * at
        changes = [(window + 1, Op.INSERT, 10 * at + i, f"n{i}") for i in range(5)]
        changes += [(window + 2, Op.UPDATE, 10 * (at - 1) + 1, None), (window + 2, Op.DELETE, 10 * (at - 1) + 2, None)] if at else []
        deliver(lake, TABLE, rows_of(changes), window if at else TS_ZERO, window + 10)
        for _, op, key, note in changes:
            if op is Op.DELETE:
                del want[key]
            else:
                want[key] = note
    for name, read in READERS[kind](lake, "shop", "orders").items():
        assert sorted(zip(*read().to_pydict().values(), strict=True)) == sorted(want.items()), name
