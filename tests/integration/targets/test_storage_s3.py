"""The storage sink against a real S3 server."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.reader import StorageReader
from penstock.readback.replay import replay_table
from penstock.sink.catalog import kind_of
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.iceberg.catalogs import open_catalog
from penstock.sink.lake.data_files import dir_name, table_dir
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.sink import StorageSink
from penstock.target.kind import SinkRun
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget, RetrySettings, TargetAddress, unfenced
from testing.servers.seaweed import S3Server, seaweed_s3
from tests.contract.test_sink import rows_of

pytestmark = pytest.mark.integration

T0 = compose_ts(1_700_000_000_000)
TABLE = TableSchema(
    7,
    "shop",
    "ünï code/ü",
    T0,
    (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "note", ColumnType(TypeKind.VARCHAR, length=40))),
)
_prefixes = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    directory: Path = tmp_path_factory.mktemp("seaweed")
    with seaweed_s3(directory) as running:
        yield running


def window(uri: str, rows: int) -> DispatcherResult:
    target_uri, settings = from_uri(uri)
    dispatcher = DispatcherId(7)
    columns = [
        pa.array([T0 + 1 + i for i in range(rows)], pa.uint64()),
        pa.array([Op.INSERT] * rows, pa.uint8()),
        pa.array(range(rows), pa.int64()),
        pa.array([f"note {i}" for i in range(rows)]),
    ]
    records = pa.RecordBatch.from_arrays(columns, names=["_ts", "_op", "c1", "c2"])
    sink = StorageSink(ObjectTarget.open(target_uri), settings)
    sink.open_dispatcher(DispatcherWork(dispatcher, TABLE, T0, T0 + rows))
    try:
        sink.add_dml_event(DmlEvent(dispatcher, TABLE, records))
        return sink.close_dispatcher(dispatcher)
    finally:
        sink.close()


def test_the_whole_way_and_back(server: S3Server) -> None:
    uri = server.uri(f"some/prefix {next(_prefixes)}", **{"file-size": "65536"})
    target_uri, settings = from_uri(uri)
    target = ObjectTarget.open(target_uri)
    maintainer = StorageMaintainer(target, settings)
    maintainer.check("feed")
    maintainer.claim("feed")
    first = window(uri, 5_000)
    assert len(first.files) > 2
    assert window(uri, 5_000) == first
    with pytest.raises(PenstockError, match="SINK_CONFLICT"):
        window(uri, 5_001)
    maintainer.publish_checkpoint(T0 + 5_000)
    frame = replay_table(StorageReader(target, settings), TABLE.schema, TABLE.table)
    assert frame.rows() == [(i, f"note {i}") for i in range(5_000)]
    assert all(path.split("/")[0] in {"metadata", ".penstock", "shop"} for path in target.paths())
    with pytest.raises(PenstockError, match="SINK_OCCUPIED"):
        StorageMaintainer(target, settings).check("other")


def test_create_only_puts_keep_the_first(server: S3Server) -> None:
    target = ObjectTarget.open(server.uri(f"p{next(_prefixes)}"))
    assert target.put_new("a", b"first")
    assert not target.put_new("a", b"first")
    with pytest.raises(PenstockError, match="SINK_CONFLICT"):
        target.put_new("a", b"second")
    assert target.get("a") == b"first"
    target.delete("a")
    target.delete("a")
    assert target.find("a") is None


def test_credentials_that_are_wrong_are_not_retried_and_not_shown(server: S3Server) -> None:
    uri = server.uri("x", **{"secret-access-key": "hunter2"})
    with pytest.raises(PenstockError, match="SINK_UNWRITABLE") as caught:
        TargetAddress(uri, RetrySettings(attempts_max=1)).open().put_new("a", b"1")
    assert "hunter2" not in str(caught.value)


def test_the_vendor_s_environment_variables_are_used(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    target = ObjectTarget.open(f"s3://{server.bucket}/p{next(_prefixes)}")
    assert target.put_new("a", b"1")
    assert list(target.paths()) == ["a"]


def test_a_bucket_that_is_not_there(server: S3Server) -> None:
    uri = server.uri("x").replace(server.bucket, "no-such-bucket")
    target_uri, settings = from_uri(uri)
    with pytest.raises(PenstockError, match="SINK_UNWRITABLE"):
        StorageMaintainer(TargetAddress(target_uri, RetrySettings(attempts_max=1)).open(), settings).check("feed")


def test_large_objects_go_in_parts(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.target.storage.MULTIPART_BYTES", 6 << 20)
    target = ObjectTarget.open(server.uri(f"p{next(_prefixes)}"))
    content = bytes(range(256)) * (13 << 12)
    assert target.put_new("big", content)
    assert not target.put_new("big", content)
    assert target.get("big") == content


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_of_a_lake_in_a_bucket(server: S3Server, tmp_path: Path, kind: str) -> None:
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    uri, options = f"{kind}+{server.uri(f'lake-{kind}')}", {"catalog": catalog} if kind == "iceberg" else {}
    maintainer = kind_of(uri).make_maintainer(uri, options, unfenced, SinkRun("f", 1))
    maintainer.check("mine")
    maintainer.claim("mine")
    changes = [(T0 + 1, Op.INSERT, 1, "a"), (T0 + 2, Op.INSERT, 2, "b")]
    more = [(T0 + 11, Op.UPDATE, 1, "c"), (T0 + 12, Op.DELETE, 2, None), (T0 + 13, Op.INSERT, 3, None)]
    for from_ts, to_ts, rows in ((T0, T0 + 10, changes), (T0 + 10, T0 + 20, more)):
        sink = kind_of(uri).make_sink(uri, options, None, SinkRun("f", 1))
        sink.open_dispatcher(DispatcherWork(DispatcherId(7), TABLE, from_ts, to_ts))
        sink.add_dml_event(DmlEvent(DispatcherId(7), TABLE, rows_of(rows, TABLE)))
        result = sink.close_dispatcher(DispatcherId(7))
        sink.close()
        maintainer.record_window(from_ts, to_ts, [result])
        maintainer.record_window(from_ts, to_ts, [result])
        maintainer.publish_checkpoint(to_ts)
    assert maintainer.published_ts() == T0 + 20
    if kind == "delta":
        given = {"endpoint": server.endpoint, "access_key_id": server.access_key, "secret_access_key": server.secret_key}
        given |= {"region": "us-east-1", "allow_http": "true"}
        found = pl.read_delta(f"s3://{server.bucket}/lake-delta/{table_dir(TABLE.schema, TABLE.table)}", storage_options=given)
    else:
        store = server.uri("lake-iceberg")
        found = pl.DataFrame(
            open_catalog(store, catalog, store.partition("?")[0]).load_table(("shop", dir_name(TABLE.table))).scan().to_arrow()
        )
    assert found.sort("id").rows() == [(1, "c"), (3, None)]
