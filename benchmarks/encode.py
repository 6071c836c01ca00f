"""``make bench NAME=encode``: every protocol's encoder, and the CSV decoder, against the library that a user would call instead.

All contestants see the same ordered changes of the 12-column table, in the chunks in which the sink encodes them. What counts is CPU time
of the process, all threads together, in the best of several interleaved rounds: rows per core, whatever else the machine does. Ratios by
the clock stand beside them among the figures. CSV is compared with bare ``polars.write_csv`` of the same columns and with Python's csv
module; Canal-JSON (whole messages, several times larger than the rows) with a ``json.dumps`` loop that builds the same messages and with
polars' JSON-lines writer of the bare columns, both by rows; Parquet with ``pyarrow.parquet`` of the same columns; decoding of CSV with
``polars.read_csv`` of the same file under the same types. A table of 1,000 columns and values of 10 MB are measured per byte of output.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import Bar, Report, say
from benchmarks.rigs.workload import BASE_TS, ORDERS, changes
from penstock.ddl.type_names import mysql_type
from penstock.format.csv import encoder as csv_encoder
from penstock.format.csv.decoder import decode
from penstock.format.csv.dialect import CsvSettings
from penstock.format.json import canal as canal_json
from penstock.format.json.canal import sql_type
from penstock.format.old_values import UpdatePairs
from penstock.format.parquet_file import ParquetRows, typed_table
from penstock.format.protocols import CanalSettings, ParquetSettings
from penstock.format.sheet_kernels import ByteSpace
from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.storage.spool.file_buffer import FileBuffer

ROWS, ROWS_QUICK = 200_000, 100_000
ROWS_SLOW = 10_000
"""Rows for the contestants that take a row at a time."""
CHUNK_ROWS = 8_192
ROUNDS, ROUNDS_QUICK = 25, 9
"""Many short rounds rather than few long ones: the shortest of them is what a machine can do, however busy it is meanwhile."""
WIDE_COLUMNS, LARGE_BYTES = 1_000, 10 << 20

CSV, CANAL, PARQUET = CsvSettings(), CanalSettings(), ParquetSettings()


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    rows, rounds = (ROWS_QUICK, ROUNDS_QUICK) if quick else (ROWS, ROUNDS)
    say(f"encode: {rows:,} changes of a 12-column table, best of {rounds} interleaved rounds")
    plain, paired = ordered_changes(rows)
    seconds, wall = measure(
        {
            "csv": lambda: encode_csv(ORDERS, plain),
            "csv_polars": lambda: polars_csv(plain),
            "canal": lambda: encode_canal(ORDERS, paired),
            "ndjson_polars": lambda: polars_ndjson(paired),
            "parquet": lambda: encode_parquet(paired),
            "parquet_pyarrow": pyarrow_parquet(paired),
            **decoding(plain),
            "csv_module": slow_csv(plain),
            "json_dumps": slow_json(paired),
        },
        rounds,
    )
    rate = {name: (ROWS_SLOW if name in {"csv_module", "json_dumps"} else rows) / best for name, best in seconds.items()}
    for name, value in rate.items():
        say(f"  {name}: {value:,.0f} rows/CPU s")
    shapes = shape_costs(plain, paired, rounds)
    bars = [
        Bar("CSV to bare polars.write_csv", rate["csv"] / rate["csv_polars"], 0.7),
        Bar("CSV to Python's csv module", rate["csv"] / rate["csv_module"], 8.0),
        Bar("Canal-JSON to a json.dumps loop", rate["canal"] / rate["json_dumps"], 10.0),
        Bar("Canal-JSON to polars.write_ndjson", rate["canal"] / rate["ndjson_polars"], 0.4),
        Bar("Parquet to pyarrow.parquet", rate["parquet"] / rate["parquet_pyarrow"], 0.7),
        Bar("decoding of CSV to polars.read_csv", rate["csv_decode"] / rate["csv_decode_polars"], 0.5),
        *(Bar(f"{name}: cost per byte to the 12-column table", value, 1.5, at_least=False) for name, value in shapes.items()),
    ]
    by_clock = {
        f"{ours}_to_{theirs}_by_the_clock": round(wall[theirs] / wall[ours], 3)
        for ours, theirs in (
            ("csv", "csv_polars"),
            ("canal", "ndjson_polars"),
            ("parquet", "parquet_pyarrow"),
            ("csv_decode", "csv_decode_polars"),
        )
    }
    rates = {f"{name}_rows_per_cpu_s": round(value) for name, value in rate.items()}
    return Report("encode", tuple(bars), {"rows": rows, **rates, **by_clock})


def ordered_changes(rows: int) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Return the changes as the sink chunks them: without before-images for CSV, and paired for the other protocols."""
    pairs = UpdatePairs(ORDERS)
    plain, paired = [], []
    for batches in changes(0, 1, rows):
        records = pa.concat_batches([b.records for b in batches])
        ops = records.column("_op").to_numpy()
        order = np.lexsort((ops < Op.DELETE, records.column("_ts").to_numpy()))
        records = records.take(pa.array(order))
        paired.append(pairs.add(records))
        plain.append(records.filter(pa.array(records.column("_op").to_numpy() != Op.BEFORE)).drop_columns(["_key"]))
    return _chunks(plain), _chunks(paired)


