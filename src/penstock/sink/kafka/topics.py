"""The topics of a target: found, made where that is asked for, and how many partitions they have. Runs on executors and beside the driver.

A cluster may make topics by itself when they are first asked for; ``create-topics`` makes them with the partitions that the settings say.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.sink.kafka.clients import KafkaAddress, Refusals, library
from penstock.sink.kafka.transactions import Stream

_EXISTS, _NO_DEFAULTS = 36, -165
_PAUSE_S = 0.1
_CONTROL_CONFIG = {"cleanup.policy": "compact"}
"""The newest watermark and every DDL stay, however old."""


class Topics:
    """Knows the topics that it was asked for. Thread safe."""

    def __init__(self, address: KafkaAddress, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def partitions(self, stream: Stream, topic: str) -> int:
        """Return how many partitions a topic has; make it if it is missing and that is asked for."""
        with self._lock:
            if topic not in self._counts:
                self._counts[topic] = self._found(stream, topic)
            return self._counts[topic]

    def known(self) -> dict[str, int]:
        """Return the topics of this target's tables that the cluster has, with their partitions."""
        return {name: len(topic.partitions) for name, topic in sorted(self._all().items()) if self._address.topics.holds(name)}

    def exists(self, topic: str) -> bool:
        """Return whether the cluster has a topic; makes none."""
        return topic in self._all()

    def _found(self, stream: Stream, topic: str) -> int:
        settings, control = self._address.settings, topic == self._address.topics.control
        if settings.create_topics and topic not in self._all():
            self._make(topic, 1 if control else settings.partitions, _CONTROL_CONFIG if control else {})
        limit = self._clock.monotonic_s() + settings.request_timeout_ms / 1000
        # A cluster that makes topics by itself has them a moment after they are asked for.
        while not (count := stream.partitions(topic)):
            if self._clock.monotonic_s() > limit:
                text = f"{self._address.name}: there is no topic {topic}"
                raise PenstockError("SINK_UNWRITABLE", text, "Make the topic, or set create-topics = true.")
            self._clock.wait(threading.Event(), _PAUSE_S)
        return count

    def _all(self) -> Mapping[str, Any]:
        refusals = Refusals()
        admin = self._admin(refusals)
        with self._address.told("listing topics", (admin,), refusals):
            found: Mapping[str, Any] = admin.list_topics(timeout=self._address.settings.request_timeout_ms / 1000).topics
        return found

    def _make(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        from confluent_kafka.admin import NewTopic

        kafka, settings = library(), self._address.settings
        wanted = NewTopic(topic, partitions or -1, settings.replication_factor or -1, config=config)
        # The client must live as long as its answer is awaited.
        admin = self._admin()
        try:
            admin.create_topics([wanted])[topic].result(settings.request_timeout_ms / 1000)
        except TimeoutError as error:
            raise PenstockError("SINK_UNAVAILABLE", f"{self._address.name}: making topic {topic} was not answered in time") from error
        except kafka.KafkaException as error:
            if error.args[0].code() == _NO_DEFAULTS:
                hint = "Set partitions and replication-factor: these brokers have no defaults for them."
                raise PenstockError("SINK_UNWRITABLE", f"{self._address.name}: making topic {topic}", hint) from error
            if error.args[0].code() != _EXISTS:
                self._address.fail(error, f"making topic {topic}")

    def _admin(self, refusals: Refusals | None = None) -> Any:
        from confluent_kafka.admin import AdminClient

        library()
        return AdminClient(self._address.configuration() | ({"error_cb": refusals} if refusals is not None else {}))
