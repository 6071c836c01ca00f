"""What the text of a DDL says about names: dropped tables, renamed tables, renamed columns.

Schema files carry a DDL as text and type only; whoever writes a drop or follows a rename reads the names out of it here. A text that does
not parse names nothing. Runs beside the driver and wherever a target is read.
"""

from __future__ import annotations

import logging
import re

_IDENTIFIER = r"(?:`(?:[^`]|``)+`|[^\s`.,;()]+)"
_NAME = rf"({_IDENTIFIER}(?:\s*\.\s*{_IDENTIFIER})?)"
_RENAME_TABLE = re.compile(rf"{_NAME}\s+TO\s+{_NAME}", re.IGNORECASE)
_ALTER_RENAME = re.compile(
    rf"^\s*ALTER\s+TABLE\s+{_NAME}\s+.*?RENAME\s+(?:TO\s+|AS\s+|=\s*)?(?!COLUMN\b|INDEX\b|KEY\b){_NAME}\s*;?\s*$", re.IGNORECASE | re.DOTALL
)
_RENAME_COLUMN = re.compile(rf"\bRENAME\s+COLUMN\s+({_IDENTIFIER})\s+TO\s+({_IDENTIFIER})", re.IGNORECASE)
_CHANGE_COLUMN = re.compile(rf"\bCHANGE\s+(?:COLUMN\s+)?({_IDENTIFIER})\s+({_IDENTIFIER})\s", re.IGNORECASE)


def dropped_tables(query: str, schema: str) -> list[tuple[str, str]]:
    """Return (schema, table) of each table that a DROP TABLE or TRUNCATE names."""
    # Imported here: most tasks never see such a text, and the parser is no small part of their start.
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        statements = [s for s in sqlglot.parse(query, read="mysql") if s is not None]
    except SqlglotError:
        return []
    tables = [t for s in statements if isinstance(s, exp.Drop | exp.TruncateTable) for t in s.find_all(exp.Table)]
    return [(t.db or schema, t.name) for t in tables]


def renamed_tables(query: str, schema: str) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Return ((old schema, old table), (new schema, new table)) of each rename."""
    text = query.strip()
    if re.match(r"RENAME\s+TABLES?\s", text, re.IGNORECASE):
        body = re.sub(r"^RENAME\s+TABLES?\s+", "", text, flags=re.IGNORECASE)
        return [(_split_name(old, schema), _split_name(new, schema)) for old, new in _RENAME_TABLE.findall(body)]
    match = _ALTER_RENAME.match(text)
    if match is None:
        return []
    old = _split_name(match.group(1), schema)
    return [(old, _split_name(match.group(2), old[0]))]


def renamed_columns(query: str) -> dict[str, str]:
    """Return new name to old name of each column that an ALTER TABLE renames; names in lower case."""
    pairs = [*_RENAME_COLUMN.findall(query), *_CHANGE_COLUMN.findall(query)]
    names = {_unquote(new).lower(): _unquote(old).lower() for old, new in pairs}
    return {new: old for new, old in names.items() if new != old}


def _split_name(text: str, schema: str) -> tuple[str, str]:
    parts = [_unquote(p) for p in re.findall(_IDENTIFIER, text)]
    return (schema, parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def _unquote(identifier: str) -> str:
    return identifier[1:-1].replace("``", "`") if identifier.startswith("`") else identifier
