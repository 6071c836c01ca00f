"""The PostgreSQL upstream against a real server: what it reads is compared with what the server itself answers."""

import random
import threading

import pytest

from penstock.model.batch import Op
from penstock.model.clock import SystemClock
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.source.postgres.log_reader import LogReaderSettings
from penstock.source.postgres.slot import parse_lsn
from penstock.source.postgres.upstream import PostgresSettings, PostgresUpstream
from penstock.source.single_log import LogPosition
from testing.servers.databases.postgres_answers import same_rows, server_rows, table_of
from testing.servers.databases.postgres_lab import Replica, read_until

pytestmark = pytest.mark.integration

TYPES = {
    "int2": ("smallint", ["0", "-32768", "32767"]),
    "int4": ("integer", ["-2147483648", "2147483647"]),
    "int8": ("bigint", ["-9223372036854775808", "9223372036854775807"]),
    "oid": ("oid", ["0", "4294967295"]),
    "f4": ("real", ["0.1", "1e-37", "3.4028235e38", "'NaN'", "'-Infinity'", "-0.0", "1.17549435e-38"]),
    "f8": ("double precision", ["0.1", "5e-324", "1.7976931348623157e308", "'NaN'", "'Infinity'", "123456789.12345679", "-0.0"]),
    "num": ("numeric(12,3)", ["0", "-0.001", "999999999.999", "'NaN'"]),
    "num65": ("numeric(65,30)", ["12345678901234567890123456789012345.123456789012345678901234567891"]),
    "numfree": ("numeric", ["1e400", "0.000000000000000000000000000000000000001", "'NaN'", "'Infinity'", "'-Infinity'"]),
    "numneg": ("numeric(3,-2)", ["12300"]),
    "flag": ("boolean", ["true", "false"]),
    "txt": ("text", ["''", "E'tab\\t, quote \" \\' line\\n back \\\\ \\\\N'", "'\u00fc\U0001f600'", "repeat('long ', 3000)"]),
    "chr": ("char(5)", ["'ab'", "''", "'abcde'"]),
    "vchr": ("varchar(10)", ["'0123456789'"]),
    "nam": ("name", ["'a name'"]),
    "one": ('"char"', ["'x'"]),
    "byt": ("bytea", ["'\\x'", "'\\x00ff5c0a09'", "decode(repeat('ab', 4000), 'hex')"]),
    "dat": ("date", ["'2026-02-28'", "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'5874897-12-31'"]),
    "tim": ("time", ["'00:00'", "'24:00'", "'23:59:59.999999'"]),
    "tim3": ("time(3)", ["'12:34:56.789'"]),
    "timtz": ("timetz", ["'12:00:00.5-08'"]),
    "tst": ("timestamp", ["'2026-01-02 03:04:05.000001'", "'infinity'", "'4713-01-01 00:00:00 BC'", "'294276-12-31 23:59:59.999999'"]),
    "tst0": ("timestamp(0)", ["'2026-01-02 03:04:05.6'"]),
    "tstz": ("timestamptz", ["'2026-01-02 03:04:05.5+13:45'", "'-infinity'", "'0044-03-15 00:00:00+00 BC'", "'2026-01-01 00:00:00+00'"]),
    "itv": ("interval", ["'1 year 2 mons -3 days 04:05:06.789'", "'0'"]),
    "uid": ("uuid", ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"]),
    "js": ("json", ['\'{"b": 1,  "a": [1, null, "x\\\\n"]}\'', "'null'"]),
    "jsb": ("jsonb", ['\'{"b": 1.50, "a": {"k": "\\\\u00e9"}}\'', "'12345678901234567890.123'"]),
    "net": ("inet", ["'10.1.2.3/8'", "'::1'"]),
    "cid": ("cidr", ["'192.168.0.0/16'"]),
    "mac": ("macaddr", ["'08:00:2b:01:02:03'"]),
    "mood": ("lab_mood", ["'fine'", "'so so'"]),
    "pos": ("lab_positive", ["42"]),
    "eur": ("lab_euro", ["12.34"]),
    "arr": ("integer[]", ["'{}'", "'{1,NULL,-3}'", "'{{1,2},{3,4}}'"]),
    "tarr": ("text[]", ["ARRAY['a\"b', 'c,d', NULL, 'NULL', 'e\\f']"]),
    "rng": ("int4range", ["'[1,10)'", "'empty'"]),
    "tsr": ("tstzrange", ["'[2026-01-01 00:00+00,2026-02-01 00:00+00)'"]),
    "mrg": ("int4multirange", ["'{[1,3),[5,7)}'"]),
    "pnt": ("point", ["'(1.5,-2)'"]),
    "ply": ("polygon", ["'((0,0),(1,1),(1,0))'"]),
    "bits": ("bit(3)", ["B'101'"]),
    "vbits": ("varbit", ["B'1'", "B''"]),
    "mny": ("money", ["'12.34'"]),
    "xml": ("xml", ["'<a b=\"1\">x</a>'"]),
    "tsv": ("tsvector", ["'fat:1 rat:2'"]),
    "lsn": ("pg_lsn", ["'16/B374D848'"]),
    "comp": ("lab_pair", ["ROW(1, 'x,y')"]),
}


def test_every_type_as_the_server_answers_it_by_log_and_by_snapshot(lab, upstream):
    lab.sql("CREATE TYPE lab_mood AS ENUM ('fine', 'so so'); CREATE TYPE lab_pair AS (a int, b text)")
    lab.sql(
        "CREATE DOMAIN lab_positive AS int CHECK (value > 0); CREATE DOMAIN lab_money AS numeric(9,2); CREATE DOMAIN lab_euro AS lab_money"
    )
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    lab.sql(f"CREATE TABLE shop.t (id int PRIMARY KEY, {columns})")
    start = upstream.first_position()
    count = max(len(values) for _, values in TYPES.values())
    for row in range(count):
        given = {name: values[row % len(values)] for name, (_, values) in TYPES.items()}
        casts = ", ".join(f"({v})::{TYPES[n][0]}" for n, v in given.items())
        lab.sql(f"INSERT INTO shop.t (id, {', '.join(given)}) SELECT {row}, {casts}")
    lab.sql("INSERT INTO shop.t (id) VALUES (99)")
    replica = Replica()
    for step in read_until(upstream, start, upstream.log_end()):
        replica.apply(step)
    table = table_of(upstream)
    truth = server_rows(lab, upstream, table)
    assert len(truth) == count + 1
    same_rows(table, replica.rows(table.table_id), truth)
    kinds = {c.name: str(c.type.kind) for c in table.columns}
    assert (kinds["num"], kinds["numfree"], kinds["numneg"], kinds["eur"], kinds["pos"]) == (
        "DECIMAL",
        "LONGTEXT",
        "LONGTEXT",
        "DECIMAL",
        "INT",
    )
    assert (kinds["flag"], kinds["byt"], kinds["tstz"], kinds["mood"], kinds["uid"]) == (
        "TINYINT",
        "LONGBLOB",
        "TIMESTAMP",
        "LONGTEXT",
        "CHAR",
    )
    ticket = upstream.begin_snapshot()
    read = Replica()
    read.apply_snapshot(upstream.read_snapshot(ticket, Span(table.table_id), table, 3))
    upstream.end_snapshot(ticket)
    same_rows(table, read.rows(table.table_id), truth)
    assert sorted(read.tables[table.table_id]) == sorted(replica.tables[table.table_id]), "log and snapshot give a row the same key"


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "USING INDEX t_other"])
def test_what_each_replica_identity_gives(lab, upstream, identity):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY, v text, other int NOT NULL)")
    lab.sql(f"CREATE UNIQUE INDEX t_other ON shop.t (other); ALTER TABLE shop.t REPLICA IDENTITY {identity}")
    start = upstream.first_position()
    lab.sql("INSERT INTO shop.t SELECT g, 'v' || g, g * 10 FROM generate_series(1, 4) g")
    lab.sql("UPDATE shop.t SET v = 'new' WHERE id = 2")
    lab.sql("UPDATE shop.t SET id = 30, other = 300 WHERE id = 3")
    lab.sql("DELETE FROM shop.t WHERE id = 4")
    replica, seen = Replica(), []
    for step in read_until(upstream, start, upstream.log_end()):
        replica.apply(step)
        seen += [
            (Op(r["_op"]).name, r["c1"], r["c2"], r["c3"]) for c in step.changes for r in c.records.to_pylist() if r["_op"] != Op.INSERT
        ]
    table = table_of(upstream)
    same_rows(table, replica.rows(table.table_id), server_rows(lab, upstream, table))
    keyed = [c.name for c in table.key_columns]
    assert table.unique_keys == (((1,),) if "INDEX" in identity else ((3,),))
    assert keyed == (["other"] if "INDEX" in identity else ["id"])
    if identity == "FULL":
        want = {("BEFORE", 2, "v2", 20), ("UPDATE", 2, "new", 20), ("DELETE", 3, "v3", 30), ("DELETE", 4, "v4", 40)}
    elif identity == "DEFAULT":
        want = {("UPDATE", 2, "new", 20), ("DELETE", 3, None, None), ("DELETE", 4, None, None)}
    else:
        want = {("UPDATE", 2, "new", 20), ("DELETE", None, None, 30), ("DELETE", None, None, 40)}
    assert set(seen) == want


