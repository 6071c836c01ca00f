"""Updates and their before-images."""

from penstock.format.old_values import OLD, UpdatePairs
from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from testing.checks.whole_file import paired_rows, table_rows

K = TypeKind
ID = Column(1, "Id", ColumnType(K.INT, length=11), False, True)
NAME = Column(2, "name", ColumnType(K.VARCHAR, length=20))
TABLE = TableSchema(7, "hr", "employee", 5, (ID, NAME))


def test_updates_meet_their_old_values_however_rows_are_divided() -> None:
    rows = table_rows(
        TABLE,
        (1, Op.BEFORE, b"a", 1, "old a"),
        (1, Op.BEFORE, b"b", 2, "old b"),
        (1, Op.DELETE, b"c", 3, "c"),
        (1, Op.UPDATE, b"a", 1, "new a"),
        (1, Op.UPDATE, b"b", 2, "new b"),
        (2, Op.INSERT, b"d", 4, "d"),
        (3, Op.UPDATE, b"x", 9, "without a before-image"),
    )
    whole = UpdatePairs(TABLE).add(rows).to_pylist()
    assert [(r["_op"], r["c2"], r[OLD], r["o2"]) for r in whole] == [
        (Op.DELETE, "c", 0, None),
        (Op.UPDATE, "new a", 1, "old a"),
        (Op.UPDATE, "new b", 1, "old b"),
        (Op.INSERT, "d", 0, None),
        (Op.UPDATE, "without a before-image", 0, None),
    ]
    for cut in range(rows.num_rows + 1):
        pairs = UpdatePairs(TABLE)
        assert [*pairs.add(rows.slice(0, cut)).to_pylist(), *pairs.add(rows.slice(cut)).to_pylist()] == whole


def test_a_before_image_in_another_order_is_found_by_its_key() -> None:
    rows = paired_rows(
        TABLE,
        (1, Op.BEFORE, b"b", 2, "old b"),
        (1, Op.BEFORE, b"a", 1, "old a"),
        (1, Op.UPDATE, b"a", 1, "new a"),
        (1, Op.UPDATE, b"b", 2, "new b"),
    )
    assert [r["o2"] for r in rows.to_pylist()] == ["old a", "old b"]
