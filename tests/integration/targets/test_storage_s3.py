"""The storage sink against a real S3 server."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.reader import StorageReader
from penstock.readback.replay import replay_table
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.sink import StorageSink
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget, RetrySettings, TargetAddress
from testing.servers.seaweed import S3Server, seaweed_s3

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
