"""Verification against an upstream that cannot read the past: a binlog or a replication slot beside tables that move on.

Each table is read as it is now, in one consistent read between two settled ts, and compared with the target as of the later one, once the
checkpoint has passed it. A row that changed between the two may be either of its versions, so it is left out, and the table is read again,
a few times, until nothing changed meanwhile or only such rows differ. A difference in any other row is looked at twice: a transaction
stands in the log before its rows can be read, so the first look may miss one that the target has. Runs in the server; without a server
(``verify_standing``) the upstream must stand still.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence

import polars as pl

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.table import COMMIT_TS, TableSchema
from penstock.readback.lineage import lineage
from penstock.readback.reader import StorageReader
from penstock.server.verify.table_comparison import TableComparison, TableVerdict, Tell, compared
from penstock.server.verify.verification import Verdict, present_rows, published_ts, rows_of
from penstock.source.contract import Upstream

ATTEMPTS_MAX = 5
CONFIRM_S = 1.0
"""How long a difference is let rest before it is looked at again."""
WAIT_S_MAX = 300.0
_LOOK_S = 0.2


class MovingVerifier:
    """Compares targets with one upstream that moves."""

    def __init__(self, upstream: Upstream, settled_ts: Callable[[], int], clock: Clock, wait_s_max: float = WAIT_S_MAX) -> None:
        """``settled_ts`` gives a ts that covers everything acknowledged before the call, and that checkpoints pass by themselves."""
        self._upstream = upstream
        self._settled_ts = settled_ts
        self._clock = clock
        self._wait_s_max = wait_s_max

    def verify(self, reader: StorageReader, table_ids: Sequence[int], tell: Tell = lambda _: None) -> Verdict:
        """Compare every given table as of a ts of its own, close to now; the verdict carries the last of them."""
        verdicts: list[TableVerdict] = []
        last_ts = 0
        for table in _tables(self._upstream, table_ids):
            tell(f"{table.full_name}: table {len(verdicts) + 1}")
            verdict, ts = self._compared(reader, table, tell)
            last_ts = max(last_ts, ts)
            verdicts.append(verdict)
        return Verdict(last_ts or reader.limit_ts(), tuple(verdicts), reader.stops_at_checkpoint)

    def _compared(self, reader: StorageReader, table: TableSchema, tell: Tell) -> tuple[TableVerdict, int]:
        reached: list[int] = []

        def compare() -> TableVerdict:
            verdict, ts = self._verify_table(reader, table, tell)
            reached.append(ts)
            return verdict

        return compared(table.full_name, compare), max(reached, default=0)

    def _verify_table(self, reader: StorageReader, table: TableSchema, tell: Tell) -> tuple[TableVerdict, int]:
        first_ts, found = 0, False
        # One look more than the attempts, for what the last of them finds.
        for attempt in range(1, ATTEMPTS_MAX + 2):
            with contextlib.closing(TableComparison(table, tell)) as comparison:
                before_ts = self._settled_ts()
                first_ts = first_ts or before_ts
                comparison.add_rows(rows_of(present_rows(self._upstream, table.table_id), table))
                # The snapshot that a target begins with may lie later than anything that was ever committed.
                reader.refresh()
                after_ts = max(self._settled_ts(), reader.limit_ts())
                self._wait_for_checkpoint(reader, after_ts)
                comparison.read_target(reader, lineage(reader, table.schema, table.table, reader.limit_ts(after_ts)))
                verdict = comparison.verdict()
                if verdict.identical:
                    break
                if not comparison.key_names and _has_moved(reader, table, before_ts, after_ts):
                    # Copies cannot be told apart, so it must stand for a moment.
                    verdict = TableVerdict(table.full_name, 0, unchecked="its rows have no key, and changed whenever it was looked at")
                    if attempt >= ATTEMPTS_MAX:
                        break
                    continue
                moved = changed_keys(reader, table, comparison.key_names, first_ts if found else before_ts, after_ts)
                settled = verdict if moved is None or moved.height == 0 else comparison.verdict(moved)
                if (settled.differs and found) or (not settled.differs and attempt >= ATTEMPTS_MAX):
                    verdict = settled
                    break
                # What is found once is looked at again, without anything that moved since the look before.
                found, first_ts = settled.differs, first_ts if found else before_ts
                if found:
                    self._clock.wait(threading.Event(), CONFIRM_S)
        return verdict, after_ts

    def _wait_for_checkpoint(self, reader: StorageReader, ts: int) -> None:
        never, deadline_s = threading.Event(), self._clock.monotonic_s() + self._wait_s_max
        reader.refresh()
        while reader.limit_ts() < ts:
            if self._clock.monotonic_s() > deadline_s:
                raise PenstockError(
                    "CHECKPOINT_MISSING",
                    f"the checkpoint did not pass ts {ts} within {self._wait_s_max:.0f} s",
                    "See `penstock feed show`.",
                )
            self._clock.wait(never, _LOOK_S)
            reader.refresh()


def verify_standing(reader: StorageReader, upstream: Upstream, table_ids: Sequence[int], tell: Tell = lambda _: None) -> Verdict:
    """Compare every given table with what the upstream holds now, which is right while nothing changes there."""
    checkpoint_ts = published_ts(reader)
    verdicts: list[TableVerdict] = []
    for table in _tables(upstream, table_ids):
        tell(f"{table.full_name}: table {len(verdicts) + 1}")
        verdicts.append(compared(table.full_name, functools.partial(_verify_standing, reader, upstream, table, tell)))
    return Verdict(checkpoint_ts, tuple(verdicts), stops_at_checkpoint=False)


def _verify_standing(reader: StorageReader, upstream: Upstream, table: TableSchema, tell: Tell) -> TableVerdict:
    with contextlib.closing(TableComparison(table, tell)) as comparison:
        comparison.read_target(reader, lineage(reader, table.schema, table.table, reader.limit_ts()))
        comparison.add_rows(rows_of(present_rows(upstream, table.table_id), table))
        return comparison.verdict()


def changed_keys(reader: StorageReader, table: TableSchema, keys: Sequence[str], from_ts: int, to_ts: int) -> pl.DataFrame | None:
    """Return the keys that changed in ``(from_ts, to_ts]``, one row each; None where rows have no key or files no commit ts."""
    if not keys or not reader.stops_at_checkpoint:
        return None
    parts = []
    for version, frame in reader.changes(table.schema, table.table, to_ts):
        columns = {c.name.lower(): c.field_name for c in version.columns}
        if all(key.lower() in columns for key in keys):
            moved = frame.filter(pl.col(COMMIT_TS) > from_ts)
            parts.append(moved.select(pl.col(columns[key.lower()]).alias(key) for key in keys))
    return pl.concat(parts, how="vertical_relaxed").unique() if parts else None


def _has_moved(reader: StorageReader, table: TableSchema, from_ts: int, to_ts: int) -> bool:
    """Return whether any row changed in ``(from_ts, to_ts]``; False where files have no commit ts."""
    if not reader.stops_at_checkpoint:
        return False
    return any(frame.filter(pl.col(COMMIT_TS) > from_ts).height for _, frame in reader.changes(table.schema, table.table, to_ts))


def _tables(upstream: Upstream, table_ids: Sequence[int]) -> list[TableSchema]:
    """Return the newest versions of tables; one that is gone is in no comparison."""
    wanted = set(table_ids)
    return [t for t in upstream.list_tables() if t.table_id in wanted]
