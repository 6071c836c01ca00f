from __future__ import annotations

import threading

from penstock.model.span import Span
from penstock.puller.ranged.region_feed_state import RegionFeedState
from penstock.puller.ranged.request_cache import RequestCache
from penstock.puller.ranged.subscribed_span import SubscribedSpan
from penstock.source.ranged import RangeEpoch, RangeInfo


class Owner:
    def __init__(self, cache: RequestCache) -> None:
        self._cache = cache

    def release_slot(self, state: RegionFeedState) -> None:
        self._cache.release_slot(state)

    def cut_stream(self, state: RegionFeedState) -> None:
        self._cache.close_stream(state.stream)


def feeds(cache: RequestCache, request_id: int, count: int) -> list[RegionFeedState]:
    span = SubscribedSpan(Span(request_id), request_id, 5, (b"", b""), 0.0, None)
    cuts = [bytes([i]) if i else b"" for i in range(count)] + [b""]
    states = []
    for i in range(count):
        piece = span.lock_range(cuts[i], cuts[i + 1], i + 1, 0.0)
        assert piece is not None
        info = RangeInfo(i + 1, 1, cuts[i], cuts[i + 1], RangeEpoch(1, 1), 1, "store")
        states.append(RegionFeedState(span, info, piece, Owner(cache)))
    return states


def test_slots_bound_what_is_requested_and_return_once() -> None:
    cache = RequestCache(pending_max=10, uninitialized_max=2)
    states = feeds(cache, 1, 3)
    assert all(map(cache.add, states))
    stream = cache.open_stream()
    assert [cache.take(stream), cache.take(stream)] == states[:2]
    taken: list[object] = []
    third = threading.Thread(target=lambda: taken.append(cache.take(stream)))
    third.start()
    states[0].mark_initialized()
    states[0].stop()
    third.join(120)
    assert taken == [states[2]]
    assert cache.regions() == 3


def test_the_cache_is_bounded_and_a_stopped_feed_is_never_sent() -> None:
    cache = RequestCache(pending_max=2, uninitialized_max=5)
    first, second, third = feeds(cache, 1, 3)
    assert cache.add(first)
    assert cache.add(second)
    assert not cache.add(third)
    first.stop()
    assert cache.take(cache.open_stream()) is second


def test_stopping_a_span_sends_one_task_and_only_on_an_open_stream() -> None:
    cache = RequestCache(pending_max=10, uninitialized_max=5)
    mine, others = feeds(cache, 1, 2), feeds(cache, 2, 1)
    for state in (*mine, *others):
        cache.add(state)
    stream = cache.open_stream()
    assert cache.take(stream) is mine[0]
    assert cache.stop_span(1) == [mine[1], mine[0]]
    assert cache.take(stream) == 1
    assert cache.take(stream) is others[0]
    assert cache.find(1, 1) is None
    assert cache.find(2, 1) is others[0]
    assert cache.find_many(2, [1, 99]) == ([others[0]], 1)
    cache.close_stream(stream)
    assert cache.take(stream) is None
    assert cache.stop_span(2) == others
    # The new stream does not know the old one's registrations, so there is nothing to stop on it.
    again = feeds(cache, 3, 1)
    cache.add(again[0])
    assert cache.take(cache.open_stream()) is again[0]
    assert cache.take_all() == again
    cache.close()
    assert not cache.wait_for_work()
    assert not cache.add(again[0])
