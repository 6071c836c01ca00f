"""The verb ``doctor``: does a database allow capture, and what makes it do so? Only reads. Runs anywhere.

Exit code 0 means that everything is as it must be, 1 that something is not, 2 that the question could not be asked.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.source.findings import Finding


@click.command()
@click.argument("uri")
@click.option("--table", "tables", multiple=True, metavar="PATTERN", help="database.table; * and ? match. Repeat.  [default: all tables]")
@click.option(
    "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="json is a stable contract for scripts."
)
def doctor(uri: str, tables: tuple[str, ...], output: str) -> int:
    """Check a database's settings and privileges, and say the statement that fixes each.

    \b
    Examples:
      penstock doctor postgresql://cdc:secret@db:5432/shop --table 'public.*'
      penstock doctor mysql://cdc:secret@db:3306 --output json
    """  # noqa: D301
    findings = examine(uri, tables)
    wrong = [f for f in findings if not f.ok]
    if output == "json":
        rows = [{"name": f.name, "ok": f.ok, "found": f.found, "wanted": f.wanted, "statement": f.statement} for f in findings]
        click.echo(json.dumps({"ok": not wrong, "findings": rows}, indent=2))
    else:
        _show(findings, len(wrong))
    return 1 if wrong else 0


def examine(uri: str, tables: Sequence[str]) -> list[Finding]:
    """Return what the doctor of a source finds."""
    scheme = uri.partition("://")[0]
    if scheme in {"postgres", "postgresql"}:
        from penstock.source.postgres.doctor import check

        return check(uri, _matcher(tables))
    if scheme in {"mysql", "mariadb"}:
        from penstock.source.mysql.doctor import check as check_mysql

        return check_mysql(uri, _named(uri, tables))
    raise PenstockError(
        "CONFIG_INVALID",
        f"uri: scheme {scheme or '(none)'!r} has no doctor",
        "Give a mysql:// or a postgresql:// URI, as --source takes it.",
    )


def _named(uri: str, patterns: Sequence[str]) -> list[str]:
    """Return patterns as the names that they match now; one that matches nothing stays as it is, for the doctor to report."""
    if not any(set(pattern) & set("*?[") for pattern in patterns):
        return list(patterns)
    from penstock.source.catalog import open_upstream

    upstream = open_upstream(uri)
    try:
        tables = upstream.list_tables()
    finally:
        upstream.close()
    found: list[str] = []
    for pattern in patterns:
        matches = _matcher([pattern])
        assert matches is not None
        found += [t.full_name for t in tables if matches(t.schema, t.table)] or [pattern]
    return found


def _matcher(patterns: Sequence[str]) -> Callable[[str, str], bool] | None:
    if not patterns:
        return None
    parts = [pattern.lower().partition(".")[::2] for pattern in patterns]

    def matches(schema: str, table: str) -> bool:
        return any(fnmatch.fnmatchcase(schema.lower(), s) and fnmatch.fnmatchcase(table.lower(), t) for s, t in parts)

    return matches


def _show(findings: Sequence[Finding], wrong: int) -> None:
    width = max(len(f.name) for f in findings)
    for finding in findings:
        click.echo(f"{'ok   ' if finding.ok else 'WRONG'}  {finding.name:<{width}}  {finding.found}")
        if not finding.ok:
            click.echo(f"       {'':<{width}}  wanted: {finding.wanted}")
            if finding.statement:
                click.echo(f"       {'':<{width}}  run:    {finding.statement}")
    click.echo(f"{len(findings)} checked, {wrong} wrong" if wrong else f"{len(findings)} checked, all as they must be")
