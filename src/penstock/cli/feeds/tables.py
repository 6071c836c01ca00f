"""The verb ``tables``: what a source has, and what a feed would make of it. Only reads. Runs anywhere."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.given import URI
from penstock.cli.options import output_option
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_result
from penstock.cli.shown.tables import show_table

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@click.command()
@click.argument("uri", type=URI)
@click.option("--table", "patterns", multiple=True, metavar="PATTERN", help="database.table; * and ? match. Repeat.  [default: all]")
@output_option
def tables(uri: str, patterns: tuple[str, ...], output: str) -> None:
    """List the tables of a source: key, how large they are about, and whether they will be captured.

    Rows and sizes are the server's own estimates. What keeps a table from being captured, or makes it cost more, is what `penstock doctor`
    says of it, which has the statement that mends it as well.

    \b
    Examples:
      penstock tables mysql://cdc:{env:DB_PASSWORD}@db:3306
      penstock tables postgresql://cdc:{ask}@db/shop --table 'public.*'
      penstock tables dataserver://127.0.0.1:20160 --output json
    """  # noqa: D301
    from penstock.source.catalog import survey

    found = survey(uri, patterns)
    if output != "table":
        import msgspec

        show_result([msgspec.to_builtins(table) for table in found], output)
        return
    if not found:
        say(f"no table matches {' or '.join(patterns)}" if patterns else "no tables")
        return
    rows = [
        (
            f"{one.schema}.{one.table}",
            ", ".join(one.key) or "-",
            "-" if one.rows is None else f"{one.rows:,}",
            size(one.nbytes),
            "yes" if one.captured else "NO",
            "; ".join(one.notes),
        )
        for one in found
    ]
    show_table(("TABLE", "KEY", "ROWS", "SIZE", "CAPTURED", "NOTE"), rows, right=("ROWS", "SIZE"))
    left = sum(not one.captured for one in found)
    click.echo(f"{len(found):,} tables" + (f", {left:,} of them not captured; see `penstock doctor`" if left else ""))


def size(nbytes: Any) -> str:
    """Return a size as people read it."""
    if nbytes is None:
        return "-"
    amount, at = float(nbytes), 0
    while amount >= 1024 and at < len(_UNITS) - 1:
        amount, at = amount / 1024, at + 1
    return f"{amount:.0f} {_UNITS[at]}" if at == 0 else f"{amount:.1f} {_UNITS[at]}"
