"""The verb ``doctor``: does a database allow capture, and what makes it do so? Only reads. Runs anywhere.

Exit code 0 means that everything is as it must be (what only should be otherwise, or is a note, is shown), 1 that something is not, 2 that
the question could not be asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from penstock.source.contract import Finding


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
    from penstock.source.catalog import examine

    findings = examine(uri, tables)
    wrong = any(f.blocks for f in findings)
    if output == "json":
        rows = [
            {"name": f.name, "ok": f.ok, "level": str(f.level), "found": f.found, "wanted": f.wanted, "statement": f.statement}
            for f in findings
        ]
        click.echo(json.dumps({"ok": not wrong, "findings": rows}, indent=2))
    else:
        _show(findings)
    return int(wrong)


def _show(findings: Sequence[Finding]) -> None:
    width = max(len(f.name) for f in findings)
    for finding in findings:
        label = "ok" if finding.ok else finding.level.upper()
        click.echo(f"{label:<6}  {finding.name:<{width}}  {finding.found}")
        if not finding.ok:
            click.echo(f"        {'':<{width}}  wanted: {finding.wanted}")
            if finding.statement:
                click.echo(f"        {'':<{width}}  run:    {finding.statement}")
    counts = [f"{sum(not f.ok and f.level == level for f in findings)} {level}" for level in ("must", "should", "note")]
    shown = ", ".join(c for c in counts if not c.startswith("0 "))
    click.echo(f"{len(findings)} checked, {shown or 'all as they must be'}")
