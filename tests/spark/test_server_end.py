"""A server process ends as it should: when Spark dies under it, and when it is told to while it starts."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from penstock.cli.server_client import ServerClient
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from testing.servers.command_process import CommandProcess

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

NOISE = ("Traceback", "INTERNAL", "py4j")


def start(uri: str, folder: Path, *more: str) -> CommandProcess:
    return CommandProcess(
        "server", "--source", uri, "--data-dir", str(folder / "data"), "--http-port", "0", "--spark-master", "local[2]", *more
    )


def children(pid: int) -> dict[str, int]:
    """Return the children of a process by their names."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    pids = [int(child) for file in files for child in file.read_text().split()]
    return {Path(f"/proc/{child}/comm").read_text().strip(): child for child in pids}


def test_a_dead_jvm_ends_the_server_with_its_own_exit_code(upstream, waiting, tmp_path: Path) -> None:
    upstream.execute_ddl("CREATE DATABASE d")
    upstream.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY)")
    with start(upstream.uri, tmp_path, "--set", "spark.warm-up=false") as server:
        url = server.wait_for("penstock server: ", 240).split()[0]
        with ServerClient(url) as client:
            client.create_feed({"name": "f", "tables": ["d.*"], "sink": {"uri": (tmp_path / "out").as_uri()}, "flush-interval": "1s"})
            waiting.until("a window", lambda: client.show_feed("f")["windows"] > 0, explain=lambda: server.output)
        os.kill(children(server.pid)["java"], signal.SIGKILL)
        assert server.wait(120) == 4
        assert "[SPARK_LOST]" in server.output
        assert [word for word in NOISE if word in server.output] == []
    with MetaDatabase(sqlite_url(tmp_path / "data" / "meta.db")) as meta:
        found = meta.get_feed("f")
        assert (found.owner, found.error_code) == ("", ""), "free for the next server, and no error of the feed's own"


def test_a_jvm_that_dies_while_the_server_starts_is_named(upstream, waiting, tmp_path: Path) -> None:
    with start(upstream.uri, tmp_path) as server:
        waiting.until("the JVM", lambda: "java" in children(server.pid), explain=lambda: server.output)
        server.wait_for("opening the event store", 240)
        os.kill(children(server.pid)["java"], signal.SIGKILL)
        assert server.wait(120) in {2, 4}
        assert "[SPARK_LOST]" in server.output or "[SPARK_UNAVAILABLE]" in server.output
        assert [word for word in NOISE if word in server.output] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after_s", [0.5, 4.0, 8.0, 12.0])
def test_a_signal_ends_a_server_that_starts(upstream, tmp_path: Path, number: int, after_s: float) -> None:
    """Before its handlers are there, while Spark starts, while it is warmed: whatever the machine does by then."""
    with start(upstream.uri, tmp_path) as server:
        threading.Event().wait(after_s)
        os.killpg(server.pid, number)
        assert server.wait(60) in {0, 130, -signal.SIGTERM}
        assert [word for word in NOISE if word in server.output] == []
