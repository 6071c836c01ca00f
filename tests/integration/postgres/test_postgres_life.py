"""A feed on PostgreSQL while the server restarts under load and its own process comes and goes: its files replay to the tables."""

import random
import threading

import pytest

from penstock.feed.window.following import live_dispatchers
from penstock.model.errors import PenstockError
from testing.paths.one_log_path import OneLogPath
from testing.servers.databases.postgres_lab import PostgresLab

pytestmark = [pytest.mark.integration, pytest.mark.chaos]
ROUNDS = 4


def write(lab, stop, seed):
    """Write all the time; a server that is away is waited for."""
    rng, never, session = random.Random(seed), threading.Event(), None
    while not stop.is_set():
        try:
            session = session or lab.session()
            session.query("BEGIN")
            for _ in range(rng.randrange(1, 5)):
                low = rng.randrange(2000)
                session.query(
                    rng.choice(
                        [
                            f"UPDATE shop.orders SET amount = amount + 1 WHERE id BETWEEN {low} AND {low + 15}",
                            f"DELETE FROM shop.orders WHERE id BETWEEN {low} AND {low + 2}",
                            f"INSERT INTO shop.orders SELECT g, 'n', 0, repeat('b', 3000) FROM generate_series({low}, {low + 9}) g"
                            " ON CONFLICT DO NOTHING",
                            f"SAVEPOINT s; DELETE FROM shop.orders WHERE id < {low}; ROLLBACK TO s",
                            f"UPDATE shop.orders SET id = id + 100000 WHERE id = {low}",
                        ]
                    )
                )
            session.query("COMMIT" if rng.random() < 0.85 else "ROLLBACK")
        except PenstockError:
            if session is not None:
                session.close()
            session = None
            never.wait(0.05)
    if session is not None:
        session.close()


def tables_after_drain(path):
    path.drain()
    return len(live_dispatchers(path.context, path.meta))


def test_restarts_on_both_sides_lose_nothing(tmp_path):
    lab = PostgresLab(tmp_path / "server")
    lab.sql("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY, note text, amount int, big text)")
    lab.sql("ALTER TABLE shop.orders ALTER big SET STORAGE EXTERNAL")
    lab.sql("INSERT INTO shop.orders SELECT g, 'first', 0, repeat('x', 3000) FROM generate_series(1, 1500) g")
    (tmp_path / "feed").mkdir()
    path = OneLogPath(tmp_path / "feed", lab.uri, ["shop.*"])
    stop = threading.Event()
    writers = [threading.Thread(target=write, args=(lab, stop, seed)) for seed in range(2)]
    try:
        for writer in writers:
            writer.start()
        path.begin()
        for number in range(ROUNDS):
            lab.restart()
            if number % 2:
                lab.sql(f"ALTER TABLE shop.orders ADD COLUMN c{number} int DEFAULT {number}")
            # One table comes in each round, and the one before it goes; every other time under the same name.
            lab.sql(f"DROP TABLE IF EXISTS shop.brief{abs(number - 1) // 2}")
            lab.sql(f"CREATE TABLE shop.brief{number // 2} (id int PRIMARY KEY, n int)")
            lab.sql(f"INSERT INTO shop.brief{number // 2} SELECT g, {number} FROM generate_series(1, {10 * number + 5}) g")
            path.drain()
            path.restart()
            path.drain()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    lab.sql("UPDATE shop.orders SET note = 'last' WHERE id < 50")
    path.wait_until("dropped tables are gone", lambda: tables_after_drain(path) == 2)
    verdict = path.verify()
    verdict.check()
    assert {t.name: t.rows for t in verdict.tables if t.name != "shop.orders"} == {"shop.brief1": 10 * (ROUNDS - 1) + 5}
    assert verdict.rows > 500
    assert path.meta.resnapshots("f") == 0
    path.close()
    lab.stop()
