"""The three tests of the seed by name, and the pipeline's lifecycle, back-pressure and failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.metrics import names
from penstock.puller.span_pipeline import Finish, Registration, SpanPipeline, SpanPipelineSettings
from testing.checks.looked_inside import wait_for_waiters

WAIT_S = 120


@dataclass(frozen=True)
class Batch:
    nbytes: int = 1
    label: int = 0


class Target:
    """Takes batches and remembers their callbacks; a probe batch tells when everything queued before it was handled."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.finishes: list[Finish] = []
        self.advanced: list[int] = []
        self.errors: list[PenstockError] = []
        self.changed = threading.Condition()

    def consume(self, batch: Batch, finish: Finish) -> bool:
        with self.changed:
            self.batches.append(batch)
            self.finishes.append(finish)
            self.changed.notify_all()
        return True

    def advance(self, ts: int) -> None:
        with self.changed:
            self.advanced.append(ts)
            self.changed.notify_all()

    def fail(self, error: PenstockError) -> None:
        with self.changed:
            self.errors.append(error)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S)


@pytest.fixture
def pipeline() -> Iterator[SpanPipeline]:
    with_two_workers = SpanPipeline(SpanPipelineSettings(workers=2, queue_size=1024), SystemClock())
    yield with_two_workers
    with_two_workers.close()


def settle(pipeline: SpanPipeline, sub_id: int) -> None:
    """Return when the worker has handled all that was queued before: registering is synchronous and goes through the same queue."""
    probe = pipeline.register(sub_id + 1_000_000 * len(pipeline._workers), lambda *_: True, lambda _: None)
    pipeline.unregister(probe)


def register(pipeline: SpanPipeline, sub_id: int, target: Target) -> Registration:
    return pipeline.register(sub_id, target.consume, target.advance, target.fail)


def sample(pipeline: SpanPipeline, metric: names.MetricName) -> float | None:
    return pipeline.metrics.registry.get_sample_value(metric.shown[0])


def test_out_of_order_persist_callbacks_wait_for_the_prefix(pipeline: SpanPipeline) -> None:
    target = Target()
    sub = register(pipeline, 1, target)
    for label in (1, 2, 3):
        assert pipeline.enqueue_data(sub, Batch(label=label))
    pipeline.enqueue_resolved(sub, 100)
    target.wait(lambda: len(target.finishes) == 3)
    assert [b.label for b in target.batches] == [1, 2, 3]
    target.finishes[1]()
    target.finishes[2]()
    settle(pipeline, 1)
    assert target.advanced == []
    assert sample(pipeline, names.PENDING_BARRIERS) == 1
    target.finishes[0]()
    target.wait(lambda: target.advanced == [100])
    assert sample(pipeline, names.PENDING_BARRIERS) == 0
    assert sample(pipeline, names.INFLIGHT_BATCHES) == 0


def test_resolved_merge_keeps_the_largest_ts_of_one_wait_seq(pipeline: SpanPipeline) -> None:
    target = Target()
    sub = register(pipeline, 1, target)
    pipeline.enqueue_data(sub, Batch())
    for ts in (10, 12, 11):
        pipeline.enqueue_resolved(sub, ts)
    settle(pipeline, 1)
    target.finishes[0]()
    settle(pipeline, 1)
    assert target.advanced == [12]
    assert sample(pipeline, names.BARRIERS_DROPPED) == 2


def test_multiple_subscriptions_are_independent(pipeline: SpanPipeline) -> None:
    one, two = Target(), Target()
    sub_one, sub_two = register(pipeline, 1, one), register(pipeline, 2, two)
    for sub, ts in ((sub_one, 100), (sub_two, 200)):
        pipeline.enqueue_data(sub, Batch())
        pipeline.enqueue_resolved(sub, ts)
    two.wait(lambda: len(two.finishes) == 1)
    two.finishes[0]()
    two.wait(lambda: two.advanced == [200])
    settle(pipeline, 1)
    assert one.advanced == []


def test_resolved_without_data_advances_at_once_and_never_goes_back(pipeline: SpanPipeline) -> None:
    target = Target()
    sub = register(pipeline, 1, target)
    for ts in (0, 5, 5, 4, 6):
        pipeline.enqueue_resolved(sub, ts)
    settle(pipeline, 1)
    assert target.advanced == [5, 6]


def test_duplicate_callbacks_count_once(pipeline: SpanPipeline) -> None:
    target = Target()
    sub = register(pipeline, 1, target)
    pipeline.enqueue_data(sub, Batch(nbytes=70))
    pipeline.enqueue_data(sub, Batch(nbytes=30))
    pipeline.enqueue_resolved(sub, 9)
    target.wait(lambda: len(target.finishes) == 2)
    for _ in range(3):
        target.finishes[0]()
    settle(pipeline, 1)
    assert target.advanced == []
    assert pipeline.quota.held_bytes == 30
    target.finishes[1]()
    target.wait(lambda: target.advanced == [9])
    assert pipeline.quota.held_bytes == 0


