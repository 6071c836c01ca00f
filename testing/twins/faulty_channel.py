"""Change streams that break on the way: between a region worker and a real store, by a seeded script.

Wraps the channels that a region worker opens. Each stream may end after some messages, deliver a truncated message, or stand still
until it is cancelled. What passes is untouched. Runs in tests.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import grpc


class StreamFault:
    """How often a stream breaks, per message, and how."""

    def __init__(self, seed: int, probability: float) -> None:
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self.probability = probability
        self.cuts = 0
        self.truncations = 0

    def channel(self, address: str) -> FaultyChannel:
        """Open a channel whose streams break; what a region worker takes as ``channels``."""
        return FaultyChannel(grpc.insecure_channel(address), self)

    def draw(self, size: int) -> int | None:
        """Return None to let a message pass, or how many of its bytes arrive before the end."""
        with self._lock:
            if self._rng.random() >= self.probability:
                return None
            if size and self._rng.random() < 0.5:
                self.truncations += 1
                return self._rng.randrange(size)
            self.cuts += 1
            return -1


class BrokenStreamError(grpc.RpcError):
    """What a cut stream raises."""


class FaultyChannel:
    """A channel; only what a region worker uses."""

    def __init__(self, channel: grpc.Channel, fault: StreamFault) -> None:
        self._channel = channel
        self._fault = fault

    def stream_stream(self, method: str, **serializers: Any) -> Any:
        """Return a callable that opens a breaking stream."""
        inner = self._channel.stream_stream(method, **serializers)
        return lambda requests, **options: FaultyCall(inner(requests, **options), self._fault)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


class FaultyCall:
    """An open stream."""

    def __init__(self, call: Any, fault: StreamFault) -> None:
        self._call = call
        self._fault = fault

    def __iter__(self) -> Iterator[bytes]:
        for payload in self._call:
            arrived = self._fault.draw(len(payload))
            if arrived is None:
                yield payload
                continue
            if arrived >= 0:
                yield payload[:arrived]
            self._call.cancel()
            raise BrokenStreamError

    def cancel(self) -> None:
        """Cancel the stream."""
        self._call.cancel()


class RefusedStreamError(grpc.RpcError):
    """With what a store ends a stream that it does not give."""

    def code(self) -> grpc.StatusCode:
        """Return the status."""
        return grpc.StatusCode.PERMISSION_DENIED


class StreamRefusal:
    """Refuses change streams while it is told to; whatever else is called passes."""

    def __init__(self) -> None:
        self.refusing = True
        self.refusals = 0
        self._open: list[Any] = []

    def channel(self, address: str) -> RefusingChannel:
        """Open a channel; what a log puller takes as ``channels``."""
        return RefusingChannel(grpc.insecure_channel(address), self)

    def refuse(self) -> None:
        """Refuse from now on; streams that are open end."""
        self.refusing = True
        for call in self._open:
            call.cancel()

    def opened(self, call: Any) -> Any:
        """Remember a stream."""
        self._open.append(call)
        return call


class RefusingChannel:
    """A channel; only what a log puller uses."""

    def __init__(self, channel: grpc.Channel, refusal: StreamRefusal) -> None:
        self._channel = channel
        self._refusal = refusal

    def stream_stream(self, method: str, **serializers: Any) -> Any:
        """Return a callable that opens a stream, or is refused one."""
        inner = self._channel.stream_stream(method, **serializers)

        def call(requests: Any, **options: Any) -> Any:
            if self._refusal.refusing:
                self._refusal.refusals += 1
                raise RefusedStreamError
            return self._refusal.opened(inner(requests, **options))

        return call

    def unary_unary(self, method: str, **serializers: Any) -> Any:
        """Return the call."""
        return self._channel.unary_unary(method, **serializers)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
