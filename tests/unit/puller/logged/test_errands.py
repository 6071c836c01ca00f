"""Errands of the reader: who gets what, and that nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from penstock.model.errors import PenstockError
from penstock.puller.logged.errands import Errands
from penstock.puller.logged.span_routes import RefusedError

WAIT_S = 120.0


class Lab:
    def __init__(self) -> None:
        self.woken = threading.Semaphore(0)
        self.errands = Errands(self.woken.release)
        self.pool = ThreadPoolExecutor(4)

    def ask(self, work: Callable[[], int | None], timeout_s: float = WAIT_S) -> Future[int]:
        """Ask from another thread; returns when the reader knows of it."""
        asked = self.pool.submit(self.errands.ask, work, timeout_s)
        assert self.woken.acquire(timeout=WAIT_S)
        return asked


def test_it_runs_in_the_readers_thread_and_again_until_its_time_has_come() -> None:
    lab, ran = Lab(), []

    def work() -> int | None:
        ran.append(threading.current_thread())
        return 5 if len(ran) == 3 else None

    asked = lab.ask(work)
    lab.errands.run()
    lab.errands.run()
    assert not asked.done()
    lab.errands.run()
    assert asked.result(WAIT_S) == 5
    lab.errands.run()
    assert ran == [threading.current_thread()] * 3


def test_what_it_raises_belongs_to_whoever_asked() -> None:
    lab = Lab()

    def broken() -> int:
        raise FileNotFoundError("a part")

    first, second = lab.ask(broken), lab.ask(lambda: 7)
    lab.errands.run()
    assert second.result(WAIT_S) == 7
    with pytest.raises(FileNotFoundError):
        first.result(WAIT_S)


def test_a_refusal_ends_the_reader_and_with_it_everyone_who_waits() -> None:
    lab = Lab()

    def refused() -> int:
        raise RefusedError

    asked = [lab.ask(refused), lab.ask(lambda: 7)]
    with pytest.raises(RefusedError):
        lab.errands.run()
    lab.errands.end()
    for each in asked:
        with pytest.raises(PenstockError, match="CANCELLED"):
            each.result(WAIT_S)
    with pytest.raises(PenstockError, match="CANCELLED"):
        lab.errands.ask(lambda: 7, WAIT_S)


def test_who_waits_too_long_is_told_and_its_errand_is_never_run() -> None:
    lab, ran = Lab(), []
    with pytest.raises(PenstockError, match="CONGESTED"):
        lab.ask(lambda: ran.append(1), timeout_s=0.01).result(WAIT_S)
    lab.errands.run()
    assert ran == []
