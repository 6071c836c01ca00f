"""What DDLs say about partitions: those that a CREATE TABLE makes, and what an ALTER TABLE does to some of them.

Reads words only, so that names and comments may hold anything. A text that is about partitions and not understood is refused. Runs in the
data server.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from penstock.ddl.tokens import Reader, TableName, tokens, unquoted, words_of
from penstock.model.errors import PenstockError

COUNT_MAX = 1024
_METHODS = frozenset({"RANGE", "LIST", "HASH", "KEY"})


class PartitionChange(Enum):
    """What an ALTER TABLE does to partitions."""

    ADD = "ADD"
    DROP = "DROP"
    TRUNCATE = "TRUNCATE"
    REORGANIZE = "REORGANIZE"
    EXCHANGE = "EXCHANGE"


class PartitionDdl(msgspec.Struct, frozen=True):
    """An ALTER TABLE of partitions: those that it names, those that it makes, and the table that it exchanges one with."""

    change: PartitionChange
    schema: str
    table: str
    names: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    other: TableName | None = None


def take_clause(query: str) -> tuple[str, tuple[str, ...]]:
    """Return a CREATE TABLE without its partition clause, and the names of its partitions; none for an ordinary table."""
    words = words_of(query)
    upper = [w.text.upper() for w in words]
    places = [at for at in range(len(upper) - 2) if upper[at : at + 2] == ["PARTITION", "BY"] and upper[at + 2] in _METHODS]
    if not places or upper[:1] != ["CREATE"]:
        return query, ()
    clause = [w.text for w in words[places[0] :]]
    names = _defined(clause)
    counts = [clause[at + 1] for at, word in enumerate(clause[:-1]) if word.upper() == "PARTITIONS" and clause[at + 1].isdigit()]
    if not names and counts:
        names = tuple(f"p{at}" for at in range(int(counts[0])))
    _check_names(names)
    return query[: words[places[0]].start].rstrip(), names


def parse_partition_ddl(query: str) -> PartitionDdl | None:
    """Return what an ALTER TABLE says about partitions, or None where it is about something else."""
    reader = Reader([w for w in tokens(query) if w != ";"], "")
    if not reader.skip("ALTER", "TABLE"):
        return None
    schema, table = reader.table()
    verb = reader.peek()
    if verb not in PartitionChange.__members__ or reader.peek(1) != "PARTITION":
        return None
    reader.at += 2
    change = PartitionChange(verb)
    where = (change, schema, table)
    if change is PartitionChange.ADD:
        made = _defined(reader.words[reader.at :])
        _check_names(made)
        return PartitionDdl(*where, made=made)
    names = _listed(reader)
    if change is PartitionChange.REORGANIZE:
        made = _defined(reader.words[reader.at :]) if reader.skip("INTO", "(") else ()
        if len(made) != 1:
            raise PenstockError("UPSTREAM_REFUSED", "the embedded data server reorganizes partitions into one")
        return PartitionDdl(*where, names=names, made=made)
    if change is PartitionChange.EXCHANGE:
        other = reader.table() if reader.skip("WITH", "TABLE") else ("", "")
        if len(names) != 1 or not all(other):
            raise PenstockError("UPSTREAM_REFUSED", "EXCHANGE PARTITION expects <partition> WITH TABLE <database>.<table>")
        return PartitionDdl(*where, names=names, other=other)
    return PartitionDdl(*where, names=names)


def _defined(words: Sequence[str]) -> tuple[str, ...]:
    """Return the names of partitions that are defined by their values."""
    upper = [w.upper() for w in words]
    return tuple(unquoted(words[at + 1]) for at in range(len(words) - 2) if upper[at] == "PARTITION" and upper[at + 2] == "VALUES")


def _listed(reader: Reader) -> tuple[str, ...]:
    names = [reader.name()]
    while reader.skip(","):
        names.append(reader.name())
    return tuple(name for name in names if name)


def _check_names(names: tuple[str, ...]) -> None:
    if not 1 <= len(names) <= COUNT_MAX or len(set(names)) != len(names):
        raise PenstockError("UPSTREAM_REFUSED", f"a table needs 1 to {COUNT_MAX} partitions with names of their own")
