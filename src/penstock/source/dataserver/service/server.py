"""The data server: one engine, several stores, each with its own port and gRPC server, and the thread that publishes resolved ts.

The first store's address is the placement address, which clients are given. Data is in memory. Runs as its own process
(``penstock dataserver``) or inside another one (demo, tests).
"""

from __future__ import annotations

import threading
from concurrent import futures
from dataclasses import dataclass, field

import grpc

from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.source.dataserver.engine.engine import Engine, EngineSettings
from penstock.source.dataserver.service.eventfeed import EventFeedSettings
from penstock.source.dataserver.service.service import StoreService

MESSAGE_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class DataServerSettings:
    """Where and how the server listens. Port 0 takes a free one; store n listens on ``port + n - 1`` otherwise."""

    host: str = "127.0.0.1"
    port: int = 0
    stores: int = 2
    resolved_interval_ms: int = 200
    threads_per_store: int = 32
    """Each change stream holds one thread for its life."""
    lock_ttl_ms: int = 20_000
    feed: EventFeedSettings = field(default_factory=EventFeedSettings)


class DataServer:
    """A running data server."""

    def __init__(self, settings: DataServerSettings | None = None, clock: Clock | None = None) -> None:
        self.settings = settings or DataServerSettings()
        self._clock = clock or SystemClock()
        self.engine = Engine(EngineSettings(self.settings.stores, self.settings.lock_ttl_ms), self._clock)
        self._servers: list[grpc.Server] = []
        self._services: list[StoreService] = []
        self._stopping = threading.Event()
        self._ticker = threading.Thread(target=self._publish, name="dataserver-resolved", daemon=True)

    @property
    def address(self) -> str:
        """Return the placement address, ``host:port``."""
        if not self.engine.addresses:
            raise PenstockError("INTERNAL", "the data server is not started")
        return self.engine.addresses[1]

    @property
    def uri(self) -> str:
        """Return the URI that ``open_upstream`` takes."""
        return f"dataserver://{self.address}"

    def start(self) -> DataServer:
        """Bind all stores and serve. Raises ``CONFIG_INVALID`` for a port that is taken."""
        for store_id in range(1, self.settings.stores + 1):
            self._start_store(store_id)
        self._ticker.start()
        return self

    def stop(self) -> None:
        """Stop serving. May be called twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        for service in self._services:
            service.close_streams()
        for stopped in [server.stop(grace=0.5) for server in self._servers]:
            stopped.wait()
        if self._ticker.is_alive():
            self._ticker.join()

    def __enter__(self) -> DataServer:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _start_store(self, store_id: int) -> None:
        wanted = self.settings.port + store_id - 1 if self.settings.port else 0
        options = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            # Two servers that share a port would each get a part of the clients.
            ("grpc.so_reuseport", 0),
        ]
        workers = futures.ThreadPoolExecutor(self.settings.threads_per_store, thread_name_prefix=f"store-{store_id}")
        server = grpc.server(workers, options=options)
        service = StoreService(self.engine, store_id, self.settings.feed)
        service.add_to(server)
        try:
            port = server.add_insecure_port(f"{self.settings.host}:{wanted}")
        except RuntimeError as error:
            self.stop()
            raise PenstockError(
                "CONFIG_INVALID", f"port: cannot listen on {self.settings.host}:{wanted}", "Choose a free --port."
            ) from error
        self.engine.addresses[store_id] = f"{self.settings.host}:{port}"
        server.start()
        self._servers.append(server)
        self._services.append(service)

    def _publish(self) -> None:
        while not self._clock.wait(self._stopping, self.settings.resolved_interval_ms / 1000):
            self.engine.publish_resolved()
