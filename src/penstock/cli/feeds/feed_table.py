"""The verb ``feed table``: the state of a feed's tables, and asking for one to be read again. Runs anywhere."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.server_client import DEFAULT_URL, ServerClient
from penstock.cli.shown.line import visible

_server_option = click.option(
    "--server", "server_url", default=DEFAULT_URL, show_default=True, envvar="PENSTOCK_SERVER", help="The server's address."
)
_output_option = click.option(
    "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="json is a stable contract for scripts."
)


@click.group("table")
def table_group() -> None:
    """List the tables of a feed with their states, and have one read again.

    A table is in doubt where the source's log does not tell what rows it has. It is read again by itself, as on-rewrite says.

    \b
    Examples:
      penstock feed table list orders
      penstock feed table resnapshot orders shop.items
      penstock feed table exclude orders shop.items
    """  # noqa: D301


@table_group.command("list")
@click.argument("feed_name", metavar="FEED")
@_server_option
@_output_option
def list_tables(feed_name: str, server_url: str, output: str) -> None:
    """List the tables: state, since when, why, and when they are tried again."""
    with ServerClient(server_url) as client:
        tables = client.list_tables(feed_name)
    if output == "json":
        click.echo(json.dumps(tables, indent=2))
        return
    shown = Table(box=None, pad_edge=False)
    for title in ("TABLE", "STATE", "SINCE", "REASON", "NEXT ATTEMPT", "HINT"):
        shown.add_column(title, overflow="fold")
    for one in tables:
        code = f"[{one['code']}] " if one.get("code") else ""
        columns = (
            one["name"],
            one["state"],
            _time(one.get("since_ms")),
            code + one.get("reason", ""),
            _time(one.get("next_attempt_ms")),
            one.get("hint", ""),
        )
        # As they are: square brackets in an error are not markup.
        shown.add_row(*(Text(visible(column)) for column in columns))
    Console().print(shown)


@table_group.command()
@click.argument("feed_name", metavar="FEED")
@click.argument("table")
@_server_option
@_output_option
def retry(feed_name: str, table: str, server_url: str, output: str) -> None:
    """Read a table that is in doubt again now, rather than when its pause is over."""
    _ask(feed_name, table, "retry", server_url, output)


@table_group.command()
@click.argument("feed_name", metavar="FEED")
@click.argument("table")
@_server_option
@_output_option
def resnapshot(feed_name: str, table: str, server_url: str, output: str) -> None:
    """Read a table again and deliver what differs, deletes included. Every feed of the server that has the table gets it."""
    _ask(feed_name, table, "resnapshot", server_url, output)


@table_group.command()
@click.argument("feed_name", metavar="FEED")
@click.argument("table")
@_server_option
@_output_option
def exclude(feed_name: str, table: str, server_url: str, output: str) -> None:
    """Leave a table out from now on, while the others go on; what is in the target stays.

    The checkpoint does not cover it then. It stays so through restarts, until a TRUNCATE or `include`.
    """
    _ask(feed_name, table, "exclude", server_url, output, "is left out from now on")


@table_group.command()
@click.argument("feed_name", metavar="FEED")
@click.argument("table")
@_server_option
@_output_option
def include(feed_name: str, table: str, server_url: str, output: str) -> None:
    """Have an excluded table again: it is read, what differs is delivered, deletes included, and its changes follow."""
    _ask(feed_name, table, "retry", server_url, output)


def table_line(table: dict[str, Any]) -> str:
    """Return one line about a table that is in doubt."""
    code = f"[{table['code']}] " if table.get("code") else ""
    line = f"{table['name']}: {table['state']} since {_time(table.get('since_ms'))}: {code}{table.get('reason', '')}"
    read = table.get("reread")
    if read:
        line += f"; {read['parts_done']:,} of {read['parts']:,} parts, {read['rows']:,} rows"
    if table.get("next_attempt_ms"):
        line += f"; next attempt {_time(table['next_attempt_ms'])}"
    return f"{line}. {table['hint']}" if table.get("hint") else line


def verification_rows(found: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return what verification on a schedule found: one line, and one for each table that is not identical."""
    if found is None:
        return []
    tables = found["tables"]
    rows = sum(table["rows_checked"] for table in tables)
    lines = [("verified", f"{found['rounds']:,} rounds, {sum(t['ranges_checked'] for t in tables):,} key ranges, {rows:,} rows identical")]
    for one in tables:
        if one["state"] == "differs":
            counts = f"{one['missing']:,} rows missing, {one['unexpected']:,} unexpected, {one['different']:,} different"
            keys = f", first keys: {', '.join(one['sample_keys'])}" if one["sample_keys"] else ""
            lines.append(("differs", f"{one['name']}: {counts}{keys}. `penstock feed table resnapshot` delivers them"))
        elif one["state"] == "unchecked":
            lines.append(("not verified", f"{one['name']}: {one['unchecked']}"))
    return lines


def _ask(feed_name: str, table: str, what: str, server_url: str, output: str, done: str = "will be read again") -> None:
    with ServerClient(server_url) as client:
        found = client.ask_for_table(feed_name, table, what)
    click.echo(json.dumps(found, indent=2) if output == "json" else f"table {found['name']} {done}")


def _time(ms: int | None) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, tz=dt.UTC).isoformat(timespec="seconds") if ms else ""
