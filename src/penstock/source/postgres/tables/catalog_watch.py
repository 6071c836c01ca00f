"""What the catalog showed of each captured table when it was last asked, and what is different now.

The log tells rows, not what a statement did to rows that were there. The catalog does: a table whose rows were rewritten lies in another
file, a partition that came or went is another leaf, a column that was dropped and added again has another number. Owns the last answer per
table and the doubts that wait until the log has been read up to where the catalog was asked: only then do the rows that follow stand
behind what it showed. A table that this process sees for the first time is held against the slot's own horizon, which the server keeps, and
against what the journal kept of it, so that what happened while nobody read is found as well. Thread safe. Runs in the log
service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import msgspec

from penstock.model.table import TableSchema
from penstock.source.postgres.tables.catalog import CAPTURABLE, FIRST_USER_OID, OID_MASK, PARTITION_TREE, CatalogTable
from penstock.source.postgres.tables.catalog_notes import CatalogNotes
from penstock.source.postgres.tables.row_doubts import storage_doubt, text_doubt
from penstock.source.postgres.wire.connection import Row
from penstock.source.single_log import TableDoubt

_PRINTS = f"""{PARTITION_TREE}
SELECT c.oid, md5(concat_ws(',', n.nspname, c.relname, c.relkind, c.relpersistence, c.relispartition, c.relfilenode, c.relreplident,
  (SELECT string_agg(concat_ws(':', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attisdropped, a.attgenerated), ';'
      ORDER BY a.attnum)
    FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
  (SELECT string_agg(concat_ws(':', r.oid, r.xmin), ';' ORDER BY r.oid) FROM pg_publication_rel r WHERE r.prrelid = c.oid),
  (SELECT string_agg(concat_ws(':', p.oid, p.xmin), ';' ORDER BY p.oid) FROM pg_publication p),
  (SELECT string_agg(concat_ws(':', i.indexrelid, i.indisprimary, i.indisreplident), ';' ORDER BY i.indexrelid)
    FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident)),
  (SELECT string_agg(concat_ws(':', k.oid, k.relfilenode, k.relpersistence, t.since, k.relreplident,
      (SELECT string_agg(concat_ws('-', i.indexrelid, i.indisprimary, i.indisreplident), '.' ORDER BY i.indexrelid)
        FROM pg_index i WHERE i.indrelid = k.oid AND (i.indisprimary OR i.indisreplident))), ';' ORDER BY k.oid)
    FROM tree t JOIN pg_class k ON k.oid = t.relid WHERE t.root = c.oid AND k.relkind <> 'p')))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN ({{oids}})
