"""What the system catalog says: tables with their columns, keys, replica identity and storage, and domains.

Owns the statements; each answer is a value. A table's id is its oid, a column's its attribute number, both of which PostgreSQL keeps
through renames and does not use twice. What rows lie in is a file for each table without partitions; whoever rewrites rows makes a new
file. Generated columns and those that the publication leaves out are no columns here, because the log does not carry them. Runs wherever
an upstream is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.model.errors import PenstockError
from penstock.model.rows.projection import default_of
from penstock.model.table import Column, TableSchema
from penstock.model.types import TIME_KINDS
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.rows.type_map import Domain, column_type, default_text, shown_text
from penstock.source.postgres.wire.connection import Connection, Row, quote_ident, quote_literal

CAPTURABLE = """c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_toast%'"""
"""Which tables can be captured."""
_TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relreplident, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull,
  CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, 0) END,
  coalesce(a.attnum = ANY (p.indkey::int2[]), false), coalesce(a.attnum = ANY (r.indkey::int2[]), false),
  tn.nspname, t.typname,
  coalesce(coll.collname IN ('C', 'POSIX', 'ucs_basic')
    OR (coll.collname = 'default' AND coalesce(to_jsonb(db) ->> 'datlocprovider', 'c') = 'c'
      AND db.datcollate IN ('C', 'POSIX', 'C.UTF-8', 'C.utf8')), false),
  CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END,
  c.relkind, c.relfilenode, coalesce(NOT p.indimmediate, false), birth.xmin = c.xmin AND c.relfilenode IN (0, c.oid), a.attgenerated,
  ct.xmin
FROM pg_class c
LEFT JOIN pg_type ct ON ct.oid = c.reltype
LEFT JOIN pg_attribute birth ON birth.attrelid = c.oid AND birth.attnum = -1
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_namespace tn ON tn.oid = t.typnamespace
JOIN pg_database db ON db.datname = current_database()
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
LEFT JOIN pg_index p ON p.indrelid = c.oid AND p.indisprimary
LEFT JOIN pg_index r ON r.indrelid = c.oid AND r.indisreplident
LEFT JOIN pg_collation coll ON coll.oid = a.attcollation
WHERE {capturable} {only}
ORDER BY c.oid, a.attnum
"""
"""All columns of tables. A default names no column, so it is printed without its table: with it, the server would go through the names of
all columns, two by two, for each of them."""
_UNIQUE_KEYS = """
SELECT i.indrelid, i.indkey FROM pg_index i
WHERE i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indrelid IN ({oids})
ORDER BY i.indrelid, i.indexrelid
"""
_PUBLISHED = """
SELECT r.prrelid, r.prattrs, pg_get_expr(r.prqual, r.prrelid) FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
WHERE p.pubname = {publication} AND (r.prattrs IS NOT NULL OR r.prqual IS NOT NULL)
"""
PARTITION_TREE = """
WITH RECURSIVE tree (root, relid, since, born) AS (
  SELECT oid, oid, '', true FROM pg_class WHERE relkind = 'p' AND oid IN ({oids})
  UNION ALL SELECT t.root, i.inhrelid, concat(t.since, ',', i.xmin), t.born AND i.xmin = b.xmin
  FROM tree t JOIN pg_inherits i ON i.inhparent = t.relid LEFT JOIN pg_attribute b ON b.attrelid = i.inhrelid AND b.attnum = -1)
"""
"""The partitions of some tables, themselves included, which transactions made them partitions, and whether they were born as such. A
table's column ``ctid`` is written with it and never again, unlike its type, which a rename writes. Not by ``pg_partition_tree``: it would
wait for whoever has locked one of them."""
_LEAVES = f"""{PARTITION_TREE}
SELECT t.root, k.oid, k.relfilenode, t.born AND kb.xmin = k.xmin AND k.relfilenode = k.oid AND k.relpersistence = 'p',
  k.relkind = 'r' AND k.relpersistence = 'p', t.since, k.relreplident = 'f',
  (SELECT string_agg(a.attname, ',' ORDER BY a.attname)
    FROM pg_index x JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = ANY (x.indkey::int2[])
    WHERE x.indrelid = k.oid AND CASE k.relreplident WHEN 'd' THEN x.indisprimary WHEN 'i' THEN x.indisreplident ELSE false END)
