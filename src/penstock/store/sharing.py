"""Keeps an event store whose objects are on shared storage such that another machine can go on from there.

Owns the epoch of the owner and the thread that, every interval, flushes what lies in memory and marks up to where each span is in objects.
Invariants: the schema log is there before a manifest or a mark that relies on it; a mark never leads the objects; nothing is published or
removed after another owner was seen. So a successor pulls again what came in the last interval, and nothing else. Runs in the log service.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from penstock.model.clock import Clock
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.failpoints import reach
from penstock.store.log.schema_log import SchemaLog
from penstock.store.objects.owner_chain import OwnerChain
from penstock.store.objects.ownership import Ownership
from penstock.store.objects.shared_records import Marks, Schemas, SharedRecords, SpanMark
from penstock.store.span_store import SpanStore

log = logging.getLogger(__name__)
CLOSE_S_MAX = 10.0
"""How long a store that is closed goes on flushing for its successor."""


class Sharing:
    """What a store does for its successor. ``check`` and ``held_ts`` are thread safe; the rest is of one thread at a time."""

    def __init__(
        self,
        ownership: Ownership,
        records: SharedRecords,
        schema_log: SchemaLog,
        spans: Callable[[], Sequence[SpanStore]],
        flush: Callable[[int], bool],
        interval_s: float,
        clock: Clock,
        chain: OwnerChain | None = None,
    ) -> None:
        self.ownership = ownership
        self.lost: PenstockError | None = None
        """Set once another owner was seen."""
        self._records = records
        self._schema_log = schema_log
        self._spans = spans
        self._flush = flush
        self._interval_s = interval_s
        self._clock = clock
        self._chain = chain
        self._checked_s = float("-inf")
        self._written_changes = -1
        self._held: dict[int, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-sharing", daemon=True)

    def take_over(self, directory: Path) -> Marks:
        """Begin the epoch: the schema log is read, the manifests are made this owner's; return the marks of the owner before."""
        marks, schemas = self._records.marks(), self._records.schemas()
        self._schema_log.put(schemas.tables)
        for ddl in schemas.ddls:
            self._schema_log.put_ddl(ddl)
        self.ownership.begin(directory, {m.span_id: m.held_ts for m in marks.spans})
        return marks

    def start(self, directory: Path) -> None:
        """Make what was taken over this owner's, durably, then begin to share from time to time."""
        self.mark()
        self.ownership.note(directory)
        self._thread.start()

    def check(self, fresh_s: float = 0.0) -> None:
        """Raise ``FENCED`` where another owner was seen, or is there now; whoever looked in the last ``fresh_s`` seconds need not again."""
        if self.lost is not None:
            raise self.lost
        now_s = self._clock.monotonic_s()
        if now_s - self._checked_s < fresh_s:
            return
        try:
            self.ownership.check()
        except PenstockError as error:
            raise self.note(error) from None
        self._checked_s = now_s

    def note(self, error: PenstockError) -> PenstockError:
        """Remember that another owner was seen, where an error says so; return the error."""
        if error.kind is ErrorKind.FENCED and self.lost is None:
            self.lost = error
            log.error("objects have another owner", extra={"code": error.code, "detail": error.detail})
        return error

    def before_publish(self) -> None:
        """Make the schema log durable where the next manifest may rely on something new in it; raises ``FENCED`` as ``check``."""
        self.check()
        with self._lock:
            changes = self._schema_log.changes
            if changes != self._written_changes:
                reach("share-schemas:before")
                self._records.write_schemas(Schemas(*self._schema_log.contents()))
                reach("share-schemas:after")
                self._written_changes = changes

    @contextlib.contextmanager
    def publishing(self, fresh_s: float) -> Iterator[None]:
        """Write manifests in it, or, with ``fresh_s``, remove objects: only as the owner, once the schema log is where they are."""
        try:
            if fresh_s:
                self.check(fresh_s)
            else:
                self.before_publish()
                reach("share-manifest:before")
            yield
            if not fresh_s:
                reach("share-manifest:after")
        except PenstockError as error:
            self.note(error)
            raise

    def share(self) -> None:
        """Flush what is in memory, and mark how far each span has got."""
        for span in self._spans():
            if span.memory_row_count:
                self._flush(span.span_id)
        self.mark()

    def mark(self) -> None:
        """Write up to where each span is in objects; what is in the schema log by then is durable before."""
        marks = tuple(SpanMark(s.span_id, s.span, s.start_ts, s.held_ts()) for s in self._spans())
        self.before_publish()
        with self._lock:
            link = self._chain.link() if self._chain is not None else ""
            reach("share-marks:before")
            self._records.write_marks(Marks(marks, link))
            reach("share-marks:after")
            if self._chain is not None:
                self._chain.wrote(link)
            self._held = {m.span_id: m.held_ts for m in marks}

    def held_ts(self, span_ids: Iterable[int]) -> int:
        """Return the ts up to which some spans would survive the loss of this machine; 0 where one has no mark yet."""
        with self._lock:
            return min((self._held.get(span_id, 0) for span_id in span_ids), default=0)

    def close(self) -> None:
        """Share once more, for a successor, as far as that takes a few seconds; then stop. May be called twice."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread.ident is None:
            return
        self._thread.join()
        deadline_s = self._clock.monotonic_s() + CLOSE_S_MAX
        try:
            for span in self._spans():
                if span.memory_row_count and self._clock.monotonic_s() < deadline_s:
                    self._flush(span.span_id)
            self.mark()
        except PenstockError as error:
            log.warning("objects were not shared at the end", extra={"code": error.code, "detail": error.detail})

    def _run(self) -> None:
        while self.lost is None and not self._clock.wait(self._stop, self._interval_s):
            try:
                self.share()
            except PenstockError as error:
                self.note(error)
                log.warning("sharing failed", extra={"code": error.code, "detail": error.detail})
            except Exception as error:  # noqa: BLE001 - the thread serves all spans and must outlive a defect in one
                log.error("sharing failed", extra={"code": "INTERNAL", "detail": f"{type(error).__name__}: {error}"})
