"""Columns after a DDL, from its text alone: for a reader that is behind, to whom the server shows only later tables.

sqlglot parses the statement; what it does not understand gives None, and the caller decides what else to believe. A column that was there
before keeps its id, whatever its name is now; a new one has id 0. Runs in the log service.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import msgspec
import sqlglot
from sqlglot import exp

from penstock.ddl.column_definition import build_column, is_first
from penstock.model.errors import PenstockError
from penstock.model.table import Column
from penstock.source.mysql.tables.alter_actions import INDEXES, Word, alter_actions, changes_columns, placed_words, split_words, text_of
from penstock.source.mysql.tables.columns import FIXED_TYPES

logging.getLogger("sqlglot").setLevel(logging.ERROR)
_UNREAD = (PenstockError, AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)
"""What a parser, or what it made of a text that it took for another, may raise."""
_NAME_FOLLOWS = frozenset({"(", ",", "ADD", "COLUMN", "EXISTS", "CHANGE", "MODIFY"})
"""Behind these a word is a name, not a type."""


def created_columns(query: str) -> tuple[Column, ...] | None:
    """Return the columns of a CREATE TABLE, None where its text does not tell."""
    statement = _parsed(query)
    if not isinstance(statement, exp.Create) or not isinstance(statement.this, exp.Schema):
        return None
    columns: list[Column] = []
    keys: list[str] = []
    try:
        for item in statement.this.expressions:
            if isinstance(item, exp.ColumnDef):
                columns.append(_column(item))
            elif isinstance(item, exp.PrimaryKey):
                keys += [part.name.lower() for part in item.expressions]
    except _UNREAD:
        return None
    numbered = [msgspec.structs.replace(c, id=number) for number, c in enumerate(_keyed(columns, keys), 1)]
    return tuple(numbered) if numbered else None


def is_filled(words: Sequence[str]) -> bool:
    """Return whether a CREATE TABLE, in upper case from its name on, holds a query; limits of partitions are none."""
    values = any(word == "VALUES" and then not in {"LESS", "IN"} for word, then in itertools.pairwise(words))
    return values or "SELECT" in words or "TABLE" in words


def altered_columns(columns: tuple[Column, ...], query: str) -> tuple[Column, ...] | None:
    """Return a table's columns after an ALTER TABLE, None where its text does not tell.

    Actions that concern neither columns nor the primary key are not looked at, so none of them is in the way.
    """
    now = list(columns)
    # The actions of one statement name columns as they were called before it.
    ids = {c.name.lower(): c.id for c in columns}
    try:
        for words, text in _column_actions(query):
            if words[:3] == ["DROP", "PRIMARY", "KEY"]:
                now = [msgspec.structs.replace(c, primary_key=False) for c in now]
                continue
            statement = _parsed(f"ALTER TABLE t {text}")
            actions = (statement.args.get("actions") or ()) if isinstance(statement, exp.Alter) else ()
            if not actions or not all(_apply(now, ids, action, "EXISTS" in words) for action in actions):
                return None
    except _UNREAD:
        return None
    return tuple(now) if len({c.name.lower() for c in now}) == len(now) else None


def _column_actions(query: str) -> list[tuple[list[str], str]]:
    """Return the actions of an ALTER TABLE that concern its columns or primary key: the words in upper case, and the text."""
    found = []
    for words in alter_actions(query):
        upper = [w.upper() for w, _, _ in words]
        if not changes_columns(upper) and upper[0] != "ALTER":
            continue
        inner = words[upper.index("(") + 1 : -1] if upper[:2] == ["ADD", "("] or upper[:3] == ["ADD", "COLUMN", "("] else None
        if inner is None:
            found.append((upper, text_of(words)))
            continue
        for part in split_words(inner):
            head = [w.upper() for w, _, _ in part]
            if head[0] not in INDEXES:
                found.append((["ADD", *head], f"ADD COLUMN {text_of(part)}"))
    return found


def _parsed(query: str) -> exp.Expression | None:
    for text in (text_of(placed_words(query)), _plainer(query)):
        try:
            statement = sqlglot.parse_one(text, dialect="mysql")
        except (sqlglot.errors.SqlglotError, *_UNREAD):
            continue
        # What is not understood is a command.
        if not isinstance(statement, exp.Command):
            return statement
    return None


def _plainer(query: str) -> str:
    """Return a statement in which MariaDB's own types stand as what they are to us, and a CREATE has nothing behind its columns."""
    kept: list[Word] = []
    depth = 0
    words = placed_words(query)
    is_create = "CREATE" in {w.upper() for w, _, _ in words[:1]}
    for word, start, end in words:
        before = kept[-1][0].upper() if kept else "("
        if before == ")" and word.upper() in {"PERSISTENT", "STORED"}:
            kept.append(("STORED", start, end))
        elif before in _NAME_FOLLOWS or word.lower() not in {"inet4", "inet6", "compressed"}:
            if [w for w, _, _ in kept[-2:]] == ["", "="]:
                # COMPRESSED=zlib
                kept[-2:] = []
                continue
            kept.append((word, start, end))
        else:
            known = FIXED_TYPES.get(word.lower())
            kept.append((f"CHAR({known.length})" if known is not None else "", start, end))
        depth += (word == "(") - (word == ")")
        if is_create and word == ")" and depth == 0:
            break
    return text_of(kept)


