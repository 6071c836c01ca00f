"""What happens to a span, as the manifest that follows: begun, flushed, merged, filled in bulk, cut off at its old end, begun again.

Each function takes the manifest that holds and gives what the next one says. Its number and its resolved ts are left to whoever publishes
it; nothing is read or written here. Invariants: a row gets its id once, in the order in which objects come; an object that a merge replaced
stays, with its delete ts; apart from a span that begins again, history never begins earlier than it did. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from penstock.model.span import Span
from penstock.model.timestamp import TS_ZERO
from penstock.store.objects.checkpoints import leaves_at
from penstock.store.objects.manifest import Manifest
from penstock.store.objects.merging import MergeCommit
from penstock.store.objects.object_file import ObjectMeta
from penstock.store.objects.span_writer import with_row_ids


def begun(span_id: int, span: Span, start_ts: int) -> Manifest:
    """Return what stands before the first manifest of a span whose capture begins above a ts: its state is known if that is the first."""
    return Manifest(0, span_id, span, start_ts, start_ts, start_ts, TS_ZERO if start_ts == TS_ZERO else None, writer="")


def begun_again(old: Manifest, start_ts: int) -> Manifest:
    """Return one that holds nothing, of a span that begins above a ts, where its state is not known."""
    return msgspec.structs.replace(old, flushed_ts=start_ts, history_start_ts=start_ts, base_ts=None, objects=(), transfer_ts=())


def flushed(old: Manifest, objects: Sequence[ObjectMeta], cut_ts: int) -> Manifest:
    """Return one with objects that hold every row of the memory up to a ts."""
    return msgspec.structs.replace(_with(old, objects), flushed_ts=cut_ts)


def filled(old: Manifest, objects: Sequence[ObjectMeta], base_ts: int | None, history_start_ts: int = TS_ZERO) -> Manifest:
    """Return one with objects that were written elsewhere; changes above a ts stay history, and the state is known from another on."""
    return msgspec.structs.replace(_with(old, objects), base_ts=base_ts, history_start_ts=max(old.history_start_ts, history_start_ts))


def merged(old: Manifest, commit: MergeCommit, sources: Collection[str]) -> Manifest:
    """Return one in which a merge stands for its sources from its commit ts on; its merged objects have their row ids already."""
    ts = commit.commit_ts
    transferred, next_row = with_row_ids(commit.transferred, old.next_row + sum(o.rows for o in commit.merged))
    return msgspec.structs.replace(
        old,
        objects=(
            *(msgspec.structs.replace(o, delete_ts=ts) if o.path in sources else o for o in old.objects),
            *(msgspec.structs.replace(o, create_ts=ts) for o in (*commit.merged, *transferred)),
        ),
        transfer_ts=(*old.transfer_ts, ts) if transferred else old.transfer_ts,
        next_row=next_row,
    )


def leaving(old: Manifest, ts: int) -> tuple[list[ObjectMeta], int]:
    """Return the objects that serve nothing but history at or below a ts, and where history begins without them.

    Where the state is known, only objects that a merge has replaced may leave; otherwise every object that holds nothing later.
    """
    ts = min(ts, old.flushed_ts)
    found = [o for o in old.objects if (o.max_ts <= ts if old.base_ts is None else 0 < o.delete_ts <= ts)]
    return found, max([old.history_start_ts, *(leaves_at(o) for o in found)])


def without(old: Manifest, gone: Sequence[ObjectMeta], start_ts: int, *, known: bool) -> Manifest:
    """Return one without objects that leave: its history begins at a ts, and its state too, if it was known when they were chosen."""
    paths = {o.path for o in gone}
    return msgspec.structs.replace(
        old,
        history_start_ts=max(start_ts, old.history_start_ts),
        base_ts=max(start_ts, old.base_ts or TS_ZERO) if known else None,
        objects=tuple(o for o in old.objects if o.path not in paths),
        transfer_ts=tuple(ts for ts in old.transfer_ts if ts > start_ts),
    )


def _with(old: Manifest, objects: Sequence[ObjectMeta]) -> Manifest:
    numbered, next_row = with_row_ids(objects, old.next_row)
    return msgspec.structs.replace(old, objects=(*old.objects, *numbered), next_row=next_row)
