"""Changes that the log holds as text instead of rows: which tables a statement that is no DDL may have changed.

Whatever is not known to change no row is a doubt about the tables that it names, or about all that it may mean where it names none or where
triggers and functions may carry it on. Runs in the log service, in the thread that reads the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.source.mysql.doubt_book import doubts_of
from penstock.source.mysql.tables.harmless import is_harmless
from penstock.source.mysql.tables.table_versions import TableVersions
from penstock.source.single_log import TableDoubt

_HINT = "Run SET GLOBAL binlog_format = 'ROW' and reconnect the writers."
_MADE_ELSEWHERE = frozenset({"TRIGGER", "FUNCTION"})


class TextChanges:
    """Judges statements. Not thread safe."""

    def __init__(self, tables: TableVersions, writes_elsewhere: Callable[[], bool]) -> None:
        """``writes_elsewhere`` tells whether a change may reach tables that its text does not name."""
        self._tables = tables
        self._writes_elsewhere = writes_elsewhere
        self._reach: bool | None = None
        """What it told last."""

    def doubts(self, words: Sequence[str], schema: str) -> list[TableDoubt]:
        """Doubt what a statement that is no DDL of a table may have changed."""
        if is_harmless(words):
            if _MADE_ELSEWHERE.intersection(w.upper() for w in words):
                self._reach = None
            return []
        if self._reach is None:
            self._reach = self._writes_elsewhere()
        reason = f"the log holds a change as text ({words[0].upper()}): binlog_format is not ROW"
        return doubts_of(self._tables.named(words, schema, self._reach), reason, "UPSTREAM_MISCONFIGURED", _HINT)
