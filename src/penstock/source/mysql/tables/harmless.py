"""Statements in the log that change no rows, by a list of what is known to change none: whatever else stands there as text is a doubt.

Runs in the log service, in the thread that reads the log.
"""

from __future__ import annotations

from collections.abc import Sequence

_VERBS = frozenset(
    {"ANALYZE", "BACKUP", "BEGIN", "CHANGE", "CHECK", "COMMIT", "FLUSH", "GRANT", "INSTALL", "KILL", "LOCK", "OPTIMIZE", "PURGE", "RELEASE"}
    | {"RESET", "REVOKE", "ROLLBACK", "SAVEPOINT", "SET", "SHOW", "SHUTDOWN", "START", "STOP", "UNINSTALL", "UNLOCK", "USE", "XA"}
)
_MAKERS = frozenset({"CREATE", "DROP", "ALTER", "RENAME"})
_NOUNS = frozenset(
    {"DATABASE", "EVENT", "FUNCTION", "INSTANCE", "LIBRARY", "LOGFILE", "PACKAGE", "PROCEDURE", "RESOURCE", "ROLE", "SCHEMA", "SEQUENCE"}
    | {"SERVER", "TABLESPACE", "TEMPORARY", "TRIGGER", "USER", "VIEW"}
)
_TABLE_NOUNS = frozenset({"TABLE", "TABLES", "INDEX"})


def plain_words(words: Sequence[str]) -> list[str]:
    """Return the words of a statement without the settings that MariaDB lets stand before it."""
    upper = [w.upper() for w in words]
    if upper[:2] == ["SET", "STATEMENT"] and "FOR" in upper:
        return list(words[upper.index("FOR") + 1 :])
    return list(words)


def is_harmless(words: Sequence[str]) -> bool:
    """Return whether a statement, which is no DDL of a table, leaves every row of every table as it is."""
    upper = [w.upper() for w in words if w != ";"]
    if not upper:
        return True
    if upper[0] not in _MAKERS:
        return upper[0] in _VERBS
    # CREATE OR REPLACE DEFINER = x SQL SECURITY y VIEW ...
    noun = next((w for w in upper[1:] if w in _NOUNS or w in _TABLE_NOUNS), "")
    return noun in _NOUNS
