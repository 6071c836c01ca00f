"""The verb ``feed``: create, list and show feeds at a server.

What changes them is in ``feed_control.py``, their tables in ``feed_table.py``. Runs anywhere.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from penstock.cli.feeds.feed_control import COMMANDS
from penstock.cli.feeds.feed_letters import letters_group
from penstock.cli.feeds.feed_table import table_group, table_line, verification_rows
from penstock.cli.given import URI, filter_options, read_rules, read_tree
from penstock.cli.options import output_option, server_option, wait_option, watch_option
from penstock.cli.server_client import ServerClient, await_server
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_result, watched
from penstock.cli.shown.tables import show_facts, show_table, time_of
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError


@click.group()
def feed() -> None:
    """Create, list, show, pause, resume and remove feeds.

    \b
    A feed delivers every change of its tables to a target:
      penstock feed create orders --table shop.orders --table 'shop.item*' --sink file:///tmp/orders
      penstock feed create lake --table 'shop.*' --sink 's3://bucket/lake?region=eu-west-1' --set flush-interval=10s
      penstock feed list --output json
      penstock feed table list orders
    """  # noqa: D301


feed.add_command(table_group)
feed.add_command(letters_group)
for _command in COMMANDS:
    feed.add_command(_command)


@feed.command()
@click.argument("name")
@click.option("--table", "tables", multiple=True, metavar="PATTERN", help="database.table; * and ? match. Repeat for more.")
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    metavar="URI",
    type=URI,
    help="Repeat for several targets: a group. file:///dir, s3://bucket/prefix, https+json://host/path, console: …",
)
@click.option("--source", metavar="NAME", type=URI, help="A source of the server with this name.  [default: the server's own]")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), help="A TOML file; options on the line win over it."
)
@click.option("--until-ts", type=click.IntRange(min=1), help="Deliver everything up to this ts, and then be finished.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting, as in --set sink.csv.delimiter=';'. Repeat.")
@filter_options
@wait_option
@server_option
@output_option
def create(
    name: str,
    tables: tuple[str, ...],
    wheres: tuple[str, ...],
    selects: tuple[str, ...],
    sinks: tuple[str, ...],
    source: str | None,
    config_file: Path | None,
    until_ts: int | None,
    assignments: tuple[str, ...],
    wait_s: float | None,
    server_url: str,
    output: str,
) -> None:
    """Create a feed and start it. Everything is checked first; on any error nothing is created.

    \b
    Examples:
      penstock feed create orders --table 'shop.*' --sink file:///tmp/orders
      penstock feed create people --source crm --table 'crm.*' --sink s3://lake/people
      penstock feed create orders --config orders.toml --set spans-per-table=4
      penstock feed create both --table 'shop.*' --sink file:///tmp/both --sink https+json://hooks.example.com/shop
      penstock feed create large --table 'shop.*' --where 'shop.orders=amount > 100' --sink file:///tmp/large
    """  # noqa: D301
    several = list(sinks) if len(sinks) > 1 else None
    one = {"uri": sinks[0]} if len(sinks) == 1 else None
    given: dict[str, Any] = {"name": name, "tables": list(tables) or None, "sink": one, "sinks": several, "source": source or None}
    tree = read_tree(config_file, assignments, given | {"until-ts": until_ts, "filter": read_rules(where=wheres, select=selects)})
    _require_json(tree)
    await_server(server_url, wait_s)
    with ServerClient(server_url) as client:
        created = client.create_feed(tree)
    if output != "table":
        show_result(created, output)
        return
    names = ", ".join(table["name"] for table in created["tables"])
    say(f"feed {created['name']} created: {len(created['tables'])} tables ({names})")


@feed.command("list")
@watch_option
@server_option
@output_option
def list_feeds(server_url: str, output: str, watch_s: float | None) -> None:
    """List the feeds with their state and progress."""
    with ServerClient(server_url) as client:
        watched(client.list_feeds, show_feeds, output, watch_s)


def show_feeds(feeds: Sequence[dict[str, Any]]) -> None:
    """Write a line for each feed."""
    if not feeds:
        click.echo("no feeds; see `penstock feed create --help`")
        return
    rows = ((f["name"], f["state"], f"{f['rows']:,}", f"{f['files']:,}", _lag(f["lag_s"]), _trouble(f)) for f in feeds)
    show_table(("NAME", "STATE", "ROWS", "FILES", "LAG", "ERROR"), rows, right=("ROWS", "FILES", "LAG"))


@feed.command()
@click.argument("name")
@watch_option
@server_option
@output_option
def show(name: str, server_url: str, output: str, watch_s: float | None) -> None:
    """Show one feed: state, progress, tables, configuration. Credentials are masked."""
    with ServerClient(server_url) as client:
        watched(lambda: client.show_feed(name), _show, output, watch_s)


def _show(found: dict[str, Any]) -> None:
    for at, one in enumerate(found.get("members", [found])):
        click.echo("" if at else None, nl=bool(at))
        show_facts(_rows(one))


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("name", found["name"]),
        ("state", found["state"]),
        ("tables", ", ".join(table["name"] for table in found["tables"])),
        ("source", _source(found)),
        ("sink", f"{found['config']['sink']['uri']} ({found['kind']})"),
        ("checkpoint", _checkpoint(found)),
        ("lag", _lag(found["lag_s"])),
        ("delivered", f"{found['rows']:,} rows, {found['bytes']:,} bytes, {_files(found)}{found['windows']:,} windows"),
        ("owner", f"{found['owner'] or 'none'} (epoch {found['epoch']})"),
    ]
    if found.get("snapshot"):
        read = found["snapshot"]
        rows.append(("snapshot", f"reading: {read['parts_done']:,} of {read['parts']:,} parts, {read['rows']:,} rows"))
    if found["state"] != "running" and found.get("history"):
        rows.append(("history", _kept(found["history"])))
    settings = {key: value for key, value in found["config"].items() if key not in {"name", "tables", "source"}}
    rows.append(("config", json.dumps(settings)))
    rows += [("table", table_line(table)) for table in found["tables"] if table["state"] != "ok"]
    rows += verification_rows(found.get("verification"))
    rows += [("not captured", problem) for problem in found["capture_problems"]]
    problem = found.get("problem")
    if problem and problem["stage"] not in {"failed", "retrying"}:
        rows += [("problem", f"{problem['stage']}: {problem['text']}"), ("hint", problem["hint"])]
    if found["error"]:
        rows += [("error", f"[{found['error']['code']}] {found['error']['message']}"), ("hint", found["error"]["hint"])]
    if found.get("retry"):
        rows.append(("retrying", _retrying(found["retry"])))
    elif found["state"] in {"failed", "paused"} and (found["error"] or {}).get("code") != "META_BEHIND_TARGET":
        rows.append(("then", f"penstock feed resume {found['name']}"))
    return rows


def _files(found: dict[str, Any]) -> str:
    """Return how many files were delivered; nothing of a target that has none."""
    return f"{found['files']:,} files, " if found["files"] or found["kind"] in {"storage", "connection"} else ""


def _kept(history: dict[str, Any]) -> str:
    until = time_of(history["kept_until_ms"])
    left = dt.timedelta(seconds=round(history["remaining_s"]))
    return f"kept until {until}, {left} left" if left else f"was kept until {until}: on-stale-read says what happens then"


def _source(found: dict[str, Any]) -> str:
    chosen = found["config"].get("source") or ""
    return f"{chosen} ({found['source']})" if chosen and "://" not in chosen else str(found["source"])


def _retrying(retry: dict[str, int]) -> str:
    next_s = (retry["next_attempt_ms"] - SystemClock().now_ms()) / 1000
    soon = f"in {next_s:.0f} s" if next_s >= 0.5 else "now"
    return f"since {time_of(retry['since_ms'])}, failures: {retry['failures']}, next attempt {soon}"


def _checkpoint(found: dict[str, Any]) -> str:
    without = ", ".join(f"{table['name']} ({table['state']})" for table in found["uncovered"])
    line = f"{found['checkpoint_ts']} ({found['checkpoint_time'] or 'nothing delivered yet'})"
    return f"{line}, not covering {without}" if without else line


def _trouble(one: dict[str, Any]) -> str:
    return str(one["error"]["code"] if one["error"] else one["problem"]["stage"] if one.get("problem") else "")


def _lag(lag_s: float | None) -> str:
    return "-" if lag_s is None else f"{lag_s:.1f} s"


def _require_json(tree: dict[str, Any]) -> None:
    """Refuse what TOML has and JSON has not: dates and times."""
    try:
        json.dumps(tree, allow_nan=False)
    except (TypeError, ValueError):
        raise PenstockError("CONFIG_INVALID", "\n".join(_dates(tree, "")) or "numbers must be finite") from None


def _dates(value: Any, path: str) -> list[str]:
    if isinstance(value, dict):
        return [line for key, item in value.items() for line in _dates(item, f"{path}.{key}" if path else key)]
    if isinstance(value, list):
        return [line for at, item in enumerate(value) for line in _dates(item, f"{path}[{at}]")]
    return [f"{path}: must not be a date or time"] if isinstance(value, dt.date | dt.time) else []
