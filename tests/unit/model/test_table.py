import itertools
import pickle

import msgspec
import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError
from penstock.model.table import Column, SchemaHistory, TableSchema
from penstock.model.timestamp import TS_MAX
from penstock.model.types import ColumnType, TypeKind

ID = Column(1, "id", ColumnType(TypeKind.BIGINT, unsigned=True), nullable=False, primary_key=True)
LINE = Column(2, "Line", ColumnType(TypeKind.INT), nullable=False, primary_key=True)
PRICE = Column(5, "price", ColumnType(TypeKind.DECIMAL, length=12, scale=2), default="0.00")
STATE = Column(6, "state", ColumnType(TypeKind.ENUM, elems=("new", "paid")), generated="STORED")


def version(ts: int, columns: tuple[Column, ...] = (ID, LINE, PRICE), table_id: int = 7, table: str = "orders") -> TableSchema:
    return TableSchema(table_id, "shop", table, ts, columns)


def test_batch_columns_are_named_by_id() -> None:
    assert version(10).batch_schema() == pa.schema(
        [
            pa.field("_ts", pa.uint64(), False),
            pa.field("_op", pa.uint8(), False),
            pa.field("_key", pa.binary(), False),
            pa.field("c1", pa.uint64()),
            pa.field("c2", pa.int32()),
            pa.field("c5", pa.string()),
        ]
    )
    assert version(10).row_schema().names == ["c1", "c2", "c5"]


def test_names_and_key() -> None:
    table = version(10)
    assert table.full_name == "shop.orders"
    assert table.key_columns == (ID, LINE)
    assert version(10, (PRICE,)).key_columns == ()


def test_column_names_have_no_case() -> None:
    assert version(10).column("LINE") is LINE
    with pytest.raises(KeyError, match="missing"):
        version(10).column("missing")


@pytest.mark.parametrize("ts", [0, 449_000_000_000_000_000, TS_MAX])
def test_a_version_survives_json(ts: int) -> None:
    table = TableSchema(7, "shöp", "or`ders", ts, (ID, LINE, PRICE, STATE), partition_id=99)
    assert TableSchema.from_json(table.to_json()) == table
    assert TableSchema.from_json(table.to_json().decode()) == table


def test_an_initial_default_is_told_only_where_the_source_tells_it() -> None:
    told = [msgspec.structs.replace(PRICE, initial_default=text) for text in ("1.50", None)]
    assert b"initial_default" not in version(10).to_json()
    for column in (PRICE, *told):
        again = TableSchema.from_json(version(10, (ID, column)).to_json()).columns[1]
        assert again == column
        assert pickle.loads(pickle.dumps(again)) == column
    assert [c.initial_default for c in (PRICE, *told)] == [msgspec.UNSET, "1.50", None]


def test_a_row_has_the_version_at_or_below_its_ts() -> None:
    history = SchemaHistory(7, [version(10), version(20, (ID, LINE)), version(30)])
    assert [history.at(ts).version for ts in (10, 11, 19, 20, 29, 30, TS_MAX)] == [10, 10, 10, 20, 20, 30, 30]
    with pytest.raises(PenstockError) as caught:
        history.at(9)
    assert caught.value.code == "SCHEMA_UNKNOWN"


def test_a_ts_before_the_first_version_may_mean_the_first() -> None:
    history = SchemaHistory(7, [version(10), version(20)])
    assert [history.at_or_first(ts).version for ts in (0, 10, 19, 20, TS_MAX)] == [10, 10, 10, 20, 20]
    with pytest.raises(PenstockError, match=r"\[SCHEMA_UNKNOWN\]"):
        SchemaHistory(7).at_or_first(10)


def test_versions_may_come_in_any_order() -> None:
    versions = [version(10), version(20), version(30)]
    for order in itertools.permutations(versions):
        assert SchemaHistory(7, order).versions() == tuple(versions)


def test_a_known_version_is_not_added_twice() -> None:
    history = SchemaHistory(7)
    assert history.add(version(10)) is True
    assert history.add(version(10)) is False
    assert len(history.versions()) == 1


def test_exact_versions_are_found() -> None:
    history = SchemaHistory(7, [version(10), version(20)])
    assert history.get(20) == version(20)
    assert [history.get(ts) for ts in (9, 15, 21)] == [None, None, None]


def test_two_contents_under_one_ts_are_refused() -> None:
    history = SchemaHistory(7, [version(10)])
    with pytest.raises(PenstockError, match=r"two schemas of shop\.orders at ts 10") as caught:
        history.add(version(10, (ID,)))
    assert caught.value.code == "INTERNAL"
    assert history.versions() == (version(10),)


def test_a_version_of_another_table_is_refused() -> None:
    with pytest.raises(PenstockError, match="table 8 added to history of 7"):
        SchemaHistory(7, [version(10, table_id=8)])
