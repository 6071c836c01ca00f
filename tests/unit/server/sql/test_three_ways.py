"""Every operation on feeds does the same by command, by route and by statement, because one handler does it.

Each way has a feed of its own, made alike. Compared are what is answered, what is asked of the feed from then on, what stands in its audit,
and, where the operation cannot be done, the code of the error.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from penstock.cli.main import run
from penstock.meta.records import NOBODY, ReachedState, RequestedState
from penstock.model.errors import PenstockError
from penstock.server.doubts.table_control import TABLE_VERBS
from penstock.server.feeds.control import VERBS
from penstock.server.feeds.creation import FeedDocument
from penstock.server.sql.parser import BEGINNINGS
from testing.servers.api_server import ApiServer
from testing.servers.waiting import wait_until

UNTIL = str(1 << 62)
WAYS = ("line", "route", "statement")


class Operation(NamedTuple):
    """One operation in three ways.

    ``{name}`` stands for the feed, ``{way}`` for a table that no other feed has, ``{sink}`` for a place that is free, ``{target}`` for the
    feed's own.
    """

    name: str
    line: list[str]
    route: tuple[str, str, dict[str, Any] | None]
    sql: str
    before: str = ""
    error: str = ""


def verb(name: str, options: list[str], arguments: dict[str, Any], sql: str, before: str = "", error: str = "") -> Operation:
    no_wait = ["--timeout", "0"] if name in {"pause", "cancel"} else []
    return Operation(name, ["feed", name, "{name}", *options, *no_wait], ("POST", f"/feeds/{{name}}/{name}", arguments), sql, before, error)


def table_verb(name: str, table: str = "own.{way}", error: str = "") -> Operation:
    return Operation(
        f"table {name}",
        ["feed", "table", name, "{name}", table, "--reason", "odd"],
        ("POST", f"/feeds/{{name}}/tables/{table}/{name}", {"reason": "odd"}),
        f"ALTER CHANGEFEED {{name}} {name.upper()} TABLE {table} COMMENT 'odd'",
        error=error,
    )


def creation(options: list[str], tree: dict[str, Any], sql: str, before: str = "absent", error: str = "") -> Operation:
    body = {"name": "{name}", "tables": ["shop.*"], "sink": {"uri": "{sink}"}} | tree
    return Operation("create", ["feed", "create", "{name}", *options], ("POST", "/feeds", body), sql, before, error)


OPERATIONS = [
    creation(["--table", "shop.*", "--sink", "{sink}"], {}, "CREATE CHANGEFEED {name} FOR TABLE shop.* INTO '{sink}'"),
    creation(
        [
            "--table",
            "shop.orders",
            "--table",
            "shop.items",
            "--sink",
            "{sink}",
            "--set",
            "flush-interval=2s",
            "--set",
            "sink.csv.delimiter=;",
        ],
        {"tables": ["shop.orders", "shop.items"], "flush-interval": "2s", "sink": {"uri": "{sink}", "csv": {"delimiter": ";"}}},
        "CREATE CHANGEFEED {name} FOR TABLE shop.orders, shop.items INTO '{sink}' WITH (flush_interval = 2s, sink.csv.delimiter = ';')",
    ),
    creation(
        ["--table", "shop.*", "--sink", "{sink}"], {}, "CREATE CHANGEFEED {name} FOR TABLE shop.* INTO '{sink}'", "runs", "FEED_EXISTS"
    ),
    creation(
        ["--table", "none.*", "--sink", "{sink}"],
        {"tables": ["none.*"]},
        "CREATE CHANGEFEED {name} FOR TABLE none.* INTO '{sink}'",
        error="TABLE_UNKNOWN",
    ),
    creation(
        ["--table", "shop.*", "--sink", "{sink}", "--set", "flush-intervall=2s"],
        {"flush-intervall": "2s"},
        "CREATE CHANGEFEED {name} FOR TABLE shop.* INTO '{sink}' WITH (flush-intervall = 2s)",
        error="CONFIG_INVALID",
    ),
    creation(
        ["--table", "shop.*", "--sink", "ftp://x"],
        {"sink": {"uri": "ftp://x"}},
        "CREATE CHANGEFEED {name} FOR TABLE shop.* INTO 'ftp://x'",
        error="SINK_URI_INVALID",
    ),
    verb("pause", [], {}, "PAUSE CHANGEFEED {name}"),
    verb("pause", ["--reason", "the lake moves"], {"reason": "the lake moves"}, "PAUSE CHANGEFEED {name} COMMENT 'the lake moves'"),
    verb("pause", [], {}, "PAUSE CHANGEFEED {name}", "absent", "FEED_UNKNOWN"),
    verb("resume", ["--reason", "back"], {"reason": "back"}, "RESUME CHANGEFEED {name} COMMENT 'back'", "paused"),
    verb("resume", [], {}, "RESUME CHANGEFEED {name}"),
    verb(
        "alter", ["--set", "flush-interval=2s"], {"changes": {"flush-interval": "2s"}}, "ALTER CHANGEFEED {name} SET (flush-interval = 2s)"
    ),
    verb(
        "alter",
        ["--table", "shop.*", "--until-ts", UNTIL, "--reason", "more"],
        {"changes": {"tables": ["shop.*"], "until-ts": int(UNTIL)}, "reason": "more"},
        f"ALTER CHANGEFEED {{name}} FOR TABLE shop.* SET (until-ts = {UNTIL}) COMMENT 'more'",
    ),
    verb(
        "alter",
        ["--set", "spans-per-table=2"],
        {"changes": {"spans-per-table": "2"}},
        "ALTER CHANGEFEED {name} SET (spans_per_table = 2)",
        error="CONFIG_INVALID",
    ),
    verb(
        "alter",
        ["--sink", "{sink}", "--start", "now", "--reason", "the lake moves"],
        {"changes": {"sink": {"uri": "{sink}"}}, "start": "now", "reason": "the lake moves"},
        "ALTER CHANGEFEED {name} INTO '{sink}' START NOW COMMENT 'the lake moves'",
        "delivered",
    ),
    verb(
        "alter",
        ["--sink", "{target}/inner"],
        {"changes": {"sink": {"uri": "{target}/inner"}}},
        "ALTER CHANGEFEED {name} INTO '{target}/inner'",
        error="SINK_OCCUPIED",
    ),
    verb("reset", ["--to", "snapshot"], {"to": "snapshot"}, "RESET CHANGEFEED {name} TO SNAPSHOT", "delivered"),
    verb("reset", ["--to", "yesterday"], {"to": "yesterday"}, "RESET CHANGEFEED {name} TO yesterday", "delivered", "CONFIG_INVALID"),
    verb("reset", ["--to", "now"], {"to": "now"}, "RESET CHANGEFEED {name} TO NOW", error="CONFIG_INVALID"),
    verb("move", ["--to", "test"], {"to": "test"}, "MOVE CHANGEFEED {name} TO test"),
    verb("move", ["--to", "elsewhere"], {"to": "elsewhere"}, "MOVE CHANGEFEED {name} TO 'elsewhere'", error="CONFIG_INVALID"),
    verb(
        "clone",
        ["{name}-copy", "--sink", "{sink}", "--start-ts", "7", "--set", "flush-interval=3s"],
        {"name": "{name}-copy", "changes": {"sink": {"uri": "{sink}"}, "start-ts": 7, "flush-interval": "3s"}},
        "CLONE CHANGEFEED {name} AS {name}-copy INTO '{sink}' WITH (start-ts = 7, flush-interval = 3s)",
    ),
    verb(
        "clone",
        ["{name}-copy", "--sink", "{target}"],
        {"name": "{name}-copy", "changes": {"sink": {"uri": "{target}"}}},
        "CLONE CHANGEFEED {name} AS {name}-copy INTO '{target}'",
        error="CONFIG_INVALID",
    ),
    verb("cancel", ["--reason", "over"], {"reason": "over"}, "CANCEL CHANGEFEED {name} COMMENT 'over'"),
    verb("remove", ["--reason", "not needed"], {"reason": "not needed"}, "DROP CHANGEFEED {name} COMMENT 'not needed'"),
    verb("remove", [], {}, "DROP CHANGEFEED {name}", "absent", "FEED_UNKNOWN"),
    *(table_verb(name) for name in TABLE_VERBS),
    *(table_verb(name, "shop.none", "TABLE_UNKNOWN") for name in TABLE_VERBS),
    Operation(
        "verify", ["verify", "{name}"], ("POST", "/feeds/{name}/verify", None), "VERIFY CHANGEFEED {name}", error="CHECKPOINT_MISSING"
    ),
    Operation("show", ["feed", "show", "{name}"], ("GET", "/feeds/{name}", None), "SHOW CHANGEFEED {name}"),
    Operation("show", ["feed", "show", "{name}"], ("GET", "/feeds/{name}", None), "SHOW CHANGEFEED {name}", "absent", "FEED_UNKNOWN"),
    Operation("list", ["feed", "list"], ("GET", "/feeds", None), "SHOW CHANGEFEEDS"),
    Operation("history", ["feed", "history", "{name}"], ("GET", "/feeds/{name}/history", None), "SHOW CHANGEFEED {name} HISTORY"),
    Operation("tables", ["feed", "table", "list", "{name}"], ("GET", "/feeds/{name}/tables", None), "SHOW CHANGEFEED {name} TABLES"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("server"), "shop.orders", "shop.items", *(f"own.{way}" for way in WAYS)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/api/v1", headers=server.headers, trust_env=False, timeout=60) as opened:
        yield opened


def make(server: ApiServer, client: httpx.Client, name: str, tables: list[str], target: str, before: str) -> None:
    """Make a feed that runs, was paused, or has delivered something; or none."""
    if before == "absent":
        return
    assert client.post("/feeds", json={"name": name, "tables": tables, "sink": target}).status_code == 201
    wait_until(lambda: server.meta.get_feed(name).reached_state is ReachedState.RUNNING, f"{name} runs", 60)
    if before == "delivered":
        epoch = server.meta.get_feed(name).epoch
        server.meta.begin_window(name, epoch, 0, 5, "{}")
        server.meta.commit_window(name, epoch, 0, 5, {})
    if before == "paused":
        client.post(f"/feeds/{name}/pause")
        wait_until(lambda: server.meta.get_feed(name).reached_state is ReachedState.PAUSED, f"{name} rests", 60)


MOVING = frozenset({"state", "uuid", "history", "lag_s", "resolved_ts", "table_id", "epoch"})


class Done(NamedTuple):
    """What an operation answered, and which error, if any."""

    answer: Any
    code: str


def by_line(server: ApiServer, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> Done:
    capsys.readouterr()
    exit_code = run([*arguments, "--server", server.url, "--output", "json"])
    told = capsys.readouterr()
    code = re.search(r'"code": "([A-Z_]+)"', told.err)
    assert (exit_code == 0) is (code is None), told.err
    return Done(json.loads(told.out) if exit_code == 0 else None, code[1] if code else "")


def by_route(client: httpx.Client, method: str, path: str, body: dict[str, Any] | None) -> Done:
    answer = client.request(method, path, json=body)
    return Done(answer.json(), "") if answer.is_success else Done(None, answer.json()["code"])


def by_statement(client: httpx.Client, text: str) -> Done:
    answer = client.post("/sql", json={"text": text})
    return Done(answer.json()["answer"], "") if answer.is_success else Done(None, answer.json()["code"])


def remove(server: ApiServer, name: str) -> None:
    """Remove a feed: where others have its table too, none may exclude it."""
    server.meta.lives.request(name, RequestedState.REMOVED, NOBODY)
    server.supervisor.wake()
    wait_until(lambda: asked_of(server, name)[0] == "", f"{name} is gone", 60)


def without_times(value: Any, name: str) -> Any:
    """Return an answer without what is another for another feed: names, times, ids, and the state, which a server may have changed."""
    text = re.sub(rf"{re.escape(name)}(-copy)?", "NAME", json.dumps(value)).replace(f"own.{name.rpartition('-')[2]}", "TABLE")

    def plain(tree: Any) -> Any:
        if isinstance(tree, dict):
            kept = {k: v for k, v in tree.items() if not k.endswith("_ms") and k not in MOVING}
            return {k: plain(v) for k, v in kept.items()}
        return [plain(item) for item in tree] if isinstance(tree, list) else tree

    return plain(json.loads(text))


def asked_of(server: ApiServer, name: str) -> tuple[str, list[tuple[str, ...]], Any]:
    """Return what is asked of a feed, what stands in its audit, and its configuration."""
    try:
        feed = server.meta.get_feed(name)
        requested, tree = feed.requested_state.value, FeedDocument.of(feed).config | {"next": FeedDocument.of(feed).next}
    except PenstockError:
        requested, tree = "", {}
    entries: list[tuple[str, ...]] = []
    with contextlib.suppress(PenstockError):
        entries = [(e.by, e.what, e.old, e.new, e.why) for e in server.meta.lives.history(name) if e.what not in {"state", "owner"}]
    return requested, without_times(entries, name), without_times(tree, name)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: f"{o.name}-{o.error or o.before or 'done'}")
def test_all_three_ways_do_the_same(
    server: ApiServer, client: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str], operation: Operation
) -> None:
    def filled(value: Any, name: str) -> Any:
        way = name.rpartition("-")[2]
        places = {"{name}": name, "{way}": way, "{sink}": f"s3://{name}/new", "{target}": target(name)}
        text = json.dumps(value)
        for what, place in places.items():
            text = text.replace(what, place)
        return json.loads(text)

    def target(name: str) -> str:
        return (tmp_path / name).as_uri() if operation.name == "verify" else f"s3://{name}/old"

    ways: dict[str, Callable[[str], Done]] = {
        "line": lambda name: by_line(server, capsys, filled(operation.line, name)),
        "route": lambda name: by_route(client, *filled(operation.route, name)),
        "statement": lambda name: by_statement(client, filled(operation.sql, name)),
    }
    effects = {}
    for way, do in ways.items():
        name = f"{tmp_path.name}-{way}"
        tables = [f"own.{way}"] if operation.name.startswith("table ") else ["shop.orders"]
        make(server, client, name, tables, target(name), operation.before)
        done = do(name)
        answer = done.answer
        if isinstance(answer, dict) and operation.name in {"list", "history", "tables"}:
            (answer,) = answer.values()
        if operation.name == "list":
            answer = [feed for feed in answer if feed["name"] == name]
        if operation.name == "remove":
            # The command waits until it is gone, and says so.
            answer = None
            wait_until(lambda name=name: asked_of(server, name)[0] == "", f"{name} is gone", 60)
        effects[way] = (done.code, without_times(answer, name), asked_of(server, name))
        if operation.name.startswith("table ") or (operation.name == "alter" and operation.before != "absent"):
            remove(server, name)
    assert effects["line"] == effects["route"] == effects["statement"]
    assert effects["statement"][0] == operation.error
    assert (effects["statement"][1] is None) is (bool(operation.error) or operation.name == "remove")


def test_every_verb_and_every_statement_has_its_operation() -> None:
    names = {operation.name for operation in OPERATIONS}
    assert names >= {*VERBS, *(f"table {verb}" for verb in TABLE_VERBS), "create", "verify", "show", "list", "history", "tables"}
    # What is explained has no verb of its own.
    assert {operation.sql.split()[0] for operation in OPERATIONS} == set(BEGINNINGS) - {"EXPLAIN"}
