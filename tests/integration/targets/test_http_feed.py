"""From the embedded data server to an HTTP target: whatever happens on the way, a receiver rebuilds the tables exactly."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import PenstockError
from penstock.model.failpoints import arm
from testing.paths.whole_path import WholePath, read_state
from testing.servers.http_receiver import Fault, Receiver, http_receiver

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]
OPTIONS = {"batch-rows": "5", "lanes": "3", "secret": "s3cret", "checkpoints": "true"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver(b"s3cret") as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path, receiver: Receiver) -> Iterator[WholePath]:
    with contextlib.closing(WholePath(tmp_path, SETUP, target_uri=receiver.uri, sink_options=OPTIONS, splits={"d.a": [20]})) as opened:
        yield opened
    arm("")


def upstream_rows(path: WholePath, name: str) -> list[dict[str, Any]]:
    table = path.table(name)
    frame = read_state(path.upstream, table, path.upstream.current_ts())
    return sorted(frame.select([c.name for c in table.columns]).to_dicts(), key=str)


def check(path: WholePath, receiver: Receiver) -> None:
    for name in ("d.a", "d.b"):
        assert sorted(receiver.state(name), key=str) == upstream_rows(path, name), name


def work(path: WholePath, at: int, rng: random.Random) -> None:
    """Write, change and delete rows of both tables, around a DDL inside a window and one that ends it."""
    path.write({t: {i: f"{at} {i}" for i in rng.sample(range(40), 25)} for t in ("d.a", "d.b")})
    path.write({"d.a": dict.fromkeys(rng.sample(range(40), 10), f"again {at}")}, {"d.b": [99]})
    if at == 1:
        path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN x INT DEFAULT 7")
    if at == 2:
        path.upstream.execute_ddl("TRUNCATE TABLE d.b")
    path.write({"d.b": dict.fromkeys(range(5)), "d.a": {at: "last"}})


def test_a_receiver_rebuilds_the_tables(path: WholePath, receiver: Receiver) -> None:
    rng = random.Random(4)
    path.write({"d.a": dict.fromkeys(range(30), "first")})
    path.drain()
    for at in range(4):
        work(path, at, rng)
        path.drain()
        check(path, receiver)
    assert receiver.checkpoint_ts == path.feed.checkpoint_ts()
    assert [ddl["kind"] for ddl in receiver.ddls] == ["add_column", "truncate_table"]
    assert receiver.repeats == 0


def test_faults_and_kills_and_repeated_attempts(path: WholePath, receiver: Receiver) -> None:
    rng = random.Random(7)
    path.drain()
    faults = [Fault(500), Fault(503, take=True), Fault(cut=True), Fault(cut=True, take=True), Fault(429, (("Retry-After", "0"),))]
    receiver.faults = lambda _: rng.choice(faults) if rng.random() < 0.2 else None
    points = ["http-post:before=raise@3", "http-post:after=raise@4", "progress:before=raise@1", "progress:after=raise@1", ""]
    for at, point in enumerate(points):
        work(path, at, rng)
        arm(point)
        with contextlib.suppress(PenstockError) if point else contextlib.nullcontext():
            path.drain()
        arm("")
        # A window that is not committed comes again, with the same messages.
        path.feed.run_window(commit=False)
        path.drain()
        check(path, receiver)
    ids: dict[tuple[str, str], set[str]] = {}
    for told, request in zip(receiver.bodies(), receiver.requests, strict=True):
        ids.setdefault((told["lane"], told["sequence"]), set()).add(request.headers["idempotency-key"])
    assert all(len(found) == 1 for found in ids.values()), "the same rows, the same key"
    assert receiver.repeats > 0


def test_two_attempts_at_once(path: WholePath, receiver: Receiver) -> None:
    rng = random.Random(11)
    path.drain()
    work(path, 0, rng)
    path.wait_resolved(path.upstream.current_ts())
    first_held, go_on = threading.Event(), threading.Event()
    held: list[int] = []

    def hold_one(_: dict[str, Any]) -> Fault | None:
        if held:
            return None
        held.append(1)
        first_held.set()
        return Fault(take=True, hold=go_on)

    receiver.faults = hold_one
    with ThreadPoolExecutor(1) as pool:
        # One attempt stands still in the middle of a body; another one does the whole window meanwhile, and the next.
        slow = pool.submit(path.feed.run_window, commit=False)
        assert first_held.wait(60)
        try:
            path.drain()
            work(path, 3, rng)
            path.drain()
            check(path, receiver)
        finally:
            go_on.set()
        with contextlib.suppress(PenstockError):
            slow.result(60)
    check(path, receiver)
    assert receiver.repeats > 0
