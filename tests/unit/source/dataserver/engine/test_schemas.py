import pytest

from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.types import ColumnType, TypeKind
from penstock.source.dataserver.engine.schemas import Schemas


class Database:
    """Schemas with a ts that counts."""

    def __init__(self):
        self.schemas = Schemas()
        self.ts = 0

    def run(self, query):
        self.ts += 10
        event = self.schemas.plan(query)(self.ts)
        if event is not None:
            self.schemas.apply(event)
        return event

    def refuse(self, query):
        with pytest.raises(PenstockError) as caught:
            self.run(query)
        return caught.value


@pytest.fixture
def db():
    database = Database()
    database.run("CREATE DATABASE d")
    database.run("CREATE TABLE d.t (id BIGINT NOT NULL PRIMARY KEY, a INT, b VARCHAR(10) DEFAULT 'x')")
    return database


def names(table):
    return [c.name for c in table.columns]


def test_every_type_is_read_from_its_definition(db):
    event = db.run(
        """CREATE TABLE d.w (id BIGINT UNSIGNED NOT NULL, i INT(5) UNSIGNED ZEROFILL, m MEDIUMINT UNSIGNED,
        dc DECIMAL(10,2) NOT NULL DEFAULT '1.5', nm NUMERIC(5),
        e ENUM('a','b') DEFAULT 'b', s SET('x','y'), bt BIT(8) DEFAULT b'101', y YEAR, j JSON, tx MEDIUMTEXT,
        vb VARBINARY(20),
        lb LONGBLOB, tm TIME(3), ts TIMESTAMP(6) NULL, dt DATETIME DEFAULT CURRENT_TIMESTAMP, da DATE, c CHAR(5) COMMENT 'z', bi BINARY(3),
        f FLOAT, db DOUBLE, bo BOOLEAN, neg INT DEFAULT -5, PRIMARY KEY (id, i), KEY k (e)) ENGINE=InnoDB"""
    )
    table = event.tables[0]
    types = {c.name: c.type for c in table.columns}
    assert types["id"] == ColumnType(TypeKind.BIGINT, unsigned=True)
    assert types["i"] == ColumnType(TypeKind.INT, unsigned=True, zerofill=True, length=5)
    assert types["dc"] == ColumnType(TypeKind.DECIMAL, length=10, scale=2)
    assert types["nm"] == ColumnType(TypeKind.DECIMAL, length=5, scale=0)
    assert types["e"] == ColumnType(TypeKind.ENUM, elems=("a", "b"))
    assert types["bt"] == ColumnType(TypeKind.BIT, length=8)
    assert types["tm"] == ColumnType(TypeKind.TIME, scale=3)
    assert types["ts"] == ColumnType(TypeKind.TIMESTAMP, scale=6)
    assert types["bo"] == ColumnType(TypeKind.TINYINT, length=1)
    assert [types[n].kind.value for n in ("m", "s", "y", "j", "tx", "vb", "lb", "dt", "da", "c", "bi", "f", "db")] == [
        "MEDIUMINT", "SET", "YEAR", "JSON", "MEDIUMTEXT", "VARBINARY", "LONGBLOB", "DATETIME", "DATE", "CHAR", "BINARY", "FLOAT", "DOUBLE",
    ]  # fmt: skip
    assert [c.name for c in table.key_columns] == ["id", "i"]
    assert {c.name: c.default for c in table.columns if c.default} == {
        "dc": "1.5", "e": "b", "bt": "b'101'", "dt": "CURRENT_TIMESTAMP", "neg": "-5",
    }  # fmt: skip
    assert not table.column("dc").nullable
    assert table.column("ts").nullable
    assert table.version == event.commit_ts == db.ts


def test_columns_are_added_first_after_and_last_and_keep_their_ids(db):
    db.run("ALTER TABLE d.t ADD COLUMN z INT")
    db.run("ALTER TABLE d.t ADD COLUMN f INT FIRST")
    event = db.run("ALTER TABLE d.t ADD COLUMN m INT NOT NULL DEFAULT 4 AFTER id")
    assert event.type == DdlType.ADD_COLUMN
    assert [(c.name, c.id) for c in event.tables[0].columns] == [("f", 5), ("id", 1), ("m", 6), ("a", 2), ("b", 3), ("z", 4)]


def test_a_dropped_columns_id_is_never_used_again(db):
    db.run("ALTER TABLE d.t ADD COLUMN z INT")
    assert db.run("ALTER TABLE d.t DROP COLUMN z").type == DdlType.DROP_COLUMN
    assert db.run("ALTER TABLE d.t ADD COLUMN z INT").tables[0].column("z").id == 5


