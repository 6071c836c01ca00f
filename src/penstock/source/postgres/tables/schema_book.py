"""The versions of every table, made from what the log says and the catalog shows.

A Relation message is the schema of the rows after it. Where it differs from the version that holds at that place, a new version begins
just before its transaction, and the DDL that PostgreSQL does not give as text is composed. A table is known by its oid: a name belongs to
it for an interval of the log, and whoever takes the name of another table is told after, or together with, what became of that one.
A table that is met for the first time gets a base version: a small number made of its content, below every commit ts, so that any
process that meets the same table makes the same one. A table's id is its oid; each TRUNCATE gives it the next generation, which stands
above the oid's 32 bits. Versions that the store knows from earlier runs are adopted and found again by content. Thread safe. Runs in the
log service and the server.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from penstock.ddl.kept_values import is_made_anew
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.source.postgres.rows.type_map import Domain, column_type
from penstock.source.postgres.tables.catalog import FIRST_USER_OID, OID_BITS, OID_MASK, CatalogTable
from penstock.source.postgres.tables.composed_ddl import compose_change, compose_create, compose_drop, compose_renames, compose_truncate
from penstock.source.postgres.tables.histories import DDL_SLOTS, TableHistories
from penstock.source.postgres.tables.name_holders import NameHolders, NameReader
from penstock.source.postgres.tables.observed import Created, KnownRelation, Observed
from penstock.source.postgres.tables.row_doubts import ANEW, creation_doubt, shape_doubt
from penstock.source.postgres.tables.told_again import ToldAgain
from penstock.source.postgres.tables.versions import (
    BASE_VERSION_BITS,
    Types,
    agrees,
    base_version,
    begun_version,
    columns_of,
    first_version,
    guessed_version,
    has_columns,
    is_alike,
    is_version_of,
    is_version_of_catalog,
    made_anew,
    shape_of,
    version_of_catalog,
    version_of_relation,
)
from penstock.source.postgres.wire.pgoutput import Relation

CatalogReader = Callable[[Sequence[int]], Sequence[CatalogTable]]
DomainReader = Callable[[], dict[int, Domain]]
Wanted = Callable[[int], bool]


class SchemaBook:
    """Histories by table id."""

    def __init__(self, read_catalog: CatalogReader, read_domains: DomainReader, read_names: NameReader | None = None) -> None:
        self._read_catalog = read_catalog
        self._read_domains = read_domains
        self._domains: dict[int, Domain] | None = None
        self._histories = TableHistories()
        names = read_names or (lambda oids: {t.oid: (t.schema, t.table) for t in read_catalog(oids)})
        self._names = NameHolders(self._histories, names)
        self._told_again = ToldAgain(self._histories, self._names)
        self._announced: set[int] = set()
        self.told_ts = 0  # Up to where events were taken over: what the catalog shows by now counts behind that.
        self._created: dict[int, Created] = {}
        self._lock = threading.RLock()

    def announce(self, table_ids: Iterable[int]) -> None:
        """Note tables whose creation nobody needs to be told any more."""
        with self._lock:
            self._announced.update(table_id & OID_MASK for table_id in table_ids)

    def is_announced(self, oid: int) -> bool:
        """Return whether nobody needs to be told that a table was made."""
        with self._lock:
            return oid in self._announced

    def knows(self, oid: int) -> bool:
        """Return whether a table has a version."""
        with self._lock:
            return self._histories.knows(oid)

    def has_begun(self, oid: int, ts: int, *, read: bool) -> bool:
        """Return whether a table had a version before this ts, one of its own transaction only where a row was ``read``: in any reading."""
        with self._lock:  # One that was emptied before the log told of it was empty anyway.
            return self._histories.at(oid, ts if read else ts - DDL_SLOTS) is not None

    def newest(self, oid: int) -> TableSchema:
        """Return the newest version of a table that has one."""
        with self._lock:
            return self._histories.newest(oid)

    def is_told(self, now: CatalogTable) -> bool:
        """Return whether the newest version of a table that has one is what the catalog shows."""
        with self._lock:
            newest = self.newest(now.oid)
            return shape_of(newest) == shape_of(version_of_catalog(newest, now, 0))

    def captured(self, wanted: Wanted) -> list[TableSchema]:
        """Return the newest version of the tables that somebody captures."""
        with self._lock:
            newest = [self.newest(oid) for oid in self._histories.oids() if self.knows(oid)]
        return [table for table in newest if wanted(table.table_id)]

    def create(self, relation: Relation, commit_ts: int, shown: CatalogTable | None) -> Created | None:
        """Return the events of a table that was made since capture began, when its first row is met, also again; else None.

        ``shown`` is the table as the catalog has it now, if it has it. Tables that had its name are told with it.
        """
        with self._lock:
            told = self.created(relation.oid, commit_ts)
            if told is not None or relation.oid in self._announced or shown is None:
                return told
            types = self._types(relation)
            doubt = creation_doubt(shown if agrees(shown, relation, types) else None)
            return self._begin(first_version(relation, types, shown, 0), commit_ts, doubt)

    def create_from_catalog(self, shown: CatalogTable, ts: int) -> Created | None:
        """Return the events of a table that the catalog shows at a mark and that nobody has told of; None where somebody has."""
        with self._lock:
            if shown.oid in self._announced:
                return None
            return self._begin(begun_version(shown), ts, creation_doubt(shown))

    def _begin(self, table: TableSchema, commit_ts: int, doubt: str) -> Created:
        """Begin a table in the transaction, or at the mark, of this ts."""
        oid, name = table.table_id, (table.schema, table.table)
        moves = self._names.clear({oid: name}, commit_ts)
        floor = self._names.left_at(name, commit_ts) + 1
        slot = self._histories.free_slot([oid, *moves.gone, *moves.moved], commit_ts, 1 + bool(moves.moved), floor)
        pairs = self._names.move(moves, slot)
        replaced = tuple(t.table_id for t in self._names.end(moves, slot))
        slot += bool(pairs)
        table = msgspec.structs.replace(table, table_id=self.table_id(oid, commit_ts), version=slot)
        self.adopt([table])
        self.announce([oid])
        ddls = (*((compose_renames(pairs),) if pairs else ()), compose_create(table, slot, replaced))
        self._created[oid] = Created(commit_ts, ddls, doubt)
        return self._created[oid]

    def created(self, oid: int, commit_ts: int) -> Created | None:
        """Return what was told of a table that began in the transaction of this ts."""
        told = self._created.get(oid)
        return told if told is not None and told.commit_ts == commit_ts else None

    def begin_capture(self, table: CatalogTable, ts: int, again: bool) -> None:
        """Begin a version of a table whose capture begins at a ts, as the catalog says: its log before then will never be read.

        A table that was captured before has one above its base version and stays as it is, unless ``again``.
        """
        with self._lock:
            self.adopt_base([table])
            newest = self.newest(table.oid)
            fresh = base_version(table)
            known = (newest.schema, newest.table, newest.columns) == (fresh.schema, fresh.table, fresh.columns)
            if newest.version < ts and not (self.was_captured(table.oid) and (known or not again)):
                self.adopt([msgspec.structs.replace(fresh, table_id=newest.table_id, version=ts)])

    def was_captured(self, oid: int) -> bool:
        """Return whether the capture of a table ever began, or the log told of it."""
        with self._lock:
            return self.knows(oid) and self.newest(oid).version > 1 << BASE_VERSION_BITS

    def held(self, oid: int) -> frozenset[int] | None:
        """Return the columns of a table that was captured before; None where it was not."""
        with self._lock:
            return frozenset(c.id for c in self.newest(oid).columns) if self.was_captured(oid) else None

    def adopt(self, versions: Sequence[TableSchema]) -> None:
        """Take over known versions."""
        with self._lock:
            self._histories.adopt(versions)

    def adopt_ends(self, notes: Sequence[TableSchema]) -> None:
        """Take over where tables ended, as ``take_ends`` said it."""
        with self._lock:
            self._names.adopt_ends(notes)

    def take_ends(self) -> tuple[TableSchema, ...]:
        """Return what the journal shall keep of tables that are gone, once: a note without columns under the negative oid."""
        with self._lock:
            return self._names.take_ends()

    def adopt_base(self, tables: Sequence[CatalogTable]) -> list[TableSchema]:
        """Give tables of the catalog their base version where they have none; return the newest version of each."""
        with self._lock:
            for table in tables:
                if not self.knows(table.oid):
                    self.adopt([base_version(table)])
            return [self.newest(t.oid) for t in tables]

    def versions(self, table_id: int) -> tuple[TableSchema, ...]:
        """Return every version of a table, oldest first; a table that is met for the first time gets its base version."""
        with self._lock:
            if known := self._histories.versions(table_id):
                return known
            found = self._read_catalog([table_id & OID_MASK]) if table_id <= OID_MASK else ()
            if not found:
                raise PenstockError("TABLE_UNKNOWN", f"the upstream has no table {table_id} that can be captured")
            self.adopt_base(found)
            return self._histories.versions(table_id)

    def table_id(self, oid: int, ts: int) -> int:
        """Return the id that a table has in the transaction of this ts."""
        with self._lock:
            return self._histories.generation_at(oid, ts).table_id if self.knows(oid) else oid

    def starts_between(self, oid: int, first_ts: int, last_ts: int) -> list[int]:
        """Return where versions of a table begin from one transaction on and before another, in order."""
        with self._lock:
            return self._histories.starts_between(oid, first_ts, last_ts)

    def is_current(self, table: TableSchema, ts: int) -> bool:
        """Return whether no newer version of a table has begun before the transaction of this ts."""
        with self._lock:
            return not self.starts_between(table.table_id & OID_MASK, table.version + 1, ts)

    def observe(
        self,
        relation: Relation,
        commit_ts: int,
        shown: CatalogTable | None = None,
        since: int = 0,
        rewritten: str = "",
    ) -> Observed:
        """Return how rows of a relation are read in the transaction of this ts, and the DDLs where their schema began in it.

        ``shown`` is the table in the catalog now, ``since`` the version that rows of it had last, ``rewritten`` why its rows are in doubt
        already. Raises ``DDL_UNSUPPORTED`` where the transaction has no room for another version.
        """
        types = self._types(relation)
        with self._lock:
            versions = self.versions(self.table_id(relation.oid, commit_ts))
            # Where the log is read again the catalog shows what comes later, of which nobody would be told here any more.
            ahead = commit_ts <= self.told_ts or bool(self.starts_between(relation.oid, commit_ts, 1 << 64))
            now = shown if shown is not None and not ahead and agrees(shown, relation, types) else None

            def known(table: TableSchema) -> KnownRelation:
                return KnownRelation(relation, table, tuple(form for _, form in types), shown is not None and shown.deferrable)

            recent = [v for v in versions if commit_ts - DDL_SLOTS <= v.version < commit_ts]
            earlier = [v for v in versions if v.version < commit_ts - DDL_SLOTS]
            candidates = [v for v in (*earlier[-1:], *recent) if v.version >= since] or [*earlier[-1:], *recent]
            # A table that the catalog showed before the log told of it has two that are alike: the later one holds. So it does where
            # the relation does not tell the key by which they differ.
            following = [*candidates[1:], None]
            candidates = [v for v, after in zip(candidates, following, strict=False) if after is None or not is_alike(v, after, relation)]
            for version in candidates:
                if is_version_of(version, relation, types) and (now is None or is_version_of_catalog(version, relation, now)):
                    # Read again after a failure, the DDLs may not have been stored; the store knows those that were.
                    changes = [(b, a) for b, a in zip((None, *versions), versions, strict=False) if b is None or shape_of(b) != shape_of(a)]
                    steps = [(b, a) for b, a in changes if a in recent and a.version <= version.version]
                    # Whoever begins to capture a table reads its first transaction again: what is in doubt from then on is told with it.
                    begun = any(b is None and a.table_id <= OID_MASK for b, a in steps)
                    doubt = creation_doubt(shown if shown is not None and agrees(shown, relation, types) else None) if begun else ""
                    return Observed(known(version), tuple(e for step in steps for e in self._told_again.of_version(*step)), doubt)
            last = candidates[-1] if candidates else versions[0]
            left = self._names.left_by(last)
            if last in recent and left == (relation.schema, relation.table) and has_columns(last, relation, types):
                # Its name was taken by another table of the same transaction, whose rows come after these.
                return Observed(known(last))
            after = (
                version_of_relation(last, relation, now, 0)
                if now is not None
                else guessed_version(last, relation, types, shown, 0, versions)
            )
            doubt = shape_doubt(last, after, now, versions, rewritten) if last.columns != after.columns else ""
            ddls, made = self._advance([(last, after)], commit_ts)
            if made[0].table_id != last.table_id:
                doubt = doubt or ANEW
        return Observed(known(made[0]), ddls, doubt)

    def observe_catalog(
        self, changed: Sequence[CatalogTable], gone: Sequence[TableSchema], ts: int, rewritten: Mapping[int, str], *, more: bool = False
    ) -> tuple[tuple[DdlEvent, ...], dict[int, str]]:
        """Tell at a mark what the catalog shows and no row has told yet; return the events and, by oid, why rows are in doubt.

        ``more`` says that tables are told at this mark that may take the names of those that are gone.
        """
        with self._lock:
            pairs, doubts = [], dict(rewritten)
            for now in changed:
                before = self.newest(now.oid)
                after = version_of_catalog(before, now, 0)
                if shape_of(before) == shape_of(after) or before.version >= ts - DDL_SLOTS:
                    continue
                pairs.append((before, after))
                reason = shape_doubt(before, after, now, self.versions(before.table_id), rewritten.get(now.oid, ""))
                if columns_of(before) != columns_of(after) and (reason or is_made_anew(before, after.columns)):
                    doubts.setdefault(now.oid, reason or ANEW)
            # A table whose name another has by now was told as gone with that one.
            gone = [t for t in gone if not self._names.is_taken(t, ts)]
            if pairs:
                # Gone before anything of this mark; which ts tells it is known once the names are cleared.
                self._names.end_before(gone, ts - DDL_SLOTS)
                ddls, _ = self._advance(pairs, ts, tuple(gone))
            else:
                slot = ts - DDL_SLOTS if more else ts
                self._names.note_ended(gone, slot)
                ddls = tuple(compose_drop(t, slot) for t in gone)
        return ddls, doubts

    def begun_between(self, from_ts: int, to_ts: int) -> list[int]:
        """Return where versions of any table begin, or tables end, between two ts, in order."""
        with self._lock:
            ends = {slot for _, slot in self._names.ended_between(from_ts, to_ts)}
            return sorted({*self._histories.begun_between(from_ts, to_ts), *ends})

    def told_between(self, from_ts: int, to_ts: int, *, is_lost: bool = False) -> tuple[tuple[DdlEvent, ...], list[int]]:
        """Return the events of versions that a mark told in an earlier reading, between two ts of the chain; and the tables that began."""
        if not is_lost and not self.begun_between(from_ts, to_ts):
            return (), []
        with self._lock:
            told = [event for created in self._created.values() for event in created.ddls if event.type is DdlType.CREATE_TABLE]
            return self._told_again.between(from_ts, to_ts, {table for event in told for table in event.tables}, is_lost=is_lost)

    def announced(self) -> list[TableSchema]:
        """Return the newest version of every table that was told and has not ended."""
        with self._lock:
            return [self.newest(oid) for oid in sorted(self._announced) if self.knows(oid) and not self._names.has_ended(oid)]

    def cross_hole(
        self, shown: Sequence[CatalogTable], gone: Sequence[TableSchema], told_ts: int, ts: int
    ) -> tuple[tuple[DdlEvent, ...], tuple[TableSchema, ...]]:
        """Note below a ts what the catalog shows behind a log that is lost; return what was untold at ``told_ts``, and its versions."""
        with self._lock:
            new = [t for t in shown if t.oid not in self._announced]
            self.observe_catalog([t for t in shown if t.oid in self._announced and self.knows(t.oid)], gone, ts, {}, more=bool(new))
            for table in new:
                # One for which names went round too often has no room here; the next mark tells it.
                with contextlib.suppress(PenstockError):
                    self.create_from_catalog(table, ts)
            ddls, _ = self.told_between(told_ts, ts, is_lost=True)
            return ddls, (*(a for _, a in self._histories.beginnings() if told_ts < a.version < ts), *self._names.take_ends())

    def truncate(self, oid: int, commit_ts: int) -> DdlEvent:
        """Begin the next generation of a table in the transaction of this ts; return the event."""
        with self._lock:
            self.versions(self.table_id(oid, commit_ts))
            generations = self._histories.generations(oid)
            made = [g for g in generations if commit_ts - DDL_SLOTS <= g.versions()[0].version < commit_ts]
            made = [g for g in made if g.table_id > OID_MASK and self._histories.made_anew_from(g.versions()[0]) is None]
            if made:
                # The same statement, read again.
                at = generations.index(made[0])
                return compose_truncate(generations[at - 1].versions()[-1], made[0].versions()[0])
            before = self._histories.generation_at(oid, commit_ts).versions()[-1]
            slot = self._histories.free_slot([oid], commit_ts)
            after = msgspec.structs.replace(before, table_id=before.table_id + (1 << OID_BITS), version=slot)
            self.adopt([after])
        return compose_truncate(before, after)

    def _advance(
        self, pairs: Sequence[tuple[TableSchema, TableSchema]], commit_ts: int, gone: tuple[TableSchema, ...] = ()
    ) -> tuple[tuple[DdlEvent, ...], list[TableSchema]]:
        """Begin versions; return the events in an order in which they apply, drops first, and the versions as they are numbered.

        A table that has another name and another shape gets them one after the other: the event of a rename tells no columns.
        """
        claims = {a.table_id & OID_MASK: (a.schema, a.table) for b, a in pairs if b.full_name != a.full_name}
        moves = self._names.clear(claims, commit_ts)
        oids = [*(a.table_id & OID_MASK for _, a in pairs), *moves.gone, *moves.moved]
        reshaped = [a.table_id for b, a in pairs if a.table_id & OID_MASK in claims and columns_of(a) != columns_of(b)]
        slot = self._histories.free_slot(oids, commit_ts, 1 + bool(moves.gone or gone) + bool(reshaped))
        self._names.note_ended(gone, slot)
        ended = [*gone, *self._names.end(moves, slot)]
        ddls = [compose_drop(t, slot) for t in ended]
        slot += bool(moves.gone or gone)
        moved = self._names.move(moves, slot)
        renamed: list[tuple[TableSchema, TableSchema]] = []
        altered: list[tuple[TableSchema, TableSchema]] = []
        made: dict[int, TableSchema] = {}
        for before, after in pairs:
            version = slot
            if after.table_id & OID_MASK in claims:
                shape = before if after.table_id in reshaped else after
                named = msgspec.structs.replace(shape, schema=after.schema, table=after.table, version=slot)
                renamed.append((before, named))
                made[after.table_id] = named
                if shape is after:
                    continue
                before, version = named, slot + 1  # noqa: PLW2901 - the next step begins where the rename ends
            told = self._histories.versions(before.table_id)
            altered.append((before, made_anew(before, msgspec.structs.replace(after, version=version), told)))
            made[after.table_id] = altered[-1][1]
        self.adopt([a for _, a in (*renamed, *altered)])
        if renamed or moved:
            ddls.append(compose_renames([*renamed, *moved]))
        return (*ddls, *(compose_change(before, after) for before, after in altered)), [made[a.table_id] for _, a in pairs]

    def _types(self, relation: Relation) -> Types:
        domains = self._domains
        if domains is None or any(c.type_oid >= FIRST_USER_OID and c.type_oid not in domains for c in relation.columns):
            domains = self._domains = self._read_domains()  # A user's type that is not known as a domain may be one that was made since.
        return [column_type(c.type_oid, c.typmod, domains) for c in relation.columns]
