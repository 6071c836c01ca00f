"""Random histories through the storage sink, in windows, some repeated, with splits, DDLs and date changes, read back against an oracle.

The store's own state of the same changes is read as well: both must show every row as the oracle has it, whatever DDLs came after it.
"""

import itertools
import random
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import Column, SchemaHistory, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.reader import StorageReader
from penstock.readback.replay import replay_table
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.publisher import SchemaVersions
from penstock.sink.storage.sink import StorageSink
from penstock.store.changes.snapshot import SnapshotSteps, StateBatches
from penstock.target.settings import StorageSinkSettings, from_uri
from penstock.target.storage import ObjectTarget

T0 = compose_ts(1_700_000_000_000)
KEYS = 3
_names = itertools.count()

STEPS = 60
SEEDS = 10
QUERIES = (
    "",
    "file-size=1024",
    "date-separator=none&csv.quote=&csv.delimiter=%7C",
    "csv.output-old-value=true&file-size=1024",
    "output-column-id=true",
)
TEXTS = (None, "", "plain", 'quo"te', "back\\slash", "two\nlines", "a|b,c", "é😀")


RARE = ("add column", "replace column", "rename column", "default", "day")


class Added(NamedTuple):
    """A new column, and what the rows that are there show in it."""

    type: ColumnType
    default: str | None
    value: object
    told: str | msgspec.UnsetType = msgspec.UNSET
    """The initial default, where the source knows it."""


ADDED = (
    Added(ColumnType(TypeKind.INT), None, None),
    Added(ColumnType(TypeKind.INT), "5", 5),
    # Cannot be NULL, and has no default.
    Added(ColumnType(TypeKind.INT), None, 0),
    Added(ColumnType(TypeKind.DECIMAL, length=9, scale=3), "1.5", "1.500"),
    Added(ColumnType(TypeKind.DATETIME, scale=3), "CURRENT_TIMESTAMP(3)", None),
    Added(ColumnType(TypeKind.DATETIME, scale=3), "CURRENT_TIMESTAMP(3)", "2026-11-15 00:00:00.500", "2026-11-15 00:00:00.5"),
    Added(ColumnType(TypeKind.BIT, length=4), "b'101'", 5),
    Added(ColumnType(TypeKind.ENUM, elems=("a", "B")), "b", 2),
    Added(ColumnType(TypeKind.VARBINARY, length=9), "\\x00ff", b"\x00\xff"),
)


