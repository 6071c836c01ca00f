"""Random histories through the storage sink, in windows, some repeated, with splits, DDLs and date changes, read back against an oracle."""

import itertools
import random
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.reader import StorageReader
from penstock.readback.replay import replay_table
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.publisher import SchemaVersions
from penstock.sink.storage.sink import StorageSink
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

    def __post_init__(self) -> None:
        self.table = TableSchema(7, "s", "t", self.ts, tuple(self.columns))
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
        self.maintainer.write_block_event(DdlEvent(self.ts, kind, query, "s", (self.table,)))

    def add_column(self, default: int | None) -> None:
        added = max(c.id for c in self.columns) + 1
        self.columns.append(Column(added, f"n{added}", ColumnType(TypeKind.INT), default=None if default is None else str(default)))
        for row in self.rows.values():
            row[added] = default
        self.alter(f"ALTER TABLE t ADD n{added} INT", DdlType.ADD_COLUMN)

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
        match rng.choices(["change", "delete", "window", "add column", "rename column", "day"], [60, 12, 20, 3, 3, 2])[0]:
            case "change":
                history.change(rng.randrange(KEYS), rng.choice(TEXTS))
            case "delete":
                history.delete(rng.randrange(KEYS))
            case "add column":
                history.add_column(rng.choice([None, 7]))
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
