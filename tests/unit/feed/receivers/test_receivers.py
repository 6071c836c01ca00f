"""Receivers capture, lose each other, and the target equals the upstream: the whole path in one process, with the data server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from penstock.model.errors import PenstockError
from penstock.server.verify.verification import open_reader
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.ticket import call_token
from testing.checks.target_audit import DeliveredChanges
from testing.paths.received_path import ReceivedPath

TABLES = [f"d.t{n}" for n in range(4)]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[ReceivedPath]:
    path = ReceivedPath(tmp_path, ["CREATE DATABASE d", *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v TEXT)" for name in TABLES)])
    yield path
    path.close()


def check(path: ReceivedPath) -> None:
    """Deliver everything; the target has the upstream's rows, and each change once."""
    path.drain()
    verdict = path.verify()
    assert verdict.identical, verdict
    assert DeliveredChanges(open_reader(path.target_uri, {})).problems() == []


def write(path: ReceivedPath, first: int) -> None:
    """Insert rows, change some and delete some that were there before."""
    path.write({name: {i: f"{name} {i}" for i in range(first, first + 40)} for name in TABLES})
    if first:
        path.write({name: dict.fromkeys(range(first - 40, first - 20), f"changed {first}") for name in TABLES})
        path.write({}, {name: range(first - 20, first - 10) for name in TABLES})


def all_parts(path: ReceivedPath) -> dict[int, int]:
    """Return the part of each span; some may be on their way from one receiver to the other."""
    found: dict[int, int] = {}

    def all_there() -> bool:
        found.update(path.jobs.all_parts())
        return len(found) == len(TABLES)

    path.wait_until("all are captured", all_there)
    return found


def test_receivers_are_lost_and_come_back_and_the_target_equals_the_upstream(path: ReceivedPath) -> None:
    write(path, 0)
    check(path)
    path.wait_until("both have as much", lambda: len(path.jobs.parts(0)) == len(path.jobs.parts(1)) == 2)
    write(path, 40)
    path.lose(0)
    write(path, 80)
    # Until the loss is noticed, what the lost one captures counts: a window that is read from it just then would have to be tried again.
    path.wait_until("the other one takes them", lambda: len(path.jobs.parts(1)) == 4)
    check(path)
    write(path, 120)
    path.jobs.cut_off.clear()
    path.wait_until("parts are given back", lambda: len(path.jobs.parts(0)) == len(path.jobs.parts(1)) == 2)
    write(path, 160)
    check(path)


def test_a_server_that_comes_back_finds_what_its_receivers_had(path: ReceivedPath) -> None:
    write(path, 0)
    check(path)
    homes = all_parts(path)
    assert sorted(homes.values()) == [0, 1, 2, 3]
    write(path, 40)
    path.restart()
    write(path, 80)
    check(path)
    assert all_parts(path) == homes


def test_a_table_that_comes_and_one_that_changes(path: ReceivedPath) -> None:
    write(path, 0)
    path.upstream.execute_ddl("CREATE TABLE d.later (id INT PRIMARY KEY, v TEXT)")
    path.write({"d.later": {1: "one", 2: None}})
    path.upstream.execute_ddl("ALTER TABLE d.t0 ADD COLUMN w INT")
    write(path, 40)
    check(path)
    assert "d.later" in path.live_tables()


def test_a_reader_of_the_store_cannot_say_that_it_is_a_receiver(path: ReceivedPath) -> None:
    path.wait_until("both are there", lambda: path.jobs.heard.keys() == {0, 1})
    said = path.jobs.heard[0][-1]
    with closing(FlightStoreClient(path.flight.location, path.flight.token)) as reader:
        forged = msgspec.structs.replace(said, proof=call_token(b"guessed"), receiver="forged")
        with pytest.raises(PenstockError, match="TICKET_INVALID"):
            reader.report(msgspec.json.encode(forged))
