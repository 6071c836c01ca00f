"""What a caller may cost the server: bodies that broke it, targets that never answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.tree import SinkConfig
from penstock.server.http.api import CREATIONS_AT_ONCE, CREATIONS_WAITING_MAX
from penstock.sink.catalog import open_maintainer
from penstock.sink.contract import SinkMaintainer
from penstock.target.storage import Guard
from testing.servers.api_server import ApiServer

WAIT_S = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("bounded"), "shop.orders") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Iterator[httpx.Client]:
    headers = {**server.headers, "Content-Type": "application/json"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as opened:
        yield opened


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


BODIES = {
    "half a pair in a key": r'{"\ud800": 1}',
    "half a pair in a name": r'{"name": "\ud800", "tables": ["shop.*"], "sink": "memory:///x"}',
    "half a pair in an option": r'{"name": "a", "tables": ["shop.*"], "sink": {"uri": "memory:///x", "csv": {"terminator": "\ud800"}}}',
    "a size of 400 digits": r'{"name": "a", "tables": ["shop.*"], "sink": {"uri": "memory:///x", "file-size": "%s.5"}}' % ("9" * 400),
    "a duration of 400 digits": r'{"name": "a", "tables": ["shop.*"], "sink": "memory:///x", "flush-interval": "%s.5s"}' % ("9" * 400),
    "a number of 400 digits": r'{"name": "a", "tables": ["shop.*"], "sink": "memory:///x", "flush-interval": %s}' % ("9" * 400),
    "a number of 5,000 digits": r'{"name": "a", "tables": ["shop.*"], "sink": "memory:///x", "flush-interval": %s}' % ("9" * 5000),
    "a ts of 65 bits": r'{"name": "a", "tables": ["shop.*"], "sink": "memory:///x", "start-ts": 9223372036854775808}',
    "a window of 71 bits": r'{"name": "a", "tables": ["shop.*"], "sink": "memory:///x", "window-bytes-max": 1180591620717411303424}',
    "no number": r'{"name": "a", "tables": ["shop.*"], "sink": "memory:///x", "flush-interval": NaN}',
    "20,000 patterns": '{"name": "a", "sink": "memory:///x", "tables": ["no.t*"' + ', "no.t*"' * 20_000 + "]}",
    "3,000 stars": '{"name": "a", "sink": "memory:///x", "tables": ["shop.%s"]}' % ("*a" * 3000),
    "stars in a selector": '{"name": "a", "tables": ["shop.*"], "sink": {"uri": "memory:///x", "column-selectors": '
    '[{"matcher": ["%s"], "columns": ["*"]}]}}' % ("*a" * 3000),
    "17 levels": nested(17),
    "900 levels": nested(900),
    "100,000 levels": nested(100_000),
    "no JSON": "{",
    "no UTF-8": '{"name": "\udcff"}',
    "no object": "[]",
    "nothing": "null",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_cannot_be_is_the_callers_fault(server: ApiServer, client: httpx.Client, body: str) -> None:
    answer = client.post("/api/v1/feeds", content=body.encode("utf-8", "surrogateescape"))
    assert (answer.status_code, answer.json()["code"]) == (422, "CONFIG_INVALID")
    assert len(answer.text) < 2000
    assert server.meta.list_feeds() == []


@pytest.mark.parametrize("after", ["-1", "9" * 400, "x", "%00"])
def test_a_number_in_the_query(client: httpx.Client, after: str) -> None:
    assert client.get(f"/api/v1/feeds/none/verify?after={after}").status_code == 422


@pytest.mark.parametrize("path", ["%00", "%ED%A0%80", "%0d%0aX: y", "..%2f..%2fetc", "a" * 5000])
def test_names_that_cannot_be(client: httpx.Client, path: str) -> None:
    for answer in (client.get(f"/api/v1/feeds/{path}"), client.post(f"/api/v1/feeds/x/tables/{path}/retry")):
        assert (answer.status_code, set(answer.json())) == (404, {"code", "message", "hint"})


class Tarpit:
    """Targets named ``hang`` that do not answer until they are let go; all others do."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Event()

    def open(self, sink: SinkConfig, guard: Guard) -> SinkMaintainer:
        if "hang" in sink.uri:
            self.begun.release()
            assert self.let_go.wait(WAIT_S)
        return open_maintainer(sink.uri, sink.options, guard)


def test_a_target_that_never_answers_holds_up_nobody_else(tmp_path: Path) -> None:
    tarpit = Tarpit()

    async def calls(server: ApiServer) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=server.url, headers=server.headers, trust_env=False, timeout=WAIT_S, limits=limits) as client:

            def create(name: str) -> asyncio.Task[httpx.Response]:
                tree: dict[str, Any] = {"name": name, "tables": ["shop.*"], "sink": f"memory://{tmp_path.name}/{name}"}
                return asyncio.create_task(client.post("/api/v1/feeds", json=tree))

            try:
                hanging = [create("hang0")]
                assert await asyncio.to_thread(tarpit.begun.acquire, timeout=WAIT_S)
                assert (await create("good")).status_code == 201
                # As many as may be under way or wait, and some more.
                allowed = CREATIONS_AT_ONCE + CREATIONS_WAITING_MAX
                hanging += [create(f"hang{at}") for at in range(1, allowed + 5)]
                refused: set[asyncio.Task[httpx.Response]] = set()
                while len(refused) < 5:
                    done, _ = await asyncio.wait(set(hanging) - refused, return_when=asyncio.FIRST_COMPLETED)
                    refused |= done
                assert {(task.result().status_code, task.result().json()["code"]) for task in refused} == {(429, "API_BUSY")}
                for path in ("/api/v1/health", "/metrics", "/api/v1/feeds", "/api/v1/feeds/good"):
                    assert (await client.get(path)).status_code == 200
            finally:
                tarpit.let_go.set()
            return list(await asyncio.gather(*hanging))

    with ApiServer(tmp_path, "shop.orders", open_target=tarpit.open) as server:
        answers = asyncio.run(calls(server))
    counts = [sum(answer.status_code == status for answer in answers) for status in (201, 429)]
    assert counts == [CREATIONS_AT_ONCE + CREATIONS_WAITING_MAX, 5]


def test_of_two_creations_of_one_name_or_target_one_is_done(tmp_path: Path) -> None:
    tarpit = Tarpit()

    async def calls(server: ApiServer) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, headers=server.headers, trust_env=False, timeout=WAIT_S) as client:
            trees = [
                {"name": name, "tables": ["shop.*"], "sink": f"memory://{tmp_path.name}/hang-{at}"}
                for name, at in (("a", 1), ("a", 2), ("b", 1))
            ]
            tasks = [asyncio.create_task(client.post("/api/v1/feeds", json=tree)) for tree in trees]
            for _ in trees:
                assert await asyncio.to_thread(tarpit.begun.acquire, timeout=WAIT_S)
            # All have seen that there is no such feed.
            tarpit.let_go.set()
            return list(await asyncio.gather(*tasks))

    with ApiServer(tmp_path, "shop.orders", open_target=tarpit.open) as server:
        answers = asyncio.run(calls(server))
        created = [answer.json()["name"] for answer in answers if answer.status_code == 201]
        assert {answer.status_code for answer in answers} == {201, 409}
        assert sorted(created) == sorted(feed.name for feed in server.meta.list_feeds())
