"""Slots, ranges, partitions, restarts and dropped tables of the PostgreSQL upstream, against a real server."""

import itertools
import threading

import pytest

from penstock.model.batch import BatchKind, Op
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.source.postgres.log_reader import LogReaderSettings
from penstock.source.postgres.slot import parse_lsn, read_slot
from penstock.source.postgres.upstream import PostgresSettings, PostgresUpstream
from penstock.source.postgres.wire.address import parse_address
from penstock.source.postgres.wire.connection import Connection
from penstock.source.single_log import LogPosition
from testing.servers.databases.postgres_answers import drop_slot, same_rows, server_rows, slot_of, table_of
from testing.servers.databases.postgres_lab import Replica, read_until
from testing.servers.waiting import wait_until

pytestmark = pytest.mark.integration
SOON_S = 120.0


def test_only_what_is_confirmed_is_let_go(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY)")
    start = upstream.first_position()
    lab.sql("INSERT INTO shop.t VALUES (1)")
    end = upstream.log_end()
    steps = read_until(upstream, start, end)
    with lab.session() as session:
        assert read_slot(session, upstream.address.slot).confirmed_lsn <= parse_lsn(start.text)
    ticket = upstream.begin_snapshot()
    lab.sql("INSERT INTO shop.t VALUES (2)")
    reading = upstream.read_log(steps[-1].position, [], lambda _: True, threading.Event())
    step = next(s for s in reading if s.changes)
    upstream.confirm(step.position)
    reading.close()
    with lab.session() as session:
        held = read_slot(session, upstream.address.slot).confirmed_lsn
    assert held <= parse_lsn(ticket.start.text), "the log since an open snapshot stays readable"
    upstream.end_snapshot(ticket)
    upstream.end_snapshot(ticket)
    reading = upstream.read_log(step.position, [], lambda _: True, threading.Event())
    for _ in range(3):
        # The catalog must have been looked at, too.
        next(reading)
        upstream.confirm(step.position)
    reading.close()
    wait_until(lambda: slot_of(lab, upstream).confirmed_lsn >= parse_lsn(step.position.text), "the slot is not confirmed", SOON_S)
    with pytest.raises(PenstockError, match="LOG_PURGED"):
        next(upstream.read_log(start, [], lambda _: True, threading.Event()))


def test_slots_that_cannot_be_read_are_refused_with_the_way_out(lab, upstream):
    start = upstream.first_position()
    drop_slot(upstream.address)
    with pytest.raises(PenstockError, match=r"LOG_PURGED.*is gone"):
        next(upstream.read_log(start, [], lambda _: True, threading.Event()))
    lab.sql(f"SELECT pg_create_logical_replication_slot('{upstream.address.slot}', 'pgoutput', false, true)")
    with pytest.raises(PenstockError, match="two_phase") as caught:
        upstream.first_position()
    assert caught.value.code == "UPSTREAM_MISCONFIGURED"
    drop_slot(upstream.address)
    lab.sql(f"SELECT pg_create_physical_replication_slot('{upstream.address.slot}', true)")
    with pytest.raises(PenstockError, match="UPSTREAM_MISCONFIGURED"):
        upstream.first_position()
    drop_slot(upstream.address)
    assert not drop_slot(upstream.address)
    elsewhere = LogPosition(start.ts, start.text.partition("@")[0] + "@12345")
    upstream.first_position()
    with pytest.raises(PenstockError, match=r"UPSTREAM_MISCONFIGURED.*12345"):
        next(upstream.read_log(elsewhere, [], lambda _: True, threading.Event()))
    ahead = LogPosition(start.ts, "FF/0@" + start.text.partition("@")[2])
    with pytest.raises(PenstockError, match=r"LOG_PURGED.*restored or failed over"):
        next(upstream.read_log(ahead, [], lambda _: True, threading.Event()))


