"""Nothing, as a kind of target: rows are counted and dropped. Runs on executors and in the server.

``null://`` measures capture, store, Spark and commits without a target. It is also the smallest example of a target
(``docs/write-a-target.md``). It cannot be read back, belongs to nobody, and any number of feeds may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.model.batch import commit_ts_array
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError
from penstock.model.finding import Finding
from penstock.model.table import TableSchema
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, TaskReport
from penstock.sink.kind import TargetKind
from penstock.sink.options import read_options
from penstock.target.kind import SinkRun

if TYPE_CHECKING:
    from penstock.target.storage import Guard


@dataclass(frozen=True, slots=True)
class NullSettings:
    """What tunes a target that keeps nothing."""

    free_options: ClassVar[frozenset[str]] = frozenset({"flush_interval_ms", "old_values"})
    cut_options: ClassVar[frozenset[str]] = frozenset()

    flush_interval_ms: int = field(default=5_000, metadata={"range": (100, 600_000)})
    old_values: bool = False

    format_name: ClassVar[str] = "nothing"
    indexes_transactions: ClassVar[bool] = False
    numbers_events: ClassVar[bool] = False

    def needs_before(self, table: TableSchema) -> bool:
        """Return whether before-images travel, as they would to a target that wants them."""
        return self.old_values


@dataclass(slots=True)
class _Counted:
    rows: int = 0
    nbytes: int = 0
    last_ts: int = 0


class NullSink:
    """Counts and drops; implements ``penstock.sink.contract.Sink``."""

    def __init__(self) -> None:
        self._open: dict[DispatcherId, _Counted] = {}

    def open_dispatcher(self, work: DispatcherWork) -> None:
        """Begin a dispatcher's window."""
        self._open[work.dispatcher] = _Counted()

    def add_dml_event(self, event: DmlEvent) -> None:
        """Count the rows; they are as durable as they will ever be."""
        counted = self._dispatcher(event.dispatcher)
        ts = commit_ts_array(event.records)
        if len(ts):
            if int(ts[0]) < counted.last_ts or bool((ts[1:] < ts[:-1]).any()):
                raise InvariantError(f"dispatcher {event.dispatcher}: rows are not in commit order")
            counted.last_ts = int(ts[-1])
        counted.rows += len(ts)
        counted.nbytes += event.records.nbytes
        for told in (event.post_enqueue, event.post_flush):
            if told is not None:
                told()

    def pass_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> None:
        """Find nothing under way."""
        self._dispatcher(dispatcher)

    def write_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> Sequence[str]:
        """Write nothing."""
        self._dispatcher(dispatcher)
        return ()

    def seal_dispatcher(self, dispatcher: DispatcherId) -> None:
        """Find nothing under way."""
        self._dispatcher(dispatcher)

    def close_dispatcher(self, dispatcher: DispatcherId) -> DispatcherResult:
        """Return what was counted."""
        counted = self._dispatcher(dispatcher)
        del self._open[dispatcher]
        return DispatcherResult(dispatcher, {}, counted.rows, counted.nbytes)

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Forget it: this never fails."""

    def report(self) -> TaskReport:
        """Return that nothing was measured."""
        return TaskReport()

    def close(self) -> None:
        """Forget what was not closed."""
        self._open.clear()

    def _dispatcher(self, dispatcher: DispatcherId) -> _Counted:
        if dispatcher not in self._open:
            raise InvariantError(f"dispatcher {dispatcher} is not open")
        return self._open[dispatcher]


class NullMaintainer:
    """Allows everything; implements ``penstock.sink.contract.SinkMaintainer``."""

    def check(self, feed: str) -> None:
        """Find it free."""

    def claim(self, feed: str) -> None:
        """Leave it nobody's."""

    def probe(self) -> None:
        """Find that it takes everything."""

    def write_block_event(self, event: DdlEvent) -> Sequence[str]:
        """Write nothing."""
        return ()

    def record_window(self, from_ts: int, to_ts: int, results: Sequence[DispatcherResult]) -> None:
        """Keep nothing."""

    def publish_checkpoint(self, checkpoint_ts: int, not_covered: Mapping[str, str] | None = None) -> None:
        """Tell nobody."""

    def published_ts(self) -> int:
        """Return that none is published."""
        return 0


class NullKind(TargetKind):
    """Nothing at all."""

    name = "null"
    shared = True
    option_keys = frozenset({"flush-interval", "old-values"})

    def settings(self, uri: str, options: Mapping[str, Any]) -> tuple[str, NullSettings]:
        """Return the URI and the settings."""
        return read_options(NullSettings, uri, options)

    def make_sink(self, uri: str, options: Mapping[str, Any], guard: Guard | None, run: SinkRun) -> NullSink:
        """Return the sink of one task."""
        return NullSink()

    def make_maintainer(
        self, uri: str, options: Mapping[str, Any], guard: Guard, run: SinkRun, answer_s_max: float | None = None
    ) -> NullMaintainer:
        """Return the part that acts once per feed."""
        return NullMaintainer()

    def check(self, uri: str, options: Mapping[str, Any], feed: str | None) -> list[Finding]:
        """Return that all is well."""
        return [Finding("target: reachable", True, "takes everything and keeps nothing", "for measuring only")]


KIND = NullKind()
