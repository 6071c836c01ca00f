"""The verb ``server``: one server process in the foreground, until SIGTERM or SIGINT; and draining one that runs. Runs in the server."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import Any

import click

from penstock.cli.foreground import Foreground
from penstock.cli.given import URI, read_tree
from penstock.cli.options import output_option, server_option
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.logs import tell
from penstock.cli.shown.output import show_result
from penstock.config.known_servers import announce_start
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.settings.loader import load

_LOOK_S = 0.5


@click.group(invoke_without_command=True)
@click.option("--source", metavar="URI", type=URI, help="What feeds capture that name no source, as dataserver://host:port.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Where the meta database and the event store live.  [default: penstock-data]"
)
@click.option("--http-host", help="Where the API listens.  [default: 127.0.0.1]")
@click.option("--http-port", type=int, help="0 takes any free port.  [default: 8300]")
@click.option("--flight-port", type=int, help="Where executors read changes; 0 takes any free port.  [default: 0]")
@click.option("--spark-master", metavar="MASTER", help="local[*], local-cluster[n,cores,MiB] or spark://host:port.  [default: local[*]]")
@click.option("--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), help="A TOML file; options win over it.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting, as in --set supervisor.lease=30s. Repeat.")
@click.pass_context
def server(
    ctx: click.Context,
    source: str | None,
    data_dir: Path | None,
    http_host: str | None,
    http_port: int | None,
    flight_port: int | None,
    spark_master: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Run a server: capture sources into event stores and run feeds on Spark.

    Its state is in the data directory: a server that is started there again goes on where the last one stopped. Feeds that had failed are
    tried again then. Servers that share a meta database share its feeds; `drain` hands those of one over to the others. Further sources
    stand in the file as [sources.NAME], each with its uri; one begins with its first feed and ends with its last.

    \b
    Examples:
      penstock server --source dataserver://127.0.0.1:20160
      penstock server --config server.toml --http-port 9000
      penstock server drain --server http://10.0.0.7:8300
    """  # noqa: D301
    if ctx.invoked_subcommand is not None:
        return
    given: dict[str, Any] = {
        "source": source,
        "data-dir": data_dir,
        "http-host": http_host,
        "http-port": http_port,
        "flight-port": flight_port,
        "spark": {"master": spark_master} if spark_master else None,
    }
    # Imported here, because Spark and Arrow take their time and `--help` and bad options need neither.
    from penstock.config.server_tree import ServerConfig

    config = load(ServerConfig, read_tree(config_file, assignments, given))
    with contextlib.ExitStack() as starting:
        if config.http_port:
            host = f"[{config.http_host}]" if ":" in config.http_host else config.http_host
            # Whoever creates a feed meanwhile waits for it.
            starting.callback(announce_start(f"http://{host}:{config.http_port}"))
        from penstock.cli.shown.first_run import prepare_first_run
        from penstock.feed.spark.java import ensure_java
        from penstock.server.process import ServerProcess
        from penstock.server.start_checks import check_start

        # Before anything slow, and before the log says more than warnings.
        check_start(config)
        ensure_java()
        prepare_first_run()
        logger = logging.getLogger("penstock")
        if (ctx.obj or {}).get("log_level") is None:
            # What a server does is its output; the other verbs have results instead.
            logger.setLevel(logging.INFO)
        foreground, process = Foreground(), ServerProcess(config)
        with foreground.running(process, tell):
            starting.close()
            click.echo(f"penstock server: {process.url}  (Ctrl-C stops it; the feeds go on when it is started again)")
            while not foreground.stop.wait(_LOOK_S):
                process.check_spark()
            click.echo("stopping")
    click.echo("stopped")


@server.command()
@server_option
@click.option("--timeout", "timeout_s", type=float, default=120.0, show_default=True, help="How many seconds to wait for its feeds to go.")
@click.option("--end", is_flag=True, help="Let it take feeds again.")
@output_option
def drain(server_url: str, timeout_s: float, end: bool, output: str) -> None:
    """Hand the feeds of a server over to the others that share its meta database, and let it take none.

    A window under way is ended first; the next server goes on behind it.
    """
    clock, never = SystemClock(), threading.Event()
    with ServerClient(server_url) as client:
        answer = client.drain("DELETE" if end else "POST")
        if end:
            show_result(answer, output, f"server {answer['owner']} takes feeds again")
            return
        deadline_s = clock.monotonic_s() + timeout_s
        while answer["feeds"]:
            if clock.monotonic_s() > deadline_s:
                left = ", ".join(answer["feeds"])
                raise PenstockError("CANCELLED", f"{left} did not stop in time", "It goes on in the server; look again later.")
            clock.wait(never, _LOOK_S)
            answer = client.drain()
    show_result(answer, output, f"server {answer['owner']} is drained")
