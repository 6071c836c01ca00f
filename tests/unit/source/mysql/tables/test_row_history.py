"""Rows of the past in system-versioned tables, told from those of the present."""

import pyarrow as pa

from penstock.model.table import Column
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.tables.row_history import hidden_columns, is_present, shown_part, walked_columns
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire.tablemap import MapColumn, TableMap

INT = MapColumn(wire.TYPE_LONG, 0, False, name="id")


def moment(name: str | None) -> MapColumn:
    return MapColumn(wire.TYPE_TIMESTAMP2, 6, False, name=name)


def mapped(*columns: MapColumn) -> TableMap:
    return TableMap("s", "t", columns, key=(0, len(columns) - 1))


def test_columns_that_nobody_sees() -> None:
    hidden = mapped(INT, moment("row_start"), moment("row_end"))
    assert hidden_columns(hidden, None) == hidden_columns(hidden, 1) == 2
    assert hidden_columns(hidden, 3) == 0, "the table shows them"
    nameless = mapped(INT, moment(None), moment(None))
    assert (hidden_columns(nameless, 1), hidden_columns(nameless, None)) == (2, 0)
    assert hidden_columns(mapped(INT, moment("a"), moment("b")), None) == 0
    assert hidden_columns(mapped(moment("row_start"), moment("row_end")), None) == 0


def test_the_map_as_the_table_shows_itself() -> None:
    hidden = mapped(INT, moment("row_start"), moment("row_end"))
    shown = shown_part(hidden, 1, "row_end")
    assert (shown.columns, shown.key) == ((INT,), (0,))
    plain = mapped(INT, INT)
    assert shown_part(plain, 2, "") is plain
    own = mapped(INT, moment("ends"))
    assert shown_part(own, 2, "Ends").key == (0,)


def test_what_stands_in_the_rows_of_the_log() -> None:
    column = Column(4, "id", ColumnType(TypeKind.INT))
    walked = walked_columns(mapped(INT, moment("row_start"), MapColumn(wire.TYPE_LONGLONG, 0, False)), (column,))
    kinds = [TypeKind.INT, TypeKind.TIMESTAMP, TypeKind.BIGINT]
    assert [(c.id, c.name, c.type.kind) for c in walked] == list(zip([4, 5, 6], ["id", "row_start", "row_end"], kinds, strict=True))


def test_rows_without_an_end() -> None:
    texts = ["2038-01-19 03:14:07.999999", "2026-11-15 10:00:00.000000", "2106-02-07 06:28:15.999999"]
    assert is_present(pa.array(texts)).to_pylist() == [True, False, True]
    assert is_present(pa.array([(1 << 64) - 1, 7], pa.uint64())).to_pylist() == [True, False]
