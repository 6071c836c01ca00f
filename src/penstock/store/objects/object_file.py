"""The object file: ordered change batches of one span and one side, as Arrow IPC messages with zone maps.

Format, version 1, little endian::

    header   magic "PENSTOBJ", u16 version, zeros to 64 bytes
    body     encapsulated Arrow IPC record batch messages, each at a multiple of 64 bytes
    footer   JSON of ``ObjectFooter``: ids, Arrow schema per table version, zones with offset, length, ts and key range, xxh3-64 checksum
    trailer  u32 footer length, u16 version, u16 zero, u64 xxh3-64 of the footer, magic

A batch has at most 16,384 rows and one table version. Without compression a reader maps the file and the columns are not copied.
Rows are ordered by (commit ts, key). Runs in the log service and on executors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec
import pyarrow as pa
import xxhash

from penstock.model.batch import BATCH_ROWS_MAX, KEY, BatchHeader, BatchKind, ChangeBatch
from penstock.model.decoding import decoded
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.table import TableSchema

MAGIC = b"PENSTOBJ"
VERSION = 1
ALIGNMENT = 64
HEADER = struct.Struct("<8sH54x")
TRAILER = struct.Struct("<IHHQ8s")


class ObjectKind(StrEnum):
    """How an object came to be: flushed memory, written elsewhere and committed whole, or compaction output."""

    APPENDABLE = "appendable"
    BULK = "bulk"
    MERGED = "merged"


class Zone(msgspec.Struct, frozen=True, array_like=True):
    """One record batch of an object: where it lies and which ts and keys it spans."""

    offset: int
    length: int
    rows: int
    nbytes: int
    schema_version: int
    min_ts: int
    max_ts: int
    min_key: bytes
    max_key: bytes
    checksum: int


class ObjectMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the manifest says of an object. ``commit_ts`` is set for bulk and merged objects, whose rows all carry it."""

    path: str
    object_kind: ObjectKind
    side: BatchKind
    span_id: int
    table_id: int
    min_ts: int
    max_ts: int
    rows: int
    nbytes: int
    size: int
    footer_size: int
    commit_ts: int = 0
    delete_ts: int = 0
    """The ts at which a merge replaced the object; 0 while it lives."""
    create_ts: int = 0
    """The ts from which a state may be read from the object: a merged one repeats others, so before it they are read."""
    first_row: int = 0
    """The row id of its first row; the others follow. Ids are given once per span, in the order of the manifests."""
    min_key: bytes = b""
    max_key: bytes = b""
    """The smallest and the largest key; both empty in manifests that did not say them."""

    def visible_at(self, ts: int) -> bool:
        """Return whether the state at a ts is read from the object."""
        return self.create_ts <= ts and (self.delete_ts == 0 or self.delete_ts > ts)


class ObjectFooter(msgspec.Struct, frozen=True):
    """The self-description of an object file."""

    version: int
    span_id: int
    table_id: int
    side: BatchKind
    object_kind: ObjectKind
    arrow_schemas: dict[int, bytes]
    tables: tuple[TableSchema, ...]
    zones: tuple[Zone, ...]


class ObjectWriter:
    """Encodes ordered batches of one span and side a piece at a time, so that a large object needs little memory.

    ``parts`` gives the file's bytes and is read once, to its end; ``meta`` is the manifest's entry afterwards.
    """

    def __init__(
        self,
        path: str,
        object_kind: ObjectKind,
        batches: Iterable[ChangeBatch],
        tables: Sequence[TableSchema] = (),
        compression: str | None = None,
        commit_ts: int = 0,
    ) -> None:
        self._path = path
        self._object_kind = object_kind
        self._batches = batches
        self._tables = tables
        self._compression = compression
        self._commit_ts = commit_ts
        self._schemas: dict[int, pa.Schema] = {}
        self._first: BatchHeader | None = None
        self._zones: list[Zone] = []
        self._meta: ObjectMeta | None = None

    @property
    def meta(self) -> ObjectMeta:
        """Return what the manifest says of the object."""
        if self._meta is None:
            raise InvariantError(f"object {self._path} is not written yet")
        return self._meta

    def parts(self) -> Iterator[bytes | pa.Buffer]:
        """Yield the file's bytes."""
        yield HEADER.pack(MAGIC, VERSION)
        offset = HEADER.size
        for batch in self._batches:
            message = encode_message(self._checked(batch), self._compression)
            self._zones.append(_zone(batch, offset, message))
            padding = -message.size % ALIGNMENT
            yield message
            yield bytes(padding)
            offset += message.size + padding
        footer = self._footer()
        yield footer
        yield TRAILER.pack(len(footer), VERSION, 0, xxhash.xxh3_64_intdigest(footer), MAGIC)
        self._finish(offset, len(footer) + TRAILER.size)

    def _checked(self, batch: ChangeBatch) -> pa.RecordBatch:
        self._first = first = self._first or batch.header
        if (batch.header.span_id, batch.header.kind) != (first.span_id, first.kind) or batch.header.rows > BATCH_ROWS_MAX:
            raise InvariantError(f"a batch of span {batch.header.span_id}, {batch.header.rows} rows, does not belong in {self._path}")
        schema = self._schemas.setdefault(batch.header.schema_version, batch.records.schema)
        return batch.records if batch.records.schema == schema else batch.records.cast(schema)

    def _footer(self) -> bytes:
        if self._first is None:
            raise InvariantError(f"object {self._path} would be empty")
        footer = ObjectFooter(
            version=VERSION,
            span_id=self._first.span_id,
            table_id=self._first.table_id,
            side=self._first.kind,
            object_kind=self._object_kind,
            arrow_schemas={v: s.serialize().to_pybytes() for v, s in self._schemas.items()},
            tables=tuple(t for t in self._tables if t.version in self._schemas),
            zones=tuple(self._zones),
        )
        return msgspec.json.encode(footer)

    def _finish(self, footer_offset: int, footer_size: int) -> None:
        if self._first is None:
            return
        zones = self._zones
        self._meta = ObjectMeta(
            path=self._path,
            object_kind=self._object_kind,
            side=self._first.kind,
            span_id=self._first.span_id,
            table_id=self._first.table_id,
            min_ts=min(z.min_ts for z in zones),
            max_ts=max(z.max_ts for z in zones),
            rows=sum(z.rows for z in zones),
            nbytes=sum(z.nbytes for z in zones),
            size=footer_offset + footer_size,
            footer_size=footer_size,
            commit_ts=self._commit_ts,
            min_key=min(z.min_key for z in zones),
            max_key=max(z.max_key for z in zones),
        )


