"""The receiver of the tutorial: as a process, with what a feed's own sink posts to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.catalog import open_maintainer, open_sink
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced

TABLE = TableSchema(7, "shop", "orders", 1, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),))
WHOLE = DispatcherId(7)


def post(uri: str, secret: str) -> None:
    sink = open_sink(uri, {"secret": secret, "lanes": "1"}, None, SinkRun("orders", 1))
    try:
        sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, 1, 10))
        columns = [pa.array([2, 3], pa.uint64()), pa.array([0, 0], pa.uint8()), pa.array([1, 2], pa.int64())]
        sink.add_dml_event(DmlEvent(WHOLE, TABLE, pa.RecordBatch.from_arrays(columns, ["_ts", "_op", "c1"])))
        sink.close_dispatcher(WHOLE)
    finally:
        sink.close()


def test_it_prints_checks_and_keeps(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "receive", "--port", "0", "--secret", "try", "--keep", str(tmp_path / "kept")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("receiving at http+json://127.0.0.1:")
        uri = line.split()[-1]
        open_maintainer(uri, {}, unfenced).check("orders")
        post(uri, "try")
        post(uri, "try")
        with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*401"):
            post(uri, "another")
        place = "2 rows of shop.orders, lane 7-0/0, sequence 00000000000000000010-00000001"
        assert [process.stdout.readline() for _ in range(3)] == [f"{place}\n", f"again: {place}\n", "refused: not signed with the secret\n"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()
    kept = [json.loads(line) for line in (tmp_path / "kept").read_text().splitlines()]
    assert [event["after"] for message in kept for event in message["events"]] == [{"id": 1}, {"id": 2}]
