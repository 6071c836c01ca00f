"""The meta database as planners and committers open it: it moves what a server sees, and knows nothing of configurations."""

from pathlib import Path

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.progress import ProgressDatabase
from penstock.meta.records import DispatcherRecord, FeedRecord
from penstock.model.errors import PenstockError

FIRST = DispatcherRecord("7", 7, "shop", "orders", "{}")


def test_what_is_committed_beside_the_server_is_what_the_server_sees(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "meta.db")
    with MetaDatabase(url) as server, ProgressDatabase(url) as task:
        server.create_feed(FeedRecord("orders", "u", "{}"), [], [FIRST])
        epoch = server.claim("orders", "a", 10_000)
        assert epoch is not None
        recorded = task.begin_window("orders", epoch, 0, 50, "plan")
        assert server.owned_window("orders", epoch) == recorded == task.pending_window("orders")
        assert task.commit_window("orders", epoch, 0, 50, {"7": {"file": 3}}, rows=9, nbytes=90, files=1)
        assert server.progress("orders") == task.progress("orders")
        assert (server.checkpoint_ts("orders"), server.positions("orders", ["7"])) == (50, {"7": {"file": 3}})
        assert [d.range_id for d in task.dispatchers("orders") or ()] == ["7"]
        assert server.release("orders", "a", epoch)
        for fenced in (lambda: task.begin_window("orders", epoch, 50, 60, "plan"), lambda: task.check_owner("orders", epoch)):
            with pytest.raises(PenstockError, match=r"\[FENCED\]"):
                fenced()


def test_a_feed_that_is_not_there_is_an_error_of_its_own(tmp_path: Path) -> None:
    with ProgressDatabase(sqlite_url(tmp_path / "meta.db")) as meta:
        for ask in (meta.progress, meta.checkpoint_ts):
            with pytest.raises(PenstockError, match=r"\[FEED_UNKNOWN\] feed nowhere"):
                ask("nowhere")
        assert (meta.pending_window("nowhere"), meta.dispatchers("nowhere")) == (None, None)


def test_a_feed_that_is_nearly_there_is_named(tmp_path: Path) -> None:
    with MetaDatabase(sqlite_url(tmp_path / "meta.db")) as meta:
        meta.create_feed(FeedRecord("orders", "u", "{}"), [], [FIRST])
        for ask in (meta.progress, meta.checkpoint_ts, meta.get_feed, meta.remove_feed, meta.lives.history):
            with pytest.raises(PenstockError, match=r"\[FEED_UNKNOWN\] feed ordres does not exist; did you mean orders\?"):
                ask("ordres")
