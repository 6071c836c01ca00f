"""A source with one log, the whole capture side in one process under a seeded scheduler: every commit is in the store exactly once.

The real log service, puller, span pipeline, journal keeper and doubts; the log, the clock, the disk and the threads are simulated. Lives
follow each other: each ends in order or by a crash at any step, after which only what was durable is left. Meanwhile the log pauses (also
before the first byte), breaks off and puts marks; appends of one worker are held; spans join further back; tables are changed behind the
log's back and read again. A planner delivers window after window, up to the resolved ts.

The oracle knows only the log: the ts of each commit follow from the times of the commits and the marks in the journal. It says: what was
delivered is every commit once under that ts; the journal's order is the log's; a settled ts covers what was committed before it was asked
for; corrected tables are what they really are. Runs in tests.
"""

from __future__ import annotations

import bisect
import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from penstock.meta.log_journal import JournalEntry
from penstock.meta.table_states import TableState
from penstock.model.batch import COMMIT_TS, KEY, BatchKind, ChangeBatch, Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import compose_ts
from penstock.puller import log_service as log_service_module
from penstock.puller import quota, span_pipeline
from penstock.puller.doubts import Corrections, DoubtBook
from penstock.puller.log_service import CaptureState, LogService, LogServiceSettings
from penstock.puller.logged import doubted_tables, errands, hand_over, reader_place, single_log_puller, span_routes
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.puller.span_pipeline import SpanPipelineSettings
from penstock.source.contract import Upstream
from penstock.source.single_log import CommitChain, LogPosition, LogStep
from penstock.store.contract import EventStore
from testing.checks.interleaving import Interleaving, SimulationError
from testing.checks.looked_inside import open_doubts
from testing.twins import single_log as single_log_twin
from testing.twins.doubt_book import MemoryDoubts
from testing.twins.event_store import UnsharedStore
from testing.twins.single_log import FIRST_TS, MemoryJournal, MemoryLog, MemoryReader, key_of, rows_of, table_of

MODULES = (
    log_service_module,
    quota,
    span_pipeline,
    doubted_tables,
    errands,
    hand_over,
    reader_place,
    single_log_puller,
    span_routes,
    single_log_twin,
)
TABLES = (1, 2, 3)
REWRITTEN = 3
"""The table that is changed behind the log's back."""
KEYS = 30
MARK_INTERVAL_S = 0.5
GIVE_UP_S = 600.0
Row = tuple[int, bytes, int]
SETTINGS = LogServiceSettings(
    retry_min_s=0.1,
    retry_max_s=2.0,
    pipeline=SpanPipelineSettings(workers=2, queue_size=8, quota_bytes=4_000),
    single_log=SingleLogPullerSettings(retry_max_s=1.0, settle_timeout_s=30.0, confirm_interval_s=2.0, hand_over_bytes_max=160),
)


