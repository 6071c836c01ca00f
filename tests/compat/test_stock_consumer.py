"""What TiCDC's own storage consumer relies on, rule by rule: it reads what we write, and the rules can fail."""

import itertools
import zlib
from pathlib import Path

import pytest

from penstock.format.layout.schema_file import SchemaFile
from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId
from penstock.target.storage import ObjectTarget
from testing.checks.stock_consumer import RULES, Applied, Refused, StockConsumer
from testing.paths.storage_lab import StorageLab

GOLDEN = Path(__file__).parent / "golden"
T0 = compose_ts(1_700_000_000_000)
DAY = compose_ts(86_400_000)
ID = Column(1, "id", ColumnType(TypeKind.BIGINT), False, True)
NAME = Column(2, "na<me", ColumnType(TypeKind.VARCHAR, length=40), default="a&b")
KIND = Column(3, "kind", ColumnType(TypeKind.ENUM, elems=("x", "y")), default="x")
_numbers = itertools.count()


def lab(query: str = "") -> StorageLab:
    return StorageLab(f"memory://stock-{next(_numbers)}/?{query}")


def table(name: str, ts: int, *columns: Column, table_id: int = 1, partition_id: int = 0) -> TableSchema:
    return TableSchema(table_id, "s", name, ts, columns or (ID, NAME), partition_id)


def history(source: StorageLab) -> list[Applied]:
    """Write DDLs and rows of two tables, over days, dispatchers and partitions; return what a consumer has to do, in its order."""
    source.ddl(T0, DdlType.CREATE_SCHEMA, "CREATE DATABASE s")
    first, other = table("a", T0 + 1), table("b", T0 + 2, table_id=2)
    source.ddl(T0 + 1, DdlType.CREATE_TABLE, "CREATE TABLE a (...)", first)
    source.ddl(T0 + 2, DdlType.CREATE_TABLE, "CREATE TABLE b (...)", other)
    source.write(first, [(T0 + 5, Op.INSERT, 1, 'quo"te,\r\n'), (T0 + 5, Op.INSERT, 2, "two"), (T0 + 6, Op.DELETE, 2, "two")])
    source.write(first, [(T0 + DAY, Op.INSERT, 3, "next day")])
    source.write(other, [(T0 + 7, Op.INSERT, 1, "of b")])
    wide = table("a", T0 + DAY + 5, ID, NAME, KIND)
    source.ddl(T0 + DAY + 5, DdlType.ADD_COLUMN, "ALTER TABLE a ADD kind ENUM('x','y')", wide)
    source.write(wide, [(T0 + DAY + 6, Op.UPDATE, 3, "later", 2)])
    moved = table("c", T0 + DAY + 9, table_id=2)
    source.ddl(T0 + DAY + 9, DdlType.RENAME_TABLE, "ALTER TABLE b RENAME TO c", moved, old_names=((2, "s", "b"),))
    for span in (0, 1):
        rows = [(T0 + DAY + 20 + n, Op.INSERT, 10 * span + n, f"span {span}") for n in range(2)]
        source.write(moved, rows, DispatcherId(2, span, 2))
    source.checkpoint(T0 + 2 * DAY)
    return [
        Applied("s.", "CREATE DATABASE s", T0),
        Applied("s.a", "CREATE TABLE a (...)", T0 + 1),
        Applied("s.a", "I", T0 + 5, ("1", 'quo"te,\r\n')),
        Applied("s.a", "I", T0 + 5, ("2", "two")),
        Applied("s.a", "D", T0 + 6, ("2", "two")),
        Applied("s.a", "I", T0 + DAY, ("3", "next day")),
        Applied("s.b", "CREATE TABLE b (...)", T0 + 2),
        Applied("s.b", "I", T0 + 7, ("1", "of b")),
        Applied("s.a", "ALTER TABLE a ADD kind ENUM('x','y')", T0 + DAY + 5),
        Applied("s.a", "U", T0 + DAY + 6, ("3", "later", "y")),
        Applied("s.c", "RENAME TABLE `s`.`b` TO `s`.`c`", T0 + DAY + 9),
        *(Applied("s.c", "I", T0 + DAY + 20 + n, (str(10 * span + n), f"span {span}")) for span in (0, 1) for n in range(2)),
    ]


def test_it_does_everything_once_and_in_order() -> None:
    source = lab()
    expected = history(source)
    consumer = StockConsumer(source.target)
    consumer.run_round()
    assert consumer.applied == expected
    consumer.run_round()
    assert consumer.applied == expected
    source.write(table("c", T0 + DAY + 9, table_id=2), [(T0 + 2 * DAY + 1, Op.INSERT, 99, "more")], DispatcherId(2, 1, 2))
    consumer.run_round()
    assert consumer.applied[len(expected) :] == [Applied("s.c", "I", T0 + 2 * DAY + 1, ("99", "more"))]


def test_canal_json_is_read_message_by_message() -> None:
    source = lab("protocol=canal-json")
    expected = [(a.table, a.what, a.commit_ts) for a in history(source)]
    consumer = StockConsumer(source.target, ".json")
    consumer.run_round()
    assert [(a.table, a.what, a.commit_ts) for a in consumer.applied] == expected


