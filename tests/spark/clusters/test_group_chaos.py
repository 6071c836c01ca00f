"""Three servers, many feeds, MariaDB as meta database, a standalone cluster, an object store: everything is killed or paused.

The short one has all of it at once and eight feeds, the long ones one after the other and twenty feeds, in an order that comes from a seed,
one of them on a machine that is busy with other things. Afterwards no feed is parked, every target equals its upstream, and every file is
as it was first seen.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
import pytest
from obstore.store import S3Store

from penstock.cli.server_client import ServerClient
from penstock.meta.database import MetaDatabase
from penstock.meta.records import ReachedState
from penstock.model.errors import PenstockError
from penstock.server.verify.verification import open_reader
from penstock.source.dataserver.workload import Workload, WorkloadSettings
from testing.checks.target_audit import DeliveredChanges
from testing.servers.clusters.burners import LOAD, burners
from testing.servers.clusters.spark_standalone import SparkStandalone, spark_standalone
from testing.servers.command_process import CommandProcess
from testing.servers.loopback_server import mariadb
from testing.servers.seaweed import S3Server, seaweed_s3

SERVERS, FEEDS, FEW_FEEDS, RATE = 3, 20, 8, 100
TABLES = ("orders", "order_items", "products", "assets")
START_S, SETTLE_S = 400.0, 900.0
LEASE_S = 6
PAUSE_S = 9.0
"""Longer than a lease: another server takes over meanwhile."""
EXECUTOR = b"CoarseGrainedExecutorBackend"


class Files:
    """Notes every file of the bucket when it is first seen, again and again, until it is stopped."""

    def __init__(self, s3: S3Server) -> None:
        self._store = S3Store(
            s3.bucket,
            config={
                "endpoint": s3.endpoint,
                "access_key_id": s3.access_key,
                "secret_access_key": s3.secret_key,
                "region": "us-east-1",
            },
            client_options={"allow_http": True, "timeout": "10s"},
        )
        self.first_seen: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def digest(self, path: str) -> str:
        return hashlib.sha256(bytes(obstore.get(self._store, path).bytes())).hexdigest()

    def look(self) -> None:
        for page in obstore.list(self._store, "feeds"):
            for entry in page:
                path = entry["path"]
                if path not in self.first_seen and "/CDC" in path and not path.endswith(".index"):
                    self.first_seen[path] = self.digest(path)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(3.0):
            # The object store is paused too.
            with suppress(Exception):
                self.look()


class Group:
    """The servers, and whatever they need."""

    def __init__(self, parts: ExitStack, upstream: Any, waiting: Any, folder: Path, feeds: int) -> None:
        self.upstream, self.waiting, self.folder, self.feeds = upstream, waiting, folder, feeds
        self.said: list[str] = []
        self.meta_url = parts.enter_context(mariadb(folder / "meta"))
        self.database = int((folder / "meta" / "pid").read_text())
        self.s3 = parts.enter_context(seaweed_s3(folder / "s3"))
        self.files = Files(self.s3)
        parts.callback(self.files.stop)
        self.spark: SparkStandalone = parts.enter_context(spark_standalone(folder / "spark", workers=2, cores=3))
        self.meta = parts.enter_context(MetaDatabase(self.meta_url))
        self.servers: dict[str, CommandProcess] = {}
        self.urls: dict[str, str] = {}
        parts.callback(self.stop)
        for number in range(SERVERS):
            self.begin(f"server{number}")
        for name in self.servers:
            self.await_start(name)

    def begin(self, name: str) -> None:
        """Start a server, or start it again."""
        if name in self.servers:
            self.servers[name].stop()
            self.said.append(self.servers[name].output)
        settings = {
            "meta-url": self.meta_url,
            "owner": name,
            "supervisor.lease": f"{LEASE_S}s",
            "supervisor.rebalance-interval": "5s",
            "spark.cores-max": "1",
            "spark.warm-up": "false",
        }
        options = ["--source", self.upstream.uri, "--data-dir", str(self.folder / name), "--http-port", "0"]
        options += ["--spark-master", self.spark.master]
        for key, value in settings.items():
            options += ["--set", f"{key}={value}"]
        self.servers[name] = CommandProcess("server", *options)

    def await_start(self, name: str) -> None:
        self.urls[name] = self.servers[name].wait_for("penstock server: ", START_S).split()[0]

    def stop(self) -> None:
        for server in self.servers.values():
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGCONT)
            server.stop()

    def create(self, number: int) -> None:
        with ServerClient(self.urls["server0"], timeout_s=300.0) as client:
            client.create_feed(
                {
                    "name": f"f{number}",
                    "tables": [f"shop.{TABLES[number % len(TABLES)]}"],
                    "sink": {"uri": self.s3.uri(f"feeds/{number}")},
                    "flush-interval": "3s",
                }
            )

    def explain(self) -> str:
        feeds = [f"{f.name}: {f.reached_state} owner {f.owner} {f.error_code} {f.error_text[:300]}" for f in self.meta.list_feeds()]
        return "\n".join([*feeds, *(f"--- {name}\n{server.output[-5000:]}" for name, server in self.servers.items())])

    def caught_up(self) -> None:
        """Wait until every feed has delivered what is committed now."""
        ts = self.upstream.current_ts()

        def reached() -> bool:
            with suppress(PenstockError):
                feeds = self.meta.list_feeds()
                parked = [f for f in feeds if f.reached_state is ReachedState.FAILED]
                assert parked == [], self.explain()
                return len(feeds) == self.feeds and all(f.checkpoint_ts >= ts for f in feeds)
            return False

        self.waiting.until("every feed has caught up", reached, SETTLE_S, self.explain, look_s=0.5)


def children(pid: int, words: bytes) -> list[int]:
    """Return the processes of a group whose command line says some words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if os.getpgid(int(entry.name)) == pid and words in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return sorted(found)


