"""A callable of the server's process as a kind of target: ``penstock.capture(sink=callable)`` makes its URI, ``python:NAME``.

Tasks spool rows, and the process that runs the feed reads a window's rows, brings those of each table into the order of their commits and
calls, before the window is committed. So the callable holds up its feed and nothing else. It is called once for each change in one
process; what was not committed when a process ended comes again in the next. Invariants: rows of one table come in the order of their
commits, with its DDLs between them, and are cut alike whenever a window comes again. Runs on executors and in the server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from penstock.model.batch import COMMIT_TS, commit_ts_array
from penstock.model.ddl import DdlEvent
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.finding import Finding
from penstock.model.rows.typed_columns import typed_changes
from penstock.model.table import TableSchema
from penstock.sink.callback.callbacks import find
from penstock.sink.callback.changes import Changes
from penstock.sink.callback.sink import CallbackSink, SpooledPart
from penstock.sink.contract import DispatcherResult
from penstock.sink.kind import TargetKind
from penstock.sink.options import read_options
from penstock.target.kind import SinkRun

if TYPE_CHECKING:
    from penstock.target.storage import Guard

ROWS_PER_CALL = 65_536
_EMPTY = pa.RecordBatch.from_arrays([], names=[])


@dataclass(frozen=True, slots=True)
class CallbackSettings:
    """What tunes the calls; ``spool`` is a folder that tasks and the server's process both reach."""

    free_options: ClassVar[frozenset[str]] = frozenset({"flush_interval_ms"})
    cut_options: ClassVar[frozenset[str]] = frozenset()

    spool: str
    flush_interval_ms: int = field(default=1_000, metadata={"range": (100, 600_000)})
    old_values: bool = False

    format_name: ClassVar[str] = "arrow"
    indexes_transactions: ClassVar[bool] = False
    numbers_events: ClassVar[bool] = False

    def needs_before(self, table: TableSchema) -> bool:
        """Return whether the rows that updates replaced are given too."""
        return self.old_values


class CallbackMaintainer:
    """Calls; implements ``penstock.sink.contract.SinkMaintainer``."""

    def __init__(self, name: str, spool: Path) -> None:
        self._name = name
        self._spool = spool

    def check(self, feed: str) -> None:
        """Raise unless the callable is of this process."""
        self.probe()

    def claim(self, feed: str) -> None:
        """Leave it nobody's."""

    def probe(self) -> None:
        """Raise unless the callable is of this process."""
        find(self._name)

    def write_block_event(self, event: DdlEvent) -> Sequence[str]:
        """Give a DDL, once for each table that it concerns."""
        names = [table.full_name for table in event.tables] or [event.schema]
        for name in dict.fromkeys(names):
            find(self._name).give_ddl(Changes(name, _EMPTY, event.query, event.commit_ts))
        return ()

    def record_window(self, from_ts: int, to_ts: int, results: Sequence[DispatcherResult]) -> None:
        """Give the changes of a window, table by table, and forget the files."""
        found = find(self._name)
        if to_ts <= found.whole_ts:
            return
        told = [(r.dispatcher.table_id, decoded(r.message, list[SpooledPart])) for r in results if r.message]
        calls: list[Callable[[], Changes]] = []
        for _, dispatchers in itertools.groupby(sorted(told, key=lambda one: one[0]), key=lambda one: one[0]):
            calls += self._calls([parts for _, parts in dispatchers])
        found.give((from_ts, to_ts), calls)
        for part in (part for _, parts in told for part in parts if part.file):
            (self._spool / part.file).unlink(missing_ok=True)

    def publish_checkpoint(self, checkpoint_ts: int, not_covered: Mapping[str, str] | None = None) -> None:
        """Note it; programs ask for progress."""
        found = find(self._name)
        found.checkpoint_ts = max(found.checkpoint_ts, checkpoint_ts)

    def published_ts(self) -> int:
        """Return the checkpoint that was noted in this process."""
        return find(self._name).checkpoint_ts

    def _calls(self, dispatchers: list[list[SpooledPart]]) -> Iterator[Callable[[], Changes]]:
        """Yield what makes each call for one table. A table of several dispatchers has no DDL inside a window, so one version."""
        if len(dispatchers) == 1:
            runs = [[part] for part in dispatchers[0]]
        else:
            parts = sorted((part for parts in dispatchers for part in parts), key=lambda part: part.table.version)
            runs = [list(same) for _, same in itertools.groupby(parts, key=lambda part: part.table.version)]
        for run in runs:
            if run[0].ddl is not None:
                yield partial(Changes, run[0].table.full_name, _EMPTY, run[0].ddl.query, run[0].ddl.commit_ts)
                continue
            rows = self._rows(run)
            for start in range(0, rows.num_rows, ROWS_PER_CALL):
                yield partial(_typed, run[0].table, rows.slice(start, ROWS_PER_CALL))

    def _rows(self, run: list[SpooledPart]) -> pa.Table:
        """Return the rows of some files, mapped, in the order of their commits."""
        tables = []
        for part in run:
            try:
                tables.append(pa.ipc.open_stream(pa.memory_map(str(self._spool / part.file))).read_all())
            except OSError as error:
                raise PenstockError("SPOOL_FAILED", f"{self._spool / part.file}: {error.strerror or type(error).__name__}") from error
        rows = pa.concat_tables(tables)
        # Deletes stand before rows of the same ts in each, and no two have rows of one key.
        return rows if len(tables) == 1 else rows.take(rows.column(COMMIT_TS).to_numpy().argsort(kind="stable"))


def _typed(table: TableSchema, rows: pa.Table) -> Changes:
    (records,) = rows.combine_chunks().to_batches()
    return Changes(table.full_name, typed_changes(records, table), commit_ts=int(commit_ts_array(records)[-1]))


class CallbackKind(TargetKind):
    """A callable of this process."""

    name = "python"
    shared = True
    option_keys = frozenset({"flush-interval", "spool", "old-values"})
    server_only_options = frozenset({"spool"})

    def settings(self, uri: str, options: Mapping[str, Any]) -> tuple[str, CallbackSettings]:
        """Return the URI and the settings."""
        return read_options(CallbackSettings, uri, options)

    def make_sink(self, uri: str, options: Mapping[str, Any], guard: Guard | None, run: SinkRun) -> CallbackSink:
        """Return the sink of one task."""
        return CallbackSink(Path(self.settings(uri, options)[1].spool))

    def make_maintainer(
        self, uri: str, options: Mapping[str, Any], guard: Guard, run: SinkRun, answer_s_max: float | None = None
    ) -> CallbackMaintainer:
        """Return what calls."""
        left, settings = self.settings(uri, options)
        return CallbackMaintainer(left.partition(":")[2], Path(settings.spool))

    def check(self, uri: str, options: Mapping[str, Any], feed: str | None) -> list[Finding]:
        """Return that the callable is known in its own process alone."""
        return [Finding("target: a callable", False, uri, "penstock.capture(sink=…) in the process that has it")]


KIND = CallbackKind()