def _column(definition: exp.ColumnDef) -> Column:
    """Return a column; generated ones are columns like others here."""
    kept = []
    generated = ""
    for constraint in definition.args.get("constraints") or ():
        kind = constraint.args.get("kind")
        if isinstance(kind, exp.ComputedColumnConstraint | exp.GeneratedAsIdentityColumnConstraint):
            generated = (
                "STORED" if "STORED" in constraint.sql("mysql").upper() or "PERSISTED" in constraint.sql("mysql").upper() else "VIRTUAL"
            )
        else:
            kept.append(constraint)
    plain = definition.copy()
    if plain.args["kind"] is not None and plain.args["kind"].this == exp.DType.UUID:
        plain.set("kind", exp.DataType.build(f"CHAR({FIXED_TYPES['uuid'].length})", dialect="mysql"))
    plain.set("constraints", [c.copy() for c in kept])
    return msgspec.structs.replace(build_column(plain, 0), generated=generated)


def _keyed(columns: list[Column], keys: list[str]) -> list[Column]:
    return [msgspec.structs.replace(c, primary_key=True, nullable=False) if c.name.lower() in keys else c for c in columns]


def _place(columns: list[Column], ids: dict[str, int], name: str) -> int | None:
    """Return where a column stands that had this name before the statement, None where there is none."""
    return next((at for at, column in enumerate(columns) if column.id == ids.get(name.lower(), -1)), None)


def _insert(columns: list[Column], column: Column, position: exp.Expression | None, otherwise: int) -> None:
    if position is None:
        columns.insert(otherwise, column)
    elif is_first(position):
        columns.insert(0, column)
    else:
        columns.insert([c.name.lower() for c in columns].index(position.this.name.lower()) + 1, column)


def _apply(columns: list[Column], ids: dict[str, int], action: exp.Expression, tolerant: bool) -> bool:
    """Change the columns; return False where the action is not understood.

    ``tolerant`` where an action may name a column that is not there, or add one that is.
    """
    if isinstance(action, exp.ColumnDef):
        if not (tolerant and action.name.lower() in ids):
            _insert(columns, _column(action), action.args.get("position"), len(columns))
    elif isinstance(action, exp.Drop):
        names = [target.name for target in action.args.get("tables") or [action.this]]
        return (action.args.get("kind") or "COLUMN").upper() != "COLUMN" or all(_drop(columns, ids, n) or tolerant for n in names)
    elif isinstance(action, exp.ModifyColumn):
        return _modify(columns, ids, action) or tolerant
    elif isinstance(action, exp.RenameColumn):
        at = _place(columns, ids, action.this.name)
        if at is not None:
            columns[at] = msgspec.structs.replace(columns[at], name=action.args["to"].name)
        return at is not None or tolerant
    elif isinstance(action, exp.AddConstraint):
        for added in action.expressions:
            if isinstance(added, exp.PrimaryKey):
                columns[:] = _keyed(columns, [part.name.lower() for part in added.expressions])
    elif isinstance(action, exp.AlterColumn):
        return _set_default(columns, ids, action)
    elif not isinstance(action, exp.AlterRename):
        return False
    return True


def _set_default(columns: list[Column], ids: dict[str, int], action: exp.Expression) -> bool:
    at, default = _place(columns, ids, action.this.name), action.args.get("default")
    if at is None or not (default is None or isinstance(default, exp.Literal | exp.Null | exp.Neg)):
        return False
    text = None if default is None or isinstance(default, exp.Null) else default.sql("mysql").strip("'").replace("''", "'")
    columns[at] = msgspec.structs.replace(columns[at], default=text)
    return True


def _drop(columns: list[Column], ids: dict[str, int], name: str) -> bool:
    at = _place(columns, ids, name)
    if at is not None:
        columns.pop(at)
    return at is not None


def _modify(columns: list[Column], ids: dict[str, int], action: exp.Expression) -> bool:
    renamed, definition = action.args.get("rename_from"), action.this
    at = _place(columns, ids, renamed.name if renamed is not None else definition.name)
    if at is None:
        return False
    before = columns.pop(at)
    new = msgspec.structs.replace(_column(definition), id=before.id, primary_key=before.primary_key)
    if before.primary_key:
        new = msgspec.structs.replace(new, nullable=False)
    _insert(columns, new, definition.args.get("position") or action.args.get("position"), at)
    return True
