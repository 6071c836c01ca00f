"""Numbers of events in their transactions, against counting them one by one."""

from collections import Counter

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.format.file_rows import PreparedRows
from penstock.format.json.debezium import COLLECTION_ORDER, TOTAL_ORDER
from penstock.format.protocols import DataFormat, Protocol
from penstock.model.batch import COMMIT_TS, Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.storage.encode.transaction_orders import NumberedRows, TransactionOrders

ID = Column(1, "id", ColumnType(TypeKind.BIGINT), False, True)
CODE = Column(2, "code", ColumnType(TypeKind.INT))
FORMAT = DataFormat(Protocol.DEBEZIUM)
Dispatchers = list[tuple[str, list[int]]]
DISPATCHERS = st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(1, 6), max_size=25).map(sorted)), max_size=5)


def records(table: TableSchema, rows: list[tuple[int, Op, int, int]]) -> pa.RecordBatch:
    columns = [[ts, int(op), str(key).encode(), key, code] for ts, op, key, code in rows]
    schema = table.batch_schema()
    return pa.RecordBatch.from_arrays(
        [pa.array([row[at] for row in columns], field.type) for at, field in enumerate(schema)], schema=schema
    )


def numbered(rows: NumberedRows, table: TableSchema, parts: list[pa.RecordBatch]) -> list[tuple[int, int, int]]:
    found = [batch for part in parts for _, batch in rows.add(table, part)] + [batch for _, batch in rows.finish()]
    rows.end()
    return [
        row
        for batch in found
        for row in zip(*(batch.column(n).to_pylist() for n in (COMMIT_TS, TOTAL_ORDER, COLLECTION_ORDER)), strict=True)
    ]


@settings(max_examples=80, deadline=None)
@given(DISPATCHERS, st.data())
def test_numbers_are_those_of_counting_however_rows_are_divided(dispatchers: Dispatchers, data: st.DataObject) -> None:
    orders, everything, own = TransactionOrders(), Counter[int](), Counter[tuple[str, int]]()
    for at, (name, ts) in enumerate(dispatchers):
        table = TableSchema(at, "s", name, 1, (ID, CODE))
        expected = []
        for one in ts:
            everything[one] += 1
            own[name, one] += 1
            expected.append((one, everything[one], own[name, one]))
        parts, place = [], 0
        while place < len(ts):
            count = data.draw(st.integers(1, len(ts) - place))
            parts.append(records(table, [(one, Op.INSERT, i, i) for i, one in enumerate(ts[place : place + count])]))
            place += count
        assert numbered(NumberedRows(orders, PreparedRows(FORMAT, split_key_updates=True)), table, parts) == expected


def test_an_update_that_is_taken_apart_counts_twice_and_a_plain_one_once() -> None:
    table = TableSchema(1, "s", "t", 1, (ID, CODE), unique_keys=((2,),))
    rows = [(5, Op.BEFORE, 1, 10), (5, Op.BEFORE, 2, 20), (5, Op.UPDATE, 1, 11), (5, Op.UPDATE, 2, 20), (6, Op.INSERT, 3, 30)]
    orders = TransactionOrders()
    for split, expected in ((True, [(5, 1), (5, 2), (5, 3), (6, 1)]), (False, [(5, 4), (5, 5), (6, 2)])):
        for divided in ([rows], [rows[:1], rows[1:3], rows[3:]]):
            again = TransactionOrders()
            again.all.ts, again.all.events = orders.all.ts, orders.all.events
            found = numbered(
                NumberedRows(again, PreparedRows(FORMAT, split_key_updates=split)), table, [records(table, part) for part in divided]
            )
            assert [(ts, total) for ts, total, _ in found] == expected
        orders = again
