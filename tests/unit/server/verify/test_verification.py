from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.config.tree import dump_feed_config, load_feed_config
from penstock.feed.window.assignment import Dispatcher, assign_dispatchers
from penstock.feed.window.following import to_record
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import FeedRecord
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import encode_row_keys
from penstock.model.table import TableSchema
from penstock.readback.reader import StorageReader
from penstock.server.feeds.creation import FeedDocument
from penstock.server.verify.verification import FeedVerifier, TableVerdict, Verdict, open_reader, verify_target
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from testing.paths.delivered_target import DeliveredTarget

ALTER = "ALTER TABLE d.a ADD COLUMN n INT DEFAULT 7"


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


class Lab:
    """A data server with one table, and a target that it is delivered to."""

    def __init__(self, folder: Path, upstream: DataServerUpstream, options: dict[str, str] | None = None) -> None:
        self.upstream = upstream
        upstream.execute_ddl("CREATE DATABASE IF NOT EXISTS d")
        upstream.execute_ddl("CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))")
        self.table_id = self.table.table_id
        self.target = DeliveredTarget(folder, upstream, [self.table_id], options)

    @property
    def table(self) -> TableSchema:
        return self.upstream.table("d", "a")

    def put(self, first: int, last: int, value: str | None) -> int:
        ids = pa.array(range(first, last + 1), pa.int32())
        with self.upstream.txn() as txn:
            txn.put(self.table, {"id": ids, "v": pa.array([value] * len(ids), pa.string())})
        return self.upstream.current_ts()

    def remove(self, row_id: int) -> int:
        with self.upstream.txn() as txn:
            txn.delete(self.table, encode_row_keys(self.table, {self.table.column("id").field_name: pa.array([row_id], pa.int32())}))
        return self.upstream.current_ts()

    def alter(self) -> DdlEvent:
        ts = self.upstream.execute_ddl(ALTER)
        return DdlEvent(ts, DdlType.ADD_COLUMN, ALTER, "d", (self.table,))

    def verify(self, **more: Any) -> Verdict:
        return verify_target(open_reader(self.target.uri, self.target.options), self.upstream, [self.table_id], **more)


@pytest.fixture(scope="module")
def upstream() -> Iterator[DataServerUpstream]:
    server = DataServer(DataServerSettings(resolved_interval_ms=10)).start()
    try:
        with DataServerUpstream(server.uri) as client:
            yield client
    finally:
        server.stop()


@pytest.fixture
def lab(upstream: DataServerUpstream, tmp_path: Path) -> Iterator[Lab]:
    yield Lab(tmp_path / "files", upstream)
    upstream.execute_ddl("DROP TABLE IF EXISTS d.a")


def test_every_row_is_compared(lab: Lab) -> None:
    ts = lab.put(1, 10, "x")
    lab.target.deliver(0, ts)
    seen: list[TableVerdict] = []
    verdict = lab.verify(on_table=seen.append)
    assert (verdict.checkpoint_ts, verdict.tables) == (ts, (TableVerdict("d.a", 10),))
    assert list(verdict.tables) == seen
    verdict.check()
    assert verdict.summary() == "verified: 1 tables, 10 rows identical"


def test_differences_are_counted_by_kind_and_shown_by_key(lab: Lab) -> None:
    ts = lab.put(1, 10, "x")
    lab.target.deliver(0, ts)
    (file,) = lab.target.folder.rglob("CDC*.csv")
    lines = file.read_bytes().split(b"\r\n")
    assert len(lines) == 11
    # Row 1 is lost, row 2 is another one, row 3 has another value.
    lines[1] = lines[1].replace(b",2,", b",99,")
    lines[2] = lines[2].replace(b'"x"', b'"y"')
    file.write_bytes(b"\r\n".join(lines[1:]))
    (table,) = lab.verify().tables
    assert (table.rows, table.missing, table.unexpected, table.different) == (7, 2, 1, 1)
    assert table.sample_keys == ("(1,)", "(2,)", "(99,)", "(3,)")
    with refused("VERIFY_MISMATCH") as caught:
        lab.verify().check()
    assert "d.a: 2 rows missing, 1 unexpected, 1 different, first keys: (1,)" in caught.value.detail


def test_a_newer_upstream_is_read_as_of_the_checkpoint(lab: Lab) -> None:
    ts = lab.put(1, 10, "x")
    lab.target.deliver(0, ts)
    lab.put(5, 20, "later")
    lab.remove(1)
    lab.alter()
    lab.put(30, 31, "with another structure")
    assert lab.verify().tables == (TableVerdict("d.a", 10),)


