"""The snippet for Spark of docs/reading-files.md, as it stands there, on the odd tables that the other snippets read."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.feed.spark.session import SparkSettings, open_session
from testing.targets.odd_tables import CHANGED, GONE, NEW, VERSION, odd_rows, read, write_odd_tables


@pytest.mark.usefixtures("jvm")
def test_spark_reads_every_change_of_parquet(tmp_path: Path) -> None:
    spark = open_session(SparkSettings("local[2]"))
    write_odd_tables(tmp_path / "files", "parquet")
    changes = read(tmp_path / "files", "odd", "spark-parquet", spark=spark)["changes"].collect()
    written = [("IUD"[[NEW, CHANGED, GONE].index(op)], VERSION + ts, *values) for ts, op, *values in odd_rows()]
    found = [(row["_op"], int(row["_commit_ts"]), *(row[name] for name in ("the id", "__op", 'say "price"', "bytes"))) for row in changes]
    assert sorted(map(repr, found)) == sorted(map(repr, written))
