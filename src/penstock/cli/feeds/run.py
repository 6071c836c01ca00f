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
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.foreground import Foreground
from penstock.cli.given import URI, read_tree
from penstock.cli.shown.run_view import RunView
from penstock.library.one_feed import DEFAULT_NAME, divide, ensure_feed, is_caught_up, members_of
from penstock.library.server_client import ServerClient
from penstock.model.errors import PenstockError
from penstock.settings.loader import load

if TYPE_CHECKING:
    from penstock.config.server_tree import ServerConfig
    from penstock.config.tree import FeedConfig

POLL_S = 0.5
_T = TypeVar("_T")
_ANY_SOURCE = "dataserver://127.0.0.1:1"
_OPTIONS = {
    "source: is required": "source: is required (--source)",
    "tables: is required": "tables: is required (--table)",
    "sink: is required": "sink: is required (--sink)",
}
"""How a user of the command line knows what is missing."""
EXIT_INCOMPLETE = 3
"""Caught up, but not with every table."""


@click.command()
@click.argument("config_file", required=False, type=click.Path(path_type=Path, dir_okay=False), metavar="[FILE.toml]")
@click.option(
    "--source", metavar="URI", type=URI, help="mysql://user:password@host:3306, postgresql://…/database or dataserver://host:port."
)
@click.option("--table", "tables", multiple=True, metavar="PATTERN", help="database.table; * and ? match. Repeat for more.")
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    metavar="URI",
    type=URI,
    help="file:///dir, s3://bucket/prefix, kafka://host/prefix, https+json://host/path, console: … Repeat for several targets.",
)
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
    sinks: tuple[str, ...],
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
    where a table is left that could not be read, or a target of several that did not take everything. Several targets have their own
    progress each; one that is down does not hold the others.

    \b
    Examples:
      penstock run --source mysql://cdc:{env:DB_PASSWORD}@db:3306 --table 'shop.*' --sink s3://lake/shop
      penstock run --source postgresql://cdc@db/shop --table 'public.*' --sink file:///tmp/shop --until-caught-up
      penstock run --source mysql://cdc@db:3306 --table 'shop.*' --sink console:
      penstock run --source postgresql://cdc@db/shop --table 'public.*' --sink 'kafka://broker/shop?protocol=debezium' --sink console:
      penstock run shop.toml --set sink.protocol=canal-json
    """  # noqa: D301
    given: dict[str, Any] = {
        "name": name,
        "source": source,
        "tables": list(tables) or None,
        "sink": {"uri": sinks[0]} if len(sinks) == 1 else None,
        "sinks": list(sinks) if len(sinks) > 1 else None,
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
    feed_tree, feeds, config = _read(read_tree(config_file, assignments, given))
    from penstock.cli.shown.first_run import prepare_first_run
    from penstock.feed.spark.java import ensure_java
    from penstock.server.process import ServerProcess
    from penstock.server.start_checks import check_start

    view = RunView()
    check_start(config, feeds, lambda what: view.step(f"checking {what}"))
    ensure_java()
    prepare_first_run()
    foreground, process = Foreground(), ServerProcess(config)
    with contextlib.ExitStack() as parts:
        parts.enter_context(foreground.running(process, view.step))
        client = parts.enter_context(ServerClient(process.url, token=process.token))
        # Who runs the server asks for the feed, so it may name what a caller of the API may not.
        feed = ensure_feed(client, feed_tree, process.create_feed)
        targets = ", ".join(member["config"]["sink"]["uri"] for member in members_of(feed))
        view.step(f"feed {feed['name']}: {len(feed['tables'])} tables -> {targets}  ({process.url})")
        until_ts = process.settled_ts() if until_caught_up else None
        caught_up, without = follow(client, feed["name"], view, foreground.stop, until_ts, process.check_spark)
        view.end(caught_up, without)
    if without:
        raise click.exceptions.Exit(EXIT_INCOMPLETE)


def _read(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[FeedConfig], ServerConfig]:
    """Return the tree of the feed, its configuration or those of its group, and the server's; raise with everything that is wrong."""
    # Imported here, because Spark and Arrow take their time and `--help` needs neither.
    from penstock.config.feed_group import member_trees
    from penstock.config.server_tree import ServerConfig
    from penstock.config.tree import load_feed_config

    problems: list[PenstockError] = []

    def tried(what: Callable[[], _T]) -> _T | None:
        try:
            return what()
        except PenstockError as error:
            problems.append(error)
            return None

    # What is missing of one part is told with what is wrong with the other.
    parts = tried(lambda: divide(tree)) or divide({**tree, "server": _table(tree), "source": _ANY_SOURCE})
    feeds = [tried(lambda m=member: load_feed_config(m)) for member in tried(lambda: member_trees(parts[0])) or ()]  # type: ignore[misc]
    config = tried(lambda: load(ServerConfig, parts[1], "server"))
    if problems:
        lines = [_OPTIONS.get(line, line) for error in problems for line in error.detail.splitlines()]
        raise PenstockError(problems[0].code if len(problems) == 1 else "CONFIG_INVALID", "\n".join(dict.fromkeys(lines)), problems[0].hint)
    assert config is not None
    return parts[0], [feed for feed in feeds if feed is not None], config


def _table(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server's part without its source, whatever it is."""
    server = tree.get("server")
    return {key: value for key, value in server.items() if key != "source"} if isinstance(server, Mapping) else {}


def follow(
    client: ServerClient,
    name: str,
    view: RunView,
    stop: threading.Event,
    until_ts: int | None,
    check: Callable[[], None] = lambda: None,
) -> tuple[bool, list[str]]:
    """Show progress until stopped or, where a ts is given, until the checkpoint is there and no table is about to be read again.

    Return whether it is, and the tables that the checkpoint does not cover then. ``check`` raises where nothing can go on. A feed of a
    group that has failed keeps the others from nothing; where all have, the first says why.
    """
    while True:
        check()
        feeds = members_of(client.show_feed(name))
        failed = [feed for feed in feeds if feed["state"] == "failed" and feed["error"]]
        if len(failed) == len(feeds):
            error = failed[0]["error"]
            raise PenstockError(error["code"], error["message"], error["hint"])
        view.progress(feeds)
        if until_ts is not None and all(is_caught_up(feed, until_ts) for feed in feeds if feed not in failed):
            without = [f"{table['name']} ({table['state']})" for feed in feeds for table in feed["uncovered"] if feed not in failed]
            return True, list(dict.fromkeys(without)) + [f"{feed['target']} ([{feed['error']['code']}])" for feed in failed]
        if stop.wait(POLL_S):
            return False, []