def test_tables_without_a_key(lab, upstream):
    lab.sql("CREATE TABLE shop.log (at int, note text); CREATE TABLE shop.bag (a int, b text); ALTER TABLE shop.bag REPLICA IDENTITY FULL")
    lab.sql("INSERT INTO shop.log SELECT 1, 'same' FROM generate_series(1, 3); INSERT INTO shop.bag VALUES (1, 'x'), (2, NULL)")
    start = upstream.first_position()
    tables = {t.full_name: t for t in upstream.list_tables()}
    replica = Replica()
    ticket = upstream.begin_snapshot()
    lab.sql("INSERT INTO shop.log SELECT 1, 'same' FROM generate_series(1, 2); INSERT INTO shop.bag VALUES (3, 'z')")
    lab.sql("UPDATE shop.bag SET b = 'y' WHERE a = 2; DELETE FROM shop.bag WHERE a = 1")
    for table in tables.values():
        replica.apply_snapshot(upstream.read_snapshot(ticket, Span(table.table_id), table, 100))
    upstream.end_snapshot(ticket)
    for step in read_until(upstream, ticket.start, upstream.log_end()):
        replica.apply(step)
    assert parse_lsn(ticket.start.text) >= parse_lsn(start.text)
    for table in tables.values():
        same_rows(table, replica.rows(table.table_id), server_rows(lab, upstream, table))
    assert len(replica.rows(tables["shop.log"].table_id)) == 5


