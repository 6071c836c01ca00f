"""What a broker keeps: partitions with their batches, transactions of producers, offsets of groups.

The rules are those of Kafka: a producer's epoch fences lower ones, a batch that comes again is known by its sequence, what a transaction
wrote is stable when its marker is there, and offsets that travel in a transaction count when it is committed. One lock guards everything.
Runs in tests.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

from penstock.model.clock import SystemClock
from testing.servers.kafka.wire import TRANSACTIONAL, Batch, marker

NONE, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC = 0, 1, 3
OUT_OF_ORDER, INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, TOPIC_EXISTS = 45, 47, 48, 49, 36
_KNOWN_BATCHES = 5
Place = tuple[str, int]


@dataclass
class _Sequence:
    epoch: int = -1
    batches: list[Batch] = field(default_factory=list)


@dataclass
class Partition:
    """One log."""

    batches: list[Batch] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    """First offset of each transaction that is not ended, by its producer."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer, first offset and last offset of what was aborted."""
    sequences: dict[int, _Sequence] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Return the offset that comes next."""
        return self.batches[-1].end if self.batches else 0

    @property
    def stable(self) -> int:
        """Return the offset before which every transaction has ended."""
        return min(self.open.values(), default=self.end)


@dataclass
class Transaction:
    """What the coordinator knows of one transactional id."""

    producer: int
    epoch: int
    timeout_s: float
    begun_s: float = 0.0
    partitions: set[Place] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, Place], tuple[int, str]] = field(default_factory=dict)


class Kept:
    """Everything of one broker. Thread safe by ``lock``, which the caller holds."""

    def __init__(self, partitions: int = 3) -> None:
        self.lock = threading.RLock()
        self.grown = threading.Condition(self.lock)
        self.topics: dict[str, list[Partition]] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.offsets: dict[tuple[str, Place], tuple[int, str]] = {}
        self.transactions: dict[str, Transaction] = {}
        self.default_partitions = partitions
        self.auto_create = True
        self.message_bytes_max = 1 << 20
        self._producers = itertools.count(1000)
        self._epochs: dict[int, int] = {}
        self._clock = SystemClock()

    def make(self, topic: str, partitions: int = 0) -> int:
        """Make a topic."""
        if topic in self.topics:
            return TOPIC_EXISTS
        self.topics[topic] = [Partition() for _ in range(partitions if partitions > 0 else self.default_partitions)]
        return NONE

    def at(self, place: Place) -> Partition | None:
        """Return a partition, or None."""
        found = self.topics.get(place[0], [])
        return found[place[1]] if 0 <= place[1] < len(found) else None

    def append(self, place: Place, batch: Batch) -> tuple[int, int]:
        """Append a batch; return the error and its base offset."""
        partition = self.at(place)
        if partition is None:
            return UNKNOWN_TOPIC, -1
        if batch.producer >= 0:
            if batch.epoch < self._epochs.get(batch.producer, 0):
                return INVALID_EPOCH, -1
            if batch.attributes & TRANSACTIONAL:
                if not any(t.producer == batch.producer and place in t.partitions for t in self.transactions.values()):
                    return INVALID_STATE, -1
                partition.open.setdefault(batch.producer, partition.end)
            known = partition.sequences.setdefault(batch.producer, _Sequence())
            if known.epoch != batch.epoch:
                known.epoch, known.batches = batch.epoch, []
            for other in known.batches:
                if other.sequence == batch.sequence:
                    return NONE, other.base
            wanted = known.batches[-1].sequence + known.batches[-1].count if known.batches else 0
            if batch.sequence != wanted:
                return OUT_OF_ORDER, -1
        placed = batch.placed(partition.end)
        partition.batches.append(placed)
        if batch.producer >= 0:
            known.batches = [*known.batches, placed][-_KNOWN_BATCHES:]
        self.grown.notify_all()
        return NONE, placed.base

    def begin(self, transactional_id: str | None, timeout_s: float) -> tuple[int, int, int]:
        """Give a producer its id and epoch; end what an earlier one of the same name left open."""
        if transactional_id is None:
            producer = next(self._producers)
            self._epochs[producer] = 0
            return NONE, producer, 0
        found = self.transactions.get(transactional_id)
        if found is None:
            found = self.transactions[transactional_id] = Transaction(next(self._producers), -1, timeout_s)
        found.epoch += 1
        found.timeout_s = timeout_s
        self._epochs[found.producer] = found.epoch
        self._finish(found, commit=False)
        return NONE, found.producer, found.epoch

    def joined(self, transactional_id: str, producer: int, epoch: int) -> tuple[int, Transaction | None]:
        """Return the transaction of a producer that may go on with it, or the error."""
        found = self.transactions.get(transactional_id)
        if found is None or found.producer != producer:
            return INVALID_MAPPING, None
        if epoch != found.epoch:
            return INVALID_EPOCH, None
        if not found.begun_s:
            found.begun_s = self._clock.monotonic_s()
        return NONE, found

    def end(self, transactional_id: str, producer: int, epoch: int, commit: bool) -> int:
        """End a transaction."""
        error, found = self.joined(transactional_id, producer, epoch)
        if found is not None:
            self._finish(found, commit)
        return error

    def expire(self) -> None:
        """Abort what was open for too long; its producer is fenced."""
        for found in self.transactions.values():
            if found.begun_s and self._clock.monotonic_s() > found.begun_s + found.timeout_s:
                found.epoch += 1
                self._epochs[found.producer] = found.epoch
                self._finish(found, commit=False)

    def _finish(self, found: Transaction, commit: bool) -> None:
        for place in sorted(found.partitions):
            partition = self.at(place)
            if partition is None or found.producer not in partition.open:
                continue
            first = partition.open.pop(found.producer)
            if not commit:
                partition.aborted.append((found.producer, first, partition.end))
            partition.batches.append(marker(commit, found.producer, found.epoch).placed(partition.end))
        if commit:
            self.offsets |= found.offsets
        found.partitions, found.groups, found.offsets, found.begun_s = set(), set(), {}, 0.0
        self.grown.notify_all()