class Chaos:
    """Faults. Each takes a while and leaves everything running again, or lets the group see to it; several may be had at once."""

    def __init__(self, group: Group, rng: random.Random) -> None:
        self.group, self.rng = group, rng
        self.never = threading.Event()

    def in_turn(self) -> None:
        """Have each fault by itself, on any server."""
        group, servers = self.group, sorted(self.group.servers)
        faults = [
            lambda: self.kill_server(self.rng.choice(servers)),
            lambda: self.pause(group.servers[self.rng.choice(servers)].pid),
            lambda: self.kill_jvm(self.rng.choice(servers)),
            lambda: self.pause_jvm(self.rng.choice(servers)),
            lambda: self.kill_executor(self.rng.choice(group.spark.workers).pid),
            lambda: self.pause(self.rng.choice(group.spark.workers).pid),
            lambda: self.pause(self.store()),
            lambda: self.pause(os.getpgid(group.database)),
        ]
        for fault in self.rng.sample(faults, len(faults)):
            fault()
            group.caught_up()

    def at_once(self, *, restart: bool) -> None:
        """Kill one server, the JVM of another and an executor, and pause the third server, the store and the meta database meanwhile.

        Without ``restart`` the third is left alone with all feeds.
        """
        group = self.group
        killed, without_jvm, paused = self.rng.sample(sorted(group.servers), 3)
        worker = self.rng.choice(group.spark.workers).pid
        faults = [
            lambda: self.kill_server(killed, restart),
            lambda: self.kill_jvm(without_jvm, restart),
            lambda: self.pause(group.servers[paused].pid),
            lambda: self.kill_executor(worker),
            lambda: self.pause(self.store()),
            lambda: self.pause(os.getpgid(group.database)),
        ]
        with ThreadPoolExecutor(len(faults)) as pool:
            for done in [pool.submit(fault) for fault in faults]:
                done.result()

    def kill_server(self, name: str, restart: bool = True) -> None:
        self.group.servers[name].kill(children=True)
        if restart:
            self.never.wait(LEASE_S)
            self.group.begin(name)
            self.group.await_start(name)

    def kill_jvm(self, name: str, restart: bool = True) -> None:
        server = self.group.servers[name]
        (jvm,) = children(server.pid, b"org.apache.spark.deploy.SparkSubmit")
        os.kill(jvm, signal.SIGKILL)
        assert server.wait(START_S) == 4, server.output[-5000:]
        if restart:
            self.group.begin(name)
            self.group.await_start(name)

    def pause_jvm(self, name: str) -> None:
        """Let a server live on while its JVM stands still; it waits for it."""
        server = self.group.servers[name]
        (jvm,) = children(server.pid, b"org.apache.spark.deploy.SparkSubmit")
        os.kill(jvm, signal.SIGSTOP)
        try:
            self.never.wait(PAUSE_S)
        finally:
            os.kill(jvm, signal.SIGCONT)
        assert not server.ended, server.output[-5000:]

    def kill_executor(self, worker: int) -> None:
        for pid in children(worker, EXECUTOR)[:1]:
            os.kill(pid, signal.SIGKILL)

    def store(self) -> int:
        port = urlsplit(self.group.s3.endpoint).port
        (pid,) = all_pids(b"-s3.port=%d" % (port or 0))
        return os.getpgid(pid)

    def pause(self, group: int) -> None:
        os.killpg(group, signal.SIGSTOP)
        try:
            self.never.wait(PAUSE_S)
        finally:
            os.killpg(group, signal.SIGCONT)


