"""The verb ``feed table``: the state of a feed's tables, and asking for one to be read again. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from penstock.cli.options import output_option, reason_option, server_option, watch_option
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.output import show_result, watched
from penstock.cli.shown.tables import show_table, time_of


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
@watch_option
@server_option
@output_option
def list_tables(feed_name: str, server_url: str, output: str, watch_s: float | None) -> None:
    """List the tables: state, what was delivered, lag; of those in doubt since when, why, and when they are tried again."""
    with ServerClient(server_url) as client:
        watched(lambda: client.list_tables(feed_name), _show, output, watch_s)


def _show(tables: list[dict[str, Any]]) -> None:
    show_table(
        ("TABLE", "STATE", "ROWS", "FILES", "LAG", "SINCE", "REASON", "NEXT ATTEMPT", "HINT"),
        (_cells(table) for table in tables),
        right=("ROWS", "FILES", "LAG"),
    )


def _cells(table: dict[str, Any]) -> tuple[str, ...]:
    done = table["progress"]
    return (
        table["name"],
        "joining" if done["joining"] and table["state"] == "ok" else table["state"],
        f"{done['rows']:,}",
        f"{done['files']:,}",
        "-" if done["lag_s"] is None else f"{done['lag_s']:.1f} s",
        time_of(table.get("since_ms")),
        _reason(table),
        time_of(table.get("next_attempt_ms")),
        table.get("hint", ""),
    )


def _of_a_table(command: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the feed and the table that it is about, why it is asked for, and where."""
    return click.argument("feed_name", metavar="FEED")(click.argument("table")(reason_option(server_option(output_option(command)))))


@table_group.command()
@_of_a_table
def retry(feed_name: str, table: str, reason: str, server_url: str, output: str) -> None:
    """Read a table that is in doubt again now, rather than when its pause is over."""
    _ask(feed_name, table, "retry", reason, server_url, output)


@table_group.command()
@_of_a_table
def resnapshot(feed_name: str, table: str, reason: str, server_url: str, output: str) -> None:
    """Read a table again and deliver what differs, deletes included. Every feed of the server that has the table gets it."""
    _ask(feed_name, table, "resnapshot", reason, server_url, output)


@table_group.command()
@_of_a_table
def exclude(feed_name: str, table: str, reason: str, server_url: str, output: str) -> None:
    """Leave a table out from now on, while the others go on; what is in the target stays.

    The checkpoint does not cover it then. It stays so through restarts, until a TRUNCATE or `include`.
    """
    _ask(feed_name, table, "exclude", reason, server_url, output, "is left out from now on")


@table_group.command()
@_of_a_table
def include(feed_name: str, table: str, reason: str, server_url: str, output: str) -> None:
    """Have an excluded table again: it is read, what differs is delivered, deletes included, and its changes follow."""
    _ask(feed_name, table, "include", reason, server_url, output)


def table_line(table: dict[str, Any]) -> str:
    """Return one line about a table that is in doubt."""
    line = f"{table['name']}: {table['state']} since {time_of(table.get('since_ms'))}: {_reason(table)}"
    read = table.get("reread")
    if read:
        line += f"; {read['parts_done']:,} of {read['parts']:,} parts, {read['rows']:,} rows"
    if table.get("next_attempt_ms"):
        line += f"; next attempt {time_of(table['next_attempt_ms'])}"
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


def _ask(feed_name: str, table: str, what: str, reason: str, server_url: str, output: str, done: str = "will be read again") -> None:
    with ServerClient(server_url) as client:
        found = client.ask_for_table(feed_name, table, what, reason)
    show_result(found, output, f"table {found['name']} {done}")


def _reason(table: dict[str, Any]) -> str:
    return (f"[{table['code']}] " if table.get("code") else "") + str(table.get("reason", ""))
