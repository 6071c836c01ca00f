"""A server that exists for one feed: what it is told, the feed made or found, and when it has caught up.

``penstock run`` and ``penstock.capture`` both are such a server. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.library.server_client import ServerClient
from penstock.model.errors import PenstockError

DEFAULT_NAME = "run"


def divide(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the feed's and the server's part of one tree; the source belongs to both."""
    server = tree.get("server", {})
    if not isinstance(server, Mapping):
        raise PenstockError("CONFIG_INVALID", "server: must be a table")
    # It may stand in either part: of what a server captures, a feed takes what it says.
    source = tree.get("source") or server.get("source")
    if not source:
        raise PenstockError("CONFIG_INVALID", "source: is required", "Name it with --source, as mysql://user@host:3306.")
    if server.get("source", source) != source:
        raise PenstockError("CONFIG_INVALID", "server.source: is another one than source; give one of them")
    feed = {"name": DEFAULT_NAME} | {key: value for key, value in tree.items() if key != "server"} | {"source": source}
    return feed, {"http-port": 0} | dict(server) | {"source": source}


def ensure_feed(client: ServerClient, tree: Mapping[str, Any], create: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the feed or group, created if it is not there; raise where one of that name does something else."""
    name = str(tree["name"])
    try:
        found = client.show_feed(name)
    except PenstockError as error:
        if error.code != "FEED_UNKNOWN":
            raise
        create(dict(tree))
        return client.show_feed(name)
    from penstock.config.feed_group import member_trees
    from penstock.config.tree import dump_feed_config, load_feed_config
    from penstock.settings.masking import mask_tree

    wanted = [mask_tree(dump_feed_config(load_feed_config(member))) for member in member_trees(tree)]
    there = [member["config"] for member in members_of(found)]
    pairs = zip(wanted, there, strict=False)
    other = {key for want, have in pairs for key in want.keys() | have.keys() if want.get(key) != have.get(key)}
    if len(wanted) != len(there):
        other = (other - {"name", "group", "sink"}) | {"number of targets"}
    if other:
        raise PenstockError(
            "FEED_EXISTS",
            f"feed {name} exists in this data directory with another {', '.join(sorted(other))}",
            "Run it as it was, or choose another --name (and an empty sink), or another --data-dir.",
        )
    return found


def members_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the feeds of a group, or the feed itself."""
    members: list[dict[str, Any]] = found.get("members", [found])
    return members


def is_caught_up(feed: Mapping[str, Any], until_ts: int) -> bool:
    """Return whether everything up to a ts is delivered, with corrections of tables in doubt and the state of those that came.

    A table that is in quarantine, or that waits for an operator, is not waited for.
    """
    settled_ts = max((table.get("settled_ts", 0) for table in feed["tables"]), default=0)
    waited_for = any(table["state"] in {"doubtful", "rereading"} and table["settling"] for table in feed["tables"])
    # The checkpoint does not wait for a table whose rows are delivered as a whole: one that was renamed into the feed, or began again.
    coming = any(table.get("progress", {}).get("joining") and table["state"] != "quarantined" for table in feed["tables"])
    return bool(feed["checkpoint_ts"] >= max(until_ts, settled_ts)) and not waited_for and not coming
