"""Column definitions: from the parsed text of a DDL to columns of the model.

Owns which MySQL types and constraints the embedded server takes, what a DEFAULT looks like as text, and which MODIFY changes keep every
stored row readable. Anything else is refused with the column's name. Runs in the data server.
"""

from __future__ import annotations

from sqlglot import exp

from penstock.model.errors import PenstockError
from penstock.model.table import Column
from penstock.model.types import INTEGER_KINDS, TEXT_KINDS, ColumnType, TypeKind

_RENAMED = {"TIMESTAMPTZ": "TIMESTAMP", "TIMESTAMPLTZ": "TIMESTAMP", "BOOLEAN": "TINYINT", "UDECIMAL": "DECIMAL", "UDOUBLE": "DOUBLE"}
_UNSIGNED = {"UTINYINT": "TINYINT", "USMALLINT": "SMALLINT", "UMEDIUMINT": "MEDIUMINT", "UINT": "INT", "UBIGINT": "BIGINT"}
_SCALED = frozenset({TypeKind.DECIMAL, TypeKind.FLOAT, TypeKind.DOUBLE})
_FRACTIONS = frozenset({TypeKind.TIME, TypeKind.DATETIME, TypeKind.TIMESTAMP})
_INTEGER_RANK = {TypeKind.TINYINT: 1, TypeKind.SMALLINT: 2, TypeKind.MEDIUMINT: 3, TypeKind.INT: 4, TypeKind.BIGINT: 5}
_TEXT_RANK = {TypeKind.TINYTEXT: 1, TypeKind.CHAR: 2, TypeKind.VARCHAR: 2, TypeKind.TEXT: 3, TypeKind.MEDIUMTEXT: 4, TypeKind.LONGTEXT: 5}
_CLOCK_DEFAULTS = (exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime)


def build_column(definition: exp.ColumnDef, column_id: int) -> Column:
    """Return the column that a definition describes."""
    name = definition.name
    kind = definition.args.get("kind")
    if not isinstance(kind, exp.DataType):
        raise PenstockError("TYPE_UNSUPPORTED", f"column {name} has no type")
    column_type = _column_type(name, kind)
    nullable, primary, default, generated = True, False, None, ""
    for constraint in definition.args.get("constraints") or ():
        what = constraint.args.get("kind")
        if isinstance(what, exp.NotNullColumnConstraint):
            nullable = bool(what.args.get("allow_null"))
        elif isinstance(what, exp.PrimaryKeyColumnConstraint):
            primary = True
        elif isinstance(what, exp.DefaultColumnConstraint):
            default = _default_text(name, what.this)
        elif isinstance(what, exp.ZeroFillColumnConstraint):
            column_type = ColumnType(column_type.kind, True, True, column_type.length, column_type.scale)
        elif isinstance(what, exp.ComputedColumnConstraint | exp.GeneratedAsIdentityColumnConstraint):
            raise PenstockError("TYPE_UNSUPPORTED", f"column {name}: generated columns are not supported by the embedded data server")
    return Column(column_id, name, column_type, nullable and not primary, primary, default, generated)


def has_clock_default(column: Column) -> bool:
    """Return whether a column's default depends on when a row is written."""
    return column.default is not None and column.default.upper().startswith("CURRENT_")


def is_first(position: exp.Expression) -> bool:
    """Return whether a position is FIRST; keywords stand in the parsed text as they were written."""
    return str(position.args.get("position") or "").upper() == "FIRST"


def check_modify(old: Column, new: Column) -> None:
    """Refuse a MODIFY that would need to rewrite stored rows."""
    if old.primary_key:
        raise PenstockError("UPSTREAM_REFUSED", f"column {old.name} is part of the primary key and cannot be modified")
    if old.nullable and not new.nullable:
        raise PenstockError("UPSTREAM_REFUSED", f"column {old.name} may hold NULLs and cannot become NOT NULL")
    if not _keeps_values(old.type, new.type):
        raise PenstockError(
            "TYPE_UNSUPPORTED",
            f"column {old.name} cannot change from {old.type.kind} to {new.type.kind}: the change must keep every stored value",
            "Widen integers or texts, append elements to an ENUM or SET, or add a new column.",
        )


def _keeps_values(old: ColumnType, new: ColumnType) -> bool:
    if old.kind in INTEGER_KINDS and new.kind in INTEGER_KINDS:
        wider = _INTEGER_RANK[new.kind] - _INTEGER_RANK[old.kind]
        return wider >= 0 if old.unsigned == new.unsigned else old.unsigned and wider > 0
    if old.kind in TEXT_KINDS and new.kind in TEXT_KINDS:
        return _TEXT_RANK[new.kind] > _TEXT_RANK[old.kind] or (
            _TEXT_RANK[new.kind] == _TEXT_RANK[old.kind] and (new.length or 0) >= (old.length or 0)
        )
    if (old.kind, new.kind) == (TypeKind.FLOAT, TypeKind.DOUBLE):
        return True
    if old.kind != new.kind or old.unsigned != new.unsigned:
        return False
    if old.elems or new.elems:
        return new.elems[: len(old.elems)] == old.elems
    return old.scale == new.scale and (new.length or 0) >= (old.length or 0)


def _column_type(name: str, kind: exp.DataType) -> ColumnType:
    text = kind.this.value if hasattr(kind.this, "value") else str(kind.this)
    unsigned = text in _UNSIGNED
    text = _RENAMED.get(_UNSIGNED.get(text, text), _UNSIGNED.get(text, text))
    try:
        type_kind = TypeKind(text)
    except ValueError:
        raise PenstockError("TYPE_UNSUPPORTED", f"column {name} has type {kind.sql('mysql')}, which is not supported") from None
    if type_kind in (TypeKind.ENUM, TypeKind.SET):
        return ColumnType(type_kind, elems=tuple(e.name for e in kind.expressions))
    numbers = [int(e.name) for e in kind.expressions if e.name.isdigit()]
    length = numbers[0] if numbers else None
    scale = numbers[1] if len(numbers) > 1 else None
    if type_kind in _FRACTIONS:
        return ColumnType(type_kind, length=None, scale=length)
    if type_kind == TypeKind.DECIMAL:
        return ColumnType(type_kind, unsigned=kind.this.value.startswith("U"), length=length or 10, scale=scale or 0)
    if type_kind == TypeKind.BIT:
        return ColumnType(type_kind, length=length or 1)
    if kind.this.value == "BOOLEAN":
        return ColumnType(type_kind, length=1)
    return ColumnType(type_kind, unsigned=unsigned, length=length, scale=scale if type_kind in _SCALED else None)


def _default_text(name: str, expression: exp.Expression) -> str | None:
    if isinstance(expression, exp.Null):
        return None
    if isinstance(expression, exp.Literal):
        return str(expression.this)
    if isinstance(expression, exp.Neg) and isinstance(expression.this, exp.Literal):
        return f"-{expression.this.this}"
    if isinstance(expression, exp.BitString):
        return f"b'{expression.this}'"
    if isinstance(expression, exp.Boolean):
        return "1" if expression.this else "0"
    if isinstance(expression, _CLOCK_DEFAULTS):
        digits = expression.this.name if expression.this is not None else ""
        return f"CURRENT_TIMESTAMP({digits})" if digits else "CURRENT_TIMESTAMP"
    raise PenstockError("TYPE_UNSUPPORTED", f"column {name}: DEFAULT {expression.sql('mysql')} is not a constant")
