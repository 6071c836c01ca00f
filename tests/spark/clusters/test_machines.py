"""Executors on machines of their own: nothing of the server's directories is there, its code came with the archive, and no secret is told.

A cluster's traffic is authenticated and encrypted; MariaDB is source and meta database, the target is an object store. What Spark writes
down (event log, logs of its processes) and what every user sees (command lines) is searched for every secret of the run.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pymysql
import pytest

import penstock
from penstock.cli.server_client import ServerClient
from penstock.feed.spark.installation import pack
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.server.verify.verification import open_reader
from penstock.source.dataserver.client import DataServerUpstream
from penstock.store.flight.address import read_address
from penstock.store.flight.credentials import split_token
from testing.checks.target_audit import DeliveredChanges
from testing.servers.clusters.spark_machines import SparkMachines, network, spark_machines, why_not
from testing.servers.command_process import CommandProcess
from testing.servers.loopback_server import mariadb
from testing.servers.seaweed import S3Server, seaweed_s3

START_S = 300.0
WORKERS = 2
BINLOG = ("--server-id=1", "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-metadata=FULL")
PLANTED = {
    "source": "pl4nt-source-9c1",
    "meta": "pl4nt-meta-77e",
    "account key": "pl4nt-account-41f",
    "rpc": "pl4nt-rpc-0b2",
}
ROWS, LATER = 3_000, 500


class Machines:
    """A server here, executors elsewhere, and one feed between MariaDB and the object store."""

    def __init__(self, folder: Path, parts: ExitStack, archive: Path, waiting: Any, receivers: int = 0) -> None:
        """With ``receivers`` there is a source with ranges too, ``lab``, which they capture."""
        self.folder, self.waiting, self.receivers = folder, waiting, receivers
        self.data = folder / "server"
        self.data.mkdir()
        self.events = folder / "events"
        self.events.mkdir()
        address = parts.enter_context(network())
        uri = parts.enter_context(mariadb(folder / "mariadb", (*BINLOG, f"--bind-address=127.0.0.1,{address}")))
        self.port = urlsplit(uri).port or 0
        self.s3: S3Server = parts.enter_context(seaweed_s3(folder / "s3", address=address))
        self.uri = self.s3.uri("feed")
        common = {"spark.authenticate": "true", "spark.authenticate.secret": PLANTED["rpc"], "spark.network.crypto.enabled": "true"}
        self.hidden = self._hidden()
        if receivers:
            lab = parts.enter_context(CommandProcess("dataserver", "--host", address))
            self.lab = parts.enter_context(DataServerUpstream(lab.wait_for("listening on ", START_S).split()[0]))
        cores = 1 if not receivers else 2
        self.cluster: SparkMachines = parts.enter_context(
            spark_machines(folder / "spark", address, WORKERS, self.hidden, common, cores=cores)
        )
        self.prepare()
        self.server: CommandProcess = parts.enter_context(
            CommandProcess("server", "--config", str(self.configuration(archive, common)), "--data-dir", str(self.data), "--http-port", "0")
        )
        url = self.server.wait_for("penstock server: ", START_S).split()[0]
        self.client = parts.enter_context(ServerClient(url))

    def _hidden(self) -> list[Path]:
        """Everything of this installation and of the server that executors must do without."""
        clone = Path(penstock.__file__).resolve().parents[2]
        found = {clone, Path(sys.prefix).resolve().parent, Path(sys.base_prefix).resolve(), self.data}
        shown = {Path("/usr"), Path("/usr/local")}
        return sorted(path for path in found - shown if path not in self.folder.parents)

    def prepare(self) -> None:
        source, meta = PLANTED["source"], PLANTED["meta"]
        self.execute(
            f"CREATE USER cdc@'%' IDENTIFIED BY '{source}'",
            "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT, BINLOG MONITOR, RELOAD ON *.* TO cdc@'%'",
            "CREATE DATABASE meta",
            f"CREATE USER meta@'%' IDENTIFIED BY '{meta}'",
            "GRANT ALL ON meta.* TO meta@'%'",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(40))",
            "CREATE TABLE shop.items (id BIGINT PRIMARY KEY, name VARCHAR(40))",
            f"INSERT INTO shop.orders SELECT seq, CONCAT('order ', seq) FROM shop.seq_1_to_{ROWS}",
            f"INSERT INTO shop.items SELECT seq, CONCAT('item ', seq) FROM shop.seq_1_to_{ROWS}",
        )

    def execute(self, *statements: str) -> None:
        connection = pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True)
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def configuration(self, archive: Path, common: dict[str, str]) -> Path:
        at = self.cluster.address
        conf = common | {
            "spark.driver.host": at,
            "spark.driver.bindAddress": at,
            "spark.executor.memory": "512m",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": PLANTED["account key"],
        }
        lines = [
            f'source = "mysql://cdc:{PLANTED["source"]}@{at}:{self.port}/"',
            f'meta-url = "mysql://meta:{PLANTED["meta"]}@{at}:{self.port}/meta"',
            f'flight-host = "{at}"',
            "[store]",
            f"objects = {json.dumps(self.s3.uri('store'))}",
            "[spark]",
            f'master = "{self.cluster.master}"',
            f'archive = "{archive}"',
            f"cores-max = {WORKERS if not self.receivers else 2 * WORKERS}",
            "[spark.conf]",
            *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in conf.items()),
        ]
        if self.receivers:
            lines += ["[sources.lab]", f'uri = "{self.lab.uri}"', 'capture = "executors"', f"receivers = {self.receivers}"]
        file = self.folder / "server.toml"
        file.write_text("\n".join(lines))
        return file

    def explain(self) -> str:
        logs = [*self.folder.glob("spark/**/stderr"), *self.folder.glob("spark/machine*/worker.log")]
        return self.server.output[-4000:] + "".join(f"\n--- {log}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def create(self) -> None:
        """Create the feed; on a busy machine the answer may take longer than a caller waits, and the feed is there all the same."""
        try:
            self.client.create_feed({"name": "f", "tables": ["shop.*"], "sink": {"uri": self.uri}, "flush-interval": "500ms"})
        except PenstockError as error:
            if error.code != "SERVER_UNREACHABLE":
                raise
        self.waiting.until("the feed", self._listed, START_S, self.explain, look_s=1.0)

    def _listed(self) -> bool:
        try:
            return bool(self.client.show_feed("f"))
        except PenstockError as error:
            if error.code not in {"SERVER_UNREACHABLE", "FEED_UNKNOWN"}:
                raise
            return False

    def delivered(self, rows: int) -> None:
        def reached() -> bool:
            shown = self.client.show_feed("f")
            assert shown["state"] != "failed", shown["error"]
            return bool(shown["rows"] >= rows)

        self.waiting.until(f"{rows} rows", reached, START_S, self.explain, look_s=0.5)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("archive") / "penstock.tar.gz"
    pack(file, 1)
    return file


@pytest.fixture
def machines(archive: Path, tmp_path: Path, waiting: Any) -> Iterator[Machines]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with ExitStack() as parts:
        yield Machines(tmp_path, parts, archive, waiting)


@pytest.fixture
def receiving_machines(archive: Path, tmp_path: Path, waiting: Any) -> Iterator[Machines]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with ExitStack() as parts:
        yield Machines(tmp_path, parts, archive, waiting, receivers=2)


def processes(words: bytes, below: Path) -> list[Path]:
    """Return the processes whose command lines say some words and that work below a directory: other clusters of this machine do not."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if words in (entry / "cmdline").read_bytes() and below in (entry / "cwd").readlink().parents:
                found.append(entry)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def command_lines() -> str:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return "\n".join(found)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_feed_whose_executors_have_nothing_of_the_server(machines: Machines) -> None:
    machines.create()
    machines.delivered(2 * ROWS)
    machines.execute(
        f"INSERT INTO shop.orders SELECT {ROWS} + seq, CONCAT('later ', seq) FROM shop.seq_1_to_{LATER}",
        "UPDATE shop.items SET name = 'changed' WHERE id <= 100",
        "DELETE FROM shop.items WHERE id > 2900",
    )
    machines.delivered(2 * ROWS + LATER + 200)
    shown = command_lines()
    verdict = machines.client.verify_feed("f")
    assert verdict["identical"], verdict
    assert verdict["rows"] == 2 * ROWS + LATER - 100
    changes = DeliveredChanges(open_reader(machines.uri, {}))
    assert changes.problems() == []
    assert changes.operations() == {Op.INSERT: 2 * ROWS + LATER, Op.UPDATE: 100, Op.DELETE: 100}
    check_machines(machines)
    check_secrets(machines, shown)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_receivers_on_machines_of_their_own(receiving_machines: Machines) -> None:
    """They capture there, and windows read from there what is not in objects yet."""
    machines, lab = receiving_machines, receiving_machines.lab
    lab.execute_ddl("CREATE DATABASE d")
    for number in range(4):
        lab.execute_ddl(f"CREATE TABLE d.t{number} (id BIGINT PRIMARY KEY, v TEXT)")

    def write(first: int, count: int) -> None:
        for number in range(4):
            table = lab.table("d", f"t{number}")
            with lab.txn() as txn:
                values = (pa.array(range(first, first + count), pa.int64()), pa.array([f"row {i}" for i in range(count)]))
                txn.put(table, pa.record_batch({c.field_name: v for c, v in zip(table.columns, values, strict=True)}))

    def delivered() -> None:
        ts = lab.current_ts()
        machines.waiting.feed(machines.client, "g", lambda shown: shown["checkpoint_ts"] >= ts, START_S)
        verdict = machines.client.verify_feed("g")
        assert verdict["identical"], verdict

    write(0, 100)
    uri = machines.s3.uri("lab")
    machines.client.create_feed({"name": "g", "source": "lab", "tables": ["d.*"], "sink": {"uri": uri}, "flush-interval": "500ms"})
    delivered()
    hosts = set(re.findall(r"receiver is there.*?\bhost\W+([\d.]+)", machines.server.output))
    network = machines.cluster.address.rpartition(".")[0]
    assert hosts
    assert hosts <= {f"{network}.{11 + at}" for at in range(WORKERS)}
    write(100, 100)
    delivered()
    changes = DeliveredChanges(open_reader(uri, {}))
    assert changes.problems() == []
    assert changes.operations() == {Op.INSERT: 800}