def test_renames_and_changes_keep_the_id(db):
    event = db.run("ALTER TABLE d.t RENAME COLUMN a TO aa")
    assert (event.type, event.tables[0].column("aa").id) == (DdlType.MODIFY_COLUMN, 2)
    event = db.run("ALTER TABLE d.t CHANGE COLUMN aa a2 BIGINT NULL")
    assert (event.tables[0].column("a2").id, event.tables[0].column("a2").type.kind) == (2, TypeKind.BIGINT)
    assert db.run("ALTER TABLE d.t ADD COLUMN q INT, DROP COLUMN b").type == DdlType.MULTI_SCHEMA_CHANGE


def test_a_table_keeps_its_id_through_a_rename_and_gets_a_new_one_when_truncated(db):
    table_id = db.schemas.table("d", "t").table_id
    event = db.run("RENAME TABLE d.t TO d.u")
    assert (event.type, event.tables[0].table_id, event.old_names) == (DdlType.RENAME_TABLE, table_id, ((table_id, "d", "t"),))
    assert db.refuse("ALTER TABLE d.t ADD COLUMN x INT").code == "TABLE_UNKNOWN"
    event = db.run("TRUNCATE TABLE d.u")
    assert event.dropped_table_ids == (table_id,)
    assert event.tables[0].table_id != table_id
    assert db.schemas.live(table_id) is None
    assert db.schemas.table("D", "U") == event.tables[0]


def test_history_and_the_tables_of_a_ts(db):
    table_id = db.schemas.table("d", "t").table_id
    created_ts = db.ts
    db.run("ALTER TABLE d.t ADD COLUMN z INT")
    altered_ts = db.ts
    db.run("DROP TABLE d.t")
    assert [names(v) for v in db.schemas.history(table_id)] == [["id", "a", "b"], ["id", "a", "b", "z"]]
    assert db.schemas.tables_at(created_ts - 1) == []
    assert [names(t) for t in db.schemas.tables_at(created_ts)] == [["id", "a", "b"]]
    assert [names(t) for t in db.schemas.tables_at(altered_ts)] == [["id", "a", "b", "z"]]
    assert db.schemas.tables_at(db.ts) == db.schemas.tables_at(None) == []


def test_if_exists_makes_a_no_op(db):
    assert db.run("CREATE DATABASE IF NOT EXISTS d") is None
    assert db.run("CREATE TABLE IF NOT EXISTS d.t (id INT PRIMARY KEY)") is None
    assert db.run("DROP TABLE IF EXISTS d.nothing") is None
    event = db.run("DROP DATABASE d")
    assert (event.type, len(event.dropped_table_ids)) == (DdlType.DROP_SCHEMA, 1)


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("CREATE TABLE", "parse"),
        ("SELECT 1", "SELECT"),
        ("DROP TABLE d.t; DROP TABLE d.t", "one DDL"),
        ("CREATE TABLE t (id INT PRIMARY KEY)", "database before the table"),
        ("CREATE TABLE nope.t (id INT PRIMARY KEY)", "database nope"),
        ("CREATE TABLE d.t (id INT PRIMARY KEY)", "exists"),
        ("CREATE TABLE d.x (id INT, PRIMARY KEY (nope))", "nope"),
        ("CREATE TABLE d.x (id INT, ID INT)", "twice"),
        ("CREATE TABLE d.x (id DOUBLE PRIMARY KEY)", "primary key column id"),
        ("CREATE TABLE d.x (id INT PRIMARY KEY, g INT GENERATED ALWAYS AS (id + 1) STORED)", "generated"),
        ("CREATE TABLE d.x (id UUID)", "column id"),
        ("CREATE VIEW d.v AS SELECT 1", "VIEW"),
        ("ALTER TABLE d.t ADD COLUMN a INT", "exists"),
        ("ALTER TABLE d.t ADD COLUMN n INT NOT NULL", "DEFAULT"),
        ("ALTER TABLE d.t ADD COLUMN n DATETIME DEFAULT CURRENT_TIMESTAMP", "constant"),
        ("ALTER TABLE d.t ADD COLUMN n INT DEFAULT 'abc'", "DEFAULT"),
        ("ALTER TABLE d.t ADD COLUMN n TINYINT DEFAULT 300", "DEFAULT"),
        ("ALTER TABLE d.t ADD COLUMN n ENUM('a') DEFAULT 'b'", "DEFAULT"),
        ("ALTER TABLE d.t ADD COLUMN n INT AFTER nope", "nope"),
        ("ALTER TABLE d.t DROP COLUMN nope", "nope"),
        ("ALTER TABLE d.t DROP COLUMN id", "primary key"),
        ("ALTER TABLE d.t MODIFY COLUMN a SMALLINT", "keep every stored value"),
        ("ALTER TABLE d.t MODIFY COLUMN a VARCHAR(20)", "keep every stored value"),
        ("ALTER TABLE d.t MODIFY COLUMN b VARCHAR(5)", "keep every stored value"),
        ("ALTER TABLE d.t MODIFY COLUMN a INT NOT NULL", "NOT NULL"),
        ("ALTER TABLE d.t MODIFY COLUMN id BIGINT", "primary key"),
        ("ALTER TABLE d.t RENAME COLUMN a TO b", "exists"),
        ("RENAME TABLE d.t TO d.t", "exists"),
        ("DROP TABLE d.nothing", "does not exist"),
        ("TRUNCATE TABLE d.nothing", "does not exist"),
    ],
)
def test_what_it_cannot_do_it_refuses_and_says_why(db, query, part):
    before = db.schemas.tables_at(None)
    error = db.refuse(query)
    assert part in str(error)
    assert error.code in ("UPSTREAM_REFUSED", "TYPE_UNSUPPORTED", "TABLE_UNKNOWN")
    assert db.schemas.tables_at(None) == before


