"""The configuration of a feed, as a user writes it.

Keys of ``FeedSettings`` stand at the top; everything under ``sink`` but its URI belongs to the target and is checked by the target's own
settings. ``sink = "file:///dir"`` is short for a table with that ``uri``. The tree may hold credentials: mask it before showing it.
Imports no Spark. Runs anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.feed.settings import FeedSettings
from penstock.model.errors import PenstockError
from penstock.model.table_pattern import is_pattern, pattern_problems
from penstock.settings.loader import Problems, did_you_mean, dump, known_keys, merge, read
from penstock.sink.catalog import settings_of
from penstock.target.kind import TargetSettings
from penstock.target.settings import OPTION_KEYS, Atomicity, StorageSinkSettings

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")


@dataclass(frozen=True)
class SinkConfig:
    """A target: its URI and the options of its kind, keys dotted (``csv.delimiter``), values as texts."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "SinkConfig(...)"


@dataclass(frozen=True)
class FeedConfig:
    """A feed: which tables go where, and how."""

    name: str
    tables: tuple[str, ...]
    sink: dict[str, Any]
    source: str | None = None
    group: str = ""
    settings: FeedSettings = field(default_factory=FeedSettings, metadata={"flatten": True})

    def __repr__(self) -> str:
        return f"FeedConfig(name={self.name!r}, tables={self.tables})"

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        found = []
        if not _NAME.fullmatch(self.name):
            found.append(("name", "must be 1 to 63 letters, digits, '_', '-' or '.', and begin with a letter or digit"))
        if self.group and not re.fullmatch(rf"{re.escape(self.group)}\.[1-9][0-9]?", self.name):
            found.append(("group", "is set by sinks alone: a feed of a group is named GROUP.1, GROUP.2 and so on"))
        if all(pattern.startswith("!") for pattern in self.tables):
            found.append(("tables", "must name at least one table"))
        too_much = pattern_problems(self.tables)
        if too_much:
            return [*found, ("tables", too_much[0])]
        found += [
            (f"tables[{at}]", f"must look like database.table or database.*, not {pattern!r}")
            for at, pattern in enumerate(self.tables)
            if not is_pattern(pattern)
        ]
        return found

    @property
    def target(self) -> SinkConfig:
        """Return the target's URI and flat options."""
        options = {key: value for key, value in self.sink.items() if key != "uri"}
        return SinkConfig(str(self.sink["uri"]), _with_atomicity(flatten(options), self.settings.atomicity))


def load_feed_config(tree: Mapping[str, Any]) -> FeedConfig:
    """Build and check a feed's configuration, the target's options included; every problem at once.

    Raises ``SINK_URI_INVALID`` where the URI is the only problem, ``CONFIG_INVALID`` otherwise.
    """
    if isinstance(tree.get("sink"), str):
        tree = merge(tree, {"sink": {"uri": tree["sink"]}})
    problems = Problems()
    uri_error: PenstockError | None = None
    try:
        target = _check_sink(tree.get("sink"), str(tree.get("atomicity", "none")), problems)
    except PenstockError as error:
        target, uri_error = None, error
    if target is not None and target.flush_interval_ms != StorageSinkSettings().flush_interval_ms:
        # The layout's own documentation has the interval among the target's options; it is the feed that waits for it.
        tree = merge({"flush-interval": f"{target.flush_interval_ms}ms"}, tree)
    config = read(FeedConfig, _without_misplaced(tree, problems), "", problems)
    if uri_error is not None:
        if not problems:
            raise uri_error
        problems.add("sink.uri", uri_error.detail)
    problems.raise_if_any()
    assert config is not None
    return config


def _without_misplaced(tree: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Note the keys that are the target's and stand beside it; return the tree without them."""
    of_feed, of_target = known_keys(FeedConfig), {key.partition(".")[0] for key in OPTION_KEYS}
    misplaced = {
        key: near
        for key in tree
        if key not in of_feed and not did_you_mean(key, of_feed) and (near := did_you_mean(key, of_target, "sink."))
    }
    for key, near in misplaced.items():
        problems.add(key, f"unknown key{near}")
    return {key: value for key, value in tree.items() if key not in misplaced}


def dump_feed_config(config: FeedConfig) -> dict[str, Any]:
    """Return the tree that ``load_feed_config`` builds the same configuration from."""
    return dump(config)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a nested tree with dotted keys and texts as values, the form in which options reach a target."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def _with_atomicity(options: dict[str, str], atomicity: str) -> dict[str, str]:
    """Return a target's options with what the feed wishes to be kept of transactions, unless they say it themselves."""
    return options if atomicity == "none" else {"transaction-atomicity": atomicity, **options}


def _check_sink(sink: Any, atomicity: str, problems: Problems) -> TargetSettings | None:
    """Let the target check its URI and options; raise ``SINK_URI_INVALID``, note every other problem."""
    if not isinstance(sink, Mapping):
        return None
    uri = sink.get("uri")
    if not isinstance(uri, str) or not uri:
        problems.add("sink.uri", "is required" if uri is None else "must be a text")
        return None
    try:
        options = flatten({key: value for key, value in sink.items() if key != "uri"})
        return settings_of(uri, _with_atomicity(options, atomicity) if atomicity in set(Atomicity) else options)[1]
    except PenstockError as error:
        if error.code == "SINK_URI_INVALID":
            raise
        problems.add_error("sink", error)
    return None
