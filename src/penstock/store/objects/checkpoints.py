"""Checkpoints: which objects serve history that a span's manifest no longer holds.

When objects leave the manifest, an incremental checkpoint says which ones and for which ts; every few of them, and whenever the oldest
history is given up, a global one takes the place of all before it. So the manifest that recovery reads stays small, and old ranges stay
readable. A chain is one global checkpoint and the incremental ones after it, without holes up to the manifest; a chain with a hole is
not used. ``spans/<span id>/checkpoint/<number>.json``, format version 1, in the envelope of manifests. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from penstock.store.objects.manifest import seal, unseal
from penstock.store.objects.object_file import ObjectMeta
from penstock.store.objects.objects import ObjectSpace

MAGIC = "penstock-checkpoint"
VERSION = 1
INCREMENTAL_MAX = 8
"""After so many incremental checkpoints a global one is written."""


class CheckpointKind(StrEnum):
    """Whether a checkpoint holds all that the chain holds, or adds to the one before."""

    GLOBAL = "global"
    INCREMENTAL = "incremental"


class Checkpoint(msgspec.Struct, frozen=True):
    """Objects that serve changes in ``(from_ts, to_ts]`` beside those that are still in later checkpoints and the manifest.

    ``base_ts``: from this ts on the state is known with them; None where it is not.
    """

    number: int
    kind: CheckpointKind
    span_id: int
    from_ts: int
    to_ts: int
    base_ts: int | None
    objects: tuple[ObjectMeta, ...]
    transfer_ts: tuple[int, ...] = ()


def checkpoint_prefix(span_id: int) -> str:
    """Return where the checkpoints of a span lie."""
    return f"spans/{span_id}/checkpoint/"


class CheckpointChain:
    """The checkpoints of one span. The owner's lock guards it."""

    def __init__(self, space: ObjectSpace, span_id: int, chain: Sequence[Checkpoint] = ()) -> None:
        self._space = space
        self._span_id = span_id
        self.entries = list(chain)

    @classmethod
    def load(cls, space: ObjectSpace, span_id: int, clean: bool = True) -> CheckpointChain:
        """Read the newest global checkpoint and what follows it; older files, left by a crash, are removed by the owner (``clean``)."""
        names = [n for n in space.list_names(checkpoint_prefix(span_id)) if n.endswith(".json")]
        chain: list[Checkpoint] = []
        for name in reversed(names):
            entry = unseal(name, space.get(name), MAGIC, VERSION, Checkpoint)
            chain.insert(0, entry)
            if entry.kind is CheckpointKind.GLOBAL:
                break
        for name in names[: len(names) - len(chain)] if clean else ():
            space.delete(name)
        return cls(space, span_id, chain)

    @property
    def objects(self) -> tuple[ObjectMeta, ...]:
        """Return the objects that the chain keeps."""
        return tuple({o.path: o for entry in self.entries for o in entry.objects}.values())

    @property
    def transfer_ts(self) -> tuple[int, ...]:
        """Return the delete ts of merges that transferred tombstones."""
        return tuple(sorted({ts for entry in self.entries for ts in entry.transfer_ts}))

    def reach(self, history_start_ts: int) -> Checkpoint | None:
        """Return the entry with which unbroken history begins, None where the chain does not join the manifest."""
        edge_ts, first = history_start_ts, None
        for entry in reversed(self.entries):
            if entry.to_ts < edge_ts:
                break
            edge_ts, first = min(edge_ts, entry.from_ts), entry
        return first

    def add(self, from_ts: int, to_ts: int, base_ts: int | None, objects: Sequence[ObjectMeta], transfer_ts: Sequence[int]) -> None:
        """Write what leaves the manifest; durable when it returns. The manifest without it may be published then."""
        kind = CheckpointKind.INCREMENTAL if self.entries else CheckpointKind.GLOBAL
        self._write(Checkpoint(self._next, kind, self._span_id, from_ts, to_ts, base_ts, tuple(objects), tuple(transfer_ts)))
        if len(self.entries) > INCREMENTAL_MAX:
            first, last = self.entries[0], self.entries[-1]
            self._replace(first.from_ts, last.to_ts, first.base_ts, self.objects)

    def expire(self, ts: int) -> tuple[ObjectMeta, ...]:
        """Give up history at or below a ts as far as whole objects serve nothing else; return the objects that no checkpoint names now."""
        gone = tuple(o for o in self.objects if leaves_at(o) <= ts)
        if not gone:
            return ()
        first, last = self.entries[0], self.entries[-1]
        kept = tuple(o for o in self.objects if leaves_at(o) > ts)
        start_ts = max(first.from_ts, *(leaves_at(o) for o in gone))
        base_ts = None if first.base_ts is None else max(first.base_ts, start_ts)
        self._replace(min(start_ts, last.to_ts), last.to_ts, base_ts, kept)
        return gone

    def clear(self) -> tuple[ObjectMeta, ...]:
        """Give up everything; return the objects that were kept."""
        gone = self.objects
        for entry in self.entries:
            self._space.delete(f"{checkpoint_prefix(self._span_id)}{entry.number:012d}.json")
        self.entries = []
        return gone

    @property
    def _next(self) -> int:
        return self.entries[-1].number + 1 if self.entries else 1

    def _replace(self, from_ts: int, to_ts: int, base_ts: int | None, objects: tuple[ObjectMeta, ...]) -> None:
        old = [f"{checkpoint_prefix(self._span_id)}{e.number:012d}.json" for e in self.entries]
        transfers = tuple(ts for ts in self.transfer_ts if ts > from_ts)
        entry = Checkpoint(self._next, CheckpointKind.GLOBAL, self._span_id, from_ts, to_ts, base_ts, objects, transfers)
        self._write(entry)
        self.entries = [entry]
        for name in old:
            self._space.delete(name)

    def _write(self, entry: Checkpoint) -> None:
        """Write under the next free number. A taken one is an earlier attempt whose answer was lost: it says nothing wrong, so it stays."""
        while True:
            path = f"{checkpoint_prefix(self._span_id)}{entry.number:012d}.json"
            if self._space.put_new(path, [seal(MAGIC, VERSION, msgspec.json.encode(entry))]):
                break
            self.entries.append(unseal(path, self._space.get(path), MAGIC, VERSION, Checkpoint))
            entry = msgspec.structs.replace(entry, number=entry.number + 1)
        self.entries.append(entry)


def leaves_at(meta: ObjectMeta) -> int:
    """Return the ts at which history no longer needs an object: when it was replaced, or its last row where it never was."""
    return meta.delete_ts or meta.max_ts
