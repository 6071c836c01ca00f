"""The state machine of one subscription in the span pipeline.

Owns the rule that a resolved ts waits for the data that was received before it. Data batches are numbered from 1 in the order of
arrival; ``acked_seq`` is the largest N such that all of 1..N are persisted; a resolved ts becomes a barrier that waits for the last
number given out before it. Barriers are kept with growing ``wait_seq`` and strictly growing ts, so they leave in order and never
go back. Pure: no thread, no lock, no callback; one pipeline worker owns each instance. Runs in the log service.
"""

from __future__ import annotations

COMPACT_HEAD_MIN = 1024


class PipelineState:
    """Sequence numbers, what is persisted, and the barriers that wait."""

    __slots__ = ("_head", "_pending", "acked_seq", "advanced_ts", "compactions", "done_set", "inflight", "next_data_seq")

    def __init__(self) -> None:
        self.next_data_seq = 1
        self.acked_seq = 0
        self.done_set: set[int] = set()
        self.inflight: dict[int, int] = {}
        """Weight by sequence number, of batches whose callback has not come."""
        self.advanced_ts = 0
        self.compactions = 0
        self._pending: list[tuple[int, int]] = []
        self._head = 0

    @property
    def pending_barriers(self) -> int:
        """Return how many barriers wait."""
        return len(self._pending) - self._head

    def add_data(self, weight: int) -> int:
        """Give a data batch its number."""
        seq = self.next_data_seq
        self.next_data_seq = seq + 1
        self.inflight[seq] = weight
        return seq

    def add_persisted(self, seq: int) -> int | None:
        """Mark a batch persisted and return its weight, or None if that number was already marked or never given out."""
        weight = self.inflight.pop(seq, None)
        if weight is None:
            return None
        self.done_set.add(seq)
        while self.acked_seq + 1 in self.done_set:
            self.acked_seq += 1
            self.done_set.remove(self.acked_seq)
        return weight

    def add_resolved(self, ts: int) -> bool:
        """Bind a resolved ts to the data that came before it; return False if it says nothing that an earlier one does not.

        Two barriers with the same ``wait_seq`` become one with the larger ts; the one that disappears is reported as dropped too.
        """
        newest_ts = self._pending[-1][1] if self.pending_barriers else self.advanced_ts
        if ts <= newest_ts:
            return False
        wait_seq = self.next_data_seq - 1
        if self.pending_barriers and self._pending[-1][0] == wait_seq:
            self._pending[-1] = (wait_seq, ts)
            return False
        self._pending.append((wait_seq, ts))
        return True

    def take_ready(self) -> list[int]:
        """Remove and return the resolved ts whose data is all persisted, smallest first."""
        pending, head = self._pending, self._head
        while head < len(pending) and pending[head][0] <= self.acked_seq:
            head += 1
        ready = [ts for _, ts in pending[self._head : head]]
        if not ready:
            return ready
        self.advanced_ts = ready[-1]
        self._head = head
        if head == len(pending):
            pending.clear()
            self._head = 0
        elif head >= COMPACT_HEAD_MIN and head * 2 >= len(pending):
            # New barriers keep coming, so the queue may never be empty: without this the flushed prefix would stay for ever.
            del pending[:head]
            self._head = 0
            self.compactions += 1
        return ready
