"""What happens to a Kafka target once per feed: whose it is, DDLs at the end of windows, watermarks.

All of it goes through one stream of transactions, whose progress is the published checkpoint (its number) and the owner, its epoch and the
newest DDLs (its text). Invariants: a target belongs to one feed; a DDL is written once however often it comes; the checkpoint never goes
back; a lower epoch writes nothing. Runs beside the driver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from penstock.model.ddl import DdlEvent
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.sink.contract import DispatcherResult
from penstock.sink.kafka.clients import KafkaAddress, OvertakenError
from penstock.sink.kafka.control import ddl_identity, ddl_message, watermark_message
from penstock.sink.kafka.progress import ControlState, control_name
from penstock.sink.kafka.settings import Announce
from penstock.sink.kafka.topics import Topics
from penstock.sink.kafka.transactions import KEPT, Stream
from penstock.sink.kafka.witness import has_messages
from penstock.target.kind import NO_RUN, SinkRun

_TRIES_MAX = 3


class KafkaMaintainer:
    """Acts once per feed on a Kafka target; implements ``penstock.sink.contract.SinkMaintainer``. Not thread safe."""

    def __init__(self, address: KafkaAddress, run: SinkRun, guard: Callable[[], None]) -> None:
        self._address = address
        self._settings = address.settings
        self._run = run
        self._guard = guard
        self._topics = Topics(address)
        self._name = control_name(address.topics.control)

    def check(self, feed: str) -> None:
        """Raise unless brokers answer, allow what is needed, and the target is nobody's or this feed's own."""
        with self._looking() as stream:
            if stream is not None:
                self._check_owner(self._state(stream)[1], feed)
        self.probe()

    def claim(self, feed: str) -> None:
        """Mark the target as this feed's; of two feeds that claim at once, one finds the other."""

        def claimed(stream: Stream) -> None:
            number, state = self._state(stream)
            self._check_owner(state, feed)
            if state.feed != feed:
                stream.commit(max(number, 0), _text(ControlState(feed)))

        self._alone(claimed)

    def probe(self) -> None:
        """Raise unless brokers answer and give out the name that a producer needs; leaves nothing behind."""
        self._topics.known()
        probe = Stream(self._address, f"{self._name}.probe")
        try:
            # Another one who asks at the same time gets the name, which answers the question too.
            with contextlib.suppress(OvertakenError):
                probe.fence()
        finally:
            probe.close()

    def write_block_event(self, event: DdlEvent) -> Sequence[str]:
        """Write a DDL, once."""
        if self._settings.ddls is Announce.NONE:
            return ()
        identity = ddl_identity(event)

        def written(stream: Stream) -> None:
            number, state = self._state(stream)
            self._check_epoch(state)
            if event.commit_ts < state.ddl_ts or (event.commit_ts == state.ddl_ts and identity in state.ddls):
                return
            names = sorted({self._address.topics.of(t.schema, t.table) for t in event.tables})
            places = self._places(stream, names if self._settings.ddls is Announce.PARTITIONS else ())
            self._guard()
            stream.write(ddl_message(self._settings, self._run.feed, topic, at, event) for topic, at in places)
            known = state.ddls if event.commit_ts == state.ddl_ts else ()
            said = ControlState(state.feed or self._run.feed, max(state.epoch, self._run.epoch), event.commit_ts, (*known, identity))
            stream.commit(max(number, 0), _text(said))

        self._alone(written)
        return (self._address.topics.control,)

    def record_window(self, from_ts: int, to_ts: int, results: Sequence[DispatcherResult]) -> None:
        """Keep nothing: each dispatcher has committed its own part."""

    def publish_checkpoint(self, checkpoint_ts: int, not_covered: Mapping[str, str] | None = None) -> None:
        """Write a watermark, and that it is the newest."""

        def published(stream: Stream) -> None:
            number, state = self._state(stream)
            self._check_epoch(state)
            if number >= checkpoint_ts:
                return
            if self._settings.watermarks is not Announce.NONE:
                names = self._row_topics() if self._settings.watermarks is Announce.PARTITIONS else ()
                places = self._places(stream, names)
                self._guard()
                stream.write(
                    watermark_message(self._settings, self._run.feed, topic, at, checkpoint_ts, not_covered or {}) for topic, at in places
                )
            said = msgspec.structs.replace(state, feed=state.feed or self._run.feed, epoch=max(state.epoch, self._run.epoch))
            stream.commit(checkpoint_ts, _text(said))

        self._alone(published)

    def published_ts(self) -> int:
        """Return the newest watermark, 0 where there is none."""
        with self._looking() as stream:
            return 0 if stream is None else max(self._state(stream)[0], 0)

    def owner(self) -> str:
        """Return the feed that the target belongs to, empty where it is nobody's."""
        with self._looking() as stream:
            return "" if stream is None else self._state(stream)[1].feed

    def _row_topics(self) -> list[str]:
        """Return the topics of this target's tables; one that is named like a table may be the control topic of another target."""
        return [name for name in self._topics.known() if not self._is_control_of_another(name)]

    def _is_control_of_another(self, topic: str) -> bool:
        other = self._address.of_control(topic)
        return other is not None and bool(KafkaMaintainer(other, NO_RUN, self._guard).owner())

    def _places(self, stream: Stream, topics: Sequence[str]) -> list[tuple[str, int]]:
        """Return the control topic and all partitions of some others."""
        return [(self._address.topics.control, 0), *((name, at) for name in topics for at in range(self._topics.partitions(stream, name)))]

    def _alone(self, act: Callable[[Stream], None]) -> None:
        """Do something that nobody else does at the same time; where somebody fences this, begin again with what they did."""
        for _ in range(_TRIES_MAX):
            stream = KEPT.take(self._address, self._name)
            try:
                self._topics.partitions(stream, self._address.topics.control)
                stream.fence()
                act(stream)
            except OvertakenError:
                stream.close()
            except BaseException:
                stream.close()
                raise
            else:
                KEPT.give_back(self._address, stream)
                return
        raise PenstockError("SINK_UNAVAILABLE", f"{self._address.name}: others act on this target at the same time")

    @contextlib.contextmanager
    def _looking(self) -> Iterator[Stream | None]:
        """Yield a stream that fences nobody, or None where the target was never used."""
        stream = Stream(self._address, self._name)
        try:
            yield stream if self._topics.exists(self._address.topics.control) else None
        finally:
            stream.close()

    def _state(self, stream: Stream) -> tuple[int, ControlState]:
        """Return what the target says of itself; raise where it says nothing any more, although it was used."""
        number, text = stream.progress()
        if text:
            return number, decoded(text.encode(), ControlState)
        control = self._address.topics.control
        if self._settings.doubts_progress and has_messages(self._address, control):
            text = f"{self._address.name}: topic {control} has messages, and the group {self._name} knows nothing of them"
            raise PenstockError("SINK_PROGRESS_LOST", text)
        return number, ControlState()

    def _check_owner(self, state: ControlState, feed: str) -> None:
        if state.feed and state.feed != feed:
            raise PenstockError("SINK_OCCUPIED", f"{self._address.name} belongs to feed {state.feed!r}", "Choose another prefix of topics.")

    def _check_epoch(self, state: ControlState) -> None:
        if state.epoch > self._run.epoch:
            raise PenstockError("FENCED", f"{self._address.name}: epoch {state.epoch} has written there, and this is {self._run.epoch}")


def _text(state: ControlState) -> str:
    return msgspec.json.encode(state).decode()