def test_files_beyond_the_checkpoint_are_left_out(lab: Lab) -> None:
    first = lab.put(1, 10, "x")
    lab.target.deliver(0, first)
    lab.put(5, 20, "later")
    event = lab.alter()
    lab.target.write(first, event.commit_ts, event)
    last = lab.put(30, 31, "with another structure")
    lab.target.write(event.commit_ts, last)
    assert len(list(lab.target.folder.rglob("schema_*.json"))) == 2
    assert lab.verify() == Verdict(first, (TableVerdict("d.a", 10),))
    lab.target.maintainer.publish_checkpoint(event.commit_ts)
    assert lab.verify() == Verdict(event.commit_ts, (TableVerdict("d.a", 20),))
    lab.target.maintainer.publish_checkpoint(last)
    assert lab.verify() == Verdict(last, (TableVerdict("d.a", 22),))


def test_a_feed_that_goes_on_after_the_reader_looked_changes_nothing(lab: Lab) -> None:
    first = lab.put(1, 10, "x")
    lab.target.deliver(0, first)
    reader = open_reader(lab.target.uri, {})
    # The index that the reader listed names more files now, and a version has appeared that it has not listed.
    lab.put(5, 20, "later")
    event = lab.alter()
    lab.target.deliver(first, event.commit_ts, event)
    last = lab.put(30, 31, "with another structure")
    lab.target.deliver(event.commit_ts, last)
    assert verify_target(reader, lab.upstream, [lab.table_id]) == Verdict(first, (TableVerdict("d.a", 10),))
    reader.refresh()
    assert verify_target(reader, lab.upstream, [lab.table_id]) == Verdict(last, (TableVerdict("d.a", 22),))


def test_deletes_and_updates_are_replayed(lab: Lab) -> None:
    first = lab.put(1, 10, "x")
    lab.target.deliver(0, first)
    lab.put(2, 3, None)
    last = lab.remove(1)
    lab.target.deliver(first, last)
    assert lab.verify() == Verdict(last, (TableVerdict("d.a", 9),))


def test_a_feed_with_a_start_ts_holds_what_was_written_after_it(lab: Lab) -> None:
    start = lab.put(1, 10, "x")
    lab.put(8, 12, "later")
    last = lab.remove(1)
    lab.target.deliver(start, last)
    assert lab.verify(start_ts=start) == Verdict(last, (TableVerdict("d.a", 5),))
    assert lab.verify().tables[0].missing == 6


def test_files_without_commit_ts_say_why_they_may_differ(upstream: DataServerUpstream, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "files", upstream, {"csv.include-commit-ts": "false"})
    try:
        first = lab.put(1, 3, "x")
        lab.target.deliver(0, first)
        assert lab.verify() == Verdict(first, (TableVerdict("d.a", 3),), stops_at_checkpoint=False)
        lab.target.write(first, lab.put(4, 4, "y"))
        with refused("VERIFY_MISMATCH") as caught:
            lab.verify().check()
        assert "no commit ts" in caught.value.hint
    finally:
        upstream.execute_ddl("DROP TABLE d.a")


def test_a_dropped_table(lab: Lab) -> None:
    first = lab.put(1, 3, "x")
    lab.target.deliver(0, first)
    ts = lab.upstream.execute_ddl("DROP TABLE d.a")
    assert lab.verify() == Verdict(first, (TableVerdict("d.a", 3),))
    names = ((lab.table_id, "d", "a"),)
    lab.target.maintainer.write_block_event(DdlEvent(ts, DdlType.DROP_TABLE, "DROP TABLE d.a", "d", (), (lab.table_id,), names))
    lab.target.maintainer.publish_checkpoint(ts)
    assert lab.verify() == Verdict(ts, (TableVerdict("d.a", 0),))


def test_what_cannot_be_compared_is_no_mismatch(lab: Lab, tmp_path: Path) -> None:
    with refused("CHECKPOINT_MISSING"):
        lab.verify()
    with refused("SINK_URI_INVALID"):
        open_reader((tmp_path / "none").as_uri(), {})
    assert not (tmp_path / "none").exists()
    lab.target.maintainer.publish_checkpoint(lab.upstream.current_ts())
    with refused("VERIFY_MISMATCH") as caught:
        lab.verify()
    assert "no schema file" in caught.value.detail


class Feeds:
    """A meta database with a feed on a lab's target."""

    def __init__(self, directory: Path, lab: Lab, source: str) -> None:
        self.meta = MetaDatabase(sqlite_url(directory / "meta.db"))
        config = load_feed_config({"name": "f", "tables": ["d.a"], "sink": {"uri": lab.target.uri}})
        document = FeedDocument(dump_feed_config(config), source, assign_dispatchers([lab.table], lab.upstream, 1), 1)
        self.meta.create_feed(FeedRecord("f", "u", document.to_json(), checkpoint_ts=0), [])


