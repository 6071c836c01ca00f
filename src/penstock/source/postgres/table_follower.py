"""Follows every table through one reading of the log: which version its rows have, what is told of it, when its rows are in doubt.

Relation messages say how the rows behind them are read, the catalog says what they leave out. What cannot be told of one table
(no room for another version, no privilege, a definition that is gone) is a doubt about that table; the log goes on for the others. Doubts
that the catalog raises wait until the log has been read up to where it was asked. Not thread safe. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from penstock.model.ddl import DdlEvent
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.table import TableSchema
from penstock.source.postgres.tables.catalog import HALF_NAMED, OID_MASK, CatalogTable, Silence
from penstock.source.postgres.tables.catalog_watch import CatalogWatch, Changed
from penstock.source.postgres.tables.observed import Created, KnownRelation
from penstock.source.postgres.tables.row_doubts import PARTITION_GONE, creation_doubt
from penstock.source.postgres.tables.schema_book import SchemaBook
from penstock.source.postgres.wire.connection import quote_ident
from penstock.source.postgres.wire.pgoutput import Relation
from penstock.source.postgres.wire.scan_buffer import Notice
from penstock.source.single_log import TableDoubt

_OF_THE_LOG = frozenset({ErrorKind.TRANSIENT, ErrorKind.BUG, ErrorKind.FENCED})


class TableFollower:
    """The tables of one reading."""

    def __init__(
        self, book: SchemaBook, watch: CatalogWatch, root_of: Callable[[int], tuple[int, bool]], log_end: Callable[[], int], shown: str
    ) -> None:
        self._book = book
        self._watch = watch
        self._root_of = root_of
        self._log_end = log_end
        self._shown = shown
        self._relations: dict[int, Relation] = {}
        self._described: dict[int, int] = {}
        self._half_named: set[int] = set()
        self._known: dict[int, KnownRelation] = {}
        self._since: dict[int, int] = {}
        self._ignored: set[int] = set()
        self._dropped: set[int] = set()
        self._told: set[tuple[int, int]] = set()
        self._unlogged: set[int] = set()
        self._fresh: dict[int, CatalogTable] = {}
        self._reasons: dict[int, str] = {}
        self._root: CatalogTable | None = None
        self._doubts: list[TableDoubt] = []
        self.wanted: Callable[[int], bool] = lambda _table_id: True

    def take_notices(self, notices: Sequence[Notice]) -> None:
        """Ask the catalog for the tables that relations describe, all at once: one comes where a definition may have changed."""
        oids = sorted({n.oid for n in notices if n.relation is not None})
        self._fresh = self._watch.read(oids)
        self._reasons = self._watch.rewritten(list(self._fresh.values()), self._is_told, self._book.held)
        self._doubt_lost_partitions(notices)

    def _doubt_lost_partitions(self, notices: Sequence[Notice]) -> None:
        """Doubt tables that got rows by a partition that the catalog does not have any more, and perhaps never showed anybody.

        Behind the relation of a table with partitions stands at once that of the partition for whose rows it is sent.
        """
        for notice in notices:
            if notice.relation is None:
                continue
            if self._root is not None and all(s.oid != notice.oid for s in self._root.storage):
                self._reasons.setdefault(self._root.oid, PARTITION_GONE)
            found = self._fresh.get(notice.oid)
            self._root = found if found is not None and found.partitioned else None

    def end_notices(self) -> None:
        """Take what the catalog showed as seen, and doubt what it leaves open once the log has been read up to there."""
        reasons = {o: r for o, r in self._reasons.items() if r and self._book.knows(o)}
        if reasons:
            lsn = self._log_end()
            for oid, reason in reasons.items():
                self._watch.put_off(lsn, oid, reason)
        self._watch.accept(self._fresh.values())
        for oid, now in self._fresh.items():
            if self._book.knows(oid) and not self._book.is_told(now):
                self._watch.leave_untold(oid)
        self._fresh, self._reasons = {}, {}

    def name_changes(self, notices: Sequence[Notice]) -> list[int]:
        """Return the transactions, but for the first, in which a table comes under a name that nobody has told of it."""
        found: set[int] = set()
        shown: dict[int, tuple[str, str]] = {}
        for notice in notices:
            if notice.relation is None:
                continue
            if notice.oid not in shown and self._book.knows(notice.oid):
                newest = self._book.newest(notice.oid)
                shown[notice.oid] = (newest.schema, newest.table)
            name = (notice.relation.schema, notice.relation.table)
            if shown.get(notice.oid) != name:
                found.add(notice.txn)
            shown[notice.oid] = name
        return sorted(found - {0})

    def real_notices(self, oid: int, notices: Sequence[Notice]) -> list[Notice]:
        """Leave out relations that only repeat what is known: one is sent for each partition of a table."""
        found: list[Notice] = []
        shown = self._relations.get(oid)
        altered = oid in self._fresh and self._fresh[oid] != self._watch.seen(oid)
        for notice in notices:
            if notice.oid == oid and (notice.relation is None or notice.relation != shown or altered):
                found.append(notice)
                shown = notice.relation or shown
                altered = altered and notice.relation is None
        return found

    def apply(self, notice: Notice, ts: int, ddls: list[DdlEvent]) -> None:
        """Take a relation or a truncate at its place between rows."""
        if notice.relation is not None:
            self._relations[notice.oid] = self._as_named(notice.relation)
            self._described[notice.oid] = ts
            self._ignored.discard(notice.oid)
        elif self._book.has_begun(notice.oid, ts, read=notice.oid in self._since):
            self._guarded(notice.oid, ts, lambda: ddls.append(self._book.truncate(notice.oid, ts)))
        self._known.pop(notice.oid, None)

    def _as_named(self, relation: Relation) -> Relation:
        """Return a relation that tells no key, and no old rows as a whole, where what it says of its table is not so for all its rows.

        A part of a key may be no column of the log, and a partition's own replica identity counts, which no message tells.
        """
        shown = self._fresh.get(relation.oid) or self._watch.seen(relation.oid)
        if shown is None:
            return relation
        is_half = bool(shown.unnamed) and (relation.identity in "di" or shown.is_half_named)
        (self._half_named.add if is_half else self._half_named.discard)(relation.oid)
        is_mixed = relation.identity == "f" == shown.identity and not shown.full and shown.has_key
        return msgspec.structs.replace(relation, identity="n") if is_half or is_mixed else relation

    def bags(self) -> set[int]:
        """Return the tables whose rows are counted."""
        return {k.table.table_id for k in self._known.values() if k.is_bag}

    def resolve(self, oid: int, ts: int, ddls: list[DdlEvent]) -> KnownRelation | None:
        """Return how rows of a relation are read, or None where nobody wants them or nobody can read them.

        Schema changes are told of all tables: whether somebody wants one is not yet known where its capture is about to begin.
        """
        known = self._known.get(oid)
        if oid not in self._relations:
            raise PenstockError("DECODE_FAILED", f"{self._shown}: rows of relation {oid}, which was never described")
        if known is None or not self._book.is_current(known.table, ts):
            self._name_as_told(oid, ts)
            self._guarded(oid, ts, lambda: self._observe(self._relations[oid], ts, ddls))
            known = self._known.get(oid)
        if known is None or not self.wanted(known.table.table_id):
            return None
        if oid in self._half_named:
            # Which rows were changed nobody knows; the table is read again once they are named.
            shown = self._fresh.get(oid) or self._watch.seen(oid)
            silence = shown.silence if shown is not None else None
            self.doubt(known.table, ts, silence.reason if silence else HALF_NAMED, silence.error(known.table) if silence else None)
            return None
        return known

    def doubt(self, table: TableSchema, ts: int, reason: str, error: PenstockError | None = None) -> None:
        """Note a doubt; one with an error says that rows were left out."""
        code, hint = (error.code, error.hint or "") if error is not None else ("", "")
        self._doubts.append(TableDoubt(table.table_id, table.schema, table.table, ts, reason, code, hint))

    def doubt_left_out(self, table: TableSchema, ts: int, error: PenstockError) -> None:
        """Doubt a table of which rows were left out, unless the error is not about the table."""
        if error.kind in _OF_THE_LOG and error.code != "SCHEMA_UNKNOWN":
            raise error
        self.doubt(table, ts, error.detail, error)

    def take_doubts(self, lsn: int, ts: int) -> tuple[TableDoubt, ...]:
        """Return the doubts that are due where the log has been read up to a place, once."""

        # A table whose capture is about to begin, or to go on, is doubted when it does: until then nobody would hear it. A doubt that waits
        # for its place is told now as well, because it is kept nowhere else.
        def wanted(oid: int) -> bool:
            return self.wanted(self._book.newest(oid).table_id)

        for waiting in (*self._watch.due(lsn, wanted), *self._watch.undue(lsn, wanted)):
            self.doubt(self._book.newest(waiting.oid), ts, waiting.reason)
        found, self._doubts = tuple(dict.fromkeys(self._doubts)), []
        return found

    def take_notes(self, ts: int) -> tuple[TableSchema, ...]:
        """Return what the journal shall keep of the tables as they were seen."""
        return (*self._watch.take_notes(ts), *self._book.take_ends())

    def look(self) -> list[Changed]:
        """Return the captured tables that the catalog shows otherwise than before, and those that nobody was told of.

        Tables that are gone are returned only until they were told.
        """
        captured = [t for t in self._book.captured(self.wanted) if t.table_id not in self._dropped]
        found = self._watch.look([(t.table_id & OID_MASK, t.table_id, t.version) for t in captured], self._is_told, self._book.held)
        found += self._watch.look_beside(lambda oid: self._book.is_announced(oid) or self.wanted(oid), self._told_of_others)
        return [c for c in found if not (c.table_id in self._unlogged and c.now is None and c.place is not None and not c.place.partition)]

    def _told_of_others(self, oid: int) -> TableSchema | None:
        """Return what was told last of a table that nobody captures."""
        table = self._book.newest(oid) if self._book.is_announced(oid) and self._book.knows(oid) else None
        return None if table is None or self.wanted(table.table_id) else table

    def tell(self, found: Sequence[Changed], ts: int) -> tuple[DdlEvent, ...]:
        """Tell at a mark what a look found, of tables of which the log did not tell more since; doubts are noted."""
        new = [c.now for c in found if c.version == 0 and c.now is not None]
        found = [c for c in found if c.version]
        live = {c.table_id & OID_MASK: c for c in found if self._book.newest(c.table_id & OID_MASK).version == c.version}
        for changed in live.values():
            self._watch.accept_look(changed)
        gone = [self._book.newest(oid) for oid, c in live.items() if c.now is None and (c.place is None or c.place.partition)]
        self._dropped.update(t.table_id for t in gone)
        shown = [c.now for c in live.values() if c.now is not None]
        reasons = {c.table_id & OID_MASK: c.reason for c in found if c.reason}
        ddls, doubts = self._book.observe_catalog(shown, gone, ts, reasons, more=bool(new))
        for oid, reason in doubts.items():
            self.doubt(self._book.newest(oid), ts, reason)
        for changed in live.values():
            self._doubt_silence(changed, ts)
        ddls += tuple(event for table in new for event in self._tell_new(table, ts))
        for oid in {t.table_id & OID_MASK for d in ddls for t in d.tables}:
            self._known.pop(oid, None)
            self._name_relation(self._book.newest(oid))
        self._watch.told_all()
        return ddls

    def _name_relation(self, table: TableSchema) -> None:
        """Let rows that come have the name that was told: a server does not describe a table anew because its schema has another name.

        Nor one with partitions, other than for the partition that gets the next row and was not described since.
        """
        oid = table.table_id & OID_MASK
        relation = self._relations.get(oid)
        if relation is not None and (relation.schema, relation.table) != (table.schema, table.table):
            self._relations[oid] = msgspec.structs.replace(relation, schema=table.schema, table=table.table)

    def _name_as_told(self, oid: int, ts: int) -> None:
        """Let rows have the name that was told since their relation was described, in this reading or in an earlier one."""
        versions = self._book.versions(self._book.table_id(oid, ts)) if self._book.knows(oid) else ()
        told = [v for v in versions if self._described[oid] < v.version < ts]
        for version in told[-1:]:
            self._name_relation(version)

    def tell_again(self, from_ts: int, to_ts: int) -> list[DdlEvent]:
        """Tell what a mark told in an earlier reading, where the chain passes it again."""
        ddls: list[DdlEvent] = []
        events, begun = self._book.told_between(from_ts, to_ts)
        self._tell(events, ddls)
        for now in self._watch.read(begun).values():
            self._doubt_created(now.oid, creation_doubt(now))
        return ddls

    def _tell_new(self, now: CatalogTable, ts: int) -> tuple[DdlEvent, ...]:
        """Tell a table that no row has told; it begins with what it holds."""
        try:
            created = self._book.create_from_catalog(now, ts)
        except PenstockError as error:
            if error.code != "DDL_UNSUPPORTED":
                raise
            # Names went round more often than a mark has room for: the next one tells it.
            return ()
        if created is None:
            return ()
        self._watch.accept([now])
        self._doubt_created(now.oid, created.doubt)
        return created.ddls

    def _doubt_created(self, oid: int, reason: str) -> None:
        """Doubt a table that began, once somebody has it: who never does has no rows of it that could be wrong."""
        if reason:
            self._watch.put_off(self._log_end(), oid, reason)

    def _doubt_silence(self, changed: Changed, ts: int) -> None:
        """Doubt a table of whose rows the log tells nothing from now on, with the way to change that."""
        table = self._book.newest(changed.table_id & OID_MASK)
        if changed.now is not None:
            self._unlogged.discard(changed.table_id)
            silence = changed.now.silence
        elif changed.place is not None and changed.place.unlogged:
            name = f"{quote_ident(table.schema)}.{quote_ident(table.table)}"
            silence = Silence("it is unlogged: the log has none of its rows", f"ALTER TABLE {name} SET LOGGED")
        elif changed.place is not None and not changed.place.partition:
            name = f"{quote_ident(changed.place.schema)}.{quote_ident(changed.place.table)}"
            silence = Silence("all of its columns are generated, or it has none: the log has none of its rows", f"ALTER TABLE {name} ADD …")
        else:
            silence = None
        if silence is not None:
            self._unlogged.add(changed.table_id)
            self.doubt(table, ts, silence.reason, silence.error(table))

    def _guarded(self, oid: int, ts: int, action: Callable[[], None]) -> None:
        """Do something about a table; where there is no room to tell it, its rows of this transaction are left out and it is read again."""
        try:
            action()
        except PenstockError as error:
            if error.code != "DDL_UNSUPPORTED":
                raise
            # Told at the next mark, or with the next transaction of it.
            self.doubt(self._book.newest(oid), ts, error.detail)

    def _observe(self, relation: Relation, ts: int, ddls: list[DdlEvent]) -> None:
        oid = relation.oid
        self._known.pop(oid, None)
        if oid in self._ignored:
            return
        if not relation.columns and not self._book.knows(oid):
            # A table without columns is none for a target: it begins with its first column, and what rows it has by then is doubted.
            self._ignored.add(oid)
            return
        shown = self._fresh.get(oid) or self._watch.seen(oid)
        if self.wanted(self._book.table_id(oid, ts)):
            self._note_created(oid, self._book.created(oid, ts))
        else:
            shown = shown or self._watch.read([oid]).get(oid)
            created = self._book.create(relation, ts, shown)
            self._tell(created.ddls if created is not None else (), ddls)
            self._note_created(oid, created)
            if not self._book.knows(oid):
                # A table that is gone by now, or that cannot be captured.
                self._refuse_partition(relation, ts)
                self._ignored.add(oid)
                return
        told = self._book.observe(relation, ts, shown, self._since.get(oid, 0), self._reasons.get(oid, ""))
        self._book.announce([oid])
        self._known[oid] = told.known
        self._since[oid] = told.known.table.version
        if shown is not None and not self._book.is_told(shown):
            # The next look tells what is so by then, also where it is what the last one saw.
            self._watch.leave_untold(oid)
        if told.doubt:
            self._reasons.setdefault(oid, "")
            self._reasons[oid] = self._reasons[oid] or told.doubt
        self._tell(told.ddls, ddls)

    def _tell(self, events: Sequence[DdlEvent], ddls: list[DdlEvent]) -> None:
        """Tell events once in a reading: tables that got their names together are met one after the other."""
        for event in events:
            for table in event.tables:
                self._name_relation(table)
            made = {(t.table_id, t.version) for t in event.tables} | {(i, 0) for i in event.dropped_table_ids}
            if not made <= self._told:
                ddls.append(event)
            self._told |= made
            self._dropped.update(event.dropped_table_ids)

    def _note_created(self, oid: int, created: Created | None) -> None:
        if created is not None and created.doubt:
            self._reasons[oid] = created.doubt

    def _refuse_partition(self, relation: Relation, ts: int) -> None:
        """Take rows of a table that is a partition by now: of another table that somebody wants, where they would be lost."""
        root, by_parts = self._root_of(relation.oid)
        if not root or not self.wanted(self._book.table_id(root, ts)):
            return
        if not by_parts:
            self._watch.put_off(self._log_end(), root, "a table that had rows was attached to it as a partition")
            return
        raise PenstockError(
            "UPSTREAM_MISCONFIGURED",
            f"{self._shown}: the publication gives rows of partition {relation.schema}.{relation.table} instead of its table's",
            "Run: ALTER PUBLICATION … SET (publish_via_partition_root = true)",
        )

    def _is_told(self, oid: int) -> bool:
        return self._book.knows(oid) or oid in self._relations
