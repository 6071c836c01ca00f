"""The verb ``sql``: statements from the line, a file, a pipe or a shell, executed one after the other by a server.

A script is read whole before its first statement is executed, so one with a mistake in it changes nothing; it ends at the first statement
that fails. Secrets that texts in quotes name (``{env:NAME}``) are filled in here. Runs anywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from penstock.cli.given import resolve
from penstock.cli.options import output_option, server_option, wait_option
from penstock.cli.server_client import ServerClient, await_server
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_result
from penstock.cli.shown.tables import show_facts, show_table, time_of
from penstock.model.errors import PenstockError
from penstock.server.sql.parser import parse
from penstock.server.sql.tokens import TokenKind, statements_of, tokens_of

_RIGHT = ("rows", "files", "bytes", "lag_s", "checkpoint_ts", "missing", "unexpected", "different")


@click.command()
@click.option("-e", "texts", multiple=True, metavar="TEXT", help="Statements to execute. Repeat for more.")
@click.option("-f", "file", type=click.Path(path_type=Path, dir_okay=False), help="A file of statements; - is standard input.")
@wait_option
@server_option
@output_option
def sql(texts: tuple[str, ...], file: Path | None, wait_s: float | None, server_url: str, output: str) -> None:
    """Create, show and change feeds by SQL: in a shell, from the line, a file or a pipe.

    \b
    Examples:
      penstock sql
      penstock sql -e "SHOW CHANGEFEEDS"
      penstock sql -e "CREATE CHANGEFEED orders FOR TABLE shop.* INTO 'file:///tmp/orders' WITH (flush-interval = 2s)"
      penstock sql -f feeds.sql --output json
    """  # noqa: D301
    scripts = [*texts, *([_read(file)] if file is not None else [])]
    if not scripts and sys.stdin.isatty():
        # Only a terminal needs what a shell imports.
        from penstock.cli.feeds.sql_shell import Shell

        await_server(server_url, wait_s)
        with ServerClient(server_url) as client:
            Shell(client, output).run()
        return
    checked = [(text, statement) for script in scripts or [sys.stdin.read()] for text, statement in read_script(script)]
    await_server(server_url, wait_s)
    with ServerClient(server_url) as client:
        for text, reads in checked:
            show(client.execute(with_secrets(text), reads=reads), output)


def read_script(script: str) -> list[tuple[str, bool]]:
    """Return the statements of a script, each with whether it only reads; raise ``SQL_INVALID`` with the place in the script."""
    found = []
    for at, text in statements_of(script):
        # Behind blanks of the same shape, so that a place in the statement is one in the script.
        before = "".join(c if c == "\n" else " " for c in script[:at])
        found.append((text, parse(before + text).reads))
    return found


def with_secrets(text: str) -> str:
    """Return a statement with the secrets that its texts in quotes name."""
    shown, last = "", 0
    for token in tokens_of(text):
        if token.kind is TokenKind.TEXT and (plain := resolve(token.value)) != token.value:
            shown, last = shown + text[last : token.at] + "'" + plain.replace("'", "''") + "'", token.end
    return shown + text[last:]


def show(outcome: dict[str, Any], output: str) -> None:
    """Write what came of a statement."""
    if output != "table":
        show_result(outcome["answer"], output)
        return
    columns, rows = outcome["columns"], outcome["rows"]
    if columns == ["property", "value"]:
        show_facts([(_cell("", key), _cell("", value)) for key, value in rows])
    elif rows:
        show_table([c.removesuffix("_ms").upper() for c in columns], _cells(columns, rows), [c.upper() for c in _RIGHT])
    else:
        say("none")


def _cells(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    return [[_cell(column, value) for column, value in zip(columns, row, strict=True)] for row in rows]


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    return time_of(value) if column.endswith("_ms") else str(value)


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise PenstockError("CONFIG_INVALID", f"{file}: {why}") from None