class SimulatedLog(MemoryLog):
    """A log whose reader is slow, breaks off, and puts marks while it is quiet. ``is_sound``: only where the log ends."""

    def __init__(self, sim: Interleaving, rng: random.Random, is_sound: bool) -> None:
        super().__init__()
        self._sim = sim
        self._rng = rng
        self._is_sound = is_sound
        self.is_calm = False
        self.is_captured: Callable[[], bool] = lambda: False
        self.source_marks: set[int] = set()

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return the one version that a table has."""
        return (table_of(table_id),)

    def begin_snapshot(self) -> None:
        """Only tells that there is one log."""

    def first_position(self) -> LogPosition:
        """Return the beginning until capture has begun, then the end as of now."""
        if not self.is_captured():
            return super().first_position()
        return LogPosition(compose_ts(self._sim.now_ms()), self.log_end())

    def read_log(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        """Yield the log: late, in pieces, with marks, and until it breaks off."""
        sim, rng = self._sim, self._rng
        reader = MemoryReader(self, start, marks, wanted)
        marked_s = sim.now_s
        ahead: deque[LogStep] = deque()
        # The server looks for the place, or is simply busy: nothing comes, and time goes on.
        silent_until_s = sim.now_s + (rng.uniform(0.0, 3.0) if rng.random() < 0.4 else 0.0)
        while not stop.is_set():
            if not self.is_calm and rng.random() < 0.01:
                raise PenstockError("UPSTREAM_UNREACHABLE", "scripted")
            if not ahead and (sim.now_s < silent_until_s or not reader.has_more or rng.random() < 0.1):
                sim.pause(rng.choice([0.05, 0.05, 0.3]))
                now_ts = compose_ts(sim.now_ms())
                due = sim.now_s - marked_s >= MARK_INTERVAL_S and now_ts > reader.chain.last_ts
                if due and not (self._is_sound and reader.has_more):
                    marked_s = sim.now_s
                    reader.next_marks()
                    self.source_marks.add(max(now_ts, reader.chain.last_ts))
                    yield reader.mark(now_ts)
                else:
                    yield LogStep()
                continue
            # It decodes what it has received, before it gives the first of it.
            while not ahead or (reader.has_more and rng.random() < 0.4):
                ahead.append(reader.next())
            step = ahead.popleft()
            if rng.random() < 0.2:
                # A transaction that comes in two pieces.
                yield LogStep(step.changes)
                yield LogStep(ddls=step.ddls, position=step.position, doubts=step.doubts)
            else:
                yield step


class DurableSpan:
    """What the store has on disk of one span."""

    def __init__(self, span: Span, start_ts: int) -> None:
        self.span = span
        self.start_ts = start_ts
        self.rows: dict[Row, int] = {}
        """How often each was stored as new; by ts, key and side."""
        self.resolved_ts = start_ts


class Disk:
    """Everything that survives a crash."""

    def __init__(self, sim: Interleaving) -> None:
        self.journal = MemoryJournal()
        self.all_marks: dict[tuple[int, str], None] = {}
        self.book = MemoryDoubts(sim)
        self.spans: dict[int, DurableSpan] = {}
        self.ddls: set[tuple[int, str]] = set()
        self.checkpoints: dict[int, int] = {}
        self.delivered: dict[int, list[Row]] = {}


class LifeStore(UnsharedStore):
    """The store of one life: memory that is lost with it, and a disk. Does nothing any more once the life is over."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._disk = life.disk
        self._sim = life.sim
        self._rng = life.rng
        self._queue: deque[tuple[int, list[Row], Callable[[], None]]] = deque()
        self._resolved = {span_id: span.resolved_ts for span_id, span in life.disk.spans.items()}

    def register_span(self, span_id: int, span: Span, start_ts: int) -> int:
        """Make a span known; return its resolved ts."""
        self._sim.point()
        if self._life.is_alive and span_id not in self._disk.spans:
            self._disk.spans[span_id] = DurableSpan(span, start_ts)
            self._resolved[span_id] = start_ts
        return self._resolved.get(span_id, start_ts)

    def append(self, span_id: int, batches: Sequence[ChangeBatch], on_persisted: Callable[[], None]) -> bool:
        """Queue rows for the disk; none may lie at or below the resolved ts."""
        if span_id % 2 == 0 and not self._life.log.is_calm and self._rng.random() < 0.15:
            self._sim.pause(self._rng.uniform(0.0, 2.0))
        self._sim.point()
        rows = [
            (ts, key, int(b.header.kind))
            for b in batches
            for ts, key in zip(b.records.column(COMMIT_TS).to_pylist(), b.records.column(KEY).to_pylist(), strict=True)
        ]
        if self._life.is_alive:
            durable, resolved_ts = self._disk.spans[span_id], self._resolved[span_id]
            late = [row for row in rows if durable.start_ts < row[0] <= resolved_ts and row not in durable.rows]
            self._life.check(not late, f"span {span_id}: rows {late[:3]} at or below the resolved ts {resolved_ts}")
            self._queue.append((span_id, [row for row in rows if row[0] > resolved_ts], on_persisted))
        return True

    def append_ddl(self, ddl: DdlEvent, on_persisted: Callable[[], None]) -> bool:
        """Queue a DDL for the disk."""
        if self._life.is_alive:
            name, resolved_ts = (ddl.commit_ts, ddl.query), self._resolved[DDL_SPAN.span_id]
            late = ddl.commit_ts <= resolved_ts and name not in self._disk.ddls
            self._life.check(not late, f"{ddl.query} at {ddl.commit_ts}, resolved ts {resolved_ts}")

            def persisted() -> None:
                self._disk.ddls.add(name)
                on_persisted()

            self._queue.append((DDL_SPAN.span_id, [], persisted))
        return True

    def put_schemas(self, schemas: Sequence[TableSchema]) -> None:
        """Let others run."""
        self._sim.point()

    def advance_resolved_ts(self, span_id: int, ts: int) -> None:
        """Move the resolved ts of this life."""
        self._sim.point()
        if self._life.is_alive:
            self._resolved[span_id] = max(ts, self._resolved[span_id])

    def resolved_ts(self, span_id: int) -> int:
        """Return the resolved ts of this life."""
        return self._resolved.get(span_id, 0)

    def state(self, span_id: int, ts: int) -> set[bytes]:
        """Return the keys that a span has as of a ts."""
        return fold(row for row in self._disk.spans[span_id].rows if row[0] <= ts)

    def persist(self) -> None:
        """Write group after group: the disk's own task."""
        while self._life.is_alive:
            self._sim.pause(self._rng.choice([0.001, 0.02, 0.2]))
            self.write_group()

    def write_group(self) -> None:
        """Make what is queued durable, and then the resolved ts that were known before."""
        resolved = dict(self._resolved) if self._rng.random() < 0.5 else {}
        for _ in range(self._rng.randrange(1, 6)):
            if not self._queue or not self._life.is_alive:
                break
            span_id, rows, on_persisted = self._queue.popleft()
            held = self._disk.spans[span_id].rows if rows else {}
            for row in rows:
                held[row] = held.get(row, 0) + 1
            self._life.perhaps_die(0.005)
            on_persisted()
        for span_id, ts in resolved.items() if self._life.is_alive else ():
            self._disk.spans[span_id].resolved_ts = max(self._disk.spans[span_id].resolved_ts, ts)

    def close(self) -> None:
        """Write what is queued, as an orderly end does."""
        while self._queue and self._life.is_alive:
            self.write_group()
        for span_id, ts in self._resolved.items() if self._life.is_alive else ():
            self._disk.spans[span_id].resolved_ts = max(self._disk.spans[span_id].resolved_ts, ts)