def test_an_update_without_identity_is_refused_by_the_server_and_inserts_pass(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY, v text); ALTER TABLE shop.t REPLICA IDENTITY NOTHING")
    start = upstream.first_position()
    lab.sql("INSERT INTO shop.t VALUES (1, 'a')")
    with pytest.raises(PenstockError, match="replica identity"):
        lab.sql("UPDATE shop.t SET v = 'b'")
    replica = Replica()
    for step in read_until(upstream, start, upstream.log_end()):
        replica.apply(step)
    assert replica.rows(table_of(upstream).table_id) == [{"c1": 1, "c2": "a"}]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_values_that_an_update_left_in_place_are_filled(lab, upstream, identity):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY, big text, small int, bytes bytea)")
    lab.sql(f"ALTER TABLE shop.t ALTER big SET STORAGE EXTERNAL, ALTER bytes SET STORAGE EXTERNAL, REPLICA IDENTITY {identity}")
    start = upstream.first_position()
    lab.sql("INSERT INTO shop.t SELECT g, repeat(g::text, 5000), g, decode(repeat('ab', 5000), 'hex') FROM generate_series(1, 5) g")
    lab.sql("UPDATE shop.t SET small = small + 100 WHERE id < 4")
    lab.sql("BEGIN; INSERT INTO shop.t VALUES (9, repeat('n', 9000), 1); UPDATE shop.t SET small = 2 WHERE id = 9; COMMIT")
    replica = Replica()
    for step in read_until(upstream, start, upstream.log_end()):
        replica.apply(step)
    table = table_of(upstream)
    truth = server_rows(lab, upstream, table)
    assert len(truth[0]["c2"]) == 5000
    same_rows(table, replica.rows(table.table_id), truth)


def test_values_are_filled_by_keys_of_every_kind(lab, upstream):
    lab.sql("CREATE TABLE shop.t (a text, b bytea, c timestamptz, d numeric, big text, n int, PRIMARY KEY (a, b, c, d))")
    lab.sql("ALTER TABLE shop.t ALTER big SET STORAGE EXTERNAL")
    start = upstream.first_position()
    lab.sql(
        "INSERT INTO shop.t SELECT E'it''s \\\\ ' || g, decode(lpad(to_hex(g), 4, '0'), 'hex'),"
        " '2026-01-01'::timestamptz + g * interval '1s',"
        " g / 8.0, repeat(g::text, 3000), 0 FROM generate_series(1, 9) g"
    )
    lab.sql("UPDATE shop.t SET n = 1 WHERE d > 0.5")
    replica = Replica()
    for step in read_until(upstream, start, upstream.log_end()):
        replica.apply(step)
    table = table_of(upstream)
    same_rows(table, replica.rows(table.table_id), server_rows(lab, upstream, table))


