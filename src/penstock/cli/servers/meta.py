"""The verb ``meta``: the meta database of servers as a file, put back, checked and brought to this version. Runs beside the database."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from penstock.access.secret_variables import META_KEY_VARIABLE
from penstock.cli.given import URI
from penstock.cli.options import output_option
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_result
from penstock.config.server_tree import ServerConfig
from penstock.feed.window.following import from_record
from penstock.meta import backup as backups
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import MetaEngine, MetaSettings, adopt_command, sqlite_file
from penstock.meta.migration import Migration, planned, upgraded
from penstock.meta.records import Actor, FeedRecord, RequestedState
from penstock.meta.sealing import Seal
from penstock.meta.soundness import check as check_soundness
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.readback.recovery import published_ts, recover_progress
from penstock.server.feeds.creation import FeedDocument
from penstock.settings.masking import mask_text, mask_uri
from penstock.sink.catalog import kind_of
from penstock.target.settings import CONNECTION_SCHEME, from_uri
from penstock.target.storage import TargetAddress

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def meta() -> None:
    """Back up, restore, check and upgrade the meta database of servers.

    It holds feeds, their progress and who owns them. The event store is a cache and no part of it.

    \b
    Examples:
      penstock meta backup /backups/monday --meta-url 'mysql://penstock:{env:PASSWORD}@db/meta'
      penstock meta check --data-dir penstock-data
      penstock meta restore /backups/monday --meta-url postgresql://penstock@db/empty
      penstock meta adopt orders --data-dir penstock-data
      penstock meta upgrade --dry-run --data-dir penstock-data
    """  # noqa: D301


def _place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    url = click.option("--meta-url", type=URI, metavar="URL", help="The database.  [default: the embedded one of --data-dir]")
    directory = click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=ServerConfig.data_dir,
        show_default=True,
        help="Of a server.",
    )
    return url(directory(command))


@contextmanager
def _opened(meta_url: str | None, data_dir: Path, *, as_found: bool = False, must_exist: bool = True) -> Iterator[tuple[MetaEngine, str]]:
    url = ServerConfig(data_dir=data_dir, meta_url=meta_url).effective_meta_url
    file = sqlite_file(url)
    if must_exist and file is not None and not file.exists():
        raise PenstockError("META_UNAVAILABLE", f"{file}: there is no such file", "Give --data-dir of a server, or --meta-url.")
    engine = MetaEngine(url, MetaSettings(), as_found=as_found)
    try:
        yield engine, url
    finally:
        engine.close()


@meta.command()
@click.argument("file", type=_FILE)
@_place_options
@output_option
def backup(file: Path, meta_url: str | None, data_dir: Path, output: str) -> None:
    """Write all of it to a new file that only you can read, while servers run.

    Secrets in it stay sealed. Keep their key as well, apart from it: PENSTOCK_META_KEY, or meta.key beside an embedded database.
    """
    with _opened(meta_url, data_dir, as_found=True) as (engine, url):
        header = backups.write_backup(engine, file, SystemClock().now_ms())
    if output != "table":
        show_result(msgspec.to_builtins(header), output)
        return
    say(f"{file}: {header.feeds} feeds, version {header.meta_version}")
    if header.sealed:
        say(f"{header.sealed} configurations are sealed; their key is not in the file: keep {_key_place(url)}")
    if header.sealed < header.feeds:
        say(f"{header.feeds - header.sealed} configurations are not sealed: whoever has the file has their credentials")


@meta.command()
@click.argument("file", type=_FILE)
@click.option("--force", is_flag=True, help="Delete everything that is in the database first.")
@click.option("--tokens", "with_tokens", is_flag=True, help="Also tokens of the API: those that were revoked since are valid again.")
@click.option("--targets/--no-targets", "with_targets", default=True, show_default=True, help="Look at targets, and adopt what they have.")
@_place_options
@output_option
def restore(file: Path, force: bool, with_tokens: bool, with_targets: bool, meta_url: str | None, data_dir: Path, output: str) -> None:
    """Put a backup into an empty database. Stop all servers of both databases before.

    Feeds go on from the progress that the backup has. Where a target is further it counts, as by `adopt`, if that is sure; nothing is
    written there. Otherwise the feed is refused when it starts (META_BEHIND_TARGET). Sources with a log are captured anew. Epochs grow, so
    that nobody who owned a feed before writes any more.
    """
    header, rows = backups.read_backup(file)
    actor = Actor(_user(), f"backup {file.name}")
    with _opened(meta_url, data_dir, must_exist=False) as (engine, url):
        done = backups.restore(engine, header, rows, actor=actor, now_ms=SystemClock().now_ms(), force=force, with_tokens=with_tokens)
    looked = _look_at_targets(url) if with_targets else {}
    if output != "table":
        show_result(msgspec.to_builtins(done) | {"targets": looked}, output)
        return
    say(f"{done.feeds} feeds restored ({done.rows} rows); their epochs grew by {done.epochs_grew_by}")
    if header.sealed:
        say(f"their configurations are sealed: servers need the key of the old database, in {_key_place(url)}")
    for name, what in looked.items():
        say(f"feed {name}: {what}")
    if not with_tokens:
        say("tokens of the API are not restored: make new ones with `penstock token create`, or restore with --tokens")


def _require_files(uri: str) -> None:
    kind = kind_of(uri)
    if kind.name != "storage":
        raise PenstockError("SINK_NOT_READABLE", f"{mask_uri(uri)}: what a target of kind {kind.name} was given cannot be read from it")


@meta.command()
@click.argument("feed")
@click.option("--sink", metavar="URI", type=URI, help="The target, where the feed names a connection of the server.")
@_place_options
@output_option
def adopt(feed: str, sink: str | None, meta_url: str | None, data_dir: Path, output: str) -> None:
    """Let a feed whose target is further than the database (META_BEHIND_TARGET) go on from where the target is.

    Pause one that runs before; one that failed goes on by itself. It is refused where a DDL came since, or where the target holds a file of
    a window that was not published. The feed then delivers what differs from a new snapshot, so that nothing that was altered meanwhile is
    missing.
    """
    url = ServerConfig(data_dir=data_dir, meta_url=meta_url).effective_meta_url
    with MetaDatabase(url) as database:
        told = _adopt(database, database.get_feed(feed), sink)
    if told["to_ts"] <= told["from_ts"]:
        say(f"feed {feed} is at {told['from_ts']}, its target at {told['to_ts']}: nothing to do")
    elif output != "table":
        show_result(told, output)
    else:
        say(f"feed {feed} goes on from {told['to_ts']}, with what differs from a new snapshot")


def _look_at_targets(url: str) -> dict[str, str]:
    """Let the targets of restored feeds count where they are further; return what was found of those that are, or cannot be asked."""
    found: dict[str, str] = {}
    try:
        with MetaDatabase(url) as database:
            for feed in database.list_feeds():
                if feed.is_over or feed.requested_state is RequestedState.REMOVED:
                    continue
                try:
                    told = _adopt(database, feed)
                except (PenstockError, msgspec.MsgspecError) as error:
                    found[feed.name] = f"not adopted: {mask_text(str(error))}. When that is mended: `{adopt_command(feed.name, url)}`"
                    continue
                if told["to_ts"] > told["from_ts"]:
                    found[feed.name] = f"goes on from {told['to_ts']}, where its target is, with what differs from a new snapshot"
    except PenstockError as error:
        found["*"] = f"targets were not looked at: {mask_text(str(error))}"
    return found


def _adopt(database: MetaDatabase, before: FeedRecord, sink: str | None = None) -> dict[str, Any]:
    """Let a feed whose target is further go on from there; return from and up to where, and raise where that is not sure."""
    feed, document = before.name, FeedDocument.of(before)
    config = document.feed_config()
    _require_files(sink or config.target.uri)
    uri, settings = from_uri(sink or config.target.uri, config.target.options)
    if urlsplit(uri).scheme == CONNECTION_SCHEME:
        raise PenstockError("CONFIG_INVALID", f"feed {feed} names the connection {uri}", "Give what it stands for with --sink.")
    live = [from_record(record) for record in database.dispatchers(feed) or ()]
    named = [(one.id, one.schema, one.table) for one in live]
    target = TargetAddress(uri).open()
    told: dict[str, Any] = {"feed": feed, "from_ts": before.checkpoint_ts, "to_ts": published_ts(target), "dispatchers": 0}
    if told["to_ts"] <= max(before.checkpoint_ts, document.rewound_from_ts):
        return told | {"to_ts": min(told["to_ts"], before.checkpoint_ts)}
    if config.settings.start_ts:
        raise PenstockError("CONFIG_INVALID", f"feed {feed} began at a start-ts: its target holds no state", "Clone it with --start-ts.")
    to_ts, positions = recover_progress(target, settings, named, before.checkpoint_ts, database.progress(feed).positions)
    changed = msgspec.structs.replace(document, resnapshot_from_ts=to_ts)
    database.adopt_progress(before, to_ts, positions, changed.to_json(), Actor(_user(), "the target is further"))
    return told | {"to_ts": to_ts, "dispatchers": len(positions)}


@meta.command()
@click.option("--backup", "file", type=_FILE, help="Check a backup in place of a database: that it is whole.")
@_place_options
@output_option
def check(file: Path | None, meta_url: str | None, data_dir: Path, output: str) -> None:
    """Look whether what it says holds together: orphans, progress, windows, epochs, versions. Changes nothing."""
    if file is not None:
        header, _ = backups.read_backup(file)
        show_result(msgspec.to_builtins(header), output, f"{file} is whole: {header.feeds} feeds")
        return
    with _opened(meta_url, data_dir, as_found=True) as (engine, url):
        found = check_soundness(engine, Seal(url, os.environ))
    if output != "table":
        show_result(msgspec.to_builtins(found), output)
    else:
        say(f"version {found.version}, {found.feeds} feeds: " + (f"{len(found.problems)} problems" if found.problems else "sound"))
        for problem in found.problems:
            say(f"problem: {problem}")
        for left in found.not_checked:
            say(f"not checked: {left}")
    if found.problems:
        raise click.exceptions.Exit(1)


@meta.command()
@click.option("--dry-run", is_flag=True, help="Only show the steps and their statements.")
@_place_options
@output_option
def upgrade(dry_run: bool, meta_url: str | None, data_dir: Path, output: str) -> None:
    """Bring it to this version, by numbered steps. A server does the same when it starts; stop servers of older versions before."""
    with _opened(meta_url, data_dir, as_found=True) as (engine, url):
        before = planned(engine)
    if not dry_run:
        upgraded(url)
    if output != "table":
        show_result(msgspec.to_builtins(before) | {"done": not dry_run}, output)
        return
    _show(before, dry_run)


def _show(before: Migration, dry_run: bool) -> None:
    would = "would be" if dry_run else "is"
    if before.version == before.to_version and not before.new_tables:
        say(f"version {before.version}: nothing to do")
        return
    for name in before.new_tables:
        say(f"table {name} {would} made")
    for step in before.steps:
        say(f"step {step.version}: {step.what}")
        for statement in step.statements:
            say("  " + " ".join(statement.split()))
    say(f"version {before.version} {would} brought to {before.to_version}")


def _key_place(url: str) -> str:
    file = sqlite_file(url)
    return META_KEY_VARIABLE if file is None else f"{META_KEY_VARIABLE} or {file.with_suffix('.key')}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
