"""The event store's ways through Spark: a bootstrap that writes bulk objects, and the typed format ``penstock``."""

from __future__ import annotations

import datetime as dt
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.feed.bootstrap.bootstrap import Bootstrap, BootstrapProgress, BootstrapSettings, JobTasks
from penstock.feed.formats.table_reader import register_penstock
from penstock.feed.spark.jobs import SparkJobs
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.model.rows.row_key import encode_row_keys, table_prefix
from penstock.model.span import DDL_SPAN, Span
from penstock.puller.log_service import LogService
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.server import FlightService

ROWS = 3_000
COLUMNS = """id BIGINT PRIMARY KEY, v VARCHAR(50), price DECIMAL(10,2), at DATETIME(3), small INT UNSIGNED,
big BIGINT UNSIGNED, kind ENUM('a','b'), flags SET('x','y','z'), raw VARBINARY(10), day DATE"""


def rows_of(numbers: range, v: str) -> dict[str, pa.Array]:
    count = len(numbers)
    return {
        "id": pa.array(numbers, pa.int64()),
        "v": pa.array([v] * count),
        "price": pa.array([f"{n}.50" for n in numbers]),
        "at": pa.array(["2024-05-06 07:08:09.123"] * count),
        "small": pa.array([4_000_000_000] * count, pa.uint32()),
        "big": pa.array([2**64 - 1] * count, pa.uint64()),
        "kind": pa.array([2] * count, pa.uint16()),
        "flags": pa.array([5] * count, pa.uint64()),
        "raw": pa.array([b"\x00\xff"] * count),
        "day": pa.array(["2024-02-29" if n else "0000-00-00" for n in numbers]),
    }


def test_a_bootstrap_and_the_typed_format(jvm, upstream, waiting, tmp_path: Path) -> None:
    del jvm
    session = open_session(SparkSettings("local[2]"))
    register_penstock(session)
    upstream.execute_ddl("CREATE DATABASE d")
    upstream.execute_ddl(f"CREATE TABLE d.t ({COLUMNS})")
    table = upstream.table("d", "t")
    span = Span(table.table_id)

    def put(numbers: range, v: str) -> int:
        with upstream.txn() as txn:
            txn.put(table, rows_of(numbers, v))
        return txn.commit_ts

    put(range(ROWS), "first")
    for cut in (1_000, 2_000):
        upstream.split(encode_row_keys(table, {"c1": pa.array([cut])}, table_prefix(table.table_id))[0].as_py())
    with ExitStack() as parts:
        store = parts.enter_context(ColumnarEventStore(tmp_path))
        flight = parts.enter_context(closing(FlightService(store)))
        service = parts.enter_context(closing(LogService(upstream, store)))
        service.start()
        began: dict[str, int] = {}

        def capture(captured: Span, start_ts: int) -> None:
            service.ensure_span(captured, start_ts)
            began.update(start_ts=start_ts, changed_ts=put(range(10), "changed"))

        settings = BootstrapSettings(tasks_max=2, page_rows=300)
        job = Bootstrap(JobTasks(SparkJobs(session)), store, upstream, upstream.uri, service.settled_ts, settings)
        done = job.run([span], capture)[span.span_id]
        start_ts, changed_ts = began["start_ts"], began["changed_ts"]
        assert (done.objects, done.rows, done.restarts) == (3, ROWS - 10, 0)
        assert job.progress() == BootstrapProgress(3, 3, ROWS - 10)
        with upstream.txn() as txn:
            txn.delete(table, encode_row_keys(table, {"c1": pa.array([5], pa.int64())}))
        now = upstream.current_ts()
        waiting.until("resolved", lambda: min(store.resolved_ts(s.span_id) for s in (span, DDL_SPAN)) >= now)

        state = reader(session, flight, {"as-of": str(now)}).load()
        assert [f.dataType.simpleString() for f in state.schema] == [
            *("bigint", "string", "decimal(10,2)", "timestamp_ntz", "bigint", "decimal(20,0)", "string", "string", "binary", "date")
        ]
        found = {row["id"]: row for row in state.collect()}
        assert set(found) == set(range(ROWS)) - {5}
        assert {n for n, row in found.items() if row["v"] == "changed"} == set(range(10)) - {5}
        expected = (
            Decimal("7.50"),
            dt.datetime.fromisoformat("2024-05-06 07:08:09.123"),
            4_000_000_000,
            Decimal(2**64 - 1),
            "b",
            "x,z",
            b"\x00\xff",
        )
        assert tuple(found[7])[2:9] == expected
        assert (found[0]["day"], found[7]["day"]) == (None, dt.date(2024, 2, 29))

        # Objects of the store are parts, filters and columns reach the tasks.
        divided = reader(session, flight, {"as-of": str(now), "columns": "v,id", "bytes-per-partition": "1"}).load().where("id < 8")
        assert sorted((row["id"], row["v"]) for row in divided.collect()) == [(n, "changed") for n in range(8) if n != 5]
        assert divided.columns == ["v", "id"]
        whole = reader(session, flight, {"as-of": str(now), "bytes-per-partition": "1"}).load()
        assert (whole.rdd.getNumPartitions(), whole.count()) == (3, ROWS - 1)

        changes = reader(session, flight, {"from-ts": str(start_ts), "to-ts": str(now)})
        listed = [(r["_commit_ts"], r["_op"], r["id"]) for r in changes.load().collect()]
        assert listed == [*((changed_ts, "update", n) for n in range(10)), (txn.commit_ts, "delete", 5)]
        window = {"from-ts": str(start_ts), "to-ts": str(now), "before": "true"}
        assert [r["_op"] for r in reader(session, flight, window).load().collect()].count("before") == 10
        assert changes.load().where("_op = 'delete'").select("v").collect()[0]["v"] == "changed"
        store.flush(span.span_id)
        assert store.merge(span.span_id) >= 1
        again = {row["id"]: row for row in reader(session, flight, {"as-of": str(now)}).load().collect()}
        assert again == found

        stream = session.readStream.format("penstock").options(**options_of(flight, {"from-ts": "0"})).load()

        def follow() -> list[tuple[str, int]]:
            """Run a query to the end of what is there; return all that has arrived so far."""
            places = {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint")}
            waiting.finish(stream.writeStream.format("parquet").options(**places))
            return sorted((r["_op"], r["id"]) for r in session.read.parquet(places["path"]).collect())

        rows = [("insert", n) for n in sorted(found)]
        assert follow() == rows
        put(range(3), "streamed")
        later = upstream.current_ts()
        waiting.until("resolved", lambda: min(store.resolved_ts(s.span_id) for s in (span, DDL_SPAN)) >= later)
        assert follow() == [*rows, *(("update", n) for n in range(3))]
        for options, message in [
            ({"table": "d.unknown"}, "TABLE_UNKNOWN"),
            ({"as-of": "x"}, "CONFIG_INVALID"),
            ({"from-ts": str(start_ts - 1)}, "STALE_READ"),
        ]:
            with pytest.raises(Exception, match=message):
                reader(session, flight, options).load().collect()


def options_of(flight: FlightService, options: dict[str, str]) -> dict[str, str]:
    return {"location": flight.location, "token": flight.token, "table": "d.t"} | options


def reader(session, flight: FlightService, options: dict[str, str]):
    return session.read.format("penstock").options(**options_of(flight, options))
