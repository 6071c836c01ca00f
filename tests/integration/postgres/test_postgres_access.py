"""How a PostgreSQL server is entered and how its log gets lost: TLS, and a slot whose log the server removed."""

import shutil
import subprocess
import threading

import pytest

from penstock.model.errors import PenstockError
from penstock.source.postgres.log_reader import LogReaderSettings
from penstock.source.postgres.slot import flushed_end, parse_lsn, read_slot
from penstock.source.postgres.upstream import PostgresSettings, PostgresUpstream
from penstock.source.postgres.wire.address import parse_address
from penstock.source.postgres.wire.connection import Connection
from penstock.source.postgres.wire.replication_stream import StreamSettings
from penstock.source.single_log import LogPosition
from testing.servers.databases.postgres_lab import SERVER_OPTIONS, PostgresLab, Replica, read_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = PostgresLab(tmp_path_factory.mktemp("access"))
    key, certificate = lab.directory / "data" / "server.key", lab.directory / "data" / "server.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=penstock-lab"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *names, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True, timeout=240)
    owner = (lab.directory / "data").owner()
    for file in (key, certificate):
        shutil.chown(file, owner)
        file.chmod(0o600)
    shutil.copy(certificate, lab.directory / "ca.crt")
    lab.restart([*SERVER_OPTIONS, "-c", "ssl=on"])
    yield lab
    lab.stop()


