"""What a binlog source tells of the lives of tables, compared with the server itself.

A ``Follower`` reads the log of a real server from a place on and keeps what it is told: the rows of each table by id, its versions and
doubts. ``check`` compares every table of the server that nobody doubts with what was told. A follower can end and another one go on with
what a journal would have kept. Runs in tests.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from penstock.model.batch import BatchKind
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, TypeKind
from penstock.source.mysql.log_reader import LogReaderSettings
from penstock.source.mysql.upstream import MySqlUpstream
from penstock.source.mysql.wire.framing import PIECE_BYTES
from penstock.source.single_log import LogPosition, LogStep, TableDoubt
from testing.servers.waiting import wait_until

Row = dict[int, Any]
"""A row by column id."""


class Told:
    """What a log told so far; what a journal and a store would hold of it."""

    def __init__(self) -> None:
        self.schemas: list[TableSchema] = []
        self.position: LogPosition | None = None
        self.marks: list[LogPosition] = []
        self.rows: dict[int, dict[bytes, Row]] = {}
        self.doubts: list[TableDoubt] = []
        self.queries: list[str] = []
        self.rows_ts: list[tuple[int, int, bytes]] = []

    def take(self, step: LogStep) -> None:
        """Take over a step."""
        self.schemas += [*step.schemas, *(t for ddl in step.ddls for t in ddl.tables)]
        for ddl in step.ddls:
            self.queries.append(ddl.query)
            for number in ddl.dropped_table_ids:
                self.rows.pop(number, None)
        records = [(c.header.table_id, c.header.kind, r) for c in step.changes for r in c.records.to_pylist()]
        for table_id, kind, record in sorted(records, key=lambda r: (r[2]["_ts"], r[1] is BatchKind.DATA)):
            self._change(table_id, kind, record)
        self.doubts += [d for d in step.doubts if d not in self.doubts]
        if step.position is not None:
            self.position = step.position
            self.marks += [step.position] if step.mark else []

    def _change(self, table_id: int, kind: BatchKind, record: dict[str, Any]) -> None:
        rows = self.rows.setdefault(table_id, {})
        self.rows_ts.append((record["_ts"], table_id, record["_key"]))
        if kind is BatchKind.DATA:
            rows[record["_key"]] = {int(name[1:]): value for name, value in record.items() if not name.startswith("_")}
        else:
            rows.pop(record["_key"], None)

    def snapshot(self, upstream: MySqlUpstream) -> None:
        """Take over the rows that are there now, as the log would have told them."""
        for table in upstream.list_tables():
            for batch in upstream.read_now(Span(table.table_id)):
                for record in batch.records.to_pylist():
                    self._change(table.table_id, BatchKind.DATA, record)

    @property
    def doubted(self) -> set[str]:
        """Return the names of tables that were doubted, as they were called then."""
        return {d.table for d in self.doubts}


class Follower:
    """Reads the log of a server in a thread of its own, as one process does."""

    def __init__(self, uri: str, told: Told, start: LogPosition | None = None, piece_bytes: int = PIECE_BYTES) -> None:
        self.told = told
        self.upstream = MySqlUpstream(uri, LogReaderSettings(mark_interval_s=0.1, piece_bytes=piece_bytes))
        self.upstream.adopt_schemas(told.schemas)
        if start is None:
            start = self.upstream.first_position()
            told.schemas += self.upstream.list_tables()
            told.position = start
        self._start = start
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> Follower:
        """Begin to read."""
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            marks = [m for m in self.told.marks if m.ts > self._start.ts]
            for step in self.upstream.read_log(self._start, marks, lambda _: True, self._stop):
                self.told.take(step)
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._failed.append(error)

    def settle(self) -> None:
        """Wait until everything that the log holds now was read."""
        end = self.upstream.log_end()

        def done() -> bool:
            if self._failed:
                raise self._failed[0]
            return self.told.position is not None and self.upstream.reached(self.told.position.text, end)

        wait_until(done, "the log is not read to its end")

    def close(self) -> None:
        """End as a process does."""
        self._stop.set()
        self._thread.join()
        self.upstream.close()

    def check(self, schemas: Sequence[str]) -> dict[str, int]:
        """Compare the tables of some databases with the server; return how many rows of each are equal. Doubted ones are left out."""
        live = {t.full_name: t for t in self.upstream.list_tables() if t.schema in schemas}
        shown = MySqlUpstream(f"mysql://root@{self.upstream.address.split('@')[-1].removeprefix('mysql://')}")
        found = {t.full_name: t for t in shown.list_tables() if t.schema in schemas}
        assert sorted(live) == sorted(found), (sorted(live), sorted(found))
        doubted = {d.table_id for d in self.told.doubts}
        equal = {}
        for name, table in live.items():
            if table.table_id in doubted:
                continue
            assert [c.name for c in table.columns] == [c.name for c in found[name].columns], name
            assert [_kind(c) for c in table.columns] == [_kind(c) for c in found[name].columns], name
            rows = [r for b in shown.read_now(Span(found[name].table_id)) for r in b.records.to_pylist()]
            expected = sorted(repr([r[c.field_name] for c in found[name].columns]) for r in rows)
            got = sorted(repr([_value(row, c) for c in table.columns]) for row in self.told.rows.get(table.table_id, {}).values())
            assert got == expected, (name, got[:5], expected[:5])
            equal[table.table] = len(got)
        shown.close()
        return equal


def _kind(column: Column) -> Any:
    """Return what must be the same of a column's type; a display width is nobody's business."""
    kind = column.type
    # MariaDB has no JSON of its own.
    name = TypeKind.LONGTEXT if kind.kind is TypeKind.JSON else kind.kind
    return name, kind.unsigned, kind.elems, kind.scale or 0, None if kind.kind in INTEGER_KINDS else kind.length


def _value(row: Row, column: Column) -> Any:  # noqa: PLR0911 - one per kind
    if column.id in row:
        return row[column.id]
    text = column.initial_default
    if text is None:
        return None
    assert not isinstance(text, msgspec.UnsetType), column
    kind = column.type.kind
    if kind in INTEGER_KINDS or kind is TypeKind.YEAR:
        return int(text)
    if kind is TypeKind.ENUM:
        return column.type.elems.index(text) + 1
    if kind is TypeKind.SET:
        return sum(1 << column.type.elems.index(e) for e in text.split(",") if e)
    if kind in BINARY_KINDS:
        return text.encode()
    if kind is TypeKind.BIT:
        return int(text.strip("b'"), 2)
    if kind is TypeKind.DECIMAL:
        return f"{Decimal(text):.{column.type.scale or 0}f}"
    return float(text) if kind in {TypeKind.FLOAT, TypeKind.DOUBLE} else text
