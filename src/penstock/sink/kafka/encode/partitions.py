"""The partition of a message: Kafka's own hash of bytes, so that other producers of the same keys agree.

``murmur2`` is that of Kafka's Java client, and ``murmur2_random`` of librdkafka for keys that are there. Invariant: the same bytes are in
the same partition of so many, for ever. Runs on executors.
"""

from __future__ import annotations

import numpy as np

from penstock.kernels.jit import I32, I64, U8, kernel
from penstock.kernels.memory import load_u8, load_u32

_M = np.uint64(0x5BD1E995)
_SEED = np.uint64(0x9747B28C)
_LOW = np.uint64(0xFFFFFFFF)
"""Numbers of 32 bits are kept in 64: a product of two smaller ones would have 64 anyway."""


@kernel
def _murmur2(address: np.uint64, size: np.int64) -> np.uint64:
    value = _SEED ^ np.uint64(size)
    whole = size & ~np.int64(3)
    for at in range(0, whole, 4):
        word = (np.uint64(load_u32(address + np.uint64(at))) * _M) & _LOW
        word = ((word ^ (word >> np.uint64(24))) * _M) & _LOW
        value = ((value * _M) & _LOW) ^ word
    rest = size - whole
    if rest == 3:
        value ^= np.uint64(load_u8(address + np.uint64(whole + 2))) << np.uint64(16)
    if rest >= 2:
        value ^= np.uint64(load_u8(address + np.uint64(whole + 1))) << np.uint64(8)
    if rest >= 1:
        value = ((value ^ np.uint64(load_u8(address + np.uint64(whole)))) * _M) & _LOW
    value = ((value ^ (value >> np.uint64(13))) * _M) & _LOW
    return value ^ (value >> np.uint64(15))


@kernel
def _partitions(data: U8, offsets: I64, skip: np.int64, count: np.int64, out: I32) -> None:
    base = np.uint64(data.ctypes.data)
    for row in range(len(out)):
        low, high = offsets[row], offsets[row + 1] - skip
        out[row] = np.int32(np.int64(_murmur2(base + np.uint64(low), high - low) & np.uint64(0x7FFFFFFF)) % count)


def partitions_of(data: U8, offsets: I64, count: int, skip: int = 0) -> I32:
    """Return the partitions of byte strings that lie one after the other, each followed by ``skip`` bytes that do not count."""
    out = np.zeros(len(offsets) - 1, np.int32)
    _partitions(data, offsets, np.int64(skip), np.int64(count), out)
    return out


def partition_of(content: bytes, count: int) -> int:
    """Return the partition of one byte string."""
    data = np.frombuffer(content or b" ", np.uint8)
    return int(partitions_of(data, np.array([0, len(content)], np.int64), count)[0])
