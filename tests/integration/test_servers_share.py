"""Servers that share a meta database, or should not: a named source on shared storage, copies of a data directory, old backups."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import run
from penstock.meta import backup as backups
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import MetaEngine, MetaSettings, sqlite_url
from penstock.meta.records import NOBODY, ReachedState
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.server.source_address import source_name
from penstock.server.verify.verification import open_reader
from testing.checks.target_audit import DeliveredChanges, digests, numbering_problems
from testing.servers.databases.live_database import Database, live_database
from testing.servers.seaweed import S3Server, seaweed_s3
from testing.servers.sparkless_server import SparklessServer
from testing.servers.waiting import wait_until

pytestmark = pytest.mark.integration
WAIT_S = 120.0


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with live_database("mariadb", tmp_path_factory.mktemp("mariadb")) as found:
        yield found


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed_s3(tmp_path_factory.mktemp("s3")) as found:
        yield found


class Group:
    """Servers of one meta database and one source, a feed, and what its table must hold."""

    def __init__(self, database: Database, folder: Path, objects: str) -> None:
        self.database, self.folder, self.objects = database, folder, objects
        self.meta_url = sqlite_url(folder / "meta.db")
        self.target = folder / "files"
        self.schema = database.make_schema()
        self.table = f"{self.schema}.orders"
        self.written = 0
        self.servers = ExitStack()
        self.meta = MetaDatabase(self.meta_url)
        database.run(f"CREATE TABLE {self.table} (id INT PRIMARY KEY, note VARCHAR(40))")
        self.write()

    def start(self, name: str, disk: str = "", own_meta: bool = False) -> SparklessServer:
        """Start a server on a disk, which has its name unless given."""
        folder, meta_url = self.folder / (disk or name), "" if own_meta else self.meta_url
        return self.servers.enter_context(SparklessServer(folder, name, {"shop": self.database.uri}, meta_url, self.objects))

    def tree(self, name: str = "f") -> dict[str, Any]:
        sink = {"uri": self.target.as_uri()}
        return {"name": name, "source": "shop", "tables": [f"{self.schema}.*"], "sink": sink, "flush-interval": "100ms"}

    def write(self, rows: int = 3) -> None:
        """Insert some rows, change one and delete another: four changes more than the rows that stay."""
        first = self.written
        self.written += rows + 1
        values = ",".join(f"({n}, 'row {n}')" for n in range(first, self.written))
        self.database.run(
            f"INSERT INTO {self.table} VALUES {values}",
            f"UPDATE {self.table} SET note = 'changed' WHERE id = {first}",
            f"DELETE FROM {self.table} WHERE id = {self.written - 1}",
        )

    def delivered(self, server: SparklessServer) -> None:
        """Everything that is committed now reaches the files through this server, once."""
        until(f"{server.supervisor.owner} has the feed", lambda: server.reads("f"))
        settled_ts = server.settled_ts("f")
        until("it is delivered", lambda: server.meta.get_feed("f").checkpoint_ts >= settled_ts)
        until("it is published", lambda: (open_reader(self.target.as_uri(), {}).checkpoint_ts() or 0) >= settled_ts)
        verdict = server.verify("f")
        assert verdict.identical
        assert DeliveredChanges(open_reader(self.target.as_uri(), {})).problems() == []
        assert numbering_problems(self.target) == []

    def close(self) -> None:
        self.servers.close()
        self.meta.close()


def until(what: str, condition: Callable[[], bool]) -> None:
    wait_until(condition, what, WAIT_S)


@pytest.fixture
def shared(database: Database, s3: S3Server, tmp_path: Path) -> Iterator[Group]:
    group = Group(database, tmp_path, s3.uri(tmp_path.name))
    yield group
    group.close()


@pytest.fixture(params=["shared", "local"])
def group(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Group]:
    group = Group(database, tmp_path, (tmp_path / "shared").as_uri() if request.param == "shared" else "")
    yield group
    group.close()


def test_a_named_source_on_shared_storage_goes_from_server_to_server(shared: Group) -> None:
    one = shared.start("one")
    one.create_feed(shared.tree())
    shared.delivered(one)
    two = shared.start("two")
    until("the servers know each other", lambda: len(two.supervisor.servers) == 2)
    with pytest.raises(PenstockError, match="source: shop is captured by the server https://one"):
        two.create_feed(shared.tree("other"))
    shared.write()
    shared.delivered(one)
    shared.write()
    one.crash()
    shutil.rmtree(shared.folder / "one")
    shared.write()
    shared.delivered(two)
    back = shared.start("one")
    shared.write()
    two.stop()
    shared.write()
    shared.delivered(back)


@pytest.mark.parametrize("group", ["local"], indirect=True)
def test_a_feed_goes_to_and_fro_between_servers_with_stores_of_their_own(group: Group) -> None:
    """Both count commit ts from one log, which one of them reads at a time."""
    one = group.start("one")
    one.create_feed(group.tree())
    group.delivered(one)
    two = group.start("two")
    for leaves, comes in ((one, two), (two, one), (one, two), (two, one)):
        stop = threading.Event()
        writer = threading.Thread(target=lambda stop=stop: [group.write() for _ in iter(lambda: stop.wait(0.02), True)])
        writer.start()
        try:
            comes.supervisor.drain(False)
            leaves.supervisor.drain(True)
            until("it has moved", lambda comes=comes: comes.reads("f"))
        finally:
            stop.set()
            writer.join()
        group.delivered(comes)


@pytest.mark.parametrize("group", ["shared"], indirect=True)
def test_of_two_servers_on_copies_of_a_data_directory_one_has_the_feed(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    one = group.start("one")
    one.create_feed(group.tree())
    group.delivered(one)
    shutil.copytree(group.folder / "one", group.folder / "copy", ignore=shutil.ignore_patterns("*.sock"))
    group.write()
    group.delivered(one)
    group.write()
    copy = group.start("one", "copy")
    until("the first one is fenced", lambda: not one.runs("f"))
    group.write()
    group.delivered(copy)
    assert group.meta.get_feed("f").epoch == 2
    until("both are told", lambda: caplog.text.count("works in a copy of this data directory") == 2)


def test_an_old_backup_of_a_data_directory_loses_nothing(group: Group) -> None:
    one = group.start("one")
    one.create_feed(group.tree())
    group.delivered(one)
    group.write()
    shutil.copytree(group.folder / "one", group.folder / "backup", ignore=shutil.ignore_patterns("*.sock"))
    group.delivered(one)
    group.write()
    group.delivered(one)
    one.crash()
    shutil.rmtree(group.folder / "one")
    (group.folder / "backup").rename(group.folder / "one")
    group.write()
    group.delivered(group.start("one"))


@pytest.mark.parametrize("group", ["local"], indirect=True)
def test_servers_with_copies_of_the_meta_database_write_nothing_wrong_and_say_so(group: Group) -> None:
    """Nothing but the target tells them apart: what one has published the other compares, and stops where it would differ."""
    one = group.start("one", own_meta=True)
    one.create_feed(group.tree())
    group.delivered(one)
    one.crash()
    shutil.copytree(group.folder / "one", group.folder / "copy")
    both = [group.start("one", own_meta=True), group.start("one", "copy", own_meta=True)]

    def stopped(server: SparklessServer) -> bool:
        found = server.meta.get_feed("f")
        return found.reached_state is ReachedState.FAILED and found.error_code in {"SINK_CONFLICT", "META_BEHIND_TARGET"}

    for _ in range(20):
        published = digests(group.target)
        group.write()
        if any(map(stopped, both)):
            break
        ts = max(server.meta.get_feed("f").checkpoint_ts for server in both)
        until("somebody goes on, or says why not", lambda ts=ts: any(stopped(s) or s.meta.get_feed("f").checkpoint_ts > ts for s in both))
        after = digests(group.target)
        assert {name: after.get(name) for name in published} == published
    until("one of them says so", lambda: any(map(stopped, both)))
    assert DeliveredChanges(open_reader(group.target.as_uri(), {})).problems() == []
    assert numbering_problems(group.target) == []
    for server in both:
        if not stopped(server):
            group.delivered(server)


def restored(group: Group, file: Path) -> None:
    """Let the group's next server work with a new meta database that a backup is put into."""
    url = sqlite_url(group.folder / "restored.db")
    header, rows = backups.read_backup(file)
    engine = MetaEngine(url, MetaSettings())
    # Its servers stopped a minute ago.
    backups.restore(engine, header, rows, actor=NOBODY, now_ms=header.taken_ms + 3_600_000)
    engine.close()
    shutil.copy(group.folder / "meta.key", group.folder / "restored.key")
    group.meta_url = url


