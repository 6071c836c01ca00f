"""A cluster whose executors are killed and whose object store refuses, answers late or loses answers delivers every row once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.server_client import ServerClient
from penstock.model.batch import Op
from penstock.server.verify.verification import open_reader
from penstock.source.dataserver.workload import Workload, WorkloadSettings
from testing.checks.target_audit import DeliveredChanges
from testing.servers.command_process import CommandProcess
from testing.servers.fault_proxy import FaultProxy, FaultShares, fault_proxy
from testing.servers.seaweed import S3Server, seaweed_s3

START_S = 180.0
RATE = 1_500
EXECUTOR = b"CoarseGrainedExecutorBackend"


def executors(group: int) -> list[int]:
    """Return the executors of a server: the JVMs of its process group that say so, as Spark's workers start them."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (
                EXECUTOR in (entry / "cmdline").read_bytes()
                and b"\0-cp\0" in (entry / "cmdline").read_bytes()
                and os.getpgid(int(entry.name)) == group
            ):
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sorted(found)


class Cluster:
    """A server with a local cluster, and a feed into an object store behind a proxy."""

    def __init__(self, upstream: Any, waiting: Any, proxy: FaultProxy, s3: S3Server, folder: Path) -> None:
        self.upstream, self.waiting, self.proxy = upstream, waiting, proxy
        self.uri = s3.uri("feed")
        self.sink_uri = self.uri.replace(s3.endpoint, proxy.endpoint)
        options = ["--source", upstream.uri, "--data-dir", str(folder / "data"), "--http-port", "0"]
        self.client: Any = None
        self.server = CommandProcess("server", *options, "--spark-master", "local-cluster[2,1,1024]", "--set", "spark.warm-up=false")

    def begin(self) -> None:
        self.url = self.server.wait_for("penstock server: ", START_S).split()[0]
        self.client = ServerClient(self.url)
        self.client.create_feed(
            {"name": "f", "tables": ["shop.*"], "sink": {"uri": self.sink_uri}, "flush-interval": "500ms", "spans-per-table": 2}
        )
        self.progress()

    def close(self) -> None:
        if self.client is not None:
            self.client.__exit__(None, None, None)
        self.server.stop()

    def show(self) -> dict[str, Any]:
        shown = self.client.show_feed("f")
        assert shown["state"] != "failed", shown["error"]
        return shown

    def progress(self) -> None:
        before = self.show()["windows"]
        self.waiting.until(
            "a committed window", lambda: self.show()["windows"] > before, explain=lambda: self.server.output[-6000:], look_s=0.2
        )

    def kill_executor(self) -> None:
        found = self.waiting.until("an executor", lambda: executors(os.getpgid(self.server.pid)), look_s=0.2)
        os.kill(found[0], signal.SIGKILL)

    def check(self, workload: Workload) -> None:
        report = workload.stop()
        self.proxy.shares = FaultShares(0, 0, 0)
        ts = self.upstream.current_ts()
        self.waiting.feed(self.client, "f", lambda shown: shown["checkpoint_ts"] >= ts)
        reader = self.waiting.until("the checkpoint is published", lambda: self.reader_at(ts), look_s=0.2)
        verdict = self.client.verify_feed("f")
        assert verdict["identical"], verdict
        assert verdict["rows"] == report.inserts - report.deletes
        changes = DeliveredChanges(reader)
        assert changes.problems() == []
        assert changes.operations() == {Op.INSERT: report.inserts, Op.UPDATE: report.updates, Op.DELETE: report.deletes}
        command = [sys.executable, "-m", "penstock", "storage", "check", self.uri]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr

    def reader_at(self, ts: int) -> Any:
        reader = open_reader(self.uri, {})
        return reader if (reader.checkpoint_ts() or 0) >= ts else None


@pytest.fixture
def workload(upstream: Any) -> Iterator[Workload]:
    opened = Workload(upstream, WorkloadSettings(rate=RATE, rows=10_000_000, ddls=False))
    opened.setup()
    yield opened
    opened.stop()


@pytest.fixture
def cluster(workload: Workload, upstream: Any, waiting: Any, tmp_path: Path) -> Iterator[Cluster]:
    with seaweed_s3(tmp_path / "s3") as s3, fault_proxy(s3.endpoint, FaultShares(0, 0, 0)) as proxy:
        opened = Cluster(upstream, waiting, proxy, s3, tmp_path)
        try:
            opened.begin()
            yield opened
        finally:
            opened.close()


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [pytest.param(1, id="short"), pytest.param(5, id="long")])
def test_executors_die_and_the_store_fails(workload: Workload, cluster: Cluster, rounds: int) -> None:
    cluster.proxy.shares = FaultShares(refused=0.1, lost=0.15, slow=0.03, slow_s=2.0)
    workload.start()
    for at in range(rounds):
        cluster.progress()
        cluster.kill_executor()
        cluster.upstream.execute_ddl(f"ALTER TABLE shop.orders ADD COLUMN round_{at} INT DEFAULT {at}")
        cluster.progress()
    while not (cluster.proxy.counts["refused"] and cluster.proxy.counts["lost"]):
        cluster.progress()
    cluster.check(workload)
