"""The schema log: DDL events in commit order, and every table's versions.

It lives in memory and is made durable by the write-ahead log, which repeats it at the head of each segment. Adding what is already
there changes nothing. Where objects are on shared storage, a copy is there (``objects/shared_records.py``). Runs in the log service.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Sequence

import msgspec

from penstock.model.ddl import DdlEvent
from penstock.model.decoding import decoded
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.table_pattern import TablePatterns
from penstock.store.log.wal_segment import RecordKind, WalRecord


class SchemaLog:
    """DDLs and schema versions. Thread safe."""

    def __init__(self) -> None:
        self._ddls: list[DdlEvent] = []
        self._histories: dict[int, SchemaHistory] = {}
        self._lock = threading.Lock()
        self.changes = 0
        """Grows with whatever is added."""

    def put(self, schemas: Iterable[TableSchema]) -> tuple[TableSchema, ...]:
        """Add table versions; return those that are new."""
        with self._lock:
            return tuple(s for s in schemas if self._add(s))

    def put_ddl(self, ddl: DdlEvent) -> bool:
        """Add a DDL and the versions that it made; return False if it is already there."""
        with self._lock:
            for table in ddl.tables:
                self._add(table)
            if self._holds(ddl):
                return False
            bisect.insort(self._ddls, ddl, key=lambda d: d.commit_ts)
            self.changes += 1
            return True

    def holds(self, ddl: DdlEvent) -> bool:
        """Return whether the DDL is in the log."""
        with self._lock:
            return self._holds(ddl)

    def ddls(self, table_ids: Iterable[int], from_ts: int, to_ts: int, patterns: TablePatterns | None = None) -> tuple[DdlEvent, ...]:
        """Return the DDLs in ``(from_ts, to_ts]`` of the tables, or of tables that a pattern matches, oldest first."""
        wanted = set(table_ids)
        with self._lock:
            start = bisect.bisect_right(self._ddls, from_ts, key=lambda d: d.commit_ts)
            end = bisect.bisect_right(self._ddls, to_ts, key=lambda d: d.commit_ts)
            between = self._ddls[start:end]
        found = []
        for ddl in between:
            if ddl.table_ids & wanted or (patterns is not None and patterns.concern(ddl)):
                found.append(ddl)
                # A drop names no table that a pattern could match: it belongs to those whose other DDLs do.
                wanted |= ddl.table_ids
        return tuple(found)

    def versions(self, table_id: int) -> tuple[TableSchema, ...]:
        """Return a table's versions, oldest first; empty for a table that is not known."""
        with self._lock:
            history = self._histories.get(table_id)
            return history.versions() if history else ()

    def records(self) -> Sequence[WalRecord]:
        """Return the whole log as records for the head of a segment."""
        schemas, ddls = self.contents()
        return [*schema_records(schemas), *(ddl_record(d) for d in ddls)]

    def contents(self) -> tuple[tuple[TableSchema, ...], tuple[DdlEvent, ...]]:
        """Return all table versions and all DDLs."""
        with self._lock:
            return tuple(v for h in self._histories.values() for v in h.versions()), tuple(self._ddls)

    def _add(self, schema: TableSchema) -> bool:
        added = self._histories.setdefault(schema.table_id, SchemaHistory(schema.table_id)).add(schema)
        self.changes += added
        return added

    def _holds(self, ddl: DdlEvent) -> bool:
        start = bisect.bisect_left(self._ddls, ddl.commit_ts, key=lambda d: d.commit_ts)
        end = bisect.bisect_right(self._ddls, ddl.commit_ts, key=lambda d: d.commit_ts)
        return any((d.type, d.schema, d.query) == (ddl.type, ddl.schema, ddl.query) for d in self._ddls[start:end])


def schema_records(schemas: Sequence[TableSchema]) -> list[WalRecord]:
    """Return the record of some table versions; none for none."""
    return [WalRecord.of(RecordKind.SCHEMAS, 0, msgspec.json.encode(schemas))] if schemas else []


def ddl_record(ddl: DdlEvent) -> WalRecord:
    """Return the record of a DDL."""
    return WalRecord.of(RecordKind.DDL, 0, ddl.to_json())


def read_schemas(payload: bytes) -> tuple[TableSchema, ...]:
    """Read the payload of a SCHEMAS record."""
    return decoded(payload, tuple[TableSchema, ...])
