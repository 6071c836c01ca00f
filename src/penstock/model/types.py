"""The MySQL type system and how each type stands in an Arrow column.

Text is the canonical form of everything that a machine type would bend: DECIMAL (to 65 digits), DATE, DATETIME, TIMESTAMP (UTC),
TIME, JSON and VECTOR travel as the text that MySQL prints, so zero dates, fractions and scales survive and encoders copy
bytes. Integers keep their exact width and sign, BIT and SET are ``uint64``, ENUM is its ``uint16`` index (1-based, 0 is MySQL's error
value), binary kinds are ``binary``. Runs anywhere.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
import pyarrow as pa


class TypeKind(StrEnum):
    """The base types of MySQL, MariaDB and TiDB, by the name that a schema file shows."""

    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    MEDIUMINT = "MEDIUMINT"
    INT = "INT"
    BIGINT = "BIGINT"
    BIT = "BIT"
    YEAR = "YEAR"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    DATE = "DATE"
    DATETIME = "DATETIME"
    TIMESTAMP = "TIMESTAMP"
    TIME = "TIME"
    CHAR = "CHAR"
    VARCHAR = "VARCHAR"
    TINYTEXT = "TINYTEXT"
    TEXT = "TEXT"
    MEDIUMTEXT = "MEDIUMTEXT"
    LONGTEXT = "LONGTEXT"
    BINARY = "BINARY"
    VARBINARY = "VARBINARY"
    TINYBLOB = "TINYBLOB"
    BLOB = "BLOB"
    MEDIUMBLOB = "MEDIUMBLOB"
    LONGBLOB = "LONGBLOB"
    ENUM = "ENUM"
    SET = "SET"
    JSON = "JSON"
    VECTOR = "VECTOR"
    GEOMETRY = "GEOMETRY"


INTEGER_WIDTHS = {
    TypeKind.TINYINT: (4, 3),
    TypeKind.SMALLINT: (6, 5),
    TypeKind.MEDIUMINT: (9, 8),
    TypeKind.INT: (11, 10),
    TypeKind.BIGINT: (20, 20),
}
"""How wide MySQL shows an integer that was declared without a width: signed, unsigned."""
INTEGER_KINDS = frozenset(INTEGER_WIDTHS)
TIME_KINDS = frozenset({TypeKind.TIME, TypeKind.DATETIME, TypeKind.TIMESTAMP})
TEXT_KINDS = frozenset({TypeKind.CHAR, TypeKind.VARCHAR, TypeKind.TINYTEXT, TypeKind.TEXT, TypeKind.MEDIUMTEXT, TypeKind.LONGTEXT})
FLOAT_KINDS = frozenset({TypeKind.FLOAT, TypeKind.DOUBLE})
BINARY_KINDS = frozenset(
    {
        TypeKind.BINARY,
        TypeKind.VARBINARY,
        TypeKind.TINYBLOB,
        TypeKind.BLOB,
        TypeKind.MEDIUMBLOB,
        TypeKind.LONGBLOB,
        TypeKind.GEOMETRY,
    }
)
_CANONICAL_TEXT_KINDS = TEXT_KINDS | {
    TypeKind.DECIMAL,
    TypeKind.DATE,
    TypeKind.DATETIME,
    TypeKind.TIMESTAMP,
    TypeKind.TIME,
    TypeKind.JSON,
    TypeKind.VECTOR,
}
_SIGNED = {
    TypeKind.TINYINT: pa.int8(),
    TypeKind.SMALLINT: pa.int16(),
    TypeKind.MEDIUMINT: pa.int32(),
    TypeKind.INT: pa.int32(),
    TypeKind.BIGINT: pa.int64(),
}
_UNSIGNED = {
    TypeKind.TINYINT: pa.uint8(),
    TypeKind.SMALLINT: pa.uint16(),
    TypeKind.MEDIUMINT: pa.uint32(),
    TypeKind.INT: pa.uint32(),
    TypeKind.BIGINT: pa.uint64(),
}
_FIXED = {
    TypeKind.BIT: pa.uint64(),
    TypeKind.SET: pa.uint64(),
    TypeKind.ENUM: pa.uint16(),
    TypeKind.YEAR: pa.uint16(),
    TypeKind.FLOAT: pa.float32(),
    TypeKind.DOUBLE: pa.float64(),
}


class ColumnType(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column's type: kind, then what the kind needs.

    ``length`` is the declared length, precision or display width; ``scale`` the digits after the point of DECIMAL, FLOAT and DOUBLE
    or the fraction digits of TIME, DATETIME and TIMESTAMP; ``elems`` the elements of ENUM and SET.
    """

    kind: TypeKind
    unsigned: bool = False
    zerofill: bool = False
    length: int | None = None
    scale: int | None = None
    elems: tuple[str, ...] = ()

    def arrow(self) -> pa.DataType:
        """Return the Arrow type of the column in a change batch."""
        if self.kind in INTEGER_KINDS:
            return (_UNSIGNED if self.unsigned else _SIGNED)[self.kind]
        if self.kind in _CANONICAL_TEXT_KINDS:
            return pa.string()
        if self.kind in BINARY_KINDS:
            return pa.binary()
        return _FIXED[self.kind]
