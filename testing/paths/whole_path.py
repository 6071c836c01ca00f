"""The whole path in one process, without Spark: data server over gRPC, log service, event store, Flight, planner, storage sink.

For tests of what the parts do together. ``restart`` closes the log service and the store and opens them again, as a server that comes
back; a window that is run without its commit is a crash. Runs in tests.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa

from penstock.feed.settings import FeedSettings
from penstock.feed.window.assignment import FeedContext
from penstock.model.clock import SystemClock
from penstock.model.rows.row_key import table_prefix
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import TableSchema
from penstock.server.verify.verification import Verdict, rows_of, verify_target
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.store.history import HistoryNeeds
from penstock.store.settings import StoreSettings
from testing.paths.feed_path import WAIT_S, FeedPath
from testing.paths.local_feed import LocalFeed


class WholePath(FeedPath):
    """One feed. Tables have an INT key ``id`` first; keys of rows are made from it."""

    def __init__(
        self,
        root: Path,
        ddls: Sequence[str],
        *,
        tables: Sequence[str] = ("d.*",),
        splits: Mapping[str, Sequence[int]] | None = None,
        spans_per_table: int = 1,
        sink_options: Mapping[str, str] | None = None,
        settings: FeedSettings | None = None,
        target: Path | None = None,
        target_uri: str = "",
        late_snapshot: bool = False,
        shared: Path | None = None,
    ) -> None:
        """``ddls`` make the tables that are there when the feed is created; ``splits`` cuts them at ids.

        ``late_snapshot`` leaves the ts of the first state to the planner; ``shared`` is where objects lie that all machines reach.
        """
        self.hold_back = False
        """Whether the spans of tables that come with rows are left uncaptured, as if their state took long to read."""
        server = DataServer(DataServerSettings(resolved_interval_ms=10)).start()
        self.upstream = DataServerUpstream(server.uri)
        for ddl in ddls:
            self.upstream.execute_ddl(ddl)
        for name, ids in (splits or {}).items():
            for row_id in ids:
                self.upstream.split(self.full_key(name, row_id))
        chosen = dataclasses.replace(settings or FeedSettings(), spans_per_table=spans_per_table)
        super().__init__(root, self.upstream, tables, chosen, target or root / "files", target_uri)
        self._parts.callback(server.stop)
        self._parts.callback(self.upstream.close)
        self.sink_options = dict(sink_options or {})
        self.shared = shared
        self.snapshot_ts = 0 if late_snapshot else self.upstream.current_ts()
        self._open()

    def restart(self, *, lose_store: bool = False) -> None:
        """Close the log service and the event store, and open them again, if asked with nothing of what the store held."""
        self.close_services()
        if lose_store:
            shutil.rmtree(self.root / "store")
        self._open()

    def take_over(self, owner: str = "another") -> FeedContext:
        """Let another owner hold the feed; return the context of the old one."""
        old = self.context
        self.meta.release("f", self.meta.get_feed("f").owner, self.epoch)
        self.epoch = self.meta.claim("f", owner, 3_600_000) or 0
        self.context = msgspec.structs.replace(old, epoch=self.epoch)
        self.feed = LocalFeed(self.context, before_window=self._capture)
        return old

    def table(self, name: str) -> TableSchema:
        """Return a live table by ``database.table``."""
        return self.upstream.table(*name.split("."))

    def full_key(self, name: str, row_id: int) -> bytes:
        """Return the key of a row."""
        return table_prefix(self.table(name).table_id) + row_key(row_id)

    def write(self, rows: Mapping[str, Mapping[int, str | None]], gone: Mapping[str, Iterable[int]] | None = None) -> int:
        """Write and delete rows of several tables in one transaction, the text in column ``v``; return its commit ts."""
        txn = self.upstream.txn()
        for name, values in rows.items():
            ids, texts = pa.array(list(values), pa.int32()), pa.array(list(values.values()), pa.string())
            txn.put(self.table(name), {"id": ids, "v": texts})
        for name, row_ids in (gone or {}).items():
            keys = [row_key(i) for i in row_ids]
            if keys:
                txn.delete(self.table(name), pa.array(keys, pa.binary()))
        return txn.commit()

    def wait_resolved(self, ts: int) -> None:
        """Wait until the store has everything of the feed's spans and the DDLs up to a ts."""
        spans = [DDL_SPAN.span_id, *(d.span.span_id for d in self.live())]
        self.wait_until(f"not resolved up to {ts}", lambda: min(self.store.resolved_ts(span_id) for span_id in spans) >= ts)

    def drain(self) -> None:
        """Run windows until everything that was written is delivered."""
        self.feed.drain(self.upstream.current_ts(), WAIT_S)
        while any(d.with_state for d in self.live()):
            self.feed.drain(self.upstream.current_ts(), WAIT_S)

    def live_tables(self) -> dict[str, int]:
        """Return the feed's tables now, names and ids."""
        return {f"{d.schema}.{d.table}": d.id.table_id for d in self.live()}

    def verify(self) -> Verdict:
        """Compare the feed's tables in the target with the upstream."""
        table_ids = {d.id.table_id for d in self.live()}
        return verify_target(self.reader(), self.upstream, sorted(table_ids))

    def verify_joined(self) -> Verdict:
        """Compare the tables whose state is in the target."""
        live = self.live()
        return verify_target(self.reader(), self.upstream, sorted({d.id.table_id for d in live if not d.with_state}))

    def flush_store(self) -> None:
        """Let the store write its memory to objects."""
        for dispatcher in self.live():
            self.store.flush(dispatcher.span.span_id)

    def _open(self) -> None:
        self.open_services(self.upstream, self._capture)
        self._capture()

    def _capture(self) -> None:
        for dispatcher in self.live():
            if not (dispatcher.with_state and self.hold_back):
                self.log.ensure_span(dispatcher.span, 0)


def row_key(row_id: int) -> bytes:
    """Return the row key of an INT."""
    return (row_id + (1 << 63)).to_bytes(8, "big")


def read_state(upstream: DataServerUpstream, table: TableSchema, ts: int) -> pl.DataFrame:
    """Return the upstream's rows as of a ts, columns by name."""
    frames = [pl.DataFrame(table.row_schema().empty_table())]
    frames += [
        pl.DataFrame(rows.select(table.row_schema().names)) for rows in rows_of(upstream.read_table(Span(table.table_id), ts), table)
    ]
    return pl.concat(frames).rename({c.field_name: c.name for c in table.columns})


def lose_history(path: WholePath) -> None:
    """Let all history go that can go, however old it is and whoever pins it."""
    path.wait_resolved(path.upstream.current_ts())
    path.flush_store()
    for span_id in path.store.span_ids():
        path.store.merge(span_id)
    rewrite_rows(path)
    path.wait_resolved(path.upstream.current_ts())
    path.flush_store()
    path.store.needs = HistoryNeeds(StoreSettings(history_seconds=0, checkpoint_seconds=0, gc_ttl_seconds=0), SystemClock())
    path.store.collect_garbage()


def rewrite_rows(path: WholePath) -> None:
    """Write the rows of all tables once more as they are: objects leave only behind later ones."""
    for table in (t for t in path.upstream.list_tables() if t.schema == "d"):
        for batch in path.upstream.read_table(Span(table.table_id), path.upstream.current_ts()):
            with path.upstream.txn() as txn:
                txn.put(table, {c.name: batch.records.column(c.field_name) for c in table.columns})