def test_widening_is_allowed(db):
    db.run("CREATE TABLE d.w (id INT PRIMARY KEY, u TINYINT UNSIGNED, f FLOAT, e ENUM('a'), t TEXT, d DECIMAL(5,2))")
    for change in ("u SMALLINT", "f DOUBLE", "e ENUM('a','b')", "t LONGTEXT", "d DECIMAL(9,2)"):
        db.run(f"ALTER TABLE d.w MODIFY COLUMN {change}")
    assert db.refuse("ALTER TABLE d.w MODIFY COLUMN d DECIMAL(9,4)").code == "TYPE_UNSUPPORTED"


def test_unique_keys_are_declared_and_follow_the_table(db):
    db.run("CREATE TABLE d.u (a INT UNIQUE, b INT NOT NULL, c INT NOT NULL, PRIMARY KEY (a), UNIQUE KEY k (c, b), CONSTRAINT x UNIQUE (b))")
    assert db.schemas.table("d", "u").unique_keys == ((1,), (3, 2), (2,))
    db.run("ALTER TABLE d.u DROP COLUMN b")
    assert db.schemas.table("d", "u").unique_keys == ((1,), (3,))
    db.run("ALTER TABLE d.u ADD COLUMN e INT NULL UNIQUE")
    assert db.run("ALTER TABLE d.u ADD UNIQUE INDEX n (c, e)").type is DdlType.ADD_INDEX
    assert db.schemas.table("d", "u").unique_keys == ((1,), (3,), (4,), (3, 4))
    assert "a unique key names columns that do not exist: z" in str(db.refuse("ALTER TABLE d.u ADD UNIQUE (z)"))


def test_renames_move_along_a_chain_and_change_places(db):
    db.run("CREATE TABLE d.u (id BIGINT PRIMARY KEY)")
    t, u = db.schemas.table("d", "t").table_id, db.schemas.table("d", "u").table_id
    swap = db.run("RENAME TABLE d.t TO d.tmp, `d`.`u` TO d.t, d.tmp TO d.u")
    assert swap.type is DdlType.RENAME_TABLES
    assert {(n.table_id, n.table) for n in swap.tables} == {(t, "u"), (u, "t")}
    assert sorted(swap.old_names) == [(t, "d", "t"), (u, "d", "u")]
    assert (db.schemas.table("d", "t").table_id, db.schemas.table("d", "u").table_id) == (u, t)
    chain = db.run("RENAME TABLE d.u TO d.v, d.t TO d.u")
    assert {(n.table_id, n.table) for n in chain.tables} == {(t, "v"), (u, "u")}
    assert db.run("RENAME TABLE d.u TO d.x, d.x TO d.u") is None
    assert db.refuse("RENAME TABLE d.v TO d.w, d.v TO d.z").code == "TABLE_UNKNOWN"
    assert db.refuse("RENAME TABLE d.v TO d.u").code == "UPSTREAM_REFUSED"


