"""``penstock doctor`` on a real PostgreSQL: each statement that it gives makes its finding go away."""

import json

import pytest
from click.testing import CliRunner

from penstock.cli.doctor import doctor
from penstock.cli.main import run
from penstock.model.errors import PenstockError
from penstock.source.catalog import examine
from penstock.source.postgres.upstream import PostgresSettings, PostgresUpstream
from penstock.source.postgres.wire.address import parse_address
from penstock.testing.servers.postgres_lab import PostgresLab

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = PostgresLab(tmp_path_factory.mktemp("doctor"), ())
    lab.sql("CREATE SCHEMA shop; CREATE TABLE shop.good (id int PRIMARY KEY); CREATE TABLE shop.bare (v int)")
    lab.sql(
        "CREATE TABLE shop.shut (id int PRIMARY KEY); ALTER TABLE shop.shut REPLICA IDENTITY NOTHING; CREATE ROLE cdc LOGIN PASSWORD 'x'"
    )
    yield lab
    lab.stop()


def test_every_statement_fixes_its_finding(lab):
    address = parse_address(lab.uri)
    uri = f"postgresql://cdc:x@{address.host}:{address.port}/{address.database}"
    lab.sql("CREATE PUBLICATION penstock FOR TABLE shop.good WITH (publish = 'insert')")
    found = {f.name: f for f in examine(uri, ["shop.*"])}
    wrong = {name for name, f in found.items() if not f.ok}
    assert wrong == {
        *("wal_level", "replication privilege", "publication penstock"),
        *(f"shop.{t}: privilege" for t in ("good", "bare", "shut")),
        *("shop.bare: replica identity", "shop.shut: replica identity"),
    }
    for name in sorted(wrong, key=lambda n: "publication penstock" not in n):
        for statement in found[name].statement.partition("--")[0].split(";"):
            if statement.strip():
                lab.sql(statement)
    lab.restart()
    again = {f.name: f for f in examine(uri, ["shop.*"])}
    assert {n for n, f in again.items() if not f.ok} == {"shop.bare: publication", "shop.shut: publication"}
    for name in ("shop.bare: publication", "shop.shut: publication"):
        lab.sql(again[name].statement)
    assert all(f.ok for f in examine(uri, ["shop.*"]))
    upstream = PostgresUpstream(uri, PostgresSettings(reader_wait_s=0.0))
    assert upstream.first_position().ts > 0, "what the doctor lets pass can be captured with no more privileges than it named"
    ticket = upstream.begin_snapshot()
    upstream.end_snapshot(ticket)
    upstream.close()
    shown = CliRunner().invoke(doctor, [uri, "--output", "json"], standalone_mode=False)
    assert shown.return_value == 0
    assert json.loads(shown.output)["ok"] is True
    lab.sql("ALTER TABLE shop.good REPLICA IDENTITY NOTHING")
    shown = CliRunner().invoke(doctor, [uri, "--table", "shop.good"], standalone_mode=False)
    assert shown.return_value == 1
    assert 'run:    ALTER TABLE "shop"."good" REPLICA IDENTITY FULL;' in shown.output
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        examine(uri, ["nothing.*"])


def test_a_source_without_a_doctor_is_refused(capsys):
    assert run(["doctor", "dataserver://127.0.0.1:1"]) == 2
    assert "has no doctor" in capsys.readouterr().err
