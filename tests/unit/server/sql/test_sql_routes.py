from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from testing.servers.api_server import ApiServer

SECRET = "hunter2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("server"), "shop.orders", "shop.items") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/api/v1", headers=server.headers, trust_env=False, timeout=60) as opened:
        yield opened


@pytest.fixture
def reader(client: httpx.Client, tmp_path: Path) -> dict[str, str]:
    made = client.post("/tokens", json={"name": f"reader {tmp_path.name}", "role": "read"}).json()
    return {"Authorization": f"Bearer {made['token']}"}


def execute(client: httpx.Client, text: str) -> httpx.Response:
    return client.post("/sql", json={"text": text})


def test_who_may_only_read_has_what_only_reads_and_nothing_else(client: httpx.Client, reader: dict[str, str]) -> None:
    assert client.get("/sql", params={"text": "SHOW CHANGEFEEDS"}, headers=reader).status_code == 200
    for text in ("PAUSE CHANGEFEED a", "EXPLAIN CHANGEFEED a", "CREATE CHANGEFEED a FOR TABLE shop.* INTO 's3://a/b'"):
        answer = client.get("/sql", params={"text": text}, headers=reader)
        assert (answer.status_code, answer.json()["code"]) == (403, "API_FORBIDDEN")
        assert client.post("/sql", json={"text": text}, headers=reader).status_code == 403
    # The same goes for whoever may do more: a GET changes nothing.
    assert client.get("/sql", params={"text": "PAUSE CHANGEFEED a"}).status_code == 403
    assert client.post("/sql", json={"text": "SHOW CHANGEFEEDS"}, headers=reader).status_code == 403


@pytest.mark.parametrize("body", [{}, {"text": 1}, {"text": "SHOW CHANGEFEEDS", "more": 1}])
def test_other_bodies_are_refused(client: httpx.Client, body: dict[str, object]) -> None:
    answer = client.post("/sql", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "CONFIG_INVALID")


def test_an_error_points_into_the_text(client: httpx.Client) -> None:
    answer = execute(client, "CREATE CHANGEFEED a\nFOR TABLE shop.*\nINTOO 's3://a/b'")
    assert answer.status_code == 422
    assert answer.json() == {
        "code": "SQL_INVALID",
        "message": "line 3, column 1: expected INTO, not 'INTOO'\nINTOO '***'\n^",
        "hint": "Did you mean INTO?",
    }


def test_a_setting_that_is_wrong_is_shown_where_it_stands(client: httpx.Client) -> None:
    text = (
        "CREATE CHANGEFEED a FOR TABLE shop.* INTO 's3://a/b'\nWITH (flush-interval = 'soon',\n  sink.csv.delimeter = ';', partitions = -1)"
    )
    answer = execute(client, text).json()
    assert answer["code"] == "CONFIG_INVALID"
    lines = sorted(answer["message"].splitlines())
    assert [line.split(":")[:2] for line in lines] == [
        ["line 2, column 7", " flush-interval"],
        ["line 3, column 29", " partitions"],
        ["line 3, column 3", " sink.csv.delimeter"],
    ]


def test_nothing_shows_a_secret(server: ApiServer, client: httpx.Client, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = f"s3://{tmp_path.name}/x?access-key=AK&secret-access-key={SECRET}"
    create = f"CREATE CHANGEFEED s FOR TABLE shop.* INTO '{sink}'"
    with caplog.at_level("DEBUG"):
        told = [
            execute(client, text).text for text in (f"{create} WITH (flush-interval = {SECRET})", f"{create} {SECRET}", f"{create} AS x")
        ]
        made = execute(client, create)
        assert made.status_code == 200, made.text
        told.append(made.text)
        texts = (
            f"ALTER CHANGEFEED s INTO '{sink}1' COMMENT 'password={SECRET}'",
            "SHOW CHANGEFEED s",
            "SHOW CHANGEFEED s HISTORY",
            "EXPLAIN CHANGEFEED s",
            "PAUSE CHANGEFEED s",
        )
        told += [execute(client, text).text for text in texts]
    assert SECRET in server.meta.get_feed("s").config
    # The setting that has no such value repeats it, and one that is no keyword: they are no secrets.
    assert SECRET not in "".join(told[2:]) + caplog.text
    assert f"secret-access-key={SECRET}" not in "".join(told)
    assert execute(client, "DROP CHANGEFEED s").status_code == 200


def test_a_feed_is_explained_before_and_after_it_is_created(client: httpx.Client, tmp_path: Path) -> None:
    create = f"CREATE CHANGEFEED e FOR TABLE shop.* INTO 's3://{tmp_path.name}/x' WITH (partitions = 8, flush-interval = 2s)"
    planned = execute(client, f"EXPLAIN {create}").json()["answer"]
    assert client.get("/feeds/e").status_code == 404
    assert execute(client, create).status_code == 200
    assert execute(client, "EXPLAIN CHANGEFEED e").json()["answer"] == planned
    assert [table["name"] for table in planned["tables"]] == ["shop.items", "shop.orders"]
    assert (planned["dispatchers"], planned["tasks_at_once"]) == (2, 2)
    assert all(table["dispatchers"] == 1 and table["columns"] for table in planned["tables"])
    assert "every 2 s" in planned["plan"][2]


def test_what_is_there_and_what_is_not(client: httpx.Client, tmp_path: Path) -> None:
    create = f"CREATE CHANGEFEED IF NOT EXISTS there_1 FOR TABLE shop.orders INTO 's3://{tmp_path.name}/x'"
    assert [execute(client, create).status_code for _ in range(2)] == [200, 200]
    found = ["there%", "THERE__", r"there\_1", r"there\__"]
    for like, names in [(like, ["there_1"]) for like in found] + [(like, []) for like in ("there", "%[1]", "*", r"ther\__1", "\\")]:
        shown = client.get("/sql", params={"text": f"SHOW CHANGEFEEDS LIKE '{like}'"}).json()
        assert [feed["name"] for feed in shown["answer"]["feeds"]] == names == [row[0] for row in shown["rows"]]
    assert execute(client, "DROP CHANGEFEED IF EXISTS gone").json()["answer"]["changed"] is False
    assert execute(client, "DROP CHANGEFEED gone").json()["code"] == "FEED_UNKNOWN"


def test_what_is_wrong_with_a_feed_is_listed(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    assert execute(client, f"CREATE CHANGEFEED w FOR TABLE shop.items INTO 's3://{tmp_path.name}/x'").status_code == 200
    assert execute(client, "SHOW CHANGEFEED w ERRORS").json()["rows"] == []
    table_id = client.get("/feeds/w/tables").json()["tables"][0]["table_id"]
    server.doubts.doubt_table(table_id, "shop", "items", "it is odd", "TABLE_PAUSED")
    assert [row[:3] for row in execute(client, "SHOW CHANGEFEED w ERRORS").json()["rows"]] == [["shop.items", "TABLE_PAUSED", "it is odd"]]