@dataclass
class History:
    """The upstream as the oracle sees it, and what is on its way to the target."""

    target: ObjectTarget
    settings: StorageSinkSettings
    ts: int = T0
    checkpoint_ts: int = T0
    spans: int = 1
    columns: list[Column] = field(
        default_factory=lambda: [
            Column(1, "id", ColumnType(TypeKind.INT), False, True),
            Column(2, "text0", ColumnType(TypeKind.VARCHAR, length=9)),
        ]
    )
    rows: dict[int, dict[int, object]] = field(default_factory=dict)
    pending: list[tuple[TableSchema, int, Op, dict[int, object]]] = field(default_factory=list)
    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    renames: int = 0
    next_id: int = 3
    versions: list[TableSchema] = field(default_factory=list)
    kept: list[tuple[TableSchema, int, Op, dict[int, object]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = TableSchema(7, "s", "t", self.ts, tuple(self.columns))
        self.versions.append(self.table)
        self.maintainer = StorageMaintainer(self.target, self.settings)
        SchemaVersions(self.target, output_column_id=self.settings.output_column_id).ensure(self.table)

    def change(self, key: int, text: str | None) -> None:
        self.ts += 1
        old = self.rows.get(key)
        # Every change writes another value, so that an older one is never taken for a newer one unseen.
        new: dict[int, object] = {c.id: None for c in self.columns} | {1: key, 2: None if text is None else f"{text}{self.ts - T0}"}
        if old is not None and self.settings.needs_old_values:
            self.pending.append((self.table, self.ts, Op.BEFORE, old))
        self.pending.append((self.table, self.ts, Op.INSERT if old is None else Op.UPDATE, new))
        self.rows[key] = new

    def delete(self, key: int) -> None:
        if key in self.rows:
            self.ts += 1
            self.pending.append((self.table, self.ts, Op.DELETE, self.rows.pop(key)))

    def alter(self, query: str, kind: DdlType) -> None:
        self.window(self.spans, repeat=False)
        self.ts += 1
        self.table = TableSchema(7, "s", "t", self.ts, tuple(self.columns))
        self.versions.append(self.table)
        self.maintainer.write_block_event(DdlEvent(self.ts, kind, query, "s", (self.table,)))

    def _new_column(self, name: str, added: Added) -> Column:
        column = Column(self.next_id, name, added.type, added.default is not None or added.value is None, default=added.default)
        column = msgspec.structs.replace(column, initial_default=added.told)
        self.next_id += 1
        self.rows = {key: row | {column.id: added.value} for key, row in self.rows.items()}
        return column

    def add_column(self, added: Added) -> None:
        column = self._new_column(f"n{self.next_id}", added)
        self.columns.append(column)
        self.alter(f"ALTER TABLE t ADD {column.name} {added.type.kind}", DdlType.ADD_COLUMN)

    def replace_column(self, added: Added) -> None:
        """Drop the last column and add another under its name, in one statement."""
        if len(self.columns) > 2:
            name = self.columns.pop().name
            self.columns.append(self._new_column(name, added))
            self.alter(f"ALTER TABLE t DROP COLUMN `{name}`, ADD `{name}` {added.type.kind}", DdlType.MULTI_SCHEMA_CHANGE)

    def set_default(self, default: str | None) -> None:
        """Give the last column another default, which is for rows to come."""
        last = self.columns[-1]
        if last.id > 2 and last.type.kind is TypeKind.INT:
            self.columns[-1] = msgspec.structs.replace(last, default=default)
            self.alter(f"ALTER TABLE t ALTER COLUMN {last.name} SET DEFAULT {default}", DdlType.SET_DEFAULT)

    def rename_column(self) -> None:
        self.renames += 1
        old = self.columns[1]
        self.columns[1] = Column(2, f"text{self.renames}", old.type)
        self.alter(f"ALTER TABLE t RENAME COLUMN `{old.name}` TO `text{self.renames}`", DdlType.MODIFY_COLUMN)

    def window(self, spans: int, *, repeat: bool) -> None:
        """Deliver what is pending, as one attempt or as two of which the first is not committed."""
        self.spans = spans
        attempts = [self._attempt() for _ in range(2 if repeat else 1)]
        assert all(a == attempts[0] for a in attempts)
        self.positions.update(attempts[-1])
        self.kept += self.pending
        self.pending.clear()
        self.checkpoint_ts = self.ts
        self.maintainer.publish_checkpoint(self.ts)

    def _attempt(self) -> dict[str, dict[str, int]]:
        sink = StorageSink(self.target, self.settings)
        found = {}
        for span in range(self.spans):
            dispatcher = DispatcherId(7, span, self.spans)
            position = self.positions.get(str(dispatcher), {})
            sink.open_dispatcher(DispatcherWork(dispatcher, self.table, self.checkpoint_ts, self.ts, position))
            for table, ts, op, row in self.pending:
                if row[1] % self.spans == span:  # type: ignore[operator]
                    values = {"_ts": ts, "_op": int(op), **{c.field_name: row.get(c.id) for c in table.columns}}
                    records = pa.RecordBatch.from_pylist([values], schema=table.batch_schema().remove(2))
                    sink.add_dml_event(DmlEvent(dispatcher, table, records))
            found[str(dispatcher)] = sink.close_dispatcher(dispatcher).position
        sink.close()
        return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories_come_back(seed: int) -> None:
    """Seeded rather than drawn: what goes wrong needs many windows into one directory, and a failure replays by its seed."""
    rng = random.Random(seed)
    uri, chosen = from_uri(f"memory://history-{next(_names)}/?{QUERIES[seed % len(QUERIES)]}")
    history = History(ObjectTarget.open(uri), chosen)
    for _ in range(STEPS):
        match rng.choices(["change", "delete", "window", *RARE], [60, 12, 20, *(2 for _ in RARE)])[0]:
            case "change":
                history.change(rng.randrange(KEYS), rng.choice(TEXTS))
            case "delete":
                history.delete(rng.randrange(KEYS))
            case "add column":
                history.add_column(rng.choice(ADDED))
            case "replace column":
                history.replace_column(rng.choice(ADDED))
            case "default":
                history.set_default(rng.choice([None, "7", "9"]))
            case "rename column":
                history.rename_column()
            case "day":
                history.ts += 86_400_000 << 18
            case _:
                history.window(rng.randint(1, 3), repeat=rng.random() < 0.3)
                check(history)
    history.window(history.spans, repeat=True)
    check(history)


def check(history: History) -> None:
    reader = StorageReader(history.target, history.settings)
    found = replay_table(reader, "s", "t").sort("id").rows(named=True)
    expected = [{c.name: history.rows[key].get(c.id) for c in history.columns} for key in sorted(history.rows)]
    assert found == expected
    assert stored(history) == expected


def stored(history: History) -> list[dict[str, object]]:
    """Return the rows as the event store shows them."""
    sides: dict[BatchKind, list[ChangeBatch]] = {kind: [] for kind in BatchKind}
    for table, ts, op, row in history.kept:
        kind = BatchKind.TOMBSTONE if op in {Op.DELETE, Op.BEFORE} else BatchKind.DATA
        values = {"_ts": ts, "_op": int(op), "_key": bytes([row[1]]), **{c.field_name: row.get(c.id) for c in table.columns}}  # type: ignore[list-item]
        sides[kind].append(ChangeBatch.of(1, table, kind, pa.RecordBatch.from_pylist([values], schema=table.batch_schema())))
    state = StateBatches(tuple(sides[BatchKind.DATA]), tuple(sides[BatchKind.TOMBSTONE]), np.empty(0, np.int64))
    batches = SnapshotSteps(state, history.ts, 1).batches(SchemaHistory(7, history.versions), 100)
    names = {c.field_name: c.name for c in history.columns}
    return [{names[f]: value for f, value in row.items() if f in names} for b in batches for row in b.records.to_pylist()]
