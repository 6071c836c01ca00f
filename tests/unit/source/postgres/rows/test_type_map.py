import pytest

from penstock.model.types import ColumnType, TypeKind
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.rows.type_map import Domain, column_type, default_text

INT, TEXT = ColumnType(TypeKind.INT), ColumnType(TypeKind.LONGTEXT)


def test_types_with_their_sizes():
    domains = {20_000: Domain(1700, ((9 << 16) | 2) + 4), 20_001: Domain(20_000, -1)}
    assert column_type(20_001, -1, domains)[0] == ColumnType(TypeKind.DECIMAL, length=9, scale=2)
    assert column_type(1043, 24, {})[0] == ColumnType(TypeKind.VARCHAR, length=20)
    assert column_type(1043, -1, {})[0] == TEXT
    assert column_type(1042, 404, {})[0] == TEXT
    assert column_type(1184, 3, {}) == (ColumnType(TypeKind.TIMESTAMP, scale=3), CellForm.UTC)
    assert column_type(1700, ((70 << 16) | 2) + 4, {})[0] == TEXT
    assert column_type(1700, ((3 << 16) | 0x7FE) + 4, {})[0] == TEXT
    assert column_type(99_999, -1, {}) == (TEXT, CellForm.TEXT)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'x'::text", "x"),
        ("'it''s'::character varying(20)", "it's"),
        ("7", "7"),
        ("'-1.50'::numeric(8,2)", "-1.50"),
        ("('a'::text)::character varying", "a"),
        ("true", "1"),
        ("now()", None),
        ("nextval('s'::regclass)", None),
        ("'a'::text || 'b'::text", None),
        ("NULL::character varying", None),
        (None, None),
    ],
)
def test_defaults_that_are_constants(expression, text):
    assert default_text(expression, TEXT) == text


def test_a_boolean_default_is_a_number():
    assert default_text("'t'::boolean", ColumnType(TypeKind.TINYINT, length=1)) == "1"
