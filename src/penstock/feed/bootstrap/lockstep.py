"""Two states of a table side by side: what stands in both is left out while they are read, so that only the rest is kept.

Both come in batches; the old state is in the order of the row keys, and so is, mostly, the new one. Each batch of the new state meets the
rows of the old one up to its last key. A row of one side is left out together with one row of the other that has the same key and the
same values, and never otherwise, so what is left differs exactly as the states do; where the order is another, more is left. Needs
the memory of a few batches. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import KEY
from penstock.store.changes.ordering import concat_records

WAITING_BYTES_MAX = 64 * 1024 * 1024
Put = Callable[[pa.RecordBatch], None]
_Mask = npt.NDArray[np.bool_]


def leave_out_equal(old: Iterator[pa.RecordBatch], new: Iterator[pa.RecordBatch], put_old: Put, put_new: Put, *, unique: bool) -> None:
    """Read both states to their ends and hand over what is left of each; ``unique`` where a key names one row of a state at most."""
    waiting: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in new:
        if batch.num_rows == 0:
            continue
        last = _last_key(batch)
        while (not waiting or _last_key(waiting[-1]) <= last) and (more := next(old, None)) is not None:
            waiting.append(more)
            nbytes += more.nbytes
            if nbytes > WAITING_BYTES_MAX:
                # The states have little in common, or the new one comes in another order: the comparison in buckets finds what is equal.
                _put_all(waiting, put_old)
                nbytes = 0
        if not waiting:
            put_new(batch)
            continue
        held = concat_records(waiting)
        upto = _count_upto(held, last)
        waiting = [held.slice(upto)] if upto < held.num_rows else []
        nbytes = sum(records.nbytes for records in waiting)
        _meet(held.slice(0, upto), batch, put_old, put_new, unique)
    _put_all(waiting, put_old)
    for rest in old:
        put_old(rest)


def _put_all(waiting: list[pa.RecordBatch], put: Put) -> None:
    for records in waiting:
        put(records)
    waiting.clear()


def _last_key(records: pa.RecordBatch) -> bytes:
    key: bytes = records.column(KEY)[-1].as_py()
    return key


def _count_upto(records: pa.RecordBatch, key: bytes) -> int:
    """Return how many rows come first whose keys are at or below a key."""
    above = pc.greater(records.column(KEY), pa.scalar(key, pa.binary()))
    first = pc.index(above, pa.scalar(True)).as_py()
    return records.num_rows if first < 0 else int(first)


def _meet(old: pa.RecordBatch, new: pa.RecordBatch, put_old: Put, put_new: Put, unique: bool) -> None:
    if old.num_rows == new.num_rows and old.column(KEY).equals(new.column(KEY)):
        same = _same_rows(old, new)
        left_old, left_new = ~same, ~same
    elif unique and old.num_rows:
        places = pc.index_in(new.column(KEY), value_set=old.column(KEY))
        known = places.is_valid().to_numpy(zero_copy_only=False)
        chosen = places.drop_null()
        same = _same_rows(old.take(chosen), new.filter(pa.array(known)))
        left_new, left_old = np.ones(new.num_rows, dtype=np.bool_), np.ones(old.num_rows, dtype=np.bool_)
        left_new[np.flatnonzero(known)[same]] = False
        left_old[chosen.to_numpy()[same]] = False
    else:
        left_old, left_new = np.ones(old.num_rows, dtype=np.bool_), np.ones(new.num_rows, dtype=np.bool_)
    for records, left, put in ((old, left_old, put_old), (new, left_new, put_new)):
        if left.any():
            put(records if left.all() else records.filter(pa.array(left)))


def _same_rows(old: pa.RecordBatch, new: pa.RecordBatch) -> _Mask:
    """Return which rows, given in the same order, have the same values; NaN counts as different here."""
    same = np.ones(new.num_rows, dtype=np.bool_)
    for name in new.schema.names:
        ours, theirs = old.column(name), new.column(name)
        if ours.equals(theirs):
            continue
        equal = pc.fill_null(pc.equal(ours, theirs), False)
        if ours.null_count and theirs.null_count:
            equal = pc.or_(equal, pc.and_(ours.is_null(), theirs.is_null()))
        same &= equal.to_numpy(zero_copy_only=False)
    return same