def encode_message(records: pa.RecordBatch, compression: str | None) -> pa.Buffer:
    """Return one record batch as an encapsulated IPC message, without its schema."""
    if compression is None:
        return records.serialize()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(records.slice(0, 0))  # the writer sends the schema with the first batch
        start = sink.tell()
        writer.write_batch(records)
        end = sink.tell()
    return sink.getvalue().slice(start, end - start)


def _zone(batch: ChangeBatch, offset: int, message: pa.Buffer) -> Zone:
    low, high = pa.compute.min_max(batch.records.column(KEY)).values()
    return Zone(
        offset=offset,
        length=message.size,
        rows=batch.header.rows,
        nbytes=max(1, message.size),
        schema_version=batch.header.schema_version,
        min_ts=batch.header.min_ts,
        max_ts=batch.header.max_ts,
        min_key=low.as_py(),
        max_key=high.as_py(),
        checksum=xxhash.xxh3_64_intdigest(message),
    )


def read_footer(meta: ObjectMeta, tail: bytes | memoryview) -> ObjectFooter:
    """Read the footer from the last ``meta.footer_size`` bytes of the file."""
    data = bytes(tail)
    if len(data) < TRAILER.size or len(data) != meta.footer_size:
        raise _corrupt(meta, "it is shorter than its footer")
    length, version, _, checksum, magic = TRAILER.unpack(data[-TRAILER.size :])
    if magic != MAGIC or version != VERSION:
        raise _corrupt(meta, f"its trailer has magic {magic!r} and version {version}")
    encoded = data[: -TRAILER.size]
    if length != len(encoded) or checksum != xxhash.xxh3_64_intdigest(encoded):
        raise _corrupt(meta, "its footer fails the checksum")
    footer = decoded(encoded, ObjectFooter)
    if (footer.span_id, footer.side) != (meta.span_id, meta.side):
        raise _corrupt(meta, f"it belongs to span {footer.span_id}")
    return footer


class ZoneReader:
    """Decodes the batches of one object, given its footer."""

    def __init__(self, meta: ObjectMeta, footer: ObjectFooter) -> None:
        self._meta = meta
        self._footer = footer
        self._schemas = {v: pa.ipc.read_schema(pa.py_buffer(s)) for v, s in footer.arrow_schemas.items()}

    def decode(self, zone: Zone, message: pa.Buffer) -> ChangeBatch:
        """Check and decode one batch; its columns point into the message."""
        if message.size != zone.length or xxhash.xxh3_64_intdigest(message) != zone.checksum:
            raise _corrupt(self._meta, f"the batch at offset {zone.offset} fails the checksum")
        records = pa.ipc.read_record_batch(message, self._schemas[zone.schema_version])
        header = BatchHeader(
            span_id=self._meta.span_id,
            table_id=self._meta.table_id,
            schema_version=zone.schema_version,
            kind=self._meta.side,
            min_ts=zone.min_ts,
            max_ts=zone.max_ts,
            rows=zone.rows,
            nbytes=zone.nbytes,
        )
        return ChangeBatch(header, records)


def _corrupt(meta: ObjectMeta, what: str) -> PenstockError:
    return PenstockError("OBJECT_CORRUPT", f"object {meta.path}: {what}")
