from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli.main import run
from penstock.cli.server_client import ServerClient
from penstock.format.layout.paths import Layout
from penstock.model.batch import ChangeBatch
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.puller.doubts import Settlement
from penstock.sink.catalog import open_maintainer
from penstock.sink.storage.publisher import SchemaVersions
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.target.storage import ObjectTarget, unfenced
from testing.paths.delivered_target import DeliveredTarget
from testing.servers.api_server import ApiServer


@pytest.fixture(scope="module")
def upstream() -> Iterator[DataServerUpstream]:
    server = DataServer(DataServerSettings(resolved_interval_ms=10)).start()
    try:
        with DataServerUpstream(server.uri) as client:
            client.execute_ddl("CREATE DATABASE d")
            for name in ("a", "b"):
                client.execute_ddl(f"CREATE TABLE d.{name} (id INT PRIMARY KEY, v VARCHAR(40))")
                put(client, client.table("d", name), 5)
            yield client
    finally:
        server.stop()


def put(client: DataServerUpstream, table: TableSchema, rows: int) -> None:
    with client.txn() as txn:
        txn.put(table, {"id": pa.array(range(rows), pa.int32()), "v": pa.array(["x"] * rows, pa.string())})


@pytest.fixture
def target(upstream: DataServerUpstream, tmp_path: Path) -> DeliveredTarget:
    ids = [upstream.table("d", name).table_id for name in "ab"]
    delivered = DeliveredTarget(tmp_path / "files", upstream, ids, {"csv.delimiter": ";"})
    delivered.deliver(0, upstream.current_ts())
    return delivered


def offline(upstream: DataServerUpstream, target: DeliveredTarget) -> list[str]:
    return ["verify", "--source", upstream.uri, "--sink", target.uri, "--table", "d.*", "--set", "sink.csv.delimiter=;"]


