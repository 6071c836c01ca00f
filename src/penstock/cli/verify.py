"""The verb ``verify``: are a feed's files, replayed, the same rows as the upstream's at the checkpoint? Runs anywhere.

With a feed's name, its server compares, because only the server knows the target's credentials; with ``--source`` and ``--sink`` this
process does, and no server need run. Exit code 0 means that every row of every table is identical; 1 that some are not; 2 that the
comparison could not be made.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.server_client import DEFAULT_URL, ServerClient
from penstock.config.loader import read_assignments
from penstock.model.errors import PenstockError
from penstock.settings.loader import merge

if TYPE_CHECKING:
    from penstock.server.verify.verification import Verdict


@click.command()
@click.argument("feed", required=False)
@click.option("--server", "server_url", default=DEFAULT_URL, show_default=True, envvar="PENSTOCK_SERVER", help="The server's address.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds to wait for the server.")
@click.option("--source", metavar="URI", help="Without a server: the upstream, as dataserver://host:port.")
@click.option("--sink", metavar="URI", help="Without a server: the target, as the feed was created with it.")
@click.option("--table", "tables", multiple=True, metavar="PATTERN", help="Without a server: database.table; * and ? match. Repeat.")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Without a server: a setting of the feed, as sink.csv.delimiter=';'."
)
@click.option("--repair", is_flag=True, help="Have the server read every table again that differs; it delivers what differs then.")
@click.option(
    "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="json is a stable contract for scripts."
)
def verify(
    feed: str | None,
    server_url: str,
    timeout_s: float,
    source: str | None,
    sink: str | None,
    tables: tuple[str, ...],
    assignments: tuple[str, ...],
    repair: bool,
    output: str,
) -> None:
    """Compare a feed's files with the upstream, row by row, as of the checkpoint that the target publishes.

    The feed may go on meanwhile: rows beyond the checkpoint are left out on both sides. Exits 0 only if every row is identical.

    \b
    Examples:
      penstock verify orders
      penstock verify orders --repair
      penstock verify orders --server http://10.0.0.7:8300 --output json
      penstock verify --source dataserver://127.0.0.1:20160 --sink file:///tmp/orders --table 'shop.*'
    """  # noqa: D301
    offline = {"--source": source, "--sink": sink, "--table": tables}
    if feed is not None and (any(offline.values()) or assignments):
        raise click.UsageError("FEED is verified by its server; --source, --sink, --table and --set are for a target without one.")
    if feed is None and repair:
        raise click.UsageError("--repair needs a FEED: its server reads the tables again.")
    if feed is None and not all(offline.values()):
        missing = [name for name, value in offline.items() if not value]
        raise click.UsageError(f"Name a FEED, or give --source, --sink and --table; missing: {', '.join(missing)}.")
    from penstock.server.http.views import verdict_body

    verdict = _ask(feed, server_url, timeout_s) if feed is not None else _compare(str(source), str(sink), tables, assignments)
    if output == "json":
        click.echo(json.dumps(verdict_body(verdict), indent=2))
    else:
        for table in verdict.tables:
            click.echo(str(table))
    if repair and feed is not None:
        _repair(feed, verdict, server_url)
    verdict.check()
    if output == "table":
        click.echo(verdict.summary())


def _ask(feed: str, server_url: str, timeout_s: float) -> Verdict:
    """Let the feed's server compare."""
    import msgspec

    from penstock.server.verify.verification import Verdict

    with ServerClient(server_url, timeout_s) as client:
        answer = client.verify_feed(feed)
    try:
        return msgspec.convert(answer, Verdict)
    except msgspec.ValidationError as error:
        raise PenstockError("SERVER_UNREACHABLE", f"the server's answer is not understood: {error}", "Use the server's version.") from None


def _tell(line: str) -> None:
    """Show how far the comparison is; the result alone goes to standard output."""
    click.echo(line, err=True)


def _repair(feed: str, verdict: Verdict, server_url: str) -> None:
    """Have every table read again that differs."""
    with ServerClient(server_url) as client:
        for table in verdict.tables:
            if not table.identical:
                client.ask_for_table(feed, table.name, "resnapshot")
                click.echo(f"{table.name}: will be read again", err=True)


def _compare(source: str, sink: str, tables: tuple[str, ...], assignments: tuple[str, ...]) -> Verdict:
    """Compare in this process."""
    from penstock.config.tree import load_feed_config
    from penstock.server.feeds.creation import match_tables
    from penstock.server.verify.moving_verification import verify_standing
    from penstock.server.verify.verification import open_reader, verify_target
    from penstock.source.catalog import open_upstream
    from penstock.source.contract import reads_past

    given: dict[str, Any] = {"name": "verify", "tables": list(tables), "sink": {"uri": sink}}
    config = load_feed_config(merge(read_assignments(assignments), given))
    reader = open_reader(config.target.uri, config.target.options)
    upstream = open_upstream(source)
    try:
        table_ids = sorted(t.table_id for t in match_tables(config.tables, upstream.list_tables()))
        if reads_past(upstream):
            return verify_target(reader, upstream, table_ids, start_ts=config.settings.start_ts, tell=_tell)
        return verify_standing(reader, upstream, table_ids, _tell)
    finally:
        upstream.close()
