"""Options that several verbs take, in the same words everywhere. Runs anywhere."""

from __future__ import annotations

import click

from penstock.cli.server_client import DEFAULT_URL, STARTING_S_MAX, UNKNOWN_S_MAX

server_option = click.option(
    "--server", "server_url", default=DEFAULT_URL, show_default=True, envvar="PENSTOCK_SERVER", help="The server's address."
)
output_option = click.option(
    "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="json is a stable contract for scripts."
)
wait_option = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help=f"How long to wait for a server that does not listen yet.  [default: {UNKNOWN_S_MAX:g}; {STARTING_S_MAX:g} where it starts here]",
)
reason_option = click.option("--reason", default="", metavar="TEXT", help="Why: it stands in the feed's history.")
