"""A Kafka broker on loopback: one node that keeps its data in memory, with transactions, for any client of the protocol.

It speaks the versions before tagged fields: metadata, topics, produce, fetch (what was committed, or all), offsets, groups without
members, idempotent and transactional producers, TLS and SASL/PLAIN. What it is not: replicated, durable, or Apache's. A test scripts
faults with ``fault``: called before and after each request is done, it may wait, return an error code, or have the connection cut.
Runs in tests; ``python -m testing.servers.kafka.broker`` is a process of its own, for benchmarks.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import socketserver
import ssl
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from testing.servers.kafka.partitions import NONE, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, Kept
from testing.servers.kafka.wire import Reader, batches, blob, i8, i16, i32, i64, many, text

APIS = {
    0: ("Produce", 3, 7),
    1: ("Fetch", 4, 4),
    2: ("ListOffsets", 1, 2),
    3: ("Metadata", 1, 4),
    8: ("OffsetCommit", 2, 2),
    9: ("OffsetFetch", 1, 1),
    10: ("FindCoordinator", 0, 1),
    11: ("JoinGroup", 0, 0),
    12: ("Heartbeat", 0, 0),
    13: ("LeaveGroup", 0, 0),
    14: ("SyncGroup", 0, 0),
    17: ("SaslHandshake", 0, 1),
    18: ("ApiVersions", 0, 2),
    19: ("CreateTopics", 0, 4),
    22: ("InitProducerId", 0, 1),
    24: ("AddPartitionsToTxn", 0, 0),
    25: ("AddOffsetsToTxn", 0, 0),
    26: ("EndTxn", 0, 0),
    28: ("TxnOffsetCommit", 0, 0),
    36: ("SaslAuthenticate", 0, 0),
}
CUT = "cut"
Fault = Callable[[str, str], "int | str | None"]
"""Gets the name of a request and ``before`` or ``after``; ``CUT`` ends the connection, a number before is the answer's error."""
_SASL_FAILED, _TOO_LARGE = 58, 10


class KafkaBroker:
    """The running broker."""

    def __init__(self, address: str, kept: Kept) -> None:
        self.address = address
        self.kept = kept
        self.fault: Fault = lambda api, side: None
        self.users: dict[str, str] = {}
        """Names and passwords; where there are some, every connection authenticates itself."""

    def refused(self, api: str) -> int:
        """Return the error that a request is to be answered with."""
        found = self.fault(api, "before")
        if found == CUT:
            raise ConnectionResetError
        return found if isinstance(found, int) else NONE


