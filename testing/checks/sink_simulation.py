"""The storage engine under a seeded scheduler: random tables, rows, DDLs, pauses, faults and kills, window after window.

``SinkSimulation`` runs windows like a feed does: each window is tried until it succeeds, an attempt may be killed at any operation on the
target (before or after it took effect), two attempts may run at once, and between events time passes, so that the clock cuts files too.
What must hold is checked in ``sink_checkers``; this module only makes things happen and writes down what it saw. Runs in tests.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from obstore.store import MemoryStore

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink import failure_latch, wake_gate
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.storage import cut_records, metrics, publisher, writer
from penstock.sink.storage.encode import encoder_shards, flush_policy
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.sink import EngineSettings, StorageSink
from penstock.sink.storage.spool import file_buffer, spool
from penstock.sink.storage.spool import segment as spool_segment
from penstock.sink.storage.spool.segment import SpoolDisk
from penstock.sink.storage.spool.spool import SpoolSettings
from penstock.sink.storage.writer import WriterSettings
from penstock.sink.wake_gate import WakeGate, WakeGateSettings
from penstock.target import storage as target
from penstock.target.settings import StorageSinkSettings, from_uri
from penstock.target.storage import ObjectTarget, RetrySettings
from testing.checks.interleaving import Interleaving
from testing.checks.sink_checkers import AttemptWitness, TargetWitness

T0 = compose_ts(1_700_000_000_000)
MODULES = (
    cut_records,
    encoder_shards,
    failure_latch,
    file_buffer,
    flush_policy,
    metrics,
    publisher,
    spool,
    spool_segment,
    target,
    wake_gate,
    writer,
)
ATTEMPTS_MAX = 60
_HOUR_TICKS = 3_600_000 << 18
_T = TypeVar("_T")


class Killed(BaseException):
    """The attempt's process is dead."""


class SimulatedTarget(ObjectTarget):
    """One process's view of a shared store: slow, flaky, and gone once the process is killed."""

    def __init__(self, store: MemoryStore, sim: Interleaving, rng: random.Random, witness: TargetWitness) -> None:
        super().__init__(store, "memory://simulated", RetrySettings(), sim, rng)
        self._sim = sim
        self._faults = rng
        self._witness = witness
        self._flaky = rng.choice([0.0, 0.0, 0.05, 0.2])
        self._latency_s = rng.choice([0.0, 0.02, 0.5])
        self.kill_at: int | None = None
        """The operation at which the process is killed."""
        self.dead = False
        self._operations = 0

    def _run(self, verb: str, path: str, call: Callable[[], _T], request_s_max: float | None = None) -> _T:
        def attempt() -> _T:
            self._operations += 1
            dies = self.kill_at is not None and self._operations >= self.kill_at
            if self._latency_s:
                self._sim.pause(self._faults.random() * self._latency_s)
            if self.dead or (dies and self._faults.random() < 0.5):
                self._die()
            self._fail_sometimes()
            result = call()
            self._witness.changed(verb, path)
            if dies:
                self._die()
            self._fail_sometimes()
            return result

        return super()._run(verb, path, attempt, request_s_max)

    def _fail_sometimes(self) -> None:
        if self._faults.random() < self._flaky:
            raise OSError("503 scripted")

    def _die(self) -> None:
        self.dead = True
        raise Killed


