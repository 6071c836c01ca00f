"""What a PostgreSQL server must allow for capture, checked one by one, each with the statement that fixes it.

A doctor only reads: it makes neither slot nor publication. Privileges are those of the user in the URI. Runs wherever someone asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.errors import PenstockError
from penstock.model.table_pattern import TablePatterns
from penstock.source.contract import Finding
from penstock.source.postgres.slot import PLUGIN, read_slot
from penstock.source.postgres.tables.catalog import CatalogTable, read_tables
from penstock.source.postgres.wire.address import PostgresAddress, parse_address
from penstock.source.postgres.wire.connection import Connection, quote_ident, quote_literal

VERSION_MIN = 13
_RESTART = "  -- then restart the server"


def check(uri: str, patterns: Sequence[str] = ()) -> list[Finding]:
    """Return what was found; the patterns tell which tables are meant. None means all tables."""
    address, wanted = parse_address(uri), TablePatterns(tuple(patterns))
    with Connection(address) as connection:
        findings = [
            _version(connection),
            _setting(connection, "wal_level", ("logical",), "logical"),
            _senders(connection),
            _encoding(connection),
            _role(connection, address),
        ]
        publication = _publication(connection, address)
        findings += [publication, _slot(connection, address), _retention(connection)]
        tables = [t for t in read_tables(connection) if not patterns or wanted.match(t.schema, t.table)]
        findings += _tables(connection, address, tables, publication.ok)
    return findings


def _version(connection: Connection) -> Finding:
    found = connection.server_version
    return Finding("server version", found >= VERSION_MIN, str(found), f"{VERSION_MIN} or newer")


def _setting(connection: Connection, name: str, good: Sequence[str], wanted: str) -> Finding:
    found = connection.query(f"SHOW {name}")[0][0] or ""
    return Finding(name, found in good, found, wanted, "" if found in good else f"ALTER SYSTEM SET {name} = {wanted};{_RESTART}")


def _senders(connection: Connection) -> Finding:
    rows = connection.query(
        "SELECT current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_replication)::int,"
        " current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots)::int"
    )[0]
    senders, slots = int(rows[0] or 0), int(rows[1] or 0)
    ok = senders >= 2 and slots >= 2
    statement = "ALTER SYSTEM SET max_wal_senders = 20; ALTER SYSTEM SET max_replication_slots = 20;" + _RESTART
    # One for the log and one for a snapshot that is being read.
    return Finding("free WAL senders and slots", ok, f"{senders} and {slots}", "2 and 2 or more", "" if ok else statement)


def _encoding(connection: Connection) -> Finding:
    found = connection.query("SHOW server_encoding")[0][0] or ""
    return Finding("server_encoding", found != "SQL_ASCII", found, "anything but SQL_ASCII, whose bytes may be no text")


def _role(connection: Connection, address: PostgresAddress) -> Finding:
    ok = connection.query("SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user")[0][0] == "t"
    statement = f"ALTER ROLE {quote_ident(address.user)} REPLICATION;"
    return Finding("replication privilege", ok, "yes" if ok else "no", f"user {address.user} may replicate", "" if ok else statement)


def _publication(connection: Connection, address: PostgresAddress) -> Finding:
    name = quote_literal(address.publication)
    rows = connection.query(
        f"SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot FROM pg_publication WHERE pubname = {name}"
    )
    wanted = "there, with all operations and via the partition root"
    made = f"CREATE PUBLICATION {quote_ident(address.publication)} FOR ALL TABLES WITH (publish_via_partition_root = true);"
    label = f"publication {address.publication}"
    if not rows:
        may = connection.query("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")[0][0] == "t"
        return Finding(label, may, "missing" + (", will be made" if may else ""), wanted, "" if may else made)
    _, whole, via_root = rows[0]
    ok = whole == "t" and via_root == "t"
    fix = (
        f"ALTER PUBLICATION {quote_ident(address.publication)} "
        "SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = true);"
    )
    found = "there" if ok else f"all operations: {'yes' if whole == 't' else 'no'}, via the root: {'yes' if via_root == 't' else 'no'}"
    return Finding(label, ok, found, wanted, "" if ok else fix)


def _slot(connection: Connection, address: PostgresAddress) -> Finding:
    slot = read_slot(connection, address.slot)
    label, wanted = f"slot {address.slot}", f"{PLUGIN}, of this database, not lost, without two_phase"
    if slot is None:
        return Finding(label, True, "missing, will be made", wanted)
    ok = slot.plugin == PLUGIN and slot.database == address.database and not slot.is_lost and not slot.two_phase
    found = f"{slot.plugin or 'physical'}, database {slot.database or '-'}, {slot.wal_status or 'lost'}"
    found += (", two_phase" if slot.two_phase else "") + (", in use" if slot.active else "")
    return Finding(label, ok, found, wanted, "" if ok else f"SELECT pg_drop_replication_slot({quote_literal(address.slot)});")


def _retention(connection: Connection) -> Finding:
    found = connection.query("SHOW max_slot_wal_keep_size")[0][0] or ""
    return Finding("max_slot_wal_keep_size", True, found, "-1, or more than is written during the longest pause of a feed")


def _tables(connection: Connection, address: PostgresAddress, tables: Sequence[CatalogTable], published: bool) -> list[Finding]:
    if not tables:
        raise PenstockError("TABLE_UNKNOWN", f"{address.shown}: no table that can be captured matches")
    listed = connection.query(
        f"SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = {quote_literal(address.publication)}"
    )
    readable = {
        row[0]
        for row in connection.query(
            f"SELECT c.oid FROM pg_class c WHERE c.oid IN ({', '.join(str(t.oid) for t in tables)})"
            " AND has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(c.relnamespace, 'USAGE')"
        )
    }
    findings = []
    for table in tables:
        name, sql = f"{table.schema}.{table.table}", f"{quote_ident(table.schema)}.{quote_ident(table.table)}"
        if str(table.oid) not in readable:
            grant = f"GRANT USAGE ON SCHEMA {quote_ident(table.schema)} TO {quote_ident(address.user)}; "
            grant += f"GRANT SELECT ON {sql} TO {quote_ident(address.user)};"
            findings.append(Finding(f"{name}: privilege", False, "not readable", f"user {address.user} may read it", grant))
        if listed and (table.schema, table.table) not in listed and published:
            add = f"ALTER PUBLICATION {quote_ident(address.publication)} ADD TABLE {sql};"
            findings.append(Finding(f"{name}: publication", False, "not published", f"in {address.publication}", add))
        if table.row_filter or table.columns_hidden:
            rows = f"rows where {table.row_filter}" if table.row_filter else "all rows"
            found = f"{rows}, {table.columns_hidden} columns left out"
            findings.append(Finding(f"{name}: published part", True, found, "what you want: snapshots and log give no more than this"))
        findings.append(_identity(table, name, sql))
    return findings


def _identity(table: CatalogTable, name: str, sql: str) -> Finding:
    wanted = "a key, or REPLICA IDENTITY FULL"
    full = f"ALTER TABLE {sql} REPLICA IDENTITY FULL;"
    add = f"ALTER TABLE {sql} ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;"
    if table.identity == "n":
        return Finding(f"{name}: replica identity", False, "nothing: updates and deletes are refused", wanted, full)
    if not table.has_key and table.identity != "f":
        return Finding(f"{name}: replica identity", False, "no key: updates and deletes are refused", wanted, add)
    shown = {"f": "full, with before-images", "i": "index"}.get(table.identity, "primary key, no before-images")
    if not table.has_key:
        # The log says that a row of this content ceased, not which of several.
        return Finding(f"{name}: replica identity", False, "full, without a key: equal rows count as one", "a key", add)
    return Finding(f"{name}: replica identity", True, shown, wanted)