class _Connection(socketserver.BaseRequestHandler):
    """One client."""

    server: _Server

    def handle(self) -> None:
        broker, stream = self.server.broker, self.request.makefile("rb")
        self.known = not broker.users
        with contextlib.suppress(OSError, struct.error):
            while len(head := stream.read(4)) == 4:
                request = Reader(stream.read(struct.unpack(">i", head)[0]))
                api, version, correlation, _ = request.i16(), request.i16(), request.i32(), request.nullable()
                name, low, high = APIS.get(api, ("", 0, -1))
                if api == 18 and version > high:
                    self.request.sendall(blob(i32(correlation) + i16(35) + self._apis()))
                    continue
                if not low <= version <= high or not (self.known or name in {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}):
                    return
                error = broker.refused(name)
                with broker.kept.lock:
                    broker.kept.expire()
                    answer = getattr(self, f"_do_{name}")(request, version, error)
                if broker.fault(name, "after") == CUT:
                    return
                if answer is not None:
                    self.request.sendall(blob(i32(correlation) + answer))

    @property
    def kept(self) -> Kept:
        return self.server.broker.kept

    def _apis(self) -> bytes:
        return many([i16(api) + i16(low) + i16(high) for api, (_, low, high) in APIS.items()])

    def _do_ApiVersions(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        return i16(NONE) + self._apis() + (i32(0) if version else b"")

    def _do_SaslHandshake(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        return i16(NONE if request.text() == "PLAIN" else 33) + many([text("PLAIN")])

    def _do_SaslAuthenticate(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        _, name, password = request.blob().decode().split("\0")
        self.known = self.server.broker.users.get(name) == password
        return i16(NONE if self.known else _SASL_FAILED) + text(None if self.known else "wrong user or password") + blob(b"")

    def _do_Metadata(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        count = request.i32()
        asked = [request.text() for _ in range(max(count, 0))]
        make = self.kept.auto_create and (version < 4 or bool(request.i8()))
        for name in asked if make else ():
            self.kept.make(name)
        host, _, port = self.server.broker.address.rpartition(":")
        node = i32(1) + text(host) + i32(int(port)) + text(None)
        topics = []
        for name in sorted(self.kept.topics) if count < 0 else asked:
            parts = [i16(NONE) + i32(at) + i32(1) + many([i32(1)]) * 2 for at in range(len(self.kept.topics.get(name, ())))]
            topics.append(i16(error or (NONE if parts else UNKNOWN_TOPIC)) + text(name) + i8(0) + many(parts))
        throttle = i32(0) if version >= 3 else b""
        cluster = text("penstock-test") if version >= 2 else b""
        return throttle + many([node]) + cluster + i32(1) + many(topics)

    def _do_CreateTopics(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        def one() -> tuple[str, int, dict[str, str]]:
            name, partitions, _ = request.text(), request.i32(), request.i16()
            request.many(lambda: (request.i32(), request.many(request.i32)))
            return name, partitions, dict(request.many(lambda: (request.text(), request.text())))

        asked = request.many(one)
        request.i32()
        checks_only = version >= 1 and bool(request.i8())
        answers = []
        for name, partitions, configs in asked:
            found = error or (NONE if checks_only else self.kept.make(name, partitions))
            if found == NONE:
                self.kept.configs[name] = configs
            answers.append(text(name) + i16(found) + (text(None) if version >= 1 else b""))
        return (i32(0) if version >= 2 else b"") + many(answers)

    def _do_Produce(self, request: Reader, version: int, error: int) -> bytes | None:  # noqa: N802
        request.nullable()
        acks = request.i16()
        request.i32()

        def partition(topic: str) -> bytes:
            at, data = request.i32(), request.blob()
            found, base = error, -1
            for batch in () if error else batches(data):
                if len(batch.content) > self.kept.message_bytes_max:
                    found = _TOO_LARGE
                    break
                found, offset = self.kept.append((topic, at), batch)
                base = offset if base < 0 else base
                if found:
                    break
            return i32(at) + i16(found) + i64(base) + i64(-1) + (i64(0) if version >= 5 else b"")

        def topic() -> bytes:
            name = request.text()
            return text(name) + many(request.many(lambda: partition(name)))

        answer = many(request.many(topic)) + i32(0)
        return answer if acks else None

    def _do_Fetch(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        request.i32()
        wait_ms, _, _, committed = request.i32(), request.i32(), request.i32(), request.i8()
        asked = request.many(lambda: (request.text(), request.many(lambda: (request.i32(), request.i64(), request.i32()))))

        def ready() -> bool:
            for name, parts in asked:
                for at, offset, _ in parts:
                    found = self.kept.at((name, at))
                    if found is None or offset != (found.stable if committed else found.end):
                        return True
            return False

        self.kept.grown.wait_for(ready, min(wait_ms, 500) / 1000)
        topics = []
        for name, parts in asked:
            answers = []
            for at, offset, size_max in parts:
                found = self.kept.at((name, at))
                if error or found is None or not 0 <= offset <= found.end:
                    code = error or (UNKNOWN_TOPIC if found is None else OFFSET_OUT_OF_RANGE)
                    answers.append(i32(at) + i16(code) + i64(-1) + i64(-1) + i32(-1) + i32(0))
                    continue
                limit, data = found.stable if committed else found.end, b""
                for batch in found.batches:
                    if batch.end > limit or (data and len(data) + len(batch.content) > size_max):
                        # Nothing behind it may come first: readers take for gone what is left out.
                        break
                    if batch.end > offset:
                        data += batch.content
                gone = [(p, first) for p, first, last in found.aborted if last >= offset]
                aborted = many([i64(p) + i64(first) for p, first in gone]) if committed else i32(-1)
                answers.append(i32(at) + i16(NONE) + i64(found.end) + i64(found.stable) + aborted + blob(data))
            topics.append(text(name) + many(answers))
        return i32(0) + many(topics)

    def _do_ListOffsets(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        request.i32()
        committed = version >= 2 and request.i8()

        def partition(topic: str) -> bytes:
            at, moment = request.i32(), request.i64()
            found = self.kept.at((topic, at))
            if found is None:
                return i32(at) + i16(UNKNOWN_TOPIC) + i64(-1) + i64(-1)
            last = found.stable if committed else found.end
            return i32(at) + i16(error) + i64(-1) + i64(0 if moment == -2 else last)

        def topic() -> bytes:
            name = request.text()
            return text(name) + many(request.many(lambda: partition(name)))

        return (i32(0) if version >= 2 else b"") + many(request.many(topic))

    def _do_FindCoordinator(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        host, _, port = self.server.broker.address.rpartition(":")
        head = i32(0) + i16(error) + text(None) if version >= 1 else i16(error)
        return head + i32(1) + text(host) + i32(int(port))

    def _committed(self, request: Reader, put: Callable[[tuple[str, int], int, str], int]) -> list[bytes]:
        def partition(topic: str) -> bytes:
            at, offset, said = request.i32(), request.i64(), request.text()
            return i32(at) + i16(put((topic, at), offset, said) if self.kept.at((topic, at)) is not None else UNKNOWN_TOPIC)

        def topic() -> bytes:
            name = request.text()
            return text(name) + many(request.many(lambda: partition(name)))

        return request.many(topic)

    def _do_OffsetCommit(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        group, _, _, _ = request.text(), request.i32(), request.text(), request.i64()

        def put(place: tuple[str, int], offset: int, said: str) -> int:
            if not error:
                self.kept.offsets[group, place] = offset, said
            return error

        return many(self._committed(request, put))

    def _do_OffsetFetch(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        group = request.text()

        def partition(topic: str) -> bytes:
            at = request.i32()
            offset, said = self.kept.offsets.get((group, (topic, at)), (-1, ""))
            return i32(at) + i64(offset) + text(said) + i16(error)

        def topic() -> bytes:
            name = request.text()
            return text(name) + many(request.many(lambda: partition(name)))

        return many(request.many(topic))

    def _do_InitProducerId(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        name, timeout_ms = request.nullable(), request.i32()
        found, producer, epoch = (error, -1, -1) if error else self.kept.begin(name, timeout_ms / 1000)
        return i32(0) + i16(found) + i64(producer) + i16(epoch)

    def _do_AddPartitionsToTxn(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        found, transaction = self.kept.joined(request.text(), request.i64(), request.i16())
        answers = []
        for name, parts in request.many(lambda: (request.text(), request.many(request.i32))):
            codes = []
            for at in parts:
                code = error or found or (NONE if self.kept.at((name, at)) is not None else UNKNOWN_TOPIC)
                if transaction is not None and not code:
                    transaction.partitions.add((name, at))
                codes.append(i32(at) + i16(code))
            answers.append(text(name) + many(codes))
        return i32(0) + many(answers)

    def _do_AddOffsetsToTxn(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        found, transaction = self.kept.joined(request.text(), request.i64(), request.i16())
        if transaction is not None and not error:
            transaction.groups.add(request.text())
        return i32(0) + i16(error or found)

    def _do_TxnOffsetCommit(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        name, group, producer, epoch = request.text(), request.text(), request.i64(), request.i16()
        found, transaction = self.kept.joined(name, producer, epoch)
        code = error or found or (NONE if transaction is not None and group in transaction.groups else 48)

        def put(place: tuple[str, int], offset: int, said: str) -> int:
            if not code and transaction is not None:
                transaction.offsets[group, place] = offset, said
            return code

        return i32(0) + many(self._committed(request, put))

    def _do_EndTxn(self, request: Reader, version: int, error: int) -> bytes:  # noqa: N802
        name, producer, epoch, commit = request.text(), request.i64(), request.i16(), bool(request.i8())
        return i32(0) + i16(error or self.kept.end(name, producer, epoch, commit))


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    broker: KafkaBroker
    context: ssl.SSLContext | None = None

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.context is not None:
            connection.settimeout(120.0)
            connection = self.context.wrap_socket(connection, server_side=True)
            connection.settimeout(None)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def kafka_broker(
    partitions: int = 3, context: ssl.SSLContext | None = None, kept: Kept | None = None, port: int = 0
) -> Iterator[KafkaBroker]:
    """Run a broker in threads of this process; another that is given what it kept goes on with it."""
    server = _Server(("127.0.0.1", port), _Connection)
    server.context = context
    server.broker = KafkaBroker(f"127.0.0.1:{server.server_address[1]}", kept or Kept(partitions))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="kafka-broker", daemon=True)
    thread.start()
    try:
        yield server.broker
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    """Serve until standard input ends."""
    given = argparse.ArgumentParser()
    given.add_argument("--partitions", type=int, default=3)
    with kafka_broker(given.parse_args().partitions) as broker:
        print(broker.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
