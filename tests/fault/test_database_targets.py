"""Faults of MariaDB and PostgreSQL as targets, on the servers themselves: afterwards every row is the upstream's, content and count."""

from __future__ import annotations

import contextlib
import random
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.feed.settings import FeedSettings
from penstock.model.errors import PenstockError
from penstock.model.failpoints import arm
from penstock.sink.tables.idle_sessions import IDLE
from testing.paths.local_feed import LocalFeed
from testing.paths.whole_path import WholePath, read_state
from testing.servers.cut_proxy import CutProxy, cut_proxy
from testing.servers.loopback import free_port
from testing.servers.loopback_server import mariadb, postgres
from testing.servers.waiting import meanwhile, wait_until
from testing.targets.database_kit import MYSQL, TargetDatabase

pytestmark = pytest.mark.integration
SETUP = [
    "CREATE DATABASE d",
    "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))",
    "CREATE TABLE d.bag (id INT, v VARCHAR(40))",
]
USER = "penstock_writer"
WAIT_S = 90.0


class Rig:
    """A path into a database through a proxy, as a user whose rights can be taken."""

    def __init__(self, kind: str, root: Path, proxy: CutProxy, target: TargetDatabase) -> None:
        self.kind, self.proxy, self.target = kind, proxy, target
        scheme, database = ("postgresql", "postgres") if kind == "postgres" else ("mysql", "")
        uri = f"{scheme}://{USER}@127.0.0.1:{proxy.port}/{database}"
        uri += "?ssl=off" if kind == "mysql" else ""
        settings = FeedSettings(flush_interval_s=0.0)
        self.path = WholePath(root, SETUP, target_uri=uri, sink_options=target.options, settings=settings)
        self._next = 0

    def change(self) -> None:
        """Change some rows of both tables; the bag's come twice where one is applied twice."""
        at, self._next = self._next, self._next + 10
        text = f"at {at}"
        self.path.write({"d.a": dict.fromkeys(range(at % 30 + 20), text), "d.bag": dict.fromkeys(range(3), text)})
        self.path.write({"d.a": {1: f"again {at}"}}, {"d.a": [at % 30 + 2], "d.bag": [1]})

    def check(self) -> None:
        for table in ("a", "bag"):
            wanted = read_state(self.path.upstream, self.path.table(f"d.{table}"), self.path.upstream.current_ts())
            got = self.target.rows("d", table, ", ".join(wanted.columns))
            assert sorted(got, key=repr) == sorted(wanted.rows(), key=repr), table

    def drain(self) -> None:
        self.path.drain()
        self.check()


def make_user(target: TargetDatabase) -> None:
    if target.kind == "postgres":
        target.run(f"CREATE ROLE {USER} SUPERUSER LOGIN")
    else:
        target.run(f"CREATE USER {USER}@'%' IDENTIFIED BY ''", f"GRANT ALL ON *.* TO {USER}@'%'")


@pytest.fixture(scope="module", params=["mariadb", "postgres", MYSQL])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    target = TargetDatabase(request.param)
    make_user(target)
    parts = urlsplit(target.server)
    with cut_proxy("127.0.0.1", parts.port or 0) as proxy:
        made = Rig(request.param, tmp_path_factory.mktemp("rig"), proxy, target)
        with contextlib.closing(made.path):
            made.change()
            made.drain()
            yield made


def test_a_connection_is_cut_inside_a_transaction(rig: Rig) -> None:
    for marker in (b"SET window_ts", b"COMMIT", b"again"):
        rig.change()
        rig.proxy.cut(marker)
        rig.drain()
    assert rig.proxy.counts["cut"] == 3


def test_the_answer_to_a_commit_is_lost(rig: Rig) -> None:
    for _ in range(3):
        rig.change()
        rig.proxy.lose_answer(b"COMMIT")
        rig.drain()
    rig.change()
    rig.path.upstream.execute_ddl(f"ALTER TABLE d.a ADD COLUMN c{rig._next} INT")
    rig.proxy.lose_answer(b"ALTER TABLE")
    rig.path.drain()
    rig.path.upstream.execute_ddl(f"ALTER TABLE d.a DROP COLUMN c{rig._next}")
    rig.proxy.lose_answer(b"ALTER TABLE")
    rig.drain()
    assert rig.proxy.counts["lost"] == 5


def test_a_server_is_away_for_a_while(rig: Rig) -> None:
    rig.change()
    before = rig.proxy.counts["refused"]
    rig.proxy.go_down()
    ended: list[BaseException | None] = []

    def deliver() -> None:
        try:
            rig.path.drain()
            ended.append(None)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            ended.append(error)

    thread = threading.Thread(target=deliver)
    thread.start()
    wait_until(lambda: rig.proxy.counts["refused"] >= before + 2, "nobody tried", WAIT_S)
    rig.proxy.come_up()
    thread.join()
    assert ended == [None]
    rig.check()


def test_a_slow_server_loses_nothing(rig: Rig) -> None:
    rig.change()
    rig.proxy.pause_s = 0.01
    try:
        rig.drain()
    finally:
        rig.proxy.pause_s = 0.0


