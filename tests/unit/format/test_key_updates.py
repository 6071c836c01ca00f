"""Updates of unique keys are taken apart, however rows are divided into events."""

import itertools
import json

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.format.csv.dialect import CsvSettings
from penstock.format.file_rows import FileRows
from penstock.format.key_updates import KeyUpdates
from penstock.format.protocols import DataFormat, Protocol
from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from testing.checks.whole_file import whole_file
from testing.paths.storage_lab import StorageLab

COLUMNS = (
    Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),
    Column(2, "mail", ColumnType(TypeKind.VARCHAR, length=40), False),
    Column(3, "nick", ColumnType(TypeKind.VARCHAR, length=40)),
    Column(4, "note", ColumnType(TypeKind.VARCHAR, length=40)),
)
TABLE = TableSchema(1, "s", "t", 7, COLUMNS, unique_keys=((2,), (3, 2)))
_labs = itertools.count()


def batch(rows: list[tuple[object, ...]], table: TableSchema = TABLE) -> pa.RecordBatch:
    schema = table.batch_schema()
    keyed = [(row[0], int(row[1]), str(row[2]).encode(), *row[2:]) for row in rows]  # type: ignore[call-overload]
    return pa.RecordBatch.from_arrays([pa.array([r[at] for r in keyed], f.type) for at, f in enumerate(schema)], schema=schema)


def rows_of(records: pa.RecordBatch | None) -> list[tuple[object, ...]]:
    if records is None:
        return []
    return [(r["_ts"], Op(r["_op"]), r["c1"], r["c2"], r["c3"], r["c4"]) for r in records.to_pylist()]


def apart(rows: list[tuple[object, ...]], cuts: list[int], rows_max: int = 100) -> list[tuple[object, ...]]:
    keys, records, out = KeyUpdates(TABLE, rows_max), batch(rows), []
    for start, end in itertools.pairwise([0, *cuts, len(rows)]):
        out += rows_of(keys.add(records.slice(start, end - start)))
    return out + rows_of(keys.finish()) + rows_of(keys.finish())


SWAP = [
    (10, Op.BEFORE, 1, "a", None, "x"),
    (10, Op.BEFORE, 2, "b", "n", "y"),
    (10, Op.BEFORE, 3, "c", None, "z"),
    (10, Op.DELETE, 4, "d", None, ""),
    (10, Op.UPDATE, 1, "b", None, "x"),
    (10, Op.UPDATE, 2, "a", "n", "y"),
    (10, Op.UPDATE, 3, "c", None, "changed"),
    (10, Op.INSERT, 5, "e", None, ""),
    (11, Op.BEFORE, 3, "c", None, "changed"),
    (11, Op.UPDATE, 3, "c", "nick", "changed"),
]


def test_two_rows_that_swap_a_unique_value_cease_before_they_come_to_be() -> None:
    expected = [
        (10, Op.DELETE, 1, "a", None, "x"),
        (10, Op.DELETE, 2, "b", "n", "y"),
        (10, Op.BEFORE, 3, "c", None, "z"),
        (10, Op.DELETE, 4, "d", None, ""),
        (10, Op.UPDATE, 3, "c", None, "changed"),
        (10, Op.INSERT, 5, "e", None, ""),
        (10, Op.INSERT, 1, "b", None, "x"),
        (10, Op.INSERT, 2, "a", "n", "y"),
        (11, Op.DELETE, 3, "c", None, "changed"),
        (11, Op.INSERT, 3, "c", "nick", "changed"),
    ]
    for cut in range(len(SWAP) + 1):
        assert apart(SWAP, [cut]) == expected


def test_a_transaction_too_large_to_be_held_has_all_its_updates_taken_apart() -> None:
    ops = {Op.BEFORE: Op.DELETE, Op.UPDATE: Op.INSERT}
    expected = [(ts, ops.get(op, op) if ts == 10 else op, *rest) for ts, op, *rest in SWAP[:8]]  # type: ignore[call-overload]
    expected += [(11, Op.DELETE, *SWAP[8][2:]), (11, Op.INSERT, *SWAP[9][2:])]
    for first, second in itertools.combinations_with_replacement(range(len(SWAP) + 1), 2):
        assert apart(SWAP, [first, second], rows_max=7) == expected


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[object, ...]], list[int]]:
    """Return change rows as a feed gives them, and where they are divided."""
    table: dict[int, tuple[str, str | None, str]] = {}
    rows: list[tuple[object, ...]] = []
    texts = st.sampled_from("ab")
    for ts in range(1, draw(st.integers(2, 6))):
        gone: list[tuple[object, ...]] = []
        come: list[tuple[object, ...]] = []
        for key in sorted(draw(st.sets(st.integers(0, 5), max_size=6))):
            new = (draw(texts), draw(st.none() | texts), draw(texts))
            if key not in table:
                come.append((ts, Op.INSERT, key, *new))
                table[key] = new
            elif draw(st.booleans()):
                gone.append((ts, Op.BEFORE, key, *table[key]))
                come.append((ts, Op.UPDATE, key, *new))
                table[key] = new
            else:
                gone.append((ts, Op.DELETE, key, *table.pop(key)))
        rows += gone + come
    return rows, sorted(draw(st.lists(st.integers(0, len(rows)), max_size=5)))


