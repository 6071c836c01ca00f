"""Executes statements, each by the handler that the API's routes have, and gives what came of it as rows beside the route's own answer.

Invariants: a statement does what the route of the same name does, with the same audit and the same errors; an error about a setting names
its place in the text. No answer holds credentials. Thread safe. Runs in the server.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.model.errors import PenstockError
from penstock.server.doubts.table_control import TableControl
from penstock.server.feeds.control import FeedControl
from penstock.server.http.bodies import checked_tree
from penstock.server.http.views import ShownFeeds, verdict_body
from penstock.server.sql.explanation import Explainer
from penstock.server.sql.filters import filter_settings
from penstock.server.sql.statements import (
    CreateFeed,
    DoTableVerb,
    DoVerb,
    ExplainCreation,
    ExplainFeed,
    ShowFeed,
    ShowFeeds,
    Statement,
    VerifyFeed,
)
from penstock.server.sql.tokens import place_of
from penstock.server.verify.verification import Verifies
from penstock.settings.loader import merge

_FEED_COLUMNS = ("name", "state", "requested_state", "checkpoint_ts", "lag_s", "rows", "files", "error")
_TABLE_COLUMNS = ("table", "state", "rows", "bytes", "files", "lag_s", "code", "reason")
_HISTORY_COLUMNS = ("time_ms", "by", "what", "from", "to", "why")
_VERDICT_COLUMNS = ("table", "identical", "rows", "missing", "unexpected", "different", "unchecked")
_LIKE_PARTS = re.compile(r"\\?.", re.DOTALL)
_IN_GLOB = {"%": "*", "_": "?"}
_PATH = re.compile(r"[\w.\[\]-]+(?=: )")


class Outcome(msgspec.Struct, frozen=True):
    """What came of a statement: ``answer`` is what the API's route answers, ``columns`` and ``rows`` the same for people."""

    statement: str
    columns: tuple[str, ...]
    rows: list[list[Any]]
    answer: Any


class SqlDesk:
    """Executes statements."""

    def __init__(
        self, control: FeedControl, table_control: TableControl, shown: ShownFeeds, verifier: Verifies, explainer: Explainer
    ) -> None:
        self._control = control
        self._table_control = table_control
        self._shown = shown
        self._verifier = verifier
        self._explainer = explainer
        self._by_kind: dict[type[Statement], Callable[[Any, str], Outcome]] = {
            CreateFeed: self._create,
            DoVerb: self._do,
            DoTableVerb: self._do_table,
            VerifyFeed: self._verify,
            ShowFeeds: self._show_feeds,
            ShowFeed: self._show_feed,
            ExplainFeed: self._explain_feed,
            ExplainCreation: self._explain_creation,
        }

    def execute(self, statement: Statement, text: str, by: str) -> Outcome:
        """Execute the statement of a text for a caller."""
        try:
            return self._by_kind[type(statement)](statement, by)
        except PenstockError as error:
            raise _placed(error, text, statement.places) from None

    def _create(self, made: CreateFeed, by: str) -> Outcome:
        tree = _with_query(made.tree, made.query, made.tree["tables"])
        try:
            answer = self._shown.create(checked_tree(tree), by)
        except PenstockError as error:
            if error.code != "FEED_EXISTS" or not made.if_not_exists:
                raise
            answer = self._shown.show(made.tree["name"])
        rows = [[answer["name"], ", ".join(table["name"] for table in answer["tables"])]]
        return Outcome(made.title, ("name", "tables"), rows, answer)

    def _do(self, asked: DoVerb, by: str) -> Outcome:
        arguments = asked.arguments
        if asked.query:
            changes = arguments.get("changes", {})
            tables = changes.get("tables") or self._shown.show(asked.name)["config"]["tables"]
            arguments = {**arguments, "changes": _with_query(changes, asked.query, tables)}
        try:
            answer = self._control.do(asked.verb, asked.name, checked_tree(arguments), by)
        except PenstockError as error:
            if error.code != "FEED_UNKNOWN" or not asked.if_exists:
                raise
            answer = {"name": asked.name, "verb": asked.verb, "changed": False}
        return _facts(asked.title, answer)

    def _do_table(self, asked: DoTableVerb, by: str) -> Outcome:
        return _facts(asked.title, self._table_control.do(asked.verb, asked.name, asked.table, checked_tree(asked.arguments), by))

    def _verify(self, asked: VerifyFeed, _by: str) -> Outcome:
        answer = verdict_body(self._verifier.verify(asked.name))
        tables = [table | {"table": table.get("name") or table.get("table")} for table in answer["tables"]]
        return _table(asked.title, _VERDICT_COLUMNS, tables, answer)

    def _show_feeds(self, asked: ShowFeeds, _by: str) -> Outcome:
        feeds = [feed for feed in self._shown.all() if asked.like is None or _is_like(feed["name"], asked.like)]
        lines = [feed | {"error": (feed["error"] or {}).get("code", "")} for feed in feeds]
        return _table(asked.title, _FEED_COLUMNS, lines, {"feeds": feeds})

    def _show_feed(self, asked: ShowFeed, _by: str) -> Outcome:
        title = f"{asked.title} {asked.what.upper()}".rstrip()
        if asked.what == "history":
            entries = self._control.history(asked.name)
            lines = [{"time_ms": e["at_ms"], "from": e["old"], "to": e["new"], **e} for e in entries]
            return _table(title, _HISTORY_COLUMNS, lines, {"history": entries})
        if asked.what == "tables":
            tables = self._shown.tables(asked.name)
            return _table(title, _TABLE_COLUMNS, [{"table": t["name"], **t["progress"], **t} for t in tables], {"tables": tables})
        shown = self._shown.show(asked.name)
        return _errors(title, shown) if asked.what == "errors" else _facts(title, shown)

    def _explain_feed(self, asked: ExplainFeed, _by: str) -> Outcome:
        return _explained(asked.title, self._explainer.of_feed(asked.name))

    def _explain_creation(self, asked: ExplainCreation, _by: str) -> Outcome:
        made = asked.creation
        tree = _with_query(made.tree, made.query, made.tree["tables"])
        return _explained(asked.title, self._explainer.of_creation(checked_tree(tree)))


