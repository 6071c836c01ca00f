"""Which changes of types leave rows that readers of the files may spell otherwise, beside a key, in it, and where nothing names rows."""

from __future__ import annotations

import msgspec
import pytest

from penstock.ddl.kept_values import is_made_anew
from penstock.model.table import Column, TableSchema
from penstock.source.mysql.tables.columns import column_type

NEVER, NAMED, ALWAYS = range(3)


def table(kind: str, *, key: bool, other_key: bool) -> TableSchema:
    columns = (Column(1, "k", column_type("int"), False, other_key), Column(2, "a", column_type(kind), not key, key))
    return TableSchema(7, "s", "t", 1, columns)


@pytest.mark.parametrize(
    ("old", "new", "when"),
    [
        ("int", "bigint", NEVER),
        ("int unsigned", "bigint", NEVER),
        ("varchar(9)", "varchar(19)", NEVER),
        ("varchar(9)", "text", NEVER),
        ("decimal(8,2)", "decimal(10,2)", NEVER),
        ("json", "longtext", NEVER),
        ("enum('a','b')", "enum('a','b','c')", NEVER),
        ("bigint", "int", NAMED),
        ("varchar(9)", "varchar(3)", NAMED),
        ("int", "varchar(9)", NAMED),
        ("enum('a','b')", "varchar(9)", NAMED),
        ("longtext", "json", NAMED),
        ("decimal(8,2)", "decimal(8,4)", NAMED),
        ("int", "decimal(8,2)", NAMED),
        ("datetime", "datetime(3)", NAMED),
        ("binary(3)", "varbinary(9)", NAMED),
        ("double", "varchar(9)", ALWAYS),
        ("float", "double", ALWAYS),
        ("decimal(8,4)", "decimal(8,2)", ALWAYS),
        ("decimal(8,4)", "int", ALWAYS),
        ("datetime(3)", "datetime", ALWAYS),
        ("datetime", "timestamp", ALWAYS),
        ("date", "varchar(20)", ALWAYS),
        ("enum('a','b')", "int", ALWAYS),
        ("varchar(9)", "int", ALWAYS),
        ("blob", "text", ALWAYS),
    ],
)
def test_what_begins_again(old: str, new: str, when: int) -> None:
    found = []
    for key, other_key in ((False, True), (True, False), (False, False)):
        after = table(new, key=key, other_key=other_key)
        found.append(is_made_anew(table(old, key=key, other_key=other_key), after.columns))
    assert found == [when is ALWAYS, when is not NEVER, when is not NEVER]


def test_a_key_that_goes_with_it_counts_every_column() -> None:
    before, after = table("int", key=False, other_key=True), table("varchar(9)", key=False, other_key=False)
    assert is_made_anew(before, after.columns)
    assert not is_made_anew(before, before.columns[:1])


def test_a_key_of_a_column_that_came_later_names_no_row_of_before() -> None:
    before = table("int", key=False, other_key=True)
    unnamed, first, later = (
        (Column(1, "k", column_type("int"), False, False), Column(2, "a", column_type("int"), False, True, initial_default=initial))
        for initial in (None, msgspec.UNSET, "0")
    )
    assert is_made_anew(before, unnamed)
    assert is_made_anew(before, later)
    assert not is_made_anew(before, first), "what was there from the beginning is in every reader"
    assert not is_made_anew(table("int", key=False, other_key=False), later), "without a key, all of a row names it"


def test_a_key_that_goes_after_it_came_leaves_rows_that_were_alike_in_it() -> None:
    bag, keyed = table("int", key=False, other_key=False), table("int", key=False, other_key=True)
    later = msgspec.structs.replace(keyed, columns=(msgspec.structs.replace(keyed.columns[0], initial_default=None), keyed.columns[1]))
    assert is_made_anew(later, bag.columns), "rows had no value of it"
    assert is_made_anew(later, later.columns[1:]), "it goes with its column"
    assert is_made_anew(keyed, bag.columns, [bag, keyed])
    assert not is_made_anew(keyed, bag.columns, [keyed]), "it was there from the beginning"
    assert not is_made_anew(later, later.columns, [bag]), "it stays"
