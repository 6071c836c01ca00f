"""Expressions that may cost too much: refused where it can be seen, and the end of one query where it depends on rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.feed.filters.query_task import CHECK, PART_BITS, PLACE
from penstock.feed.filters.row_queries import QueryJob, SparkRowQueries
from penstock.feed.filters.rules import FilterRule
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

ID = Column(1, "id", ColumnType(TypeKind.BIGINT), nullable=False, primary_key=True)
TEXT = ColumnType(TypeKind.TEXT)
COSTLY = [
    ("repeat('x', 2000000000) = note", "repeat may give 6,000,000,000 bytes for a row"),
    ("repeat(note, id) = 'x'", "the size of repeat is not bounded; use a constant, or least(…, 100)"),
    ("repeat(repeat(note, 1000), 1000) = 'x'", "repeat may give 1,024,000,000 bytes"),
    ("size(sequence(1, 1000000000)) > id", "sequence may give"),
    ("size(sequence(1, id)) > 3", "the length of sequence is not bounded"),
    ("length(space(2000000000)) > id", "space may give"),
    ("lpad(note, 2000000000, ' ') = 'x'", "lpad may give"),
    ("lpad(CAST(note AS BINARY), 2000000000, X'00') = X'00'", "lpad may give"),
    ("size(array_repeat(note, 100000000)) > id", "array_repeat may give"),
    ("size(array_insert(array(1), 2000000000, 3)) > id", "array_insert may give"),
    ("format_string('%2000000000d', id) = 'x'", "format_string may give"),
    ("format_number(price, 2000000000) = 'x'", "format_number may give"),
    ("round(price, 2000000000) > 1", "round rounds to more than 1,000 digits"),
    ("replace(replace(note, 'a', repeat('b', 1000)), 'b', repeat('c', 1000)) = 'x'", "replace may give"),
    ("aggregate(sequence(1, 30), 'x', (sum, e) -> concat(sum, sum)) = note", "aggregate may grow with each element"),
    ("size(flatten(transform(sequence(1, 1000), x -> sequence(1, 1000)))) > id", "transform may give"),
    ("note RLIKE note", "the pattern of rlike is not a constant"),
    ("regexp_count(note, 'a*a*a*a*b') > 1", "the pattern of regexp_count has more than 3 repetitions side by side"),
    ("(" * 2000 + "id" + ")" * 2000 + " > 1", "its brackets are nested more than 300 deep"),
    (" + ".join(["id"] * 400) + " > 1", "deeper than 300"),
]
CHEAP = [
    "lpad(CAST(id AS STRING), 10, '0') = note AND repeat('*', least(length(note), 100)) <> note AND round(price, 2) > 1",
    "exists(split(note, ','), x -> trim(x) = 'a') AND size(transform(split(note, ','), s -> concat(s, 'x'))) > 2",
    "aggregate(transform(split(note, ','), x -> length(x)), 0, (a, b) -> a + b) > 10 AND replace(note, 'a', note) LIKE '%a%b%'",
    "id IN (" + ", ".join(map(str, range(300))) + ")",
]


def test_what_can_be_seen_to_cost_too_much_is_refused(jvm: None) -> None:
    del jvm
    queries = SparkRowQueries(open_session(SparkSettings("local[2]")))
    table = TableSchema(1, "d", "t", 1, (ID, Column(2, "price", ColumnType(TypeKind.DOUBLE)), Column(3, "note", TEXT)))
    for where, message in COSTLY:
        with pytest.raises(PenstockError) as caught:
            queries.view(table, FilterRule(("*.*",), where=where))
        assert caught.value.code == "FILTER_BROKEN"
        assert message in caught.value.detail
    for where in CHEAP:
        assert queries.view(table, FilterRule(("*.*",), where=where)).shown == table


def test_what_is_too_much_for_a_row_ends_its_query_and_nothing_else(jvm: None) -> None:
    del jvm
    queries = SparkRowQueries(open_session(SparkSettings("local[2]")), look_s=0.1)
    table = TableSchema(1, "d", "t", 1, (ID, Column(2, "note", TEXT)))

    def read(task: bytes, part: int) -> Iterator[pa.RecordBatch]:
        places = pa.array([part << PART_BITS], pa.int64())
        yield pa.RecordBatch.from_arrays([places, places, pa.array([task.decode()])], [PLACE, CHECK, "note"])
        if task == b"waits":
            threading.Event().wait(60)

    def deliver(task: bytes, part: int, kept: Iterator[pa.RecordBatch]) -> bytes:
        return str(sum(batch.num_rows for batch in kept)).encode()

    def answers(where: str, *notes: str, idle_s_max: float = 600.0) -> list[bytes]:
        rule, tasks = FilterRule(("d.t",), where=where), [note.encode() for note in notes]
        return queries.run(QueryJob("g", "p", "a test", queries.view(table, rule), rule, tasks, read, deliver, idle_s_max))

    # Java's own patterns need a frame for each character here; Spark takes that for a reason to end its process.
    with pytest.raises(PenstockError) as caught:
        answers("note RLIKE '^(a|b)*$'", "short", "ab" * 100_000)
    assert (caught.value.code, "d.t: StackOverflowError while rows were filtered" in caught.value.detail) == ("FILTER_FAILED", True)
    with pytest.raises(PenstockError) as caught:
        answers("note LIKE 'w%'", "waits", idle_s_max=1.0)
    assert (caught.value.code, "d.t: [NO_PROGRESS] for 1 s while rows" in caught.value.detail) == ("FILTER_FAILED", True)
    assert answers("note LIKE 'w%'", "was", "is") == [b"1", b"0"]
