"""Patterns of table names, and which DDLs they concern.

A pattern is ``database.table``, each part with ``*``, ``?`` and ``[...]``, and with ``!`` before it for exceptions; of several that match
a name the last counts, as among columns. The parts are compared apart, so that a star does not run over the dot between them, and without
regard to case, as MySQL compares names. Runs anywhere.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection

import msgspec

from penstock.model.ddl import DdlEvent, DdlType

PATTERNS_MAX = 1_000
_PATTERN_CHARS_MAX, _WILDCARDS_MAX = 400, 32
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
        wanted = (pattern.lower().partition(".")[0] for pattern in self.patterns if not pattern.startswith("!"))
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


def match_name(pattern: str, full_name: str) -> bool:
    """Return whether a pattern matches ``database.table``."""
    schema, _, table = full_name.lower().partition(".")
    return _match(pattern, schema, table)


def _match(pattern: str, schema: str, table: str) -> bool:
    wanted_schema, _, wanted_table = pattern.lower().partition(".")
    return fnmatch.fnmatchcase(schema, wanted_schema) and fnmatch.fnmatchcase(table, wanted_table)