def test_key_ranges_cover_a_table_and_divide_its_rows(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id bigint PRIMARY KEY, v text); CREATE TABLE shop.w (k text PRIMARY KEY); CREATE TABLE shop.n (v int)")
    lab.sql(
        "INSERT INTO shop.t SELECT g * 3 - 3000, 'v' FROM generate_series(1, 3000) g; INSERT INTO shop.n SELECT generate_series(1, 3000)"
    )
    lab.sql("INSERT INTO shop.w SELECT md5(g::text) || chr(233) FROM generate_series(1, 3000) g; ANALYZE shop.t, shop.w, shop.n")
    from penstock.source.postgres.snapshot.key_ranges import RangeSettings

    divided = PostgresUpstream(
        f"{lab.uri}?slot={upstream.address.slot}", PostgresSettings(ranges=RangeSettings(range_rows=500), reader_wait_s=0.0)
    )
    # Keys of which there are no statistics, or none that tell: a sample of pages does.
    keys = {
        "s": ("uuid", "md5(g::text)::uuid"),
        "x": ('text COLLATE "und-x-icu"', "chr(65 + g % 58) || g"),
        "p": ("char(8)", "chr(33 + g % 90) || g"),
        "m": ("timestamptz", "'2026-01-01'::timestamptz + g * interval '1 min'"),
        "f": ("double precision", "g / 7.0"),
    }
    for name, (kind, value) in keys.items():
        lab.sql(f"CREATE TABLE shop.{name} (k {kind}, g int, PRIMARY KEY (k, g)); ALTER TABLE shop.{name} SET (autovacuum_enabled = off)")
        lab.sql(f"INSERT INTO shop.{name} SELECT {value}, g FROM generate_series(1, 3000) g")
    ticket = divided.begin_snapshot()
    for table in divided.list_tables():
        pieces = divided.divide(Span(table.table_id))
        assert len(pieces) > 3, table.table
        assert (pieces[0].start_key, pieces[-1].end_key) == (b"", b"")
        assert [p.start_key for p in pieces[1:]] == [p.end_key for p in pieces[:-1]]
        replica, sizes = Replica(), []
        for piece in pieces:
            batches = list(divided.read_snapshot(ticket, piece, table, 1000))
            sizes.append(sum(b.header.rows for b in batches))
            replica.apply_snapshot(iter(batches))
        assert sum(sizes) == len(replica.rows(table.table_id)) == 3000
        assert max(sizes) < 1500
        same_rows(table, replica.rows(table.table_id), server_rows(lab, divided, table))
        assert [b.header.rows for b in divided.read_now(Span(table.table_id))]
    divided.end_snapshot(ticket)

    def is_stale():
        try:
            return not list(divided.read_snapshot(ticket, Span(table.table_id), table, 10))
        except PenstockError as error:
            return "no longer held" in error.detail

    wait_until(is_stale, "the slot does not go stale", SOON_S)
    divided.close()


