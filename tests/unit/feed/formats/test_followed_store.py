"""A reader whose server ends while it reads: another one has the table then, and no row is missing or comes twice."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.feed.formats.followed_store import Patience, address_of
from penstock.feed.formats.table_reader import PenstockTable
from penstock.feed.formats.table_stream import TableStreamReader
from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import encode_row_keys
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.address import NAME, FlightAddress, write_address
from penstock.store.flight.server import FlightService
from testing.twins.clock import SimulatedClock

COLUMNS = (Column(1, "id", ColumnType(TypeKind.INT), False, True), Column(2, "pad", ColumnType(TypeKind.TEXT)))
TABLE = TableSchema(7, "d", "t", 1, COLUMNS)
PAD = "x" * 500
LINE_BYTES = 12 << 20
"""What passes a line before it stands still: a first batch, and never all rows, whatever the processes buffer."""
SPAN = Span(TABLE.table_id)
ROWS = 30_000


class Line:
    """A connection to a server that breaks when it is closed, as where the server's machine is gone.

    With a limit, each connection gives so many bytes and then no more until it breaks.
    """

    def __init__(self, port: int, limit: int) -> None:
        self._port = port
        self._limit = limit
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open += [near, far]
                for source, sink, limit in ((near, far, 0), (far, near, self._limit)):
                    threading.Thread(target=self._carry, args=(source, sink, limit), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, limit: int) -> None:
        carried = 0
        with contextlib.suppress(OSError):
            while (not limit or carried < limit) and (data := source.recv(65_536)):
                sink.sendall(data)
                carried += len(data)
            if not limit or carried < limit:
                sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Break it; may be called twice."""
        for one in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextlib.contextmanager
def server(directory: Path, cut: int, resolved_ts: int = ROWS + 10, limit: int = 0) -> Iterator[Line]:
    """A server that captured the same log: a row with each commit, however it came in batches."""
    directory.mkdir()
    with ColumnarEventStore(directory / "store") as store, contextlib.closing(FlightService(store)) as flight:
        for span in (SPAN, DDL_SPAN):
            store.register_span(span.span_id, span, 0)
        store.put_schemas([TABLE])
        for start in range(0, ROWS, cut):
            ids = pa.array(range(start, min(start + cut, ROWS)), pa.int32())
            ts = pa.array([n + 5 for n in ids.to_pylist()], pa.uint64())
            columns = [ts, pa.array([int(Op.INSERT)] * len(ids), pa.uint8()), encode_row_keys(TABLE, {"c1": ids}), ids]
            columns.append(pa.repeat(pa.scalar(PAD, pa.string()), len(ids)))
            durable = threading.Event()
            records = pa.RecordBatch.from_arrays(columns, schema=TABLE.batch_schema())
            store.append(SPAN.span_id, [ChangeBatch.of(SPAN.span_id, TABLE, BatchKind.DATA, records)], durable.set)
            assert durable.wait(60)
        for span in (SPAN, DDL_SPAN):
            store.advance_resolved_ts(span.span_id, resolved_ts)
        with contextlib.closing(Line(flight.port, limit)) as line:
            write_address(directory / "store", FlightAddress(f"grpc://127.0.0.1:{line.port}", flight.token))
            yield line


def test_a_read_goes_on_at_the_server_that_took_over(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    options = {"data-dir": f"{first}, {second}", "table": "d.t", "from-ts": "1"}
    with server(first, 10_000, limit=LINE_BYTES) as ending:
        source = PenstockTable(options)
        reader = source.reader(source.schema())
        (part,) = reader.partitions()
        rows = reader.read(part)
        found = next(rows)["id"].to_pylist()
        assert 0 < len(found) < ROWS
        impatient = PenstockTable(options | {"takeover-seconds": "0"}).reader(source.schema()).read(part)
        next(impatient)
        ending.close()
    with pytest.raises(PenstockError):
        list(impatient)
    with server(second, 7_000):
        (first / "store" / NAME).unlink()
        found += [n for records in rows for n in records["id"].to_pylist()]
        assert found == list(range(ROWS))


def test_a_stream_waits_for_the_server_that_takes_over(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    options = {"data-dir": f"{first},{second}", "table": "d.t", "from-ts": "1"}
    with server(first, 30_000, 20_000):
        reader = TableStreamReader(options, PenstockTable(options).schema())
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert end == {"ts": 20_000}
    # The address stays behind where a server is killed.
    assert reader.latestOffset(end, ReadAllAvailable()) == end, "nobody has anything new"
    with server(second, 7_000):
        last = reader.latestOffset(end, ReadAllAvailable())
        assert last == {"ts": ROWS + 10}
        rows = [n for part in reader.partitions(end, last) for records in reader.read(part) for n in records["id"].to_pylist()]
        assert rows == [n for n in range(ROWS) if n + 5 > 20_000]
        # Of two that have the table, the one that is further counts.
        assert address_of(options).location == address_of({"data-dir": str(second)}).location


def test_patience_ends(tmp_path: Path) -> None:
    nobody = PenstockError("STORE_UNREACHABLE", "nobody")
    for options, bears in [({"data-dir": "x"}, 2), ({"location": "x"}, 0), ({"data-dir": "x", "takeover-seconds": "0"}, 0)]:
        clock = SimulatedClock()
        patience = Patience(options, clock)
        found = []
        for _ in range(3):
            found.append(patience.bears(nobody, wait=False))
            clock.advance(35.0)
        assert found.count(True) == bears
    patience = Patience({"data-dir": "x"}, clock)
    assert not patience.bears(PenstockError("STALE_READ", "too old"))
    with pytest.raises(PenstockError, match="takeover-seconds"):
        Patience({"data-dir": "x", "takeover-seconds": "soon"})
    with pytest.raises(PenstockError, match=r"STORE_UNREACHABLE.*none of 2"):
        address_of({"data-dir": f"{tmp_path},{tmp_path}", "table": "d.t"})
