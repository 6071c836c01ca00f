"""The state of one span in the event store: memory, objects, resolved ts, and how memory becomes objects.

Invariants: every row at or below ``flushed_ts`` is in the objects, every row above it in memory, so appendable objects do not overlap
in time; ``flushed_ts <= resolved_ts``; the manifest that names an object is durable before the memory forgets its rows; a merge adds
objects and marks those that it replaces, so readers at any ts find what they need until history is given up. Runs in the log service.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa

from penstock.model.batch import COMMIT_TS, KEY, BatchKind, ChangeBatch
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.store.changes.changes import SpanState, SpanView, drain, side_handles
from penstock.store.changes.ordered_handle import OrderedHandle
from penstock.store.changes.ordering import window_rows
from penstock.store.memory import MemoryRows, SpanMemory
from penstock.store.objects import manifest_edits, orphans
from penstock.store.objects.checkpoints import CheckpointChain
from penstock.store.objects.manifest import Manifest, write_manifest
from penstock.store.objects.merging import MergePlan, Write, commit_of, plan_merge, write_merge
from penstock.store.objects.object_file import ObjectKind, ObjectMeta
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.span_writer import ObjectSettings, SpanWriter, with_row_ids
from penstock.store.objects.spill import spill_batches


class SpanStore:
    """One span. Thread safe: ``_lock`` guards the state, ``_flushing`` lets one manifest be made at a time, ``_merging`` one merge."""

    def __init__(self, space: ObjectSpace, manifest: Manifest, rng: random.Random, written: ObjectSettings) -> None:
        self._space = space
        self._manifest = msgspec.structs.replace(manifest, writer=f"{rng.getrandbits(64):016x}", epoch=written.epoch)
        self._writer = SpanWriter(space, manifest.span_id, written, rng)
        self._checkpoints = CheckpointChain.load(space, manifest.span_id) if manifest.number else CheckpointChain(space, manifest.span_id)
        self._memory = SpanMemory()
        # What is resolved above the objects is for the log to say, which holds the rows: it may be older than the objects.
        self._resolved_ts = manifest.flushed_ts
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._merging = threading.Lock()
        self.flush_error: PenstockError | None = None
        self.flushed_s = float("-inf")
        """When it was flushed last, by the monotonic clock of whoever flushes it."""

    @classmethod
    def create(cls, space: ObjectSpace, span_id: int, span: Span, start_ts: int, rng: random.Random, written: ObjectSettings) -> SpanStore:
        """Make the store of a new span whose capture begins above ``start_ts``."""
        return cls(space, manifest_edits.begun(span_id, span, start_ts), rng, written)

    @property
    def span(self) -> Span:
        """Return which part of which table it holds."""
        return self._manifest.span

    @property
    def span_id(self) -> int:
        """Return its id."""
        return self._manifest.span_id

    @property
    def start_ts(self) -> int:
        """Return where its history starts."""
        return self._manifest.history_start_ts

    @property
    def resolved_ts(self) -> int:
        """Return its resolved ts."""
        return self._resolved_ts

    @property
    def flushed_ts(self) -> int:
        """Return the ts up to which its rows are in objects."""
        return self._manifest.flushed_ts

    @property
    def base_ts(self) -> int | None:
        """Return the ts from which on its state is known, None where it is not."""
        return self._manifest.base_ts

    @property
    def memory_nbytes(self) -> int:
        """Return how many bytes are in no object yet."""
        return self._memory.nbytes

    @property
    def heap_nbytes(self) -> int:
        """Return how many of them are on the heap."""
        return self._memory.heap_nbytes

    @property
    def memory_row_count(self) -> int:
        """Return how many rows are in no object yet."""
        return self._memory.row_count

    @property
    def objects(self) -> tuple[ObjectMeta, ...]:
        """Return its objects."""
        return self._manifest.objects

    def advance(self, ts: int) -> bool:
        """Raise the resolved ts; return False if it is not larger."""
        with self._lock:
            if ts <= self._resolved_ts:
                return False
            self._resolved_ts = ts
            return True

    def add(self, batch: ChangeBatch) -> None:
        """Take over a durable batch; rows that a manifest already covers (recovery reads them again) are left out."""
        with self._lock:
            kept = _above(batch, self._manifest.flushed_ts)
            if kept is not None:
                self._memory.add(kept)

    def view(self, tables: Sequence[TableSchema], from_ts: int | None = None, to_ts: int | None = None) -> SpanView:
        """Return a consistent picture for a reader; with checkpoints where a window reaches back behind the manifest."""
        with self._lock:
            manifest, rows, resolved_ts = self._manifest, self._memory.rows(), self._resolved_ts
        state = SpanState(
            span_id=manifest.span_id,
            span=manifest.span,
            resolved_ts=resolved_ts,
            flushed_ts=manifest.flushed_ts,
            history_start_ts=manifest.history_start_ts,
            base_ts=manifest.base_ts,
            objects=manifest.objects,
            tables=tuple(tables),
            transfer_ts=manifest.transfer_ts,
        )
        return SpanView(state if _reaches(state, from_ts, to_ts) else self._with_checkpoints(state), rows, self._space)

    def _with_checkpoints(self, state: SpanState) -> SpanState:
        """Return a state that reaches back as far as the checkpoints do. What left the manifest since it was taken is in both."""
        with self._lock:
            oldest = self._checkpoints.reach(state.history_start_ts)
            objects, transfer_ts = self._checkpoints.objects, self._checkpoints.transfer_ts
        if oldest is None:
            return state
        return msgspec.structs.replace(
            state,
            history_start_ts=min(oldest.from_ts, state.history_start_ts),
            base_ts=oldest.base_ts if oldest.base_ts is not None else state.base_ts,
            objects=tuple({o.path: o for o in (*objects, *state.objects)}.values()),
            transfer_ts=tuple(sorted({*transfer_ts, *state.transfer_ts})),
        )

    def unseen(self, batch: ChangeBatch) -> ChangeBatch | None:
        """Return a batch without the rows at or below the resolved ts, which the span must hold already.

        A range that starts again may repeat them. One that is not held breaks the promise of the resolved ts.
        """
        resolved_ts = self._resolved_ts
        if batch.header.min_ts > resolved_ts:
            return batch
        view = self.view(())
        # What lies before the history that is kept cannot be looked up; it was promised when its resolved ts was.
        floor_ts = max(batch.header.min_ts - 1, view.state.history_start_ts)
        late = window_rows(batch.records, floor_ts, resolved_ts)
        held = [b.records.select([COMMIT_TS, KEY]) for b in drain(side_handles(view, batch.header.kind, floor_ts, resolved_ts))]
        rows = pl.DataFrame(pl.from_arrow(pa.Table.from_batches([late.select([COMMIT_TS, KEY])])))
        if held:
            rows = rows.join(pl.DataFrame(pl.from_arrow(pa.Table.from_batches(held))), on=[COMMIT_TS, KEY], how="anti")
        if rows.height:
            first_ts = int(rows[COMMIT_TS].to_numpy().min())
            raise PenstockError(
                "RESOLVED_TS_VIOLATED", f"span {self.span_id}: {rows.height} new rows from ts {first_ts}, resolved ts is {resolved_ts}"
            )
        return _above(batch, resolved_ts)

    def flushable_nbytes(self) -> int:
        """Return how many bytes of memory lie wholly at or below the resolved ts."""
        with self._lock:
            rows = self._memory.rows()
            return sum(b.header.nbytes for side in BatchKind for b in rows.side(side) if b.header.max_ts <= self._resolved_ts)

    def held_ts(self) -> int:
        """Return the ts up to which every row that the span has is in its objects: its resolved ts, unless memory holds an older row."""
        with self._lock:
            rows = self._memory.rows()
            oldest_ts = min((b.header.min_ts for side in BatchKind for b in rows.side(side)), default=self._resolved_ts + 1)
            return max(self._manifest.flushed_ts, min(self._resolved_ts, oldest_ts - 1))

    def flush(self, tables: Sequence[TableSchema]) -> bool:
        """Write the rows at or below the resolved ts to objects, publish them in a manifest, and forget them; False if there are none."""
        with self._flushing:
            flushed = False
            while True:
                with self._lock:
                    old, rows, cut_ts = self._manifest, self._memory.rows(), self._resolved_ts
                new = tuple(self._write_memory(old, rows, cut_ts, tables))
                if not new:
                    return flushed
                flushed = True
                if self._publish(manifest_edits.flushed(old, new, cut_ts), cut_ts):
                    return True
                self._writer.discard(new)  # An earlier attempt had come through: its objects hold these rows.

    def merge(self, tables: Sequence[TableSchema]) -> int:
        """Write the state as merged objects in the place of those that make it up now; return how many were replaced.

        Flushes go on meanwhile. Nothing is merged where the state is not known, or nothing was flushed since the last merge.
        """
        with self._merging:
            view = self.view(tables)
            plan = plan_merge(view.state)
            if plan is None:
                return 0
            return self.commit_merge(plan, write_merge(view, plan.merge_ts, self._write_for(tables)), tables)

    def commit_merge(self, plan: MergePlan, merged: Sequence[ObjectMeta], tables: Sequence[TableSchema]) -> int:
        """Put merged objects in the place of what they were made of; return how many were replaced, 0 where another merge came first."""
        with self._flushing:
            sources = set(plan.sources)
            if not sources <= {o.path for o in self._manifest.objects if o.delete_ts == 0}:
                self._writer.discard(merged)
                return 0
            numbered, _ = with_row_ids(merged, self._manifest.next_row)
            commit = commit_of(self.view(tables), numbered, plan.merge_ts, self._write_for(tables))
            if self._publish(manifest_edits.merged(self._manifest, commit, sources), self._resolved_ts):
                return len(sources)
            # An earlier attempt at a manifest had come through, so this merge has read an older one: another will do it.
            self._writer.discard((*commit.merged, *commit.transferred))
            return 0

    def _write_for(self, tables: Sequence[TableSchema]) -> Write:
        number = self._manifest.number + 1
        return lambda side, kind, batches, commit_ts: self._writer.write(number, side, kind, batches, tables, commit_ts)

    def spill(self, directory: Path) -> int:
        """Move large batches from the heap to a mapped file; return how many bytes."""
        with self._flushing:
            with self._lock:
                waiting = self._memory.heap_batches()
            moved = 0
            for kind, batches in waiting.items():
                if batches:
                    spilled = spill_batches(directory, batches)
                    moved += sum(b.header.nbytes for b in spilled)
                    with self._lock:
                        self._memory.replace_spilled(kind, spilled)
            return moved

    def expire_history(self, ts: int, checkpoints_ts: int) -> int:
        """Give up history at or below a ts as far as whole objects serve nothing else; return how many left the manifest.

        They go to a checkpoint, and from there, at or below ``checkpoints_ts``, for good. Where the state is known, only objects that a
        merge has replaced may leave; otherwise every object that holds nothing later.
        """
        with self._flushing:
            old = self._manifest
            known, (leaving, start_ts) = old.base_ts is not None, manifest_edits.leaving(old, ts)
            if leaving:
                transfers = [t for t in old.transfer_ts if t <= start_ts]
                with self._lock:
                    self._checkpoints.add(old.history_start_ts, start_ts, old.base_ts, leaving, transfers)
                while not self._publish(manifest_edits.without(self._manifest, leaving, start_ts, known=known), self._resolved_ts):
                    pass
            with self._lock:
                dropped = self._checkpoints.expire(checkpoints_ts)
            kept = {o.path for o in self._manifest.objects}
            self._writer.discard([o for o in dropped if o.path not in kept])
            return len(leaving)

    def reset(self, start_ts: int) -> None:
        """Forget everything and begin again above a ts, because the upstream's log has a hole before it.

        Nothing may be appended meanwhile. The objects stay until they are old, because readers may have them open.
        """
        with self._flushing:
            if start_ts < self._resolved_ts:
                raise PenstockError(
                    "RESOLVED_TS_VIOLATED", f"span {self.span_id}: it begins again at ts {start_ts}, resolved ts is {self._resolved_ts}"
                )
            while not self._publish(manifest_edits.begun_again(self._manifest, start_ts), start_ts):
                pass
            with self._lock:
                self._checkpoints.clear()
                self._resolved_ts = start_ts

    def remove_old_orphans(self, written_before_ms: int) -> int:
        """Remove objects that neither manifest nor checkpoints name and that were written before a time; return how many.

        Those of a bootstrap are left while any of its records is younger: whoever wrote them commits them later.
        """
        old = orphans.files_before(self._space, self.span_id, written_before_ms)
        # No manifest is made meanwhile, so none can come to name what goes.
        with self._flushing:
            return orphans.remove(self._space, old - self._named())

    def names(self, path: str) -> bool:
        """Return whether an object is among those that manifest or checkpoints name now."""
        with self._lock:
            return path in self._named()

    def _named(self) -> set[str]:
        return {o.path for o in (*self._manifest.objects, *self._checkpoints.objects)}

    def remove_orphans(self) -> int:
        """Remove objects that no manifest names, left by a crash between object and manifest; return how many.

        Only for the owner, before it flushes. Bulk objects are left: whoever writes them commits them later.
        """
        return orphans.remove(self._space, orphans.files(self._space, self.span_id) - self._named())

    def commit_bulk(self, objects: Sequence[ObjectMeta], commit_ts: int, base_ts: int | None = None) -> None:
        """Make objects that were written elsewhere visible in one step, all with one commit ts, as what the span held at that ts.

        The state is known from ``base_ts`` on, which is later than ``commit_ts`` where the objects lack rows that changed in between.
        Once the state is known, committing again changes nothing: a bootstrap that runs again may offer other objects.
        """
        self._check_bulk(objects, commit_ts)
        with self._flushing:
            while self._manifest.base_ts is None:
                if self._manifest.history_start_ts > commit_ts:
                    raise PenstockError(
                        "STALE_READ",
                        f"span {self.span_id}: its log begins at ts {self._manifest.history_start_ts}, after a state of ts {commit_ts}",
                    )
                # The rows are no changes: a tail that crosses their ts would show them as such, so history begins there.
                known_ts = commit_ts if base_ts is None else base_ts
                self._publish(manifest_edits.filled(self._manifest, objects, known_ts, commit_ts), self._resolved_ts)

    def commit_changes(self, objects: Sequence[ObjectMeta], commit_ts: int) -> None:
        """Make objects that were written elsewhere visible in one step as changes at a ts that is not resolved yet; idempotent."""
        self._check_bulk(objects, commit_ts)
        paths = {o.path for o in objects}
        with self._flushing:
            while not paths <= {o.path for o in self._manifest.objects}:
                with self._lock:
                    if commit_ts <= self._resolved_ts:
                        raise PenstockError(
                            "RESOLVED_TS_VIOLATED",
                            f"span {self.span_id}: bulk changes at ts {commit_ts}, at or below the resolved ts",
                        )
                self._publish(manifest_edits.filled(self._manifest, objects, self._manifest.base_ts), self._resolved_ts)

    def _check_bulk(self, objects: Sequence[ObjectMeta], commit_ts: int) -> None:
        if any((o.commit_ts, o.span_id, o.object_kind) != (commit_ts, self.span_id, ObjectKind.BULK) for o in objects):
            raise PenstockError("WINDOW_INVALID", f"span {self.span_id}: a bulk object does not carry commit ts {commit_ts}")

    def _write_memory(self, old: Manifest, rows: MemoryRows, cut_ts: int, tables: Sequence[TableSchema]) -> Iterator[ObjectMeta]:
        for side in BatchKind:
            batches = drain([OrderedHandle(b) for b in rows.sources(side, old.flushed_ts, cut_ts)])
            yield from self._writer.write(old.number + 1, side, ObjectKind.APPENDABLE, batches, tables)

    def _publish(self, manifest: Manifest, resolved_ts: int) -> bool:
        """Publish under the next number and install what holds it; False if that is what an earlier attempt wrote."""
        wanted = msgspec.structs.replace(manifest, number=manifest.number + 1, resolved_ts=resolved_ts)
        installed = write_manifest(self._space, wanted)
        with self._lock:
            self._manifest = installed
            self._memory.drop_through(installed.flushed_ts)
        return msgspec.structs.replace(installed, number=wanted.number) == wanted


def _reaches(state: SpanState, from_ts: int | None, to_ts: int | None) -> bool:
    """Return whether the manifest alone answers a window; without one, it is asked for what it holds now."""
    if from_ts is None or to_ts is None:
        return True
    if from_ts == TS_ZERO:
        return state.base_ts is not None and state.base_ts <= to_ts
    return from_ts >= state.history_start_ts


def _above(batch: ChangeBatch, ts: int) -> ChangeBatch | None:
    """Return the rows of a batch above a ts, None for none."""
    if batch.header.min_ts > ts:
        return batch
    if batch.header.max_ts <= ts:
        return None
    memory = SpanMemory()
    memory.add(batch)
    memory.drop_through(ts)
    return memory.rows().side(batch.header.kind)[0]
