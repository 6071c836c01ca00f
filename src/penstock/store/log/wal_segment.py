"""The files of the write-ahead log: format, encoding, and reading them back after a crash.

Format, version 1, little endian. A segment ``<number>.wal`` is a header (magic "PENSTWAL", version, number, checksum) and records at
multiples of 8 bytes: magic, payload length, xxh3-64 checksum, group number, span id, kind, then the payload. Records of one group
became durable by one fsync; the group ends with a GROUP_END record. Each segment is readable by itself: spans, resolved ts and
schemas that hold at its beginning are written at its head, and an Arrow schema stands before the first batch that has it.

The end of the last segment may be torn: a group that was never acknowledged is cut. Bad bytes that are followed by a later group
cannot come from a crash and are ``WAL_CORRUPT``. Runs in the log service.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from penstock.model.batch import BatchHeader, BatchKind, ChangeBatch
from penstock.model.errors import PenstockError

MAGIC = b"PENSTWAL"
VERSION = 1
RECORD_MAGIC = 0x4C415750
SEGMENT_HEADER = struct.Struct("<8sH6xQQ")
RECORD_HEADER = struct.Struct("<IIQQQB7x")
_CHECKED = struct.Struct("<IQQB")
BATCH_PREFIX = struct.Struct("<QQQQQIIB7x")
_SCHEMA_PREFIX = struct.Struct("<I4x")


class RecordKind(IntEnum):
    """What a record says."""

    SPAN = 1
    BATCH = 2
    RESOLVED = 3
    DDL = 4
    SCHEMAS = 5
    ARROW_SCHEMA = 6
    GROUP_END = 7


class WalRecord(msgspec.Struct, frozen=True):
    """A record on its way to the log. ``batch`` is the header of a BATCH record, whose body is an IPC message."""

    kind: RecordKind
    span_id: int
    body: bytes | pa.Buffer
    digest: bytes
    batch: BatchHeader | None = None
    schema: pa.Schema | None = None

    @classmethod
    def of(cls, kind: RecordKind, span_id: int, body: bytes) -> WalRecord:
        """Build a record that is not a batch."""
        return cls(kind, span_id, body, xxhash.xxh3_64_digest(body))

    @classmethod
    def of_batch(cls, batch: ChangeBatch) -> WalRecord:
        """Build the record of a batch. Serialising and hashing happen here, in the caller's thread."""
        body = batch.records.serialize()
        return cls(RecordKind.BATCH, batch.header.span_id, body, xxhash.xxh3_64_digest(body), batch.header, batch.records.schema)

    @property
    def nbytes(self) -> int:
        """Return the record's weight in the queue."""
        return len(self.body) if isinstance(self.body, bytes) else int(self.body.size)


class Replayed(msgspec.Struct, frozen=True):
    """A record as recovery gives it: a payload, or a batch."""

    kind: RecordKind
    span_id: int
    payload: bytes = b""
    batch: ChangeBatch | None = None


class SegmentEncoder:
    """Encodes records for one segment and remembers which Arrow schemas it already holds."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._schemas: dict[tuple[int, int], tuple[int, pa.Schema]] = {}
        self._schema_count = 0

    def header(self) -> bytes:
        """Return the bytes with which the segment begins."""
        return encode_segment_header(self.number)

    def encode(self, record: WalRecord, group: int) -> Iterator[bytes | pa.Buffer]:
        """Yield the bytes of a record, preceded by its Arrow schema where the segment lacks it."""
        prefix = b""
        if record.batch is not None and record.schema is not None:
            batch = record.batch
            key = (batch.table_id, batch.schema_version)
            known = self._schemas.get(key)
            if known is None or not known[1].equals(record.schema):
                known = (self._schema_count, record.schema)
                self._schemas[key] = known
                self._schema_count += 1
                body = record.schema.serialize()
                yield from _encode(RecordKind.ARROW_SCHEMA, 0, _SCHEMA_PREFIX.pack(known[0]), body, xxhash.xxh3_64_digest(body), group)
            prefix = BATCH_PREFIX.pack(
                batch.table_id, batch.schema_version, batch.min_ts, batch.max_ts, batch.nbytes, batch.rows, known[0], batch.kind
            )
        yield from _encode(record.kind, record.span_id, prefix, record.body, record.digest, group)

    def group_end(self, group: int) -> bytes:
        """Return the record that closes a group."""
        return b"".join(bytes(p) for p in _encode(RecordKind.GROUP_END, 0, b"", b"", xxhash.xxh3_64_digest(b""), group))


def encode_segment_header(number: int) -> bytes:
    """Return a segment's header."""
    return SEGMENT_HEADER.pack(MAGIC, VERSION, number, xxhash.xxh3_64_intdigest(b"%d:%d" % (VERSION, number)))


def _encode(
    kind: RecordKind, span_id: int, prefix: bytes, body: bytes | pa.Buffer, digest: bytes, group: int
) -> Iterator[bytes | pa.Buffer]:
    size = len(body) if isinstance(body, bytes) else int(body.size)
    length = len(prefix) + size
    yield RECORD_HEADER.pack(RECORD_MAGIC, length, _checksum(length, group, span_id, kind, prefix, digest), group, span_id, kind) + prefix
    yield body
    if length % 8:
        yield b"\0" * (-length % 8)