"""
_PLACES = """
SELECT c.oid, n.nspname, c.relname, c.relpersistence, c.relispartition
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN ({oids})
"""
_ALL = f"SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {CAPTURABLE}"
_USED = f"""used (type, part) AS (
  SELECT a.atttypid, a.atttypid FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  WHERE c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= {FIRST_USER_OID} {{only}}
  UNION SELECT u.type, d.part FROM used u CROSS JOIN LATERAL (
    SELECT unnest(ARRAY[t.typelem, t.typbasetype]) FROM pg_type t WHERE t.oid = u.part
    UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = u.part OR to_jsonb(r) ->> 'rngmultitypid' = u.part::text
    UNION ALL SELECT a.atttypid FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
    WHERE t.oid = u.part AND a.attnum > 0 AND NOT a.attisdropped) d (part)
  WHERE d.part <> 0)"""
"""What users' types of columns are made of, however deep: arrays, domains, ranges, composite types and rows of tables."""
_USED_BY_ALL, _USED_BY_SOME = _USED.format(only=""), _USED.format(only="AND c.oid IN ({oids})")
_TEXTS = f"""WITH RECURSIVE {_USED_BY_ALL}
SELECT u.type, e.oid::bigint, e.enumlabel FROM used u JOIN pg_enum e ON e.enumtypid = u.part
UNION ALL SELECT u.type, -u.part::bigint, string_agg(concat_ws(':', a.attnum, a.atttypid), ',' ORDER BY a.attnum)
FROM used u JOIN pg_type t ON t.oid = u.part JOIN pg_attribute a ON a.attrelid = t.typrelid
WHERE a.attnum > 0 AND NOT a.attisdropped GROUP BY 1, 2
"""
_TOUCHED = f"""{PARTITION_TREE}, {_USED_BY_SOME}
SELECT DISTINCT r.oid FROM pg_class r
CROSS JOIN LATERAL (SELECT r.oid AS relid UNION SELECT t.relid FROM tree t WHERE t.root = r.oid) f
JOIN pg_class k ON k.oid = f.relid LEFT JOIN pg_inherits h ON h.inhrelid = k.oid
WHERE r.oid IN ({{oids}}) AND (
  (k.relfilenode NOT IN (0, k.oid) AND age(k.xmin) <= age('{{horizon}}'::xid))
  OR (r.relkind = 'p' AND k.relispartition AND age(h.xmin) <= age('{{horizon}}'::xid))
  OR EXISTS (SELECT 1 FROM pg_publication_rel l WHERE l.prrelid = r.oid AND age(l.xmin) <= age('{{horizon}}'::xid))
  OR EXISTS (
    -- The one type whose values look otherwise than those of a type from which it takes them as they are (cidr).
    SELECT 1 FROM pg_attribute a
    WHERE a.attrelid = r.oid AND a.atttypid = 'pg_catalog.inet'::regtype AND age(a.xmin) <= age('{{horizon}}'::xid))
  OR EXISTS (
    SELECT 1 FROM pg_attribute a JOIN used u ON u.type = a.atttypid JOIN pg_type t ON t.oid = u.part
    LEFT JOIN pg_enum e ON e.enumtypid = t.oid LEFT JOIN pg_attribute p ON p.attrelid = t.typrelid AND p.attnum > 0
    WHERE a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND (age(e.xmin) <= age('{{horizon}}'::xid) OR age(p.xmin) <= age('{{horizon}}'::xid))))
"""

ReadTables = Callable[[Sequence[int]], Sequence[CatalogTable]]
Query = Callable[[str], list[Row]]
Known = Callable[[int], bool]
"""What somebody else knows of a table, by oid."""
Held = Callable[[int], frozenset[int] | None]
"""Which columns a table has as far as the log told; None where its capture never began."""
TypeTexts = dict[int, dict[int, str]]


class Place(msgspec.Struct, frozen=True):
    """Where a table is now: its name, and whether its own rows are in the log."""

    schema: str
    table: str
    unlogged: bool
    partition: bool


class Changed(msgspec.Struct, frozen=True):
    """What a look found of one table. ``now`` is None where it can be captured no more, for which ``place`` tells why; both None: gone."""

    table_id: int
    version: int
    """The newest version when the catalog was asked: what the log has told since counts more. 0 where nobody told of the table yet."""
    now: CatalogTable | None
    place: Place | None
    reason: str = ""
    fingerprint: str = ""


class Waiting(msgspec.Struct, frozen=True):
    """A doubt that is told once the log has been read up to a place."""

    lsn: int
    oid: int
    reason: str


