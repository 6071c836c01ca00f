"""The actions of an ALTER TABLE as they stand in its text: each a run of words with their places, cut at commas.

Runs in the log service, in the thread that reads the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from penstock.ddl.statement import Statement, parse_statement
from penstock.ddl.tokens import TableName, quoted, tokens, unquoted, words_of
from penstock.model.ddl import DdlType
from penstock.source.mysql.tables.composed import compose_drop, compose_like, compose_rename

Word = tuple[str, int, int]
"""A word, and where it begins and ends in the statement."""
INDEXES = frozenset({"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "FOREIGN", "CHECK", "CONSTRAINT", "PRIMARY"})


def placed_words(query: str) -> list[Word]:
    """Return the words of a statement, without comments, and where they stand."""
    return [(word.text, word.start, word.start + len(word.text)) for word in words_of(query)]


def text_of(words: Sequence[Word]) -> str:
    """Return the text of words that follow each other, without comments; what a comment hid from others counts as the server read it."""
    parts = [words[0][0]] if words else []
    parts += [word if start == end else f" {word}" for (_, _, end), (word, start, _) in itertools.pairwise(words)]
    return "".join(parts)


def alter_actions(query: str) -> list[list[Word]]:
    """Return the actions of an ALTER TABLE; none for other statements."""
    words = placed_words(query)
    upper = [w.upper() for w, _, _ in words]
    begin = upper.index("FOR") + 1 if upper[:2] == ["SET", "STATEMENT"] and "FOR" in upper else 0
    if upper[begin : begin + 1] != ["ALTER"] or "TABLE" not in upper[begin : begin + 5]:
        return []
    at = upper.index("TABLE", begin) + 1
    at += 2 if upper[at : at + 2] == ["IF", "EXISTS"] else 0
    at += 3 if upper[at + 1 : at + 2] == ["."] else 1
    # ALTER TABLE t WAIT 5 ADD ...
    at += 2 if upper[at : at + 1] == ["WAIT"] else 1 if upper[at : at + 1] == ["NOWAIT"] else 0
    return split_words([w for w in words[at:] if w[0] != ";"])


def parts_of(statement: Statement, query: str, schema: str) -> list[tuple[Statement, str]]:
    """Return a statement, or the several that it amounts to, each with its text; ``schema`` is the database in which it ran.

    A rename tells no columns, so an ALTER TABLE that does more is a rename and the rest. A partition that becomes a table makes that
    table, and a table that becomes a partition ends.
    """
    for words in alter_actions(query):
        action = [w.upper() for w, _, _ in words]
        if action[0] == "CONVERT" and "TABLE" in action[1:]:
            other = table_behind([w for w, _, _ in words], "TABLE", schema)
            if action[1] == "TABLE":
                return [(statement, query), (Statement(DdlType.DROP_TABLE, other[0], (other,)), compose_drop([other]))]
            made = Statement(DdlType.CREATE_TABLE, other[0], (other,), like=statement.tables[0])
            return [(made, compose_like(other, statement.tables[0])), (statement, query)]
    return _renamed_apart(statement, query)


def table_behind(words: Sequence[str], keyword: str, schema: str) -> TableName:
    """Return the table that stands behind a word."""
    at = next(n for n, word in enumerate(words) if word.upper() == keyword) + 1
    names = [unquoted(w) for w in words[at : at + 3]]
    return (names[0], names[2]) if names[1:2] == ["."] and len(names) == 3 else (schema, names[0] if names else "")


def _renamed_apart(statement: Statement, query: str) -> list[tuple[Statement, str]]:
    if not statement.renamed or statement.type in {DdlType.CREATE_TABLE, DdlType.RENAME_TABLE, DdlType.RENAME_TABLES}:
        return [(statement, query)]
    schema, table = statement.renamed[0][1]
    actions = [words for words in alter_actions(query) if not _renames_table([w.upper() for w, _, _ in words])]
    verb = "ALTER IGNORE TABLE" if is_ignoring(query) else "ALTER TABLE"
    text = f"{verb} {quoted(schema)}.{quoted(table)} {', '.join(map(text_of, actions))}"
    rest = parse_statement(text, schema)
    renamed = Statement(DdlType.RENAME_TABLE, schema, statement.tables, statement.renamed)
    moved = (renamed, compose_rename(statement.renamed))
    return [moved, (rest, text)] if rest is not None else [moved]


def is_ignoring(query: str) -> bool:
    """Return whether an ALTER TABLE lets rows go that its keys do not allow."""
    actions = alter_actions(query)
    return bool(actions) and "IGNORE" in {w.upper() for w in tokens(query[: actions[0][0][1]])}


def _renames_table(action: Sequence[str]) -> bool:
    return action[0] == "RENAME" and action[1:2] not in (["COLUMN"], ["INDEX"], ["KEY"])


def split_words(words: Sequence[Word]) -> list[list[Word]]:
    """Cut words at the commas that stand in no parentheses."""
    parts: list[list[Word]] = [[]]
    depth = 0
    for word in words:
        depth += (word[0] == "(") - (word[0] == ")")
        if word[0] == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    return [part for part in parts if part]


def changes_columns(action: Sequence[str]) -> bool:
    """Return whether an action, in upper case, makes other columns or another primary key."""
    verb, noun = action[0], action[1] if len(action) > 1 else ""
    if verb in {"ADD", "DROP"}:
        return noun not in {*INDEXES, "PARTITION"} or "PRIMARY" in action
    return verb in {"MODIFY", "CHANGE"} or (verb, noun) in {("RENAME", "COLUMN"), ("CONVERT", "TO")}
