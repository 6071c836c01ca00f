"""What happens to an HTTP target once per feed: looking whether it answers, DDLs over several dispatchers, checkpoints.

An address belongs to nobody: every message names its feed, and receivers keep sequences by feed and lane. Invariant: a DDL and a checkpoint
are the same messages however often they are posted. Runs beside the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.sink.contract import DispatcherId, DispatcherResult
from penstock.sink.http.connection import Connection
from penstock.sink.http.dead_letters import DeadLetters
from penstock.sink.http.delivery import Delivery
from penstock.sink.http.messages import DDL_LANE, Message, Place, checkpoint_message, ddl_message, sequence_of
from penstock.sink.http.settings import Address, HttpSettings
from penstock.target.storage import Guard

_BEGINS = frozenset({DdlType.CREATE_TABLE, DdlType.TRUNCATE_TABLE})
_LAST_NUMBER = 99_999_999
_NOT_THERE = frozenset({429, 502, 503, 504})
"""Answers of somebody before the address, or of one that is busy. Any other says that it is there, whatever it thinks of HEAD."""


class HttpMaintainer:
    """Acts once per feed on an HTTP target; implements ``penstock.sink.contract.SinkMaintainer``. Not thread safe."""

    def __init__(self, address: Address, settings: HttpSettings, feed: str, guard: Guard | None, clock: Clock | None = None) -> None:
        self._address = address
        self._settings = settings
        self._feed = feed
        self._guard = guard
        self._clock = clock or SystemClock()
        self._written: dict[bytes, str] = {}
        self._numbers: dict[int, int] = {}

    def check(self, feed: str) -> None:
        """Raise unless the address answers, and the place of dead letters can be written to."""
        self.probe()
        if self._settings.dead_letter:
            DeadLetters.at(self._settings.dead_letter, feed, None).probe()

    def claim(self, feed: str) -> None:
        """Leave it nobody's."""

    def probe(self) -> None:
        """Raise unless the address answers a request for nothing."""
        connection = Connection(self._address, self._settings, self._clock)
        try:
            answer = connection.look()
        finally:
            connection.close()
        if answer.status in _NOT_THERE:
            raise PenstockError("SINK_UNAVAILABLE", f"{self._address.shown}: answered {answer.status}")

    def write_block_event(self, event: DdlEvent) -> Sequence[str]:
        """Post a DDL; return the id of its message."""
        if not self._settings.ddl:
            return ()
        message = ddl_message(self._settings, self._place(event), event)
        self._post(message)
        return (message.id,)

    def record_window(self, from_ts: int, to_ts: int, results: Sequence[DispatcherResult]) -> None:
        """Find nothing to do: what was posted stands for itself."""

    def publish_checkpoint(self, checkpoint_ts: int, not_covered: Mapping[str, str] | None = None) -> None:
        """Post the checkpoint where that is wanted; receivers keep the largest."""
        if self._settings.checkpoints:
            self._post(checkpoint_message(self._settings, self._feed, checkpoint_ts, not_covered or {}))

    def published_ts(self) -> int:
        """Return that none can be read."""
        return 0

    def _place(self, event: DdlEvent) -> Place:
        """Return the lane and sequence of a DDL, the same however often it comes."""
        made = [table for table in event.tables if table.version == event.commit_ts]
        if event.type in _BEGINS and event.tables and not made:
            # A table that was made before comes into the feed. Others may be told at the same ts, and are not known here: the lane is
            # that of its own DDLs, behind all that it had so far.
            return Place(self._feed, f"{DispatcherId(event.tables[0].table_id)}/{DDL_LANE}", sequence_of(event.commit_ts, _LAST_NUMBER))
        content = event.to_json()
        if content not in self._written:
            # Parts of one DDL have one ts: a number tells them apart, and a repeated one keeps its own.
            number = self._numbers[event.commit_ts] = self._numbers.get(event.commit_ts, 0) + 1
            self._written[content] = sequence_of(event.commit_ts, number)
        return Place(self._feed, DDL_LANE, self._written[content])

    def _post(self, message: Message) -> None:
        letters = None
        if self._settings.dead_letter:
            letters = DeadLetters.at(self._settings.dead_letter, self._feed, self._guard, self._settings.dead_letters_max)
        delivery = Delivery(self._address, self._settings, self._clock, system_random(), self._guard, letters)
        try:
            delivery.deliver(message, threading.Event())
        finally:
            delivery.close()