FROM tree t JOIN pg_class k ON k.oid = t.relid LEFT JOIN pg_attribute kb ON kb.attrelid = k.oid AND kb.attnum = -1
WHERE k.relkind <> 'p' ORDER BY t.root, k.oid
"""
_LEAF_DEFAULTS = f"""{PARTITION_TREE}
SELECT t.root, a.attname, min((a.attmissingval::text::text[])[1]), max((a.attmissingval::text::text[])[1])
FROM tree t JOIN pg_class k ON k.oid = t.relid JOIN pg_attribute a ON a.attrelid = t.relid
WHERE k.relkind <> 'p' AND a.atthasmissing GROUP BY 1, 2
"""
_LISTED = """
SELECT p.puballtables, p.pubinsert AND p.pubupdate AND p.pubdelete, concat_ws(':', p.oid, p.xmin), r.prrelid, NULL, r.xmin
FROM pg_publication p LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid WHERE p.pubname = {publication}
"""
_LISTED_SCHEMAS = """
UNION ALL SELECT p.puballtables, p.pubinsert AND p.pubupdate AND p.pubdelete, concat_ws(':', p.oid, p.xmin), NULL, n.nspname, s.xmin
FROM pg_publication p JOIN pg_publication_namespace s ON s.pnpubid = p.oid
JOIN pg_namespace n ON n.oid = s.pnnspid WHERE p.pubname = {publication}
"""
_FILTERS_VERSION = 15
FIRST_USER_OID = 16_384
OID_BITS = 32
OID_MASK = (1 << OID_BITS) - 1
_MISSING, _KIND, _FILE, _DEFERRABLE, _PRISTINE, _GENERATED, _NAMED = range(15, 22)
OTHERWISE_NAMED = "a partition names its rows otherwise than the table (REPLICA IDENTITY): the log does not tell which row was changed"
HALF_NAMED = "its key has a generated column: the log does not tell which row was changed"
_DOMAINS = "SELECT oid, typbasetype, typtypmod FROM pg_type WHERE typtype = 'd'"


class CatalogColumn(msgspec.Struct, frozen=True):
    """A column as the model sees it, and what only PostgreSQL needs to know."""

    column: Column
    form: CellForm
    type_oid: int
    type_schema: str
    type_name: str
    byte_order: bool
    """Whether the server's own order of this column is the order of its bytes."""
    initial: str | msgspec.UnsetType | None = None
    """What rows have that were there before the column, as the catalog keeps it; None where it keeps nothing: they are NULL, unless the
    rows were rewritten since. Unset where no text of ours tells it."""


class Storage(msgspec.Struct, frozen=True):
    """What rows lie in: the file of a table, or of one of its partitions."""

    oid: int
    file: int
    pristine: bool = msgspec.field(default=False)
    """Whether the table is as it was made: never altered, rewritten or attached since."""
    logged: bool = True
    """Whether the log has its rows; those of an unlogged or foreign partition it does not have."""
    since: str = ""
    """Which transactions made it a partition, it and those that it is a part of."""
    full: bool = False
    """Whether the log has old rows of a partition with all their values: its own replica identity counts, not its table's."""
    named_by: str = ""
    """The columns by which the log names changed rows of a partition, in order of names; empty where by none, or by all."""


