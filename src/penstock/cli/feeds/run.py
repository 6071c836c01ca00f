"""The verb ``run``: one command from a database to a target.

Starts a whole server in this process on embedded defaults, creates the feed where it is not there yet, and shows its progress until it is
stopped or, if asked, until everything that was committed before the start is in the target. Stopped and started again, it goes on where
it was: its state is in the data directory. Runs in the server.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from penstock.cli.foreground import Foreground
from penstock.cli.given import URI, read_tree
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.run_view import RunView
from penstock.model.errors import PenstockError
from penstock.settings.loader import load

POLL_S = 0.5
DEFAULT_NAME = "run"
EXIT_INCOMPLETE = 3
"""Caught up, but not with every table."""


@click.command()
@click.argument("config_file", required=False, type=click.Path(path_type=Path, dir_okay=False), metavar="[FILE.toml]")
@click.option(
    "--source", metavar="URI", type=URI, help="mysql://user:password@host:3306, postgresql://…/database or dataserver://host:port."
)
@click.option("--table", "tables", multiple=True, metavar="PATTERN", help="database.table; * and ? match. Repeat for more.")
@click.option("--sink", metavar="URI", type=URI, help="file:///dir, s3://bucket/prefix, https+json://host/path, console: …")
@click.option("--name", help=f"The feed's name, under which it goes on next time.  [default: {DEFAULT_NAME}]")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where progress and the event store live.  [default: penstock-data]")
@click.option("--http-port", type=int, help="Where the API and the metrics answer; 0 takes any free port.  [default: 0]")
@click.option("--spark-master", metavar="MASTER", help="local[*], local-cluster[n,cores,MiB] or spark://host:port.  [default: local[*]]")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting, as in --set flush-interval=10s. Repeat.")
@click.option("--until-caught-up", is_flag=True, help="End once everything that was committed before the start is in the target.")
def run(
    config_file: Path | None,
    source: str | None,
    tables: tuple[str, ...],
    sink: str | None,
    name: str | None,
    data_dir: Path | None,
    http_port: int | None,
    spark_master: str | None,
    assignments: tuple[str, ...],
    until_caught_up: bool,
) -> None:
    """Carry the tables of a database to files or another target, first as they are, then every change.

    Everything runs in this process. Ctrl-C stops it; the same command goes on where it stopped. In a file the keys are those of a
    feed, and those of a server stand under [server]; options on the line win over it. With --until-caught-up it ends with exit code 3
    where a table is left that could not be read.

    \b
    Examples:
      penstock run --source mysql://cdc:{env:DB_PASSWORD}@db:3306 --table 'shop.*' --sink s3://lake/shop
      penstock run --source postgresql://cdc@db/shop --table 'public.*' --sink file:///tmp/shop --until-caught-up
      penstock run --source mysql://cdc@db:3306 --table 'shop.*' --sink console:
      penstock run shop.toml --set sink.protocol=canal-json
    """  # noqa: D301
    given: dict[str, Any] = {
        "name": name,
        "source": source,
        "tables": list(tables) or None,
        "sink": {"uri": sink} if sink else None,
        "server": {
            key: value
            for key, value in (
                ("data-dir", data_dir),
                ("http-port", http_port),
                ("spark", {"master": spark_master} if spark_master else None),
            )
            if value is not None
        },
    }
    feed_tree, server_tree = divide(read_tree(config_file, assignments, given))
    # Imported here, because Spark and Arrow take their time and `--help` and bad options need neither.
    from penstock.config.server_tree import ServerConfig
    from penstock.config.tree import load_feed_config

    load_feed_config(feed_tree)
    config = load(ServerConfig, server_tree, "server")
    from penstock.server.process import ServerProcess

    foreground, process = Foreground(), ServerProcess(config)
    view = RunView()
    view.step("starting Spark, the log service and the event store")
    with contextlib.ExitStack() as parts:
        parts.enter_context(foreground.running(process))
        client = parts.enter_context(ServerClient(process.url, token=process.token))
        # Who runs the server asks for the feed, so it may name what a caller of the API may not.
        feed = ensure_feed(client, feed_tree, process.create_feed)
        view.step(f"feed {feed['name']}: {len(feed['tables'])} tables -> {feed['config']['sink']['uri']}  ({process.url})")
        until_ts = process.settled_ts() if until_caught_up else None
        caught_up, without = follow(client, feed["name"], view, foreground.stop, until_ts, process.check_spark)
        view.end(caught_up, without)
    if without:
        raise click.exceptions.Exit(EXIT_INCOMPLETE)


def divide(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the feed's and the server's part of one tree; the source belongs to both."""
    if not tree.get("source"):
        raise PenstockError("CONFIG_INVALID", "source: is required", "Name it with --source, as mysql://user@host:3306.")
    feed = {"name": DEFAULT_NAME} | {key: value for key, value in tree.items() if key != "server"}
    server = tree.get("server", {})
    if not isinstance(server, Mapping):
        raise PenstockError("CONFIG_INVALID", "server: must be a table")
    if "source" in server:
        raise PenstockError("CONFIG_INVALID", "server.source: the source stands at the top, without [server]")
    return feed, {"http-port": 0} | dict(server) | {"source": tree["source"]}


