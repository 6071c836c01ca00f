"""The replication slot and the publication: made where they are missing, checked where they are given, dropped when asked.

The server keeps its log for a slot until the slot's owner confirms it, so a slot that nobody reads fills the disk: ``drop_slot`` belongs to
the removal of what reads it. A slot whose log is gone is ``LOG_PURGED``; a setting that does not allow capture is
``UPSTREAM_MISCONFIGURED`` with the statement that fixes it. Runs in the log service and the server.
"""

from __future__ import annotations

import logging
import threading

import msgspec

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.source.postgres.wire.address import PostgresAddress
from penstock.source.postgres.wire.connection import Connection, PostgresError, quote_ident, quote_literal

log = logging.getLogger(__name__)
DUPLICATE_OBJECT, UNDEFINED_OBJECT, INSUFFICIENT_PRIVILEGE = "42710", "42704", "42501"
PLUGIN = "pgoutput"
_FLUSH = "SELECT pg_logical_emit_message(true, 'penstock', '')"
_MADE_HERE = "made by Penstock, which drops it with its last feed"
_DROP_POLL_S = 0.05
_PAGE_BYTES, _SEGMENT_BYTES = 8192, 1 << 24
_SHORT_HEADER, _LONG_HEADER = 24, 40


class SlotStatus(msgspec.Struct, frozen=True):
    """A slot as the server shows it. LSNs are numbers; 0 where there is none."""

    plugin: str
    database: str
    active: bool
    restart_lsn: int
    confirmed_lsn: int
    wal_status: str
    two_phase: bool
    catalog_xmin: str = ""
    """The oldest transaction whose changes of the catalog the server keeps for the slot: older ones were read."""

    @property
    def is_lost(self) -> bool:
        """Return whether the server removed log that the slot needs."""
        return self.wal_status == "lost" or self.restart_lsn == 0


class SnapshotSlot(msgspec.Struct, frozen=True):
    """What creating a slot gave: where it is consistent, and the name of the snapshot at that place."""

    lsn: int
    snapshot: str


def parse_lsn(text: str) -> int:
    """Return an LSN such as ``0/16B3748`` as a number; what follows an ``@`` says whose log it is."""
    high, slash, low = text.partition("@")[0].partition("/")
    try:
        if not slash:
            raise ValueError(text)
        return (int(high, 16) << 32) | int(low, 16)
    except ValueError:
        raise PenstockError("CONFIG_INVALID", f"{text!r} is no position of a PostgreSQL log") from None


