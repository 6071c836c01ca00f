"""The storage sink against Azurite and a GCS emulator: the whole way and back."""

from collections.abc import Iterator

import pytest

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.inspection import check_target
from penstock.readback.replay import replay_table
from penstock.target.storage import ObjectTarget
from testing.paths.storage_lab import StorageLab
from testing.servers.buckets.gcs import gcs
from testing.servers.loopback_server import azurite

pytestmark = pytest.mark.integration

T0 = compose_ts(1_700_000_000_000)
TABLE = TableSchema(
    7,
    "shop",
    "ünï code/ü",
    T0,
    (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "note", ColumnType(TypeKind.VARCHAR))),
)
ROWS = [(T0 + 1 + i, Op.INSERT, i, f"note {i}") for i in range(500)]


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with azurite(tmp_path_factory.mktemp("azurite")) as query:
        yield query


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gcs(tmp_path_factory.mktemp("gcs")) as query:
        yield query


def the_whole_way_and_back(lab: StorageLab) -> None:
    lab.maintainer.check("feed")
    lab.maintainer.claim("feed")
    first = lab.write(TABLE, ROWS)
    assert len(first.files) > 2
    lab.checkpoint(T0 + 1000)
    assert replay_table(lab.reader(), TABLE.schema, TABLE.table).rows() == [(i, f"note {i}") for i in range(500)]
    assert list(check_target(lab.target, lab.settings)) == []


def there_and_back_again(uri: str) -> None:
    the_whole_way_and_back(StorageLab(uri))
    again = StorageLab(uri)
    assert again.write(TABLE, ROWS).files
    with pytest.raises(PenstockError, match="SINK_CONFLICT"):
        StorageLab(uri).write(TABLE, [(*r[:3], "other") for r in ROWS])
    with pytest.raises(PenstockError, match="SINK_OCCUPIED"):
        again.maintainer.check("other")


def test_azure_and_back(azure: str) -> None:
    there_and_back_again(f"az://penstock-test/some/prefix?{azure}&file-size=4096")


def test_gcs_and_back(google: str) -> None:
    there_and_back_again(f"gs://penstock-test/some/prefix?{google}&file-size=4096")


def test_gcs_reads_writes_lists_and_deletes_plain_objects(google: str) -> None:
    target = ObjectTarget.open(f"gcs://penstock-test/plain?{google}")
    objects = {"a": b"1", "b/c d.txt": b"\x00\xff" * 40_000, "b/ü/%41&<>.json": "ü".encode()}
    for path, content in objects.items():
        assert target.put_new(path, content)
        assert not target.put_new(path, content)
    assert {path: target.get(path) for path in target.paths()} == objects
    assert sorted(target.paths("b")) == ["b/c d.txt", "b/ü/%41&<>.json"]
    assert not target.is_empty()
    assert ObjectTarget.open(f"gcs://penstock-test/nothing?{google}").is_empty()
    assert target.exists("a")
    target.put("a", b"2")
    assert target.find("a") == b"2"
    target.delete("a")
    target.delete("a")
    assert not target.exists("a")
    assert sorted(target.paths()) == sorted(path for path in objects if path != "a")


@pytest.mark.parametrize("vendor", ["azure", "google"])
def test_only_a_known_state_is_put_over(vendor: str, request: pytest.FixtureRequest) -> None:
    scheme = {"azure": "az", "google": "gs"}[vendor]
    target = ObjectTarget.open(f"{scheme}://penstock-test/states?{request.getfixturevalue(vendor)}")
    first = target.put_over("index", b"1", None)
    assert first is not None
    assert target.find_tagged("index") == (b"1", first)
    with pytest.raises(FileExistsError):
        target.put_over("index", b"another", None)
    second = target.put_over("index", b"2", first)
    with pytest.raises(FileExistsError):
        target.put_over("index", b"from an old state", first)
    assert target.find_tagged("index") == (b"2", second)
    assert target.find_tagged("nothing") is None


def test_azure_credentials_that_are_wrong_are_not_shown(azure: str) -> None:
    wrong = azure.replace("Eby8vdM0", "hunter22")
    with pytest.raises(PenstockError) as caught:
        ObjectTarget.open(f"az://penstock-test/x?{wrong}").put_new("a", b"1")
    assert caught.value.code == "SINK_UNWRITABLE"
    assert "hunter22" not in str(caught.value)
