"""What a PostgreSQL server must allow for capture, checked one by one, each with the statement that fixes it.

A doctor only reads: it makes neither slot nor publication. Privileges are those of the user in the URI. Runs wherever someone asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.errors import PenstockError
from penstock.model.finding import Finding, Level
from penstock.model.table_pattern import TablePatterns
from penstock.source.postgres.doctor_tables import check_tables
from penstock.source.postgres.slot import PLUGIN, read_slot
from penstock.source.postgres.tables.catalog import CatalogTable, read_tables
from penstock.source.postgres.wire.address import PostgresAddress, parse_address
from penstock.source.postgres.wire.connection import Connection, PostgresError, quote_ident, quote_literal
from penstock.source.survey import SurveyedTable, surveyed

VERSION_MIN = 13
_MISSING, _NOT_ALLOWED = "missing", "42501"
_RESTART = "  -- then restart the server"
_SHOWN_MAX = 5
_FUTURE = """
SELECT DISTINCT n.nspname, o.rolname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles o ON o.oid = c.relowner
CROSS JOIN pg_roles u
WHERE c.oid IN ({oids}) AND u.rolname = current_user AND NOT u.rolsuper AND o.oid <> u.oid
  AND NOT EXISTS (SELECT 1 FROM pg_roles r WHERE r.rolname = 'pg_read_all_data' AND pg_has_role(u.oid, r.oid, 'USAGE'))
  AND NOT EXISTS (
    SELECT 1 FROM pg_default_acl d CROSS JOIN aclexplode(d.defaclacl) a
    WHERE d.defaclobjtype = 'r' AND d.defaclrole = c.relowner AND d.defaclnamespace IN (0, n.oid) AND a.privilege_type = 'SELECT'
      AND (a.grantee = 0 OR pg_has_role(u.oid, a.grantee, 'USAGE')))
ORDER BY 1, 2
"""
_SIZES = """
SELECT c.oid, (SELECT sum(k.reltuples) FROM pg_class k WHERE k.oid = c.oid AND c.relkind <> 'p'
  OR c.relkind = 'p' AND k.oid IN (SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf)),
  (SELECT sum(pg_total_relation_size(relid)) FROM (SELECT c.oid AS relid WHERE c.relkind <> 'p'
  UNION ALL SELECT relid FROM pg_partition_tree(c.oid) WHERE c.relkind = 'p') AS parts)
FROM pg_class c WHERE c.oid IN ({oids})
"""
_UNLOGGED = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'u' AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2
"""


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
        every = read_tables(connection)
        tables = [t for t in every if not patterns or wanted.match(t.schema, t.table)]
        if not tables:
            raise PenstockError("TABLE_UNKNOWN", f"{address.shown}: no table that can be captured matches")
        findings += _others(connection, address, [t for t in every if t not in tables])
        findings += _future(connection, address, tables)
        findings += _unlogged(connection, patterns, wanted)
        findings += check_tables(connection, address, tables)
    return findings


def check_server(uri: str) -> list[Finding]:
    """Return what is found of the server alone, without which no table is captured."""
    address = parse_address(uri)
    with Connection(address) as connection:
        found = [_version(connection), _setting(connection, "wal_level", ("logical",), "logical"), _encoding(connection)]
        publication = _publication(connection, address)
        # One that is there may lack something for a table; without any, there is nothing for anyone.
        return [*found, _role(connection, address), *([] if publication.ok or publication.found != _MISSING else [publication])]


def survey(uri: str, patterns: Sequence[str] = ()) -> list[SurveyedTable]:
    """Return the tables that can be captured and patterns match, by name, each with what will happen to it. None means all tables."""
    address, wanted = parse_address(uri), TablePatterns(tuple(patterns))
    with Connection(address) as connection:
        tables = [t for t in read_tables(connection) if not patterns or wanted.match(t.schema, t.table)]
        if not tables:
            return []
        sizes = {int(o or 0): (_rows(r), int(n or 0)) for o, r, n in connection.query(_SIZES.format(oids=_oids(tables)))}
        # Each alone: a finding has the table's name in front, which may be anything.
        found = {t.oid: check_tables(connection, address, [t]) for t in tables}
    keys = {t.oid: [c.column.name for c in t.columns if c.column.primary_key] for t in tables}
    listed = sorted(tables, key=lambda t: (t.schema, t.table))
    return [surveyed(t.schema, t.table, keys[t.oid], found[t.oid], sizes.get(t.oid, (None, None))) for t in listed]


