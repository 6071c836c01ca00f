from __future__ import annotations

import threading

import anyio
import anyio.to_thread
import pytest

from penstock.model.errors import PenstockError
from penstock.server.http.call_pool import CallPool, SharedCall

WAIT_S = 60.0


def test_so_many_at_once_so_many_wait_and_others_are_told_to_come_back() -> None:
    go_on, lock = threading.Event(), threading.Lock()
    running, most = 0, 0

    def call() -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        assert go_on.wait(WAIT_S)
        with lock:
            running -= 1
        return "done"

    async def scenario() -> list[str]:
        pool, answers = CallPool("x", at_once=2, waiting_max=3), []

        async def one() -> None:
            answers.append(await pool.run(call))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(one)
            # All five have been let in, or wait, when each had its turn in the loop.
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(PenstockError) as refused:
                await pool.run(call)
            assert (refused.value.code, refused.value.detail) == ("API_BUSY", "5 calls to x are under way or wait")
            go_on.set()
        answers.append(await pool.run(lambda: "later"))
        return answers

    assert anyio.run(scenario) == ["done"] * 5 + ["later"]
    assert most <= 2


def test_a_call_that_fails_gives_its_place_back() -> None:
    async def scenario() -> int:
        pool = CallPool("x", 1, 0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await pool.run(lambda: 1 // 0)
        return await pool.run(lambda: 7)

    assert anyio.run(scenario) == 7


def test_a_shared_call_is_made_once_for_all_who_wait_and_begins_after_they_asked() -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    state = ["first"]

    def call() -> str:
        seen = state[0]
        begun.release()
        assert go_on.acquire(timeout=WAIT_S)
        return seen

    async def scenario() -> list[str]:
        shared, answers = SharedCall("x", call), []

        async def one() -> None:
            answers.append(await shared.get())

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            assert await anyio.to_thread.run_sync(lambda: begun.acquire(timeout=WAIT_S))
            # What was changed while the first was under way is seen by all who ask from now on.
            state[0] = "second"
            for _ in range(5):
                group.start_soon(one)
            await anyio.wait_all_tasks_blocked()
            go_on.release(2)
        return answers

    assert anyio.run(scenario) == ["first"] + ["second"] * 5
    assert begun.acquire(timeout=WAIT_S)
    assert not begun.acquire(blocking=False)


def test_a_shared_call_that_fails_fails_for_those_who_waited_only() -> None:
    divisors = [0, 1]

    async def scenario() -> float:
        shared = SharedCall("x", lambda: 7 // divisors.pop(0))
        with pytest.raises(ZeroDivisionError):
            await shared.get()
        return await shared.get()

    assert anyio.run(scenario) == 7
