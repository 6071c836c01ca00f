"""The doctor of MariaDB and MySQL: every setting and privilege that capture needs, what was found, and the statement that mends it.

Reads only. A server that cannot be reached or refuses the login is the usual error, not a finding. Runs wherever someone asks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from penstock.model.table_pattern import match_name
from penstock.source.contract import Finding
from penstock.source.mysql.connection import Session, parse_uri
from penstock.source.mysql.server import Server
from penstock.source.mysql.tables.columns import read_tables

_RETENTION_DAYS_MIN = 1.0
_GRANT = re.compile(r"^GRANT (.*?) ON (\S+) TO ", re.IGNORECASE)
_ALL = "ALL PRIVILEGES"


def check(uri: str, patterns: Sequence[str] = ()) -> list[Finding]:
    """Return what was found on a server; each pattern must match a table, and all that match must be capturable. None means all tables."""
    server = Server(parse_uri(uri))
    with server.session() as session:
        findings = [_version(server), *_log(session), *_images(session, server), *_retention(session, server)]
        if not server.mariadb:
            findings += _gtids(session)
        findings += _grants(session, server)
        findings += _tables(session, patterns)
    return findings


def _variable(session: Session, name: str, wanted: str, statement: str, missing_ok: bool = False) -> Finding:
    found = session.variable(name)
    ok = (found is None and missing_ok) or (found is not None and found.upper() == wanted.upper())
    return Finding(name, ok, found if found is not None else "(not there)", wanted, "" if ok else statement)


def _version(server: Server) -> Finding:
    numbers = tuple(int(n) for n in re.findall(r"\d+", server.version)[:2])
    oldest = (10, 2) if server.mariadb else (5, 7)
    wanted = "MariaDB 10.2 or newer" if server.mariadb else "MySQL 5.7 or newer"
    return Finding("version", numbers >= oldest, server.version, wanted, "")


def _log(session: Session) -> list[Finding]:
    server_id = session.variable("server_id") or "0"
    return [
        _variable(session, "log_bin", "ON", "Add log_bin=binlog to the server's configuration and restart it."),
        Finding("server_id", server_id != "0", server_id, "not 0", "" if server_id != "0" else "SET GLOBAL server_id = 1;"),
        _variable(session, "binlog_format", "ROW", "SET GLOBAL binlog_format = 'ROW';", missing_ok=True),
    ]


def _images(session: Session, server: Server) -> list[Finding]:
    findings = [
        _variable(session, "binlog_row_image", "FULL", "SET GLOBAL binlog_row_image = 'FULL';", missing_ok=True),
        # Without it, names and keys come from the schema history, which needs the server's present tables when capture begins.
        _variable(session, "binlog_row_metadata", "FULL", "SET GLOBAL binlog_row_metadata = 'FULL';", missing_ok=True),
    ]
    if not server.mariadb:
        found = session.variable("binlog_row_value_options") or ""
        statement = "SET GLOBAL binlog_row_value_options = '';"
        findings.append(Finding("binlog_row_value_options", not found, found or "(empty)", "(empty)", statement if found else ""))
    return findings


def _retention(session: Session, server: Server) -> list[Finding]:
    seconds = float(session.variable("binlog_expire_logs_seconds") or 0)
    days = seconds / 86_400 if seconds else float(session.variable("expire_logs_days") or 0)
    ok = days == 0 or days >= _RETENTION_DAYS_MIN
    wanted = "at least a day: longer than the longest pause of a feed"
    name = "expire_logs_days" if server.mariadb and not seconds else "binlog_expire_logs_seconds"
    statement = "SET GLOBAL expire_logs_days = 3;" if name == "expire_logs_days" else "SET GLOBAL binlog_expire_logs_seconds = 259200;"
    return [Finding(name, ok, f"{days:g} days" if days else "kept for ever", wanted, "" if ok else statement)]


def _gtids(session: Session) -> list[Finding]:
    steps = "SET GLOBAL enforce_gtid_consistency = ON; then gtid_mode OFF_PERMISSIVE, ON_PERMISSIVE, ON, one after the other."
    return [_variable(session, "gtid_mode", "ON", steps), _variable(session, "enforce_gtid_consistency", "ON", steps)]


def _grants(session: Session, server: Server) -> list[Finding]:
    """Compare the grants with what capture needs; roles count as the server shows them."""
    user = str(session.rows("SELECT CURRENT_USER()")[0][0])
    quoted = "@".join(f"'{part}'" for part in user.rsplit("@", 1))
    everywhere: set[str] = set()
    anywhere: set[str] = set()
    for (text,) in session.rows("SHOW GRANTS"):
        match = _GRANT.match(str(text))
        if match:
            privileges = {p.strip().upper() for p in match.group(1).split(",")}
            anywhere |= privileges
            if match.group(2) == "*.*":
                everywhere |= privileges
    client = {"REPLICATION CLIENT", "BINLOG MONITOR"}
    slave = {"REPLICATION SLAVE", "REPLICATION REPLICA"}
    findings = []
    for names, scope in ((slave, everywhere), (client, everywhere), ({"SELECT"}, anywhere)):
        ok = _ALL in scope or bool(names & scope)
        shown = "BINLOG MONITOR" if server.mariadb and names is client else sorted(names)[-1]
        on = "*.*" if scope is everywhere else "<database>.*"
        findings.append(
            Finding(
                f"privilege {shown}", ok, "granted" if ok else "missing", "granted", "" if ok else f"GRANT {shown} ON {on} TO {quoted};"
            )
        )
    return findings


def _tables(session: Session, patterns: Sequence[str]) -> list[Finding]:
    findings = []
    found = {f"{t.schema}.{t.table}".lower(): t for t in read_tables(session)}
    # A pattern that matches nothing stays as it is, to be reported.
    wanted = [[n for n in sorted(found) if match_name(p, n)] or [p.lower()] for p in patterns]
    names = list(itertools.chain.from_iterable(wanted)) if patterns else sorted(found)
    for name in names:
        table = found.get(name)
        if table is None:
            findings.append(
                Finding(f"table {name}", False, "not there, or not visible", "visible", f"GRANT SELECT ON {name} TO CURRENT_USER();")
            )
        elif table.problem:
            findings.append(Finding(f"table {name}", False, table.problem, "types that can be captured"))
        elif not table.key_order:
            statement = f"ALTER TABLE {name} ADD COLUMN id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY;"
            findings.append(
                Finding(
                    f"table {name}", False, "no primary key and no unique key without NULLs: equal rows count as one", "a key", statement
                )
            )
        elif patterns:
            findings.append(Finding(f"table {name}", True, f"key ({', '.join(table.key_order)})", "a key"))
    return findings