class CatalogTable(msgspec.Struct, frozen=True):
    """A table as the catalog describes it now."""

    oid: int
    schema: str
    table: str
    identity: str
    columns: tuple[CatalogColumn, ...]
    unique_keys: tuple[tuple[int, ...], ...] = ()
    """The unique keys besides the one that names rows, by attribute numbers."""
    row_filter: str = ""
    """The condition under which the publication gives a row; empty for all rows."""
    columns_hidden: int = 0
    """How many columns the publication leaves out."""
    storage: tuple[Storage, ...] = ()
    partitioned: bool = False
    published: bool = True
    """Whether the publication gives its rows; True as well where there is no publication yet."""
    pristine: bool = True
    """Whether its own definition is as it was made; one that was a partition of another table until now is not."""
    generated: tuple[int, ...] = ()
    """The generated columns, by attribute number."""
    listed: bool = False
    """Whether the publication names tables or schemas one by one, so that a table may have had rows before it was named."""
    whole: bool = True
    """Whether the publication gives inserts, updates and deletes, as far as it gives any row."""
    given: str = ""
    """Changes with whatever may have kept the publication from giving its rows for a while, though it gives them before and after."""
    deferrable: bool = False
    """Whether the primary key is checked at the end of a transaction, so that two rows may have one key in between."""
    unnamed: str = ""
    """Why the log may not tell which row was changed: a column of the key is generated, which the log does not carry, or a partition names
    its rows by other columns than the key."""
    full: bool = False
    """Whether the log has old rows with all their values, in every partition."""

    @property
    def has_key(self) -> bool:
        """Return whether rows are named by a key."""
        return any(c.column.primary_key for c in self.columns)

    @property
    def is_half_named(self) -> bool:
        """Return whether the log does not tell which row was changed."""
        return bool(self.unnamed) and (self.identity in "di" or self.unnamed == OTHERWISE_NAMED)

    @property
    def silence(self) -> Silence | None:
        """Return why the log does not have all of its rows; None where it does."""
        if not self.published:
            name = f"{quote_ident(self.schema)}.{quote_ident(self.table)}"
            return Silence("the publication does not give its rows", f"ALTER PUBLICATION … ADD TABLE {name}")
        if not self.whole:
            way = "ALTER PUBLICATION … SET (publish = 'insert, update, delete, truncate')"
            return Silence("the publication does not give inserts, updates and deletes alike", way)
        if self.is_half_named:
            name = f"{quote_ident(self.schema)}.{quote_ident(self.table)}"
            same = "ALTER TABLE … REPLICA IDENTITY DEFAULT, or FULL where the table has no key, for each of its partitions"
            return Silence(self.unnamed, same if self.unnamed == OTHERWISE_NAMED else f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        if not all(s.logged for s in self.storage):
            return Silence("a partition of it is unlogged or foreign: the log has none of its rows", "ALTER TABLE … SET LOGGED")
        return None


class Silence(msgspec.Struct, frozen=True):
    """Why the log does not have rows of a table, and the statement that changes it."""

    reason: str
    way: str

    def error(self, table: TableSchema) -> PenstockError:
        """Return it as an error about a table."""
        return PenstockError("UPSTREAM_MISCONFIGURED", f"{table.full_name}: {self.reason}", f"Run: {self.way}")


class Publication(msgspec.Struct, frozen=True):
    """What the publication gives: everything, or tables by oid and schemas by name, each with the transaction that put it there."""

    every: bool
    whole: bool
    made: str
    tables: dict[int, str]
    schemas: dict[str, str]

    def mark(self, table: CatalogTable, named: str) -> CatalogTable:
        """Return a table with what the publication gives of it; ``named`` is the transaction that gave it its name or schema."""
        if self.every:
            return msgspec.structs.replace(table, whole=self.whole, given=self.made)
        own, schema = self.tables.get(table.oid, ""), self.schemas.get(table.schema, "")
        # Whoever is given with a schema may have been in another one for a while.
        given = f"{self.made},{own},{schema}" + (f",{named}" if schema and not own else "")
        return msgspec.structs.replace(table, published=bool(own or schema), listed=True, whole=self.whole, given=given)


def read_domains(connection: Connection) -> dict[int, Domain]:
    """Return all domains by oid."""
    return {int(o or 0): Domain(int(b or 0), int(m or -1)) for o, b, m in connection.query(_DOMAINS)}


def read_tables(connection: Connection, oids: Iterable[int] | None = None, domains: dict[int, Domain] | None = None) -> list[CatalogTable]:
    """Return the tables that can be captured, or those of them with given oids."""
    only = "" if oids is None else f"AND c.oid IN ({', '.join(str(o) for o in oids) or '0'})"
    rows = connection.query(_TABLES.format(capturable=CAPTURABLE, only=only))
    known = read_domains(connection) if domains is None else domains
    grouped: dict[int, list[Row]] = {}
    for row in rows:
        grouped.setdefault(int(row[0] or 0), []).append(row)
    unique: dict[int, list[tuple[int, ...]]] = {}
    for oid, numbers in connection.query(_UNIQUE_KEYS.format(oids=", ".join(str(o) for o in grouped) or "0")):
        unique.setdefault(int(oid or 0), []).append(tuple(int(n) for n in (numbers or "").split()))
    published = _published(connection)
    publication = _publication(connection)
    roots = [oid for oid, parts in grouped.items() if parts[0][_KIND] == "p"]
    leaves, defaults = _partitions(connection, roots) if roots else ({}, {})
    tables = [
        _table(oid, parts, known, unique.get(oid, []), published.get(oid, (None, "")), leaves.get(oid, ()), defaults.get(oid, {}))
        for oid, parts in grouped.items()
        if any(not row[_GENERATED] for row in parts)
    ]
    if publication is None:
        return tables
    return [publication.mark(t, grouped[t.oid][0][_NAMED] or "") for t in tables]


def _partitions(
    connection: Connection, roots: Sequence[int]
) -> tuple[dict[int, tuple[Storage, ...]], dict[int, dict[str, tuple[str | None, str | None]]]]:
    """Return the partitions with rows of partitioned tables, and what they keep for rows from before a column: smallest and largest."""
    oids = ", ".join(str(o) for o in roots)
    leaves: dict[int, tuple[Storage, ...]] = {}
    for root, leaf, file, pristine, logged, since, full, named_by in connection.query(_LEAVES.format(oids=oids)):
        found = Storage(int(leaf or 0), int(file or 0), pristine == "t", logged == "t", since or "", full == "t", named_by or "")
        leaves[int(root or 0)] = (*leaves.get(int(root or 0), ()), found)
    defaults: dict[int, dict[str, tuple[str | None, str | None]]] = {}
    for root, name, low, high in connection.query(_LEAF_DEFAULTS.format(oids=oids)):
        defaults.setdefault(int(root or 0), {})[name or ""] = (low, high)
    return leaves, defaults


def _publication(connection: Connection) -> Publication | None:
    """Return what the publication gives; None where it is not there."""
    sql = _LISTED + (_LISTED_SCHEMAS if connection.server_version >= _FILTERS_VERSION else "")
    rows = connection.query(sql.format(publication=quote_literal(connection.address.publication)))
    if not rows:
        return None
    every, whole, made = rows[0][0] == "t", rows[0][1] == "t", rows[0][2] or ""
    tables = {int(oid): since or "" for _, _, _, oid, _, since in rows if oid}
    return Publication(every, whole, made, tables, {schema: since or "" for _, _, _, _, schema, since in rows if schema})


def _published(connection: Connection) -> dict[int, tuple[frozenset[int] | None, str]]:
    """Return which columns (None for all) and rows the publication gives of tables of which it does not give everything."""
    if connection.server_version < _FILTERS_VERSION:
        return {}
    rows = connection.query(_PUBLISHED.format(publication=quote_literal(connection.address.publication)))
    return {int(o or 0): (frozenset(int(n) for n in a.split()) if a else None, condition or "") for o, a, condition in rows}


def told_initial(column: Column, text: str | msgspec.UnsetType | None, named: bool) -> str | msgspec.UnsetType | None:
    """Return what rows from before a column have in it; unset where readers would make something else of that text.

    How many zeros a time ends with does not count, unless nothing but its values names a row (``named``).
    """
    if not isinstance(text, str):
        return text
    shown = default_of(msgspec.structs.replace(column, initial_default=text)).as_py()
    if isinstance(shown, str) and column.type.kind in TIME_KINDS and named:
        return text if _without_zeros(shown) == _without_zeros(text) else msgspec.UNSET
    is_text = isinstance(shown, str | bytes)
    same = shown == (text.encode() if isinstance(shown, bytes) else text) if is_text else shown is not None
    return text if same else msgspec.UNSET


def _without_zeros(moment: str) -> str:
    return moment.rstrip("0").rstrip(".") if "." in moment else moment


def _table(
    oid: int,
    every: Sequence[Row],
    domains: dict[int, Domain],
    unique: Sequence[tuple[int, ...]],
    published: tuple[frozenset[int] | None, str],
    leaves: tuple[Storage, ...],
    leaf_defaults: dict[str, tuple[str | None, str | None]],
) -> CatalogTable:
    shown, row_filter = published
    # The log carries no others, so they are no columns of ours.
    stored = [row for row in every if not row[_GENERATED]]
    rows = [row for row in stored if shown is None or int(row[4] or 0) in shown]
    identity = every[0][3] or "d"
    # Old rows carry the columns of the identity's index only, so these name a row wherever an index is chosen.
    key_at = 11 if identity == "i" else 10
    partitioned = every[0][_KIND] == "p"
    half = any(row[key_at] == "t" and row[_GENERATED] for row in every)
    named = not half and any(row[key_at] == "t" for row in rows)
    key_names = ",".join(sorted(row[5] or "" for row in every if row[key_at] == "t"))
    otherwise = any(s.named_by not in {"", key_names} for s in leaves)
    columns = []
    for row in rows:
        type_oid = int(row[6] or 0)
        kind, form = column_type(type_oid, int(row[7] or -1), domains)
        is_key = named and row[key_at] == "t"
        nullable = row[8] != "t" and not is_key
        column = Column(int(row[4] or 0), row[5] or "", kind, nullable, is_key, default_text(row[9], kind))
        low, high = leaf_defaults.get(column.name, (None, None)) if partitioned else (row[_MISSING], row[_MISSING])
        initial = told_initial(column, shown_text(low, form) if low == high else msgspec.UNSET, named)
        columns.append(CatalogColumn(column, form, type_oid, row[12] or "", row[13] or "", row[14] == "t", initial))
    own = {c.column.id for c in columns}
    key = {c.column.id for c in columns if c.column.primary_key}
    others = tuple(numbers for numbers in unique if set(numbers) <= own and set(numbers) != key)
    return CatalogTable(
        oid=oid,
        schema=every[0][1] or "",
        table=every[0][2] or "",
        identity=identity,
        columns=tuple(columns),
        unique_keys=others,
        row_filter=row_filter,
        columns_hidden=len(stored) - len(rows),
        generated=tuple(int(row[4] or 0) for row in every if row[_GENERATED]),
        storage=leaves if partitioned else (Storage(oid, int(every[0][_FILE] or 0), every[0][_PRISTINE] == "t"),),
        partitioned=partitioned,
        pristine=every[0][_PRISTINE] == "t",
        deferrable=every[0][_DEFERRABLE] == "t",
        unnamed=HALF_NAMED if half else OTHERWISE_NAMED if otherwise else "",
        full=identity == "f" and all(s.full for s in leaves),
    )
