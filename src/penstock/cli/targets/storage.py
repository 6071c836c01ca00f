"""The verb ``storage``: look at a storage target, check it, let old files expire. Runs anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.given import URI, read_options
from penstock.cli.options import output_option
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_result
from penstock.settings.loader import merge

if TYPE_CHECKING:
    from penstock.target.settings import StorageSinkSettings
    from penstock.target.storage import ObjectTarget

_set = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting of the feed that wrote it, as protocol=parquet."
)


_NAMES_ONLY = "what data files hold"
_VALUES = "whether rows are those of the source, which penstock verify compares"


@click.group()
def storage() -> None:
    """Look at a storage target, check it, let old files expire.

    TARGET is the sink URI with the settings with which it was written.
    """


@storage.command(name="ls")
@click.argument("target", type=URI)
@_set
@output_option
def list_target(target: str, assignments: tuple[str, ...], output: str) -> None:
    """List the tables of TARGET with their versions, files and dates."""
    from penstock.readback.inspection import list_tables
    from penstock.readback.reader import StorageReader

    reader = StorageReader(*_open(target, assignments))
    tables = list(list_tables(reader))
    if output != "table":
        body = [
            {"schema": t.schema, "table": t.table, "versions": t.versions, "files": t.files, "first": t.first_date, "last": t.last_date}
            for t in tables
        ]
        show_result({"checkpoint_ts": reader.checkpoint_ts(), "tables": body}, output)
        return
    click.echo(f"checkpoint {reader.checkpoint_ts() if reader.checkpoint_ts() is not None else 'none'}")
    for t in tables:
        dates = f", {t.first_date} to {t.last_date}" if t.first_date else ""
        say(f"{t.schema}.{t.table}: {t.versions} versions, {t.files} files{dates}")


@storage.command()
@click.argument("target", type=URI)
@_set
@output_option
@click.option("--names-only", is_flag=True, help="Do not open data files.")
def check(target: str, assignments: tuple[str, ...], output: str, names_only: bool) -> int:
    """Check TARGET: gaps, checksums, files that no index names, rows out of order. Exits 1 if something is wrong."""
    from penstock.readback.inspection import Extent, check_target

    extent = Extent()
    findings = list(check_target(*_open(target, assignments), read_rows=not names_only, extent=extent))
    if output != "table":
        show_result([{"path": f.path, "what": f.what} for f in findings], output)
    else:
        for finding in findings:
            say(str(finding))
        click.echo(f"{len(findings)} problems" if findings else "sound")
        unrecorded = f"the bytes of {extent.unrecorded} files of which no checksum is on record; " if extent.unrecorded else ""
        if not names_only:
            click.echo(f"compared with their checksums: {extent.compared} files")
        click.echo(f"not checked: {_NAMES_ONLY if names_only else unrecorded + _VALUES}")
    return int(bool(findings))


@storage.command()
@click.argument("target", type=URI)
@_set
@click.option("--days", type=click.IntRange(0), help="Keep this many days before the checkpoint; else file-expiration-days.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@output_option
def expire(target: str, assignments: tuple[str, ...], days: int | None, dry_run: bool, output: str) -> None:
    """Delete data and index files of TARGET whose commit date lies before the checkpoint by more than some days."""
    from penstock.format.layout.checkpoint import parse_checkpoint
    from penstock.format.layout.paths import METADATA_PATH
    from penstock.target.expiry import expire as delete_expired
    from penstock.target.expiry import expired_paths, expiry_date

    opened, settings = _open(target, assignments)
    keep = days if days is not None else settings.file_expiration_days
    if days is None and not keep:
        raise click.UsageError("Give --days; the settings have no file-expiration-days.")
    if dry_run:
        content = opened.find(METADATA_PATH)
        paths = [] if content is None else expired_paths(opened, settings, expiry_date(parse_checkpoint(content), keep))
    else:
        paths = delete_expired(opened, settings, keep)
    if output != "table":
        show_result({"deleted": not dry_run, "paths": list(paths)}, output)
        return
    for path in paths:
        say(path)
    click.echo(f"{len(paths)} files {'would be deleted' if dry_run else 'deleted'}")


def _open(target: str, assignments: tuple[str, ...]) -> tuple[ObjectTarget, StorageSinkSettings]:
    from penstock.readback.reader import open_written
    from penstock.target.settings import from_uri

    uri, settings = from_uri(target, merge({}, read_options(assignments)))
    return open_written(uri), settings
