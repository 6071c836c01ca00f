"""How doubted tables are shown and asked for: by the API, the metrics, ``penstock feed`` and ``penstock run``."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from rich.console import Console

from penstock.cli.feeds.feed import feed
from penstock.cli.feeds.run import follow
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.run_view import RunView
from penstock.library.one_feed import is_caught_up
from penstock.meta.records import Counted, FeedRecord
from penstock.model.errors import PenstockError
from penstock.puller.doubts import Settlement
from penstock.server.doubts.doubt_rules import FeedDoubtRules, Recheck
from penstock.server.feeds.capture import needed_spans
from penstock.server.feeds.creation import FeedDocument
from penstock.server.http.table_routes import TABLE_VERBS
from testing.servers.api_server import SOURCE_URI, ApiServer
from testing.twins.clock import SimulatedClock

DENIED = PenstockError("UPSTREAM_REFUSED", "denied to cdc:mysql://cdc:secret@db/", "GRANT SELECT")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, "shop.orders", "shop.items", "shop.log_a") as running:
        yield running


def create(server: ApiServer, tmp_path: Path, name: str = "f", **settings: Any) -> dict[str, Any]:
    with ServerClient(server.url) as client:
        return client.create_feed({"name": name, "tables": ["shop.*"], "sink": {"uri": f"s3://{tmp_path.name}/{name}"}} | settings)


def table_id(shown: dict[str, Any], name: str) -> int:
    return next(int(t["table_id"]) for t in shown["tables"] if t["name"] == name)


def verb(server: ApiServer, *words: str) -> str:
    result = CliRunner().invoke(feed, [*words, "--server", server.url], catch_exceptions=False, env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    return result.output


def test_a_table_goes_from_ok_to_quarantine_and_back(server: ApiServer, tmp_path: Path) -> None:
    created = create(server, tmp_path)
    assert {t["state"] for t in created["tables"]} == {"ok"}
    assert created["uncovered"] == []
    orders = table_id(created, "shop.orders")
    server.doubts.endings[orders] = [DENIED, Settlement(ts=900, rows=2, left_out=0, closed=True)]
    asked = json.loads(verb(server, "table", "resnapshot", "f", "SHOP.orders", "--output", "json"))
    assert (asked["name"], asked["state"], asked["reason"], asked["settling"]) == (
        "shop.orders",
        "doubtful",
        "asked for by an operator",
        True,
    )
    server.doubted.scan()
    listed = {t["name"]: t for t in json.loads(verb(server, "table", "list", "f", "--output", "json"))}
    one = listed["shop.orders"]
    assert (one["state"], one["code"], one["hint"], one["attempts"]) == ("quarantined", "UPSTREAM_REFUSED", "GRANT SELECT", 1)
    assert "secret" not in json.dumps(listed)
    assert one["next_attempt_ms"] > one["since_ms"] > 0
    assert listed["shop.items"]["state"] == "ok"
    shown = verb(server, "show", "f")
    assert "not covering shop.orders (quarantined)" in shown
    assert "[UPSTREAM_REFUSED]" in shown
    assert "GRANT SELECT" in verb(server, "table", "list", "f")
    metrics = httpx.get(f"{server.url}/metrics", headers=server.headers, trust_env=False).text
    assert 'penstock_table_state{code="UPSTREAM_REFUSED",state="quarantined",table="shop.orders"} 1.0' in metrics
    assert "will be read again" in verb(server, "table", "retry", "f", "shop.orders")
    server.doubted.scan()
    with ServerClient(server.url) as client:
        after = client.show_feed("f")
    assert after["uncovered"] == [{"name": "shop.orders", "state": "delivering"}], "its corrections are not delivered yet"
    (one,) = [t for t in after["tables"] if t["name"] == "shop.orders"]
    assert one.pop("progress")["rows"] == 0
    assert one == {
        "name": "shop.orders",
        "table_id": orders,
        "state": "ok",
        "settled_ts": 900,
    }


def test_what_cannot_be_asked_for(server: ApiServer, tmp_path: Path) -> None:
    create(server, tmp_path)
    with ServerClient(server.url) as client:
        for name, table, what, code in (
            ("f", "shop.nothing", "resnapshot", "TABLE_UNKNOWN"),
            ("f", "shop.orders", "retry", "TABLE_UNKNOWN"),
            ("g", "shop.orders", "resnapshot", "FEED_UNKNOWN"),
        ):
            with pytest.raises(PenstockError) as caught:
                client.ask_for_table(name, table, what)
            assert caught.value.code == code


def test_of_several_feeds_wishes_the_one_that_makes_the_table_right_is_done(server: ApiServer, tmp_path: Path) -> None:
    settings = {"on-rewrite": "keep", "on-rewrite-tables": {"shop.log_*": "pause-table"}}
    first = create(server, tmp_path, "first", **settings, **{"recheck-interval": "1h", "recheck-tables": ["shop.i*"]})
    rules = FeedDoubtRules(server.meta, SOURCE_URI)
    assert [rules.rule("shop", t) for t in ("orders", "log_a", "items")] == ["keep", "pause-table", "keep"]
    assert rules.rule("other", "t") == "keep"
    assert [rules.has_table(n) for n in (table_id(first, "shop.items"), 999)] == [True, False]
    named = [(999, "shop", "orders"), (table_id(first, "shop.items"), "moved", "away"), (999, "other", "t")]
    assert [rules.concerns(*one) for one in named] == [True, True, False]
    assert rules.rechecks() == [Recheck(table_id(first, "shop.items"), "shop", "items", 3600.0)]
    more = {"recheck-interval": "60s", "recheck-tables": ["shop.items"]}
    create(server, tmp_path, "second", tables=["shop.orders", "shop.items"], **more)
    assert [rules.rule("shop", t) for t in ("orders", "log_a")] == ["resnapshot", "pause-table"]
    assert [r.interval_s for r in rules.rechecks()] == [60.0]
    assert FeedDoubtRules(server.meta, "mysql://elsewhere:3306").rule("shop", "orders") == "keep"


def shown(*tables: dict[str, Any], checkpoint_ts: int = 50) -> dict[str, Any]:
    return {
        "state": "running",
        "error": None,
        "capture_problems": [],
        "rows": 0,
        "files": 0,
        "bytes": 0,
        "lag_s": 0.5,
        "checkpoint_ts": checkpoint_ts,
        "tables": list(tables),
    }


def test_a_table_of_which_only_the_name_is_known_is_shown_by_the_feeds_that_should_have_it(server: ApiServer, tmp_path: Path) -> None:
    create(server, tmp_path)
    create(server, tmp_path, "g", tables=["shop.items"])
    server.doubts.doubt_table(0, "shop", "shapes", "type GEOMETRY", "TYPE_UNSUPPORTED")
    assert "not covering shop.shapes (quarantined)" in verb(server, "show", "f")
    assert "shapes" not in verb(server, "show", "g")
    assert "[TYPE_UNSUPPORTED] type GEOMETRY" in verb(server, "table", "list", "f")
    for asked in ("retry", "resnapshot"):
        verb(server, "table", asked, "f", "shop.shapes")
    assert (server.doubts.looks, server.doubts.read) == (2, [])
    server.doubted.scan()
    assert server.doubts.read == [], "without a version there is nothing to read"


def test_a_table_is_excluded_until_it_is_included(server: ApiServer, tmp_path: Path) -> None:
    orders = table_id(create(server, tmp_path), "shop.orders")
    assert "is left out from now on" in verb(server, "table", "exclude", "f", "shop.orders")
    assert (server.doubts.state(orders).state.value, server.doubts.state(orders).code) == ("quarantined", "TABLE_PAUSED")
    assert "not covering shop.orders (quarantined)" in verb(server, "show", "f")
    assert not server.doubted.scan()
    assert server.doubts.read == [], "nobody reads it, however long it takes"
    assert "will be read again" in verb(server, "table", "include", "f", "shop.orders")
    assert server.doubted.scan()
    assert (server.doubts.read, server.doubts.state(orders).state.value) == ([orders], "ok")


def test_a_reason_that_cannot_be_kept_is_refused_before_anything_is_done(server: ApiServer, tmp_path: Path) -> None:
    orders = table_id(create(server, tmp_path), "shop.orders")
    headers = server.headers | {"Content-Type": "application/json"}
    url = f"{server.url}/api/v1/feeds/f/tables/shop.orders/exclude"
    answer = httpx.post(url, content=b'{"reason": "\\ud800"}', headers=headers, trust_env=False)
    assert (answer.status_code, answer.json()["code"]) == (422, "CONFIG_INVALID")
    assert orders not in {state.table_id for state in server.doubted.states()}
    assert [entry.what for entry in server.meta.lives.history("f")][:1] == ["create"]


def test_a_table_that_another_feed_has_too_is_not_excluded(server: ApiServer, tmp_path: Path) -> None:
    create(server, tmp_path)
    create(server, tmp_path, "g", tables=["shop.orders"])
    with ServerClient(server.url) as client:
        with pytest.raises(PenstockError, match=r"also in feed g"):
            client.ask_for_table("f", "shop.orders", "exclude")
        assert client.ask_for_table("f", "shop.items", "exclude")["state"] == "quarantined"
        client.control("g", "cancel", {})
        with pytest.raises(PenstockError, match=r"FEED_ENDED.* g is cancelled"):
            client.ask_for_table("g", "shop.orders", "resnapshot")
        # Who has ended shares nothing.
        assert client.ask_for_table("f", "shop.orders", "exclude")["state"] == "quarantined"


def test_a_table_of_another_source_with_the_same_id_is_another_table(server: ApiServer, tmp_path: Path) -> None:
    create(server, tmp_path)
    elsewhere = FeedDocument(config={}, source="dataserver://127.0.0.1:2", dispatchers=(), snapshot_ts=0)
    server.meta.create_feed(FeedRecord("elsewhere", "u", elsewhere.to_json()), [], server.meta.dispatchers("f"))
    with ServerClient(server.url) as client:
        assert client.ask_for_table("f", "shop.orders", "exclude")["state"] == "quarantined"
    spans = {record.table_id for record in server.meta.dispatchers("f") or ()}
    assert (
        len(needed_spans(server.meta, "f", SOURCE_URI)) == 0 < len(spans) == len(needed_spans(server.meta, "f", "dataserver://127.0.0.1:2"))
    )


def test_caught_up_is_not_said_while_a_doubt_is_open() -> None:
    open_doubt = {"name": "shop.t", "state": "doubtful", "settling": True, "code": "", "reason": "a rewrite", "hint": ""}
    assert is_caught_up(shown({"name": "shop.t", "state": "ok"}), 50)
    assert not is_caught_up(shown({"name": "shop.t", "state": "ok"}), 51)
    coming = {"name": "shop.t", "state": "ok", "progress": {"joining": True}}
    assert not is_caught_up(shown(coming), 50), "its state is not delivered yet"
    assert is_caught_up(shown(coming | {"progress": {"joining": False}}), 50)
    assert not is_caught_up(shown(open_doubt), 50)
    assert not is_caught_up(shown(open_doubt | {"state": "rereading"}), 50)
    assert not is_caught_up(shown({"name": "shop.t", "state": "ok", "settled_ts": 60}), 50), "the corrections are not delivered yet"
    assert is_caught_up(shown({"name": "shop.t", "state": "ok", "settled_ts": 60}, checkpoint_ts=60), 50)
    assert is_caught_up(shown(open_doubt | {"settling": False}), 50), "nobody will settle it"
    assert is_caught_up(shown(open_doubt | {"state": "quarantined", "code": "UPSTREAM_REFUSED"}), 50)


def test_run_ends_without_a_table_that_is_quarantined_and_names_it(server: ApiServer, tmp_path: Path) -> None:
    created = create(server, tmp_path)
    orders = table_id(created, "shop.orders")
    server.doubts.endings[orders] = [DENIED]
    server.doubted.resnapshot(orders, "shop", "orders")
    view, stop = RunView(Console(file=io.StringIO())), threading.Event()
    with ServerClient(server.url) as client:
        stop.set()
        assert follow(client, "f", view, stop, 0) == (False, []), "a doubt is open"
        server.doubted.scan()
        assert follow(client, "f", view, stop, 0) == (True, ["shop.orders (quarantined)"])


def test_run_says_once_what_is_in_doubt_and_how_it_ended() -> None:
    out = io.StringIO()
    view = RunView(Console(file=out, width=300), SimulatedClock())
    doubt = {"name": "shop.t", "state": "doubtful", "settling": True, "code": "", "reason": "a rewrite", "hint": "", "since_ms": 1000}
    view.progress([shown(doubt)])
    view.progress([shown(doubt)])
    view.progress([shown({"name": "shop.t", "state": "ok"})])
    view.end(True, ["shop.u (quarantined)"])
    lines = [line for line in out.getvalue().splitlines() if "shop." in line]
    assert lines == [
        "! shop.t: doubtful since 1970-01-01T00:00:01+00:00: a rewrite",
        "> shop.t: ok again",
        "> ended: everything that was committed before the start is in the target, but not of shop.u (quarantined)",
    ]
    assert "caught up" not in out.getvalue()


def test_what_was_delivered_of_each_table_is_shown(server: ApiServer, tmp_path: Path) -> None:
    created = create(server, tmp_path)
    run = server.runs.next_run()
    orders, to_ts = table_id(created, "shop.orders"), 1 << 60
    server.meta.begin_window("f", run.epoch, 0, to_ts, "{}")
    server.meta.commit_window("f", run.epoch, 0, to_ts, {f"{orders}-0": {"x": 1}}, counts={f"{orders}-0": Counted(1_234, 50, 3)})
    listed = {t["name"]: t["progress"] for t in json.loads(verb(server, "table", "list", "f", "--output", "json"))}
    expected = {"rows": 1_234, "bytes": 50, "files": 3, "delivered_ts": to_ts, "checkpoint_ts": to_ts, "joining": False}
    assert expected.items() <= listed["shop.orders"].items()
    assert (listed["shop.items"]["rows"], listed["shop.items"]["delivered_ts"]) == (0, 0)
    assert "1,234" in verb(server, "table", "list", "f")
    metrics = httpx.get(f"{server.url}/metrics", headers=server.headers, trust_env=False).text
    assert 'penstock_table_rows_total{feed="f",table="shop.orders"} 1234.0' in metrics
    assert f'penstock_table_delivered_ts{{feed="f",table="shop.orders"}} {float(to_ts)}' in metrics


@pytest.mark.parametrize(("asked", "needs_doubt"), [("resnapshot", False), ("exclude", False), ("include", True), ("retry", True)])
def test_verbs_for_tables_are_the_same_on_the_line_and_over_the_api(
    server: ApiServer, tmp_path: Path, asked: str, needs_doubt: bool
) -> None:
    created = create(server, tmp_path)
    answers = []
    for by, table in (("line", "shop.orders"), ("route", "shop.items")):
        if needs_doubt:
            server.doubted.exclude(table_id(created, table), *table.split("."))
        if by == "line":
            words = ["table", asked, "f", table, "--reason", "why not", "--output", "json", "--server", server.url]
            answers.append(json.loads(CliRunner().invoke(feed, words, catch_exceptions=False).stdout))
        else:
            with httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=60) as client:
                answers.append(client.post(f"/api/v1/feeds/f/tables/{table}/{asked}", json={"reason": "why not"}).json())
                assert client.post(f"/api/v1/feeds/f/tables/{table}/{asked}", json={"reason": 1}).status_code == 422
    differ = {"name", "table_id", "since_ms", "reason", "next_attempt_ms"}
    shown = [{key: value for key, value in answer.items() if key not in differ} for answer in answers]
    assert shown[0] == shown[1]
    entries = [(e.by, e.what, e.why, e.new) for e in server.meta.lives.history("f") if e.what.startswith("table")]
    assert entries == [("server", f"table {asked}", "why not", name) for name in ("shop.orders", "shop.items")]
    assert {asked} <= TABLE_VERBS.keys() == {"resnapshot", "exclude", "include", "retry"}
