"""Jobs on Spark and in one process keep the same contract; and a job that runs is cancelled, loses its worker, and waits for nobody."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.feed.spark.jobs import WINDOWS_POOL, Job, Jobs, SparkJobs
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.model.errors import PenstockError
from testing.twins.local_jobs import LocalJobs

WAIT_S = 100.0


@pytest.fixture
def spark(jvm: None) -> SparkJobs:
    del jvm
    return SparkJobs(open_session(SparkSettings("local[2]")))


@pytest.fixture(params=["spark", "local"])
def jobs(request: pytest.FixtureRequest) -> Jobs:
    found: Jobs = request.getfixturevalue("spark") if request.param == "spark" else LocalJobs()
    return found


def test_answers_and_errors_come_back(jobs: Jobs) -> None:
    # Inside the test, so that it travels by value: executors do not import tests.
    def work(task: bytes) -> bytes:
        if task == b"ours":
            raise PenstockError("SINK_UNWRITABLE", "/x: [FENCED] is part of the text", "a hint")
        if task == b"foreign":
            raise KeyError("x")
        return task[::-1]

    def run(*tasks: bytes) -> list[bytes]:
        return jobs.run(Job("g", "p", "test", work, tasks))

    assert jobs.parallelism == 2
    assert run() == []
    assert run(b"ab", b"cd", b"ef") == [b"ba", b"dc", b"fe"]
    with pytest.raises(PenstockError) as ours:
        run(b"ab", b"foreign", b"ours")
    assert (ours.value.code, ours.value.detail, ours.value.hint) == ("SINK_UNWRITABLE", "/x: [FENCED] is part of the text", "a hint")
    with pytest.raises(PenstockError, match=r"^\[FEED_FAILED\] KeyError: 'x'$"):
        run(b"foreign", b"ab")
    jobs.cancel("another")
    assert run(b"ab") == [b"ba"]


def test_a_group_is_cancelled_and_others_run_beside_it(spark: SparkJobs, waiting, tmp_path: Path) -> None:
    def hold(task: bytes) -> bytes:
        Path(task.decode()).write_text("")
        threading.Event().wait(600)
        return task

    started = tmp_path / "started"
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(spark.run, Job("held", "one", "holds a place", hold, [str(started).encode()]))
        waiting.until("the task runs", started.exists)
        assert spark.run(Job("free", "two", "runs beside it", lambda task: task, [b"a"])) == [b"a"]
        assert not held.done()
        spark.cancel("held")
        error = held.exception(WAIT_S)
        assert isinstance(error, PenstockError)
        assert error.code == "CANCELLED"
        # The thread, its pool and its group are as good as before.
        assert pool.submit(spark.run, Job("held", "one", "again", lambda task: task, [b"b"])).result(WAIT_S) == [b"b"]


def test_windows_have_their_turn_as_they_come(spark: SparkJobs, waiting, tmp_path: Path) -> None:
    """With a pool for each feed the first by name would come first, every time."""
    gates, order = [tmp_path / "gate-0", tmp_path / "gate-1"], tmp_path / "order"

    def hold(task: bytes) -> bytes:
        Path(task.decode()).touch()
        while Path(task.decode()).exists():
            threading.Event().wait(0.02)
        return task

    def note(task: bytes) -> bytes:
        with order.open("ab") as file:
            file.write(task)
        return task

    tracker = spark._context.statusTracker()
    with ThreadPoolExecutor(9) as pool:
        held = [pool.submit(spark.run, Job("held", "held", "holds a place", hold, [str(gate).encode()])) for gate in gates]
        waiting.until("both places are taken", lambda: all(gate.exists() for gate in gates))
        for count, feed in enumerate("gfedcba", 1):
            pool.submit(spark.run, Job(feed, WINDOWS_POOL, feed, note, [feed.encode()]))
            waiting.until("the window waits", lambda count=count: len(tracker.getActiveJobsIds()) == 2 + count)
        # One place is enough for all: it is taken by one after the other.
        gates[0].unlink()
        waiting.until("all windows are done", lambda: order.exists() and len(order.read_bytes()) == 7)
        gates[1].unlink()
        assert [job.result(WAIT_S) for job in held] == [[str(gate).encode()] for gate in gates]
    assert order.read_bytes() == b"gfedcba"


def test_a_lost_worker_passes(spark: SparkJobs) -> None:
    def die(task: bytes) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return task

    with pytest.raises(PenstockError, match="WORKER_LOST"):
        spark.run(Job("g", "p", "dies", die, [b""]))
    assert spark.run(Job("g", "p", "lives", lambda task: task, [b"a"])) == [b"a"]
