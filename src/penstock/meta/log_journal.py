"""The journal of an upstream with one log: positions with their ts, marks, and the table versions that were seen.

A position tells where the log is read again for a ts; a mark raises the chain of commit ts when it is passed again, so it is durable
before anyone relies on its ts. The order of entries by ts is their order in the log: so ``start_for`` gives a place behind which
everything above the ts is found. Whoever saves has compared the places (``puller/logged/journal_keeper.py``); what can be told without
comparing is refused here. Marks at one place follow each other while a log is quiet; of those the first and the newest stay, so that
whoever stands between them begins at this place and at none before it. Positions that are older than ``keep_s`` are dropped, but never
one that somebody needs. One process writes, the reader of the log, under a lease with an epoch that every entry is saved under: another
reader would not know the marks that this one puts, and give a commit another ts. Runs in the server, in the puller's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import sqlalchemy as sa

from penstock.meta.engine import MetaEngine, MetaSettings
from penstock.meta.tables import log_position, log_schema
from penstock.meta.transactions import log_readers
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.table import TableSchema


class JournalEntry(msgspec.Struct, frozen=True):
    """A ts, the place of the log in the source's words, and whether it is a mark."""

    ts: int
    text: str
    mark: bool = False


@dataclass(frozen=True)
class JournalSettings:
    """How long positions are kept, how often old ones are looked for, and for how long a reader that says nothing has the log."""

    keep_s: float = 3 * 86_400.0
    prune_interval_s: float = 600.0
    lease_s: float = 6.0


