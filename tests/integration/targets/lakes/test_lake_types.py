"""Every type of MariaDB and PostgreSQL with edge values, in tables of lakes of both modes: other libraries read what the servers answer."""

import contextlib
import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.catalog import kind_of
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.iceberg.catalogs import open_catalog
from penstock.source.mysql.upstream import MySqlUpstream
from penstock.source.postgres.slot import release_slot
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced
from testing.servers.databases.mysql_server import mysql
from testing.servers.databases.postgres_answers import server_rows, table_of
from testing.servers.databases.postgres_lab import PostgresLab
from testing.servers.loopback_server import mariadb
from testing.targets.database_kit import MYSQL
from testing.targets.lake_kit import LAKES
from tests.integration.mysql.test_mysql_types import BINLOG, MARIADB_TYPES, MYSQL_TYPES, ODD, answer_expression, connect
from tests.integration.postgres.test_postgres_source import TYPES as POSTGRES_TYPES
from tests.integration.targets.test_wire_types import EMPTY, Rows, same_float

pytestmark = pytest.mark.integration
END = 1 << 60
MOMENTS = {"DATE": "%Y-%m-%d", "DATETIME": "%Y-%m-%d %H:%M:%S.%f", "TIMESTAMP": "%Y-%m-%d %H:%M:%S.%f"}


def deliver(uri: str, table: TableSchema, batches: list[pa.RecordBatch], **options: str) -> None:
    kind, run, dispatcher = kind_of(uri), SinkRun("types", 1), DispatcherId(table.table_id)
    with contextlib.closing(kind.make_sink(uri, options, None, run)) as sink:
        sink.open_dispatcher(DispatcherWork(dispatcher, table, TS_ZERO, END))
        for records in batches:
            sink.add_dml_event(DmlEvent(dispatcher, table, records))
        result = sink.close_dispatcher(dispatcher)
    kind.make_maintainer(uri, options, unfenced, run).record_window(TS_ZERO, END, [result])


def read_by_all(root: Path, table: TableSchema, batches: list[pa.RecordBatch]) -> dict[str, Rows]:
    """Deliver a first state to each lake in each mode; return the rows that readers have, by lake, mode and reader."""
    found: dict[str, pl.DataFrame] = {}
    for name, make in LAKES.items():
        for mode in ("merge", "append"):
            lake = make(root / f"{name}-{mode}")
            with pytest.raises(PenstockError, match=r"SINK_VALUE_REFUSED.*unfit-values"):
                deliver(lake.uri, table, batches, mode=mode)
            deliver(lake.uri, table, batches, mode=mode, **{"unfit-values": "null"})
            found[f"{name} {mode} polars"] = lake.read(table.schema, table.table)
            if name == "delta":
                own = DeltaTable(str(lake.root / table.schema / table.table)).to_pyarrow_table()
            else:
                own = open_catalog(lake.root.as_uri(), "", f"file://{lake.root}").load_table((table.schema, table.table)).scan().to_arrow()
            found[f"{name} {mode} own"] = pl.DataFrame(own)
    return {reader: {row["id"]: row for row in frame.to_dicts()} for reader, frame in found.items()}


def moment(text: str, kind: str) -> dt.datetime | None:
    """Return what a server's text says, if a calendar has it."""
    try:
        return dt.datetime.strptime(text if kind == "DATE" or "." in text else f"{text}.0", MOMENTS[kind])  # noqa: DTZ007 - compared without
    except ValueError:
        return None


def same(value: Any, wanted: Any, kind: str) -> bool:
    """Return whether a reader's value is the server's."""
    if kind in MOMENTS:
        stands_for = moment(wanted, kind)
        if stands_for is None or value is None:
            return value is None and stands_for is None
        return bool(value == stands_for.date() if kind == "DATE" else value.replace(tzinfo=None) == stands_for)
    if isinstance(wanted, float):
        return value is not None and same_float(value, wanted, kind == "FLOAT")
    if isinstance(value, Decimal):
        return format(value, "f") == str(wanted)
    return bool(value == wanted) or (kind == "DECIMAL" and wanted == "NaN" and value is None)


