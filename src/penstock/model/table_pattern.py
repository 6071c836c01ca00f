"""Patterns of table names, and which DDLs they concern.

A pattern is ``database.table``, each part with ``*``, ``?`` and ``[...]``, and with ``!`` before it for exceptions; of several that match
a name the last counts, as among columns. The parts are compared apart, so that a star does not run over the dot between them, and without
regard to case, as MySQL compares names. Backquotes keep a part together whose name has a dot, as in ```a.b`.orders``; a dot at the very
beginning belongs to the database, because no name is empty. Runs anywhere.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import re
from collections.abc import Collection

import msgspec

from penstock.model.ddl import DdlEvent, DdlType

PATTERNS_MAX = 1_000
_PATTERN_CHARS_MAX, _WILDCARDS_MAX = 400, 32
_PART = re.compile(r"`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>.+)", re.DOTALL)
_DATABASE = re.compile(r"(`(?:[^`]|``)+`|.[^.]*)\.", re.DOTALL)
_DATABASE_DDLS = frozenset({DdlType.CREATE_SCHEMA, DdlType.DROP_SCHEMA})


class TablePatterns(msgspec.Struct, frozen=True):
    """Which tables belong to a feed, those that do not exist yet included."""

    patterns: tuple[str, ...] = ()

    def match(self, schema: str, table: str) -> bool:
        """Return whether a table has a name that belongs."""
        schema, table = schema.lower(), table.lower()
        # Of thousands of names most have no exception, and then any that matches will do.
        if not any(pattern.startswith("!") for pattern in self.patterns):
            return any(_match(pattern, schema, table) for pattern in self.patterns)
        last = next((pattern for pattern in reversed(self.patterns) if _match(pattern.removeprefix("!"), schema, table)), "!")
        return not last.startswith("!")

    def match_database(self, schema: str) -> bool:
        """Return whether tables of a database may belong."""
        wanted = (pattern_parts(pattern.lower())[0] for pattern in self.patterns if not pattern.startswith("!"))
        return any(fnmatch.fnmatchcase(schema.lower(), pattern) for pattern in wanted)

    def concern(self, ddl: DdlEvent) -> bool:
        """Return whether a DDL makes, changes or renames a table that belongs, or a database that may hold one."""
        if ddl.type in _DATABASE_DDLS:
            return self.match_database(ddl.schema)
        names = [(t.schema, t.table) for t in ddl.tables] + [(schema, table) for _, schema, table in ddl.old_names]
        return any(self.match(*name) for name in names)


def pattern_problems(patterns: Collection[str]) -> list[str]:
    """Return what is wrong with patterns that would take too long to compare."""
    if len(patterns) > PATTERNS_MAX:
        return [f"must be at most {PATTERNS_MAX} patterns"]
    long = any(len(pattern) > _PATTERN_CHARS_MAX or sum(map(pattern.count, "*?[")) > _WILDCARDS_MAX for pattern in patterns)
    return [f"a pattern has at most {_PATTERN_CHARS_MAX} characters and {_WILDCARDS_MAX} wildcards"] if long else []


@functools.lru_cache(maxsize=4 * PATTERNS_MAX)
def pattern_parts(pattern: str) -> tuple[str, str]:
    """Return what a pattern, also one of an exception, asks of a database and of a table; what it lacks is empty."""
    bare = pattern.removeprefix("!")
    database = _DATABASE.match(bare)
    schema, table = (database[1], bare[database.end() :]) if database else (bare, "")
    return _unquoted(schema), _unquoted(table)


def is_pattern(pattern: str) -> bool:
    """Return whether a text names a database and a table; a blank or a line's end around it would never match."""
    return all(pattern_parts(pattern)) and pattern == pattern.strip() and pattern.isprintable()


def whole_pattern(schema: str, table: str) -> str:
    """Return the pattern that matches one table alone."""
    return f"{_quoted(glob.escape(schema), '.!`')}.{_quoted(glob.escape(table), '`')}"


def match_table(pattern: str, schema: str, table: str) -> bool:
    """Return whether one pattern matches a table."""
    return _match(pattern, schema.lower(), table.lower())


def _quoted(text: str, special: str) -> str:
    return "`" + text.replace("`", "``") + "`" if set(text) & set(special) else text


def _unquoted(text: str) -> str:
    part = _PART.fullmatch(text)
    return part["quoted"].replace("``", "`") if part and part["quoted"] else text


def _match(pattern: str, schema: str, table: str) -> bool:
    wanted_schema, wanted_table = pattern_parts(pattern.lower())
    return fnmatch.fnmatchcase(schema, wanted_schema) and fnmatch.fnmatchcase(table, wanted_table)
