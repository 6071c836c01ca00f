from __future__ import annotations

import logging
import threading

import pytest

from penstock.model.errors import PenstockError
from penstock.server.health.watch import LOOK_S, PATIENCE_S, ComponentHealth, HealthWatch
from testing.servers.waiting import wait_until
from testing.twins.clock import SimulatedClock


def test_each_component_is_looked_at_and_what_it_raises_is_its_state(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = [PenstockError("META_UNAVAILABLE", "mysql://u:hunter2@db: gone"), OSError("no route"), ValueError()]

    def look() -> ComponentHealth:
        if errors:
            raise errors.pop(0)
        return ComponentHealth(ok=True, facts={"n": 1})

    watch = HealthWatch({"a": look}, SimulatedClock())
    assert watch.components()["a"].detail == "it was not looked at yet"
    found = []
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            watch.look("a")
            found.append(watch.components()["a"])
    assert [one.ok for one in found] == [False, False, False, True]
    assert (found[0].detail.startswith("[META_UNAVAILABLE]"), "hunter2" in found[0].detail, bool(found[0].hint)) == (True, False, True)
    assert found[1].detail == "OSError: no route"
    assert found[3].facts == {"n": 1}
    assert [record.message for record in caplog.records] == ["component is not well", "component is well again"], "once each"


def test_a_look_that_hangs_is_noticed_and_holds_up_nobody() -> None:
    clock, hang, looked = SimulatedClock(), threading.Event(), threading.Event()

    def hanging() -> ComponentHealth:
        if looked.is_set():
            hang.wait(60)
        looked.set()
        return ComponentHealth(ok=True)

    watch = HealthWatch({"hangs": hanging, "fine": lambda: ComponentHealth(ok=True)}, clock)
    watch.start()
    clock.wait_for_waiters(2)
    assert all(one.ok for one in watch.components().values())

    def noticed() -> bool:
        clock.advance(LOOK_S)
        return not watch.components()["hangs"].ok

    wait_until(noticed, "the hanging look is noticed", 60)
    assert "no answer for" in watch.components()["hangs"].detail
    assert clock.monotonic_s() > PATIENCE_S
    hang.set()
    watch.stop()
