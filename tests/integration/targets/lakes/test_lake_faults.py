"""Lakes under faults: answers that are lost, a disk that is full or cannot be written to, others who work on the same tables."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.model.batch import Op
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.timestamp import TS_ZERO
from penstock.sink.catalog import kind_of
from penstock.sink.contract import DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.iceberg.catalogs import open_catalog
from penstock.sink.lake.upkeep import Upkeep
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced
from testing.paths.whole_path import WholePath, read_state
from testing.servers.fault_proxy import FaultShares, fault_proxy
from testing.servers.seaweed import S3Server, seaweed_s3
from testing.targets.lake_kit import LAKES, Lake
from tests.contract.test_sink import T0, TABLE, WHOLE, inserts, rows_of
from tests.integration.targets.lakes.test_lakes import TABLES, assert_same
from tests.integration.targets.test_flaky_target import deliver

pytestmark = pytest.mark.integration


def bucket_rows(s3: S3Server, kind: str, catalog: str, name: str) -> list[tuple[object, ...]]:
    """Read a table of a lake in a bucket by the library of its project, past the proxy."""
    schema, _, table = name.partition(".")
    if kind == "delta":
        given = {"endpoint": s3.endpoint, "access_key_id": s3.access_key, "secret_access_key": s3.secret_key}
        given |= {"region": "us-east-1", "allow_http": "true"}
        return sorted(pl.read_delta(f"s3://{s3.bucket}/lake/{schema}/{table}", storage_options=given).rows())
    store = s3.uri("lake")
    opened = open_catalog(store, catalog, store.partition("?")[0]).load_table((schema, table))
    return sorted(pl.DataFrame(opened.scan().to_arrow()).rows())


@pytest.mark.chaos
@pytest.mark.parametrize("kind", sorted(LAKES))
def test_a_bucket_that_loses_answers_has_every_row_once(tmp_path: Path, kind: str) -> None:
    catalog = f"sqlite:///{tmp_path}/catalog.db" if kind == "iceberg" else ""
    (tmp_path / "feed").mkdir()
    with seaweed_s3(tmp_path / "s3") as s3, fault_proxy(s3.endpoint, FaultShares(0, 0, 0), seed=5) as proxy:
        uri = f"{kind}+{s3.uri('lake').replace(s3.endpoint, proxy.endpoint)}"
        options = {"catalog": catalog} if catalog else {}
        with contextlib.closing(WholePath(tmp_path / "feed", TABLES, target_uri=uri, sink_options=options)) as path:
            proxy.shares = FaultShares(refused=0.05, lost=0.1, slow=0)
            for at in range(4):
                ts = path.write({"d.a": {i: f"{at} {i}" for i in range(at, at + 5)}, "d.b": {at: "x"}}, {"d.a": [at - 1] if at else []})
                if at == 2:
                    ts = path.upstream.execute_ddl("ALTER TABLE d.b ADD COLUMN w INT DEFAULT 7")
                deliver(path, ts)
            assert proxy.counts["lost"] > 0
            proxy.shares = FaultShares(0, 0, 0)
            path.drain()
            for name in ("d.a", "d.b"):
                want = read_state(path.upstream, path.table(name), path.upstream.current_ts())
                assert bucket_rows(s3, kind, catalog, name) == sorted(want.rows())
            assert bucket_rows(s3, kind, catalog, "penstock.checkpoint")[0][0] == path.feed.checkpoint_ts()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def failure(path: WholePath) -> PenstockError:
    with pytest.raises(PenstockError) as raised:
        path.drain()
    return raised.value


@pytest.mark.parametrize("kind", sorted(LAKES))
def test_a_disk_that_is_full_or_cannot_be_written_to_for_a_while(tmp_path: Path, kind: str) -> None:
    with small_disk(tmp_path / "disk") as disk:
        lake = LAKES[kind](disk / "lake")
        with contextlib.closing(WholePath(tmp_path, TABLES, target_uri=lake.uri)) as path:
            path.write({"d.a": {1: "x"}, "d.b": {1: "y"}})
            path.drain()
            path.write({"d.a": {1: "z", 2: "x"}}, {"d.b": [1]})
            with contextlib.suppress(OSError), (disk / "full").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            full = failure(path)
            assert full.kind in {ErrorKind.TRANSIENT, ErrorKind.BLOCKED}, full
            (disk / "full").unlink()
            path.drain()
            assert_same(path, lake, "d.a", "d.b")
            path.write({"d.a": {3: "later"}})
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            refused = failure(path)
            assert refused.kind in {ErrorKind.TRANSIENT, ErrorKind.BLOCKED}, refused
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
            path.drain()
            assert_same(path, lake, "d.a", "d.b")
            assert lake.read("penstock", "checkpoint").row(0)[0] == path.feed.checkpoint_ts()


def foreign_upkeep(lake: Lake, at: int) -> None:
    """Do to a table what other tools do, without a word to the feed; who loses against the feed tries no more."""
    if not lake.uri.startswith("delta"):
        list(Upkeep.open(lake.uri, {}).compact(["d.a"]))
        return
    table = DeltaTable(str(lake.root / "d" / "a"))
    with contextlib.suppress(DeltaError):
        if at % 2:
            table.optimize.z_order(["v"])
        else:
            table.optimize.compact()
        table.create_checkpoint()


@pytest.mark.parametrize("kind", sorted(LAKES))
def test_others_who_write_files_together_while_windows_are_committed(tmp_path: Path, kind: str) -> None:
    lake = LAKES[kind](tmp_path / "lake")
    with contextlib.closing(WholePath(tmp_path, TABLES, target_uri=lake.uri)) as path:
        path.write({"d.a": dict.fromkeys(range(5), "x")})
        path.drain()
        for at in range(5):
            path.write({"d.a": {at: f"new {at}", 10 + at: "y"}}, {"d.a": [9 + at]})
            other = threading.Thread(target=foreign_upkeep, args=(lake, at))
            other.start()
            deliver(path, path.upstream.current_ts())
            other.join()
        foreign_upkeep(lake, 0)
        path.write({"d.a": {0: "last"}})
        path.drain()
        assert_same(path, lake, "d.a")


def keep_up(lake: Lake, gate: threading.Barrier, failures: list[PenstockError]) -> None:
    upkeep = Upkeep.open(lake.uri, {})
    gate.wait()
    try:
        list(upkeep.compact([]))
        list(upkeep.expire([], 1))
    except PenstockError as error:
        failures.append(error)


@pytest.mark.parametrize("kind", sorted(LAKES))
def test_upkeep_by_several_at_once_beside_a_feed_leaves_every_row(tmp_path: Path, kind: str) -> None:
    lake = LAKES[kind](tmp_path / "lake")
    with contextlib.closing(WholePath(tmp_path, TABLES, target_uri=lake.uri)) as path:
        for at in range(4):
            path.write({"d.a": {at: f"new {at}", 10 + at: "y"}}, {"d.a": [9 + at]})
            path.drain()
            gate, failures = threading.Barrier(3), list[PenstockError]()
            others = [threading.Thread(target=keep_up, args=(lake, gate, failures)) for _ in range(2)]
            for other in others:
                other.start()
            path.write({"d.a": {30 + at: "beside"}})
            gate.wait()
            deliver(path, path.upstream.current_ts())
            for other in others:
                other.join()
            assert {error.kind for error in failures} <= {ErrorKind.TRANSIENT}
            assert_same(path, lake, "d.a", "d.b")


def written(lake: Lake, rows: list[tuple[int, Op, int, str | None]]) -> DispatcherResult:
    with contextlib.closing(kind_of(lake.uri).make_sink(lake.uri, {}, None, SinkRun("f", 1))) as sink:
        sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, T0 + 10, T0 + 20))
        sink.add_dml_event(DmlEvent(WHOLE, TABLE, rows_of(rows)))
        return sink.close_dispatcher(WHOLE)


def test_files_that_somebody_cleaned_away_before_their_window_was_committed(tmp_path: Path) -> None:
    lake = LAKES["delta"](tmp_path / "lake")
    maintainer = kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 1))
    with contextlib.closing(kind_of(lake.uri).make_sink(lake.uri, {}, None, SinkRun("f", 1))) as sink:
        sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, TS_ZERO, T0 + 10))
        sink.add_dml_event(DmlEvent(WHOLE, TABLE, inserts(3)))
        maintainer.record_window(TS_ZERO, T0 + 10, [sink.close_dispatcher(WHOLE)])
    changes = [(T0 + 11, Op.INSERT, 9, "new"), (T0 + 12, Op.DELETE, 1, None)]
    result = written(lake, changes)
    place = str(lake.root / "shop" / "orders")
    DeltaTable(place).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(PenstockError, match=r"SINK_UNAVAILABLE.*was deleted before"):
        maintainer.record_window(T0 + 10, T0 + 20, [result])
    maintainer.record_window(T0 + 10, T0 + 20, [written(lake, changes)])
    assert sorted(lake.read("shop", "orders").get_column("id").to_list()) == [0, 2, 9]