def _oids(tables: Sequence[CatalogTable]) -> str:
    return ", ".join(str(t.oid) for t in tables)


def _rows(estimate: str | None) -> int | None:
    """Return how many rows there are about; a table that was never analyzed has -1."""
    rows = int(float(estimate or -1))
    return None if rows < 0 else rows


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
    member = connection.query("SELECT 1 FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.member WHERE r.rolname = current_user")
    # In PostgreSQL itself no role brings it, in services that run one for others a role of theirs does.
    ok = ok or (bool(member) and _may_replicate(address))
    statement = f"ALTER ROLE {quote_ident(address.user)} REPLICATION;"
    return Finding("replication privilege", ok, "yes" if ok else "no", f"user {address.user} may replicate", "" if ok else statement)


def _may_replicate(address: PostgresAddress) -> bool:
    """Try whether the server begins to replicate for a user."""
    try:
        Connection(address, replication=True).close()
    except PostgresError as error:
        if error.sqlstate != _NOT_ALLOWED:
            raise
        return False
    return True


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
        return Finding(label, may, _MISSING + (", will be made" if may else ""), wanted, "" if may else made)
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
    wanted = "-1, or more than is written during the longest pause of a feed: a slot that falls further behind loses its log"
    return Finding("max_slot_wal_keep_size", found == "-1", found, wanted, level=Level.NOTE)


def _others(connection: Connection, address: PostgresAddress, others: Sequence[CatalogTable]) -> list[Finding]:
    """Say what a publication of all tables does to tables that nobody asked for: their updates are refused without an identity."""
    rows = connection.query(f"SELECT puballtables FROM pg_publication WHERE pubname = {quote_literal(address.publication)}")
    bare = [f"{t.schema}.{t.table}" for t in others if t.identity == "n" or (t.identity == "d" and not t.has_key)]
    if not bare or (rows and rows[0][0] != "t"):
        return []
    found = f"{len(bare)} other tables without a replica identity: {', '.join(bare[:_SHOWN_MAX])}"
    wanted = "the publication is of all tables: the server refuses updates and deletes of these; or publish the tables that are meant"
    return [Finding("tables beside the pattern", False, found, wanted, level=Level.NOTE)]


def _future(connection: Connection, address: PostgresAddress, tables: Sequence[CatalogTable]) -> list[Finding]:
    """Say which owners' tables to come the user will not be able to read."""
    oids = ", ".join(str(t.oid) for t in tables)
    rows = connection.query(_FUTURE.format(oids=oids))
    return [
        Finding(
            f"tables to come in {schema} of {owner}",
            False,
            f"user {address.user} may not read them",
            "new tables join a feed by themselves, so they should be readable",
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {quote_ident(owner or '')} IN SCHEMA {quote_ident(schema or '')} "
            f"GRANT SELECT ON TABLES TO {quote_ident(address.user)};",
            Level.SHOULD,
        )
        for schema, owner in rows
    ]


def _unlogged(connection: Connection, patterns: Sequence[str], wanted: TablePatterns) -> list[Finding]:
    found = [(s or "", t or "") for s, t in connection.query(_UNLOGGED) if not patterns or wanted.match(s or "", t or "")]
    return [
        Finding(
            f"{schema}.{table}",
            False,
            "unlogged: not captured",
            "a logged table, if it is to be captured",
            f"ALTER TABLE {quote_ident(schema)}.{quote_ident(table)} SET LOGGED;",
            Level.NOTE,
        )
        for schema, table in found
    ]
