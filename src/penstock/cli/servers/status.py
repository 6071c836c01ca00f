"""The verb ``status``: a server and its feeds in one glance.

Exit code 0 means that everything works; 1 that a component or a feed does not; 75 that no server answers. Runs anywhere.
"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.feeds.feed import show_feeds
from penstock.cli.options import output_option, server_option, watch_option
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.line import say
from penstock.cli.shown.output import watched
from penstock.cli.shown.tables import show_facts

EXIT_NOT_WELL = 1


@click.command()
@watch_option
@server_option
@output_option
def status(server_url: str, output: str, watch_s: float | None) -> int:
    """Show a server and its feeds: state, lag, what is wrong and what to do about it.

    Exits 0 if everything works, 1 if a component or a feed does not, 75 if no server answers.

    \b
    Examples:
      penstock status
      penstock status --watch
      penstock status --output json || alert
    """  # noqa: D301
    with ServerClient(server_url) as client:
        found = watched(lambda: _look(client), _show, output, watch_s)
    return 0 if found["status"] == "ok" else EXIT_NOT_WELL


def _look(client: ServerClient) -> dict[str, Any]:
    health, feeds = client.health(), client.list_feeds()
    failed = [feed["name"] for feed in feeds if feed["state"] == "failed"]
    well = health["status"] == "ok" and not failed
    return {
        "status": "ok" if well else "failing",
        "server": {"url": client.url, "version": health["version"], "components": health["components"]},
        "feeds": feeds,
        "failed": failed,
    }


def _show(found: dict[str, Any]) -> None:
    server, feeds = found["server"], found["feeds"]
    states: dict[str, int] = {}
    for feed in feeds:
        states[feed["state"]] = states.get(feed["state"], 0) + 1
    counted = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
    show_facts([("server", f"{server['url']} ({server['version']})"), ("status", found["status"]), ("feeds", counted or "none")])
    for name, component in server["components"].items():
        if not component["ok"]:
            say(f"{name}: {component['detail']}" + (f" ({component['hint']})" if component["hint"] else ""))
    if feeds:
        say("")
        show_feeds(feeds)
    for feed in feeds:
        told = feed["error"] or feed.get("problem")
        if told:
            text = f"[{told['code']}] {told['message']}" if feed["error"] else f"{told['stage']}: {told['text']}"
            say(f"\n{feed['name']}: {text}\n  hint: {told['hint']}")
