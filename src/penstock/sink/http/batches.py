"""From the change rows of one dispatcher to the messages of its lanes.

A row's key decides its lane, so the changes of a key stay in their order; a table without a key has one lane. Rows of an event are
encoded together, sorted by lane; the line break behind each tells where it ends, and by that bodies are cut. Invariants: which rows a body
has depends on the rows of the window and on the settings that cut, not on how rows were divided into events; a body has rows of one table
version; rows of a lane keep their order. Nothing here looks at a row from Python. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.format.file_rows import PreparedRows
from penstock.format.json import canal, debezium
from penstock.format.json.rows import MessageSheet, Surrounded
from penstock.format.sheet_kernels import ByteSpace
from penstock.kernels.hashing import FNV_START, fold_hashes
from penstock.kernels.jit import I64, binary_view
from penstock.model.batch import KEY
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.http.messages import Message, Place, row_attributes, rows_message, sequence_of
from penstock.sink.http.settings import ROW_END, CloudEvents, HttpFormat, HttpSettings
from penstock.target.dispatcher import DispatcherWork

_LINE_BREAK = ROW_END.encode()[-1]
_ROW_NUMBER_START = 10**9
"""Numbers of rows begin here, so that they have the same number of digits and texts of them stand in their order."""


class LaneBatches:
    """Makes the messages of one dispatcher and one window. One thread."""

    def __init__(self, work: DispatcherWork, settings: HttpSettings, feed: str) -> None:
        self._work = work
        self._settings = settings
        self._feed = feed
        self._rows = PreparedRows(settings.data_format, split_key_updates=True)
        self._lanes = [_Lane(f"{work.dispatcher}/{number}", settings) for number in range(settings.lanes)]
        self._table: TableSchema | None = None

    def add(self, table: TableSchema, records: pa.RecordBatch) -> Iterator[tuple[int, Message]]:
        """Take rows in; yield lanes and the messages that are complete."""
        for version, ready in self._rows.add(table, records):
            yield from self._take(version, ready)

    def finish(self) -> Iterator[tuple[int, Message]]:
        """Yield what is left: before a DDL, and at the window's end."""
        for version, ready in self._rows.finish():
            yield from self._take(version, ready)
        yield from self._cut_rest()

    def _take(self, table: TableSchema, records: pa.RecordBatch) -> Iterator[tuple[int, Message]]:
        if self._table is None or self._table.version != table.version:
            yield from self._cut_rest()
            self._table = table
        if not records.num_rows:
            return
        if table.handle_columns:
            lane_of = _lanes_of(records, len(self._lanes))
        else:
            # Nothing tells that a row that goes is one that came, so all rows of the table keep their order.
            lane_of = np.full(records.num_rows, table.table_id % len(self._lanes), np.int64)
        order = np.argsort(lane_of, kind="stable")
        if len(self._lanes) > 1:
            records = records.take(pa.array(order))
        content = self._encoded(table, records, lane_of[order])
        ends = np.flatnonzero(np.frombuffer(content, np.uint8) == _LINE_BREAK) + 1
        row, at = 0, 0
        for number, rows in enumerate(np.bincount(lane_of, minlength=len(self._lanes))):
            if rows:
                row += int(rows)
                self._lanes[number].append(content[at : int(ends[row - 1])], ends[row - int(rows) : row] - at)
                at = int(ends[row - 1])
                yield from ((number, self._message(*cut)) for cut in self._lanes[number].cut())

    def _cut_rest(self) -> Iterator[tuple[int, Message]]:
        for number, lane in enumerate(self._lanes):
            yield from ((number, self._message(*cut)) for cut in lane.cut(whole=True))

    def _message(self, lane: str, number: int, rows: int, events: bytes) -> Message:
        table = self._table
        assert table is not None
        place = Place(self._feed, lane, sequence_of(self._work.to_ts, number))
        about = {
            "schema": table.schema,
            "table": table.table,
            "version": str(table.version),
            "snapshot": self._work.from_ts == TS_ZERO,
            "window": [str(self._work.from_ts), str(self._work.to_ts)],
        }
        return rows_message(self._settings, place, about, rows, events)

    def _encoded(self, table: TableSchema, records: pa.RecordBatch, lane_of: npt.NDArray[np.int64]) -> bytes:
        space, data_format = ByteSpace(), self._settings.data_format
        around = None
        if self._settings.cloudevents is CloudEvents.BATCH:
            around = Surrounded(lambda sheet: self._attributes(sheet, table, lane_of), b"}")
        if self._settings.format is HttpFormat.CANAL_JSON:
            canal.encode_into(table, records, data_format.canal_json, space, around)
        else:
            debezium.encode_into(table, records, data_format.debezium, space, around)
        return space.getvalue()

    def _attributes(self, sheet: MessageSheet, table: TableSchema, lane_of: npt.NDArray[np.int64]) -> None:
        """Add the attributes of each row's CloudEvent: its lane, and by its number there its id and sequence."""
        counts = np.bincount(lane_of, minlength=len(self._lanes))
        firsts = np.array([lane.rows for lane in self._lanes], np.int64) - (np.cumsum(counts) - counts)
        numbers = pa.array(np.arange(len(lane_of), dtype=np.int64) + firsts[lane_of] + _ROW_NUMBER_START)
        codes = lane_of.astype(np.uint8)
        names = [lane.name.encode() for lane in self._lanes]
        window = b"%020d-" % self._work.to_ts
        sheet.constant(row_attributes(Place(self._feed, "", ""), table.full_name) + b',"lane":"')
        sheet.choice(codes, names)
        sheet.constant(b'","id":"')
        sheet.choice(codes, names)
        sheet.constant(b"/" + window)
        sheet.integers(numbers, quoted=False)
        sheet.constant(b'","sequence":"' + window)
        sheet.integers(numbers, quoted=False)
        sheet.constant(b'","data":')


class _Lane:
    """Encoded rows of a lane that are in no body yet."""

    def __init__(self, name: str, settings: HttpSettings) -> None:
        self.name = name
        self.rows = 0
        """How many it was given, in all."""
        self._settings = settings
        self._content = b""
        self._ends: I64 = np.zeros(0, np.int64)
        self._bodies = 0

    def append(self, content: bytes, ends: I64) -> None:
        """Take rows in, with the end of each."""
        self._ends = np.concatenate((self._ends, ends + len(self._content)))
        self._content += content
        self.rows += len(ends)

    def cut(self, *, whole: bool = False) -> Iterator[tuple[str, int, int, bytes]]:
        """Yield lane, number, rows and content of each body that is complete, or all that is left."""
        first, at, ends = 0, 0, self._ends
        while first < len(ends):
            fitting = int(np.searchsorted(ends, at + self._settings.batch_size, side="right")) - first
            rows = min(max(fitting, 1), self._settings.batch_rows)
            if not whole and first + rows == len(ends) and rows < self._settings.batch_rows:
                # The next row may still fit.
                break
            end = int(ends[first + rows - 1])
            self._bodies += 1
            yield self.name, self._bodies, rows, self._content[at : end - len(ROW_END)]
            first, at = first + rows, end
        if first:
            self._content, self._ends = self._content[at:], ends[first:] - at


def _lanes_of(records: pa.RecordBatch, lanes: int) -> npt.NDArray[np.int64]:
    """Return the lane of each row, by a hash of its key that is the same everywhere."""
    total = np.full(records.num_rows, FNV_START, np.uint64)
    data, offsets = binary_view(records.column(KEY))
    fold_hashes(offsets, data, total)
    return (total % np.uint64(lanes)).astype(np.int64)