def model(rows: list[tuple[object, ...]], rows_max: int) -> list[tuple[object, ...]]:
    out: list[tuple[object, ...]] = []
    for _, group in itertools.groupby(rows, key=lambda r: r[0]):
        transaction = list(group)
        first = next((at for at, r in enumerate(transaction) if r[1] is Op.BEFORE), len(transaction))
        large = len(transaction) - first > rows_max
        old = {r[2]: r[3:5] for r in transaction if r[1] is Op.BEFORE}
        new = {r[2]: r[3:5] for r in transaction if r[1] is Op.UPDATE}
        split = {key for key in old if large or old[key] != new[key]}
        stay, last = [], []
        for r in transaction:
            if r[2] in split and r[1] is Op.UPDATE:
                (stay if large else last).append((r[0], Op.INSERT, *r[2:]))
            else:
                stay.append((r[0], Op.DELETE, *r[2:]) if r[2] in split and r[1] is Op.BEFORE else r)
        out += stay + last
    return out


@given(histories(), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_what_comes_out_depends_on_the_rows_alone(history: tuple[list[tuple[object, ...]], list[int]], rows_max: int) -> None:
    rows, cuts = history
    assert apart(rows, cuts, rows_max) == model(rows, rows_max)


def test_every_protocol_writes_them_apart_unless_told_otherwise() -> None:
    rows = [(10, Op.INSERT, 1, "a", None, "x"), (11, Op.BEFORE, 1, "a", None, "x"), (11, Op.UPDATE, 1, "b", None, "x")]

    def lines(data_format: DataFormat, **options: bool) -> list[str]:
        prepared = FileRows(TABLE, data_format, **options)
        parts = [part for part in (prepared.add(batch(rows)), prepared.finish()) if part is not None]
        return whole_file(data_format, TABLE, parts).decode().split("\r\n")[:-1]

    assert [line[:3] for line in lines(DataFormat())] == ['"I"', '"D"', '"I"']
    assert [line[:3] for line in lines(DataFormat(), split_key_updates=False)] == ['"I"', '"U"']
    old = lines(DataFormat(csv=CsvSettings(output_old_value=True)))
    assert [line.split(",")[:5] for line in old[1:]] == [['"D"', '"t"', '"s"', "11", "false"], ['"I"', '"t"', '"s"', "11", "false"]]
    canal = [json.loads(line) for line in lines(DataFormat(Protocol.CANAL_JSON))]
    assert [(m["type"], m["data"][0]["mail"]) for m in canal] == [("INSERT", "a"), ("DELETE", "a"), ("INSERT", "b")]


@pytest.mark.parametrize(("query", "ops"), [("", ["I", "D", "I"]), ("?output-raw-change-event=true", ["I", "U"])])
def test_the_sink_takes_them_apart(query: str, ops: list[str]) -> None:
    lab = StorageLab(f"memory://key-updates-{next(_labs)}/{query}")
    rows = [(1 << 40, Op.INSERT, 1, "a", None, "x"), (2 << 40, Op.BEFORE, 1, "a", None, "x"), (2 << 40, Op.UPDATE, 1, "b", None, "x")]
    assert lab.settings.needs_before(TABLE) == (not query)
    result = lab.write(TABLE, rows)
    assert [line[1] for f in result.files for line in lab.target.get(f.path).decode().splitlines()] == ops


def test_what_names_a_row() -> None:
    keyless = (Column(1, "id", ColumnType(TypeKind.BIGINT), False), *COLUMNS[1:])
    assert [c.name for c in TABLE.handle_columns] == ["id"]
    assert [c.name for c in TableSchema(1, "s", "t", 7, keyless, unique_keys=((3,), (2, 1), (2,))).handle_columns] == ["id", "mail"]
    assert TableSchema(1, "s", "t", 7, keyless, unique_keys=((3,), (3, 2))).handle_columns == ()
    # Rows do not carry what the server computes when it reads: it cannot name them.
    virtual = tuple(msgspec.structs.replace(c, generated="VIRTUAL" if c.id == 2 else "") for c in keyless)
    assert [c.name for c in TableSchema(1, "s", "t", 7, virtual, unique_keys=((2,), (1,))).handle_columns] == ["id"]
    assert TableSchema.from_json(TABLE.to_json()) == TABLE
    assert b"unique_keys" not in TableSchema(1, "s", "t", 7, COLUMNS).to_json()
