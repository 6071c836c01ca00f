"""The log service in Spark tasks on executors: spans are divided, and a lost executor's spans go on elsewhere without a gap or a repeat."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from penstock.feed.receivers import ReceiverAddress, announce, divide
from penstock.model.batch import COMMIT_TS, KEY, Op
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.source.dataserver.client import DataServerUpstream
from penstock.store.contract import EndOfRange
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.client import FlightStoreClient
from penstock.store.objects.manifest import load_manifests
from penstock.store.objects.objects import ObjectSpace
from testing.checks.change_batches import TABLE, both_sides, read_rows

DRIVER = Path(__file__).with_name("receivers_driver.py")
TABLES = 4


class Driver:
    """The Spark driver in its own process."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.token = self._line("token")

    def addresses(self) -> dict[int, dict[str, Any]]:
        self._say("addresses")
        answer = json.loads(self._line("answer"))
        assert answer["error"] == ""
        return {int(span_id): a for span_id, a in answer["spans"].items()}

    def close(self) -> str:
        self._say("close")
        return self._line("closed")

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def _line(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word + " "):
                return line.split(" ", 1)[1].strip()
        raise AssertionError(f"the driver ended before it said {word!r}")


def rows_of(address: dict[str, Any], token: str, span_id: int, from_ts: int, to_ts: int) -> list[tuple[int, bytes]]:
    """Return commit ts and key of every change in ``(from_ts, to_ts]``, read from the receiver."""
    client = FlightStoreClient(address["location"], token)
    try:
        handle = client.open_changes(span_id, from_ts, to_ts)
        out: list[tuple[int, bytes]] = []
        while not isinstance(step := handle.next(), EndOfRange):
            for batch in step.data:
                out.extend(zip(batch.records[COMMIT_TS].to_pylist(), batch.records[KEY].to_pylist(), strict=True))
        return out
    finally:
        client.close()


def resolved_of(address: dict[str, Any], token: str, span_id: int) -> int:
    client = FlightStoreClient(address["location"], token)
    try:
        return client.span_status()[span_id].resolved_ts
    except PenstockError:
        return 0
    finally:
        client.close()


def executor_of(pid: int) -> psutil.Process:
    """Return the executor's JVM above a Python worker."""
    return next(p for p in psutil.Process(pid).parents() if "java" in p.name())


@pytest.fixture
def objects(tmp_path: Path) -> ObjectSpace:
    return ObjectSpace((tmp_path / "shared").as_uri())


def test_a_lost_executor_is_replaced_and_nothing_is_lost(upstream: DataServerUpstream, waiting: Any, tmp_path: Path) -> None:
    upstream.execute_ddl("CREATE DATABASE d")
    tables = []
    for n in range(TABLES):
        upstream.execute_ddl(f"CREATE TABLE d.t{n} (id BIGINT PRIMARY KEY, v TEXT)")
        tables.append(upstream.table("d", f"t{n}"))
    start_ts = upstream.current_ts()
    expected: dict[int, list[int]] = {Span(t.table_id).span_id: [] for t in tables}

    def write(first: int, count: int) -> int:
        for table in tables:
            with upstream.txn() as txn:
                fields = [c.field_name for c in table.columns]
                ids = range(first, first + count)
                txn.put(table, pa.record_batch({fields[0]: pa.array(ids, pa.int64()), fields[1]: pa.array([f"v{i}" for i in ids])}))
            expected[Span(table.table_id).span_id] += list(ids)
        return upstream.current_ts()

    first_ts = write(0, 100)
    plan = {"source": upstream.uri, "objects": (tmp_path / "shared").as_uri(), "tables": [t.table_id for t in tables], "start_ts": start_ts}
    driver = Driver(plan)
    try:
        waiting.until("both receivers", lambda: len(driver.addresses()) == TABLES, 120, look_s=0.3)
        before = driver.addresses()
        assert {a["group"] for a in before.values()} == {0, 1}
        assert len({a["pid"] for a in before.values()}) == 2
        for span_id, address in before.items():
            waiting.until("the first rows", lambda a=address, s=span_id: resolved_of(a, driver.token, s) >= first_ts, 60, look_s=0.3)
        shared = ObjectSpace((tmp_path / "shared" / "group-0000").as_uri())
        lost = [s for s, a in before.items() if a["group"] == 0]
        waiting.until("objects", lambda: all(s in load_manifests(shared) for s in lost), 60, look_s=0.3)
        executor_of(before[lost[0]]["pid"]).kill()
        last_ts = write(100, 100)
        waiting.until("a successor", lambda: all(driver.addresses()[s]["attempt"] > 1 for s in lost), 150, look_s=0.3)
        after = driver.addresses()
        assert all(after[s]["pid"] != before[s]["pid"] for s in lost)
        for span_id, address in after.items():
            waiting.until("the last rows", lambda a=address, s=span_id: resolved_of(a, driver.token, s) >= last_ts, 100, look_s=0.3)
            rows = rows_of(address, driver.token, span_id, start_ts, last_ts)
            assert len(rows) == len(set(rows)) == len(expected[span_id])
        assert driver.close() == "well"
    finally:
        driver.kill()


def test_spans_are_divided_the_same_way_whatever_their_order() -> None:
    spans = [Span(n) for n in range(1, 8)]
    groups = divide(spans, 3)
    assert divide(spans[::-1], 3) == groups
    assert sorted(s for g in groups for s in g) == spans
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert len(divide(spans[:2], 5)) == 2


def test_the_newest_announcement_has_the_largest_attempt(objects: ObjectSpace) -> None:
    address = ReceiverAddress(0, 0, "grpc://a:1", "a", 1, (5,))
    assert [announce(objects, address).attempt for _ in range(3)] == [1, 2, 3]
    assert announce(objects, ReceiverAddress(1, 0, "grpc://b:1", "b", 2, (6,))).attempt == 1


def test_a_predecessor_that_still_lives_is_fenced_and_the_successor_goes_back_to_what_is_in_objects(
    objects: ObjectSpace, tmp_path: Path
) -> None:
    span = Span(TABLE.table_id)
    with ColumnarEventStore(tmp_path / "old", objects=objects, shared=True) as old:
        old.put_schemas([TABLE])
        old.register_span(span.span_id, span, 10)
        append(old, span, (15, Op.INSERT, 1, "flushed"))
        old.advance_resolved_ts(span.span_id, 20)
        assert old.flush(span.span_id)
        append(old, span, (25, Op.INSERT, 2, "in memory"))
        old.advance_resolved_ts(span.span_id, 30)
        with ColumnarEventStore(tmp_path / "new", objects=objects, shared=True) as new:
            assert new.register_span(span.span_id, span, 10) == 20
            assert read_rows(new.collect_changes(span.span_id, 10, 20)) == [(15, Op.INSERT, 1, "flushed")]
        with pytest.raises(PenstockError, match="FENCED"):
            old.flush(span.span_id)


def append(store: ColumnarEventStore, span: Span, *rows: tuple[Any, ...]) -> None:
    done = threading.Event()
    assert store.append(span.span_id, both_sides(span.span_id, rows), done.set)
    assert done.wait(30)
