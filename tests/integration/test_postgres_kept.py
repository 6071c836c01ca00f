"""What only the server or this process knew is kept before it is let go of, so that a process that comes back finds it."""

import dataclasses
import threading

import pytest
from testing.servers.postgres_followed import QUICK, FollowedTables

from penstock.model.span import Span
from penstock.source.postgres.upstream import PostgresSettings, PostgresUpstream
from penstock.source.single_log import LogPosition
from testing.servers.databases.postgres_lab import Replica, read_until

pytestmark = pytest.mark.integration

T = "CREATE TABLE shop.t (id int PRIMARY KEY, a int); INSERT INTO shop.t VALUES (1, 10), (2, 20);"
SELDOM = dataclasses.replace(QUICK.reader, mark_interval_s=1e6, look_interval_s=1e6)


def versions_of(upstream):
    return [*(v for t in upstream.list_tables() for v in upstream.schema_history(t.table_id)), *upstream.notes()]


def test_the_log_is_not_let_go_of_before_somebody_looked_at_the_catalog(lab, upstream):
    """The server forgets who changed its catalog once that is confirmed, so a process that is killed before its next look would too."""
    lab.sql(T + "CREATE TABLE shop.u (id int PRIMARY KEY)")
    killed = PostgresUpstream(f"{lab.uri}?slot={upstream.address.slot}", PostgresSettings(SELDOM, reader_wait_s=0.0))
    again = PostgresUpstream(f"{lab.uri}?slot={upstream.address.slot}", QUICK)
    try:
        first = FollowedTables(lab, killed)
        first.begin()
        reading = killed.read_log(first.position, [], lambda _: True, threading.Event())
        lab.sql("INSERT INTO shop.u VALUES (0)")
        first.apply(next(s for s in reading if s.changes))
        lab.sql("ALTER TABLE shop.t ALTER a TYPE int USING a * 100")
        for number in (1, 2, 3):
            # A checkpoint logs which transactions run: the server lets go of those before it.
            lab.sql("CHECKPOINT")
            lab.sql(f"INSERT INTO shop.u VALUES ({number})")
            step = next(s for s in reading if s.changes)
            first.apply(step)
            killed.confirm(step.position)
        versions = versions_of(killed)
        reading.close()
        again.adopt_schemas(versions)
        second = FollowedTables(lab, again)
        second.resume(first)
        second.follow()
        assert second.doubted() == second.wrong().keys() == {"t"}
    finally:
        killed.close()
        again.close()


def test_a_snapshot_that_nobody_read_the_log_of_keeps_its_place_in_the_chain(lab, upstream):
    """Its ts is above commits that come behind it, unless whoever reads the log later, after a restart as well, knows of it."""
    lab.sql(T)
    start = upstream.first_position()
    far = LogPosition(start.ts + (1 << 40), start.text)
    # Whoever read before was far ahead of the server's clock, so that the snapshot is, too.
    lab.sql("INSERT INTO shop.t VALUES (4, 40)")
    read_until(upstream, far, upstream.log_end())
    table = next(t for t in upstream.list_tables() if t.table == "t")
    replica = Replica()
    ticket = upstream.begin_snapshot()
    replica.apply_snapshot(upstream.read_snapshot(ticket, Span(table.table_id), table, 100))
    assert ticket.start.ts > far.ts
    notes = versions_of(upstream)
    upstream.end_snapshot(ticket)
    lab.sql("INSERT INTO shop.t VALUES (3, 30); DELETE FROM shop.t WHERE id = 1")
    again = lab.upstream(f"?slot={upstream.address.slot}")
    try:
        again.adopt_schemas(notes)
        # What is at or below the snapshot is in it.
        behind = [s for s in read_until(again, start, again.log_end()) if s.changes and s.changes[0].header.min_ts > ticket.start.ts]
        for step in behind:
            replica.apply(step)
        assert [str(r["c1"]) for r in replica.rows(table.table_id)] == [n for (n,) in lab.sql("SELECT id FROM shop.t ORDER BY id")]
    finally:
        again.close()


def test_a_table_whose_columns_are_all_generated_is_not_passed_over(lab, upstream):
    lab.sql("CREATE TABLE shop.g (id int PRIMARY KEY, n int GENERATED ALWAYS AS (5) STORED); INSERT INTO shop.g VALUES (1), (2)")
    quick = PostgresUpstream(f"{lab.uri}?slot={upstream.address.slot}", QUICK)
    try:
        followed = FollowedTables(lab, quick)
        followed.begin()
        followed.follow()
        lab.sql("ALTER TABLE shop.g DROP COLUMN id; INSERT INTO shop.g DEFAULT VALUES")
        followed.follow()
        assert [(d.table, d.code) for d in followed.doubts if d.code] == [("g", "UPSTREAM_MISCONFIGURED")]
        said = len(followed.doubts)
        lab.sql("ALTER TABLE shop.g ADD COLUMN v int DEFAULT 7; INSERT INTO shop.g (v) VALUES (8)")
        followed.follow()
        assert len(followed.doubts) > said, "and read again when it can be"
    finally:
        quick.close()
