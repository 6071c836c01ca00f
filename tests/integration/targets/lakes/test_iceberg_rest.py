"""Iceberg with a REST catalog on loopback: DDLs, verification, upkeep, and a service that refuses, hangs, or loses its answers."""

import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from pyiceberg.catalog import load_catalog

from penstock.model.errors import PenstockError
from penstock.server.verify.tables_verification import TablesVerifier
from penstock.sink.catalog import open_tables
from penstock.sink.iceberg import catalogs
from penstock.sink.lake.upkeep import Upkeep
from testing.paths.whole_path import WholePath, lose_history, read_state
from testing.targets.iceberg_rest import Fault, RestService, iceberg_rest
from tests.integration.targets.lakes.test_lakes import TABLES
from tests.integration.targets.test_flaky_target import deliver

pytestmark = pytest.mark.integration


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RestService]:
    with iceberg_rest(tmp_path) as found:
        yield found


@contextlib.contextmanager
def feed(tmp_path: Path, service: RestService, told: str = "", **options: str) -> Iterator[WholePath]:
    uri = f"iceberg+file://{tmp_path}/warehouse"
    chosen = {"catalog": f"{service.address}{told}", **options}
    with contextlib.closing(WholePath(tmp_path / "feed", TABLES, target_uri=uri, sink_options=chosen)) as path:
        yield path


def rows(service: RestService, name: str, **told: str) -> list[tuple[object, ...]]:
    """Read a table as any client of the service does."""
    catalog = load_catalog("reader", type="rest", uri=service.address, **told)
    return sorted(pl.DataFrame(catalog.load_table(name).scan().to_arrow()).rows())


def check(path: WholePath, service: RestService, *names: str, **told: str) -> None:
    for name in names:
        want = read_state(path.upstream, path.table(name), path.upstream.current_ts())
        assert rows(service, name, **told) == sorted(want.rows()), name


def test_tables_follow_their_upstream_and_are_verified(tmp_path: Path, service: RestService) -> None:
    (tmp_path / "feed").mkdir()
    with feed(tmp_path, service) as path:
        path.write({"d.a": {i: f"a{i}" for i in range(10)}, "d.b": {1: "x"}})
        path.drain()
        path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN w INT DEFAULT 7")
        path.upstream.execute_ddl("RENAME TABLE d.b TO d.c")
        path.write({"d.c": {6: "renamed"}}, {"d.a": [4]})
        path.drain()
        path.upstream.execute_ddl("TRUNCATE TABLE d.c")
        path.upstream.execute_ddl("CREATE TABLE d.late (id INT PRIMARY KEY, v VARCHAR(20))")
        path.write({"d.late": {1: "x"}})
        path.drain()
        check(path, service, "d.a", "d.c")
        path.upstream.execute_ddl("DROP TABLE d.c")
        path.drain()
        with contextlib.closing(open_tables(path.target_uri, path.sink_options)) as tables:
            TablesVerifier(tables, path.upstream).verify(sorted(path.live_tables().values()), looks_max=3).check()
        upkeep = Upkeep.open(path.target_uri, path.sink_options)
        list(upkeep.compact([]))
        list(upkeep.expire([], 0))
        path.write({"d.a": {4: "back"}})
        path.drain()
        check(path, service, "d.a", "d.late")
        assert rows(service, "penstock.checkpoint")[0][0] == path.feed.checkpoint_ts()


def test_what_differs_is_delivered_where_history_is_lost(tmp_path: Path, service: RestService) -> None:
    (tmp_path / "feed").mkdir()
    with feed(tmp_path, service) as path:
        path.write({"d.a": {i: f"a{i}" for i in range(10)}})
        path.drain()
        lose_history(path)
        path.write({"d.a": {1: "meanwhile", 40: "new"}}, {"d.a": [3]})
        path.drain()
        check(path, service, "d.a")


def test_a_service_that_loses_answers_and_is_away_has_every_row_once(tmp_path: Path, service: RestService) -> None:
    (tmp_path / "feed").mkdir()
    rng, seen = random.Random(11), set[Fault]()
    kinds = [Fault(0, done=True), Fault(500, done=True), Fault(504, done=True), Fault(0), Fault(500), Fault(503), Fault(429), Fault(409)]

    def fault(method: str, path: str) -> Fault | None:
        if rng.random() > 0.08:
            return None
        seen.add(chosen := rng.choice(kinds if method == "POST" and "/tables/" in path else kinds[3:-1]))
        return chosen

    with feed(tmp_path, service) as path:
        path.write({"d.a": {1: "first"}, "d.b": {1: "first"}})
        path.drain()
        service.faults = fault
        for at in range(8):
            ts = path.write({"d.a": {i: f"{at} {i}" for i in range(at, at + 5)}, "d.b": {at: "x"}}, {"d.a": [at - 1] if at else []})
            if at in {2, 5}:
                ts = path.upstream.execute_ddl(f"ALTER TABLE d.b ADD COLUMN w{at} INT DEFAULT 7")
            deliver(path, ts)
        service.faults = lambda _method, _path: None
        path.drain()
        check(path, service, "d.a", "d.b")
    assert len(seen) > 4


def test_a_service_that_hangs_is_given_up_after_a_while(tmp_path: Path, service: RestService, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "feed").mkdir()
    with feed(tmp_path, service) as path:
        path.write({"d.a": {1: "x"}})
        path.drain()
        monkeypatch.setattr(catalogs, "_ANSWER_S_MAX", 0.5)
        path.write({"d.a": {1: "y"}})
        held = threading.Event()
        service.faults = lambda method, path: Fault(503, hold=held) if method == "POST" else None
        try:
            with pytest.raises(PenstockError, match="SINK_UNAVAILABLE"):
                path.drain()
        finally:
            service.faults = lambda _method, _path: None
            held.set()
            monkeypatch.undo()
        path.drain()
        check(path, service, "d.a")


def test_who_may_not_enter_is_told_so_without_the_secret(tmp_path: Path, service: RestService) -> None:
    (tmp_path / "feed").mkdir()
    service.token = "open-sesame"
    with feed(tmp_path, service, "?token=wrong-word") as path:
        path.write({"d.a": {1: "x"}})
        with pytest.raises(PenstockError, match="SINK_UNWRITABLE") as refused:
            path.drain()
    assert "wrong-word" not in str(refused.value)


@pytest.mark.parametrize("told", ["?token=open-sesame&warehouse=lake", "?credential=me:secret&warehouse=lake"])
def test_a_service_is_entered_and_told_which_warehouse(tmp_path: Path, service: RestService, told: str) -> None:
    (tmp_path / "feed").mkdir()
    service.token = "open-sesame"
    with feed(tmp_path, service, told) as path:
        path.write({"d.a": {1: "x"}})
        path.drain()
        check(path, service, "d.a", token="open-sesame", **{"oauth2-server-uri": f"{service.address}/v1/oauth/tokens"})
    assert set(service.warehouses) == {"lake"}


@pytest.mark.parametrize("told", ["?py-io-impl=os.system", "?token=x&auth.impl=a.b"])
def test_nothing_else_is_passed_on_to_the_library(tmp_path: Path, service: RestService, told: str) -> None:
    (tmp_path / "feed").mkdir()
    with feed(tmp_path, service, told) as path, pytest.raises(PenstockError, match=r"CONFIG_INVALID.*REST catalog takes"):
        path.drain()
