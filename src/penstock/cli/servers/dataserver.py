"""``penstock dataserver``: the embedded data server as a process of its own, with an optional workload.

Prints one line with its address once it serves, then runs until SIGTERM or SIGINT. Runs anywhere.
"""

from __future__ import annotations

import json
import signal
import threading

import click
import msgspec

from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.source.dataserver.workload import Workload, WorkloadSettings

_LOOK_S = 0.1


@click.command("dataserver")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, show_default=True, help="Port of the first store; store n takes port + n - 1. 0 takes free ports.")
@click.option("--stores", default=2, show_default=True, type=click.IntRange(min=1), help="Number of stores over which ranges are spread.")
@click.option("--workload/--no-workload", default=False, show_default=True, help="Create database `shop` and write to it.")
@click.option(
    "--rate", default=1000, show_default=True, type=click.IntRange(min=0), help="Row changes per second; 0 is as fast as possible."
)
@click.option(
    "--rows", default=0, show_default=True, type=click.IntRange(min=0), help="Stop the workload after this many changes; 0 never."
)
@click.option("--seconds", default=0.0, show_default=True, type=click.FloatRange(min=0), help="Stop the workload after this time; 0 never.")
@click.option("--seed", default=1, show_default=True, help="Seed of the workload: the same seed writes the same rows.")
def dataserver(host: str, port: int, stores: int, workload: bool, rate: int, rows: int, seconds: float, seed: int) -> None:
    """Run the embedded, range-sharded data server. Its data is in memory and ends with it.

    \b
    Examples:
      penstock dataserver --port 7700
      penstock dataserver --workload --rate 5000
      penstock server --source dataserver://127.0.0.1:7700
    """  # noqa: D301 - click reads \b as "keep these lines"
    stopped = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    server = DataServer(DataServerSettings(host=host, port=port, stores=stores))
    running: Workload | None = None
    try:
        server.start()
        if workload:
            running = Workload(server.engine, WorkloadSettings(rate=rate, rows=rows, seconds=seconds, seed=seed)).start()
        click.echo(f"listening on {server.uri} ({stores} stores)")
        if running is not None:
            while running.running and not stopped.wait(_LOOK_S):
                pass
            click.echo(json.dumps({"workload": msgspec.to_builtins(running.stop())}))
        stopped.wait()
    finally:
        server.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)