def check_machines(machines: Machines) -> None:
    """Every executor ran on a machine of its own, from the archive, and could not have seen what is here."""
    daemons = processes(b"-m\0penstock.feed.spark.worker_daemon", machines.folder / "spark")
    assert daemons
    for daemon in daemons:
        python = (daemon / "exe").readlink()
        assert any(machine in python.parents for machine in machines.cluster.machines), python
        assert (daemon / "ns/net").readlink() != Path("/proc/self/ns/net").readlink()
        for hidden in machines.hidden:
            assert list((daemon / "root").joinpath(*hidden.parts[1:]).iterdir()) == []


def check_secrets(machines: Machines, shown: str) -> None:
    """Nothing secret is in what Spark wrote down, or in any command line."""
    token, reader = split_token(read_address(machines.data).token)
    assert reader is not None
    key = reader.key.splitlines()[1]
    secrets = PLANTED | {"flight token": token, "flight key": key, "object store": machines.s3.secret_key}
    places = {"command lines": shown + command_lines(), "server": machines.server.output}
    logs = [*machines.folder.glob("spark/*.log"), *machines.folder.glob("spark/machine*/*.log"), *machines.folder.glob("spark/**/std*")]
    places |= {str(file): file.read_text(errors="replace") for file in [*logs, *(f for f in machines.events.rglob("*") if f.is_file())]}
    found = [(what, place) for what, secret in secrets.items() for place, text in places.items() if secret in text]
    assert found == []
    # What is searched does tell of the run.
    events = "".join(text for place, text in places.items() if place.startswith(str(machines.events)))
    assert "feed f, window (" in events
    assert "fs.azure.account.key.lake" in events
    hosts = {json.loads(line)["Executor Info"]["Host"] for line in events.splitlines() if "SparkListenerExecutorAdded" in line}
    assert len(hosts) == WORKERS
    assert "worker_daemon" in shown