def test_a_batch_that_nobody_wants_counts_as_persisted(pipeline: SpanPipeline) -> None:
    advanced = threading.Event()
    sub = pipeline.register(1, lambda *_: False, lambda ts: advanced.set() if ts == 3 else None)
    pipeline.enqueue_data(sub, Batch(nbytes=10))
    pipeline.enqueue_resolved(sub, 3)
    assert advanced.wait(WAIT_S)
    assert pipeline.quota.held_bytes == 0


def test_unregister_is_synchronous_and_late_callbacks_only_return_quota(pipeline: SpanPipeline) -> None:
    old, new = Target(), Target()
    sub = register(pipeline, 1, old)
    pipeline.enqueue_data(sub, Batch(nbytes=10))
    pipeline.enqueue_resolved(sub, 50)
    old.wait(lambda: len(old.finishes) == 1)
    pipeline.unregister(sub)
    assert sample(pipeline, names.ACTIVE_SUBSCRIPTIONS) == 0
    again = register(pipeline, 1, new)
    pipeline.enqueue_data(again, Batch(nbytes=20))
    pipeline.enqueue_resolved(again, 60)
    pipeline.enqueue_data(sub, Batch(nbytes=5))
    new.wait(lambda: len(new.finishes) == 1)
    old.finishes[0]()
    settle(pipeline, 1)
    assert (old.advanced, new.advanced, len(old.batches)) == ([], [], 1)
    assert pipeline.quota.held_bytes == 20
    new.finishes[0]()
    new.wait(lambda: new.advanced == [60])
    assert pipeline.quota.held_bytes == 0


def test_registering_twice_is_refused(pipeline: SpanPipeline) -> None:
    register(pipeline, 1, Target())
    with pytest.raises(PenstockError, match=r"\[INTERNAL\]"):
        register(pipeline, 1, Target())


def test_a_failing_consumer_fails_its_span_only_and_no_resolved_ts_passes(pipeline: SpanPipeline) -> None:
    bad, good = Target(), Target()

    def consume(batch: Batch, finish: Finish) -> bool:
        raise PenstockError("STORE_FAILED", "disk full")

    sub_bad = pipeline.register(1, consume, bad.advance, bad.fail)
    sub_good = register(pipeline, 3, good)
    pipeline.enqueue_data(sub_bad, Batch(nbytes=10))
    pipeline.enqueue_resolved(sub_bad, 5)
    pipeline.enqueue_data(sub_bad, Batch(nbytes=10))
    pipeline.enqueue_resolved(sub_good, 7)
    good.wait(lambda: good.advanced == [7])
    settle(pipeline, 1)
    assert [e.code for e in bad.errors] == ["STORE_FAILED"]
    assert bad.advanced == []
    assert pipeline.quota.held_bytes == 0


def test_quota_blocks_data_until_a_persist_and_lets_a_giant_pass_alone() -> None:
    pipeline = SpanPipeline(SpanPipelineSettings(workers=1, quota_bytes=100), SystemClock())
    target = Target()
    sub = register(pipeline, 1, target)
    try:
        pipeline.enqueue_data(sub, Batch(nbytes=60))
        giant = threading.Thread(target=pipeline.enqueue_data, args=(sub, Batch(nbytes=1000)))
        giant.start()
        target.wait(lambda: len(target.finishes) == 1)
        assert wait_for_waiters(pipeline.quota, 1, WAIT_S)
        # Resolved ts are not data: they pass while the quota is full.
        pipeline.enqueue_resolved(sub, 4)
        settle(pipeline, 1)
        assert len(target.batches) == 1
        assert pipeline.quota.held_bytes == 60
        target.finishes[0]()
        target.wait(lambda: len(target.finishes) == 2)
        giant.join(WAIT_S)
        assert pipeline.quota.held_bytes == 1000
        assert target.advanced == [4]
        target.finishes[1]()
        settle(pipeline, 1)
        assert pipeline.quota.held_bytes == 0
    finally:
        pipeline.close()


def test_a_full_queue_does_not_hold_up_persists() -> None:
    pipeline = SpanPipeline(SpanPipelineSettings(workers=1, queue_size=1), SystemClock())
    gate = threading.Event()
    target = Target()

    def consume(batch: Batch, finish: Finish) -> bool:
        gate.wait(WAIT_S)
        return target.consume(batch, finish)

    sub = pipeline.register(1, consume, target.advance)
    feeder = threading.Thread(target=lambda: [pipeline.enqueue_data(sub, Batch(label=i)) for i in range(5)])
    feeder.start()
    try:
        gate.set()
        target.wait(lambda: bool(target.finishes))
        for at in range(5):
            target.wait(lambda n=at: len(target.finishes) > n)
            target.finishes[at]()
        feeder.join(WAIT_S)
        settle(pipeline, 1)
        assert pipeline.quota.held_bytes == 0
    finally:
        pipeline.close()


