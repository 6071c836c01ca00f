"""MariaDB and PostgreSQL as targets, measured beside their own clients on one server, in turns. Runs in the benchmark's process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa

from benchmarks.report import Bar, say
from benchmarks.rigs.workload import BASE_TS, ORDERS, changes
from penstock.model.batch import Op
from penstock.model.table import OP
from penstock.model.timestamp import TS_ZERO
from penstock.sink.catalog import kind_of
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.wake_gate import WakeGate
from penstock.store.changes.ordering import merge_step
from penstock.store.contract import Changes, Hint
from penstock.target.kind import SinkRun
from testing.targets.database_kit import TargetDatabase

ROWS, ROWS_QUICK = 400_000, 60_000
ROWS_SLOW, ROWS_SLOW_QUICK = 20_000, 3_000
"""Changes for the contestant that sends one statement each."""
ROUNDS = 3
EVENT_ROWS = 8_192


def part(quick: bool) -> tuple[list[Bar], dict[str, float | int | str]]:
    """Return the bars of both databases."""
    bars: list[Bar] = []
    figures: dict[str, float | int | str] = {}
    rows, slow = (ROWS_QUICK, ROWS_SLOW_QUICK) if quick else (ROWS, ROWS_SLOW)
    for kind, bulk in (("mariadb", "LOAD DATA LOCAL"), ("postgres", "COPY")):
        say(f"  {kind}: {rows:,} rows, {slow:,} of them one by one; best of {ROUNDS} rounds in turns")
        state, mixed = _orders(rows)
        times = {"sink": [], "bulk": [], "changes": [], "single": []}  # type: dict[str, list[float]]
        for _ in range(ROUNDS):
            target = TargetDatabase(kind)
            times["sink"].append(_timed(lambda: deliver(target, state, TS_ZERO, BASE_TS)))  # noqa: B023 - called at once
            times["changes"].append(_timed(lambda: deliver(target, mixed, BASE_TS, BASE_TS * 2)))  # noqa: B023
            times["bulk"].append(_bulk(target, state))
            times["single"].append(_single(target, mixed.take(list(range(0, mixed.num_rows, mixed.num_rows // slow)))))
        best = {name: min(found) for name, found in times.items()}
        changed = (mixed.num_rows / best["changes"]) / (slow / best["single"])
        bars.append(Bar(f"{kind}: first state, rows/s to {bulk} of the same rows", best["bulk"] / best["sink"], 0.5))
        bars.append(Bar(f"{kind}: mixed changes, changes/s to one statement each", changed, 10.0))
        figures[f"{kind}_first_state_rows_per_s"] = round(state.num_rows / best["sink"])
        figures[f"{kind}_changes_per_s"] = round(mixed.num_rows / best["changes"])
    return bars, figures


def _orders(rows: int) -> tuple[pa.Table, pa.Table]:
    """Return a first state, and changes of it and of rows that come to be."""
    state: list[pa.RecordBatch] = []
    mixed: list[pa.RecordBatch] = []
    for at, batches in enumerate(changes(0, 1, 2 * rows)):
        tombstones = [b for b in batches if b.header.kind]
        step = Changes(tuple(b for b in batches if not b.header.kind), tuple(tombstones), Hint.TAIL_DONE)
        parts = [records for _, records in merge_step(step, keep_before=False)]
        (state if at == 0 else mixed).extend(parts)
    first = pa.Table.from_batches(state)
    later = pa.concat_tables([first.slice(rows), pa.Table.from_batches(mixed)])
    return first.slice(0, rows).combine_chunks(), later.slice(0, rows).combine_chunks()


def deliver(target: TargetDatabase, rows: pa.Table, from_ts: int, to_ts: int) -> None:
    """Deliver rows as one window of one dispatcher."""
    sink = kind_of(target.uri).make_sink(target.uri, target.options, None, SinkRun("bench", 1))
    gate, dispatcher = WakeGate(), DispatcherId(ORDERS.table_id)
    sink.on_failure(gate.open)
    try:
        sink.open_dispatcher(DispatcherWork(dispatcher, ORDERS, from_ts, to_ts))
        for batch in rows.to_batches(max_chunksize=EVENT_ROWS):
            sink.add_dml_event(DmlEvent(dispatcher, ORDERS, batch, gate.enter(batch.nbytes)))
        sink.close_dispatcher(dispatcher)
    finally:
        sink.close()


def _timed(work: Callable[[], None]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def _copy_of(target: TargetDatabase, name: str) -> str:
    like = target.name("shop", "orders")
    other = target.name("shop", name)
    body = f"(LIKE {like} INCLUDING ALL)" if target.kind == "postgres" else f"LIKE {like}"
    target.run(f"CREATE TABLE {other} {body}")
    return other


def _bulk(target: TargetDatabase, rows: pa.Table) -> float:
    """Return how long the server's own bulk load takes for text that is ready."""
    table = _copy_of(target, "bulk")
    frame = pl.DataFrame(pl.from_arrow(rows.select([c.field_name for c in ORDERS.columns])))
    null = "\\N" if target.kind == "postgres" else "NULL"
    text = frame.write_csv(include_header=False, null_value=null, quote_style="non_numeric").encode()
    if target.kind == "postgres":
        connection = target.connect()

        def copy() -> None:
            with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv, NULL '\\N')") as sending:
                sending.write(text)

        return _timed(copy)
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        connection = target.connect(local_infile=True)
        how = "CHARACTER SET utf8mb4 FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY '\\n'"
        with connection.cursor() as cursor:
            return _timed(lambda: cursor.execute(f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE {table} {how}"))


def _single(target: TargetDatabase, rows: pa.Table) -> float:
    """Return how long changes take that are sent one by one, in one transaction, to the table that the bulk load filled."""
    table = target.name("shop", "bulk")
    fields = [c.field_name for c in ORDERS.columns]
    ops, values = rows.column(OP).to_pylist(), list(zip(*(rows.column(f).to_pylist() for f in fields), strict=True))
    names = [c.name for c in ORDERS.columns]
    insert = f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(names))})"
    update = f"UPDATE {table} SET {', '.join(f'{n} = %s' for n in names[1:])} WHERE id = %s"
    connection: Any = target.connect()

    def send() -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for op, row in zip(ops, values, strict=True):
                if op == Op.INSERT:
                    cursor.execute(insert, row)
                elif op == Op.UPDATE:
                    cursor.execute(update, (*row[1:], row[0]))
                else:
                    cursor.execute(f"DELETE FROM {table} WHERE id = %s", row[:1])
            cursor.execute("COMMIT")

    return _timed(send)
