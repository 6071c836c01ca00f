"""The bulk path without Spark: parts are pulled from a data server whose ranges move, while rows change."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from penstock.feed.bootstrap.bootstrap import Bootstrap, BootstrapProgress, BootstrapSettings
from penstock.feed.bootstrap.part import BootstrapPart, Pace, pull_part
from penstock.feed.window.assignment import Dispatcher
from penstock.model.clock import SystemClock
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.rows.row_key import encode_row_keys, table_prefix
from penstock.model.span import DDL_SPAN, Span
from penstock.model.timestamp import TS_ZERO
from penstock.puller.log_service import LogService
from penstock.server.feeds.feed_capture import FeedCapture
from penstock.server.feeds.span_reads import SpanReads
from penstock.source.contract import SnapshotTicket
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.source.dataserver.snapshot_pull import SnapshotPage, SnapshotPuller
from penstock.store.contract import EndOfRange
from penstock.store.event_store import ColumnarEventStore
from penstock.store.log.bootstrap_log import bootstrap_prefix
from penstock.target.dispatcher import DispatcherId
from testing.checks.looked_inside import pins_of
from testing.twins.local_tasks import LocalTasks

WAIT_S = 60
ROWS = 500


class Rig:
    """A data server with one table in two ranges, a store, and a log service between them."""

    def __init__(self, root: Path, upstream: DataServerUpstream) -> None:
        self.upstream = upstream
        upstream.execute_ddl("CREATE DATABASE d")
        upstream.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v VARCHAR(50))")
        self.table = upstream.table("d", "t")
        self.span = Span(self.table.table_id)
        self.put(range(ROWS), "first")
        upstream.split(self.key(ROWS // 2))
        self.store = ColumnarEventStore(root)
        self.service = LogService(upstream, self.store)

    def key(self, number: int) -> bytes:
        key: bytes = encode_row_keys(self.table, {"c1": pa.array([number])}, table_prefix(self.table.table_id))[0].as_py()
        return key

    def put(self, numbers: range, v: str) -> None:
        with self.upstream.txn() as txn:
            txn.put(self.table, {"id": pa.array(numbers, pa.int64()), "v": pa.array([v] * len(numbers))})

    def delete(self, numbers: range) -> None:
        with self.upstream.txn() as txn:
            txn.delete(self.table, encode_row_keys(self.table, {"c1": pa.array(numbers, pa.int64())}))

    def capture(self) -> SnapshotTicket:
        """Begin to capture where a snapshot begins."""
        ticket = self.upstream.begin_snapshot()
        self.service.start()
        self.service.ensure_span(self.span, ticket.start.ts)
        return ticket

    def parts(self, ticket: SnapshotTicket, page_rows: int = 64) -> list[BootstrapPart]:
        source, objects = self.upstream.uri, self.store.objects.uri
        pieces = enumerate(self.upstream.divide(self.span))
        return [BootstrapPart(source, self.span, piece, ticket, self.table, objects, {}, number, page_rows) for number, piece in pieces]

    def wait_resolved(self, ts: int) -> None:
        never, looks = threading.Event(), 0
        while min(self.store.resolved_ts(s) for s in (self.span.span_id, DDL_SPAN.span_id)) < ts:
            assert looks < WAIT_S * 50, "not resolved in time"
            looks += never.wait(0.02) + 1

    def stored(self, ts: int) -> dict[int, str]:
        self.wait_resolved(ts)
        handle = self.store.collect_changes(self.span.span_id, TS_ZERO, ts)
        found: dict[int, str] = {}
        while not isinstance(step := handle.next(), EndOfRange):
            for batch in step.data:
                found.update(zip(batch.records.column("c1").to_pylist(), batch.records.column("c2").to_pylist(), strict=True))
        return found

    def upstream_rows(self, ts: int) -> dict[int, str]:
        batches = [b.records for b in self.upstream.read_table(self.span, ts)]
        return {k: v for b in batches for k, v in zip(b.column("c1").to_pylist(), b.column("c2").to_pylist(), strict=True)}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with DataServer(DataServerSettings(stores=2, resolved_interval_ms=20)) as server, DataServerUpstream(server.uri) as upstream:
        rig = Rig(tmp_path, upstream)
        with closing(rig.store), closing(rig.service):
            yield rig


def bulk_files(rig: Rig) -> int:
    return len(rig.store.objects.list_names(f"spans/{rig.span.span_id}/bulk/"))


def test_state_and_log_together_are_the_table_while_rows_change(rig: Rig) -> None:
    ticket = rig.capture()
    parts = rig.parts(ticket)
    assert len(parts) == 2
    first = pull_part(parts[0])
    rig.put(range(5), "changed")
    rig.delete(range(245, 255))
    rig.put(range(600, 610), "new")
    second = pull_part(parts[1])
    base_ts = rig.service.settled_ts()
    rig.store.commit_bulk(rig.span.span_id, [*first.objects, *second.objects], ticket.start.ts, base_ts)
    rig.put(range(7), "last")
    for ts in (base_ts, rig.upstream.current_ts()):
        assert rig.stored(ts) == rig.upstream_rows(ts)
    rig.store.flush(rig.span.span_id)
    assert rig.store.merge(rig.span.span_id) > 0
    ts = rig.upstream.current_ts()
    assert rig.stored(ts) == rig.upstream_rows(ts)


@pytest.mark.parametrize("event", ["split", "move", "evict"])
def test_a_lost_snapshot_begins_again_and_leaves_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    """The range is cut, or moves, or its iterator is pushed out, after the first page was pulled."""
    ticket = rig.capture()
    part = rig.parts(ticket)[0]
    pages = SnapshotPuller.pages
    happened = threading.Event()

    def disturb() -> None:
        info = rig.upstream.ranges(rig.span)[0]
        if event == "split":
            rig.upstream.split(rig.key(100))
        elif event == "move":
            rig.upstream.move_leader(info.range_id, 3 - info.store_id)
        else:
            for number in range(70):
                other = SnapshotPuller(f"other-{number}", 1)
                next(pages(other, info))
                other.close()

    def disturbed(puller: SnapshotPuller, info: object) -> Iterator[SnapshotPage]:
        for page in pages(puller, info):
            yield page
            if not happened.is_set():
                happened.set()
                rig.put(range(3), "changed meanwhile")
                disturb()

    monkeypatch.setattr(SnapshotPuller, "pages", disturbed)
    first = pull_part(part)
    assert first.restarts == 1
    second = pull_part(rig.parts(ticket)[-1])
    objects = [*first.objects, *second.objects]
    assert bulk_files(rig) == len(objects)
    rig.store.commit_bulk(rig.span.span_id, objects, ticket.start.ts, rig.service.settled_ts())
    ts = rig.upstream.current_ts()
    assert rig.stored(ts) == rig.upstream_rows(ts)
    assert sum(o.rows for o in objects) == ROWS - 3


def job(rig: Rig, tasks: LocalTasks) -> Bootstrap:
    return Bootstrap(tasks, rig.store, rig.upstream, rig.upstream.uri, rig.service.settled_ts, BootstrapSettings(tasks_max=1, page_rows=64))


def capture(rig: Rig) -> Callable[[Span, int], None]:
    return lambda span, start_ts: rig.service.ensure_span(span, start_ts) and None


def test_a_part_that_fails_for_a_moment_is_read_again(rig: Rig) -> None:
    rig.service.start()
    failures = iter([PenstockError("UPSTREAM_UNREACHABLE", "gone for a moment")])

    def fail(part: BootstrapPart) -> None:
        for error in failures:
            raise error

    tasks = LocalTasks(fail)
    bootstrap = job(rig, tasks)
    done = bootstrap.run([rig.span], capture(rig))[rig.span.span_id]
    assert (done.rows, tasks.pulled) == (ROWS, [0, 1])
    assert bootstrap.progress() == BootstrapProgress(2, 2, ROWS)
    ts = rig.upstream.current_ts()
    assert rig.stored(ts) == rig.upstream_rows(ts)


def test_a_bootstrap_that_is_stopped_goes_on_later_with_what_is_missing(rig: Rig) -> None:
    rig.service.start()
    jobs: list[Bootstrap] = []

    def stop(part: BootstrapPart) -> None:
        if part.number == 1:
            jobs[0].cancel()
            raise PenstockError("CANCELLED", "as a Spark job that is cancelled")

    first = LocalTasks(stop)
    jobs.append(job(rig, first))
    with pytest.raises(PenstockError) as raised:
        jobs[0].run([rig.span], capture(rig))
    assert (raised.value.code, first.pulled) == ("CANCELLED", [0])
    # Another process: it finds the plan, and the part that is on record.
    second = LocalTasks()
    rig.put(range(3), "changed in between")
    done = job(rig, second).run([rig.span], capture(rig))[rig.span.span_id]
    assert second.pulled == [1]
    assert done.rows == ROWS
    ts = rig.upstream.current_ts()
    assert rig.stored(ts) == rig.upstream_rows(ts)
    assert rig.store.objects.list_names(bootstrap_prefix(rig.span.span_id)) == []


def test_a_bootstrap_that_outlasts_its_log_is_refused_and_begins_anew(rig: Rig) -> None:
    rig.service.start()

    def lose_log(part: BootstrapPart) -> None:
        if part.number == 1 and not rig.store.base_ts(rig.span.span_id):
            assert rig.store.needs.keep_above(rig.span.span_id) <= part.start_ts, "the log is pinned while the state is read"
            rig.put(range(3), "flushed")
            rig.wait_resolved(rig.upstream.current_ts())
            rig.store.flush(rig.span.span_id)
            rig.store.reset_span(rig.span.span_id, rig.store.resolved_ts(rig.span.span_id))

    with pytest.raises(PenstockError) as raised:
        job(rig, LocalTasks(lose_log)).run([rig.span], capture(rig))
    assert raised.value.code == "SNAPSHOT_DUE"
    assert bulk_files(rig) == 0
    assert pins_of(rig.store.needs, rig.span.span_id) == {}
    job(rig, LocalTasks()).run([rig.span], capture(rig))
    ts = rig.upstream.current_ts()
    assert rig.stored(ts) == rig.upstream_rows(ts)


def feed_capture(rig: Rig, tasks: LocalTasks, reads: SpanReads) -> FeedCapture:
    return FeedCapture(0, rig.service, rig.store, job(rig, tasks), by_job=True, stream_gives_state=False, reads=reads)


def test_two_feeds_that_begin_at_once_read_a_table_once(rig: Rig) -> None:
    """The second one took the parts of the first, which failed: one of its records was gone when it was to be put in its place."""
    rig.service.start()
    reads, reading, go_on = SpanReads(), threading.Event(), threading.Event()

    def hold(_part: BootstrapPart) -> None:
        reading.set()
        assert go_on.wait(WAIT_S)

    first, second = LocalTasks(hold), LocalTasks()
    dispatcher = Dispatcher(DispatcherId(rig.table.table_id), rig.span, rig.table.schema, rig.table.table)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(feed_capture(rig, first, reads).begin, [dispatcher])
        assert reading.wait(WAIT_S)
        late = feed_capture(rig, second, reads)
        other = pool.submit(late.begin, [dispatcher])
        # A third one that is stopped does not wait for them.
        stopped = feed_capture(rig, LocalTasks(), reads)
        stopped.cancel()
        with pytest.raises(PenstockError, match="CANCELLED"):
            stopped.begin([dispatcher])
        # Time enough for it to read, if it did.
        assert not wait([other], 0.2).done
        assert second.pulled == []
        go_on.set()
        one.result(WAIT_S)
        other.result(WAIT_S)
    assert (sorted(first.pulled), second.pulled) == ([0, 1], [])
    ts = rig.upstream.current_ts()
    assert rig.stored(ts) == rig.upstream_rows(ts)


class SkippingClock(SystemClock):
    """Waits by moving time."""

    passed_s = 0.0

    def monotonic_s(self) -> float:
        return self.passed_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.passed_s += timeout_s
        return event.is_set()


def test_a_directory_of_another_machine_is_not_written_to(rig: Rig, tmp_path: Path) -> None:
    """An executor elsewhere would make the directory anew and write where nobody looks: the feed then missed its objects."""
    elsewhere = tmp_path / "of-another-machine" / "objects"
    part = msgspec.structs.replace(rig.parts(rig.capture())[0], objects_uri=elsewhere.as_uri())
    with pytest.raises(PenstockError, match="STORE_NOT_SHARED") as refused:
        pull_part(part)
    assert refused.value.kind is ErrorKind.BLOCKED
    assert not elsewhere.parent.exists()


def test_rows_are_paced() -> None:
    clock = SkippingClock()
    pace = Pace(100.0, clock)
    began_s = clock.monotonic_s()
    for _ in range(4):
        pace.take(50)
    assert clock.monotonic_s() - began_s == pytest.approx(2.0)
    Pace(0.0, clock).take(10**9)
    assert clock.monotonic_s() - began_s == pytest.approx(2.0)
