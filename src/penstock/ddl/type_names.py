"""The names that MySQL gives column types: bare, or the whole declaration. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable

from penstock.ddl.tokens import literal
from penstock.model.types import FLOAT_KINDS, INTEGER_KINDS, INTEGER_WIDTHS, TIME_KINDS, ColumnType, TypeKind


def mysql_type(ctype: ColumnType, *, full: bool) -> str:
    """Return the MySQL type as a message shows it: the bare name, or the whole declaration."""
    return _typed(ctype, _declared(ctype, _shown_element) if full else "")


def statement_type(ctype: ColumnType) -> str:
    """Return the MySQL type as a statement declares it: nothing in its elements ends their quotes."""
    return _typed(ctype, _declared(ctype, literal))


def _shown_element(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def _typed(ctype: ColumnType, declared: str) -> str:
    kind = ctype.kind
    text = kind.value.lower() + declared
    if (ctype.unsigned or ctype.zerofill) and kind not in {TypeKind.BIT, TypeKind.YEAR}:
        text += " unsigned"
    if ctype.zerofill and kind is not TypeKind.YEAR:
        text += " zerofill"
    return text


_LENGTHS = {TypeKind.BIT: 1, TypeKind.YEAR: 4, TypeKind.CHAR: 1, TypeKind.BINARY: 1, TypeKind.VARCHAR: 5, TypeKind.VARBINARY: 5}


def _declared(ctype: ColumnType, element: Callable[[str], str]) -> str:
    """Return what stands in brackets after a type's name, brackets included."""
    kind, length, scale = ctype.kind, ctype.length, ctype.scale
    inside = ""
    if kind in {TypeKind.ENUM, TypeKind.SET}:
        inside = ",".join(element(e) for e in ctype.elems)
    elif kind is TypeKind.DECIMAL:
        inside = f"{10 if length is None else length},{scale or 0}"
    elif kind in FLOAT_KINDS:
        inside = f"{length},{scale}" if length is not None and scale else ""
    elif kind in TIME_KINDS:
        inside = str(scale) if scale else ""
    elif kind in INTEGER_KINDS:
        inside = str(length if length is not None else INTEGER_WIDTHS[kind][ctype.unsigned or ctype.zerofill])
    elif kind in _LENGTHS:
        inside = str(_LENGTHS[kind] if length is None else length)
    return f"({inside})" if inside else ""
