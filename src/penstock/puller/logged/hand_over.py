"""Corrections on their way to the spans of one doubted table, beside a reader that goes on.

The mark of their ts is journaled, and the reader has passed its place; what it gives meanwhile lies above. Until everything is handed over
the spans of this table resolve nothing; all others go on. The corrections come in chunks, both sides of a key in one, and only so many
bytes are on their way at once: whoever brings them waits, and nobody else. One thread calls it; persist callbacks come from any. Runs in
the log service, in the thread of whoever reads the table again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import KEY, ChangeBatch
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.puller.contract import SpanState
from penstock.puller.doubts import Corrections
from penstock.puller.logged.doubted_tables import KeyWatch, corrected
from penstock.puller.logged.span_routes import RefusedError, SpanRoutes, Subscription
from penstock.puller.logged.span_step import SpanStep

_CHUNKS_AT_ONCE = 4
_LOOK_S = 0.005


class HandOver:
    """The corrections of one table at one ts. Made in the reader's thread; a context that lets the spans go on when it ends."""

    def __init__(
        self,
        routes: SpanRoutes,
        spans: Mapping[int, Subscription],
        watch: KeyWatch,
        ts: int,
        bytes_max: int,
        clock: Clock,
        stopped: threading.Event,
    ) -> None:
        """``watch`` does not change any more: it knows what the log changed up to the mark."""
        self.ts = ts
        self.rows = 0
        self.left_out = 0
        self._routes = routes
        self._spans = spans
        self._watch = watch
        self._bytes_max = bytes_max
        self._clock = clock
        self._stopped = stopped
        self._on_their_way: dict[int, int] = {}
        self._number = 0
        for span in spans.values():
            span.held = True

    @property
    def quiet_at(self) -> str:
        """Return the last place before which the log changed nothing in the table since the watch began."""
        return self._watch.quiet_at

    @property
    def spans(self) -> Sequence[Subscription]:
        """Return the spans that get corrections."""
        return list(self._spans.values())

    def __enter__(self) -> HandOver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for span in self._spans.values():
            self._routes.let_go(span, resolve=kind is None)

    def give(self, piece: Corrections, bag: bool) -> None:
        """Hand over a piece; returns when all but a few chunks of it are persisted."""
        if piece.span_id not in self._spans:
            raise PenstockError("CONGESTED", f"span {piece.span_id} is not captured now")
        span = self._spans[piece.span_id]
        for chunk in chunks(piece, max(1, self._bytes_max // _CHUNKS_AT_ONCE)):
            kept, out = corrected(chunk, self._watch, self.ts, bag)
            self.left_out += out
            if kept:
                self.rows += sum(b.header.rows for b in kept)
                self._enqueue(span, kept)

    def _enqueue(self, span: Subscription, kept: tuple[ChangeBatch, ...]) -> None:
        nbytes = sum(b.header.nbytes for b in kept)
        while self._on_their_way and sum(self._on_their_way.copy().values()) + nbytes > self._bytes_max:
            if self._clock.wait(self._stopped, _LOOK_S):
                raise _closed()
            self._check(span)
        self._check(span)
        self._number += 1
        number = self._number
        self._on_their_way[number] = nbytes
        try:
            self._routes.enqueue(span, SpanStep(kept, nbytes=nbytes, on_persisted=lambda: self._persisted(number)))
        except RefusedError:
            raise _closed() from None

    def _persisted(self, number: int) -> None:
        # It may come more than once.
        self._on_their_way.pop(number, None)

    def _check(self, span: Subscription) -> None:
        if span.state is not SpanState.RUNNING:
            raise span.last_error or PenstockError("CONGESTED", f"span {span.span.span_id} is not captured any more")


def chunks(piece: Corrections, bytes_max: int) -> Iterator[Corrections]:
    """Yield a piece in parts of about so many bytes; both sides of a key stay together."""
    sides = [_joined(piece.tombstones), _joined(piece.data)]
    nbytes = sum(b.header.nbytes for b in (*piece.tombstones, *piece.data))
    longest = max((side for side in sides if side is not None), key=lambda b: b.records.num_rows, default=None)
    if longest is None or nbytes <= bytes_max:
        yield piece
        return
    count = min(longest.records.num_rows, -(-nbytes // bytes_max))
    keys = longest.records.column(KEY)
    ends = [keys[len(keys) * at // count] for at in range(1, count)]
    begun = [0, 0]
    for end in (*ends, None):
        found: list[tuple[ChangeBatch, ...]] = []
        for at, side in enumerate(sides):
            stop = 0 if side is None else side.records.num_rows if end is None else pc.sum(pc.less(side.records.column(KEY), end)).as_py()
            found.append(() if side is None or stop <= begun[at] else (_part(side, begun[at], stop),))
            begun[at] = max(begun[at], stop)
        if any(found):
            yield Corrections(piece.span_id, *found)


def _joined(batches: Sequence[ChangeBatch]) -> ChangeBatch | None:
    """Return batches of one side as one, in the order of the key."""
    if not batches:
        return None
    records = pa.concat_batches([b.records for b in batches]).sort_by(KEY)
    header = msgspec.structs.replace(batches[0].header, rows=records.num_rows, nbytes=sum(b.header.nbytes for b in batches))
    return ChangeBatch(header, records)


def _part(side: ChangeBatch, begin: int, end: int) -> ChangeBatch:
    rows = end - begin
    share = max(1, side.header.nbytes * rows // side.header.rows)
    return ChangeBatch(msgspec.structs.replace(side.header, rows=rows, nbytes=share), side.records.slice(begin, rows))


def _closed() -> PenstockError:
    return PenstockError("CANCELLED", "the log puller is closed")