def format_lsn(lsn: int) -> str:
    """Return a number as PostgreSQL writes an LSN."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def record_end(lsn: int) -> int:
    """Return the end of the last record, given an insert position, which skips the header of a page that has just begun."""
    rest = lsn % _PAGE_BYTES
    if rest == _SHORT_HEADER or (rest == _LONG_HEADER and lsn % _SEGMENT_BYTES == _LONG_HEADER):
        return lsn - rest
    return lsn


def flushed_end(connection: Connection) -> int:
    """Return the end of the log, with everything before it on the server's disk: nothing else is sent.

    What no commit follows, such as the traces of a read that tidies up a page, is not flushed until the server's background writer gets to
    it after 15 seconds. Then a message is written to the log, which names no table and nobody is sent: its commit flushes all.
    """
    inserted, flushed = connection.query("SELECT pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()")[0]
    end = record_end(parse_lsn(inserted or ""))
    if end > parse_lsn(flushed or ""):
        try:
            connection.query(_FLUSH)
        except PostgresError as error:
            # Without it the end is reached later, that is all.
            if error.sqlstate != INSUFFICIENT_PRIVILEGE:
                raise
    return end


def read_slot(connection: Connection, name: str) -> SlotStatus | None:
    """Return a slot, or None where there is none of this name."""
    two_phase = "two_phase" if connection.server_version >= 14 else "false"
    rows = connection.query(
        f"SELECT plugin, database, active, restart_lsn, confirmed_flush_lsn, wal_status, {two_phase}, catalog_xmin "
        f"FROM pg_replication_slots WHERE slot_name = {quote_literal(name)}"
    )
    if not rows:
        return None
    plugin, database, active, restart, confirmed, wal_status, prepared, catalog_xmin = rows[0]
    return SlotStatus(
        plugin=plugin or "",
        database=database or "",
        active=active == "t",
        restart_lsn=parse_lsn(restart) if restart else 0,
        confirmed_lsn=parse_lsn(confirmed) if confirmed else 0,
        wal_status=wal_status or "",
        two_phase=prepared == "t",
        catalog_xmin=catalog_xmin or "",
    )


def ensure_publication(connection: Connection, address: PostgresAddress) -> None:
    """Make the publication if it is not there. It comes before the slot: the log is read with the catalog of its own time."""
    name = quote_literal(address.publication)
    if connection.query(f"SELECT 1 FROM pg_publication WHERE pubname = {name}"):
        return
    statement = f"CREATE PUBLICATION {quote_ident(address.publication)} FOR ALL TABLES WITH (publish_via_partition_root = true)"
    try:
        # The mark tells a publication that was made here from one that was given, when nobody needs it any more.
        connection.query(f"{statement}; COMMENT ON PUBLICATION {quote_ident(address.publication)} IS {quote_literal(_MADE_HERE)}")
    except PostgresError as error:
        if error.sqlstate == DUPLICATE_OBJECT:
            return
        if error.sqlstate == INSUFFICIENT_PRIVILEGE:
            raise PenstockError(
                "UPSTREAM_MISCONFIGURED",
                f"{address.shown}: there is no publication {address.publication}, and user {address.user} may not create one",
                f"As an administrator, run: {statement}",
            ) from None
        raise


def ensure_slot(connection: Connection, replication: Connection, address: PostgresAddress) -> SlotStatus:
    """Return the slot, made if it is not there. One whose log is gone is made anew: whoever begins here has nothing to lose by it."""
    check_settings(connection, address)
    ensure_publication(connection, address)
    found = read_slot(connection, address.slot)
    if found is not None and found.is_lost and found.plugin == PLUGIN:
        log.warning("postgres: a slot whose log is gone is made anew", extra={"slot": address.slot})
        connection.query(f"SELECT pg_drop_replication_slot({quote_literal(address.slot)})")
        found = None
    if found is None:
        try:
            create_slot(replication, address.slot, temporary=False)
        except PostgresError as error:
            if error.sqlstate != DUPLICATE_OBJECT:
                raise
        found = read_slot(connection, address.slot)
    if found is None:
        raise PenstockError("UPSTREAM_REFUSED", f"{address.shown}: slot {address.slot} vanished while it was made")
    check_slot(found, address)
    return found


def create_slot(replication: Connection, name: str, temporary: bool) -> SnapshotSlot:
    """Create a slot; a temporary one exports a snapshot, which lives until the next command of its connection."""
    kind, snapshot = ("TEMPORARY ", "EXPORT_SNAPSHOT") if temporary else ("", "NOEXPORT_SNAPSHOT")
    row = replication.query(f"CREATE_REPLICATION_SLOT {quote_ident(name)} {kind}LOGICAL {PLUGIN} {snapshot}")[0]
    return SnapshotSlot(parse_lsn(row[1] or ""), row[2] or "")


def check_slot(slot: SlotStatus, address: PostgresAddress) -> None:
    """Raise for a slot that cannot be read."""
    where = f"{address.shown}: slot {address.slot}"
    if slot.plugin != PLUGIN or slot.database != address.database:
        raise PenstockError(
            "UPSTREAM_MISCONFIGURED",
            f"{where} is of plugin {slot.plugin or 'none'} in database {slot.database or 'none'}",
            f"Name another slot with ?slot=…, or run: SELECT pg_drop_replication_slot({quote_literal(address.slot)})",
        )
    if slot.two_phase:
        raise PenstockError(
            "UPSTREAM_MISCONFIGURED",
            f"{where} sends transactions when they are prepared (two_phase), before it is known whether they commit",
            "Name a slot without two_phase with ?slot=…, or drop this one and let Penstock make it.",
        )
    if slot.is_lost:
        raise PenstockError(
            "LOG_PURGED",
            f"{where} is invalid: the server removed log that it needed",
            f"Run: SELECT pg_drop_replication_slot({quote_literal(address.slot)}); raise max_slot_wal_keep_size.",
        )


def check_settings(connection: Connection, address: PostgresAddress) -> None:
    """Raise where the server cannot give a logical log at all."""
    level = connection.query("SHOW wal_level")[0][0]
    if level != "logical":
        raise PenstockError(
            "UPSTREAM_MISCONFIGURED",
            f"{address.shown}: wal_level is {level}, not logical",
            "Run: ALTER SYSTEM SET wal_level = logical; then restart the server.",
        )


def give_up_unreadable(error: PostgresError, address: PostgresAddress, clock: Clock, wait_s: float) -> PenstockError:
    """Return what an error of a stream means; where the publication was missing for a while, drop the slot, which nobody can read on.

    The log is read with the catalog of its own time, so a publication that is there again does not help.
    """
    if error.sqlstate != UNDEFINED_OBJECT or address.publication not in error.detail:
        return error
    with Connection(address) as connection:
        _drop_slot(connection, address, clock, wait_s)
    log.warning("postgres: a slot that cannot be read is given up", extra={"slot": address.slot, "publication": address.publication})
    return PenstockError(
        "LOG_PURGED",
        f"{address.shown}: there was no publication {address.publication} when a part of the log was written, which nobody can read",
    )


def _drop_slot(connection: Connection, address: PostgresAddress, clock: Clock, wait_s: float) -> None:
    """Drop the slot, once the reader that is leaving it has gone."""
    deadline_s, pause = clock.monotonic_s() + wait_s, threading.Event()
    while (slot := read_slot(connection, address.slot)) is not None and slot.active and clock.monotonic_s() < deadline_s:
        clock.wait(pause, _DROP_POLL_S)
    if slot is not None:
        connection.query(f"SELECT pg_drop_replication_slot({quote_literal(address.slot)})")


def release_slot(address: PostgresAddress, clock: Clock, wait_s: float) -> None:
    """Drop the slot, once the reader that is leaving it has gone, and the publication where it was made here."""
    with Connection(address) as connection:
        _drop_slot(connection, address, clock, wait_s)
        found = connection.query(
            "SELECT 1 FROM pg_publication "
            f"WHERE pubname = {quote_literal(address.publication)} AND obj_description(oid, 'pg_publication') = {quote_literal(_MADE_HERE)}"
        )
        if found:
            connection.query(f"DROP PUBLICATION IF EXISTS {quote_ident(address.publication)}")
    log.info("postgres: slot and publication are given up", extra={"slot": address.slot, "publication": bool(found)})
