"""Jobs on Spark and in one process keep the same contract; and a job that runs is cancelled, loses its worker, and waits for nobody."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.feed.spark.jobs import Job, Jobs, SparkJobs
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


def test_a_lost_worker_passes(spark: SparkJobs) -> None:
    def die(task: bytes) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return task

    with pytest.raises(PenstockError, match="WORKER_LOST"):
        spark.run(Job("g", "p", "dies", die, [b""]))
    assert spark.run(Job("g", "p", "lives", lambda task: task, [b"a"])) == [b"a"]
