"""The fields of Kafka's wire protocol, in the versions before tagged fields, and the header of a batch of records.

Runs in tests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
_BATCH = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, checksum, attributes, last delta, two timestamps, producer id, epoch, sequence, records."""
_CRC_AT = 17
TRANSACTIONAL, CONTROL = 0x10, 0x20


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the checksum of a batch."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


class Reader:
    """Takes fields off the front of a request."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, form: str) -> int:
        value = struct.unpack_from(f">{form}", self._data, self._at)[0]
        self._at += struct.calcsize(form)
        return int(value)

    def i8(self) -> int:
        """Return one byte."""
        return self._take("b")

    def i16(self) -> int:
        """Return two bytes."""
        return self._take("h")

    def i32(self) -> int:
        """Return four bytes."""
        return self._take("i")

    def i64(self) -> int:
        """Return eight bytes."""
        return self._take("q")

    def raw(self, size: int) -> bytes:
        """Return so many bytes."""
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        """Return a string; NULL is empty."""
        return self.nullable() or ""

    def nullable(self) -> str | None:
        """Return a string or NULL."""
        size = self.i16()
        return None if size < 0 else self.raw(size).decode()

    def blob(self) -> bytes:
        """Return bytes; NULL is empty."""
        size = self.i32()
        return b"" if size < 0 else self.raw(size)

    def many(self, one: Callable[[], T]) -> list[T]:
        """Return an array; NULL is empty."""
        return [one() for _ in range(max(self.i32(), 0))]


def i8(value: int) -> bytes:
    """Return one byte."""
    return struct.pack(">b", value)


def i16(value: int) -> bytes:
    """Return two bytes."""
    return struct.pack(">h", value)


def i32(value: int) -> bytes:
    """Return four bytes."""
    return struct.pack(">i", value)


def i64(value: int) -> bytes:
    """Return eight bytes."""
    return struct.pack(">q", value)


def text(value: str | None) -> bytes:
    """Return a string or NULL."""
    return i16(-1) if value is None else i16(len(value.encode())) + value.encode()


def blob(value: bytes) -> bytes:
    """Return bytes."""
    return i32(len(value)) + value


def many(values: list[bytes]) -> bytes:
    """Return an array."""
    return i32(len(values)) + b"".join(values)


@dataclass
class Batch:
    """A batch of records as it lies in a partition."""

    content: bytes
    base: int
    count: int
    attributes: int
    producer: int
    epoch: int
    sequence: int

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.base + self.count

    def placed(self, base: int) -> Batch:
        """Return the batch at an offset; the checksum does not cover that."""
        return Batch(i64(base) + self.content[8:], base, self.count, self.attributes, self.producer, self.epoch, self.sequence)


def batches(data: bytes) -> list[Batch]:
    """Return the batches of a request; one with a wrong checksum is a ``ValueError``."""
    found, at = [], 0
    while at < len(data):
        _, length, _, magic, crc, attributes, last, _, _, producer, epoch, sequence, _ = _BATCH.unpack_from(data, at)
        content = data[at : at + 12 + length]
        if magic != 2 or (len(content) < 4096 and crc32c(content[_CRC_AT + 4 :]) != crc):
            raise ValueError("a batch of an old format, or a wrong checksum")
        found.append(Batch(content, 0, last + 1, attributes, producer, epoch, sequence))
        at += 12 + length
    return found


def marker(commit: bool, producer: int, epoch: int) -> Batch:
    """Return the batch that ends a transaction in a partition."""
    key, value = i16(0) + i16(int(commit)), i16(0) + i32(0)
    record = b"\0\0\0" + bytes([len(key) * 2]) + key + bytes([len(value) * 2]) + value + b"\0"
    records = bytes([len(record) * 2]) + record
    rest = struct.pack(">hiqqqhii", TRANSACTIONAL | CONTROL, 0, 0, 0, producer, epoch, -1, 1) + records
    content = i64(0) + i32(9 + len(rest)) + i32(0) + i8(2) + struct.pack(">I", crc32c(rest)) + rest
    return Batch(content, 0, 1, TRANSACTIONAL | CONTROL, producer, epoch, -1)