def test_several_tables_are_made_and_dropped_at_once(db):
    made = db.run("CREATE TABLE d.k (id INT PRIMARY KEY); CREATE TABLE d.l (id INT PRIMARY KEY, x INT)")
    assert made.type is DdlType.CREATE_TABLES
    assert [(t.table, t.version, len(t.columns)) for t in made.tables] == [("k", db.ts, 1), ("l", db.ts, 2)]
    assert len({t.table_id for t in made.tables}) == 2
    assert db.refuse("CREATE TABLE d.m (id INT PRIMARY KEY); CREATE TABLE d.m (id INT PRIMARY KEY)").code == "UPSTREAM_REFUSED"
    gone = db.run("DROP TABLE IF EXISTS d.k, d.none, d.l")
    assert (gone.type, set(gone.dropped_table_ids)) == (DdlType.DROP_TABLE, {t.table_id for t in made.tables})
    assert db.refuse("DROP TABLE d.t, d.none").code == "TABLE_UNKNOWN"
    assert db.schemas.table("d", "t")


PARTITIONED = (
    "CREATE TABLE d.p (id INT PRIMARY KEY) "
    "PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (9), PARTITION b VALUES LESS THAN MAXVALUE)"
)


def test_partitions_are_physical_tables_of_one_name(db):
    made = db.run(PARTITIONED)
    first, second = made.tables
    assert (first.partition_id, second.partition_id) == (first.table_id, second.table_id)
    assert len(db.run("CREATE TABLE d.h (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 3").tables) == 3
    added = db.run("ALTER TABLE d.p ADD PARTITION (PARTITION c VALUES LESS THAN (99))")
    assert (added.type, len(added.tables), added.made_table_ids) == (DdlType.ADD_PARTITION, 3, (added.tables[-1].table_id,))
    assert {t.version for t in added.tables} == {db.ts}
    truncated = db.run("ALTER TABLE d.p TRUNCATE PARTITION b")
    assert (truncated.type, truncated.dropped_table_ids) == (DdlType.TRUNCATE_PARTITION, (second.table_id,))
    together = db.run("ALTER TABLE d.p REORGANIZE PARTITION a, b INTO (PARTITION ab VALUES LESS THAN (50))")
    assert set(together.dropped_table_ids) == {first.table_id, truncated.made_table_ids[0]}
    # Rows that moved in are of versions from before, so it knows those as well.
    assert next(v.version for v in db.schemas.history(together.made_table_ids[0])) == made.commit_ts
    dropped = db.run("ALTER TABLE d.p DROP PARTITION c")
    assert [t.table_id for t in dropped.tables] == list(together.made_table_ids)
    altered = db.run("ALTER TABLE d.h ADD COLUMN n INT")
    assert (len(altered.tables), altered.one_table_id) == (3, None)
    renamed = db.run("RENAME TABLE d.h TO d.hh")
    assert (renamed.type, {t.table for t in renamed.tables}) == (DdlType.RENAME_TABLE, {"hh"})
    emptied = db.run("TRUNCATE TABLE d.hh")
    assert (len(emptied.tables), len(emptied.dropped_table_ids)) == (3, 3)
    assert len(db.run("DROP TABLE d.hh").dropped_table_ids) == 3


def test_a_partition_changes_places_with_a_table(db):
    first, second = db.run(PARTITIONED).tables
    outside = db.run("CREATE TABLE d.o (id INT PRIMARY KEY)").tables[0]
    event = db.run("ALTER TABLE d.p EXCHANGE PARTITION b WITH TABLE d.o")
    assert event.type is DdlType.EXCHANGE_PARTITION
    assert [(t.table_id, t.table, t.partition_id) for t in event.tables] == [
        (second.table_id, "o", 0),
        (outside.table_id, "p", outside.table_id),
        (first.table_id, "p", first.table_id),
    ]
    back = db.run("ALTER TABLE d.p EXCHANGE PARTITION b WITH TABLE d.o")
    assert back.tables[1].table_id == second.table_id


@pytest.mark.parametrize(
    "query",
    [
        "ALTER TABLE d.t DROP PARTITION a",
        "ALTER TABLE d.p DROP PARTITION nobody",
        "ALTER TABLE d.p DROP PARTITION a, b",
        "ALTER TABLE d.p ADD PARTITION (PARTITION a VALUES LESS THAN (3))",
        "ALTER TABLE d.p REORGANIZE PARTITION a INTO (PARTITION x VALUES LESS THAN (3), PARTITION y VALUES LESS THAN (5))",
        "ALTER TABLE d.p EXCHANGE PARTITION a WITH TABLE d.t",
        "ALTER TABLE d.p EXCHANGE PARTITION a",
    ],
)
def test_what_partitions_do_not_allow(db, query):
    db.run(PARTITIONED)
    assert db.refuse(query).code == "UPSTREAM_REFUSED"
    assert len(db.schemas.physical("d", "p")) == 2