def test_schema_changes_become_versions_with_composed_statements(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY, a int, b text)")
    start = upstream.first_position()
    first = table_of(upstream)
    steps = [
        ("INSERT INTO shop.t VALUES (1, 1, 'x')", None, ""),
        ("ALTER TABLE shop.t ADD COLUMN c numeric(8,2) DEFAULT 1.5", DdlType.ADD_COLUMN, "ADD COLUMN `c` DECIMAL(8,2) DEFAULT '1.5'"),
        ("ALTER TABLE shop.t RENAME COLUMN a TO a2", DdlType.MODIFY_COLUMN, "RENAME COLUMN `a` TO `a2`"),
        ("ALTER TABLE shop.t DROP COLUMN b", DdlType.DROP_COLUMN, "DROP COLUMN `b`"),
        ("ALTER TABLE shop.t ALTER a2 TYPE bigint", DdlType.MODIFY_COLUMN, "MODIFY COLUMN `a2` BIGINT"),
        ("ALTER TABLE shop.t RENAME TO t2", DdlType.RENAME_TABLE, "RENAME TABLE `shop`.`t` TO `shop`.`t2`"),
    ]
    seen: list = []
    replica = Replica()
    position, name = start, "t"
    for number, (statement, _, _) in enumerate(steps, 2):
        lab.sql(statement)
        name = "t2" if "t2" in statement else name
        lab.sql(f"INSERT INTO shop.{name} (id) VALUES ({number})")
        for step in read_until(upstream, position, upstream.log_end()):
            replica.apply(step)
            seen += step.ddls
            position = step.position or position
    assert [d.type for d in seen] == [kind for _, kind, _ in steps if kind is not None]
    assert all(text in d.query for d, (_, _, text) in zip(seen, steps[1:], strict=True))
    history = upstream.schema_history(first.table_id)
    assert [v.version for v in history] == [first.version, *(d.commit_ts for d in seen)]
    newest = history[-1]
    assert [(c.id, c.name) for c in newest.columns] == [(1, "id"), (2, "a2"), (4, "c")]
    last = replica.rows(first.table_id)[-1]
    assert last == {"c1": 7, "c2": None, "c4": "1.50"}
    again = lab.upstream(f"?slot={upstream.address.slot}")
    again.adopt_schemas(history)
    repeated = read_until(again, start, upstream.log_end())
    assert [d for s in repeated for d in s.ddls] == seen, "the same log gives the same DDLs, and the store knows them already"
    again.close()


def test_truncate_gives_the_table_a_new_id(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY); CREATE TABLE shop.o (id int PRIMARY KEY); INSERT INTO shop.t VALUES (1), (2)")
    start = upstream.first_position()
    before = table_of(upstream)
    lab.sql("BEGIN; INSERT INTO shop.o VALUES (5); TRUNCATE shop.t, shop.o; INSERT INTO shop.t VALUES (7); COMMIT")
    replica = Replica()
    for step in read_until(upstream, start, upstream.log_end()):
        replica.apply(step)
    after = table_of(upstream)
    assert after.table_id != before.table_id
    truncated = next(d for d in replica.ddls if d.tables[0].table == "t")
    assert (truncated.type, truncated.dropped_table_ids, truncated.tables[0]) == (DdlType.TRUNCATE_TABLE, (before.table_id,), after)
    assert replica.rows(after.table_id) == [{"c1": 7}]
    assert all(d.commit_ts < replica.last_ts for d in replica.ddls)


