"""The state of one span in the event store: memory, objects, resolved ts, and how memory becomes objects.

Invariants: every row at or below ``flushed_ts`` is in the objects, every row above it in memory, so appendable objects do not overlap
in time; ``flushed_ts <= resolved_ts``; the manifest that names an object is durable before the memory forgets its rows. Runs in the
log service.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa

from penstock.model.batch import BATCH_ROWS_MAX, BATCH_ROWS_MIN, COMMIT_TS, KEY, BatchKind, ChangeBatch
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.store.changes import SpanState, SpanView, side_handles
from penstock.store.manifest import Manifest, write_manifest
from penstock.store.memory import MemoryRows, SpanMemory
from penstock.store.object_file import ObjectKind, ObjectMeta, ObjectWriter
from penstock.store.objects import ObjectSpace
from penstock.store.ordered_handle import TS_END, OrderedHandle, SideReader
from penstock.store.ordering import window_rows
from penstock.store.spill import spill_batches


@dataclass(frozen=True)
class ObjectSettings:
    """How memory is written to objects."""

    nbytes_max: int
    compression: str | None


class SpanStore:
    """One span. Thread safe: ``_lock`` guards the state, ``_flushing`` lets one flush run at a time."""

    def __init__(self, space: ObjectSpace, manifest: Manifest, rng: random.Random, written: ObjectSettings) -> None:
        self._space = space
        self._manifest = msgspec.structs.replace(manifest, writer=f"{rng.getrandbits(64):016x}")
        self._rng = rng
        self._written = written
        self._memory = SpanMemory()
        self._resolved_ts = manifest.resolved_ts
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self.flush_error: PenstockError | None = None

    @classmethod
    def create(cls, space: ObjectSpace, span_id: int, span: Span, start_ts: int, rng: random.Random, written: ObjectSettings) -> SpanStore:
        """Make the store of a new span whose capture begins above ``start_ts``."""
        manifest = Manifest(
            number=0,
            span_id=span_id,
            span=span,
            resolved_ts=start_ts,
            flushed_ts=start_ts,
            history_start_ts=start_ts,
            base_ts=TS_ZERO if start_ts == TS_ZERO else None,
            writer="",
        )
        return cls(space, manifest, rng, written)

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

    def view(self, tables: Sequence[TableSchema]) -> SpanView:
        """Return a consistent picture for a reader."""
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
        )
        return SpanView(state, rows, self._space)

    def unseen(self, batch: ChangeBatch) -> ChangeBatch | None:
        """Return a batch without the rows at or below the resolved ts, which the span must hold already.

        A range that starts again may repeat them. One that is not held breaks the promise of the resolved ts.
        """
        resolved_ts = self._resolved_ts
        if batch.header.min_ts > resolved_ts:
            return batch
        late = window_rows(batch.records, TS_ZERO, resolved_ts)
        view = self.view(())
        floor_ts = max(batch.header.min_ts - 1, TS_ZERO)
        held = [b.records.select([COMMIT_TS, KEY]) for b in _drain(side_handles(view, batch.header.kind, floor_ts, resolved_ts))]
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

    def flush(self, tables: Sequence[TableSchema]) -> bool:
        """Write the rows at or below the resolved ts to objects, publish them in a manifest, and forget them; False if there are none."""
        with self._flushing:
            flushed = False
            while True:
                with self._lock:
                    old, rows, cut_ts = self._manifest, self._memory.rows(), self._resolved_ts
                new = tuple(self._write_objects(old, rows, cut_ts, tables))
                if not new:
                    return flushed
                flushed = True
                if self._publish(msgspec.structs.replace(old, resolved_ts=cut_ts, flushed_ts=cut_ts, objects=(*old.objects, *new))):
                    return True
                for meta in new:  # An earlier attempt had come through: its objects hold these rows.
                    self._space.delete(meta.path)

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

    def truncate_history(self, ts: int) -> int:
        """Give up changes at or below a ts that is flushed: remove the objects that hold nothing else; return how many."""
        with self._flushing:
            while True:
                old = self._manifest
                ts = min(ts, old.flushed_ts)
                if ts <= old.history_start_ts:
                    return 0
                gone = [o for o in old.objects if o.max_ts <= ts]
                kept = tuple(o for o in old.objects if o.max_ts > ts)
                new = msgspec.structs.replace(old, resolved_ts=self._resolved_ts, history_start_ts=ts, base_ts=None, objects=kept)
                if self._publish(new):
                    break
            for meta in gone:
                self._space.delete(meta.path)
            return len(gone)

    def expire_history(self, ts: int) -> int:
        """Give up the objects that hold nothing above a ts, and no more history than they held; return how many."""
        ends = [o.max_ts for o in self._manifest.objects if o.max_ts <= ts]
        return self.truncate_history(max(ends)) if ends else 0

    def remove_orphans(self) -> int:
        """Remove objects that no manifest names, left by a crash between object and manifest; return how many.

        Only for the owner, before it flushes. Bulk objects are left: whoever writes them commits them later.
        """
        named = {o.path for o in self._manifest.objects}
        orphans = [name for name in self._space.list_names(f"spans/{self.span_id}/objects/") if name not in named]
        for name in orphans:
            self._space.delete(name)
        return len(orphans)

    def commit_bulk(self, objects: Sequence[ObjectMeta], commit_ts: int) -> None:
        """Make objects that were written elsewhere visible in one step, all with one commit ts, as the span's state at that ts.

        Once a state is committed for that ts, committing again changes nothing: a bootstrap that runs again may offer other objects.
        """
        if any((o.commit_ts, o.span_id, o.object_kind) != (commit_ts, self.span_id, ObjectKind.BULK) for o in objects):
            raise PenstockError("WINDOW_INVALID", f"span {self.span_id}: a bulk object does not carry commit ts {commit_ts}")
        with self._flushing:
            while True:
                old = self._manifest
                if old.base_ts == commit_ts:
                    return
                together = (*old.objects, *objects)
                if self._publish(msgspec.structs.replace(old, resolved_ts=self._resolved_ts, base_ts=commit_ts, objects=together)):
                    return

    def _write_objects(self, old: Manifest, rows: MemoryRows, cut_ts: int, tables: Sequence[TableSchema]) -> Iterator[ObjectMeta]:
        for side in BatchKind:
            handles = [OrderedHandle(b) for b in rows.sources(side, old.flushed_ts, cut_ts)]
            for part, batches in enumerate(_by_size(_drain(handles), self._written.nbytes_max)):
                # Names sort as the objects are read: two of them may share a ts where a large transaction was cut.
                name = f"{old.number + 1:012d}-{part:06d}-{self._rng.getrandbits(32):08x}-{side.name.lower()}"
                path = f"spans/{old.span_id}/objects/{name}.arrow"
                writer = ObjectWriter(path, ObjectKind.APPENDABLE, batches, tables, self._written.compression)
                if not self._space.put_new(path, writer.parts()):
                    raise PenstockError("STORE_FAILED", f"object {path} exists already")
                yield writer.meta

    def _publish(self, manifest: Manifest) -> bool:
        """Publish under the next number and install what holds it; False if that is what an earlier attempt wrote."""
        wanted = msgspec.structs.replace(manifest, number=manifest.number + 1)
        installed = write_manifest(self._space, wanted)
        with self._lock:
            self._manifest = installed
            self._memory.drop_through(installed.flushed_ts)
        return installed == wanted


def _by_size(batches: Iterator[ChangeBatch], nbytes_max: int) -> Iterator[Iterator[ChangeBatch]]:
    """Cut a stream of batches into streams of about a size. Each must be read to its end before the next is asked for."""
    waiting = next(batches, None)

    def one() -> Iterator[ChangeBatch]:
        nonlocal waiting
        nbytes = 0
        while waiting is not None and (nbytes == 0 or nbytes + waiting.header.nbytes <= nbytes_max):
            yield waiting
            nbytes += waiting.header.nbytes
            waiting = next(batches, None)

    while waiting is not None:
        yield one()


def _drain(handles: Sequence[OrderedHandle]) -> Iterator[ChangeBatch]:
    """Yield the batches of several handles in ts order."""
    reader = SideReader(handles, BATCH_ROWS_MIN, BATCH_ROWS_MAX)
    while True:
        reader.fill()
        taken = reader.take_below(TS_END)
        if not taken:
            return
        yield from taken


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
