"""A running feed follows DDLs of partitions: rows of partitions that are dropped, truncated or exchanged leave, those put together stay."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.format.layout.paths import parse_schema_path
from penstock.format.layout.schema_file import parse_schema_file
from penstock.model.ddl import DdlType
from penstock.readback.consumer import StorageConsumer
from penstock.readback.inspection import check_target
from penstock.readback.replay_opening import open_database
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget
from testing.paths.whole_path import WholePath, row_key

COLUMNS = "(id INT PRIMARY KEY, v VARCHAR(40))"
SETUP = [
    "CREATE DATABASE d",
    f"CREATE TABLE d.t {COLUMNS} PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200))",
    f"CREATE TABLE d.u {COLUMNS}",
]


class Partitioned:
    """A partitioned table and an ordinary one, and what each partition must hold. The id of a row says its partition."""

    def __init__(self, path: WholePath) -> None:
        self.path = path
        self.ids = dict(zip(["p0", "p1"], self.physical("d.t"), strict=True))
        self.rows: dict[str, set[int]] = {"p0": set(), "p1": set(), "u": set()}

    def physical(self, name: str) -> list[int]:
        return sorted(t.table_id for t in self.path.upstream.list_tables() if t.full_name == name)

    def write(self, *ids: tuple[str, int]) -> None:
        txn = self.path.upstream.txn()
        for part, row_id in ids:
            table_id = self.physical("d.u")[0] if part == "u" else self.ids[part]
            table = next(t for t in self.path.upstream.list_tables() if t.table_id == table_id)
            txn.put(table, {"id": pa.array([row_id], pa.int32()), "v": pa.array([f"{part} {row_id}"])})
            self.rows[part].add(row_id)
        txn.commit()

    def move(self, row_id: int, source: str, to: str) -> None:
        """Let a row go from one partition to another, as an update of the column that divides them does."""
        tables = {t.table_id: t for t in self.path.upstream.list_tables()}
        txn = self.path.upstream.txn()
        txn.delete(tables[self.ids[source]], pa.array([row_key(row_id)], pa.binary()))
        txn.put(tables[self.ids[to]], {"id": pa.array([row_id], pa.int32()), "v": pa.array([f"moved to {to}"])})
        txn.commit()
        self.rows[source].remove(row_id)
        self.rows[to].add(row_id)

    def run(self, query: str, made: tuple[str, ...] = (), gone: tuple[str, ...] = ()) -> None:
        before = set(self.physical("d.t"))
        self.path.upstream.execute_ddl(query)
        fresh = sorted(set(self.physical("d.t")) - before)
        for name in gone:
            del self.ids[name], self.rows[name]
        self.ids |= dict(zip(made, fresh, strict=True))
        self.rows |= {name: set() for name in made}

    def check(self) -> None:
        path = self.path
        path.drain()
        wanted = {"d.t": sum(len(self.rows[name]) for name in self.ids), "d.u": len(self.rows["u"])}
        verdict = path.verify()
        verdict.check()
        assert {t.name: t.rows for t in verdict.tables} == wanted
        target_uri, sink = from_uri(path.target_uri)
        assert list(check_target(ObjectTarget.open(target_uri), sink)) == []
        with contextlib.closing(open_database(f"sqlite:///{path.root / 'replayed.db'}")) as database:
            StorageConsumer(path.reader(), database).run_round()
            for name, parts in {"t": self.ids, "u": ["u"]}.items():
                found = database._fetch(f"SELECT id FROM {database.dialect.table('d', name)}", ())
                assert {row[0] for row in found} == set().union(*(self.rows[p] for p in parts)), name


@pytest.fixture(params=["separated", "together"])
def lab(tmp_path: Path, request: pytest.FixtureRequest):
    query = "?enable-partition-separator=false" if request.param == "together" else ""
    with contextlib.closing(WholePath(tmp_path, SETUP, target_uri=f"{(tmp_path / 'files').as_uri()}{query}" if query else "")) as path:
        yield Partitioned(path)


def test_a_life_with_partitions(lab):
    lab.write(("p0", 1), ("p0", 2), ("p1", 101), ("u", 7))
    lab.check()
    lab.run("ALTER TABLE d.t ADD PARTITION (PARTITION p2 VALUES LESS THAN (300))", made=("p2",))
    lab.write(("p2", 201), ("p0", 3))
    lab.move(101, "p1", "p0")
    lab.move(1, "p0", "p2")
    lab.move(201, "p2", "p1")
    lab.check()
    lab.run("ALTER TABLE d.t TRUNCATE PARTITION p0", made=("p0",))
    lab.write(("p0", 4), ("p1", 102))
    lab.check()
    lab.path.upstream.execute_ddl("ALTER TABLE d.t ADD COLUMN n INT DEFAULT 3")
    lab.write(("p0", 5))
    kept = lab.rows["p0"] | lab.rows["p1"]
    lab.run("ALTER TABLE d.t REORGANIZE PARTITION p0, p1 INTO (PARTITION q VALUES LESS THAN (200))", gone=("p0", "p1"), made=("q",))
    lab.rows["q"] |= kept
    lab.write(("q", 4), ("q", 103))
    lab.check()
    lab.path.restart(lose_store=True)
    lab.run("ALTER TABLE d.t DROP PARTITION q", gone=("q",))
    lab.write(("p2", 202))
    lab.check()
    lab.path.upstream.execute_ddl("TRUNCATE TABLE d.t")
    lab.ids = {"p2": lab.physical("d.t")[0]}
    lab.rows = {"p2": set(), "u": lab.rows["u"]}
    lab.write(("p2", 250))
    lab.check()


def test_a_partition_changes_places_with_a_table(lab):
    lab.write(("p0", 1), ("p0", 2), ("p1", 101), ("u", 7))
    lab.path.drain()
    lab.path.upstream.execute_ddl("ALTER TABLE d.t EXCHANGE PARTITION p0 WITH TABLE d.u")
    lab.ids["p0"] = next(i for i in lab.physical("d.t") if i != lab.ids["p1"])
    lab.rows["p0"], lab.rows["u"] = lab.rows["u"], lab.rows["p0"]
    lab.write(("p0", 8), ("u", 3))
    lab.check()
    target = lab.path.root / "files"
    paths = [str(p.relative_to(target)) for p in target.rglob("schema_*.json")]
    files = [parse_schema_file((target / p).read_bytes(), p) for p in sorted(paths) if parse_schema_path(p)]
    last = max(f.table_version for f in files)
    assert {(f.table, f.type, bool(f.query)) for f in files if f.table_version == last} == {
        ("u", DdlType.EXCHANGE_PARTITION, True),
        ("t", DdlType.NONE, False),
    }


def test_partitions_lie_in_directories_of_their_ids_or_have_them_in_names(lab):
    lab.write(("p0", 1), ("p1", 101))
    lab.check()
    files = list((lab.path.root / "files" / "d" / "t").rglob("CDC*.csv"))
    if "separator" in lab.path.target_uri:
        assert {p.name.split("_")[1] for p in files} == {f"{i}0000" for i in lab.ids.values()}
    else:
        assert {p.parent.parent.name for p in files} == {str(i) for i in lab.ids.values()}
