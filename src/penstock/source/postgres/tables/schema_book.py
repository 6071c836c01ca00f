"""The versions of every table, made from what the log says.

A Relation message is the schema of the rows after it. Where it differs from the version that holds at that place, a new version begins
just before its transaction, and the DDL that PostgreSQL does not give as text is composed. A table that is met for the first time gets a
base version: a small number made of its content, below every commit ts, so that any process that meets the same table makes the same one.
A table's id is its oid; each TRUNCATE gives it the next generation, which stands above the oid's 32 bits. Versions that the store knows
from earlier runs are adopted and found again by content. Thread safe. Runs in the log service and the server.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence

import msgspec

from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.table import Column, SchemaHistory, TableSchema
from penstock.model.types import ColumnType
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.rows.type_map import Domain, column_type
from penstock.source.postgres.tables.catalog import CatalogTable
from penstock.source.postgres.tables.composed_ddl import compose_create, compose_ddl, compose_truncate
from penstock.source.postgres.wire.pgoutput import Relation

BASE_VERSION_BITS = 31
OID_BITS = 32
OID_MASK = (1 << OID_BITS) - 1
FIRST_USER_OID = 16_384
DDL_SLOTS = 7
"""How many schema changes of one table a transaction may hold: its rows stand one more ts above the transaction before."""

CatalogReader = Callable[[Sequence[int]], Sequence[CatalogTable]]
DomainReader = Callable[[], dict[int, Domain]]


class KnownRelation(msgspec.Struct, frozen=True):
    """A relation that rows refer to: its message, its table version, and how each of its columns is stored."""

    relation: Relation
    table: TableSchema
    forms: tuple[CellForm, ...]

    @property
    def is_bag(self) -> bool:
        """Return whether its rows are counted: nothing names them, but updates and deletes show them whole."""
        return not self.table.key_columns and self.relation.identity == "f"


class SchemaBook:
    """Histories by table id."""

    def __init__(self, read_catalog: CatalogReader, read_domains: DomainReader) -> None:
        self._read_catalog = read_catalog
        self._read_domains = read_domains
        self._domains: dict[int, Domain] | None = None
        self._histories: dict[int, SchemaHistory] = {}
        self._announced: set[int] = set()
        self._created: dict[int, DdlEvent] = {}
        self._lock = threading.RLock()

    def announce(self, table_ids: Iterable[int]) -> None:
        """Note tables whose creation nobody needs to be told any more."""
        with self._lock:
            self._announced.update(table_id & OID_MASK for table_id in table_ids)

    def knows(self, oid: int) -> bool:
        """Return whether a table has a version."""
        with self._lock:
            return bool(self._generations(oid))

    def captured(self, wanted: Callable[[int], bool]) -> list[TableSchema]:
        """Return the newest version of the tables that somebody captures."""
        with self._lock:
            newest = [
                self._generations(oid)[-1].versions()[-1] for oid in {i & OID_MASK for i in self._histories} if self._generations(oid)
            ]
        return [table for table in newest if wanted(table.table_id)]

    def create(self, relation: Relation, commit_ts: int, replaced: Callable[[], tuple[int, ...]] = tuple) -> DdlEvent | None:
        """Return the event of a table that was made since capture began, when its first row is met, also again; else None.

        ``replaced`` tells the tables that had its name before and are gone.
        """
        with self._lock:
            told = self._created.get(relation.oid)
            if told is not None and commit_ts - DDL_SLOTS <= told.commit_ts < commit_ts:
                return told
            if relation.oid in self._announced:
                return None
            found = self._read_catalog([relation.oid])
            if not found:
                return None
            slot = self._free_slot(relation.oid, commit_ts)
            if not self._generations(relation.oid):
                self.adopt([msgspec.structs.replace(base_version(found[0]), version=slot)])
            self.announce([relation.oid])
            event = self._created[relation.oid] = compose_create(self._generations(relation.oid)[-1].versions()[-1], slot, replaced())
            return event

    def begin_capture(self, table: CatalogTable, ts: int, again: bool) -> None:
        """Begin a version of a table whose capture begins at a ts, as the catalog says: its log before then will never be read.

        A table that was captured before has one above its base version and stays as it is, unless ``again``.
        """
        with self._lock:
            self.adopt_base([table])
            newest = self._generations(table.oid)[-1].versions()[-1]
            fresh = base_version(table)
            known = (newest.schema, newest.table, newest.columns) == (fresh.schema, fresh.table, fresh.columns)
            captured = newest.version > 1 << BASE_VERSION_BITS
            if newest.version < ts and not (captured and (known or not again)):
                self.adopt([msgspec.structs.replace(fresh, table_id=newest.table_id, version=ts)])

    def adopt(self, versions: Sequence[TableSchema]) -> None:
        """Take over known versions."""
        with self._lock:
            for version in versions:
                self._histories.setdefault(version.table_id, SchemaHistory(version.table_id)).add(version)

    def adopt_base(self, tables: Sequence[CatalogTable]) -> list[TableSchema]:
        """Give tables of the catalog their base version where they have none; return the newest version of each."""
        with self._lock:
            for table in tables:
                if not self._generations(table.oid):
                    self.adopt([base_version(table)])
            return [self._generations(t.oid)[-1].versions()[-1] for t in tables]

    def versions(self, table_id: int) -> tuple[TableSchema, ...]:
        """Return every version of a table, oldest first; a table that is met for the first time gets its base version."""
        with self._lock:
            known = self._histories.get(table_id)
            if known is not None:
                return known.versions()
            found = self._read_catalog([table_id & OID_MASK]) if table_id <= OID_MASK else ()
            if not found:
                raise PenstockError("TABLE_UNKNOWN", f"the upstream has no table {table_id} that can be captured")
            self.adopt_base(found)
            return self._histories[table_id].versions()

    def table_id(self, oid: int, ts: int) -> int:
        """Return the id that a table has in the transaction of this ts."""
        with self._lock:
            generations = self._generations(oid)
            return self._generation_at(generations, ts).table_id if generations else oid

    def starts_between(self, oid: int, first_ts: int, last_ts: int) -> list[int]:
        """Return where versions of a table begin from one transaction on and before another, in order."""
        with self._lock:
            return sorted(v.version for g in self._generations(oid) for v in g.versions() if first_ts <= v.version < last_ts)

    def is_current(self, table: TableSchema, ts: int) -> bool:
        """Return whether no newer version of a table has begun before the transaction of this ts."""
        with self._lock:
            return not self.starts_between(table.table_id & OID_MASK, table.version + 1, ts)

    def observe(self, relation: Relation, commit_ts: int) -> tuple[KnownRelation, DdlEvent | None]:
        """Return how rows of a relation are read in the transaction of this ts, and the DDL where their schema began in it."""
        types = self._types(relation)
        forms = tuple(form for _, form in types)
        with self._lock:
            table_id = self.table_id(relation.oid, commit_ts)
            versions = self.versions(table_id)
            recent = [v for v in versions if commit_ts - DDL_SLOTS <= v.version < commit_ts]
            earlier = [v for v in versions if v.version < commit_ts - DDL_SLOTS]
            candidates = [*earlier[-1:], *recent]
            for at, version in enumerate(candidates):
                if _same(version, relation, types):
                    # Read again after a failure, the DDL may not have been stored; the store knows it if it was.
                    made_here = version in recent and at > 0
                    return KnownRelation(relation, version, forms), compose_ddl(candidates[at - 1], version) if made_here else None
            before = candidates[-1] if candidates else versions[0]
            catalog = next(iter(self._read_catalog([relation.oid])), None)
            table = _next_version(before, relation, types, catalog, self._free_slot(relation.oid, commit_ts), versions)
            self.adopt([table])
        return KnownRelation(relation, table, forms), compose_ddl(before, table)

    def truncate(self, oid: int, commit_ts: int) -> DdlEvent:
        """Begin the next generation of a table in the transaction of this ts; return the event."""
        with self._lock:
            self.versions(self.table_id(oid, commit_ts))
            generations = self._generations(oid)
            made = [g for g in generations if commit_ts - DDL_SLOTS <= g.versions()[0].version < commit_ts]
            if made:
                # The same statement, read again.
                at = generations.index(made[0])
                return compose_truncate(generations[at - 1].versions()[-1], made[0].versions()[0])
            before = self._generation_at(generations, commit_ts).versions()[-1]
            after = msgspec.structs.replace(before, table_id=before.table_id + (1 << OID_BITS), version=self._free_slot(oid, commit_ts))
            self.adopt([after])
        return compose_truncate(before, after)

    def _generations(self, oid: int) -> list[SchemaHistory]:
        """Return the histories of a table's generations, oldest first."""
        found: list[SchemaHistory] = []
        while (history := self._histories.get(oid + (len(found) << OID_BITS))) is not None:
            found.append(history)
        return found

    @staticmethod
    def _generation_at(generations: Sequence[SchemaHistory], ts: int) -> SchemaHistory:
        begun = [g for g in generations if g.versions()[0].version < ts]
        return begun[-1] if begun else generations[0]

    def _free_slot(self, oid: int, commit_ts: int) -> int:
        taken = [v.version for g in self._generations(oid) for v in g.versions() if commit_ts - DDL_SLOTS <= v.version < commit_ts]
        slot = max(taken, default=commit_ts - DDL_SLOTS - 1) + 1
        if slot >= commit_ts:
            raise PenstockError("DDL_UNSUPPORTED", f"table {oid}: more than {DDL_SLOTS} schema changes in one transaction")
        return slot

    def _types(self, relation: Relation) -> list[tuple[ColumnType, CellForm]]:
        domains = self._domains
        if domains is None or any(c.type_oid >= FIRST_USER_OID and c.type_oid not in domains for c in relation.columns):
            # A user's type that is not known as a domain may be one that was made since.
            domains = self._domains = self._read_domains()
        return [column_type(c.type_oid, c.typmod, domains) for c in relation.columns]


