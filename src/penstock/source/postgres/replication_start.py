"""How the log is begun to be read: the server is the one that was read before, the slot has the log, and nobody else reads it.

Whatever speaks against it is said before anything is sent: another server or a restored one, one that took over before it had all that was
read, a slot that is gone, that was moved on or that cannot be read. A slot that an earlier reader is just leaving is waited for; from one
that stands still, and lost the log to this one by its lease, it is taken. Runs in the log service.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.source.postgres.slot import SlotStatus, check_slot, format_lsn, parse_lsn, read_slot
from penstock.source.postgres.wire.address import PostgresAddress
from penstock.source.postgres.wire.connection import Connection, PostgresError, quote_ident, quote_literal
from penstock.source.postgres.wire.questions import Questions
from penstock.source.single_log import LogPosition

STREAMING_VERSION = 14
_SLOT_POLL_S = 0.05
_END_AGAIN_S = 1.0
_IN_USE = "55006"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Readers:
    """Who reads the log and who did before, and what raises where somebody else has it; see ``ServesOneReader``."""

    name: str = ""
    before: str = ""
    check: Callable[[], None] = lambda: None

    @property
    def sessions(self) -> list[str]:
        """Return the names under which the server knows the two."""
        return [_session_name(name) for name in (self.name, self.before) if name]


def _session_name(reader: str) -> str:
    # The server cuts names; a reader's may be long, and begins as others of its group do.
    return f"penstock log {hashlib.sha256(reader.encode()).hexdigest()[:16]}"


def start_replication(
    questions: Questions, address: PostgresAddress, start: LogPosition, clock: Clock, slot_wait_s: float, readers: Readers
) -> tuple[Connection, SlotStatus, str]:
    """Return a connection on which the log comes from a position on, the slot as it was before, and whose log it is."""
    start_lsn = parse_lsn(start.text)
    replication = questions.open(replication=True)
    try:
        identity = _check_server(replication, address, start)
        slot = questions.ask(lambda c: read_slot(c, address.slot))
        if slot is None:
            raise PenstockError("LOG_PURGED", f"{address.shown}: slot {address.slot} is gone, and with it the log since {start.text}")
        check_slot(slot, address)
        if slot.confirmed_lsn > start_lsn:
            raise PenstockError(
                "LOG_PURGED",
                f"{address.shown}: slot {address.slot} was moved on to {format_lsn(slot.confirmed_lsn)}, past {start.text}",
            )
        if readers.name:
            replication.query(f"SET application_name = {quote_literal(readers.sessions[0])}")
        names = quote_literal(quote_ident(address.publication)).strip()
        _take_slot(
            replication,
            f"START_REPLICATION SLOT {quote_ident(address.slot)} LOGICAL {format_lsn(start_lsn)} "
            f"({_protocol(replication, address)}, publication_names {names})",
            clock,
            slot_wait_s,
            lambda: _end_former(questions, address, readers),
        )
    except BaseException:
        replication.close()
        raise
    return replication, slot, identity


def _protocol(replication: Connection, address: PostgresAddress) -> str:
    if not address.streaming:
        return "proto_version '1'"
    if replication.server_version < STREAMING_VERSION:
        raise PenstockError("CONFIG_INVALID", f"source: streaming=on needs PostgreSQL {STREAMING_VERSION} or newer")
    return "proto_version '2', streaming 'on'"


def _end_former(questions: Questions, address: PostgresAddress, readers: Readers) -> None:
    """End the connection that holds the slot, if it is of this reader or of the one that lost the log to it: it need not have noticed."""
    if not readers.name:
        return
    readers.check()
    query = (
        "SELECT pg_terminate_backend(a.pid) FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid"
        f" WHERE s.slot_name = {quote_literal(address.slot)} AND a.usename = current_user"
        f" AND a.application_name IN ({', '.join(map(quote_literal, readers.sessions))})"
    )
    if questions.ask(lambda connection: connection.query(query)):
        log.warning("slot is taken from a reader that stands still", extra={"slot": address.slot, "reader": readers.before})


def _take_slot(replication: Connection, statement: str, clock: Clock, wait_s: float, end_former: Callable[[], None]) -> None:
    """Start replication; a slot that an earlier reader is just leaving is waited for."""
    deadline_s, ended_s = clock.monotonic_s() + wait_s, float("-inf")
    pause = threading.Event()
    while True:
        try:
            replication.start_copy_both(statement)
        except PostgresError as error:
            if error.sqlstate != _IN_USE or clock.monotonic_s() >= deadline_s:
                raise
            if clock.monotonic_s() - ended_s >= _END_AGAIN_S:
                end_former()
                ended_s = clock.monotonic_s()
            clock.wait(pause, _SLOT_POLL_S)
        else:
            return


def identity_of(replication: Connection) -> str:
    """Return whose log it is: the system, and the timeline, which another one follows where a server takes over or is restored."""
    system, timeline, *_ = replication.query("IDENTIFY_SYSTEM")[0]
    return f"{system}/{timeline}"


def _check_server(replication: Connection, address: PostgresAddress, start: LogPosition) -> str:
    """Return whose log it is; raise where it is not the one that was read: another server's, or the same one from an earlier place on."""
    system, timeline, end, _ = replication.query("IDENTIFY_SYSTEM")[0]
    wanted, _, read_on = start.text.partition("@")[2].partition("/")
    if wanted and wanted != system:
        raise PenstockError(
            "UPSTREAM_MISCONFIGURED",
            f"{address.shown}: the log that was read is of system {wanted}, this server is {system}",
            "Point the source at the server that was captured, or remove the feed and create it anew.",
        )
    if parse_lsn(end or "") < parse_lsn(start.text):
        raise PenstockError(
            "LOG_PURGED", f"{address.shown}: the log ends at {end}, before {start.text}: the server was restored or failed over"
        )
    if read_on not in {"", timeline} and parse_lsn(start.text) > _left_at(replication, timeline or "", read_on):
        raise PenstockError(
            "LOG_PURGED",
            f"{address.shown}: timeline {timeline} begins before {start.text}: the server took over, or was restored, without it",
        )
    return f"{system}/{timeline}"


def _left_at(replication: Connection, timeline: str, earlier: str) -> int:
    """Return where the history of a timeline left an earlier one; 0 where that is no part of it."""
    history = replication.query(f"TIMELINE_HISTORY {int(timeline)}")[0][1] or "" if timeline != "1" else ""
    lines = [line.split() for line in history.splitlines() if not line.startswith("#")]
    return next((parse_lsn(words[1]) for words in lines if words[:1] == [earlier]), 0)
