"""The verb ``server``: one server process in the foreground, until SIGTERM or SIGINT. Runs in the server."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import click

from penstock.config.loader import read_assignments, read_toml
from penstock.settings.loader import load, merge

_LOOK_S = 0.5


@click.command()
@click.option("--source", metavar="URI", help="The upstream to capture, as dataserver://host:port.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Where the meta database and the event store live.  [default: penstock-data]"
)
@click.option("--http-host", help="Where the API listens.  [default: 127.0.0.1]")
@click.option("--http-port", type=int, help="0 takes any free port.  [default: 8300]")
@click.option("--flight-port", type=int, help="Where executors read changes; 0 takes any free port.  [default: 0]")
@click.option("--spark-master", metavar="MASTER", help="local[*], local-cluster[n,cores,MiB] or spark://host:port.  [default: local[*]]")
@click.option("--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), help="A TOML file; options win over it.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting, as in --set supervisor.lease=30s. Repeat.")
def server(
    source: str | None,
    data_dir: Path | None,
    http_host: str | None,
    http_port: int | None,
    flight_port: int | None,
    spark_master: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Run a server: capture a source into the event store and run feeds on Spark.

    Its state is in the data directory: a server that is started there again goes on where the last one stopped. Feeds that had failed are
    tried again then.

    \b
    Examples:
      penstock server --source dataserver://127.0.0.1:20160
      penstock server --config server.toml --http-port 9000
    """  # noqa: D301
    options: dict[str, Any] = {
        "source": source,
        "data-dir": data_dir,
        "http-host": http_host,
        "http-port": http_port,
        "flight-port": flight_port,
        "spark": {"master": spark_master} if spark_master else None,
    }
    given = {key: value for key, value in options.items() if value is not None}
    # Imported here, because Spark and Arrow take their time and `--help` and bad options need neither.
    from penstock.config.server_tree import ServerConfig

    tree = merge(read_toml(config_file) if config_file else {}, read_assignments(assignments))
    config = load(ServerConfig, merge(tree, given))
    from penstock.server.process import ServerProcess

    logger = logging.getLogger("penstock")
    if logger.getEffectiveLevel() > logging.INFO:
        # What a server does is its output; the other verbs have results instead.
        logger.setLevel(logging.INFO)
    stop = threading.Event()

    def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask_to_stop)
    with ServerProcess(config) as process:
        click.echo(f"penstock server: {process.url}  (Ctrl-C stops it; the feeds go on when it is started again)")
        while not stop.wait(_LOOK_S):
            process.check_spark()
        click.echo("stopping")
