"""A task's steps are delivered to a sink: in order, and held up by its spool."""

import threading
from collections.abc import Iterator

import pytest

from penstock.feed.window.delivery import deliver
from penstock.feed.window.steps import WorkEnd, WorkStep
from penstock.model.errors import PenstockError
from penstock.sink.contract import DispatcherId, DispatcherResult
from penstock.sink.storage.sink import StorageSink
from penstock.sink.storage.spool.spool import SpoolSettings
from testing.paths.sink_rig import WAIT_S, D, closing_sinks, open_sink, rows, settings_of, work
from testing.paths.storage_target import ScriptedTarget
from testing.twins.object_store import Fault, FaultRule


@pytest.fixture
def made() -> Iterator[list[StorageSink]]:
    with closing_sinks() as sinks:
        yield sinks


def steps(parts: list[DispatcherId], events: int, rows_each: int = 20) -> Iterator[WorkStep]:
    for part in parts:
        yield work(part)
        for n in range(events):
            yield rows(n * rows_each, rows_each)
        yield WorkEnd()


def test_a_task_delivers_dispatchers_one_after_the_other_and_waits_at_the_end(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    held = target.script(FaultRule("create", Fault.HOLD, "/t1/", times=100))
    sink = open_sink(made, target, settings_of())
    parts = [DispatcherId(n) for n in range(1, 6)]
    results: list[DispatcherResult] = []
    task = threading.Thread(target=lambda: results.extend(deliver(sink, steps(parts, 10))))
    task.start()
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if held.held.is_set() and any("/t5/" in path and "index" in path for _, path in target.calls):
            break
        pause.wait(0.01)
    # The first dispatcher hangs, the last one has files already.
    assert held.held.is_set()
    assert task.is_alive()
    held.times = 0
    held.release.set()
    task.join(WAIT_S)
    assert [(r.dispatcher, r.rows) for r in results] == [(part, 200) for part in parts]


def test_a_task_is_held_up_by_a_full_spool_and_not_by_a_failed_one(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    held = target.script(FaultRule("create", Fault.HOLD, "CDC"))
    target.script(FaultRule("create", Fault.FAIL, "CDC"))
    sink = open_sink(made, target, settings_of(), spool=SpoolSettings(quota_bytes=16 << 10))
    read: list[int] = []
    errors: list[BaseException] = []

    def counted() -> Iterator[WorkStep]:
        for number, row in enumerate(steps([D], 2000)):
            read.append(number)
            yield row

    def run() -> None:
        try:
            deliver(sink, counted())
        except PenstockError as error:
            errors.append(error)

    task = threading.Thread(target=run)
    task.start()
    assert held.held.wait(WAIT_S)
    pause = threading.Event()
    before = -1
    while before != len(read):
        before = len(read)
        pause.wait(0.3)
    # What is in the spool and what the gate lets wait, and no more.
    assert 60 < len(read) < 200
    # The held file is put now, the next one fails: the task sees it although nobody wakes it any more.
    held.release.set()
    task.join(WAIT_S)
    assert [error.code for error in errors] == ["SINK_UNAVAILABLE"]  # type: ignore[attr-defined]