class CatalogWatch:
    """The catalog as it was last seen."""

    def __init__(self, read_catalog: ReadTables, query: Query) -> None:
        self._read_catalog = read_catalog
        self._query = query
        self._seen: dict[int, CatalogTable] = {}
        self._prints: dict[int, str] = {}
        self._texts: TypeTexts | None = None
        self._other_texts: set[int] = set()
        self._untold: set[int] = set()
        self._silent: set[int] = set()
        self._horizon = ""
        self._waiting: list[Waiting] = []
        self._noted: list[Waiting] = []
        self._notes = CatalogNotes()
        self._lock = threading.RLock()

    def begin(self, horizon: str) -> None:
        """Note the oldest transaction whose changes of the catalog the slot still keeps; the first reading of a process says it."""
        with self._lock:
            self._horizon = self._horizon or horizon

    def accept(self, tables: Iterable[CatalogTable], first: bool = False) -> None:
        """Take tables as seen; where they are met at the place where their capture begins (``first``), only if they are new."""
        with self._lock:
            if first and self._texts is None:
                self._changed_texts()
            for table in tables:
                if not first or table.oid not in self._seen:
                    if table != self._seen.get(table.oid):
                        # What the last look saw does not stand for this any more: a table may go back to what it was then.
                        self._prints.pop(table.oid, None)
                    self._seen[table.oid] = table
                    self._notes.see([table])

    def leave_untold(self, oid: int) -> None:
        """Note that a table is seen as nobody has told of it yet: the catalog is ahead of the log, and the next look tells."""
        with self._lock:
            self._untold.add(oid)

    def adopt_notes(self, versions: Sequence[TableSchema]) -> None:
        """Take over what the journal kept of tables as they were last seen."""
        with self._lock:
            self._notes.adopt(versions)

    def take_notes(self, ts: int) -> tuple[TableSchema, ...]:
        """Return what the journal shall keep of tables as they are seen by now, once."""
        with self._lock:
            waiting = frozenset(w.oid for w in self._waiting if w not in self._noted)
            self._notes.see(self._seen[oid] for oid in waiting ^ self._notes.doubted() if oid in self._seen)
            return self._notes.take(ts, waiting)

    def notes(self, ts: int) -> tuple[TableSchema, ...]:
        """Return what ``take_notes`` would, without taking it."""
        with self._lock:
            return self._notes.untaken(ts)

    def take_back(self, doubts: Iterable[TableDoubt]) -> None:
        """Tell once more what the last step of a reading told: nobody may have taken it."""
        with self._lock:
            self._notes.take_back()
            for doubt in doubts:
                oid = doubt.table_id & OID_MASK
                if doubt.code:
                    # The log tells it once more where it is read again, or the catalog does.
                    self._silent.discard(oid)
                    self._prints.pop(oid, None)
                else:
                    self.put_off(0, oid, doubt.reason)

    def seen(self, oid: int) -> CatalogTable | None:
        """Return a table as it was last seen."""
        with self._lock:
            return self._seen.get(oid)

    def read(self, oids: Sequence[int]) -> dict[int, CatalogTable]:
        """Return tables as they are now, without taking them as seen."""
        return {t.oid: t for t in self._read_catalog(oids)} if oids else {}

    def places(self, oids: Sequence[int]) -> dict[int, Place]:
        """Return where tables are now; those that are gone are left out."""
        rows = self._query(_PLACES.format(oids=", ".join(str(o) for o in oids))) if oids else []
        return {int(o or 0): Place(schema or "", table or "", kept == "u", part == "t") for o, schema, table, kept, part in rows}

    def rewritten(self, tables: Sequence[CatalogTable], known: Known, held: Held) -> dict[int, str]:
        """Return, by oid, why rows may differ from what the log told since tables were last seen; those without a reason are left out.

        A table that nobody has seen yet was captured by an earlier process, or is new.
        """
        before = {t.oid: self.seen(t.oid) for t in tables}
        touched = self._touched([oid for oid, table in before.items() if table is None])
        found = dict.fromkeys(touched, "it was rewritten, or its partitions, types or publication changed, while nobody read the log")
        for table in tables:
            old = before[table.oid]
            if old is None and (reason := self._notes.loss(table, held(table.oid))):
                found[table.oid] = reason
            if old is not None and (reason := storage_doubt(old, table, known)):
                found[table.oid] = reason
        return found

    def look(self, captured: Sequence[tuple[int, int, int]], known: Known, held: Held) -> list[Changed]:
        """Return which of some tables, given as (oid, table id, version), are gone or different."""
        if not captured:
            return []
        oids = [oid for oid, _, _ in captured]
        prints = {int(o or 0): p or "" for o, p in self._query(_PRINTS.format(oids=", ".join(str(o) for o in oids)))}
        self._other_texts |= self._changed_texts()
        texts = self._other_texts
        with self._lock:
            differ = [o for o in oids if o not in prints or o in self._untold or prints[o] != self._prints.get(o) or o not in self._seen]
        now = self.read(differ)
        reasons = self.rewritten(list(now.values()), known, held)
        places = self.places([o for o in differ if o not in now])
        found: list[Changed] = []
        for oid, table_id, version in captured:
            table, before = now.get(oid), self.seen(oid)
            if table is not None:
                reason = reasons.get(oid, "") or text_doubt(table, texts)
                if reason or table != before or oid in self._untold or (table.silence is not None and oid not in self._silent):
                    found.append(Changed(table_id, version, table, None, reason, prints.get(oid, "")))
                else:
                    self._prints[oid] = prints.get(oid, "")
            elif oid in differ:
                found.append(Changed(table_id, version, None, places.get(oid)))
            elif before is not None and (reason := text_doubt(before, texts)):
                found.append(Changed(table_id, version, before, None, reason, prints.get(oid, "")))
        return found

    def look_beside(self, is_known: Known, told: Callable[[int], TableSchema | None]) -> list[Changed]:
        """Return which tables beside the captured ones must be told, because somebody may want them.

        So are those that the publication gives and nobody knows: made without a row, detached, or not published before. And those whose
        name is another than the one that was ``told`` of them, which no row has shown.
        """
        names = {int(oid or 0): (schema or "", table or "") for oid, schema, table in self._query(_ALL)}
        new = [oid for oid in names if not is_known(oid)]
        known = {oid: table for oid in names if (table := told(oid)) is not None}
        moved = [oid for oid, table in known.items() if (table.schema, table.table) != names[oid]]
        oids = ", ".join(map(str, (*new, *moved)))
        prints = {int(o or 0): p or "" for o, p in self._query(_PRINTS.format(oids=oids))} if oids else {}
        shown = self.read([*new, *moved])
        found = [Changed(oid, 0, shown[oid], None, "", prints.get(oid, "")) for oid in new if oid in shown and shown[oid].published]
        return found + [
            Changed(known[oid].table_id, known[oid].version, shown[oid], None, "", prints.get(oid, "")) for oid in moved if oid in shown
        ]

    def accept_look(self, changed: Changed) -> None:
        """Take what a look found as seen, now that it was told."""
        with self._lock:
            if changed.now is not None:
                self._seen[changed.now.oid] = changed.now
                self._notes.see([changed.now])
                self._prints[changed.now.oid] = changed.fingerprint
                self._untold.discard(changed.now.oid)
                (self._silent.discard if changed.now.silence is None else self._silent.add)(changed.now.oid)

    def told_all(self) -> None:
        """Note that everything of the last look was told."""
        self._other_texts = set()

    def put_off(self, lsn: int, oid: int, reason: str) -> None:
        """Keep a doubt until the log has been read up to a place."""
        with self._lock:
            self._waiting = [w for w in self._waiting if (w.oid, w.reason) != (oid, reason)]
            self._waiting.append(Waiting(lsn, oid, reason))

    def undue(self, lsn: int, wanted: Callable[[int], bool]) -> list[Waiting]:
        """Return the doubts about tables that somebody wants whose place is still to be read, once: a crash must not lose them."""
        with self._lock:
            found = [w for w in self._waiting if w.lsn > lsn and w not in self._noted and wanted(w.oid)]
            self._noted = [w for w in self._noted if w in self._waiting] + found
        return found

    def due(self, lsn: int, wanted: Callable[[int], bool]) -> list[Waiting]:
        """Return the doubts about tables that somebody wants whose place has been read, once."""
        with self._lock:
            found = [w for w in self._waiting if w.lsn <= lsn and wanted(w.oid)]
            self._waiting = [w for w in self._waiting if w not in found]
        return found

    def _touched(self, oids: Sequence[int]) -> set[int]:
        """Return which tables were rewritten, had partitions attached, or show their rows otherwise since the slot's horizon."""
        if not self._horizon or not oids:
            return set()
        rows = self._query(_TOUCHED.format(oids=", ".join(str(o) for o in oids), horizon=self._horizon))
        return {int(row[0] or 0) for row in rows}

    def _changed_texts(self) -> set[int]:
        """Return the types whose values are printed otherwise than before: a label of an enum was renamed, a composite type changed."""
        texts: TypeTexts = {}
        for type_oid, part, text in self._query(_TEXTS):
            texts.setdefault(int(type_oid or 0), {})[int(part or 0)] = text or ""
        before, self._texts = self._texts, texts
        if before is None:
            return set()
        return {t for t, parts in texts.items() if any(before.get(t, {}).get(p, text) != text for p, text in parts.items())}
