"""What an ALTER TABLE does to rows that exist, where the log does not tell: from its text, and from the columns before and after it.

A reason says that rows may differ from what was captured of them. The text is judged by a list of actions that are known to leave rows
alone, so an action that nobody thought of is a reason. A column that is added with a constant gives that to the rows that exist, as its
initial default; whatever the server computes is a reason. Runs in the log service, in the thread that reads the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from penstock.ddl.kept_values import keeps_values
from penstock.ddl.tokens import TableName
from penstock.model.rows.projection import implicit_default
from penstock.model.table import Column
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, ColumnType, TypeKind
from penstock.source.mysql.tables.alter_actions import INDEXES, alter_actions, changes_columns, is_ignoring, table_behind

_OPTIONS = frozenset(
    {"ALGORITHM", "AUTOEXTEND_SIZE", "AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHARACTER", "CHARSET", "CHECKSUM", "COLLATE", "COMMENT"}
    | {"COMPRESSION", "DEFAULT", "DELAY_KEY_WRITE", "DISABLE", "ENABLE", "ENCRYPTED", "ENCRYPTION", "ENCRYPTION_KEY_ID", "FORCE"}
    | {"KEY_BLOCK_SIZE", "LOCK", "MAX_ROWS", "MIN_ROWS", "NOWAIT", "ORDER", "PACK_KEYS", "PAGE_CHECKSUM", "PAGE_COMPRESSED"}
    | {"PAGE_COMPRESSION_LEVEL", "RENAME", "ROW_FORMAT", "STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES", "TABLE_CHECKSUM"}
    | {"TRANSACTIONAL", "WAIT", "WITH", "WITHOUT"}
)
_ENGINES = frozenset({"INNODB", "MYISAM", "ARIA", "ROCKSDB", "MEMORY", "XTRADB"})
_KEPT_PARTITIONS = frozenset({"ADD", "ANALYZE", "CHECK", "COALESCE", "OPTIMIZE", "REBUILD"})
_CHARSET_WORDS = frozenset({"CHARACTER", "CHARSET", "COLLATE", "ASCII", "UNICODE", "BYTE", "BINARY"})
_COLUMN_VERBS = frozenset({"ADD", "MODIFY", "CHANGE"})
_FLOATING = frozenset({TypeKind.FLOAT, TypeKind.DOUBLE})
_TOLD_BYTES = re.compile(r"(?!0x)[ ->@-\[\]-~]*")
"""A default of bytes whose text is sure to be the bytes: a server shows others as question marks, escaped, or in hex."""
_WHOLE, _FRACTION = r"-?\d+", r"-?\d+(?:\.(\d+))?"
_TOLD_FORMS = {
    **dict.fromkeys(INTEGER_KINDS, re.compile(_WHOLE)),
    **dict.fromkeys(_FLOATING, re.compile(_FRACTION + r"(?:[eE][+-]?\d+)?")),
    TypeKind.DECIMAL: re.compile(_FRACTION),
    TypeKind.BIT: re.compile("b'[01]+'"),
    TypeKind.YEAR: re.compile(r"\d{4}"),
    TypeKind.DATE: re.compile(r"\d{4}-\d\d-\d\d"),
    TypeKind.DATETIME: re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.(\d+))?"),
    TypeKind.TIME: re.compile(r"-?\d{2,3}:\d\d:\d\d(?:\.(\d+))?"),
}
"""Texts of defaults that are their values. A statement may write a value in other ways, which servers read and others do not."""
_FIXED_LENGTHS = frozenset({36, 15, 39})
"""A CHAR of these lengths may be a UUID or an address, whose zero is another."""
_UNKNOWN_ZEROS = frozenset({TypeKind.TIMESTAMP, TypeKind.GEOMETRY, TypeKind.JSON, TypeKind.VECTOR, TypeKind.BINARY})


class Alteration(msgspec.Struct, frozen=True):
    """The text of an ALTER TABLE, as far as it concerns rows that exist."""

    reasons: tuple[str, ...] = ()
    others: tuple[TableName, ...] = ()
    """Other tables whose rows it moves."""
    changes_columns: bool = False
    """Whether columns, or those of the primary key, are other ones behind it."""


def read_alteration(query: str, schema: str) -> Alteration:
    """Judge the text of an ALTER TABLE; other statements that change a table leave its rows alone."""
    reasons: list[str] = []
    others: list[TableName] = []
    columns = False
    actions = alter_actions(query)
    if is_ignoring(query):
        reasons.append("rows that are alike in a key may be gone")
    for words in actions:
        action = [w.upper() for w, _, _ in words]
        columns = columns or changes_columns(action)
        reasons += [reason] if (reason := _reason(action)) else []
        if "TABLE" in action and action[0] in {"EXCHANGE", "CONVERT"}:
            others.append(table_behind([w for w, _, _ in words], "TABLE", schema))
    return Alteration(tuple(dict.fromkeys(reasons)), tuple(others), columns)


def _reason(action: Sequence[str]) -> str:  # noqa: PLR0911 - one per kind of action
    verb, noun = action[0], action[1] if len(action) > 1 else ""
    if "PARTITION" in (verb, noun) or noun in {"PARTITIONS", "PARTITIONING", "TABLESPACE"} or verb == "EXCHANGE":
        kept = verb in _KEPT_PARTITIONS or (verb, noun) in {("PARTITION", "BY"), ("REMOVE", "PARTITIONING")}
        return "" if kept else f"{verb} {noun} moves or removes rows"
    if verb == "CONVERT":
        return "its texts were converted to another charset" if noun == "TO" else f"{verb} {noun} moves rows"
    if noun in {"SYSTEM", "PERIOD"} and verb in {"ADD", "DROP"}:
        return "its history was made or removed"
    if verb == "DROP" or (verb == "ADD" and noun in INDEXES) or verb == "ALTER":
        return ""
    if verb in _COLUMN_VERBS:
        if "AUTO_INCREMENT" in action:
            return "rows were given numbers"
        if "GENERATED" in action or "AS" in action:
            return "a generated column was made or changed"
        return "" if verb == "ADD" or not _other_charset(action) else "texts may have been converted to another charset"
    if verb == "ENGINE":
        engine = next((w.strip("'\"`") for w in action[1:] if w != "="), "")
        return "" if engine in _ENGINES else f"its engine became {engine}"
    return "" if verb in _OPTIONS else f"{verb} is an action that is not known"


def _other_charset(action: Sequence[str]) -> bool:
    """Return whether an action names a charset that cannot hold every text."""
    for at, word in enumerate(action):
        if word in _CHARSET_WORDS:
            named = next((w.strip("'\"`") for w in action[at + 1 :] if w not in {"SET", "="}), "")
            if not named.startswith("UTF8MB4"):
                return True
    return False


def changed_reasons(before: Sequence[Column], after: Sequence[Column]) -> list[str]:
    """Return why rows that exist may have other values, or other keys, in a table's columns after a change."""
    old = {c.id: c for c in before}
    reasons = []
    for column in after:
        known = old.get(column.id)
        if known is None:
            continue
        if not keeps_values(known.type, column.type):
            reasons.append(f"column {column.name} changed its type from {known.type.kind} to {column.type.kind}")
        elif known.nullable and not column.nullable:
            reasons.append(f"column {column.name} became NOT NULL")
        elif known.generated != column.generated:
            reasons.append(f"column {column.name} is generated in another way")
    if [c.id for c in before if c.primary_key] != [c.id for c in after if c.primary_key]:
        reasons.append("its key changed")
    return reasons


