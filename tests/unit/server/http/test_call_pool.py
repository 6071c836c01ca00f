from __future__ import annotations

import threading

import anyio
import pytest

from penstock.model.errors import PenstockError
from penstock.server.http.call_pool import CallPool

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