class LifeJournal:
    """The journal as one life sees it; looks at each entry before it is kept."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._durable = life.disk.journal

    def save(self, entry: JournalEntry) -> None:
        """Keep an entry; places grow with their ts."""
        self._life.sim.point()
        if self._life.is_alive:
            self._durable.save(entry)
            places = [int(e.text) for e in sorted(self._durable.entries, key=lambda e: e.ts)]
            self._life.check(places == sorted(places), f"the journal is not in the log's order: {places[-8:]}")
            if entry.mark:
                self._life.disk.all_marks[entry.ts, entry.text] = None
            self._life.perhaps_die(0.02)
        self._life.sim.point()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._durable, name)


class LifeBook:
    """The book of doubts as one life sees it."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def states(self) -> list[TableState]:
        """Return what is on the disk."""
        return self._life.disk.book.states()

    def __getattr__(self, name: str) -> Any:
        def change(*args: Any) -> Any:
            self._life.sim.point()
            done = getattr(self._life.disk.book, name)(*args) if self._life.is_alive else False
            self._life.perhaps_die(0.03)
            return done

        return change


class Life:
    """One process: from its start to an orderly end or a crash."""

    def __init__(self, run: Run) -> None:
        self.run, self.sim, self.rng, self.log, self.disk, self.check = run, run.sim, run.rng, run.log, run.disk, run.check
        self.is_alive = True
        self.store = LifeStore(self)
        self.service = LogService(
            cast("Upstream", self.log),
            cast("EventStore", self.store),
            SETTINGS,
            self.sim,
            random.Random(self.rng.random()),
            journal=LifeJournal(self),
            doubts=cast("DoubtBook", LifeBook(self)),
        ).start()
        for task in (self.store.persist, self.plan, self.read_again):
            self.sim.spawn(task.__name__, task)
        for span, start_ts in list(run.spans.items()):
            self.capture(span, start_ts)

    def perhaps_die(self, probability: float) -> None:
        """Crash at this very step, whoever is at work."""
        if not self.log.is_calm and self.rng.random() < probability:
            self.is_alive = False

    def capture(self, span: Span, start_ts: int) -> None:
        """Capture a span."""
        self.service.ensure_span(span, start_ts)

    def plan(self) -> None:
        """Deliver window after window of every span, each up to its resolved ts."""
        while self.is_alive:
            self.sim.pause(self.rng.choice([0.05, 0.3, 1.0]))
            self.deliver()

    def deliver(self) -> None:
        """Deliver a window of every span."""
        for span_id, durable in self.disk.spans.items() if self.is_alive else ():
            from_ts = self.disk.checkpoints.setdefault(span_id, durable.start_ts)
            to_ts = self.store.resolved_ts(span_id)
            if to_ts > from_ts:
                self.disk.delivered.setdefault(span_id, []).extend(sorted(r for r in durable.rows if from_ts < r[0] <= to_ts))
                self.disk.checkpoints[span_id] = to_ts

    def read_again(self) -> None:
        """Read doubted tables again, in pieces, while the log goes on."""
        while self.is_alive:
            self.sim.pause(self.rng.choice([0.2, 1.0]))
            for doubt in open_doubts(self.service) if self.is_alive else ():
                try:
                    self.settle(doubt.table_id)
                except PenstockError as error:
                    self.service.fail_round(doubt.table_id, error, 0.1)

    def settle(self, table_id: int) -> None:
        """Read a table again, in pieces, and settle what differs."""
        watch = self.service.begin_watch(table_id)
        pieces = []
        for span in watch.spans:
            for parity in (0, 1):
                self.sim.pause(self.rng.choice([0.0, 0.2]))
                real = {k for k in self.run.real[table_id] if inside(k, span) and k[-1] % 2 == parity}
                while self.store.resolved_ts(span.span_id) < watch.ts:
                    if not self.is_alive:
                        raise PenstockError("CANCELLED", "the life is over")
                    self.sim.pause(0.05)
                held = {k for k in self.store.state(span.span_id, self.store.resolved_ts(span.span_id)) if k[-1] % 2 == parity}
                gone, new = sorted(held - real), sorted(real - held)
                pieces.append(
                    Corrections(
                        span.span_id,
                        (rows_of(table_id, 1, values_of(gone), BatchKind.TOMBSTONE, Op.DELETE),) if gone else (),
                        (rows_of(table_id, 1, values_of(new)),) if new else (),
                    )
                )
        self.service.settle(table_id, pieces)
        self.perhaps_die(0.2)

    def ask_settled(self) -> None:
        """Note which commits a settled ts claims."""
        count = len(self.log.commits)
        try:
            ts = self.service.settled_ts()
        except PenstockError:
            return
        if self.is_alive:
            self.run.claims.append((count, ts))

    def begin_again(self) -> None:
        """Note the end of the log, as for a feed whose part of it was purged; the others go on."""
        with contextlib.suppress(PenstockError):
            self.service.begin_log_again()

    def end(self, orderly: bool) -> None:
        """End the process, in order or by a crash; one that has crashed only lets its threads go."""
        self.is_alive = self.is_alive and orderly
        self.service.close()
        if self.is_alive and self.rng.random() < 0.7:
            self.store.close()
        self.is_alive = False


