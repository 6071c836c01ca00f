"""The doctor of MariaDB and MySQL: every setting and privilege that capture needs, what was found, and the statement that mends it.

Whether a table can be read is tried, not concluded from grants; what the user cannot see is said where the grants leave room for it. Names
in statements are quoted as the server spells them. Reads only. A server that cannot be reached or refuses the login is the usual error,
not a finding. Runs wherever someone asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from penstock.access.mysql_server import parse_uri
from penstock.ddl.tokens import literal, quoted
from penstock.model.errors import PenstockError
from penstock.model.finding import Finding, Level
from penstock.model.table_pattern import match_table, pattern_parts
from penstock.source.mysql.connection import Session
from penstock.source.mysql.server import Server
from penstock.source.mysql.tables.columns import ServerTable, read_tables
from penstock.source.survey import SurveyedTable, surveyed

_RETENTION_DAYS_MIN = 1.0
_GRANT = re.compile(r"^GRANT (.*?) ON (?:TABLE )?(.+?) TO ", re.IGNORECASE)
_ALL = "ALL PRIVILEGES"
_NOT_READABLE = "not readable"
_CLIENT = frozenset({"REPLICATION CLIENT", "BINLOG MONITOR"})
_FOR_NOW = "SET GLOBAL is lost at a restart, so write it to the server's configuration too; sessions that are open keep the old value"
_KINDS = """
SELECT table_schema, table_name, table_type, engine, create_options FROM information_schema.tables
WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')
"""
_SIZES = """
SELECT table_schema, table_name, table_rows, data_length + index_length FROM information_schema.tables
WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')
"""
_CASCADE = re.compile(r"FOREIGN KEY .* REFERENCES (.+?) \(.*\bON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")


def check(uri: str, patterns: Sequence[str] = ()) -> list[Finding]:
    """Return what was found on a server; each pattern must match a table, and all that match must be capturable. None means all tables."""
    server = Server(parse_uri(uri))
    with server.session() as session:
        findings = [_version(server), *_log(session), *_images(session, server), *_retention(session, server)]
        if not server.mariadb:
            findings += _gtids(session)
        grants = _Grants(session)
        findings += _privileges(grants, server)
        findings += _left_out(session, server, grants, patterns)
        findings += _tables(session, server, grants, patterns)
    return findings


def check_server(uri: str) -> list[Finding]:
    """Return what is found of the server alone, without which no table is captured; what a role may bring is tried, not concluded."""
    server = Server(parse_uri(uri))
    with server.session() as session:
        grants = _Grants(session)
        # A format that is not ROW puts tables in doubt, which are read again.
        slave, client = _privileges(grants, server)
        needed = [slave, client] if not grants.has_roles else [] if _tells_its_log(session, server) else [client]
        return [_version(server), *_log(session)[:2], *needed]


def survey(uri: str, patterns: Sequence[str] = ()) -> list[SurveyedTable]:
    """Return the tables that the user can see and patterns match, by name, each with what will happen to it. None means all tables."""
    server = Server(parse_uri(uri))
    with server.session() as session:
        grants = _Grants(session)
        sizes = {f"{s}.{t}": (_whole(rows), _whole(nbytes)) for s, t, rows, nbytes in session.rows(_SIZES)}
        tables = _chosen(session, patterns)
        found: dict[str, list[Finding]] = {name: [] for name in tables}
        for name, finding in _of_tables(session, server, grants, tables):
            found[name].append(finding)
        left_out = {finding.name: finding for finding in _left_out(session, server, grants, patterns)}
    for name, table in tables.items():
        found[name] += [left_out[f"database {table.schema}"]] if f"database {table.schema}" in left_out else []
    return [surveyed(t.schema, t.table, t.key_order, found[n], sizes.get(n, (None, None))) for n, t in sorted(tables.items())]


def _variable(
    session: Session, name: str, wanted: str, statement: str, missing_ok: bool = False, level: Level = Level.MUST, why: str = ""
) -> Finding:
    found = session.variable(name)
    ok = (found is None and missing_ok) or (found is not None and found.upper() == wanted.upper())
    # A wish that goes with SET GLOBAL says what that does not do.
    asked = "; ".join(part for part in (wanted, why, _FOR_NOW if statement.startswith("SET GLOBAL") else "") if part)
    return Finding(name, ok, found if found is not None else "(not there)", asked, "" if ok else statement, level)


def _version(server: Server) -> Finding:
    numbers = tuple(int(n) for n in re.findall(r"\d+", server.version)[:2])
    oldest = (10, 2) if server.mariadb else (5, 7)
    wanted = "MariaDB 10.2 or newer" if server.mariadb else "MySQL 5.7 or newer"
    return Finding("version", numbers >= oldest, server.version, wanted, "")


def _log(session: Session) -> list[Finding]:
    server_id = session.variable("server_id") or "0"
    return [
        _variable(session, "log_bin", "ON", "Add log_bin=binlog to the server's configuration and restart it."),
        Finding("server_id", server_id != "0", server_id, f"not 0; {_FOR_NOW}", "" if server_id != "0" else "SET GLOBAL server_id = 1;"),
        _variable(session, "binlog_format", "ROW", "SET GLOBAL binlog_format = 'ROW';", missing_ok=True),
    ]


def _images(session: Session, server: Server) -> list[Finding]:
    findings = [
        _variable(
            session,
            "binlog_row_image",
            "FULL",
            "SET GLOBAL binlog_row_image = 'FULL';",
            missing_ok=True,
            level=Level.SHOULD,
            why="what an update leaves out is read from the table otherwise",
        ),
        _variable(
            session,
            "binlog_row_metadata",
            "FULL",
            "SET GLOBAL binlog_row_metadata = 'FULL';",
            missing_ok=True,
            level=Level.SHOULD,
            why="columns then come from the log itself, not from what the server shows now",
        ),
    ]
    if not server.mariadb:
        found = session.variable("binlog_row_value_options") or ""
        statement = "SET GLOBAL binlog_row_value_options = '';"
        findings.append(
            Finding("binlog_row_value_options", not found, found or "(empty)", f"(empty); {_FOR_NOW}", statement if found else "")
        )
    return findings


def _retention(session: Session, server: Server) -> list[Finding]:
    seconds = float(session.variable("binlog_expire_logs_seconds") or 0)
    days = seconds / 86_400 if seconds else float(session.variable("expire_logs_days") or 0)
    ok = days == 0 or days >= _RETENTION_DAYS_MIN
    wanted = f"at least a day: longer than the longest pause of a feed; {_FOR_NOW}"
    name = "expire_logs_days" if server.mariadb and not seconds else "binlog_expire_logs_seconds"
    statement = "SET GLOBAL expire_logs_days = 3;" if name == "expire_logs_days" else "SET GLOBAL binlog_expire_logs_seconds = 259200;"
    return [Finding(name, ok, f"{days:g} days" if days else "kept for ever", wanted, "" if ok else statement, Level.SHOULD)]


def _gtids(session: Session) -> list[Finding]:
    steps = "SET GLOBAL enforce_gtid_consistency = ON; then gtid_mode OFF_PERMISSIVE, ON_PERMISSIVE, ON, one after the other."
    why = "without it a snapshot begins with a short lock, and no other server can take over"
    return [
        _variable(session, "gtid_mode", "ON", steps, level=Level.SHOULD, why=why),
        _variable(session, "enforce_gtid_consistency", "ON", steps, level=Level.SHOULD),
    ]


class _Grants:
    """What the server says that the user of the session may do; roles count as it shows them."""

    def __init__(self, session: Session) -> None:
        user = str(session.rows("SELECT CURRENT_USER()")[0][0])
        self.user = "@".join(literal(part) for part in user.rsplit("@", 1))
        self._by_scope: dict[str, set[str]] = {}
        self.has_roles = False
        for (line,) in session.rows("SHOW GRANTS"):
            match = _GRANT.match(str(line))
            self.has_roles = self.has_roles or (match is None and str(line).upper().startswith("GRANT "))
            if match:
                scope = match.group(2).replace("`", "").replace("\\", "")
                # Column privileges are written with their columns, which may hold commas: they are no privilege on the table.
                names = {p.strip().upper() for p in re.sub(r"\([^)]*\)", "()", match.group(1)).split(",")}
                self._by_scope.setdefault(scope, set()).update(names)

    def everywhere(self, names: AbstractSet[str]) -> bool:
        """Return whether one of some privileges, which mean the same, is granted on everything."""
        return self._has("*.*", names)

    def on_database(self, schema: str) -> bool:
        """Return whether every table of a database may be read, those to come included."""
        return self.everywhere({"SELECT"}) or self._has(f"{schema}.*", {"SELECT"})

    def _has(self, scope: str, names: AbstractSet[str]) -> bool:
        granted = self._by_scope.get(scope, set())
        return _ALL in granted or bool(names & granted)


def _privileges(grants: _Grants, server: Server) -> Iterator[Finding]:
    for names in ({"REPLICATION SLAVE", "REPLICATION REPLICA"}, _CLIENT):
        ok = grants.everywhere(names)
        shown = "BINLOG MONITOR" if server.mariadb and names is _CLIENT else sorted(names)[-1]
        statement = "" if ok else f"GRANT {shown} ON *.* TO {grants.user};"
        yield Finding(f"privilege {shown}", ok, "granted" if ok else "missing", "granted", statement)


def _tells_its_log(session: Session, server: Server) -> bool:
    """Return whether the user may ask where the log ends, which is what its reader asks first."""
    try:
        session.records(server.status_statement())
    except PenstockError as error:
        if error.code != "UPSTREAM_REFUSED":
            raise
        return False
    return True


def _left_out(session: Session, server: Server, grants: _Grants, patterns: Sequence[str]) -> Iterator[Finding]:
    """Say what the server does not write to its log: databases that a filter leaves out, and what a replica gets."""
    for status in session.records(server.status_statement()) if grants.everywhere(_CLIENT) else ():
        only, never = ({d for d in str(status.get(key) or "").split(",") if d} for key in ("binlog_do_db", "binlog_ignore_db"))
        schemas = {t.schema for t in read_tables(session) if not patterns or any(match_table(p, t.schema, t.table) for p in patterns)}
        for schema in sorted(schemas):
            if schema in never or (only and schema not in only):
                setting = "binlog_ignore_db" if schema in never else "binlog_do_db"
                statement = f"Change {setting} in the server's configuration and restart it."
                yield Finding(f"database {schema}", False, f"{setting} leaves it out of the log", "that the log holds it", statement)
    if server.mariadb and session.variable("gtid_slave_pos") and session.variable("log_slave_updates") == "OFF":
        found = "what this server got from a primary is not in its log"
        statement = "Add log_slave_updates=ON to the server's configuration and restart it."
        yield Finding("log_slave_updates", False, found, "ON where the server is a replica", statement, Level.SHOULD)


def _tables(session: Session, server: Server, grants: _Grants, patterns: Sequence[str]) -> Iterator[Finding]:
    seen = _chosen(session, ())
    chosen = {n: t for n, t in seen.items() if not patterns or any(match_table(p, t.schema, t.table) for p in patterns)}
    if not patterns and not seen:
        yield Finding("privilege SELECT", False, "no table is visible", "granted", f"GRANT SELECT ON <database>.* TO {grants.user};")
    for pattern in patterns:
        yield from _invisible(pattern, [t for t in seen.values() if match_table(pattern, t.schema, t.table)], grants)
    yield from (finding for _, finding in _of_tables(session, server, grants, chosen))


def _chosen(session: Session, patterns: Sequence[str]) -> dict[str, ServerTable]:
    """Return the tables that the user can see and patterns match, by name; none means all."""
    names = {f"{t.schema}.{t.table}": t for t in read_tables(session)}
    return {n: t for n, t in names.items() if not patterns or any(match_table(p, t.schema, t.table) for p in patterns)}


def _of_tables(session: Session, server: Server, grants: _Grants, chosen: Mapping[str, ServerTable]) -> Iterator[tuple[str, Finding]]:
    """Yield what is found of tables, each with the table's name."""
    kinds = {f"{s}.{t}": (str(k), str(e or ""), str(o or "")) for s, t, k, e, o in session.rows(_KINDS)}
    for name, table in sorted(chosen.items()):
        readable = _readable(session, name, table, grants)
        yield name, readable
        yield from ((name, finding) for finding in _kind(name, *kinds.get(name, ("", "", ""))))
        if server.mariadb and readable.found != _NOT_READABLE:
            yield from ((name, finding) for finding in _cascades(session, name, table))


