"""The verb ``verify``: are a feed's files, replayed, the same rows as the upstream's at the checkpoint? Runs anywhere.

With a feed's name, its server compares, because only the server knows the target's credentials; with ``--source`` and ``--sink`` this
process does, and no server need run. Exit code 0 means that every row of every table is identical; 1 that some are not; 2 that the
comparison could not be made; 3 that nothing differs, but that a table could not be checked, which is named with the reason.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.given import URI, read_options
from penstock.cli.options import output_option, server_option
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_result
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.settings.loader import merge

if TYPE_CHECKING:
    from penstock.server.verify.verification import Verdict

EXIT_UNCHECKED = 3
_POLL_S = 0.5


@click.command()
@click.argument("feed", required=False)
@server_option
@click.option("--timeout", "timeout_s", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds to wait for the server.")
@click.option("--repair", is_flag=True, help="Have each table that differs read again; what differs is delivered.")
@click.option("--wait", is_flag=True, help="With --repair: wait until that is done, and verify again.")
@click.option("--source", metavar="URI", type=URI, help="Without a server: the upstream, as dataserver://host:port.")
@click.option("--sink", metavar="URI", type=URI, help="Without a server: the target, as the feed was created with it.")
@click.option("--table", "tables", multiple=True, metavar="PATTERN", help="Without a server: database.table; * and ? match. Repeat.")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Without a server: a setting of the feed, as sink.csv.delimiter=';'."
)
@output_option
def verify(
    feed: str | None,
    server_url: str,
    timeout_s: float,
    repair: bool,
    wait: bool,
    source: str | None,
    sink: str | None,
    tables: tuple[str, ...],
    assignments: tuple[str, ...],
    output: str,
) -> int:
    """Compare a feed's files with the upstream, row by row, as of the checkpoint that the target publishes.

    The feed may go on meanwhile: rows beyond the checkpoint are left out on both sides. Exits 0 if every row is identical, 1 if one is
    not, 2 if the comparison could not be made, 3 if nothing differs but a table could not be checked.

    \b
    Examples:
      penstock verify orders
      penstock verify orders --repair --wait
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
    if wait and not repair:
        raise click.UsageError("--wait waits for what --repair asked for: give both.")
    if feed is None:
        return _show(_compare(str(source), str(sink), tables, assignments), output)
    verdict = _ask(feed, server_url, timeout_s)
    wrong = [table.name for table in verdict.tables if table.differs]
    if not repair or not wrong:
        return _show(verdict, output)
    with ServerClient(server_url) as client:
        for table in verdict.tables:
            if table.differs:
                client.ask_for_table(feed, table.name, "resnapshot")
                _tell(f"{table}; it will be read again")
        if not wait:
            return _show(verdict, output)
        _await_settled(client, feed, wrong, timeout_s)
    return _show(_ask(feed, server_url, timeout_s), output, repaired=True)


def _show(verdict: Verdict, output: str, *, repaired: bool = False) -> int:
    """Show a verdict and return the exit code; raises where something differs."""
    from penstock.server.http.views import verdict_body

    if output != "table":
        show_result(verdict_body(verdict), output)
    else:
        for table in verdict.tables:
            say(str(table))
    try:
        verdict.check()
    except PenstockError as error:
        if not repaired:
            raise
        hint = "The tables were read again, so the files themselves are not what was delivered: create a feed into an empty prefix."
        raise PenstockError(error.code, error.detail, hint) from None
    if output == "table":
        say(verdict.summary())
    return EXIT_UNCHECKED if verdict.unchecked else 0


def _await_settled(client: ServerClient, feed: str, names: list[str], timeout_s: float) -> None:
    """Wait until tables are read again and what differed is delivered; a table that cannot be read is not waited for."""
    clock, never = SystemClock(), threading.Event()
    deadline_s = clock.monotonic_s() + timeout_s
    told = ""
    while True:
        shown = client.show_feed(feed)
        waiting = [t["name"] for t in shown["tables"] if t["name"] in names and t["state"] in {"doubtful", "rereading"}]
        settled_ts = max((t.get("settled_ts", 0) for t in shown["tables"] if t["name"] in names), default=0)
        if not waiting and shown["checkpoint_ts"] >= settled_ts:
            return
        line = f"waiting for {', '.join(waiting)}" if waiting else "waiting until the corrections are delivered"
        if line != told:
            told = line
            _tell(line)
        if clock.monotonic_s() > deadline_s:
            raise PenstockError("CANCELLED", line, "It goes on in the server; see penstock feed table list, or give a longer --timeout.")
        clock.wait(never, _POLL_S)


def _ask(feed: str, server_url: str, timeout_s: float) -> Verdict:
    """Let the feed's server compare, and show how far it is."""
    import msgspec

    from penstock.server.verify.verification import Verdict

    done = threading.Event()
    watching = threading.Thread(target=_watch, args=(feed, server_url, done), name="verify-progress", daemon=True)
    watching.start()
    try:
        with ServerClient(server_url, timeout_s) as client:
            answer = client.verify_feed(feed)
    except KeyboardInterrupt:
        # Nobody waits for it any more, and while it goes on no other one can begin.
        with contextlib.suppress(PenstockError), ServerClient(server_url) as client:
            client.cancel_verification(feed)
        raise
    finally:
        done.set()
        watching.join()
    try:
        return msgspec.convert(answer, Verdict)
    except msgspec.ValidationError as error:
        raise PenstockError("SERVER_UNREACHABLE", f"the server's answer is not understood: {error}", "Use the server's version.") from None


def _watch(feed: str, server_url: str, done: threading.Event) -> None:
    """Show what the server tells of a verification, until it is done; whatever fails here is the other call's to say."""
    clock, shown = SystemClock(), 0
    try:
        with ServerClient(server_url) as client:
            while not clock.wait(done, _POLL_S):
                for line in client.verify_progress(feed, shown):
                    shown += 1
                    _tell(line)
    except PenstockError:
        return


def _tell(line: str) -> None:
    """Show how far the comparison is; the result alone goes to standard output."""
    say(line, err=True)


def _compare(source: str, sink: str, tables: tuple[str, ...], assignments: tuple[str, ...]) -> Verdict:
    """Compare in this process."""
    from penstock.config.tree import load_feed_config
    from penstock.server.feeds.creation import match_tables
    from penstock.server.verify.moving_verification import verify_standing
    from penstock.server.verify.tables_verification import TablesVerifier
    from penstock.server.verify.verification import holds_files, open_reader, verify_target
    from penstock.sink.catalog import open_tables
    from penstock.source.catalog import open_upstream
    from penstock.source.contract import reads_past

    given: dict[str, Any] = {"name": "verify", "tables": list(tables), "sink": {"uri": sink}}
    config = load_feed_config(merge(read_options(assignments), given))
    files = holds_files(config.target.uri, config.target.options)
    reader = open_reader(config.target.uri, config.target.options) if files else None
    upstream = open_upstream(source)
    try:
        table_ids = sorted(t.table_id for t in match_tables(config.tables, upstream.list_tables()))
        if reader is None:
            with contextlib.closing(open_tables(config.target.uri, config.target.options)) as held:
                return TablesVerifier(held, upstream, _tell).verify(table_ids, config.settings.start_ts)
        if reads_past(upstream):
            return verify_target(reader, upstream, table_ids, start_ts=config.settings.start_ts, tell=_tell)
        return verify_standing(reader, upstream, table_ids, _tell)
    finally:
        upstream.close()