def never(reader: StorageReader, table_ids: Sequence[int]) -> Verdict:
    raise AssertionError("the data server reads the past")


def test_a_feed_is_verified_by_its_document(lab: Lab, tmp_path: Path) -> None:
    feeds = Feeds(tmp_path, lab, "dataserver://h:1/")
    verifier = FeedVerifier(feeds.meta, lab.upstream, "dataserver://h:1", never)
    try:
        lab.target.deliver(0, lab.put(1, 3, "x"))
        assert verifier.verify("f").tables == (TableVerdict("d.a", 3),)
        with refused("FEED_UNKNOWN"):
            verifier.verify("g")
        with refused("CONFIG_INVALID"):
            FeedVerifier(feeds.meta, lab.upstream, "dataserver://h:2", never).verify("f")
    finally:
        feeds.meta.close()


def test_one_verification_at_a_time(lab: Lab, tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        """Waits where the rows are read."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lab.upstream, name)

        def schema_history(self, table_id: int) -> Any:
            entered.set()
            assert leave.wait(120)
            return lab.upstream.schema_history(table_id)

    feeds = Feeds(tmp_path, lab, "dataserver://h:1")
    lab.target.deliver(0, lab.put(1, 3, "x"))
    verifier = FeedVerifier(feeds.meta, Slow(), "dataserver://h:1", never)
    found: list[Verdict] = []
    first = threading.Thread(target=lambda: found.append(verifier.verify("f")))
    try:
        first.start()
        assert entered.wait(120)
        with refused("VERIFY_BUSY"):
            verifier.verify("f")
        leave.set()
        first.join(120)
        assert [v.rows for v in found] == [3]
        assert verifier.verify("f").rows == 3
    finally:
        leave.set()
        first.join(120)
        feeds.meta.close()


def test_a_verification_that_is_cancelled_ends_and_the_next_one_does_not(lab: Lab, tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        """Waits before the first table."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lab.upstream, name)

        def schema_history(self, table_id: int) -> Any:
            entered.set()
            assert leave.wait(120)
            return lab.upstream.schema_history(table_id)

    feeds = Feeds(tmp_path, lab, "dataserver://h:1")
    lab.target.deliver(0, lab.put(1, 3, "x"))
    verifier = FeedVerifier(feeds.meta, Slow(), "dataserver://h:1", never)
    found: list[str] = []

    def verify() -> None:
        try:
            verifier.verify("f")
        except PenstockError as error:
            found.append(error.code)

    assert not verifier.cancel("f"), "there is none"
    first = threading.Thread(target=verify)
    try:
        first.start()
        assert entered.wait(120)
        assert verifier.progress("f") == []
        assert verifier.progress("g") is None
        assert not verifier.cancel("g")
        assert verifier.cancel("f")
    finally:
        leave.set()
        first.join(120)
    assert found == ["CANCELLED"]
    assert verifier.progress("f") is None
    assert verifier.verify("f").identical
    feeds.meta.close()


def test_a_table_that_joined_in_a_window_whose_checkpoint_is_not_published_yet_is_not_missed(lab: Lab, tmp_path: Path) -> None:
    """The commit in the meta database comes a moment before: a reader of the target does not see the table's rows yet."""
    feeds = Feeds(tmp_path, lab, "dataserver://h:1")
    meta, verifier = feeds.meta, FeedVerifier(feeds.meta, lab.upstream, "dataserver://h:1", never)
    try:
        (first,) = assign_dispatchers([lab.table], lab.upstream, 1)
        first_ts = lab.put(1, 3, "x")
        came = msgspec.structs.replace(first, begin_ts=first_ts, with_state=True)
        epoch = meta.claim("f", "a", 3_600_000) or 0

        def commit(from_ts: int, to_ts: int, dispatcher: Dispatcher) -> None:
            meta.begin_window("f", epoch, from_ts, to_ts, "{}")
            meta.commit_window("f", epoch, from_ts, to_ts, {}, followers=[to_record(dispatcher)])

        commit(0, first_ts, came)
        lab.target.maintainer.publish_checkpoint(first_ts)
        assert [t.unchecked for t in verifier.verify("f").tables] == ["its first state is still being read, or on its way"]
        second_ts = lab.put(4, 5, "y")
        lab.target.write(0, second_ts)
        commit(first_ts, second_ts, msgspec.structs.replace(came, with_state=False))
        assert [t.unchecked for t in verifier.verify("f").tables] == ["its first state is still being read, or on its way"]
        lab.target.maintainer.publish_checkpoint(second_ts)
        assert verifier.verify("f").tables == (TableVerdict("d.a", 5),)
    finally:
        meta.close()