def test_without_a_server(upstream: DataServerUpstream, target: DeliveredTarget, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(offline(upstream, target)) == 0
    assert capsys.readouterr().out == "d.a: 5 rows identical\nd.b: 5 rows identical\nverified: 2 tables, 10 rows identical\n"
    assert run([*offline(upstream, target), "--output", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["identical"], answer["rows"], answer["stops_at_checkpoint"]) == (True, 10, True)
    assert [(t["name"], t["rows"], t["missing"]) for t in answer["tables"]] == [("d.a", 5, 0), ("d.b", 5, 0)]


def test_a_mismatch_is_exit_code_1(upstream: DataServerUpstream, target: DeliveredTarget, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = target.folder.glob("d/b/**/CDC*.csv")
    file.write_bytes(file.read_bytes().replace(b'"x"', b'"y"', 1))
    assert run(offline(upstream, target)) == 1
    out, err = capsys.readouterr()
    assert out == "d.a: 5 rows identical\nd.b: 0 rows missing, 0 unexpected, 1 different, first keys: (0,)\n"
    told, _, error = err.partition("error: ")
    assert told == "d.a: table 1 of 2\nd.b: table 2 of 2\n"
    assert error.startswith("[VERIFY_MISMATCH] d.b: 0 rows missing, 0 unexpected, 1 different")
    assert run([*offline(upstream, target), "--output", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [(t["name"], t["identical"], t["different"], t["sample_keys"]) for t in answer["tables"]] == [
        ("d.a", True, 0, []),
        ("d.b", False, 1, ["(0,)"]),
    ]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--table", "d.none"], "TABLE_UNKNOWN"),
        (["--sink", "file:///nowhere/at/all"], "SINK_URI_INVALID"),
        (["--sink", "ftp://x/y"], "SINK_URI_INVALID"),
        (["--source", "dataserver://127.0.0.1:1"], "UPSTREAM_UNREACHABLE"),
        (["--source", "nonsense://x"], "CONFIG_INVALID"),
        (["--set", "sink.no-such=1"], "CONFIG_INVALID"),
    ],
)
def test_what_cannot_be_compared_is_exit_code_2_or_75_where_it_may_be_later(
    upstream: DataServerUpstream, target: DeliveredTarget, more: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*offline(upstream, target), *more]) == (75 if code == "UPSTREAM_UNREACHABLE" else 2)
    out, err = capsys.readouterr()
    assert err.startswith(f"error: [{code}] ")
    assert "hint: " in err
    assert out == ""


@pytest.mark.parametrize("argv", [["verify"], ["verify", "f", "--sink", "file:///x"], ["verify", "--source", "dataserver://h:1"]])
def test_either_a_feed_or_both_sides(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    assert "--source" in capsys.readouterr().err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--help"]) == 0
    assert "penstock verify orders --server" in capsys.readouterr().out


def test_a_feed_is_verified_by_its_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = (tmp_path / "files").as_uri()
    with ApiServer(tmp_path, "shop.orders", "shop.items") as server:
        at = ["--server", server.url]
        assert run(["feed", "create", "f", "--table", "shop.*", "--sink", sink, "--set", "sink.csv.delimiter=;", *at]) == 0
        server.runs.next_run()
        capsys.readouterr()
        assert run(["verify", "f", *at]) == 75
        assert capsys.readouterr().err.startswith("error: [CHECKPOINT_MISSING] ")
        assert run(["verify", "g", *at]) == 2
        assert capsys.readouterr().err.startswith("error: [FEED_UNKNOWN] ")

        # The upstream has no rows, so a target of two described tables is right, and one with a row is not.
        versions = SchemaVersions(ObjectTarget.open(sink), output_column_id=False)
        for table in server.upstream.list_tables():
            versions.ensure(table)
        open_maintainer(sink, {}, unfenced).publish_checkpoint(1 << 50)
        assert run(["verify", "f", *at]) == 0
        assert capsys.readouterr().out.endswith("verified: 2 tables, 0 rows identical\n")
        day = tmp_path / "files" / "shop" / "orders" / "1" / Layout().date_text(1 << 49)
        (day / "meta").mkdir(parents=True)
        (day / "CDC00000000000000000001.csv").write_bytes(f'"I";"orders";"shop";{1 << 49};7\r\n'.encode())
        (day / "meta" / "CDC.index").write_text("CDC00000000000000000001.csv\n")
        assert run(["verify", "f", *at]) == 1
        out, err = capsys.readouterr()
        assert "shop.orders: 0 rows missing, 1 unexpected, 0 different, first keys: (7,)\n" in out
        # Progress stands before it where the machine is slow.
        assert err.splitlines()[-2].startswith("error: [VERIFY_MISMATCH] ")


class WrongRow:
    """A feed of two empty tables whose target has one row too much in the first."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        sink = (directory / "files").as_uri()
        self.at = ["--server", server.url]
        assert run(["feed", "create", "f", "--table", "shop.*", "--sink", sink, "--set", "sink.csv.delimiter=;", *self.at]) == 0
        server.runs.next_run()
        versions = SchemaVersions(ObjectTarget.open(sink), output_column_id=False)
        for table in server.upstream.list_tables():
            versions.ensure(table)
        open_maintainer(sink, {}, unfenced).publish_checkpoint(1 << 50)
        self.day = directory / "files" / "shop" / "orders" / "1" / Layout().date_text(1 << 49)
        (self.day / "meta").mkdir(parents=True)
        (self.day / "CDC00000000000000000001.csv").write_bytes(f'"I";"orders";"shop";{1 << 49};7\r\n'.encode())
        (self.day / "meta" / "CDC.index").write_text("CDC00000000000000000001.csv\n")
        self.table_id = next(t.table_id for t in server.upstream.list_tables() if t.table == "orders")

    def correct(self) -> None:
        """Deliver what a re-read would: the row ceased."""
        file = self.day / "CDC00000000000000000001.csv"
        file.write_bytes(file.read_bytes() + f'"D";"orders";"shop";{(1 << 49) + 1};7\r\n'.encode())


def test_repair_has_what_differs_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ApiServer(tmp_path, "shop.orders", "shop.items") as server:
        feed = WrongRow(server, tmp_path)
        capsys.readouterr()
        assert run(["verify", "f", "--repair", *feed.at]) == 1
        out, err = capsys.readouterr()
        assert "shop.orders: 0 rows missing, 1 unexpected, 0 different, first keys: (7,); it will be read again\n" in err
        assert "shop.items: 0 rows identical\n" in out
        assert [(s.table, s.state.value) for s in server.doubted.states()] == [("orders", "doubtful")]
        # What is in doubt is named with its state, not compared and not passed over.
        assert run(["verify", "f", *feed.at]) == 3
        out = capsys.readouterr().out
        assert "shop.orders: could not be checked: it is doubtful: asked for by an operator\n" in out
        assert out.endswith("verified: 1 tables, 0 rows identical; 1 could not be checked\n")
        assert run(["verify", "f", "--output", "json", *feed.at]) == 3
        tables = {t["name"]: t for t in json.loads(capsys.readouterr().out)["tables"]}
        assert (tables["shop.orders"]["identical"], tables["shop.items"]["identical"]) == (False, True)
        assert tables["shop.orders"]["unchecked"].startswith("it is doubtful")


@pytest.mark.parametrize("helps", [True, False])
def test_repair_and_wait_verifies_again(tmp_path: Path, helps: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with ApiServer(tmp_path, "shop.orders", "shop.items") as server:
        feed = WrongRow(server, tmp_path)
        server.doubts.endings[feed.table_id] = [Settlement(ts=0, rows=1, left_out=0, closed=True)]
        server.doubts.before = lambda _: feed.correct() if helps else None
        server.doubted.start()
        try:
            capsys.readouterr()
            assert run(["verify", "f", "--repair", "--wait", *feed.at]) == (0 if helps else 1)
        finally:
            server.doubted.stop()
        out, err = capsys.readouterr()
        assert server.doubts.read == [feed.table_id]
        if helps:
            assert out == "shop.orders: 0 rows identical\nshop.items: 0 rows identical\nverified: 2 tables, 0 rows identical\n"
        else:
            assert "the files themselves are not what was delivered" in err


@pytest.mark.parametrize("argv", [["f", "--wait"], ["--source", "a://b", "--sink", "file:///x", "--table", "a.b", "--repair"]])
def test_repair_is_the_servers_and_waiting_needs_it(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", *argv]) == 2
    assert "--repair" in capsys.readouterr().err


def test_how_far_a_verification_is_can_be_asked(tmp_path: Path) -> None:
    with ApiServer(tmp_path, "shop.orders", "shop.items") as server:
        feed = WrongRow(server, tmp_path)
        with ServerClient(feed.at[1]) as client:
            assert client.verify_progress("f", 0) == [], "none is under way"
            told: list[list[str]] = []
            read_now = server.upstream.read_now

            def look(span: Span) -> Iterator[ChangeBatch]:
                told.append(client.verify_progress("f", len(told)))
                return read_now(span)

            server.upstream.read_now = look  # type: ignore[method-assign]
            client.verify_feed("f")
            assert told == [["shop.orders: table 1"], ["shop.items: table 2"]]
            with pytest.raises(PenstockError, match=r"\[FEED_UNKNOWN\]"):
                client.verify_progress("g", 0)
