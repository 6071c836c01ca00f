"""The verb ``lake``: upkeep of Delta and Iceberg tables, beside a running feed. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from penstock.cli.given import URI, read_options
from penstock.cli.options import output_option
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_result
from penstock.settings.loader import merge

if TYPE_CHECKING:
    from penstock.sink.lake.upkeep import Kept, Upkeep

_set = click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of the feed that writes it.")
_table = click.option("--table", "tables", multiple=True, metavar="PATTERN", help="database.table; * and ? match. Repeat.  [default: all]")


@click.group()
def lake() -> None:
    """Write small files of lake tables together, and let old versions go.

    TARGET is the sink URI of a feed, as delta+file:///dir or iceberg+s3://bucket/prefix. The feed may go on.
    """


@lake.command()
@click.argument("target", type=URI)
@_set
@_table
@output_option
def optimize(target: str, assignments: tuple[str, ...], tables: tuple[str, ...], output: str) -> None:
    """Write small files of TARGET's tables together, up to file-size; rows stay as they are."""
    _show(_open(target, assignments).compact(tables), output, "{0.table}: {0.removed} files became {0.added}")


@lake.command()
@click.argument("target", type=URI)
@_set
@_table
@click.option("--hours", type=click.IntRange(1), default=168, show_default=True, help="Keep versions that were current since.")
@output_option
def expire(target: str, assignments: tuple[str, ...], tables: tuple[str, ...], hours: int, output: str) -> None:
    """Let versions of TARGET's tables go that were replaced long ago, and delete the files that only they had."""
    _show(_open(target, assignments).expire(tables, hours), output, "{0.table}: {0.removed} files deleted")


def _show(done: Iterable[Kept], output: str, line: str) -> None:
    """Write each table as it is done; for scripts all together."""
    if output != "table":
        show_result([{"table": one.table, "removed": one.removed, "added": one.added} for one in done], output)
        return
    for one in done:
        say(line.format(one))


def _open(target: str, assignments: tuple[str, ...]) -> Upkeep:
    from penstock.sink.lake.upkeep import Upkeep

    return Upkeep.open(target, merge({}, read_options(assignments)))
