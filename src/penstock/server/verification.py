"""Verification: replays a storage target and compares every row with the upstream as of the target's checkpoint.

Both sides are brought to one form, the canonical values of change batches in the newest version's column order, sorted by key,
and compared whole, in columns. A difference is reported by table, count and the first keys; values are not shown. Runs in the
server, in the CLI or in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import SchemaHistory, TableSchema
from penstock.sink.storage.reader import StorageReader
from penstock.sink.storage.replay import replay_table
from penstock.sink.storage.settings import from_uri
from penstock.sink.storage.target import TargetAddress
from penstock.source.contract import Upstream

_KEYS_SHOWN_MAX = 5


class TableVerdict(msgspec.Struct, frozen=True):
    """How one table compares: rows that are identical, and what differs."""

    name: str
    rows: int
    missing: int = 0
    unexpected: int = 0
    different: int = 0
    sample_keys: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        """Return whether every row of both sides is the same."""
        return not (self.missing or self.unexpected or self.different)

    def __str__(self) -> str:
        if self.identical:
            return f"{self.name}: {self.rows} rows identical"
        keys = f", first keys: {', '.join(self.sample_keys)}" if self.sample_keys else ""
        return f"{self.name}: {self.missing} rows missing, {self.unexpected} unexpected, {self.different} different{keys}"


class Verdict(msgspec.Struct, frozen=True):
    """The outcome over all tables, as of one checkpoint."""

    checkpoint_ts: int
    tables: tuple[TableVerdict, ...]

    @property
    def rows(self) -> int:
        """Return how many rows are identical, over all tables."""
        return sum(t.rows for t in self.tables)

    def summary(self) -> str:
        """Return the line that ends a successful verification."""
        return f"verified: {len(self.tables)} tables, {self.rows} rows identical"

    def check(self) -> None:
        """Raise ``VERIFY_MISMATCH`` unless every table is identical."""
        wrong = [str(t) for t in self.tables if not t.identical]
        if wrong:
            raise PenstockError("VERIFY_MISMATCH", "; ".join(wrong))


def open_reader(sink_uri: str, sink_options: Mapping[str, Any]) -> StorageReader:
    """Open a feed's target for reading."""
    target_uri, settings = from_uri(sink_uri, sink_options)
    return StorageReader(TargetAddress(target_uri).open(), settings)


def verify_target(
    reader: StorageReader, upstream: Upstream, table_ids: Sequence[int], on_table: Callable[[TableVerdict], None] = lambda _: None
) -> Verdict:
    """Compare every given table as of the checkpoint that the target publishes."""
    checkpoint_ts = reader.checkpoint_ts()
    if checkpoint_ts is None:
        raise PenstockError("VERIFY_MISMATCH", "the target has no checkpoint yet", "Wait until the feed has published `metadata`.")
    verdicts = []
    for table_id in table_ids:
        table = SchemaHistory(table_id, upstream.schema_history(table_id)).at(checkpoint_ts)
        verdicts.append(compare_states(table, replay_table(reader, table.schema, table.table), read_state(upstream, table, checkpoint_ts)))
        on_table(verdicts[-1])
    return Verdict(checkpoint_ts, tuple(verdicts))


def read_state(upstream: Upstream, table: TableSchema, ts: int) -> pl.DataFrame:
    """Return the upstream's rows as of a ts, columns by name."""
    names = {c.field_name: c.name for c in table.columns}
    frames = [pl.DataFrame(batch.records.select(list(names))) for batch in upstream.read_table(Span(table.table_id), ts)]
    empty = pl.DataFrame(table.row_schema().empty_table())
    return pl.concat([empty, *frames], how="vertical").rename(names)


def compare_states(table: TableSchema, found: pl.DataFrame, expected: pl.DataFrame) -> TableVerdict:
    """Compare two states of a table; a table without a primary key is compared as a bag of rows."""
    names = [c.name for c in table.columns]
    if sorted(found.columns) != sorted(names):
        raise PenstockError("VERIFY_MISMATCH", f"{table.full_name} has columns {found.columns} in the target, {names} upstream")
    keys = [c.name for c in table.key_columns] or names
    expected = expected.select(names).sort(keys)
    found = found.select(pl.col(name).cast(expected.schema[name]) for name in names).sort(keys)
    if found.equals(expected, null_equal=True):
        return TableVerdict(table.full_name, expected.height)
    missing = expected.join(found, on=keys, how="anti", nulls_equal=True)
    unexpected = found.join(expected, on=keys, how="anti", nulls_equal=True)
    both = expected.join(found, on=keys, how="inner", nulls_equal=True, suffix="\0found")
    others = [n for n in names if n not in keys]
    differs = pl.any_horizontal([pl.col(n).ne_missing(pl.col(f"{n}\0found")) for n in others]) if others else pl.lit(value=False)
    different = both.filter(differs)
    sample = pl.concat([f.select(keys).head(_KEYS_SHOWN_MAX) for f in (missing, unexpected, different)]).head(_KEYS_SHOWN_MAX)
    shown = tuple(str(tuple(row)) for row in sample.rows())
    return TableVerdict(table.full_name, both.height - different.height, missing.height, unexpected.height, different.height, shown)
