import os
import signal
import subprocess
import sys
import threading

import pytest

from penstock.model.errors import PenstockError
from penstock.model.failpoints import POINTS, Failpoints
from testing.twins.clock import SimulatedClock

WAIT_S = 120


def test_failpoints_act_when_armed_and_only_then() -> None:
    clock = SimulatedClock()
    points = Failpoints("data-put:before=raise@2,index-put:after=raise", clock)
    points.reach("data-put:before")
    points.reach("metadata:before")
    with pytest.raises(PenstockError, match=r"FAILPOINT.*pass 2"):
        points.reach("data-put:before")
    points.reach("data-put:before")
    for _ in range(2):
        with pytest.raises(PenstockError, match="FAILPOINT"):
            points.reach("index-put:after")
    with pytest.raises(PenstockError, match="INTERNAL"):
        points.reach("nonsense")
    points.arm("")
    points.reach("index-put:after")
    points.arm("progress:before=delay:3")
    thread = threading.Thread(target=points.reach, args=("progress:before",))
    thread.start()
    clock.wait_for_waiters(1)
    clock.advance(3)
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("script", ["data-put=kill", "data-put:before", "data-put:before=explode", "data-put:before=kill@x", "a:b=raise"])
def test_scripts_are_checked(script: str) -> None:
    with pytest.raises(PenstockError, match="CONFIG_INVALID"):
        Failpoints(script)


def test_a_failpoint_kills_another_process() -> None:
    script = "from penstock.model.failpoints import reach\nreach('progress:before')\nreach('progress:after')\n"
    environment = os.environ | {"PENSTOCK_FAILPOINTS": "progress:after=kill"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, check=False, timeout=240)
    assert ended.returncode == -signal.SIGKILL
    assert "spool-write:before" in POINTS
