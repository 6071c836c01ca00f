"""Receivers: the log service in long-running Spark tasks on executors.

The spans are divided into groups, one task for each. A task has everything that a server has to capture its group: an upstream, an event
store, a Flight service and a log service. Its objects and manifests are on storage that all executors share, in a folder of the group;
its memory and write-ahead log are its own, and are served by Flight from the executor. Where it serves, it announces on the shared
storage, so a reader finds the newest receiver of a span without asking the driver.

A task whose executor is lost is started again by Spark on another one. Its successor opens the group's objects with an empty log, goes
back to what is in objects, and pulls from there: what was only in memory comes again. It becomes their owner first, so a predecessor that
is cut off but still alive cannot publish any more (``store/objects/ownership.py``). ``Receivers`` runs in the driver, ``host_group``
on executors.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.log_service import LogService
from penstock.source.catalog import open_upstream
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.server import FlightService
from penstock.store.flight.ticket import call_token
from penstock.store.objects.objects import ObjectSpace
from penstock.store.settings import StoreSettings

_log = logging.getLogger(__name__)

_STOP = "receivers/stop"
_SECRET_BYTES = 32


@dataclass(frozen=True)
class ReceiverSettings:
    """How many tasks there are, and how often each makes what it captured safe against the loss of its executor."""

    receivers: int = 2
    flush_interval_s: float = 5.0
    look_interval_s: float = 0.5
    """How often a task looks whether it is to stop."""
    host: str = "127.0.0.1"
    """Where a task listens; with ``0.0.0.0`` it announces the executor's name."""
    stop_timeout_s: float = 60.0


class ReceiverPlan(msgspec.Struct, frozen=True):
    """What one task captures, and where to."""

    group: int
    source: str
    objects_uri: str
    storage_options: dict[str, str]
    spans: tuple[Span, ...]
    start_ts: int
    secret: bytes
    host: str
    flush_interval_s: float
    look_interval_s: float


class ReceiverAddress(msgspec.Struct, frozen=True):
    """What a task announces. ``attempt`` grows: the newest one holds."""

    group: int
    attempt: int
    location: str
    host: str
    pid: int
    span_ids: tuple[int, ...]