class Run:
    """One seed."""

    def __init__(self, seed: int, sim: Interleaving, is_sound: bool = True) -> None:
        self.sim = sim
        self.rng = random.Random(seed)
        self.log = SimulatedLog(sim, self.rng, is_sound)
        self.disk = Disk(sim)
        self.log.is_captured = lambda: bool(self.disk.journal.entries)
        self.broken: list[str] = []
        self.claims: list[tuple[int, int]] = []
        self.real: dict[int, set[bytes]] = {table: set() for table in TABLES}
        self.spans = dict.fromkeys([Span(table) for table in TABLES], FIRST_TS)

    def check(self, holds: bool, message: str) -> None:
        """Note a rule that does not hold."""
        if not holds:
            self.broken.append(message)

    def play(self, actions: int = 45) -> None:
        """Play actions of all kinds, then the end."""
        rng = self.rng
        life = Life(self)
        for _ in range(actions):
            dice = rng.random()
            if dice < 0.6:
                self.transact()
            elif dice < 0.68:
                self.sim.spawn("settled", life.ask_settled)
            elif dice < 0.74:
                self.join(life)
            elif dice < 0.8:
                self.rewrite()
            elif dice < 0.84:
                self.execute_ddl()
            elif dice < 0.86:
                self.sim.spawn("begin again", life.begin_again)
            elif dice < 0.92:
                life.end(orderly=life.is_alive and rng.random() < 0.5)
            if rng.random() < 0.5:
                self.sim.pause(rng.random() * (0.1 if rng.random() < 0.8 else 4.0))
            if not life.is_alive:
                life.end(orderly=False)
                life = Life(self)
        self.finish(life)

    def transact(self) -> None:
        """Commit a transaction; the server's clock tells seconds only."""
        table, rng = self.rng.choice(TABLES), self.rng
        real = self.real[table]
        deleted = [k for k in sorted(real) if rng.random() < 0.15]
        added = sorted({key_of(rng.randrange(KEYS)) for _ in range(rng.randrange(4))} - real)
        self.log.commit(table, values_of(added), deleted=values_of(deleted), commit_ms=self.sim.now_ms() // 1000 * 1000)
        self.real[table] = (real - set(deleted)) | set(added)

    def execute_ddl(self) -> None:
        """Commit a DDL with a text of its own."""
        ddl = DdlEvent(0, DdlType.ADD_INDEX, f"ddl {len(self.log.commits)}", "shop")
        self.log.commit(TABLES[0], [], ddls=[ddl], commit_ms=self.sim.now_ms() // 1000 * 1000)

    def rewrite(self) -> None:
        """Change rows without telling the log which."""
        changed = {key_of(self.rng.randrange(KEYS)) for _ in range(4)}
        self.log.commit(REWRITTEN, [], commit_ms=self.sim.now_ms() // 1000 * 1000, doubt="a statement that rewrites rows")
        self.real[REWRITTEN] = self.real[REWRITTEN] ^ changed

    def join(self, life: Life) -> None:
        """Let another span join, from wherever the journal reaches back to; of the rewritten table from its beginning."""
        table, at = self.rng.choice(TABLES), self.rng.randrange(1, KEYS)
        span = Span(table, *self.rng.choice([(b"", key_of(at)), (key_of(at), b"")]))
        if span in self.spans or not self.disk.journal.entries:
            return
        start_ts = FIRST_TS if table == REWRITTEN else self.rng.choice(self.disk.journal.entries).ts
        self.spans[span] = start_ts
        life.capture(span, start_ts)

    def finish(self, life: Life) -> None:
        """Let everything come to rest, then compare."""
        self.log.is_calm = True
        if not life.is_alive:
            life.end(orderly=False)
            life = Life(self)
        deadline_s = self.sim.now_s + GIVE_UP_S
        settled_ts = life.service.settled_ts()
        while (
            open_doubts(life.service)
            or any(life.store.resolved_ts(span.span_id) < settled_ts for span in (*self.spans, DDL_SPAN))
            or any(s.state is CaptureState.RETRYING for s in life.service.status())
        ):
            self.sim.pause(0.5)
            if self.sim.now_s > deadline_s:
                status = [(s.span_id % 1000, s.resolved_ts, s.last_error) for s in life.service.status()]
                raise SimulationError(f"no rest up to {settled_ts}: {open_doubts(life.service)} {status}")
            settled_ts = max(settled_ts, life.service.settled_ts())
        life.deliver()
        life.end(orderly=True)
        self.compare(settled_ts)

    def compare(self, settled_ts: int) -> None:
        """Compare everything that is left with the oracle."""
        ts_of = self.oracle()
        self.check(ts_of == sorted(set(ts_of)), "the oracle itself")
        corrections = {ts for ts, _ in self.disk.all_marks} - self.log.source_marks
        self.check(not corrections & set(ts_of), "a commit has the ts of corrections")
        for count, claimed_ts in self.claims:
            self.check(all(ts <= claimed_ts for ts in ts_of[:count]), f"settled ts {claimed_ts} does not cover {count} commits")
        ddls = {(ts, ddl.query) for commit, ts in zip(self.log.commits, ts_of, strict=True) for ddl in commit.ddls}
        self.check(self.disk.ddls == ddls, f"DDLs {len(ddls - self.disk.ddls)} missing, {len(self.disk.ddls - ddls)} too many")
        for span, start_ts in self.spans.items():
            delivered = self.disk.delivered.get(span.span_id, [])
            wanted = sorted(
                (ts, key, int(kind))
                for commit, ts in zip(self.log.commits, ts_of, strict=True)
                if commit.table_id == span.table_id and start_ts < ts <= self.disk.checkpoints.get(span.span_id, 0)
                for kind, values in ((BatchKind.DATA, commit.inserted), (BatchKind.TOMBSTONE, commit.deleted))
                for key in map(key_of, values)
                if inside(key, span)
            )
            told = [row for row in delivered if row[0] not in corrections]
            name = f"span of table {span.table_id} from {start_ts}"
            self.check(sorted(told) == wanted, f"{name}: {difference(told, wanted)}")
            self.check(self.disk.checkpoints.get(span.span_id, 0) >= settled_ts, f"{name} is not delivered to the end")
            if start_ts == FIRST_TS:
                real = {k for k in self.real[span.table_id] if inside(k, span)}
                self.check(fold(delivered) == real, f"{name} is not the table: {len(fold(delivered) ^ real)} keys")

    def oracle(self) -> list[int]:
        """Return the ts of every commit, as a reader gives them that is never interrupted and passes the journal's marks."""
        marks = sorted((int(text), ts) for ts, text in self.disk.all_marks)
        first = self.disk.journal.first()
        chain = CommitChain(first.ts if first is not None else FIRST_TS)
        found = []
        for place, commit in enumerate(self.log.commits):
            for _, ts in marks[bisect.bisect_left(marks, (place, 0)) : bisect.bisect_left(marks, (place + 1, 0))]:
                chain.raise_to(ts)
            found.append(chain.next(commit.commit_ms))
        return found


def difference(found: list[Row], wanted: list[Row]) -> str:
    """Return in words how two lists of rows differ."""
    twice = len(found) - len(set(found))
    return f"{len(set(wanted) - set(found))} missing, {len(set(found) - set(wanted))} too many, {twice} twice"


def inside(key: bytes, span: Span) -> bool:
    """Return whether a key is of a span."""
    return key >= span.start_key and (not span.end_key or key < span.end_key)


def values_of(keys: Sequence[bytes]) -> list[int]:
    """Return the values of keys."""
    return [int.from_bytes(key, "big") - (1 << 63) for key in keys]


def fold(rows: Any) -> set[bytes]:
    """Return the keys that are there after some changes; at one ts, what ceased comes first."""
    keys: set[bytes] = set()
    for _, key, kind in sorted(rows, key=lambda row: (row[0], -row[2])):
        (keys.discard if kind == int(BatchKind.TOMBSTONE) else keys.add)(key)
    return keys