@pytest.mark.parametrize("name", ["storage-csv/default", "storage-canal-json/default", "storage-canal-json/narrow"])
def test_golden_targets_are_accepted(name: str) -> None:
    target = ObjectTarget.open(f"file://{GOLDEN / name}")
    consumer = StockConsumer(target, ".csv" if "csv" in name else ".json")
    consumer.run_round()
    assert [a.what for a in consumer.applied] == [
        "CREATE DATABASE `schema1`",
        *("I", "I", "U") * 2,
        "ALTER TABLE schema1.table1 ADD OfficeLocation blob(20)",
        *("D", "D", "I", "I"),
    ]


def test_versions_beyond_the_checkpoint_wait_for_their_round() -> None:
    source = lab()
    history(source)
    later = table("a", T0 + 3 * DAY)
    source.ddl(T0 + 3 * DAY, DdlType.DROP_COLUMN, "ALTER TABLE a DROP kind", later)
    source.write(later, [(T0 + 3 * DAY + 1, Op.INSERT, 9, "beyond")])
    consumer = StockConsumer(source.target)
    consumer.run_round()
    before = len(consumer.applied)
    source.checkpoint(T0 + 4 * DAY)
    consumer.run_round()
    assert [a.what for a in consumer.applied[before:]] == ["ALTER TABLE a DROP kind", "I"]


def test_partitions_have_a_level_and_an_order_of_their_own() -> None:
    source = lab("date-separator=none&file-index-width=6")
    source.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE p (...)", table("p", T0))
    for partition in (12, 11):
        part = table("p", T0, table_id=partition, partition_id=partition)
        source.write(part, [(T0 + partition, Op.INSERT, partition, "x")])
    source.checkpoint(T0 + 99)
    consumer = StockConsumer(source.target, separated=False, file_index_width=6)
    consumer.run_round()
    assert [a.commit_ts for a in consumer.applied] == [T0, T0 + 11, T0 + 12]


A, B, WIDE = f"s/a/{T0 + 1}/2023-11-14", f"s/b/{T0 + 2}/2023-11-14", T0 + DAY + 5
FIRST_FILE = f"{A}/CDC{1:020d}.csv"
DAMAGES = {
    "R1": (f"{A}/meta/CDC.index", lambda c: b"CDC1.csv\n"),
    "R2": ("metadata", lambda c: c.replace(b":", b": ")),
    "R3": ("s/a/meta/schema_", lambda c: c.replace(b'"na\\u003cme"', b'"name"')),
    "R4": ("s/b/meta/schema_", lambda c: c.replace(b'"TableColumnsTotal": 2', b'"TableColumnsTotal": "2"')),
    "R5": (f"{A}/meta/CDC.index", lambda c: c + c),
    "R6": (f"{A}/meta/CDC.index", lambda c: c.replace(b"1.csv", b"2.csv")),
    "R7": ("s/b/meta/schema_", None),
    "R9": (FIRST_FILE, lambda c: c.replace(b"%d," % (T0 + 5), b"%d," % (T0 + 9 * DAY))),
    "R10": (FIRST_FILE, lambda c: c.replace(b'"two"', b'"two","three"')),
}


@pytest.mark.parametrize("rule", DAMAGES)
def test_each_rule_can_fail(rule: str) -> None:
    source = lab()
    history(source)
    prefix, damage = DAMAGES[rule]
    path = min(p for p in source.target.paths() if p.startswith(prefix))
    content = source.target.get(path)
    if damage is None:
        source.target.delete(path)
    else:
        changed = damage(content)
        assert changed != content
        source.target.put(path, changed)
    with pytest.raises(Refused, match=rf"^{rule}:"):
        StockConsumer(source.target).run_round()


def test_a_message_that_breaks_its_line_is_found() -> None:
    source = lab("protocol=canal-json")
    history(source)
    path = FIRST_FILE.replace(".csv", ".json")
    source.target.put(path, source.target.get(path).replace(b"\r\n", b"\n"))
    with pytest.raises(Refused, match=r"^R11:"):
        StockConsumer(source.target, ".json").run_round()


def test_a_type_that_it_does_not_know_is_found() -> None:
    source = lab()
    odd = SchemaFile("s", "t", T0, columns=(ID,))
    text = odd.render().replace(b"BIGINT", b"INT128")
    crc = zlib.crc32(
        b'{\n    "Table": "t",\n    "Schema": "s",\n    "Version": 0,\n    "TableColumns": [\n        {\n            "ColumnName": "id",\n'
        b'            "ColumnType": "INT128",\n            "ColumnPrecision": "20",\n            "ColumnNullable": "false",\n'
        b'            "ColumnIsPk": "true"\n        }\n    ],\n    "TableColumnsTotal": 1\n}'
    )
    source.target.put(f"s/t/meta/schema_{T0}_{crc:010d}.json", text)
    source.checkpoint(T0)
    with pytest.raises(Refused, match=r"^R12:"):
        StockConsumer(source.target).run_round()


def test_every_rule_is_explained() -> None:
    text = (Path(__file__).parents[2] / "docs" / "storage-layout.md").read_text(encoding="utf-8")
    assert all(f"| {rule} |" in text for rule in RULES)
