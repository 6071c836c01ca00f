"""A MariaDB or MySQL server, a writer, and a capture of it into a real event store, as tests use them together.

A ``Capture`` is what one process has: upstream, journal, store and log service in a directory; closing it and making another one in the
same directory is a restart. Runs in tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pyarrow as pa
import pymysql

from penstock.access.mysql_server import parse_uri
from penstock.meta.engine import sqlite_url
from penstock.meta.log_journal import LogJournal
from penstock.meta.table_states import TableStates
from penstock.model.batch import KEY
from penstock.model.rows.bag_key import is_bag
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.puller.log_service import LogService, LogServiceSettings
from penstock.puller.span_pipeline import SpanPipelineSettings
from penstock.source.mysql.log_reader import LogReaderSettings
from penstock.source.mysql.upstream import MySqlUpstream
from penstock.store.contract import EndOfRange
from penstock.store.event_store import ColumnarEventStore
from testing.servers.loopback import STOP_S_MAX, as_user, unprivileged
from testing.servers.waiting import wait_until

SETTINGS = LogServiceSettings(pipeline=SpanPipelineSettings(workers=2))
BINLOG = ("--log-bin=bin", "--server-id=1", "--binlog-format=ROW")
"""Options with which MariaDB writes a log that can be captured."""


def connect(uri: str) -> Any:
    """Return a connection of a writer."""
    address = parse_uri(uri)
    return pymysql.connect(host=address.host, port=address.port, user=address.user, autocommit=True, charset="utf8mb4")


def run(connection: Any, *statements: str) -> None:
    """Run statements one after the other."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


class Capture:
    """A store and a log service in a directory, as one process has them."""

    def __init__(self, uri: str, directory: Path, settings: LogReaderSettings | None = None) -> None:
        self.upstream = MySqlUpstream(uri, settings)
        self.store = ColumnarEventStore(directory / "store")
        self.journal = LogJournal(sqlite_url(directory / "meta.db"), "mysql")
        self.doubts = TableStates(sqlite_url(directory / "meta.db"), "mysql")
        self.service = LogService(self.upstream, self.store, SETTINGS, journal=self.journal, doubts=self.doubts).start()

    def table(self, name: str) -> TableSchema:
        """Return a table by its full name."""
        return next(t for t in self.upstream.list_tables() if t.full_name == name)

    def close(self) -> None:
        """End everything, as the end of a process would."""
        self.service.close()
        self.store.close()
        self.journal.close()
        self.doubts.close()
        self.upstream.close()

    def wait(self, span_id: int, ts: int) -> None:
        """Wait until the store has resolved a ts."""
        wait_until(lambda: self.store.resolved_ts(span_id) >= ts, f"span {span_id} does not resolve {ts}")

    def state(self, table: TableSchema, spans: Sequence[Span], ts: int) -> pl.DataFrame:
        """Return what the store holds of a table at a ts."""
        names = [KEY, *(c.field_name for c in table.columns)]
        batches: list[pa.RecordBatch] = []
        for span in spans:
            handle = self.store.collect_changes(span.span_id, 0, ts)
            while not isinstance(step := handle.next(), EndOfRange):
                batches.extend(b.records for b in step.data)
            handle.close()
        frames = [pl.DataFrame(pl.from_arrow(pa.Table.from_batches([b]).select(names))) for b in batches if b.num_rows]
        return pl.concat(frames).sort(KEY) if frames else pl.DataFrame()

    def expected(self, table: TableSchema) -> pl.DataFrame:
        """Return what the server holds of a table now."""
        names = [KEY, *(c.field_name for c in table.columns)]
        batches = [b.records for b in self.upstream.read_now(Span(table.table_id))]
        frames = [pl.DataFrame(pl.from_arrow(pa.Table.from_batches([b]).select(names))) for b in batches]
        return pl.concat(frames).sort(KEY) if frames else pl.DataFrame()

    def check(self, table: TableSchema, spans: Sequence[Span]) -> int:
        """Wait for everything that is committed now, and compare it with the server; return how many rows are equal."""
        settled = self.service.settled_ts()
        for span in spans:
            self.wait(span.span_id, settled)
        got, expected = self.state(table, spans, settled), self.expected(table)
        if is_bag(table) and got.height and expected.height:
            # Which copy of a row has which key depends on how it came.
            got, expected = (frame.drop(KEY).sort(frame.columns[1:]) for frame in (got, expected))
        if not got.equals(expected):
            odd = got.join(expected, on=got.columns, how="anti", nulls_equal=True).head(3) if got.height else got
            lost = expected.join(got, on=got.columns, how="anti", nulls_equal=True).head(3) if got.height else expected.head(3)
            raise AssertionError(f"{table.full_name}: captured {odd.to_dicts()}, on the server {lost.to_dicts()}")
        return got.height


@contextmanager
def restarted(directory: Path, uri: str) -> Iterator[None]:
    """Stop the server that runs in a directory and start it again the same way, for the length of the block."""
    process = psutil.Process(int((directory / "pid").read_text()))
    command = process.cmdline()
    process.send_signal(signal.SIGTERM)
    process.wait(STOP_S_MAX)
    user = unprivileged(directory)
    with (directory / "again.log").open("wb") as out:
        again = subprocess.Popen(as_user(user, command), stdout=out, stderr=subprocess.STDOUT, cwd=directory, start_new_session=True)
    try:
        wait_until(lambda: _answers(uri), "the server does not answer")
        yield
    finally:
        os.killpg(again.pid, signal.SIGTERM)
        again.wait(STOP_S_MAX)


def _answers(uri: str) -> bool:
    try:
        connect(uri).close()
    except pymysql.Error:
        return False
    return True
