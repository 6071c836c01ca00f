"""Only the results of the recorded window commit it; and a run of windows is stopped and cancelled in the middle, and goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.feed.spark.jobs import Job
from penstock.feed.window.barrier import commit_recorded_window
from penstock.feed.window.delivery import WindowTask
from penstock.feed.window.planner import WindowPlanner
from penstock.feed.window.run import FeedWindows
from penstock.feed.window.window_job import WindowJobs
from penstock.model.errors import InvariantError, PenstockError
from testing.checks.target_audit import digests
from testing.paths.feed_path import WAIT_S
from testing.paths.whole_path import WholePath
from testing.twins.local_jobs import LocalJobs

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[WholePath]:
    with contextlib.closing(WholePath(tmp_path, SETUP)) as opened:
        opened.drain()
        yield opened


class HeldJobs(LocalJobs):
    """Holds each job, delivered already, until it is cancelled: its answer is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Event()
        self._ended = threading.Event()

    def run(self, job: Job) -> list[bytes]:
        super().run(job)
        self.held.set()
        assert self._ended.wait(WAIT_S)
        raise PenstockError("CANCELLED", "the job was cancelled")

    def cancel(self, group: str) -> None:
        assert group == self.done[0].group
        self._ended.set()


def test_a_window_that_another_server_left_is_not_taken_for_committed(path: WholePath) -> None:
    path.wait_resolved(path.write({"d.a": {1: "x"}}))
    path.feed.run_window(commit=False)
    path.take_over()
    left = path.meta.pending_window("f")
    assert left is not None
    with contextlib.closing(WindowPlanner.open(path.context)) as planner, pytest.raises(InvariantError):
        planner.partitions(left.from_ts, left.to_ts + 1)
    assert path.meta.pending_window("f") == left
    path.drain()
    verdict = path.verify()
    verdict.check()
    assert verdict.rows == 1


def test_a_commit_without_the_results_of_the_window_is_refused(path: WholePath) -> None:
    path.wait_resolved(path.write({"d.a": {1: "x"}, "d.b": {1: "y"}}))
    path.feed.run_window(commit=False)
    before = path.meta.pending_window("f")
    assert before is not None
    for to_ts in (before.to_ts, before.to_ts + 1):
        with pytest.raises(PenstockError, match=r"WINDOW_OUT_OF_ORDER.*lack \['1-0', '2-0'\]"):
            commit_recorded_window(path.context, to_ts, [])
    assert path.meta.pending_window("f") == before
    path.drain()
    path.verify().check()


def test_an_empty_window_needs_no_job_and_is_committed(path: WholePath) -> None:
    path.wait_resolved(path.upstream.current_ts())
    jobs = LocalJobs()
    with contextlib.closing(WindowPlanner.open(path.context)) as planner:
        windows = WindowJobs(path.context, planner, jobs)
        window = windows.plan()
        assert window is not None
        assert list(window.parts) == []
        windows.commit(window, windows.deliver(window))
    assert jobs.done == []
    assert path.meta.get_feed("f").checkpoint_ts == window.to_ts > window.from_ts


def test_people_see_what_a_job_does_and_no_secret(path: WholePath) -> None:
    path.wait_resolved(path.write({"d.a": {1: "x"}, "d.b": {1: "y"}}))
    jobs = LocalJobs()
    with contextlib.closing(WindowPlanner.open(path.context)) as planner:
        windows = WindowJobs(path.context, planner, jobs)
        window = windows.plan()
        assert window is not None
        windows.commit(window, windows.deliver(window))
    (job,) = jobs.done
    tasks = [msgspec.json.decode(task, type=WindowTask) for task in job.tasks]
    nbytes = sum(task.part.nbytes for task in tasks)
    assert nbytes > 0
    assert job.description == f"feed f, window ({window.from_ts}, {window.to_ts}]: 2 tables (d.a, d.b), {nbytes:,} bytes"
    assert job.group == f"penstock feed f epoch {path.epoch}"
    assert [task.context.dispatchers for task in tasks] == [()] * len(tasks)


def test_a_run_that_is_stopped_cancels_its_job_and_the_next_one_delivers_the_same_files(path: WholePath) -> None:
    settings = dataclasses.replace(path.context.settings, flush_interval_s=0.1)
    path.wait_resolved(path.write({"d.a": {1: "x"}}))
    held = HeldJobs()
    run = FeedWindows(held, msgspec.structs.replace(path.context, settings=settings))
    run.start()
    assert held.held.wait(WAIT_S)
    left, delivered = path.meta.pending_window("f"), digests(path.target)
    assert left is not None
    assert run.active
    run.stop(grace_s=0.0)
    assert not run.active
    assert run.error() is None
    assert path.meta.pending_window("f") == left
    again = LocalJobs()
    run = FeedWindows(again, msgspec.structs.replace(path.context, settings=settings))
    run.start()
    path.wait_until("the window is not committed", lambda: path.meta.get_feed("f").checkpoint_ts >= left.to_ts)
    run.stop()
    assert again.done[0].tasks == held.done[0].tasks
    assert digests(path.target) == delivered
    path.drain()
    path.verify().check()


class BrokenJobs(LocalJobs):
    """Cannot write."""

    def run(self, job: Job) -> list[bytes]:
        raise PenstockError("SINK_UNWRITABLE", job.description)


def test_a_run_that_fails_or_lost_its_feed_says_why(path: WholePath) -> None:
    settings = dataclasses.replace(path.context.settings, flush_interval_s=0.1)
    path.wait_resolved(path.write({"d.a": {1: "x"}}))
    before = digests(path.target)
    for jobs, context, code in ((LocalJobs(), path.take_over(), "FENCED"), (BrokenJobs(), path.context, "SINK_UNWRITABLE")):
        run = FeedWindows(jobs, msgspec.structs.replace(context, settings=settings))
        run.start()
        path.wait_until("the run does not end", lambda run=run: run.wait(0.01))
        error = run.error()
        assert error is not None
        assert error.code == code
        run.stop()
    assert digests(path.target) == before
