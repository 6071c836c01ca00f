"""Which values stay what they are where a column gets another type, for the server and for whoever reads the files. Pure functions.

Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.model.table import Column, TableSchema
from penstock.model.types import INTEGER_KINDS, ColumnType, TypeKind

_INTEGER_RANK = {TypeKind.TINYINT: 1, TypeKind.SMALLINT: 2, TypeKind.MEDIUMINT: 3, TypeKind.INT: 4, TypeKind.BIGINT: 5}
_TEXT_RANK = {TypeKind.TEXT: 1, TypeKind.MEDIUMTEXT: 2, TypeKind.LONGTEXT: 3}
_BLOB_RANK = {TypeKind.TINYBLOB: 1, TypeKind.BLOB: 2, TypeKind.MEDIUMBLOB: 3, TypeKind.LONGBLOB: 4}
_TEXTS = frozenset({TypeKind.CHAR, TypeKind.VARCHAR, TypeKind.TINYTEXT, *_TEXT_RANK, TypeKind.ENUM, TypeKind.SET, TypeKind.JSON})
_BYTES = frozenset({TypeKind.BINARY, TypeKind.VARBINARY, *_BLOB_RANK})
_GROWING = frozenset({TypeKind.CHAR, TypeKind.VARCHAR, TypeKind.VARBINARY, TypeKind.BIT, TypeKind.DECIMAL})


def is_made_anew(old: TableSchema, after: Sequence[Column], earlier: Sequence[TableSchema] = ()) -> bool:
    """Return whether a change leaves rows that whoever reads the files cannot be told about: the table then begins again, with all rows.

    What a reader makes of a value whose type changes is its own affair. A delete by such a value may not find its row, and where the
    event store makes the server's value of it nobody corrects what a reader made. So values by which rows are known, the key or without
    one all, must stay the same. The others must be the same in every reader where the server did not change them. And a key of a column
    that came later names no row for whoever has something else in it until the table was read again. Where such a key goes before that,
    rows that were alike in it are one in the target, and the event store, which has all of them, finds nothing to correct: what names
    no row is counted. The same holds of any key that a version among the ``earlier`` ones, oldest first, did not have.
    """
    now = {c.id: c for c in after}
    handles = [[c.id for c in t.handle_columns] for t in (old, msgspec.structs.replace(old, columns=tuple(after)))]
    if handles[0] and handles[0] != handles[1] and any(now[number].initial_default is not msgspec.UNSET for number in handles[1]):
        return True
    if handles[0] and not handles[1] and _was_gained(old, earlier):
        return True
    named = handles[0] if handles[0] == handles[1] else []
    changed = [(c.id, c.type, now[c.id].type) for c in old.columns if c.id in now and not keeps_values(c.type, now[c.id].type)]
    return any(not named or number in named or not _keeps_form(before, then) for number, before, then in changed)


def _was_gained(table: TableSchema, earlier: Sequence[TableSchema]) -> bool:
    """Return whether rows from before its key may be there: a column of it came later, or a version before it had another one."""
    if any(c.initial_default is not msgspec.UNSET for c in table.handle_columns):
        return True
    named = {c.id for c in table.handle_columns}
    return any({c.id for c in version.handle_columns} != named for version in earlier)


def _keeps_form(old: ColumnType, new: ColumnType) -> bool:
    """Return whether a value that two types have in common is the same in every reader, so that the event store sees what is not."""
    if new.kind in _TEXTS:
        return old.kind in _TEXTS or old.kind in INTEGER_KINDS
    if new.kind in _BYTES:
        return old.kind in _BYTES
    if new.kind is TypeKind.DECIMAL:
        return old.kind in INTEGER_KINDS or (old.kind is TypeKind.DECIMAL and (new.scale or 0) >= (old.scale or 0))
    if new.kind in {TypeKind.DATETIME, TypeKind.TIMESTAMP, TypeKind.TIME}:
        return old.kind is new.kind and (new.scale or 0) >= (old.scale or 0)
    return old.kind in INTEGER_KINDS and new.kind in INTEGER_KINDS


def keeps_values(old: ColumnType, new: ColumnType) -> bool:  # noqa: PLR0911 - one per kind
    """Return whether every value of a type stays the same under another one."""
    if old.kind in INTEGER_KINDS and new.kind in INTEGER_KINDS:
        wider = _INTEGER_RANK[new.kind] - _INTEGER_RANK[old.kind]
        return wider >= 0 if old.unsigned == new.unsigned else old.unsigned and wider > 0
    if (old.kind, new.kind) == (TypeKind.JSON, TypeKind.LONGTEXT):
        # MariaDB has the one for the other; MySQL writes a text that becomes JSON in its own way.
        return True
    for rank in (_TEXT_RANK, _BLOB_RANK):
        if new.kind in rank and old.kind in rank:
            return rank[new.kind] >= rank[old.kind]
    if new.kind in _TEXT_RANK and old.kind in {TypeKind.CHAR, TypeKind.VARCHAR, TypeKind.TINYTEXT}:
        return True
    if (old.kind, new.kind) == (TypeKind.CHAR, TypeKind.VARCHAR):
        return (new.length or 0) >= (old.length or 0)
    if old.kind != new.kind or old.unsigned != new.unsigned:
        return False
    if old.elems or new.elems:
        return new.elems[: len(old.elems)] == old.elems
    if old.kind in {TypeKind.FLOAT, TypeKind.DOUBLE}:
        return (old.length, old.scale) == (new.length, new.scale) or new.scale is None
    if (old.scale or 0) != (new.scale or 0):
        return False
    return (new.length or 0) >= (old.length or 0) if old.kind in _GROWING else (old.length or 0) == (new.length or 0)