def _whole(value: object) -> int | None:
    return None if value is None else int(str(value))


def _cascades(session: Session, name: str, table: ServerTable) -> Iterator[Finding]:
    # The views of the information schema show foreign keys only to whoever may change the table.
    text = str(session.rows(f"SHOW CREATE TABLE {quoted(table.schema)}.{quoted(table.table)}")[0][1])
    parents = [match.group(1) for line in text.splitlines() if (match := _CASCADE.search(line))]
    if parents:
        found = f"rows that a foreign key changes with {', '.join(parents)} are not in MariaDB's log"
        yield Finding(f"table {name}: foreign key", False, found, "no CASCADE or SET NULL, or deletes by statements", level=Level.NOTE)


def _invisible(pattern: str, visible: Sequence[ServerTable], grants: _Grants) -> Iterator[Finding]:
    """Say what a pattern names and the user cannot see: the server does not tell whether it is there."""
    schema, table = pattern_parts(pattern)
    if set(schema) & set("*?["):
        covered = grants.everywhere({"SELECT"})
        statement = f"GRANT SELECT ON *.* TO {grants.user};"
    else:
        covered = grants.on_database(schema)
        own = set(table) & set("*?[")
        statement = f"GRANT SELECT ON {quoted(schema)}.{'*' if own or not table else quoted(table)} TO {grants.user};"
    if not visible:
        found = "no such table" if covered else "no such table, or none that the user can see"
        yield Finding(f"pattern {pattern}", False, found, "a table that is there and visible", "" if covered else statement)
    elif not covered and set(pattern) & set("*?["):
        found = f"{len(visible)} tables are visible; others may be there that the user cannot see, and they are not captured"
        yield Finding(f"pattern {pattern}", False, found, "SELECT on all that it names", statement, Level.SHOULD)