@pytest.mark.parametrize("way", ["", "&streaming=on"])
def test_large_transactions_and_savepoints(lab, upstream, way):
    """Small limits send a transaction to disk in many pieces; savepoints that are rolled back leave nothing."""
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY, v text, n int); ALTER TABLE shop.t REPLICA IDENTITY FULL")
    lab.sql("INSERT INTO shop.t SELECT g, 'old', 0 FROM generate_series(1, 500) g")
    start = upstream.first_position()
    replica = Replica()
    settings = PostgresSettings(LogReaderSettings(chunk_bytes=1 << 12, rows_max=64, transaction_bytes=1 << 14), reader_wait_s=0.0)
    small = PostgresUpstream(f"{lab.uri}?slot={upstream.address.slot}{way}", settings)
    table = table_of(small)
    ticket = small.begin_snapshot()
    replica.apply_snapshot(small.read_snapshot(ticket, Span(table.table_id), table, 100))
    small.end_snapshot(ticket)
    lab.sql(
        "BEGIN; INSERT INTO shop.t SELECT g, repeat('x', 50), 1 FROM generate_series(501, 2500) g;"
        "SAVEPOINT a; DELETE FROM shop.t WHERE id <= 400; UPDATE shop.t SET n = 2 WHERE id > 2000; ROLLBACK TO a;"
        "UPDATE shop.t SET n = n + 1, v = 'twice' WHERE id % 3 = 0; SAVEPOINT b; DELETE FROM shop.t WHERE id % 5 = 0; RELEASE b;"
        "UPDATE shop.t SET id = id + 10000 WHERE id % 7 = 0;"
        "INSERT INTO shop.t SELECT g, 'back', 9 FROM generate_series(5, 100, 10) g; COMMIT"
    )
    lab.sql("BEGIN; INSERT INTO shop.t SELECT g, 'never', 0 FROM generate_series(20001, 22000) g; ROLLBACK")
    lab.sql("BEGIN; INSERT INTO shop.t VALUES (30000, 'prepared', 0); PREPARE TRANSACTION 'two'")
    lab.sql("INSERT INTO shop.t VALUES (30001, 'between', 0)")
    lab.sql("COMMIT PREPARED 'two'")
    steps = read_until(small, ticket.start, small.log_end())
    whole = [s for s in steps if s.position is None]
    assert len(whole) >= 1, "a large transaction leaves in several steps"
    held: list = []
    for step in steps:
        held.append(step)
        if step.position is not None:
            replica.apply(type(step)(tuple(c for s in held for c in s.changes), tuple(d for s in held for d in s.ddls), step.position))
            held = []
    same_rows(table, replica.rows(table.table_id), server_rows(lab, upstream, table))
    stamps = {ts for s in steps for c in s.changes for ts in c.records.column("_ts").to_pylist()}
    plain = read_until(upstream, ticket.start, upstream.log_end())
    assert {ts for s in plain for c in s.changes for ts in c.records.column("_ts").to_pylist()} == stamps, (
        "the way of sending gives no other ts"
    )
    assert parse_lsn(start.text) <= parse_lsn(ticket.start.text)
    small.close()


