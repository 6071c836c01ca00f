"""Receives a replication stream in a thread of its own, and answers the server.

The thread takes bytes as they arrive into a bounded queue and tells the server in time how far everything is durable, also while the reader
is held up, so that back-pressure never looks like a dead client. Only what was confirmed is ever reported as flushed. Runs in the log
service.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from dataclasses import dataclass

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.source.postgres.wire.connection import Connection
from penstock.source.postgres.wire.pgoutput import POSTGRES_EPOCH_US

_POLL_S = 0.2


@dataclass(frozen=True)
class StreamSettings:
    """How much may wait to be read, how often the server is answered and asked for its end of log, how long bytes gather at the socket."""

    queue_bytes_max: int = 64 << 20
    status_interval_s: float = 0.5
    linger_s: float = 0.01


class ReplicationStream:
    """A started replication stream."""

    def __init__(self, connection: Connection, start_lsn: int, settings: StreamSettings, clock: Clock) -> None:
        self._connection = connection
        self._settings = settings
        self._clock = clock
        self._confirmed_lsn = start_lsn
        self._received_lsn = start_lsn
        self._queue: deque[bytes | bytearray] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._error: PenstockError | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="postgres-stream", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float, bytes_max: int) -> list[bytes | bytearray]:
        """Return what has arrived, at most about so many bytes; nothing if nothing came in time. Raises why the stream ended."""
        taken: list[bytes | bytearray] = []
        size = 0
        with self._changed:
            if not self._queue and self._error is None:
                self._changed.wait(timeout_s)
            while self._queue and size < bytes_max:
                taken.append(self._queue.popleft())
                size += len(taken[-1])
            self._queued_bytes -= size
            if not taken and self._error is not None:
                raise self._error
            self._changed.notify_all()
        return taken

    def confirm(self, lsn: int) -> None:
        """Let the server know, with the next answer, that everything before is durable."""
        self._confirmed_lsn = max(self._confirmed_lsn, lsn)

    def received(self, lsn: int) -> None:
        """Note how far the reader is."""
        self._received_lsn = max(self._received_lsn, lsn)

    def fail(self, error: PenstockError) -> None:
        """End the stream for its reader, with a reason."""
        with self._changed:
            self._error = self._error or error
            self._queue.clear()
            self._queued_bytes = 0
            self._changed.notify_all()

    def close(self) -> None:
        """End the stream. May be called twice."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        self._connection.close()

    def _receive(self) -> None:
        due_s = 0.0
        try:
            while not self._closed.is_set():
                if self._clock.monotonic_s() >= due_s:
                    self._send_status()
                    due_s = self._clock.monotonic_s() + self._settings.status_interval_s
                with self._changed:
                    if self._queued_bytes >= self._settings.queue_bytes_max:
                        self._changed.wait(_POLL_S)
                        continue
                data = self._connection.receive_bulk(_POLL_S, self._settings.linger_s)
                if data is not None:
                    with self._changed:
                        self._queue.append(data)
                        self._queued_bytes += len(data)
                        self._changed.notify_all()
            self._send_status()
        except PenstockError as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _send_status(self) -> None:
        """Send write, flush and apply positions, and ask for an answer: it tells how far the log is read while it is quiet."""
        flushed = self._confirmed_lsn
        written = max(self._received_lsn, flushed)
        moment_us = self._clock.now_ms() * 1000 - POSTGRES_EPOCH_US
        self._connection.send(b"d", struct.pack("!cQQQqB", b"r", written, flushed, flushed, moment_us, 1))