def back_up(group: Group) -> Path:
    engine = MetaEngine(group.meta_url, MetaSettings(), as_found=True)
    backups.write_backup(engine, group.folder / "backup", SystemClock().now_ms())
    engine.close()
    return group.folder / "backup"


@pytest.mark.parametrize("group", ["local"], indirect=True)
def test_a_feed_goes_on_from_a_backup_of_the_meta_database_where_its_target_is_no_further(group: Group) -> None:
    one = group.start("one")
    one.create_feed(group.tree())
    group.delivered(one)
    one.stop()
    file = back_up(group)
    restored(group, file)
    # What came since is in no place of the log that the database knows.
    group.write()
    again = group.start("one")
    group.delivered(again)
    group.write()
    group.delivered(again)
    found = again.meta.get_feed("f")
    assert found.epoch > group.meta.get_feed("f").epoch
    with pytest.raises(PenstockError, match="FENCED"):
        again.meta.check_owner("f", group.meta.get_feed("f").epoch)


@pytest.mark.parametrize("group", ["local"], indirect=True)
def test_an_old_backup_of_the_meta_database_is_refused_by_a_target_that_went_on(group: Group) -> None:
    one = group.start("one")
    one.create_feed(group.tree())
    group.delivered(one)
    file = back_up(group)
    group.write()
    group.delivered(one)
    one.stop()
    published = digests(group.target)
    restored(group, file)
    group.write()
    again = group.start("one")
    until("it is refused aloud", lambda: again.meta.get_feed("f").reached_state is ReachedState.FAILED)
    assert again.meta.get_feed("f").error_code == "META_BEHIND_TARGET"
    assert f"`penstock meta adopt f --meta-url {group.meta_url}`" in again.meta.get_feed("f").error_text
    again.stop()
    assert digests(group.target) == published, "nothing was written"
    # What the target has counts: everything up to there is in it, and nothing beyond.
    assert run(["meta", "adopt", "f", "--meta-url", group.meta_url]) == 0
    group.write()
    last = group.start("one")
    group.delivered(last)
    group.write()
    group.delivered(last)


@pytest.mark.parametrize("group", ["shared"], indirect=True)
def test_a_server_with_a_copy_of_the_meta_database_does_not_get_the_shared_objects(group: Group) -> None:
    one = group.start("one", own_meta=True)
    one.create_feed(group.tree())
    group.delivered(one)
    # As a snapshot of the disk would: the copy knows what was there when it was made.
    shutil.copytree(group.folder / "one", group.folder / "copy", ignore=shutil.ignore_patterns("*.sock", "meta.db*"))
    with closing(sqlite3.connect(group.folder / "one/meta.db")) as meta, closing(sqlite3.connect(group.folder / "copy/meta.db")) as into:
        meta.backup(into)
    group.write()
    group.delivered(one)
    link = one.meta.object_links(source_name(group.database.uri))[-1]
    until("the objects are marked again", lambda: one.meta.object_links(source_name(group.database.uri))[-1] != link)
    copy = group.start("one", "copy", own_meta=True)
    until("it is refused aloud", lambda: copy.meta.get_feed("f").reached_state is ReachedState.FAILED)
    assert copy.meta.get_feed("f").error_code == "OBJECTS_FOREIGN"
    group.write()
    group.delivered(one)
    assert one.meta.get_feed("f").epoch == 1