def test_random_work_of_several_sessions_with_a_snapshot_amid_it(lab, upstream):
    rng = random.Random(20261115)
    lab.sql("CREATE TABLE shop.t (a int, b text, v int, note text, PRIMARY KEY (b, a)); ALTER TABLE shop.t ALTER note SET STORAGE EXTERNAL")
    start = upstream.first_position()
    sessions = [lab.session() for _ in range(3)]
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(session, seed):
        mine = random.Random(seed)
        while not stop.is_set():
            try:
                transaction(session, mine)
            except PenstockError as error:
                if error.code != "UPSTREAM_UNREACHABLE" and error.sqlstate != "23505":  # deadlocks, keys that are taken
                    failures.append(error)
                    return
                session.query("ROLLBACK")

    threads = [threading.Thread(target=work, args=(s, rng.random())) for s in sessions]
    for thread in threads:
        thread.start()
    steps = read_until(upstream, start, upstream.log_end())
    ticket = upstream.begin_snapshot()
    table = table_of(upstream)
    replica = Replica()
    replica.apply_snapshot(upstream.read_snapshot(ticket, Span(table.table_id), table, 50))
    upstream.end_snapshot(ticket)
    for _ in range(2):
        steps = read_until(upstream, steps[-1].position, upstream.log_end())
    stop.set()
    for thread in threads:
        thread.join()
    for session in sessions:
        session.close()
    assert failures == []
    end = upstream.log_end()
    for step in read_until(upstream, ticket.start, end):
        replica.apply(step)
    same_rows(table, replica.rows(table.table_id), server_rows(lab, upstream, table))
    # From any place whose ts is known, the same log gives the same ts.
    whole = read_until(upstream, ticket.start, end)
    middle = [s.position for s in whole if s.position is not None and not s.mark][len(whole) // 3]
    tail = read_until(upstream, middle, end)
    after = {ts for s in whole for c in s.changes for ts in c.records.column("_ts").to_pylist() if ts > middle.ts}
    assert {ts for s in tail for c in s.changes for ts in c.records.column("_ts").to_pylist()} == after


def transaction(session, rng):
    session.query("BEGIN")
    for _ in range(rng.randrange(1, 6)):
        key = f"({rng.randrange(40)}, 'k{rng.randrange(3)}\u00e9')"
        kind = rng.randrange(8)
        if kind < 4:
            note = "repeat('n', 3000)" if rng.random() < 0.2 else "'short'"
            session.query(
                f"INSERT INTO shop.t (a, b, v, note) SELECT a, b, 1, {note} FROM (VALUES {key}) AS k(a, b) ON CONFLICT DO NOTHING"
            )
        elif kind == 4:
            session.query(f"UPDATE shop.t SET v = v + 1 WHERE (a, b) = {key}")
        elif kind == 5:
            session.query(f"DELETE FROM shop.t WHERE (a, b) = {key}")
        elif kind == 6:
            session.query(f"SAVEPOINT s; UPDATE shop.t SET v = -1 WHERE a < {rng.randrange(40)}; ROLLBACK TO s")
        else:
            session.query(f"UPDATE shop.t SET a = a + 1000 WHERE (a, b) = {key}")
    session.query("COMMIT" if rng.random() < 0.8 else "ROLLBACK")


def test_marks_move_a_quiet_log_on_and_hold_when_it_is_read_again(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY)")
    start = upstream.first_position()
    reading = upstream.read_log(start, [], lambda _: True, threading.Event())
    marks = []
    while len(marks) < 2:
        step = next(reading)
        marks += [step.position] if step.mark else []
    lab.sql("INSERT INTO shop.t VALUES (1)")
    step = next(reading)
    while not step.changes:
        marks += [step.position] if step.mark else []
        step = next(reading)
    reading.close()
    commit_ts = step.changes[0].header.min_ts
    assert start.ts < marks[0].ts < marks[-1].ts < commit_ts
    # A mark that was raised far ahead must lift what is read behind it.
    far = LogPosition(commit_ts + (1 << 40), marks[-1].text)
    again = read_until(upstream, start, upstream.log_end(), [far])
    assert next(s for s in again if s.changes).changes[0].header.min_ts > far.ts


def test_the_end_of_a_log_is_reached_where_the_clock_of_its_server_was_set_back(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY)")
    start = upstream.first_position()
    # As if the server had been an hour ahead when this was read.
    ahead = LogPosition(start.ts + (3_600_000 << 18), start.text)
    lab.sql("INSERT INTO shop.t VALUES (1)")
    # What no commit follows is passed by a mark alone.
    lab.sql("SELECT pg_logical_emit_message(false, 'somebody', repeat('x', 50))")
    end = upstream.log_end()
    steps = read_until(upstream, ahead, end)
    positions = [s.position for s in steps if s.position is not None]
    assert steps[-1].mark
    assert ahead.ts < positions[0].ts < positions[-1].ts
    # Read again with that mark, everything has the ts that it had.
    lab.sql("INSERT INTO shop.t VALUES (2)")
    again = read_until(upstream, ahead, upstream.log_end(), [positions[-1]])
    first, second = (ts for s in again for c in s.changes for ts in c.records["_ts"].to_pylist())
    assert first == positions[0].ts
    assert second > positions[-1].ts


def test_the_end_of_a_quiet_log_is_reached_at_once_even_where_nothing_flushes_it(lab, upstream):
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY)")
    start = upstream.first_position()
    reading = upstream.read_log(start, [], lambda _: True, threading.Event())
    next(reading)
    clock = SystemClock()
    taken_s = []
    for _ in range(2):
        # As a read that tidies up a page: no commit follows, so the server itself is in no hurry.
        lab.sql("SELECT pg_logical_emit_message(false, 'somebody', repeat('x', 50))")
        begun_s, end = clock.monotonic_s(), upstream.log_end()
        while (step := next(reading)).position is None or not upstream.reached(step.position.text, end):
            assert clock.monotonic_s() - begun_s < 10
        taken_s.append(clock.monotonic_s() - begun_s)
    reading.close()
    assert max(taken_s) < 6, taken_s
    # A log that is flushed is left alone.
    ends = [upstream.log_end() for _ in range(5)]
    assert len(set(ends)) < 3, ends
