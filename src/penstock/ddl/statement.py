"""DDL statements as text: what they do and to which tables, as far as capture must know.

The statement is cut into tokens, because its comments, quotes and the server's own extensions are more than any grammar follows; what a
table looks like afterwards is the business of ``table_versions``. Statements that change no table's rows or columns give None. Runs in
the log service.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from penstock.model.ddl import DdlType

_TOKEN = re.compile(
    r"""
    /\*(?:!|M!)\d*            # the beginning of a comment that the server executes: its content counts
  | /\*.*?\*/ | --[ \t][^\n]* | \#[^\n]*
  | \*/
  | `(?:[^`]|``)*`
  | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*"
  | [\w$\u0080-\uffff@]+
  | [^\s]
    """,
    re.VERBOSE | re.DOTALL,
)
TableName = tuple[str, str]
_COLUMN_WORDS = frozenset({"COLUMN", "IF", "EXISTS", "NOT"})


class Statement(msgspec.Struct, frozen=True):
    """What a statement does. ``renamed`` holds (old, new) tables, ``columns`` (old, new) column names."""

    type: DdlType
    schema: str
    tables: tuple[TableName, ...] = ()
    renamed: tuple[tuple[TableName, TableName], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    like: TableName | None = None


def tokens(text: str) -> list[str]:
    """Return the tokens of a statement without comments."""
    found = _TOKEN.findall(text)
    return [t for t in found if not (t.startswith(("/*", "--", "#")) or t == "*/")]


def parse_statement(text: str, schema: str) -> Statement | None:
    """Return what a statement does to tables; None where nothing that matters."""
    words = tokens(text)
    if words and words[-1] == ";":
        words.pop()
    upper = [w.upper() for w in words]
    # MariaDB: SET STATEMENT x=1 FOR ALTER TABLE ...
    if upper[:2] == ["SET", "STATEMENT"] and "FOR" in upper:
        at = upper.index("FOR") + 1
        words, upper = words[at:], upper[at:]
    if not upper:
        return None
    reader = _Reader(words, upper, schema)
    parse = {"CREATE": _create, "DROP": _drop, "TRUNCATE": _truncate, "RENAME": _rename, "ALTER": _alter}.get(upper[0])
    return parse(reader) if parse is not None else None


class _Reader:
    def __init__(self, words: Sequence[str], upper: Sequence[str], schema: str) -> None:
        self.words, self.upper, self.schema = words, upper, schema
        self.at = 1

    def peek(self, ahead: int = 0) -> str:
        return self.upper[self.at + ahead] if self.at + ahead < len(self.upper) else ""

    def skip(self, *words: str) -> bool:
        """Skip these words if they come next."""
        if tuple(self.upper[self.at : self.at + len(words)]) != words:
            return False
        self.at += len(words)
        return True

    def name(self) -> str:
        word = self.words[self.at] if self.at < len(self.words) else ""
        self.at += 1
        return unquoted(word)

    def table(self) -> TableName:
        first = self.name()
        if self.peek() == ".":
            self.at += 1
            return first, self.name()
        return self.schema, first


def unquoted(word: str) -> str:
    """Return an identifier without its quotes."""
    if len(word) > 1 and word[0] == word[-1] and word[0] in "`\"'":
        return word[1:-1].replace(word[0] * 2, word[0])
    return word


def _create(reader: _Reader) -> Statement | None:
    replaced = reader.skip("OR", "REPLACE")
    if reader.skip("DATABASE") or reader.skip("SCHEMA"):
        reader.skip("IF", "NOT", "EXISTS")
        return Statement(DdlType.CREATE_SCHEMA, reader.name())
    for word in ("UNIQUE", "FULLTEXT", "SPATIAL", "ONLINE", "OFFLINE"):
        reader.skip(word)
    if reader.skip("INDEX"):
        while reader.peek() not in {"ON", ""}:
            reader.at += 1
        reader.at += 1
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


def _drop(reader: _Reader) -> Statement | None:
    if reader.skip("DATABASE") or reader.skip("SCHEMA"):
        reader.skip("IF", "EXISTS")
        return Statement(DdlType.DROP_SCHEMA, reader.name())
    if reader.skip("INDEX"):
        while reader.peek() not in {"ON", ""}:
            reader.at += 1
        reader.at += 1
        table = reader.table()
        return Statement(DdlType.DROP_INDEX, table[0], (table,))
    if not (reader.skip("TABLE") or reader.skip("TABLES")):
        return None
    reader.skip("IF", "EXISTS")
    dropped = [reader.table()]
    while reader.skip(","):
        dropped.append(reader.table())
    return Statement(DdlType.DROP_TABLE, dropped[0][0], tuple(dropped))


def _truncate(reader: _Reader) -> Statement | None:
    reader.skip("TABLE")
    table = reader.table()
    return Statement(DdlType.TRUNCATE_TABLE, table[0], (table,))


def _rename(reader: _Reader) -> Statement | None:
    if not (reader.skip("TABLE") or reader.skip("TABLES")):
        return None
    reader.skip("IF", "EXISTS")
    pairs = []
    while True:
        old = reader.table()
        while reader.peek() not in {"TO", ""}:
            reader.at += 1
        reader.at += 1
        pairs.append((old, reader.table()))
        if not reader.skip(","):
            break
    kind = DdlType.RENAME_TABLE if len(pairs) == 1 else DdlType.RENAME_TABLES
    return Statement(kind, pairs[0][1][0], tuple(new for _, new in pairs), tuple(pairs))


def _alter(reader: _Reader) -> Statement | None:
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
    target: TableName | None = None
    for action in _actions(reader):
        if action.peek() == "RENAME" and action.peek(1) not in {"COLUMN", "INDEX", "KEY"}:
            action.at += 1
            if action.peek() in {"TO", "AS", "="}:
                action.at += 1
            target = action.table()
            types.append(DdlType.RENAME_TABLE)
            continue
        types.append(_action_type(action, columns))
    kinds = [t for t in dict.fromkeys(types) if t is not DdlType.NONE]
    kind = kinds[0] if len(kinds) == 1 else DdlType.MULTI_SCHEMA_CHANGE if kinds else DdlType.NONE
    pairs = ((table, target),) if target is not None and target != table else ()
    return Statement(kind, (target or table)[0], (target or table,), pairs, tuple(columns))


def _actions(reader: _Reader) -> list[_Reader]:
    """Cut the rest of an ALTER at the commas that stand in no parentheses."""
    parts: list[tuple[int, int]] = []
    depth, begin = 0, reader.at
    for at in range(reader.at, len(reader.words) + 1):
        word = reader.words[at] if at < len(reader.words) else ","
        depth += (word == "(") - (word == ")")
        if word == "," and (depth == 0 or at == len(reader.words)):
            parts.append((begin, at))
            begin = at + 1
    readers = []
    for start, stop in parts:
        part = _Reader(reader.words[start:stop], reader.upper[start:stop], reader.schema)
        part.at = 0
        readers.append(part)
    return readers


def _action_type(action: _Reader, columns: list[tuple[str, str]]) -> DdlType:  # noqa: C901, PLR0911, PLR0912 - one branch per kind
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
        return DdlType.DROP_PARTITION if noun == "PARTITION" else DdlType.DROP_COLUMN
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
