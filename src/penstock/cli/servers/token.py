"""The verb ``token``: who may call a server, and for what. Runs anywhere."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.options import output_option, server_option
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.output import show_result
from penstock.cli.shown.tables import show_table, time_of


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
@server_option
@output_option
def create(name: str, role: str, expires: str | None, server_url: str, output: str) -> None:
    """Make a token and print it: this once, and nowhere else."""
    with ServerClient(server_url) as client:
        made = client.create_token({"name": name, "role": role} | ({"expires": expires} if expires else {}))
    show_result(made, output, made["token"])


@token.command("list")
@server_option
@output_option
def show_tokens(server_url: str, output: str) -> None:
    """List the tokens: id, name, role, until when. The tokens themselves are kept nowhere."""
    with ServerClient(server_url) as client:
        found = client.list_tokens()
    if output != "table":
        show_result(found, output)
        return
    rows = ((t["id"], t["name"], t["role"], time_of(t["created_ms"]), time_of(t["expires_ms"]) or "never", _state(t)) for t in found)
    show_table(("ID", "NAME", "ROLE", "CREATED", "EXPIRES", "STATE"), rows)


@token.command()
@click.argument("token_id", metavar="ID")
@server_option
@output_option
def revoke(token_id: str, server_url: str, output: str) -> None:
    """End a token at once and for good."""
    with ServerClient(server_url) as client:
        ended = client.revoke_token(token_id)
    show_result(ended, output, f"token {ended['id']} ({ended['name']}) revoked")


def _state(one: dict[str, Any]) -> str:
    return "valid" if one["valid"] else "revoked" if one["revoked_ms"] else "expired"
