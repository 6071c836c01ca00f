"""The verb ``replay``: the storage consumer. Applies a storage target to a database and goes on where it stopped. Runs anywhere."""

from __future__ import annotations

import threading

import click

from penstock.cli.given import URI, read_options
from penstock.cli.options import output_option
from penstock.cli.shown.line import say
from penstock.cli.shown.output import text_of
from penstock.settings.loader import merge
from penstock.settings.masking import mask_text


@click.command()
@click.argument("source", type=URI)
@click.argument("target", type=URI)
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of the feed that wrote SOURCE, as protocol=parquet."
)
@click.option("--table", "tables", multiple=True, metavar="PATTERN", help="database.table; * and ? match. Repeat.  [default: all tables]")
@click.option("--take-over", is_flag=True, help="Replace what is in the way: notes of another target, and tables that exist.")
@click.option("--follow", is_flag=True, help="Go on: look for a new checkpoint again and again, until interrupted.")
@click.option("--interval", "interval_s", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between looks.")
@output_option
def replay(
    source: str,
    target: str,
    assignments: tuple[str, ...],
    tables: tuple[str, ...],
    take_over: bool,
    follow: bool,
    interval_s: float,
    output: str,
) -> None:
    """Apply the storage target SOURCE to the database TARGET, up to the published checkpoint.

    SOURCE is a sink URI with the settings with which it was written; TARGET is sqlite:////dir/file.db, duckdb:////dir/file.db,
    mysql://user:password@host:3306/notes or postgresql://user:password@host/name. Tables, rows and DDLs are applied in order, each step in
    one transaction together with a note of it, so running it again goes on where it stopped and changes nothing twice. Where SOURCE has
    transaction indexes, whole source transactions are applied together, in commit order. A database takes one target; a table that exists
    and is not from this replay is left alone, and so are the server's own schemas.

    \b
    Examples:
      penstock replay file:///tmp/orders sqlite:////tmp/orders.db
      penstock replay 's3://bucket/prefix?protocol=canal-json' postgresql://me:{file:~/.warehouse}@db/warehouse --follow
    """  # noqa: D301
    from penstock.model.clock import SystemClock
    from penstock.readback.consumer import StorageConsumer
    from penstock.readback.reader import StorageReader, open_written
    from penstock.readback.replay_opening import open_database
    from penstock.target.settings import from_uri

    uri, settings = from_uri(source, merge({}, read_options(assignments)))
    reader = StorageReader(open_written(uri), settings)
    database = open_database(target)
    clock, never = SystemClock(), threading.Event()
    try:
        consumer = StorageConsumer(reader, database, tables, take_over=take_over)
        while True:
            done = consumer.run_round(lambda text: say(mask_text(text), err=output != "table"))
            if done.ddls or done.files or not follow:
                line = f"replayed to ts {done.checkpoint_ts}: {done.ddls} table versions, {done.files} files, {done.rows} changes"
                told = {"checkpoint_ts": done.checkpoint_ts, "ddls": done.ddls, "files": done.files, "rows": done.rows}
                click.echo(line if output == "table" else text_of(told, output, one_line=follow))
            if not follow:
                return
            clock.wait(never, interval_s)
    finally:
        database.close()
