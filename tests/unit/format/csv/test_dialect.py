"""The options of CSV: what is accepted tokenizes unambiguously, and what could not is refused with its key."""

import pytest

from penstock.format.csv.dialect import CsvSettings, row_columns
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

INT = ColumnType(TypeKind.INT)
TABLE = TableSchema(
    1, "s", "t", 5, (Column(1, "a", INT), Column(2, "b", INT, generated="VIRTUAL"), Column(3, "c", INT, generated="STORED"))
)


@pytest.mark.parametrize(
    "settings",
    [CsvSettings(), CsvSettings(delimiter="|+|"), CsvSettings(quote=""), CsvSettings(quote="'", null="null"), CsvSettings(terminator="\n")],
)
def test_usable(settings: CsvSettings) -> None:
    assert list(settings.problems()) == []


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (CsvSettings(delimiter=""), "delimiter"),
        (CsvSettings(delimiter="1"), "delimiter"),
        (CsvSettings(delimiter="a,b,"), "delimiter"),
        (CsvSettings(delimiter=",\n"), "delimiter"),
        (CsvSettings(quote="''"), "quote"),
        (CsvSettings(quote=","), "quote"),
        (CsvSettings(quote="", delimiter="\\"), "delimiter"),
        (CsvSettings(quote="", terminator=";"), "terminator"),
        (CsvSettings(terminator=","), "terminator"),
        (CsvSettings(null="a,b"), "null"),
        (CsvSettings(null="1.5"), "null"),
        (CsvSettings(null="true"), "null"),
        (CsvSettings(delimiter="||", null="a|"), "null"),
        (CsvSettings(quote="", null="a\\"), "null"),
    ],
)
def test_not_usable(settings: CsvSettings, key: str) -> None:
    assert key in [found for found, _ in settings.problems()]


def test_the_first_line() -> None:
    assert CsvSettings().header(TABLE) == b""
    shown = CsvSettings(output_field_header=True, output_old_value=True, delimiter="|", terminator="\n").header(TABLE)
    names = [f"ticdc-meta${n}" for n in ("operation", "table", "schema", "commit-ts", "is-update")]
    assert shown == ("|".join([*names, "a", "c"]) + "\n").encode()
    assert CsvSettings(terminator="").line_end == b"\r\n"
    assert [c.name for c in row_columns(TABLE)] == ["a", "c"]
