"""Streamed transactions between their first segment and their end."""

import numpy as np
import pytest

from penstock.model.errors import PenstockError
from penstock.source.postgres.rows import stream_spool
from penstock.source.postgres.rows.stream_spool import StreamSpool


def segment(text: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(text, np.uint8)


@pytest.mark.parametrize("memory_bytes", [1, 1 << 20])
def test_transactions_come_back_each_in_order(memory_bytes: int) -> None:
    spool = StreamSpool(memory_bytes)
    for xid, text in ((1, b"abc"), (2, b"X"), (1, b"defg"), (2, b"Y")):
        spool.add(xid, segment(text))
    assert list(spool.pieces(1, 3)) == [b"abc", b"def", b"g"]
    assert b"".join(spool.pieces(1, 100)) == b"abcdefg", "it may be read again"
    assert b"".join(spool.pieces(2, 1)) == b"XY"
    spool.forget(1)
    assert list(spool.pieces(1, 3)) == []
    spool.close()
    assert list(spool.pieces(2, 3)) == []


def test_what_is_rolled_back() -> None:
    spool = StreamSpool()
    spool.add(1, segment(b"a"))
    spool.abort(1, 12)
    spool.abort(1, 11)
    spool.abort(1, 12)
    assert spool.aborted(1) == [11, 12]
    assert list(spool.pieces(1, 9)) == [b"a"]
    spool.abort(1, 1)
    assert (spool.aborted(1), list(spool.pieces(1, 9))) == ([], [])


def test_there_are_not_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_spool, "STREAMS_MAX", 2)
    spool = StreamSpool()
    for xid in (1, 2, 1):
        spool.add(xid, segment(b"a"))
    with pytest.raises(PenstockError, match="more than 2"):
        spool.add(3, segment(b"a"))
    spool.close()
