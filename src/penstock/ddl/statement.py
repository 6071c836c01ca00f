"""DDL statements as text: what they do and to which tables, as far as capture must know.

The statement is cut into tokens, because its comments, quotes and the server's own extensions are more than any grammar follows; what a
table looks like afterwards is the business of ``table_versions``. Statements that change no table's rows or columns give None. Runs in
the log service.
"""

from __future__ import annotations

import msgspec

from penstock.ddl.tokens import Reader, TableName, statements, tokens
from penstock.model.ddl import DdlType

_COLUMN_WORDS = frozenset({"COLUMN", "IF", "EXISTS", "NOT"})


class Statement(msgspec.Struct, frozen=True):
    """What a statement does. ``renamed`` holds (old, new) tables, ``columns`` (old, new) column names, ``dropped`` names of columns."""

    type: DdlType
    schema: str
    tables: tuple[TableName, ...] = ()
    renamed: tuple[tuple[TableName, TableName], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    like: TableName | None = None
    dropped: tuple[str, ...] = ()


def parse_statement(text: str, schema: str, *, backslash_escapes: bool = True) -> Statement | None:
    """Return what a statement does to tables; None where nothing that matters."""
    words = tokens(text, backslash_escapes=backslash_escapes)
    if words and words[-1] == ";":
        words.pop()
    reader = Reader(words, schema)
    # MariaDB: SET STATEMENT x=1 FOR ALTER TABLE ...
    if reader.skip("SET", "STATEMENT"):
        reader.skip_to("FOR")
    verb = reader.peek()
    reader.at += 1
    parse = {"CREATE": _create, "DROP": _drop, "TRUNCATE": _truncate, "RENAME": _rename, "ALTER": _alter}.get(verb)
    return parse(reader) if parse is not None else None


def dropped_tables(query: str, schema: str) -> list[TableName]:
    """Return (schema, table) of each table that a DROP TABLE or TRUNCATE names."""
    found = [parse_statement(text, schema) for text in statements(query)]
    return [t for s in found if s is not None and s.type in {DdlType.DROP_TABLE, DdlType.TRUNCATE_TABLE} for t in s.tables]


def renamed_tables(query: str, schema: str) -> list[tuple[TableName, TableName]]:
    """Return ((old schema, old table), (new schema, new table)) of each rename."""
    statement = parse_statement(query, schema)
    return [] if statement is None or statement.type is DdlType.CREATE_TABLE else list(statement.renamed)


def column_origins(query: str) -> tuple[dict[str, str], set[str]]:
    """Return new names of columns with their old ones, and old names that an ALTER TABLE gives away or drops; all in lower case."""
    statement = parse_statement(query, "")
    if statement is None:
        return {}, set()
    origins = {new.lower(): old.lower() for old, new in statement.columns if new.lower() != old.lower()}
    return origins, {*origins.values(), *(name.lower() for name in statement.dropped)}


def _create(reader: Reader) -> Statement | None:
    replaced = reader.skip("OR", "REPLACE")
    if reader.skip("DATABASE") or reader.skip("SCHEMA"):
        reader.skip("IF", "NOT", "EXISTS")
        return Statement(DdlType.CREATE_SCHEMA, reader.name())
    for word in ("UNIQUE", "FULLTEXT", "SPATIAL", "ONLINE", "OFFLINE"):
        reader.skip(word)
    if reader.skip("INDEX"):
        reader.skip_to("ON")
        table = reader.table()
        return Statement(DdlType.ADD_INDEX, table[0], (table,))
    if not reader.skip("TABLE"):
        return None
    reader.skip("IF", "NOT", "EXISTS")
    table = reader.table()
    like = None
    if reader.skip("LIKE") or reader.skip("(", "LIKE"):
        like = reader.table()
    return Statement(DdlType.CREATE_TABLE, table[0], (table,), renamed=((table, table),) if replaced else (), like=like)


def _drop(reader: Reader) -> Statement | None:
    if reader.skip("DATABASE") or reader.skip("SCHEMA"):
        reader.skip("IF", "EXISTS")
        return Statement(DdlType.DROP_SCHEMA, reader.name())
    if reader.skip("INDEX"):
        reader.skip_to("ON")
        table = reader.table()
        return Statement(DdlType.DROP_INDEX, table[0], (table,))
    if not (reader.skip("TABLE") or reader.skip("TABLES")):
        return None
    reader.skip("IF", "EXISTS")
    dropped = [reader.table()]
    while reader.skip(","):
        dropped.append(reader.table())
    return Statement(DdlType.DROP_TABLE, dropped[0][0], tuple(dropped))


def _truncate(reader: Reader) -> Statement | None:
    reader.skip("TABLE")
    table = reader.table()
    return Statement(DdlType.TRUNCATE_TABLE, table[0], (table,))


def _rename(reader: Reader) -> Statement | None:
    if not (reader.skip("TABLE") or reader.skip("TABLES")):
        return None
    reader.skip("IF", "EXISTS")
    pairs = []
    while True:
        old = reader.table()
        reader.skip_to("TO")
        pairs.append((old, reader.table()))
        if not reader.skip(","):
            break
    kind = DdlType.RENAME_TABLE if len(pairs) == 1 else DdlType.RENAME_TABLES
    return Statement(kind, pairs[0][1][0], tuple(new for _, new in pairs), tuple(pairs))


def _alter(reader: Reader) -> Statement | None:
    for word in ("ONLINE", "OFFLINE", "IGNORE"):
        reader.skip(word)
    if not reader.skip("TABLE"):
        return None
    reader.skip("IF", "EXISTS")
    table = reader.table()
    if reader.peek() in {"WAIT", "NOWAIT"}:
        reader.at += 2 if reader.peek() == "WAIT" else 1
    types: list[DdlType] = []
    columns: list[tuple[str, str]] = []
    dropped: list[str] = []
    target: TableName | None = None
    for action in reader.rest():
        if action.peek() == "RENAME" and action.peek(1) not in {"COLUMN", "INDEX", "KEY"}:
            action.at += 1
            if action.peek() in {"TO", "AS", "="}:
                action.at += 1
            target = action.table()
            types.append(DdlType.RENAME_TABLE)
            continue
        types.append(_action_type(action, columns, dropped))
    kinds = [t for t in dict.fromkeys(types) if t is not DdlType.NONE]
    kind = kinds[0] if len(kinds) == 1 else DdlType.MULTI_SCHEMA_CHANGE if kinds else DdlType.NONE
    pairs = ((table, target),) if target is not None and target != table else ()
    return Statement(kind, (target or table)[0], (target or table,), pairs, tuple(columns), None, tuple(dropped))


def _action_type(action: Reader, columns: list[tuple[str, str]], dropped: list[str]) -> DdlType:  # noqa: C901, PLR0911, PLR0912 - one branch per kind
    verb, noun = action.peek(), action.peek(1)
    if verb in {"CHANGE", "RENAME"} and noun not in {"INDEX", "KEY"}:
        action.at += 1
        while action.peek() in _COLUMN_WORDS:
            action.at += 1
        old = action.name()
        action.skip("TO")
        columns.append((old, action.name()))
        return DdlType.MODIFY_COLUMN
    if verb == "MODIFY":
        return DdlType.MODIFY_COLUMN
    if verb == "ADD":
        if noun in {"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "PRIMARY", "CONSTRAINT", "FOREIGN", "CHECK"}:
            return DdlType.ADD_INDEX
        return DdlType.ADD_PARTITION if noun == "PARTITION" else DdlType.ADD_COLUMN
    if verb == "DROP":
        if noun in {"INDEX", "KEY", "PRIMARY", "CONSTRAINT", "FOREIGN", "CHECK"}:
            return DdlType.DROP_INDEX
        if noun == "PARTITION":
            return DdlType.DROP_PARTITION
        action.at += 1
        while action.peek() in _COLUMN_WORDS:
            action.at += 1
        dropped.append(action.name())
        return DdlType.DROP_COLUMN
    if verb == "RENAME":
        return DdlType.ADD_INDEX
    if verb == "ALTER":
        return DdlType.SET_DEFAULT
    if verb == "COMMENT":
        return DdlType.TABLE_COMMENT
    if verb == "TRUNCATE":
        return DdlType.TRUNCATE_PARTITION
    if verb == "EXCHANGE":
        return DdlType.EXCHANGE_PARTITION
    if verb == "REORGANIZE":
        return DdlType.REORGANIZE_PARTITION
    if verb in {"CONVERT", "CHARACTER", "CHARSET", "COLLATE", "DEFAULT"}:
        return DdlType.TABLE_CHARSET
    return DdlType.NONE