def _with_query(tree: Mapping[str, Any], query: str, tables: Sequence[str]) -> dict[str, Any]:
    return merge(tree, filter_settings(query, tables))


def _is_like(name: str, pattern: str) -> bool:
    """Return whether a name is like a pattern of SQL, whatever its case; a backslash takes the meaning of what follows it."""
    wanted = "".join(_IN_GLOB.get(part, glob.escape(part.removeprefix("\\") or part)) for part in _LIKE_PARTS.findall(pattern.lower()))
    return fnmatch.fnmatchcase(name.lower(), wanted)


def _table(title: str, columns: Sequence[str], lines: Sequence[Mapping[str, Any]], answer: Any) -> Outcome:
    return Outcome(title, tuple(columns), [[line.get(column) for column in columns] for line in lines], answer)


def _facts(title: str, answer: Mapping[str, Any]) -> Outcome:
    shown = [
        [key, value if isinstance(value, str | int | float | bool) or value is None else json.dumps(value)] for key, value in answer.items()
    ]
    return Outcome(title, ("property", "value"), shown, answer)


def _errors(title: str, shown: Mapping[str, Any]) -> Outcome:
    """Return everything that is wrong with a feed, the feed's own error first."""
    found: list[dict[str, Any]] = []
    if shown["error"]:
        found.append({"of": "feed", **shown["error"]})
    problem = shown.get("problem")
    if problem:
        found.append({"of": "feed", "code": problem["stage"], "message": problem["text"], "hint": problem["hint"]})
    found += [{"of": "capture", "code": "", "message": text, "hint": ""} for text in shown["capture_problems"]]
    found += [
        {
            "of": table["name"],
            "code": table.get("code") or table["state"],
            "message": table.get("reason", ""),
            "hint": table.get("hint", ""),
        }
        for table in shown["tables"]
        if table["state"] != "ok"
    ]
    return _table(title, ("of", "code", "message", "hint"), found, {"errors": found})


def _explained(title: str, answer: Mapping[str, Any]) -> Outcome:
    rows = [["plan", f"{at}", step] for at, step in enumerate(answer["plan"], 1)]
    rows += [[key, "", str(answer[key])] for key in ("source", "sink", "protocol", "dispatchers", "tasks_at_once")]
    for table in answer["tables"]:
        columns = ", ".join(f"{c['name']} {c['type']}{' key' if c['key'] else ''}" for c in table["columns"])
        rows.append(["table", table["name"], f"{table['dispatchers']} dispatchers: {columns}"])
    return Outcome(title, ("what", "of", "is"), rows, answer)


def _placed(error: PenstockError, text: str, places: Mapping[str, int]) -> PenstockError:
    """Return an error whose lines name the places of the settings that they are about."""
    lines = []
    for line in error.detail.splitlines():
        path = _PATH.match(line)
        at = _place(path[0], places) if path else None
        where = "line {}, column {}: ".format(*place_of(text, at)) if at is not None else ""
        lines.append(where + line)
    return PenstockError(error.code, "\n".join(lines), error.hint)


def _place(path: str, places: Mapping[str, int]) -> int | None:
    """Return where a setting stands, or one that is a part of it, or the nearest that it is a part of."""
    parts = (at for known, at in places.items() if known == path or known.startswith(f"{path}."))
    if (first := min(parts, default=None)) is not None:
        return first
    while path not in places:
        path, found, _ = path.rpartition(".")
        if not found:
            return None
    return places[path]
