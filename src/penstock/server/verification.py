"""Verification: replays a storage target and compares every row with the upstream as of the target's checkpoint.

Both sides are brought to one form, the canonical values of change batches in the newest version's column order, sorted by key,
and compared whole, in columns. A difference is reported by table, count and the first keys; values are not shown. A feed may go on
meanwhile: the reader takes the checkpoint before it looks for files, and leaves out rows and schema versions beyond it. Runs in the
server, in the CLI or in tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import polars as pl

from penstock.feed.window.following import from_record
from penstock.meta.database import MetaDatabase
from penstock.model.batch import ChangeBatch
from penstock.model.errors import PenstockError
from penstock.model.masking import mask_uri
from penstock.model.span import Span
from penstock.model.table import COMMIT_TS, SchemaHistory, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.readback.reader import StorageReader
from penstock.readback.replay import replay_table
from penstock.server.creation import FeedDocument
from penstock.source.contract import PastReader, Upstream, reads_past
from penstock.target.settings import from_uri
from penstock.target.storage import TargetAddress

_KEYS_SHOWN_MAX = 5
_COPY = "\0copy"


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
    stops_at_checkpoint: bool = True
    """False where the files have no commit ts: then a difference may be a row that the feed delivered beyond the checkpoint."""

    @property
    def rows(self) -> int:
        """Return how many rows are identical, over all tables."""
        return sum(t.rows for t in self.tables)

    @property
    def identical(self) -> bool:
        """Return whether every table is identical."""
        return all(t.identical for t in self.tables)

    def summary(self) -> str:
        """Return the line that ends a successful verification."""
        return f"verified: {len(self.tables)} tables, {self.rows} rows identical"

    def check(self) -> None:
        """Raise ``VERIFY_MISMATCH`` unless every table is identical."""
        wrong = [str(t) for t in self.tables if not t.identical]
        if wrong:
            hint = None if self.stops_at_checkpoint else "The files have no commit ts: verify again while nothing changes upstream."
            raise PenstockError("VERIFY_MISMATCH", "; ".join(wrong), hint)


class FeedVerifier:
    """Verifies the feeds of one upstream, one at a time: both sides of a table are in memory while it is compared."""

    def __init__(
        self,
        meta: MetaDatabase,
        upstream: Upstream,
        source_uri: str,
        verify_moving: Callable[[StorageReader, Sequence[int]], Verdict],
    ) -> None:
        """``verify_moving`` compares where the upstream cannot read the past."""
        self._meta = meta
        self._verify_moving = verify_moving
        self._upstream = upstream
        self._source_uri = source_uri
        self._lock = threading.Lock()

    def verify(self, name: str) -> Verdict:
        """Compare the target of a feed with the upstream, as of the target's checkpoint."""
        document = FeedDocument.of(self._meta.get_feed(name))
        if document.source.rstrip("/") != self._source_uri.rstrip("/"):
            raise PenstockError(
                "CONFIG_INVALID", f"feed {name} captures {mask_uri(document.source)}", "Ask a server that captures the same source."
            )
        if not self._lock.acquire(blocking=False):
            raise PenstockError("VERIFY_BUSY", "this server verifies another feed")
        try:
            config = document.feed_config()
            reader = open_reader(config.target.uri, config.target.options)
            records = self._meta.dispatchers(name, reader.checkpoint_ts())
            live = document.dispatchers if records is None else [from_record(r) for r in records]
            # A table whose state is still being read is not in the target yet.
            table_ids = sorted({d.id.table_id for d in live if not d.with_state})
            if not reads_past(self._upstream):
                return self._verify_moving(reader, table_ids)
            return verify_target(reader, self._upstream, table_ids, start_ts=config.settings.start_ts)
        finally:
            self._lock.release()


def open_reader(sink_uri: str, sink_options: Mapping[str, Any]) -> StorageReader:
    """Open a target for reading; nothing is created where there is none."""
    target_uri, settings = from_uri(sink_uri, sink_options)
    parts = urlsplit(target_uri)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(target_uri)} is no folder", "Name the folder that a feed delivers to.")
    return StorageReader(TargetAddress(target_uri).open(), settings)


