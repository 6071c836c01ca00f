"""A stream of transactions under one name: what it writes, and how far it has come, become visible together or not at all.

How far a stream has come is the committed offset of a consumer group of its name at the control topic, a number and a text, which a
transaction carries. Whoever opens a stream fences everybody who had it before, by the transactional id of the same name: from then on what
is read of its progress stays true until this stream changes it, or is fenced itself. Without transactions (``at-least-once``) progress
follows what was written. Streams are kept for the next window of the same process, because the first steps of one cost the most.
Invariants: a stream is used by one thread at a time; one that has failed is not used again. Runs on executors and beside the driver.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from penstock.model.clock import system_random
from penstock.model.errors import PenstockError
from penstock.model.failpoints import reach
from penstock.sink.kafka.clients import KafkaAddress, Refusals, library
from penstock.sink.kafka.settings import Delivery

_POLL_S = 0.1
_KEPT_MAX = 64
_MEETINGS_MAX = 5
_WRONG_STATE = -172


Message = tuple[str, bytes | None, bytes | None, int, int, list[tuple[str, bytes]] | None]
"""Topic, value, key, partition, moment in milliseconds, headers: one message as the client takes it."""


class Stream:
    """One name's transactions."""

    def __init__(self, address: KafkaAddress, name: str) -> None:
        self._address = address
        self.name = name
        self._exact = address.settings.delivery is Delivery.EXACTLY_ONCE
        self._wait_s = address.settings.request_timeout_ms / 1000
        self._begun = False
        self._known = ""
        """A topic that is there."""
        self._failed: list[Any] = []
        kafka = library()
        self._refusals = Refusals()
        self._producer: Any = None
        with address.told("opening"):
            self._consumer = kafka.Consumer(
                address.configuration()
                | {"group.id": name, "isolation.level": "read_committed", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
                | {"error_cb": self._refusals}
            )
        self._opened = not self._exact
        self.id = ""
        self.rested = False
        """Whether it was kept since its last window, so that others may have fenced it."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Be another stream of the name, which has fenced nobody yet: one that was fenced while it rested keeps its other connections."""
        report: dict[str, Any] = {"error_cb": self._refusals} | ({} if self._exact else {"on_delivery": self._note})
        with self._address.told("opening"):
            self._producer = library().Producer(self._address.producer_configuration(self.name) | report)
        self._opened, self.rested = not self._exact, False
        self.id = f"{system_random().getrandbits(64):x}"

    def fence(self) -> bool:
        """Fence whoever had the name before, once; return whether that was now."""
        if self._opened:
            return False
        with self._told("beginning as the only one of its name"):
            self._meet_brokers()
            self._producer.init_transactions(self._wait_s)
        self._opened = True
        return True

    def progress(self) -> tuple[int, str]:
        """Return how far the stream has come: a number and a text; -1 where it never did anything."""
        place = library().TopicPartition(self._address.topics.control, 0)
        with self._told("reading progress"):
            found = self._consumer.committed([place], self._wait_s)[0]
            if found.error is not None:
                raise library().KafkaException(found.error)
        return (found.offset, found.metadata or "") if found.offset >= 0 else (-1, "")

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 where it does not exist; a cluster may make it when it is asked for."""
        with self._told(f"looking at topic {topic}"):
            found = self._producer.list_topics(topic, self._wait_s).topics.get(topic)
            if found is not None and found.error is not None and found.error.code() not in {3, 5}:
                raise library().KafkaException(found.error)
        count = len(found.partitions) if found is not None and found.error is None else 0
        self._known = topic if count else self._known
        return count

    def write(self, messages: Iterable[Message]) -> None:
        """Hand over messages, in order; waits while too many are on their way."""
        self._begin()
        produce = self._producer.produce
        with self._told("writing"):
            for topic, value, key, partition, moment, headers in messages:
                try:
                    produce(topic, value, key, partition, timestamp=moment, headers=headers)
                except BufferError:
                    self._write_later((topic, value, key, partition, moment, headers))
            self._producer.poll(0)

    def commit(self, number: int, text: str) -> None:
        """Make what was written and this progress visible; both are durable when it returns."""
        kafka = library()
        self._begin()
        place = kafka.TopicPartition(self._address.topics.control, 0, number, text)
        reach("kafka-commit:before")
        with self._told("committing"):
            if self._exact:
                self._send_progress(place)
                self._producer.commit_transaction(self._wait_s + self._address.settings.transaction_timeout_ms / 1000)
            else:
                left = self._producer.flush(self._wait_s + self._address.settings.transaction_timeout_ms / 1000)
                self._raise_failed()
                if left:
                    raise PenstockError("SINK_UNAVAILABLE", f"{self._address.name}: {left} messages were not taken in time")
                self._consumer.commit(offsets=[place], asynchronous=False)
        self._begun = False
        reach("kafka-commit:after")

    def close(self) -> None:
        """Let go of the connections; what was not committed is dropped."""
        if self._begun:
            self._producer.purge()
        self._consumer.close()

    def _meet_brokers(self) -> None:
        """Have the producer connected to a broker that the cluster named.

        Its first answer comes from an address of the URI, whose connection ends with it. A producer that has no other one by then waits
        half a second before it asks who has its transactions; an answer of a broker with a number says that it has.
        """
        asked = {"topic": self._known} if self._known else {}
        for _ in range(_MEETINGS_MAX):
            if self._producer.list_topics(**asked, timeout=self._wait_s).orig_broker_id >= 0:
                return

    def _told(self, what: str) -> AbstractContextManager[None]:
        return self._address.told(what, (self._producer, self._consumer), self._refusals)

    def _begin(self) -> None:
        if self._exact and not self._begun:
            self.fence()
            with self._told("beginning a transaction"):
                self._producer.begin_transaction()
        self._begun = True

    def _send_progress(self, place: Any) -> None:
        """Let the transaction carry how far the stream has come."""
        kafka = library()
        try:
            self._producer.send_offsets_to_transaction([place], self._consumer.consumer_group_metadata(), self._wait_s)
        except kafka.KafkaException as error:
            if error.args[0].code() == _WRONG_STATE:
                # The transaction broke meanwhile; what asks for a new one is told why, and changes nothing.
                self._producer.begin_transaction()
            raise

    def _write_later(self, message: Message) -> None:
        """Hand over a message for which there is no room yet."""
        topic, value, key, partition, moment, headers = message
        while True:
            self._producer.poll(_POLL_S)
            self._raise_failed()
            with contextlib.suppress(BufferError):
                self._producer.produce(topic, value, key, partition, timestamp=moment, headers=headers)
                return

    def _note(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(error)

    def _raise_failed(self) -> None:
        if self._failed:
            raise library().KafkaException(self._failed[0])


class _Kept:
    """Streams that nobody uses at the moment, by target and name. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: OrderedDict[tuple[Any, str], Stream] = OrderedDict()

    def take(self, address: KafkaAddress, name: str) -> Stream:
        """Return the stream of a name."""
        with self._lock:
            found = self._free.pop((address, name), None)
        if found is not None:
            found.rested = True
        return found or Stream(address, name)

    def give_back(self, address: KafkaAddress, stream: Stream) -> None:
        """Keep a stream that has not failed and has nothing under way; the one that rested longest goes."""
        with self._lock:
            old = self._free.pop((address, stream.name), None)
            self._free[address, stream.name] = stream
            gone = [old] if old is not None else []
            if len(self._free) > _KEPT_MAX:
                gone.append(self._free.popitem(last=False)[1])
        for one in gone:
            one.close()

    def close(self, address: KafkaAddress | None = None) -> None:
        """Close the kept streams of one target, or all."""
        with self._lock:
            chosen = [place for place in self._free if address is None or place[0] == address]
            gone = [self._free.pop(place) for place in chosen]
        for one in gone:
            one.close()


KEPT = _Kept()
"""Those of this process."""
