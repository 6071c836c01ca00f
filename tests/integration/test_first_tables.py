"""A feed begins with the tables that there are when its log begins, whatever happened to them since it was created."""

import pytest

from testing.checks.lives.files import read_target
from testing.paths.one_log_path import OneLogPath
from testing.servers.databases.postgres_lab import PostgresLab

pytestmark = pytest.mark.integration
BEFORE = (
    "CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY); INSERT INTO shop.t VALUES (1);"
    "CREATE TABLE shop.gone (id int PRIMARY KEY); CREATE TABLE shop.again (id int PRIMARY KEY); INSERT INTO shop.again VALUES (1), (2)"
)
BETWEEN = (
    "CREATE TABLE shop.late (id int PRIMARY KEY); INSERT INTO shop.late VALUES (5); DROP TABLE shop.gone;"
    "DROP TABLE shop.again; CREATE TABLE shop.again (id int PRIMARY KEY, v text); INSERT INTO shop.again VALUES (7, 'new');"
    "ALTER TABLE shop.t RENAME TO moved; INSERT INTO shop.moved VALUES (2)"
)


@pytest.fixture
def lab(tmp_path):
    lab = PostgresLab(tmp_path / "server")
    lab.sql(BEFORE)
    yield lab
    lab.stop()


class LatePath(OneLogPath):
    """A path whose log begins after something has happened to the tables that its feed was created with."""

    lab: PostgresLab

    def open(self, *given):
        """Open all services."""
        if self.lab is not None:
            self.lab.sql(BETWEEN)
            type(self).lab = None
        super().open(*given)


def test_the_tables_of_a_feed_are_those_when_its_log_begins(lab, tmp_path):
    (tmp_path / "feed").mkdir()
    LatePath.lab = lab
    path = LatePath(tmp_path / "feed", lab.uri, ["shop.*"])
    try:
        path.begin()
        lab.sql("INSERT INTO shop.late VALUES (6); INSERT INTO shop.moved VALUES (3); DELETE FROM shop.again")
        path.drain()
        held = {name: sorted(row[0] for row in table.shown()) for name, table in read_target(path.target, "shop").items()}
        names = [name for (name,) in lab.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'shop'")]
        assert held == {name: [number for (number,) in lab.sql(f"SELECT id FROM shop.{name} ORDER BY id")] for name in names}
    finally:
        path.close()
