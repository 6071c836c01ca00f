"""From the rows of one table version to messages: values, keys, partitions, moments and headers, column by column.

A value is one row in the protocol of the target; a key is an object of the columns that name a row. Invariants: messages stand in the order
of their rows; rows with one key are in one partition as long as the topic's partitions stay; bytes depend on rows, table and settings
alone. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format.csv.dialect import row_columns
from penstock.format.data_file import RowEncoder
from penstock.format.json import debezium
from penstock.format.json.rows import Surrounded
from penstock.kernels.jit import EMPTY_U8, I64, U8, binary_array
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.timestamp import LOGICAL_BITS
from penstock.sink.kafka.encode.avro_rows import AvroRows, key_schema, value_schema
from penstock.sink.kafka.encode.connect_schema import key_lead, value_lead, wide_as_text
from penstock.sink.kafka.encode.partitions import partition_of, partitions_of
from penstock.sink.kafka.encode.registry import SchemaRegistry
from penstock.sink.kafka.settings import Format, KafkaSettings, PartitionBy
from penstock.sink.kafka.transactions import Message

_LINE_FEED = 10
COMMIT_TS_HEADER = "penstock.commit-ts"
VERSION_HEADER = "penstock.schema-version"
FEED_HEADER = "penstock.feed"
TYPE_HEADER = "penstock.type"


class Lines:
    """Bytes in which every message ends with a line feed, and none has one inside; a space that kernels write to."""

    skip = 1
    """How many bytes after each message belong to none."""

    def __init__(self) -> None:
        self._space: U8 = EMPTY_U8
        self._used = 0

    def reserve(self, size: int) -> U8:
        """Return the free space behind the content, at least this large."""
        if self._used + size > len(self._space):
            grown = np.empty(max(self._used + size, len(self._space) * 3 // 2), np.uint8)
            grown[: self._used] = self._space[: self._used]
            self._space = grown
        return self._space[self._used :]

    def advance(self, size: int) -> None:
        """Take over bytes that were written into the reserved space."""
        self._used += size

    def tell(self) -> int:
        """Return how many bytes are in."""
        return self._used

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; return how many."""
        self.reserve(len(data))[: len(data)] = np.frombuffer(data, np.uint8)
        self.advance(len(data))
        return len(data)

    def content(self) -> U8:
        """Return everything."""
        return self._space[: self._used]

    def texts(self) -> list[bytes]:
        """Return the messages, without their ends."""
        return self.content().tobytes().split(b"\n")[:-1]

    def offsets(self) -> I64:
        """Return where each message begins, and where the last one ends; the line feed belongs to the one before it."""
        ends = np.flatnonzero(self.content() == _LINE_FEED) + 1
        return np.concatenate((np.zeros(1, np.int64), ends)).astype(np.int64)


class Records:
    """Messages that lie one after the other, with nothing between them."""

    skip = 0

    def __init__(self, content: U8, offsets: I64) -> None:
        self._content = content
        self._offsets = offsets

    def content(self) -> U8:
        """Return everything."""
        return self._content

    def texts(self) -> list[bytes]:
        """Return the messages."""
        found: list[bytes] = binary_array(self._content, self._offsets).to_pylist()
        return found

    def offsets(self) -> I64:
        """Return where each message begins, and where the last one ends."""
        return self._offsets


class Encoded(NamedTuple):
    """The messages of some rows."""

    values: list[bytes]
    keys: list[bytes] | None
    partitions: list[int]
    moments_ms: list[int]
    commit_ts: list[bytes] | None
    """As texts, for headers; None where there are none."""
    deletes: list[bool] | None
    """Which are followed by a tombstone; None where none is."""
    large: list[int]
    """Those that have more bytes than a message may have."""
    nbytes: int


