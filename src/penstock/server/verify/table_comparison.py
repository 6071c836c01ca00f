"""One table of a target against the upstream's, row by row, in bounded memory.

Both sides are written to disk as they come, the target's as changes in order, the upstream's as rows, and compared by
``StateDifference``: what would turn the one into the other is what differs. Tables without a key are compared as bags of rows. Sides can
be compared again without rows that moved meanwhile. Virtual columns are computed from others, and no row carries them: they are not
compared. Values are not shown, only counts and the first keys. Runs in the server, in the CLI
or in tests.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import COMMIT_TS, KEY, OP, Op
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.readback.lineage import Lineage
from penstock.readback.reader import StorageReader
from penstock.readback.replay import table_changes
from penstock.readback.state_difference import BUCKET_BYTES, RowSpool, StateDifference, buckets_for

TELL_ROWS = 1_000_000
TABLE_ERRORS = frozenset({"UPSTREAM_REFUSED", "UPSTREAM_CHANGING", "TYPE_UNSUPPORTED", "DECODE_FAILED", "SCHEMA_UNKNOWN", "FILE_MALFORMED"})
"""What keeps one table from being compared and says nothing about the others."""
_KEYS_SHOWN_MAX = 5
Tell = Callable[[str], None]


class TableVerdict(msgspec.Struct, frozen=True):
    """How one table compares: rows that are identical, and what differs."""

    name: str
    rows: int
    missing: int = 0
    unexpected: int = 0
    different: int = 0
    sample_keys: tuple[str, ...] = ()
    unchecked: str = ""
    """Why nothing is known about the table; empty where it was compared."""

    @property
    def identical(self) -> bool:
        """Return whether every row of both sides was seen and is the same."""
        return not self.differs and not self.unchecked

    @property
    def differs(self) -> bool:
        """Return whether a row of one side is not on the other."""
        return bool(self.missing or self.unexpected or self.different)

    def __str__(self) -> str:
        if self.unchecked:
            return f"{self.name}: could not be checked: {self.unchecked}"
        if self.identical:
            return f"{self.name}: {self.rows} rows identical"
        keys = f", first keys: {', '.join(self.sample_keys)}" if self.sample_keys else ""
        return f"{self.name}: {self.missing} rows missing, {self.unexpected} unexpected, {self.different} different{keys}"


def compared(name: str, compare: Callable[[], TableVerdict]) -> TableVerdict:
    """Return how a table compares, or why it cannot be compared where that is a matter of this table alone."""
    try:
        return compare()
    except PenstockError as error:
        if error.code not in TABLE_ERRORS:
            raise
        return TableVerdict(name, 0, unchecked=f"[{error.code}] {error.detail}. {error.hint}")


class TableComparison:
    """The two sides of one table. Give both, then ask for verdicts; ``close`` removes what lies on disk."""

    def __init__(self, table: TableSchema, tell: Tell = lambda _: None, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._columns = [c.name for c in table.columns]
        self._table = table = msgspec.structs.replace(table, columns=tuple(c for c in table.columns if c.generated != "VIRTUAL"))
        self._tell = tell
        self._bucket_bytes = bucket_bytes
        self._keys = [c.field_name for c in table.key_columns]
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-verify-")
        directory = Path(self._folder.name)
        rows = table.row_schema()
        self._found = RowSpool(directory / "found.arrow", pa.schema([pa.field(OP, pa.uint8(), nullable=False), *rows]))
        self._expected = RowSpool(directory / "expected.arrow", pa.schema([pa.field(KEY, pa.binary(), nullable=False), *rows]))

    def close(self) -> None:
        """Remove what lies on disk."""
        self._folder.cleanup()

    @property
    def key_names(self) -> list[str]:
        """Return the columns that name a row; none where rows are counted."""
        return [c.name for c in self._table.columns if c.field_name in self._keys]

    def read_target(self, reader: StorageReader, life: Lineage) -> None:
        """Take in the target's side: the changes of the table's whole life."""
        newest = life.newest
        names, wanted = {c.name: c.field_name for c in newest.columns}, self._columns
        if sorted(names) != sorted(wanted):
            raise PenstockError("VERIFY_MISMATCH", f"{self._table.full_name} has columns {list(names)} in the target, {wanted} upstream")
        ids = {c.field_name: c.name for c in newest.columns}
        key = {ids[field] for field in life.row_key}
        self._keys = [c.field_name for c in self._table.columns if c.name in key]
        columns = [pl.col(names[c.name]).alias(c.field_name) for c in self._table.columns]
        self.add_changes(frame.select(OP, *columns) for frame in table_changes(reader, life))

    def add_changes(self, frames: Iterable[pl.DataFrame]) -> None:
        """Take in changes in order: ``_op`` and the table's columns, named by id."""
        names = self._found.schema.names
        self._write(self._found, (frame.select(names).to_arrow() for frame in frames), "changes of the target")

    def add_rows(self, batches: Iterable[pa.RecordBatch], start_ts: int = TS_ZERO) -> None:
        """Take in the upstream's side: change batches; of those, only what was written after a start ts."""
        fields = self._expected.schema.names
        tables = (pa.Table.from_batches([b]) for b in batches)
        after = (t if start_ts == TS_ZERO else t.filter(pc.field(COMMIT_TS) > pa.scalar(start_ts, pa.uint64())) for t in tables)
        self._write(self._expected, (t.select(fields) for t in after), "rows of the upstream")

    def verdict(self, moved: pl.DataFrame | None = None) -> TableVerdict:
        """Compare, without the rows of some keys, which stand in columns by name."""
        self._found.finish()
        self._expected.finish()
        chosen = None if moved is None else moved.rename({c.name: c.field_name for c in self._table.columns if c.name in moved.columns})
        buckets = buckets_for(self._found.nbytes + self._expected.nbytes, self._bucket_bytes)
        counts, samples = dict.fromkeys(Op, 0), {op: list[str]() for op in Op}
        with tempfile.TemporaryDirectory(dir=self._folder.name) as directory:
            difference = StateDifference(self._table, self._table, self._keys, Path(directory), buckets)
            difference.add_old(self._without(self._found.read(), chosen))
            counted = _Counted(self._without(self._expected.read(), chosen))
            difference.add_new(counted)
            shown = self._keys or self._table.row_schema().names
            for batch in difference.changes(TS_ZERO):
                frame = pl.DataFrame(batch.select([OP, *shown]))
                for op in Op:
                    of_op = frame.filter(pl.col(OP) == int(op))
                    counts[op] += of_op.height
                    if len(samples[op]) < _KEYS_SHOWN_MAX:
                        samples[op] += [str(row) for row in of_op.select(shown).head(_KEYS_SHOWN_MAX).rows()]
        sample = [key for op in (Op.INSERT, Op.DELETE, Op.UPDATE) for key in samples[op][:_KEYS_SHOWN_MAX]]
        same = counted.rows - counts[Op.INSERT] - counts[Op.UPDATE]
        return TableVerdict(
            self._table.full_name, same, counts[Op.INSERT], counts[Op.DELETE], counts[Op.UPDATE], tuple(sample[:_KEYS_SHOWN_MAX])
        )

    def _write(self, spool: RowSpool, tables: Iterable[pa.Table], what: str) -> None:
        told = 0
        for table in tables:
            spool.add(table.cast(spool.schema))
            if spool.rows - told >= TELL_ROWS:
                told = spool.rows
                self._tell(f"{self._table.full_name}: {told} {what} read")

    def _without(self, batches: Iterable[pa.RecordBatch], moved: pl.DataFrame | None) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if moved is None:
                yield batch
                continue
            frame = pl.DataFrame(batch)
            chosen = moved.select(pl.col(name).cast(frame.schema[name]) for name in moved.columns)
            kept = frame.join(chosen, on=chosen.columns, how="anti", nulls_equal=True, maintain_order="left")
            yield from kept.to_arrow().cast(batch.schema).to_batches()


class _Counted:
    """Batches that pass, and how many rows they had."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch
