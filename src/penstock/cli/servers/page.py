"""The verb ``page``: the address of a server's web page, with a token of its own that does not last. Runs anywhere."""

from __future__ import annotations

import click

from penstock.cli.options import output_option, server_option
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.output import show_result


@click.command()
@click.option("--role", type=click.Choice(["read", "operate"]), default="operate", show_default=True, help="What may be done on the page.")
@click.option("--expires", metavar="DURATION", default="12h", show_default=True, help="When the address stops to work.")
@server_option
@output_option
def page(role: str, expires: str, server_url: str, output: str) -> None:
    """Print an address that opens a server's web page, signed in.

    Its token stands behind the #, which browsers keep to themselves. Whoever has the address may do what its role allows: `penstock
    token list` shows the token as "page", and `penstock token revoke` ends it.

    \b
    Examples:
      penstock page
      penstock page --role read --expires 1h
    """  # noqa: D301
    with ServerClient(server_url) as client:
        made = client.create_token({"name": "page", "role": role, "expires": expires})
        address = f"{client.url}/#token={made['token']}"
    show_result({"url": address, "token_id": made["id"], "expires_ms": made["expires_ms"]}, output, address)