def compare(found: dict[str, Rows], truth: Rows, table: TableSchema) -> None:
    wrong = []
    for reader, rows in found.items():
        assert rows.keys() == truth.keys(), reader
        for row, answers in truth.items():
            for name, wanted in answers.items():
                value, kind = rows[row][name], str(table.column(name).type.kind)
                if value is not None if wanted is None else not same(value, wanted, kind):
                    wrong.append((reader, row, name, kind, str(value)[:60], str(wanted)[:60]))
    assert wrong == []


@pytest.mark.parametrize("server", ["mariadb", MYSQL])
def test_every_type_of_mariadb_and_mysql(tmp_path: Path, server: str) -> None:
    types = MARIADB_TYPES if server == "mariadb" else MYSQL_TYPES
    with mariadb(tmp_path, BINLOG) if server == "mariadb" else mysql(tmp_path, ODD) as uri:
        cursor = connect(uri).cursor()
        columns = ", ".join(f"c{at} {kind}" for at, (kind, _) in enumerate(types))
        cursor.execute("CREATE DATABASE types")
        cursor.execute(f"CREATE TABLE types.t (id INT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC CHARACTER SET utf8mb4")
        for row in range(max(len(values) for _, values in types)):
            cursor.execute(f"INSERT INTO types.t VALUES ({row}, {', '.join(v[row % len(v)] for _, v in types)})")
        cursor.execute(f"INSERT INTO types.t (id) VALUES ({EMPTY})")
        asked = [
            f"c{at}" if kind.startswith(("ENUM", "SET")) else f"{answer_expression(at, kind)} AS c{at}"
            for at, (kind, _) in enumerate(types)
        ]
        cursor.execute(f"SELECT id, {', '.join(asked)} FROM types.t")
        names = [column[0] for column in cursor.description]
        truth: Rows = {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in cursor.fetchall()}
        upstream = MySqlUpstream(uri)
        table = next(t for t in upstream.list_tables() if t.full_name == "types.t")
        batches = [batch.records for batch in upstream.read_now(Span(table.table_id))]
    compare(read_by_all(tmp_path, table, batches), truth, table)


def test_every_type_of_postgres(tmp_path: Path) -> None:
    lab = PostgresLab(tmp_path)
    try:
        lab.sql("CREATE SCHEMA shop; CREATE TYPE lab_mood AS ENUM ('fine', 'so so'); CREATE TYPE lab_pair AS (a int, b text)")
        lab.sql("CREATE DOMAIN lab_positive AS int; CREATE DOMAIN lab_money AS numeric(9,2); CREATE DOMAIN lab_euro AS lab_money")
        lab.sql(f"CREATE TABLE shop.t (id int PRIMARY KEY, {', '.join(f'{n} {kind}' for n, (kind, _) in POSTGRES_TYPES.items())})")
        for row in range(max(len(values) for _, values in POSTGRES_TYPES.values())):
            casts = ", ".join(f"({values[row % len(values)]})::{kind}" for kind, values in POSTGRES_TYPES.values())
            lab.sql(f"INSERT INTO shop.t SELECT {row}, {casts}")
        lab.sql(f"INSERT INTO shop.t (id) VALUES ({EMPTY})")
        upstream = lab.upstream("?slot=lake_types")
        try:
            upstream.first_position()
            table = table_of(upstream)
            ticket = upstream.begin_snapshot()
            batches = [batch.records for batch in upstream.read_snapshot(ticket, Span(table.table_id), table, 3)]
            upstream.end_snapshot(ticket)
            fields = {column.field_name: column.name for column in table.columns}
            answers = [{fields[name]: value for name, value in row.items()} for row in server_rows(lab, upstream, table)]
        finally:
            upstream.close()
            release_slot(upstream.address, SystemClock(), 20.0)
    finally:
        lab.stop()
    truth: Rows = {int(str(row["id"])): {name: value for name, value in row.items() if name != "id"} for row in answers}
    compare(read_by_all(tmp_path, table, batches), truth, table)
