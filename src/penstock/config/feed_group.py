"""One feed with several targets: a group of feeds, one for each, that are created and asked together.

``sinks = ["a", "b"]`` in place of ``sink`` makes the feeds ``NAME.1`` and ``NAME.2``, whose ``group`` is ``NAME``. Each has its own
progress, its own errors and its own windows, so one that is down does not hold the others; capture and event store they share as all
feeds of one source do. ``NAME/2`` is another way to write ``NAME.2``. Runs anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.model.errors import PenstockError

MEMBERS_MAX = 16
_MEMBER = re.compile(r"(?P<group>[^/]+)/(?P<number>[1-9][0-9]?)")


def member_trees(tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the configuration of each feed that a tree asks for; raise ``CONFIG_INVALID`` where its targets are none."""
    if "sinks" not in tree:
        return [dict(tree)]
    name, sinks = tree.get("name"), tree["sinks"]
    if "sink" in tree:
        hint = "Options of one of several targets stand in its own URI, as in kafka://host/prefix?protocol=debezium."
        raise PenstockError("CONFIG_INVALID", "sinks: give sink or sinks, not both", hint)
    if not isinstance(sinks, list | tuple) or not 2 <= len(sinks) <= MEMBERS_MAX:
        raise PenstockError("CONFIG_INVALID", f"sinks: must be a list of 2 to {MEMBERS_MAX} targets")
    if len({sink if isinstance(sink, str) else str(sink) for sink in sinks}) < len(sinks):
        raise PenstockError("CONFIG_INVALID", "sinks: names a target twice")
    rest = {key: value for key, value in tree.items() if key != "sinks"}
    return [{**rest, "name": f"{name}.{at}", "group": name, "sink": sink} for at, sink in enumerate(sinks, 1)]


def full_name(name: str) -> str:
    """Return the name of a feed, which may be written as a member of its group."""
    found = _MEMBER.fullmatch(name)
    return f"{found['group']}.{found['number']}" if found else name


def together(states: Iterable[str]) -> str:
    """Return the state of a group: that of all its members, or ``mixed``."""
    found = set(states)
    return found.pop() if len(found) == 1 else "mixed"
