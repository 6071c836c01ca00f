"""Defaults as the server shows them, and what of them tells the values of rows that exist."""

from __future__ import annotations

import msgspec
import pytest

from penstock.model.table import Column
from penstock.source.mysql.tables.columns import column_type, default_text
from penstock.source.mysql.tables.rewrites import with_initial


@pytest.mark.parametrize(
    ("shown", "meant"),
    [("'a\\nb'", "a\nb"), ("'c\\\\n'", "c\\n"), ("'it''s'", "it's"), ("'NULL'", "NULL"), ("NULL", None), ("'\\0\\r'", "\0\r")],
)
def test_defaults_of_mariadb(shown: str, meant: str | None) -> None:
    assert default_text(shown) == meant
    assert default_text(shown, mariadb=False) == shown


@pytest.mark.parametrize(
    ("shown", "is_sure"), [("by", True), ("?A", False), ("0xFF41", False), ("a\\b", False), ("a\nb", False), ("é", False)]
)
def test_bytes_that_a_default_does_not_tell(shown: str, is_sure: bool) -> None:
    column = msgspec.structs.replace(Column(1, "a", column_type("varbinary(9)"), True), default=shown)
    made, reason = with_initial(column, is_computed=False)
    assert (made.initial_default == shown, reason == "") == (is_sure, is_sure)


@pytest.mark.parametrize(
    ("kind", "text", "is_told"),
    [
        *(("int(11)", "5", True), ("int(11)", "-5", True), ("int(11)", "1e2", False), ("int(11)", "5.7", False), ("year(4)", "20", False)),
        *(("decimal(8,2)", "1.5", True), ("decimal(8,2)", "1.555", False), ("double", "1e20", True), ("float", "0.1", True)),
        *(("double(8,2)", "0.125", False), ("date", "2020-02-29", True), ("date", "2020-2-9", False), ("date", "20200229", False)),
        *(("datetime(3)", "2020-01-01 00:00:00.5", True), ("datetime(3)", "2020-01-01 00:00:00.1239", False)),
        *(("datetime", "2020-01-01", False), ("time", "01:02:03", True), ("time", "10", False), ("bit(3)", "b'101'", True)),
        *(("enum('a','B')", "B", True), ("enum('a','B')", "b", False), ("set('x','y')", "x,y", True), ("set('x','y')", "", True)),
        *(("char(4)", "x", True), ("char(4)", "x ", False), ("varchar(4)", "x ", True), ("set('x','y')", "X", False)),
    ],
)
def test_defaults_whose_text_is_the_value(kind: str, text: str, is_told: bool) -> None:
    """The others are written in a way that a server reads and a reader of the files may not: the table is doubted."""
    column = msgspec.structs.replace(Column(1, "a", column_type(kind), True), default=text)
    made, reason = with_initial(column, is_computed=False)
    assert (made.initial_default, reason == "") == ((text, True) if is_told else (None, False))