def verify_target(
    reader: StorageReader,
    upstream: PastReader,
    table_ids: Sequence[int],
    on_table: Callable[[TableVerdict], None] = lambda _: None,
    start_ts: int = TS_ZERO,
) -> Verdict:
    """Compare every given table as of the checkpoint that the target publishes.

    A feed with a start ts delivered only the changes after it: what was written last before that ts is left out on the upstream's side.
    """
    checkpoint_ts = reader.checkpoint_ts()
    if checkpoint_ts is None:
        raise PenstockError("CHECKPOINT_MISSING", "the target has no `metadata` yet")
    tables: dict[str, list[TableSchema]] = {}
    for table_id in table_ids:
        table = SchemaHistory(table_id, upstream.schema_history(table_id)).at(checkpoint_ts)
        tables.setdefault(table.full_name, []).append(table)
    verdicts = []
    for partitions in tables.values():
        verdicts.append(_verify_table(reader, upstream, partitions, checkpoint_ts, start_ts))
        on_table(verdicts[-1])
    return Verdict(checkpoint_ts, tuple(verdicts), reader.stops_at_checkpoint)


def _verify_table(
    reader: StorageReader, upstream: PastReader, partitions: Sequence[TableSchema], checkpoint_ts: int, start_ts: int
) -> TableVerdict:
    """Compare one table, which is one physical table or one per partition."""
    table = partitions[0]
    expected = pl.concat([read_state(upstream, part, checkpoint_ts, start_ts) for part in partitions])
    if not reader.versions(table.schema, table.table):
        if start_ts == TS_ZERO:
            raise PenstockError("VERIFY_MISMATCH", f"{table.full_name} has no schema file in the target")
        # Without a snapshot, a table is described when its first change comes.
        return compare_states(table, expected.clear(), expected)
    found = replay_table(reader, table.schema, table.table)
    if not found.columns and all(t.table_id != table.table_id for t in upstream.list_tables()):
        return TableVerdict(table.full_name, 0)
    return compare_states(table, found, expected)


def read_state(upstream: PastReader, table: TableSchema, ts: int, start_ts: int = TS_ZERO) -> pl.DataFrame:
    """Return the upstream's rows as of a ts, columns by name; of those, only what was written after the start ts."""
    return state_of(table, upstream.read_table(Span(table.table_id), ts), start_ts)


def state_of(table: TableSchema, batches: Iterable[ChangeBatch], start_ts: int = TS_ZERO) -> pl.DataFrame:
    """Return rows of a table version as one frame, columns by name; only what was written after the start ts."""
    names = {c.field_name: c.name for c in table.columns}
    frames = [pl.DataFrame(table.row_schema().empty_table())]
    for batch in batches:
        rows = pl.DataFrame(batch.records.select([COMMIT_TS, *names]))
        frames.append(rows.filter(pl.col(COMMIT_TS) > start_ts).drop(COMMIT_TS))
    return pl.concat(frames, how="vertical").rename(names)


def compare_states(table: TableSchema, found: pl.DataFrame, expected: pl.DataFrame) -> TableVerdict:
    """Compare two states of a table; a table without a primary key is compared as a bag of rows."""
    names = [c.name for c in table.columns]
    if sorted(found.columns) != sorted(names):
        raise PenstockError("VERIFY_MISMATCH", f"{table.full_name} has columns {found.columns} in the target, {names} upstream")
    keys = [c.name for c in table.key_columns]
    expected = expected.select(names)
    found = found.select(pl.col(name).cast(expected.schema[name]) for name in names)
    if not keys:
        # Equal rows are told apart by a number, so that also how often a row is there is compared.
        copy = pl.int_range(pl.len()).over(names).alias(_COPY)
        expected, found, keys = expected.with_columns(copy), found.with_columns(copy), [*names, _COPY]
    expected, found = expected.sort(keys), found.sort(keys)
    if found.equals(expected, null_equal=True):
        return TableVerdict(table.full_name, expected.height)
    missing = expected.join(found, on=keys, how="anti", nulls_equal=True)
    unexpected = found.join(expected, on=keys, how="anti", nulls_equal=True)
    both = expected.join(found, on=keys, how="inner", nulls_equal=True, suffix="\0found")
    others = [n for n in names if n not in keys]
    differs = pl.any_horizontal([pl.col(n).ne_missing(pl.col(f"{n}\0found")) for n in others]) if others else pl.lit(value=False)
    different = both.filter(differs)
    shown_keys = [key for key in keys if key != _COPY]
    sample = pl.concat([f.select(shown_keys).head(_KEYS_SHOWN_MAX) for f in (missing, unexpected, different)]).head(_KEYS_SHOWN_MAX)
    shown = tuple(str(tuple(row)) for row in sample.rows())
    return TableVerdict(table.full_name, both.height - different.height, missing.height, unexpected.height, different.height, shown)
