"""Rows in MariaDB and PostgreSQL as targets: what one dispatcher's window leaves there, read by the drivers themselves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pymysql
import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.failpoints import FAILPOINTS, arm
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import TS_ZERO, compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.catalog import check_target, kind_of
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent, Sink
from penstock.sink.tables.idle_sessions import IDLE
from penstock.target.kind import SinkRun
from testing.targets.database_kit import MYSQL, TargetDatabase

pytestmark = pytest.mark.integration
T0 = compose_ts(1_700_000_000_000)
END = T0 + 10**6
BIGINT, TEXT = ColumnType(TypeKind.BIGINT), ColumnType(TypeKind.VARCHAR, length=40)
KEYED = TableSchema(7, "shop", "orders", T0, (Column(1, "id", BIGINT, False, True), Column(2, "note", TEXT)), unique_keys=((2,),))
BAG = TableSchema(8, "shop", "bag", T0, (Column(1, "id", BIGINT), Column(2, "note", ColumnType(TypeKind.FLOAT))))
IN, U, D, B = Op.INSERT, Op.UPDATE, Op.DELETE, Op.BEFORE
Change = tuple[int, Op, Any, Any]
FEED = SinkRun("f", 3)


@pytest.fixture(params=["mariadb", "postgres", MYSQL])
def target(request: pytest.FixtureRequest) -> TargetDatabase:
    return TargetDatabase(request.param)


def records(table: TableSchema, changes: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*changes, strict=True))
    arrays = [pa.array([T0 + ts for ts in columns[0]], pa.uint64()), pa.array(columns[1], pa.uint8())]
    arrays += [pa.array(values, c.type.arrow()) for values, c in zip(columns[2:], table.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["_ts", "_op", *(c.field_name for c in table.columns)])


def deliver(
    target: TargetDatabase,
    table: TableSchema,
    events: Sequence[Sequence[tuple[Any, ...]]],
    *,
    window: tuple[int, int] = (T0, END),
    run: SinkRun = FEED,
    ddl: DdlEvent | None = None,
    **options: str,
) -> None:
    """Deliver a window; a DDL comes behind the first event, and rows of its version behind it."""
    hand_over(kind_of(target.uri).make_sink(target.uri, target.options | options, None, run), table, events, window, ddl)


def hand_over(
    sink: Sink, table: TableSchema, events: Sequence[Sequence[tuple[Any, ...]]], window: tuple[int, int], ddl: DdlEvent | None = None
) -> None:
    try:
        work = DispatcherWork(DispatcherId(table.table_id), table, *window)
        sink.open_dispatcher(work)
        for at, changes in enumerate(events):
            if at == 1 and ddl is not None:
                sink.pass_block_event(work.dispatcher, ddl)
                sink.write_block_event(work.dispatcher, ddl)
                table = ddl.tables[0]
            sink.add_dml_event(DmlEvent(work.dispatcher, table, records(table, changes)))
        sink.close_dispatcher(work.dispatcher)
    finally:
        sink.close()


def test_unique_values_change_hands_within_a_window(target: TargetDatabase) -> None:
    deliver(target, KEYED, [[(1, IN, 1, "a"), (1, IN, 2, "b"), (1, IN, 3, "c")]], window=(TS_ZERO, T0 + 5), **{"unique-keys": "true"})
    changes: list[Change] = [
        (6, D, 3, "c"),
        (6, U, 1, "b"),
        (6, U, 2, "a"),
        (7, IN, 4, "c"),
        (8, D, 4, "c"),
        (8, IN, 5, "c"),
        (9, U, 1, "z"),
    ]
    deliver(target, KEYED, [changes], **{"unique-keys": "true"})
    assert target.rows("shop", "orders") == [(1, "z"), (2, "a"), (5, "c")]


@pytest.mark.parametrize("cuts", [[9], [2, 2, 2, 3]])
def test_equal_rows_are_counted_once_however_often_they_come(target: TargetDatabase, cuts: list[int]) -> None:
    deliver(target, BAG, [[(0, IN, 1, 0.1)] * 3 + [(0, IN, None, None)]], window=(TS_ZERO, T0 + 1))
    changes = [
        (2, D, 1, 0.1),
        (3, D, None, None),
        (3, D, 7, 1.0),
        (4, IN, 1, 0.1),
        (5, B, 1, 0.1),
        (5, U, 2, 0.5),
        (6, IN, 9, 2.0),
        (7, D, 9, 2.0),
    ]
    changes += [(8, IN, 9, 3.5)]
    for rows_max, run in (("1", SinkRun("f", 3)), ("4", SinkRun("f", 3)), ("100", SinkRun("f", 4))):
        starts = [sum(cuts[:at]) for at in range(len(cuts))]
        events = [changes[start : start + count] for start, count in zip(starts, cuts, strict=True)]
        deliver(target, BAG, events, run=run, **{"transaction-rows": rows_max})
    assert target.rows("shop", "bag") == [(1, pytest.approx(0.1)), (1, pytest.approx(0.1)), (2, 0.5), (9, 3.5)]
    with pytest.raises(PenstockError, match="TYPE_UNSUPPORTED"):
        deliver(target, BAG, [changes], window=(END, END + 1), run=SinkRun("f", 4), keyless="refuse")
    deliver(target, BAG, [[(10**6 + 1, D, 9, 3.5)]], window=(END, END + 1), run=SinkRun("f", 4))
    with pytest.raises(PenstockError, match="FENCED"):
        deliver(target, BAG, [changes], run=SinkRun("f", 3))
    assert len(target.rows("shop", "bag")) == 3


def test_attempts_at_once_leave_each_row_once(target: TargetDatabase) -> None:
    deliver(target, BAG, [[(0, IN, 0, 0.0)]], window=(TS_ZERO, T0 + 1))
    events: list[list[Change]] = [[(i, IN, i % 5, 0.5)] for i in range(2, 42)]
    failed: list[BaseException] = []

    def attempt(rows_max: str) -> None:
        try:
            deliver(target, BAG, events, **{"transaction-rows": rows_max})
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=attempt, args=(str(rows_max),)) for rows_max in (3, 7, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    counted = target.run(f"SELECT id, count(*) FROM {target.name('shop', 'bag')} GROUP BY id ORDER BY id")
    assert counted == [(0, 9), (1, 8), (2, 8), (3, 8), (4, 8)]


def test_lanes_and_large_first_states(target: TargetDatabase) -> None:
    table = pl.DataFrame({"n": range(3000)})
    first = [(0, IN, n, f"x'\"\\,\n{n}") for n in table["n"]]
    deliver(target, KEYED, [first], window=(TS_ZERO, T0 + 1), lanes="3", **{"transaction-rows": "1000"})
    changes: list[Change] = [(2 + n, (U, D)[n % 2], n, "new") for n in range(2000)]
    for rows_max in ("300", "10000"):
        deliver(target, KEYED, [changes[:700], changes[700:]], lanes="3", **{"transaction-rows": rows_max})
    wanted = [(n, "new" if n < 2000 else f"x'\"\\,\n{n}") for n in range(3000) if n >= 2000 or n % 2 == 0]
    assert target.rows("shop", "orders") == wanted


def test_a_ddl_inside_a_window_is_applied_once(target: TargetDatabase) -> None:
    deliver(target, KEYED, [[(0, IN, 1, "a"), (0, IN, 2, "b")]], window=(TS_ZERO, T0 + 1))
    columns = (Column(1, "key", BIGINT, False, True), Column(3, "n", ColumnType(TypeKind.INT), default="7"), Column(2, "id", TEXT))
    after = TableSchema(7, "shop", "orders", T0 + 5, columns)
    ddl = DdlEvent(T0 + 5, DdlType.MULTI_SCHEMA_CHANGE, "ALTER TABLE …", "shop", (after,))
    for _ in range(2):
        deliver(target, KEYED, [[(3, U, 1, "z")], [(6, IN, 3, 1, "c")]], ddl=ddl)
    quote = '"' if target.kind == "postgres" else "`"
    assert target.rows("shop", "orders", ", ".join(f"{quote}{n}{quote}" for n in ("key", "n", "id"))) == [
        (1, 7, "z"),
        (2, 7, "b"),
        (3, 1, "c"),
    ]


def test_a_connection_that_is_cut_and_an_answer_that_is_lost(target: TargetDatabase) -> None:
    deliver(target, BAG, [[(0, IN, 1, 0.5)]], window=(TS_ZERO, T0 + 1))
    cut = _cutter(target)
    FAILPOINTS.call("data-put:before", cut)
    try:
        deliver(target, BAG, [[(2, IN, 1, 0.5), (2, IN, 2, 0.5)]])
    finally:
        arm("")
    assert [row[0] for row in target.rows("shop", "bag")] == [1, 1, 2]
    # Sessions that are kept from before would not be lossy; the table is another, so that making it loses an answer as well.
    IDLE.close_old(0.0)
    other = msgspec.structs.replace(BAG, table_id=9, table="other")
    lossy = kind_of(target.uri).make_sink(target.uri, target.options, None, FEED)
    losing = _Losing(lossy._engine.database)  # type: ignore[attr-defined]
    lossy._engine.database.connect = losing.connect  # type: ignore[attr-defined]
    hand_over(lossy, other, [[(10**6 + 1, IN, 3, 0.5)]], (END, END + 10))
    assert losing.commits == 4, "the table and its row, each twice"
    assert [row[0] for row in target.rows("shop", "other")] == [3]


def test_sessions_are_kept_between_windows(target: TargetDatabase) -> None:
    """The window after another one enters the server no more. Sessions that the server ended, and books that are gone, do no harm."""
    deliver(target, BAG, [[(0, IN, 1, 0.5)]], window=(TS_ZERO, T0 + 1))
    entered: list[int] = []
    for at in range(1, 100):
        sink = kind_of(target.uri).make_sink(target.uri, target.options, None, FEED)
        database = sink._engine.database  # type: ignore[attr-defined]
        database.connect = lambda at=at, connect=database.connect: entered.append(at) or connect()
        hand_over(sink, BAG, [[(at, IN, 2, 0.5)]], (T0 + at, T0 + at + 1))
        # A machine that stood still for longer than sessions are kept is given another chance.
        if at not in entered:
            break
    assert at not in entered
    _cutter(target)()
    deliver(target, BAG, [[(200, IN, 2, 0.5)]], window=(T0 + 200, T0 + 201))
    assert [row[0] for row in target.rows("shop", "bag")] == [1] + [2] * (at + 1)
    target.run(
        f"DROP TABLE {target.home}.penstock_progress, {target.home}.penstock_progress_tables", f"DROP TABLE {target.name('shop', 'bag')}"
    )
    deliver(target, BAG, [[(300, IN, 4, 0.5)]], window=(T0 + 300, T0 + 301))
    assert [row[0] for row in target.rows("shop", "bag")] == [4], "books that somebody dropped are made again"


def _sessions(target: TargetDatabase) -> set[int]:
    postgres = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    others = "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user = 'root'"
    return {int(number) for (number,) in target.run(postgres if target.kind == "postgres" else others)}


class _Losing:
    """Sessions of a server of which every other answer to a COMMIT is lost on the way."""

    def __init__(self, database: Any) -> None:
        self._connect, self.commits = database.connect, 0

    def connect(self) -> Any:
        session = self._connect()
        plain: Callable[..., Any] = session.fetch

        def fetch(sql: str, values: Sequence[Any] = ()) -> Any:
            found = plain(sql, values)
            self.commits += sql == "COMMIT"
            if sql == "COMMIT" and self.commits % 2:
                raise PenstockError("SINK_UNAVAILABLE", "the answer was lost")
            return found

        session.fetch = fetch
        return session


def _cutter(target: TargetDatabase) -> Callable[[], None]:
    def cut() -> None:
        for number in _sessions(target):
            # One that was idle may end by itself.
            with contextlib.suppress(pymysql.OperationalError):
                target.run(f"SELECT pg_terminate_backend({number})" if target.kind == "postgres" else f"KILL {number}")

    return cut


def test_tables_that_were_there_before(target: TargetDatabase) -> None:
    schema = target.name("shop", "").partition(".")[0]
    target.run(
        f"CREATE {'SCHEMA' if target.kind == 'postgres' else 'DATABASE'} {schema}",
        f"CREATE TABLE {target.name('shop', 'orders')} (id BIGINT PRIMARY KEY, note VARCHAR(40), extra INT)",
        f"INSERT INTO {target.name('shop', 'orders')} VALUES (9, 'theirs', 1), (1, 'theirs', 5)",
    )
    first: list[list[Change]] = [[(0, IN, 1, "a")]]
    with pytest.raises(PenstockError, match="SINK_OCCUPIED"):
        deliver(target, KEYED, first, window=(TS_ZERO, T0 + 1))
    deliver(target, KEYED, first, window=(TS_ZERO, T0 + 1), **{"existing-rows": "keep"})
    assert target.rows("shop", "orders", "id, note, extra") == [(1, "a", 5), (9, "theirs", 1)]
    deliver(target, KEYED, first, window=(TS_ZERO, T0 + 2))
    assert target.rows("shop", "orders") == [(1, "a")], "a state that comes again replaces the one before"


def test_two_tables_do_not_become_one(target: TargetDatabase) -> None:
    deliver(target, KEYED, [[(1, IN, 1, "a")]], **{"table-name": "all"})
    with pytest.raises(PenstockError, match="SINK_OCCUPIED"):
        deliver(target, BAG, [[(1, IN, 1, 0.5)]], **{"table-name": "all"})


def test_what_a_doctor_finds_leaves_nothing(target: TargetDatabase) -> None:
    assert all(finding.ok for finding in check_target(target.uri, target.options, "f"))
    assert target.run(f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{target.home}'") == []
    kind_of(target.uri).make_maintainer(target.uri, target.options, lambda: None, FEED).claim("other/1")
    assert [f.name for f in check_target(target.uri, target.options, "f") if not f.ok] == ["target: free"]
    closed = target.uri.replace("127.0.0.1", "127.0.0.2")
    assert [f.name for f in check_target(closed, target.options, "f") if not f.ok] == ["target: reachable"]


def test_a_user_without_rights_is_refused(target: TargetDatabase) -> None:
    quoted = f"weak{target.number}"
    target.run(f"CREATE USER {quoted}")
    weak = target.uri.replace("penstock@" if target.kind == "postgres" else "root@", f"{quoted}@")
    with pytest.raises(PenstockError, match="SINK_UNWRITABLE"):
        kind_of(weak).make_maintainer(weak, target.options, lambda: None, FEED).check("f")
    assert [f.name for f in check_target(weak, target.options, "f") if not f.ok] == ["target: writable"]
