"""The verb ``demo``: the whole path on this machine, from a database under load to verified files.

Starts the embedded data server with a workload in a process of its own and a server in this one, creates a feed, shows its
progress, applies a DDL on the way, drains, and compares every row. Everything is real: the same parts that ``penstock
dataserver``, ``penstock server`` and ``penstock verify`` run.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from penstock.cli.server_client import ServerClient
from penstock.cli.shown.demo_view import DemoView, Figures
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError

FEED = "demo"
DDL = "ALTER TABLE shop.orders ADD COLUMN demo_note VARCHAR(40) NOT NULL DEFAULT 'added by the demo'"
_START_S, _DRAIN_S, _POLL_S = 60.0, 120.0, 0.25


@click.command()
@click.option("--rows", default=300_000, show_default=True, type=click.IntRange(1000), help="Row changes that the workload writes.")
@click.option("--seconds", default=25.0, show_default=True, type=click.FloatRange(1), help="Over how long it writes them.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the files go; must not exist or be empty.  [default: a new folder]")
@click.option("--master", default="local[*]", show_default=True, help="Spark's master, e.g. local-cluster[2,1,1024].")
@click.option("--keep", is_flag=True, help="Keep the files of a new folder, and the server's data, when the demo ends.")
def demo(rows: int, seconds: float, out: Path | None, master: str, keep: bool) -> None:
    """Run the whole path on this machine and verify every row.

    A data server split in ranges over two stores takes a workload of inserts, updates, deletes and DDLs. A feed captures it into the
    event store
    and delivers it through Spark as CSV files. When the workload has ended, the files are replayed and compared with the database.
    Exits 0 only if every row is identical.

    \b
    Examples:
      penstock demo
      penstock demo --rows 1000000 --seconds 40 --out /tmp/penstock-demo
      penstock demo --master 'local-cluster[2,1,1024]'
    """  # noqa: D301
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PenstockError("SINK_OCCUPIED", f"--out: {out} is not an empty folder", "Choose another folder, or empty this one.")
    root = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    target = (out or root / "files").absolute()
    target.mkdir(parents=True, exist_ok=True)
    try:
        run_demo(rows, seconds, target, master, root / "data")
    finally:
        if keep:
            click.echo(f"kept: {target}" if out else f"kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)


def run_demo(rows: int, seconds: float, target: Path, master: str, data_dir: Path) -> None:
    """Run the demo; raises unless every row is identical."""
    from penstock.config.server_tree import ServerConfig, SparkConfig
    from penstock.feed.spark.session import SparkSettings, open_session
    from penstock.server.process import ServerProcess
    from penstock.source.dataserver.client import DataServerUpstream

    view = DemoView()
    view.step(f"starting Spark: {master}")
    # First, because it takes longest: the workload should meet a feed that is ready.
    open_session(SparkSettings(master))
    view.step("starting the data server: 2 stores, 4 tables, each split in ranges, and its workload")
    with data_server(rows, seconds) as (source, workload):
        view.step("starting the server: log service, event store, Flight, API")
        config = ServerConfig(source=source, data_dir=data_dir, http_port=0, spark=SparkConfig(master=master))
        with contextlib.ExitStack() as parts:
            server = parts.enter_context(ServerProcess(config))
            client = parts.enter_context(ServerClient(server.url, token=server.token))
            upstream = parts.enter_context(DataServerUpstream(source))
            created = client.create_feed({"name": FEED, "tables": ["shop.*"], "sink": {"uri": target.as_uri()}, "flush-interval": "2s"})
            tables = {t["table_id"]: t["name"] for t in created["tables"]}
            view.step(f"feed {FEED}: {', '.join(sorted(tables.values()))} -> {target}")
            figures = follow(client, view, workload, upstream)
            view.step("the workload has ended; draining")
            drain(client, view, upstream.current_ts(), figures)
            view.step("replaying the files and comparing every row with the database")
            from penstock.server.verify.verification import open_reader, verify_target

            verdict = verify_target(open_reader(target.as_uri(), {}), upstream, sorted(tables), view.verified)
    view.show_tree(target)
    view.show_samples(target)
    view.show_figures(figures)
    verdict.check()
    view.done(verdict.summary())


@contextlib.contextmanager
def data_server(rows: int, seconds: float) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the data server with its workload in a process of its own; give its URI and the process."""
    rate = max(1, round(rows / seconds))
    command = [sys.executable, "-m", "penstock", "dataserver", "--workload", "--rate", str(rate), "--rows", str(rows)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "listening on " not in line:
            raise PenstockError("UPSTREAM_UNREACHABLE", "the data server did not start", "Run `penstock dataserver` to see why.")
        yield line.split("listening on ", 1)[1].split()[0], process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def follow(client: ServerClient, view: DemoView, workload: subprocess.Popen[str], upstream: object) -> Figures:
    """Show progress until the workload has ended; apply the demo's DDL once changes flow."""
    from penstock.source.dataserver.client import DataServerUpstream

    assert isinstance(upstream, DataServerUpstream)
    assert workload.stdout is not None
    clock = SystemClock()
    figures = Figures()
    ended = view.watch(workload.stdout)
    altered = False
    while not ended.wait(_POLL_S):
        feed = shown_feed(client)
        figures.observe(feed, clock.monotonic_s())
        view.progress(feed, figures)
        if not altered and feed["rows"] > 0:
            upstream.execute_ddl(DDL)
            view.step(f"DDL on the way: {DDL}")
            altered = True
        if workload.poll() is not None:
            raise PenstockError("UPSTREAM_UNREACHABLE", "the data server ended before its workload did")
    if not altered:
        upstream.execute_ddl(DDL)
        view.step(f"DDL on the way: {DDL}")
    figures.workload = json.loads(view.last_line)["workload"]
    return figures


def drain(client: ServerClient, view: DemoView, until_ts: int, figures: Figures) -> None:
    """Wait until the feed's checkpoint is at or beyond a ts."""
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + _DRAIN_S
    while True:
        feed = shown_feed(client)
        figures.observe(feed, clock.monotonic_s())
        view.progress(feed, figures)
        if feed["checkpoint_ts"] >= until_ts:
            return
        if clock.monotonic_s() > deadline_s:
            raise PenstockError("FEED_FAILED", f"the feed did not drain within {_DRAIN_S:.0f} s")
        view.pause(_POLL_S)


def shown_feed(client: ServerClient) -> dict[str, Any]:
    """Return the feed's state; raise its error if it has failed."""
    feed = client.show_feed(FEED)
    if feed["state"] == "failed" and feed["error"]:
        raise PenstockError(feed["error"]["code"], feed["error"]["message"], feed["error"]["hint"])
    return feed
