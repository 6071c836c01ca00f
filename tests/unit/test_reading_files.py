"""The snippets of docs/reading-files.md, as they stand there, on files that the real sink wrote of odd tables; Spark's is in ``spark/``."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from testing.targets.odd_tables import CHANGED, CHECKPOINT, GONE, NEW, ODD, VERSION, odd_rows, odd_state, read, write_odd_tables


@pytest.fixture(scope="module", params=["csv", "parquet"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param) / "files"
    write_odd_tables(folder, request.param)
    return request.param, folder


def shown(value: Any, protocol: str) -> Any:
    """A value as a protocol gives it: bytes are base64 in CSV."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) and protocol == "csv" else value


def state_of(rows: Sequence[dict[str, Any]]) -> dict[int, tuple[Any, ...]]:
    assert all(row.keys() >= {"the id", "__op", 'say "price"', "bytes"} for row in rows)
    return {row["the id"]: (row["__op"], row['say "price"'], row["bytes"]) for row in rows}


def expected(protocol: str) -> dict[int, tuple[Any, ...]]:
    return {key: tuple(shown(value, protocol) for value in row) for key, row in odd_state().items()}


def test_duckdb_reads_the_odd_table(target: tuple[str, Path]) -> None:
    protocol, folder = target
    known = read(folder, "odd", f"duckdb-{protocol}", "duckdb-table")
    assert state_of(known["table"].pl().to_dicts()) == expected(protocol)


def test_duckdb_reads_partitions(target: tuple[str, Path]) -> None:
    protocol, folder = target
    known = read(folder, "parts", f"duckdb-{protocol}", "duckdb-table")
    assert sorted((row["id"], row["t"]) for row in known["table"].pl().to_dicts()) == [(1, "one"), (2, "moved"), (11, "eleven")]


def test_duckdb_counts_the_rows_of_a_table_without_a_key(target: tuple[str, Path]) -> None:
    protocol, folder = target
    known = read(folder, "keyless", f"duckdb-{protocol}", "duckdb-rows")
    found = [(row["a"], row["b c"], int(row["_times"])) for row in known["table"].pl().to_dicts()]
    assert sorted(found, key=str) == sorted([(1, "x", 1), (1, "", 1), (None, None, 1)], key=str)


@pytest.mark.parametrize("target", ["parquet"], indirect=True)
def test_polars_reads_parquet(target: tuple[str, Path]) -> None:
    protocol, folder = target
    known = read(folder, "odd", "polars-parquet")
    assert state_of(known["table"].to_dicts()) == expected(protocol)


@pytest.mark.parametrize("target", ["csv"], indirect=True)
def test_arrow_reads_every_change_of_a_csv(target: tuple[str, Path]) -> None:
    _, folder = target
    found = read(folder, "odd", "arrow-csv")["changes"]
    changes = found.to_pylist()
    written = [("IUD"[[NEW, CHANGED, GONE].index(op)], VERSION + ts, str(key), text) for ts, op, key, text, *_ in odd_rows()]
    assert [(row["_op"], row["_commit_ts"], row["the id"], row["__op"]) for row in changes] == written
    if importlib.util.find_spec("pandas") is None:
        # No part of the environment; whoever has it calls this.
        assert callable(found.to_pandas)
        return
    frame = found.to_pandas()
    assert list(frame[["_op", "_commit_ts", "the id", "__op"]].itertuples(index=False, name=None)) == written


def test_the_library_reads_all_of_them(target: tuple[str, Path]) -> None:
    protocol, folder = target
    rows = read(folder, "odd", "penstock", protocol=protocol, name=f"shop.{ODD.table}")["table"].to_dicts()
    state = {row["the id"]: (row["_op"], row['say "price"'], row["bytes"]) for row in rows}
    assert state == odd_state()
    parts = read(folder, "parts", "penstock", protocol=protocol, name="shop.parts")["table"].to_dicts()
    assert sorted((row["id"], row["t"]) for row in parts) == [(1, "one"), (2, "moved"), (11, "eleven")]


def test_the_checkpoint_is_that_of_the_target(target: tuple[str, Path]) -> None:
    _, folder = target
    assert read(folder, "odd")["checkpoint"] == json.loads((folder / "metadata").read_text())["checkpoint-ts"] == CHECKPOINT
