"""What the doctor says of each PostgreSQL table: whether it is read, published and named, and what will happen to it.

Every name in a statement is quoted, so that it can be pasted. Only reads. Runs wherever someone asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.model.finding import Finding, Level
from penstock.source.postgres.tables.catalog import HALF_NAMED, OTHERWISE_NAMED, CatalogTable
from penstock.source.postgres.wire.address import PostgresAddress
from penstock.source.postgres.wire.connection import Connection, quote_ident, quote_literal

_ACCESS = """
SELECT c.oid, has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(c.relnamespace, 'USAGE'), row_security_active(c.oid)
FROM pg_class c WHERE c.oid IN ({oids})
"""
_LEAVES = """
SELECT r.oid, n.nspname, k.relname, k.relreplident FROM pg_class r CROSS JOIN pg_partition_tree(r.oid) t
JOIN pg_class k ON k.oid = t.relid JOIN pg_namespace n ON n.oid = k.relnamespace
WHERE r.relkind = 'p' AND t.isleaf AND r.oid IN ({oids}) ORDER BY r.oid, k.oid
"""
_SHOWN_MAX = 5


def check_tables(connection: Connection, address: PostgresAddress, tables: Sequence[CatalogTable]) -> list[Finding]:
    """Return the findings of some tables; each table has one at least, which says how it is captured."""
    oids = ", ".join(str(t.oid) for t in tables)
    access = {int(o or 0): (may == "t", hides == "t") for o, may, hides in connection.query(_ACCESS.format(oids=oids))}
    name = quote_literal(address.publication)
    there = bool(connection.query(f"SELECT 1 FROM pg_publication WHERE pubname = {name}"))
    listed = set(connection.query(f"SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = {name}"))
    leaves: dict[int, list[tuple[str, str]]] = {}
    for root, schema, leaf, identity in connection.query(_LEAVES.format(oids=oids)):
        leaves.setdefault(int(root or 0), []).append((_sql(schema or "", leaf or ""), identity or "d"))
    # A publication that is not via the root lists partitions instead of their table: that is told of the publication.
    via_root = bool(connection.query(f"SELECT 1 FROM pg_publication WHERE pubname = {name} AND pubviaroot"))
    findings: list[Finding] = []
    for table in tables:
        published = not there or (table.schema, table.table) in listed or (table.partitioned and not via_root)
        findings += _access(table, address, *access.get(table.oid, (False, False)))
        findings += _published(table, address, published)
        findings += _partitions(table, leaves.get(table.oid, []))
        findings.append(_identity(table))
    return findings


def _access(table: CatalogTable, address: PostgresAddress, readable: bool, hides: bool) -> Iterator[Finding]:
    user = quote_ident(address.user)
    if not readable:
        grant = f"GRANT USAGE ON SCHEMA {quote_ident(table.schema)} TO {user}; GRANT SELECT ON {_sql(table.schema, table.table)} TO {user};"
        yield Finding(f"{_name(table)}: privilege", False, "not readable", f"user {address.user} may read it", grant)
    if hides:
        found = f"policies hide rows from user {address.user}: snapshots fail"
        yield Finding(f"{_name(table)}: row-level security", False, found, "a user who sees all rows", f"ALTER ROLE {user} BYPASSRLS;")


def _published(table: CatalogTable, address: PostgresAddress, published: bool) -> Iterator[Finding]:
    name = _name(table)
    if not published:
        add = f"ALTER PUBLICATION {quote_ident(address.publication)} ADD TABLE {_sql(table.schema, table.table)};"
        yield Finding(f"{name}: publication", False, "not published", f"in {address.publication}", add)
    if table.row_filter or table.columns_hidden:
        rows = f"rows where {table.row_filter}" if table.row_filter else "all rows"
        wanted = "what you want: snapshots and log give no more than this"
        yield Finding(f"{name}: published part", False, f"{rows}, {table.columns_hidden} columns left out", wanted, level=Level.NOTE)


def _partitions(table: CatalogTable, leaves: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Say which partitions have a replica identity of their own: theirs counts, not their table's."""
    name = f"{_name(table)}: partitions"
    silent = [sql for sql, identity in leaves if identity == "n"]
    if silent:
        fix = " ".join(f"ALTER TABLE {sql} REPLICA IDENTITY {_identity_text(table)};" for sql in silent)
        shown = ", ".join(silent[:_SHOWN_MAX])
        yield Finding(name, False, f"replica identity nothing: updates and deletes of {shown} are refused", "that of the table", fix)
    others = [sql for sql, identity in leaves if identity not in {"n", table.identity}] if table.identity in "df" else []
    lost = table.unnamed == OTHERWISE_NAMED
    if others or lost:
        others = others or [sql for sql, _ in leaves]
        fix = " ".join(f"ALTER TABLE {sql} REPLICA IDENTITY {_identity_text(table)};" for sql in others)
        shown = ", ".join(others[:_SHOWN_MAX])
        found = f"another replica identity than the table's: {shown}" + (": changed rows are not known" if lost else "")
        yield Finding(name, False, found, "that of the table", fix, Level.MUST if lost else Level.SHOULD)


def _identity_text(table: CatalogTable) -> str:
    return "FULL" if table.identity == "f" or not table.has_key else "DEFAULT"


def _identity(table: CatalogTable) -> Finding:
    name, sql, wanted = f"{_name(table)}: replica identity", _sql(table.schema, table.table), "a key, or REPLICA IDENTITY FULL"
    full = f"ALTER TABLE {sql} REPLICA IDENTITY FULL;"
    add = f"ALTER TABLE {sql} ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;"
    refused = "updates and deletes are refused"
    if table.identity == "n" and not table.partitioned:
        return Finding(name, False, f"nothing: {refused}", wanted, f"ALTER TABLE {sql} REPLICA IDENTITY {_identity_text(table)};")
    deferred = table.identity == "d" and table.has_key and table.deferrable
    if deferred or (table.is_half_named and table.unnamed == HALF_NAMED):
        found = f"the primary key is deferrable, which names no row: {refused}" if deferred else table.unnamed
        return Finding(name, False, found, "a key that is not, or FULL", full)
    if not table.has_key and table.identity != "f":
        found = "no key: inserts are captured, updates and deletes are refused by the server while the table is published"
        return Finding(name, False, found, "a key, unless the table only takes inserts", add, Level.NOTE)
    if not table.has_key:
        return Finding(name, False, "full, without a key: captured as a bag, equal rows counted", "a key", add, Level.SHOULD)
    if table.deferrable:
        found = "full, with a deferrable key: a transaction that moves rows of equal content between keys makes the table be read again"
        return Finding(name, False, found, "a key that is not deferrable", level=Level.NOTE)
    keys = ", ".join(c.column.name for c in table.columns if c.column.primary_key)
    images = "with before-images" if table.identity == "f" else "no before-images"
    return Finding(name, True, f"key ({keys}), {images}", wanted)


def _name(table: CatalogTable) -> str:
    return f"{table.schema}.{table.table}"


def _sql(schema: str, table: str) -> str:
    return f"{quote_ident(schema)}.{quote_ident(table)}"