class LogJournal:
    """The journal of one source in the meta database. One writer; any number of readers."""

    def __init__(
        self,
        url: str,
        source: str,
        settings: JournalSettings | None = None,
        clock: Clock | None = None,
        meta: MetaSettings | None = None,
        reader: str = "",
    ) -> None:
        """``reader`` is the server that reads the log; without one nobody else can, and no lease is kept."""
        self.settings = settings or JournalSettings()
        self._source = source
        self._clock = clock or SystemClock()
        self._engine = MetaEngine(url, meta or MetaSettings())
        self._pruned_s = self._clock.monotonic_s()
        self._reader = reader
        self._epoch: int | None = None
        self._held_s = float("-inf")
        self._former = ""

    @property
    def readers(self) -> tuple[str, str]:
        """Return the server that reads the log, and the one that had it before and lost it without letting go; empty for none."""
        return self._reader, self._former

    def hold(self, afresh: bool = False) -> None:
        """Be the reader of the log: take it, or look again whether it is still this one's and renew that; raise where another has it.

        What was read of the log before this returns lies before every mark that a later reader puts, so it may be given. A look of a
        moment ago is enough, unless it is to be taken ``afresh``.
        """
        now_s = self._clock.monotonic_s()
        if not self._reader or (not afresh and now_s - self._held_s < min(1.0, self.settings.lease_s / 3)):
            return
        if self._epoch is not None:
            with self._engine.read() as connection:
                there = log_readers.reader_of(connection, self._source)
                left_ms = there.lease_until_ms - self._now_ms(connection) if there is not None else 0
            if there is not None and there.epoch == self._epoch and left_ms > self._lease_ms * 2 // 3:
                self._held_s = now_s
                return
        with self._engine.write() as connection:
            self._be_reader(connection)
        self._held_s = now_s

    def let_go(self) -> None:
        """Be the reader of the log no more. Does nothing where this is not the reader."""
        epoch, self._epoch, self._held_s = self._epoch, None, float("-inf")
        if epoch is not None:
            with self._engine.write() as connection:
                log_readers.release(connection, self._source, epoch)

    def save(self, entry: JournalEntry) -> None:
        """Make a position or mark durable; one that is there stays. Raises where an entry of this ts names another place."""
        values = {"mark": int(entry.mark), "position": entry.text, "written_ms": self._clock.now_ms()}
        with self._engine.write() as connection:
            self._be_reader(connection)
            newest, before = self._two_newest_up_to(connection, entry.ts)
            if newest is None or newest.ts < entry.ts:
                if entry.mark and newest is not None and newest.mark and before is not None and before.text == newest.text == entry.text:
                    # Quiet since then: the first and the last entry of a place are enough. The first stays, because the upstream may have
                    # been told that everything before this place is durable: whoever stands at a mark that goes must not begin before it.
                    connection.execute(log_position.delete().where(self._mine(), log_position.c.ts == newest.ts))
                connection.execute(log_position.insert().values(source=self._source, ts=entry.ts, **values))
            elif entry.mark and newest.mark and newest.text != entry.text:
                raise InvariantError(f"two marks of ts {entry.ts}, at {newest.text} and {entry.text}")
            elif entry.mark and not newest.mark:
                connection.execute(log_position.update().where(self._mine(), log_position.c.ts == entry.ts).values(**values))

    def start_for(self, ts: int) -> JournalEntry | None:
        """Return the newest position at or below a ts, None where the journal does not reach back so far."""
        with self._engine.read() as connection:
            return self._newest_up_to(connection, ts)

    def newest(self) -> JournalEntry | None:
        """Return the newest position, None where nothing was written yet."""
        with self._engine.read() as connection:
            return self._newest_up_to(connection, None)

    def first(self) -> JournalEntry | None:
        """Return the oldest position, None where nothing was written yet."""
        query = sa.select(log_position).where(self._mine()).order_by(log_position.c.ts).limit(1)
        with self._engine.read() as connection:
            row = connection.execute(query).first()
        return JournalEntry(row.ts, row.position, bool(row.mark)) if row is not None else None

    def begin_anew(self, entry: JournalEntry) -> None:
        """Drop every position and begin with this one, because the places of another log cannot be compared with it."""
        values = {"mark": int(entry.mark), "position": entry.text, "written_ms": self._clock.now_ms()}
        with self._engine.write() as connection:
            self._be_reader(connection)
            connection.execute(log_position.delete().where(self._mine()))
            connection.execute(log_position.insert().values(source=self._source, ts=entry.ts, **values))

    def marks_from(self, ts: int) -> list[JournalEntry]:
        """Return the marks above a ts, oldest first."""
        query = (
            sa.select(log_position.c.ts, log_position.c.position)
            .where(log_position.c.source == self._source, log_position.c.ts > ts, log_position.c.mark == 1)
            .order_by(log_position.c.ts)
        )
        with self._engine.read() as connection:
            return [JournalEntry(row.ts, row.position, True) for row in connection.execute(query)]

    def save_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Make table versions durable; those that are there stay as they are."""
        with self._engine.write() as connection:
            for version in versions:
                key = {"source": self._source, "table_id": version.table_id, "version": version.version}
                there = sa.select(log_schema.c.version).filter_by(**key)
                if connection.execute(there).first() is None:
                    connection.execute(log_schema.insert().values(**key, document=version.to_json().decode()))

    def schemas(self) -> list[TableSchema]:
        """Return every table version that was seen, oldest first."""
        query = sa.select(log_schema.c.document).where(log_schema.c.source == self._source).order_by(log_schema.c.version)
        with self._engine.read() as connection:
            return [TableSchema.from_json(row.document) for row in connection.execute(query)]

    def close(self) -> None:
        """Close the connections. Called once, by the owner."""
        self._engine.close()

    def prune(self, needed_ts: int) -> None:
        """Drop old positions, from time to time; the newest at or below ``needed_ts`` stays, with all that follow."""
        now_s = self._clock.monotonic_s()
        if now_s - self._pruned_s < self.settings.prune_interval_s:
            return
        self._pruned_s = now_s
        before_ms = self._clock.now_ms() - int(self.settings.keep_s * 1000)
        with self._engine.write() as connection:
            kept = self._newest_up_to(connection, needed_ts)
            if kept is not None:
                old = log_position.delete().where(self._mine(), log_position.c.written_ms < before_ms, log_position.c.ts < kept.ts)
                connection.execute(old)

    def _be_reader(self, connection: sa.Connection) -> None:
        if not self._reader:
            return
        now_ms = self._now_ms(connection)
        if self._epoch is not None and log_readers.renew(connection, self._source, self._epoch, self._lease_ms, now_ms):
            return
        was, self._epoch = self._epoch, None
        if was is not None:
            # What was read since the last look may have another ts there: the log is read again from a place that is known.
            raise PenstockError("LOG_HELD", "another server took the log meanwhile")
        taken = log_readers.take(connection, self._source, self._reader, self._lease_ms, now_ms)
        if taken is not None:
            self._epoch, self._former = taken
        else:
            other = log_readers.reader_of(connection, self._source)
            raise PenstockError("LOG_HELD", f"the log is read by the server {other.owner if other is not None else 'that took it'}")

    @property
    def _lease_ms(self) -> int:
        return round(self.settings.lease_s * 1000)

    def _now_ms(self, connection: sa.Connection) -> int:
        return self._engine.server_now_ms(connection) or self._clock.now_ms()

    def _mine(self) -> sa.ColumnElement[bool]:
        return log_position.c.source == self._source

    def _newest_up_to(self, connection: sa.Connection, ts: int | None) -> JournalEntry | None:
        return self._two_newest_up_to(connection, ts)[0]

    def _two_newest_up_to(self, connection: sa.Connection, ts: int | None) -> list[JournalEntry | None]:
        query = sa.select(log_position).where(self._mine()).order_by(log_position.c.ts.desc()).limit(2)
        rows = connection.execute(query if ts is None else query.where(log_position.c.ts <= ts)).all()
        return [*(JournalEntry(row.ts, row.position, bool(row.mark)) for row in rows), None, None][:2]
