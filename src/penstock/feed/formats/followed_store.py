"""The event store that has a table now, followed from server to server.

``data-dir`` may name the data directories of several servers that share feeds, with commas between them: whichever serves the table, and
has it furthest, is read. A server that ends leaves its feeds to another; a reader waits for that one, as long as ``takeover-seconds`` says,
and goes on at the row where it stood: the same window has the same rows in the same order, whoever serves it. With ``location`` and
``token`` there is one server, and nobody to wait for. Runs in the driver and, where the directories can be reached there, on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from penstock.feed.formats.table_read import TablePart, TableRead, find_table, read_part, required
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.store.flight.address import FlightAddress, read_address
from penstock.store.flight.client import FlightStoreClient

PASSING = frozenset({"STORE_UNREACHABLE", "TABLE_UNKNOWN", "SPAN_UNKNOWN", "TICKET_INVALID", "WINDOW_INVALID", "SCHEMA_UNKNOWN"})
"""What a reader meets while a table is between two servers: nobody there, nobody who knows it, or somebody who has not caught up."""
TAKEOVER_S = 60
_LOOK_S = 0.2
R = TypeVar("R")


def address_of(options: Mapping[str, str]) -> FlightAddress:
    """Return where the event store is read: of the server on a data directory, or as the options say."""
    if not options.get("data-dir"):
        return FlightAddress(required(options, "location"), required(options, "token"))
    directories = [Path(name.strip()) for name in options["data-dir"].split(",") if name.strip()]
    if len(directories) == 1:
        return read_address(directories[0])
    found: list[tuple[int, FlightAddress]] = []
    for directory in directories:
        try:
            address = read_address(directory)
            with closing(FlightStoreClient(address.location, address.token)) as client:
                spans, _ = find_table(client, required(options, "table"))
        except PenstockError as error:
            if error.code not in PASSING:
                raise
            continue
        found.append((min(s.resolved_ts for s in spans), address))
    if not found:
        raise PenstockError("STORE_UNREACHABLE", f"none of {len(directories)} data directories has a server with table {options['table']}")
    return max(found, key=lambda one: one[0])[1]


@contextmanager
def opened(options: Mapping[str, str]) -> Iterator[FlightStoreClient]:
    """Open a client of the event store that has the table now."""
    address = address_of(options)
    with closing(FlightStoreClient(address.location, address.token)) as client:
        yield client


class Patience:
    """How long a reader waits for a server that takes over; what comes meanwhile begins it anew."""

    def __init__(self, options: Mapping[str, str], clock: Clock | None = None) -> None:
        text = options.get("takeover-seconds", str(TAKEOVER_S))
        if not text.isdigit():
            raise PenstockError("CONFIG_INVALID", "takeover-seconds: expected a whole number")
        self._wait_s = float(text) if options.get("data-dir") else 0.0
        self._clock = clock or SystemClock()
        self._since_s: float | None = None
        self._never = threading.Event()

    def met(self) -> None:
        """Note that somebody answered."""
        self._since_s = None

    def bears(self, error: PenstockError, *, wait: bool = True) -> bool:
        """Return whether to try again after an error, once a moment has passed where that is wanted."""
        if error.code not in PASSING:
            return False
        now_s = self._clock.monotonic_s()
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s >= self._wait_s:
            return False
        if wait:
            self._clock.wait(self._never, _LOOK_S)
        return True

    def ask(self, options: Mapping[str, str], question: Callable[[FlightStoreClient], R]) -> R:
        """Return what the store that has the table answers."""
        while True:
            try:
                with opened(options) as client:
                    answer = question(client)
            except PenstockError as error:
                if not self.bears(error):
                    raise
                continue
            self.met()
            return answer


def read_followed(options: Mapping[str, str], planned: FlightAddress, plan: TableRead, part: TablePart) -> Iterator[pa.RecordBatch]:
    """Yield the typed rows of a part, from the server that it was planned at or whichever has the table since."""
    patience, given, address = Patience(options), 0, planned
    while True:
        passed = given
        try:
            with closing(FlightStoreClient(address.location, address.token)) as client:
                for batch in read_part(client, plan, part):
                    patience.met()
                    if passed >= batch.num_rows:
                        passed -= batch.num_rows
                        continue
                    rest, passed = batch.slice(passed), 0
                    given += rest.num_rows
                    yield rest
        except PenstockError as error:
            if not patience.bears(error):
                raise
        else:
            return
        try:
            address = address_of(options)
        except PenstockError as error:
            if error.code not in PASSING:
                raise