def test_snapshots_come_in_key_order_whatever_the_key_is(lab, upstream):
    keys = {
        "icu": ('text COLLATE "und-x-icu"', "chr(65 + g % 58) || chr(97 + g % 26) || g"),
        "padded": ("char(6)", "chr(33 + g % 90) || g"),
        "moment": ("timestamptz", "'2026-01-01'::timestamptz + (g * 7919 % 100000) * interval '0.25s'"),
        "exact": ("numeric", "(g * 7919 % 1000 - 500) / 8.0 + g * 1000"),
        "wide": ("double precision", "(g * 7919 % 1000 - 500) / 7.0 + g * 0.001"),
        "ident": ("uuid", "md5(g::text)::uuid"),
        "raw": ("bytea", "decode(md5(g::text), 'hex') || '\\x00'::bytea"),
        "day": ("date", "'0003-01-01'::date - g"),
        "mood": ("boolean", "g = 1"),
        "small": ("smallint", "100 - g"),
    }
    for name, (kind, value) in keys.items():
        lab.sql(f"CREATE TABLE shop.{name} (v int, k {kind}, PRIMARY KEY (k))")
        lab.sql(f"INSERT INTO shop.{name} SELECT g, {value} FROM generate_series(1, {2 if name == 'mood' else 200}) g")
    lab.sql('CREATE TABLE shop.pair (a int, v int, b text COLLATE "und-x-icu", PRIMARY KEY (b, a))')
    lab.sql("INSERT INTO shop.pair SELECT g % 7, g, chr(65 + g % 58) FROM generate_series(1, 200) g ON CONFLICT DO NOTHING; ANALYZE")
    upstream.first_position()
    ticket = upstream.begin_snapshot()
    for table in upstream.list_tables():
        batches = list(upstream.read_snapshot(ticket, Span(table.table_id), table, 16))
        found = [k for b in batches for k in b.records.column("_key").to_pylist()]
        assert found == sorted(set(found)), table.table
        replica = Replica()
        replica.apply_snapshot(iter(batches))
        same_rows(table, replica.rows(table.table_id), server_rows(lab, upstream, table))
        cut = found[len(found) // 3]
        parts = [Span(table.table_id, b"", cut), Span(table.table_id, cut, b"")]
        divided = [k for p in parts for b in upstream.read_snapshot(ticket, p, table, 50) for k in b.records.column("_key").to_pylist()]
        assert divided == found, table.table
    upstream.end_snapshot(ticket)


def test_partitioned_tables_are_one_table(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)")
    lab.sql("CREATE TABLE shop.t1 PARTITION OF shop.t FOR VALUES FROM (0) TO (10); CREATE TABLE shop.t2 PARTITION OF shop.t DEFAULT")
    start = upstream.first_position()
    lab.sql(
        "INSERT INTO shop.t SELECT g, g FROM generate_series(5, 15) g; UPDATE shop.t SET id = id + 100 WHERE id < 7;"
        "DELETE FROM shop.t2 WHERE id = 15"
    )
    replica = Replica()
    for step in read_until(upstream, start, upstream.log_end()):
        replica.apply(step)
    assert [t.table for t in upstream.list_tables() if t.schema == "shop"] == ["t"]
    table = table_of(upstream)
    same_rows(table, replica.rows(table.table_id), server_rows(lab, upstream, table))


def test_rows_under_the_name_of_a_partition_are_refused(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE shop.t1 PARTITION OF shop.t DEFAULT")
    lab.sql("CREATE PUBLICATION by_parts FOR ALL TABLES")
    parts = lab.upstream(f"?slot={upstream.address.slot}&publication=by_parts")
    start = parts.first_position()
    root = table_of(parts).table_id
    lab.sql("INSERT INTO shop.t VALUES (1)")
    end = parts.log_end()
    with pytest.raises(PenstockError, match=r"UPSTREAM_MISCONFIGURED.*shop\.t1") as caught:
        read_until(parts, start, end, wanted=lambda table_id: table_id == root)
    assert "publish_via_partition_root" in caught.value.hint
    assert read_until(parts, start, end, wanted=lambda _: False)[-1].position is not None
    parts.close()
    lab.sql("DROP PUBLICATION by_parts")


def test_a_restart_of_the_server_loses_nothing(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY)")
    start = upstream.first_position()
    lab.sql("INSERT INTO shop.t VALUES (1)")
    reading = upstream.read_log(start, [], lambda _: True, threading.Event())
    step = next(s for s in reading if s.changes)
    lab.restart()
    with pytest.raises(PenstockError) as caught:
        list(itertools.islice(reading, 1000))
    assert caught.value.code == "UPSTREAM_UNREACHABLE"
    lab.sql("INSERT INTO shop.t VALUES (2)")
    steps = read_until(upstream, step.position, upstream.log_end())
    assert [r["c1"] for s in steps for c in s.changes for r in c.records.to_pylist()] == [2]
    assert upstream.current_ts() > steps[-1].position.ts


def test_ways_to_prove_a_password(lab, upstream, tmp_path):
    lab.sql("SET password_encryption = 'scram-sha-256'; CREATE ROLE scrammy LOGIN REPLICATION PASSWORD 'p@ss word'")
    lab.sql("SET password_encryption = 'md5'; CREATE ROLE oldie LOGIN PASSWORD 'secret'")
    hba = lab.directory / "data" / "pg_hba.conf"
    kept = hba.read_text()
    hba.write_text("host all scrammy all scram-sha-256\nhost all oldie all md5\n" + kept)
    lab.sql("SELECT pg_reload_conf()")
    address = parse_address(lab.uri)
    where = f"{address.host}:{address.port}/{address.database}"
    try:
        for login in ("scrammy:p%40ss%20word", "oldie:secret"):
            with Connection(parse_address(f"postgresql://{login}@{where}")) as session:
                assert session.query("SELECT current_user")[0][0] == login.partition(":")[0]
        for login in ("scrammy:wrong", "oldie:wrong"):
            with pytest.raises(PenstockError, match=r"UPSTREAM_REFUSED.*password") as caught:
                Connection(parse_address(f"postgresql://{login}@{where}"))
            assert "wrong" not in str(caught.value)
        with pytest.raises(PenstockError, match=r"UPSTREAM_REFUSED.*no TLS"):
            Connection(parse_address(f"{lab.uri}?sslmode=require"))
        with pytest.raises(PenstockError, match=r"UPSTREAM_REFUSED.*does not exist"):
            Connection(parse_address(f"postgresql://penstock@{address.host}:{address.port}/nothing"))
        modest = PostgresUpstream(f"postgresql://scrammy:p%40ss%20word@{where}?publication=other")
        with pytest.raises(PenstockError, match="UPSTREAM_MISCONFIGURED") as caught:
            modest.first_position()
        assert 'CREATE PUBLICATION "other" FOR ALL TABLES' in caught.value.hint
        modest.close()
    finally:
        hba.write_text(kept)
        lab.sql("SELECT pg_reload_conf(); DROP ROLE scrammy; DROP ROLE oldie")


def test_one_transaction_changes_a_row_and_its_table(lab, upstream):
    lab.sql(
        "CREATE TABLE shop.t (id int PRIMARY KEY, v int); ALTER TABLE shop.t REPLICA IDENTITY FULL;INSERT INTO shop.t VALUES (1, 1), (2, 2)"
    )
    start = upstream.first_position()
    replica = Replica()
    ticket = upstream.begin_snapshot()
    replica.apply_snapshot(upstream.read_snapshot(ticket, Span(table_of(upstream).table_id), table_of(upstream), 9))
    upstream.end_snapshot(ticket)
    lab.sql(
        "BEGIN; UPDATE shop.t SET v = 10; INSERT INTO shop.t VALUES (3, 3); ALTER TABLE shop.t ADD w int DEFAULT 5;"
        "UPDATE shop.t SET v = v + 1, w = 6 WHERE id IN (1, 3); DELETE FROM shop.t WHERE id = 2;"
        "INSERT INTO shop.t VALUES (2, 20, 7); COMMIT"
    )
    found = []
    for step in read_until(upstream, ticket.start, upstream.log_end()):
        found += [(Op(r["_op"]).name, r["c1"], r["c2"], r.get("c3")) for c in step.changes for r in c.records.to_pylist()]
        replica.apply(step)
    assert sorted(found) == [
        *(("BEFORE", 1, 1, None), ("BEFORE", 2, 2, None)),
        *(("INSERT", 3, 4, 6), ("UPDATE", 1, 11, 6), ("UPDATE", 2, 20, 7)),
    ]
    table = table_of(upstream)
    same_rows(table, replica.rows(table.table_id), server_rows(lab, upstream, table))
    assert parse_lsn(start.text) <= parse_lsn(ticket.start.text)


def test_before_images_stand_beside_updates(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY, v int); ALTER TABLE shop.t REPLICA IDENTITY FULL; INSERT INTO shop.t VALUES (1, 1)")
    start = upstream.first_position()
    lab.sql("BEGIN; UPDATE shop.t SET v = 2; UPDATE shop.t SET v = 3; DELETE FROM shop.t; INSERT INTO shop.t VALUES (1, 4); COMMIT")
    lab.sql("BEGIN; INSERT INTO shop.t VALUES (2, 1); DELETE FROM shop.t WHERE id = 2; COMMIT")
    found = [
        (c.header.kind, Op(r["_op"]).name, r["c1"], r["c2"])
        for s in read_until(upstream, start, upstream.log_end())
        for c in s.changes
        for r in c.records.to_pylist()
    ]
    assert sorted(found) == [
        (BatchKind.DATA, "UPDATE", 1, 4),
        (BatchKind.TOMBSTONE, "BEFORE", 1, 1),
        (BatchKind.TOMBSTONE, "DELETE", 2, 1),
    ]


def test_a_publication_of_some_rows_and_columns_gives_a_snapshot_of_the_same(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY, secret text, v int); CREATE TABLE shop.w (a int, b int)")
    lab.sql("CREATE PUBLICATION part FOR TABLE shop.t (id, v) WHERE (id % 2 = 0 OR id > 100), shop.w WHERE (a < 3)")
    lab.sql("ALTER TABLE shop.t REPLICA IDENTITY DEFAULT; INSERT INTO shop.t SELECT g, 'hidden', g FROM generate_series(1, 40) g")
    lab.sql("INSERT INTO shop.w SELECT g, g FROM generate_series(1, 5) g")
    partial = lab.upstream(f"?slot={upstream.address.slot}&publication=part")
    tables = {t.full_name: t for t in partial.list_tables()}
    assert [c.name for c in tables["shop.t"].columns] == ["id", "v"]
    start = partial.first_position()
    replica = Replica()
    ticket = partial.begin_snapshot()
    for table in tables.values():
        replica.apply_snapshot(partial.read_snapshot(ticket, Span(table.table_id), table, 7))
    partial.end_snapshot(ticket)
    # Rows that come into the part, leave it, and change in it.
    lab.sql("INSERT INTO shop.t VALUES (50, 'x', 1), (51, 'x', 1), (201, 'x', 1); UPDATE shop.t SET v = -1, secret = 'y' WHERE id < 5")
    lab.sql(
        "UPDATE shop.t SET id = id + 1000 WHERE id = 7; DELETE FROM shop.t WHERE id IN (8, 9); INSERT INTO shop.w VALUES (2, 9), (7, 9)"
    )
    for step in read_until(partial, ticket.start, partial.log_end()):
        replica.apply(step)
    assert parse_lsn(ticket.start.text) >= parse_lsn(start.text)
    for name, listed, condition in (("t", "id, v", "id % 2 = 0 OR id > 100"), ("w", "a, b", "a < 3")):
        table = tables[f"shop.{name}"]
        expected = [tuple(int(v) for v in row) for row in lab.sql(f"SELECT {listed} FROM shop.{name} WHERE {condition}")]
        got = [tuple(row.values()) for row in replica.rows(table.table_id)]
        assert sorted(got) == sorted(expected)
        assert sorted(tuple(r.values())[3:] for b in partial.read_now(Span(table.table_id)) for r in b.records.to_pylist()) == sorted(
            expected
        )
    partial.close()
    lab.sql("DROP PUBLICATION part")


def test_tables_that_are_dropped_are_told_when_the_log_is_quiet_or_their_name_comes_back(lab, upstream):
    lab.sql(
        "CREATE TABLE shop.t (id int PRIMARY KEY); CREATE TABLE shop.u (id int PRIMARY KEY); CREATE TABLE shop.kept (id int PRIMARY KEY)"
    )
    start = upstream.first_position()
    old = {t.table: t.table_id for t in upstream.list_tables()}
    reading = upstream.read_log(start, [], lambda table_id: table_id in old.values(), threading.Event())
    lab.sql("INSERT INTO shop.t VALUES (1); INSERT INTO shop.kept VALUES (1)")
    steps = [next(reading)]
    lab.sql("DROP TABLE shop.t")
    while not any(d.type is DdlType.DROP_TABLE for s in steps for d in s.ddls):
        steps.append(next(reading))
    (drop,) = [d for s in steps for d in s.ddls]
    assert (drop.query, drop.dropped_table_ids) == ("DROP TABLE `shop`.`t`", (old["t"],))
    assert drop.commit_ts == steps[-1].position.ts > max(c.header.max_ts for s in steps for c in s.changes)
    # Gone and made again before anybody looked: the new table takes the old one's place.
    lab.sql("DROP TABLE shop.u; CREATE TABLE shop.u (id int PRIMARY KEY, more text); INSERT INTO shop.u VALUES (5, 'new')")
    more = [next(reading)]
    while len(more) < 5 or not any(d.type is DdlType.CREATE_TABLE for s in more for d in s.ddls):
        more.append(next(reading))
    reading.close()
    ddls = [d for s in more for d in s.ddls]
    assert [i for d in ddls for i in d.dropped_table_ids] == [old["u"]]
    assert ddls[-1].type is DdlType.CREATE_TABLE
    assert [t.full_name for t in ddls[-1].tables] == ["shop.u"]


def test_a_table_that_is_dropped_under_load_is_told_too(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY); CREATE TABLE shop.busy (id bigserial PRIMARY KEY, v text)")
    settings = PostgresSettings(LogReaderSettings(look_interval_s=0.3, mark_interval_s=1000.0), reader_wait_s=0.0)
    busy = PostgresUpstream(f"{lab.uri}?slot={upstream.address.slot}", settings)
    start = busy.first_position()
    gone = table_of(busy).table_id
    stop, written = threading.Event(), []

    def write():
        with lab.session() as session:
            while not stop.is_set():
                session.query("INSERT INTO shop.busy (v) VALUES ('x')")
                written.append(1)

    lab.sql("INSERT INTO shop.t VALUES (1)")
    writer = threading.Thread(target=write)
    writer.start()
    try:
        reading = busy.read_log(start, [], lambda _: True, threading.Event())
        steps = [next(reading)]
        lab.sql("DROP TABLE shop.t")
        while not any(s.ddls for s in steps[-1:]):
            steps.append(next(reading))
    finally:
        stop.set()
        writer.join()
    (drop,) = steps[-1].ddls
    assert (drop.type, drop.dropped_table_ids) == (DdlType.DROP_TABLE, (gone,))
    mark = steps[-1].position
    assert drop.commit_ts == mark.ts
    assert max(c.header.max_ts for s in steps for c in s.changes) < mark.ts
    end = busy.log_end()
    while steps[-1].position is None or not busy.reached(steps[-1].position.text, end):
        steps.append(next(reading))
    reading.close()
    # Read again with the mark, every commit has the ts that it had.
    again = read_until(busy, start, end, [mark])
    for way in (steps, again):
        assert sum(c.header.rows for s in way for c in s.changes) == len(written) + 1

    def stamps(way):
        return [ts for s in way for c in s.changes for ts in c.records.column("_ts").to_pylist()]

    assert sorted(stamps(steps)) == sorted(stamps(again))
    busy.close()
