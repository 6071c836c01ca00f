"""The verbs of ``feed`` that change what a feed does, and what was done with it: each asks the server for the verb of its name.

Runs anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import click

from penstock.cli.given import URI, filter_options, read_options, read_rules
from penstock.cli.options import output_option, reason_option, server_option
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.output import show_result
from penstock.cli.shown.tables import show_table, time_of
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.settings.loader import merge

_Command = Callable[..., None]
_timeout_option = click.option(
    "--timeout", "timeout_s", type=float, default=60.0, show_default=True, help="How many seconds to wait until it is so; 0: not at all."
)
_POLL_S = 0.2


def _asks(command: _Command) -> _Command:
    """Give a command what every verb takes."""
    for option in (output_option, server_option, reason_option):
        command = option(command)
    return click.argument("name")(command)


@click.command()
@_timeout_option
@_asks
def pause(name: str, reason: str, server_url: str, output: str, timeout_s: float) -> None:
    """Stop a feed until it is resumed. It loses nothing and repeats nothing.

    Progress stands still from the answer on. What the feed needs next is kept for as long as `feed show` says, store.gc-ttl at the most.
    """
    with ServerClient(server_url) as client:
        answer = _until(client, client.control(name, "pause", {"reason": reason}), ("paused",), timeout_s)
    _tell(answer, output, f"feed {name} is {answer['state']}" + ("" if answer["state"] == "paused" else ", and shall be paused"))


@click.command()
@_asks
def resume(name: str, reason: str, server_url: str, output: str) -> None:
    """Let a feed go on: a paused one from where it stopped, one that failed when its cause is gone, one that waits for its next attempt."""
    with ServerClient(server_url) as client:
        answer = client.control(name, "resume", {"reason": reason})
    _tell(answer, output, f"feed {name} resumed" if answer["resumed"] else f"feed {name} had not stopped; it is {answer['state']}")


@click.command()
@click.option("--table", "tables", multiple=True, metavar="PATTERN", help="The tables from then on. Repeat for more.")
@click.option("--until-ts", type=click.IntRange(min=1), help="Deliver everything up to this ts, and then be finished.")
@click.option("--sink", metavar="URI", type=URI, help="Another target from then on; the one before is closed at that ts, and stays.")
@click.option("--start", metavar="snapshot|now|TS", help="With what another target begins.  [default: snapshot]")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting, as in --set flush-interval=2s. Repeat.")
@filter_options
@_asks
def alter(
    name: str,
    reason: str,
    server_url: str,
    output: str,
    tables: tuple[str, ...],
    until_ts: int | None,
    sink: str | None,
    start: str | None,
    assignments: tuple[str, ...],
    wheres: tuple[str, ...],
    selects: tuple[str, ...],
) -> None:
    """Change the tables, settings or target of a feed. All holds from one ts on, which is told; a window under way is finished before.

    Tables that come in begin with their state; those that were in the feed before, with what differs from the target.

    \b
    Examples:
      penstock feed alter orders --table shop.orders --table 'shop.item*'
      penstock feed alter orders --set flush-interval=2s --set sink.file-size=32MiB
      penstock feed alter large --where 'shop.orders=amount > 200'
      penstock feed alter orders --sink s3://lake/orders-2 --start now
    """  # noqa: D301
    given: dict[str, Any] = {"tables": list(tables), "until-ts": until_ts, "filter": read_rules(where=wheres, select=selects)}
    given["sink"] = {"uri": sink} if sink else None
    changes = merge(read_options(assignments), {key: value for key, value in given.items() if value})
    with ServerClient(server_url) as client:
        answer = client.control(name, "alter", {"changes": changes, "reason": reason} | ({"start": start} if start else {}))
    done = f"altered, from ts {answer['effective_ts']} on" if answer["changed"] else "like that already"
    closes = f"; {answer['closes']} is closed there, the other target begins with {answer['start']}" if answer.get("closes") else ""
    _tell(answer, output, f"feed {name} is {done}{closes}")


@click.command()
@click.option("--to", default="", metavar="SERVER", help="Its name or address, as `GET /api/v1/servers` has them.  [default: any]")
@_asks
def move(name: str, reason: str, server_url: str, output: str, to: str) -> None:
    """Let another server have a feed, for as long as that one lives. Feeds that share a log move together."""
    with ServerClient(server_url) as client:
        answer = client.control(name, "move", {"to": to, "reason": reason})
    _tell(answer, output, f"{', '.join(answer['feeds'])}: to be had by {answer['to'] or 'any server'}")


@click.command()
@_asks
@click.argument("new_name", metavar="NEW")
@click.option("--sink", required=True, metavar="URI", type=URI, help="The target of the new feed.")
@click.option("--start-ts", type=click.IntRange(min=1), help="Begin with the changes after this ts.  [default: with the state]")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting that is another one. Repeat.")
def clone(
    name: str,
    new_name: str,
    reason: str,
    server_url: str,
    output: str,
    sink: str,
    start_ts: int | None,
    assignments: tuple[str, ...],
) -> None:
    """Create a feed like another one, into a target of its own. What the event store has is not read from the source again."""
    given: dict[str, Any] = {"sink": {"uri": sink}} | ({"start-ts": start_ts} if start_ts else {})
    arguments = {"name": new_name, "changes": merge(read_options(assignments), given), "reason": reason}
    with ServerClient(server_url) as client:
        answer = client.control(name, "clone", arguments)
    _tell(answer, output, f"feed {answer['clone']} created, like {name}")


@click.command()
@_timeout_option
@_asks
def cancel(name: str, reason: str, server_url: str, output: str, timeout_s: float) -> None:
    """End a feed for good. Its files stay, and so do its record and its history, until it is removed."""
    with ServerClient(server_url) as client:
        answer = _until(client, client.control(name, "cancel", {"reason": reason}), ("cancelled",), timeout_s)
    _tell(answer, output, f"feed {name} is {answer['state']}" + ("" if answer["state"] == "cancelled" else ", and shall be cancelled"))


@click.command()
@click.option("--to", required=True, metavar="now|snapshot|TS", help="Where it goes on.")
@_asks
def reset(name: str, reason: str, server_url: str, output: str, to: str) -> None:
    """Let a feed go on elsewhere than where it stands.

    \b
    now       leave out what was not delivered yet; DDLs are followed
    TS        the same, up to a ts that is not delivered yet; what came after an older one is delivered once more
    snapshot  deliver what differs between the target and the state that is known, deletes included
    """  # noqa: D301
    with ServerClient(server_url) as client:
        answer = client.control(name, "reset", {"to": to, "reason": reason})
    _tell(answer, output, f"feed {name} is reset to {answer['to']}, from ts {answer['effective_ts']} on")


@click.command()
@_timeout_option
@_asks
def remove(name: str, reason: str, server_url: str, output: str, timeout_s: float) -> None:
    """Stop a feed and remove it. The files that it delivered stay where they are."""
    with ServerClient(server_url) as client:
        client.control(name, "remove", {"reason": reason})
        _wait(lambda: not _exists(client, name), timeout_s, f"feed {name} is still being stopped")
    show_result({"name": name, "removed": True}, output, f"feed {name} removed")


@click.command()
@click.argument("name")
@server_option
@output_option
def history(name: str, server_url: str, output: str) -> None:
    """Show what was asked of a feed and what it reached: when, by whom, why. A feed that is gone has a history for a while."""
    with ServerClient(server_url) as client:
        entries = client.feed_history(name)
    if output != "table":
        show_result(entries, output)
        return
    rows = ((time_of(e["at_ms"]), e["by"], e["what"], e["old"], e["new"], e["why"]) for e in entries)
    show_table(("TIME", "BY", "WHAT", "FROM", "TO", "WHY"), rows)


COMMANDS = (pause, resume, alter, reset, move, clone, cancel, remove, history)


def _until(client: ServerClient, answer: dict[str, Any], states: tuple[str, ...], timeout_s: float) -> dict[str, Any]:
    """Return the answer to a verb with the state that the feed has when it has reached one of these, or when the time is over."""

    def reached() -> bool:
        answer["state"] = client.show_feed(answer["name"])["state"]
        return answer["state"] in states

    if timeout_s > 0:
        _wait(reached, timeout_s, f"feed {answer['name']} is not yet {' or '.join(states)}")
    return answer


def _wait(reached: Callable[[], bool], timeout_s: float, what: str) -> None:
    clock, never = SystemClock(), threading.Event()
    deadline_s = clock.monotonic_s() + timeout_s
    while not reached():
        if clock.monotonic_s() > deadline_s:
            raise PenstockError("CANCELLED", what, "It goes on in the server; look again later.")
        clock.wait(never, _POLL_S)


def _exists(client: ServerClient, name: str) -> bool:
    try:
        client.show_feed(name)
    except PenstockError as error:
        if error.code != "FEED_UNKNOWN":
            raise
        return False
    return True


def _tell(answer: dict[str, Any], output: str, line: str) -> None:
    show_result(answer, output, line)
