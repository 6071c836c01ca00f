"""Capture on executors, as a user configures it: receivers capture the rows, and one that is killed costs none."""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from penstock.cli.server_client import ServerClient
from penstock.config.known_servers import find_server, read_token
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.server.verify.verification import open_reader
from penstock.source.dataserver.client import DataServerUpstream
from testing.checks.target_audit import DeliveredChanges, numbering_problems
from testing.servers.command_process import CommandProcess

pytestmark = pytest.mark.timeout(600)

TABLES = 4
START_S = 180.0


def write(upstream: DataServerUpstream, first: int, count: int) -> int:
    """Insert rows into every table and change half of those that came before; return how many changes that were."""
    changes = 0
    for number in range(TABLES):
        table = upstream.table("d", f"t{number}")
        ids = [*range(first, first + count), *range(max(0, first - count), max(0, first - count // 2))]
        with upstream.txn() as txn:
            values = (pa.array(ids, pa.int64()), pa.array([f"{first} {i}" for i in ids]))
            txn.put(table, pa.record_batch({c.field_name: v for c, v in zip(table.columns, values, strict=True)}))
        changes += len(ids)
    return changes


def test_a_receiver_is_killed_and_the_target_equals_the_upstream(upstream: DataServerUpstream, waiting: Any, tmp_path: Path) -> None:
    upstream.execute_ddl("CREATE DATABASE d")
    for number in range(TABLES):
        upstream.execute_ddl(f"CREATE TABLE d.t{number} (id BIGINT PRIMARY KEY, v TEXT)")
    changes = write(upstream, 0, 100)
    target = tmp_path / "files"
    options = ["--source", upstream.uri, "--data-dir", str(tmp_path / "data"), "--http-port", "0", "--spark-master", "local[3]"]
    settings = ["--set", "spark.warm-up=false", "--set", "capture=executors", "--set", "receivers=2"]
    with CommandProcess("server", *options, *settings) as server:
        url = server.wait_for("penstock server: ", START_S).split()[0]
        with ServerClient(url) as client:
            client.create_feed({"name": "f", "tables": ["d.*"], "sink": {"uri": target.as_uri()}, "flush-interval": "500ms"})
            waiting.drained(client, "f", target, upstream.current_ts())
            changes += write(upstream, 100, 100)
            waiting.drained(client, "f", target, upstream.current_ts())
            verdict = client.verify_feed("f")
            assert verdict["identical"], verdict
            os.kill(int(receivers(server)[0]), signal.SIGKILL)
            changes += write(upstream, 200, 100)
            waiting.drained(client, "f", target, upstream.current_ts())
            waiting.until("the loss is noticed", lambda: "receiver is lost" in server.output, explain=lambda: server.output)
            waiting.until("another one came", lambda: len(receivers(server)) == 3, explain=lambda: server.output)
            changes += write(upstream, 300, 100)
            waiting.drained(client, "f", target, upstream.current_ts())
            verdict = client.verify_feed("f")
            assert verdict["identical"], verdict
            assert metrics(url)["penstock_receivers_lost_total"] >= 1
            # Parts go to the new one, one after the other.
            waiting.until("the metrics show both, and every span", lambda: captured(metrics(url)) == (2, TABLES), look_s=0.5)
        delivered = DeliveredChanges(open_reader(target.as_uri(), {}))
        assert delivered.problems() == []
        assert delivered.rows == changes
        assert numbering_problems(target) == []


@pytest.mark.chaos
def test_servers_take_the_parts_from_each_other(upstream: DataServerUpstream, waiting: Any, tmp_path: Path) -> None:
    """By a kill, by one that stands still beyond its leases and goes on, and by a drain; receivers of the one before are still there."""
    upstream.execute_ddl("CREATE DATABASE d")
    for number in range(TABLES):
        upstream.execute_ddl(f"CREATE TABLE d.t{number} (id BIGINT PRIMARY KEY, v TEXT)")
    target, written = tmp_path / "files", [write(upstream, 0, 100)]
    servers: dict[str, CommandProcess] = {}
    urls: dict[str, str] = {}

    def start(name: str) -> None:
        settings = {
            "spark.warm-up": "false", "capture": "executors", "receivers": "2", "owner": name, "supervisor.lease": "3s",
            "meta-url": sqlite_url(tmp_path / "meta.db"),
            "store.objects": (tmp_path / "shared").as_uri(), "store.objects-interval": "1s",
        }  # fmt: skip
        options = ["--source", upstream.uri, "--data-dir", str(tmp_path / name), "--http-port", "0", "--spark-master", "local[3]"]
        servers[name] = CommandProcess("server", *options, *(part for item in settings.items() for part in ("--set", "=".join(item))))
        ended.callback(servers[name].stop)
        urls[name] = servers[name].wait_for("penstock server: ", START_S).split()[0]

    def delivered_by(name: str) -> None:
        explain = lambda: "\n".join(server.output[-5000:] for server in servers.values())  # noqa: E731
        waiting.until(f"{name} has the feed", lambda: meta.get_feed("f").owner.startswith(f"{name}-"), explain=explain)
        written.append(write(upstream, 100 * len(written), 100))
        with ServerClient(urls[name]) as client:
            waiting.drained(client, "f", target, upstream.current_ts())
            verdict = client.verify_feed("f")
        assert verdict["identical"], verdict

    with ExitStack() as ended:
        start("one")
        meta = ended.enter_context(MetaDatabase(sqlite_url(tmp_path / "meta.db")))
        with ServerClient(urls["one"]) as client:
            client.create_feed({"name": "f", "tables": ["d.*"], "sink": {"uri": target.as_uri()}, "flush-interval": "500ms"})
        delivered_by("one")
        start("two")
        os.killpg(servers["one"].pid, signal.SIGSTOP)
        try:
            delivered_by("two")
        finally:
            os.killpg(servers["one"].pid, signal.SIGCONT)
        delivered_by("two")
        with ServerClient(urls["two"]) as client:
            client.drain("POST")
        delivered_by("one")
        with ServerClient(urls["two"]) as client:
            client.drain("DELETE")
        servers["one"].kill(children=True)
        delivered_by("two")
    found = DeliveredChanges(open_reader(target.as_uri(), {}))
    assert found.problems() == []
    assert found.rows == sum(written)
    assert numbering_problems(target) == []


def captured(shown: dict[str, float]) -> tuple[float, float]:
    """Return how many receivers there are, and how many spans they capture."""
    return shown["penstock_receivers"], sum(value for name, value in shown.items() if name.startswith("penstock_receiver_spans"))


def metrics(url: str) -> dict[str, float]:
    """Return what a server shows of itself."""
    known = find_server(url)
    assert known is not None
    token = read_token(Path(known.token_file))
    text = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=60).text
    lines = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def receivers(server: CommandProcess) -> list[str]:
    """Return the processes of all receivers that the server has heard of."""
    return re.findall(r"receiver is there.*?\bpid\W+(\d+)", server.output)
