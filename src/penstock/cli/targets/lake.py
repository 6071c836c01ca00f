"""The verb ``lake``: upkeep of Delta and Iceberg tables, beside a running feed. Runs anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.given import URI, read_options
from penstock.cli.shown.line import say
from penstock.settings.loader import merge

if TYPE_CHECKING:
    from penstock.sink.lake.upkeep import Upkeep

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
def optimize(target: str, assignments: tuple[str, ...], tables: tuple[str, ...]) -> None:
    """Write small files of TARGET's tables together, up to file-size; rows stay as they are."""
    for kept in _open(target, assignments).compact(tables):
        say(f"{kept.table}: {kept.removed} files became {kept.added}")


@lake.command()
@click.argument("target", type=URI)
@_set
@_table
@click.option("--hours", type=click.IntRange(1), default=168, show_default=True, help="Keep versions that were current since.")
def expire(target: str, assignments: tuple[str, ...], tables: tuple[str, ...], hours: int) -> None:
    """Let versions of TARGET's tables go that were replaced long ago, and delete the files that only they had."""
    for kept in _open(target, assignments).expire(tables, hours):
        say(f"{kept.table}: {kept.removed} files deleted")


def _open(target: str, assignments: tuple[str, ...]) -> Upkeep:
    from penstock.sink.lake.upkeep import Upkeep

    return Upkeep.open(target, merge({}, read_options(assignments)))
