"""The verb ``logs``: the last lines of a server's log, of all of it or of one feed, and those that come. Runs anywhere."""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any

import click

from penstock.cli.options import output_option, server_option
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_error, show_result, text_of
from penstock.model.clock import SystemClock
from penstock.model.errors import ErrorKind, PenstockError


@click.command()
@click.argument("feed", required=False)
@click.option("--lines", type=click.IntRange(1, 5_000), default=200, show_default=True, help="How many of the newest to begin with.")
@click.option("--level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True, help="At least.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until interrupted.")
@click.option(
    "--interval", "interval_s", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between looks of --follow."
)
@server_option
@output_option
def logs(feed: str | None, lines: int, level: str, follow: bool, interval_s: float, server_url: str, output: str) -> None:
    """Show the last lines of a server's log, or those about one FEED.

    A server keeps its newest 5,000 lines in memory, as they went to its stderr. What executors on other machines write is not among
    them. With json or yaml and --follow each line is a document of its own.

    \b
    Examples:
      penstock logs
      penstock logs orders --level warning
      penstock logs --follow --output json
    """  # noqa: D301
    clock, never, after = SystemClock(), threading.Event(), 0
    with ServerClient(server_url) as client:
        if not follow:
            entries = client.read_log(after, feed or "", level, lines)["entries"]
            _show(entries, output) if output == "table" else show_result(entries, output)
            if not entries:
                say(f"no lines{f' about feed {feed}' if feed else ''} at level {level} or above", err=True)
            return
        while True:
            try:
                found = client.read_log(after, feed or "", level, lines)
                if found["last"] < after:
                    # Another process: its numbers begin again.
                    after = 0
                    continue
            except PenstockError as error:
                if error.kind is not ErrorKind.TRANSIENT:
                    raise
                show_error(error, output)
            else:
                after, lines = found["last"], 5_000
                _show(found["entries"], output)
            clock.wait(never, interval_s)


def _show(entries: list[dict[str, Any]], output: str) -> None:
    for entry in entries:
        if output != "table":
            click.echo(text_of(entry, output, one_line=True))
            continue
        at = dt.datetime.fromtimestamp(entry["at_ms"] / 1000, tz=dt.UTC).isoformat(timespec="milliseconds")
        fields = "".join(f" {key}={value}" for key, value in entry["fields"].items())
        say(f"{at} {entry['level']} {entry['logger']}: {entry['message']}{fields}".replace("\n", "\\n"))