def test_a_full_server_stops_the_feed_until_it_has_room(rig: Rig) -> None:
    name, schema = rig.target.name("d", "a"), f"{rig.target.prefix}d"
    rig.change()
    if rig.kind == "postgres":
        rig.target.run(
            f"CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$",
            f"CREATE TRIGGER full_disk BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION {schema}.full()",
            f"ALTER TABLE {name} ENABLE ALWAYS TRIGGER full_disk",
        )
    else:
        raised = "SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'full'"
        rig.target.run(f"CREATE TRIGGER {schema}.full_disk BEFORE INSERT ON {name} FOR EACH ROW {raised}")
    with pytest.raises(PenstockError, match="SINK_FULL"):
        rig.path.drain()
    rig.target.run(f"DROP TRIGGER full_disk ON {name}" if rig.kind == "postgres" else f"DROP TRIGGER {schema}.full_disk")
    rig.drain()


def test_rights_are_lost_and_come_back(rig: Rig) -> None:
    rig.change()
    if rig.kind == "postgres":
        everything = f"ALL ON ALL TABLES IN SCHEMA {rig.target.prefix}d"
        lost = [f"REVOKE {everything} FROM {USER}", f"ALTER ROLE {USER} NOSUPERUSER"]
        back = [f"ALTER ROLE {USER} SUPERUSER", f"GRANT {everything} TO {USER}"]
    else:
        lost, back = [f"REVOKE ALL ON *.* FROM {USER}@'%'"], [f"GRANT ALL ON *.* TO {USER}@'%'"]
    rig.target.run(*lost)
    # MariaDB asks for rights of this kind when a session is entered.
    IDLE.close_old(0.0)
    try:
        with pytest.raises(PenstockError, match="SINK_UNWRITABLE"):
            rig.path.drain()
    finally:
        rig.target.run(*back)
    rig.drain()


def test_attempts_at_once_apply_every_row_once(rig: Rig) -> None:
    for _ in range(3):
        rig.change()
        rig.path.wait_resolved(rig.path.upstream.current_ts())
        failed: list[BaseException] = []

        def attempt(failed: list[BaseException] = failed) -> None:
            try:
                LocalFeed(rig.path.context).run_window(commit=False)
            except BaseException as error:  # noqa: BLE001 - shown by the assertion
                failed.append(error)

        rig.path.feed.run_window(commit=False)
        threads = [threading.Thread(target=attempt) for _ in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert failed == []
        rig.drain()


def test_a_foreign_session_holds_rows(rig: Rig) -> None:
    """A lock that is waited for, and two sessions that wait for each other."""
    name = rig.target.name("d", "a")
    for second in (False, True):
        rig.change()
        thread = threading.Thread(target=rig.path.drain)
        with contextlib.closing(rig.target.connect()) as foreign, foreign.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(f"UPDATE {name} SET v = v WHERE id = 5")
            thread.start()
            try:
                wait_until(lambda: waiting(rig) > 0, "nobody waits for the lock", WAIT_S)
                if second:
                    # Whoever the server chooses, the feed's transaction is done as a whole in the end.
                    with contextlib.suppress(Exception):
                        cursor.execute(f"UPDATE {name} SET v = v WHERE id = 0")
            finally:
                cursor.execute("ROLLBACK")
                thread.join()
        rig.check()


def waiting(rig: Rig) -> int:
    """Return how many sessions of the target wait for a lock."""
    ask: dict[str, str] = {
        "postgres": "SELECT count(*) FROM pg_locks WHERE NOT granted",
        "mariadb": "SELECT count(*) FROM information_schema.innodb_lock_waits",
        "mysql": "SELECT count(*) FROM performance_schema.data_lock_waits",
    }
    found: Any = rig.target.run(ask[rig.kind])
    return int(found[0][0])


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_a_life_under_load(kind: str, tmp_path: Path) -> None:
    """A server of its own, which is restarted as well, while the upstream changes without a pause."""
    start, port, rng = mariadb if kind == "mariadb" else postgres, free_port(), random.Random(7)
    with contextlib.ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)))
        folder.chmod(0o755)
        server = contextlib.ExitStack()
        parts.callback(server.close)
        uri = server.enter_context(start(folder / "server", port=port))
        target = TargetDatabase(kind, uri)
        make_user(target)
        proxy = parts.enter_context(cut_proxy("127.0.0.1", port))
        rig = Rig(kind, tmp_path, proxy, target)
        parts.enter_context(contextlib.closing(rig.path))

        def load(stop: threading.Event) -> None:
            while not stop.wait(0.02):
                rig.change()

        for _ in range(20):
            fault = rng.choice(["cut", "lost", "down", "restart", "kill", "ddl"])
            with meanwhile(load):
                if fault in {"cut", "lost"}:
                    plan = rig.proxy.cut if fault == "cut" else rig.proxy.lose_answer
                    for marker in (b"SET window_ts", b"COMMIT", b"COPY", b"INSERT", b"DELETE"):
                        plan(marker)
                elif fault == "ddl":
                    rig.path.upstream.execute_ddl(f"ALTER TABLE d.bag ADD COLUMN c{rig._next} INT DEFAULT 4")
                    rig.proxy.lose_answer(b"ALTER TABLE")
                elif fault == "kill":
                    arm(f"{rng.choice(['data-put:before', 'data-put:after', 'metadata:after'])}=raise@{rng.randint(1, 4)}")
                else:
                    rig.proxy.go_down()
                    if fault == "restart":
                        server.close()
                        server.enter_context(start(folder / "server", port=port))
                for at in range(60):
                    if at == 2:
                        rig.proxy.come_up()
                    with contextlib.suppress(PenstockError):
                        rig.path.feed.run_window()
            rig.proxy.come_up()
            arm("")
            rig.proxy.forget()
            rig.path.drain()
            rig.check()
