"""The verb ``token``: who may call a server, and for what. Runs anywhere."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.server_client import DEFAULT_URL, ServerClient

_server_option = click.option(
    "--server", "server_url", default=DEFAULT_URL, show_default=True, envvar="PENSTOCK_SERVER", help="The server's address."
)
_output_option = click.option(
    "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="json is a stable contract for scripts."
)


@click.group()
def token() -> None:
    """Make, list and revoke tokens for the API of a server.

    The user that runs the server needs none. Others give theirs in PENSTOCK_TOKEN, or its file in PENSTOCK_TOKEN_FILE. A token may
    read; or operate, which is everything about feeds; or is an admin's, who makes tokens too.

    \b
    Examples:
      penstock token create dashboard
      penstock token create deploy --role operate --expires 30d
      penstock token revoke 3fa91c02
    """  # noqa: D301


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(["read", "operate", "admin"]), default="read", show_default=True, help="What the token allows.")
@click.option("--expires", metavar="DURATION", help="When it ends, as 12h or 30d.  [default: when it is revoked]")
@_server_option
@_output_option
def create(name: str, role: str, expires: str | None, server_url: str, output: str) -> None:
    """Make a token and print it: this once, and nowhere else."""
    with ServerClient(server_url) as client:
        made = client.create_token({"name": name, "role": role} | ({"expires": expires} if expires else {}))
    click.echo(json.dumps(made, indent=2) if output == "json" else made["token"])


@token.command("list")
@_server_option
@_output_option
def show_tokens(server_url: str, output: str) -> None:
    """List the tokens: id, name, role, until when. The tokens themselves are kept nowhere."""
    with ServerClient(server_url) as client:
        found = client.list_tokens()
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    shown = Table(box=None, pad_edge=False)
    for title in ("ID", "NAME", "ROLE", "CREATED", "EXPIRES", "STATE"):
        shown.add_column(title)
    for one in found:
        columns = (one["id"], one["name"], one["role"], _time(one["created_ms"]), _time(one["expires_ms"]) or "never", _state(one))
        shown.add_row(*(Text(column) for column in columns))
    Console().print(shown)


@token.command()
@click.argument("token_id", metavar="ID")
@_server_option
@_output_option
def revoke(token_id: str, server_url: str, output: str) -> None:
    """End a token at once and for good."""
    with ServerClient(server_url) as client:
        ended = client.revoke_token(token_id)
    click.echo(json.dumps(ended, indent=2) if output == "json" else f"token {ended['id']} ({ended['name']}) revoked")


def _state(one: dict[str, Any]) -> str:
    return "valid" if one["valid"] else "revoked" if one["revoked_ms"] else "expired"


def _time(ms: int | None) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, tz=dt.UTC).isoformat(timespec="seconds") if ms else ""
