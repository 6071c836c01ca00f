"""Every type of MariaDB and PostgreSQL with edge values as readers of Kafka and HTTP get it, in each format: what the servers answer.

Readers are plain clients with ``json``, ``base64`` and fastavro; nothing of Penstock decodes.
"""

from __future__ import annotations

import base64
import io
import json
import math
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from penstock.model.clock import SystemClock
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.catalog import open_sink
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.kafka.transactions import KEPT
from penstock.source.mysql.upstream import MySqlUpstream
from penstock.source.postgres.slot import release_slot
from penstock.target.kind import SinkRun
from testing.servers.databases.postgres_answers import server_rows, table_of
from testing.servers.databases.postgres_lab import PostgresLab
from testing.servers.http_receiver import http_receiver
from testing.servers.kafka.broker import kafka_broker
from testing.servers.kafka.consumer import read_topics
from testing.servers.kafka.registry import schema_registry
from testing.servers.loopback_server import mariadb
from tests.integration.mysql.test_mysql_types import BINLOG, MARIADB_TYPES, answer_expression, connect
from tests.integration.postgres.test_postgres_source import TYPES as POSTGRES_TYPES

pytestmark = pytest.mark.integration
Rows = dict[int, dict[str, Any]]
EMPTY = 99
"""The row in which everything but the key is NULL."""


@pytest.fixture(autouse=True)
def _streams() -> Iterator[None]:
    yield
    KEPT.close()


def received(table: TableSchema, batches: list[pa.RecordBatch]) -> dict[str, Rows]:
    """Deliver a first state to Kafka in each format and to HTTP; return the rows that readers have, by format and id."""

    def deliver(uri: str, **options: str) -> None:
        sink = open_sink(uri, options, None, SinkRun("types", 1))
        dispatcher = DispatcherId(table.table_id)
        sink.open_dispatcher(DispatcherWork(dispatcher, table, TS_ZERO, 1 << 62))
        for records in batches:
            sink.add_dml_event(DmlEvent(dispatcher, table, records))
        sink.close_dispatcher(dispatcher)
        sink.close()

    with ExitStack() as servers:
        broker, registry = servers.enter_context(kafka_broker(1)), servers.enter_context(schema_registry())
        receiver = servers.enter_context(http_receiver())
        broker.kept.message_bytes_max = 1 << 24
        uri = f"kafka://{broker.address}/%s?max-message-bytes=9000000&schema-registry={registry.url}"
        deliver(uri % "canal")
        deliver(uri % "debezium", protocol="debezium")
        deliver(uri % "connect", protocol="debezium", schemas="true")
        deliver(uri % "avro", protocol="avro")
        deliver(receiver.uri)

        def read(prefix: str) -> list[Any]:
            return read_topics(broker.address, [f"{prefix}.{table.schema}.{table.table}"])

        def record(value: bytes) -> Any:
            schema = fastavro.parse_schema(registry.schema(struct.unpack(">I", value[1:5])[0]))
            return fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)

        found = {
            "canal": [m.body["data"][0] for m in read("canal")],
            "debezium": [m.body["after"] for m in read("debezium")],
            "connect": [connected(m.body) for m in read("connect")],
            "avro": [record(m.value) for m in read("avro")],
            "http": [event["after"] for body in receiver.bodies() for event in body["events"]],
        }
    return {name: {int(row["id"]): row for row in rows} for name, rows in found.items()}


def connected(body: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a message as Kafka Connect's JSON converter reads it: each value as its field's type holds it."""
    fields = next(field for field in body["schema"]["fields"] if field["field"] == "after")["fields"]
    row = body["payload"]["after"]
    assert list(row) == [field["field"] for field in fields]
    for field in fields:
        value, kind = row[field["field"]], field["type"]
        if value is None:
            assert field["optional"]
        elif kind.startswith("int"):
            bound = 1 << (int(kind[3:]) - 1)
            assert isinstance(value, int), field
            assert -bound <= value < bound, field
        elif kind in {"float", "double"}:
            # What is not finite stands as Jackson writes it.
            assert isinstance(value, int | float) or value in {"NaN", "Infinity", "-Infinity", "+Inf", "-Inf", "Inf"}, (field, value)
        else:
            assert isinstance(value, str), field
    return row


def same_float(value: Any, wanted: float, is_single: bool) -> bool:
    number = float(value)
    form = "<f" if is_single else "<d"
    return math.isnan(number) if math.isnan(wanted) else struct.pack(form, number + 0.0) == struct.pack(form, wanted + 0.0)


def read_back(form: str, value: Any, wanted: Any) -> Any:
    """Return a value of a message as what it stands for, by the page of the format."""
    if isinstance(wanted, bytes):
        return {"canal": lambda: value.encode("latin-1"), "avro": lambda: value}.get(form, lambda: base64.b64decode(value))()
    return int(value) if isinstance(wanted, int) else value


def compare(rows: dict[str, Rows], truth: Rows, table: TableSchema, named: Callable[[int, str], Any]) -> None:
    """Fail unless every format has the server's answers; ``named`` gives the name of an ENUM's or SET's value."""
    for form, found in rows.items():
        assert found.keys() == truth.keys(), form
        for row, answers in truth.items():
            for name, wanted in answers.items():
                value = found[row][name]
                kind = str(table.column(name).type.kind)
                if wanted is None:
                    assert value is None, (form, row, name)
                elif isinstance(wanted, float):
                    assert same_float(value, wanted, kind == "FLOAT"), (form, row, name, value, wanted)
                elif kind in {"ENUM", "SET"} and form != "canal":
                    assert value == named(row, name), (form, row, name)
                else:
                    assert read_back(form, value, wanted) == wanted, (form, row, name, value, wanted)


def test_every_type_of_mariadb(tmp_path: Path) -> None:
    with mariadb(tmp_path, BINLOG) as uri:
        cursor = connect(uri).cursor()
        columns = ", ".join(f"c{at} {kind}" for at, (kind, _) in enumerate(MARIADB_TYPES))
        cursor.execute("CREATE DATABASE types")
        cursor.execute(f"CREATE TABLE types.t (id INT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC CHARACTER SET utf8mb4")
        for row in range(max(len(values) for _, values in MARIADB_TYPES)):
            cursor.execute(f"INSERT INTO types.t VALUES ({row}, {', '.join(v[row % len(v)] for _, v in MARIADB_TYPES)})")
        cursor.execute(f"INSERT INTO types.t (id) VALUES ({EMPTY})")
        asked = ", ".join(f"{answer_expression(at, kind)} AS c{at}" for at, (kind, _) in enumerate(MARIADB_TYPES))

        def answered(what: str) -> Rows:
            cursor.execute(f"SELECT id, {what} FROM types.t")
            names = [column[0] for column in cursor.description]
            return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in cursor.fetchall()}

        truth = answered(asked)
        names = answered(", ".join(f"c{at}" for at, (kind, _) in enumerate(MARIADB_TYPES) if kind.startswith(("ENUM", "SET"))))
        upstream = MySqlUpstream(uri)
        table = next(t for t in upstream.list_tables() if t.full_name == "types.t")
        rows = received(table, [batch.records for batch in upstream.read_now(Span(table.table_id))])
    compare(rows, truth, table, lambda row, name: names[row][name])
    assert json.loads(rows["canal"][0]["c55"]) == {"a": [1, 2.5, None, "ü"]}


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
        upstream = lab.upstream("?slot=wire_types")
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
    compare(received(table, batches), truth, table, lambda row, name: truth[row][name])