class Receivers:
    """Hosts a log service in Spark tasks. Its owner starts and closes it; everything else is in the tasks and on the shared storage."""

    def __init__(
        self,
        session: SparkSession,
        source: str,
        objects_uri: str,
        settings: ReceiverSettings | None = None,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings or ReceiverSettings()
        self._session = session
        self._source = source
        self._objects_uri = objects_uri
        self._options = dict(storage_options or {})
        self._clock = clock or SystemClock()
        self._secret = os.urandom(_SECRET_BYTES)
        self._space = ObjectSpace(objects_uri, options=self._options)
        self._ended = threading.Event()
        self._failure: str = ""
        self._job = f"penstock-receivers-{system_random().getrandbits(32):08x}"
        self._thread: threading.Thread | None = None

    @property
    def token(self) -> str:
        """Return what readers pass to the Flight services."""
        return call_token(self._secret)

    def start(self, spans: Sequence[Span], start_ts: int) -> Receivers:
        """Begin to capture spans from a ts on, or from where their groups already are.

        Each task takes a slot of an executor for as long as it runs: the cluster needs as many slots beyond what feeds use.
        """
        if self._thread is not None:
            raise PenstockError("INTERNAL", "receivers are started once")
        self._space.delete(_STOP)
        plans = [msgspec.msgpack.encode(plan) for plan in self._plans(divide(spans, self.settings.receivers), start_ts)]
        self._thread = threading.Thread(target=self._run, args=(plans,), name="receivers", daemon=True)
        self._thread.start()
        return self

    def addresses(self) -> dict[int, ReceiverAddress]:
        """Return the newest announced receiver of every span, by span id. One that was just lost is here until its successor announces."""
        newest: dict[int, ReceiverAddress] = {}
        for name in self._space.list_names("receivers/"):
            if name.endswith(".address"):
                address = msgspec.msgpack.decode(self._space.get(name).to_pybytes(), type=ReceiverAddress)
                for span_id in address.span_ids:
                    known = newest.get(span_id)
                    if known is None or known.attempt < address.attempt:
                        newest[span_id] = address
        return newest

    @property
    def error(self) -> str:
        """Return why the tasks ended by themselves, empty while they run."""
        return self._failure

    def close(self) -> None:
        """Let the tasks write what they hold and end. May be called twice."""
        if self._thread is None:
            return
        self._space.put_new(_STOP, [b"stop"])
        if not self._clock.wait(self._ended, self.settings.stop_timeout_s):
            self._session.sparkContext.cancelJobGroup(self._job)
        self._thread.join()

    def _plans(self, groups: Sequence[tuple[Span, ...]], start_ts: int) -> Iterator[ReceiverPlan]:
        for group, spans in enumerate(groups):
            yield ReceiverPlan(
                group=group,
                source=self._source,
                objects_uri=self._objects_uri,
                storage_options=self._options,
                spans=spans,
                start_ts=start_ts,
                secret=self._secret,
                host=self.settings.host,
                flush_interval_s=self.settings.flush_interval_s,
                look_interval_s=self.settings.look_interval_s,
            )

    def _run(self, plans: list[bytes]) -> None:
        context = self._session.sparkContext
        try:
            context.setJobGroup(self._job, "penstock receivers", interruptOnCancel=True)
            context.parallelize(plans, len(plans)).foreachPartition(_host_encoded)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises is shown to the owner
            self._failure = str(error).splitlines()[0] if str(error) else type(error).__name__
            _log.warning("receivers: the tasks failed", extra={"error": self._failure})
        finally:
            self._ended.set()


def divide(spans: Sequence[Span], receivers: int) -> list[tuple[Span, ...]]:
    """Return the spans in so many groups, the same for the same spans whatever their order; no group is empty."""
    ordered = sorted(set(spans))
    count = max(1, min(receivers, len(ordered)))
    return [tuple(ordered[group::count]) for group in range(count)]


def _host_encoded(plans: Iterable[bytes]) -> None:
    for plan in plans:
        host_group(msgspec.msgpack.decode(plan, type=ReceiverPlan))


def host_group(plan: ReceiverPlan, clock: Clock | None = None) -> None:
    """Capture a group until the stop mark is there. Raises what ends it otherwise; Spark starts it again then."""
    clock = clock or SystemClock()
    shared = ObjectSpace(plan.objects_uri, options=plan.storage_options)
    objects = ObjectSpace(f"{plan.objects_uri.rstrip('/')}/group-{plan.group:04d}", options=plan.storage_options)
    with ExitStack() as parts:
        local = tempfile.mkdtemp(prefix=f"penstock-receiver-{plan.group}-")
        parts.callback(shutil.rmtree, local, ignore_errors=True)
        upstream = open_upstream(plan.source)
        parts.callback(upstream.close)
        store = ColumnarEventStore(Path(local), StoreSettings(objects_interval_s=plan.flush_interval_s), clock, objects, shared=True)
        parts.callback(store.close)
        advertised = socket.getfqdn() if plan.host == "0.0.0.0" else plan.host
        flight = FlightService(store, plan.host, secret=plan.secret, clock=clock, advertised_host=advertised)
        parts.callback(flight.close)
        service = LogService(upstream, store, clock=clock)
        parts.callback(service.close)
        service.start()
        span_ids = [service.ensure_span(span, plan.start_ts) for span in plan.spans]
        address = announce(shared, ReceiverAddress(plan.group, 0, flight.location, advertised, os.getpid(), tuple(span_ids)))
        _log.info("receiver started", extra={"group": plan.group, "attempt": address.attempt, "spans": len(span_ids)})
        # What the store captured it writes to the shared storage by itself, from time to time and when it is closed.
        never = threading.Event()
        while _STOP not in shared.list_names("receivers/"):
            clock.wait(never, plan.look_interval_s)


def announce(shared: ObjectSpace, address: ReceiverAddress) -> ReceiverAddress:
    """Write where a group is served under the next free attempt; return it with that attempt."""
    attempt = 1 + sum(name.startswith(f"receivers/{address.group:04d}-") for name in shared.list_names("receivers/"))
    while True:
        announced = msgspec.structs.replace(address, attempt=attempt)
        if shared.put_new(f"receivers/{address.group:04d}-{attempt:06d}.address", [msgspec.msgpack.encode(announced)]):
            return announced
        attempt += 1