def ensure_feed(client: ServerClient, tree: Mapping[str, Any], create: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the feed, created if it is not there; raise where one of that name does something else."""
    name = str(tree["name"])
    try:
        found = client.show_feed(name)
    except PenstockError as error:
        if error.code != "FEED_UNKNOWN":
            raise
        create(dict(tree))
        return client.show_feed(name)
    from penstock.config.tree import dump_feed_config, load_feed_config
    from penstock.settings.masking import mask_tree

    wanted = mask_tree(dump_feed_config(load_feed_config(tree)))
    other = sorted(key for key in wanted.keys() | found["config"].keys() if wanted.get(key) != found["config"].get(key))
    if other:
        raise PenstockError(
            "FEED_EXISTS",
            f"feed {name} exists in this data directory with another {', '.join(other)}",
            "Run it as it was, or choose another --name (and an empty sink), or another --data-dir.",
        )
    return found


def follow(
    client: ServerClient,
    name: str,
    view: RunView,
    stop: threading.Event,
    until_ts: int | None,
    check: Callable[[], None] = lambda: None,
) -> tuple[bool, list[str]]:
    """Show progress until stopped or, where a ts is given, until the checkpoint is there and no table is about to be read again.

    Return whether it is, and the tables that the checkpoint does not cover then. ``check`` raises where nothing can go on.
    """
    while True:
        check()
        feed = client.show_feed(name)
        if feed["state"] == "failed" and feed["error"]:
            raise PenstockError(feed["error"]["code"], feed["error"]["message"], feed["error"]["hint"])
        view.progress(feed)
        if until_ts is not None and is_caught_up(feed, until_ts):
            return True, [f"{table['name']} ({table['state']})" for table in feed["uncovered"]]
        if stop.wait(POLL_S):
            return False, []


def is_caught_up(feed: Mapping[str, Any], until_ts: int) -> bool:
    """Return whether everything up to a ts is delivered, with corrections of tables in doubt and the state of those that came.

    A table that is in quarantine, or that waits for an operator, is not waited for.
    """
    settled_ts = max((table.get("settled_ts", 0) for table in feed["tables"]), default=0)
    waited_for = any(table["state"] in {"doubtful", "rereading"} and table["settling"] for table in feed["tables"])
    # The checkpoint does not wait for a table whose rows are delivered as a whole: one that was renamed into the feed, or began again.
    coming = any(table.get("progress", {}).get("joining") and table["state"] != "quarantined" for table in feed["tables"])
    return bool(feed["checkpoint_ts"] >= max(until_ts, settled_ts)) and not waited_for and not coming
