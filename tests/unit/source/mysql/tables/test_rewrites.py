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
