"""Partitions: what DDLs say about them, and which physical table each of them is.

A partitioned table is several physical tables of one name, each with an id of its own, which is also its ``partition_id``; rows are
written to the physical table that the writer chooses. A DDL that touches partitions gives all of them a new version, so that rows from
before it and from after it lie in different directories of a target. Runs in the data server.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

from penstock.model.errors import PenstockError

_IDENTIFIER = r"(?:`(?:[^`]|``)+`|[^\s`.,;()]+)"
_NAME = rf"({_IDENTIFIER})\s*\.\s*({_IDENTIFIER})"
_FLAGS = re.IGNORECASE | re.DOTALL
_CLAUSE = re.compile(r"\)\s*(PARTITION\s+BY\s+(RANGE|LIST|HASH|KEY)\b.*)$", _FLAGS)
_DEFINED = re.compile(rf"\bPARTITION\s+({_IDENTIFIER})\s+VALUES\b", _FLAGS)
_COUNTED = re.compile(r"\bPARTITIONS\s+(\d+)", _FLAGS)
_ALTER = re.compile(rf"^\s*ALTER\s+TABLE\s+{_NAME}\s+(ADD|DROP|TRUNCATE|REORGANIZE|EXCHANGE)\s+PARTITION\s*(.*?)\s*;?\s*$", _FLAGS)
_INTO = re.compile(r"^(.*?)\s+INTO\s*\((.*)\)$", _FLAGS)
_WITH = re.compile(rf"^({_IDENTIFIER})\s+WITH\s+TABLE\s+{_NAME}", _FLAGS)
COUNT_MAX = 1024


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
    other: tuple[str, str] | None = None


def take_clause(query: str) -> tuple[str, tuple[str, ...]]:
    """Return a CREATE TABLE without its partition clause, and the names of its partitions; none for an ordinary table."""
    clause = _CLAUSE.search(query)
    if clause is None:
        return query, ()
    names = tuple(_unquoted(name) for name in _DEFINED.findall(clause.group(1)))
    counted = _COUNTED.search(clause.group(1))
    if not names and counted is not None:
        names = tuple(f"p{at}" for at in range(int(counted.group(1))))
    _check_names(names)
    return query[: clause.start() + 1], names


def parse_partition_ddl(query: str) -> PartitionDdl | None:
    """Return what an ALTER TABLE says about partitions, or None where it is about something else."""
    found = _ALTER.match(query)
    if found is None:
        return None
    schema, table, verb, rest = found.groups()
    change = PartitionChange(verb.upper())
    where = (change, _unquoted(schema), _unquoted(table))
    if change is PartitionChange.ADD:
        made = tuple(_unquoted(name) for name in _DEFINED.findall(rest))
        _check_names(made)
        return PartitionDdl(*where, made=made)
    if change is PartitionChange.REORGANIZE:
        into = _INTO.match(rest)
        made = tuple(_unquoted(name) for name in _DEFINED.findall(into.group(2))) if into else ()
        if into is None or len(made) != 1:
            raise PenstockError("UPSTREAM_REFUSED", "the embedded data server reorganizes partitions into one")
        return PartitionDdl(*where, names=_listed(into.group(1)), made=made)
    if change is PartitionChange.EXCHANGE:
        other = _WITH.match(rest)
        if other is None:
            raise PenstockError("UPSTREAM_REFUSED", "EXCHANGE PARTITION expects <partition> WITH TABLE <database>.<table>")
        return PartitionDdl(*where, names=(_unquoted(other.group(1)),), other=(_unquoted(other.group(2)), _unquoted(other.group(3))))
    return PartitionDdl(*where, names=_listed(rest))


def check_partitions(partitions: dict[str, int], ddl: PartitionDdl) -> None:
    """Raise where a DDL names partitions that are not there, makes one that is, or leaves none."""
    unknown = [name for name in ddl.names if name not in partitions]
    if unknown or not partitions:
        raise PenstockError("UPSTREAM_REFUSED", f"{ddl.schema}.{ddl.table} has no partition {', '.join(unknown) or 'at all'}")
    kept = [name for name in partitions if name not in ddl.names]
    twice = [name for name in ddl.made if name in kept]
    if twice or (ddl.change is PartitionChange.DROP and not kept):
        raise PenstockError("UPSTREAM_REFUSED", f"{ddl.schema}.{ddl.table}: partition {', '.join(twice)} exists, or none would be left")


def _check_names(names: tuple[str, ...]) -> None:
    if not 1 <= len(names) <= COUNT_MAX or len(set(names)) != len(names):
        raise PenstockError("UPSTREAM_REFUSED", f"a table needs 1 to {COUNT_MAX} partitions with names of their own")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(_unquoted(part.strip()) for part in text.split(",") if part.strip())


def _unquoted(identifier: str) -> str:
    return identifier[1:-1].replace("``", "`") if identifier.startswith("`") else identifier
