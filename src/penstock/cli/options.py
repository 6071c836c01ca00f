"""Options that several verbs take, in the same words everywhere. Runs anywhere."""

from __future__ import annotations

import click

from penstock.cli.server_client import DEFAULT_URL

server_option = click.option(
    "--server", "server_url", default=DEFAULT_URL, show_default=True, envvar="PENSTOCK_SERVER", help="The server's address."
)
output_option = click.option(
    "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="json is a stable contract for scripts."
)
