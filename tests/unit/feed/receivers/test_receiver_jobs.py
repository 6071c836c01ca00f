"""Jobs of receivers: when they begin, that they are begun again, and how they end."""

from __future__ import annotations

import random
import threading

import pytest

from penstock.feed.receivers.board import PartBoard
from penstock.feed.receivers.receiver_jobs import ReceiverJobs, check_cores
from penstock.feed.receivers.settings import ReceiverSettings
from penstock.feed.spark.jobs import RECEIVERS_POOL, Job
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.log_service import CaptureState
from testing.servers.waiting import wait_until

SETTINGS = ReceiverSettings(2, 1, backoff_s=0.01, backoff_max_s=0.02)


class ScriptedJobs:
    """Jobs that fail so many times, and then hold their thread until they are cancelled."""

    def __init__(self, failures: int = 0, parallelism: int = 4) -> None:
        self.parallelism = parallelism
        self.begun: list[Job] = []
        self.cancelled: dict[str, threading.Event] = {}
        self._failures = failures
        self._lock = threading.Lock()

    def run(self, job: Job) -> list[bytes]:
        with self._lock:
            self.begun.append(job)
            held = self.cancelled.setdefault(job.group, threading.Event())
            if self._failures:
                self._failures -= 1
                raise PenstockError("WORKER_LOST", "executor lost")
        assert held.wait(60)
        raise PenstockError("CANCELLED", "the job was cancelled")

    def cancel(self, group: str) -> None:
        self.cancelled[group].set()


def keep(jobs: ScriptedJobs) -> tuple[PartBoard, ReceiverJobs]:
    clock = SystemClock()
    board = PartBoard(SETTINGS, clock, lambda span_id: 1)
    return board, ReceiverJobs(jobs, board, "shop", lambda slot, run: b"%d %d" % (slot, run), SETTINGS, clock, random.Random(1))


def test_jobs_begin_with_the_first_span_fail_are_begun_again_and_are_cancelled_at_the_end() -> None:
    jobs = ScriptedJobs(failures=3)
    board, receivers = keep(jobs)
    receivers.start()
    assert jobs.begun == []
    board.ensure(Span(1))
    wait_until(lambda: len(jobs.begun) == 5, "three more", 60)
    receivers.close()
    tasks = [tuple(map(int, job.tasks[0].split())) for job in jobs.begun]
    assert {slot for slot, _ in tasks} == {0, 1}
    for slot in (0, 1):
        runs = [run for s, run in tasks if s == slot]
        assert runs == sorted(set(runs)), "each run has a number of its own"
    assert len({job.group for job in jobs.begun}) == 2
    assert {job.pool for job in jobs.begun} == {RECEIVERS_POOL}
    assert {job.description for job in jobs.begun} == {"receiver 1 of 2 of shop", "receiver 2 of 2 of shop"}
    receivers.close()


def test_none_is_begun_where_windows_would_get_no_core() -> None:
    jobs = ScriptedJobs(parallelism=3)
    board, receivers = keep(jobs)
    receivers.start()
    board.ensure(Span(1))
    wait_until(lambda: board.status()[0].state is CaptureState.RETRYING, "it is shown", 60)
    assert "3 receivers wait: Spark has 3 cores now" in str(board.status()[0].last_error)
    assert jobs.begun == []
    jobs.parallelism = 4
    wait_until(lambda: len(jobs.begun) == 2, "both begin", 60)
    receivers.close()


def test_one_core_is_left() -> None:
    check_cores(2, 3)
    with pytest.raises(PenstockError, match="2 receivers wait") as raised:
        check_cores(2, 2)
    assert "spark.cores-max" in raised.value.hint
