"""The columns of a stream: fixed when it begins, while the table's may change."""

import pytest

from penstock.feed.formats.stream_columns import end_before_new_columns, version_of
from penstock.feed.formats.typed_rows import typed_schema
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

ID = Column(1, "id", ColumnType(TypeKind.INT), False, True)
NOTE = Column(2, "note", ColumnType(TypeKind.VARCHAR, length=9))


def version(ts: int, *columns: Column) -> TableSchema:
    return TableSchema(7, "s", "t", ts, columns)


def test_a_query_goes_as_far_as_its_columns_do() -> None:
    shown = version(10, ID, NOTE)
    dropped, wider = version(20, ID), version(30, ID, Column(2, "note", ColumnType(TypeKind.VARCHAR, length=99)))
    assert end_before_new_columns(shown, [shown, dropped, wider], 15, 40) == 40, "nothing new is in them"
    added = version(50, ID, NOTE, Column(3, "new", NOTE.type))
    assert end_before_new_columns(shown, [shown, dropped, added], 15, 45) == 45
    assert end_before_new_columns(shown, [shown, dropped, added], 15, 60) == 49
    with pytest.raises(PenstockError, match="new") as caught:
        end_before_new_columns(shown, [shown, dropped, added], 49, 60)
    assert caught.value.code == "SCHEMA_CHANGED"
    other_type = version(50, ID, Column(2, "note", ID.type))
    assert end_before_new_columns(shown, [shown, other_type], 15, 60) == 49


def test_the_version_that_a_frame_shows() -> None:
    versions = [version(10, ID), version(20, ID, NOTE), version(30, ID, NOTE)]
    assert version_of(typed_schema(versions[1], True), versions, "s.t") == versions[2]
    assert version_of(typed_schema(versions[0], True), versions, "s.t") == versions[0]
    with pytest.raises(PenstockError, match="no version of"):
        version_of(typed_schema(version(40, NOTE), True), versions, "s.t")
