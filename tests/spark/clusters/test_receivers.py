"""Capture on executors, as a user configures it: receivers capture the rows, and one that is killed costs none."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli.server_client import ServerClient
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
        delivered = DeliveredChanges(open_reader(target.as_uri(), {}))
        assert delivered.problems() == []
        assert delivered.rows == changes
        assert numbering_problems(target) == []


def receivers(server: CommandProcess) -> list[str]:
    """Return the processes of all receivers that the server has heard of."""
    return re.findall(r"receiver is there.*?\bpid\W+(\d+)", server.output)
