"""The board: which receiver holds which part, which span is in which part, and what receivers said of them last.

Receivers report; the answer holds their orders. One that is silent for a minute by this clock, whose job ended or whose task was attempted
again is lost, and its parts go to the others, whose stores go on from what lies in objects. Invariants: a part has one holder at a time
here (and one owner of its objects, which fences whoever comes too late); a span stays in its part as long as that holds anything of it;
what a holder said counts only while it holds the part. Holds no thread and does no I/O. Thread safe. Runs in the server.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.feed.receivers.messages import Orders, PartOrder, PartReport, Report, SpanOrder, SpanReport
from penstock.feed.receivers.settings import PARTS_PER_RECEIVER, ReceiverSettings
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.log_service import CaptureState, SpanStatus
from penstock.store.stats import SpanStats

log = logging.getLogger(__name__)


@dataclass
class _Part:
    number: int
    spans: dict[int, Span] = field(default_factory=dict)
    holder: str = ""
    is_leaving: bool = False
    """Whether its holder was told to close it; it has another one when it has."""
    report: PartReport | None = None
    said: dict[int, SpanReport] = field(default_factory=dict)
    unreachable: PenstockError | None = None


@dataclass
class _Receiver:
    slot: int
    host: str
    seen_s: float


@dataclass(frozen=True)
class ReceiverView:
    """A receiver that is there, and the parts that it has open, as it said last."""

    slot: int
    host: str
    parts: tuple[PartReport, ...]


class PartBoard:
    """What a server knows of the receivers of one source."""

    def __init__(self, settings: ReceiverSettings, clock: Clock, pinned_ts: Callable[[int], int]) -> None:
        """``pinned_ts`` gives the ts above which feeds need the history of a span."""
        self.wanted = threading.Event()
        """Set once there is anything to capture."""
        self._settings = settings
        self._clock = clock
        self._pinned_ts = pinned_ts
        self._lock = threading.Lock()
        self._parts = {number: _Part(number) for number in range(settings.receivers * PARTS_PER_RECEIVER)}
        self._homes: dict[int, int] = {}
        self._receivers: dict[str, _Receiver] = {}
        self._gone: set[str] = set()
        self._runs: dict[int, int] = {}
        self._troubles: dict[int, PenstockError] = {}
        self.lost_total = 0
        """How many receivers were lost."""
        self._first_s: float | None = None
        self._is_settled = False
        self._is_stopping = False

    # Spans: what feeds need.

    def place(self, homes: Mapping[int, int]) -> None:
        """Note in which parts spans are already, by their ids, so that what is there is gone on with."""
        with self._lock:
            for span_id, number in homes.items():
                self._parts.setdefault(number, _Part(number))
                self._homes.setdefault(span_id, number)

    def ensure(self, span: Span) -> None:
        """Have a span captured; idempotent."""
        with self._lock:
            part = self._part_of(span.span_id) or self._emptiest()
            self._homes[span.span_id] = part.number
            part.spans[span.span_id] = span
            self._assign()
        self.wanted.set()

    def remove(self, span_id: int) -> None:
        """Have a span captured no more; what is stored of it stays."""
        with self._lock:
            part = self._part_of(span_id)
            if part is not None:
                part.spans.pop(span_id, None)
                part.said.pop(span_id, None)

    def let_go(self) -> None:
        """Have every part closed, because another server has taken them; they are opened again when spans of them are wanted."""
        with self._lock:
            self._homes.clear()
            for part in self._parts.values():
                part.spans.clear()
                self._leave(part)

    def span_ids(self) -> tuple[int, ...]:
        """Return the spans of which their holders have said anything."""
        with self._lock:
            return tuple(span_id for part in self._parts.values() for span_id in part.said)

    def base_ts(self, span_id: int) -> int | None:
        """Return from which ts on the state of a span is known; None where it is not, or nothing is known of the span."""
        with self._lock:
            part = self._part_of(span_id)
            said = part.said.get(span_id) if part is not None else None
        return said.stats.base_ts if said is not None else None

    def resolved_ts(self, span_id: int) -> int:
        """Return the resolved ts of a span as its holder said last; ``SPAN_UNKNOWN`` where nobody has said anything."""
        with self._lock:
            part = self._part_of(span_id)
            said = part.said.get(span_id) if part is not None else None
        if said is None:
            raise _unknown(span_id)
        return said.stats.resolved_ts

    def stats(self) -> list[SpanStats]:
        """Return what the holders said of all spans."""
        with self._lock:
            return [said.stats for part in self._parts.values() for said in part.said.values()]

    def status(self) -> list[SpanStatus]:
        """Return where each span that is wanted stands."""
        with self._lock:
            return [self._status(part, span_id, span) for part in self._parts.values() for span_id, span in part.spans.items()]

    def parts_of(self, span_ids: Iterable[int]) -> dict[int, list[int]]:
        """Return spans by their parts; ``SPAN_UNKNOWN`` where one is not captured yet."""
        found: dict[int, list[int]] = {}
        with self._lock:
            for span_id in span_ids:
                part = self._part_of(span_id)
                if part is None or span_id not in part.said:
                    raise _unknown(span_id)
                found.setdefault(part.number, []).append(span_id)
        return found

    def location(self, span_id: int) -> str:
        """Return where a span is served; raises where it is not, for now or at all."""
        with self._lock:
            part = self._part_of(span_id)
            if part is None or span_id not in part.spans:
                raise _unknown(span_id)
            if part.report is None or not part.report.location:
                raise PenstockError("STORE_UNREACHABLE", f"span {span_id}: no receiver has part {part.number} open now")
            return part.report.location

    def note_reached(self, number: int, error: PenstockError | None) -> None:
        """Note whether the holder of a part answered when it was asked for a plan."""
        with self._lock:
            self._parts[number].unreachable = error

    # Receivers: what they say, and what they are told.

    def receive(self, report: Report, *, reopen: bool = True) -> Orders:
        """Take a report; return the orders of whoever sent it.

        ``reopen`` says whether a part whose objects have another owner is opened again, which takes them back.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            name = report.receiver
            if self._is_stopping or name in self._gone or report.run != self._runs.get(report.slot):
                return Orders(stop=True)
            if name not in self._receivers:
                # Spark attempts a task again when the attempt before is over.
                self._lose([old for old, r in self._receivers.items() if r.slot == report.slot], "its task was attempted again")
                self._receivers[name] = _Receiver(report.slot, report.host, now_s)
                self._troubles.pop(report.slot, None)
                self._first_s = now_s if self._first_s is None else self._first_s
                log.info("receiver is there", extra={"receiver": name, "slot": report.slot, "host": report.host, "pid": report.pid})
            self._receivers[name].seen_s = now_s
            self._note(name, report.parts, reopen)
            self._assign()
            return Orders(tuple(self._order(p) for p in self._parts.values() if p.holder == name and not p.is_leaving and p.spans))

    def look(self) -> None:
        """Give up receivers that have been silent for too long. Called from time to time."""
        with self._lock:
            silent_s = self._clock.monotonic_s() - self._settings.lost_s
            self._lose([name for name, r in self._receivers.items() if r.seen_s < silent_s], f"silent for {self._settings.lost_s:.0f} s")
            self._assign()

    def begin_run(self, slot: int) -> int:
        """Return the number of a slot's next job: reports of earlier ones count no more."""
        with self._lock:
            self._runs[slot] = self._runs.get(slot, 0) + 1
            return self._runs[slot]

    def end_run(self, slot: int, error: PenstockError | None) -> None:
        """Note that the job of a slot ended, and why: its receiver is no more."""
        with self._lock:
            self._runs[slot] = self._runs.get(slot, 0) + 1
            if error is not None:
                self._troubles[slot] = error
            self._lose([name for name, r in self._receivers.items() if r.slot == slot], "its job ended")
            self._assign()

    def view(self) -> list[ReceiverView]:
        """Return the receivers that are there."""
        with self._lock:
            held: dict[str, list[PartReport]] = {name: [] for name in self._receivers}
            for part in self._parts.values():
                if part.report is not None and part.holder in held:
                    held[part.holder].append(part.report)
            return [ReceiverView(r.slot, r.host, tuple(held[name])) for name, r in self._receivers.items()]

    def has_receiver(self, slot: int) -> bool:
        """Return whether the receiver of a slot is there."""
        with self._lock:
            return any(r.slot == slot for r in self._receivers.values())

    def stop(self) -> None:
        """Tell all receivers to end, those that come too."""
        with self._lock:
            self._is_stopping = True

    # Inside, with the lock held.

    def _part_of(self, span_id: int) -> _Part | None:
        number = self._homes.get(span_id)
        return None if number is None else self._parts[number]

    def _emptiest(self) -> _Part:
        return min(self._parts.values(), key=lambda part: (len(part.spans), part.number))

    def _order(self, part: _Part) -> PartOrder:
        return PartOrder(part.number, tuple(SpanOrder(span, self._pinned_ts(span_id)) for span_id, span in part.spans.items()))

    def _note(self, name: str, reports: Sequence[PartReport], reopen: bool) -> None:
        said = {report.part: report for report in reports}
        for part in [p for p in self._parts.values() if p.holder == name]:
            report = said.get(part.number)
            if part.is_leaving:
                if report is None:
                    self._release(part)
            elif report is not None:
                part.report = report
                part.said = {s.stats.span_id: s for s in report.spans if s.stats.span_id in part.spans}
                if report.is_taken_away and reopen:
                    # A receiver that counts as lost came too late and had it for a moment.
                    self._leave(part)

    def _lose(self, names: Sequence[str], why: str) -> None:
        for name in names:
            lost = self._receivers.pop(name)
            self.lost_total += 1
            self._gone.add(name)
            held = [part for part in self._parts.values() if part.holder == name]
            log.warning("receiver is lost", extra={"receiver": name, "slot": lost.slot, "parts": len(held), "cause": why})
            for part in held:
                self._release(part)

    def _leave(self, part: _Part) -> None:
        part.is_leaving = bool(part.holder)
        part.report, part.said = None, {}

    def _release(self, part: _Part) -> None:
        part.holder, part.is_leaving, part.report, part.said, part.unreachable = "", False, None, {}, None

    def _assign(self) -> None:
        """Give parts without a holder to whoever has the fewest; let one go that should be elsewhere."""
        for part in self._parts.values():
            if part.holder and not part.spans:
                self._leave(part)
        if not self._receivers or not self._settles():
            return
        load = Counter(dict.fromkeys(self._receivers, 0))
        load.update(part.holder for part in self._parts.values() if part.holder)

        def weight(name: str) -> tuple[int, int]:
            return load[name], self._receivers[name].slot

        for part in [p for p in self._parts.values() if p.spans and not p.holder]:
            part.holder = min(self._receivers, key=weight)
            load[part.holder] += 1
            log.info("part is given", extra={"part": part.number, "receiver": part.holder, "spans": len(part.spans)})
        most, least = max(self._receivers, key=weight), min(self._receivers, key=weight)
        if load[most] - load[least] >= 2 and not any(part.is_leaving for part in self._parts.values()):
            self._leave(next(part for part in self._parts.values() if part.holder == most))

    def _settles(self) -> bool:
        """Return whether parts are given out yet: at first, receivers that come a moment later are waited for."""
        if not self._is_settled and self._first_s is not None:
            waited_s = self._clock.monotonic_s() - self._first_s
            self._is_settled = len(self._receivers) >= self._settings.receivers or waited_s >= self._settings.settle_s
        return self._is_settled

    def _status(self, part: _Part, span_id: int, span: Span) -> SpanStatus:
        said = part.said.get(span_id)
        error = self._error(part, said)
        # A part that is on its way to its first receiver fails in nothing.
        retrying = part.unreachable is not None or (said.retrying if said is not None else error is not None)
        return SpanStatus(
            span_id=span_id,
            span=span,
            resolved_ts=said.stats.resolved_ts if said is not None else 0,
            regions=said.regions if said is not None else 0,
            regions_waiting=said.regions_waiting if said is not None else 0,
            state=CaptureState.RETRYING if retrying else CaptureState.PULLING,
            failures=said.failures if said is not None else int(retrying),
            last_error=error,
        )

    def _error(self, part: _Part, said: SpanReport | None) -> PenstockError | None:
        if part.unreachable is not None:
            return part.unreachable
        text = said.error if said is not None else part.report.error if part.report is not None else ""
        if text:
            return PenstockError.from_text(text)
        if said is not None or part.holder:
            return None
        return next(iter(self._troubles.values()), None)


def _unknown(span_id: int) -> PenstockError:
    return PenstockError("SPAN_UNKNOWN", f"no receiver has span {span_id} yet")