def test_tls_of_every_mode_carries_queries_and_the_log(lab):
    authority = lab.directory / "ca.crt"
    lab.sql("CREATE TABLE t (id int PRIMARY KEY, v text)")
    for mode in ("prefer", "require", f"verify-ca&sslrootcert={authority}", f"verify-full&sslrootcert={authority}"):
        with Connection(parse_address(f"{lab.uri}?sslmode={mode}")) as session:
            assert session.query("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [("t",)]
    with Connection(parse_address(f"{lab.uri}?sslmode=disable")) as session:
        assert session.query("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [("f",)]
    with pytest.raises(PenstockError, match=r"UPSTREAM_REFUSED.*certificate"):
        Connection(parse_address(f"{lab.uri}?sslmode=verify-full"))
    elsewhere = lab.uri.replace("127.0.0.1", "localhost")
    with pytest.raises(PenstockError, match=r"UPSTREAM_REFUSED.*certificate"):
        Connection(parse_address(f"{elsewhere}?sslmode=verify-full&sslrootcert={authority}"))
    with pytest.raises(PenstockError, match="CONFIG_INVALID"):
        Connection(parse_address(f"{lab.uri}?sslmode=verify-ca&sslrootcert={lab.directory}/none"))
    # Nobody enters without TLS and a password any more, replication included.
    hba = lab.directory / "data" / "pg_hba.conf"
    kept = hba.read_text()
    lab.sql("SET password_encryption = 'scram-sha-256'; CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'p%40ss'")
    hba.write_text("hostssl all guarded all scram-sha-256\nhostnossl all guarded all reject\nhost replication guarded all reject\n" + kept)
    lab.sql("SELECT pg_reload_conf()")
    guarded = lab.uri.replace("penstock@", "guarded:p%2540ss@")
    with pytest.raises(PenstockError, match="UPSTREAM_REFUSED"):
        Connection(parse_address(f"{guarded}?sslmode=disable"))
    upstream = PostgresUpstream(f"{guarded}?sslmode=verify-full&sslrootcert={authority}&slot=tls", PostgresSettings(reader_wait_s=0.0))
    start = upstream.first_position()
    lab.sql("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 5000) g")
    replica = Replica()
    for step in read_until(upstream, start, upstream.log_end()):
        replica.apply(step)
    upstream.close()
    (rows,) = replica.tables.values()
    assert sorted(r["c1"] for r in rows.values()) == list(range(1, 5001))
    hba.write_text(kept)
    lab.sql("SELECT pg_reload_conf(); DROP TABLE t")


def test_a_slot_whose_log_was_removed_is_said_so_and_made_anew_where_capture_begins_again(lab):
    lab.sql("CREATE TABLE t (id int PRIMARY KEY)")
    upstream = lab.upstream("?slot=lost")
    start = upstream.first_position()
    lab.sql("INSERT INTO t VALUES (1)")
    lab.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    lab.sql("SELECT pg_reload_conf()")
    with lab.session() as session:
        for number in range(2, 12):
            session.query(f"INSERT INTO t VALUES ({number})")
            session.query("SELECT pg_switch_wal()")
        session.query("CHECKPOINT")
        assert read_slot(session, "lost").is_lost
    with pytest.raises(PenstockError, match="LOG_PURGED") as caught:
        next(upstream.read_log(start, [], lambda _: True, threading.Event()))
    assert "pg_drop_replication_slot" in caught.value.hint
    again = upstream.first_position()
    assert again.ts > start.ts
    lab.sql("INSERT INTO t VALUES (100)")
    steps = read_until(upstream, again, upstream.log_end())
    assert [r["c1"] for s in steps for c in s.changes for r in c.records.to_pylist()] == [100]
    upstream.close()
    lab.sql("ALTER SYSTEM RESET max_slot_wal_keep_size")
    lab.sql("DROP TABLE t")


def test_a_log_that_was_written_without_the_publication_is_given_up(lab):
    """The server reads its log with the catalog of that time: making the publication again does not help."""
    lab.sql("CREATE TABLE t (id int PRIMARY KEY)")
    upstream = lab.upstream("?slot=unread&publication=gone_for_a_while")
    start = upstream.first_position()
    lab.sql("INSERT INTO t VALUES (1)")
    lab.sql("DROP PUBLICATION gone_for_a_while")
    lab.sql("INSERT INTO t VALUES (2)")
    lab.sql("CREATE PUBLICATION gone_for_a_while FOR ALL TABLES WITH (publish_via_partition_root = true)")
    with pytest.raises(PenstockError) as caught:
        for _ in upstream.read_log(start, [], lambda _: True, threading.Event()):
            pass
    assert caught.value.code == "LOG_PURGED"
    assert "gone_for_a_while" in caught.value.detail
    with lab.session() as session:
        assert read_slot(session, "unread") is None
    again = upstream.first_position()
    lab.sql("INSERT INTO t VALUES (100)")
    steps = read_until(upstream, again, upstream.log_end())
    assert [r["c1"] for s in steps for c in s.changes for r in c.records.to_pylist()] == [100]
    upstream.release()
    upstream.close()
    lab.sql("DROP TABLE t")


def test_a_slot_is_taken_from_a_reader_that_lost_the_log_and_from_nobody_else(lab):
    """The server would notice that it stands still after ``wal_sender_timeout``, a minute."""
    lab.sql("CREATE ROLE capture LOGIN REPLICATION; CREATE TABLE t (id int PRIMARY KEY); GRANT SELECT ON t TO capture")
    lab.sql("CREATE PUBLICATION taken FOR ALL TABLES WITH (publish_via_partition_root = true)")
    uri = f"{lab.uri.replace('penstock@', 'capture@')}?slot=taken&publication=taken"
    settings = PostgresSettings(reader_wait_s=0.0, slot_wait_s=1.5)
    first, other, next_one = (PostgresUpstream(uri, settings) for _ in range(3))
    checked = []

    def begun(upstream, name, before, check):
        upstream.read_as(name, before, check)
        reading = upstream.read_log(start, [], lambda _: True, threading.Event())
        return reading, next(step for step in reading if step.changes)

    def lost():
        checked.append("lost")
        raise PenstockError("LOG_HELD", "another server took the log meanwhile")

    start = first.first_position()
    lab.sql("INSERT INTO t VALUES (1)")
    standing, _ = begun(first, "a~1", "", lambda: None)
    with pytest.raises(PenstockError, match="is active for PID"):
        begun(other, "x~1", "y~1", lambda: None)
    with pytest.raises(PenstockError, match="LOG_HELD"):
        begun(other, "x~1", "a~1", lost)
    reading, step = begun(next_one, "b~1", "a~1", lambda: checked.append("mine"))
    assert step.changes[0].records.num_rows == 1
    assert checked[0] == "lost"
    assert set(checked[1:]) == {"mine"}
    with pytest.raises(PenstockError, match="UPSTREAM_UNREACHABLE"):
        for _ in standing:
            pass
    reading.close()
    for upstream in (first, other, next_one):
        upstream.close()
    lab.upstream("?slot=taken&publication=taken").release()
    lab.sql("DROP TABLE t")


def test_a_server_that_took_over_without_what_was_read_is_noticed(lab):
    """A promoted server goes on in the same log, on another timeline; what was read of the old one behind the fork is another's."""
    lab.sql("CREATE TABLE t (id int PRIMARY KEY)")
    upstream = lab.upstream("?slot=forked")
    start = upstream.first_position()
    lab.sql("INSERT INTO t VALUES (1)")
    read = read_until(upstream, start, upstream.log_end())[-1].position
    upstream.close()
    for _ in range(2):
        (lab.directory / "data" / "standby.signal").touch()
        lab.restart()
        lab.sql("SELECT pg_promote(true, 60)")
        lab.sql(f"INSERT INTO t VALUES ({lab.sql('SELECT count(*) + 1 FROM t')[0][0]})")
    again = lab.upstream("?slot=forked")
    # Everything that was read is in the history of this one, so it is read on.
    steps = read_until(again, read, again.log_end())
    assert [r["c1"] for s in steps for c in s.changes for r in c.records.to_pylist()] == [2, 3]
    now = steps[-1].position
    lsn, _, identity = now.text.partition("@")
    system, _, timeline = identity.partition("/")
    with pytest.raises(PenstockError, match="took over") as caught:
        next(again.read_log(LogPosition(now.ts, f"{lsn}@{system}/{int(timeline) - 1}"), [], lambda _: True, threading.Event()))
    assert caught.value.code == "LOG_PURGED"
    with pytest.raises(PenstockError, match="took over"):
        next(again.read_log(LogPosition(now.ts, f"{lsn}@{system}/77"), [], lambda _: True, threading.Event()))
    # Positions of earlier versions do not tell their timeline.
    assert next(again.read_log(LogPosition(now.ts, f"{lsn}@{system}"), [], lambda _: True, threading.Event())) is not None
    again.release()
    again.close()
    lab.sql("DROP TABLE t")


def test_a_reader_that_is_held_up_keeps_its_connection(lab):
    """The server ends a connection that does not answer for a second; ours answers while nobody takes what it received."""
    lab.sql("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lab.sql("ALTER SYSTEM SET wal_sender_timeout = '1s'")
    lab.sql("SELECT pg_reload_conf()")
    stream = StreamSettings(queue_bytes_max=1 << 16, status_interval_s=0.2)
    reader = LogReaderSettings(chunk_bytes=1 << 14, stream=stream)
    upstream = PostgresUpstream(f"{lab.uri}?slot=held", PostgresSettings(reader, reader_wait_s=0.0))
    start = upstream.first_position()
    for low in range(0, 20_000, 500):
        lab.sql(f"INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series({low}, {low + 499}) g")
    end = upstream.log_end()
    reading = upstream.read_log(start, [], lambda _: True, threading.Event())
    steps = [next(reading)]
    begun = lab.sql("SELECT clock_timestamp()")[0][0]
    never = threading.Event()
    for _ in range(400):
        if lab.sql(f"SELECT reply_time > '{begun}'::timestamptz + interval '2.5s' FROM pg_stat_replication")[0][0] == "t":
            break
        never.wait(0.05)
    else:
        raise AssertionError("the server got no answers while the reader was held up")
    assert len(steps[0].changes) > 0
    while steps[-1].position is None or not upstream.reached(steps[-1].position.text, end):
        steps.append(next(reading))
    reading.close()
    upstream.close()
    assert sorted(i for s in steps for c in s.changes for i in c.records.column("c1").to_pylist()) == list(range(20_000))
    lab.sql("ALTER SYSTEM RESET wal_sender_timeout")
    lab.sql("DROP TABLE t")


def test_a_user_who_may_not_write_to_the_log_still_learns_its_end(lab):
    lab.sql("CREATE ROLE poor LOGIN")
    may_emit(lab, "REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC")
    with Connection(parse_address(lab.uri.replace("penstock@", "poor@"))) as poor:
        lab.sql("SELECT pg_logical_emit_message(false, 'somebody', 'not flushed')")
        end = flushed_end(poor)
        assert end >= parse_lsn(lab.sql("SELECT pg_current_wal_flush_lsn()")[0][0])
    may_emit(lab, "GRANT EXECUTE ON FUNCTION %s TO PUBLIC")
    lab.sql("DROP ROLE poor")


def may_emit(lab, statement):
    """Run a statement for the function in each of its forms, which differ between versions."""
    for (form,) in lab.sql("SELECT oid::regprocedure FROM pg_proc WHERE proname = 'pg_logical_emit_message'"):
        lab.sql(statement % form)
