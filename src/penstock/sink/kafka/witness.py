"""What topics themselves tell where the brokers no longer know how far a feed has come.

Progress is an offset of a consumer group, and groups go: somebody deletes them, or they rest for longer than brokers keep them. A window
that was interrupted before would then come twice. Messages stay, and say by their headers whose they are and when their rows were
committed. Invariant: what is read here changes nothing and fences nobody. Runs on executors and beside the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.model.errors import PenstockError
from penstock.sink.kafka.clients import KafkaAddress, library
from penstock.sink.kafka.encode.messages import COMMIT_TS_HEADER, FEED_HEADER, TYPE_HEADER

_TAIL, _TAIL_FACTOR = 64, 16
_END = -191
"""The library's code for the end of a partition."""
_MAY_NOT_READ = 29


def has_messages(address: KafkaAddress, topic: str) -> bool:
    """Return whether the first partition of a topic ever had a message."""
    consumer = _consumer(address)
    try:
        with address.told(f"looking at topic {topic}"):
            _, high = consumer.get_watermark_offsets(library().TopicPartition(topic, 0), address.settings.request_timeout_ms / 1000)
    finally:
        consumer.close()
    return bool(high > 0)


def newest_row_ts(address: KafkaAddress, topic: str, partitions: int, feed: str) -> int:
    """Return the commit ts of the newest row that a feed has committed to a topic, 0 where there is none or it may not be read."""
    consumer = _consumer(address)
    newest, wait_s, tail = 0, address.settings.request_timeout_ms / 1000, _TAIL
    places = [library().TopicPartition(topic, at) for at in range(partitions)]
    try:
        with address.told(f"looking at the end of topic {topic}"):
            bounds = {place.partition: consumer.get_watermark_offsets(place, wait_s) for place in places}
            # What was aborted is passed over, and may be much: then the end is looked for further back.
            while left := [at for at, (low, high) in bounds.items() if high > low]:
                begins = {at: max(bounds[at][0], bounds[at][1] - tail) for at in left}
                found = _rows(consumer, [library().TopicPartition(topic, at, begin) for at, begin in begins.items()], feed, wait_s)
                newest = max([newest, *found.values()])
                bounds = {at: (bounds[at][0], begins[at]) for at in left if at not in found}
                tail *= _TAIL_FACTOR
    finally:
        consumer.close()
    return newest


def _rows(consumer: Any, places: Sequence[Any], feed: str, wait_s: float) -> dict[int, int]:
    """Return the newest commit ts among a feed's rows in each partition, from some offsets to their ends."""
    found: dict[int, int] = {}
    consumer.assign(places)
    open_ = len(places)
    while open_:
        message = consumer.poll(wait_s)
        if message is None:
            raise PenstockError("SINK_UNAVAILABLE", "the end of a topic was not read in time")
        if message.error() is not None:
            if message.error().code() == _MAY_NOT_READ:
                return {place.partition: 0 for place in places}
            if message.error().code() != _END:
                raise library().KafkaException(message.error())
            open_ -= 1
            continue
        headers = dict(message.headers() or ())
        if headers.get(FEED_HEADER) == feed.encode() and TYPE_HEADER not in headers and COMMIT_TS_HEADER in headers:
            found[message.partition()] = max(found.get(message.partition(), 0), int(headers[COMMIT_TS_HEADER]))
    return found


def _consumer(address: KafkaAddress) -> Any:
    own = {"group.id": "penstock.witness", "isolation.level": "read_committed", "enable.auto.commit": False, "enable.partition.eof": True}
    return library().Consumer(address.configuration() | own | {"fetch.wait.max.ms": 10, "auto.offset.reset": "earliest"})
