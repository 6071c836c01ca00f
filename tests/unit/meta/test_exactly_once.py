"""Random histories of owners, windows and commits against a model that fits in a few lines."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError

LEASE_MS = 10
OWNERS = st.sampled_from(["a", "b", "c"])


class MetaHistory(RuleBasedStateMachine):
    """Every owner keeps the epoch it last got, also when it is lost: that is what a zombie does."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.meta = MetaDatabase(sqlite_url(Path(self._directory.name) / "meta.db"))
        self.now_ms = 1_000
        self.epochs: dict[str, int] = {}
        self.holder: str | None = None
        self.epoch = 0
        self.lease_until_ms = 0
        self.checkpoint_ts = 0
        self.pending: tuple[int, int] | None = None
        self.positions: dict[str, dict[str, int]] = {}
        self.rows = 0

    @initialize()
    def create(self) -> None:
        self.meta.create_feed(FeedRecord("f", "u", "{}"), [])

    @rule(passed_ms=st.integers(1, 15))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule(owner=OWNERS)
    def claim(self, owner: str) -> None:
        got = self.meta.claim("f", owner, LEASE_MS, self.now_ms)
        alive = self.holder is not None and self.lease_until_ms > self.now_ms
        if alive and self.holder != owner:
            assert got is None
            return
        expected = self.epoch if alive else self.epoch + 1
        assert got == expected
        self.holder, self.epoch, self.lease_until_ms = owner, expected, self.now_ms + LEASE_MS
        self.epochs[owner] = expected

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        held = self._holds(owner)
        assert self.meta.release("f", owner, self.epochs.get(owner, 0)) == held
        if held:
            self.holder, self.lease_until_ms = None, 0

    @rule(owner=OWNERS)
    def renew(self, owner: str) -> None:
        held = self._holds(owner)
        assert self.meta.renew(owner, {"f": self.epochs.get(owner, 0)}, LEASE_MS, self.now_ms) == (set() if held else {"f"})
        if held:
            self.lease_until_ms = self.now_ms + LEASE_MS

    @rule(owner=OWNERS, length=st.integers(1, 5))
    def begin(self, owner: str, length: int) -> None:
        start = self.checkpoint_ts
        windows = []
        if self._fenced(owner, lambda epoch: windows.append(self.meta.begin_window("f", epoch, start, start + length, str(length)))):
            self.pending = self.pending or (start, start + length)
            assert (windows[0].from_ts, windows[0].to_ts) == self.pending

    @rule(owner=OWNERS, dispatcher=st.sampled_from(["1-0", "1-1", "2-0"]))
    def commit(self, owner: str, dispatcher: str) -> None:
        if self.pending is None:
            return
        start, end = self.pending
        done = []
        position = {dispatcher: {"end": end}}
        if self._fenced(owner, lambda epoch: done.append(self.meta.commit_window("f", epoch, start, end, position, rows=3))):
            assert done == [True]
            self.checkpoint_ts, self.pending = end, None
            self.positions |= position
            self.rows += 3
            assert self.meta.commit_window("f", self.epoch, start, end, {dispatcher: {"end": -1}}, rows=3) is False

    @invariant()
    def database_and_model_agree(self) -> None:
        if not self.meta.list_feeds():
            return
        progress = self.meta.progress("f")
        assert (progress.checkpoint_ts, progress.positions, progress.rows) == (self.checkpoint_ts, self.positions, self.rows)
        pending = self.meta.pending_window("f")
        assert (None if pending is None else (pending.from_ts, pending.to_ts)) == self.pending

    def teardown(self) -> None:
        self.meta.close()
        self._directory.cleanup()

    def _holds(self, owner: str) -> bool:
        return self.holder == owner and self.epochs.get(owner) == self.epoch

    def _fenced(self, owner: str, call) -> bool:
        """Call with the owner's last epoch; it must succeed for the holder and be fenced for anybody else. Return which it was."""
        if self._holds(owner):
            call(self.epoch)
            return True
        with pytest.raises(PenstockError, match=r"\[FENCED\]"):
            call(self.epochs.get(owner, 0))
        return False


TestMetaHistory = MetaHistory.TestCase
TestMetaHistory.settings = settings(max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