class TableMessages:
    """Makes the messages of one table version in a topic of so many partitions. Not thread safe."""

    def __init__(
        self, settings: KafkaSettings, table: TableSchema, topic: str, partitions: int, feed: str, registry: SchemaRegistry | None = None
    ) -> None:
        self._settings = settings
        self._table = table
        self.topic = topic
        self._count = partitions
        self._handle = table.handle_columns
        self._schemas = settings.schemas and settings.protocol is Format.DEBEZIUM
        self._value_lead = value_lead(table) if self._schemas else b""
        self._key_lead = key_lead(table, self._handle) if self._schemas else b""
        self._encoder = RowEncoder(settings.data_format, table)
        self._avro: AvroRows | None = None
        self._avro_key: AvroRows | None = None
        if registry is not None:
            self._avro = AvroRows(row_columns(table), registry.schema_id(f"{topic}-value", value_schema(table)), is_key=False)
            if self._handle:
                self._avro_key = AvroRows(self._handle, registry.schema_id(f"{topic}-key", key_schema(table)), is_key=True)
        self._by = self._partition_columns()
        self._fixed = [(VERSION_HEADER, b"%d" % table.version), (FEED_HEADER, feed.encode())]

    def encode(self, records: pa.RecordBatch) -> Encoded:
        """Return the messages of paired rows."""
        if self._schemas:
            records = wide_as_text(self._table, records)
        values, keys = self._values(records), self._own_keys(records)
        texts = values.texts()
        ts = records.column(COMMIT_TS)
        deletes = None
        if self._settings.tombstones and self._handle:
            deletes = (records.column(OP).to_numpy(zero_copy_only=True) == Op.DELETE).tolist()
        large: list[int] = []
        if max(map(len, texts), default=0) > self._settings.max_message_bytes:
            large = np.flatnonzero(np.diff(values.offsets()) - values.skip > self._settings.max_message_bytes).tolist()
        return Encoded(
            texts,
            None if keys is None else keys.texts(),
            self._partitions(records, keys),
            (ts.to_numpy(zero_copy_only=True) >> np.uint64(LOGICAL_BITS)).tolist(),
            _texts_of(ts) if self._settings.headers else None,
            deletes,
            large,
            len(values.content()) + (0 if keys is None else len(keys.content())),
        )

    def messages(self, encoded: Encoded) -> Iterator[Message]:
        """Yield what is handed to the client, one call for each."""
        keys = repeat(None) if encoded.keys is None else encoded.keys
        headers: Iterable[list[tuple[str, bytes]] | None] = repeat(None)
        if encoded.commit_ts is not None:
            version, feed = self._fixed
            headers = map(list, zip(zip(repeat(COMMIT_TS_HEADER), encoded.commit_ts), repeat(version), repeat(feed)))
        # Nothing of Python runs for a message before it is handed over.
        rows: Iterator[Message] = zip(repeat(self.topic), encoded.values, keys, encoded.partitions, encoded.moments_ms, headers)
        return rows if encoded.deletes is None else _with_tombstones(rows, encoded.deletes)

    def _values(self, records: pa.RecordBatch) -> Lines | Records:
        if self._avro is not None:
            return Records(*self._avro.encode(records))
        lines = Lines()
        if self._value_lead:
            around = Surrounded(lambda sheet: sheet.constant(self._value_lead), b"}")
            debezium.encode_into(self._table, records, self._settings.data_format.debezium, lines, around)
        else:
            self._encoder.encode(records, lines)
        return lines

    def _own_keys(self, records: pa.RecordBatch) -> Lines | Records | None:
        if self._avro_key is not None:
            return Records(*self._avro_key.encode(records))
        return self._keys(records, self._handle, self._key_lead) if self._handle else None

    def _partitions(self, records: pa.RecordBatch, keys: Lines | Records | None) -> list[int]:
        if self._by is None or (self._by == self._handle and keys is None):
            # Nothing of a row decides, so that all rows of the table keep their order.
            return [partition_of(self._table.full_name.encode(), self._count)] * records.num_rows
        chosen = keys if self._by == self._handle else self._keys(records, self._by, b"")
        assert chosen is not None
        found: list[int] = partitions_of(chosen.content(), chosen.offsets(), self._count, chosen.skip).tolist()
        return found

    def _partition_columns(self) -> tuple[Column, ...] | None:
        settings = self._settings
        if settings.partition_by is PartitionBy.TABLE or (settings.partition_by is PartitionBy.KEY and not self._handle):
            return None
        if settings.partition_by is PartitionBy.KEY:
            return self._handle
        try:
            return tuple(self._table.column(name) for name in settings.partition_columns)
        except KeyError as error:
            text = f"table {self._table.full_name} has no column {error.args[0]} of partition-columns"
            raise PenstockError(
                "SINK_UNWRITABLE",
                text,
                "Alter the feed: name columns that every table has in sink.partition-columns, or set sink.partition-by = key.",
            ) from None

    @staticmethod
    def _keys(records: pa.RecordBatch, columns: tuple[Column, ...], lead: bytes) -> Lines:
        lines = Lines()
        debezium.encode_keys(columns, records, lines, lead)
        return lines


def _with_tombstones(rows: Iterator[Message], deletes: list[bool]) -> Iterator[Message]:
    for row, deleted in zip(rows, deletes, strict=True):
        yield row
        if deleted:
            topic, _, key, partition, moment, headers = row
            yield topic, None, key, partition, moment, headers


def _texts_of(numbers: pa.Array) -> list[bytes]:
    """Return numbers as texts."""
    whole = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(numbers)], pa.int32()), numbers.cast(pa.string())), "\n")
    text: str = whole[0].as_py()
    return text.encode().split(b"\n") if len(numbers) else []