def test_close_wakes_blocked_callers_and_late_callbacks_settle_the_quota() -> None:
    pipeline = SpanPipeline(SpanPipelineSettings(workers=1, quota_bytes=10), SystemClock())
    target = Target()
    sub = register(pipeline, 1, target)
    pipeline.enqueue_data(sub, Batch(nbytes=10))
    target.wait(lambda: len(target.finishes) == 1)
    outcome: list[bool] = []
    blocked = threading.Thread(target=lambda: outcome.append(pipeline.enqueue_data(sub, Batch(nbytes=10))))
    blocked.start()
    assert wait_for_waiters(pipeline.quota, 1, WAIT_S)
    pipeline.close()
    blocked.join(WAIT_S)
    assert outcome == [False]
    target.finishes[0]()
    assert pipeline.quota.held_bytes == 0
    with pytest.raises(PenstockError, match=r"\[CANCELLED\]"):
        register(pipeline, 2, target)
    pipeline.unregister(sub)


def test_the_queue_of_barriers_is_compacted_while_it_never_empties(pipeline: SpanPipeline) -> None:
    target = Target()
    sub = register(pipeline, 1, target)
    for i in range(2100):
        pipeline.enqueue_data(sub, Batch())
        pipeline.enqueue_resolved(sub, i + 1)
    target.wait(lambda: len(target.finishes) == 2100)
    for finish in target.finishes[:2099]:
        finish()
    target.wait(lambda: len(target.advanced) == 2099)
    settle(pipeline, 1)
    assert target.advanced == list(range(1, 2100))
    assert (sample(pipeline, names.BARRIER_COMPACTIONS) or 0) >= 1
    assert len(sub.state._pending) < 1100


def test_a_resolved_ts_behind_refused_data_is_refused_while_another_worker_still_ends() -> None:
    """Worker 0 is busy while the pipeline closes; worker 1 is at rest. Its batch is refused, so its resolved ts must be, too."""
    pipeline = SpanPipeline(SpanPipelineSettings(workers=2), SystemClock())
    gate, busy = threading.Event(), threading.Event()

    def hold(_: Batch, finish: Finish) -> bool:
        busy.set()
        gate.wait(WAIT_S)
        finish()
        return True

    held = pipeline.register(0, hold, lambda _: None)
    target = Target()
    other = register(pipeline, 1, target)
    assert pipeline.enqueue_data(held, Batch())
    assert busy.wait(WAIT_S)
    closing = threading.Thread(target=pipeline.close)
    closing.start()
    while pipeline.enqueue_data(other, Batch()):
        pass
    assert not pipeline.enqueue_resolved(other, 20)
    gate.set()
    closing.join()
    assert target.advanced == []


def test_nothing_of_a_registration_is_taken_after_a_refusal_and_others_go_on(pipeline: SpanPipeline) -> None:
    """The rule is the registration's own: it holds even where the pipeline could take more."""
    poisoned, sound = Target(), Target()
    one, two = register(pipeline, 1, poisoned), register(pipeline, 3, sound)
    one.refused = True
    assert (pipeline.enqueue_data(one, Batch()), pipeline.enqueue_resolved(one, 5)) == (False, False)
    assert pipeline.enqueue_data(two, Batch())
    assert pipeline.enqueue_resolved(two, 5)
    sound.wait(lambda: len(sound.finishes) == 1)
    sound.finishes[0]()
    sound.wait(lambda: sound.advanced == [5])
    assert (poisoned.batches, poisoned.advanced) == ([], [])
    assert pipeline.quota.held_bytes == 1 - 1


def test_callbacks_that_come_while_a_worker_ends_are_its_own_to_handle() -> None:
    """A closed worker that still handles a batch is the only one that touches its subscriptions' state."""
    pipeline = SpanPipeline(SpanPipelineSettings(workers=1), SystemClock())
    gate, busy = threading.Event(), threading.Event()
    finishes: list[Finish] = []

    def consume(batch: Batch, finish: Finish) -> bool:
        finishes.append(finish)
        if batch.label == 1:
            busy.set()
            gate.wait(WAIT_S)
        return True

    sub = pipeline.register(0, consume, lambda _: None)
    pipeline.enqueue_data(sub, Batch(10))
    pipeline.enqueue_data(sub, Batch(5, label=1))
    assert busy.wait(WAIT_S)
    closing = threading.Thread(target=pipeline.close)
    closing.start()
    while pipeline.enqueue_resolved(sub, 1):
        pass
    finishes[0]()
    assert sub.state.acked_seq == 0, "the callback only enqueues"
    gate.set()
    closing.join()
    assert sub.state.acked_seq == 1
    finishes[1]()
    assert (sub.state.acked_seq, pipeline.quota.held_bytes) == (2, 0)
