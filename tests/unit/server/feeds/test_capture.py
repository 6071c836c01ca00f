from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.feed.window.assignment import Dispatcher
from penstock.model.errors import PenstockError
from penstock.server.feeds.capture import DispatcherCapture
from testing.paths.whole_path import WholePath

SETUP = [
    "CREATE DATABASE d",
    "CREATE DATABASE x",
    *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in ("d.a", "d.b", "x.c")),
]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[WholePath]:
    with contextlib.closing(WholePath(tmp_path, SETUP)) as opened:
        opened.drain()
        yield opened


def names(dispatchers: tuple[Dispatcher, ...]) -> list[str]:
    return sorted(f"{d.schema}.{d.table}" for d in dispatchers)


def test_spans_are_captured_once_let_go_when_they_end_and_problems_are_shown(path: WholePath) -> None:
    calls: list[str] = []
    broken: set[str] = set()

    def capture(dispatcher: Dispatcher) -> None:
        calls.append(f"{dispatcher.schema}.{dispatcher.table}")
        if calls[-1] in broken:
            raise PenstockError("UPSTREAM_UNREACHABLE", "nobody answers")
        path.log.ensure_span(dispatcher.span, 0)

    watcher = DispatcherCapture(path.context, path.meta, path.log, capture)
    watcher.follow()
    assert sorted(calls) == names(watcher.dispatchers()) == ["d.a", "d.b"]
    path.upstream.execute_ddl("RENAME TABLE d.b TO d.bb, x.c TO d.c")
    broken.add("d.c")
    path.hold_back = True
    path.feed.drain(path.upstream.current_ts(), 30)
    watcher.follow()
    # A rename does not make another dispatcher; a table that came does.
    assert calls[2:] == ["d.c"]
    assert names(watcher.dispatchers()) == ["d.a", "d.bb"]
    assert len(watcher.problems()) == 1
    assert "d.c: [UPSTREAM_UNREACHABLE]" in watcher.problems()[0]
    broken.clear()
    watcher.follow()
    assert (calls[3:], watcher.problems()) == (["d.c"], ())
    path.hold_back = False
    path.drain()
    watcher.follow()
    assert calls[4:] == []
    gone = next(d.span.span_id for d in watcher.dispatchers() if d.table == "a")
    assert gone in {s.span_id for s in path.log.status()}
    path.upstream.execute_ddl("DROP TABLE d.a")
    path.drain()
    watcher.follow()
    assert names(watcher.dispatchers()) == ["d.bb", "d.c"]
    assert gone not in {s.span_id for s in path.log.status()}
    assert all(not d.with_state for d in watcher.dispatchers())
    before = path.meta.dispatchers_mark("f")
    path.drain()
    assert path.meta.dispatchers_mark("f") == before
