"""Buffers of files: what is written is in them, however they grow; a pool gives fitting ones again."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.sink.storage.spool.file_buffer import BufferPool, FileBuffer

MIB = 1 << 20


@given(st.integers(0, 64), st.lists(st.binary(max_size=100), max_size=20))
def test_content_is_what_was_written_in_order(capacity: int, parts: list[bytes]) -> None:
    buffer = FileBuffer(capacity)
    for number, part in enumerate(parts):
        if number % 2:
            assert buffer.write(part) == len(part)
        else:
            buffer.reserve(len(part))[: len(part)] = np.frombuffer(part, np.uint8)
            buffer.advance(len(part))
    assert bytes(buffer.content()) == b"".join(parts)
    assert buffer.tell() == sum(map(len, parts)) <= buffer.capacity


def test_a_buffer_that_is_no_longer_small_grows_to_a_whole_file_at_once() -> None:
    buffer = FileBuffer(MIB, whole_bytes=8 * MIB)
    buffer.write(bytes(MIB))
    buffer.write(b"x")
    assert buffer.capacity == MIB * 3 // 2, "still small"
    buffer.reserve(2 * MIB)
    assert buffer.capacity == 8 * MIB
    assert bytes(buffer.content()) == bytes(MIB) + b"x"


def test_a_pool_gives_what_fits_and_keeps_so_much() -> None:
    pool = BufferPool(kept_bytes_max=100)
    kept = pool.take(40)
    kept.write(b"content")
    pool.give_back(kept)
    assert pool.take(5) is not kept, "far too large"
    assert pool.take(41) is not kept, "too small"
    found = pool.take(10)
    assert found is kept
    assert found.tell() == 0
    large = FileBuffer(101)
    pool.give_back(large)
    assert pool.take(101) is not large, "more than is kept"
    pool.give_back(kept)
    pool.close()
    assert pool.take(40) is not kept