def converted_reasons(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return why texts may have lost characters: the charsets of columns before and after, where they are known."""
    changed = [name for name, charset in after.items() if before.get(name, charset) != charset and charset != "utf8mb4"]
    return ["texts were converted to another charset"] if changed else []


def with_initial(column: Column, is_computed: bool) -> tuple[Column, str]:
    """Return a column that was added with what rows that exist have in it, and a reason where no constant says it."""
    reason = ""
    value: str | None = None
    kind = column.type.kind
    if column.generated or is_computed:
        reason = f"column {column.name} was added with values that the server computed"
    elif column.default is not None:
        value = column.default
        # The time zone in which such a constant was written is not told.
        if kind is TypeKind.TIMESTAMP and not value.startswith("0000"):
            value, reason = None, f"column {column.name} was added with a time of an unknown zone"
        elif kind is TypeKind.BINARY or (kind in BINARY_KINDS and not _TOLD_BYTES.fullmatch(value)):
            value, reason = None, f"column {column.name} was added with bytes that its text does not tell"
        elif not _is_told(column.type, value):
            value, reason = None, f"column {column.name} was added with a default in a form that only the server reads"
    elif not column.nullable:
        value = _implicit(column.type)
        if value is None:
            reason = f"column {column.name} was added with a default that only the server knows"
    return msgspec.structs.replace(column, initial_default=value), reason


def _is_told(kind: ColumnType, text: str) -> bool:
    """Return whether the text of a default is the value that the server gives to rows."""
    if kind.elems:
        return text in kind.elems or (kind.kind is TypeKind.SET and all(e in kind.elems for e in text.split(",") if text))
    form = _TOLD_FORMS.get(kind.kind)
    if form is None:
        return kind.kind is not TypeKind.CHAR or not text.endswith(" ")
    found = form.fullmatch(text)
    fraction = (found[1] or "") if found is not None and form.groups else ""
    return found is not None and (len(fraction) <= (kind.scale or 0) or (kind.kind in _FLOATING and kind.scale is None))


def _implicit(kind: ColumnType) -> str | None:
    """Return what a column that must not be NULL and has no default shows in rows that exist; None where that is not known."""
    is_fixed = kind.kind is TypeKind.CHAR and kind.length in _FIXED_LENGTHS
    return None if is_fixed or kind.kind in _UNKNOWN_ZEROS else implicit_default(kind)


def clock_default(column: Column) -> bool:
    """Return whether the text of a default, as a statement writes it, stands for the time of a row."""
    return column.type.kind in {TypeKind.DATETIME, TypeKind.TIMESTAMP} and (column.default or "").upper().startswith("CURRENT_")
