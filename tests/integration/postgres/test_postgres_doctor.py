"""``penstock doctor`` on a real PostgreSQL: each statement that it gives makes its finding go away."""

import json

import pytest
from click.testing import CliRunner

from penstock.cli.feeds.doctor import doctor
from penstock.cli.main import run
from penstock.model.errors import PenstockError
from penstock.source.catalog import examine, examine_server, survey
from penstock.source.postgres.upstream import PostgresSettings, PostgresUpstream
from penstock.source.postgres.wire.address import parse_address
from testing.servers.databases.postgres_lab import PostgresLab

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
    lab.sql("CREATE ROLE readers; GRANT readers TO cdc")
    assert {f.name for f in examine_server(uri) if f.blocks} == {"wal_level", "replication privilege", "publication penstock"}
    lab.sql("CREATE PUBLICATION penstock FOR TABLE shop.good WITH (publish = 'insert')")
    assert {f.name for f in examine_server(uri) if f.blocks} == {"wal_level", "replication privilege"}
    found = {f.name: f for f in examine(uri, ["shop.*"])}
    wrong = {name for name, f in found.items() if f.blocks}
    owner = address.user
    before = {t.table: t for t in survey(uri, ["shop.*"])}
    assert {name: t.captured for name, t in before.items()} == {"good": False, "bare": False, "shut": False}
    assert {name: t.notes[0] for name, t in before.items()} == dict.fromkeys(before, "not readable")
    assert all(t.nbytes is not None for t in before.values())
    assert wrong == {
        *("wal_level", "replication privilege", "publication penstock"),
        *(f"shop.{t}: privilege" for t in ("good", "bare", "shut")),
        *("shop.shut: replica identity", "shop.bare: publication", "shop.shut: publication"),
    }
    later = {name: str(f.level) for name, f in found.items() if not f.ok and name not in wrong}
    assert later == {f"tables to come in shop of {owner}": "should", "shop.bare: replica identity": "note"}
    assert found["shop.shut: replica identity"].statement == 'ALTER TABLE "shop"."shut" REPLICA IDENTITY DEFAULT;'
    for name in sorted({*wrong, *later}, key=lambda n: "publication penstock" not in n):
        for statement in found[name].statement.partition("--")[0].split(";"):
            if statement.strip():
                lab.sql(statement)
    lab.restart()
    assert all(f.ok for f in [*examine(uri, ["shop.*"]), *examine_server(uri)])
    after = {t.table: (t.key, t.captured, t.notes) for t in survey(uri, ["shop.*"])}
    assert after == {"good": (("id",), True, ()), "bare": (("id",), True, ()), "shut": (("id",), True, ())}
    lab.sql("CREATE TABLE shop.later (id int PRIMARY KEY)")
    assert "shop.later: privilege" not in {f.name for f in examine(uri, ["shop.*"])}, "tables to come are readable"
    lab.sql("DROP TABLE shop.later")
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
    assert 'run:    ALTER TABLE "shop"."good" REPLICA IDENTITY DEFAULT;' in shown.output
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        examine(uri, ["nothing.*"])


def test_tables_that_look_right_and_are_not(lab):
    address = parse_address(lab.uri)
    uri = f"postgresql://cdc:x@{address.host}:{address.port}/{address.database}?publication=empty"
    lab.sql("CREATE SCHEMA trap; CREATE PUBLICATION empty WITH (publish_via_partition_root = true)")
    lab.sql("CREATE TABLE trap.late (id int, PRIMARY KEY (id) DEFERRABLE); CREATE TABLE trap.secret (id int PRIMARY KEY)")
    lab.sql("ALTER TABLE trap.secret ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON trap.secret USING (id > 5)")
    lab.sql("CREATE TABLE trap.parts (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE trap.p1 PARTITION OF trap.parts DEFAULT")
    lab.sql('ALTER TABLE trap.p1 REPLICA IDENTITY NOTHING; CREATE UNLOGGED TABLE trap.brief (id int); CREATE TABLE trap."Odd ""x" (v int)')
    lab.sql("CREATE TABLE trap.half (a int, c int, b int GENERATED ALWAYS AS (c * 2) STORED, PRIMARY KEY (a, b))")
    lab.sql("CREATE TABLE trap.split (id int PRIMARY KEY, u int NOT NULL) PARTITION BY RANGE (id)")
    lab.sql("CREATE TABLE trap.s1 PARTITION OF trap.split DEFAULT; CREATE UNIQUE INDEX s1u ON trap.s1 (u)")
    lab.sql("ALTER TABLE trap.s1 REPLICA IDENTITY USING INDEX s1u")
    lab.sql("GRANT USAGE ON SCHEMA trap TO cdc; GRANT SELECT ON ALL TABLES IN SCHEMA trap TO cdc")
    found = {f.name: f for f in examine(uri, ["trap.*"])}
    blocking = {n for n, f in found.items() if f.blocks and n.startswith("trap")}
    assert blocking == {
        *(f"trap.{t}: publication" for t in ("late", "secret", "parts", "half", "split", 'Odd "x')),
        *("trap.late: replica identity", "trap.half: replica identity", "trap.secret: row-level security"),
        *("trap.parts: partitions", "trap.split: partitions"),
    }
    assert found["trap.brief"].found.startswith("unlogged")
    for name in sorted(blocking):
        lab.sql(found[name].statement)
    found = {f.name: f for f in examine(uri, ["trap.*"])}
    assert not [n for n, f in found.items() if f.blocks and n.startswith("trap")]
    assert {n: str(f.level) for n, f in found.items() if not f.ok and n.startswith("trap")} == {
        "trap.brief": "note",
        "trap.half: replica identity": "should",
        "trap.late: replica identity": "note",
        'trap.Odd "x: replica identity': "note",
    }
    lab.sql(found['trap.Odd "x: replica identity'].statement)
    assert {f.name for f in examine(uri, ["trap.*"]) if not f.ok and "Odd" in f.name} == set()
    lab.sql("DROP SCHEMA trap CASCADE; DROP PUBLICATION empty; ALTER ROLE cdc NOBYPASSRLS")


def test_a_source_without_a_doctor_is_refused(capsys):
    assert run(["doctor", "dataserver://127.0.0.1:1"]) == 2
    assert "has no doctor" in capsys.readouterr().err
