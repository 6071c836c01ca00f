from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.model.errors import PenstockError
from penstock.server.feeds.span_reads import SpanReads

WAIT_S = 60.0


def test_sets_of_spans_that_overlap_are_read_one_after_the_other() -> None:
    reads, lock, never = SpanReads(), threading.Lock(), threading.Event()
    reading: set[int] = set()
    turns = 0

    def read(spans: set[int]) -> None:
        nonlocal turns
        for _ in range(50):
            with reads.alone(spans, never):
                with lock:
                    assert not reading & spans
                    reading.update(spans)
                with lock:
                    reading.difference_update(spans)
                    turns += 1

    with ThreadPoolExecutor(4) as pool:
        # Taken one by one, these would wait for each other in a ring.
        for future in [pool.submit(read, spans) for spans in ({1, 2}, {2, 3}, {3, 1}, {4})]:
            future.result(WAIT_S)
    assert turns == 200


def test_who_waits_can_be_stopped() -> None:
    reads, mine, never = SpanReads(), threading.Event(), threading.Event()

    def wait() -> None:
        with reads.alone({1}, mine):
            raise AssertionError

    with ThreadPoolExecutor(1) as pool, reads.alone({1}, never):
        waiting = pool.submit(wait)
        reads.cancel(mine)
        with pytest.raises(PenstockError, match="CANCELLED"):
            waiting.result(WAIT_S)
    with reads.alone({1}, never):
        pass
