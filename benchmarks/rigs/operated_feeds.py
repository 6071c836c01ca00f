"""What an operator waits for: from a pause until the feed rests, from a resume until its next window, and for lists of feeds.

The server is real but for Spark: supervisor, runs, planner, sink and commits, windows as local tasks, under load. The bars are shares of
what is allowed: the flush interval and a second for either, and for a long list the time per feed of a short one.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import numpy as np

from benchmarks.report import Bar, say
from penstock.meta.records import NOBODY, RequestedState
from testing.paths.controlled_server import ControlledServer
from testing.paths.whole_path import WholePath
from testing.servers.api_server import ApiServer
from testing.servers.waiting import meanwhile

ROUNDS, ROUNDS_QUICK = 200, 30
FEEDS_FEW, FEEDS_MANY = 10, 1_000
FLUSH_S, SLACK_S = 0.1, 1.0
LISTS = 20
_LOOK_S, _WAIT_S = 0.005, 60.0
_SETUP = ("CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))")


class Operated(NamedTuple):
    """Bars and the figures that they come from."""

    bars: tuple[Bar, ...]
    figures: dict[str, float]


def halting(quick: bool) -> Operated:
    """Measure pauses and resumes of a feed under load, and return their 99th percentiles as shares of what is allowed."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-operated-") as folder:
        path = WholePath(Path(folder), _SETUP)
        with contextlib.closing(ControlledServer(path, path.upstream, "dataserver://127.0.0.1:1")) as server:
            server.create("d.a")
            server.delivers(path.write({"d.a": {1: "x"}}))
            with meanwhile(lambda stop: _load(path, stop)):
                times = [_round(server) for _ in range(ROUNDS_QUICK if quick else ROUNDS)]
    pauses, resumes = (float(np.percentile(found, 99)) for found in zip(*times, strict=True))
    allowed_s = FLUSH_S + SLACK_S
    say(f"pause to paused {pauses:.3f} s, resume to the next window {resumes:.3f} s, 99th percentile; allowed {allowed_s:.1f} s")
    bars = (
        Bar("pause to paused, 99th percentile, to flush-interval + 1 s", pauses / allowed_s, 1.0, at_least=False),
        Bar("resume to the next window, 99th percentile, to flush-interval + 1 s", resumes / allowed_s, 1.0, at_least=False),
    )
    return Operated(bars, {"pause_s_p99": round(pauses, 4), "resume_s_p99": round(resumes, 4)})


def listing() -> Operated:
    """Measure lists of few and of many feeds over the API, and return the time per feed of the long one to that of the short one."""
    few, many = (_list_seconds(count) for count in (FEEDS_FEW, FEEDS_MANY))
    say(f"listing {FEEDS_FEW} feeds {few * 1000:.1f} ms, {FEEDS_MANY} feeds {many * 1000:.1f} ms")
    bar = Bar(f"time per feed in a list of {FEEDS_MANY} to one of {FEEDS_FEW}", many / few * FEEDS_FEW / FEEDS_MANY, 1.0, at_least=False)
    return Operated((bar,), {"list_few_ms": round(few * 1000, 2), "list_many_ms": round(many * 1000, 2)})


def _round(server: ControlledServer) -> tuple[float, float]:
    def seconds(reached: Callable[[], bool]) -> float:
        begun = time.perf_counter()
        while not reached():
            if time.perf_counter() - begun > _WAIT_S:
                raise TimeoutError("the feed does not get there")
            time.sleep(_LOOK_S)
        return time.perf_counter() - begun

    server.do("pause")
    paused_s = seconds(lambda: server.meta.get_feed("g").reached_state.value == "paused")
    stood_ts = server.meta.checkpoint_ts("g")
    server.do("resume")
    resumed_s = seconds(lambda: server.meta.checkpoint_ts("g") > stood_ts)
    return paused_s, resumed_s


def _load(path: WholePath, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(0.01):
        number += 1
        path.write({"d.a": {number % 1_000: str(number)}})


def _list_seconds(count: int) -> float:
    with contextlib.ExitStack() as parts:
        folder = parts.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-listed-"))
        server = parts.enter_context(ApiServer(Path(folder), "shop.orders"))
        headers = server.headers
        client = parts.enter_context(httpx.Client(base_url=f"{server.url}/api/v1", headers=headers, trust_env=False, timeout=_WAIT_S))
        client.post("/feeds", json={"name": "f0", "tables": ["shop.*"], "sink": f"s3://bench-{count}/f0"}).raise_for_status()
        # A feed that rests costs the supervisor nothing.
        server.meta.lives.request("f0", RequestedState.PAUSED, NOBODY)
        model, tables = server.meta.get_feed("f0"), server.meta.feed_tables("f0")
        for name in (f"f{at}" for at in range(1, count)):
            own = [msgspec.structs.replace(table, subscribe_name=name) for table in tables]
            server.meta.create_feed(msgspec.structs.replace(model, name=name, uuid=str(uuid.uuid4())), own, [])
            server.meta.lives.request(name, RequestedState.PAUSED, NOBODY)
        times = []
        for _ in range(LISTS):
            begun = time.perf_counter()
            found = client.get("/feeds").raise_for_status().json()["feeds"]
            times.append(time.perf_counter() - begun)
            if len(found) != count:
                raise AssertionError(f"{len(found)} feeds are listed, not {count}")
        return min(times)
