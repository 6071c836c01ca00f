"""A meta database as a file: taken while servers run, put back into an empty database.

The file is text, a line for each row, with magic, version and a checksum of everything before its last line; only its user can read it.
What is sealed stays sealed: the key is no part of it. Invariants: a backup is one state of the database (one transaction reads it all);
nothing is restored of a file that is not whole; a restored feed has nobody as its owner, and an epoch above every one that was given out
meanwhile, since epochs grow by one with a claim and no database commits one each millisecond. Places of a log are not restored: those
that were noted later are lost, and with them which commit ts were given, so such a source is captured anew. Runs where commands are given.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import sqlalchemy as sa

from penstock.files.durable_names import sync_directory
from penstock.files.private_files import open_private
from penstock.meta.engine import MetaEngine
from penstock.meta.records import Actor, ReachedState
from penstock.meta.tables import META_VERSION, commit_mark, feed, feed_retry, meta_version, metadata, pending_window, server, subscribe
from penstock.meta.transactions import audit
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError

MAGIC = b"penstock-meta-backup"
FORMAT = 1
_FIRST_VERSION = 3
"""Of the database, in a backup. Since then steps have only added columns with defaults, or taken some away: rows of before are restored
as they are. A step that does more ends that, and raises this."""
SEALED_PREFIX = "sealed:"
_EPOCHS_BESIDE = 1 << 20
"""Room for clocks of machines that do not agree: a quarter of an hour."""
_LIVE_MS = 60_000
_ROWS_AT_ONCE = 500
_PROCESSES = frozenset({server.name, commit_mark.name})
"""Tables about processes, which a backup outlives."""
_NOT_RESTORED = _PROCESSES | {feed_retry.name, meta_version.name, "log_position"}
_ENDED = frozenset({ReachedState.RUNNING.value, ReachedState.RETRYING.value})


class BackupHeader(msgspec.Struct, frozen=True):
    """What a backup says of itself."""

    format: int
    meta_version: int
    taken_ms: int
    database: str
    epoch_floor: int
    feeds: int
    sealed: int
    """How many feeds have a configuration that only its key opens."""
    columns: dict[str, list[str]]
    """Of each table."""


class Restored(msgspec.Struct, frozen=True):
    """What a restore did."""

    rows: int
    feeds: int
    epochs_grew_by: int
    tokens: int


def write_backup(engine: MetaEngine, file: Path, now_ms: int) -> BackupHeader:
    """Write a backup to a new file, as one transaction sees the database; raise where the file is there."""
    partial = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        with engine.read() as connection, open(partial, "xb", opener=open_private) as sink:
            header = _write(connection, engine.kind, sink, now_ms)
            sink.flush()
            os.fsync(sink.fileno())
        os.link(partial, file)
        sync_directory(file.parent)
    except FileExistsError:
        raise PenstockError("CONFIG_INVALID", f"{file} is there already", "Name another file: a backup replaces none.") from None
    except OSError as error:
        raise PenstockError("CONFIG_INVALID", f"{file}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return header


def read_backup(file: Path) -> tuple[BackupHeader, Iterator[tuple[str, dict[str, Any]]]]:
    """Return what a backup says of itself, and its rows by table; raise where it is not whole, before any row is given."""
    try:
        header = _check(file)
    except OSError as error:
        raise PenstockError("CONFIG_INVALID", f"{file}: {error.strerror}") from None
    return header, _rows(file, header)


def restore(
    engine: MetaEngine,
    header: BackupHeader,
    rows: Iterator[tuple[str, dict[str, Any]]],
    *,
    actor: Actor,
    now_ms: int,
    force: bool = False,
    with_tokens: bool = False,
) -> Restored:
    """Put a backup into an empty database, all or nothing; with ``force`` what is there is deleted first.

    Tokens stay out unless they are asked for: one that was revoked since would open the API again.
    """
    left_out = _NOT_RESTORED if with_tokens else _NOT_RESTORED | {"api_token"}
    with engine.write() as connection:
        floor = _make_room(connection, force, now_ms)
        jump = max(0, now_ms - header.taken_ms) + _EPOCHS_BESIDE
        above = max(floor, header.epoch_floor) + jump
        counted: dict[str, int] = {}
        names: list[str] = []
        waiting: dict[str, list[dict[str, Any]]] = {}
        for table, row in rows:
            if table in left_out or table not in metadata.tables:
                continue
            counted[table] = counted.get(table, 0) + 1
            if table == feed.name:
                names.append(row["name"])
            known = metadata.tables[table].columns
            waiting.setdefault(table, []).append({k: v for k, v in _let_go(table, row, jump, floor).items() if k in known})
            if len(waiting[table]) >= _ROWS_AT_ONCE:
                connection.execute(metadata.tables[table].insert(), waiting.pop(table))
        for table, left in waiting.items():
            connection.execute(metadata.tables[table].insert(), left)
        connection.execute(meta_version.update().values(epoch_floor=above))
        for name in names:
            audit.write(connection, name, now_ms, "restore", actor, new=f"from a backup of {header.taken_ms} ms")
    return Restored(sum(counted.values()), counted.get(feed.name, 0), jump, counted.get("api_token", 0))


def _write(connection: sa.Connection, kind: str, sink: BinaryIO, now_ms: int) -> BackupHeader:
    version = connection.execute(sa.select(meta_version)).first()
    if version is None or version.version != META_VERSION:
        found = "none" if version is None else version.version
        raise PenstockError("META_INCOMPATIBLE", f"the database has version {found}, this Penstock backs up {META_VERSION}")
    tables = [table for table in metadata.sorted_tables if table.name not in _PROCESSES]
    configs = connection.execute(sa.select(feed.c.config)).scalars().all()
    header = BackupHeader(
        FORMAT,
        META_VERSION,
        now_ms,
        kind,
        int(version.epoch_floor),
        len(configs),
        sum(config.startswith(SEALED_PREFIX) for config in configs),
        {str(table.name): [str(column.name) for column in table.columns] for table in tables},
    )
    hashed, rows = hashlib.sha256(), 0

    def put(line: bytes) -> None:
        hashed.update(line + b"\n")
        sink.write(line + b"\n")

    put(MAGIC + b" %d" % FORMAT)
    put(msgspec.json.encode(header))
    for table in tables:
        for row in connection.execute(sa.select(table).order_by(*table.primary_key.columns)):
            put(json.dumps([table.name, *row], separators=(",", ":")).encode())
            rows += 1
    sink.write(json.dumps({"rows": rows, "sha256": hashed.hexdigest()}).encode() + b"\n")
    return header


def _check(file: Path) -> BackupHeader:
    """Read the whole file and compare it with its last line."""
    hashed, rows, header = hashlib.sha256(), -2, None
    with file.open("rb") as source:
        before = b""
        for at, line in enumerate(source):
            if at == 0 and not line.startswith(MAGIC + b" "):
                raise PenstockError("META_BACKUP_BROKEN", f"{file} is no backup of a meta database")
            if at == 0 and line.split()[1:] != [b"%d" % FORMAT]:
                raise PenstockError("META_INCOMPATIBLE", f"{file} has a format that this Penstock does not know")
            hashed.update(before)
            rows += bool(before)
            if at == 2:
                header = before
            before = line
    if header is None:
        raise PenstockError("META_BACKUP_BROKEN", f"{file} is cut off")
    try:
        told, read = json.loads(before), decoded(header, BackupHeader)
        expected = (told["rows"], told["sha256"])
    except (ValueError, KeyError, TypeError, msgspec.MsgspecError):
        raise PenstockError("META_BACKUP_BROKEN", f"{file} is cut off") from None
    if expected != (rows, hashed.hexdigest()):
        raise PenstockError("META_BACKUP_BROKEN", f"{file} is not what was written: its checksum is another")
    if not _FIRST_VERSION <= read.meta_version <= META_VERSION:
        raise PenstockError("META_INCOMPATIBLE", f"{file} is of version {read.meta_version}, this Penstock speaks {META_VERSION}")
    return read


def _rows(file: Path, header: BackupHeader) -> Iterator[tuple[str, dict[str, Any]]]:
    with file.open("rb") as source:
        for at, line in enumerate(source):
            row = json.loads(line) if at >= 2 else None
            if isinstance(row, list):
                table, values = row[0], row[1:]
                yield table, dict(zip(header.columns[table], values, strict=True))


def _make_room(connection: sa.Connection, force: bool, now_ms: int) -> int:
    """Raise unless the database is empty, or emptied; return the largest epoch that it gave out."""
    alive = [row.owner for row in connection.execute(sa.select(server)) if row.seen_ms > now_ms - _LIVE_MS]
    if alive:
        raise PenstockError(
            "META_NOT_EMPTY", f"servers use the database: {', '.join(sorted(alive))}", "Stop them first, and wait a minute."
        )
    floor = int(connection.execute(sa.select(meta_version.c.epoch_floor).with_for_update()).scalar_one())
    epochs = [floor, *(int(epoch) for epoch in connection.execute(sa.select(feed.c.epoch)).scalars())]
    kept = _PROCESSES | {meta_version.name}
    tables = [table for table in metadata.sorted_tables if table.name not in kept]
    full = [table.name for table in tables if connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first()]
    if full and not force:
        raise PenstockError("META_NOT_EMPTY", f"the database has rows in {', '.join(full)}")
    for table in tables:
        connection.execute(table.delete())
    return max(epochs)


def _let_go(table: str, row: dict[str, Any], jump: int, floor: int) -> dict[str, Any]:
    """Return a row as nobody's, under an epoch that nobody had."""
    if table == feed.name:
        ended = {"reached_state": ReachedState.STOPPED.value} if row["reached_state"] in _ENDED else {}
        return row | {"owner": "", "lease_until_ms": 0, "epoch": max(row["epoch"], floor) + jump, **ended}
    if table == subscribe.name:
        return row | {"owner": ""}
    if table == "log_reader":
        return row | {"owner": "", "lease_until_ms": 0, "epoch": row["epoch"] + jump}
    if table == pending_window.name:
        return row | {"epoch": max(row["epoch"], floor)}
    return row
