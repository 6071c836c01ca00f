"""The storage sink against Azurite: the whole way and back."""

from collections.abc import Iterator

import pytest

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.storage.inspection import check_target
from penstock.sink.storage.replay import replay_table
from penstock.sink.storage.target import ObjectTarget
from penstock.testing.loopback_server import azurite
from penstock.testing.storage_lab import StorageLab

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
    try:
        with azurite(tmp_path_factory.mktemp("azurite")) as query:
            yield query
    except FileNotFoundError as error:
        pytest.skip(str(error))


def the_whole_way_and_back(lab: StorageLab) -> None:
    lab.maintainer.check("feed")
    lab.maintainer.claim("feed")
    first = lab.write(TABLE, ROWS)
    assert len(first.files) > 2
    lab.checkpoint(T0 + 1000)
    assert replay_table(lab.reader(), TABLE.schema, TABLE.table).rows() == [(i, f"note {i}") for i in range(500)]
    assert list(check_target(lab.target, lab.settings)) == []


def test_azure_and_back(azure: str) -> None:
    lab = StorageLab(f"az://penstock-test/some/prefix?{azure}&file-size=4096")
    the_whole_way_and_back(lab)
    again = StorageLab(f"az://penstock-test/some/prefix?{azure}&file-size=4096")
    assert again.write(TABLE, ROWS).files
    with pytest.raises(PenstockError, match="SINK_CONFLICT"):
        StorageLab(f"az://penstock-test/some/prefix?{azure}&file-size=4096").write(TABLE, [(*r[:3], "other") for r in ROWS])
    with pytest.raises(PenstockError, match="SINK_OCCUPIED"):
        again.maintainer.check("other")


def test_azure_credentials_that_are_wrong_are_not_shown(azure: str) -> None:
    wrong = azure.replace("Eby8vdM0", "hunter22")
    with pytest.raises(PenstockError) as caught:
        ObjectTarget.open(f"az://penstock-test/x?{wrong}").put_new("a", b"1")
    assert caught.value.code == "SINK_UNWRITABLE"
    assert "hunter22" not in str(caught.value)
