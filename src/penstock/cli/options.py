"""Options that several verbs take, in the same words everywhere. Runs anywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from penstock.cli.server_client import DEFAULT_URL, STARTING_S_MAX, UNKNOWN_S_MAX
from penstock.cli.shown.output import FORMATS

server_option = click.option(
    "--server",
    "server_url",
    default=DEFAULT_URL,
    show_default=True,
    envvar="PENSTOCK_SERVER",
    callback=lambda _ctx, _param, value: value if "://" in value else f"http://{value}",
    help="The server's address; host:port will do.",
)
output_option = click.option(
    "--output",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="json and yaml are a stable contract for scripts, errors on stderr included.",
)
wait_option = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help=f"How long to wait for a server that does not listen yet.  [default: {UNKNOWN_S_MAX:g}; {STARTING_S_MAX:g} where it starts here]",
)
reason_option = click.option("--reason", default="", metavar="TEXT", help="Why: it stands in the feed's history.")


def watch_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb that shows a state ``watch_s``: how often it is shown again, None where once is enough."""

    @functools.wraps(command)
    def told(watch: bool, interval_s: float, **given: Any) -> Any:
        return command(watch_s=interval_s if watch else None, **given)

    # Two options, because one whose value may be left out would take the name of a feed for it.
    interval = click.option(
        "--interval", "interval_s", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds of --watch."
    )
    return click.option("--watch", is_flag=True, help="Show it again and again, until interrupted.")(interval(told))
