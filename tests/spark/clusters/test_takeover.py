"""Two servers on one meta database: what one leaves in the middle of a window the other finishes, and who lost the lease writes nothing."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.server_client import ServerClient
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.model.batch import Op
from penstock.server.verify.verification import open_reader
from penstock.source.dataserver.workload import Workload, WorkloadSettings
from testing.checks.target_audit import DeliveredChanges, checkpoint_of, data_files, digests, numbering_problems
from testing.servers.command_process import CommandProcess
from testing.servers.loopback_server import mariadb, postgres

pytestmark = [pytest.mark.timeout(600), pytest.mark.chaos]

RATE = 1_000
START_S = 180.0
LEASE_S = 3


class Pair:
    """Two servers, each with its own event store or with one on shared storage, and one feed that either may run."""

    def __init__(self, upstream: Any, waiting: Any, folder: Path, meta_url: str, shared: bool = False) -> None:
        self.upstream, self.waiting, self.folder = upstream, waiting, folder
        self.target = folder / "files"
        self.meta_url = meta_url
        self.shared = shared
        self.servers: dict[str, CommandProcess] = {}
        self.urls: dict[str, str] = {}
        self.meta = MetaDatabase(self.meta_url)

    def begin(self) -> None:
        """Start the first server, let it begin with the feed, and start the second."""
        self.start("one")
        with ServerClient(self.urls["one"]) as client:
            client.create_feed(
                {"name": "f", "tables": ["shop.*"], "sink": {"uri": self.target.as_uri()}, "flush-interval": "500ms", "spans-per-table": 2}
            )
        self.until("the first server runs the feed", lambda: self.owner() == "one" and self.meta.get_feed("f").windows_total > 0)
        self.start("two")

    def start(self, name: str) -> None:
        settings = {
            "meta-url": self.meta_url, "owner": name, "supervisor.lease": f"{LEASE_S}s", "supervisor.scan-interval": "300ms",
        }  # fmt: skip
        if self.shared:
            settings |= {"store.objects": (self.folder / "shared").as_uri(), "store.objects-interval": "1s"}
        options = ["--source", self.upstream.uri, "--data-dir", str(self.folder / name), "--http-port", "0", "--spark-master", "local[1]"]
        for key, value in settings.items():
            options += ["--set", f"{key}={value}"]
        self.servers[name] = CommandProcess("server", *options, "--set", "spark.warm-up=false")
        self.urls[name] = self.servers[name].wait_for("penstock server: ", START_S).split()[0]

    def close(self) -> None:
        for server in self.servers.values():
            server.stop()
        self.meta.close()

    def owner(self) -> str:
        return self.meta.get_feed("f").owner.partition("-")[0]

    def until(self, what: str, condition: Any) -> None:
        written = lambda: "\n".join(s.output[-4000:] for s in self.servers.values())  # noqa: E731
        self.waiting.until(what, condition, explain=written)

    def progress(self) -> None:
        """Wait until rows are committed beyond those that are now."""
        before = self.meta.get_feed("f").rows_total
        self.until("a committed window", lambda: self.meta.get_feed("f").rows_total > before)

    def file_beyond_progress(self) -> bool:
        return len(data_files(self.target)) > self.meta.get_feed("f").files_total

    def check(self, report: Any, published: dict[str, str], url: str) -> None:
        with ServerClient(url) as client:
            self.waiting.drained(client, "f", self.target, self.upstream.current_ts())
            verdict = client.verify_feed("f")
        assert verdict["identical"], verdict
        changes = DeliveredChanges(open_reader(self.target.as_uri(), {}))
        assert changes.problems() == []
        assert changes.operations() == {Op.INSERT: report.inserts, Op.UPDATE: report.updates, Op.DELETE: report.deletes}
        assert numbering_problems(self.target) == []
        after = digests(self.target)
        assert {name: after.get(name) for name in published} == published


@pytest.fixture
def workload(upstream: Any) -> Iterator[Workload]:
    opened = Workload(upstream, WorkloadSettings(rate=RATE, rows=10_000_000, ddls=False))
    opened.setup()
    yield opened
    opened.stop()


@pytest.fixture(params=["sqlite", "mariadb", "postgres"])
def meta_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("meta")
    if request.param == "sqlite":
        yield sqlite_url(folder / "meta.db")
    else:
        with {"mariadb": mariadb, "postgres": postgres}[request.param](folder) as uri:
            yield uri


@pytest.fixture
def pair(workload: Workload, upstream: Any, waiting: Any, tmp_path: Path, meta_url: str) -> Iterator[Pair]:
    yield from begun(Pair(upstream, waiting, tmp_path, meta_url))


@pytest.fixture
def sharing_pair(workload: Workload, upstream: Any, waiting: Any, tmp_path: Path) -> Iterator[Pair]:
    yield from begun(Pair(upstream, waiting, tmp_path, sqlite_url(tmp_path / "meta.db"), shared=True))


def begun(pair: Pair) -> Iterator[Pair]:
    try:
        pair.begin()
        yield pair
    finally:
        pair.close()


def test_the_other_server_finishes_what_a_killed_one_began(workload: Workload, pair: Pair) -> None:
    workload.start()
    pair.progress()
    pair.until("a file of a window that is not committed", pair.file_beyond_progress)
    pair.servers["one"].kill(children=True)
    published = digests(pair.target)
    pair.until("the other server has the feed", lambda: pair.owner() == "two")
    pair.progress()
    pair.upstream.execute_ddl("CREATE TABLE shop.later (id INT PRIMARY KEY, note VARCHAR(20))")
    pair.check(workload.stop(), published, pair.urls["two"])
    assert "shop.later" in {f"{d.db_name}.{d.table_name}" for d in pair.meta.dispatchers("f") or []}


def test_a_server_that_stood_still_writes_nothing_after_it_lost_the_lease(workload: Workload, pair: Pair) -> None:
    workload.start()
    pair.progress()
    pair.until("a file of a window that is not committed", pair.file_beyond_progress)
    group = os.getpgid(pair.servers["one"].pid)
    os.killpg(group, signal.SIGSTOP)
    try:
        published = digests(pair.target)
        pair.until("the other server has the feed", lambda: pair.owner() == "two")
        pair.progress()
        report = workload.stop()
        with ServerClient(pair.urls["two"]) as client:
            pair.waiting.drained(client, "f", pair.target, pair.upstream.current_ts())
        published |= digests(pair.target)
    finally:
        os.killpg(group, signal.SIGCONT)
    fenced_at = checkpoint_of(pair.target)
    pair.until(
        "the old owner knows",
        lambda: "feed lost to another owner" in pair.servers["one"].output or "lease not renewed" in pair.servers["one"].output,
    )
    pair.check(report, published, pair.urls["two"])
    assert pair.owner() == "two"
    assert checkpoint_of(pair.target) >= fenced_at
    assert digests(pair.target) == published


def test_other_servers_go_on_from_shared_objects_and_one_that_had_them_takes_them_back(workload: Workload, sharing_pair: Pair) -> None:
    pair = sharing_pair
    workload.start()
    pair.progress()
    owners = pair.folder / "shared"
    assert [p.name for p in sorted(owners.glob("*/owner/*.json"))] == ["000000000001.json"], "one that stands by takes nothing"
    pair.until("a file of a window that is not committed", pair.file_beyond_progress)
    pair.servers["one"].kill(children=True)
    shutil.rmtree(pair.folder / "one")
    published = digests(pair.target)
    pair.until("the other server has the feed", lambda: pair.owner() == "two")
    pair.progress()
    pair.start("three")
    with ServerClient(pair.urls["two"]) as client:
        client.drain("POST")
    pair.until("the third server has the feed", lambda: pair.owner() == "three")
    pair.progress()
    assert [p.name for p in sorted(owners.glob("*/owner/*.json"))][-1] == "000000000003.json"
    with ServerClient(pair.urls["three"]) as client:
        client.drain("POST")
    with ServerClient(pair.urls["two"]) as client:
        client.drain("DELETE")
    pair.until("the second server has the feed again", lambda: pair.owner() == "two")
    pair.progress()
    pair.check(workload.stop(), published, pair.urls["two"])