class SimulatedDisk(SpoolDisk):
    """A disk that is full now and then."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._full = rng.choice([0.0, 0.0, 0.0, 0.1])

    def write(self, file: int, data: bytes | memoryview, at: int) -> None:
        """Write, or find the disk full."""
        if self._rng.random() < self._full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(file, data, at)


class SimulatedTable:
    """One dispatcher's table: its versions and the rows that were written, in order."""

    def __init__(self, table_id: int, rng: random.Random, spans: int) -> None:
        self.dispatcher = DispatcherId(table_id, rng.randrange(spans), spans) if spans > 1 else DispatcherId(table_id)
        self.versions = [_version(table_id, T0, 2)]
        self._rng = rng
        self._rows = 0

    @property
    def current(self) -> TableSchema:
        """Return the newest version."""
        return self.versions[-1]

    def script(self, from_ts: int, to_ts: int) -> list[pa.RecordBatch | DdlEvent]:
        """Return what happens to the table in a window, in order: rows, and DDLs of this table alone."""
        rng = self._rng
        events: list[pa.RecordBatch | DdlEvent] = []
        ts, step = from_ts, (to_ts - from_ts) // 400
        for _ in range(rng.choice([0, 1, 3, 12])):
            if rng.random() < 0.15:
                ts += rng.randint(1, step)
                changed = _version(self.current.table_id, ts, 2 + len(self.versions))
                self.versions.append(changed)
                events.append(DdlEvent(ts, DdlType.ADD_COLUMN, f"ALTER TABLE {changed.table} ADD ...", changed.schema, (changed,)))
            count = rng.choice([0, 1, 5, 40])
            commits = []
            for _ in range(count):
                ts += rng.choice([0, 1, 1, rng.randint(1, max(1, step // 50))])
                commits.append(max(ts, from_ts + 1))
            ts = max(ts, from_ts + 1)
            events.append(self._records(commits))
        return events

    def _records(self, commits: list[int]) -> pa.RecordBatch:
        ids = range(self._rows, self._rows + len(commits))
        self._rows += len(commits)
        wide = self._rng.choice([5, 50, 300])
        arrays = [
            pa.array(commits, pa.uint64()),
            pa.array([Op.INSERT] * len(commits), pa.uint8()),
            pa.array(ids, pa.int64()),
            *(pa.array([f"{i:0{wide}d}" for i in ids], pa.string()) for _ in self.current.columns[1:]),
        ]
        return pa.RecordBatch.from_arrays(arrays, names=["_ts", "_op", *(c.field_name for c in self.current.columns)])


def _version(table_id: int, version: int, columns: int) -> TableSchema:
    key = Column(1, "id", ColumnType(TypeKind.BIGINT), False, True)
    rest = (Column(n, f"c{n}", ColumnType(TypeKind.VARCHAR, length=400)) for n in range(2, columns + 1))
    return TableSchema(table_id, "sim", f"t{table_id}", version, (key, *rest))


class SinkSimulation:
    """A few windows of a few dispatchers, from one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._rng = random.Random(seed)
        self._sim = Interleaving(seed)
        self._store = MemoryStore()
        self._folder = folder
        rng = self._rng
        atomicity = rng.choice(["none", "none", "table"])
        size = rng.choice([1024, 4096, 1 << 20])
        query = f"file-size={size}&flush-interval=5s&transaction-atomicity={atomicity}&spool-size={max(1 << 20, size * 4)}"
        self.settings: StorageSinkSettings = from_uri(f"memory:///?{query}&spool-dir={folder}")[1]
        quota = rng.choice([16 << 10, 64 << 10, 1 << 20])
        self._engine = EngineSettings(
            encoder_threads=rng.choice([1, 2, 4]),
            spool=SpoolSettings(quota, memory_ratio=rng.choice([0.1, 0.2, 0.5])),
            writers=WriterSettings(flush_concurrency=rng.choice([1, 2, 6])),
        )
        self._gate = WakeGateSettings(events_max=rng.choice([1, 3, 20]), bytes_max=rng.choice([1 << 10, 1 << 16]))
        spans = rng.choice([1, 1, 3])
        self.tables = [SimulatedTable(n, rng, spans) for n in range(1, rng.choice([2, 3, 6]))]
        self.witness = TargetWitness(self._store, self.settings)
        self._positions: dict[DispatcherId, dict[str, int]] = {}
        self.attempts = 0
        self.kills = 0

    def run(self, windows: int = 3) -> None:
        """Run the windows; raise whatever breaks a rule."""
        with self._sim.modules(*MODULES):
            self._sim.run(lambda: self._run_windows(windows))

    def _run_windows(self, windows: int) -> None:
        from_ts = T0
        for _ in range(windows):
            to_ts = from_ts + self._rng.choice([10**9, 30 * _HOUR_TICKS])
            script = {table.dispatcher: table.script(from_ts, to_ts) for table in self.tables}
            tables = {table.dispatcher: self._version_before(table, script[table.dispatcher]) for table in self.tables}
            works = [DispatcherWork(d, tables[d], from_ts, to_ts, self._positions.get(d, {})) for d in script]
            self.witness.begin_window({d: [r for r in events if isinstance(r, pa.RecordBatch)] for d, events in script.items()})
            results = self._until_done(works, script)
            for result in results:
                self._positions[result.dispatcher] = result.position
            self._publish(to_ts)
            self.witness.end_window(results, to_ts)
            # Whoever comes late and does it all again changes nothing.
            again = self._until_done(works, script)
            self.witness.check_same(results, again)
            from_ts = to_ts
        self.witness.check_rows()

    def _version_before(self, table: SimulatedTable, events: list[pa.RecordBatch | DdlEvent]) -> TableSchema:
        made = {event.commit_ts for event in events if isinstance(event, DdlEvent)}
        return [version for version in table.versions if version.version not in made][-1]

    def _until_done(self, works: list[DispatcherWork], script: dict[DispatcherId, list[Any]]) -> list[DispatcherResult]:
        for _ in range(ATTEMPTS_MAX):
            thread = None
            if self._rng.random() < 0.2:
                thread = self._sim.threading.Thread(self._rival, (works, script), name="rival")
                thread.start()
            results = self._attempt(works, script)
            if thread is not None:
                thread.join()
            self.witness.check_files()
            if results is not None:
                return results
        raise AssertionError(f"no attempt of {ATTEMPTS_MAX} succeeded")

    def _rival(self, works: list[DispatcherWork], script: dict[DispatcherId, list[Any]]) -> None:
        self._attempt(works, script)

    def _attempt(self, works: list[DispatcherWork], script: dict[DispatcherId, list[Any]]) -> list[DispatcherResult] | None:
        self.attempts += 1
        rng = random.Random(self._rng.getrandbits(64))
        target_here = SimulatedTarget(self._store, self._sim, rng, self.witness)
        if rng.random() < 0.4:
            target_here.kill_at = rng.choice([1, 3, rng.randint(1, 60)])
            self.kills += 1
        sink = StorageSink(target_here, self.settings, self._sim, self._engine, SimulatedDisk(rng))
        witness = AttemptWitness(self.witness, sink, self._engine, self.settings.file_size // 8)
        try:
            return self._deliver(sink, works, script, witness, rng)
        except Killed:
            return None
        except PenstockError as error:
            if error.code not in {"SINK_UNAVAILABLE", "CUT_CONFLICT", "SPOOL_FAILED"}:
                raise
            return None
        finally:
            # What a killed process would still do has no effect: its target is dead.
            target_here.dead = True
            sink.close()
            witness.check_after_close()

    def _deliver(
        self,
        sink: StorageSink,
        works: list[DispatcherWork],
        script: dict[DispatcherId, list[Any]],
        witness: AttemptWitness,
        rng: random.Random,
    ) -> list[DispatcherResult]:
        gate = WakeGate(self._gate)
        sink.on_failure(gate.open)
        tables = {work.dispatcher: work.table for work in works}
        left = {work.dispatcher: list(script[work.dispatcher]) for work in works}
        slow = rng.random() < 0.5
        for work in works:
            sink.open_dispatcher(work)
        while left:
            dispatcher = rng.choice(sorted(left))
            if not left[dispatcher]:
                del left[dispatcher]
                if rng.random() < 0.7:
                    sink.seal_dispatcher(dispatcher)
                continue
            event = left[dispatcher].pop(0)
            if isinstance(event, DdlEvent):
                sink.pass_block_event(dispatcher, event)
                witness.check_drained(dispatcher)
                sink.write_block_event(dispatcher, event)
                tables[dispatcher] = event.tables[0]
            else:
                self._hand_over(sink, gate, DmlEvent(dispatcher, tables[dispatcher], event), witness, rng)
            witness.check_bounds(gate, self._gate)
            if slow and rng.random() < 0.2:
                self._sim.pause(rng.random() * 7)
        return [sink.close_dispatcher(work.dispatcher) for work in works]

    def _hand_over(self, sink: StorageSink, gate: WakeGate, event: DmlEvent, witness: AttemptWitness, rng: random.Random) -> None:
        at = 0
        while at < event.records.num_rows or at == 0:
            # How rows are divided into events differs from attempt to attempt.
            count = rng.choice([1, 7, 50])
            part = event.records.slice(at, count)
            wake = gate.enter(part.nbytes)
            enqueued, flushed = witness.event(event.dispatcher, part.num_rows, wake)
            sink.add_dml_event(DmlEvent(event.dispatcher, event.table, part, enqueued, flushed))
            at += count

    def _publish(self, to_ts: int) -> None:
        quiet = SimulatedTarget(self._store, self._sim, random.Random(1), self.witness)
        quiet._flaky = 0.0
        StorageMaintainer(quiet, self.settings, random.Random(1)).publish_checkpoint(to_ts)