def _checksum(length: int, group: int, span_id: int, kind: int, prefix: bytes, digest: bytes) -> int:
    checksum: int = xxhash.xxh3_64_intdigest(_CHECKED.pack(length, group, span_id, kind) + prefix + digest)
    return checksum


_PREFIX_SIZES = {RecordKind.BATCH: BATCH_PREFIX.size, RecordKind.ARROW_SCHEMA: _SCHEMA_PREFIX.size}


class _RawRecord(msgspec.Struct, frozen=True):
    kind: RecordKind
    span_id: int
    group: int
    start: int
    length: int
    end: int


def _record_at(data: memoryview, offset: int) -> _RawRecord | None:
    """Return the record at an offset if it is whole and its checksum holds."""
    if offset + RECORD_HEADER.size > len(data):
        return None
    magic, length, checksum, group, span_id, kind = RECORD_HEADER.unpack_from(data, offset)
    start = offset + RECORD_HEADER.size
    if magic != RECORD_MAGIC or kind not in RecordKind.__members__.values() or start + length > len(data):
        return None
    prefix_size = _PREFIX_SIZES.get(RecordKind(kind), 0)
    if length < prefix_size:
        return None
    prefix = bytes(data[start : start + prefix_size])
    digest = xxhash.xxh3_64_digest(data[start + prefix_size : start + length])
    if checksum != _checksum(length, group, span_id, kind, prefix, digest):
        return None
    return _RawRecord(RecordKind(kind), span_id, group, start, length, start + length + (-length % 8))


class SegmentScan:
    """The records of one segment file, checked. ``read`` first raises or cuts whatever is wrong with the end.

    With ``keep`` nothing is cut: for whoever only looks.
    """

    def __init__(self, path: Path, last: bool, *, keep: bool = False) -> None:
        self.path = path
        self.number = int(path.stem)
        self.max_ts: dict[int, int] = {}
        """Per span the largest commit ts in the segment: it may be removed when all of that is in objects."""
        self.size = path.stat().st_size
        self._last = last
        self._keep = keep
        self._buffer = pa.memory_map(str(path)).read_buffer() if self.size else pa.py_buffer(b"")

    def read(self) -> Iterator[Replayed]:
        """Yield the segment's records; afterwards the file ends with the last of them."""
        data = memoryview(self._buffer)
        if len(data) < SEGMENT_HEADER.size or bytes(data[: SEGMENT_HEADER.size]) != encode_segment_header(self.number):
            self._end_at(data, 0, 1)
            return
        offset, group = SEGMENT_HEADER.size, 1
        schemas: dict[int, pa.Schema] = {}
        while offset < len(data):
            record = _record_at(data, offset)
            if record is None:
                self._end_at(data, offset, group)
                return
            offset = record.end
            group = record.group + 1 if record.kind is RecordKind.GROUP_END else record.group
            replayed = self._replay(record, schemas)
            if replayed is not None:
                yield replayed

    def _replay(self, record: _RawRecord, schemas: dict[int, pa.Schema]) -> Replayed | None:
        payload = self._buffer.slice(record.start, record.length)
        if record.kind is RecordKind.GROUP_END:
            return None
        if record.kind is RecordKind.ARROW_SCHEMA:
            (schema_id,) = _SCHEMA_PREFIX.unpack_from(payload, 0)
            schemas[schema_id] = pa.ipc.read_schema(payload.slice(_SCHEMA_PREFIX.size))
            return None
        if record.kind is not RecordKind.BATCH:
            return Replayed(record.kind, record.span_id, payload.to_pybytes())
        table_id, version, min_ts, max_ts, nbytes, rows, schema_id, side = BATCH_PREFIX.unpack_from(payload, 0)
        self.max_ts[record.span_id] = max(self.max_ts.get(record.span_id, 0), max_ts)
        header = BatchHeader(record.span_id, table_id, version, BatchKind(side), min_ts, max_ts, rows, nbytes)
        records = pa.ipc.read_record_batch(payload.slice(BATCH_PREFIX.size), schemas[schema_id])
        return Replayed(record.kind, record.span_id, batch=ChangeBatch(header, records))

    def _end_at(self, data: memoryview, offset: int, group: int) -> None:
        """Cut a torn end; raise if what lies behind the bad bytes shows that they were once whole.

        ``group`` is the group that the bad record belongs to. A record of a later group was written after that one was synced.
        """
        if not self._last or self._later_group(data, offset, group):
            raise PenstockError("WAL_CORRUPT", f"write-ahead log segment {self.path.name} is damaged at offset {offset}")
        if self._keep:
            return
        with self.path.open("r+b") as file:
            file.truncate(offset)
            os.fsync(file.fileno())
        self.size = offset

    @staticmethod
    def _later_group(data: memoryview, offset: int, group: int) -> bool:
        start = offset + (-offset % 8)
        words = np.frombuffer(data[start : len(data) - (len(data) - start) % 8], dtype="<u4")[::2]
        for at in np.flatnonzero(words == RECORD_MAGIC).tolist():
            record = _record_at(data, start + at * 8)
            if record is not None and record.group > group:
                return True
        return False


def segment_files(directory: Path) -> list[Path]:
    """Return the segments in order; raises ``WAL_CORRUPT`` when one is missing between others."""
    files = sorted(directory.glob("*.wal"))
    for before, after in itertools.pairwise(files):
        if int(after.stem) != int(before.stem) + 1:
            raise PenstockError("WAL_CORRUPT", f"write-ahead log segment {int(before.stem) + 1} is missing")
    return files