def _readable(session: Session, name: str, table: ServerTable, grants: _Grants) -> Finding:
    """Say what will happen to a table."""
    whole = f"{quoted(table.schema)}.{quoted(table.table)}"
    try:
        session.rows(f"SELECT * FROM {whole} LIMIT 0")
    except PenstockError as error:
        if error.code != "UPSTREAM_REFUSED":
            raise
        return Finding(f"table {name}", False, _NOT_READABLE, "SELECT is granted", f"GRANT SELECT ON {whole} TO {grants.user};")
    if table.problem:
        return Finding(f"table {name}", False, table.problem, "types that can be captured")
    if not table.key_order:
        statement = f"ALTER TABLE {whole} ADD COLUMN id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY;"
        found = "captured as a bag, equal rows counted: no primary key and no unique key without NULLs"
        return Finding(f"table {name}", False, found, "a key", statement, Level.SHOULD)
    return Finding(f"table {name}", True, f"captured, key ({', '.join(table.key_order)})", "a key")


def _kind(name: str, kind: str, engine: str, options: str) -> Iterator[Finding]:
    """Say what is particular about how a table is kept."""
    if kind == "SYSTEM VERSIONED":
        yield Finding(f"table {name}: system versioned", False, "its present rows are captured", "that history is not", level=Level.NOTE)
    if "partitioned" in options.lower():
        found = "captured as one table; DROP, TRUNCATE and EXCHANGE PARTITION make it be read again"
        yield Finding(f"table {name}: partitioned", False, found, "that this is affordable", level=Level.NOTE)
    if engine.upper() == "MEMORY":
        found = "its rows are gone when the server restarts"
        yield Finding(f"table {name}: MEMORY", False, found, "a table that outlives the server", level=Level.NOTE)