def base_version(table: CatalogTable) -> TableSchema:
    """Return a table's first version, numbered by its content."""
    columns = tuple(c.column for c in table.columns)
    bare = TableSchema(table.oid, table.schema, table.table, 0, columns, unique_keys=table.unique_keys)
    digest = hashlib.blake2b(bare.to_json(), digest_size=8).digest()
    return msgspec.structs.replace(bare, version=(int.from_bytes(digest, "big") >> (64 - BASE_VERSION_BITS)) + 1)


def _same(table: TableSchema, relation: Relation, types: Sequence[tuple[ColumnType, CellForm]]) -> bool:
    """Return whether rows of a relation are rows of a version: names, order, types, and, where the message tells, the key."""
    if (table.schema, table.table) != (relation.schema, relation.table):
        return False
    if [(c.name, c.type) for c in table.columns] != [(r.name, t) for r, (t, _) in zip(relation.columns, types, strict=True)]:
        return False
    # FULL marks every column, NOTHING none: they do not tell the key.
    told = [c.in_identity for c in relation.columns]
    return relation.identity in "fn" or not any(told) or told == [c.primary_key for c in table.columns]


def _next_version(
    before: TableSchema,
    relation: Relation,
    types: Sequence[tuple[ColumnType, CellForm]],
    catalog: CatalogTable | None,
    version: int,
    versions: Sequence[TableSchema],
) -> TableSchema:
    """Make the version of a relation. The catalog may be ahead of the log: what it says counts for columns of the same name only."""
    known = {c.name: c for c in before.columns}
    shown = {c.column.name: c.column for c in catalog.columns} if catalog is not None else {}
    names = {c.name for c in relation.columns}
    gone = {c.id: c for c in before.columns if c.name not in names}
    used = {known[c.name].id for c in relation.columns if c.name in known}
    next_id = max(c.id for v in versions for c in v.columns) + 1
    renamed = _renames(before, relation, types) if not shown.keys() >= names else {}
    columns = []
    for described, (kind, _) in zip(relation.columns, types, strict=True):
        old, now = known.get(described.name), shown.get(described.name)
        if old is not None:
            column_id = old.id
        elif now is not None and now.id not in used and (now.id in gone or all(now.id != c.id for v in versions for c in v.columns)):
            column_id = now.id
        elif described.name in renamed and renamed[described.name] not in used:
            column_id = renamed[described.name]
        else:
            column_id, next_id = next_id, next_id + 1
        used.add(column_id)
        facts = now or old or Column(column_id, described.name, kind)
        tells_key = relation.identity in "di" and any(c.in_identity for c in relation.columns)
        is_key = described.in_identity if tells_key else facts.primary_key
        columns.append(Column(column_id, described.name, kind, facts.nullable and not is_key, is_key, facts.default))
    # The log does not tell unique keys; those that the catalog shows count where their columns are the same.
    same = {c.id for c in columns if c.name in shown and shown[c.name].id == c.id}
    unique = tuple(k for k in (catalog.unique_keys if catalog is not None else ()) if set(k) <= same)
    return TableSchema(before.table_id, relation.schema, relation.table, version, tuple(columns), unique_keys=unique)


def _renames(before: TableSchema, relation: Relation, types: Sequence[tuple[ColumnType, CellForm]]) -> dict[str, int]:
    """Guess renames where the catalog has moved on: a column at the same place with the same type, and as many columns as before."""
    if len(before.columns) != len(relation.columns):
        return {}
    names = {c.name for c in relation.columns}
    pairs = zip(before.columns, relation.columns, types, strict=True)
    return {new.name: old.id for old, new, (kind, _) in pairs if old.name not in names and old.type == kind}