def _chunks(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    whole = pa.concat_batches(batches)
    return [whole.slice(at, CHUNK_ROWS) for at in range(0, whole.num_rows, CHUNK_ROWS)]


def measure(contestants: Mapping[str, Callable[[], object]], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the least CPU time of each, all threads together, and the least time by the clock; they take turns."""
    best: dict[str, float] = {}
    wall: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, run_once in contestants.items():
            began, start = time.perf_counter(), time.process_time()
            run_once()
            seconds, elapsed = time.process_time() - start, time.perf_counter() - began
            if number > 0:
                best[name] = min(best.get(name, seconds), seconds)
                wall[name] = min(wall.get(name, elapsed), elapsed)
    return best, wall


_BUFFER = FileBuffer(64 << 20)


def _buffer() -> FileBuffer:
    # As in the sink, where buffers are used again and again.
    _BUFFER.clear()
    return _BUFFER


def encode_csv(table: TableSchema, chunks: Sequence[pa.RecordBatch]) -> int:
    """Encode everything as the sink does; return the bytes."""
    nbytes = 0
    for chunk in chunks:
        buffer = _buffer()
        csv_encoder.encode_into(table, chunk, CSV, buffer)
        nbytes += buffer.tell()
    return nbytes


def encode_canal(table: TableSchema, chunks: Sequence[pa.RecordBatch]) -> int:
    """Encode everything as Canal-JSON; return the bytes."""
    nbytes = 0
    for chunk in chunks:
        buffer = _buffer()
        canal_json.encode_into(table, chunk, CANAL, buffer)
        nbytes += buffer.tell()
    return nbytes


def encode_parquet(chunks: Sequence[pa.RecordBatch]) -> int:
    """Write one Parquet file as the sink does; return its size."""
    rows = ParquetRows(ORDERS, PARQUET)
    for chunk in chunks:
        rows.add(chunk)
    return len(rows.finish())


def pyarrow_parquet(chunks: Sequence[pa.RecordBatch]) -> Callable[[], int]:
    """Return a contestant that writes the same columns, already typed, with pyarrow's defaults."""
    table = typed_table(ORDERS, pa.Table.from_batches(chunks), PARQUET)

    def write() -> int:
        out = io.BytesIO()
        pq.write_table(table, out)
        return out.tell()

    return write


def _frame(chunk: pa.RecordBatch) -> pl.DataFrame:
    ops = pl.Series("op", ["I", "U", "D"]).gather(chunk.column("_op").to_numpy())
    names = [pl.repeat(text, chunk.num_rows, eager=True).alias(name) for name, text in (("t", ORDERS.table), ("s", ORDERS.schema))]
    values = [pl.Series(n, chunk.column(n)) for n in ("_ts", *(c.field_name for c in ORDERS.columns))]
    return pl.DataFrame([ops, *names, *values])


def polars_csv(chunks: Sequence[pa.RecordBatch]) -> int:
    """Write the same columns with polars."""
    nbytes = 0
    for chunk in chunks:
        out = io.BytesIO()
        _frame(chunk).write_csv(out, include_header=False, quote_style="non_numeric", null_value="\\N", line_terminator="\r\n")
        nbytes += out.tell()
    return nbytes


def polars_ndjson(chunks: Sequence[pa.RecordBatch]) -> int:
    """Write the table's columns as JSON lines with polars."""
    nbytes = 0
    for chunk in chunks:
        out = io.BytesIO()
        _frame(chunk).write_ndjson(out)
        nbytes += out.tell()
    return nbytes


def _python_rows(chunks: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pa.Table.from_batches(chunks).slice(0, ROWS_SLOW).to_pylist()
    return rows


def slow_csv(chunks: Sequence[pa.RecordBatch]) -> Callable[[], object]:
    """Return a contestant that writes rows with Python's csv module."""
    names = [c.field_name for c in ORDERS.columns]
    rows = [
        ["IUD"[int(str(r["_op"]))], ORDERS.table, ORDERS.schema, r["_ts"], *("\\N" if r[n] is None else r[n] for n in names)]
        for r in _python_rows(chunks)
    ]

    def write() -> int:
        out = io.StringIO(newline="")
        csv.writer(out, quoting=csv.QUOTE_NONNUMERIC).writerows(rows)
        return len(out.getvalue().encode())

    return write


def slow_json(chunks: Sequence[pa.RecordBatch]) -> Callable[[], object]:
    """Return a contestant that builds the same messages as dicts and dumps them."""
    rows = _python_rows(chunks)
    columns = [(c.name, c.field_name, f"o{c.id}") for c in ORDERS.columns]
    sql_types = {c.name: sql_type(c.type) for c in ORDERS.columns}
    mysql_types = {c.name: mysql_type(c.type, full=False) for c in ORDERS.columns}
    keys = [c.name for c in ORDERS.key_columns]

    def write() -> int:
        nbytes = 0
        for row in rows:
            moment = int(str(row["_ts"])) >> 18
            values = {name: None if row[at] is None else str(row[at]) for name, at, _ in columns}
            old = [{name: None if row[at] is None else str(row[at]) for name, _, at in columns}] if row["_old"] else None
            message = {
                "id": 0,
                "database": ORDERS.schema,
                "table": ORDERS.table,
                "pkNames": keys,
                "isDdl": False,
                "type": ("INSERT", "UPDATE", "DELETE")[int(str(row["_op"]))],
                "es": moment,
                "ts": moment,
                "sql": "",
                "sqlType": sql_types,
                "mysqlType": mysql_types,
                "old": old,
                "data": [values],
                "_tidb": {"commitTs": row["_ts"]},
            }
            nbytes += len(json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode())
        return nbytes

    return write


def decoding(chunks: Sequence[pa.RecordBatch]) -> dict[str, Callable[[], object]]:
    """Return the two contestants that read the same CSV file back."""
    out = ByteSpace()
    for chunk in chunks:
        csv_encoder.encode_into(ORDERS, chunk, CSV, out)
    content = out.getvalue()
    types: dict[str, type[pl.DataType] | pl.DataType] = dict.fromkeys(("op", "t", "s"), pl.String)
    types["ts"] = pl.UInt64
    types |= {c.name: pl.Series(pa.array([], c.type.arrow())).dtype for c in ORDERS.columns}
    return {
        "csv_decode": lambda: decode(content, ORDERS, CSV),
        "csv_decode_polars": lambda: pl.read_csv(content, has_header=False, schema=types, null_values="\\N"),
    }


def shape_costs(plain: Sequence[pa.RecordBatch], paired: Sequence[pa.RecordBatch], rounds: int) -> dict[str, float]:
    """Return the cost per byte of odd shapes, relative to that of the 12-column table, for both text protocols."""
    wide, wide_rows = wide_table()
    large, large_rows = large_table()
    runs: dict[str, Callable[[], int]] = {}
    for name, table, records in ((f"{WIDE_COLUMNS} columns", wide, wide_rows), ("10 MB values", large, large_rows)):
        runs[f"CSV, {name}"] = _csv_run(table, records)
        runs[f"Canal-JSON, {name}"] = _canal_run(table, UpdatePairs(table).add(records))
    runs["CSV"] = lambda: encode_csv(ORDERS, plain[:8])
    runs["Canal-JSON"] = lambda: encode_canal(ORDERS, paired[:8])
    sizes = {name: run_once() for name, run_once in runs.items()}
    costs = {name: seconds / sizes[name] for name, seconds in measure(runs, rounds)[0].items()}
    return {name: cost / costs[name.partition(",")[0]] for name, cost in costs.items() if "," in name}


def _csv_run(table: TableSchema, records: pa.RecordBatch) -> Callable[[], int]:
    return lambda: encode_csv(table, [records.drop_columns(["_key"])])


def _canal_run(table: TableSchema, records: pa.RecordBatch) -> Callable[[], int]:
    return lambda: encode_canal(table, [records])


def wide_table() -> tuple[TableSchema, pa.RecordBatch]:
    """Return a table of 1,000 columns of mixed types, and rows of it."""
    rows = 400
    rng = np.random.default_rng(3)
    kinds = [ColumnType(TypeKind.BIGINT), ColumnType(TypeKind.VARCHAR, length=64), ColumnType(TypeKind.INT), ColumnType(TypeKind.DATETIME)]
    columns = tuple(Column(at + 1, f"column_{at}", kinds[at % 4], primary_key=at == 0) for at in range(WIDE_COLUMNS))
    table = TableSchema(12, "shop", "wide", 1, columns)
    numbers = rng.integers(0, 1 << 30, rows)
    texts = pa.array([f"a text of some length {n}" for n in numbers])
    values = [pa.array(numbers), texts, pa.array(numbers.astype(np.int32)), pa.array(["2023-11-14 12:00:00"] * rows)]
    return table, _records(table, rows, [values[at % 4] for at in range(WIDE_COLUMNS)])


def large_table() -> tuple[TableSchema, pa.RecordBatch]:
    """Return a table whose rows have a text of 10 MB, and a few rows."""
    rows = 4
    table = TableSchema(
        13,
        "shop",
        "large",
        1,
        (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "body", ColumnType(TypeKind.LONGTEXT))),
    )
    text = "an ordinary sentence of a long document, with commas, and a few numbers such as 1234567890. " * (LARGE_BYTES // 92)
    return table, _records(table, rows, [pa.array(np.arange(rows)), pa.array([text] * rows)])


def _records(table: TableSchema, rows: int, values: Sequence[pa.Array]) -> pa.RecordBatch:
    ts = pa.array(np.full(rows, BASE_TS, np.uint64))
    head = [ts, pa.array(np.zeros(rows, np.uint8)), pa.array([b"k"] * rows)]
    return pa.RecordBatch.from_arrays([*head, *values], schema=table.batch_schema())
