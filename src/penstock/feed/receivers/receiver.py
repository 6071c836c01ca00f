"""A receiver: a long task that captures the parts which the server orders, until it is told to stop.

One thread reports to the server and takes its orders, whatever else goes on; the other one opens and closes parts and begins spans, which
may take their time. What fails is said in the next report and tried again. A receiver that gets no answer for a minute ends: the server
has given its parts to others by then, whose ownership fences this one. Nothing of it outlives the task but objects. Runs on executors.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from penstock.feed.receivers.captured_part import CapturedPart
from penstock.feed.receivers.messages import Orders, PartReport, ReceiverTask, Report, proof_of
from penstock.feed.receivers.settings import ReceiverSettings
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.decoding import decoded
from penstock.model.errors import ErrorKind, PenstockError
from penstock.settings.masking import mask_text
from penstock.source.catalog import open_upstream
from penstock.source.contract import Upstream
from penstock.store.flight.client import FlightStoreClient

log = logging.getLogger(__name__)
_AGAIN_S = 1.0
"""How long after something failed it is tried again."""


def host_receiver(task: bytes) -> bytes:
    """Do a ``ReceiverTask`` until the server says stop. Runs on an executor."""
    told = decoded(task, ReceiverTask)
    with closing(FlightStoreClient(told.server.location, told.server.token)) as server:
        Receiver(told, server.report).run()
    return b""


class Receiver:
    """One receiver, from ``run`` to its end."""

    def __init__(
        self,
        told: ReceiverTask,
        call: Callable[[bytes], bytes],
        settings: ReceiverSettings | None = None,
        clock: Clock | None = None,
        opened: Callable[[str], Upstream] = open_upstream,
    ) -> None:
        """``call`` sends a report and returns the answer."""
        self._told = told
        self._call = call
        self._settings = settings or ReceiverSettings()
        self._clock = clock or SystemClock()
        self._opened = opened
        self._name = f"{told.slot}-{told.run}-{system_random().getrandbits(48):012x}"
        self._proof = proof_of(told.secret)
        self._host = own_host(told.server.location)
        self._lock = threading.Lock()
        self._orders = Orders()
        self._parts: dict[int, CapturedPart] = {}
        self._errors: dict[int, str] = {}
        self._opened_count = 0
        self._upstream: Upstream | None = None
        self._never, self._wake, self._stop = threading.Event(), threading.Event(), threading.Event()

    def run(self) -> None:
        """Report and follow orders until they say stop, or nobody answers any more."""
        with ExitStack() as ends:
            directory = Path(tempfile.mkdtemp(prefix="penstock-receiver-", dir=_local_directory()))
            ends.callback(shutil.rmtree, directory, ignore_errors=True)
            worker = threading.Thread(target=self._work, args=(directory,), name="receiver", daemon=True)
            ends.callback(worker.join)
            ends.callback(self._wake.set)
            ends.callback(self._stop.set)
            worker.start()
            self._report_and_obey()

    def _report_and_obey(self) -> None:
        answered_s = self._clock.monotonic_s()
        while True:
            try:
                orders = decoded(self._call(msgspec.json.encode(self._report())), Orders)
            except PenstockError as error:
                silent_s = self._clock.monotonic_s() - answered_s
                if error.kind is not ErrorKind.TRANSIENT or silent_s > self._settings.lost_s:
                    log.warning("receiver ends: the server does not answer", extra={"code": error.code, "silent_s": silent_s})
                    return
            else:
                answered_s = self._clock.monotonic_s()
                if orders.stop:
                    return
                with self._lock:
                    is_new, self._orders = orders != self._orders, orders
                if is_new:
                    self._wake.set()
            self._clock.wait(self._never, self._settings.report_interval_s)

    def _report(self) -> Report:
        with self._lock:
            ordered = {order.part for order in self._orders.parts}
            held, errors = dict(self._parts), dict(self._errors)
        parts = [held[n].report(errors.get(n, "")) if n in held else PartReport(n, error=errors.get(n, "")) for n in ordered | held.keys()]
        return Report(self._proof, self._name, self._told.slot, self._told.run, self._host, os.getpid(), tuple(parts))

    def _work(self, directory: Path) -> None:
        try:
            while not self._stop.is_set():
                self._wake.clear()
                self._obey(directory)
                self._clock.wait(self._wake, _AGAIN_S)
        finally:
            for number in list(self._parts):
                self._close(number)
            if self._upstream is not None:
                self._upstream.close()

    def _obey(self, directory: Path) -> None:
        with self._lock:
            orders = self._orders
        ordered = {order.part for order in orders.parts}
        for number in [n for n in self._parts if n not in ordered]:
            self._close(number)
        for order in orders.parts:
            error = ""
            try:
                part = self._parts.get(order.part) or self._open(order.part, directory)
                part.follow(order.spans)
            except PenstockError as raised:
                error = mask_text(str(raised))
            except Exception as raised:
                log.exception("receiver: part failed", extra={"part": order.part})
                error = mask_text(f"[STORE_FAILED] {type(raised).__name__}: {raised}")
            with self._lock:
                self._errors[order.part] = error

    def _open(self, number: int, directory: Path) -> CapturedPart:
        if self._upstream is None:
            self._upstream = self._opened(self._told.source)
        # A part that was closed may come back: each time it begins with an empty directory.
        self._opened_count += 1
        own = directory / f"{number:04d}-{self._opened_count}"
        part = CapturedPart(number, self._told, self._host, self._upstream, own, self._clock)
        log.info("part is captured", extra={"part": number, "receiver": self._name})
        with self._lock:
            self._parts[number] = part
        return part

    def _close(self, number: int) -> None:
        try:
            self._parts[number].close()
        except Exception:
            # The others must be closed too, and their successors do not need it.
            log.exception("part was not closed well", extra={"part": number})
        with self._lock:
            del self._parts[number]
            self._errors.pop(number, None)


def own_host(server: str) -> str:
    """Return the address of this machine from which it reaches the server: there the others of the cluster reach it."""
    parts = urlsplit(server)
    if parts.scheme == "grpc+unix" or not parts.hostname:
        return "127.0.0.1"
    family, kind, protocol, _, address = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # Nothing is sent: the system chooses from where it would be.
        probe.connect(address)
        return str(probe.getsockname()[0])


def _local_directory() -> str | None:
    """Return where Spark has its executor keep files that end with it; None for the system's temporary directory."""
    first = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return first if first and os.access(first, os.W_OK) else None