def all_pids(words: bytes) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if words in (entry / "cmdline").read_bytes():
                yield int(entry.name)


@contextmanager
def written_to(upstream: Any, waiting: Any, folder: Path, feeds: int) -> Iterator[Group]:
    """Give a group whose feeds have caught up with a workload that goes on; check everything at the end of the block."""
    workload = Workload(upstream, WorkloadSettings(rate=RATE, rows=10_000_000, ddls=False))
    workload.setup()
    with ExitStack() as parts:
        parts.callback(workload.stop)
        group = Group(parts, upstream, waiting, folder, feeds)
        workload.start()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(group.create, range(feeds)))
        group.caught_up()
        yield group
        report = workload.stop()
        group.caught_up()
        check(group, report.inserts - report.deletes)


def check(group: Group, rows: int) -> None:
    """Every target holds its table, by a comparison with the upstream and by the changes themselves, and no file has changed."""
    group.files.stop()
    group.files.look()
    found = 0
    for number in range(group.feeds):
        name = f"f{number}"
        verdict = verified(group, name)
        assert verdict["identical"], (name, verdict)
        changes = DeliveredChanges(open_reader(group.s3.uri(f"feeds/{number}"), {}))
        assert changes.problems() == [], name
        found += verdict["rows"]
    assert found == group.feeds // len(TABLES) * rows
    changed = [path for path, digest in group.files.first_seen.items() if group.files.digest(path) != digest]
    assert changed == []
    assert group.files.first_seen != {}
    said = "".join([*group.said, *(server.output for server in group.servers.values())])
    for words in ("[INTERNAL]", "Traceback"):
        before, found, after = said.partition(words)
        assert not found, before[-2_000:] + found + after[:4_000]


@pytest.mark.timeout(1_500)
def test_everything_fails_at_once_and_every_feed_delivers(upstream: Any, waiting: Any, tmp_path: Path) -> None:
    with written_to(upstream, waiting, tmp_path, FEW_FEEDS) as group:
        Chaos(group, random.Random(1)).at_once(restart=False)


@pytest.mark.chaos
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(("load", "rounds"), [pytest.param(0, 3, id="quiet"), pytest.param(LOAD, 1, id="busy")])
def test_everything_fails_in_turn_and_at_once(upstream: Any, waiting: Any, tmp_path: Path, load: int, rounds: int) -> None:
    with burners(load), written_to(upstream, waiting, tmp_path, FEEDS) as group:
        chaos = Chaos(group, random.Random(20261116))
        for _ in range(rounds):
            chaos.in_turn()
            chaos.at_once(restart=True)
            group.caught_up()


def verified(group: Group, name: str) -> dict[str, Any]:
    """Have a feed verified by the server that runs it."""
    found: dict[str, Any] = {}

    def asked() -> bool:
        owner = group.meta.get_feed(name).owner.partition("-")[0]
        if owner not in group.urls:
            return False
        with suppress(PenstockError), ServerClient(group.urls[owner], timeout_s=600.0) as client:
            found.update(client.verify_feed(name))
        return bool(found)

    group.waiting.until(f"{name} is verified", asked, SETTLE_S, group.explain, look_s=1.0)
    return found
